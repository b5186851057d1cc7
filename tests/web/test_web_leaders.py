"""Leaders of projects: they see the archived jobs of a project that they ask for, and nothing else of others."""

from __future__ import annotations

import threading

import pytest

from colmet.batch.answers import BatchError
from colmet.batch.coordinators import parse_coordinators
from colmet.common.errors import ConfigError
from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.store import ArchiveStore, Changes
from colmet.web.access import Access
from colmet.web.credentials import Leaders, parse_leaders
from colmet.web.server import build_app
from colmet.web.stored_routes import Stored
from tests.support.waiting import wait_for
from tests.support.web_facts import MadeUpFacts
from tests.support.web_users import ALICE, BOB, ROOT, got, refused

START = 1_767_225_600
# user and project of each job; alice leads physics
JOBS = {1: ("alice", "physics"), 2: ("bob", "physics"), 3: ("bob", "chemistry"), 4: ("alice", "chemistry")}
JOBS |= {5: ("carol", "physics"), 6: ("carol", None)}


@pytest.fixture(scope="module")
def opener(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("leaders") / "a.sqlite")
    store = ArchiveStore(path, writable=True)
    row = {"start": START, "last": START + 10, "is_running": 0, "core_s": 40.0, "wall_s": 10.0, "node_joules": 9.0}
    rows = [{**row, "job": job, "user": user} for job, (user, _) in JOBS.items()]
    store.write(Changes([{**one, "host": f"node-{one['job']}"} for one in rows], rows, {}), None)
    for job, (user, project) in JOBS.items():
        store.database.execute("UPDATE jobs SET owner = ?, project = ? WHERE job = ?", (user, project, job))
    store.close()
    return lambda: LocalArchive(path)


def leaders_file(tmp_path, text, mode=0o640):
    path = tmp_path / "leaders"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.fixture
def app(opener, users, tmp_path):
    access = Access(users, is_member=lambda *_: False, leaders_path=leaders_file(tmp_path, "physics: alice\n"))
    return build_app(MadeUpFacts(4, 4), access, stored=Stored(archive=opener))


def jobs_of(app, query, login):
    page = got(app, f"/api/v1/archive/jobs?columns=job,user,node_joules{query}", login)
    assert page["total"] == len(page["items"])
    assert all(row["node_joules"] is None for row in page["items"]), "the energy of others' nodes"
    assert all(row["user"] == JOBS[row["job"]][0] for row in page["items"])
    return {row["job"] for row in page["items"]}, page["only"]


@pytest.mark.parametrize(
    ("query", "jobs", "only"),
    [
        ("", {1, 4}, "alice"),
        ("&project=physics", {1, 2, 5}, None),
        ("&project=physics&user=bob", {2}, None),
        ("&project=chemistry", {4}, "alice"),
        ("&project=physics,chemistry", {1, 4}, "alice"),
    ],
)
def test_a_leader_sees_the_jobs_of_a_project_that_is_asked_for(app, query, jobs, only):
    assert jobs_of(app, query, ALICE) == (jobs, only)


def test_who_leads_nothing_sees_the_own_jobs_of_a_project(app):
    assert jobs_of(app, "&project=physics", BOB) == ({2}, "bob")
    assert got(app, "/api/v1/archive/jobs", ROOT)["only"] is None


@pytest.mark.parametrize(
    "target",
    [
        *("archive/jobs?user=bob", "archive/jobs?user=alice,bob", "usage?by=month&user=bob", "report?user=bob"),
        *("report.html?user=bob", "jobs?user=bob", "usage?user=bob&project=chemistry", "usage?user=bob&project=art"),
    ],
)
def test_jobs_of_others_are_refused_and_not_answered_with_the_own(app, target):
    answer = refused(app, f"/api/v1/{target}", 403, ALICE)
    assert "alice sees the own jobs only" in answer.json()["error"]
    got(app, f"/api/v1/{target.replace('alice,bob', 'bob').replace('bob', 'alice')}".replace(".html", ""), ALICE)


def test_usage_and_the_report_of_a_project_are_of_all_its_jobs(app):
    found = got(app, "/api/v1/usage?by=user&project=physics", ALICE)
    assert {one["keys"][0]: one["jobs"] for one in found["groups"]} == {"alice": 1, "bob": 1, "carol": 1}
    assert found["only"] is None and got(app, "/api/v1/usage?by=project", ALICE)["only"] == "alice"
    rows = got(app, "/api/v1/report?project=physics", ALICE)["jobs"]
    assert {row["user"] for row in rows} == {"alice", "bob", "carol"}


