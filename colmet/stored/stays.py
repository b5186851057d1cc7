"""The rows of a job, host by host, and their totals, peaks and latest values.

A counter of a job is a total since its beginning, so its last value is the job's use. If a counter decreases all the
same (an agent lost its state), its growth from there on is added; impossible growth is dropped
(`colmet.common.growth`). Units of columns: docs/metrics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from colmet.common import measures
from colmet.common.growth import NODE_CPUS, Capacity, ceiling, is_late, steady_growth, summed
from colmet.common.growth import largest as most_of
from colmet.common.measures import CGROUP, CGROUP_TABLE, CPU_USED, MEMORY, START, Measure, Source, columns_of
from colmet.common.tables.runs import RUN, UPTIME
from colmet.report.model import Number
from colmet.stored.capacity import of_job
from colmet.stored.gap_finder import cadence_s
from colmet.stored.groups import GroupedRows, groups_of
from colmet.stored.series import NODE, History, RowQuery, Series

OLDEST_S = 400 * 86400  # an older start is not believed
OUTLINE_COLUMNS = columns_of([START])
RUN_COLUMNS = (RUN, UPTIME)  # of tables that have them
STEP_S = 3  # a clock that was set by less changes no figure


F = TypeVar("F", bound=Callable[..., Any])


def _kept(figure: F) -> F:
    """Return a method of `Stay` that computes its result once, and never from the rows of a stay without them."""

    @wraps(figure)
    def known(stay: Stay, *arguments: Any) -> Any:
        key = (figure.__name__, *arguments)
        if key not in stay.known:
            if stay.is_folded:
                raise LookupError(f"{key} is not known of {stay.host}")
            stay.known[key] = figure(stay, *arguments)
        return stay.known[key]

    return cast(F, known)


class JobInterval(NamedTuple):
    """A job and an interval: seconds since 1970, both ends included; None for no bound."""

    job: int
    since: int | None = None
    until: int | None = None


class Growth(NamedTuple):
    """The growth of a counter."""

    total: float
    left_out: int  # number of impossible steps, not in it


@dataclass(frozen=True)
class Stay:
    """The rows of a job on one host, by table."""

    host: str  # its name
    tables: Mapping[str, Series]  # with at least one row each
    since: int | None = None  # start of the interval; None for all of the job
    node_cpus: float = math.nan  # CPUs of the host, for a job with an unknown number of its own
    known: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)  # computed figures
    is_folded: bool = False  # whether the rows are dropped
    is_clock_set: bool = False  # whether its clock was set between the rows, see `by_first_clock`

    def folded(self) -> Stay:
        """Return the stay with the figures computed so far, and without its rows."""
        empty = {name: Series(name, self.host, one.job, one.times[:0], {}) for name, one in self.tables.items()}
        return replace(self, tables=empty, is_folded=True)

    def by_first_clock(self) -> Stay:
        """Return the rows with times by the clock of the first one, also if that was set since.

        That is known of the rows of one run that have the time since the machine's boot; the others stay as they are.
        """
        tables = dict(self.tables)
        for name, series in self.tables.items():
            runs, uptimes = series.columns.get(RUN), series.columns.get(UPTIME)
            if runs is None or uptimes is None or runs.dtype.kind != "i" or uptimes.dtype.kind != "i":
                continue
            if not len(series) or runs[0] <= 0 or (runs != runs[0]).any() or (uptimes < 0).any():
                continue
            first = int(np.argmin(uptimes))
            times = uptimes - uptimes[first] + series.times[first]
            if (np.abs(times - series.times) >= STEP_S).any():
                order = np.argsort(times, kind="stable")
                columns = {column: values[order] for column, values in series.columns.items()}
                tables[name] = replace(series, times=times[order], columns=columns)
        if all(tables[name] is series for name, series in self.tables.items()):
            return self
        return replace(self, tables=tables, known={}, is_clock_set=True)

    @property
    @_kept
    def first(self) -> int:
        """Return the time of the first row."""
        return min(int(series.times[0]) for series in self.tables.values())

    @property
    @_kept
    def last(self) -> int:
        """Return the time of the last row."""
        return max(int(series.times[-1]) for series in self.tables.values())

    @property
    def longest(self) -> str:
        """Return the table with most rows."""
        return max(self.tables, key=lambda name: len(self.tables[name]))

    @property
    @_kept
    def samples(self) -> int:
        """Return the largest number of sample times of a table."""
        return max(len(series.seconds) for series in self.tables.values())

    @property
    @_kept
    def period_s(self) -> Number:
        """Return the median of the seconds between samples; None for too few samples."""
        period = max(cadence_s(series.seconds, 0) for series in self.tables.values())
        return period or None

    @property
    @_kept
    def began(self) -> int | None:
        """Return the start of the job's first task; None if unknown."""
        times = self.values(START.best)
        times = times[times > self.first - OLDEST_S]
        if self.is_clock_set:  # the kernel's time of a start moves with the clock
            times = times[:1]
        return min(int(times.min()), self.first) if len(times) else None

    @property
    def start(self) -> int:
        """Return the start of the figures: the job's own, else the first read row."""
        return self.began if self.began is not None and self.whole else self.first

    @property
    def wall_s(self) -> float:
        """Return the seconds from the start to the last row."""
        return float(self.last - self.start)

    @property
    def whole(self) -> bool:
        """Return whether the figures cover the job from its start, so that the first value counts as well."""
        return self.since is None or (self.began is not None and self.began >= self.since)

    @_kept
    def count(self, source: Source) -> int:
        """Return the number of stored values of a column."""
        return len(self.values(source))

    @_kept
    def ends(self, source: Source) -> tuple[float, float]:
        """Return the first and the last stored value of a column with values."""
        values = self.values(source)
        return float(values[0]), float(values[-1])

    def values(self, source: Source) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the stored values of a column, without missing ones."""
        series = self.tables.get(source.table)
        values = np.empty(0) if series is None else series.values(source.column)
        missing = np.isnan(values)
        return values[~missing] if missing.any() else values

    @cached_property
    def capacity(self) -> Capacity:
        """Return the CPUs and tasks of the job on this host, as far as known."""
        series = self.tables.get(CGROUP_TABLE)
        found = Capacity() if series is None else of_job(series)
        return found._replace(cpus=self.node_cpus) if np.isnan(found.cpus) else found

    @property
    @_kept
    def counted_since(self) -> float | None:
        """Return the time at which the job's counters were 0; None if only their growth counts."""
        if not self.whole:
            return None
        if self.began is not None:
            return float(self.began)
        # it began after the last sample without it: estimated from the distance of its first two samples
        firsts = [series.seconds[:2] for series in self.tables.values()]
        return self.first - 2.0 * max([int(times[-1] - times[0]) for times in firsts])

    @_kept
    def sum_of(self, source: Source) -> Growth | None:
        """Return the growth of a counter, and its impossible part; None if it is missing."""
        series = self.tables.get(source.table)
        if series is None:
            return None
        table, column = source.table, source.column
        bound = float(ceiling(table, column, self.capacity))
        if column in series.columns and len(series) >= (1 if self.whole else 2):
            how = bound, self.counted_since, is_late(table, column)
            steady = steady_growth(series.times, series.columns[column], source.factor, *how)
            if steady is not None:
                return Growth(steady, 0)
        values = series.values(column) * source.factor
        found = summed(series.times, values, bound, self.counted_since, is_late(table, column))
        return Growth(found.total, found.left_out) if len(found.times) >= (1 if self.whole else 2) else None

    def growth(self, measure: Measure) -> Growth | None:
        """Return the growth of the first source with values, or the largest one; None if all are missing."""
        found = (one for one in map(self.sum_of, measure.sources) if one is not None)
        return max(found, default=None) if measure.is_largest else next(found, None)

    def total(self, measure: Measure) -> Number:
        """Return the growth of the first source with values; None if all are missing."""
        found = self.growth(measure)
        return None if found is None else found.total

    @_kept
    def most(self, measure: Measure) -> Number:
        """Return the largest value of the first source with values."""
        found = (self.values(source) * source.factor for source in measure.sources)
        return next((float(values.max()) for values in found if len(values)), None)

    @_kept
    def latest(self, measure: Measure) -> Number:
        """Return the value of the last row of the first source with one there."""
        for source in measure.sources:
            series = self.tables.get(source.table)
            value = math.nan if series is None else float(series.tail(1).values(source.column)[0])
            if not math.isnan(value):
                return value * source.factor
        return None

    @_kept
    def kernel_peak(self, measure: Measure) -> Number:
        """Return a peak kept by the kernel; None if the job reached it before the interval."""
        values = self.values(measure.best)
        return float(values.max()) if len(values) and (self.whole or values.max() > values[0]) else None

    @property
    def _cpu(self) -> Growth | None:
        return self.growth(CPU_USED)

    @property
    def cpu_s(self) -> Number:
        """Return the CPU time in seconds; None if unknown."""
        return None if self._cpu is None else self._cpu.total

    @property
    def cpu_left_out(self) -> bool:
        """Return whether there are rows with impossible CPU time."""
        return self._cpu is not None and self._cpu.left_out > 0

    @property
    @_kept
    def cpus(self) -> Number:
        """Return the number of CPUs the job may run on."""
        for source in measures.CPUS.sources:
            values = self.values(source)
            if len(values):
                return float(values.mean())
        return None

    @property
    def memory_peak(self) -> Number:
        """Return the largest memory at one time: the kernel's own figure, else the largest sample."""
        return first_of(self.kernel_peak(measures.MEMORY_PEAK), self.most(MEMORY))

    @property
    def memory_source(self) -> str:
        """Return the origin of the memory, one of `ORIGINS`; empty if it was not measured."""
        if self.kernel_peak(measures.MEMORY_PEAK) is not None:
            return CGROUP
        return next((one.origin for one in MEMORY.sources if self.count(one)), "")

    @property
    def tasks_peak(self) -> Number:
        """Return the largest number of tasks at one time: the kernel's own figure, else the largest sample."""
        return first_of(self.kernel_peak(measures.TASKS_PEAK), self.most(measures.TASKS_NOW))

    @property
    @_kept
    def memory_limit(self) -> Number:
        """Return the limit of the job's memory; None without one."""
        values = self.values(measures.MEMORY_LIMIT.best)
        return float(values[-1]) if len(values) else None

    @property
    @_kept
    def user(self) -> str:
        """Return the user of the job; empty if unknown."""
        series = self.tables.get(CGROUP_TABLE)
        names = np.empty(0, "S1") if series is None else labels(series, "user")
        return next((text_of(name) for name in names[names != b""][-1:].tolist()), "")


