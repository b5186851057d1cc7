"""The job archive by the JSON interface: lists, one job and usage, each user only with own jobs."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import pwd

import numpy as np
import pytest

from colmet.collector.main import full_parser
from colmet.jobs import footprint
from colmet.jobs.archive.derived import ANSWERS, LISTED
from colmet.jobs.archive.elastic import ElasticArchive
from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.queries import JobFilter
from colmet.jobs.archive.store import ArchiveError, ArchiveStore, Changes
from colmet.jobs.columns import STATES
from colmet.jobs.grades import GRADES, grades_of
from colmet.jobs.report.archived import UNREADABLE
from colmet.web.ownership import names_of
from colmet.web.reports import store_of
from colmet.web.store import archive_opener
from colmet.web.stored_routes import Stored
from tests.support.archive_data import YEAR_START
from tests.support.archive_database import ArchiveDatabase, client_of, copied
from tests.support.web_facts import MadeUpFacts
from tests.support.web_store import archive_in
from tests.support.web_users import ALICE, BOB, ROOT, got, make, refused

COUNT = 90
OWNERS = [(n + 1, ("alice", "bob", "carol")[n // 3 % 3]) for n in range(COUNT)]
MINE, THEIRS, NOBODYS = 1, 13, 99  # alice's, bob's
TWICE = 5000  # first bob's, then alice's, then bob's
STARTS = [YEAR_START + n for n in (1000, 2000, 3000)]


@pytest.fixture(scope="module")
def opener(tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "a.sqlite"
    found = archive_in(path, OWNERS)
    store = ArchiveStore(str(path), writable=True)
    row = {"last": 0, "is_running": 0, "cpus": 4.0, "core_s": 40.0, "wall_s": 10.0, "node_joules": 9.0}
    jobs = [
        {**row, "job": TWICE, "start": start, "last": start + 10, "user": user}
        for start, user in zip(STARTS, ("bob", "alice", "bob"))
    ]
    hosts = [{**job, "host": f"node-of-{job['user']}"} for job in jobs]
    hosts.append({**hosts[1], "host": "evil", "user": "bob"})  # in the time of alice's job
    store.write(Changes(hosts, jobs, {}), None)
    store.close()
    return found


@pytest.fixture(scope="module")
def app(opener, users):
    return make(MadeUpFacts(4, 4), users, stored=Stored(archive=opener))


def owner(row):
    return row["user"]


@pytest.mark.parametrize("more", ["", "&user=alice", "&sort=user", "&sort=core_s&ascending=true"])
def test_a_list_has_the_own_jobs_alone_and_its_total_too(app, more):
    page = got(app, f"/api/v1/archive/jobs?limit=1000{more}", ALICE)
    assert {owner(row) for row in page["items"]} == {"alice"}
    assert page["total"] == len(page["items"]) == 31
    assert set(page["items"][0]) == {*LISTED, *GRADES}


def test_rows_and_a_job_have_the_grades_of_the_archive(app, opener):
    with opener() as archive:
        summary = archive.job(MINE).summary
    found = got(app, f"/api/v1/archive/jobs/{MINE}", ALICE)["job"]
    assert {name: found[name] for name in GRADES} == grades_of(summary)
    rows = got(app, "/api/v1/archive/jobs?limit=1000&columns=job,cpu_grade", ALICE)["items"]
    assert all(set(row) == {"job", "cpu_grade"} for row in rows)
    assert {"good", "low", "poor"} <= {row["cpu_grade"] for row in rows}


def test_a_number_chooses_the_own_jobs_alone(app):
    assert [row["start"] for row in got(app, f"/api/v1/archive/jobs?job={TWICE}", ALICE)["items"]] == [STARTS[1]]
    assert got(app, f"/api/v1/archive/jobs?job={THEIRS}", ALICE)["total"] == 0


def test_administrators_see_all_and_choose_users(app):
    assert got(app, "/api/v1/archive/jobs", ROOT)["total"] == COUNT + 3
    assert {owner(row) for row in got(app, "/api/v1/archive/jobs?user=bob,carol", ROOT)["items"]} == {"bob", "carol"}


def test_pages_have_each_job_once(app):
    found = []
    for offset in range(0, 40, 7):
        page = got(app, f"/api/v1/archive/jobs?limit=7&offset={offset}&columns=job,start", ALICE)
        assert all(set(row) == {"job", "start"} for row in page["items"])
        found += [(row["job"], row["start"]) for row in page["items"]]
    assert len(found) == len(set(found)) == 31


@pytest.mark.parametrize("state", STATES)
def test_conditions_are_those_of_the_archive(app, opener, state):
    page = got(app, f"/api/v1/archive/jobs?state={state}&columns=job&limit=1000", ALICE)
    with opener() as archive:
        expected = archive.jobs(JobFilter(users=["alice"], states=[state]), ["job"], limit=1000)
    assert page["items"] == expected.rows and page["total"] == expected.total


def test_one_job_has_its_values_its_advice_and_its_hosts(app):
    found = got(app, f"/api/v1/archive/jobs/{MINE}", ALICE)
    whole = got(app, f"/api/v1/archive/jobs/{MINE}", ROOT)
    assert found["job"]["job"] == MINE and found["job"]["user"] == "alice" and "footprint" not in found["job"]
    assert found["hosts"] and all(row["host"] for row in found["hosts"]) and isinstance(found["advice"], list)
    assert "node_joules" in whole["job"] and "node_joules" not in found["job"]
    assert all("node_joules" not in row for row in found["hosts"])
    assert got(app, "/api/v1/archive/jobs?columns=node_joules&limit=1", ALICE)["items"] == [{"node_joules": None}]


def test_of_a_number_used_by_several_each_sees_the_own_jobs(app):
    found = got(app, f"/api/v1/archive/jobs/{TWICE}", ALICE)
    assert found["starts"] == [STARTS[1]] and found["job"]["start"] == STARTS[1]
    assert [row["host"] for row in found["hosts"]] == ["node-of-alice"]
    assert got(app, f"/api/v1/archive/jobs/{TWICE}", BOB)["starts"] == [STARTS[2], STARTS[0]]
    for start in (STARTS[0], STARTS[2]):
        refused(app, f"/api/v1/archive/jobs/{TWICE}?start={start}", 404, ALICE)
    assert got(app, f"/api/v1/archive/jobs/{TWICE}?start={STARTS[0]}", BOB)["job"]["start"] == STARTS[0]
    assert got(app, f"/api/v1/archive/jobs/{TWICE}", ROOT)["starts"] == STARTS[::-1]


@pytest.mark.parametrize("by", ["user", "user,month", "project", "host", "queue,state", "name", "day"])
@pytest.mark.parametrize("more", ["", "&user=alice"])
def test_usage_is_of_the_own_jobs_alone(app, opener, by, more):
    groups = got(app, f"/api/v1/usage?by={by}{more}", ALICE)["groups"]
    with opener() as archive:
        expected = archive.usage(JobFilter(users=["alice"], only_own_hosts=True), by.split(","))
    assert [(one["keys"], one["jobs"]) for one in groups] == [([*one.keys], one.jobs) for one in expected]
    assert {one["keys"][0] for one in groups} == {"alice"} or not by.startswith("user")


def test_a_user_that_nodes_know_by_number_sees_the_jobs_of_the_number(monkeypatch, tmp_path, users):
    me = pwd.getpwuid(0)
    assert names_of(me.pw_name) == (me.pw_name, "0") and names_of("no such user") == ("no such user",)
    monkeypatch.setattr("colmet.web.archive_routes.names_of", lambda user: (user, "1234"))
    opened = archive_in(tmp_path / "a.sqlite", [(1, "alice"), (2, "1234"), (3, "bob"), (4, "1234")])
    app = make(MadeUpFacts(4, 4), users, stored=Stored(archive=opened))
    page = got(app, "/api/v1/archive/jobs", ALICE)
    assert page["total"] == 3 and {owner(row) for row in page["items"]} == {"alice"}
    (group,) = got(app, "/api/v1/usage?by=user", ALICE)["groups"]
    assert group["keys"] == ["alice"] and group["jobs"] == 3
    assert group["sums"]["core_s"] == pytest.approx(sum(row["core_s"] for row in page["items"]))


def test_usage_has_a_total_and_the_grade_of_its_cpu_time(app):
    found = got(app, "/api/v1/usage?by=user", ROOT)
    total = found["total"]
    assert {one["keys"][0] for one in found["groups"]} == {"alice", "bob", "carol"}, "of all, for administrators"
    assert total["keys"] == [] and total["jobs"] == sum(one["jobs"] for one in found["groups"]) == COUNT + 3
    for name, value in total["sums"].items():
        assert value == pytest.approx(sum(one["sums"][name] or 0.0 for one in found["groups"]))
    for one in [total, *found["groups"]]:
        share, sums = one["cpu_ratio"], one["sums"]
        known = min(sums["core_s"], sums["cpu_s"] + sums["wasted_core_s"])  # without jobs of unknown CPU time
        assert share == pytest.approx(1 - sums["wasted_core_s"] / known)
        assert one["cpu_grade"] == ("good" if share >= 0.5 else "low")
    assert got(app, "/api/v1/archive/jobs?since=2&until=1", ALICE)["items"] == []
    nothing = got(app, "/api/v1/usage?since=2&until=1", ALICE)["total"]
    assert nothing["jobs"] == 0 and nothing["cpu_grade"] is None and set(nothing["sums"].values()) == {None}


def test_usage_has_co2_and_cost_by_the_factors_of_the_site_with_their_sources(app, tmp_path, monkeypatch):
    path = tmp_path / "usage.toml"
    monkeypatch.setattr("colmet.jobs.archive.queries.FACTORS_PATH", str(path))
    found = got(app, "/api/v1/usage?by=user", ALICE)
    assert found["sources"] == found["warnings"] == [] and found["currency"] is None
    assert {(one["co2_g"], one["cost"]) for one in found["groups"]} == {(None, None)}
    path.write_text(
        'co2-per-kwh = 50\nco2-source = "grid"\nprice-per-core-hour = 0.5\nprice-source = "x"\ncurrency = "EUR"'
    )
    found = got(app, "/api/v1/usage?by=user", ALICE)
    assert found["currency"] == "EUR"
    assert found["sources"] == ["CO2: 50 g per kWh (grid)", "Cost: 0.5 EUR per allocated core hour (x)"]
    (group,) = found["groups"]
    assert group["co2_g"] == pytest.approx(group["sums"]["energy_joules"] / 3.6e6 * 50) and group["co2_g"] > 0
    assert group["cost"] == pytest.approx(group["sums"]["core_s"] / 3600 * 0.5)
    assert {**found["total"], "keys": ["alice"]} == group
    path.write_text("co2-per-kwh = 50")
    assert got(app, "/api/v1/usage?by=user", ROOT)["warnings"] == [
        f"{path}: co2-source is missing: readers need to know where the number is from"
    ]
    (warning,) = got(app, "/api/v1/usage?by=user", ALICE)["warnings"]
    assert str(tmp_path) not in warning and "factors" in warning
    assert got(app, "/api/v1/usage?by=user", ALICE)["groups"][0]["co2_g"] is None


@pytest.mark.parametrize("path", ["archive/jobs", "archive/jobs/1", "usage"])
def test_without_an_archive_and_with_an_unreadable_one(users, path, tmp_path):
    target = f"/api/v1/{path}"
    assert "no archive" in refused(make(MadeUpFacts(4, 4), users), target, 404, ROOT).json()["error"]
    app = make(MadeUpFacts(4, 4), users, stored=Stored(archive=lambda: LocalArchive(str(tmp_path / "none"))))
    assert str(tmp_path) in refused(app, target, 503, ROOT).json()["error"]
    assert refused(app, target, 503, ALICE).json()["error"] == UNREADABLE
    with pytest.raises(ArchiveError):
        LocalArchive(str(tmp_path / "none"))


def app_of(tmp_path, users, footprints):
    """The interface to an archive with a job of alice's for each footprint."""
    path = tmp_path / "a.sqlite"
    archive_in(path, [])
    rows = [
        {"job": n + 1, "start": YEAR_START + n, "last": YEAR_START + 9, "user": "alice", "footprint": one}
        for n, one in enumerate(footprints)
    ]
    with contextlib.closing(ArchiveStore(str(path), writable=True)) as store:
        store.write(Changes([], rows, {}), None)
    return make(MadeUpFacts(4, 4), users, stored=Stored(archive=lambda: LocalArchive(str(path))))


