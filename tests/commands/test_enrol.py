"""`colmet enrol`: one command for a node, and for five hundred; and a cluster that is set up with it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colmet.collector import main as collector_main
from colmet.commands.colmet import main
from colmet.common.config import keys
from colmet.common.config.configuration import Configuration
from colmet.common.config.keys import KnownKeys, read_pair, read_public, read_uris
from colmet.common.errors import ConfigError
from colmet.common.transport import authenticator, curve
from colmet.node import main as node_main
from colmet.node.delivery import link

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """In the place of /etc/colmet/keys."""
    monkeypatch.setattr(keys, "DIRECTORY", str(tmp_path / "keys"))
    return tmp_path / "keys"


def enrol(folder, *arguments):
    return main(["enrol", *arguments, "--directory", str(folder)])


def mode(path):
    return path.stat().st_mode & 0o777


def test_a_node_is_added_by_one_command_which_can_be_repeated(folder, capsys):
    assert enrol(folder, "node-1", "--collector", "tcp://head:5556") == 0
    printed = capsys.readouterr().out
    assert f"enrolled node-1 {folder}/enrolled/node-1\n" in printed and "nodes send to tcp://head:5556\n" in printed
    assert f"made {folder}/collector.secret\n" in printed and "restart colmet-collector" in printed
    mine = folder / "enrolled/node-1"
    pair = read_pair(f"{mine}/node.secret", "--x")
    assert curve.check_pair(pair, "--x") and KnownKeys(f"{folder}/nodes", "--x").owner(pair.public) == "node-1"
    assert read_uris(f"{mine}/collector.key") == ["tcp://head:5556"]
    assert read_public(f"{mine}/collector.key", "--x") == read_pair(f"{folder}/collector.secret", "--x").public
    assert (mode(mine), mode(mine / "node.secret"), mode(mine / "collector.key")) == (0o700, 0o600, 0o644)
    assert (mode(folder), mode(folder / "nodes"), mode(folder / "collector.secret")) == (0o755, 0o755, 0o600)
    assert pair.secret not in printed

    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert enrol(folder, "node-1") == 0
    assert capsys.readouterr().out == "unchanged node-1\n"
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before

    shutil.rmtree(mine)  # it was copied, and the secret is not needed here any more
    assert enrol(folder, "node-1", "node-2") == 0
    assert capsys.readouterr().out == f"unchanged node-1\nenrolled node-2 {folder}/enrolled/node-2\n"
    assert not mine.exists()


def test_five_hundred_nodes_of_a_list(folder, tmp_path, capsys):
    names = [f"node-{n}" for n in range(500)]
    (tmp_path / "list").write_text("# all\n" + "\n".join(names))
    assert enrol(folder, "--from-file", f"{tmp_path}/list") == 0
    assert len(re.findall(r"^enrolled ", capsys.readouterr().out, re.M)) == 500
    assert len(KnownKeys(f"{folder}/nodes", "--x")) == 500 == len(os.listdir(folder / "enrolled"))
    assert enrol(folder, "--from-file", f"{tmp_path}/list") == 0
    assert capsys.readouterr().out == "".join([f"unchanged {name}\n" for name in names])


def test_what_a_crash_leaves_behind_is_completed(folder, capsys):
    enrol(folder, "node-1")
    for gone in ("nodes/node-1.key", "enrolled/node-1/collector.key", "collector.key"):
        (folder / gone).unlink()
    secret = (folder / "enrolled/node-1/node.secret").read_text()
    assert enrol(folder, "node-1") == 0
    assert f"enrolled node-1 {folder}/enrolled/node-1\n" in capsys.readouterr().out
    assert secret == (folder / "enrolled/node-1/node.secret").read_text()
    pair = read_pair(f"{folder}/enrolled/node-1/node.secret", "--x")
    assert KnownKeys(f"{folder}/nodes", "--x").owner(pair.public) == "node-1"
    assert (folder / "enrolled/node-1/collector.key").exists()


def test_keys_are_replaced_and_the_address_of_the_collector_is_another(folder, capsys):
    enrol(folder, "node-1")
    before = read_pair(f"{folder}/enrolled/node-1/node.secret", "--x").public
    assert read_uris(f"{folder}/collector.key") == [f"tcp://{socket.gethostname()}:5556"]
    assert enrol(folder, "node-1", "--replace", "--collector", "tcp://a:1", "--collector", "tcp://b:1") == 0
    known = KnownKeys(f"{folder}/nodes", "--x")
    assert known.owner(before) is None and len(known) == 1
    assert read_uris(f"{folder}/enrolled/node-1/collector.key") == ["tcp://a:1", "tcp://b:1"]
    (folder / "nodes/node-1.key").write_text((folder / "collector.key").read_text())
    assert enrol(folder, "node-1") == 2
    assert "do not belong together; --replace" in capsys.readouterr().err


def test_a_node_that_cannot_be_pushed_keeps_no_other_from_its_files(folder, tmp_path, capsys):
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\ntest "$1" != down || { echo unreachable >&2; exit 255; }\ncat >/dev/null\n')
    ssh.chmod(0o755)
    assert enrol(folder, "down", "lost", "up") == 0
    (folder / "enrolled/lost/node.secret").unlink()
    assert enrol(folder, "down", "lost", "up", "--push", "--ssh", str(ssh)) == 1
    printed = capsys.readouterr()
    assert "pushed up\n" in printed.out and not (folder / "enrolled/up").exists()
    assert "down: unreachable; its files stay" in printed.err
    assert f"lost: {folder}/enrolled/lost/node.secret: No such file" in printed.err
    assert (folder / "enrolled/down/node.secret").exists()


def test_a_folder_that_is_named_from_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert enrol("of/keys", "node-1") == 0
    assert (tmp_path / "of/keys/enrolled/node-1/node.secret").exists()


def test_this_machines_own_node_has_its_files_at_once(folder):
    name = socket.gethostname()
    assert enrol(folder, name) == 0
    pair = read_pair(f"{folder}/node.secret", "--x")
    assert KnownKeys(f"{folder}/nodes", "--x").owner(pair.public) == name and not os.listdir(folder / "enrolled")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "give the host names"),
        (["../x"], "not the name of a host"),
        (["n1", "--collector", "head"], "give tcp://HOST:PORT"),
        (["n1", "--collector", 'ipc://"x'], "not an address"),
        (["--from-file", "/nonexistent"], "No such file"),
    ],
)
def test_what_cannot_be_is_refused(folder, capsys, arguments, why):
    assert enrol(folder, *arguments) == 2
    assert why in capsys.readouterr().err and not (folder / "enrolled/n1").exists()


def test_keygen_makes_the_collectors_pair_once_and_what_is_missing(folder, capsys):
    def keygen():
        assert main(["keygen", "collector", "--if-missing", "--directory", str(folder)]) == 0
        return capsys.readouterr().out.split()

    assert keygen() == [f"{folder}/nodes", f"{folder}/collector.secret", f"{folder}/collector.key"]
    content = (folder / "collector.secret").read_text()
    assert keygen() == [] and (folder / "collector.secret").read_text() == content
    public = (folder / "collector.key").read_text()
    (folder / "collector.key").unlink()
    assert keygen() == [f"{folder}/collector.key"] and (folder / "collector.key").read_text() == public


@pytest.mark.usefixtures("other_owner")
def test_the_collectors_secret_is_its_users_and_root_may_use_it_too(folder, monkeypatch):
    monkeypatch.setattr(keys, "SERVICE_USER", "nobody")
    assert main(["keygen", "collector", "--if-missing", "--directory", str(folder)]) == 0
    assert (folder / "collector.secret").owner() == "nobody" and mode(folder / "collector.secret") == 0o600
    assert read_pair(f"{folder}/collector.secret", "--x")
    monkeypatch.setattr(keys, "SERVICE_USER", "nobody-else")
    with pytest.raises(ConfigError, match="another user"):
        read_pair(f"{folder}/collector.secret", "--x")


@pytest.mark.parametrize("code", [errno.EPERM, errno.EINVAL], ids=["an ordinary user", "a rootless container"])
def test_where_the_secret_cannot_be_given_away_it_is_ones_own(folder, monkeypatch, code):
    def refuse(descriptor, owner, group):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(keys, "SERVICE_USER", "nobody")
    monkeypatch.setattr(os, "fchown", refuse)
    assert main(["keygen", "collector", "--if-missing", "--directory", str(folder)]) == 0
    secret = folder / "collector.secret"
    assert secret.stat().st_uid == os.geteuid() and mode(secret) == 0o600
    assert sorted(path.name for path in folder.iterdir()) == ["collector.key", "collector.secret", "nodes"]


# -- files that need no option --


def options_of(module, *argv):
    from colmet.common.daemon.startup import load

    return Configuration(lambda: module.build_parser(load(module.NAMES)), argv).read()


def test_one_configuration_serves_all_nodes_as_the_files_need_no_option(folder):
    enrol(folder, socket.gethostname(), "--collector", "tcp://head:5556")
    node, collector = options_of(node_main), options_of(collector_main, "--enable-stdout-backend")
    assert curve.files(node) == (f"{folder}/node.secret", f"{folder}/collector.key")
    assert authenticator.files(collector) == (f"{folder}/collector.secret", f"{folder}/nodes")
    assert curve.from_options(node) is not None
    assert link.collectors(node) == ["tcp://head:5556"]
    assert link.collectors(options_of(node_main, "--zeromq-uri", "tcp://other:1")) == ["tcp://other:1"]


def test_they_can_be_turned_off(folder):
    enrol(folder, socket.gethostname())
    assert curve.files(options_of(node_main, "--zeromq-curve-secret", "")) is None
    assert authenticator.files(options_of(collector_main, "--zeromq-curve-secret", "")) is None


def test_without_them_all_is_as_it_was(folder):
    assert curve.files(options_of(node_main)) is None and authenticator.files(options_of(collector_main)) is None
    assert link.collectors(options_of(node_main)) == ["tcp://127.0.0.1:5556"]
    assert link.collectors(options_of(node_main, "--zeromq-uri", "")) == []
    folder.mkdir()
    (folder / "collector.key").write_text("x")  # on the collector's machine, whose node has no keys
    (folder / "nodes").mkdir()
    assert curve.files(options_of(node_main)) is None and authenticator.files(options_of(collector_main)) is None


# -- a cluster, with the real commands --

# Machines of one network, each with its own name and /etc/colmet. Arguments: name, folder, command.
MACHINE = """
hostname "$1" && mount --bind "$2/etc" /etc/colmet && mount --bind "$2/run" /run/colmet && shift 2 && exec "$@"
"""
SSH = """#!/bin/sh
# as ssh: the name of the machine, and a command for its shell
to=${{SENT_TO:-$1}}
exec unshare --mount --uts sh -c '{machine}' sh "$to" {folder}/"$to" sh -c "$2"
"""


@pytest.fixture
def cluster(tmp_path, root, mounts):
    """A network namespace; machines in it are made by `Cluster.command`."""
    made = Cluster(tmp_path)
    yield made
    made.close()


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        self.running = []
        self.made = [place for place in ("/etc/colmet", "/run/colmet") if not os.path.isdir(place)]
        for place in self.made:
            os.makedirs(place)  # to mount on
        for name in ("head", "node-1", "node-2", "stranger"):
            for one in ("etc", "run"):
                (folder / name / one).mkdir(parents=True)
            shutil.copy(ROOT / "packaging/etc/node.toml", folder / name / "etc")
        text = (ROOT / "packaging/etc/collector.toml").read_text()
        text = text.replace("/var/lib/colmet/colmet", f"{folder}/data/rows")
        (folder / "head/etc/collector.toml").write_text(text)
        (folder / "data").mkdir()
        self.ssh = folder / "ssh"
        self.ssh.write_text(SSH.format(machine=MACHINE.strip(), folder=folder))
        self.ssh.chmod(0o755)
        # a process that holds the network
        self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up; exec sleep 600"])
        until = time.monotonic() + 10
        while os.readlink(f"/proc/{self.holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            assert time.monotonic() < until
            time.sleep(0.02)

    def command(self, name, *words):
        inside = ["nsenter", "-t", str(self.holder.pid), "--net", "unshare", "--mount", "--uts"]
        return [*inside, "sh", "-c", MACHINE.strip(), "sh", name, str(self.folder / name), *words]

    def run(self, name, *words):
        return subprocess.run(self.command(name, *words), capture_output=True, text=True, timeout=60, check=True).stdout

    def start(self, name, module, *options):
        log = (self.folder / name / f"{module}.log").open("w")
        words = self.command(name, sys.executable, "-m", module, *options)
        with log:
            self.running.append(subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT))

    def log(self, name, module):
        return (self.folder / name / f"{module}.log").read_text()

    def wait_for(self, condition):
        until = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < until, "\n".join([path.read_text() for path in self.folder.glob("*/*.log")])
            time.sleep(0.2)

    def close(self):
        for process in (*self.running, self.holder):
            process.terminate()
        for process in (*self.running, self.holder):
            process.wait(30)
        for place in self.made:
            with contextlib.suppress(OSError):
                os.rmdir(place)


NODE = ("colmet.node.main", "--config", "/etc/colmet/node.toml", "-s", "0.5", "--spool-dir", "", "--state-dir", "")


@pytest.mark.slow
def test_two_nodes_and_a_collector_are_set_up_with_two_commands(cluster):
    """The commands of docs/keys.md: what the package of the collector runs, and `colmet enrol`."""
    colmet = (sys.executable, "-m", "colmet.commands.colmet")
    for name in ("node-1", "node-2", "stranger"):  # their package starts them, and they wait
        cluster.start(name, *NODE)
    cluster.run("head", *colmet, "keygen", "collector", "--if-missing")
    cluster.start("head", "colmet.collector.main", "--config", "/etc/colmet/collector.toml", "-s", "0.2")
    cluster.wait_for(lambda: " listening uri=" in cluster.log("head", "colmet.collector.main"))
    cluster.wait_for(lambda: "no collector is named" in cluster.log("node-2", "colmet.node.main"))
    printed = cluster.run(
        *("head", *colmet, "enrol", "node-1", "node-2", "--collector", "tcp://127.0.0.1:5556"),
        *("--push", "--ssh", str(cluster.ssh)),
    )
    assert re.findall(r"^(\w+) (node-\d)", printed, re.M) == [
        *(("enrolled", "node-1"), ("enrolled", "node-2"), ("pushed", "node-1"), ("pushed", "node-2"))
    ]
    assert not os.listdir(cluster.folder / "head/etc/keys/enrolled"), "a node's secret stays on the collector"

    status = (*colmet, "status", "collector")
    cluster.wait_for(lambda: {"node-1", "node-2"} <= set(re.findall(r"node-\d", cluster.run("head", *status))))
    for name in ("node-1", "node-2"):
        cluster.wait_for(lambda name=name: "collector is there" in cluster.log(name, "colmet.node.main"))
        assert "encryption is off" not in cluster.log(name, "colmet.node.main")
    assert "keys are off" not in cluster.log("head", "colmet.collector.main")
    assert cluster.log("stranger", "colmet.node.main").count("no collector is named") == 1

    printed = subprocess.run(
        cluster.command("head", *colmet, "enrol", "stranger", "--push", "--ssh", f"env SENT_TO=node-1 {cluster.ssh}"),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert printed.returncode == 1 and "stranger: its name is node-1; its files stay in" in printed.stderr
