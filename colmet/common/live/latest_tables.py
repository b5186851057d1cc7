"""The latest tables of each node: the one store under `colmet top`, the page and the metrics page; and that page."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from colmet.common.daemon.daemon_health import Family, Number, labels, named
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.pacing import Shares
from colmet.common.schema import Batch, Field, Rows, Schema, Table, present

log = logging.getLogger(__name__)

LEASE_S = 60.0  # tables are kept this long after a look
MAX_BYTES = 128 << 20  # of rows
MAX_HOSTS = 16384
MAX_TABLES = 64  # of one host: each keeps its schema
UNKNOWN_PERIOD_S = 10.0  # of a table received once
LEAST_S, MOST_S, PERIODS = 60.0, 3600.0, 5  # rows are stale after PERIODS periods, within these bounds
HOST_BYTES, JOB_BYTES, TABLE_BYTES = 500, 40, 500  # approximate memory beside the rows


class TablePair(NamedTuple):
    """The latest two tables of one name of one host; immutable, replaced by each new one."""

    former: Table | None  # the one before the latest; None without one, or if its columns differ
    latest: Table  # the newest, with rows of all running jobs
    later: Table | None  # a newer one that lacks running jobs, such as the last rows of an ended job
    taken: float  # arrival of `latest`, by the monotonic clock
    period_s: float  # from `former` to `latest`; 0 if unknown
    size_bytes: int  # approximate memory of all

    @property
    def stale_s(self) -> float:
        """Return the seconds after which the rows are stale."""
        return min(MOST_S, max(LEAST_S, PERIODS * self.period_s))


class HostTables(NamedTuple):
    """The latest tables of one host; immutable, replaced by each new one."""

    seen: float  # arrival of the last batch, by the monotonic clock
    batches: int  # number of batches
    jobs: tuple[int, ...] | None  # on the host; None if the dialect lacks them
    tables: dict[str, TablePair]  # by name
    sender: str = ""  # the first sender of the host; the memory counts in its share

    @property
    def size_bytes(self) -> int:
        """Return the approximate memory of all tables."""
        return _size_beside(self.jobs) + sum([pair.size_bytes for pair in self.tables.values()])

    def fresh(self, now: float) -> HostTables:
        """Return a copy with the current tables only, at this time of the monotonic clock."""
        return self._replace(
            tables={name: pair for name, pair in self.tables.items() if now - pair.taken <= pair.stale_s}
        )

    @property
    def is_measured(self) -> bool:
        """Return whether rates can be computed, or never will be."""
        return self.batches > 2 or any(pair.former is not None for pair in self.tables.values())


class LatestTables:
    """Keeps the latest tables of each host as received, always or for `LEASE_S` after each look.

    One thread calls `take`, any other reads.

    Args:
        names: of the tables to keep.
        always: whether to keep them without a look, too.
        all_jobs: whether to keep all tables of jobs as well.
        monotonic: clock in seconds.

    Attributes:
        since: start of the current lease, by the monotonic clock; None while no tables are kept.
    """

    def __init__(
        self,
        names: Iterable[str],
        always: bool = False,
        all_jobs: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.since = monotonic() if always else None
        self._lease_s = math.inf if always else LEASE_S
        self._until = self._lease_s
        self._names = frozenset(names)
        self._all_jobs = all_jobs
        self._monotonic = monotonic
        self._hosts: dict[str, HostTables] = {}
        self._bytes = Shares(MAX_BYTES)
        self._hosts_of = Shares(MAX_HOSTS)
        self._tidy_at = 0.0
        self._looks = self._left_out = self._left_out_before = 0

    def counters(self) -> dict[str, int]:
        """Return the counts of looks, and of tables dropped for lack of memory or of the sender's share."""
        return {"looks": self._looks, "left_out": self._left_out}

    @property
    def left_out(self) -> int:
        """Return the number of tables dropped since the current lease began."""
        return self._left_out - self._left_out_before

    def look(self) -> list[tuple[str, HostTables]]:
        """Return the tables by host, and keep them for `LEASE_S` more."""
        self._looks += 1
        now = self._monotonic()
        if self.since is None or now >= self._until:
            self.since = now
        self._until = now + self._lease_s
        return self.hosts()

    def hosts(self) -> list[tuple[str, HostTables]]:
        """Return the tables by host."""
        return list(self._hosts.items())

    def take(self, batches: Iterable[Batch], sender: str = "") -> None:
        """Add batches of a sender, "" for the only one; does nothing without a lease."""
        if self.since is None:
            return
        now = self._monotonic()
        if now >= self._until:
            self._hosts, self.since = {}, None
            self._bytes.clear()
            self._hosts_of.clear()
            self._left_out_before = self._left_out
            return
        if now >= self._tidy_at:
            self._tidy_at = now + MOST_S
            self._tidy(now)
        for batch in batches:
            self._take(batch, now, sender)

    def _tidy(self, now: float) -> None:
        for host, kept in list(self._hosts.items()):
            if now - kept.seen > MOST_S:
                del self._hosts[host]
                self._bytes.hold(kept.sender, -kept.size_bytes)
                self._hosts_of.hold(kept.sender, -1)
            else:
                fresh = self._hosts[host] = kept.fresh(now)
                self._bytes.hold(kept.sender, fresh.size_bytes - kept.size_bytes)

    def _take(self, batch: Batch, now: float, sender: str) -> None:
        before = self._hosts.get(batch.host)
        more = _size_beside(batch.jobs) - (_size_beside(before.jobs) if before is not None else 0)
        sender = sender if before is None else before.sender
        if (before is None and self._hosts_of.room(sender) < 1) or (more > 0 and more > self._bytes.room(sender)):
            self._leave_out(max(1, len(batch.tables)))
            return
        self._bytes.hold(sender, more)
        self._hosts_of.hold(sender, int(before is None))
        tables = dict(before.tables) if before is not None else {}
        for table in batch.tables:
            schema = table.schema
            if (schema.name in self._names or (self._all_jobs and schema.scope == "job")) and len(table):
                self._keep(tables, table, batch.jobs, now, sender)
        batches = before.batches + 1 if before is not None else 1
        self._hosts[batch.host] = HostTables(now, batches, batch.jobs, tables, sender)

    def _keep(
        self, tables: dict[str, TablePair], table: Table, jobs: tuple[int, ...] | None, now: float, sender: str
    ) -> None:
        """Add a table to those of its host, if there is room and it is not older than the latest."""
        name, size = table.schema.name, _size(table)
        before = tables.get(name)
        if before is None:
            pair, more = TablePair(None, table, None, now, 0.0, size), size
        else:
            latest, age_s = before.latest, now - before.taken
            if table.time_ns <= latest.time_ns and age_s <= LEAST_S:  # delayed on the node, or the clock was set back
                return
            if age_s <= 2 * (before.period_s or UNKNOWN_PERIOD_S) and _is_of_some(table, latest, jobs):
                size += before.size_bytes - (_size(before.later) if before.later is not None else 0)
                pair = before._replace(later=table, size_bytes=size)
            elif (
                jobs is None
                and not age_s
                and latest.schema == table.schema
                and {*latest.job_ids}.isdisjoint(table.job_ids)
            ):
                # one slow sample of Colmet 0.6 has several times, each with some of the jobs
                joined = Table(latest.schema, latest.time_ns, latest.packed + table.packed)
                pair = before._replace(latest=joined, size_bytes=before.size_bytes + size - TABLE_BYTES)
            elif latest.schema == table.schema and latest.time_ns < table.time_ns:
                # batches sent again arrive at once: their period is that of the samples
                period_s = max(age_s, min(MOST_S, (table.time_ns - latest.time_ns) / 1e9))
                pair = TablePair(latest, table, None, now, period_s, size + _size(latest))
            else:
                pair = TablePair(None, table, None, now, age_s, size)
            more = pair.size_bytes - before.size_bytes
        is_extra = before is None and name not in self._names and len(tables) >= MAX_TABLES
        if is_extra or (more > 0 and more > self._bytes.room(sender)):
            self._leave_out(1)
            return
        self._bytes.hold(sender, more)
        tables[name] = pair

    def _leave_out(self, tables: int) -> None:
        for _ in range(tables):
            self._left_out += 1
            if powers_of_ten(self._left_out):
                log.warning("no room for the latest rows of all jobs, tables left_out=%d", self._left_out)


