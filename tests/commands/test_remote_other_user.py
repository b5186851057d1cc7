"""Commands with --url print the same for bob whether others have jobs or not: see `tests.support.two_worlds`."""

from __future__ import annotations

import contextlib
import importlib
import os

import pytest

from colmet.commands import colmet, remote
from colmet.commands.colmet import COMMANDS
from colmet.web.access import Access
from tests.support import two_worlds
from tests.support.archive_data import YEAR_START
from tests.support.two_worlds import ABSENT, ALIKE, ARRAY, HERS, HERS_RUNNING, HERS_UNMEASURED, MINE, NOBODYS, TWICE
from tests.support.web_server import running
from tests.support.web_users import users  # noqa: F401 - a fixture

THEIRS = (HERS, HERS_RUNNING, HERS_UNMEASURED, NOBODYS, ABSENT, TWICE, MINE)
WHOSE = [("-u", name) for name in ("alice", "bob", *ALIKE) if name and "," not in name]
LONG = ("--since", "2023-01-01", "--until", "2033-01-01")  # or else the time of the question is in the answer
SELECTIONS = [
    *[(), *WHOSE, ("--all-users",), ("--project", "her-project"), ("--queue", "her-queue"), ("--host", "her-node")],
    *[
        ("--name", "her"),
        ("--name", "mine"),
        ("--array", ARRAY),
        ("--array", "901"),
        ("--state", "done"),
        ("--since", str(YEAR_START)),
        ("--until", str(YEAR_START)),
    ],
]
TRIES = {
    "jobs": [
        *[(*LONG, *some, "--json") for some in SELECTIONS],
        *[
            (*LONG, "--csv", "--columns", "job,user,owner,node_joules", "--sort", sort)
            for sort in ("user", "core_s", "job")
        ],
    ],
    "usage": [
        *[(*LONG, *some, "--json") for some in SELECTIONS if not {"--host", "--name", "--array", "--state"} & {*some}],
        *[(*LONG, "--csv", "--by", by) for by in ("user", "host", "project,name", "queue,state", "host,month", "day")],
    ],
    "report": [
        *[(str(job), *form) for job in THEIRS for form in ((), ("--json",))],
        *[(str(job), *form) for job in (HERS, MINE, TWICE) for form in (("--html", "out"), ("--start", "0"))],
        *[(str(HERS), str(MINE), "--json"), (str(HERS), str(ABSENT)), (f"{ARRAY}_7",), ("901_1", "--json")],
        *[("--array", ARRAY), ("--array", "901"), ("--user", "alice"), ("--project", "her-project", "--json")],
    ],
    "extract": [
        *[("-j", str(job), *more) for job in THEIRS for more in ((), ("--list",), ("--host", "her-node"))],
        ("-j", "0", "--host", "her-node"),
    ],
    "plot": [
        *[(str(job), "cpu_usage", "--json") for job in THEIRS],
        *[(str(job), "cpu_usage", "-o", "out.svg") for job in (HERS, MINE, TWICE)],
    ],
    "top": [
        *[("--json", *more) for more in ((), ("--nodes",), *WHOSE)],
        *[("--json", "-j", str(job)) for job in THEIRS],
    ],
    "mem": [("--json",), ("-d",), ("-u", "alice", "--json"), ("-j", str(HERS_RUNNING)), ("--host", "her-node")],
}
OTHERS = {"login", "logout", "notices"}  # these ask for no jobs, or as `jobs` does


@pytest.fixture(scope="module")
def urls(tmp_path_factory, users):  # noqa: F811 - the fixture
    """Interfaces in the world with others, and in that without."""
    with contextlib.ExitStack() as stack:
        found = []
        for with_others in (True, False):
            one = two_worlds.world(tmp_path_factory.mktemp("world"), with_others)
            access = Access(users, is_member=lambda *_: False)
            server = stack.enter_context(running(one.bed.known, access=access, stored=one.stored, gridengine=True))
            found.append(f"http://127.0.0.1:{server.port}")
        yield found


@pytest.fixture
def printed(urls, tmp_path, monkeypatch, run):
    """Run a command as a user in both worlds: for each its status, what it printed, and what it wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    tokens = {}

    def printed(user, *argv):
        found = []
        for url in urls:
            if (user, url) not in tokens:
                assert run("login", url, "-u", user, "--password-stdin", stdin=f"{user[0]}\n")[0] == 0
                tokens[user, url] = remote.find_login(url).secret
            monkeypatch.setenv("COLMET_TOKEN", tokens[user, url])
            status, out, err = run(*argv, *([url] if argv[0] == "mem" else ["--url", url]))
            written = b""
            for name in set(os.listdir()) - {"config"}:
                written += (tmp_path / name).read_bytes()
                os.unlink(name)
            place = url.partition("//")[2]
            found.append((status, out.replace(place, "HOST"), err.replace(place, "HOST"), written))
        return found

    return printed


def test_every_command_that_asks_an_interface_is_tried():
    found = set()
    for name, command in COMMANDS.items():
        parser = colmet.build_command_parser(name, command, importlib.import_module(command.module))
        found.update([name for action in parser.actions if action.dest == "url"])
    assert found == {*TRIES, *OTHERS}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "tries"), sorted(TRIES.items()))
def test_bob_is_shown_the_same_whether_others_have_jobs_or_not(printed, command, tries):
    statuses, is_seen = set(), False
    for argv in tries:
        shown, expected = printed("bob", command, *argv)
        assert shown == expected, argv
        statuses.add(shown[0])
        refusals = ("bob sees the own jobs only", "usage is not by")
        assert shown[0] != 2 or any(text in shown[2] for text in refusals), (argv, shown)
        if not is_seen:
            seen, unseen = printed("root", command, *argv)
            is_seen = seen[0] == 0 and seen != unseen
    assert 0 in statuses, "bob is shown nothing: the test tests nothing"
    assert is_seen, "an administrator sees no difference: the test tests nothing"
