"""Return the values of a column over time: from the recent cache, from the store, or from both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from colmet.common.errors import ColmetError
from colmet.common.growth import CAPACITY_COLUMNS, NODE_CPUS, Capacity, is_bounded, largest, of_columns
from colmet.common.measures import CGROUP_TABLE
from colmet.common.text import counted
from colmet.stored.curves import ceilings
from colmet.stored.series import NODE, HeldRows, HostRows, RowQuery, groups_of
from colmet.web.catalogue import declared, labels_of
from colmet.web.ownership import Ownership
from colmet.web.recent_cache import RecentCache
from colmet.web.series import (
    Extent,
    RawSeries,
    SeriesPart,
    before,
    folded,
    grid_of,
    joined,
    json_values,
    keys_of,
    levels,
    of_samples,
    of_series,
    parts_of,
    period_of,
    rates,
    spread_answer,
    spread_of,
    step_of,
    unit_of,
)
from colmet.web.store import StoreReader, warning_of

SOURCES = ("auto", "memory", "stored")
# Of values, by whether there are any in the recent cache, and in the store.
ORIGINS = {(True, True): "both", (True, False): "memory", (False, True): "stored", (False, False): "none"}
MAX_VALUES = 1 << 20  # in one answer
MAX_PARTS = 4096  # series in one answer
ROW_VALUES = 6  # memory of a row with its labels, in numbers
NO_ROWS = HeldRows([])
NO_STORE = "nothing is stored that can be read: the collector writes neither HDF5 files nor to a database"


class SeriesQuery(NamedTuple):
    """A query for values over time."""

    job: int  # number of the job; 0 for a node's own values
    table: str  # such as cgroup_default
    column: str  # such as cpu_usage
    node: str = ""  # only this node; "" for all nodes of the job
    since: float | None = None  # seconds since 1970; None for the first value
    until: float | None = None  # seconds since 1970; None for now
    points: int = 300  # max values of each series
    fold: str = "mean"  # aggregation of the values of an interval: one of `FOLDS`
    rate: bool = False  # whether to return a counter's growth per second
    source: str = "auto"  # one of `SOURCES`
    together: bool = False  # whether to return the sum, mean, min and max of all series, not each of them
    own: Mapping[str, float | None] | None = None  # only these hosts, as `Queries.own`; None for all


class SeriesReading:
    """One reading of values over time.

        query -> span -> recent cache --- it covers the span ------------> memory --+
                              |                                                     |
                              +---------- it begins later -----> store -> both -----+-> join -> rates or levels -> fold
                              |                                                     |
                              +---------- it has nothing ------> store -> stored ---+

    The store is read up to the first row of the recent cache. `source=memory` and `source=stored` choose one of them. A
    failure of the store is a warning if the recent cache has the table, else an error.
    """

    def __init__(
        self, recent: RecentCache, store: StoreReader | None, ownership: Ownership, query: SeriesQuery, now: float
    ) -> None:
        self._recent = recent
        self._store = store
        self._ownership = ownership
        self._query = query
        self._now = now
        self._since = -math.inf if query.since is None else query.since
        self._until = math.inf if query.until is None else query.until
        # start of the visible rows of single hosts, if later than `since`
        self._starts = {host: max(self._since, at) for host, at in (query.own or {}).items() if at is not None}
        self._known = None if query.job == NODE else recent.job(query.job)
        if query.job == NODE:
            self._hosts = [query.node] if recent.is_host(query.node) else []
        else:
            hosts = [] if self._known is None else recent.hosts_of(self._known)
            self._hosts = [one for one in hosts if query.node in ("", one) and (query.own is None or one in query.own)]
        schema = recent.tables(self._hosts, [query.table]).get(query.table)
        # of the table in the recent cache; for a node, tables of jobs do not count
        self._schema = None if schema is not None and query.job == NODE and schema.scope == "job" else schema
        is_used = self._schema is not None and query.source != "stored"
        begins = {host: recent.begins(host, query.table) for host in self._hosts if is_used}
        self._begins = {host: at for host, at in begins.items() if at is not None}  # first row there, by host
        self._labels = labels_of(query.table, self._schema)
        self._warnings: list[str] = []
        self._use(NO_ROWS)

    def _use(self, rows: HostRows) -> None:
        """Use these rows of the store."""
        self._rows = rows
        self._groups = _groups(self._begins, rows)
        self._held: list[list[RawSeries]] = []  # the samples, if they are one group
        self._keys: list[str] | None = None
        self._has_later = self._has_earlier = False  # whether there are any in the recent cache, and in the store

    def answer(self) -> dict[str, Any] | None:
        """Return the values; None for an unknown column, ColmetError if an unreadable store alone has them."""
        source = self._query.source
        if self._store is None and source == "stored":
            self._warnings.append(NO_STORE)
        if self._store is None or source == "memory" or (source == "auto" and self._covers()):
            return self._answer(self._ceilings(None))
        try:
            return self._read_column(self._store)
        except ColmetError as err:
            if self._schema is None:
                raise
            self._warnings = [warning_of(err)]
            self._use(NO_ROWS)
            return self._answer(self._ceilings(None))

    def _covers(self) -> bool:
        """Return whether the recent cache has all rows of the store."""
        own, known, since = self._query.own, self._known, self._since
        if not self._hosts or len(self._begins) < len(self._hosts):
            return False
        if own is not None and not own.keys() <= {*self._hosts}:
            return False
        if known is not None and self._ownership.saw_all(
            [known.hosts[host] for host in self._hosts if host in known.hosts]
        ):
            since = max(since, known.first)
        return since >= max(self._begins.values())

    def _read_column(self, store: StoreReader) -> dict[str, Any] | None:
        query = self._query
        has_all = bool(self._begins) and len(self._begins) == len(self._hosts)
        until = min(self._until, max(self._begins.values()) if has_all else math.inf)
        tables = store.tables(query.job, query.since)
        self._warnings += tables.warnings
        columns = tables.value.get(query.table, ())
        if query.column not in columns:
            return self._answer(self._ceilings(None))
        names = [query.column, *[name for name in self._labels if name in columns]]
        last = None if until == math.inf else until
        hosts = [query.node] if query.node else None if query.own is None else [*query.own]
        most = self._ceilings(store)  # first: while rows are used, the store must not be asked

        def use(rows: HostRows) -> dict[str, Any] | None:
            self._use(rows)
            return self._answer(most, True)

        made, warnings = store.read(RowQuery(query.job, query.table, names, query.since, last, hosts), use)
        if made is not None:
            made["warnings"] += [one for one in warnings if one not in made["warnings"]]
        return made

    def _answer(self, ceilings: Mapping[str, float], is_stored: bool = False) -> dict[str, Any] | None:
        """Return the values; `is_stored` if the store has the column. Asks the store for nothing."""
        query = self._query
        fields = () if self._schema is None else self._schema.fields
        field = next((one for one in fields if one.name == query.column), None)
        has_column = is_stored and self._has_numbers()
        if (field is None and not has_column) or (field is not None and field.dtype[0] == "S"):
            return None
        is_recent = self._known is None or query.table in self._known.tables
        if not is_recent and not has_column:
            return None  # other jobs of these hosts have the table
        unit, kind, _ = declared(query.table, query.column)
        if field is not None:
            unit, kind = field.unit, field.kind
        warnings = list(self._warnings)
        is_rate = query.rate and kind in ("counter", None)
        if query.rate and not is_rate:
            warnings.append(f"{query.table}.{query.column} is not a counter: its values are shown, not their growth")
        shown_unit, factor = unit_of(unit, is_rate)

        def made() -> Iterator[SeriesPart]:
            for part in self._parts():
                yield rates(part, factor, ceilings.get(part.host, math.inf)) if is_rate else levels(part)

        step, series, together = _folded(made, query, warnings)
        if self._recent.missed and self._has_later:
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
            "until": query.until if query.until is not None else self._now,
            "step": step,
            "source": ORIGINS[self._has_later, self._has_earlier],
            "warnings": warnings,
            "series": series,
            "together": together,
        }

    def _has_numbers(self) -> bool:
        """Return whether the column of the store has numbers; without rows, whether it is one of a job."""
        found = [one.columns.get(self._query.column) for hosts in self._groups[:1] for one in self._rows.read(hosts)]
        kinds = {column.dtype.kind for column in found if column is not None}
        return bool(kinds & {*"iuf"}) if found else self._query.job != NODE

    def _parts(self) -> Iterator[SeriesPart]:
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
        query = self._query
        for hosts in self._groups:
            later = [
                of_samples(samples, query.column, self._labels)
                for host in hosts
                if host in self._begins
                for samples in self._recent.read(query.job, query.table, [host], self._start(host), self._until)
            ]
            earlier = [
                before(
                    of_series(one, query.column, self._labels),
                    *(self._start(one.host), self._until, self._begins.get(one.host, math.inf)),
                )
                for one in self._rows.read([host for host in hosts if query.own is None or host in query.own])
            ]
            self._has_later = self._has_later or bool(later)
            self._has_earlier = self._has_earlier or any(len(raw.times) for raw in earlier)
            found = joined([*earlier, *later])
            if len(self._groups) == 1:
                self._held = [found]
            yield found

    def _start(self, host: str) -> float:
        """Return the start of the visible rows of a host."""
        return self._starts.get(host, self._since)

    def _ceilings(self, store: StoreReader | None) -> Mapping[str, float]:
        """Return the upper bound of the rates of the column, by host; hosts without a known bound are missing."""
        query = self._query
        if not query.rate or not is_bounded(query.table, query.column):
            return {}
        found: dict[str, Capacity] = {}
        since, until = max(self._since, 0.0), self._until
        hosts = self._hosts if query.job != NODE else ()
        for samples in self._recent.read(query.job, CGROUP_TABLE, hosts, since, until):
            one = of_columns({name: of_samples(samples, name, ()).values for name in CAPACITY_COLUMNS})
            found[samples.host] = one if samples.host not in found else found[samples.host].joined(one)
        table, column = NODE_CPUS
        for samples in self._recent.read(NODE, table, self._hosts, since, until):
            cpus = largest(of_samples(samples, column, ()).values)
            if not found.get(samples.host, Capacity()).cpus > 0:
                found[samples.host] = found.get(samples.host, Capacity())._replace(cpus=cpus)
        if store is not None:
            try:
                nodes = [query.node] if query.node else None
                earlier = store.capacities(query.job, query.since, query.until, nodes).value
            except ColmetError as err:
                self._warnings.append("the CPUs and tasks that bound these rates are not known")
                self._warnings.append(warning_of(err))
                earlier = {}
            for host, one in earlier.items():
                found[host] = one if host not in found else found[host].joined(one)
        return ceilings(query.table, query.column, found)


def _groups(begins: Mapping[str, float], rows: HostRows) -> list[list[str]]:
    """Return the hosts in the store and in the recent cache, in groups of limited size."""
    groups = groups_of([(rows, ROW_VALUES)]) or [[]]
    group_of = {host: group for group in groups for host in group}
    for host in begins:
        if host not in rows.counts:
            group_of.setdefault(host, groups[-1]).append(host)
    return groups


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
