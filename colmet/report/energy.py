"""The energy of the nodes, shared among the jobs on them by CPU time.

For each step between two energy samples of a node, the energy is divided in proportion to the CPU time used by each job
and by no job, the latter being the node's busy time beyond the sum of the jobs. So the power of idle CPUs is charged to
the users of the CPUs at the time. All shares and the unshared rest always add up to the node's energy.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common.growth import MOST_WATTS, NODE_CPUS, ceiling, grown, rates, summed
from colmet.common.measures import CPU_USED, NODE_CPU, NODE_MEAN_POWER, POWER_TABLE, ZONE_ENERGY, ZONES, Source
from colmet.common.units import UNITS
from colmet.report.model import Energy, Number, ratio
from colmet.stored.gap_finder import cadence_s
from colmet.stored.series import NODE, RowQuery, Series
from colmet.stored.stays import JobRows, Outline, Stay, added, text_of

Floats = npt.NDArray[np.float64]
Tables = Mapping[str, Sequence[str]]

RAPL, IPMI, WHOLE = "RAPLstats_default", POWER_TABLE, NODE_CPUS[0]
AGENT = "agent_default"
PACKAGES, DRAMS = range(1, 25, 6), range(5, 25, 6)  # numbers of columns of RAPLstats_default
UJ = UNITS["ujoules"].factor
MARGIN_S = 120  # around a job, for the samples before its first and after its last row
LONGEST_PERIODS = 10  # the power of a step longer than this many median steps is unknown
MOST_JOBS = 200  # other jobs read
BUSY = [NODE_CPU[kind].best for kind in ("user", "nice", "system", "irq", "softirq")]
IDLE = [NODE_CPU[kind].best for kind in ("idle", "iowait")]
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
METHOD = (
    "from sample to sample, each node's is shared by CPU time among its jobs and what no job used; idle CPUs' power is "
    "borne by those that ran"
)


@dataclass(frozen=True)
class Steps:
    """The energy of a node, in steps from one sample to the next."""

    source: str  # ``rapl`` or ``ipmi``
    starts: Floats  # seconds since 1970
    ends: Floats
    joules: Floats

    @classmethod
    def between(cls, source: str, times: npt.NDArray[np.number], joules: Floats) -> Steps:
        """Return the steps between consecutive times, without those of unknown energy."""
        good = ~np.isnan(joules)
        at = times.astype(np.float64)
        return cls(source, at[:-1][good], at[1:][good], joules[good])


@dataclass(frozen=True)
class Share:
    """The shares of a node's energy during the job; NaN in unshared steps."""

    steps: Steps
    job: Floats  # the job's share of each step, joules
    others: Floats | None  # that of other jobs; None if these are unknown
    nobody: Floats  # the rest
    busy_s: float  # CPU time used in the shared steps; NaN if unknown
    available_s: float  # CPU time available in them


def total(values: Floats) -> Number:
    """Return the sum of the known values; None if there are none."""
    known = values[~np.isnan(values)]
    return float(known.sum()) if len(known) else None


class NodeEnergy(NamedTuple):
    """The energy of one node, and its shares."""

    source: str
    job_joules: Number
    others_joules: Number
    nobody_joules: Number
    unshared_joules: float
    joules: float
    busy_s: float
    available_s: float
    covered_s: float  # the part of the job's time on it with known energy
    knows_others: bool  # whether the other jobs are known


def node_energy(share: Share, stay: Stay) -> NodeEnergy:
    """Return the sums of the shares of a node."""
    steps = share.steps
    within = np.minimum(steps.ends, stay.last) - np.maximum(steps.starts, stay.start)
    return NodeEnergy(
        steps.source,
        total(share.job),
        None if share.others is None else total(share.others),
        total(share.nobody),
        float(steps.joules[np.isnan(share.job)].sum()),
        float(steps.joules.sum()),
        share.busy_s,
        share.available_s,
        float(within[within > 0].sum()),
        share.others is not None,
    )


def energy_of(nodes: Sequence[NodeEnergy], wall_s: float, gpu_joules: Number) -> Energy:
    """Return the energy of all hosts together, with the shares of those with known energy.

    Args:
        nodes: those with known energy.
        wall_s: time of the job, summed over all its nodes.
        gpu_joules: energy of its GPUs.
    """
    if not nodes:
        return Energy(gpu_joules=gpu_joules)
    is_shared = all(node.knows_others for node in nodes)
    return Energy(
        job_joules=added(node.job_joules for node in nodes),
        others_joules=added(node.others_joules for node in nodes) if is_shared else None,
        nobody_joules=added(node.nobody_joules for node in nodes),
        unshared_joules=math.fsum(node.unshared_joules for node in nodes),
        nodes_joules=math.fsum(node.joules for node in nodes),
        source=" and ".join(sorted({node.source for node in nodes})),
        method=METHOD,
        covered_ratio=min(1.0, math.fsum(node.covered_s for node in nodes) / wall_s) if wall_s else None,
        busy_ratio=ratio(math.fsum(node.busy_s for node in nodes), math.fsum(node.available_s for node in nodes)),
        gpu_joules=gpu_joules,
    )


