"""Rows of several tables by groups of hosts, so that their memory is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from colmet.common.errors import ColmetError
from colmet.stored.series import ROW_VALUES, History, HostRows, RowQuery, RowsView, Series

GROUP_BYTES = 20 << 20  # of the rows of several hosts at a time; copies come on top
MAX_HOST_BYTES = 1 << 30  # of the rows of one host


class GroupedRows(RowsView):
    """A history that reads each table once, for all groups of hosts; not closed by `close`.

    Attributes:
        hosts: of all groups; None for all in the store.
    """

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._opened: dict[RowQuery, HostRows] = {}
        self.hosts: Collection[str] | None = None

    def rows(self, query: RowQuery) -> HostRows:
        """Return access to the rows of single hosts; see `History.by_hosts`."""
        if query not in self._opened:
            self._opened[query] = self._history.by_hosts(query)
        return self._opened[query]

    def read(self, query: RowQuery) -> list[Series]:
        """Return the rows of a job; see `History.read`. Rows of some hosts are read with those of all groups, once."""
        if query.hosts is None or query.columns is None:
            return self._history.read(query)
        return self.rows(replace(query, hosts=self.hosts)).read(query.hosts)


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


def each_series(history: History, query: RowQuery) -> Iterator[Series]:
    """Yield rows by host, with those of a group of hosts in memory."""
    if query.hosts is not None:
        yield from history.read(query)
        return
    rows = history.by_hosts(query)
    for group in groups_of([(rows, len(query.columns or ()))]):
        yield from rows.read(group)
