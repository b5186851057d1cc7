"""The report of a job by the JSON interface: whose rows it is made of, in which form, and in a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import threading
import time

import pytest

import colmet.jobs.report
from colmet.common.errors import ColmetError
from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.store import ArchiveStore, Changes
from colmet.jobs.report.archived import UNREADABLE, OwnHistory
from colmet.stored.series import RowQuery
from colmet.web import stored_models
from colmet.web.reports import MissingLibrary, ReportProcesses, ReportQuery, TooLarge, report_of, store_of
from colmet.web.store import EmptyHistory, archive_opener, opener
from colmet.web.workers import Busy
from tests.commands.test_report_jobs import job, written
from tests.support.hdf5_writer import write_once
from tests.support.made_up_history import START, MadeUp, job_rows, node_rows
from tests.support.web_client import ask, asking
from tests.support.web_nodes import Cluster
from tests.support.web_store import NOW, Bed, archive_in, stored_in
from tests.support.web_users import ALICE, BOB, METRIC, ROOT, got, make, refused

JOB, OTHERS, SHARED = 6000, 6001, 6002  # alice's; bob's on the same node; hers on node-1 and bob's on node-2


@pytest.fixture
def bed(history, clock):
    bed = Bed(history, clock)
    job_rows(history, job=JOB, cores=1.0)
    job_rows(history, job=OTHERS, cores=1.0, user=b"bob")
    job_rows(history, job=SHARED, host="node-1", cores=0.0)
    job_rows(history, job=SHARED, host="node-2", user=b"bob", cores=0.0)
    node_rows(history, jobs=(JOB, OTHERS))
    return bed


@pytest.fixture
def app(bed, users, page):
    return make(bed.known, users, stored=stored_in(bed.history), folder=page)


def test_a_user_gets_the_report_of_her_own_job_and_nothing_of_others(app):
    found = got(app, f"/api/v1/jobs/{JOB}/report", ALICE)
    whole = got(app, f"/api/v1/jobs/{JOB}/report", ROOT)
    hidden = ("others_joules", "nobody_joules", "unshared_joules", "nodes_joules", "busy_ratio")
    assert all(whole["energy"][name] is not None and found["energy"][name] is None for name in hidden)
    for one in (found, whole):
        for name in hidden:
            del one["energy"][name]
    assert found == whole and found["user"] == "alice" and found["energy"]["job_joules"] > 0
    refused(app, f"/api/v1/jobs/{OTHERS}/report", 404, ALICE)


def test_of_a_job_with_two_users_each_gets_the_own_hosts(app):
    for login, host in ((ALICE, "node-1"), (BOB, "node-2")):
        found = got(app, f"/api/v1/jobs/{SHARED}/report", login)
        assert [one["host"] for one in found["hosts"]] == [host]
    assert len(got(app, f"/api/v1/jobs/{SHARED}/report", ROOT)["hosts"]) == 2


def test_rows_before_the_start_of_the_users_part_are_not_read(history):
    job_rows(history, job=JOB)
    start = START + 300.5
    seen = OwnHistory(history, JOB, {"node-1": start})
    query = RowQuery(JOB, "cgroup_default")
    for rows in (seen.read(query), seen.by_hosts(query).read(["node-1"])):
        assert rows[0].times[0] == START + 305
    assert not seen.read(RowQuery(JOB, "cgroup_default", hosts=["node-2"]))


def test_the_page_has_its_own_policy_and_no_script(app):
    answer = ask(app, f"/api/v1/jobs/{JOB}/report.html", [ALICE])
    assert answer.status == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "frame-ancestors 'none'" in policy and "script" not in policy
    assert f"Job {JOB} of alice".encode() in answer.body and b"other jobs" not in answer.body
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.slow
def test_the_page_has_the_times_of_the_chosen_zone_and_names_it(app):
    def page(query):
        return ask(app, f"/api/v1/jobs/{JOB}/report.html{query}", [ALICE]).body.decode()

    first, zoned = "2023-11-14 22:13:", "2023-11-15 02:13:"
    for query in ("", "?zone=Etc/UTC"):
        here = page(query)
        assert first in here and "Times are UTC." in here and zoned not in here
    there = page("?zone=Asia/Dubai")
    assert zoned in there and "Times are Asia/Dubai (+04)." in there and first not in there
    assert "2023-11-15, +04" in there, "the axis of the charts"
    assert "UTC" not in there
    unknown = page("?zone=Mars/Olympus")
    assert first in unknown
    assert "Times are UTC, as the collector's machine does not know the zone Mars/Olympus." in unknown
    refused(app, f"/api/v1/jobs/{JOB}/report?zone=UTC", 400, ALICE)  # numbers are of no zone


@pytest.mark.parametrize("form", ["html", "png"])
def test_a_zone_is_a_name(app, form):
    for zone in ("../../etc/passwd", "/etc/localtime", "a b", "%3Cb%3E", "Europe/", "x" * 61):
        assert "zone" in refused(app, f"/api/v1/jobs/{JOB}/report.{form}?zone={zone}", 400, ALICE).json()["error"]


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (MissingLibrary("it requires matplotlib: apt-get install it"), 501, "apt-get"),
        (ColmetError("/var/lib/x.hdf5: broken"), 503, "/var/lib/x.hdf5"),
        (TooLarge("too long"), 503, "too long"),
        (Busy("too many"), 429, "too many"),
    ],
)
def test_a_report_that_cannot_be_made(bed, users, page, error, status, said):
    def fail(_):
        raise error

    app = make(bed.known, users, stored=stored_in(bed.history)._replace(reporter=fail), folder=page)
    assert said in refused(app, f"/api/v1/jobs/{JOB}/report", status, ROOT).json()["error"]
    mine = refused(app, f"/api/v1/jobs/{JOB}/report", status, ALICE).json()["error"]
    assert mine == (UNREADABLE if type(error) is ColmetError else str(error))


def test_without_a_store_there_is_no_report(bed, users, page):
    refused(make(bed.known, users, folder=page), f"/api/v1/jobs/{JOB}/report", 404, ALICE)


# -- from the archive --

GONE, THEIRS = 7000, 7001  # alice's and bob's, of which no rows are stored


def whole(number, user, host="", **more):
    """The summary of a whole job, and that of its host."""
    row = job(number, user=user, owner=user, node_joules=3e6, array=None, **more)
    return row, {**row, "host": host or f"node-of-{user}"}


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "a.sqlite"
    tasks = [job(n, user=user, owner=user) for n, user in ((1, "alice"), (2, "alice"), (3, "bob"))]
    pairs = [
        whole(GONE, "alice", start=START - 9000, last=START - 5400),
        whole(GONE, "bob", start=START - 900, last=START),
    ]
    pairs += [whole(THEIRS, "bob"), whole(JOB, "alice", "node-1", start=START, last=START + 605, state="timeout")]
    written(path, [*tasks, *[row for row, _ in pairs]])
    with contextlib.closing(ArchiveStore(str(path), writable=True)) as store:
        store.write(Changes([host for _, host in pairs], [], {}), None)
    return lambda: LocalArchive(str(path))


@pytest.fixture
def archived(bed, users, page, archive):
    return make(bed.known, users, stored=stored_in(bed.history, archive=archive)._replace(archive=archive), folder=page)


def test_a_job_whose_rows_are_gone_is_reported_from_the_archive_to_its_user_alone(archived):
    found = got(archived, f"/api/v1/jobs/{GONE}/report", ALICE)
    assert (found["source"], found["user"], found["start"]) == ("archive", "alice", START - 9000)
    assert [host["host"] for host in found["hosts"]] == ["node-of-alice"] and found["starts"] == [START - 9000]
    assert found["energy"]["nodes_joules"] is None and found["energy"]["nobody_joules"] is None
    assert got(archived, f"/api/v1/jobs/{GONE}/report", BOB)["start"] == START - 900
    everything = got(archived, f"/api/v1/jobs/{GONE}/report", ROOT)
    assert everything["starts"] == [START - 900, START - 9000] and everything["energy"]["nodes_joules"] == 3e6
    former = got(archived, f"/api/v1/jobs/{GONE}/report?start={START - 9000}", ROOT)
    assert former["user"] == "alice" and stored_models.Report(**everything)


@pytest.mark.slow
def test_stored_rows_come_with_what_the_batch_system_knows(archived, app):
    found = got(archived, f"/api/v1/jobs/{JOB}/report", ALICE)
    assert found["source"] == "rows" and found["ending"]["kind"] == "timeout" and found["batch"]["name"] == "sweep"
    plain = got(app, f"/api/v1/jobs/{JOB}/report", ALICE)
    assert plain["batch"] is None and plain["ending"] is None and plain["cpu"] == found["cpu"]
    page = ask(archived, f"/api/v1/jobs/{JOB}/report.html", [ALICE])
    assert b"Walltime reached" in page.body and b"Why it ended" in page.body


@pytest.mark.slow
def test_a_picture_is_served(archived):
    answer = ask(archived, f"/api/v1/jobs/{GONE}/report.png", [ALICE])
    assert answer.status == 200 and answer.headers["content-type"] == "image/png"
    assert answer.body.startswith(b"\x89PNG")


def test_an_archive_that_cannot_be_read_leaves_the_rows(bed, users, page, tmp_path):
    broken = lambda: LocalArchive(str(tmp_path / "none"))  # noqa: E731
    stored = stored_in(bed.history, archive=broken)._replace(archive=broken)
    app = make(bed.known, users, stored=stored, folder=page)
    assert got(app, f"/api/v1/jobs/{JOB}/report", ALICE)["warnings"] == [UNREADABLE]
    assert str(tmp_path) in got(app, f"/api/v1/jobs/{JOB}/report", ROOT)["warnings"][0]
    for target in (f"{GONE}/report", f"{JOB}/report?start={START}", f"{GONE}/report?start={START}"):
        assert refused(app, f"/api/v1/jobs/{target}", 503, ALICE).json()["error"] == UNREADABLE
        assert str(tmp_path) in refused(app, f"/api/v1/jobs/{target}", 503, ROOT).json()["error"]


def test_a_store_that_cannot_be_read_leaves_the_archive(archive):
    def fail():
        raise ColmetError("/var/lib/colmet: no")

    for own, users, said in (({"node-1": None}, ["alice"], UNREADABLE), (None, None, "/var/lib/colmet: no")):
        made = json.loads(report_of(fail, ReportQuery(JOB, own=own, users=users), NOW, archive))
        assert made["source"] == "archive" and made["warnings"] == [said]
    with pytest.raises(ColmetError):
        report_of(fail, ReportQuery(9999), NOW, archive)


# -- of several jobs --


@pytest.mark.parametrize("more", ["", "&user=alice", "&job=1,2,3", "&job=3"])
def test_a_report_of_several_jobs_has_the_own_ones_alone(archived, more):
    found = got(archived, f"/api/v1/report?array=17{more}", ALICE)
    assert {row["user"] for row in found["jobs"]} <= {"alice"}
    assert found["total"] == len(found["jobs"]) == (0 if more == "&job=3" else 2)
    if found["jobs"]:
        assert found["sums"]["core_s"] == pytest.approx(2 * 4 * 3600)
    page = ask(archived, f"/api/v1/report.html?array=17{more}", [ALICE]).body
    assert b"17_3" not in page and b"bob" not in page


def test_an_administrator_gets_the_report_of_all(archived):
    found = got(archived, "/api/v1/report?array=17", ROOT)
    assert {row["user"] for row in found["jobs"]} == {"alice", "bob"} and found["array"] == "17"
    assert stored_models.JobsReport(**found)
    assert [row["job"] for row in got(archived, "/api/v1/report?array=17&limit=1", ROOT)["jobs"]] == [3]
    assert got(archived, "/api/v1/report?since=2&until=1", ROOT)["jobs"] == []
    page = ask(archived, "/api/v1/report.html?array=17", [ROOT])
    assert page.headers["content-type"] == "text/html; charset=utf-8" and page.body.count(b"<svg") == 6
    assert "script" not in page.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["report", "report.html"])
def test_a_report_that_cannot_be_asked_for_is_refused(archived, path):
    wrong = ("job=x", "job=,", "job=1,,2", "job=0", "job=1,-2", f"job={1 << 63}", "limit=0", "limit=10001")
    for query in (*wrong, "state=x", "jobs=1"):
        refused(archived, f"/api/v1/{path}?{query}", 400, ALICE)


# -- the process --


@pytest.mark.slow
def test_a_process_reads_the_archive_beside_the_files(tmp_path, archive):
    (tmp_path / "a.sqlite").rename(tmp_path / "c.archive.sqlite")
    made = ReportProcesses(options(tmp_path / "c"))
    found = json.loads(made(ReportQuery(GONE, users=["alice"], own={})))
    assert (found["source"], found["user"]) == ("archive", "alice")
    assert report_here(ReportQuery(THEIRS, users=["alice"], own={}), tmp_path / "c") is None
    assert made(ReportQuery(GONE, users=["alice"], own={}, form="png")).startswith(b"\x89PNG")
    made.close()


def test_without_memory_for_its_rows_the_summary_is_reported(archive, tmp_path):
    class Large(EmptyHistory):
        def tables(self, job):
            raise MemoryError

    (tmp_path / "a.sqlite").rename(tmp_path / "c.archive.sqlite")
    opened = archive_opener(options(tmp_path / "c"))
    found = json.loads(report_of(Large, ReportQuery(GONE, users=["alice"], own={"node-1": None}), NOW, opened))
    assert found["source"] == "archive" and "too much memory" in found["warnings"][-1]
    with pytest.raises(TooLarge, match="shorter interval"):
        report_of(Large, ReportQuery(JOB), NOW)


def options(path=""):
    return argparse.Namespace(hdf5_filepath=str(path), elastic_host=[], http_listen="not passed on")


def report_here(query, path):
    """What a process makes, made by this one."""
    given = options(path)
    return report_of(opener(given), query, NOW, archive_opener(given))


@pytest.mark.slow
def test_a_process_makes_the_report_of_stored_files(tmp_path):
    cluster = Cluster(nodes=3, jobs=6, start=START)
    write_once(tmp_path / "made.hdf5", [one for _ in range(3) for one in cluster.batches()])
    (tmp_path / "made.hdf5").rename(tmp_path / f"c.{START}.hdf5")
    made = ReportProcesses(options(tmp_path / "c"))
    found = json.loads(made(ReportQuery(1000)))
    assert found["job"] == 1000 and found["user"] == "alice" and found["samples"] == 3
    host = found["hosts"][0]["host"]
    assert report_here(ReportQuery(1000, own={"elsewhere": None}), tmp_path / "c") is None
    assert json.loads(made(ReportQuery(1000, own={host: None})))["energy"]["busy_ratio"] is None
    assert made(ReportQuery(1000, form="html")).startswith(b"<!DOCTYPE html>")
    made.close()


def test_a_store_without_files_has_no_report(tmp_path):
    assert ReportProcesses(options(tmp_path / "c"))(ReportQuery(JOB, own={"node-1": None})) is None
    assert "http_listen" not in store_of(options())


@pytest.mark.parametrize(
    ("program", "error", "said"),
    [
        ("import time; time.sleep(60)", TooLarge, "too long"),
        ("import sys; sys.exit(9)", TooLarge, "ended early"),
        ('print(\'{"error": "no"}\')', ColmetError, "no"),
        ('print(\'{"missing": "install it"}\')', MissingLibrary, "install it"),
        ('print(\'{"large": "less"}\')', TooLarge, "less"),
        ("", TooLarge, "ended early"),
    ],
)
def test_a_process_that_fails_is_an_error_and_ends(program, error, said):
    began = time.monotonic()
    made = ReportProcesses(options(), (sys.executable, "-c", program), 2.0)
    with pytest.raises(error, match=said):
        made(ReportQuery(JOB))
    assert time.monotonic() - began < 50


def test_a_program_that_is_missing_is_an_error():
    with pytest.raises(ColmetError, match="no such program"):
        ReportProcesses(options(), ("/nonexistent",))(ReportQuery(JOB))


def test_without_matplotlib_the_page_names_it_and_the_json_needs_nothing(history, monkeypatch):
    job_rows(history)
    for name in ("colmet.jobs.report.page", "colmet.jobs.report.charts", "matplotlib"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr(colmet.jobs.report, "charts", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingLibrary, match="python3-matplotlib"):
        report_of(lambda: history, ReportQuery(42, form="html"), NOW)
    found = json.loads(report_of(lambda: history, ReportQuery(42), NOW))
    assert found["job"] == 42 and set(found) > {"cpu", "energy"}


def archiving(bed, users, page, folder, *owners, history=None):
    """The interface to a store, and to an archive with jobs of these users."""
    stored = stored_in(history or bed.history)._replace(archive=archive_in(folder / "archive.sqlite", owners))
    return make(bed.known, users, stored=stored, folder=page)


def test_the_summary_is_the_report_from_the_archive_or_null(bed, users, page, tmp_path):
    app = archiving(bed, users, page, tmp_path, (JOB, "alice"), (OTHERS, "bob"))
    found = got(app, f"/api/v1/jobs/{JOB}/summary", ALICE)
    assert found["report"]["job"] == JOB and found["report"]["source"] == "archive"
    assert found["report"]["energy"]["nodes_joules"] is None, "that of other jobs is in it"
    assert found["footprint"] == got(app, f"/api/v1/archive/jobs/{JOB}", ALICE)["footprint"]
    nothing = {"report": None, "footprint": None}
    for number in (OTHERS, 12):
        assert got(app, f"/api/v1/jobs/{number}/summary", ALICE) == nothing
    assert got(app, f"/api/v1/jobs/{OTHERS}/summary", ROOT)["report"]["user"] == "bob"
    bare = make(bed.known, users, stored=stored_in(bed.history), folder=page)
    assert got(bare, f"/api/v1/jobs/{JOB}/summary", ROOT) == nothing


def test_a_summary_of_an_unreadable_archive_is_503_without_names_of_files(bed, users, page):
    def fails():
        raise ColmetError("/secret/archive: broken")

    app = make(bed.known, users, stored=stored_in(bed.history)._replace(archive=fails), folder=page)
    assert ask(app, f"/api/v1/jobs/{JOB}/summary", [ALICE]).json() == {"error": UNREADABLE}
    assert "/secret" in ask(app, f"/api/v1/jobs/{JOB}/summary", [ROOT]).json()["error"]


def test_a_job_that_the_archive_alone_has_is_a_job_without_nodes_and_columns_for_its_user(bed, users, page, tmp_path):
    app = archiving(bed, users, page, tmp_path, (77_700, "alice"))
    found = got(app, "/api/v1/jobs/77700", ALICE)
    assert (found["nodes"], found["tables"], found["stored"]) == ([], {}, False)
    assert found["job"]["job"] == 77_700 and found["job"]["running"] is False and found["job"]["cpu"] is None
    assert ask(app, "/api/v1/jobs/77700", [ROOT]).status == 200
    assert ask(app, "/api/v1/jobs/77700", [BOB]).status == 404 == ask(app, "/api/v1/jobs/77701", [ALICE]).status


class Unreadable(MadeUp):
    """A store that cannot be read."""

    def tables(self, job, since=None, until=None):
        raise ColmetError("/data/c.hdf5: input/output error")


class Partly(MadeUp):
    """A store of which a file cannot be read."""

    warnings = ("/data/c.1.hdf5: damaged",)


ARCHIVED = 77_700
OF_STORE = ("", f"/series?{METRIC}", "/completeness", "/tables", "/rows?table=cgroup_default", "/report")


@pytest.mark.parametrize("tail", OF_STORE)
def test_with_an_unreadable_store_every_answer_on_an_archived_job_has_the_warning(clock, users, page, tmp_path, tail):
    history = Unreadable()
    archive = archive_in(tmp_path / "archive.sqlite", [(ARCHIVED, "alice"), (ARCHIVED + 1, "bob")])
    stored = stored_in(history, archive=archive)._replace(archive=archive)
    app = make(Bed(history, clock).known, users, stored=stored, folder=page)
    assert got(app, f"/api/v1/jobs/{ARCHIVED}{tail}", ALICE)["warnings"] == [UNREADABLE]
    assert "/data/c.hdf5" in got(app, f"/api/v1/jobs/{ARCHIVED}{tail}", ROOT)["warnings"][0]
    theirs = refused(app, f"/api/v1/jobs/{ARCHIVED + 1}{tail}", 404, ALICE)
    nobodys = refused(app, f"/api/v1/jobs/{ARCHIVED + 9}{tail}", 404, ALICE)
    assert theirs.body.replace(b"77701", b"77709") == nobodys.body, "the warning would reveal that the job is hers"


def test_a_job_that_the_readable_part_of_a_store_lacks_is_not_known_to_be_gone(clock, users, page, tmp_path):
    app = archiving(Bed(Partly(), clock), users, page, tmp_path, (ARCHIVED, "alice"))
    assert got(app, f"/api/v1/jobs/{ARCHIVED}", ALICE)["warnings"] == [UNREADABLE]
    assert got(app, f"/api/v1/jobs/{ARCHIVED}", ROOT)["warnings"] == ["/data/c.1.hdf5: damaged"]


def test_long_reads_of_rows_do_not_delay_the_summary_of_a_job(bed, users, page, tmp_path):
    free, entered = threading.Event(), threading.Semaphore(0)

    class Slow(MadeUp):
        def by_hosts(self, *args, **options):
            entered.release()
            assert free.wait(30)
            return super().by_hosts(*args, **options)

    slow = Slow()
    job_rows(slow, job=JOB)
    app = archiving(bed, users, page, tmp_path, (JOB, "alice"), history=slow)

    async def all_of_it():
        read = asyncio.ensure_future(asking(app, f"/api/v1/jobs/{JOB}/rows?table=cgroup_default&since={START}", [ROOT]))
        try:
            assert await asyncio.get_running_loop().run_in_executor(None, entered.acquire, True, 20)
            return await asyncio.wait_for(asking(app, f"/api/v1/jobs/{JOB}/summary", [ALICE]), 20)
        finally:
            free.set()
            await read

    assert asyncio.run(all_of_it()).json()["report"]["job"] == JOB


def test_the_hosts_of_a_stored_job_are_named_at_once(bed, users, page):
    app = make(bed.known, users, folder=page)
    assert got(app, f"/api/v1/jobs/{SHARED}", ROOT)["hosts"] == ["node-1", "node-2"]
    assert got(app, f"/api/v1/jobs/{SHARED}", ALICE)["hosts"] == ["node-1"], "the other host's rows are bob's"
