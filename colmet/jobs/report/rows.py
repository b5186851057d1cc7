"""The report of a job from its stored rows: their fold has the figures, and the rows the rest.

The rest are curves, GPUs one by one, gaps, the origin of figures, and whether the job still runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from colmet.common import measures
from colmet.common.growth import Capacity, ceiling, rates
from colmet.common.lines import Line
from colmet.common.measures import Source
from colmet.common.text import some_of
from colmet.jobs.advice import advise, withheld
from colmet.jobs.columns import Summary
from colmet.jobs.figures import Curve, GpuUse, HostFigures, MemoryUse, Number, Report, Whereabouts, added
from colmet.jobs.fold_layout import LAYOUTS
from colmet.jobs.fold_state import Count, Gauge, Head
from colmet.jobs.host_summaries import host_summaries
from colmet.jobs.job_summaries import job_figures
from colmet.jobs.report.energy import NodeEnergy, NodeRows, energy_of, total
from colmet.jobs.report.stored_fold import COLUMNS, GPU_COLUMNS, CpuTime, StoredFold, gpus_of
from colmet.jobs.summary_report import report_of
from colmet.stored import completeness
from colmet.stored.completeness import DELAY_S, GAPS, LATER_S, LEDGER, FoundRows
from colmet.stored.curves import broken, of_job, once, thinned
from colmet.stored.job_rows import HostJob, JobInterval, JobRows
from colmet.stored.series import NODE, History, RowQuery

RUNNING, ENDED, UNKNOWN = "running", "ended", "unknown"
RARE = frozenset({LEDGER, GAPS, "agent_default", "mapping_default"})  # not at every tick
WAITS_OF_DELAYACCT = ("block_io_s", "swap_s", "reclaim_s")
SAMPLES_FOR_MEMORY = 2  # of a job present at a tick
WAITS = {
    **{"waiting_cpu_s": ("a CPU", "wait_cpu_s", measures.WAIT_CPU)},
    **{"block_io_s": ("block I/O", "wait_io_s", measures.WAIT_IO)},
    **{"swap_s": ("swap", "wait_swap_s", measures.WAIT_SWAP)},
    **{"reclaim_s": ("memory", "wait_reclaim_s", measures.WAIT_RECLAIM)},
}


def gather(history: History, asked: JobInterval, now: float) -> Report | None:
    """Return the report of a job at a time; None if it has no rows; ColmetError if the store cannot be read.

    The rows of a group of hosts are in memory at a time.
    """
    rows = JobRows(history, asked, {**COLUMNS, **GPU_COLUMNS})
    span = rows.outline
    if span is None:
        return None
    tables = history.tables(NODE, span.start, span.last)
    fold = _Fold()
    energy: dict[str, NodeEnergy] = {}
    of_gpus: list[GpuUse] = []
    found: list[FoundRows] = []
    lines: Lines = defaultdict(list)
    last: dict[str, int] = {}
    periods: list[float] = []
    longest = ""
    for group in rows.groups():
        longest = longest or group[0].longest
        nodes = NodeRows(rows, group, tables, span)
        cpus = nodes.cpus()
        used = {stored.host: fold.add_host(asked.job, stored, cpus) for stored in group}
        fold.add_of_nodes(nodes)
        of_group = nodes.energy(fold, used, cpus)
        energy.update(of_group)
        of_gpus += gpus_of(rows, group, tables, span)
        found.append(completeness.found_of(rows, group, tables))
        for name, some in lines_of(group, cpus, of_group).items():
            lines[name] += some
        last.update({stored.host: stored.last for stored in group})
        periods += [stored.period_s for stored in group if stored.period_s is not None]
    if not last:  # removed meanwhile
        return None
    summaries = host_summaries(fold.fold, np.array(list(fold.slots.values())))
    report = report_of(job_figures(summaries), summaries)
    node_tables = [name for name in tables if name not in RARE]
    report = replace(
        report,
        user=report.user or next((str(one["user"]) for one in summaries if one["user"]), ""),
        state=state_of(history, asked, last, longest, node_tables, max(periods, default=0.0), now),
        samples=fold.samples(),
        since=asked.since,
        until=asked.until,
        period_s=float(np.median(periods)) if periods else None,
        cpu=replace(report.cpu, source="" if report.cpu.used_s is None else fold.origin(measures.CPU_USED.sources)),
        time=fold.time(report, summaries),
        memory=fold.memory(report),
        io=replace(report.io, source=fold.source_of_io(report)),
        gpus=tuple(of_gpus),
        energy=energy_of(list(energy.values()), report, added(gpu.energy_joules for gpu in of_gpus)),
        completeness=completeness.completeness_of(found),
        hosts=tuple([fold.host(host, energy.get(host.host)) for host in report.hosts]),
        curves=curves_of(report.hosts, lines),
        warnings=(*fold.warnings(report), *history.warnings),
        source="rows",
    )
    why = withheld(report)
    return replace(report, advice_withheld=why, advice=() if why else advise(report))


@dataclass(eq=False)
class _Fold(StoredFold):
    """The fold of a job's rows, with the origin of its figures on each host."""

    _tables: set[str] = field(default_factory=set)
    _clocks: list[str] = field(default_factory=list)
    _samples: dict[str, int] = field(default_factory=dict)
    _memory_now: dict[str, Number] = field(default_factory=dict)

    def add_host(self, job: int, stored: HostJob, cpus: Mapping[str, float]) -> CpuTime | None:
        """Fold the rows of a host."""
        by_clock = stored.by_first_clock()
        self._samples[stored.host] = max(len(series.seconds) for series in by_clock.tables.values())
        self._memory_now[stored.host] = _latest(stored, measures.MEMORY.sources)
        if by_clock.is_clock_set:
            self._clocks.append(stored.host)
        self._tables.update(stored.tables)
        return self.add(job, stored, cpus.get(stored.host, np.nan))

    def add_of_nodes(self, nodes: NodeRows) -> None:
        """Fold the counters of some of its nodes."""
        for name, table in LAYOUTS.items():
            for series in nodes.read(name, table.names) if table.is_of_node else ():
                self.add_of_node(self.slots[series.host], series)

    def samples(self) -> int:
        """Return the number of samples on the host with most, also of tables that the fold does not read."""
        return max(self._samples.values())

    def _count(self, source: Source, host: str) -> int:
        """Return the number of values of a column on a host."""
        table, slot, state = LAYOUTS[source.table], self.slots[host], self.fold.state
        if source.column in table.counters:
            return int(state.counters[table.name][slot, Count.COUNT, table.counters.index(source.column)])
        return int(state.gauges[table.name][slot, Gauge.COUNT, table.gauges.index(source.column)])

    def origin(self, sources: Sequence[Source]) -> str:
        """Return the origin of a figure: that of the first source with values on a host."""
        return next((one.origin for one in sources if any(self._count(one, host) for host in self.slots)), "")

    def host(self, host: HostFigures, energy: NodeEnergy | None) -> HostFigures:
        """Return the figures of a host with the time of its first row and its energy."""
        first = int(self.fold.state.head[self.slots[host.host], Head.FIRST])
        joules = None if energy is None else total(energy.job)
        return replace(host, first=first, samples=self._samples[host.host], energy_joules=joules)

    def time(self, report: Report, summaries: Sequence[Summary]) -> Whereabouts:
        """Return the time by state with what is missing of it, and why; impossible waits are missing."""
        if measures.TASKS_TABLE not in self._tables:
            return replace(report.time, note="the kernel's accounting of tasks (taskstats) was not measured")
        notes, remedy = [], ""
        wrong = {
            field: name
            for field, (name, column, measure) in WAITS.items()
            for host in summaries
            if host[column] is None and self._count(measure.best, str(host["host"])) > 0
        }
        if wrong:
            notes.append(
                f"the stored waits for {' and '.join(wrong.values())} are left out: longer than its tasks can have "
                "waited (seen of Linux 6.12 and later, and of two nodes that send under one name)"
            )
        if any(getattr(report.time, field) is None for field in WAITS_OF_DELAYACCT if field not in wrong):
            notes.append("some waits for block I/O, swap and memory were not measured")
            remedy = "the kernel counts these waits only where kernel.task_delayacct is 1"
        none: dict[str, Any] = dict.fromkeys(wrong)
        return replace(report.time, **none, note="; ".join(notes), remedy=remedy)

    def memory(self, report: Report) -> MemoryUse:
        """Return the memory with the origin of its peak; without one, with the reason, as far as the rows show."""
        memory = report.memory
        if memory.peak_bytes is not None:
            is_sampled = not self._count(measures.MEMORY_PEAK.best, memory.host)
            origin = next((one.origin for one in measures.MEMORY.sources if self._count(one, memory.host)), "")
            now = self._memory_now[memory.host]
            return replace(memory, sampled=is_sampled, source=origin if is_sampled else measures.CGROUP, now_bytes=now)
        if measures.PROCESSES_TABLE in self._tables:
            remedy = "colmet-node could not read /proc/<pid>/statm of its processes; was it started as root?"
            return replace(memory, note="the memory of its processes could not be read", remedy=remedy)
        if self.samples() < SAMPLES_FOR_MEMORY:
            note = "the job ended before the first sample of its processes, and no memory cgroup held it"
            return replace(memory, note=note)
        remedy = "an older colmet-node. For OAR set Enable_mem_cg, for Slurm ConstrainRAMSpace"
        note = "no memory cgroup held the job, and its processes were not measured"
        return replace(memory, note=note, remedy=remedy)

    def source_of_io(self, report: Report) -> str:
        """Return ``tasks`` if the bytes are those charged to its tasks, ``cgroup`` if those of block devices."""
        if report.io.read_bytes is None and report.io.written_bytes is None:
            return ""
        charged = measures.CHARGED_READ.of(measures.TASKS, measures.PROCESSES)
        by_tasks = any(self._count(source, host) for source in charged for host in self.slots)
        return "tasks" if by_tasks else "cgroup"

    def warnings(self, report: Report) -> Sequence[str]:
        """Return warnings about CPU time missing from the sums: no rows, or impossible values; and about clocks."""
        found = []
        unknown = [host.host for host in report.hosts if host.cpu_used_s is None]
        if unknown and len(unknown) < len(report.hosts):
            found.append(f"the CPU time on {some_of(unknown, 3)} is not known, and not in the sum")
        if self._clocks:
            found.append(
                f"the clock of {some_of(self._clocks, 3)} was set while the job ran: times are by the clock at its "
                "start"
            )
        wrong = [host for host in self.slots if self._has_left_out_cpu(host)]
        if wrong:
            found.append(
                f"rows of {some_of(wrong, 3)} have more CPU time than its CPUs can have run, and that is not in the "
                "sum: they are of two nodes of one name, or were counted before the first row"
            )
        return found

    def _has_left_out_cpu(self, host: str) -> bool:
        """Return whether impossible CPU time is not in the sum."""
        source = next((one for one in measures.CPU_USED.sources if self._count(one, host)), None)
        if source is None:
            return False
        table, slot = LAYOUTS[source.table], self.slots[host]
        left = self.fold.state.counters[table.name][slot, Count.LEFT, table.counters.index(source.column)]
        return bool(left > 0)


