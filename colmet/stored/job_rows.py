"""The stored rows of a job: of each host all its tables, a group of hosts at a time; and its runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from colmet.common.measures import START, Source, columns_of
from colmet.common.tables import RUN, UPTIME
from colmet.stored.gap_finder import cadence_s
from colmet.stored.series import GroupedRows, History, RowQuery, Series, each_series, groups_of

OLDEST_S = 400 * 86400  # an older start is not believed
STEP_S = 3  # a clock that was set by less changes no figure
OUTLINE_COLUMNS = columns_of([START])
RUN_COLUMNS = (RUN, UPTIME)  # of tables that have them
START_COLUMN = START.best.column
APART_S = 600  # hosts that begin so long after the end of all others are of another job, as in the archive


class JobInterval(NamedTuple):
    """A job and an interval: seconds since 1970, both ends included; None for no bound."""

    job: int
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True)
class HostJob:
    """The rows of a job on one host, by table."""

    host: str  # its name
    tables: Mapping[str, Series]  # with at least one row each
    since: int | None = None  # start of the interval; None for all of the job
    is_clock_set: bool = False  # whether its clock was set between the rows, see `by_first_clock`

    def by_first_clock(self) -> HostJob:
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
        return replace(self, tables=tables, is_clock_set=True)

    @cached_property
    def first(self) -> int:
        """Return the time of the first row."""
        return min(int(series.times[0]) for series in self.tables.values())

    @cached_property
    def last(self) -> int:
        """Return the time of the last row."""
        return max(int(series.times[-1]) for series in self.tables.values())

    @property
    def longest(self) -> str:
        """Return the table with most rows."""
        return max(self.tables, key=lambda name: len(self.tables[name]))

    @cached_property
    def period_s(self) -> float | None:
        """Return the median of the seconds between samples; None for too few samples."""
        period = max(cadence_s(series.seconds, 0) for series in self.tables.values())
        return period or None

    @cached_property
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
        return self.began if self.began is not None and self.is_whole else self.first

    @property
    def is_whole(self) -> bool:
        """Return whether the figures cover the job from its start, so that the first value counts as well."""
        return self.since is None or (self.began is not None and self.began >= self.since)

    def values(self, source: Source) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the stored values of a column, without missing ones."""
        series = self.tables.get(source.table)
        values = np.empty(0) if series is None else series.values(source.column)
        missing = np.isnan(values)
        return values[~missing] if missing.any() else values


class Outline(NamedTuple):
    """The times of a job's rows on all hosts, seconds since 1970."""

    first: int  # the first row
    start: int  # the start of the figures, on the first host
    earliest_last: int  # the last row on the host with the earliest
    last: int  # the last row
    period_s: float | None  # the longest between samples


class JobRows(GroupedRows):
    """The rows of a job and of its nodes, a group of hosts at a time: their memory is bounded.

    Args:
        columns: columns of the job's tables, by table; of other tables only the times are read.
    """

    def __init__(self, history: History, asked: JobInterval, columns: Mapping[str, Sequence[str]]) -> None:
        super().__init__(history)
        self.job = asked.job
        self._asked = asked
        tables = history.tables(asked.job)
        self._tables = {}
        for table in sorted(tables):
            wanted = dict.fromkeys((*columns[table], *RUN_COLUMNS)) if table in columns else ()
            names = [column for column in wanted if column in tables[table]]
            self._tables[table] = self.rows(RowQuery(asked.job, table, names, asked.since, asked.until))
        self._groups = groups_of([(rows, len(columns.get(table, ()))) for table, rows in self._tables.items()])
        self.hosts = [host for group in self._groups for host in group]

    @cached_property
    def outline(self) -> Outline | None:
        """Return the times of the job; None without rows."""
        hosts = [host for group in self._groups for host in self._read(group, OUTLINE_COLUMNS)]
        if not hosts:
            return None
        periods = [host.period_s for host in hosts if host.period_s is not None]
        return Outline(
            first=min(host.first for host in hosts),
            start=min(host.start for host in hosts),
            earliest_last=min(host.last for host in hosts),
            last=max(host.last for host in hosts),
            period_s=max(periods, default=None),
        )

    def groups(self) -> Iterator[list[HostJob]]:
        """Yield the rows of groups of hosts, sorted by host; a database may have lost those of some."""
        for done, group in enumerate(self._groups):
            hosts = self._read(group)
            if hosts:
                yield hosts
            self.progress("compute", (done + 1) / len(self._groups))

    def _read(self, group: Sequence[str], columns: Mapping[str, Sequence[str]] | None = None) -> list[HostJob]:
        found: dict[str, dict[str, Series]] = {}
        for table, rows in self._tables.items():
            wanted = None if columns is None else columns.get(table, ())
            for series in rows.read(group, wanted):
                if len(series):
                    found.setdefault(series.host, {})[table] = series
        return [HostJob(host, found[host], self._asked.since) for host in sorted(found)]


def labels(series: Series, name: str) -> np.ndarray[tuple[int], np.dtype[np.bytes_]]:
    """Return a column of text; empty texts without such a column."""
    column = series.columns.get(name)
    if column is None or column.dtype.kind != "S":
        return np.zeros(len(series), "S1")
    return column


class StoredRun(NamedTuple):
    """A run of a job on a host; times in seconds since 1970."""

    start: int  # of its first task if that is known, else its first row
    host: str
    number: int  # see `colmet.common.tables`
    first: int  # its first row
    last: int


def stored_runs(history: History, job: int) -> list[StoredRun]:
    """Return the runs of a job with numbers, by start; none in rows of older nodes."""
    found: dict[tuple[str, int], StoredRun] = {}
    for table, columns in history.tables(job).items():
        if RUN in columns:
            wanted = [column for column in (RUN, START_COLUMN) if column in columns]
            for series in each_series(history, RowQuery(job, table, wanted)):
                for run in _runs_of(series):
                    other = found.get((run.host, run.number), run)
                    merged = (min(run.start, other.start), *run[1:3], min(run.first, other.first))
                    found[run.host, run.number] = StoredRun(*merged, max(run.last, other.last))
    runs: list[StoredRun] = []
    for run in sorted(found.values(), key=lambda one: (one.host, one.first, one.last)):
        if runs and runs[-1].host == run.host:  # two runs of one second have two starts, as in the archive
            run = run._replace(start=max(run.start, runs[-1].start + 1))
        runs.append(run)
    return sorted(runs)


def _runs_of(series: Series) -> list[StoredRun]:
    numbers = series.columns.get(RUN)
    if numbers is None or numbers.dtype.kind != "i" or not (numbers > 0).any():
        return []
    starts = series.values(START_COLUMN)
    found = []
    for number in np.unique(numbers[numbers > 0]).tolist():
        rows = np.flatnonzero(numbers == number)
        first, last = int(series.times[rows].min()), int(series.times[rows].max())
        start = starts[rows[0]]
        found.append(StoredRun(int(start) if 0 < start <= first else first, series.host, number, first, last))
    return found


def jobs_of(runs: Iterable[StoredRun]) -> list[list[StoredRun]]:
    """Return runs by jobs, one after the other: each host is in a job once."""
    jobs: list[list[StoredRun]] = []
    for run in sorted(runs):
        now = jobs[-1] if jobs else []
        if not now or run.host in [one.host for one in now] or run.start > max(one.last for one in now) + APART_S:
            jobs.append([run])
        else:
            now.append(run)
    return jobs