def test_short_curves_are_lists_with_null_for_missing_points(tmp_path, users):
    curves = {"cpu": np.array([1.0, np.nan]), "memory": np.array([2.0, 3.0])}
    packed = footprint.encode(footprint.Footprint(4, curves))
    app = app_of(tmp_path, users, (packed, b"\xff" + packed[1:], None))
    found = [got(app, f"/api/v1/archive/jobs/{n}", ALICE)["footprint"] for n in (1, 2, 3)]
    assert found == [{"step_s": 4, "cpu": [1.0, None], "memory": [2.0, 3.0]}, None, None]
    listed = "/api/v1/archive/jobs?columns=job&sort=job&ascending=true"
    assert [row["footprint"] for row in got(app, f"{listed}&footprint=true", ALICE)["items"]] == found
    assert [set(row) for row in got(app, listed, ALICE)["items"]] == [{"job"}] * 3
    assert got(app, f"{listed}&footprint=true", BOB)["items"] == []


def test_curves_of_lists_have_four_digits_and_of_at_most_200_jobs(tmp_path, users):
    curves = {"cpu": np.array([1.23456, np.nan, 0.0, 123456.0]), "memory": np.array([987654321.0, 1e15, np.inf, 1.0])}
    packed = footprint.encode(footprint.Footprint(4, curves))
    app = app_of(tmp_path, users, [packed] * 203)
    page = got(app, "/api/v1/archive/jobs?footprint=true&limit=1000", ALICE)
    assert (page["total"], page["limit"], len(page["items"])) == (203, 200, 200)
    expected = {"cpu": [1.235, None, 0.0, 123500], "memory": [987700000, 1000000000000000, None, 1.0], "step_s": 4}
    assert page["items"][0]["footprint"] == expected
    assert got(app, "/api/v1/archive/jobs?limit=1000", ALICE)["limit"] == 1000