@dataclass(frozen=True)
class Used:
    """Cumulative CPU time at several times, seconds; never decreasing."""

    times: Floats
    cpu_s: Floats

    def within(self, starts: Floats, ends: Floats) -> Floats:
        """Return the CPU time used in each step; 0 before the first time and after the last."""
        return np.asarray(np.interp(ends, self.times, self.cpu_s) - np.interp(starts, self.times, self.cpu_s))

    def known(self, starts: Floats, ends: Floats) -> npt.NDArray[np.bool_]:
        """Return a mask of the steps within the measured times, with a tolerance of one period and a half."""
        slack_s = 1.5 * (cadence_s(self.times.astype(np.int64), 0) or MARGIN_S)
        return np.asarray((starts >= self.times[0] - slack_s) & (ends <= self.times[-1] + slack_s))


def used(times: npt.NDArray[np.int64], values: Floats, since: float | None, cpus: float = math.inf) -> Used | None:
    """Return the CPU time from a counter in seconds, with at most these CPUs running at one time.

    A decrease is a reset of the counter. At the time `since` it was 0; None: it was not, and only its growth counts.
    """
    found = summed(times, values, cpus, since)
    if not len(found.times):
        return None
    if since is not None and since < found.times[0]:
        return Used(np.insert(found.times, 0, since), np.insert(found.values, 0, 0.0))
    return Used(found.times, found.values)


def cpus_of(busy: Used, idle: Used) -> float:
    """Return the number of CPUs of a node, from the busy and idle time of all of them."""
    span_s = float(busy.times[-1] - busy.times[0])
    return float(busy.cpu_s[-1] + idle.cpu_s[-1]) / span_s if span_s else math.inf


def _cpus_at_most(series: Series, all_s: Floats) -> float:
    """Return the highest number of CPUs of a node: the reported one, else the median of the CPU time per second."""
    reported = series.values(NODE_CPUS[1])
    if not np.isnan(reported).all():
        return float(np.nanmax(reported))
    found = rates(series.times, all_s).values
    return max(1.0, round(float(np.nanmedian(found)))) if not np.isnan(found).all() else math.inf


def shares_of(rows: JobRows, stays: Sequence[Stay], tables: Tables, span: Outline) -> dict[str, Share]:
    """Return the job's share of the energy of some hosts, if known; `tables` are those of the nodes."""
    around = _Around(rows, stays, tables, span)
    steps = {host: found for host, found in around.steps().items() if len(found.joules)}
    if not steps:
        return {}
    node = around.node_cpu()
    others = around.other_cpu(rows.job, sorted(steps), node)
    return {
        stay.host: share(stay, steps[stay.host], others.get(stay.host), node.get(stay.host))
        for stay in stays
        if stay.host in steps
    }


def share(stay: Stay, steps: Steps, others: Sequence[Used] | None, node: tuple[Used, Used] | None) -> Share:
    """Divide the energy of a node by the CPU times of its other jobs and of itself, busy and idle, as far as known."""
    bounds = steps.starts, steps.ends
    nothing = np.zeros(len(steps.joules))
    own = _job_cpu(stay)
    job = np.full(len(steps.joules), np.nan) if own is None else own.within(*bounds)
    rest = sum([one.within(*bounds) for one in others or ()], nothing)
    busy, idle, known = nothing, nothing, np.full(len(steps.joules), others is not None)
    if node is not None:
        busy, idle = [one.within(*bounds) for one in node]
        known = node[0].known(*bounds) & node[1].known(*bounds)
    all_s = np.maximum(busy, job + rest)
    by_cpu = np.divide(steps.joules, all_s, out=nothing.copy(), where=all_s > 0)
    by_cpu[~known] = np.nan
    shared = ~np.isnan(by_cpu * job)
    return Share(
        steps=steps,
        job=job * by_cpu,
        others=None if others is None else np.where(shared, rest * by_cpu, np.nan),
        nobody=np.where(shared, steps.joules - (job + rest) * by_cpu, np.nan),
        busy_s=float(busy[shared].sum()),
        available_s=float((busy + idle)[shared].sum()),
    )


