"""The energy of the nodes of a job in its stored rows, shared among the jobs on them by CPU time.

For each step between two energy samples of a node, the energy is divided in proportion to the CPU time used by each job
and by no job, as in `colmet.jobs.fold_nodes`. So those who use CPUs at the time bear the power of the idle ones.
All shares and the unshared rest add up to the node's energy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from colmet.common.growth import NODE_CPUS, largest
from colmet.common.measures import CPU_USED, NODE_CPU, POWER_TABLE, ZONES
from colmet.jobs import fold_nodes
from colmet.jobs.figures import Energy, Number, Report, added, ratio
from colmet.jobs.fold_layout import NODE_CPU_TABLE, Floats, Ints, whole_numbers
from colmet.jobs.fold_nodes import CPUS_BUSY, energy_share
from colmet.jobs.report.stored_fold import CpuTime, StoredFold, cpu_time
from colmet.stored.gap_finder import cadence_s
from colmet.stored.job_rows import HostJob, JobRows, Outline, labels
from colmet.stored.series import NODE, RowQuery, Series

Tables = Mapping[str, Sequence[str]]

MARGIN_S = 120  # around a job, for the samples before its first and after its last row
MOST_JOBS = 200  # other jobs read
CPUS_IDLE = [NODE_CPU[kind].best for kind in ("idle", "iowait")]
SOURCES = {
    fold_nodes.BY_ZONES: (ZONES, "rapl"),
    fold_nodes.BY_COLUMNS: (fold_nodes.RAPL_TABLE, "rapl"),
    fold_nodes.BY_POWER: (POWER_TABLE, "ipmi"),
}  # the best first
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
METHOD = (
    "from sample to sample, each node's is shared by CPU time among its jobs and what no job used; idle CPUs' power is "
    "borne by those that ran"
)


@dataclass(frozen=True)
class NodeEnergy:
    """The energy of one node while the job was on it, in steps from sample to sample, and its shares in joules.

    Shares are NaN in steps with unknown CPU times.
    """

    sources: frozenset[str]  # of ``rapl`` and ``ipmi``
    starts: Floats  # seconds since 1970
    ends: Floats
    joules: Floats
    job: Floats
    others: Floats | None  # of other jobs; None if these are unknown
    nobody: Floats
    busy_s: float  # CPU time used in the shared steps
    available_s: float  # CPU time available in them
    covered_s: float  # the part of the job's time on it with known energy


def total(values: Floats) -> Number:
    """Return the sum of the known values; None if there are none."""
    known = values[~np.isnan(values)]
    return float(known.sum()) if len(known) else None


def energy_of(found: Sequence[NodeEnergy], report: Report, gpu_joules: Number) -> Energy:
    """Return the energy of all hosts together, with the shares of those with known energy."""
    if not found:
        return Energy(gpu_joules=gpu_joules)
    wall_s = sum(host.wall_s for host in report.hosts)
    others = [None if node.others is None else total(node.others) for node in found]
    return Energy(
        job_joules=added(total(node.job) for node in found),
        others_joules=added(others) if all(node.others is not None for node in found) else None,
        nobody_joules=added(total(node.nobody) for node in found),
        unshared_joules=math.fsum(float(node.joules[np.isnan(node.job)].sum()) for node in found),
        nodes_joules=math.fsum(float(node.joules.sum()) for node in found),
        source=" and ".join(sorted({name for node in found for name in node.sources})),
        method=METHOD,
        covered_ratio=min(1.0, math.fsum(node.covered_s for node in found) / wall_s) if wall_s else None,
        busy_ratio=ratio(math.fsum(node.busy_s for node in found), math.fsum(node.available_s for node in found)),
        gpu_joules=gpu_joules,
    )


class NodeRows:
    """Stored rows of some nodes of a job, from a little before it to a little after; `tables` have their columns."""

    def __init__(self, rows: JobRows, hosts: Sequence[HostJob], tables: Tables, span: Outline) -> None:
        self._rows, self._tables, self._hosts = rows, tables, hosts
        self._since, self._until = span.start - MARGIN_S, span.last + MARGIN_S

    def read(self, table: str, columns: Sequence[str]) -> list[Series]:
        """Return the rows of a table of these nodes; none if it has no such column."""
        there = [column for column in columns if column in self._tables.get(table, ())]
        names = [stored.host for stored in self._hosts]
        return self._rows.read(RowQuery(NODE, table, there, self._since, self._until, names)) if there else []

    def cpus(self) -> dict[str, float]:
        """Return the number of CPUs of each host."""
        table, column = NODE_CPUS
        return {series.host: largest(series.values(column)) for series in self.read(table, [column])}

    def energy(
        self, fold: StoredFold, used: Mapping[str, CpuTime | None], cpus: Mapping[str, float]
    ) -> dict[str, NodeEnergy]:
        """Return the energy of nodes where it is known; `fold` is for rows of other jobs, `used` the job's CPU time."""
        steps = self._steps()
        node = self._node_cpu()
        known = {
            host: float(busy.cpu_s[-1] + idle.cpu_s[-1]) / (float(np.ptp(busy.times)) or math.inf)
            for host, (busy, idle) in node.items()
        }
        others = self._other_cpu(fold, sorted(steps), {**known, **cpus})
        found = {
            host: _shared(steps[host], stored, used.get(host), others.get(host), node.get(host))
            for host, stored in [(one.host, one) for one in self._hosts]
            if host in steps
        }
        return {host: one for host, one in found.items() if len(one.joules)}

    def _steps(self) -> dict[str, tuple[frozenset[str], Floats, Floats, Floats]]:
        """Return sources, starts, ends and joules of each node: of zones, of 0.6's columns, or of the BMC's power.

        Another source counts where a better one has had no sample for `fold_nodes.REPLACED_S`.
        """
        found: dict[str, tuple[frozenset[str], Floats, Floats, Floats]] = {}
        for source, (table, name) in SOURCES.items():
            columns = [*fold_nodes.NODE_READS[table], *(["zone", "name"] if table == ZONES else [])]
            for series in self.read(table, columns):
                names, *better = found.get(series.host, (frozenset(), *np.zeros((3, 0))))
                starts, ends, joules = _steps_of(source, series)
                sampled = np.append(-math.inf, np.unique(better[:2]))
                is_alone = starts - sampled[np.searchsorted(sampled, ends) - 1] > fold_nodes.REPLACED_S
                if is_alone.any():
                    parts = [
                        np.append(*both) for both in zip(better, (starts[is_alone], ends[is_alone], joules[is_alone]))
                    ]
                    found[series.host] = names | {name}, *parts
        return found

    def _node_cpu(self) -> dict[str, tuple[CpuTime, CpuTime]]:
        """Return the CPU time of each node, busy and idle."""
        found = {}
        for series in self.read(NODE_CPU_TABLE, [source.column for source in (*CPUS_BUSY, *CPUS_IDLE)]):
            ran, idled = [
                np.sum([series.values(one.column) for one in sources], axis=0) for sources in (CPUS_BUSY, CPUS_IDLE)
            ]
            known = ~np.isnan(ran + idled)
            if known.any():
                busy, idle = [_cpu_time(series.times[known], some[known]) for some in (ran, idled)]
                found[series.host] = busy, idle
        return found

    def _other_cpu(self, fold: StoredFold, hosts: Sequence[str], cpus: Mapping[str, float]) -> dict[str, list[CpuTime]]:
        """Return the CPU time of the other jobs on each host with known other jobs."""
        there = {host: jobs for host, jobs in self._other_jobs(hosts).items() if len(jobs) <= MOST_JOBS}
        found: dict[str, list[CpuTime]] = {host: [] for host in there}
        for job in sorted({job for jobs in there.values() for job in jobs}):
            left = [host for host, jobs in there.items() if job in jobs]
            for source in CPU_USED.sources:
                query = RowQuery(job, source.table, [source.column], self._since, self._until, left)
                read = self._rows.read(query) if left else []
                for series in [one for one in read if not np.isnan(one.values(source.column)).all()]:
                    # the first row of a job started during the interval is up to a period after its start
                    period_s = cadence_s(series.times, 0) or 1
                    node_cpus = cpus.get(series.host) or math.nan
                    at_first = float(np.nanmin(series.values(source.column))) * source.factor
                    is_new = series.times[0] > self._since + 2 * period_s and not at_first > 2 * period_s * node_cpus
                    came = float(series.times[0] - period_s) if is_new else None
                    found[series.host].append(fold.cpu_of_other(series, source.column, source.factor, came, node_cpus))
                    left.remove(series.host)
        return found

    def _other_jobs(self, hosts: Sequence[str]) -> dict[str, set[int]]:
        """Return the other jobs of each host, as the rows of nodes list them; hosts with unknown jobs are left out."""
        found: dict[str, set[int]] = {}
        listing = [name for name, columns in self._tables.items() if "involved_jobs" in columns]
        table = next((name for name in (NODE_CPU_TABLE, POWER_TABLE, fold_nodes.RAPL_TABLE) if name in listing), "")
        for series in self.read(table, ["involved_jobs"]):
            texts = np.unique(labels(series, "involved_jobs")).tolist()
            jobs = {int(number) for text in texts for number in _NUMBER.findall(text.decode("ascii", "replace"))}
            if series.host in hosts and self._rows.job in jobs:
                found[series.host] = jobs - {self._rows.job}
        return found


