"""The rows of a job, host by host, and their totals, peaks and latest values.

A counter of a job is a total since its beginning, so its last value is the job's use. If a counter decreases all the
same (an agent lost its state), its growth from there on is added; impossible growth is dropped
(`colmet.common.growth`). Units of columns: docs/metrics.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Optional

import numpy as np

from colmet.common import measures
from colmet.common.growth import NODE_CPUS, Capacity, Sum, ceiling, is_late, summed
from colmet.common.growth import largest as most_of
from colmet.common.measures import CGROUP, CGROUP_TABLE, CPU_USED, MEMORY, Measure, Source
from colmet.stored.capacity import of_job
from colmet.stored.gap_finder import cadence_s
from colmet.stored.series import NODE, History, Series, of_one_agent

Number = Optional[float]  # None: unknown
OLDEST_S = 400 * 86400  # an older start is not believed


class JobInterval(NamedTuple):
    """A job and an interval: seconds since 1970, both ends included; None for no bound."""

    job: int
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True)
class Stay:
    """The rows of a job on one host, by table."""

    host: str  # its name
    tables: Mapping[str, Series]  # with at least one row each
    since: int | None = None  # start of the interval; None for all of the job
    node_cpus: float = math.nan  # CPUs of the host, for a job with an unknown number of its own

    @property
    def first(self) -> int:
        """Return the time of the first row."""
        return min(int(series.times[0]) for series in self.tables.values())

    @property
    def last(self) -> int:
        """Return the time of the last row."""
        return max(int(series.times[-1]) for series in self.tables.values())

    @property
    def samples(self) -> int:
        """Return the largest number of sample times of a table."""
        return max(len(np.unique(series.times)) for series in self.tables.values())

    @property
    def period_s(self) -> Number:
        """Return the median of the seconds between samples; None for too few samples."""
        period = max(cadence_s(np.unique(series.times), 0) for series in self.tables.values())
        return period or None

    @property
    def began(self) -> int | None:
        """Return the start of the job's first task; None if unknown."""
        times = self.values(measures.START.best)
        times = times[times > self.first - OLDEST_S]
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

    def values(self, source: Source) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the stored values of a column, without missing ones."""
        series = self.tables.get(source.table)
        values = np.empty(0) if series is None else series.values(source.column)
        return values[~np.isnan(values)]

    @cached_property
    def capacity(self) -> Capacity:
        """Return the CPUs and tasks of the job on this host, as far as known."""
        series = self.tables.get(CGROUP_TABLE)
        found = Capacity() if series is None else of_job(series)
        return found._replace(cpus=self.node_cpus) if np.isnan(found.cpus) else found

    @property
    def counted_since(self) -> float | None:
        """Return the time at which the job's counters were 0; None if only their growth counts."""
        if not self.whole:
            return None
        if self.began is not None:
            return float(self.began)
        # it began after the last sample without it: estimated from the distance of its first two samples
        firsts = [np.unique(series.times)[:2] for series in self.tables.values()]
        return self.first - 2.0 * max([int(times[-1] - times[0]) for times in firsts])

    def sum_of(self, source: Source) -> Sum | None:
        """Return the growth of a counter, and its impossible part; None if it is missing."""
        series = self.tables.get(source.table)
        if series is None:
            return None
        table, column = source.table, source.column
        bound = float(ceiling(table, column, self.capacity))
        values = series.values(column) * source.factor
        found = summed(series.times, values, bound, self.counted_since, is_late(table, column))
        return found if len(found.times) >= (1 if self.whole else 2) else None

    def growth(self, measure: Measure) -> Sum | None:
        """Return the growth of the first source with values; None if all are missing."""
        found = (self.sum_of(source) for source in measure.sources)
        return next((one for one in found if one is not None), None)

    def total(self, measure: Measure) -> Number:
        """Return the growth of the first source with values; None if all are missing."""
        found = self.growth(measure)
        return None if found is None else found.total

    def most(self, measure: Measure) -> Number:
        """Return the largest value of the first source with values."""
        found = (self.values(source) * source.factor for source in measure.sources)
        return next((float(values.max()) for values in found if len(values)), None)

    def latest(self, measure: Measure) -> Number:
        """Return the value of the last row of the first source with one there."""
        for source in measure.sources:
            series = self.tables.get(source.table)
            value = math.nan if series is None else float(series.values(source.column)[-1])
            if not math.isnan(value):
                return value * source.factor
        return None

    def kernel_peak(self, measure: Measure) -> Number:
        """Return a peak kept by the kernel; None if the job reached it before the interval."""
        values = self.values(measure.best)
        return float(values.max()) if len(values) and (self.whole or values.max() > values[0]) else None

    @cached_property
    def _cpu(self) -> Sum | None:
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
    def cpus(self) -> Number:
        """Return the number of CPUs the job may run on."""
        values = self.values(measures.CPUS.best)
        return float(values.mean()) if len(values) else None

    @property
    def memory_peak(self) -> Number:
        """Return the largest memory at one time: the kernel's own figure, else the largest sample."""
        return first_of(self.kernel_peak(measures.MEMORY_PEAK), self.most(MEMORY))

    @property
    def memory_source(self) -> str:
        """Return the origin of the memory, one of `ORIGINS`; empty if it was not measured."""
        if self.kernel_peak(measures.MEMORY_PEAK) is not None:
            return CGROUP
        return next((one.origin for one in MEMORY.sources if len(self.values(one))), "")

    @property
    def tasks_peak(self) -> Number:
        """Return the largest number of tasks at one time: the kernel's own figure, else the largest sample."""
        return first_of(self.kernel_peak(measures.TASKS_PEAK), self.most(measures.TASKS_NOW))

    @property
    def memory_limit(self) -> Number:
        """Return the limit of the job's memory; None without one."""
        values = self.values(measures.MEMORY_LIMIT.best)
        return float(values[-1]) if len(values) else None

    @property
    def user(self) -> str:
        """Return the user of the job; empty if unknown."""
        series = self.tables.get(CGROUP_TABLE)
        names = [] if series is None else labels(series, "user").tolist()
        return next((text_of(name) for name in reversed(names) if name), "")


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


def read_stays(history: History, asked: JobInterval, columns: Mapping[str, Sequence[str]]) -> list[Stay]:
    """Return the rows of a job by host, with these columns of its tables; of other tables only the times."""
    found: dict[str, dict[str, Series]] = {}
    tables = history.tables(asked.job)
    for table in sorted(tables):
        wanted = [column for column in columns.get(table, ()) if column in tables[table]]
        for series in of_one_agent(history.read(asked.job, table, wanted, asked.since, asked.until)):
            if len(series):
                found.setdefault(series.host, {})[table] = series
    stays = [Stay(host, found[host], asked.since) for host in sorted(found)]
    unsure = [stay.host for stay in stays if np.isnan(stay.capacity.cpus)]
    if unsure:
        first, last = min(stay.first for stay in stays), max(stay.last for stay in stays)
        table, column = NODE_CPUS
        read = history.read(NODE, table, [column], first, last, unsure)
        cpus = {series.host: most_of(series.values(column)) for series in read}
        stays = [replace(stay, node_cpus=cpus.get(stay.host, math.nan)) for stay in stays]
    return stays
