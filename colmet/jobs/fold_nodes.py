"""The state of nodes in the fold: CPUs, energy and its division among jobs, and the order of their batches.

For each step between two energy samples of a node, its energy is divided in proportion to the CPU time that each job
and no job has used since the first of them, as the report does from stored rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from colmet.common.growth import MOST_WATTS, SLACK_S
from colmet.common.measures import NODE_CPU, NODE_CPU_COUNT, NODE_MEAN_POWER, POWER_TABLE, ZONE_ENERGY, ZONES
from colmet.common.schema import MISSING_INT
from colmet.jobs.fold_layout import NODE_CPU_TABLE, Floats, Ints, Mask, TablePart
from colmet.jobs.fold_state import FoldState, Head, RunOf

MOST_HOSTS = 100_000
FORGET = 1000  # hosts at once
RAPL_TABLE = "RAPLstats_default"
CPUS_BUSY = [NODE_CPU[kind].best for kind in ("user", "nice", "system", "irq", "softirq")]
_POWER = [source.column for source in NODE_MEAN_POWER.sources]
_RAPL = [f"counter_{n}" for first in (1, 5) for n in range(first, 25, 6)]  # packages, then memory, in microjoules
NODE_READS = {
    NODE_CPU_TABLE: (NODE_CPU_COUNT.best.column, *[source.column for source in CPUS_BUSY]),
    POWER_TABLE: tuple(_POWER),
    RAPL_TABLE: tuple(_RAPL),
    ZONES: (ZONE_ENERGY.best.column,),
}
BY_ZONES, BY_COLUMNS, BY_POWER = 1, 2, 3  # sources of energy, the best first
RAPL, IPMI = 1, 2  # bits of `SOURCE`
LONGEST_PERIODS = 10  # energy from power of a longer step is unknown
REPLACED_S = 600  # without a sample of a better source, after which another one counts
JIFFY_S, JIFFY_NS = 0.01, 10_000_000

_COLUMNS = ("time", "seen", "cpus", "busy", "busy_grown", "source", "energy", "zones", "energy_time", "step")
_TIME, _SEEN, _CPUS, _BUSY, _BUSY_GROWN, _SOURCE, _ENERGY, _ZONES, _ENERGY_TIME, _STEP = range(len(_COLUMNS))
_EMPTY = np.array([0, 0, -1, -1, 0, 0, -1, 0, -1, 0], np.int64)


class NodeFolds:
    """The state of all nodes.

    Attributes:
        names: of the hosts, by index.
        rows: state of each host, see `_COLUMNS`.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.rows: Ints = np.empty((0, len(_EMPTY)), np.int64)
        self._index: dict[str, int] = {}
        self._free: list[int] = []  # indices of forgotten hosts

    def index(self, host: str) -> int:
        """Return the index of a host; -1 for too many."""
        found = self._index.get(host, -1)
        if found < 0 and self._free:
            found = self._index[host] = self._free.pop()
            self.names[found] = host
        elif found < 0 and len(self.names) < MOST_HOSTS:
            found = self._index[host] = len(self.names)
            self.names.append(host)
            if found >= len(self.rows):
                more = np.repeat(_EMPTY[None], max(64, len(self.rows)), axis=0)
                self.rows = np.concatenate([self.rows, more])
        return found

    def forget(self, busy: Collection[int]) -> list[int]:
        """Make room for other hosts: forget those that were heard longest ago, except the busy ones; return them."""
        idle = np.setdiff1d(np.arange(len(self.names)), list(busy))
        oldest: list[int] = idle[np.argsort(self.rows[idle, _SEEN], kind="stable")][:FORGET].tolist()
        for index in oldest:
            del self._index[self.names[index]]
            self.rows[index] = _EMPTY
        self._free += oldest
        return oldest

    def pack(self) -> tuple[list[str], bytes]:
        """Return the names and the states of all hosts."""
        there = sorted(self._index.values())  # without forgotten ones, whose name may be there again
        return [self.names[at] for at in there], self.rows[there].tobytes()

    def unpack(self, names: Sequence[str], packed: bytes) -> None:
        """Restore what `pack` has returned; ValueError for anything else."""
        rows = np.frombuffer(packed, np.int64).reshape(len(names), len(_EMPTY))
        at = np.array([self.index(name) for name in names], np.int64)
        self.rows[at] = rows

    def cpus(self, hosts: Ints) -> Ints:
        """Return the most CPUs of hosts; -1 if unknown."""
        return np.asarray(self.rows[hosts, _CPUS])

    def times(self, hosts: Ints) -> Ints:
        """Return the time of the last batch of hosts."""
        return self.rows[hosts, _TIME] if len(self.names) else np.zeros(len(hosts), np.int64)

    def seen(self, hosts: Ints) -> Ints:
        """Return when the last batch of hosts was received."""
        return self.rows[hosts, _SEEN] if len(self.names) else np.zeros(len(hosts), np.int64)

    def seen_by(self, now: int) -> None:
        """Note that all batches came by `now`."""
        self.rows[:, _SEEN] = np.minimum(self.rows[:, _SEEN], now)

    def heard(self, hosts: Ints, times: Ints, seen: Ints) -> list[bool]:
        """Note a batch of each host; return which are not older than another one of their host."""
        before, seen_before = self.rows[hosts, _TIME], self.rows[hosts, _SEEN]
        newer: list[bool] = (times >= before).tolist()
        self.rows[hosts, _SEEN] = np.maximum(seen_before, seen)
        self.rows[hosts, _TIME] = np.maximum(before, times)
        return newer

    def read_cpus(self, parts: Sequence[TablePart]) -> None:
        """Note the number of CPUs and the busy time of nodes."""
        for part in parts:
            host, values = part.hosts, part.values
            rows = self.rows[host]
            rows[:, _CPUS] = np.maximum(rows[:, _CPUS], values[:, 0])
            busy = np.where((values[:, 1:] >= 0).all(axis=1), values[:, 1:].sum(axis=1), MISSING_INT)
            known = (busy >= 0) & (rows[:, _BUSY] >= 0)
            rows[:, _BUSY_GROWN] += np.where(known, np.maximum(busy - rows[:, _BUSY], 0), 0)
            rows[:, _BUSY] = np.where(busy >= 0, busy, rows[:, _BUSY])
            self.rows[host] = rows

    def expand(self, part: TablePart, state: FoldState) -> tuple[Ints, Ints]:
        """Return the slots of jobs on the nodes of some rows, with a row at that time, and the row of each."""
        slots, rows = self._on(part.hosts, state)
        times = part.times[rows] + state.runs[slots, RunOf.CLOCK_STEP]  # by the clock of the jobs' first rows
        here = (state.head[slots, Head.LAST] >= times) & (state.head[slots, Head.START] <= times)
        return slots[here], rows[here]

    def _on(self, hosts: Ints, state: FoldState) -> tuple[Ints, Ints]:
        """Return the slots of jobs on some hosts, and the place of the host of each."""
        row_of = np.full(max(1, len(self.names)), -1, np.int64)
        row_of[hosts] = np.arange(len(hosts))
        used = np.flatnonzero(state.used)
        rows = row_of[state.head[used, Head.HOST]]
        here = rows >= 0
        return used[here], rows[here]

    # -- energy --

    def energy(self, parts: Sequence[TablePart], state: FoldState, cpu_of: Callable[[Ints], Ints]) -> None:
        """Divide the energy since the last samples; `cpu_of` returns the CPU time of slots in nanoseconds."""
        for part in parts:
            if part.name == ZONES:
                self._divide(*_zones(part), source=BY_ZONES, state=state, cpu_of=cpu_of)
            elif part.name == RAPL_TABLE:
                present = part.values >= 0
                energy = np.where(present, part.values, 0).sum(axis=1)
                samples = part.hosts, part.times, energy, present.sum(axis=1)
                self._divide(*samples, source=BY_COLUMNS, state=state, cpu_of=cpu_of)
            elif part.name == POWER_TABLE:
                mean, now = part.values.T
                watts = np.where(mean >= 0, mean, now)
                samples = part.hosts, part.times, watts, (watts >= 0).astype(np.int64)
                self._divide(*samples, source=BY_POWER, state=state, cpu_of=cpu_of)

    def _divide(self, *samples: Ints, source: int, state: FoldState, cpu_of: Callable[[Ints], Ints]) -> None:
        """Divide the energy of some nodes, each once, among their jobs.

        The `samples` are hosts, times, energy and the number of zones; see `step_energy`.
        """
        rows = self.rows[samples[0]]
        best = (rows[:, _SOURCE] == 0) | (rows[:, _SOURCE] >= source)
        best |= samples[1] - rows[:, _ENERGY_TIME] > REPLACED_S
        keep = best & (samples[3] > 0) & (samples[1] > rows[:, _ENERGY_TIME])
        if not keep.any():
            return
        hosts, times, energy, count, rows = [one[keep] for one in (*samples, rows)]
        before = rows[:, _ENERGY_TIME]
        steps = times - before
        known = (before >= 0) & (rows[:, _SOURCE] == source)
        used, is_possible = step_energy(
            *(source, steps, rows[:, _ENERGY], energy, rows[:, _ZONES], count, rows[:, _STEP])
        )
        known &= is_possible
        busy = rows[:, _BUSY_GROWN] * JIFFY_NS
        shortest = np.where(rows[:, _STEP] > 0, np.minimum(rows[:, _STEP], steps), steps)
        slots, at = self._on(hosts, state)
        head = state.head[slots]
        cpu = cpu_of(slots)
        grown = np.maximum(cpu - head[:, Head.CPU_MARK], 0)
        jobs = np.zeros(len(hosts), np.int64)
        np.add.at(jobs, at, grown)
        joules = energy_share(used[at], grown, np.maximum(busy, jobs)[at])
        step = state.runs[slots, RunOf.CLOCK_STEP]
        within = np.minimum(times[at] + step, head[:, Head.LAST]) - np.maximum(before[at] + step, head[:, Head.START])
        within = np.where(known[at], np.maximum(within, 0), 0)
        head[:, Head.JOULES] += np.where(known[at], joules, 0.0).astype(np.int64)
        of_node = used[at].astype(np.float64) * within / np.maximum(times[at] - before[at], 1)
        head[:, Head.NODE_JOULES] += np.where(within > 0, of_node, 0.0).astype(np.int64)
        head[:, Head.ENERGY_S] += within
        bit = IPMI if source == BY_POWER else RAPL
        head[:, Head.SOURCE] |= np.where((within > 0) | (known[at] & (grown > 0)), bit, 0)
        head[:, Head.CPU_MARK] = np.maximum(cpu, head[:, Head.CPU_MARK])
        state.head[slots] = head
        state.touched[slots[(within > 0) | (grown > 0)]] = True
        rows[:, _STEP] = np.where(before >= 0, shortest, 0)
        rows[:, _SOURCE], rows[:, _ENERGY], rows[:, _ZONES] = source, energy, count
        rows[:, _ENERGY_TIME], rows[:, _BUSY_GROWN] = times, 0
        self.rows[hosts] = rows


