"""The fold of stored rows: all rows of a job on a host at once, with the steps that the fold of live rows makes.

Rows that come one after the other are known together here, so their growth is computed on whole columns: a report of a
day needs milliseconds. Runs are separated before, see `colmet.stored.job_rows`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common import measures
from colmet.common.growth import MOST_WATTS, grown, summed
from colmet.common.lines import text_of
from colmet.common.measures import CGROUP_TABLE, CPU_UNATTRIBUTED, JOB_GPUS, MEMORY_PEAK, TASKS_PEAK, Measure
from colmet.common.schema import MISSING_INT
from colmet.jobs import fold_layout as layout
from colmet.jobs.figures import GpuUse, Number
from colmet.jobs.fold import CPU_COUNTERS, Fold, columns_read
from colmet.jobs.fold_layout import JOB_TABLES, LAYOUTS, Floats, Ints, TableLayout, whole_numbers
from colmet.jobs.fold_nodes import LONGEST_PERIODS
from colmet.jobs.fold_state import Count, Head, Rows
from colmet.jobs.fold_steps import counters_in_order, gauges_in_order, most_growth, with_busy
from colmet.stored.gap_finder import cadence_s
from colmet.stored.job_rows import HostJob, JobRows, Outline, labels
from colmet.stored.series import NODE, RowQuery, Series

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


@dataclass(eq=False)
class StoredFold:
    """Folds of stored rows."""

    fold: Fold = field(default_factory=Fold)  # the state
    slots: dict[str, int] = field(default_factory=dict)  # of the job, by host

    def add(self, job: int, stored: HostJob, node_cpus: float) -> CpuTime | None:
        """Fold the rows of a job on a host; return its CPU time if that is known."""
        rows = stored.by_first_clock()
        slot = self._take(job, rows.host, rows.first, rows.start, node_cpus)
        self.slots[rows.host] = slot
        head = self.fold.state.head[slot]
        head[Head.LAST] = rows.last
        head[Head.BEGAN] = 0 if rows.began is None else rows.began if rows.is_whole else -rows.began
        parts = {
            name: _values(LAYOUTS[name], rows.tables[name], rows.is_whole) for name in JOB_TABLES if name in rows.tables
        }
        if CGROUP_TABLE in parts:
            table = LAYOUTS[CGROUP_TABLE]
            cpus, now, peak = [parts[CGROUP_TABLE][:, len(table.counters) + place] for place in table.capacity()]
            users = labels(rows.tables[CGROUP_TABLE], "user")
            for user in users[users != b""][-1:].tolist():
                head[Head.USER] = self.fold.state.user(text_of(user))
            head[Head.MOST_CPUS], head[Head.MOST_TASKS] = cpus.max(), np.maximum(now, peak).max()
        used = None
        for name, values in parts.items():
            places = [place for table, place, _ in CPU_COUNTERS if table == name and (values[:, place] >= 0).any()]
            place, start = places[0] if places else 0, rows.start if rows.is_whole else None
            grown = self._table(slot, LAYOUTS[name], rows.tables[name], values, rows.is_whole, place)
            if places and used is None:  # the tables are in the order of the sources of CPU time
                used = cpu_time(rows.tables[name].times, grown * LAYOUTS[name].factors[place], start)
        return used

    def add_of_node(self, slot: int, series: Series) -> None:
        """Fold the counters of a node, such as those of its network, in the rows between a job's first and last one."""
        table, head = LAYOUTS[series.table], self.fold.state.head[slot]
        part = series.within(int(head[Head.START]), int(head[Head.LAST]))
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
        state.head[slot, Head.LAST] = int(series.times[-1])
        state.head[slot, Head.BEGAN] = 0 if start is None else int(start)
        place = table.counters.index(column)
        grown = self._table(slot, table, series, _values(table, series, True), start is not None, place)
        state.release([slot])
        return cpu_time(series.times, grown * factor, start)

    def _take(self, job: int, host: str, first: int, start: int, node_cpus: float) -> int:
        state = self.fold.state
        slot = state.take()
        head = state.head[slot]
        head[[Head.JOB, Head.HOST, Head.FIRST, Head.START]] = job, self.fold.nodes.index(host), first, start
        head[Head.NODE_CPUS] = MISSING_INT if np.isnan(node_cpus) else int(node_cpus)
        return slot

    def _table(self, slot: int, table: TableLayout, series: Series, values: Ints, is_whole: bool, place: int) -> Ints:
        """Fold the rows of one table; return the growth of one of its counters in each."""
        state, times = self.fold.state, series.times
        self._repair(slot, table, times, values, is_whole)
        head, counted = state.head[slot], state.tables[table.name][slot]
        since = np.diff(times, prepend=head[Head.START] if head[Head.BEGAN] > 0 else times[0])
        of_counters, of_gauges = slice(0, len(table.counters)), slice(len(table.counters), len(table.names))
        grown = []
        for at in range(0, len(times), AT_ONCE):
            rows = slice(at, at + AT_ONCE)
            if table.gauges:
                gauges_in_order(table, state.gauges[table.name][slot], since[rows], values[rows, of_gauges])
            grown.append(counters_in_order(state, table, slot, times[rows], values[rows, of_counters], is_whole, place))
        counted[Rows.ROWS], counted[Rows.TIME] = len(series.seconds), int(times[-1])
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
            since = (float(head[0, Head.START]) if head[0, Head.BEGAN] > 0 else -math.inf) if is_whole else None
            found = summed(times, read, most, since, is_late)
            counters[:, column] = MISSING_INT
            counters[np.searchsorted(times, found.times), column] = np.rint(found.values / factor).astype(np.int64)
            self.fold.state.counters[table.name][slot, Count.LEFT, column] += found.left_out


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