def test_a_job_of_the_project_has_its_summary_and_no_samples(app):
    assert got(app, "/api/v1/archive/jobs/2", ALICE)["job"]["user"] == "bob"
    assert got(app, "/api/v1/jobs/2/summary", ALICE)["report"]["energy"]["nodes_joules"] is None
    found = got(app, "/api/v1/jobs/2", ALICE)
    assert found["tables"] == {} and found["nodes"] == [] and found["job"]["user"] is None
    for hidden in ("archive/jobs/3", "archive/jobs/6", "jobs/3", "jobs/2/rows?table=cgroup_default", "jobs/2/tables"):
        refused(app, f"/api/v1/{hidden}", 404, ALICE)
    assert got(app, "/api/v1/jobs/3/summary", ALICE)["report"] is None
    refused(app, "/api/v1/archive/jobs/1", 404, BOB)


def test_whoami_names_the_projects(app):
    assert got(app, "/api/v1/whoami", ALICE)["projects"] == ["physics"]
    assert got(app, "/api/v1/whoami", BOB)["projects"] == got(app, "/api/v1/whoami", ROOT)["projects"] == []


# -- the file --


def test_a_file_names_the_leaders_of_each_project(tmp_path):
    path = leaders_file(tmp_path, "# leaders\n\nphysics: alice, bob\nlife sciences:carol\n")
    assert parse_leaders(path)[0] == {"physics": {"alice", "bob"}, "life sciences": {"carol"}}


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("physics\n", 0o640, "leaders:1: it is not PROJECT: USER, USER"),
        (": alice\n", 0o640, "it is not PROJECT"),
        ("physics: alice\nphysics: bob\n", 0o640, "leaders:2: another line has the project 'physics'"),
        ("physics: alice,\n", 0o640, "is not the name of a user"),
        ("physics: alice\n", 0o646, "can be written by everybody"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path, text, mode, why):
    with pytest.raises(ConfigError, match=why):
        Leaders(leaders_file(tmp_path, text, mode))


def test_a_changed_file_is_read_again_and_a_wrong_one_leaves_the_former(tmp_path, caplog):
    now = [0.0]
    counts = []

    def count(name):
        counts.append(name)
        return len(counts)

    leaders = Leaders(leaders_file(tmp_path, "physics: alice\n"), clock=lambda: now[0], count=count)
    for text, projects in (
        ("physics: bob\nart: alice\n", {"art"}),
        ("physics\n", {"art"}),
        ("physics: alice\n", {"physics"}),
    ):
        leaders_file(tmp_path, text)
        now[0] += 2
        assert leaders.projects("alice") == projects
    assert counts == ["users_failures"] and "not read again" in caplog.text


# -- Slurm's coordinators --


def test_coordinators_of_accounts_are_understood():
    text = "root|\nphysics|alice,bob\nlife|carol\nempty|\n"
    assert parse_coordinators(text) == {"physics": {"alice", "bob"}, "life": {"carol"}}
    assert parse_coordinators("") == {}


@pytest.mark.parametrize(
    "line", ["physics", "physics|alice|mallory", "|mallory", "physics|al\x1bice", "a,b|mallory", "root|"]
)
def test_an_answer_of_another_form_gives_no_right_at_all(line):
    with pytest.raises(BatchError, match="sacctmgr"):
        parse_coordinators(f"root|\nlife|carol\n{line}\n")


def test_coordinators_are_asked_for_rarely_and_expire(caplog):
    now, counts, answers = [0.0], [], [{"physics": frozenset({"alice"})}]
    answering = threading.Event()

    def ask():
        assert answering.wait(10)
        if len(answers) == 1:
            return answers.pop()
        counts.append(1)
        raise BatchError("sacctmgr: does not answer")

    leaders = Leaders(ask=ask, clock=lambda: now[0], count=lambda name: len(counts))
    assert leaders.projects("alice") == frozenset(), "no request waits for Slurm"
    answering.set()
    wait_for(lambda: leaders.projects("alice") == {"physics"})
    assert not leaders.projects("bob")
    now[0] += 3000.0
    assert leaders.projects("alice") == {"physics"} and not counts
    now[0] += 3000.0
    assert leaders.projects("alice") == {"physics"}, "the former answer, while Slurm does not answer"
    now[0] += 86400.0
    assert leaders.projects("alice") == frozenset()

    def is_asked_again():
        now[0] += 601.0
        leaders.projects("alice")
        return len(counts) > 1

    wait_for(is_asked_again)
    assert "coordinators of accounts are not known" in caplog.text
