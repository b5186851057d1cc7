"""Grades of what jobs used: the same in reports, lists, and the JSON interface."""

from __future__ import annotations

import contextlib

import pytest

from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.queries import JobFilter
from colmet.jobs.archive.store import ArchiveStore
from colmet.jobs.columns import CANCELLED, DONE, ENDED, FAILED, OUT_OF_MEMORY, RUNNING, TIMEOUT
from colmet.jobs.grades import (
    EXCEEDED,
    GOOD,
    GRADES,
    LOW,
    NEEDED,
    POOR,
    THRESHOLDS,
    Judged,
    grade,
    graded_jobs,
    grades_of,
    stored,
)
from colmet.jobs.report.archived import find
from colmet.jobs.report.requested import uses_of
from colmet.jobs.summary_report import report_of
from tests.support.archive_data import summaries, write

COUNT = 300
OVER = Judged(DONE, False, 3600.0, True, False)


@pytest.mark.parametrize("what", THRESHOLDS)
def test_a_share_at_a_threshold_has_the_better_grade(what):
    good, low = THRESHOLDS[what]
    found = [grade(what, share, OVER) for share in (1.0, good, good - 0.001, low, low - 0.001, 0.0, None)]
    assert found == [GOOD, GOOD, LOW, LOW, POOR, POOR, ""]


@pytest.mark.parametrize(
    ("changes", "cores", "memory", "walltime"),
    [
        ({}, GOOD, GOOD, GOOD),
        ({"state": ENDED}, GOOD, GOOD, GOOD),
        ({"state": RUNNING, "is_running": True}, GOOD, "", ""),
        ({"state": FAILED}, GOOD, GOOD, ""),
        ({"state": CANCELLED}, GOOD, GOOD, ""),
        ({"state": TIMEOUT}, GOOD, GOOD, EXCEEDED),
        ({"state": OUT_OF_MEMORY}, GOOD, EXCEEDED, ""),
        ({"is_killed": True}, GOOD, EXCEEDED, GOOD),
        ({"wall_s": 29.0}, "", "", GOOD),
        ({"is_measured": False}, "", "", GOOD),
    ],
)
def test_what_may_change_or_is_too_little_has_no_grade(changes, cores, memory, walltime):
    job = OVER._replace(**changes)
    assert [grade(what, 1.0, job) for what in ("cores", "memory", "walltime")] == [cores, memory, walltime]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("grades") / "a.sqlite")
    with contextlib.closing(ArchiveStore(path, writable=True)) as store:
        write(store, summaries(COUNT, users=5))
    with LocalArchive(path) as opened:
        yield opened


def test_a_list_has_the_grades_that_are_asked_for_and_no_other_columns(archive):
    page = graded_jobs(archive, JobFilter(), ("job", "cpu_grade"), "start", True, 0, COUNT)
    rows = archive.jobs(JobFilter(), ("job", *NEEDED), "start", True, 0, COUNT).rows
    assert page.rows == [{"job": row["job"], "cpu_grade": grades_of(row)["cpu_grade"]} for row in rows]
    assert {GOOD, LOW, POOR} <= {row["cpu_grade"] for row in page.rows}
    assert graded_jobs(archive, JobFilter(), ("job",), "start", True, 0, 2).rows == [
        {"job": row["job"]} for row in rows[:2]
    ]
    assert stored(["job", "cpu_grade", "state"]) == list(dict.fromkeys(["job", "state", *NEEDED]))


def test_the_report_of_a_job_has_the_grades_of_its_row(archive):
    names = {"cores": "cpu_grade", "memory": "memory_grade", "gpus": "gpu_grade", "walltime": "walltime_grade"}
    page = graded_jobs(archive, JobFilter(), ("job", "start", *GRADES), "start", True, 0, 60)
    seen = set()
    for row in page.rows:
        found = find(archive, row["job"], row["start"])
        for use in uses_of(report_of(found.summary, found.hosts)):
            assert use.grade == (row[names[use.what]] or ""), (row, use)
            seen.add((use.what, use.grade))
    assert len(seen) > 6
