"""The fold of stored rows: all rows of a job on a host at once, with the steps that the fold of live rows makes.

Rows that come one after the other are known together here, so their growth is computed on whole columns: a report of a
day needs milliseconds. Runs are separated before, see `colmet.stored.runs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common.growth import summed
from colmet.common.lines import text_of
from colmet.common.measures import CGROUP_TABLE, CPU_UNATTRIBUTED, JOB_GPUS, MEMORY_PEAK, TASKS_PEAK
from colmet.common.schema import MISSING_INT
from colmet.jobs import fold_layout as layout
from colmet.jobs.fold import CPU_COUNTERS, Fold, columns_read
from colmet.jobs.fold_layout import JOB_TABLES, LAYOUTS, Floats, Ints, TableLayout, whole_numbers
from colmet.jobs.fold_state import (
    BEGAN,
    C_LEFT,
    FIRST,
    HOST,
    JOB,
    LAST,
    MOST_CPUS,
    MOST_TASKS,
    NODE_CPUS,
    START,
    T_ROWS,
    T_TIME,
    USER,
)
from colmet.jobs.fold_steps import counters_in_order, gauges_in_order, most_growth, with_busy
from colmet.stored.job_rows import HostJob, labels
from colmet.stored.series import Series

AT_ONCE = 20_000  # rows
_PEAKS = [measure.best for measure in (MEMORY_PEAK, TASKS_PEAK)]  # since the start of the job
COLUMNS = {table: columns for table, columns in columns_read().items() if table in JOB_TABLES}


class CpuTime(NamedTuple):
    """Cumulative CPU time at several times, seconds; never decreasing."""

    times: Floats  # seconds since 1970, ascending
    cpu_s: Floats

    def within(self, starts: Floats, ends: Floats) -> Floats:
        """Return the CPU time used in each step; 0 before the first time and after the last."""
        return np.asarray(np.interp(ends, self.times, self.cpu_s) - np.interp(starts, self.times, self.cpu_s))


class StoredFold:
    """Folds of stored rows.

    Attributes:
        fold: the state.
        slots: of the hosts of the job.
    """

    def __init__(self) -> None:
        self.fold = Fold()
        self.slots: list[int] = []

    def add(self, job: int, stored: HostJob, node_cpus: float) -> tuple[int, CpuTime | None]:
        """Fold the rows of a job on a host; return its slot, and its CPU time if that is known.

        Args:
            job: its number.
            stored: the rows.
            node_cpus: CPUs of the host; NaN if unknown.
        """
        rows = stored.by_first_clock()
        slot = self._take(job, rows.host, rows.first, rows.start, node_cpus)
        self.slots.append(slot)
        head = self.fold.state.head[slot]
        head[LAST] = rows.last
        head[BEGAN] = 0 if rows.began is None else rows.began if rows.is_whole else -rows.began
        parts = {
            name: _values(LAYOUTS[name], rows.tables[name], rows.is_whole) for name in JOB_TABLES if name in rows.tables
        }
        if CGROUP_TABLE in parts:
            table = LAYOUTS[CGROUP_TABLE]
            cpus, now, peak = [parts[CGROUP_TABLE][:, len(table.counters) + place] for place in table.capacity()]
            users = labels(rows.tables[CGROUP_TABLE], "user")
            for user in users[users != b""][-1:].tolist():
                head[USER] = self.fold.state.user(text_of(user))
            head[MOST_CPUS], head[MOST_TASKS] = cpus.max(), np.maximum(now, peak).max()
        used = None
        for name, values in parts.items():
            places = [place for table, place, _ in CPU_COUNTERS if table == name and (values[:, place] >= 0).any()]
            place, start = places[0] if places else 0, rows.start if rows.is_whole else None
            grown = self._table(slot, LAYOUTS[name], rows.tables[name], values, rows.is_whole, place)
            if places and used is None:  # the tables are in the order of the sources of CPU time
                used = cpu_time(rows.tables[name].times, grown * LAYOUTS[name].factors[place], start)
        return slot, used

    def add_of_node(self, slot: int, series: Series) -> None:
        """Fold the counters of a node, such as those of its network, in the rows between a job's first and last one."""
        table, head = LAYOUTS[series.table], self.fold.state.head[slot]
        part = series.within(int(head[START]), int(head[LAST]))
        if len(part):
            values = _values(table, part, True)
            self._repair(slot, table, part.times, values, False)
            counters_in_order(self.fold.state, table, slot, part.times, values)

    def cpu_of_other(
        self, series: Series, column: str, factor: float, start: float | None, node_cpus: float
    ) -> CpuTime:
        """Return the CPU time of another job by one counter, which was 0 at `start`; None if it had begun before."""
        first = int(series.times[0])
        slot = self._take(series.job, series.host, first, first if start is None else int(start), node_cpus)
        state, table = self.fold.state, LAYOUTS[series.table]
        state.head[slot, LAST] = int(series.times[-1])
        state.head[slot, BEGAN] = 0 if start is None else int(start)
        place = table.counters.index(column)
        grown = self._table(slot, table, series, _values(table, series, True), start is not None, place)
        state.release([slot])
        return cpu_time(series.times, grown * factor, start)

    def _take(self, job: int, host: str, first: int, start: int, node_cpus: float) -> int:
        state = self.fold.state
        slot = state.take()
        head = state.head[slot]
        head[[JOB, HOST, FIRST, START]] = job, self.fold.nodes.index(host), first, start
        head[NODE_CPUS] = MISSING_INT if np.isnan(node_cpus) else int(node_cpus)
        return slot

    def _table(self, slot: int, table: TableLayout, series: Series, values: Ints, is_whole: bool, place: int) -> Ints:
        """Fold the rows of one table; return the growth of one of its counters in each."""
        state, times = self.fold.state, series.times
        self._repair(slot, table, times, values, is_whole)
        head, counted = state.head[slot], state.tables[table.name][slot]
        since = np.diff(times, prepend=head[START] if head[BEGAN] > 0 else times[0])
        of_counters, of_gauges = slice(0, len(table.counters)), slice(len(table.counters), len(table.names))
        grown = []
        for at in range(0, len(times), AT_ONCE):
            rows = slice(at, at + AT_ONCE)
            if table.gauges:
                gauges_in_order(table, state.gauges[table.name][slot], since[rows], values[rows, of_gauges])
            grown.append(counters_in_order(state, table, slot, times[rows], values[rows, of_counters], is_whole, place))
        counted[T_ROWS], counted[T_TIME] = len(series.seconds), int(times[-1])
        return np.concatenate(grown)

    def _repair(self, slot: int, table: TableLayout, times: Ints, values: Ints, is_whole: bool) -> None:
        """Replace the values of counters that fall by their growth so far, see `colmet.common.growth.summed`."""
        counters, head = values[:, : len(table.counters)], self.fold.state.head[[slot]]
        for column in np.flatnonzero((counters[1:] < counters[:-1]).any(axis=0)).tolist():
            stored = counters[:, column]
            if not ((stored >= 0) & (stored < np.maximum.accumulate(stored))).any():
                continue  # some values are missing
            kind = next((kind for kind, where in table.groups if where.start <= column < where.stop), layout.FREE)
            most = math.inf if kind == layout.FREE else float(most_growth(kind, head)[0])
            is_late, factor = kind in (layout.TASKS, layout.WAIT), float(table.factors[column])
            read = np.where(stored >= 0, stored * factor, np.nan)
            since = (float(head[0, START]) if head[0, BEGAN] > 0 else -math.inf) if is_whole else None
            found = summed(times, read, most, since, is_late)
            counters[:, column] = MISSING_INT
            counters[np.searchsorted(times, found.times), column] = np.rint(found.values / factor).astype(np.int64)
            self.fold.state.counters[table.name][slot, C_LEFT, column] += found.left_out


