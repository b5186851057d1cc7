"""Shared by tests: archives folded from records, and their content."""

from __future__ import annotations

from typing import NamedTuple

from colmet.common.schema import Batch
from colmet.jobs.archive.archiver import Archiver
from colmet.jobs.archive.store import ArchiveStore, Position
from colmet.jobs.fold import columns_read
from colmet.stored.replay import Replay
from colmet.stored.series import RowQuery

JOURNAL = "ab" * 8


class Record(NamedTuple):
    number: int
    received_ns: int
    batches: tuple[Batch, ...]


def records_of(batches, first=0, delay_s=1):
    """Records of one batch each, received a little after its time, or after a later one."""
    found, now = [], 0
    for n, batch in enumerate(batches):
        now = max(now, batch.time_ns + delay_s * 10**9)
        found.append(Record(first + n, now, (batch,)))
    return found


def replayed(history, jobs):
    """The rows of a made-up store as batches."""
    series = [one for (job, table) in history.rows if job in (0, *jobs) for one in history.read(RowQuery(job, table))]
    return list(Replay(columns_read()).batches(series))


class Archive:
    """An archive in a file, and what folds into it."""

    def __init__(self, path):
        self.store = ArchiveStore(str(path), writable=True)
        self.archiver = Archiver(self.store)

    def __del__(self):
        """Close the file: Python 3.13 and later warn of databases that are left open."""
        self.store.close()

    def take(self, records):
        """As the output does in one burst."""
        self.archiver.take(records)
        self.write()

    def write(self, whole=False):
        changes = self.archiver.changes(whole)
        self.store.write(changes, Position(JOURNAL, self.archiver.position))
        self.archiver.saved(changes)

    def end(self, over=True):
        self.archiver.end(over)
        self.write(whole=True)

    def jobs(self):
        """All summaries of whole jobs, up to the last record."""
        self.write(whole=True)
        rows = self.store.database.execute("SELECT * FROM jobs JOIN job_details USING (job, start) ORDER BY job, start")
        return [dict(row) for row in rows]

    def hosts(self):
        """All summaries of hosts, up to the last record."""
        self.write(whole=True)
        rows = self.store.database.execute(
            "SELECT * FROM hosts JOIN host_details USING (job, host, start) ORDER BY job, host, start"
        )
        return [dict(row) for row in rows]
