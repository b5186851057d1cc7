"""The job archive asked over HTTP: the same answers as those of the file, for own jobs."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from colmet.commands import archives
from colmet.commands.archives import RemoteArchive
from colmet.commands.remote import InterfaceClient
from colmet.common.errors import ColmetError
from colmet.jobs.archive.queries import GROUPS, JobFilter, QueryError
from colmet.web.access import Access
from colmet.web.reports import report_of
from colmet.web.store import EmptyHistory
from colmet.web.stored_models import VALUES
from colmet.web.stored_routes import Stored
from tests.support.web_client import basic
from tests.support.web_facts import MadeUpFacts
from tests.support.web_server import running
from tests.support.web_store import NOW, archive_in
from tests.support.web_users import users  # noqa: F401 - a fixture

OWNERS = [(n + 1, ("alice", "bob")[n % 5 == 0]) for n in range(60)]
THEIRS = 1


@pytest.fixture(scope="module")
def opener(tmp_path_factory):
    return archive_in(tmp_path_factory.mktemp("archive") / "a.sqlite", OWNERS)


@pytest.fixture(scope="module")
def url(opener, users):  # noqa: F811 - the fixture
    access = Access(users, is_member=lambda *_: False)
    stored = Stored(lambda query: report_of(EmptyHistory, query, NOW, opener), archive=opener)
    with running(MadeUpFacts(4, 4), access=access, stored=stored) as one:
        yield f"http://127.0.0.1:{one.port}"


@pytest.fixture
def archive(opener):
    with opener() as opened:
        yield opened


def asked(url, user):
    return RemoteArchive(InterfaceClient(url, basic(user, user[0])[1]))


@pytest.mark.parametrize("page", [1000, 7])
@pytest.mark.parametrize(
    "where",
    [
        JobFilter(),
        JobFilter(states=["done", "failed"]),
        JobFilter(users=["alice"], efficiency_below=0.5),
        JobFilter(queues=["long"], since=1_770_000_000.0, until=1_790_000_000.0),
        JobFilter(jobs=[3]),
        JobFilter(jobs=[5, 3, 9999, 12]),
        JobFilter(name="RUN1", rule="cpu-low"),
        JobFilter(task="17_99"),
    ],
)
def test_lists_are_those_of_the_file(url, archive, monkeypatch, where, page):
    monkeypatch.setattr(archives, "PAGE", page)
    names = [*VALUES]
    for order in (("start", True), ("cpu_ratio", False), ("user", True)):
        expected = archive.jobs(where, names, *order, 3, 40)
        with asked(url, "root") as read:
            assert read.jobs(where, names, *order, 3, 40) == expected
    mine = archive.jobs(where._replace(users=["alice"]), ["job", "user"], limit=1000)
    with asked(url, "alice") as read:
        assert read.jobs(where._replace(users=[]), ["job", "user"], limit=1000) == mine


@pytest.mark.parametrize("by", [*[[one] for one in GROUPS if one != "day"], ["user", "month"]])
def test_usage_is_that_of_the_file(url, archive, by):
    with asked(url, "root") as read:
        assert read.usage(JobFilter(), by) == archive.usage(JobFilter(), by)
    with asked(url, "alice") as read:
        assert read.usage(JobFilter(), by) == archive.usage(JobFilter(users=["alice"]), by)


def test_one_job_is_that_of_the_file_and_that_of_another_is_unknown(url, archive):
    with asked(url, "alice") as read:
        found, expected = read.job(3), archive.job(3)
        assert found.starts == expected.starts and len(found.hosts) == len(expected.hosts)
        assert all(found.summary[name] == expected.summary[name] for name in ("job", "state", "core_s", "user"))
        assert read.job(THEIRS) is None and read.job(9999) is None
        assert read.jobs(JobFilter(jobs=[THEIRS])).total == 0


def test_questions_that_cannot_be_sent_are_refused(url):
    with asked(url, "alice") as read:
        assert read.jobs(JobFilter(), ["job"], limit=0) == (48, [])
        for where in (JobFilter(users=["a,b"]), JobFilter(projects=["a,b"]), JobFilter(states=["none"])):
            with pytest.raises(QueryError):
                read.jobs(where)
        with pytest.raises(QueryError):
            read.usage(JobFilter(), ["none"])


@pytest.fixture
def run_as(run, monkeypatch, tmp_path, url):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("COLMET_TOKEN", raising=False)

    def run_as(user, *argv):
        assert run("login", url, "-u", user, "--password-stdin", stdin=f"{user[0]}\n")[0] == 0
        return run(*argv, "--url", url)

    return run_as


@pytest.mark.parametrize("more", [("--all-users",), ("-u", "bob"), ("-u", "bob", "-u", "alice")])
@pytest.mark.parametrize("command", ["jobs", "usage"])
def test_commands_refuse_the_jobs_of_others(run_as, command, more):
    status, out, err = run_as("alice", command, *more)
    assert status in (1, 2) and not out
    assert "alice sees the own jobs only" in err
    assert run_as("root", command, *more)[0] == 0


def test_a_leader_sees_all_jobs_of_the_project(run_as, archive, monkeypatch):
    users_of = defaultdict(set)
    for row in archive.jobs(JobFilter(), ["project", "user"], limit=1000).rows:
        users_of[row["project"]].add(row["user"])
    led = next(project for project, names in users_of.items() if project and len(names) == 2)
    monkeypatch.setattr("colmet.web.credentials.Leaders.projects", lambda _, user: frozenset({led}))
    for words in (("--project", led), ("--project", led, "--all-users")):
        status, out, err = run_as("alice", "jobs", "--json", "--limit", "1000", *words)
        assert (status, err) == (0, "")
        assert {row["user"] for row in json.loads(out)["jobs"]} == {"alice", "bob"}
    status, _, err = run_as("alice", "jobs", "--all-users")
    assert status == 2 and "alice sees the own jobs only" in err and f"and leads {led}: --project" in err


@pytest.mark.parametrize("more", [(), ("-u", "alice")])
def test_commands_show_a_user_the_own_jobs_and_an_administrator_all(run_as, more):
    status, out, err = run_as("alice", "jobs", "--json", "--limit", "1000", *more)
    assert status == 0 and {row["user"] for row in json.loads(out)["jobs"]} == {"alice"}
    assert err == "jobs of alice only\n"
    assert json.loads(out)["total"] == 48
    status, out, _ = run_as("alice", "usage", "--by", "user", "--since", "2026-01-01", "--json", *more)
    assert status == 0 and [group["user"] for group in json.loads(out)["groups"]] == ["alice"]
    assert run_as("alice", "usage", "--by", "project", *more)[1].endswith("\njobs of alice only\n")
    _, out, _ = run_as("alice", "jobs", "-j", str(THEIRS), *more)
    assert out == run_as("alice", "jobs", "-j", "9999", *more)[1] == "no jobs\njobs of alice only\n"
    status, out, _ = run_as("root", "jobs", "--csv", "--columns", "job,user", "--all-users")
    assert status == 0 and out.splitlines()[1:] and ",bob" in out and ",alice" in out


def test_a_report_from_the_archive_comes_over_http_to_its_user_alone(run_as, tmp_path):
    status, out, err = run_as("alice", "report", "3", "--json")
    found = json.loads(out)
    assert (status, err) == (0, "") and (found["user"], found["source"]) == ("alice", "archive")
    assert "Made from the job archive" in run_as("alice", "report", "3")[1]
    for kind, start in (("html", b"<!DOCTYPE html>"), ("png", b"\x89PNG")):
        path = tmp_path / f"a.{kind}"
        assert run_as("alice", "report", "3", f"--{kind}", str(path))[:2] == (0, "")
        assert path.read_bytes().startswith(start)
    theirs, nobodys = run_as("alice", "report", str(THEIRS)), run_as("alice", "report", "9999")
    assert theirs[:2] == (1, "") and theirs[2].replace(f"job {THEIRS} ", "job 9999 ") == nobodys[2]
    start = str(found["start"])
    assert run_as("alice", "report", "3", "--json", "--start", start)[1] == out
    assert run_as("alice", "report", "3", "--start", str(found["start"] - 1))[0] == 1


def test_a_report_of_several_jobs_over_http_has_the_own_ones(run_as, archive, tmp_path):
    def numbers(user, *argv):
        return sorted(row["job"] for row in json.loads(run_as(user, "report", "--json", *argv)[1])["jobs"])

    assert numbers("root", "1", "3", "6") == [1, 3, 6] and numbers("alice", "1", "3", "6") == [3]
    assert "1, 6" in run_as("alice", "report", "1", "3", "6")[1], "what is not to be seen is named as lacking"
    names = archive.jobs(JobFilter(), ["job", "user", "array"], limit=1000).rows
    array = next(row["array"] for row in names if row["array"] and row["user"] == "alice")
    of_it = {
        user: sorted(r["job"] for r in names if r["array"] == array and r["user"] == user) for user in ("alice", "bob")
    }
    assert numbers("alice", "--array", array) == of_it["alice"]
    assert "jobs of alice only" in run_as("alice", "report", "--state", "done")[1]
    assert numbers("root", "--array", array) == sorted(of_it["alice"] + of_it["bob"])
    for argv in (("--array", array), ("1", "3")):
        page = tmp_path / "a.html"
        assert run_as("alice", "report", *argv, "--html", str(page))[:2] == (0, "")
        text = page.read_text()
        assert text.startswith("<!DOCTYPE html>") and '<th scope="row">' in text and "bob" not in text
    assert run_as("alice", "report", str(THEIRS), "9999")[0] == 1


def test_options_that_exclude_each_other(run_as):
    assert run_as("alice", "jobs", "--archive", "x")[0] == run_as("alice", "usage", "--archive", "x")[0] == 2


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"total": "x", "items": []},
        {"total": 1, "items": [{"job": "x"}]},
        {"total": 1, "items": [1]},
        {"groups": 1},
        {"groups": [{"keys": [], "jobs": 1, "sums": {"core_s": "x"}}]},
        {"job": {}, "advice": None, "hosts": 1, "starts": []},
    ],
)
def test_an_answer_of_another_form_is_an_error(monkeypatch, answer):
    monkeypatch.setattr(InterfaceClient, "get", lambda *_: answer)
    read = RemoteArchive(InterfaceClient("https://head.example.org"))
    for ask in (
        lambda: read.jobs(JobFilter(), ["job"]),
        lambda: read.usage(JobFilter(), ["user"]),
        lambda: read.job(1),
    ):
        with pytest.raises(ColmetError, match="described form"):
            ask()
