"""An archive made again from stored rows, in a new file; what the former one alone knows is kept.

That is jobs whose rows are gone, and what the batch system has said.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import count, islice
from typing import NamedTuple

from colmet.common.host.files import sync_directory
from colmet.common.schema import Batch
from colmet.jobs.archive.archiver import Archiver
from colmet.jobs.archive.store import TABLES, ArchiveError, ArchiveStore, Changes, Position, escaped
from colmet.jobs.columns import BATCH
from colmet.jobs.job_summaries import job_summary, keyed_runs

AT_ONCE = 2000  # batches
SIDE_FILES = ("-wal", "-shm")  # of SQLite, beside the file


class Rebuild:
    """A new archive, folded from stored rows by time; a former try at this path is removed.

    As a context manager, it removes an unfinished file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        remove(path)
        self._store = ArchiveStore(path, writable=True)
        self._store.database.execute("PRAGMA synchronous = OFF")  # the whole file is synced at the end
        self._archiver = Archiver(self._store)
        self._numbers = count(1)
        self._is_done = False

    def take(self, batches: Iterable[Batch]) -> None:
        """Fold batches, later than all before, and write what has changed."""
        some = iter(batches)
        while records := [(next(self._numbers), batch.time_ns, (batch,)) for batch in islice(some, AT_ONCE)]:
            self._archiver.take(records)
        self._write(self._archiver.changes(), None)

    def _write(self, changes: Changes, position: Position | None) -> None:
        self._store.write(changes, position)
        self._archiver.saved(changes)

    def finish(self, former: str, position: Position | None, now: int) -> KeptSummaries:
        """End jobs that are over, add what the former archive alone has, if there is one, and sync the file.

        `position` is that of the rows in the collector's journal, if known; at `now` jobs on silent nodes end.
        """
        archiver = self._archiver
        archiver.end(over=True)
        archiver.fold.jobs.sweep(now)
        if position is not None:  # the collector goes on with the records after the stored rows
            archiver.other_journal(position.number)
            if former:
                with closing(ArchiveStore(former)) as store:
                    if store.position is not None and store.position.journal == position.journal:
                        archiver.follow(Archiver(store))
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


_OVERLAP = "{a}.start <= {b}.last AND {b}.start <= {a}.last"
_OF_SEVERAL_HOSTS = "SELECT job FROM main.hosts GROUP BY job HAVING count(*) > 1"


class KeptSummaries(NamedTuple):
    """Numbers of what is kept."""

    jobs: int  # whole jobs of the former archive alone
    hosts: int  # summaries of hosts with more samples than there are rows


def keep_former(store: ArchiveStore, path: str) -> KeptSummaries:
    """Add to a new archive what only the former one has.

    A summary of a job on a host is kept if the former one has more samples of it than there are rows now: they have
    been removed. All other summaries are the new ones.
    """
    database = store.database
    database.execute("ATTACH ? AS former", (_uri(path),))
    try:
        kept = _hosts(database)
        mixed = _whole(database)
        for job in mixed:
            keyed = keyed_runs(store.hosts_of(job), store.records_of(job))
            rows = [{**job_summary(run), "start": start} for start, run in keyed.items()]
            store.write(Changes((), rows, {}), None)
        _batch(database)
        store.divide([row["job"] for row in database.execute(_OF_SEVERAL_HOSTS).fetchall()])
        _others(database)
        jobs = int(database.execute("SELECT count(*) FROM temp.alone").fetchone()[0])
    finally:
        database.execute("DETACH former")
    return KeptSummaries(jobs, kept)


def _uri(path: str) -> str:
    if os.access(path, os.W_OK):
        return f"file:{escaped(os.path.abspath(path))}?mode=rw"
    mode = "ro" if os.path.lexists(f"{path}-wal") else "ro&immutable=1"
    return f"file:{escaped(os.path.abspath(path))}?mode={mode}"


