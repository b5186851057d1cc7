"""Questions to the job archive: lists, filters, order, one job, and sums beside an independent count."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from colmet.jobs.archive import queries
from colmet.jobs.archive.derived import ANSWERS, LISTED
from colmet.jobs.archive.elastic import ElasticArchive
from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.queries import GROUPS, SUMS, JobFilter, QueryError, spans
from colmet.jobs.archive.store import ArchiveStore, Changes
from colmet.jobs.columns import ENDED, RUNNING
from tests.support.archive_data import YEAR_S, YEAR_START, summaries, write
from tests.support.archive_database import PREFIX, ArchiveDatabase, client_of, copied

COUNT = 600
HOSTILE = "x'; DROP TABLE jobs; --\x1b[31m\n=cmd|' /C calc'!A0"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An archive, the summaries of its jobs, and those of the hosts."""
    path = str(tmp_path_factory.mktemp("archive") / "a.archive.sqlite")
    store = ArchiveStore(path, writable=True)
    everything = list(summaries(COUNT, footprint=40))
    jobs = write(store, iter(everything), 100)
    store.close()
    return path, jobs, [row for _, rows in everything for row in rows]


@pytest.fixture(scope="module")
def copy(made):
    """A shared archive with the same summaries."""
    database = ArchiveDatabase()
    client = client_of(database.url)
    with LocalArchive(made[0]) as local:
        copied(local._store, client)
    yield ElasticArchive(client, PREFIX)
    client.close()
    database.close()


@pytest.fixture(params=["local", "shared"])
def archive(request, made):
    if request.param == "shared":
        yield request.getfixturevalue("copy")
        return
    with LocalArchive(made[0]) as opened:
        yield opened


def user_of(job):
    return job.get("owner", job["user"])


def state_of(job):
    return job.get("state", RUNNING if job["is_running"] else ENDED)


@pytest.mark.slow
def test_a_list_has_the_newest_first_and_its_pages_add_up(archive, made):
    page = archive.jobs(JobFilter(), ["job", "start", "user", "state", "rules"], limit=COUNT)
    expected = sorted(made[1], key=lambda one: (-one["start"], -one["job"]))
    assert page.total == COUNT
    assert [(row["job"], row["user"], row["state"]) for row in page.rows] == [
        (job["job"], user_of(job), state_of(job)) for job in expected
    ]
    parts = [archive.jobs(JobFilter(), ["job"], offset=at, limit=70).rows for at in range(0, COUNT, 70)]
    assert [row["job"] for part in parts for row in part] == [job["job"] for job in expected]


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        (JobFilter(users=["user1", "user2"]), lambda job, _: user_of(job) in ("user1", "user2")),
        (JobFilter(projects=["project3"]), lambda job, _: job.get("project") == "project3"),
        (JobFilter(queues=["gpu"]), lambda job, _: job.get("queue") == "gpu"),
        (JobFilter(states=["failed", "ended"]), lambda job, _: state_of(job) in ("failed", "ended")),
        (JobFilter(jobs=[3, 500]), lambda job, _: job["job"] in (3, 500)),
        (JobFilter(array="100"), lambda job, _: job.get("array") == "100"),
        (JobFilter(task="100_4"), lambda job, _: job.get("array") == "100" and job.get("array_index") == 4),
        (JobFilter(task="100.40"), lambda job, _: False),
        (JobFilter(task=HOSTILE), lambda job, _: False),
        (JobFilter(name="UN1"), lambda job, _: "un1" in job.get("name", "")),
        (JobFilter(efficiency_below=0.3), lambda job, _: job["cpu_ratio"] < 0.3),
        (JobFilter(rule="cpu-low"), lambda job, _: job["advice"] != "[]"),
        (JobFilter(rule="cpu-lo"), lambda job, _: False),
        (JobFilter(hosts=["node8", "node9"]), lambda job, hosts: hosts & {"node8", "node9"}),
        (
            JobFilter(since=YEAR_START + 5e6, until=YEAR_START + 6e6),
            lambda job, _: (
                job["start"] < YEAR_START + 6e6 and (job["last"] >= YEAR_START + 5e6 or state_of(job) == RUNNING)
            ),
        ),
        (JobFilter(users=[HOSTILE]), lambda job, _: False),
        (JobFilter(name=HOSTILE, array="%", rule="%"), lambda job, _: False),
    ],
)
def test_a_filter_selects_what_an_independent_one_does(archive, made, where, holds):
    hosts = {}
    for row in made[2]:
        hosts.setdefault(row["job"], set()).add(row["host"])
    expected = {job["job"] for job in made[1] if holds(job, hosts[job["job"]])}
    page = archive.jobs(where, ["job"], limit=COUNT)
    assert {row["job"] for row in page.rows} == expected and page.total == len(expected)


