"""Make a key pair for each node, let the collector accept it, and copy it to the node (--push).

Run it on the collector's machine, as root. NAME is the output of `hostname` on the node. --push copies two files by ssh
to /etc/colmet/keys on the node, and restarts colmet-node there if it runs: node.secret, and collector.key with the
collector's address. Without --push, copy them from /etc/colmet/keys/enrolled/NAME. A node on this machine needs no
copies. Repeating the command is safe: a node keeps its keys.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import io
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Sequence

from colmet.commands.keygen import add_names, make_collector, make_directory, names_of
from colmet.common.config import cli, keys
from colmet.common.config.keys import PUBLIC, SECRET, KeyPair, check_name
from colmet.common.errors import ConfigError
from colmet.common.transport import check_uri, new_pair

ENROLLED = "enrolled"  # in the folder of keys: files to copy, a folder for each node
NODE, COLLECTOR = "node.secret", "collector.key"
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 -l root"
PORT = 5556
PUSHES = 16  # at once
PUSH_S = 120.0  # for one node
# Unpacks the archive on standard input on a node; $1 is the expected name of the node, $2 the folder.
RECEIVE = (
    'set -e; test "$(uname -n)" = "$1" || { echo "its name is $(uname -n)" >&2; exit 1; }; umask 022; mkdir -p "$2"; '
    'tar -xpof - -C "$2"; if [ -d /run/systemd/system ]; then systemctl try-restart colmet-node; fi'
)


def add_options(parser: cli.Parser) -> None:
    """Declare the options."""
    parser.epilog = """\
examples:
  colmet enrol node-1 node-2 --push
  colmet enrol --from-file nodes.txt --collector tcp://head:5556

exit status:
  0  done
  1  a node could not be reached
  2  a name, an address, the list or a file is not usable"""
    add_names(parser, "host names of nodes")
    parser.add_argument(
        "--collector",
        metavar="URI",
        action="append",
        help="address of the collector for the nodes; such as tcp://head:5556; repeatable; kept in collector.key "
        f"(default: the one given before, else tcp://HOST:{PORT} with this machine's name)",
    )
    parser.add_argument(
        "--push",
        action="store_true",
        help="copy each node's files to /etc/colmet/keys there by ssh; restart colmet-node if it runs, and remove the "
        "node's secret here",
    )
    parser.add_argument(
        "--ssh",
        metavar="COMMAND",
        default=SSH,
        help="ssh command of --push; the node's name and a command are appended (default: '%(default)s')",
    )
    parser.add_argument(
        "--replace", action="store_true", help="make new keys for these nodes, and refuse the old ones from then on"
    )


def run(options: argparse.Namespace) -> int:
    """Enrol the nodes, and print the result for each; return the exit status, 1 if one could not be reached."""
    names = names_of(options)
    if not names:
        raise ConfigError("give the host names of the nodes, or --from-file FILE")
    for name in names:
        check_name(name)
    directory, ssh = options.directory, _words(options.ssh)
    for path in make_collector(directory):
        print(f"made {path}")
        if path.endswith(SECRET):
            print("restart colmet-collector: it accepts connections with keys only from then on")
    public, uris = _remember(os.path.join(directory, COLLECTOR), options.collector)
    make_directory(os.path.join(directory, ENROLLED), 0o700)
    pushed = []
    for name in dict.fromkeys(names):
        here = name == socket.gethostname()
        folder = directory if here else os.path.join(directory, ENROLLED, name)
        changed = _enrol(directory, name, folder, options.replace)
        if not here and os.path.isdir(folder):
            changed |= _write_collector(os.path.join(folder, COLLECTOR), public, uris)
            pushed.append(name)
        print(f"enrolled {name} {folder}" if changed else f"unchanged {name}")
    return int(options.push and _push(directory, pushed, ssh) > 0)


def _remember(path: str, given: Sequence[str] | None) -> tuple[str, list[str]]:
    """Return the collector's public key and addresses, and write them to its file."""
    public = keys.read_public(path, "the collector's public key")
    before = keys.read_uris(path)
    uris = list(given or before or [f"tcp://{socket.gethostname()}:{PORT}"])
    for uri in uris:
        check_uri(uri, "--collector")
        if '"' in uri or not uri.isascii() or not uri.isprintable():
            raise ConfigError(f"--collector {uri!r}: not an address")
    if uris != before:
        keys.write_public(path, "collector", [public], uris)
        print(f"nodes send to {' '.join(uris)}")
    return public, uris


def _write_collector(path: str, public: str, uris: Sequence[str]) -> bool:
    """Write the collector's key for a node; return whether the file was missing or different."""
    with contextlib.suppress(ConfigError):
        if keys.read_public(path, COLLECTOR) == public and keys.read_uris(path) == uris:
            return False
    keys.write_public(path, "collector", [public], uris)
    return True


def _enrol(directory: str, name: str, folder: str, replace: bool) -> bool:
    """Make the key pair of a node, unless the collector knows one; return whether something was changed.

    The secret is written first, so the next run can complete it after a crash.
    """
    known, secret = os.path.join(directory, keys.NODES, name + PUBLIC), os.path.join(folder, NODE)
    pair: KeyPair | None = None
    if os.path.lexists(secret) and not replace:
        pair = keys.read_pair(secret, "the node's secret")
    if os.path.lexists(known) and not replace:
        if pair is not None and pair.public != keys.read_public(known, "the node's public key"):
            raise ConfigError(f"{known} and {secret} do not belong together; --replace makes new keys for {name}")
        return False
    if pair is None:
        make_directory(folder, 0o700)
        pair = new_pair()
        keys.write_secret(secret, name, pair, replace=True)
    keys.write_public(known, name, [pair.public])
    return True


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as err:
        raise ConfigError(f"--ssh {command!r}: {err}") from err
    if not words:
        raise ConfigError("--ssh: give a command")
    return words


def _push(directory: str, names: Sequence[str], ssh: Sequence[str]) -> int:
    """Copy the files of nodes to them; return the number of failures."""
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(PUSHES) as pool:
        folders = [os.path.join(directory, ENROLLED, name) for name in names]
        for name, folder, problem in zip(names, folders, pool.map(_push_one, names, folders, [ssh] * len(names))):
            if problem:
                failures += 1
                print(f"colmet enrol: {name}: {problem}; its files stay in {folder}", file=sys.stderr)
            else:
                shutil.rmtree(folder)
                print(f"pushed {name}")
    return failures


def _push_one(name: str, folder: str, ssh: Sequence[str]) -> str:
    """Copy a node's files to it; return the error, "" without one."""
    archive = io.BytesIO()
    try:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for one in (COLLECTOR, NODE):  # the secret last: a waiting node starts when it is there
                info = tar.gettarinfo(os.path.join(folder, one), one)
                info.uid = info.gid = 0
                info.uname = info.gname = "root"
                with open(os.path.join(folder, one), "rb") as file:
                    tar.addfile(info, file)
    except OSError as err:
        return f"{err.filename}: {err.strerror}"
    remote = f"sh -c {shlex.quote(RECEIVE)} colmet {shlex.quote(name)} {keys.DIRECTORY}"
    try:
        command = [*ssh, name, remote]
        done = subprocess.run(command, input=archive.getvalue(), capture_output=True, timeout=PUSH_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {PUSH_S:g} s"
    except OSError as err:
        return f"{ssh[0]}: {err.strerror}"
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {done.returncode}"
    return ""
