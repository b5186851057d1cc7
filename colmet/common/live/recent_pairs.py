"""The latest two rows of every job and node, kept only while a client reads them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from colmet.common.live.shares import Shares
from colmet.common.runtime.logs import powers_of_ten
from colmet.common.schema import Batch, Table

log = logging.getLogger(__name__)

LEASE_S = 60.0  # rows are kept this long after a look
MAX_BYTES = 128 << 20  # of rows
MAX_HOSTS = 16384
UNKNOWN_PERIOD_S = 10.0  # of a table received once
LEAST_S, MOST_S, PERIODS = 60.0, 3600.0, 5  # rows are stale after PERIODS periods, within these bounds
HOST_BYTES, JOB_BYTES = 500, 40  # approximate memory of a host beside its rows


def stale_after_s(period_s: float) -> float:
    """Return the seconds after which rows with this period are stale."""
    return min(MOST_S, max(LEAST_S, PERIODS * period_s))


class TablePair(NamedTuple):
    """The latest two tables of one name of one host; immutable, replaced by each new one.

    Attributes:
        former: the one before the latest; None without one, or if its columns differ.
        latest: the newest.
        taken: arrival of the newest, by the monotonic clock.
        period_s: from one to the next; 0 if unknown.
        size_bytes: approximate memory of both.
    """

    former: Table | None
    latest: Table
    taken: float
    period_s: float
    size_bytes: int

    @property
    def stale_s(self) -> float:
        """Return the seconds after which the rows are stale."""
        return stale_after_s(self.period_s)


class HostPairs(NamedTuple):
    """The latest tables of one host; immutable, replaced by each new one.

    Attributes:
        seen: arrival of the last batch, by the monotonic clock.
        batches: number of batches.
        jobs: on the host; None if the dialect lacks them.
        tables: by name.
        sender: the first sender of the host; the memory counts in its share.
    """

    seen: float
    batches: int
    jobs: tuple[int, ...] | None
    tables: dict[str, TablePair]
    sender: str = ""

    @property
    def size_bytes(self) -> int:
        """Return the approximate memory of all tables."""
        return _size_beside(self.jobs) + sum([pair.size_bytes for pair in self.tables.values()])

    def fresh(self, now: float) -> HostPairs:
        """Return a copy with the current tables only.

        Args:
            now: by the monotonic clock.
        """
        return self._replace(
            tables={name: pair for name, pair in self.tables.items() if now - pair.taken <= pair.stale_s}
        )

    @property
    def is_measured(self) -> bool:
        """Return whether rates can be computed, or never will be."""
        return self.batches > 2 or any(pair.former is not None for pair in self.tables.values())


class RecentPairs:
    """Keeps the latest two tables of each name of each host, for `LEASE_S` after each look.

    One thread calls `take`, any other `look`. A table is kept as received; readers unpack its rows.

    Args:
        names: of the tables to keep.
        monotonic: clock in seconds.

    Attributes:
        since: start of the current lease, by the monotonic clock; None while no rows are kept.
    """

    def __init__(self, names: Iterable[str], monotonic: Callable[[], float] = time.monotonic) -> None:
        self.since: float | None = None
        self._names = frozenset(names)
        self._monotonic = monotonic
        self._until = 0.0
        self._hosts: dict[str, HostPairs] = {}
        self._bytes = Shares(MAX_BYTES)
        self._names_of = Shares(MAX_HOSTS)
        self._tidy_at = 0.0
        self._looks = self._left_out = self._left_out_before = 0

    def counters(self) -> dict[str, int]:
        """Return the counts of looks, and of tables dropped for lack of memory or of the sender's share."""
        return {"looks": self._looks, "left_out": self._left_out}

    @property
    def left_out(self) -> int:
        """Return the number of tables dropped since the current lease began."""
        return self._left_out - self._left_out_before

    def look(self) -> list[tuple[str, HostPairs]]:
        """Return the tables by host, and keep them for `LEASE_S` more. Any thread may call it."""
        self._looks += 1
        now = self._monotonic()
        if self.since is None or now >= self._until:
            self.since = now
        self._until = now + LEASE_S
        return list(self._hosts.items())

    def take(self, batches: Iterable[Batch], sender: str = "") -> None:
        """Add batches of a sender, "" for the only one; does nothing without a lease."""
        if self.since is None:
            return
        now = self._monotonic()
        if now >= self._until:
            self._hosts, self.since = {}, None
            self._bytes.clear()
            self._names_of.clear()
            self._left_out_before = self._left_out
            return
        if now >= self._tidy_at:
            self._tidy_at = now + MOST_S
            for host, kept in list(self._hosts.items()):
                if now - kept.seen > MOST_S:
                    del self._hosts[host]
                    self._bytes.hold(kept.sender, -kept.size_bytes)
                    self._names_of.hold(kept.sender, -1)
        for batch in batches:
            self._take(batch, now, sender)

    def _take(self, batch: Batch, now: float, sender: str) -> None:
        before = self._hosts.get(batch.host)
        more = _size_beside(batch.jobs) - (_size_beside(before.jobs) if before is not None else 0)
        sender = sender if before is None else before.sender
        if (before is None and self._names_of.room(sender) < 1) or (more > 0 and more > self._bytes.room(sender)):
            self._leave_out(max(1, len(batch.tables)))
            return
        self._bytes.hold(sender, more)
        self._names_of.hold(sender, int(before is None))
        tables = dict(before.tables) if before is not None else {}
        for table in batch.tables:
            if table.schema.name in self._names and len(table):
                pair = self._paired(tables.get(table.schema.name), table, batch.jobs, now, sender)
                if pair is not None:
                    tables[table.schema.name] = pair
        self._hosts[batch.host] = HostPairs(
            now, before.batches + 1 if before is not None else 1, batch.jobs, tables, sender
        )

    def _paired(
        self, before: TablePair | None, table: Table, jobs: tuple[int, ...] | None, now: float, sender: str
    ) -> TablePair | None:
        """Return the new pair with this table; None to leave the former pair."""
        former, period_s = None, 0.0
        if before is not None:
            latest = before.latest
            # older than the latest: delayed on the node, or the clock was set back
            if table.time_ns <= latest.time_ns and now - before.taken <= LEAST_S:
                return None
            if now - before.taken <= 2 * (before.period_s or UNKNOWN_PERIOD_S) and _is_of_some(table, latest, jobs):
                return None
            former = latest if latest.schema == table.schema and latest.time_ns < table.time_ns else None
            period_s = now - before.taken
        size = _size(table) + (_size(former) if former is not None else 0)
        more = size - (before.size_bytes if before is not None else 0)
        if more > 0 and more > self._bytes.room(sender):
            self._leave_out(1)
            return None
        self._bytes.hold(sender, more)
        return TablePair(former, table, now, period_s, size)

    def _leave_out(self, tables: int) -> None:
        for _ in range(tables):
            self._left_out += 1
            if powers_of_ten(self._left_out):
                log.warning("too many jobs for colmet top, tables left_out=%d", self._left_out)


def _is_of_some(table: Table, before: Table, jobs: tuple[int, ...] | None) -> bool:
    """Return whether the table lacks running jobs: a job that ends between two samples has last rows of its own."""
    if jobs is None or len(table) >= max(len(before), len(jobs)):
        return False
    here = {*before.rows["job_id"].tolist()} & {*jobs, 0}
    return not here <= {*table.rows["job_id"].tolist()}


def _size_beside(jobs: tuple[int, ...] | None) -> int:
    return HOST_BYTES + JOB_BYTES * len(jobs or ())


def _size(table: Table) -> int:
    return len(table) * table.schema.row_bytes + 500