def test_whoami_answers_whether_there_is_an_archive(app, users, tmp_path):
    def known(opener):
        return got(make(MadeUpFacts(4, 4), users, stored=Stored(archive=opener)), "/api/v1/whoami", ALICE)["archive"]

    assert got(app, "/api/v1/whoami", BOB)["archive"] is True
    assert known(lambda: None) is False
    assert known(lambda: LocalArchive(str(tmp_path / "none"))) is True, "it is unreadable"


def test_the_archive_is_the_named_one_or_that_beside_the_files(tmp_path):
    def opened(**options):
        return archive_opener(argparse.Namespace(hdf5_filepath="", **options))()

    assert opened() is None and opened(archive="") is None
    with pytest.raises(ArchiveError):
        opened(archive=str(tmp_path / "none"))
    beside = argparse.Namespace(hdf5_filepath=str(tmp_path / "c"))
    assert archive_opener(beside)() is None
    archive_in(tmp_path / "c.archive.sqlite", [(1, "alice")])
    with archive_opener(beside)() as found:
        assert found.jobs(JobFilter()).total == 1
    assert archive_opener(argparse.Namespace(archive="", hdf5_filepath=str(tmp_path / "c")))() is None


@pytest.fixture
def database():
    database = ArchiveDatabase()
    yield database
    database.close()