def _cpu_time(times: Ints, jiffies: Floats) -> CpuTime:
    """Return the CPU time of a node since its first row; stores need not keep the order of rows of one second."""
    order = np.lexsort((jiffies, times))
    jiffies = jiffies[order]
    return cpu_time(times[order], np.maximum(np.diff(jiffies, prepend=jiffies[0]), 0) * fold_nodes.JIFFY_S, None)


def _steps_of(source: int, series: Series) -> tuple[Floats, Floats, Floats]:
    """Return starts, ends and joules of the known steps between the samples of a node."""
    values = np.stack(
        [whole_numbers(series.columns[name]) for name in fold_nodes.NODE_READS[series.table] if name in series.columns]
    )
    times = series.seconds
    at = np.cumsum(np.diff(series.times, prepend=series.times[:1]) > 0)
    energy, count = np.zeros((2, len(times)), np.int64)
    if source == fold_nodes.BY_ZONES:  # of rows of one second, the last ones of each zone
        names = labels(series, "name")
        wanted = np.flatnonzero((values[0] >= 0) & ((names.astype("S7") == b"package") | (names == b"dram")))
        zones, last = labels(series, "zone")[wanted], wanted
        if len(wanted) and (np.bincount(at[wanted]).max() > len(np.unique(zones[:1000]))):
            numbers = np.unique(zones, return_inverse=True)[1]
            order = np.lexsort((values[0, wanted], numbers, at[wanted]))
            is_last = np.append((np.diff(at[wanted][order]) != 0) | (np.diff(numbers[order]) != 0), True)
            last = wanted[order[is_last]]
        np.add.at(energy, at[last], values[0, last])
        np.add.at(count, at[last], 1)
    elif source == fold_nodes.BY_COLUMNS:
        np.add.at(energy, at, np.where(values >= 0, values, 0).sum(axis=0))
        np.maximum.at(count, at, (values >= 0).sum(axis=0))
    else:
        watts = np.where(values[0] >= 0, values[0], values[-1])
        np.maximum.at(energy, at, watts)
        np.maximum.at(count, at, (watts >= 0).astype(np.int64))
    here = count > 0
    times, energy, count = times[here], energy[here], count[here]
    steps = np.diff(times)
    shortest = steps.min(initial=1 << 50)
    used, known = fold_nodes.step_energy(source, steps, energy[:-1], energy[1:], count[:-1], count[1:], shortest)
    starts, ends, joules = [one[known].astype(np.float64) for one in (times[:-1], times[1:], used)]
    return starts, ends, joules * 1e-6