@pytest.mark.parametrize("name", ["cpu_ratio", "wasted_core_s", "gpu_s", "queue", "exit_code", "user"])
@pytest.mark.parametrize("descending", [True, False])
def test_missing_values_are_last_in_any_order(archive, name, descending):
    values = [row[name] for row in archive.jobs(JobFilter(), [name], name, descending, limit=COUNT).rows]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=descending) and values[len(known) :] == [None] * (COUNT - len(known))


def test_any_value_can_be_listed_and_equals_that_of_the_job(archive):
    page = archive.jobs(JobFilter(), list(ANSWERS), "wasted_core_s", limit=5)
    for row in page.rows:
        found = archive.job(row["job"], row["start"])
        assert found.summary == row and len(found.hosts) == row["hosts"]
        assert all(one["footprint"] for one in found.hosts)
    assert set(LISTED) < set(ANSWERS)


def test_numbers_used_again_are_distinguished_by_the_start(tmp_path):
    path = str(tmp_path / "a.sqlite")
    store = ArchiveStore(path, writable=True)
    rows = [{"job": 1, "start": start, "last": start + 50, "cpu_s": float(start), "hosts": 1} for start in (100, 9000)]
    hosts = [{**row, "host": "n"} for row in rows]
    store.write(Changes(hosts, rows, {}), None)
    store.close()
    with LocalArchive(path) as archive:
        assert archive.job(2) is None and archive.job(1, 101) is None
        latest, first = archive.job(1), archive.job(1, 100)
        assert (latest.summary["start"], latest.starts) == (9000, [9000, 100])
        assert [row["cpu_s"] for row in first.hosts] == [100.0]
        (group,) = archive.usage(JobFilter(hosts=["n"], until=500), ["host"])
        assert (group.keys, group.jobs, group.sums["cpu_s"]) == (("n",), 1, 100.0)


def parts(rows, since, until):
    """The share of each row's time within an interval."""
    start, last = (np.array([row[name] for row in rows], float) for name in ("start", "last"))
    inside = np.clip(np.minimum(last, until) - np.maximum(start, since), 0, None)
    return np.where(last > start, inside / np.maximum(last - start, 1), (start >= since) & (start < until))