OF_JOB, OF_NODE, SUMMED = measures.GPUS_OF_JOBS, measures.GPUS, measures.JOB_GPUS
_OF_NODE = (measures.GPU_ENERGY, measures.GPU_POWER, measures.GPU_USE, measures.GPU_MEMORY_TOTAL)
NODE_COLUMNS = ("uuid", "name", "jobs", *measures.columns_of(_OF_NODE)[OF_NODE])
# Columns read from the job's own table, beside those of the fold.
GPU_COLUMNS: Mapping[str, tuple[str, ...]] = {OF_JOB: ("uuid", "processes", measures.GPU_OF_JOB_MEMORY.best.column)}


def gpus_of(
    rows: JobRows, hosts: Sequence[HostJob], tables: Mapping[str, Sequence[str]], span: Outline
) -> list[GpuUse]:
    """Return the job's GPUs on some hosts; `tables` are those of the nodes, with their columns."""
    holding = [stored for stored in hosts if OF_JOB in stored.tables]
    of_node: dict[str, Series] = {}
    wanted = [column for column in NODE_COLUMNS if column in tables.get(OF_NODE, ())]
    if holding and "uuid" in wanted:
        read = rows.read(RowQuery(NODE, OF_NODE, wanted, span.start, span.last, [stored.host for stored in holding]))
        of_node = {series.host: series for series in read}
    found: list[GpuUse] = []
    for stored in hosts:
        if OF_JOB in stored.tables:
            series = stored.tables[OF_JOB]
            uuids = np.unique(labels(series, "uuid")).tolist()
            found += [_gpu(stored, uuid, series, of_node.get(stored.host)) for uuid in uuids]
        elif SUMMED in stored.tables:
            found.append(_summed(stored, stored.tables[SUMMED]))
    return found


