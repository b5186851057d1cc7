"""The figures of a report, computed from the rows of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from colmet.common import measures
from colmet.common.growth import summed
from colmet.common.measures import (
    CGROUP_TABLE,
    CHARGED_READ,
    CHARGED_WRITE,
    CPU_USED,
    MEMORY,
    MEMORY_ANON,
    PROCESSES,
    PROCESSES_TABLE,
    TASKS_TABLE,
    Measure,
    Source,
    columns_of,
)
from colmet.common.measures import TASKS as OF_TASKS
from colmet.report.model import Cpu, HostFigures, InputOutput, MemoryUse, Number, Shared, Whereabouts
from colmet.stored.series import NODE, RowQuery, Series
from colmet.stored.stays import JobRows, Outline, Stay, added, largest

REFAULTS = (measures.REFAULTS_ANON, measures.REFAULTS_FILE)
WAITS = {
    **{"a CPU": measures.WAIT_CPU, "block I/O": measures.WAIT_IO},
    **{"swap": measures.WAIT_SWAP, "memory": measures.WAIT_RECLAIM},
}
SAMPLES_FOR_MEMORY = 2  # of a job present at a tick

# The columns of a job used for the figures.
_READ = columns_of(
    [
        *(CPU_USED, measures.CPU_USER, measures.CPU_SYSTEM, measures.CPU_UNATTRIBUTED, measures.CPUS),
        *(measures.CPU_THROTTLED, MEMORY, MEMORY_ANON, measures.MEMORY_PEAK, measures.MEMORY_LIMIT),
        *(measures.MEMORY_SWAP, *REFAULTS, measures.MEMORY_LIMIT_HITS, measures.OOM_KILLS, measures.MAJOR_FAULTS),
        *(measures.TASKS_NOW, measures.TASKS_PEAK, CHARGED_READ, CHARGED_WRITE, measures.READ_OPS, measures.WRITE_OPS),
        *(*WAITS.values(), measures.START, measures.CALLS_READ, measures.CALLS_WRITE, measures.READ_CALLS),
        *(measures.WRITE_CALLS, measures.SWITCHES, measures.SWITCHES_INVOLUNTARY, measures.TASKS_ENDED),
    ]
)
COLUMNS: Mapping[str, tuple[str, ...]] = {**_READ, CGROUP_TABLE: ("user", *_READ[CGROUP_TABLE])}
# Figures of whole nodes, with all jobs on them.
SHARED = {
    "network_sent_bytes": measures.NETWORK_SENT,
    "network_received_bytes": measures.NETWORK_RECEIVED,
    "lustre_read_bytes": measures.LUSTRE_READ,
    "lustre_written_bytes": measures.LUSTRE_WRITE,
}


def cpu_of(stays: Sequence[Stay]) -> Cpu:
    """Return the CPU time and the allocated CPUs of all hosts."""
    origins = [source.origin for source in CPU_USED.sources if any(stay.count(source) for stay in stays)]
    used = added(stay.cpu_s for stay in stays)
    allocated = [(stay.wall_s, stay.cpus) for stay in stays if stay.cpus is not None and stay.cpu_s is not None]
    is_known = len(allocated) == len(stays)  # else a part would be taken for the whole
    return Cpu(
        used_s=used,
        source="" if used is None else next(iter(origins), ""),
        user_s=_sum(stays, measures.CPU_USER),
        system_s=_sum(stays, measures.CPU_SYSTEM),
        unattributed_s=added(_unattributed_s(stay) for stay in stays),
        cpus=added(cpus for _, cpus in allocated) if is_known else None,
        available_s=added(wall_s * cpus for wall_s, cpus in allocated) if is_known else None,
        throttled_s=_sum(stays, measures.CPU_THROTTLED),
    )


def _sum(stays: Sequence[Stay], measure: Measure) -> Number:
    """Return the growth of a counter, summed over hosts."""
    return added(stay.total(measure) for stay in stays)


def _unattributed_s(stay: Stay) -> Number:
    source = measures.CPU_UNATTRIBUTED.best
    if stay.count(source) < (1 if stay.whole else 2):
        return None
    first, last = stay.ends(source)
    found = max(0.0, last - (0 if stay.whole else first)) * source.factor
    return min(found, stay.cpu_s or 0.0)  # a part of the CPU time


def whereabouts_of(stays: Sequence[Stay]) -> Whereabouts:
    """Return the time by state: running from `cpu_of`, the rest from delay accounting."""
    waits = {name: _wait_of(stays, measure.best) for name, measure in WAITS.items()}
    notes, remedy = [], ""
    if not any(TASKS_TABLE in stay.tables for stay in stays):
        notes.append("the kernel's accounting of tasks (taskstats) was not measured")
    else:
        wrong = [name for name, (_, cannot_be) in waits.items() if cannot_be]
        if wrong:
            notes.append(
                f"the stored waits for {' and '.join(wrong)} are left out: longer than its tasks can have waited "
                "(seen of Linux 6.12 and later, and of two nodes that send under one name)"
            )
        if any(waits[name][0] is None for name in _OF_DELAYACCT if name not in wrong):
            notes.append("some waits for block I/O, swap and memory were not measured")
            remedy = "the kernel counts these waits only where kernel.task_delayacct is 1"
    cpu, block_io, swap, reclaim = [seconds for seconds, _ in waits.values()]
    return Whereabouts(
        running_s=added(stay.cpu_s for stay in stays),
        waiting_cpu_s=cpu,
        block_io_s=block_io,
        swap_s=swap,
        reclaim_s=reclaim,
        note="; ".join(notes),
        remedy=remedy,
    )


_OF_DELAYACCT = ("block I/O", "swap", "memory")


def _wait_of(stays: Sequence[Stay], source: Source) -> tuple[Number, bool]:
    """Return the seconds in a kind of wait, and whether the stored value is impossible: it is then missing."""
    found = [one for stay in stays for one in [stay.sum_of(source)] if one is not None]
    if any(one.left_out for one in found):
        return None, True
    return added(one.total for one in found), False


def memory_of(stays: Sequence[Stay]) -> MemoryUse:
    """Return the memory of the host nearest to its limit, or without limits of the host with the highest peak."""
    having = [stay for stay in stays if stay.memory_peak is not None]

    def fullness(stay: Stay) -> tuple[float, float]:
        peak = stay.memory_peak or 0.0
        return (peak / stay.memory_limit if stay.memory_limit else 0.0), peak

    counted = MemoryUse(
        limit_hits=_sum(stays, measures.MEMORY_LIMIT_HITS),
        oom_kills=_sum(stays, measures.OOM_KILLS),
        refaults=added(_sum(stays, measure) for measure in REFAULTS),
        major_faults=_sum(stays, measures.MAJOR_FAULTS),
        swap_peak_bytes=largest(stay.most(measures.MEMORY_SWAP) for stay in stays),
    )
    if not having:
        note, remedy = _why_no_memory(stays)
        return replace(counted, note=note, remedy=remedy)
    fullest = max(having, key=fullness)
    return replace(
        counted,
        host=fullest.host,
        peak_bytes=fullest.memory_peak,
        sampled=fullest.kernel_peak(measures.MEMORY_PEAK) is None,
        limit_bytes=fullest.memory_limit,
        now_bytes=fullest.latest(MEMORY),
        anon_peak_bytes=fullest.most(MEMORY_ANON),
        source=fullest.memory_source,
        total_peak_bytes=added(stay.memory_peak for stay in having),
    )


def _why_no_memory(stays: Sequence[Stay]) -> tuple[str, str]:
    """Return why no host has memory of the job, and the administrators' remedy, as far as the rows show."""
    if any(PROCESSES_TABLE in stay.tables for stay in stays):
        return (
            "the memory of its processes could not be read",
            "colmet-node could not read /proc/<pid>/statm of its processes; was it started as root?",
        )
    if all(stay.samples < SAMPLES_FOR_MEMORY for stay in stays):
        return "the job ended before the first sample of its processes, and no memory cgroup held it", ""
    return (
        "no memory cgroup held the job, and its processes were not measured",
        "an older colmet-node. For OAR set Enable_mem_cg, for Slurm ConstrainRAMSpace",
    )