def _latest(stored: HostJob, sources: Sequence[Source]) -> Number:
    """Return the value of the last row of the first source with one there."""
    for source in sources:
        series = stored.tables.get(source.table)
        value = np.nan if series is None else float(series.tail(1).values(source.column)[0])
        if not np.isnan(value):
            return value * source.factor
    return None


def state_of(
    history: History,
    asked: JobInterval,
    last: dict[str, int],
    table: str,
    tables: Sequence[str],
    period_s: float,
    now: float,
) -> str:
    """Return whether the job still runs, from the stored rows: in `table` of the job and `tables` of the nodes.

    `last` are the times of the last rows by host, as they are stored.

    A job has ended if its latest nodes have later rows without it, or are silent. Else it counts as running while its
    last row is within the normal delay.
    """
    if asked.until is not None:  # rows may follow the interval
        later_rows = history.by_hosts(RowQuery(asked.job, table, [], asked.until, None, list(last)))
        for host in last:
            for series in later_rows.read([host]):
                last[series.host] = max(last[series.host], int(series.times[-1]))
    end = max(last.values())
    late_s = DELAY_S + period_s
    latest = [host for host, time in last.items() if time >= end - late_s]
    of_nodes = next((name for name in completeness.NODE_TABLES if name in tables), next(iter(sorted(tables)), ""))
    later = history.read(RowQuery(NODE, of_nodes, [], end - LATER_S, end + LATER_S, latest)) if of_nodes else []
    gone = {series.host for series in later if completeness.is_past(series.times, last[series.host])}
    if gone and all(host in gone or now - last[host] > late_s for host in latest):
        return ENDED
    return RUNNING if now - end <= late_s else UNKNOWN


