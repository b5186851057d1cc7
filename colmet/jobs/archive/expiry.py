"""Removal of old summaries (--archive-keep), some jobs at a time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

from colmet.common.errors import OutputUnavailable
from colmet.jobs.archive.store import ArchiveStore

AT_ONCE = 200  # jobs of a transaction: some 20 ms
EVERY_S = 600.0  # between two searches that have found all

# A job that its hosts may go on with has an unfinished fold. Start and end are those that lists show.
_OLD = """SELECT job, start, "end" FROM listed WHERE start < ? AND "end" < ? AND NOT EXISTS
    (SELECT 1 FROM folds WHERE folds.job = listed.job AND folds.start BETWEEN listed.start AND listed."end")
    ORDER BY start LIMIT ?"""


class ArchiveExpiry:
    """Removes the summaries of jobs that ended before a limit, and of their hosts.

    Args:
        keep_s: the limit; 0 keeps all.

    Attributes:
        removed: number of removed jobs.
    """

    def __init__(self, keep_s: int, clock: Callable[[], float] = time.time) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._due_at = 0.0
        self.removed = 0

    def remove(self, store: ArchiveStore) -> None:
        """Remove some old jobs, if it is time; the next call continues.

        Raises:
            OutputUnavailable: the archive cannot be written.
        """
        if not self._keep_s or time.monotonic() < self._due_at:
            return
        limit = self._clock() - self._keep_s
        try:
            jobs = [tuple(row) for row in store.database.execute(_OLD, (limit, limit, AT_ONCE))]
            if jobs:
                store.remove(jobs)
        except sqlite3.Error as err:
            self._due_at = time.monotonic() + EVERY_S
            raise OutputUnavailable(f"cannot remove from {store.path}: {err}") from err
        self.removed += len(jobs)
        if len(jobs) < AT_ONCE:
            self._due_at = time.monotonic() + EVERY_S
