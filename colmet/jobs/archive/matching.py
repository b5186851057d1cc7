"""Which record of a batch system belongs to which measured run of a job number, and what follows for the archive.

A job number may be used again: after a requeue within seconds, or after years. A record and a measured run belong
together if their times overlap, or nearly; of several, those with the nearest starts. A record of an ended run that no
node measured becomes a summary of its own, with columns of the batch system only, until rows come.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from colmet.batch.systems import JobRecord
from colmet.jobs.columns import BATCH, INTEGER, RUNNING, TEXT, Summary, Value, whole_of
from colmet.jobs.job_summaries import NEAR_S, named_user

NAMES = tuple(column.name for column in BATCH)
SAME_S = 5  # between two starts that the batch system reports of one run
_END = 1 << 60

Known = Mapping[str, Value]  # a record: columns of the batch system by name


class JoinPlan(NamedTuple):
    """What changes among the summaries with one job number."""

    updates: list[tuple[int, Known]]  # start of a summary, and its columns of the batch system; empty: they are cleared
    inserts: list[Summary]  # summaries of runs without rows
    deletes: list[int]  # starts of summaries without rows, whose run has rows now
    joined: int = 0  # records that a measured run has now and had not before


def columns_of(record: JobRecord) -> Known:
    """Return a record as columns of the archive."""
    fields = record._asdict()
    return {name: fields[name] for name in NAMES}


def plan(rows: Sequence[Summary], records: Iterable[Known]) -> JoinPlan:
    """Return what follows from new records, maybe repeated, for the summaries with one job number.

    Of the columns of `rows`, all whole jobs with this number, it needs `start`, `last`, `user` and those of `BATCH`.
    """
    records_of = _Records()
    joined_records = [{name: row.get(name) for name in NAMES} for row in rows if row.get("started") is not None]
    for record in [*joined_records, *records]:
        _add(records_of, record)
    known = records_of.all
    measured = [row for row in rows if row.get("last") is not None]
    found = _assigned(measured, known)
    updates: list[tuple[int, Known]] = []
    joined = 0
    for at, row in enumerate(measured):
        want = known[found[at]] if at in found else {}
        if any(row.get(name) != want.get(name) for name in NAMES):
            updates.append((whole_of(row["start"]), want))
            joined += bool(want) and row.get("started") is None
    used = set(found.values())
    inserts, deletes, more = _alone(rows, [one for at, one in enumerate(known) if at not in used])
    return JoinPlan(updates + more, inserts, deletes, joined)


def _alone(
    rows: Sequence[Summary], left: list[dict[str, Value]]
) -> tuple[list[Summary], list[int], list[tuple[int, Known]]]:
    """Return the new summaries without rows, those no longer needed, and those that change."""
    taken = {whole_of(row["start"]) for row in rows}
    inserts: list[Summary] = []
    updates: list[tuple[int, Known]] = []
    left = [one for one in left if one["ended"] is not None]
    deletes: list[int] = []
    for row in rows:
        if row.get("last") is not None:
            continue
        own = next((one for one in left if _is_same(one, row)), None)
        if own is None:
            deletes.append(whole_of(row["start"]))
            continue
        left.remove(own)
        if any(row.get(name) != own[name] for name in NAMES):
            updates.append((whole_of(row["start"]), own))
    for one in left:
        start = whole_of(one["started"])
        while start in taken:  # tasks of one array, with one number, that started together
            start += 1
        taken.add(start)
        inserts.append({"start": start, **one})
    return inserts, deletes, updates


class _Records:
    """Records of one job number, each run once; no task of a large array is compared with all others."""

    def __init__(self) -> None:
        self.all: list[dict[str, Value]] = []
        self._by_id: dict[str, list[int]] = {}
        self._of_any: list[int] = []  # whose id may be that of any task

    def like(self, record: Known) -> list[dict[str, Value]]:
        """Return those that may be of the same run by their ids, in order; see `_is_same_id`."""
        batch_id = str(record["batch_id"])
        if batch_id.isdecimal():
            return list(self.all)
        return [self.all[at] for at in sorted({*self._by_id.get(batch_id, ()), *self._of_any})]

    def append(self, record: dict[str, Value]) -> None:
        """Add a record of another run."""
        batch_id = str(record["batch_id"])
        (self._of_any if batch_id.isdecimal() else self._by_id.setdefault(batch_id, [])).append(len(self.all))
        self.all.append(record)


def _add(known: _Records, record: Known) -> None:
    """Add a record to those of its job number, or renew the one of the same run."""
    for one in known.like(record):
        if _is_same(one, record):
            if one["ended"] is not None and record["ended"] is None:
                return  # the answer is older
            values: dict[str, Value] = {name: value for name, value in record.items() if value is not None}
            is_partial = _is_fragment(record) and not _is_fragment(one)
            if is_partial:
                values = {name: value for name, value in values.items() if one[name] is None}
            if one["ended"] is None or not is_partial:
                values.update({name: record[name] for name in ("state", "started", "ended")})
            one.update(values)
            return
        is_earlier = one["batch_id"] == record["batch_id"] and whole_of(one["started"]) < whole_of(record["started"])
        if one["state"] == RUNNING and is_earlier:
            one["state"] = None  # it ran before, and has ended
    known.append(dict(record))


def _is_fragment(record: Known) -> bool:
    """Return whether a record lacks what the job held.

    Slurm's database may have two records of one run of an array task: the first one was begun before the start was
    reported, and has neither the array nor the resources, and "allocation" as its name.
    """
    return record["allocated_cores"] is None and record["requested_cores"] is None


def _is_same(one: Known, other: Known) -> bool:
    """Return whether two records are of the same run."""
    if one["system"] != other["system"] or not _is_same_id(str(one["batch_id"]), str(other["batch_id"])):
        return False
    first, second = sorted([one, other], key=lambda of: whole_of(of["started"]))
    began, follows = whole_of(first["started"]), whole_of(second["started"])
    is_behind = first["ended"] is not None and whole_of(first["ended"]) <= follows
    if began == follows or (follows - began <= SAME_S and not is_behind):
        return True
    # two runs of one number do not overlap
    return first["ended"] is not None and second["ended"] is not None and not is_behind


def _is_same_id(one: str, other: str) -> bool:
    """Return whether two ids of one job number may be of one run: "66" and "10_56" are, of two array tasks none."""
    return one == other or one.isdecimal() or other.isdecimal()


def _difference(run: Summary, record: Known) -> int:
    """Return 0 if a run's hosts name the owner, 1 if they name nobody or there is none, 2 if they name another user."""
    user, owner = named_user(run.get("user")), named_user(record.get("owner"))
    return 1 if not user or not owner else 0 if user == owner else 2


