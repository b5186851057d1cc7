"""The stored rows of a job: of each host all its tables, a group of hosts at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from colmet.common.measures import START, Source, columns_of
from colmet.common.tables import RUN, UPTIME
from colmet.stored.gap_finder import cadence_s
from colmet.stored.series import GroupedRows, History, RowQuery, Series, groups_of

OLDEST_S = 400 * 86400  # an older start is not believed
STEP_S = 3  # a clock that was set by less changes no figure
OUTLINE_COLUMNS = columns_of([START])
RUN_COLUMNS = (RUN, UPTIME)  # of tables that have them


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
        history: the store.
        asked: the job and the interval.
        columns: columns of the job's tables, by table; of other tables only the times are read.
    """

    def __init__(self, history: History, asked: JobInterval, columns: Mapping[str, Sequence[str]]) -> None:
        super().__init__(history)
        self.job = asked.job
        self._asked = asked
        tables = history.tables(asked.job)

        def columns_of_table(table: str) -> Sequence[str]:
            wanted = dict.fromkeys((*columns[table], *RUN_COLUMNS)) if table in columns else ()
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
        """Return the rows of some hosts, with these columns, all by default."""
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
