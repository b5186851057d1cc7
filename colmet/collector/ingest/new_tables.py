"""A budget of new tables of jobs for each sender, as each costs every output something.

A sender may begin 20,000 tables at once and 100,000 a day; 1,000 a day while the disk has less free space than the
reserve. A table is new if its sender had none such for this job in the last ten minutes.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple, Union

from colmet.collector.columns import names_for
from colmet.collector.ingest.rate_limit import INFINITE, MAX_SENDERS, Budget
from colmet.common.daemon.pacing import Shares
from colmet.common.schema import Batch, Schema, Table
from colmet.common.tables import column_types, is_declared

log = logging.getLogger(__name__)

# A job has 3 to 8 tables, a node fewer than 10,000 jobs a day, and 4096 at once.
TABLES_PER_DAY, TABLES_AT_ONCE, DAY_S, HOUR_S = 100_000.0, 20_000.0, 86400.0, 3600.0
# With less free space than this, in bytes and as a share of the file system. Messages with more wait on their node.
RESERVE_BYTES, RESERVE_SHARE = 4 << 30, 0.05
RESERVED_TABLES_PER_DAY, SPACE_PERIOD_S = 1000.0, 10.0
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
    price: int  # of the table of a job: 1, and more for undeclared columns


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


class NewTables:
    """The budget of new tables of each sender.

    Args:
        is_space_scarce: returns whether the free space where tables are stored is the reserve, see `is_space_scarce`.
    """

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, is_space_scarce: Callable[[], bool] = lambda: False
    ) -> None:
        self._monotonic = monotonic
        self._is_space_scarce = is_space_scarce
        self._is_scarce = False
        self._space_at = -INFINITE  # time of the next look at the free space
        self._budget = Budget(TABLES_PER_DAY / DAY_S, TABLES_AT_ONCE, monotonic)
        self._senders: OrderedDict[str, _RecentTables] = OrderedDict()
        self._undeclared = _UndeclaredTables(monotonic)
        self._new_jobs: Counter[str] = Counter()  # of each sender, since `_counted_since`
        self._new_jobs_before: Counter[str] = Counter()  # in the hour before
        self._counted_since = monotonic()

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
            if schema.undeclared and not self._undeclared.admits(sender, schema):
                out[at] = set(table.job_ids)
                continue
            key = schema.digest if schema.undeclared else schema.name
            jobs = known.new(key, set(table.job_ids))
            if jobs:
                found.append(_New(at, key, jobs, price(schema)))
        if not found:
            return without(batch, out) if out else (batch, 0)
        self._keep_reserve()
        cost = sum([len(new.jobs) * new.price for new in found])
        left = self._budget.left(sender, nodes)
        if cost > left and (cost <= self._budget.at_once * nodes or left < 1 or batch.epoch is None):
            return None, 0
        began: set[int] = set()
        for new in found:
            room = int(left / new.price)
            if room < len(new.jobs):
                beyond = sorted(new.jobs)[max(0, room) :]
                out[new.at] = set(beyond)
                new.jobs.difference_update(beyond)
            known.add(new.key, new.jobs)
            left -= len(new.jobs) * new.price
            self._budget.use(sender, len(new.jobs) * new.price, nodes)
            began |= new.jobs
        self._count_jobs(sender, known, began)
        return without(batch, out) if out else (batch, 0)

    def _count_jobs(self, sender: str, known: _RecentTables, jobs: set[int]) -> None:
        """Count the jobs that are new in all tables of the sender."""
        self._turn_hour()
        new = known.new("", jobs - {0})
        known.add("", new)
        self._new_jobs[sender] += len(new)

    def _turn_hour(self) -> None:
        passed_s = self._monotonic() - self._counted_since
        if passed_s >= HOUR_S:
            self._new_jobs_before = self._new_jobs if passed_s < 2 * HOUR_S else Counter()
            self._new_jobs, self._counted_since = Counter(), self._monotonic()

    def most_new_jobs(self) -> tuple[str, int]:
        """Return the sender with the most new jobs in the last one to two hours, and their number; "" without any."""
        self._turn_hour()
        both = self._new_jobs + self._new_jobs_before
        return both.most_common(1)[0] if both else ("", 0)

    def _keep_reserve(self) -> None:
        """Limit new tables more while there is little free space."""
        now = self._monotonic()
        if now < self._space_at:
            return
        self._space_at = now + SPACE_PERIOD_S
        is_scarce = self._is_space_scarce()
        if is_scarce != self._is_scarce:
            self._is_scarce = is_scarce
            per_day = RESERVED_TABLES_PER_DAY if is_scarce else TABLES_PER_DAY
            self._budget.limit(per_day / DAY_S, per_day if is_scarce else TABLES_AT_ONCE)
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
    """Return the cost of a new table of a job: one, and one for each 8 undeclared columns.

    Those are of a later version or a site's own. HDF5 needs 0.2 kB for each in each job's table, so a few wide tables
    must not fill a disk.
    """
    return 1 + schema.undeclared // 8


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
