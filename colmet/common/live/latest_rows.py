"""The latest rows of each job, for the metrics page."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from colmet.common.live.namesakes import repeated
from colmet.common.live.recent_pairs import stale_after_s
from colmet.common.live.shares import Shares
from colmet.common.runtime.prometheus_text import Family, Number, labels, named
from colmet.common.schema import Batch, Field, Rows, Schema, Table, present

MAX_ROWS = 50_000
MAX_TABLES = 64  # of one host: each keeps its schema
SWEEP_S = 60.0


class _Job(NamedTuple):
    taken: float
    rows: bytes


class _TableRows(NamedTuple):
    """The rows of one table of one host; it never changes, and a new one replaces it."""

    sender: str  # the first one; the rows count in its share
    schema: Schema
    taken: float
    period_s: float
    jobs: Mapping[int, _Job]

    @property
    def stale_s(self) -> float:
        return stale_after_s(self.period_s)

    @property
    def row_count(self) -> int:
        return _count(self.jobs, self.schema)


_OURS = frozenset({"host", "job", "user"})  # labels of every row, "user" only if known


class LatestRows:
    """Keeps the latest rows of tables of jobs, and yields them as families of metrics.

    One thread calls `take`, any other reads.

    Args:
        max_rows: bound on rows; rows of new jobs beyond it, or beyond the share of their sender, are dropped and
            counted.
        monotonic: clock in seconds.

    Attributes:
        left_out: dropped rows.
    """

    def __init__(self, max_rows: int = MAX_ROWS, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.left_out = 0
        self._monotonic = monotonic
        self._latest: dict[tuple[str, str], _TableRows] = {}
        self._tables: Counter[str] = Counter()  # of each host
        self._rows = Shares(max_rows)
        self._sweep_at = 0.0

    def counters(self) -> dict[str, int]:
        """Return the counts of kept and of dropped rows."""
        return {"rows": self._rows.total, "left_out": self.left_out}

    def take(self, batches: Iterable[Batch], sender: str = "") -> None:
        """Add the batches of a sender; "" for the only one."""
        now = self._monotonic()
        for batch in batches:
            for table in batch.tables:
                if table.schema.scope == "job" and len(table):
                    self._take(batch, table, now, sender)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            for key, latest in list(self._latest.items()):
                if now - latest.taken > latest.stale_s:
                    self._rows.hold(latest.sender, -latest.row_count)
                    self._drop(key)

    def _take(self, batch: Batch, table: Table, now: float, sender: str) -> None:
        key, schema = (batch.host, table.schema.name), table.schema
        before = self._latest.get(key)
        if before is None and self._tables[batch.host] >= MAX_TABLES:
            self.left_out += len(table)
            return
        # a job that ends between two samples has a last row of its own: keep the rows of the others
        jobs: dict[int, _Job] = {}
        period_s = 0.0
        if before is not None:
            period_s = max(now - before.taken, before.period_s / 2)
            if before.schema == schema:
                here = batch.jobs if batch.jobs is None else {*batch.jobs, 0}
                jobs = {
                    number: job
                    for number, job in before.jobs.items()
                    if (here is None or number in here) and now - job.taken <= before.stale_s
                }
            self._rows.hold(before.sender, -before.row_count)
            sender = before.sender
        room = max(0, self._rows.room(sender) - _count(jobs, schema))
        for number, rows in _by_job(table).items():
            former = jobs.get(number)
            more = (len(rows) - (len(former.rows) if former is not None else 0)) // schema.row_bytes
            if more <= room:
                jobs[number] = _Job(now, rows)
                room -= more
            else:
                self.left_out += more
        if not jobs:
            if before is not None:
                self._drop(key)
            return
        latest = _TableRows(sender, schema, now, period_s, jobs)
        self._rows.hold(sender, latest.row_count)
        self._tables[batch.host] += before is None
        self._latest[key] = latest

    def _drop(self, key: tuple[str, str]) -> None:
        del self._latest[key]
        self._tables[key[0]] -= 1
        if not self._tables[key[0]]:
            del self._tables[key[0]]

    def families(self) -> Iterator[Family]:
        """Yield a family for each column of numbers, with the labels host, job, user and those of the row."""
        now = self._monotonic()
        kept = [(host, name, latest) for (host, name), latest in list(self._latest.items())]
        users = _users(kept)
        twice = _seen_twice(kept, now)
        tables: dict[str, list[tuple[str, _TableRows]]] = {}
        for host, name, latest in kept:
            tables.setdefault(name, []).append((host, latest))
        names: set[str] = set()
        for name in sorted(tables):
            parts = [_HostRows(host, latest, users, now, twice) for host, latest in tables[name]]
            fields = {(field.name, field.kind): field for part in parts for field in part.schema.fields}
            for field in fields.values():
                metric = named("colmet_job", name.removesuffix("_default"), field.name, kind=field.kind)
                if field.kind != "label" and field.dtype[0] != "S" and metric not in names:
                    names.add(metric)
                    yield Family(metric, field.kind, _help(name, field), _samples(parts, field))


class _HostRows:
    """The current rows of one table of one host, with their labels.

    Args:
        host: its name.
        latest: the rows.
        users: by (host, job).
        now: by the monotonic clock.
        twice: (host, job) to skip, as another agent of the same host name has them.
    """

    def __init__(
        self,
        host: str,
        latest: _TableRows,
        users: Mapping[tuple[str, int], str],
        now: float,
        twice: Container[tuple[str, int]] = (),
    ) -> None:
        self.schema = latest.schema
        self._host = host
        self._users = users
        self._jobs = [
            job.rows
            for number, job in latest.jobs.items()
            if now - job.taken <= latest.stale_s and (host, number) not in twice
        ]

    @cached_property
    def labelled(self) -> tuple[list[str], Rows]:
        """Return the labels of each row, and the rows, one for each set of labels."""
        rows = np.frombuffer(b"".join(self._jobs), self.schema.dtype)
        first: dict[str, int] = {}
        for n, text in enumerate(self._labels(rows)):
            first.setdefault(text, n)
        return list(first), rows[list(first.values())]

    def _labels(self, rows: Rows) -> list[str]:
        columns = {
            named(field.name): [present(field, cell) for cell in rows[field.name]]
            for field in self.schema.fields
            if field.dtype[0] == "S" and field.name not in _OURS
        }
        told = []
        for n, number in enumerate(rows["job_id"].tolist()):
            pairs = {"host": self._host, "job": str(number)}
            user = self._users.get((self._host, number))
            if user:
                pairs["user"] = user
            for name, cells in columns.items():
                cell = cells[n]
                if isinstance(cell, bytes):
                    pairs[name] = cell.decode(errors="replace")
            told.append(labels(pairs))
        return told


def _samples(parts: Iterable[_HostRows], field: Field) -> Iterator[tuple[str, Number]]:
    for part in parts:
        own = next((one for one in part.schema.fields if one.name == field.name), None)
        if own is None or own.kind != field.kind or own.dtype[0] == "S":
            continue
        texts, rows = part.labelled
        column = rows[field.name]
        values = [float(str(cell)) for cell in column] if own.dtype == "f4" else column.tolist()
        for text, value in zip(texts, values):
            if value != own.missing and value == value:
                yield text, value


def _users(kept: Iterable[tuple[str, str, _TableRows]]) -> dict[tuple[str, int], str]:
    """Return the users of jobs by host and job, from the tables with users."""
    users: dict[tuple[str, int], str] = {}
    for host, _name, latest in kept:
        if _is_text(latest.schema, "user"):
            for number, job in latest.jobs.items():
                user = np.frombuffer(job.rows, latest.schema.dtype)["user"][-1]
                users[host, number] = bytes(user).decode(errors="replace")
    return users


def _seen_twice(kept: Iterable[tuple[str, str, _TableRows]], now: float) -> set[tuple[str, int]]:
    """Return (host, job) of second agents of a host name that see a job of the first one."""
    jobs: dict[str, set[int]] = {}
    for host, _name, latest in kept:
        fresh = [number for number, job in latest.jobs.items() if number and now - job.taken <= latest.stale_s]
        jobs.setdefault(host, set()).update(fresh)
    return repeated(jobs)


def _is_text(schema: Schema, name: str) -> bool:
    return any(field.name == name and field.dtype[0] == "S" for field in schema.fields)


def _help(table: str, field: Field) -> str:
    unit = "" if field.unit in ("none", "count") else f", in {field.unit}"
    return f"{table} {field.name}{unit}. {field.help}".strip()


def _by_job(table: Table) -> dict[int, bytes]:
    """Return the packed rows of each job."""
    packed, size = table.packed, table.schema.row_bytes
    rows: dict[int, list[bytes]] = {}
    for n, number in enumerate(table.rows["job_id"].tolist()):
        rows.setdefault(number, []).append(packed[n * size : (n + 1) * size])
    return {number: b"".join(some) for number, some in rows.items()}


def _count(jobs: Mapping[int, _Job], schema: Schema) -> int:
    return sum([len(job.rows) for job in jobs.values()]) // schema.row_bytes
