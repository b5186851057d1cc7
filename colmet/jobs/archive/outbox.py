"""Keys of the summaries that wait for the shared archive, in the file of the local one.

Triggers write them: in the same transaction as a summary or the values of a batch system, whichever connection writes.
A key is here once, so their number is bounded by that of the summaries. Its number grows with each change, so a summary
that changes while it is sent stays here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from colmet.jobs.archive.store import transaction
from colmet.jobs.columns import BATCH

_ADD = """INSERT INTO unshared SELECT {of}.job, {host}, {of}.start, coalesce(max(number), 0) + 1 FROM unshared WHERE 1
    ON CONFLICT (job, host, start) DO UPDATE SET number = excluded.number"""
_OF_BATCH = ", ".join([f'"{column.name}"' for column in BATCH])
_HAS_BATCH = " OR ".join([f'NEW."{column.name}" IS NOT NULL' for column in BATCH])
_TRIGGERS = {
    "unshared_host_insert": f"AFTER INSERT ON hosts BEGIN {_ADD.format(of='NEW', host='NEW.host')}; END",
    "unshared_host_update": f"AFTER UPDATE ON hosts BEGIN {_ADD.format(of='NEW', host='NEW.host')}; END",
    "unshared_host_delete": f"AFTER DELETE ON hosts BEGIN {_ADD.format(of='OLD', host='OLD.host')}; END",
    "unshared_job_insert": f"AFTER INSERT ON jobs WHEN {_HAS_BATCH} BEGIN {_ADD.format(of='NEW', host=repr(''))}; END",
    "unshared_job_update": f"AFTER UPDATE OF start, {_OF_BATCH} ON jobs "
    f"BEGIN {_ADD.format(of='NEW', host=repr(''))}; END",
    "unshared_job_delete": f"AFTER DELETE ON jobs WHEN {_HAS_BATCH.replace('NEW.', 'OLD.')} "
    f"BEGIN {_ADD.format(of='OLD', host=repr(''))}; END",
}
_TABLE = """CREATE TABLE unshared (job INTEGER NOT NULL, host TEXT NOT NULL, start INTEGER NOT NULL,
    number INTEGER NOT NULL, PRIMARY KEY (job, host, start)) WITHOUT ROWID"""
_FILL = (
    "INSERT INTO unshared SELECT job, host, start, row_number() OVER (ORDER BY start, job, host) FROM hosts",
    f"""INSERT INTO unshared SELECT job, '', start, (SELECT coalesce(max(number), 0) FROM unshared)
    + row_number() OVER (ORDER BY start, job) FROM jobs WHERE {_HAS_BATCH.replace("NEW.", "")}""",
)


class Waiting(NamedTuple):
    """A summary that waits."""

    job: int
    host: str  # "" for the batch system's values of a whole job
    start: int
    number: int


class ArchiveOutbox:
    """The keys that wait. Used by one thread; another connection may write the summaries.

    Args:
        database: of the local archive.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def open(self) -> None:
        """Note changes from now on; the first time, or if something was not noted, all summaries wait."""
        wanted = {name: f"CREATE TRIGGER {name} {text}" for name, text in _TRIGGERS.items()}
        found = self._database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        if self._exists() and wanted.items() <= dict(map(tuple, found)).items():
            return
        self.remove()
        with transaction(self._database):
            for statement in (
                *(_TABLE, "CREATE UNIQUE INDEX unshared_by_number ON unshared (number)", *_FILL),
                *wanted.values(),
            ):
                self._database.execute(statement)

    def remove(self) -> None:
        """Note no changes, and forget those that wait."""
        if not self._exists():
            return
        with transaction(self._database):
            for name in _TRIGGERS:
                self._database.execute(f"DROP TRIGGER IF EXISTS {name}")
            self._database.execute("DROP TABLE unshared")

    def _exists(self) -> bool:
        found = self._database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'unshared'")
        return found.fetchone() is not None

    def count(self) -> int:
        """Return how many wait."""
        return int(self._database.execute("SELECT count(*) FROM unshared").fetchone()[0])

    def next(self, most: int) -> list[Waiting]:
        """Return those that have waited longest."""
        rows = self._database.execute(
            "SELECT job, host, start, number FROM unshared ORDER BY number LIMIT ?", [most]
        ).fetchall()
        return [Waiting(*row) for row in rows]

    def done(self, sent: Sequence[Waiting]) -> None:
        """Remove keys that have not changed meanwhile."""
        with transaction(self._database):
            self._database.executemany(
                "DELETE FROM unshared WHERE job = ? AND host = ? AND start = ? AND number = ?", sent
            )