def _job_cpu(stay: Stay) -> Used | None:
    for source in CPU_USED.sources:
        series = stay.tables.get(source.table)
        found = None
        if series is not None:
            most = float(ceiling(source.table, source.column, stay.capacity))
            found = used(
                series.times, series.values(source.column) * source.factor, stay.start if stay.whole else None, most
            )
        if found is not None:
            return found
    return None


class _Around:
    """Stored rows of some nodes of a job, from a little before it to a little after."""

    def __init__(self, rows: JobRows, stays: Sequence[Stay], tables: Tables, span: Outline) -> None:
        self._rows = rows
        self._tables = tables
        self._stays = {stay.host: stay for stay in stays}
        self._since = span.start - MARGIN_S
        self._until = span.last + MARGIN_S

    def _read(self, table: str, columns: Sequence[str]) -> list[Series]:
        there = [column for column in columns if column in self._tables.get(table, ())]
        if not there:
            return []
        return self._rows.read(RowQuery(NODE, table, there, self._since, self._until, list(self._stays)))

    def steps(self) -> dict[str, Steps]:
        """Return the energy of each node during the job: from RAPL's zones, else from the power reported by the BMC."""
        found: dict[str, Steps] = {}
        for table, columns, steps_of in (  # a later one is preferred
            (IPMI, [source.column for source in NODE_MEAN_POWER.sources], power_steps),
            (RAPL, [f"counter_{n}" for n in (*PACKAGES, *DRAMS)], column_steps),
            (ZONES, ["zone", "name", ZONE_ENERGY.best.column], zone_steps),
        ):
            for series in self._read(table, columns):
                steps = steps_of(series)
                if len(steps.joules):
                    found[series.host] = steps
        for host, steps in found.items():
            stay = self._stays[host]
            found[host] = _within(steps, stay.start, max(stay.last, stay.start + 1))
        return found

    def node_cpu(self) -> dict[str, tuple[Used, Used]]:
        """Return the CPU time of each node, busy and idle."""
        found = {}
        for series in self._read(WHOLE, [*[source.column for source in (*BUSY, *IDLE)], NODE_CPUS[1]]):
            ran, idled = [
                np.sum([series.values(source.column) for source in sources], axis=0) * sources[0].factor
                for sources in (BUSY, IDLE)
            ]
            cpus = _cpus_at_most(series, ran + idled)
            busy, idle = [used(series.times, values, None, cpus) for values in (ran, idled)]
            if busy is not None and idle is not None:
                found[series.host] = busy, idle
        return found

    def other_cpu(self, job: int, hosts: Sequence[str], node: Mapping[str, tuple[Used, Used]]) -> dict[str, list[Used]]:
        """Return the CPU time of the other jobs on each host with known other jobs; `node` is that of the nodes."""
        there = self._other_jobs(job, hosts)
        found: dict[str, list[Used]] = {host: [] for host, jobs in there.items() if len(jobs) <= MOST_JOBS}
        hosts_of: dict[int, list[str]] = defaultdict(list)
        for host in found:
            for other in there[host]:
                hosts_of[other].append(host)
        for other, on in sorted(hosts_of.items()):
            for series, source in self._cpu_of(other, on):
                values = series.values(source.column) * source.factor
                # the first row of a job started during the interval is up to a period after its start
                period_s = cadence_s(series.times, 0) or 1
                came = series.times[0] - period_s if series.times[0] > self._since + 2 * period_s else None
                at_first = np.nanmin(values)
                if series.host in node and at_first > 2 * period_s * cpus_of(*node[series.host]):
                    came = None  # started before, but not measured
                most = cpus_of(*node[series.host]) if series.host in node else math.inf
                cpu = used(series.times, values, came, most)
                if cpu is not None:
                    found[series.host].append(cpu)
        return found

    def _cpu_of(self, job: int, hosts: Sequence[str]) -> list[tuple[Series, Source]]:
        found: dict[str, tuple[Series, Source]] = {}
        for source in CPU_USED.sources:
            left = [host for host in hosts if host not in found]
            for one in (
                self._rows.read(RowQuery(job, source.table, [source.column], self._since, self._until, left))
                if left
                else ()
            ):
                if not np.isnan(one.values(source.column)).all():
                    found[one.host] = one, source
        return list(found.values())

    def _other_jobs(self, job: int, hosts: Sequence[str]) -> dict[str, set[int]]:
        """Return the other jobs of each host; hosts with unknown jobs are skipped."""
        found: dict[str, set[int]] = {}
        for series in self._read(AGENT, ("jobs", "jobs_started")):
            if _is_alone(series, self._stays[series.host]):
                found[series.host] = set()
        unsure = [host for host in hosts if host not in found]
        tables = [table for table in (WHOLE, IPMI, RAPL) if "involved_jobs" in self._tables.get(table, ())]
        if not unsure or not tables:
            return found
        for series in self._rows.read(RowQuery(NODE, tables[0], ["involved_jobs"], self._since, self._until, unsure)):
            texts = np.unique(series.columns.get("involved_jobs", np.empty(0, "S1")))
            found[series.host] = {int(number) for text in texts for number in _NUMBER.findall(text_of(text))}
        return {host: jobs - {job} for host, jobs in found.items() if host not in unsure or job in jobs}


