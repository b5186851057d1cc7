"""Removal from the archive's file: of one user's jobs, or of the name from them, and of old jobs (--archive-keep)."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from colmet.common.errors import OutputUnavailable
from colmet.jobs.archive.store import TABLES, ArchiveError, ArchiveStore, transaction

AT_ONCE = 500  # jobs of a transaction: a collector writes between them
_NAMES = ("user", "owner")  # columns with names of users, in any table
_TEXTS = ("name", "dependency")  # of a job, which may name its user


class Run(NamedTuple):
    """A job of a user."""

    job: int
    start: int  # seconds since 1970
    last: int
    is_unfinished: bool  # its summary still changes


def runs_of_user(store: ArchiveStore, user: str) -> list[Run]:
    """Return all jobs of a user, by the batch system or by the cgroup of one of their hosts, by start."""
    in_run = "h.job = j.job AND h.start BETWEEN j.start AND coalesce(j.last, j.start)"
    rows = store.database.execute(
        "SELECT j.job AS job, j.start AS start, coalesce(j.last, j.ended, j.start) AS last, EXISTS (SELECT 1 "
        "FROM folds AS f WHERE f.job = j.job AND f.start BETWEEN j.start AND coalesce(j.last, j.start)) AS open "
        "FROM jobs AS j WHERE j.owner = ? OR (j.owner IS NULL AND (j.user = ? OR (j.user IS NULL AND EXISTS ("
        f"SELECT 1 FROM hosts AS h WHERE {in_run} AND h.user = ?)))) ORDER BY j.start, j.job",
        [user] * 3,
    )
    return [Run(row["job"], row["start"], row["last"], bool(row["open"])) for row in rows]


def pseudonym() -> str:
    """Return a random name, which nothing leads back from."""
    return f"user-{secrets.token_hex(4)}"


def forget(store: ArchiveStore, runs: Sequence[Run], user: str, other: str = "") -> bool:
    """Remove jobs of a user; with another name, keep them under that.

    Tables of other parts of Colmet with names of users lose, or change, those of this user as well. Removed values are
    overwritten in the file. Return whether they are gone from SQLite's log (`-wal`), too: not while another program
    reads the archive. ArchiveError if it could not be written: some jobs are left.
    """
    database = store.database
    try:
        database.execute("PRAGMA secure_delete = ON")
        for first in range(0, len(runs), AT_ONCE):
            some = runs[first : first + AT_ONCE]
            if not other:
                store.remove([(run.job, run.start, run.last) for run in some])
                continue
            with transaction(database):
                for run in some:
                    _rename(database, run, other)
        with transaction(database):
            _elsewhere(database, user, other)
        (is_busy, *_) = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()  # it has former pages, too
    except sqlite3.Error as err:
        raise ArchiveError(f"{store.path}: {err}; repeat the command") from err
    return not is_busy


def _rename(database: sqlite3.Connection, run: Run, other: str) -> None:
    database.execute(  # its state has the name as well
        "DELETE FROM folds WHERE job = ? AND start BETWEEN ? AND ?", (run.job, run.start, run.last)
    )
    database.execute(
        "UPDATE hosts SET user = ? WHERE job = ? AND start BETWEEN ? AND ?", (other, run.job, run.start, run.last)
    )
    texts = ", ".join([f"{name} = NULL" for name in _TEXTS])
    database.execute(
        f"UPDATE jobs SET user = ?, owner = CASE WHEN owner IS NULL THEN NULL ELSE ? END, {texts} "
        "WHERE job = ? AND start = ?",
        (other, other, run.job, run.start),
    )


def _elsewhere(database: sqlite3.Connection, user: str, other: str) -> None:
    tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in tables:
        if table in TABLES or table.startswith("sqlite_"):
            continue
        for row in database.execute(f'PRAGMA table_info("{table}")').fetchall():
            if row["name"] not in _NAMES:
                continue
            if other:
                database.execute(f'UPDATE "{table}" SET "{row["name"]}" = ? WHERE "{row["name"]}" = ?', (other, user))
            else:
                database.execute(f'DELETE FROM "{table}" WHERE "{row["name"]}" = ?', (user,))


EXPIRED_AT_ONCE = 200  # jobs of a transaction: some 20 ms
EVERY_S = 600.0  # between two searches that have found all

# A job that its hosts may go on with has an unfinished fold. Start and end are those that lists show.
_OLD = """SELECT job, start, "end" FROM listed WHERE start < ? AND "end" < ? AND NOT EXISTS
    (SELECT 1 FROM folds WHERE folds.job = listed.job AND folds.start BETWEEN listed.start AND listed."end")
    ORDER BY start LIMIT ?"""


class ArchiveExpiry:
    """Removes the summaries of jobs that ended longer ago than `keep_s` (0 keeps all), and counts them: `removed`."""

    def __init__(self, keep_s: int, clock: Callable[[], float] = time.time) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._due_at = 0.0
        self.removed = 0

    def remove(self, store: ArchiveStore) -> None:
        """Remove some old jobs, if it is time; the next call continues. OutputUnavailable if it cannot be written."""
        if not self._keep_s or time.monotonic() < self._due_at:
            return
        limit = self._clock() - self._keep_s
        try:
            jobs = [tuple(row) for row in store.database.execute(_OLD, (limit, limit, EXPIRED_AT_ONCE))]
            if jobs:
                store.remove(jobs)
        except sqlite3.Error as err:
            self._due_at = time.monotonic() + EVERY_S
            raise OutputUnavailable(f"cannot remove from {store.path}: {err}") from err
        self.removed += len(jobs)
        if len(jobs) < EXPIRED_AT_ONCE:
            self._due_at = time.monotonic() + EVERY_S
