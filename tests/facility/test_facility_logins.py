"""Who is logged in, by the real who and last, and who of them is in a group."""

from __future__ import annotations

import errno
import grp
import json
import sys

import pytest

from colmet.facility.deadlines import SourceFailed
from colmet.facility.people import Logins, People, parse_last, plain
from tests.support.facility_machine import Machine

LAST = "bob pts/0\nreboot   system boot  6.1.0-18-amd64\neve pts/1\n\nwtmp begins Sat Nov 21"
COMMAND = (sys.executable, "-m", "colmet.facility.command", "--cluster", "X", "--json-lines")


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    made.log_in("alice", "pts/0", ago_s=60, out_ago_s=30)
    made.log_in("bob", "pts/1", ago_s=120)
    made.log_in("carol", "pts/2", ago_s=7200)
    made.log_in("bob", "pts/3", ago_s=100)
    made.log_in("dave", "pts/4", ago_s=4000, out_ago_s=3000)
    return made


def users(machine, *options, cwd):
    done = machine.run(*COMMAND, *options, cwd=cwd)
    [document] = [json.loads(line) for line in done.stdout.splitlines()]
    assert document["ssh_user_count"] == len(document["users"])
    return document["users"], done.stderr


@pytest.fixture
def here(request):
    return request.config.rootpath


def test_those_of_who_are_listed_once(machine, here):
    assert machine.shell("who | awk '{print $1}'").split() == ["bob", "carol", "bob"]
    assert users(machine, "--ssh", cwd=here) == (["bob", "carol"], "")


def test_those_of_the_last_five_minutes_come_behind_them(machine, here):
    past = machine.shell("/usr/bin/last -w -s -5min | head -n -2 | awk '!seen[$1]++ {print $1}'").split()
    assert sorted(past) == ["alice", "bob"]
    assert users(machine, "--ssh", "--ssh-history", cwd=here) == (["bob", "carol", "alice"], "")


def test_the_alias_lists_them_as_its_model_does(monkeypatch):
    monkeypatch.setattr("colmet.facility.people.WHO", ["echo", "bob pts/0"])
    monkeypatch.setattr("colmet.facility.people.LAST", ["echo", LAST])
    assert Logins(True, 5).users() == ["bob", "eve"]
    assert Logins(True, 5, each_once=False).users() == ["bob", "bob", "reboot", "eve"]


def test_only_members_of_the_group_are_reported(machine, here):
    machine.add_group("atlas", 500, ["bob", "erin", "alice"])
    for name, number, group in (("bob", 1001, 100), ("carol", 1002, 500), ("dave", 1003, 100)):
        machine.add_user(name, number, group)
    found, log = users(machine, "--ssh", "--ssh-history", "--group", "atlas", "-v", cwd=here)
    assert found == ["bob", "carol"]  # carol by the primary group; this machine does not know alice
    assert "users skipped, this machine does not know them: users=1" in log


def test_the_filter_comes_before_other_names(machine, here, tmp_path):
    machine.add_group("atlas", 500, ["bob"])
    machine.add_user("bob", 1001, 100)
    salt = tmp_path / "salt"
    salt.write_text("salt\n")
    salt.chmod(0o600)
    argv = ["--ssh", "--ssh-history", "--salt-file", str(salt), "--group", "atlas"]
    assert users(machine, *argv, cwd=here)[0] == ["07a2341c"]


def test_a_group_that_is_not_there_is_reported(machine, here):
    done = machine.run(*COMMAND, "--ssh", "--group", "atlas", cwd=here, check=False)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.splitlines() == [
        "colmet-facility: error: -g: this machine knows no group 'atlas'; `getent group` lists those that it knows"
    ]


def unanswered(*_):
    raise OSError(errno.EIO, "Input/output error")


def unknown(*_):
    raise KeyError


@pytest.mark.parametrize(
    ("function", "answer", "why"),
    [
        ("os.getgrouplist", unanswered, "does not answer: Input/output error; see `getent passwd root`"),
        ("pwd.getpwnam", unanswered, "does not answer: Input/output error; see `getent passwd root`"),
        ("pwd.getpwuid", unanswered, "does not answer: it does not even know root; see `getent passwd root`"),
        ("pwd.getpwuid", unknown, "does not answer: it does not even know root; see `getent passwd root`"),
    ],
)
def test_where_the_name_service_is_away_nobody_is_taken_for_unknown(monkeypatch, function, answer, why):
    people = People(grp.getgrgid(0).gr_name, plain)
    assert people.shown(["no-such-user"]) == [] and people.unknown == {"no-such-user"}
    monkeypatch.setattr(function, answer)
    with pytest.raises(SourceFailed, match=why):
        people.shown(["daemon", "another-such-user"])
    assert people.unknown == {"no-such-user"}


# -- the forms of their answers --


# Debian 13's `last`, of wtmpdb.
WTMPDB = """bob         pts/0        192.0.2.7        Fri Nov 28 04:01 - still logged in
soft-reboot system boot  6.11.10-amd64    Fri Nov 28 04:00 - still running
reboot      system boot  6.11.10-amd64    Fri Nov 28 03:58 - 04:00  (00:02)

/var/lib/wtmpdb/wtmp.db begins Fri Nov 28 03:58:01 2026
"""


def test_entries_of_the_machine_and_the_start_of_the_file_are_no_logins():
    assert parse_last(WTMPDB) == ["bob"]
    assert parse_last("bob pts/0\nrebootx tty1\n\nwtmp begins Sat Nov 21\n") == ["bob", "rebootx"]
    assert parse_last(LAST) == ["bob", "eve"]
    assert parse_last(LAST, only_users=False) == ["bob", "reboot", "eve"]
    assert parse_last("\nwtmp begins Sat Nov 21\n") == []
    assert parse_last("/var/lib/wtmpdb/wtmp.db has no entries\n") == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo", "cannot parse ''"),
        ("echo 'usage: last [OPTION]'", "cannot parse 'usage: last [OPTION]'"),
        ("printf 'bob pts/0\neve pts/1\n'", "cannot parse 'eve pts/1'"),
        ("exit 1", "logins of the last five minutes are missing: sh"),
    ],
)
def test_without_last_or_in_another_form_the_others_are_reported(monkeypatch, caplog, script, said):
    monkeypatch.setattr("colmet.facility.people.WHO", ["echo", "bob pts/0"])
    monkeypatch.setattr("colmet.facility.people.LAST", ["sh", "-c", script])
    logins = Logins(True, 5)
    assert logins.users() == ["bob"] and logins.failures == 1
    assert said in caplog.text


@pytest.mark.parametrize(
    ("who", "said"),
    [
        (["no-such-who"], "no-such-who: no such program; the users that are logged in are not known"),
        (["sleep", "60"], r"did not end within 0\.2 s and was killed"),
    ],
)
def test_without_who_nothing_can_be_reported(monkeypatch, who, said):
    monkeypatch.setattr("colmet.facility.people.WHO", who)
    with pytest.raises(SourceFailed, match=said):
        Logins(False, 0.2).users()