def step_energy(
    source: int, steps: Ints, last: Ints, energy: Ints, last_count: Ints, count: Ints, shortest: Ints
) -> tuple[Ints, Mask]:
    """Return the energy of steps between samples of nodes, in microjoules, and whether it is known.

    `last` and `energy` are counters of zones, energy since the row before, or power in watts, of the sample before and
    of this one; a step with another number of zones (`last_count`, `count`) is unknown. `steps` are in seconds, and so
    is the `shortest` of the node (0 if there was none): of power, a much longer one is a gap.
    """
    known = last_count == count
    if source == BY_POWER:
        used = (last + energy) * steps * 500_000  # the mean of both
        return used, known & ((shortest == 0) | (steps <= LONGEST_PERIODS * shortest))
    used = energy - last if source == BY_ZONES else energy
    return used, known & (used >= 0) & (used <= 1e6 * MOST_WATTS * count * (steps + SLACK_S))


def energy_share(energy: Ints | Floats, part: Ints | Floats, whole: Ints | Floats) -> Floats:
    """Return the share in the energy of steps for a part of the CPU time used in each; 0 without any."""
    return np.divide(energy.astype(np.float64) * part, whole, out=np.zeros(len(energy)), where=whole > 0)


def _zones(part: TablePart) -> tuple[Ints, Ints, Ints, Ints]:
    """Return hosts, times, the energy of packages and memory, and the number of such zones, for each host."""
    rows = part.reader.rows(part.packed)
    names = rows["name"] if "name" in part.reader.schema.name_set else np.zeros(len(rows), "S1")
    wanted = (names.astype("S7") == b"package") | (names == b"dram")
    wanted &= part.values[:, 0] >= 0
    hosts, first, inverse = np.unique(part.hosts, return_index=True, return_inverse=True)
    inverse = inverse.reshape(-1)
    energy, count = np.zeros((2, len(hosts)), np.int64)
    np.add.at(energy, inverse[wanted], part.values[wanted, 0])
    np.add.at(count, inverse[wanted], 1)
    return hosts, part.times[first], energy, count