def test_a_collector_with_a_database_answers_from_the_shared_archive(tmp_path, database, users):
    path = tmp_path / "journal" / "archive.sqlite"
    path.parent.mkdir()
    archive_in(path, [(1, "alice"), (2, "bob"), (3, "alice")])
    client = client_of(database.url)
    with LocalArchive(str(path)) as local:
        copied(local._store, client, "colmet_")
    client.close()
    words = ["--elastic-host", database.url, "--journal-dir", str(path.parent), "--http-open", "--http-listen", "0"]
    options = full_parser().parse_args(words)
    passed = argparse.Namespace(**json.loads(json.dumps(store_of(options))))
    with archive_opener(passed)() as shared, LocalArchive(str(path)) as local:
        assert isinstance(shared, ElasticArchive)
        assert shared.jobs(JobFilter(), list(ANSWERS)) == local.jobs(JobFilter(), list(ANSWERS))
    there = make(MadeUpFacts(4, 4), users, stored=Stored(archive=archive_opener(options)))
    here = make(MadeUpFacts(4, 4), users, stored=Stored(archive=lambda: LocalArchive(str(path))))
    for user, target in itertools.product(
        (ROOT, ALICE), ("archive/jobs?footprint=true", "archive/jobs/1", "usage?by=user,month")
    ):
        assert got(there, f"/api/v1/{target}", user) == got(here, f"/api/v1/{target}", user)
    assert [row["job"] for row in got(there, "/api/v1/archive/jobs", ALICE)["items"]] == [3, 1]
    with archive_opener(full_parser().parse_args([*words, "--no-shared-archive"]))() as alone:
        assert isinstance(alone, LocalArchive)


@pytest.mark.parametrize(
    "target",
    [
        *("archive/jobs?state=none", "archive/jobs?sort=footprint", "archive/jobs?columns=footprint"),
        *("archive/jobs?job=0", "archive/jobs?columns=job,none", "archive/jobs?since=x"),
        *("archive/jobs?efficiency_below=2", "archive/jobs?users=bob", "usage?by=none", "usage?by="),
        *("usage?by=month,week", "usage?by=user,project,queue,state"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(app, target):
    refused(app, f"/api/v1/{target}", 400, ALICE)


@pytest.mark.parametrize(
    "target", ["archive/jobs?job=x", "archive/jobs?state=x", "usage?by=x", "report?job=0", "report.html?job=x"]
)
def test_another_condition_that_is_unusable_is_refused_without_an_interval_too(app, target):
    refused(app, f"/api/v1/{target}&since=2&until=1", 400, ALICE)
