"""The file of the job archive: summaries, unfinished folds and the position in the journal, in one SQLite database.

Source: the columns of `colmet.jobs.columns`. One connection writes summaries; another one may write what the batch
system knows. Readers see the last complete transaction (WAL). Large values are in tables of their own, so that lists
read narrow rows.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import NamedTuple

from colmet.batch.systems import JobRecord
from colmet.common.errors import ColmetError, OutputUnavailable, is_later, later_form
from colmet.jobs import columns
from colmet.jobs import job_summaries as whole
from colmet.jobs.archive import derived, matching
from colmet.jobs.columns import JobColumn, Summary, Value

FORM = 1  # of the tables; in PRAGMA user_version
AWAY = "move it away, and make the archive again from stored rows (colmet archive rebuild)"
MODE = 0o640  # of the file: it names users and their jobs
LOG_BYTES = 32 << 20  # of SQLite's log (`-wal`), after which it goes to the file
BUSY_S = 10.0  # longest wait for the other writer
MOST_UNSETTLED = 2000  # jobs of one answer
LONGEST_S = 60 * 86400  # of a job that is looked up by its number after its end
SUFFIX = ".archive.sqlite"  # behind the path of the HDF5 files

HostKey = tuple[int, str, int]  # job, host, start

_KEY_OF_JOB, _KEY_OF_HOST = (columns.JOB, columns.START), (columns.JOB, columns.HOST, columns.START)
FOLD = JobColumn("state", columns.BLOB, "", "State of an unfinished fold.")


class Position(NamedTuple):
    """The place up to which records of a journal are in the archive."""

    journal: str  # its name, 16 hexadecimal digits
    number: int  # of the first record that is not in the archive


class Changes(NamedTuple):
    """What one transaction writes, besides the position."""

    hosts: Sequence[Summary]  # of hosts, with all measured columns
    jobs: Sequence[Summary]  # of whole jobs; columns of the batch system stay as they are
    folds: Mapping[HostKey, bytes | None]  # states of unfinished folds; None removes one
    moves: Sequence[tuple[int, int, int]] = ()  # whole jobs with another start: job, former start, start


class Joined(NamedTuple):
    """What records have changed."""

    joined: int = 0  # summaries with rows that have a record now
    alone: int = 0  # summaries without rows, new


class ArchiveError(ColmetError):
    """The archive cannot be read; the message suggests a remedy."""


def _table(name: str, key: Sequence[JobColumn], fields: Sequence[JobColumn]) -> str:
    """Return the statement that creates a table."""
    parts = [f'"{column.name}" {column.kind} NOT NULL' for column in key]
    parts += [f'"{column.name}" {column.kind}' for column in fields]
    parts.append(f"PRIMARY KEY ({', '.join(_quoted(column.name) for column in key)})")
    return f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(parts)}) WITHOUT ROWID"


def _quoted(name: str) -> str:
    return f'"{name}"'


DDL = (
    _table("jobs", _KEY_OF_JOB, (*columns.MEASURED, columns.RULES, *columns.BATCH)),
    _table("hosts", _KEY_OF_HOST, columns.MEASURED),
    _table("job_details", _KEY_OF_JOB, columns.LARGE),
    _table("host_details", _KEY_OF_HOST, columns.LARGE),
    _table("folds", _KEY_OF_HOST, [FOLD]),
    # row 1 alone
    "CREATE TABLE IF NOT EXISTS position (id INTEGER PRIMARY KEY CHECK (id = 1), journal TEXT, number INTEGER)",
    *matching.DDL,
    *derived.DDL,
)


# Tables of summaries and of the fold; those of other parts of Colmet may be in the file as well.
TABLES = ("jobs", "hosts", "job_details", "host_details", "folds", "position", "listed")


def _upsert(table: str, key: Sequence[JobColumn], fields: Sequence[JobColumn]) -> str:
    """Return the statement that writes one row; columns that are not named here keep their values."""
    names = [_quoted(column.name) for column in (*key, *fields)]
    sets = ", ".join(f"{_quoted(column.name)} = excluded.{_quoted(column.name)}" for column in fields)
    return (
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "
        f"ON CONFLICT ({', '.join(_quoted(column.name) for column in key)}) DO UPDATE SET {sets}"
    )


def _values(rows: Iterable[Summary], fields: Sequence[JobColumn]) -> Iterator[tuple[object, ...]]:
    names = [column.name for column in fields]
    return (tuple([row.get(name) for name in names]) for row in rows)


class ArchiveStore:
    """An open archive file. Used by one thread.

    An empty path is a file that goes with the connection; a missing file is created if it is `writable`. ArchiveError
    for a file that is missing, of another program or of a later version, or cannot be opened.
    """

    def __init__(self, path: str, writable: bool = False) -> None:
        self.path = path
        try:
            # opening a file that SQLite has open would end its locks
            if writable and path and not os.path.lexists(path):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE))
            try:
                self.database = self._opened("rw" if writable else "ro")
            except sqlite3.OperationalError:
                # without the files that SQLite adds beside, readers with no right to create them read the file alone
                if writable or os.path.lexists(f"{path}-wal"):
                    raise
                self.database = self._opened("ro&immutable=1")
        except OSError as err:
            raise ArchiveError(f"{path}: {err.strerror}") from err
        except sqlite3.Error as err:
            raise ArchiveError(f"{path}: {err}; is it the archive of colmet-collector, and may you read it?") from err

    def _opened(self, mode: str) -> sqlite3.Connection:
        uri = f"file:{escaped(os.path.abspath(self.path))}?mode={mode}" if self.path else ""
        database = sqlite3.connect(uri, timeout=BUSY_S, isolation_level=None, check_same_thread=False, uri=True)
        database.row_factory = sqlite3.Row
        try:
            self._prepare(database, mode == "rw")
        except BaseException:
            database.close()
            raise
        return database

    def _prepare(self, database: sqlite3.Connection, writable: bool) -> None:
        """Check the form of the file; create the tables of a new one."""
        form = database.execute("PRAGMA user_version").fetchone()[0]
        if is_later(form, FORM):
            raise ArchiveError(later_form(self.path, form, FORM, AWAY))
        if not writable:
            if not form:
                raise ArchiveError(f"{self.path}: not the archive of colmet-collector")
            return
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")  # a saved position survives a power failure
        # states of folds are written again and again: of several transactions only the last goes to the file
        database.execute(f"PRAGMA wal_autocheckpoint = {LOG_BYTES // 4096}")
        with transaction(database):
            for statement in DDL:
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {FORM}")

    @property
    def position(self) -> Position | None:
        """Return the position; None for a new archive."""
        row = self.database.execute("SELECT journal, number FROM position").fetchone()
        return None if row is None else Position(*row)

    def write(self, changes: Changes, position: Position | None) -> None:
        """Write summaries, folds and the position, all or nothing; None leaves the position unchanged.

        OutputUnavailable if it could not be written, e.g. the disk is full.
        """
        try:
            with transaction(self.database):
                self._write(changes)
                if position is not None:
                    self.database.execute(
                        "INSERT INTO position VALUES (1, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                        "journal = excluded.journal, number = excluded.number",
                        position,
                    )
        except sqlite3.Error as err:
            raise OutputUnavailable(f"cannot write {self.path}: {err}") from err

    def _write(self, changes: Changes) -> None:
        run = self.database.executemany
        for table in ("jobs", "job_details"):
            moves = [(start, job, former) for job, former, start in changes.moves]
            run(f"UPDATE OR IGNORE {table} SET start = ? WHERE job = ? AND start = ?", moves)
            run(f"DELETE FROM {table} WHERE job = ? AND start = ?", [move[1:] for move in moves])  # both are there
        for table, key, fields, rows in (
            ("hosts", _KEY_OF_HOST, columns.MEASURED, changes.hosts),
            ("host_details", _KEY_OF_HOST, columns.LARGE, changes.hosts),
            ("jobs", _KEY_OF_JOB, (*columns.MEASURED, columns.RULES), [with_rules(row) for row in changes.jobs]),
            ("job_details", _KEY_OF_JOB, columns.LARGE, changes.jobs),
        ):
            run(_upsert(table, key, fields), _values(rows, (*key, *fields)))
        matching.settle_written(self.database, [row["job"] for row in changes.jobs])
        kept = [(*key, state) for key, state in changes.folds.items() if state is not None]
        run(_upsert("folds", _KEY_OF_HOST, [FOLD]), kept)
        done = [key for key, state in changes.folds.items() if state is None]
        run("DELETE FROM folds WHERE job = ? AND host = ? AND start = ?", done)

    def remove(self, jobs: Iterable[tuple[int, int, int]]) -> None:
        """Remove the summaries of whole jobs (job, start, end) and of their hosts, all or none."""
        with transaction(self.database):
            for job, start, end in jobs:
                for table in ("jobs", "job_details"):
                    self.database.execute(f"DELETE FROM {table} WHERE job = ? AND start = ?", (job, start))
                for table in ("hosts", "host_details", "folds"):
                    self.database.execute(
                        f"DELETE FROM {table} WHERE job = ? AND start BETWEEN ? AND ?", (job, start, end)
                    )

    # -- what the batch system knows --

    def asked_until(self, system: str) -> int | None:
        """Return until when the ended jobs of a batch system are in the archive; None: it was never asked."""
        row = self.database.execute("SELECT until FROM asked WHERE system = ?", (system,)).fetchone()
        return None if row is None else int(row["until"])

    def unsettled(self, since: float, until: float) -> list[int]:
        """Return the numbers of jobs whose last row is of this interval, and whose end is unknown; the latest first.

        Jobs that the batch system last reported as running are among them whenever their last row came: else one that
        ended during a long outage of the collector would run for ever.
        """
        rows = self.database.execute(
            "SELECT DISTINCT j.job AS job, j.last FROM listed AS l JOIN jobs AS j USING (job, start) WHERE j.last <= ? "
            "AND (l.state = ? OR (l.state = ? AND l.start BETWEEN ? AND ? AND j.last >= ?)) AND j.is_running = 0 "
            "ORDER BY j.last DESC LIMIT ?",
            (until, columns.RUNNING, columns.ENDED, since - LONGEST_S, until, since, MOST_UNSETTLED),
        )
        return [row["job"] for row in rows]

    def join(
        self, system: str, records: Sequence[JobRecord], asked_until: float | None = None, unknown: Collection[int] = ()
    ) -> Joined:
        """Join records of a batch system to their summaries, all or nothing.

        Until `asked_until` its ended jobs are in the archive; None leaves that unchanged. It has no record of the jobs
        `unknown`: none of them runs. OutputUnavailable if they could not be written.
        """
        try:
            with transaction(self.database):
                joined = alone = 0
                changed: set[int] = set()
                for job, some in groupby(sorted(records, key=lambda one: one.job), key=lambda one: one.job):
                    change = matching.settle(self.database, job, [matching.columns_of(one) for one in some])
                    joined, alone = joined + change.joined, alone + len(change.inserts)
                    if change.updates or change.inserts:
                        changed.add(job)
                self.database.executemany(
                    "UPDATE jobs SET state = NULL WHERE job = ? AND system = ? AND state = ? AND is_running = 0",
                    [(job, system, columns.RUNNING) for job in unknown],
                )
                if asked_until is not None:
                    self.database.execute(
                        "INSERT INTO asked VALUES (?, ?) ON CONFLICT (system) DO UPDATE SET until = excluded.until",
                        (system, int(asked_until)),
                    )
                self._divide(changed)
                return Joined(joined, alone)
        except sqlite3.Error as err:
            raise OutputUnavailable(f"cannot write {self.path}: {err}") from err

    def divide(self, jobs: Iterable[int]) -> None:
        """Make the summaries of jobs with several hosts again, by what the batch system knows of them."""
        with transaction(self.database):
            self._divide(jobs)

    def _divide(self, jobs: Iterable[int]) -> None:
        for job in jobs:
            hosts = self.hosts_of(job)
            if len(hosts) < 2 or not self.records_of(job):
                continue
            matching.settle(self.database, job)
            runs = whole.owned_runs(hosts, self.records_of(job))
            if [sorted(map(_host_key, run)) for run in runs] == [
                sorted(map(_host_key, run)) for run in whole.owned_runs(hosts, ())
            ]:
                continue  # nodes and the batch system agree
            keyed = whole.keyed_runs(hosts, self.records_of(job))
            rows = [{**whole.job_summary(run), "start": start} for start, run in keyed.items()]
            moves = [(job, *move) for move in whole.moves_of(self.measured_starts(job), keyed)]
            self._write(Changes((), rows, {}, moves))

    def records_of(self, job: int) -> list[Summary]:
        """Return what batch systems know of the jobs with a number, for `keyed_runs`."""
        question = "SELECT owner, batch_hosts, started, ended, state, last FROM jobs WHERE job = ? AND started NOT NULL"
        return [dict(row) for row in self.database.execute(f"{question} ORDER BY start", (job,))]

    def measured_starts(self, job: int) -> list[int]:
        """Return the starts of all summaries of a whole job with rows, in order."""
        question = "SELECT start FROM jobs WHERE job = ? AND last NOT NULL ORDER BY start"
        return [row["start"] for row in self.database.execute(question, (job,))]

    def folds(self) -> dict[HostKey, bytes]:
        """Return the states of all unfinished folds."""
        rows = self.database.execute("SELECT job, host, start, state FROM folds")
        return {(row["job"], row["host"], row["start"]): row["state"] for row in rows}

    def rows_of_folds(self) -> dict[HostKey, int]:
        """Return the numbers of samples in the written summaries of unfinished folds."""
        rows = self.database.execute(
            'SELECT h.job, h.host, h.start, h."rows" FROM folds JOIN hosts AS h USING (job, host, start)'
        )
        return {(row[0], row[1], row[2]): row[3] or 0 for row in rows}

    def keys_of(self, job: int) -> list[tuple[str, int]]:
        """Return host and start of the summaries of all hosts of a job."""
        rows = self.database.execute("SELECT host, start FROM hosts WHERE job = ?", (job,))
        return [(row["host"], row["start"]) for row in rows]

    def hosts_of(self, job: int, large: bool = True) -> list[dict[str, Value]]:
        """Return the summaries of all hosts of a job, of all starts, by start and host."""
        details = " LEFT JOIN host_details USING (job, host, start)" if large else ""
        rows = self.database.execute(f"SELECT * FROM hosts{details} WHERE job = ? ORDER BY start, host", (job,))
        return [dict(row) for row in rows]

    def close(self) -> None:
        """Close the file; idempotent."""
        self.database.close()


def _host_key(host: Summary) -> tuple[str, int]:
    return str(host["host"]), int(str(host["start"]))


def with_rules(row: Summary) -> Summary:
    """Return a summary with the names of its rules of advice; without, if its advice is missing."""
    advice = row.get("advice")
    if not isinstance(advice, str):
        return row
    return {**row, columns.RULES.name: " ".join([one["rule"] for one in json.loads(advice)])}


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Commit what is written within this context, or roll it back after an exception."""
    with database:  # it does not roll back what SQLite has rolled back by itself, such as on a full disk
        database.execute("BEGIN IMMEDIATE")
        yield


def escaped(path: str) -> str:
    """Return a path for a URI."""
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


log = logging.getLogger(__name__)


def lock(path: str) -> int:
    """Lock an archive against other writers; return a descriptor: closing it ends the lock.

    A missing file is created, empty. It is a lock of flock(2): SQLite uses another kind, so readers, and short writes
    of this and other processes, go on. Closing a descriptor of a file ends SQLite's own locks of this process: lock
    before the archive is opened, and close after it. ArchiveError if another process has locked it, or it cannot be
    opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
    except OSError as err:
        raise ArchiveError(f"{path}: {err.strerror}") from err
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as err:
        os.close(descriptor)
        raise ArchiveError(
            f"{path}: another process writes it: colmet-collector, or colmet archive rebuild; wait for its end"
        ) from err
    except OSError as err:  # a file system without such locks
        log.info("archive cannot be locked: path=%s cause=%s", path, err.strerror)
    return descriptor


def is_of(descriptor: int, path: str) -> bool:
    """Return whether a descriptor of `lock` is of the file at a path; -1 is of none."""
    try:
        return descriptor >= 0 and os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
