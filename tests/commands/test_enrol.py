"""`colmet enrol`: one command for a node, and for five hundred."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket

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


@pytest.mark.slow
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


def test_a_pushed_node_has_its_files_and_another_machine_of_that_address_has_none(folder, tmp_path, capsys):
    """The script for a node's shell runs here, on a machine of that name."""
    (tmp_path / "uname").write_text("#!/bin/sh\necho node-1\n")
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nPATH={tmp_path}:$PATH exec sh -c "$2"\n')
    for name in ("uname", "ssh"):
        (tmp_path / name).chmod(0o755)
    here = tmp_path / "here"
    assert enrol(here, "node-1", "stranger", "--push", "--ssh", str(tmp_path / "ssh")) == 1
    assert "stranger: its name is node-1; its files stay in" in capsys.readouterr().err
    assert os.listdir(here / "enrolled") == ["stranger"], "a node's secret stays on the collector"
    pair = read_pair(f"{folder}/node.secret", "--x")
    assert KnownKeys(f"{here}/nodes", "--x").owner(pair.public) == "node-1" and mode(folder / "node.secret") == 0o600
    assert read_public(f"{folder}/collector.key", "--x") == read_pair(f"{here}/collector.secret", "--x").public


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