@pytest.mark.parametrize("by", GROUPS)
@pytest.mark.parametrize("interval", [(None, None), (YEAR_START + YEAR_S // 3, YEAR_START + YEAR_S // 2)])
def test_sums_equal_an_independent_count(archive, made, by, interval):
    since, until = interval
    found = archive.usage(JobFilter(since=since, until=until), [by])
    rows = made[2] if by == "host" else made[1]
    low, high = (-1e18 if since is None else since), (1e18 if until is None else until)
    weights = parts(rows, low, high)
    for name in SUMS:
        if name == "energy_joules":
            values = [row["joules"] + row.get("gpu_joules", 0.0) for row in rows]
        else:
            values = [row.get(name, 0.0) for row in rows]
        whole = float(np.dot(weights, values))
        assert sum(group.sums[name] or 0.0 for group in found) == pytest.approx(whole, rel=1e-9)
    if by in ("month", "week", "day"):
        assert all(group.jobs for group in found)
        return
    of = {"user": user_of, "state": state_of, "host": lambda row: row["host"]}.get(by, lambda row: row.get(by) or "")
    keys = np.array([of(row) for row in rows])
    for group in found:
        mine = (keys == group.keys[0]) & (weights > 0)
        assert group.jobs == mine.sum()
        assert group.sums["core_s"] == pytest.approx(float((weights * [row["core_s"] for row in rows])[mine].sum()))


def test_months_add_up_to_the_year_by_user(archive):
    by_user = {group.keys[0]: group.sums["core_s"] for group in archive.usage(JobFilter(), ["user"])}
    by_month = {}
    for group in archive.usage(JobFilter(), ["user", "month"]):
        by_month[group.keys[0]] = by_month.get(group.keys[0], 0.0) + group.sums["core_s"]
    assert by_month == pytest.approx(by_user, rel=1e-9)


def test_spans_follow_each_other_without_a_gap():
    months = spans("month", YEAR_START, YEAR_START + YEAR_S - 1)
    assert [one.name for one in months][::11] == ["2026-01", "2026-12"] and len(months) == 12
    weeks = spans("week", YEAR_START, YEAR_START + YEAR_S)
    assert weeks[0].name == "2026-W01" and weeks[0].since < YEAR_START
    for some in (months, weeks):
        assert all(one.until == following.since for one, following in zip(some, some[1:]))


@pytest.mark.parametrize(
    ("question", "match"),
    [
        (lambda one: one.jobs(JobFilter(states=["runing"])), "running"),
        (lambda one: one.jobs(JobFilter(name="x" * 300)), "255 characters"),
        (lambda one: one.jobs(JobFilter(since=2, until=1)), "later than its end"),
        (lambda one: one.jobs(JobFilter(), ["cpu_raito"]), "cpu_ratio"),
        (lambda one: one.jobs(JobFilter(), sort="advice"), "not sorted"),
        (lambda one: one.jobs(JobFilter(), limit=10**9), "at most 10000"),
        (lambda one: one.jobs(JobFilter(), offset=-1), "0 or later"),
        (lambda one: one.usage(JobFilter(), []), "one to three"),
        (lambda one: one.usage(JobFilter(), ["usr"]), "user"),
        (lambda one: one.usage(JobFilter(), ["month", "day"]), "one of month"),
    ],
)
def test_an_unusable_question_is_refused_with_a_remedy(archive, question, match):
    with pytest.raises(QueryError, match=match):
        question(archive)


def test_an_empty_archive_has_no_jobs_and_no_usage(tmp_path):
    path = str(tmp_path / "a.sqlite")
    ArchiveStore(path, writable=True).close()
    with LocalArchive(path) as archive:
        assert archive.jobs(JobFilter()) == (0, []) and archive.usage(JobFilter(), ["month"]) == []
        assert archive.usage(JobFilter(), ["user"]) == [] and archive.job(1) is None


@pytest.mark.slow
@pytest.mark.parametrize("by", [["day"], ["user", "day"], ["host", "day"]])
def test_days_are_summed_in_one_pass_also_with_a_job_of_more_than_a_year(tmp_path, by):
    path = str(tmp_path / "a.sqlite")
    with contextlib.closing(ArchiveStore(path, writable=True)) as store:
        long = {"job": 1, "start": 0, "last": 400 * 86400, "core_s": 400.0, "user": "alice"}
        short = [
            {"job": 2 + n, "start": n * 3600, "last": n * 3600 + 60, "core_s": 1.0, "user": "bob"} for n in range(2400)
        ]
        hosts = [{**job, "host": "n"} for job in (long, *short)]
        store.write(Changes(hosts, [long, *short], {}), None)
    steps = []
    with LocalArchive(path) as archive:
        archive._store.database.set_progress_handler(lambda: steps.append(1) and False, 10_000)
        found = archive.usage(JobFilter(), by)
    assert sum(group.sums["core_s"] for group in found) == pytest.approx(2800)
    assert sum(group.jobs for group in found if by != ["day"] or group.keys[0] == "1970-01-02") >= 25
    assert len(steps) < 200, "each job is read once, not once for each day"


def test_too_many_groups_and_too_long_an_answer_are_refused_with_a_remedy(archive, made, monkeypatch):
    monkeypatch.setattr(queries, "MAX_GROUPS", 3)
    with pytest.raises(QueryError, match="more than 3 groups; ask for a shorter interval"):
        archive.usage(JobFilter(), ["name", "day"])
    monkeypatch.setattr(archive._deadline, "_end", 0.0)
    with pytest.raises(QueryError, match="the answer takes longer than inf s; ask for a shorter interval"):
        archive.usage(JobFilter(), ["user", "day"])
