"""From the rows of a job to the figures of its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from colmet.commands.report.model import Cpu, HostFigures, InputOutput, Memory, Number, Shared, Whereabouts
from colmet.common.growth import summed
from colmet.common.measures import MEMORY, MEMORY_ANON
from colmet.stored.series import NODE, History, Series
from colmet.stored.stays import CGROUP, NS, PROCESSES, TASKS, US, Stay, added, first_of, largest

SAMPLES_FOR_MEMORY = 2  # of a job that was there at a tick

# What is read of a job: everything that a figure is made of.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    CGROUP: (
        *("user", "cpu_usage", "cpu_user", "cpu_system", "cpu_unattributed", "cpus_allocated", "throttled_time"),
        *("memory_current", "memory_peak", "memory_limit", "memory_swap", "memory_anon", "memory_refault_anon"),
        *("memory_refault_file", "memory_limit_hits", "memory_oom_kills", "memory_pgmajfault", "pids_peak"),
        *("pids_current", "io_read_bytes", "io_write_bytes", "io_read_ops", "io_write_ops"),
    ),
    TASKS: (
        *("ac_btime", "cpu_total", "cpu_run_real_total", "cpu_run_virtual_total", "ac_utime", "ac_stime"),
        *("cpu_delay_total", "blkio_delay_total", "swapin_delay_total", "freepages_delay_total", "read_bytes"),
        *("write_bytes", "read_char", "write_char", "read_syscalls", "write_syscalls", "nvcsw", "nivcsw"),
        "ac_majflt",
    ),
    PROCESSES: (
        "memory_used",
        "RssAnon",
        "VmRSS",
        "tasks",
        "read_bytes",
        "write_bytes",
        "rchar",
        "wchar",
        "syscr",
        "syscw",
    ),
}
# Of the node, for all that is on it: figures by table.
SHARED = {
    "infinibandstats_default": {"network_sent_bytes": "portXmitData", "network_received_bytes": "portRcvData"},
    "lustrestats_default": {"lustre_read_bytes": "lustre_bytes_read", "lustre_written_bytes": "lustre_bytes_write"},
}
# v1 cgroups count no write-back of what was cached, so what tasks are charged for comes first.
_MOVED = {
    kind: ((TASKS, f"{kind}_bytes", 1.0), (PROCESSES, f"{kind}_bytes", 1.0), (CGROUP, f"io_{kind}_bytes", 1.0))
    for kind in ("read", "write")
}


def cpu_of(stays: Sequence[Stay]) -> Cpu:
    """CPU time of all hosts, and what they were given."""
    by_cgroup = any(len(stay.values(CGROUP, "cpu_usage")) for stay in stays)
    used = added(stay.cpu_s for stay in stays)
    allocated = [(stay.wall_s, stay.cpus) for stay in stays if stay.cpus is not None and stay.cpu_s is not None]
    is_known = len(allocated) == len(stays)  # part of it would pass for all
    return Cpu(
        used_s=used,
        source="" if used is None else "cgroup" if by_cgroup else "tasks",
        user_s=_both(stays, (CGROUP, "cpu_user", NS), (TASKS, "ac_utime", US)),
        system_s=_both(stays, (CGROUP, "cpu_system", NS), (TASKS, "ac_stime", US)),
        unattributed_s=added(_unattributed_s(stay) for stay in stays),
        cpus=added(cpus for _, cpus in allocated) if is_known else None,
        available_s=added(wall_s * cpus for wall_s, cpus in allocated) if is_known else None,
        throttled_s=_sum(stays, CGROUP, "throttled_time", NS),
    )


def _both(stays: Sequence[Stay], *places: tuple[str, str, float]) -> Number:
    """The sum over hosts of the first of some counters that a host has."""
    return added(first_of(*[stay.total(*place) for place in places]) for stay in stays)


def _sum(stays: Sequence[Stay], table: str, column: str, factor: float = 1.0) -> Number:
    return added(stay.total(table, column, factor) for stay in stays)


def _unattributed_s(stay: Stay) -> Number:
    values = stay.values(CGROUP, "cpu_unattributed")
    if len(values) < (1 if stay.whole else 2):
        return None
    found = max(0.0, float(values[-1] - (0 if stay.whole else values[0]))) * NS
    return min(found, stay.cpu_s or 0.0)  # it is a part of that


def whereabouts_of(stays: Sequence[Stay]) -> Whereabouts:
    """Where the time went: running as `cpu_of` has it, the rest from delay accounting."""
    waits = {name: _wait_of(stays, f"{column}_delay_total") for name, column in _WAITS.items()}
    notes = []
    if not any(TASKS in stay.tables for stay in stays):
        notes.append("the kernel's accounting of tasks (taskstats) was not measured")
    else:
        wrong = [name for name, (_, cannot_be) in waits.items() if cannot_be]
        if wrong:
            notes.append(
                f"the stored waits for {' and '.join(wrong)} are left out: longer than its tasks can have waited "
                "(seen of Linux 6.12 and later, and of two nodes that send under one name)"
            )
        if any(waits[name][0] is None for name in _OF_DELAYACCT if name not in wrong):
            notes.append("the kernel counts waits for block I/O, swap and memory only where kernel.task_delayacct is 1")
    cpu, block_io, swap, reclaim = [seconds for seconds, _ in waits.values()]
    return Whereabouts(
        running_s=added(stay.cpu_s for stay in stays),
        waiting_cpu_s=cpu,
        block_io_s=block_io,
        swap_s=swap,
        reclaim_s=reclaim,
        note="; ".join(notes),
    )


_WAITS = {"a CPU": "cpu", "block I/O": "blkio", "swap": "swapin", "memory": "freepages"}
_OF_DELAYACCT = ("block I/O", "swap", "memory")


def _wait_of(stays: Sequence[Stay], column: str) -> tuple[Number, bool]:
    """Seconds in a kind of wait, and whether what is stored of it cannot have been: then it is missing."""
    found = [one for stay in stays for one in [stay.sum_of(TASKS, column, NS)] if one is not None]
    if any(one.left_out for one in found):
        return None, True
    return added(one.total for one in found), False


def memory_of(stays: Sequence[Stay]) -> Memory:
    """Memory, of the host that is nearest to its limit, or where there is none, that has most."""
    having = [stay for stay in stays if stay.memory_peak is not None]

    def fullness(stay: Stay) -> tuple[float, float]:
        peak = stay.memory_peak or 0.0
        return (peak / stay.memory_limit if stay.memory_limit else 0.0), peak

    counted = Memory(
        limit_hits=_sum(stays, CGROUP, "memory_limit_hits"),
        oom_kills=_sum(stays, CGROUP, "memory_oom_kills"),
        refaults=added(_sum(stays, CGROUP, f"memory_refault_{kind}") for kind in ("anon", "file")),
        major_faults=_both(stays, (CGROUP, "memory_pgmajfault", 1), (TASKS, "ac_majflt", 1)),
        swap_peak_bytes=largest(stay.most(CGROUP, "memory_swap") for stay in stays),
    )
    if not having:
        return replace(counted, note=_why_no_memory(stays))
    fullest = max(having, key=fullness)
    return replace(
        counted,
        host=fullest.host,
        peak_bytes=fullest.memory_peak,
        sampled=fullest.kernel_peak("memory_peak") is None,
        limit_bytes=fullest.memory_limit,
        now_bytes=fullest.latest_of(MEMORY),
        anon_peak_bytes=fullest.most_of(MEMORY_ANON),
        source=fullest.memory_source,
        total_peak_bytes=added(stay.memory_peak for stay in having),
    )


def _why_no_memory(stays: Sequence[Stay]) -> str:
    """Why no host has memory of the job, and the remedy, as far as the rows show."""
    if any(PROCESSES in stay.tables for stay in stays):
        return "colmet-node could not read /proc/<pid>/statm of its processes; was it started as root?"
    if all(stay.samples < SAMPLES_FOR_MEMORY for stay in stays):
        return "the job ended before the first sample of its processes, and no memory cgroup held it"
    return (
        "no memory cgroup held the job, and its processes were not measured (--disable-jobproc, or an older "
        "colmet-node). For OAR set Enable_mem_cg, for Slurm ConstrainRAMSpace; colmet doctor says more"
    )


def io_of(stays: Sequence[Stay]) -> InputOutput:
    """I/O: bytes that the tasks are charged for, cached writes too; where that is missing, those of block devices."""
    moved = [_both(stays, *_MOVED[kind]) for kind in ("read", "write")]
    by_tasks = any(len(stay.values(table, "read_bytes")) for stay in stays for table in (TASKS, PROCESSES))
    asked = [
        _both(stays, (TASKS, "read_char", 1), (PROCESSES, "rchar", 1)),
        _both(stays, (TASKS, "write_char", 1), (PROCESSES, "wchar", 1)),
    ]
    # xacct_add_tsk() rounds the calls of a task down to a multiple of 1024; /proc/<pid>/io does not
    calls = [
        _both(stays, (PROCESSES, "syscr", 1), (TASKS, "read_syscalls", 1)),
        _both(stays, (PROCESSES, "syscw", 1), (TASKS, "write_syscalls", 1)),
    ]
    return InputOutput(
        read_bytes=moved[0],
        written_bytes=moved[1],
        read_ops=_sum(stays, CGROUP, "io_read_ops"),
        write_ops=_sum(stays, CGROUP, "io_write_ops"),
        source="" if moved == [None, None] else "tasks" if by_tasks else "cgroup",
        asked_read_bytes=asked[0],
        asked_written_bytes=asked[1],
        read_calls=calls[0] or (None if asked[0] else calls[0]),
        write_calls=calls[1] or (None if asked[1] else calls[1]),
    )


def shared_of(history: History, stays: Sequence[Stay], tables: Mapping[str, Sequence[str]]) -> Shared:
    """What the nodes sent, received, read and wrote from the job's start on each to its last row."""
    sums = {}
    for table, columns in SHARED.items():
        here = [column for column in columns.values() if column in tables.get(table, ())]
        found = [
            series
            for stay in (stays if here else ())
            for series in history.read(NODE, table, here, stay.start, stay.last, [stay.host])
        ]
        sums.update({name: added(_growth(series, column) for series in found) for name, column in columns.items()})
    return Shared(**sums)


def _growth(series: Series, column: str) -> Number:
    found = summed(series.times, series.values(column))
    return found.total if len(found.times) > 1 else None


def host_of(stay: Stay, energy_joules: Number) -> HostFigures:
    """The figures of one host."""
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
        memory_anon_peak_bytes=stay.most_of(MEMORY_ANON),
        read_bytes=_both([stay], *_MOVED["read"]),
        written_bytes=_both([stay], *_MOVED["write"]),
        tasks_peak=stay.tasks_peak,
        energy_joules=energy_joules,
    )