def _within(steps: Steps, first: float, last: float) -> Steps:
    """Return the steps of an interval; steps at its ends are cut."""
    inside = (steps.ends > first) & (steps.starts < last)
    starts, ends = steps.starts[inside], steps.ends[inside]
    within = np.maximum(starts, first), np.minimum(ends, last)
    return Steps(steps.source, *within, steps.joules[inside] * (within[1] - within[0]) / (ends - starts))


def _is_alone(agent: Series, stay: Stay) -> bool:
    """Return whether the agent's counts exclude any other job, even between two samples."""
    counts = np.array([agent.values("jobs"), agent.values("jobs_started")])
    here = ~np.isnan(counts).any(axis=0)  # rows of the agent as a whole
    times, (jobs, started) = agent.times[here], counts[:, here]
    first = np.searchsorted(times, stay.start, "right") - 1
    end = np.searchsorted(times, stay.last) + 1
    if first < 0 or end > len(times):
        return False
    jobs, came = jobs[first:end], np.diff(started[first:end])
    return bool(jobs.max() <= 1 and (came >= 0).all() and jobs[0] + came.sum() <= 1)


def zone_steps(series: Series) -> Steps:
    """Return the energy of processors and memory: packages and dram, two disjoint zones containing all others."""
    zones, names = series.columns.get("zone"), series.columns.get("name")
    if zones is None or names is None:
        return _NO_STEPS
    wanted = np.char.startswith(names.astype("S64"), b"package") | (names == b"dram")
    times = np.unique(series.times[wanted])
    energy = series.values(ZONE_ENERGY.best.column) * ZONE_ENERGY.best.factor
    counters = np.full((len(np.unique(zones[wanted])), len(times)), np.nan)
    for counter, zone in zip(counters, np.unique(zones[wanted])):
        rows = wanted & (zones == zone)
        counter[np.searchsorted(times, series.times[rows])] = energy[rows]
    whole = ~np.isnan(counters).any(axis=0)
    if whole.sum() < 2:
        return _NO_STEPS
    at = times[whole].astype(np.float64)  # the count lost at a reset is unknown
    return Steps.between("rapl", at, np.sum([grown(at, one, MOST_WATTS) for one in counters[:, whole]], axis=0))


_NO_STEPS = Steps("", np.empty(0), np.empty(0), np.empty(0))


def column_steps(series: Series) -> Steps:
    """Return the energy of processors and memory from Colmet 0.6's columns of energy since the row before."""
    parts = np.array([series.values(f"counter_{n}") for n in (*PACKAGES, *DRAMS)]) * UJ
    has = ~np.isnan(parts).all(axis=1)
    if len(series) < 2 or not has.any():
        return _NO_STEPS
    joules = parts[has].sum(axis=0)  # NaN where one of this node's counters could not be read
    times, at = np.unique(series.times.astype(np.float64), return_inverse=True)
    joules = np.bincount(at, joules).astype(np.float64)  # several rows may have one second
    return Steps.between("rapl", times, joules[1:])


def power_steps(series: Series) -> Steps:
    """Return the energy of the whole node from its power: the mean of two samples times the time between them."""
    mean, now = [series.values(source.column) for source in NODE_MEAN_POWER.sources]
    watts = np.where(np.isnan(mean), now, mean)
    here = ~np.isnan(watts)
    times = series.times[here].astype(np.float64)
    return Steps.between("ipmi", times, power_joules(times, watts[here]))


def power_joules(times: Floats, watts: Floats) -> Floats:
    """Return the energy of each step between samples of power, from the mean of both; NaN if unknown, as in a gap."""
    steps_s = np.diff(times)
    joules = (watts[:-1] + watts[1:]) / 2 * steps_s
    if len(steps_s):
        joules[(steps_s <= 0) | (steps_s > LONGEST_PERIODS * max(1.0, float(np.median(steps_s))))] = np.nan
    return np.asarray(joules)
