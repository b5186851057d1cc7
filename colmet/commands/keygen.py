"""Make key pairs: NAME.key is public, NAME.secret must stay on its machine.

To add nodes, use `colmet enrol`: it makes their keys, too. The collector has one pair, each node its own. A node's
files are named as `hostname` prints on the node; its key is valid for data of that host only. Existing files are never
overwritten.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd

from colmet.common.config import cli, keys
from colmet.common.config.keys import PUBLIC, SECRET, check_name, write_pair
from colmet.common.errors import ConfigError
from colmet.common.transport import new_pair

MAX_LIST_BYTES = 16 << 20


def add_options(parser: cli.Parser) -> None:
    """Declare the options."""
    parser.epilog = """\
examples:
  colmet keygen collector
  colmet keygen node node-1 node-2
  colmet keygen node --from-file nodes.txt --directory ./keys

exit status:
  0  done
  2  a name, the list or the directory is not usable, or a file exists"""
    parser.add_argument("role", choices=("collector", "node"), help="make keys of a collector, or of nodes")
    add_names(parser, "host names of nodes, or one name of a collector")
    parser.add_argument(
        "--if-missing", action="store_true", help="make only missing files of the collector; existing ones are no error"
    )


def add_names(parser: cli.Parser, help_text: str) -> None:
    """Declare the names and the directory of keys."""
    parser.add_argument("names", metavar="NAME", nargs="*", help=help_text)
    parser.add_argument("--from-file", metavar="FILE", help="read more names from this file, one a line")
    parser.add_argument(
        "--directory", metavar="DIR", default=keys.DIRECTORY, help="directory of keys (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Write the files, and print their names."""
    names = names_of(options)
    if options.role == "collector":
        names = names or ["collector"]
        if len(names) > 1:
            raise ConfigError("one pair is enough: all collectors of a cluster share it")
        if options.if_missing:
            for path in make_collector(options.directory, names[0]):
                print(path)
            return 0
    elif options.if_missing:
        raise ConfigError("--if-missing is for the collector's pair; `colmet enrol` makes what nodes lack")
    if not names:
        raise ConfigError("give the host names of the nodes, or --from-file FILE")
    if len(set(names)) < len(names):
        raise ConfigError("a name is given twice")
    for name in names:
        check_name(name)
        for suffix in (PUBLIC, SECRET):
            if os.path.lexists(path := os.path.join(options.directory, name + suffix)):
                raise ConfigError(f"{path} is there already; move it away to have another key for {name}")
    make_directory(options.directory)
    for name in names:
        print(*write_pair(options.directory, name, new_pair()))
    return 0


def make_collector(directory: str, name: str = "collector") -> list[str]:
    """Make the missing parts of the collector's key pair and the directory of nodes' keys; return the new paths."""
    made = []
    nodes, public, secret = (os.path.join(directory, one) for one in (keys.NODES, name + PUBLIC, name + SECRET))
    if not os.path.isdir(nodes):
        make_directory(nodes)
        made.append(nodes)
    if not os.path.lexists(secret):
        # the secret belongs to the user of the collector's unit, if there is one and the system permits it
        pair, owner = new_pair(), -1
        with contextlib.suppress(KeyError):
            owner = pwd.getpwnam(keys.SERVICE_USER).pw_uid
        keys.write_secret(secret, name, pair, owner)
        made.append(secret)
        keys.write_public(public, name, [pair.public], keys.read_uris(public))
        made.append(public)
    elif not os.path.lexists(public):
        pair = keys.read_pair(secret, "the collector's secret", os.stat(secret).st_uid)
        keys.write_public(public, name, [pair.public])
        made.append(public)
    return made


def make_directory(path: str, mode: int = 0o755) -> None:
    """Make a directory and those above it, independent of the umask; an existing one is unchanged."""
    if os.path.isdir(path):
        return
    make_directory(os.path.dirname(os.path.abspath(path)))
    try:
        os.mkdir(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(descriptor, mode)  # by its path, it may be another one by now
        finally:
            os.close(descriptor)
    except OSError as err:
        raise ConfigError(f"{path}: {err.strerror}") from err


def names_of(options: argparse.Namespace) -> list[str]:
    """Return the given names, and those in the file: one a line, with comments after ``#``."""
    path, names = options.from_file, list(options.names)
    if not path:
        return names
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(MAX_LIST_BYTES)
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"--from-file {path}: {err}") from err
    return names + [name for line in text.splitlines() if (name := line.partition("#")[0].strip())]
