"""Limits on new tables: each new table of a job costs every output something."""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple, Union

from colmet.collector.columns import names_for
from colmet.collector.ingest.rate_limit import INFINITE, MAX_SENDERS, Budget
from colmet.common.live.shares import Shares
from colmet.common.schema import Batch, Schema, Table
from colmet.common.tables import column_types, is_declared

log = logging.getLogger(__name__)

# Burst of --max-new-tables. A job has 3 to 8 tables: by default some 15 jobs a second, and more than 1,000 at once.
TABLES_BURST_S = 100.0
# Also by day, as each new table needs room on the disk, in HDF5 some 77 kB for one row, which nothing else bounds. A
# node has fewer than 10,000 jobs a day.
TABLES_PER_DAY, DAY_S = 100_000.0, 86400.0
# With less free space than this, in bytes and as a share of the file system, each sender may have 1,000 new tables a
# day. Messages with more wait on their node.
RESERVE_BYTES, RESERVE_SHARE = 4 << 30, 0.05
RESERVED_TABLES_PER_DAY, SPACE_PERIOD_S = 1000.0, 10.0
# Undeclared columns, of a later version or a site's own, for each job: 40 tables of 30 columns at once. HDF5 needs
# 0.2 kB for each column, and for a table as much as for 64 columns.
COLUMNS_PER_S, COLUMNS_AT_ONCE = 100.0, 4096.0
COLUMNS_OF_A_TABLE, COLUMNS_OF_A_CHANGE = 64, 8
# Undeclared columns and tables over all senders, each with its share: columns of Colmet's own tables (by kind of type),
# and other tables. A database has a permanent field or index for each.
FURTHER_COLUMNS, FURTHER_TABLES = 512, 256
FURTHER_S = 86400.0  # without rows, after this they count no more
# A sender's table of this time is not new; one of twice the time may be.
REMEMBERED_S = 600.0
MAX_KNOWN = 1 << 17  # tables of jobs of one sender in that time

_Key = Union[str, bytes]


class _New(NamedTuple):
    """The new jobs of a table in a batch: its sender had no such table for them."""

    at: int  # index of the table in the batch
    key: _Key  # identifies the table's columns
    jobs: set[int]  # their numbers
    price: int  # columns for each job; 0 for a table declared by Colmet


class _RecentTables:
    """The jobs of each table of a sender, in the last `REMEMBERED_S` at least."""

    __slots__ = ("_before", "_count", "_now", "_since")

    def __init__(self, now: float) -> None:
        self._now: dict[_Key, set[int]] = {}
        self._before: dict[_Key, set[int]] = {}
        self._count = 0
        self._since = now

    def turn(self, now: float) -> None:
        """Forget jobs that are older than the remembered time."""
        if now - self._since >= REMEMBERED_S or self._count >= MAX_KNOWN:
            self._before = self._now if now - self._since < 2 * REMEMBERED_S else {}
            self._now, self._count, self._since = {}, 0, now

    def has(self, key: _Key, jobs: Iterable[int]) -> bool:
        """Return whether the sender had such a table for all these jobs, since the last turn."""
        return self._now.get(key, _NONE).issuperset(jobs)

    def new(self, key: _Key, jobs: set[int]) -> set[int]:
        """Return the jobs without such a table of this sender."""
        rest = jobs - self._now.get(key, _NONE)
        if rest and (former := self._before.get(key)):
            again = rest & former
            self.add(key, again)
            rest -= again
        return rest

    def add(self, key: _Key, jobs: set[int]) -> None:
        """Note that the sender has this table for these jobs."""
        if jobs:
            self._now.setdefault(key, set()).update(jobs)
            self._count += len(jobs)


_NONE: frozenset[int] = frozenset()


class _UndeclaredTables:
    """Undeclared tables and columns: their first senders, and the room for more."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._rooms: dict[str, Shares] = {}  # of Colmet's own tables, "" of all others
        self._seen: dict[tuple[str, str], tuple[str, float]] = {}  # room and name: first sender, time of the latest row
        self._sweep_at = 0.0

    def admits(self, sender: str, schema: Schema) -> bool:
        """Return whether a table of this schema may be stored; its new parts count for the sender."""
        now = self._monotonic()
        if now >= self._sweep_at:
            self._sweep(now)
        room, names = _undeclared(schema)
        new = [name for name in names if (room, name) not in self._seen]
        if new:
            shares = self._rooms.setdefault(room, Shares(FURTHER_COLUMNS if room else FURTHER_TABLES))
            if len(new) > shares.room(sender):
                return False
            shares.hold(sender, len(new))
        for name in names:
            first, _ = self._seen.get((room, name), (sender, now))
            self._seen[room, name] = first, now
        return True

    def _sweep(self, now: float) -> None:
        self._sweep_at = now + FURTHER_S / 24
        for (room, name), (sender, seen) in list(self._seen.items()):
            if now - seen > FURTHER_S:
                del self._seen[room, name]
                self._rooms[room].hold(sender, -1)


def _undeclared(schema: Schema) -> tuple[str, list[str]]:
    """Return the room of a schema's undeclared parts, and names for them."""
    if not is_declared(schema.name):
        return "", names_for(schema)[-1:]
    types = column_types(schema.name)
    return schema.name, [f"{field.name}:{field.dtype[0]}" for field in schema.fields if field.name not in types]


