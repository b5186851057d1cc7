"""The fold of rows into summaries, a wave at a time: at most one batch of each host.

A wave is folded with vector operations on `colmet.archive.state`: in a wave each job on a host occurs at most once in
a table. All sums are of whole numbers, so a result does not depend on the division of batches into bursts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import compress

import numpy as np

from colmet.archive import footprint, layout
from colmet.archive.growing import counters_step, gauges_step, late_counters, peaks, vote, with_busy
from colmet.archive.layout import (
    JOB_TABLES,
    LAYOUTS,
    START_COLUMN,
    Ints,
    Mask,
    TableLayout,
    TablePart,
    TableReader,
    folded_sources,
    join,
)
from colmet.archive.nodes import NODE_READS, NodeFolds
from colmet.archive.slot_index import SlotIndex
from colmet.archive.state import (
    BEGAN,
    BOOTED,
    C_COUNT,
    C_GROWN,
    CLOCK_STEP,
    FIRST,
    FORMER_RUN,
    G_LAST,
    HOST,
    JOB,
    LAST,
    MOST_CPUS,
    MOST_FOLDS,
    MOST_TASKS,
    NODE_CPUS,
    OVER,
    RUN,
    SEEN,
    START,
    T_ROWS,
    T_STEP,
    T_TIME,
    USER,
    WRITTEN,
    FoldState,
)
from colmet.common.live.shares import Shares
from colmet.common.measures import CGROUP_TABLE, CPU_USED, JOB_GPUS, MEMORY, PROCESSES_TABLE, TASKS_TABLE, ZONES
from colmet.common.schema import MISSING_INT, Batch, Schema, Table
from colmet.common.tables.runs import RUN as RUN_COLUMN
from colmet.common.tables.runs import UPTIME as UPTIME_COLUMN
from colmet.common.wire.limits import MAX_JOBS

OLDEST_S = 400 * 86400  # an older start is not believed
# For rows without the number of their run: rows of a job after such a pause are of another run, unless its first task
# is an earlier one.
DAY_S = 86400
STEP_S = 3  # a clock that was set by less changes no figure
WITH_RUNS = (CGROUP_TABLE, TASKS_TABLE, PROCESSES_TABLE)
# In place of the slot of a row: no fold has its run, or its run has ended and the row is late.
NO_RUN, FORMER = -1, -2
NO_LIST_PERIODS, NO_LIST_S = 3, 60  # after the last row, a job on a node that lists no jobs is over
SILENT_S = 3600  # by the time of reception, after which a job on a silent node is over
KEPT_S = 600  # a fold is kept so long after the job's last row, for rows that are late
KEPT_SILENT_S = 4 * DAY_S  # and of a silent node, by the time of reception: its agent may be away over a weekend
KEPT_HEARD_S = DAY_S  # and of a node that goes on sending without rows of the job, whatever its clock
MOST_READERS = 1000
FEW_ROWS = 64  # looked up one by one
_NEVER = (-1,)  # no list of jobs

_CPU = [(s.table, LAYOUTS[s.table].counters.index(s.column), round(s.factor * 1e9)) for s in folded_sources(CPU_USED)]
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
    start = (START_COLUMN,) if table == TASKS_TABLE else ()
    return (*start, RUN_COLUMN, UPTIME_COLUMN) if table in WITH_RUNS else ()


class Fold:
    """Unfinished folds of all hosts.

    Attributes:
        state: of each job on each host.
        nodes: of each host.
        counts: rows that are late or left out, by cause.
        dropped: slots whose fold ends with the next `release`.
    """

    def __init__(self) -> None:
        self.state = FoldState()
        self.nodes = NodeFolds()
        self.counts: Counter[str] = Counter()
        self.dropped: list[int] = []
        self.open_on: dict[int, dict[int, int]] = {}  # host -> job -> slot, of the present run
        self._readers: dict[int, tuple[Schema, TableReader | None]] = {}
        self._listed: dict[int, tuple[int, ...] | None] = {}  # jobs of the host's last batch
        self._changed: set[int] = set()  # hosts with other slots since then
        self._index: SlotIndex | None = None  # of `open_on`; None after a change
        self._shares = Shares(MOST_FOLDS)  # by host, with the dropped slots
        self._now = 0  # the time of reception of the wave

    # -- rows --

    def wave(self, batches: Sequence[Batch], seen: Sequence[int]) -> None:
        """Fold batches, at most one of each host; `seen` are the times of their reception, seconds since 1970."""
        found = self._hosts([batch.host for batch in batches])
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
        self._listings(batches, hosts, seen_s)

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
                more += [join(reader, [tables[n]], hosts[at[[n]]], seen[at[[n]]]) for n in again]
                tables, at = [one for n, one in enumerate(tables) if n not in again], np.delete(at, again)
            parts.append(join(reader, tables, hosts[at], seen[at]))
        return parts + more

    def _reader(self, schema: Schema) -> TableReader | None:
        known = self._readers.get(id(schema))
        if known is not None:
            return known[1]
        if len(self._readers) >= MOST_READERS:
            self._readers.clear()
        name = schema.name
        reader = None
        if name in JOB_TABLES:
            own = [one for one in LAYOUTS[name].names if one != layout.GPU_BUSY]
            reader = TableReader(schema, (*own, *_run_columns(name)))
        elif name in LAYOUTS:
            reader = TableReader(schema, LAYOUTS[name].names)
        elif name in NODE_READS:
            reader = TableReader(schema, NODE_READS[name])
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
            slots = self._lookup(part, found)
            btimes = part.values[:, -3] if part.name == TASKS_TABLE else None
            for slot in self._other_runs(part, slots, btimes, same):
                job, host, start = self.state.head[slot, [JOB, HOST, START]].tolist()
                ended[job, host] = int(self.state.runs[slot, RUN]), start
            if (slots == NO_RUN).any():
                for at in np.flatnonzero(slots == NO_RUN).tolist():
                    key, time = (int(part.jobs[at]), int(part.hosts[at])), int(part.times[at])
                    firsts[key] = min(time, firsts.get(key, time))
                    if btimes is not None:
                        starts[key] = int(btimes[at])
            found.append((part, slots))
        for key, first in firsts.items():
            self._create(*key, first, starts.get(key, MISSING_INT), ended.get(key))
        touched = np.zeros(self.state.capacity, np.bool_)
        for part, before in sorted(found, key=lambda one: JOB_TABLES.index(one[0].name)):
            slots = np.where(before == FORMER, FORMER, self._lookup(part)) if firsts else before
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

    def _lookup(self, part: TablePart, known: Sequence[tuple[TablePart, Ints]] = ()) -> Ints:
        """Return the slot of each row, -1 for none; `known` are those of other tables, which may have the same rows."""
        for other, slots in known:
            if np.array_equal(part.jobs, other.jobs) and np.array_equal(part.hosts, other.hosts):
                return slots.copy()
        if len(part.jobs) >= FEW_ROWS and self._index is None:
            self._index = SlotIndex.of(self.open_on)
        if len(part.jobs) >= FEW_ROWS and self._index is not None and self._index.serves(part.jobs):
            return self._index.slots_of(part.hosts, part.jobs)
        open_on = self.open_on
        nothing: dict[int, int] = {}
        found = [open_on.get(host, nothing).get(job, -1) for host, job in zip(part.hosts.tolist(), part.jobs.tolist())]
        return np.array(found, dtype=np.int64)

    def _other_runs(self, part: TablePart, slots: Ints, btimes: Ints | None, same: set[int]) -> list[int]:
        """End runs whose rows here are of another run of the same job id; return their slots, -1 for the rows now.

        Rows have the number of their run. Those of older nodes do not: their times decide, and their first tasks.

        Args:
            part: the rows.
            slots: of the rows.
            btimes: starts of their first tasks; None for another table.
            same: slots whose first task is an earlier one than their last row: after a pause they are of the same run.
        """
        head = self.state.head
        there = np.flatnonzero(slots >= 0)
        last = head[slots[there], LAST]
        times = part.times[there]
        is_known, is_new = self._known_runs(part, slots, there)
        other = times - last > DAY_S
        if btimes is not None:
            began = btimes[there]
            is_same = other & (began > times - OLDEST_S) & (began <= last)
            same.update(slots[there[is_same]].tolist())
            # a cgroup may be there, and measured, before its first task: OAR's is for seconds
            had_tasks = self.state.tables[TASKS_TABLE][slots[there], T_TIME] >= 0
            was = had_tasks | (head[slots[there], OVER] > 0)
            # on a busy node a row is read seconds after its time: its first task may be younger than the row
            was &= np.abs(began - np.abs(head[slots[there], BEGAN])) > 1
            other = (other & ~is_same) | (was & (began > last) & (began <= times + 1) & (times > last))
        elif same and other.any():
            other &= ~np.isin(slots[there], list(same))
        ended = []
        for at in there[np.where(is_known, is_new, other)].tolist():
            slot, host = int(slots[at]), int(part.hosts[at])
            self._end(slot)
            self._forget(slot)
            ended.append(slot)
            slots[at] = NO_RUN
            self._changed.add(host)
        return ended

    def _known_runs(self, part: TablePart, slots: Ints, there: Ints) -> tuple[Mask, Mask]:
        """Return which rows with a slot are of a known run, and which of these are the first of another run.

        Slots of rows of the run before become `FORMER`.
        """
        runs = self.state.runs[slots[there]]
        if part.name not in WITH_RUNS:
            is_known = runs[:, RUN] > 0
            return is_known, np.zeros(len(there), np.bool_)
        own = part.values[there, -2]
        is_known = (own > 0) & (runs[:, RUN] > 0)
        is_former = is_known & (own == runs[:, FORMER_RUN])
        slots[there[is_former]] = FORMER
        return is_known, is_known & (own != runs[:, RUN]) & ~is_former

    def _create(self, job: int, host: int, first: int, btime: int, before: tuple[int, int] | None) -> None:
        """Begin the fold of a run; `before` are the number and the start of the one before, if it ends here."""
        if job <= 0:
            return
        if self.open_on.get(host, {}).get(job, -1) >= 0:
            return
        slot = self._take(host)
        if slot < 0:
            return
        is_known = first - OLDEST_S < btime <= first + 1
        row = self.state.head[slot]
        row[[JOB, HOST, FIRST, LAST, SEEN]] = job, host, first, first, self._now
        row[START], row[BEGAN] = (min(btime, first), btime) if is_known else (first, 0)
        if before is not None:
            self.state.runs[slot, FORMER_RUN] = before[0]
            row[START] = max(row[START], before[1] + 1)  # two runs of a second have two keys
        self.open_on.setdefault(host, {})[job] = slot
        self._index = None
        self._changed.add(host)

    def _take(self, host: int) -> int:
        """Take a slot for a new job on a host; -1 for none before the next `release`.

        A host has as many unfinished folds as jobs at a time, and no more than it leaves free for others: beyond, its
        own oldest ends. That one keeps its slot until it is written.
        """
        there, name = self.open_on.get(host, {}), self.nodes.names[host]
        if there and (len(there) >= MAX_JOBS or self._shares.room(name) <= 0):
            slots = np.array(list(there.values()))
            head = self.state.head[slots]
            oldest = int(slots[np.lexsort((head[:, SEEN], head[:, OVER] == 0))[0]])
            self._end(oldest)
            self._forget(oldest)
        if self._shares.room(name) <= 0 or self._shares.held(name) >= 2 * MAX_JOBS:
            return -1
        slot = self.state.take()
        if slot >= 0:
            self._shares.hold(name, 1)
        return slot

    def _hosts(self, names: Sequence[str]) -> list[int]:
        """Return the indices of hosts; where there are too many, the longest silent ones without jobs make room."""
        found: list[int] = []
        for name in names:
            index = self.nodes.index(name)
            if index < 0:
                busy = {*found, *self.open_on, *self.state.head[self.dropped, HOST].tolist()}
                for idle in self.nodes.forget(busy):
                    self._listed.pop(idle, None)
                    self._changed.discard(idle)
                index = self.nodes.index(name)
            found.append(index)
        return found

    def _fold(self, table: TableLayout, slots: Ints, part: TablePart, rows: Ints) -> Ints:
        """Fold rows of one table, each of another slot; return the slots whose rows are not late."""
        state = self.state
        times, values = self._by_first_clock(part, slots, rows), part.values[rows]
        if table.name == JOB_GPUS:
            values = with_busy(values)
        late = times < state.tables[table.name][slots, T_TIME]
        if late.any():
            self.counts["late_rows"] += int(late.sum())
            self._late(table, slots[late], times[late], values[late])
            slots, times, values, rows = slots[~late], times[~late], values[~late], rows[~late]
        if table.name == CGROUP_TABLE:
            self._capacity(table, slots, values)
            self._users(part, slots, rows)
        head = state.head[slots]
        head[:, NODE_CPUS] = np.maximum(head[:, NODE_CPUS], self.nodes.cpus(head[:, HOST]))
        head[:, FIRST] = np.minimum(head[:, FIRST], times)
        head[:, LAST] = np.maximum(head[:, LAST], times)
        head[:, SEEN] = np.maximum(head[:, SEEN], part.seen[rows])
        if table.name == TASKS_TABLE:
            head[:, BEGAN] = np.where(head[:, BEGAN] == 0, -np.maximum(values[:, -3], 0), head[:, BEGAN])
        state.head[slots] = head
        counted = state.tables[table.name][slots]
        before = counted[:, T_TIME]
        since = np.where(before >= 0, times - before, np.where(head[:, BEGAN] > 0, times - head[:, START], 0))
        if table.counters:
            counters_step(state, table, slots, times, values[:, : len(table.counters)])
        if table.gauges:
            start = len(table.counters)
            gauges_step(table, state.gauges[table.name], slots, since, values[:, start : start + len(table.gauges)])
        steps = np.where(before >= 0, times - before, 0)
        vote(counted, steps)
        counted[:, T_ROWS] += (before < 0) | (steps > 0)
        counted[:, T_TIME] = times
        state.tables[table.name][slots] = counted
        state.touched[slots] = True
        return slots

    def _by_first_clock(self, part: TablePart, slots: Ints, rows: Ints) -> Ints:
        """Return the times of rows by the clock of the first row of their runs, also if that was set since."""
        times, runs = part.times[rows], self.state.runs[slots]
        if part.name in WITH_RUNS:
            own, uptime = part.values[rows, -2], part.values[rows, -1]
            has_uptime = uptime >= 0
            runs[:, RUN] = np.where(own > 0, own, runs[:, RUN])
            runs[:, BOOTED] = np.where(has_uptime & (runs[:, BOOTED] < 0), times - uptime, runs[:, BOOTED])
            lacks = runs[:, BOOTED] + uptime - times
            lacks[np.abs(lacks) < STEP_S] = 0
            runs[:, CLOCK_STEP] = np.where(has_uptime, lacks, runs[:, CLOCK_STEP])
            self.state.runs[slots] = runs
        return times + runs[:, CLOCK_STEP]

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
        state.tables[table.name][slots, T_ROWS] += 1
        state.head[slots, FIRST] = np.minimum(state.head[slots, FIRST], times)
        state.touched[slots] = True

    def _capacity(self, table: TableLayout, slots: Ints, values: Ints) -> None:
        head, start = self.state.head, len(table.counters)
        cpus, now, peak = [values[:, start + place] for place in table.capacity()]
        head[slots, MOST_CPUS] = np.maximum(head[slots, MOST_CPUS], cpus)
        head[slots, MOST_TASKS] = np.maximum(head[slots, MOST_TASKS], np.maximum(now, peak))

    def _users(self, part: TablePart, slots: Ints, rows: Ints) -> None:
        unknown = self.state.head[slots, USER] < 0
        if not unknown.any() or "user" not in part.reader.schema.name_set:
            return
        names = part.reader.rows(part.packed)["user"][rows[unknown]].tolist()
        for slot, name in zip(slots[unknown].tolist(), names):
            if isinstance(name, bytes) and name:
                text = name.decode("utf-8", "replace")
                text = text if text.isprintable() else text.encode("unicode_escape").decode()
                self.state.head[slot, USER] = self.state.user(text)

    def _of_node(self, table: TableLayout, part: TablePart) -> None:
        """Add growth of the node's counters to each of its jobs with a row at this tick."""
        slots, rows = self.nodes.expand(part, self.state)
        if len(slots):
            counted = self.state.tables[table.name]
            times = self._by_first_clock(part, slots, rows)
            fresh = times >= counted[slots, T_TIME]
            slots, rows, times = slots[fresh], rows[fresh], times[fresh]
            counters_step(self.state, table, slots, times, part.values[rows])
            counted[slots, T_TIME] = times
            self.state.touched[slots] = True

    def _cpu_ns(self, slots: Ints) -> Ints:
        """Return the CPU time of slots in nanoseconds; -1 if unknown."""
        found = np.full(len(slots), MISSING_INT, np.int64)
        for table, column, factor in reversed(_CPU):
            counters = self.state.counters[table]
            there = counters[slots, C_COUNT, column] > 0
            found = np.where(there, counters[slots, C_GROWN, column] * factor, found)
        return found

    def _footprint(self, slots: Ints) -> None:
        state = self.state
        head = state.head[slots]
        memory = np.full(len(slots), MISSING_INT, np.int64)
        for table, column, factor in reversed(_MEMORY):
            gauge = state.gauges[table][slots, G_LAST, column]
            memory = np.where(gauge >= 0, gauge * factor, memory)
        is_now = state.tables[JOB_GPUS][slots, T_TIME] == head[:, LAST]
        gpu = np.where(is_now, state.gauges[JOB_GPUS][slots, G_LAST, _GPU_BUSY], MISSING_INT)
        cpu = self._cpu_ns(slots)
        footprint.add(state.footprint, slots, head[:, START], head[:, BEGAN], head[:, LAST], cpu, memory, gpu)

    # -- the ends of jobs --

    def _listings(self, batches: Sequence[Batch], hosts: Ints, seen: Ints) -> None:
        """Note which jobs are on the nodes of a wave."""
        times = np.array([batch.time_ns for batch in batches], np.int64) // 10**9
        newer = self.nodes.heard(hosts, times, seen)
        listed, changed = self._listed, self._changed
        for batch, host, is_newer in zip(batches, hosts.tolist(), newer):
            jobs = batch.jobs
            if is_newer and (jobs is None or jobs != listed.get(host, _NEVER) or host in changed):
                self._listing(batch, host)

    def _listing(self, batch: Batch, host: int) -> None:
        """Note which jobs are on a node."""
        time = batch.time_ns // 10**9
        there = self.open_on.get(host)
        if not there:
            self._listed[host] = batch.jobs
            return
        head = self.state.head
        if batch.jobs is None:
            for slot in there.values():
                step = max([int(one[slot, T_STEP]) for one in self.state.tables.values()])
                self._set_over(slot, time - int(head[slot, LAST]) > max(NO_LIST_PERIODS * step, NO_LIST_S))
        else:
            listed = set(batch.jobs)
            for job, slot in there.items():
                self._set_over(slot, job not in listed)
        self._listed[host] = batch.jobs
        self._changed.discard(host)

    def _set_over(self, slot: int, over: bool) -> None:
        head = self.state.head
        if bool(head[slot, OVER]) != over:
            head[slot, OVER] = over
            self.state.touched[slot] = True

    def _end(self, slot: int) -> None:
        self._set_over(slot, True)

    def sweep(self, now: int) -> None:
        """End the jobs of silent nodes, and drop the folds of jobs that have long been over; `now` as `seen`."""
        state = self.state
        head = state.head
        silent = state.used & (head[:, OVER] == 0) & (now - head[:, SEEN] > SILENT_S)
        for slot in np.flatnonzero(silent).tolist():
            self._end(slot)
            self._changed.add(int(head[slot, HOST]))
        host_time = self.nodes.times(head[:, HOST])
        old = state.used & (head[:, OVER] > 0)
        old &= (
            (host_time - self._last_times() > KEPT_S)
            | (now - head[:, SEEN] > KEPT_SILENT_S)
            | (self.nodes.seen(head[:, HOST]) - head[:, SEEN] > KEPT_HEARD_S)
        )
        for slot in np.flatnonzero(old).tolist():
            self._forget(slot)

    def _last_times(self) -> Ints:
        """Return the time of the last row of each slot, by the clock of then."""
        return np.asarray(self.state.head[:, LAST] - self.state.runs[:, CLOCK_STEP])

    def _forget(self, slot: int) -> None:
        """Give up a fold after its last summary is written."""
        job, host = int(self.state.head[slot, JOB]), int(self.state.head[slot, HOST])
        there = self.open_on.get(host, {})
        if there.get(job) == slot:
            del there[job]
            self._index = None
            if not there:
                del self.open_on[host]
            self.dropped.append(slot)

    def end_gone(self) -> None:
        """End the jobs whose nodes have later rows without them: stored rows have no lists of jobs."""
        head = self.state.head
        gone = self.state.used & (self.nodes.times(head[:, HOST]) > self._last_times())
        for slot in np.flatnonzero(gone).tolist():
            self._end(slot)

    def resume(self, job: int, host: str, packed: bytes) -> int:
        """Continue a packed fold; return its slot, -1 for too many. ValueError if it is damaged."""
        at = self.nodes.index(host)
        is_full = len(self.open_on.get(at, ())) >= MAX_JOBS
        slot = self.state.unpack(packed, at) if at >= 0 and not is_full else -1
        if slot >= 0:
            self._shares.hold(host, 1)
            self.open_on.setdefault(at, {})[job] = slot
            self._index = None
        return slot

    def due(self, least_s: int, most_s: int) -> Ints:
        """Return the slots whose summaries are to be written.

        They are new ones, those of ended jobs, and those of running jobs that are older than a third of the job's age,
        or than `most_s`, but not younger than `least_s`.
        """
        state, head = self.state, self.state.head
        age = head[:, LAST] - head[:, START]
        stale = head[:, LAST] - head[:, WRITTEN] >= np.clip(age // 3, least_s, most_s)
        state.unwritten |= state.touched
        return np.flatnonzero(state.used & state.unwritten & (stale | (head[:, OVER] > 0)))

    def release(self) -> None:
        """Free the slots of dropped folds."""
        for host in self.state.head[self.dropped, HOST].tolist():
            self._shares.hold(self.nodes.names[host], -1)
        self.state.release(self.dropped)
        self.dropped = []