def _is_of_some(table: Table, before: Table, jobs: tuple[int, ...] | None) -> bool:
    """Return whether the table lacks running jobs: a job that ends between two samples has last rows of its own."""
    if jobs is None or len(table) >= max(len(before), len(jobs)):
        return False
    here = {*before.job_ids} & {*jobs, 0}
    return not here <= {*table.job_ids}


def _size_beside(jobs: tuple[int, ...] | None) -> int:
    return HOST_BYTES + JOB_BYTES * len(jobs or ())


def _size(table: Table) -> int:
    return len(table) * table.schema.row_bytes + TABLE_BYTES


MAX_ROWS = 50_000
_OURS = frozenset({"host", "job", "user"})  # labels of every row, "user" only if known
Hosts = Sequence[tuple[str, HostTables]]


class JobMetrics:
    """Makes a page of the rows of jobs; of its `max_rows` each sender has a share."""

    def __init__(
        self, latest: LatestTables, max_rows: int = MAX_ROWS, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._latest = latest
        self._max_rows = max_rows
        self._monotonic = monotonic
        self._rows = self._left_out = 0

    def counters(self) -> dict[str, int]:
        """Return the count of rows of the last page, and of rows dropped from all pages."""
        return {"rows": self._rows, "left_out": self._left_out}

    def families(self) -> Iterator[Family]:
        """Yield a family for each column of numbers, with the labels host, job, user and those of the row."""
        now = self._monotonic()
        hosts = [(host, kept.fresh(now)) for host, kept in self._latest.hosts()]
        tables = self._parts(hosts)
        names: set[str] = set()
        for name in sorted(tables):
            fields = {(field.name, field.kind): field for part in tables[name] for field in part.schema.fields}
            for field in fields.values():
                metric = named("colmet_job", name.removesuffix("_default"), field.name, kind=field.kind)
                if field.kind != "label" and field.dtype[0] != "S" and metric not in names:
                    names.add(metric)
                    yield Family(metric, field.kind, _help(name, field), _samples(tables[name], field))

    def _parts(self, hosts: Hosts) -> dict[str, list[_HostRows]]:
        """Return the rows of each table, for each host, up to the bounds."""
        users = _users(hosts)
        shares = Shares(self._max_rows)
        parts: dict[str, list[_HostRows]] = {}
        left_out = 0
        for host, kept in hosts:
            for name, pair in kept.tables.items():
                if pair.latest.schema.scope != "job":
                    continue
                for schema, rows in _current(pair, kept.jobs):
                    kept_rows = rows[: max(0, shares.room(kept.sender))]
                    shares.hold(kept.sender, len(kept_rows))
                    left_out += len(rows) - len(kept_rows)
                    parts.setdefault(name, []).append(_HostRows(host, schema, kept_rows, users))
        self._rows = shares.total
        self._left_out += left_out
        return parts


def _current(pair: TablePair, jobs: tuple[int, ...] | None) -> Iterator[tuple[Schema, Rows]]:
    """Yield the newest rows of each job: of `later`, then those of the other running jobs."""
    newer: set[int] = set()
    for table in (pair.later, pair.latest):
        if table is None:
            continue
        numbers = table.rows["job_id"].tolist()
        skipped = set(newer)
        if table is pair.latest and jobs is not None:
            skipped |= {*numbers} - {*jobs, 0}
        rows = table.rows
        if not skipped.isdisjoint(numbers):
            rows = rows[[number not in skipped for number in numbers]]
        newer.update(numbers)
        if len(rows):
            yield table.schema, rows


class _HostRows:
    """Rows of one table of one host, with their labels; `users` are by host and job."""

    def __init__(self, host: str, schema: Schema, rows: Rows, users: Mapping[tuple[str, int], str]) -> None:
        self.schema = schema
        self._host = host
        self._rows = rows
        self._users = users

    @cached_property
    def labelled(self) -> tuple[list[str], Rows]:
        """Return the labels of each row, and the rows, one for each set of labels."""
        first: dict[str, int] = {}
        for n, text in enumerate(self._labels()):
            first.setdefault(text, n)
        return list(first), self._rows[list(first.values())]

    def _labels(self) -> list[str]:
        columns = {
            named(field.name): [present(field, cell) for cell in self._rows[field.name]]
            for field in self.schema.fields
            if field.dtype[0] == "S" and field.name not in _OURS
        }
        found = []
        for n, number in enumerate(self._rows["job_id"].tolist()):
            pairs = {"host": self._host, "job": str(number)}
            user = self._users.get((self._host, number))
            if user:
                pairs["user"] = user
            for name, cells in columns.items():
                cell = cells[n]
                if isinstance(cell, bytes):
                    pairs[name] = cell.decode(errors="replace")
            found.append(labels(pairs))
        return found


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


def _users(hosts: Hosts) -> dict[tuple[str, int], str]:
    users: dict[tuple[str, int], str] = {}
    for host, kept in hosts:
        for pair in kept.tables.values():
            for table in (pair.latest, pair.later):
                if table is not None and any(one.name == "user" and one.dtype[0] == "S" for one in table.schema.fields):
                    for number, user in zip(table.rows["job_id"].tolist(), table.rows["user"].tolist()):
                        users[host, number] = user.decode(errors="replace")
    return users


def _help(table: str, field: Field) -> str:
    unit = "" if field.unit in ("none", "count") else f", in {field.unit}"
    return f"{table} {field.name}{unit}. {field.help}".strip()
