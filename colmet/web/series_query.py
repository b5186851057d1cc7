"""Return the values of a column over time: from the recent cache, from the store, or from both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from colmet.common.errors import ColmetError
from colmet.common.growth import CAPACITY_COLUMNS, NODE_CPUS, Capacity, is_bounded, largest, of_columns
from colmet.common.measures import CGROUP_TABLE
from colmet.common.runtime.plural import counted
from colmet.common.schema import Schema
from colmet.stored.capacity import ceilings
from colmet.stored.series import NODE, Series
from colmet.web.catalogue import declared, labels_of
from colmet.web.interface import SeriesQuery, StoreWarning
from colmet.web.ownership import Ownership
from colmet.web.recent_cache import RecentCache, RecentJob
from colmet.web.series import (
    RawSeries,
    SeriesPart,
    before,
    folded,
    joined,
    json_values,
    keys_of,
    levels,
    of_one_agent,
    of_samples,
    of_series,
    parts_of,
    rates,
    step_of,
    unit_of,
)
from colmet.web.store import StoreReader

MAX_VALUES = 1 << 20  # in one answer
MAX_PARTS = 4096  # series in one answer
NO_STORE = "nothing is stored that can be read: the collector writes neither HDF5 files nor to a database"


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

    series: Sequence[Series] = ()  # the series read; empty if not needed
    has_column: bool = False  # whether the store has the column
    warnings: Sequence[str] = ()  # one for each failure to read


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
        stored = self._read_store(query, span, recent)
        fields = () if recent.schema is None else recent.schema.fields
        field = next((one for one in fields if one.name == query.column), None)
        if (field is None and not stored.has_column) or (field is not None and field.dtype[0] == "S"):
            return None
        is_recent = span.known is None or query.table in span.known.tables
        if not is_recent and not stored.has_column:
            return None  # other jobs of these hosts have the table
        unit, kind, _ = declared(query.table, query.column)
        if field is not None:
            unit, kind = field.unit, field.kind
        later, earlier = self._raw(query, span, recent, stored)
        warnings = list(stored.warnings)
        parts = self._parts(query, recent.schema, [*earlier, *later], warnings)
        is_rate = query.rate and kind in ("counter", None)
        if query.rate and not is_rate:
            warnings.append(f"{query.table}.{query.column} is not a counter: its values are shown, not their growth")
        shown_unit, factor = unit_of(unit, is_rate)
        if is_rate:
            most = self._ceilings(query, span, bool(stored.series), warnings)
            parts = [rates(part, factor, most.get(part.host, math.inf)) for part in parts]
        else:
            parts = [levels(part) for part in parts]
        step, series = _folded(parts, query, warnings)
        if self._recent.missed and later:
            warnings.append(
                f"{counted(self._recent.missed, 'messages')} did not reach memory; source=stored has their rows"
            )
        times = [at for one in series for at in (one["times"][:1] + one["times"][-1:])]
        return {
            "job": query.job,
            "metric": f"{query.table}.{query.column}",
            "unit": shown_unit,
            "kind": kind,
            "rate": is_rate,
            "since": query.since if query.since is not None else min(times, default=None),
            "until": query.until if query.until is not None else now,
            "step": step,
            "source": _origin(bool(later), any(len(raw.times) for raw in earlier)),
            "warnings": warnings,
            "series": series,
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

    def _read_store(self, query: SeriesQuery, span: _Span, recent: _Recent) -> _Stored:
        """Read rows missing in the recent cache; a failure is a warning if the cache has the table."""
        if self._store is None:
            return _Stored(warnings=[NO_STORE] if query.source == "stored" else [])
        if query.source == "memory" or (query.source == "auto" and self._covers(query, span, recent)):
            return _Stored()
        has_all = bool(recent.begins) and len(recent.begins) == len(span.hosts)
        until = min(span.until, max(recent.begins.values()) if has_all else math.inf)
        try:
            return self._read_column(self._store, query, recent.schema, span.since, until)
        except ColmetError as err:
            if recent.schema is None:
                raise
            return _Stored(warnings=[StoreWarning(err)])

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

    @staticmethod
    def _read_column(
        store: StoreReader, query: SeriesQuery, schema: Schema | None, since: float, until: float
    ) -> _Stored:
        first = None if since == -math.inf else since
        last = None if until == math.inf else until
        tables = store.tables(query.job, first)
        columns = tables.value.get(query.table, ())
        if query.column not in columns:
            return _Stored(warnings=tables.warnings)
        labels = [name for name in labels_of(query.table, schema) if name in columns]
        hosts = [query.node] if query.node else None if query.own is None else [*query.own]
        answer = store.read(query.job, query.table, [query.column, *labels], first, last, hosts)
        found: list[Series] = answer.value
        is_number = any(one.columns[query.column].dtype.kind in "iuf" for one in found if query.column in one.columns)
        more = [one for one in answer.warnings if one not in tables.warnings]
        return _Stored(found, is_number if found else query.job != NODE, [*tables.warnings, *more])

    def _raw(
        self, query: SeriesQuery, span: _Span, recent: _Recent, stored: _Stored
    ) -> tuple[list[RawSeries], list[RawSeries]]:
        """Return the rows of the recent cache, and the earlier rows of the store."""
        labels = labels_of(query.table, recent.schema)
        later = [
            of_samples(samples, query.column, labels)
            for host in recent.begins
            for samples in self._recent.read(query.job, query.table, [host], span.start(host), span.until)
        ]
        earlier = [
            before(
                of_series(one, query.column, labels),
                span.start(one.host),
                span.until,
                recent.begins.get(one.host, math.inf),
            )
            for one in stored.series
            if query.own is None or one.host in query.own
        ]
        return later, earlier

    @staticmethod
    def _parts(
        query: SeriesQuery, schema: Schema | None, raws: Sequence[RawSeries], warnings: list[str]
    ) -> list[SeriesPart]:
        """Join the rows, and return a part for each host and set of labels."""
        whole = joined(raws)
        if query.job != NODE:
            whole = of_one_agent(whole)
        keys = keys_of(whole, labels_of(query.table, schema))
        parts = [part for part in parts_of(whole, keys) if len(part.times)]
        if len(parts) > MAX_PARTS:
            warnings.append(f"{len(parts)} series are too many, the first {MAX_PARTS} are shown; choose one node")
        return parts[:MAX_PARTS]

    def _ceilings(self, query: SeriesQuery, span: _Span, is_stored: bool, warnings: list[str]) -> Mapping[str, float]:
        """Return the upper bound of the rates of a column, by host; hosts without a known bound are missing."""
        if not is_bounded(query.table, query.column):
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
        if is_stored and self._store is not None:
            limits = None if span.since == -math.inf else span.since, None if until == math.inf else until
            try:
                earlier = self._store.capacities(query.job, *limits, [query.node] if query.node else None).value
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


def _folded(parts: Sequence[SeriesPart], query: SeriesQuery, warnings: list[str]) -> tuple[float, list[dict[str, Any]]]:
    """Return the width of intervals, and the series with one value for each interval."""
    parts = [part for part in parts if len(part.times)]
    points = max(2, min(query.points, MAX_VALUES // max(1, len(parts))))
    if points < query.points:
        warnings.append(f"{points} points of each of {len(parts)} series are shown")
    step = step_of(parts, points)
    series = []
    for part in parts:
        times, values = folded(part, step, query.fold)
        series.append(
            {
                "node": part.host,
                "labels": dict(part.labels),
                "times": times.round(3).tolist(),
                "values": json_values(values),
            }
        )
    return step, series