def _gpu(stored: HostJob, uuid: bytes, series: Series, of_node: Series | None) -> GpuUse:
    rows = labels(series, "uuid") == uuid
    times, processes = series.times[rows], series.values("processes")[rows]
    steps_s = _steps_s(times)
    gpu = GpuUse(
        stored.host,
        text_of(uuid),
        held_s=float(steps_s.sum()),
        idle_s=None if np.isnan(processes).all() else float(steps_s[processes == 0].sum()),
        memory_peak_bytes=_of_known(np.nanmax, _measured(series, measures.GPU_OF_JOB_MEMORY)[rows]),
    )
    if of_node is None:
        return gpu
    its = labels(of_node, "uuid") == uuid
    held = its & np.isin(of_node.times, times)
    names = labels(of_node, "name")[its].tolist()
    return replace(
        gpu,
        name=text_of(names[-1]) if len(names) else "",
        use_ratio=_of_known(np.nanmean, _measured(of_node, measures.GPU_USE)[held]),
        memory_bytes=_of_known(np.nanmax, _measured(of_node, measures.GPU_MEMORY_TOTAL)[its]),
        energy_joules=_energy(of_node, its, times),
    )


def _energy(of_node: Series, its: npt.NDArray[np.bool_], held: npt.NDArray[np.int64]) -> Number:
    """Return the energy of a GPU between samples of its allocation to the job, divided by the jobs sharing it."""
    at = of_node.times[its]
    energy, watts = [_measured(of_node, one)[its] for one in (measures.GPU_ENERGY, measures.GPU_POWER)]
    order = np.lexsort((energy, at))  # stores need not keep the order of rows of one second
    at, energy, watts = at[order], energy[order], watts[order]
    sharing = np.char.count(labels(of_node, "jobs")[its][order], b",") + 1.0
    seconds = at.astype(np.float64)
    joules = grown(seconds, energy, MOST_WATTS)
    joules = np.where(np.isnan(joules), power_joules(seconds, watts), joules)
    ours = np.isin(at[1:], held) & ~np.isnan(joules)
    return float((joules / sharing[1:])[ours].sum()) if ours.any() else None


def _summed(stored: HostJob, series: Series) -> GpuUse:
    """Return all GPUs of a job as one, for rows without the GPUs' identity."""
    steps_s = _steps_s(series.times)
    gpus, idle = _measured(series, measures.JOB_GPU_COUNT), _measured(series, measures.JOB_GPU_IDLE)
    joules = power_joules(series.times.astype(np.float64), _measured(series, measures.JOB_GPU_POWER))
    return GpuUse(
        stored.host,
        "",
        held_s=float(steps_s.sum()),
        idle_s=None if np.isnan(idle).all() else float(steps_s[(idle > 0) & (idle == gpus)].sum()),
        use_ratio=_of_known(np.nanmean, _measured(series, measures.JOB_GPU_USE)),
        memory_peak_bytes=_of_known(np.nanmax, _measured(series, measures.JOB_GPU_MEMORY)),
        memory_bytes=_of_known(np.nanmax, _measured(series, measures.JOB_GPU_MEMORY_TOTAL)),
        energy_joules=float(np.nansum(joules)) if not np.isnan(joules).all() else None,
    )


def _steps_s(times: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the duration of each sample: since the sample before, at most `LONGEST_PERIODS` periods."""
    period_s = cadence_s(times, 0)
    first_s = min(period_s, float(times[1] - times[0])) if len(times) > 1 else period_s  # shorter in thinned rows
    steps_s = np.diff(times.astype(np.float64), prepend=times[0] - first_s)
    return np.minimum(steps_s, LONGEST_PERIODS * (period_s or np.inf))


def power_joules(times: npt.NDArray[np.float64], watts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the energy of each step between samples of power, from the mean of both; NaN if unknown, as in a gap."""
    steps_s = np.diff(times)
    joules = (watts[:-1] + watts[1:]) / 2 * steps_s
    if len(steps_s):
        joules[(steps_s <= 0) | (steps_s > LONGEST_PERIODS * max(1.0, float(np.median(steps_s))))] = np.nan
    return np.asarray(joules)


def _measured(series: Series, measure: Measure) -> npt.NDArray[np.float64]:
    return series.values(measure.best.column) * measure.best.factor


def _of_known(of: Callable[[Floats], Any], values: Floats) -> Number:
    return None if np.isnan(values).all() else float(of(values))