def labels(series: Series, name: str) -> np.ndarray[tuple[int], np.dtype[np.bytes_]]:
    """Return a column of text; empty texts without such a column."""
    column = series.columns.get(name)
    if column is None or column.dtype.kind != "S":
        return np.zeros(len(series), "S1")
    return column


def text_of(value: object) -> str:
    """Return a label as printable text."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def first_of(*values: Number) -> Number:
    """Return the first known value."""
    return next((value for value in values if value is not None), None)


def added(values: Iterable[Number]) -> Number:
    """Return the sum of the known values; None without any."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


def largest(values: Iterable[Number]) -> Number:
    """Return the largest known value."""
    return max([value for value in values if value is not None], default=None)


class Outline(NamedTuple):
    """The times of a job's rows on all hosts, seconds since 1970."""

    first: int  # the first row
    start: int  # the start of the figures, on the first host
    earliest_last: int  # the last row on the host with the earliest
    last: int  # the last row
    period_s: Number  # the longest between samples


class JobRows(GroupedRows):
    """The rows of a job and of its nodes, a group of hosts at a time: their memory is bounded.

    Args:
        history: the store.
        asked: the job and the interval.
        columns: columns of the job's tables, by table; of other tables only the times are read.
    """

    def __init__(self, history: History, asked: JobInterval, columns: Mapping[str, Sequence[str]]) -> None:
        super().__init__(history)
        self.job = asked.job
        self._asked = asked
        self._is_bounded = CGROUP_TABLE in columns  # whether the CPUs are of interest
        tables = history.tables(asked.job)

        def columns_of_table(table: str) -> Sequence[str]:
            wanted = (*columns[table], *RUN_COLUMNS) if table in columns else ()
            return [column for column in wanted if column in tables[table]]

        self._tables = {
            table: self.rows(RowQuery(asked.job, table, columns_of_table(table), asked.since, asked.until))
            for table in sorted(tables)
        }
        self._groups = groups_of([(rows, len(columns.get(table, ()))) for table, rows in self._tables.items()])
        self.hosts = [host for group in self._groups for host in group]

    @cached_property
    def outline(self) -> Outline | None:
        """Return the times of the job; None without rows."""
        stays = [
            (stay.first, stay.start, stay.last, stay.period_s)
            for hosts in self._groups
            for stay in self._read(hosts, OUTLINE_COLUMNS)
        ]
        if not stays:
            return None
        firsts, starts, lasts, periods = zip(*stays)
        return Outline(min(firsts), min(starts), min(lasts), max(lasts), largest(periods))

    def groups(self) -> Iterator[list[Stay]]:
        """Yield the rows of groups of hosts, sorted by host; a database may have lost those of some."""
        for done, hosts in enumerate(self._groups):
            stays = [self._with_cpus(stay) for stay in self._read(hosts)]
            if stays:
                yield stays
            self.progress("compute", (done + 1) / len(self._groups))

    def _read(self, hosts: Sequence[str], columns: Mapping[str, Sequence[str]] | None = None) -> list[Stay]:
        """Return the rows of some hosts, with these columns, all by default."""
        found: dict[str, dict[str, Series]] = {}
        for table, rows in self._tables.items():
            wanted = None if columns is None else columns.get(table, ())
            for series in rows.read(hosts, wanted):
                if len(series):
                    found.setdefault(series.host, {})[table] = series
        return [Stay(host, found[host], self._asked.since) for host in sorted(found)]

    def _with_cpus(self, stay: Stay) -> Stay:
        """Return a stay, with the CPUs of its node if those of the job are unknown."""
        if not self._is_bounded or not np.isnan(stay.capacity.cpus):
            return stay
        table, column = NODE_CPUS
        if self.outline is None:
            return stay
        read = self.read(RowQuery(NODE, table, [column], self.outline.first, self.outline.last, [stay.host]))
        return replace(stay, node_cpus=next((most_of(series.values(column)) for series in read), math.nan))
