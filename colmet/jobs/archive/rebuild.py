"""An archive made again from stored rows, in a new file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from itertools import islice

from colmet.common.host.files import sync_directory
from colmet.common.schema import Batch
from colmet.jobs.archive.archiver import Archiver
from colmet.jobs.archive.former import KeptSummaries, keep_former
from colmet.jobs.archive.store import ArchiveError, ArchiveStore, Changes, Position

AT_ONCE = 2000  # batches
SIDE_FILES = ("-wal", "-shm")  # of SQLite, beside the file


class _Record:
    """A stored batch, as a record that was received at its time."""

    def __init__(self, number: int, batch: Batch) -> None:
        self.number = number
        self.received_ns = batch.time_ns
        self.batches = (batch,)


class Rebuild:
    """A new archive, folded from stored rows by time. As a context manager, it removes an unfinished file.

    Args:
        path: of the new file; a former try is removed.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        remove(path)
        self._store = ArchiveStore(path, writable=True)
        self._store.database.execute("PRAGMA synchronous = OFF")  # the whole file is synced at the end
        self._archiver = Archiver(self._store)
        self._count = 0
        self._is_done = False

    def take(self, batches: Iterable[Batch]) -> None:
        """Fold batches, later than all before, and write what has changed."""
        some = iter(batches)
        while records := [self._record(batch) for batch in islice(some, AT_ONCE)]:
            self._archiver.take(records)
        self._write(self._archiver.changes(), None)

    def _record(self, batch: Batch) -> _Record:
        self._count += 1
        return _Record(self._count, batch)

    def _write(self, changes: Changes, position: Position | None) -> None:
        self._store.write(changes, position)
        self._archiver.saved(changes)

    def finish(self, former: str, position: Position | None, now: int) -> KeptSummaries:
        """End jobs that are over, add what the former archive alone has, and sync the file.

        Args:
            former: path of the former archive; empty for none.
            position: of the rows in the collector's journal; None if unknown.
            now: seconds since 1970, for jobs on silent nodes.
        """
        archiver = self._archiver
        archiver.end(over=True)
        archiver.fold.jobs.sweep(now)
        if position is not None:
            self._continue(position, former)
        self._write(archiver.changes(whole=True), position)
        try:
            kept = keep_former(self._store, former) if former else KeptSummaries(0, 0)
            self._store.database.execute("PRAGMA synchronous = FULL")
            self._store.database.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as err:
            raise ArchiveError(f"{self.path}: {err}; is there space for a second archive?") from err
        self._store.close()
        sync(self.path)
        self._is_done = True
        return kept

    def _continue(self, position: Position, former: str) -> None:
        """Let the collector go on with the records after the stored rows."""
        self._archiver.other_journal(position.number)
        if former:
            store = ArchiveStore(former)
            try:
                if store.position is not None and store.position.journal == position.journal:
                    self._archiver.follow(Archiver(store))
            finally:
                store.close()

    def __enter__(self) -> Rebuild:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._store.close()
        if not self._is_done:
            remove(self.path)


def replace(path: str, new: str, aside: str) -> None:
    """Put a finished file in the place of an archive that no process writes, which stays as `aside`.

    Readers of the former one go on with it; whenever the machine fails, there is one of both.
    """
    former = sqlite3.connect(path, isolation_level=None)
    try:
        former.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        former.close()
    for suffix in SIDE_FILES:  # they would be taken for those of the new file
        if os.path.lexists(path + suffix):
            os.unlink(path + suffix)
    sync(path)
    if aside:
        os.link(path, aside)
    os.replace(new, path)
    sync_directory(os.path.dirname(os.path.abspath(path)))


def sync(path: str) -> None:
    """Make a file's content survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: str) -> None:
    """Remove an archive and SQLite's files beside it, if they are there."""
    for suffix in ("", *SIDE_FILES):
        if os.path.lexists(path + suffix):
            os.unlink(path + suffix)