def _shared(
    steps: tuple[frozenset[str], Floats, Floats, Floats],
    stored: HostJob,
    own: CpuTime | None,
    others: Sequence[CpuTime] | None,
    node: tuple[CpuTime, CpuTime] | None,
) -> NodeEnergy:
    """Divide the energy of a node by the CPU times of its other jobs and of itself, busy and idle, as far as known."""
    sources, starts, ends, joules = steps
    first, last = stored.start, max(stored.last, stored.start + 1)
    inside = (ends > first) & (starts < last)
    whole_s = (ends - starts)[inside]
    starts, ends = np.maximum(starts[inside], first), np.minimum(ends[inside], last)  # steps at the ends are cut
    joules = joules[inside] * (ends - starts) / whole_s
    nothing = np.zeros(len(joules))
    job = np.full(len(joules), np.nan) if own is None else own.within(starts, ends)
    rest = sum([one.within(starts, ends) for one in others or ()], nothing)
    busy, idle, known = nothing, nothing, np.full(len(joules), others is not None)
    if node is not None:
        busy, idle = [one.within(starts, ends) for one in node]
        slack_s = 1.5 * (cadence_s(node[0].times.astype(np.int64), 0) or MARGIN_S)
        known = (starts >= node[0].times[0] - slack_s) & (ends <= node[0].times[-1] + slack_s)
    all_s = np.maximum(busy, job + rest)
    shared = known & ~np.isnan(job)
    own_joules, rest_joules = [np.where(shared, energy_share(joules, part, all_s), np.nan) for part in (job, rest)]
    within = np.minimum(ends, stored.last) - starts
    return NodeEnergy(
        *(sources, starts, ends, joules, own_joules),
        others=None if others is None else rest_joules,
        nobody=joules - own_joules - rest_joules,
        busy_s=float(busy[shared].sum()),
        available_s=float((busy + idle)[shared].sum()),
        covered_s=float(within[within > 0].sum()),
    )
