"""Return the values of a column over time: from the recent cache, from the store, or from both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from colmet.common.errors import ColmetError
from colmet.common.growth import CAPACITY_COLUMNS, NODE_CPUS, Capacity, is_bounded, largest, of_columns
from colmet.common.measures import CGROUP_TABLE
from colmet.common.schema import Schema
from colmet.common.text import counted
from colmet.stored.capacity import ceilings
from colmet.stored.series import NODE, HeldRows, HostRows, RowQuery, groups_of
from colmet.web.catalogue import declared, labels_of
from colmet.web.interface import SeriesQuery, warning_of
from colmet.web.ownership import Ownership
from colmet.web.recent_cache import RecentCache, RecentJob
from colmet.web.series import (
    Extent,
    RawSeries,
    SeriesPart,
    before,
    folded,
    joined,
    json_values,
    keys_of,
    levels,
    of_samples,
    of_series,
    parts_of,
    rates,
    step_of,
    unit_of,
)
from colmet.web.spread import grid_of, period_of, spread_answer, spread_of
from colmet.web.store import StoreReader

MAX_VALUES = 1 << 20  # in one answer
MAX_PARTS = 4096  # series in one answer
ROW_VALUES = 6  # memory of a row with its labels, in numbers
NO_ROWS = HeldRows([])
NO_STORE = "nothing is stored that can be read: the collector writes neither HDF5 files nor to a database"

Groups = list[list[str]]  # of hosts
T = TypeVar("T")


class _Span(NamedTuple):
    """The hosts and the interval of a query."""

    known: RecentJob | None  # the job in the recent cache; None for a node, or an older job
    hosts: Sequence[str]  # the hosts in the recent cache
    since: float  # seconds since 1970; -inf for the first row
    until: float  # seconds since 1970; inf for now
    starts: Mapping[str, float]  # start of the visible rows of single hosts, if later than `since`

    def start(self, host: str) -> float:
        """Return the start of the visible rows of a host."""
        return self.starts.get(host, self.since)


class _Recent(NamedTuple):
    """A table in the recent cache."""

    schema: Schema | None  # schema of the table; None if the cache lacks the table
    begins: Mapping[str, float]  # time of the first row of each host


class _Stored(NamedTuple):
    """A column in the store."""

    rows: HostRows = NO_ROWS  # empty if not needed
    has_column: bool = False  # whether the store has the column
    warnings: list[str] = []  # one for each failure to read; more may follow  # noqa: RUF012
    ceilings: Mapping[str, float] = {}  # the upper bound of the rates, by host, as far as known


class _Rows:
    """The samples of a query, by groups of hosts."""

    def __init__(
        self, cache: RecentCache, query: SeriesQuery, span: _Span, recent: _Recent, stored: _Stored, groups: Groups
    ) -> None:
        self._cache = cache
        self._query = query
        self._span = span
        self._recent = recent
        self._rows = stored.rows
        self._groups = groups
        self._held: list[list[RawSeries]] = []  # the samples, if they are one group
        self._labels = labels_of(query.table, recent.schema)
        self._keys: list[str] | None = None
        self.has_later = self.has_earlier = False  # whether there are any in the recent cache, and in the store

    def parts(self) -> Iterator[SeriesPart]:
        """Yield a part for each host and set of labels."""
        if self._keys is None:
            needed = {name for raws in self._raws() for name in keys_of(raws, self._labels)} if self._labels else set()
            self._keys = [name for name in self._labels if name in needed]
        for raws in self._raws():
            yield from [part for part in parts_of(raws, self._keys) if len(part.times)]

    def _raws(self) -> Iterator[list[RawSeries]]:
        """Yield the samples of each group: rows of the recent cache, and the earlier rows of the store."""
        if self._held:
            yield from self._held
            return
        query, span, recent = self._query, self._span, self._recent
        for hosts in self._groups:
            later = [
                of_samples(samples, query.column, self._labels)
                for host in hosts
                if host in recent.begins
                for samples in self._cache.read(query.job, query.table, [host], span.start(host), span.until)
            ]
            earlier = [
                before(
                    of_series(one, query.column, self._labels),
                    *(span.start(one.host), span.until, recent.begins.get(one.host, math.inf)),
                )
                for one in self._rows.read([host for host in hosts if query.own is None or host in query.own])
            ]
            self.has_later = self.has_later or bool(later)
            self.has_earlier = self.has_earlier or any(len(raw.times) for raw in earlier)
            whole = joined([*earlier, *later])
            found = whole
            if len(self._groups) == 1:
                self._held = [found]
            yield found


class SeriesReader:
    """Reads values over time.

        query -> span -> recent cache --- it covers the span ------------> memory --+
                              |                                                     |
                              +---------- it begins later -----> store -> both -----+-> join -> rates or levels -> fold
                              |                                                     |
                              +---------- it has nothing ------> store -> stored ---+

    The store is read up to the first row of the recent cache. `source=memory` and `source=stored` choose one of them. A
    failure of the store is a warning if the recent cache has the table, else an error.
    """

    def __init__(
        self, recent: RecentCache, store: StoreReader | None, ownership: Ownership, now: Callable[[], float]
    ) -> None:
        self._recent = recent
        self._store = store
        self._ownership = ownership
        self._now = now

    def answer(self, query: SeriesQuery) -> Mapping[str, Any] | None:
        """Return the values; None for an unknown job, node, table or column.

        Raises:
            ColmetError: the values are in the store alone, and it cannot be read.
        """
        now = self._now()
        span = self._span(query)
        recent = self._look(query, span)
        return self._read_store(query, span, recent, lambda stored: self._answer(query, now, span, recent, stored))

    def _answer(
        self, query: SeriesQuery, now: float, span: _Span, recent: _Recent, stored: _Stored
    ) -> Mapping[str, Any] | None:
        """Return the values, from the recent cache and from rows of the store; asks the store for nothing."""
        fields = () if recent.schema is None else recent.schema.fields
        field = next((one for one in fields if one.name == query.column), None)
        groups = _groups(recent, stored)
        has_column = stored.has_column and _has_numbers(query, stored.rows, groups)
        if (field is None and not has_column) or (field is not None and field.dtype[0] == "S"):
            return None
        is_recent = span.known is None or query.table in span.known.tables
        if not is_recent and not has_column:
            return None  # other jobs of these hosts have the table
        unit, kind, _ = declared(query.table, query.column)
        if field is not None:
            unit, kind = field.unit, field.kind
        warnings = list(stored.warnings)
        is_rate = query.rate and kind in ("counter", None)
        if query.rate and not is_rate:
            warnings.append(f"{query.table}.{query.column} is not a counter: its values are shown, not their growth")
        shown_unit, factor = unit_of(unit, is_rate)
        most = stored.ceilings if is_rate else {}
        read = _Rows(self._recent, query, span, recent, stored, groups)
        made = lambda: (  # noqa: E731
            rates(part, factor, most.get(part.host, math.inf)) if is_rate else levels(part) for part in read.parts()
        )
        step, series, together = _folded(made, query, warnings)
        if self._recent.missed and read.has_later:
            warnings.append(
                f"{counted(self._recent.missed, 'messages')} did not reach memory; source=stored has their rows"
            )
        lines = series if together is None else [together]
        times = [at for one in lines for at in (one["times"][:1] + one["times"][-1:])]
        return {
            "job": query.job,
            "metric": f"{query.table}.{query.column}",
            "unit": shown_unit,
            "kind": kind,
            "rate": is_rate,
            "since": query.since if query.since is not None else min(times, default=None),
            "until": query.until if query.until is not None else now,
            "step": step,
            "source": _origin(read.has_later, read.has_earlier),
            "warnings": warnings,
            "series": series,
            "together": together,
        }

    def _span(self, query: SeriesQuery) -> _Span:
        since = -math.inf if query.since is None else query.since
        until = math.inf if query.until is None else query.until
        starts = {host: max(since, at) for host, at in (query.own or {}).items() if at is not None}
        if query.job == NODE:
            return _Span(None, [query.node] if self._recent.is_host(query.node) else [], since, until, starts)
        known = self._recent.job(query.job)
        hosts = [] if known is None else self._recent.hosts_of(known)
        chosen = [host for host in hosts if query.node in ("", host) and (query.own is None or host in query.own)]
        return _Span(known, chosen, since, until, starts)

    def _look(self, query: SeriesQuery, span: _Span) -> _Recent:
        """Return the table in the recent cache; for a node, tables of jobs do not count."""
        schema = self._recent.tables(span.hosts, [query.table]).get(query.table)
        if schema is not None and query.job == NODE and schema.scope == "job":
            schema = None
        if schema is None or query.source == "stored":
            return _Recent(schema, {})
        begins = {host: self._recent.begins(host, query.table) for host in span.hosts}
        return _Recent(schema, {host: at for host, at in begins.items() if at is not None})

    def _read_store(self, query: SeriesQuery, span: _Span, recent: _Recent, use: Callable[[_Stored], T]) -> T:
        """Return the result of `use` for the rows missing in the recent cache.

        A failure is a warning if the cache has the table.
        """
        warnings = [NO_STORE] if self._store is None and query.source == "stored" else []
        is_unneeded = query.source == "memory" or (query.source == "auto" and self._covers(query, span, recent))
        if self._store is None or is_unneeded:
            return use(_Stored(warnings=warnings, ceilings=self._ceilings(query, span, None, warnings)))
        has_all = bool(recent.begins) and len(recent.begins) == len(span.hosts)
        until = min(span.until, max(recent.begins.values()) if has_all else math.inf)
        try:
            return self._read_column(self._store, query, span, recent, until, use)
        except ColmetError as err:
            if recent.schema is None:
                raise
            warnings = [warning_of(err)]
            return use(_Stored(warnings=warnings, ceilings=self._ceilings(query, span, None, warnings)))

    def _covers(self, query: SeriesQuery, span: _Span, recent: _Recent) -> bool:
        """Return whether the recent cache has all rows of the store."""
        if len(recent.begins) < len(span.hosts) or not span.hosts:
            return False
        if query.own is not None and not query.own.keys() <= {*span.hosts}:
            return False
        since, known = span.since, span.known
        if known is not None and self._ownership.saw_all(
            [known.hosts[host] for host in span.hosts if host in known.hosts]
        ):
            since = max(since, known.first)
        return since >= max(recent.begins.values())

    def _read_column(
        self,
        store: StoreReader,
        query: SeriesQuery,
        span: _Span,
        recent: _Recent,
        until: float,
        use: Callable[[_Stored], T],
    ) -> T:
        """Return the result of `use` for a column of the store."""
        first = None if span.since == -math.inf else span.since
        last = None if until == math.inf else until
        tables = store.tables(query.job, first)
        warnings = list(tables.warnings)
        columns = tables.value.get(query.table, ())
        if query.column not in columns:
            return use(_Stored(warnings=warnings, ceilings=self._ceilings(query, span, None, warnings)))
        labels = [name for name in labels_of(query.table, recent.schema) if name in columns]
        hosts = [query.node] if query.node else None if query.own is None else [*query.own]
        most = self._ceilings(query, span, store, warnings)  # first: `use` must not ask the store
        found = store.read(
            RowQuery(query.job, query.table, [query.column, *labels], first, last, hosts),
            lambda rows: use(_Stored(rows, True, warnings, most)),
        )
        warnings += [one for one in found[1] if one not in warnings]
        return found[0]

    def _ceilings(
        self, query: SeriesQuery, span: _Span, store: StoreReader | None, warnings: list[str]
    ) -> Mapping[str, float]:
        """Return the upper bound of the rates of a column, by host; hosts without a known bound are missing."""
        if not query.rate or not is_bounded(query.table, query.column):
            return {}
        found: dict[str, Capacity] = {}
        since, until, hosts = max(span.since, 0.0), span.until, span.hosts
        for samples in self._recent.read(query.job, CGROUP_TABLE, hosts if query.job != NODE else (), since, until):
            one = of_columns({name: of_samples(samples, name, ()).values for name in CAPACITY_COLUMNS})
            found[samples.host] = one if samples.host not in found else found[samples.host].joined(one)
        table, column = NODE_CPUS
        for samples in self._recent.read(NODE, table, hosts, since, until):
            cpus = largest(of_samples(samples, column, ()).values)
            if not found.get(samples.host, Capacity()).cpus > 0:
                found[samples.host] = found.get(samples.host, Capacity())._replace(cpus=cpus)
        if store is not None:
            limits = None if span.since == -math.inf else span.since, None if until == math.inf else until
            try:
                earlier = store.capacities(query.job, *limits, [query.node] if query.node else None).value
            except ColmetError as err:
                warnings.append(f"the CPUs and tasks that bound these rates are not known: {err}")
                earlier = {}
            for host, one in earlier.items():
                found[host] = one if host not in found else found[host].joined(one)
        return ceilings(query.table, query.column, found)


def _origin(is_recent: bool, is_stored: bool) -> str:
    if is_recent:
        return "both" if is_stored else "memory"
    return "stored" if is_stored else "none"


def _groups(recent: _Recent, stored: _Stored) -> Groups:
    """Return the hosts in the store and in the recent cache, in groups of limited size."""
    groups = groups_of([(stored.rows, ROW_VALUES)]) or [[]]
    group_of = {host: group for group in groups for host in group}
    for host in recent.begins:
        if host not in stored.rows.counts:
            group_of.setdefault(host, groups[-1]).append(host)
    return groups


def _has_numbers(query: SeriesQuery, rows: HostRows, groups: Groups) -> bool:
    """Return whether a column of the store has numbers; without rows, whether it is one of a job."""
    found = [one.columns.get(query.column) for hosts in groups[:1] for one in rows.read(hosts)]
    kinds = {column.dtype.kind for column in found if column is not None}
    return bool(kinds & {*"iuf"}) if found else query.job != NODE


def _folded(
    parts: Callable[[], Iterable[SeriesPart]], query: SeriesQuery, warnings: list[str]
) -> tuple[float, list[dict[str, Any]], dict[str, Any] | None]:
    """Return the width of intervals, and the series with one value for each, or all series as one.

    `parts` is called twice.
    """
    extent, period, count, total = Extent(), 0.0, 0, 0
    for part in parts():
        total += 1
        if total <= MAX_PARTS:
            extent, count = extent.joined(part), count + bool(len(part.times))
            period = max(period, period_of(part))
    if total > MAX_PARTS:
        warnings.append(f"{total} series are too many, the first {MAX_PARTS} are shown; choose one node")
    chosen = islice(parts(), MAX_PARTS)
    if query.together:
        grid = grid_of(extent, period, query.points)
        return grid.width, [], spread_answer(spread_of(chosen, grid, extent, query.fold), count)
    points = max(2, min(query.points, MAX_VALUES // max(1, count)))
    if points < query.points:
        warnings.append(f"{points} points of each of {count} series are shown")
    step = step_of(extent, points)
    series = []
    for part in chosen:
        if len(part.times):
            times, values = folded(part, step, query.fold)
            series.append(
                {
                    "node": part.host,
                    "labels": dict(part.labels),
                    "times": times.round(3).tolist(),
                    "values": json_values(values),
                }
            )
    return step, sorted(series, key=lambda one: str(one["node"])), None