def _assigned(runs: Sequence[Summary], known: Sequence[Known]) -> dict[int, int]:
    """Return the place of the record of each run, by the run's place: the owner's runs first, then the nearest."""
    pairs: list[tuple[int, bool, int, int, int]] = []
    for at, run in enumerate(runs):
        start, last = whole_of(run["start"]), whole_of(run["last"])
        for of, record in enumerate(known):
            started = whole_of(record["started"])
            ended = (
                _END if record["ended"] is None and record["state"] == RUNNING else whole_of(record["ended"] or started)
            )
            apart = max(0, started - last, start - ended)
            if apart <= NEAR_S:
                pairs.append((_difference(run, record), apart > 0, abs(start - started), at, of))
    found: dict[int, int] = {}
    used: set[int] = set()
    for _, _, _, at, of in sorted(pairs):
        if at not in found and of not in used:
            found[at] = of
            used.add(of)
    return found


# One row for each batch system: until when its ended jobs are in the archive.
DDL = (f"CREATE TABLE IF NOT EXISTS asked (system {TEXT} PRIMARY KEY, until {INTEGER} NOT NULL) WITHOUT ROWID",)

_COLUMNS = ", ".join([f'"{name}"' for name in NAMES])
_READ = f'SELECT "start", "last", "user", {_COLUMNS} FROM jobs WHERE job = ?'
_SETS = ", ".join([f'"{name}" = ?' for name in NAMES])
_UPDATE = f"UPDATE jobs SET {_SETS} WHERE job = ? AND start = ?"


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
