"""What earlier runs have seen and sent: the totals of running jobs, and which notice went to whom.

One SQLite file, written by one run at a time. A notice is noted as tried before it is sent, and as sent after it. So
a run that is killed between the two repeats it once at most, and a failed one is sent by a later run.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from colmet.common.errors import ColmetError, is_later, later_form
from colmet.common.host import files
from colmet.jobs.archive.queries import Row
from colmet.jobs.archive.store import transaction
from colmet.notices.rules import TotalsReading, reading_of

FORM = 1  # of the tables; in PRAGMA user_version
MODE = 0o600
KEPT_S = 2 * 86400  # after which a job that was not seen is forgotten
READINGS_KEPT_S = 3600  # after which its totals are
MOST_JOBS = 200_000
STEPS = 24  # readings in the longest time that a rule looks back
BUSY_S = 5.0
MOST_TRIES = 2  # of a notice whose runs were killed

# Of a notice for one target. All but the first two are final.
TRIED, FAILED = "tried", "failed"
SENT, SUPPRESSED, REFUSED, UNADDRESSED, UNCERTAIN = "sent", "suppressed", "refused", "unaddressed", "uncertain"
FINAL = frozenset((SENT, SUPPRESSED, REFUSED, UNADDRESSED, UNCERTAIN))

_DDL = (
    "CREATE TABLE jobs (job INTEGER, start INTEGER, last INTEGER, seen INTEGER, PRIMARY KEY (job, start))",
    "CREATE TABLE readings (job INTEGER, start INTEGER, time INTEGER, totals TEXT, PRIMARY KEY (job, start, time))",
    (
        "CREATE TABLE notices (job INTEGER, start INTEGER, rule TEXT, target TEXT, status TEXT, tries INTEGER, "
        "PRIMARY KEY (job, start, rule, target))"
    ),
    "CREATE TABLE mails (recipient TEXT PRIMARY KEY, day TEXT, mails INTEGER, suppressed INTEGER)",
    "CREATE TABLE counts (name TEXT PRIMARY KEY, value INTEGER)",
)
_OF_JOB = ("jobs", "readings", "notices")


class StateError(ColmetError):
    """The state cannot be read or written; the message suggests a remedy."""


class Key(NamedTuple):
    """A notice for one target, such as "mail user"; each is sent once."""

    job: int
    start: int
    rule: str
    target: str


class State:
    """The state of notices, in a file. Also a context manager that closes it; StateError if it cannot be used.

    A `writable` one is created if missing, and no other run may use it meanwhile. `since` is the time of the first run
    in seconds since 1970; None if there was none.
    """

    def __init__(self, path: str, writable: bool, now: float) -> None:
        self.path = path
        self._now = int(now)
        try:
            self._database = self._opened(path, writable)
            try:
                self._prepare(writable)
                self.since = self.counts().get("since")
            except BaseException:
                self._database.close()
                raise
        except (OSError, sqlite3.Error) as err:
            raise self._failure(err) from err

    def _opened(self, path: str, writable: bool) -> sqlite3.Connection:
        if not writable and not os.path.exists(path):
            return sqlite3.connect(":memory:", isolation_level=None)
        if writable:
            files.make(os.path.dirname(os.path.abspath(path)), 0o700)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE))
        database = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
        if writable:
            database.execute("PRAGMA locking_mode = EXCLUSIVE")  # from the first transaction to the end of the run
            return database
        with closing(database):  # a dry run works on a copy
            copy = sqlite3.connect(":memory:", isolation_level=None)
            database.backup(copy)
            return copy

    def _prepare(self, writable: bool) -> None:
        run = self._database.execute
        run("BEGIN EXCLUSIVE")
        form = run("PRAGMA user_version").fetchone()[0]
        if is_later(form, FORM):
            away = "move it away: notices on running jobs are then sent once more"
            raise StateError(later_form(self.path, form, FORM, away))
        if not form:
            for statement in _DDL:
                run(statement)
            run(f"PRAGMA user_version = {FORM}")
            if writable:
                run("INSERT INTO counts VALUES ('since', ?)", (self._now,))
        run("COMMIT")

    def _failure(self, err: Exception) -> StateError:
        if isinstance(err, sqlite3.OperationalError) and "locked" in str(err):
            return StateError(f"{self.path}: another run of colmet notices uses it; wait for its end")
        text = getattr(err, "strerror", None) or err
        return StateError(f"{self.path}: {text}; is the disk full, or the file of another user or program?")

    def __enter__(self) -> State:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._database.close()

    def _write(self, *statements: tuple[str, Iterable[Sequence[object]]]) -> None:
        """Execute statements, each with all its values, in one transaction."""
        try:
            with transaction(self._database):
                for statement, values in statements:
                    self._database.executemany(statement, values)
        except sqlite3.Error as err:
            raise self._failure(err) from err

    def _read(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.Error as err:
            raise self._failure(err) from err

    # -- jobs --

    def note(self, rows: Sequence[Row], running: Sequence[Row], longest_s: float) -> None:
        """Note jobs as seen, and the totals of the running ones, as long as a rule looks back; forget former jobs."""
        known = {tuple(key) for key in self._read("SELECT job, start FROM jobs")}
        here = {(row["job"], row["start"]) for row in rows}
        moves = []
        for row in rows:
            if (row["job"], row["start"]) not in known:
                moves += self._former(row, here)
        changed = [(f"UPDATE OR REPLACE {table} SET start = ? WHERE job = ? AND start = ?", moves) for table in _OF_JOB]
        seen = [(row["job"], row["start"], int(row["end"] or row["start"]), self._now) for row in rows]
        fresh, keys = [], [(row["job"], row["start"]) for row in running]
        for key, reading in zip(keys, map(reading_of, running)):
            ((last,),) = self._read("SELECT max(time) FROM readings WHERE job = ? AND start = ?", key)
            if last is None or reading.time - last >= longest_s / STEPS:
                fresh.append((*key, int(reading.time), json.dumps(reading.totals)))
        gone = "DELETE FROM readings WHERE (job, start) IN (SELECT job, start FROM jobs WHERE seen < ?)"
        newest = "DELETE FROM jobs WHERE rowid NOT IN (SELECT rowid FROM jobs ORDER BY seen DESC, rowid DESC LIMIT ?)"
        # keeps one reading older than the longest time, and all later ones
        thinned = (
            "DELETE FROM readings WHERE job = ? AND start = ? AND time < "
            "(SELECT max(time) FROM readings WHERE job = ? AND start = ? AND time <= ?)"
        )
        orphan = "DELETE FROM {} WHERE (job, start) NOT IN (SELECT job, start FROM jobs)"
        self._write(
            *changed,
            ("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?)", seen),
            ("INSERT OR REPLACE INTO readings VALUES (?, ?, ?, ?)", fresh),
            (gone, [(self._now - READINGS_KEPT_S,)]),
            ("DELETE FROM jobs WHERE seen < ?", [(self._now - KEPT_S,)]),
            (newest, [(MOST_JOBS,)]),
            *[(orphan.format(table), [()]) for table in _OF_JOB[1:]],
            (thinned, [(*key, *key, reading_of(row).time - longest_s) for row, key in zip(running, keys)]),
            ("DELETE FROM mails WHERE day < date(?, 'unixepoch', '-7 days')", [(self._now,)]),
        )

    def _former(self, row: Row, here: set[tuple[int, int]]) -> list[tuple[int, int, int]]:
        """Return the former key of a job whose start has changed in the archive, as rows of more hosts came."""
        found = self._read("SELECT start, last FROM jobs WHERE job = ?", (row["job"],))
        end = row["end"] or row["start"]
        return [
            (row["start"], row["job"], start)
            for start, last in found
            if (row["job"], start) not in here and start <= end and last >= row["start"]
        ][:1]

    def earlier(self, job: int, start: int, time: float) -> TotalsReading | None:
        """Return the latest reading of a job that is not later than `time`."""
        found = self._read(
            "SELECT time, totals FROM readings WHERE job = ? AND start = ? AND time <= ? ORDER BY time DESC LIMIT 1",
            (job, start, time),
        )
        return TotalsReading(found[0][0], tuple(json.loads(found[0][1]))) if found else None

    # -- notices --

    def is_open(self, key: Key) -> bool:
        """Return whether a notice is still to be sent."""
        found = self._read("SELECT status FROM notices WHERE job = ? AND start = ? AND rule = ? AND target = ?", key)
        return not found or found[0][0] not in FINAL

    def give_up(self) -> int:
        """Give up notices whose runs were killed while they were sent, twice; return their number."""
        ((found,),) = self._read("SELECT count(*) FROM notices WHERE status = ? AND tries >= ?", (TRIED, MOST_TRIES))
        if found:
            statement = "UPDATE notices SET status = ? WHERE status = ? AND tries >= ?"
            self._write((statement, [(UNCERTAIN, TRIED, MOST_TRIES)]))
        return int(found)

    def tried(self, keys: Iterable[Key]) -> None:
        """Note that notices are sent now."""
        statement = (
            "INSERT INTO notices VALUES (?, ?, ?, ?, ?, 1) ON CONFLICT (job, start, rule, target) DO UPDATE SET "
            "tries = CASE WHEN status = excluded.status THEN tries + 1 ELSE 1 END, status = excluded.status"
        )
        self._write((statement, [(*key, TRIED) for key in keys]))

    def settle(self, keys: Iterable[Key], status: str) -> None:
        """Note what has become of notices."""
        rows = [(*key, status, 0) for key in keys]
        self._write(("INSERT OR REPLACE INTO notices VALUES (?, ?, ?, ?, ?, ?)", rows))

    # -- limits and counts --

    def mails(self, recipient: str, day: str) -> int:
        """Return the number of mails to a recipient on a day."""
        found = self._read("SELECT sum(mails) FROM mails WHERE recipient = ? AND day = ?", (recipient, day))
        return found[0][0] or 0

    def suppressed(self, recipient: str) -> int:
        """Return the number of suppressed notices since the last mail to a recipient."""
        return self._read("SELECT sum(suppressed) FROM mails WHERE recipient = ?", (recipient,))[0][0] or 0

    def mailed(self, recipient: str, day: str) -> None:
        """Count a mail."""
        statement = (
            "INSERT INTO mails VALUES (?, ?, 1, 0) ON CONFLICT (recipient) DO UPDATE SET suppressed = 0, "
            "mails = CASE WHEN day = excluded.day THEN mails + 1 ELSE 1 END, day = excluded.day"
        )
        self._write((statement, [(recipient, day)]))

    def suppress(self, recipient: str, day: str, notices: int) -> None:
        """Count suppressed notices."""
        statement = (
            "INSERT INTO mails VALUES (?, ?, 0, ?) "
            "ON CONFLICT (recipient) DO UPDATE SET suppressed = suppressed + excluded.suppressed"
        )
        self._write((statement, [(recipient, day, notices)]))

    def add(self, counts: Counter[str]) -> None:
        """Add to the counts of all runs."""
        statement = "INSERT INTO counts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value"
        self._write((statement, list(counts.items())))

    def counts(self) -> dict[str, int]:
        """Return the counts of all runs, and `since`."""
        return dict(self._read("SELECT name, value FROM counts"))
