"""The job archive asked over HTTP: the same answers as those of the file, for own jobs."""

from __future__ import annotations

import io
import json

import pytest

from colmet.archive.queries import GROUPS, JobFilter, QueryError
from colmet.commands import colmet, remote_archive
from colmet.commands.remote import InterfaceClient
from colmet.commands.remote_archive import RemoteArchive
from colmet.common.errors import ColmetError
from colmet.web.access import Access
from colmet.web.archive_models import VALUES
from colmet.web.stored_routes import Stored
from tests.support.web_client import basic
from tests.support.web_facts import MadeUpFacts
from tests.support.web_server import running
from tests.support.web_stored import archive_in
from tests.support.web_users import users  # noqa: F401 - a fixture

OWNERS = [(n + 1, ("alice", "bob")[n % 5 == 0]) for n in range(60)]
THEIRS = 1


@pytest.fixture(scope="module")
def opener(tmp_path_factory):
    return archive_in(tmp_path_factory.mktemp("archive") / "a.sqlite", OWNERS)


@pytest.fixture(scope="module")
def url(opener, users):  # noqa: F811 - the fixture
    access = Access(users, is_member=lambda *_: False)
    with running(MadeUpFacts(4, 4), access=access, stored=Stored(archive=opener)) as one:
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
        JobFilter(name="RUN1", rule="cpu-low"),
    ],
)
def test_lists_are_those_of_the_file(url, archive, monkeypatch, where, page):
    monkeypatch.setattr(remote_archive, "PAGE", page)
    names = [*VALUES]
    for order in (("start", True), ("cpu_ratio", False), ("user", True)):
        expected = archive.jobs(where, names, *order, 3, 40)
        with asked(url, "root") as read:
            assert read.jobs(where, names, *order, 3, 40) == expected
    mine = archive.jobs(where._replace(users=["alice"]), ["job", "user"], limit=1000)
    with asked(url, "alice") as read:
        assert read.jobs(where._replace(users=["bob"]), ["job", "user"], limit=1000) == mine


@pytest.mark.parametrize("by", [*[[one] for one in GROUPS if one != "day"], ["user", "month"]])
def test_usage_is_that_of_the_file(url, archive, by):
    with asked(url, "root") as read:
        assert read.usage(JobFilter(), by) == archive.usage(JobFilter(), by)
    with asked(url, "alice") as read:
        assert read.usage(JobFilter(users=["bob"]), by) == archive.usage(JobFilter(users=["alice"]), by)


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
        for where in (JobFilter(jobs=[1, 2]), JobFilter(projects=["a,b"]), JobFilter(states=["none"])):
            with pytest.raises(QueryError):
                read.jobs(where)
        with pytest.raises(QueryError):
            read.usage(JobFilter(), ["none"])


@pytest.fixture
def run(capsys, monkeypatch, tmp_path, url):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("COLMET_TOKEN", raising=False)

    def run(user, *argv):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{user[0]}\n"))
        assert colmet.main(["login", url, "-u", user, "--password-stdin"]) == 0
        capsys.readouterr()
        status = colmet.main([*argv, "--url", url])
        return (status, *capsys.readouterr())

    return run


@pytest.mark.parametrize("more", [(), ("--all-users",), ("-u", "bob"), ("-u", "bob", "-u", "alice")])
def test_commands_show_a_user_the_own_jobs_and_an_administrator_all(run, more):
    status, out, err = run("alice", "jobs", "--json", "--limit", "1000", *more)
    assert status == 0 and {row["user"] for row in json.loads(out)["jobs"]} == {"alice"} and not err
    assert json.loads(out)["total"] == 48
    status, out, _ = run("alice", "usage", "--by", "user", "--since", "2026-01-01", "--json", *more)
    assert status == 0 and [group["user"] for group in json.loads(out)["groups"]] == ["alice"]
    _, out, _ = run("alice", "jobs", "-j", str(THEIRS), *more)
    assert out == run("alice", "jobs", "-j", "9999", *more)[1] == "no jobs\n"
    status, out, _ = run("root", "jobs", "--csv", "--columns", "job,user", "--all-users")
    assert status == 0 and out.splitlines()[1:] and ",bob" in out and ",alice" in out


def test_options_that_exclude_each_other(run):
    assert run("alice", "jobs", "--archive", "x")[0] == run("alice", "usage", "--archive", "x")[0] == 2


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
