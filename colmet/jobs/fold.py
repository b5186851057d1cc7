"""The fold of rows into summaries, a wave at a time: at most one batch of each host.

A wave is folded with vector operations on `colmet.jobs.fold_state`: in a wave each job on a host occurs at most once in
a table. All sums are of whole numbers, so a result does not depend on the division of batches into bursts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import compress

import numpy as np

from colmet.common.measures import CGROUP_TABLE, CPU_USED, JOB_GPUS, MEMORY, TASKS_TABLE, ZONES
from colmet.common.schema import MISSING_INT, Batch, Schema, Table
from colmet.common.tables import RUN as RUN_COLUMN
from colmet.common.tables import UPTIME as UPTIME_COLUMN
from colmet.jobs import fold_layout as layout
from colmet.jobs import footprint
from colmet.jobs.fold_layout import JOB_TABLES, LAYOUTS, Ints, TableLayout, TablePart
from colmet.jobs.fold_nodes import NODE_READS, NodeFolds
from colmet.jobs.fold_state import Count, FoldState, Gauge, Head, Rows, RunOf
from colmet.jobs.fold_steps import counters_step, gauges_step, late_counters, peaks, vote, with_busy
from colmet.jobs.open_jobs import FORMER, NO_RUN, WITH_RUNS, OpenJobs

STEP_S = 3  # a clock that was set by less changes no figure
MOST_READERS = 1000

# Table, place of the counter and factor to nanoseconds of each source of CPU time, the best first.
CPU_COUNTERS = [(s.table, LAYOUTS[s.table].counters.index(s.column), round(s.factor * 1e9)) for s in CPU_USED.sources]
_MEMORY = [(s.table, LAYOUTS[s.table].gauges.index(s.column), round(s.factor)) for s in MEMORY.sources]
_GPU_BUSY = LAYOUTS[JOB_GPUS].gauges.index(layout.GPU_BUSY)


def columns_read() -> dict[str, tuple[str, ...]]:
    """Return the columns that the fold reads, by table."""
    found = {name: tuple([one for one in table.names if one != layout.GPU_BUSY]) for name, table in LAYOUTS.items()}
    for name in WITH_RUNS:
        found[name] += _run_columns(name)
    found[CGROUP_TABLE] += ("user",)
    return {**found, **NODE_READS, ZONES: ("name", *NODE_READS[ZONES])}


def _run_columns(table: str) -> tuple[str, ...]:
    """Return the columns of a table of jobs that distinguish runs; they are the last ones that are read."""
    start = (layout.START_COLUMN,) if table == TASKS_TABLE else ()
    return (*start, RUN_COLUMN, UPTIME_COLUMN) if table in WITH_RUNS else ()


class Fold:
    """Unfinished folds of all hosts.

    Attributes:
        state: of each job on each host.
        nodes: of each host.
        jobs: those whose folds are open.
        counts: rows that are late or left out, by cause.
    """

    def __init__(self) -> None:
        self.state = FoldState()
        self.nodes = NodeFolds()
        self.counts: Counter[str] = Counter()
        self.jobs = OpenJobs(self.state, self.nodes)
        self._readers: dict[int, tuple[Schema, layout.TableReader | None]] = {}
        self._now = 0  # the time of reception of the wave

    # -- rows --

    def wave(self, batches: Sequence[Batch], seen: Sequence[int]) -> None:
        """Fold batches, at most one of each host; `seen` are the times of their reception, seconds since 1970."""
        found = self.jobs.indices_of([batch.host for batch in batches])
        if -1 in found:
            self.counts["rows_left_out"] += sum([one.row_count for one, host in zip(batches, found) if host < 0])
            is_known = [host >= 0 for host in found]
            batches, seen = list(compress(batches, is_known)), list(compress(seen, is_known))
            found = list(compress(found, is_known))
        hosts, seen_s = np.array(found, np.int64), np.array(seen, np.int64)
        self._now = max(seen, default=self._now)
        parts = self._parts(batches, hosts, seen_s)
        self.nodes.read_cpus([part for part in parts if part.name == layout.NODE_CPU_TABLE])
        touched = self._jobs([part for part in parts if part.name in JOB_TABLES])
        for part in parts:
            if part.name in LAYOUTS and LAYOUTS[part.name].is_of_node:
                self._of_node(LAYOUTS[part.name], part)
        if len(touched):
            self._footprint(touched)
        self.nodes.energy(parts, self.state, self._cpu_ns)
        self.jobs.note_listings(batches, hosts, seen_s)

    def _parts(self, batches: Sequence[Batch], hosts: Ints, seen: Ints) -> list[TablePart]:
        """Return the tables of a wave by schema; a schema that a batch has twice is there twice."""
        found: dict[int, tuple[list[Table], list[int]]] = {}
        for place, batch in enumerate(batches):
            for table in batch.tables:
                one = found.get(id(table.schema))
                if one is None:
                    one = found[id(table.schema)] = [], []
                one[0].append(table)
                one[1].append(place)
        parts: list[TablePart] = []
        more: list[TablePart] = []
        for tables, places in found.values():
            reader = self._reader(tables[0].schema)
            if reader is None:
                continue
            at = np.array(places)
            again = np.flatnonzero(np.diff(at, prepend=-1) == 0).tolist()
            if again:
                more += [layout.join(reader, [tables[n]], hosts[at[[n]]], seen[at[[n]]]) for n in again]
                tables, at = [one for n, one in enumerate(tables) if n not in again], np.delete(at, again)
            parts.append(layout.join(reader, tables, hosts[at], seen[at]))
        return parts + more

    def _reader(self, schema: Schema) -> layout.TableReader | None:
        known = self._readers.get(id(schema))
        if known is not None:
            return known[1]
        if len(self._readers) >= MOST_READERS:
            self._readers.clear()
        name = schema.name
        reader = None
        if name in JOB_TABLES:
            own = [one for one in LAYOUTS[name].names if one != layout.GPU_BUSY]
            reader = layout.TableReader(schema, (*own, *_run_columns(name)))
        elif name in LAYOUTS:
            reader = layout.TableReader(schema, LAYOUTS[name].names)
        elif name in NODE_READS:
            reader = layout.TableReader(schema, NODE_READS[name])
        self._readers[id(schema)] = schema, reader  # the schema is kept, so its id is not given again
        return reader

    def _jobs(self, parts: Sequence[TablePart]) -> Ints:
        """Fold rows of jobs; return their slots, each once."""
        found: list[tuple[TablePart, Ints]] = []
        starts: dict[tuple[int, int], int] = {}  # (job, host) -> start of its first task
        firsts: dict[tuple[int, int], int] = {}
        same: set[int] = set()  # slots whose first task has not changed
        ended: dict[tuple[int, int], tuple[int, int]] = {}  # number and start of the run before
        for part in sorted(parts, key=lambda one: (one.name != TASKS_TABLE, one.name not in WITH_RUNS)):
            slots = self.jobs.find_slots(part, found)
            btimes = part.values[:, -3] if part.name == TASKS_TABLE else None
            for slot in self.jobs.end_other_runs(part, slots, btimes, same):
                job, host, start = self.state.head[slot, [Head.JOB, Head.HOST, Head.START]].tolist()
                ended[job, host] = int(self.state.runs[slot, RunOf.RUN]), start
            if (slots == NO_RUN).any():
                for at in np.flatnonzero(slots == NO_RUN).tolist():
                    key, time = (int(part.jobs[at]), int(part.hosts[at])), int(part.times[at])
                    firsts[key] = min(time, firsts.get(key, time))
                    if btimes is not None:
                        starts[key] = int(btimes[at])
            found.append((part, slots))
        for key, first in firsts.items():
            self.jobs.begin(*key, first, starts.get(key, MISSING_INT), ended.get(key), self._now)
        touched = np.zeros(self.state.capacity, np.bool_)
        for part, before in sorted(found, key=lambda one: JOB_TABLES.index(one[0].name)):
            slots = np.where(before == FORMER, FORMER, self.jobs.find_slots(part)) if firsts else before
            rows = self._once(part, slots)
            if len(rows):
                touched[self._fold(LAYOUTS[part.name], slots[rows], part, rows)] = True
        return np.flatnonzero(touched)

    def _once(self, part: TablePart, slots: Ints) -> Ints:
        """Return the rows that have a slot, the first one of each slot; count the others."""
        there = np.arange(len(slots))
        if (slots < 0).any():
            self.counts["rows_left_out"] += int((part.jobs[slots == NO_RUN] > 0).sum())
            self.counts["late_rows"] += int((slots == FORMER).sum())
            there = np.flatnonzero(slots >= 0)
        place = np.empty(self.state.capacity, np.int64)
        place[slots[there]] = there
        if (place[slots[there]] == there).all():
            return there
        once = there[np.unique(slots[there], return_index=True)[1]]
        self.counts["rows_left_out"] += len(there) - len(once)
        return once

    def _fold(self, table: TableLayout, slots: Ints, part: TablePart, rows: Ints) -> Ints:
        """Fold rows of one table, each of another slot; return the slots whose rows are not late."""
        state = self.state
        times, values = self._by_first_clock(part, slots, rows), part.values[rows]
        if table.name == JOB_GPUS:
            values = with_busy(values)
        late = times < state.tables[table.name][slots, Rows.TIME]
        if late.any():
            self.counts["late_rows"] += int(late.sum())
            self._late(table, slots[late], times[late], values[late])
            slots, times, values, rows = slots[~late], times[~late], values[~late], rows[~late]
        if table.name == CGROUP_TABLE:
            self._users(part, slots, rows)
        head = state.head[slots]
        if table.name == CGROUP_TABLE:
            cpus, now, peak = [values[:, len(table.counters) + place] for place in table.capacity()]
            head[:, Head.MOST_CPUS] = np.maximum(head[:, Head.MOST_CPUS], cpus)
            head[:, Head.MOST_TASKS] = np.maximum(head[:, Head.MOST_TASKS], np.maximum(now, peak))
        head[:, Head.NODE_CPUS] = np.maximum(head[:, Head.NODE_CPUS], self.nodes.cpus(head[:, Head.HOST]))
        head[:, Head.FIRST] = np.minimum(head[:, Head.FIRST], times)
        head[:, Head.LAST] = np.maximum(head[:, Head.LAST], times)
        head[:, Head.SEEN] = np.maximum(head[:, Head.SEEN], part.seen[rows])
        if table.name == TASKS_TABLE:
            head[:, Head.BEGAN] = np.where(head[:, Head.BEGAN] == 0, -np.maximum(values[:, -3], 0), head[:, Head.BEGAN])
        state.head[slots] = head
        counted = state.tables[table.name][slots]
        before = counted[:, Rows.TIME]
        since = np.where(before >= 0, times - before, np.where(head[:, Head.BEGAN] > 0, times - head[:, Head.START], 0))
        if table.counters:
            counters_step(state, table, slots, times, values[:, : len(table.counters)])
        if table.gauges:
            start = len(table.counters)
            gauges_step(table, state.gauges[table.name], slots, since, values[:, start : start + len(table.gauges)])
        steps = np.where(before >= 0, times - before, 0)
        vote(counted, steps)
        counted[:, Rows.ROWS] += (before < 0) | (steps > 0)
        counted[:, Rows.TIME] = times
        state.tables[table.name][slots] = counted
        state.touched[slots] = True
        return slots

    def _by_first_clock(self, part: TablePart, slots: Ints, rows: Ints) -> Ints:
        """Return the times of rows by the clock of the first row of their runs, also if that was set since."""
        times, runs = part.times[rows], self.state.runs[slots]
        if part.name in WITH_RUNS:
            own, uptime = part.values[rows, -2], part.values[rows, -1]
            has_uptime = uptime >= 0
            runs[:, RunOf.RUN] = np.where(own > 0, own, runs[:, RunOf.RUN])
            runs[:, RunOf.BOOTED] = np.where(
                has_uptime & (runs[:, RunOf.BOOTED] < 0), times - uptime, runs[:, RunOf.BOOTED]
            )
            lacks = runs[:, RunOf.BOOTED] + uptime - times
            lacks[np.abs(lacks) < STEP_S] = 0
            runs[:, RunOf.CLOCK_STEP] = np.where(has_uptime, lacks, runs[:, RunOf.CLOCK_STEP])
            self.state.runs[slots] = runs
        return times + runs[:, RunOf.CLOCK_STEP]

    def _late(self, table: TableLayout, slots: Ints, times: Ints, values: Ints) -> None:
        """Fold rows older than others of their slot: what does not depend on the order."""
        state = self.state
        if table.counters:
            late_counters(state, table, slots, times, values[:, : len(table.counters)])
        if table.gauges:
            start = len(table.counters)
            gauges = state.gauges[table.name][slots]
            some = values[:, start : start + len(table.gauges)]
            peaks(gauges, some)
            state.gauges[table.name][slots] = gauges
        state.tables[table.name][slots, Rows.ROWS] += 1
        state.head[slots, Head.FIRST] = np.minimum(state.head[slots, Head.FIRST], times)
        state.touched[slots] = True

    def _users(self, part: TablePart, slots: Ints, rows: Ints) -> None:
        unknown = self.state.head[slots, Head.USER] < 0
        if not unknown.any() or "user" not in part.reader.schema.name_set:
            return
        names = part.reader.rows(part.packed)["user"][rows[unknown]].tolist()
        for slot, name in zip(slots[unknown].tolist(), names):
            if isinstance(name, bytes) and name:
                text = name.decode("utf-8", "replace")
                text = text if text.isprintable() else text.encode("unicode_escape").decode()
                self.state.head[slot, Head.USER] = self.state.user(text)

    def _of_node(self, table: TableLayout, part: TablePart) -> None:
        """Add growth of the node's counters to each of its jobs with a row at this tick."""
        slots, rows = self.nodes.expand(part, self.state)
        if len(slots):
            counted = self.state.tables[table.name]
            times = self._by_first_clock(part, slots, rows)
            fresh = times >= counted[slots, Rows.TIME]
            slots, rows, times = slots[fresh], rows[fresh], times[fresh]
            counters_step(self.state, table, slots, times, part.values[rows])
            counted[slots, Rows.TIME] = times
            self.state.touched[slots] = True

    def _cpu_ns(self, slots: Ints) -> Ints:
        """Return the CPU time of slots in nanoseconds; -1 if unknown."""
        found = np.full(len(slots), MISSING_INT, np.int64)
        for table, column, factor in reversed(CPU_COUNTERS):
            counters = self.state.counters[table]
            there = counters[slots, Count.COUNT, column] > 0
            found = np.where(there, counters[slots, Count.GROWN, column] * factor, found)
        return found

    def _footprint(self, slots: Ints) -> None:
        state = self.state
        head = state.head[slots]
        memory = np.full(len(slots), MISSING_INT, np.int64)
        for table, column, factor in reversed(_MEMORY):
            gauge = state.gauges[table][slots, Gauge.LAST, column]
            memory = np.where(gauge >= 0, gauge * factor, memory)
        is_now = state.tables[JOB_GPUS][slots, Rows.TIME] == head[:, Head.LAST]
        gpu = np.where(is_now, state.gauges[JOB_GPUS][slots, Gauge.LAST, _GPU_BUSY], MISSING_INT)
        cpu = self._cpu_ns(slots)
        footprint.add(
            state.footprint, slots, head[:, Head.START], head[:, Head.BEGAN], head[:, Head.LAST], cpu, memory, gpu
        )

    def due(self, least_s: int, most_s: int) -> Ints:
        """Return the slots whose summaries are to be written.

        They are new ones, those of ended jobs, and those of running jobs that are older than a third of the job's age,
        or than `most_s`, but not younger than `least_s`.
        """
        state, head = self.state, self.state.head
        age = head[:, Head.LAST] - head[:, Head.START]
        stale = head[:, Head.LAST] - head[:, Head.WRITTEN] >= np.clip(age // 3, least_s, most_s)
        state.unwritten |= state.touched
        return np.flatnonzero(state.used & state.unwritten & (stale | (head[:, Head.OVER] > 0)))