def io_of(stays: Sequence[Stay]) -> InputOutput:
    """Return the I/O: bytes charged to the tasks, including cached writes; if missing, bytes of block devices."""
    moved = [_sum(stays, measure) for measure in (CHARGED_READ, CHARGED_WRITE)]
    by_tasks = any(stay.count(source) for stay in stays for source in CHARGED_READ.of(OF_TASKS, PROCESSES))
    asked = [_sum(stays, measure) for measure in (measures.CALLS_READ, measures.CALLS_WRITE)]
    calls = [_sum(stays, measure) for measure in (measures.READ_CALLS, measures.WRITE_CALLS)]
    return InputOutput(
        read_bytes=moved[0],
        written_bytes=moved[1],
        read_ops=_sum(stays, measures.READ_OPS),
        write_ops=_sum(stays, measures.WRITE_OPS),
        source="" if moved == [None, None] else "tasks" if by_tasks else "cgroup",
        asked_read_bytes=asked[0],
        asked_written_bytes=asked[1],
        read_calls=calls[0] or (None if asked[0] else calls[0]),
        write_calls=calls[1] or (None if asked[1] else calls[1]),
    )


def shared_of(rows: JobRows, stays: Sequence[Stay], tables: Mapping[str, Sequence[str]], span: Outline) -> Shared:
    """Return the bytes sent, received, read and written by some nodes from the job's start on each to its last row."""
    wanted = columns_of(SHARED.values())
    of_host = {stay.host: stay for stay in stays}
    read: dict[str, list[Series]] = {}
    for table, columns in wanted.items():
        here = [column for column in columns if column in tables.get(table, ())]
        found = rows.read(RowQuery(NODE, table, here, span.start, span.last, list(of_host))) if here else []
        read[table] = [series.within(of_host[series.host].start, of_host[series.host].last) for series in found]
    sums = {
        name: added(_growth(series, measure.best.column) for series in read[measure.best.table])
        for name, measure in SHARED.items()
    }
    return Shared(**sums)


def shared_by_all(parts: Sequence[Shared]) -> Shared:
    """Return the sums over groups of nodes."""
    return Shared(**{name: added(getattr(part, name) for part in parts) for name in SHARED})


def _growth(series: Series, column: str) -> Number:
    found = summed(series.times, series.values(column))
    return found.total if len(found.times) > 1 else None


def host_of(stay: Stay, energy_joules: Number) -> HostFigures:
    """Return the figures of one host."""
    return HostFigures(
        host=stay.host,
        first=stay.first,
        last=stay.last,
        samples=stay.samples,
        wall_s=stay.wall_s,
        cpus=stay.cpus,
        cpu_used_s=stay.cpu_s,
        memory_peak_bytes=stay.memory_peak,
        memory_limit_bytes=stay.memory_limit,
        memory_anon_peak_bytes=stay.most(MEMORY_ANON),
        read_bytes=stay.total(CHARGED_READ),
        written_bytes=stay.total(CHARGED_WRITE),
        tasks_peak=stay.tasks_peak,
        energy_joules=energy_joules,
    )
