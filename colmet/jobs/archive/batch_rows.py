"""Columns of the batch system in the archive's file: records are joined to summaries in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from colmet.batch.records import JobRecord
from colmet.jobs.archive.matching import NAMES, JoinPlan, Known, columns_of, plan
from colmet.jobs.columns import ENDED, INTEGER, RUNNING, TEXT, Summary

# One row for each batch system: until when its ended jobs are in the archive.
DDL = (f"CREATE TABLE IF NOT EXISTS asked (system {TEXT} PRIMARY KEY, until {INTEGER} NOT NULL) WITHOUT ROWID",)
MOST_UNSETTLED = 2000  # jobs of one answer
LONGEST_S = 60 * 86400  # of a job that is looked up by its number after its end

_COLUMNS = ", ".join([f'"{name}"' for name in NAMES])
_READ = f'SELECT "start", "last", "user", {_COLUMNS} FROM jobs WHERE job = ?'
_SETS = ", ".join([f'"{name}" = ?' for name in NAMES])
_UPDATE = f"UPDATE jobs SET {_SETS} WHERE job = ? AND start = ?"


class Joined(NamedTuple):
    """What records have changed."""

    joined: int = 0  # summaries with rows that have a record now
    alone: int = 0  # summaries without rows, new
    jobs: Collection[int] = ()  # numbers with another record


def join(
    database: sqlite3.Connection,
    system: str,
    records: Sequence[JobRecord],
    asked_until: float | None,
    unknown: Collection[int],
) -> Joined:
    """Join records within a transaction; see `ArchiveStore.join`."""
    joined = alone = 0
    changed: set[int] = set()
    by_job = sorted(records, key=lambda one: one.job)
    for job, some in groupby(by_job, key=lambda one: one.job):
        change = settle(database, job, [columns_of(one) for one in some])
        joined += change.joined
        alone += len(change.inserts)
        if change.updates:
            changed.add(job)
    database.executemany(
        "UPDATE jobs SET state = NULL WHERE job = ? AND system = ? AND state = ? AND is_running = 0",
        [(job, system, RUNNING) for job in unknown],
    )
    if asked_until is not None:
        database.execute(
            "INSERT INTO asked VALUES (?, ?) ON CONFLICT (system) DO UPDATE SET until = excluded.until",
            (system, int(asked_until)),
        )
    return Joined(joined, alone, changed)


def unsettled(database: sqlite3.Connection, since: float, until: float) -> list[int]:
    """Return the numbers of jobs whose last row is of this interval, and whose end is unknown; the latest first.

    Jobs that the batch system last reported as running are among them whenever their last row came: else one that ended
    during a long outage of the collector would run for ever.
    """
    rows = database.execute(
        "SELECT DISTINCT j.job AS job, j.last FROM listed AS l JOIN jobs AS j ON j.job = l.job AND j.start = l.start "
        "WHERE (l.state = ? OR (l.state = ? AND l.start BETWEEN ? AND ? AND j.last >= ?)) AND j.is_running = 0 "
        "AND j.last <= ? ORDER BY j.last DESC LIMIT ?",
        (RUNNING, ENDED, since - LONGEST_S, until, since, until, MOST_UNSETTLED),
    )
    return [row["job"] for row in rows]


def settle(database: sqlite3.Connection, job: int, records: Iterable[Known] = ()) -> JoinPlan:
    """Join records to the summaries of one job number, within a transaction; return what has changed."""
    rows: list[Summary] = [dict(row) for row in database.execute(_READ, (job,))]
    change = plan(rows, records)
    database.executemany("DELETE FROM jobs WHERE job = ? AND start = ?", [(job, start) for start in change.deletes])
    database.executemany(
        _UPDATE, [(*[columns.get(name) for name in NAMES], job, start) for start, columns in change.updates]
    )
    database.executemany(
        f"INSERT INTO jobs (job, start, {_COLUMNS}) VALUES (?, ?{', ?' * len(NAMES)})",
        [(job, row["start"], *[row.get(name) for name in NAMES]) for row in change.inserts],
    )
    return change


def settle_written(database: sqlite3.Connection, jobs: Iterable[object]) -> None:
    """Join records to the summaries that were just written, within the same transaction.

    They waited without rows, or are with the hosts of another user, which came first.
    """
    question = "SELECT count(*) > 1 AND count(started) > 0 FROM jobs WHERE job = ?"
    for job in {*jobs}:
        if database.execute(question, (job,)).fetchone()[0]:
            settle(database, int(str(job)))
