"""A job number that is used again at once: archive and reports keep the two runs in one file apart."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.job_summaries import runs_of
from colmet.jobs.report.archived import LATEST_OF_SEVERAL, find, made_from
from colmet.stored.job_rows import JobInterval
from tests.support.archives import Archive, records_of, replayed
from tests.support.made_up_history import GIB, START, MadeUp, S

# The last row of the first run has the time of the first row of the second one, as the agent sends it.
FIRST, SECOND = np.arange(START + 1, START + 71), np.arange(START + 70, START + 132)
HALF = len(FIRST)


@pytest.fixture
def history():
    made = MadeUp()
    times = np.concatenate([FIRST, SECOND])
    is_second = np.arange(len(times)) >= HALF
    used = np.where(is_second, (times - START - 69) * S // 4, (times - START) * S)
    own = {"run": np.where(is_second, 8, 7), "uptime": times - START + 500}
    users = np.where(is_second, b"zoe", b"alice")
    memory = np.where(is_second, GIB, 2 * GIB)
    cgroup = {"user": users, "cpu_usage": used, "cpus_allocated": 2, "memory_current": memory}
    made.add(42, "cgroup_default", "n1", times, **cgroup, memory_limit=4 * GIB, **own)
    began = np.where(is_second, START + 70, START)
    made.add(42, "taskstats_default", "n1", times, ac_btime=began, cpu_total=used, **own)
    made.add(42, "perfhwstats_default", "n1", times[:HALF], counter_1=1)
    return made


def report_of(history, archive=None, start=None):
    found = None if archive is None else find(archive, 42, start)
    return made_from(found, lambda: contextlib.nullcontext(history), JobInterval(42), START + 10**6)[0]


def figures(report):
    return report.user, report.start - START, report.wall_s, round(report.cpu.used_s, 6), report.memory.total_peak_bytes


EXPECTED = {70: ("zoe", 70, 61, 15.5, GIB), 0: ("alice", 0, 70, 70, 2 * GIB)}


def test_two_runs_of_one_second_are_two_jobs_in_an_archive_made_from_rows_and_in_reports(tmp_path, history):
    folded = Archive(tmp_path / "a.sqlite")
    folded.take(records_of(replayed(history, (42,))))
    folded.end()
    jobs = {job["start"] - START: (job["user"], job["wall_s"], round(job["cpu_s"], 6)) for job in folded.jobs()}
    assert jobs == {0: ("alice", 70, 70), 70: ("zoe", 61, 15.5)}
    assert folded.archiver.counters()["rows_left_out"] == 0
    with LocalArchive(str(tmp_path / "a.sqlite")) as archive:
        for start, expected in EXPECTED.items():
            report = report_of(history, archive, START + start)
            assert figures(report) == expected and report.source == "rows" and len(report.starts) == 2


def test_without_an_archive_the_report_is_of_the_latest_run_and_says_so(history):
    report = report_of(history)
    assert figures(report) == EXPECTED[70]
    assert report.warnings == (LATEST_OF_SEVERAL,)


def test_a_host_whose_node_is_of_an_earlier_version_is_told_apart_by_its_times(history):
    for job, table in list(history.rows):
        times, columns = history.rows[job, table]["n1"]
        earlier = {name: values for name, values in columns.items() if name not in ("run", "uptime")}
        history.add(job, table, "n2", times[-20:], **{name: values[-20:] for name, values in earlier.items()})
    report = report_of(history)
    assert [host.host for host in report.hosts] == ["n1", "n2"]
    assert report.hosts[0].cpu_used_s == pytest.approx(15.5)


def test_a_job_that_goes_on_on_another_host_after_a_requeue_is_two_runs():
    hosts = [{"host": "n1", "start": 0, "last": 1000}, {"host": "n2", "start": 1130, "last": 3000}]
    assert len(runs_of(hosts)) == 1, "it may have waited"
    assert [[one["host"] for one in run] for run in runs_of(hosts, lambda one: one["start"])] == [["n1"], ["n2"]]