def cpu_time(times: Ints, grown_s: npt.NDArray[np.floating[Any]], start: float | None) -> CpuTime:
    """Return the cumulative CPU time from its growth in each row; it was 0 at `start`, if that is known."""
    at, cpu_s = times.astype(np.float64), np.cumsum(grown_s, dtype=np.float64)
    if start is not None and start < at[0]:
        at, cpu_s = np.insert(at, 0, start), np.insert(cpu_s, 0, 0.0)
    return CpuTime(at, cpu_s)


def _values(table: TableLayout, series: Series, is_whole: bool) -> Ints:
    """Return the columns of a table as whole numbers, shape (n, columns); see `TableLayout.names`."""
    names: Sequence[str] = [name for name in table.names if name != layout.GPU_BUSY]
    nothing = np.full(len(series), MISSING_INT, np.int64)
    columns = [whole_numbers(series.columns[name]) if name in series.columns else nothing for name in names]
    values = np.array(columns).T  # columns are contiguous: each is read as a whole
    _sort_in_seconds(series.times, values[:, : len(table.counters)])
    if not is_whole:
        for source in _PEAKS:  # what was reached before says nothing of the interval
            if source.table == table.name:
                column = values[:, names.index(source.column)]
                column[column <= _first(column)] = MISSING_INT
        if CPU_UNATTRIBUTED.best.table == table.name:
            column = values[:, names.index(CPU_UNATTRIBUTED.best.column)]
            at = np.flatnonzero(column >= 0)
            column[at] = np.maximum(column[at] - _first(column), 0)
            column[at[:1]] = MISSING_INT
    return with_busy(values) if table.name == JOB_GPUS else values


def _first(column: Ints) -> int:
    known = column[column >= 0]
    return int(known[0]) if len(known) else MISSING_INT


def _sort_in_seconds(times: Ints, counters: Ints) -> None:
    """Sort the values of counters in rows of one second: stores need not keep the order of these."""
    starts = np.flatnonzero(np.append(True, times[1:] != times[:-1]))
    if len(starts) == len(times):
        return
    for first, end in zip(starts.tolist(), [*starts[1:].tolist(), len(times)]):
        if end - first > 1:
            counters[first:end] = np.sort(counters[first:end], axis=0)