class Novelty:
    """Limits on the new tables of each sender.

    Args:
        per_s: new tables of jobs in a second; 0 is no limit, also not for undeclared columns.
        is_space_scarce: returns whether the free space where tables are stored is the reserve, see `is_space_scarce`.
    """

    def __init__(
        self,
        per_s: float,
        monotonic: Callable[[], float] = time.monotonic,
        is_space_scarce: Callable[[], bool] = lambda: False,
    ) -> None:
        self._monotonic = monotonic
        self._is_space_scarce = is_space_scarce
        self._is_scarce = False
        self._space_at = -INFINITE  # time of the next look at the free space
        self._tables = Budget(INFINITE, INFINITE, monotonic)
        self._daily = Budget(INFINITE, INFINITE, monotonic)
        self._columns = Budget(INFINITE, INFINITE, monotonic)
        self._senders: OrderedDict[str, _RecentTables] = OrderedDict()
        self._undeclared = _UndeclaredTables(monotonic)
        self.limit(per_s)

    def limit(self, per_s: float) -> None:
        """Limit new tables of jobs to this many a second from now on; 0 is no limit."""
        self._per_s = per_s
        self._is_limited = bool(per_s)
        self._tables.limit(per_s or INFINITE, per_s * TABLES_BURST_S or INFINITE)
        per_day = RESERVED_TABLES_PER_DAY if self._is_scarce else TABLES_PER_DAY
        self._daily.limit(per_day / DAY_S if per_s else INFINITE, per_day if per_s else INFINITE)
        self._columns.limit(COLUMNS_PER_S if per_s else INFINITE, COLUMNS_AT_ONCE if per_s else INFINITE)

    def knows(self, sender: str, batch: Batch) -> bool:
        """Return whether all tables of a batch are declared ones, and a sender had them for its jobs before."""
        known = self._known(sender)
        for table in batch.tables:
            if table.schema.undeclared or not known.has(table.schema.name, table.job_ids):
                return False
        return True

    def admits(self, sender: str, nodes: int, batch: Batch) -> tuple[Batch | None, int]:
        """Return the admitted part of a batch, and the number of rows dropped from it.

        None if its sender is beyond its rate now: a retry can succeed. Rows are dropped if no retry could: a batch with
        more new tables than the largest burst, or undeclared tables without room.
        """
        known = self._known(sender)
        found = []
        out: dict[int, set[int]] = {}
        for at, table in enumerate(batch.tables):
            schema = table.schema
            if schema.undeclared and self._is_limited and not self._undeclared.admits(sender, schema):
                out[at] = set(table.job_ids)
                continue
            key = schema.digest if schema.undeclared else schema.name
            jobs = known.new(key, set(table.job_ids))
            if jobs:
                found.append(_New(at, key, jobs, price(schema)))
        if not found:
            return without(batch, out) if out else (batch, 0)
        self._keep_reserve()
        count = sum([len(new.jobs) for new in found if not new.price])
        tables = min(self._tables.left(sender, nodes), self._daily.left(sender, nodes))
        columns = self._columns.left(sender, nodes)
        at_once = min(self._tables.at_once, self._daily.at_once)
        if count > tables and (count <= at_once * nodes or tables < 1 or batch.epoch is None):
            return None, 0
        for new in found:
            room = columns / new.price if new.price else tables
            if room < len(new.jobs):
                beyond = sorted(new.jobs)[max(0, int(room)) :]
                out[new.at] = set(beyond)
                new.jobs.difference_update(beyond)
            known.add(new.key, new.jobs)
            if new.price:
                columns -= len(new.jobs) * new.price
                self._columns.use(sender, len(new.jobs) * new.price, nodes)
            else:
                tables -= len(new.jobs)
                self._tables.use(sender, len(new.jobs), nodes)
                self._daily.use(sender, len(new.jobs), nodes)
        return without(batch, out) if out else (batch, 0)

    def _keep_reserve(self) -> None:
        """Limit new tables more while there is little free space."""
        now = self._monotonic()
        if now < self._space_at:
            return
        self._space_at = now + SPACE_PERIOD_S
        is_scarce = self._is_space_scarce()
        if is_scarce != self._is_scarce:
            self._is_scarce = is_scarce
            self.limit(self._per_s)
            if is_scarce:
                log.warning(
                    "little free space: new tables of each sender are limited: tables_per_day=%d",
                    RESERVED_TABLES_PER_DAY,
                )

    def _known(self, sender: str) -> _RecentTables:
        now = self._monotonic()
        known = self._senders.get(sender)
        if known is None:
            known = self._senders[sender] = _RecentTables(now)
            if len(self._senders) > MAX_SENDERS:
                self._senders.popitem(last=False)
        else:
            self._senders.move_to_end(sender)
            known.turn(now)
        return known


def is_space_scarce(directory: str) -> bool:
    """Return whether no more than the reserve is free in the file system of a directory; False if that is unknown."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < min(RESERVE_BYTES, RESERVE_SHARE * disk.f_blocks * disk.f_frsize)


def price(schema: Schema) -> int:
    """Return the cost of a new table of a job, in undeclared columns; 0 if Colmet declares all its columns."""
    if not schema.undeclared:
        return 0
    return schema.undeclared + (COLUMNS_OF_A_CHANGE if is_declared(schema.name) else COLUMNS_OF_A_TABLE)


def without(batch: Batch, jobs: dict[int, set[int]]) -> tuple[Batch, int]:
    """Return a batch without the rows of some jobs in some of its tables, and the number of these rows."""
    tables, count = [], 0
    for at, table in enumerate(batch.tables):
        if at in jobs:
            kept = [n for n, job in enumerate(table.job_ids) if job not in jobs[at]]
            count += len(table) - len(kept)
            if kept:
                tables.append(Table(table.schema, table.time_ns, table.rows[kept]))
        else:
            tables.append(table)
    return batch._replace(tables=tuple(tables)), count