MOST_POINTS = 400  # of a line

# Name, title, unit, whether it is a rate, and the sources; the first one present on a host is drawn.
CURVES: Sequence[tuple[str, str, str, bool, Sequence[Source]]] = (
    ("cpu", "CPU", "cores", True, measures.CPU_USED.sources),
    ("memory", "Memory", "bytes", False, measures.MEMORY.sources),
    ("waiting", "Waiting for a CPU", "tasks", True, measures.WAIT_CPU.sources),
    ("read", "Read", "bytes/s", True, measures.CHARGED_READ.of(measures.TASKS, measures.PROCESSES)),
    ("written", "Written", "bytes/s", True, measures.CHARGED_WRITE.of(measures.TASKS, measures.PROCESSES)),
    ("gpu", "GPU", "percent", False, measures.JOB_GPU_USE.sources),
)


Lines = dict[str, list[Line]]  # by name of a curve


def lines_of(hosts: Sequence[HostJob], cpus: Mapping[str, float], energy: Mapping[str, NodeEnergy]) -> Lines:
    """Return the lines of some hosts, from the job's rows, the CPUs of its nodes, and its shares of their energy."""
    return {
        **{name: _lines(hosts, cpus, sources, is_rate) for name, _, _, is_rate, sources in CURVES},
        "power": _power(energy),
    }