def _hosts(database: sqlite3.Connection) -> int:
    """Copy the kept summaries of hosts; return their number."""
    overlap = _OVERLAP.format(a="n", b="o")
    database.execute(
        "CREATE TEMP TABLE kept AS SELECT o.job, o.host, o.start, o.last FROM former.hosts AS o WHERE NOT EXISTS ("
        "SELECT 1 FROM main.hosts AS n WHERE n.job = o.job AND n.host = o.host "
        f"AND {overlap} AND n.rows >= coalesce(o.rows, 0))"
    )
    database.execute("CREATE INDEX temp.kept_key ON kept (job, host)")
    # keys of new summaries of the same runs: of rows that are left of them
    database.execute(
        "CREATE TEMP TABLE less AS SELECT DISTINCT n.job, n.host, n.start FROM main.hosts AS n "
        f"JOIN temp.kept AS o ON n.job = o.job AND n.host = o.host AND {overlap}"
    )
    for table in ("hosts", "host_details", "folds"):
        database.execute(
            f"DELETE FROM main.{table} WHERE (job, host, start) IN (SELECT job, host, start FROM temp.less)"
        )
        _copy(database, table, "(job, host, start) IN (SELECT job, host, start FROM temp.kept)")
    return int(database.execute("SELECT count(*) FROM temp.kept").fetchone()[0])


def _whole(database: sqlite3.Connection) -> list[int]:
    """Copy whole jobs of the former archive alone; return the jobs with summaries of both, to be made again."""
    database.execute(
        "CREATE TEMP TABLE mixed AS SELECT DISTINCT k.job AS job FROM temp.kept AS k WHERE EXISTS ("
        "SELECT 1 FROM main.hosts AS n WHERE n.job = k.job AND NOT EXISTS ("
        "SELECT 1 FROM temp.kept AS o WHERE o.job = n.job AND o.host = n.host AND o.start = n.start))"
    )
    of_kept = "job IN (SELECT job FROM temp.kept)"
    # those that only the batch system knows have no hosts
    database.execute(
        "CREATE TEMP TABLE alone AS SELECT job, start FROM former.jobs AS o WHERE "
        f"({of_kept} AND job NOT IN (SELECT job FROM temp.mixed)) OR NOT EXISTS (SELECT 1 FROM main.hosts AS n "
        "WHERE n.job = o.job AND n.start <= coalesce(o.last, o.ended, o.start) AND o.start <= n.last)"
    )
    for table in ("job_details", "jobs"):
        database.execute(f"DELETE FROM main.{table} WHERE {of_kept}")
        _copy(database, table, "(job, start) IN (SELECT job, start FROM temp.alone)")
    return [row[0] for row in database.execute("SELECT job FROM temp.mixed")]


def _batch(database: sqlite3.Connection) -> None:
    """Give the new summaries of whole jobs what the batch system has reported of them."""
    there = _columns(database, "former", "jobs")
    names = [column.name for column in BATCH if column.name in there]
    if not names:
        return
    listed = ", ".join([f'"{name}"' for name in names])  # of the former one alone: temp.known has none of them
    # `was` is the start of the same run there
    database.execute(
        "CREATE TEMP TABLE known AS SELECT j.job AS job, j.start AS start, (SELECT max(o.start) FROM former.jobs AS o "
        "WHERE o.job = j.job AND o.start <= coalesce(j.last, j.start) AND coalesce(o.last, o.start) >= j.start) AS was "
        "FROM main.jobs AS j WHERE (j.job, j.start) NOT IN (SELECT job, start FROM temp.alone)"
    )
    database.execute("CREATE INDEX temp.known_key ON known (job, start)")
    database.execute(
        f"UPDATE main.jobs SET ({listed}) = (SELECT {listed} FROM former.jobs AS o JOIN temp.known AS k "
        "ON k.job = o.job AND k.was = o.start WHERE k.job = jobs.job AND k.start = jobs.start) "
        "WHERE (job, start) IN (SELECT job, start FROM temp.known WHERE was IS NOT NULL)"
    )


def _others(database: sqlite3.Connection) -> None:
    """Copy the tables of others."""
    tables = database.execute(
        "SELECT name, sql FROM former.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    for name, sql in [(row["name"], row["sql"]) for row in tables]:
        if name not in TABLES:  # those the rebuild has filled
            if not _columns(database, "main", name):
                database.execute(sql)
            _copy(database, name, "1")


def _copy(database: sqlite3.Connection, table: str, condition: str) -> None:
    """Copy rows of the former archive, with the columns that both have."""
    both = _columns(database, "former", table)
    names = ", ".join([f'"{name}"' for name in _columns(database, "main", table) if name in both])
    database.execute(
        f'INSERT OR REPLACE INTO main."{table}" ({names}) SELECT {names} FROM former."{table}" WHERE {condition}'
    )


def _columns(database: sqlite3.Connection, schema: str, table: str) -> Sequence[str]:
    return [row["name"] for row in database.execute(f'PRAGMA {schema}.table_info("{table}")')]
