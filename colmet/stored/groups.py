"""Rows of several tables by groups of hosts, so that their memory is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from colmet.common.errors import ColmetError
from colmet.stored.series import History, HostRows, Series

ROW_VALUES = 3  # of a row besides its columns, in memory
GROUP_BYTES = 20 << 20  # of the rows of several hosts at a time; copies come on top
MAX_HOST_BYTES = 1 << 30  # of the rows of one host


class GroupedRows(History):
    """A history that reads each table once, for all groups of hosts; not closed by `close`.

    Attributes:
        hosts: of all groups; None for all in the store.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._opened: dict[tuple[Any, ...], HostRows] = {}
        self.hosts: Collection[str] | None = None
        self.progress = history.progress

    def tables(self, job: int, since: float | None = None, until: float | None = None) -> Mapping[str, Sequence[str]]:
        """Return the tables with rows of a job; see `History.tables`."""
        return self._history.tables(job, since, until)

    def rows(
        self,
        job: int,
        table: str,
        columns: Iterable[str],
        since: float | None = None,
        until: float | None = None,
        hosts: Collection[str] | None = None,
    ) -> HostRows:
        """Return access to the rows of single hosts; see `History.by_hosts`."""
        key = job, table, tuple(columns), since, until, None if hosts is None else tuple(hosts)
        if key not in self._opened:
            self._opened[key] = self._history.by_hosts(*key)
        return self._opened[key]

    def read(
        self,
        job: int,
        table: str,
        columns: Sequence[str] | None = None,
        since: float | None = None,
        until: float | None = None,
        hosts: Collection[str] | None = None,
    ) -> list[Series]:
        """Return the rows of a job; see `History.read`. Rows of some hosts are read with those of all groups, once."""
        if hosts is None or columns is None:
            return self._history.read(job, table, columns, since, until, hosts)
        return self.rows(job, table, columns, since, until, self.hosts).read(hosts)

    def close(self) -> None:
        """Do nothing."""


def groups_of(tables: Iterable[tuple[HostRows, int]]) -> list[list[str]]:
    """Return the hosts with rows in some tables, in groups of limited size, sorted; `tables` have numbers of columns.

    Raises:
        ColmetError: the rows of one host are too many.
    """
    sizes: Counter[str] = Counter()
    for rows, columns in tables:
        for host, count in rows.counts.items():
            sizes[host] += count * 8 * (ROW_VALUES + columns)
    groups: list[list[str]] = []
    room = 0
    for host in sorted(sizes):
        if sizes[host] > MAX_HOST_BYTES:
            name = host if host.isprintable() else ascii(host)
            raise ColmetError(
                f"the rows on {name} require {sizes[host] >> 20} MiB, and the limit is {MAX_HOST_BYTES >> 20} MiB; ask "
                "for a shorter interval"
            )
        if sizes[host] > room:
            groups.append([])
            room = GROUP_BYTES
        groups[-1].append(host)
        room -= sizes[host]
    return groups


def each_series(
    history: History,
    job: int,
    table: str,
    columns: Sequence[str],
    since: float | None = None,
    until: float | None = None,
    hosts: Collection[str] | None = None,
) -> Iterator[Series]:
    """Yield the rows of a job by host, with those of a group of hosts in memory; see `History.read`."""
    if hosts is not None:
        yield from history.read(job, table, columns, since, until, hosts)
        return
    rows = history.by_hosts(job, table, columns, since, until)
    for group in groups_of([(rows, len(columns))]):
        yield from rows.read(group)