def curves_of(hosts: Sequence[HostFigures], lines: Mapping[str, Sequence[Line]]) -> tuple[Curve, ...]:
    """Return all curves with lines."""
    bounds = {
        "cpu": _same([host.cpus for host in hosts]),
        "memory": _same([host.memory_limit_bytes for host in hosts]),
        "gpu": 100.0,
    }
    found = [Curve(name, title, unit, tuple(lines[name]), bounds.get(name)) for name, title, unit, _, _ in CURVES]
    found.append(Curve("power", "Power, the job's share", "watts", tuple(lines["power"])))
    return tuple([curve for curve in found if curve.lines])


def _same(values: Sequence[Number]) -> Number:
    return values[0] if len(set(values)) == 1 else None


def _lines(hosts: Sequence[HostJob], cpus: Mapping[str, float], sources: Sequence[Source], is_rate: bool) -> list[Line]:
    lines = []
    for stored in hosts:
        for source in sources:
            series = stored.tables.get(source.table)
            if series is None:
                continue
            values = series.values(source.column) * source.unit.factor
            if not np.isnan(values).all():
                if is_rate:
                    most = float(ceiling(source.table, source.column, _capacity(stored, cpus)))
                    times, _, values = rates(series.times, values, most)
                else:
                    times, values = broken(*once(series.times, values))
                if not np.isnan(values).all():
                    lines.append(thinned(Line(stored.host, "", times, values), MOST_POINTS))
                break
    return lines


def _capacity(stored: HostJob, cpus: Mapping[str, float]) -> Capacity:
    """Return the CPUs and tasks of the job on a host, as far as known."""
    series = stored.tables.get(measures.CGROUP_TABLE)
    found = Capacity() if series is None else of_job(series)
    return found._replace(cpus=cpus.get(stored.host, math.nan)) if np.isnan(found.cpus) else found


def _power(energy: Mapping[str, NodeEnergy]) -> list[Line]:
    lines = [Line(host, "", *broken(one.ends, one.job / (one.ends - one.starts))) for host, one in energy.items()]
    return [thinned(line, MOST_POINTS) for line in lines if not np.isnan(line.values).all()]
