"""`colmet access`: writes the file of those who may ask the JSON interface."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import grp
import io
import os
import stat
from datetime import datetime, timedelta, timezone

import pytest

from colmet.commands import access as command
from colmet.commands import colmet
from colmet.common.errors import ConfigError
from colmet.web.access import Access
from colmet.web.credentials import Password, Token, _scrypt, token_digest
from tests.support.place import owner_refusal
from tests.support.web_client import basic, bearer


@pytest.fixture(autouse=True)
def cheap(monkeypatch):
    """Passwords that take no time."""

    def make(given):
        if not given:
            raise ValueError("a password has 1 to 1024 characters")
        return Password(2, 1, 1, bytes(16), _scrypt(given, 2, 1, 1, bytes(16)))

    monkeypatch.setattr(command.credentials, "make_password", make)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "users"


def run(monkeypatch, *arguments, stdin=""):
    monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
    return colmet.main(["access", *map(str, arguments)])


def lets_in(file, header):
    return asyncio.run(Access(str(file), is_member=lambda *_: False).visitor([header[1]], "192.0.2.1"))


def test_a_password_from_the_standard_input_lets_in(file, monkeypatch):
    assert run(monkeypatch, file, "add", "alice", "--password-stdin", stdin="secret\nmore\n") == 0
    assert lets_in(file, basic("alice", "secret")).user == "alice"
    assert "secret" not in file.read_text()


def test_a_password_is_asked_twice(file, monkeypatch):
    given = iter(["secret", "secret", "one", "other"])
    monkeypatch.setattr("getpass.getpass", lambda prompt: next(given))
    assert run(monkeypatch, file, "add", "alice", "--group", "admin") == 0
    assert lets_in(file, basic("alice", "secret")).is_admin
    assert run(monkeypatch, file, "add", "alice") == 2
    assert lets_in(file, basic("alice", "secret")).user == "alice"


def test_no_password_can_be_asked_for_without_a_terminal(file, monkeypatch, capsys):
    def ended(prompt):
        raise EOFError

    monkeypatch.setattr("getpass.getpass", ended)
    assert run(monkeypatch, file, "add", "alice") == 2
    assert "--password-stdin" in capsys.readouterr().err
    assert not file.exists()


def test_a_token_is_printed_once_and_lets_in(file, monkeypatch, capsys):
    assert run(monkeypatch, file, "add", "bob", "--group", "admin", "--token", "cron", "--until", "2999-01-01") == 0
    token = capsys.readouterr().out.strip()
    assert lets_in(file, bearer(token))[:2] == ("bob", True)
    assert token not in file.read_text()
    assert run(monkeypatch, file, "list") == 0
    assert capsys.readouterr().out == "bob  token cron until 2999-01-01  admin\n"


def test_a_password_replaces_the_one_before_and_keeps_its_groups(file, monkeypatch):
    run(monkeypatch, file, "add", "alice", "--group", "admin", "--password-stdin", stdin="first\n")
    run(monkeypatch, file, "add", "alice", "--token")
    run(monkeypatch, file, "add", "alice", "--password-stdin", stdin="second\n")
    assert lets_in(file, basic("alice", "second")).is_admin
    assert list(command.listed(str(file))) == ["alice  password  admin", "alice  token -"]


def test_a_second_token_of_the_same_label_is_refused(file, monkeypatch, capsys):
    assert run(monkeypatch, file, "add", "alice", "--token", "cron") == 0
    assert run(monkeypatch, file, "add", "alice", "--token", "cron") == 2
    assert "another label" in capsys.readouterr().err
    assert run(monkeypatch, file, "add", "alice", "--token", "at") == 0


def test_a_name_or_only_one_of_its_tokens_is_removed(file, monkeypatch, capsys):
    run(monkeypatch, file, "add", "alice", "--password-stdin", stdin="secret\n")
    run(monkeypatch, file, "add", "alice", "--token", "cron")
    run(monkeypatch, file, "add", "bob", "--token")
    capsys.readouterr()
    assert run(monkeypatch, file, "remove", "alice", "--token", "cron") == 0
    assert list(command.listed(str(file))) == ["alice  password", "bob    token -"]
    assert run(monkeypatch, file, "remove", "alice") == 0
    assert list(command.listed(str(file))) == ["bob  token -"]
    assert run(monkeypatch, file, "remove", "alice") == 2
    assert "there is no alice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        (["remove", "alice", "--group", "admin"], "--group"),
        (["remove", "alice", "--token", "--until", "2999-01-01"], "--until"),
        (["remove", "alice", "--password-stdin"], "--password-stdin"),
        (["list", "alice"], "NAME"),
        (["list", "--token"], "--token"),
        (["add", "bob", "--until", "2999-01-01", "--password-stdin"], "--until"),
    ],
)
def test_what_would_be_of_no_effect_is_refused(file, monkeypatch, capsys, arguments, argument):
    command.add(str(file), "alice", Token(token_digest("x")), frozenset({"admin"}))
    before = file.read_text()
    assert run(monkeypatch, file, *arguments, stdin="secret\n") == 2
    out, err = capsys.readouterr()
    assert f" has no {argument}" in err and not out
    assert file.read_text() == before


def test_a_token_that_has_ended_already_is_not_made(file, monkeypatch, capsys):
    today = datetime.now(timezone.utc).date()
    assert run(monkeypatch, file, "add", "bob", "--token", "--until", str(today - timedelta(1))) == 2
    assert "is in the past" in capsys.readouterr().err and not file.exists()
    assert run(monkeypatch, file, "add", "bob", "--token", "--until", str(today + timedelta(1))) == 0


def test_comments_and_lines_of_others_stay(file, monkeypatch):
    file.write_text("# ours\n\nbob:sha256$" + "0" * 64 + "\n")
    file.chmod(0o600)
    run(monkeypatch, file, "add", "alice", "--token")
    assert file.read_text().startswith("# ours\n\nbob:sha256$")


def test_rights_and_owner_stay_and_a_new_file_is_not_for_all(file, monkeypatch):
    run(monkeypatch, file, "add", "alice", "--token", "a")
    assert stat.S_IMODE(file.stat().st_mode) in (0o600, 0o640)
    file.chmod(0o640)
    if not owner_refusal():
        os.chown(file, -1, 12345)
    before = file.stat()
    run(monkeypatch, file, "add", "alice", "--token", "b")
    after = file.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino  # exchanged whole
    assert sorted(os.listdir(file.parent)) == [".users.lock", "users"]


@pytest.mark.parametrize(("code", "mode"), [(0, 0o640), (errno.EPERM, 0o600), (errno.EINVAL, 0o600)])
def test_a_new_file_is_for_the_collector_s_group_where_the_system_permits_it(file, monkeypatch, code, mode):
    given = []

    def give(descriptor, owner, group):
        given.append(group)
        if code:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(grp, "getgrnam", lambda name: grp.struct_group((name, "x", 950, [])))
    monkeypatch.setattr(os, "fchown", give)
    run(monkeypatch, file, "add", "alice", "--token", "a")
    assert given == [950] and stat.S_IMODE(file.stat().st_mode) == mode and "alice" in file.read_text()


def test_a_link_stays_a_link(file, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    file.symlink_to(tmp_path / "real" / "users")
    (tmp_path / "real" / "users").touch(0o600)
    run(monkeypatch, file, "add", "alice", "--token")
    assert file.is_symlink() and "alice" in (tmp_path / "real" / "users").read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ["add"],
        ["add", "a:b"],
        ["add", "#a"],
        ["add", "alice", "--group", "a,b"],
        ["add", "alice", "--token", "a b"],
        ["add", "alice", "--token", "--until", "soon"],
        ["add", "alice", "--password-stdin"],
        ["add", "alice", "--token", "--password-stdin"],
        ["remove", "alice"],
        ["list"],
    ],
)
def test_what_cannot_be_done_is_one_line_and_leaves_no_file(file, monkeypatch, capsys, arguments):
    assert run(monkeypatch, file, *arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not file.exists()


def test_a_file_with_an_error_is_not_touched(file, monkeypatch, capsys):
    file.write_text("nonsense\n")
    file.chmod(0o600)
    assert run(monkeypatch, file, "add", "alice", "--token") == 2
    assert "users:1:" in capsys.readouterr().err
    assert file.read_text() == "nonsense\n"


def test_two_do_not_change_it_at_once(file):
    command.add(str(file), "bob", Token(token_digest("x")))
    lock = file.parent / f".{file.name}.lock"
    assert lock.stat().st_mode & 0o777 == 0o600
    descriptor = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another `colmet access` changes it"):
            command.add(str(file), "alice", Token(token_digest("x")))
    finally:
        os.close(descriptor)


def test_who_can_open_the_directory_cannot_keep_it_from_being_changed(file):
    descriptor = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        command.add(str(file), "alice", Token(token_digest("x")))
    finally:
        os.close(descriptor)
    assert "alice" in file.read_text()


def test_a_full_disk_leaves_the_file_of_before(file, monkeypatch):
    command.add(str(file), "alice", Token(token_digest("x")))
    before = file.read_text()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        command.add(str(file), "bob", Token(token_digest("y")))
    assert file.read_text() == before and sorted(os.listdir(file.parent)) == [".users.lock", "users"]
