"""Read the stored rows of a job by pages, as they are stored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.stored.series import HeldRows, HostRows, RowQuery, Series
from colmet.web.parameters import MAX_TIME
from colmet.web.store import StoreReader

MAX_ROWS = 50_000  # of a page
MAX_VALUES = 500_000  # of a page


class Mark(NamedTuple):
    """The place of the first row that follows a page."""

    time: int
    nth: int  # among the rows of this time and host
    host: str

    def text(self) -> str:
        """As in a parameter."""
        return f"{self.time}.{self.nth}.{self.host}"

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """Parse a parameter; None if it is malformed."""
        time, _, rest = text.partition(".")
        nth, _, host = rest.partition(".")
        digits = [one for one in (time, nth) if one.isascii() and one.isdigit() and len(one) < 16]
        return cls(int(time), int(nth), host) if len(digits) == 2 and host else None


class RowsQuery(NamedTuple):
    """A query for rows."""

    job: int
    table: str
    columns: Sequence[str] | None = None  # None for all
    node: str = ""  # only this node; "" for all
    since: float | None = None  # seconds since 1970, inclusive
    until: float | None = None
    after: Mark | None = None  # the end of the page before
    limit: int = MAX_ROWS  # 0: only the number of rows and their times
    own: Mapping[str, float | None] | None = None  # only these hosts, as `Queries.own`; None for all


class RowsReader:
    """Reads rows of a store."""

    def __init__(self, store: StoreReader) -> None:
        self._store = store

    def tables(self, job: int, since: float | None) -> Mapping[str, Any] | None:
        """Return the tables of a job with their columns; None for an unknown job."""
        found = self._store.tables(job, since)
        if not found.value:
            return None
        return {"job": job, "tables": {name: list(found.value[name]) for name in found.value}, **_warned(found[1])}

    def page(self, query: RowsQuery) -> Mapping[str, Any]:
        """Return a page of rows.

        Raises:
            ColmetError: the store cannot be read.
        """
        known = self._store.tables(query.job, query.since)
        there = known.value.get(query.table)
        hosts = None if query.own is None else list(query.own)
        if query.node:
            hosts = [query.node] if hosts is None or query.node in hosts else []
        if there is None or hosts == []:
            nothing: dict[str, Any] = {"total": 0, "first": None, "last": None, "kinds": {}, "rows": [], "next": None}
            return {"job": query.job, "table": query.table, **nothing, **_warned(known.warnings)}
        names = [name for name in there if query.columns is None or name in query.columns] if query.limit else []
        made, warnings = self._store.read(
            RowQuery(query.job, query.table, names, query.since, query.until, hosts),
            lambda rows: _page(query, _Cut(query, rows), names),
        )
        return {"job": query.job, "table": query.table, **made, **_warned(warnings)}


def _warned(warnings: Sequence[str]) -> dict[str, list[str]]:
    return {"warnings": list(warnings)}


class _Cut:
    """The visible rows of a query, from rows of a slightly longer interval."""

    def __init__(self, query: RowsQuery, rows: HostRows) -> None:
        self._first = -math.inf if query.since is None else query.since
        self._last = math.inf if query.until is None else query.until
        self._starts = {host: at for host, at in (query.own or {}).items() if at is not None}
        hosts = [host for host in sorted(rows.counts) if query.own is None or host in query.own]
        # the rows of one user are cut before they are counted
        self._rows = HeldRows([self._cut(one) for one in rows.read(hosts)]) if self._starts else rows
        self.hosts = [host for host in hosts if host in self._rows.counts]

    def read(self, host: str) -> Series | None:
        found = [self._cut(one) for one in self._rows.read([host])]
        return found[0] if found and len(found[0]) else None

    def _cut(self, series: Series) -> Series:
        first = max(self._first, self._starts.get(series.host, -math.inf))
        if first == -math.inf and self._last == math.inf:
            return series
        return series.within(math.ceil(max(first, 0)), math.floor(min(self._last, MAX_TIME)))

    def outline(self) -> dict[str, Any]:
        """Return the number of rows and their times; of a longer interval, as it need not be exact."""
        total = sum(self._rows.counts[host] for host in self.hosts)
        return {"total": total, "first": self._rows.first or None, "last": self._rows.last or None}


def _page(query: RowsQuery, cut: _Cut, names: Sequence[str]) -> dict[str, Any]:
    made = {**cut.outline(), "kinds": {}, "rows": [], "next": None}
    room = min(query.limit, MAX_ROWS, max(1, MAX_VALUES // (len(names) + 1)))
    if not query.limit:
        return made
    for host in cut.hosts:
        if query.after is not None and host < query.after.host:
            continue
        series = cut.read(host)
        if series is None:
            continue
        begin = 0
        if query.after is not None and host == query.after.host:
            begin = int(np.searchsorted(series.times, query.after.time, "left")) + query.after.nth
        if begin >= len(series):
            continue
        if not room:
            made["next"] = _mark(series, begin).text()
            break
        end = min(len(series), begin + room)
        room -= end - begin
        for name, column in series.columns.items():
            if made["kinds"].get(name, "i") == "i":  # an integer on one host may be a fraction on another
                made["kinds"][name] = column.dtype.kind.replace("u", "i")
        part = {name: _values(column[begin:end]) for name, column in series.columns.items()}
        made["rows"].append({"node": host, "times": series.times[begin:end].tolist(), "columns": part})
        if end < len(series):
            made["next"] = _mark(series, end).text()
            break
    return made


def _mark(series: Series, at: int) -> Mark:
    time = int(series.times[at])
    return Mark(time, at - int(np.searchsorted(series.times, time, "left")), series.host)


def _values(column: npt.NDArray[Any]) -> list[Any]:
    """Return stored values for JSON: None for a missing one."""
    if column.dtype.kind == "S":
        return [one.decode("utf-8", "replace") if one else None for one in column.tolist()]
    if column.dtype.kind == "f":
        return [None if one == -1 or not math.isfinite(one) else one for one in column.tolist()]
    return [None if one == -1 else one for one in column.tolist()]
