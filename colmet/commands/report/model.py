"""The content of a report, independent of its format: text, JSON, a page.

A missing value is None, never 0. Times of the clock are seconds since 1970. Names of durations end in ``_s``, of sizes
in ``_bytes``, of energies in ``_joules``, of shares in ``_ratio`` (0 to 1).
"""

from __future__ import annotations

from dataclasses import dataclass

from colmet.stored.curves import Line
from colmet.stored.job_completeness import JobCompleteness
from colmet.stored.stays import Number as Number


def ratio(part: Number, whole: Number) -> Number:
    """Return part / whole; None if either is unknown, or the whole is 0."""
    return None if part is None or not whole else part / whole


def share(part: Number, whole: Number) -> Number:
    """Return part / whole, at most 1: counters are finer than the whole seconds of times."""
    found = ratio(part, whole)
    return None if found is None else min(1.0, found)


def cores_of(used_s: Number, wall_s: float, cpus: Number) -> Number:
    """Return the mean number of busy CPUs, at most `cpus`."""
    found = ratio(used_s, wall_s)
    return found if found is None or cpus is None else min(found, cpus)


@dataclass(frozen=True)
class Cpu:
    """CPU time, of all hosts.

    Attributes:
        used_s: by the job.
        source: ``cgroup`` if counted by the kernel for the job's cgroup, ``tasks`` for the sum of its tasks.
        user_s: part of it in user mode.
        system_s: part of it in the kernel.
        unattributed_s: part of it by no known task.
        cpus: allowed CPUs, all hosts together; None if unknown for any of them.
        available_s: sum over hosts of wall time times CPUs.
        throttled_s: time throttled by a quota.
    """

    used_s: Number = None
    source: str = ""
    user_s: Number = None
    system_s: Number = None
    unattributed_s: Number = None
    cpus: Number = None
    available_s: Number = None
    throttled_s: Number = None

    @property
    def used_ratio(self) -> Number:
        """The used share of the available CPU time."""
        return share(self.used_s, self.available_s)

    @property
    def system_ratio(self) -> Number:
        """The kernel's share of user + system time; on older kernels their sum, in clock ticks, is not `used_s`."""
        if self.user_s is None or self.system_s is None:
            return None
        return ratio(self.system_s, self.user_s + self.system_s)


@dataclass(frozen=True)
class Whereabouts:
    """The time of the job's tasks by state, summed over tasks: the kernel's delay accounting.

    Attributes:
        running_s: on a CPU.
        waiting_cpu_s: ready to run, without a CPU.
        block_io_s: waiting for block devices.
        swap_s: waiting for pages in swap.
        reclaim_s: waiting for memory to be freed.
        note: why some are missing; empty if none is.
    """

    running_s: Number = None
    waiting_cpu_s: Number = None
    block_io_s: Number = None
    swap_s: Number = None
    reclaim_s: Number = None
    note: str = ""


@dataclass(frozen=True)
class TimeShares:
    """The use of the job's cores: shares of wall time times cores, with a sum of 1.

    A core with a running task counts as running. Of the rest, cores count as waiting for as long as tasks waited; waits
    of several tasks at one time share that rest. The remainder is idle.

    Attributes:
        running_ratio: on a CPU.
        waiting_cpu_ratio: ready to run, without a CPU.
        block_io_ratio: waiting for block devices.
        swap_ratio: waiting for pages in swap.
        reclaim_ratio: waiting for memory to be freed.
        idle_ratio: the rest, including missing waits.
        at_once: whether the sum of the waits exceeds the time of cores without a task.
    """

    running_ratio: Number = None
    waiting_cpu_ratio: Number = None
    block_io_ratio: Number = None
    swap_ratio: Number = None
    reclaim_ratio: Number = None
    idle_ratio: Number = None
    at_once: bool = False


def shares_of(time: Whereabouts, available_s: Number) -> TimeShares:
    """Return the shares of the cores' time; all are None if that or the CPU time is unknown."""
    if time.running_s is None or not available_s:
        return TimeShares()
    running_s = min(time.running_s, available_s)
    left_s = available_s - running_s
    waits = (time.waiting_cpu_s, time.block_io_s, time.swap_s, time.reclaim_s)
    waited_s = sum(wait_s for wait_s in waits if wait_s is not None)
    part = min(1.0, left_s / waited_s) if waited_s else 1.0
    cpu, block_io, swap, reclaim = [None if wait_s is None else wait_s * part / available_s for wait_s in waits]
    idle_ratio = max(0.0, left_s - waited_s) / available_s
    return TimeShares(running_s / available_s, cpu, block_io, swap, reclaim, idle_ratio, waited_s > left_s)


@dataclass(frozen=True)
class MemoryUse:
    """Memory of the job's cgroup, page cache included, else of its processes.

    On the host with the highest use relative to its limit.

    Attributes:
        host: name of that host.
        peak_bytes: the maximum.
        sampled: whether the peak is the largest sample, so a higher one may be missing; else it is the kernel's own.
        limit_bytes: None if unlimited or unknown.
        now_bytes: in the last row.
        anon_peak_bytes: the largest sample without page cache and kernel memory.
        total_peak_bytes: the sum of the peaks of all hosts.
        swap_peak_bytes: the largest sample.
        limit_hits: number of times the limit was reached, on all hosts.
        oom_kills: processes killed by the kernel, on all hosts.
        refaults: pages needed again soon after they had been reclaimed, on all hosts.
        major_faults: page faults with I/O, on all hosts.
        source: origin of the peak: ``cgroup`` or ``processes``; empty if missing.
        note: why the peak is missing; else empty.
    """

    host: str = ""
    peak_bytes: Number = None
    sampled: bool = False
    limit_bytes: Number = None
    now_bytes: Number = None
    anon_peak_bytes: Number = None
    total_peak_bytes: Number = None
    swap_peak_bytes: Number = None
    limit_hits: Number = None
    oom_kills: Number = None
    refaults: Number = None
    major_faults: Number = None
    source: str = ""
    note: str = ""


@dataclass(frozen=True)
class InputOutput:
    """I/O on all hosts.

    Attributes:
        read_bytes: from storage.
        written_bytes: to storage.
        read_ops: on block devices.
        write_ops: on block devices.
        source: ``tasks`` for bytes charged to the job's tasks by the kernel, including cached writes and network file
            systems; ``cgroup`` for bytes of block devices.
        asked_read_bytes: by read calls, including reads from the page cache.
        asked_written_bytes: by write calls.
        read_calls: number of read calls.
        write_calls: number of write calls.
    """

    read_bytes: Number = None
    written_bytes: Number = None
    read_ops: Number = None
    write_ops: Number = None
    source: str = ""
    asked_read_bytes: Number = None
    asked_written_bytes: Number = None
    read_calls: Number = None
    write_calls: Number = None


@dataclass(frozen=True)
class Shared:
    """I/O of the nodes during the job, including that of other jobs.

    Attributes:
        network_sent_bytes: InfiniBand, Omni-Path and RoCE.
        network_received_bytes: the same.
        lustre_read_bytes: by programs.
        lustre_written_bytes: by programs.
    """

    network_sent_bytes: Number = None
    network_received_bytes: Number = None
    lustre_read_bytes: Number = None
    lustre_written_bytes: Number = None


@dataclass(frozen=True)
class GpuUse:
    """A GPU or MIG instance allocated to or used by the job.

    Attributes:
        host: name of its node.
        uuid: of the GPU or instance.
        name: product.
        held_s: known duration of the allocation.
        idle_s: part of it without a process of the job.
        use_ratio: mean share of the time with computations on the GPU.
        memory_peak_bytes: used memory, the largest sample.
        memory_bytes: installed memory.
        energy_joules: during the allocation, divided by the number of jobs sharing the GPU.
    """

    host: str
    uuid: str
    name: str = ""
    held_s: Number = None
    idle_s: Number = None
    use_ratio: Number = None
    memory_peak_bytes: Number = None
    memory_bytes: Number = None
    energy_joules: Number = None


@dataclass(frozen=True)
class Energy:
    """Energy of the nodes during the job, shared among the jobs by CPU time.

    job + others + nobody + unshared = the nodes' energy.

    Attributes:
        job_joules: the job's share.
        others_joules: the share of other jobs.
        nobody_joules: the share of CPU time outside jobs (system, daemons), and of intervals without CPU time.
        unshared_joules: of intervals with missing CPU times.
        nodes_joules: the whole energy.
        source: ``rapl`` (processors and memory), ``ipmi`` (the whole node), or both.
        method: of sharing, in a sentence.
        covered_ratio: the part of the job's time on its hosts with known energy.
        busy_ratio: used share of the nodes' CPU time, by all users.
        gpu_joules: of the job's GPUs; not included in the nodes' energy of RAPL, included in that of IPMI.
    """

    job_joules: Number = None
    others_joules: Number = None
    nobody_joules: Number = None
    unshared_joules: Number = None
    nodes_joules: Number = None
    source: str = ""
    method: str = ""
    covered_ratio: Number = None
    busy_ratio: Number = None
    gpu_joules: Number = None


@dataclass(frozen=True)
class Advice:
    """A possible improvement.

    Attributes:
        rule: name of the rule.
        text: the advice, with the figures of this job.
        because: the rule in words, with its threshold.
    """

    rule: str
    text: str
    because: str


@dataclass(frozen=True)
class HostFigures:
    """The job on one host.

    Attributes:
        host: its name.
        first: time of the first row.
        last: time of the last one.
        samples: rows of the table with most rows.
        wall_s: from the start of the job on the host to its last row.
        cpus: CPUs allowed to the job.
        cpu_used_s: CPU time.
        memory_peak_bytes: the maximum.
        memory_limit_bytes: None if unlimited or unknown.
        memory_anon_peak_bytes: the largest sample without page cache and kernel memory.
        read_bytes: from storage.
        written_bytes: to storage.
        tasks_peak: maximum number of tasks at one time.
        energy_joules: the job's share of the node's.
    """

    host: str
    first: int
    last: int
    samples: int
    wall_s: float
    cpus: Number = None
    cpu_used_s: Number = None
    memory_peak_bytes: Number = None
    memory_limit_bytes: Number = None
    memory_anon_peak_bytes: Number = None
    read_bytes: Number = None
    written_bytes: Number = None
    tasks_peak: Number = None
    energy_joules: Number = None

    @property
    def cores(self) -> Number:
        """CPUs that ran for it, on average."""
        return cores_of(self.cpu_used_s, self.wall_s, self.cpus)

    @property
    def cpu_used_ratio(self) -> Number:
        """The used share of the available CPU time."""
        return share(self.cores, self.cpus)


@dataclass(frozen=True, eq=False)
class Curve:
    """The data of a chart, at most some hundred points a host.

    Attributes:
        name: stable: ``cpu``, ``memory``, ``waiting``, ``read``, ``written``, ``gpu``, ``power``.
        title: heading of the chart.
        unit: of the values: ``cores``, ``bytes``, ``tasks``, ``bytes/s``, ``percent``, ``watts``.
        lines: one per host, by name; NaN where the line is broken.
        bound: upper bound of the values of one host (allocated CPUs, memory limit), if equal on all hosts; else None.
    """

    name: str
    title: str
    unit: str
    lines: tuple[Line, ...]
    bound: Number = None


@dataclass(frozen=True, eq=False)
class Report:
    """The report of a job.

    Attributes:
        job: its number.
        user: owner of the job; empty if unknown.
        state: ``running``, ``ended``, or ``unknown`` if its nodes have sent nothing since its last row.
        start: of its first task if known, else the first row.
        end: the last row.
        since: start of the requested interval, if any.
        until: end of the requested interval, if any.
        samples: times with rows of the job, on the host with most.
        period_s: between samples.
        hosts: by name.
        advice_withheld: why the rules were not applied; else empty.
        warnings: of the store, such as unreadable files; hosts with unknown CPU time.
    """

    job: int
    user: str
    state: str
    start: int
    end: int
    wall_s: float
    since: int | None
    until: int | None
    samples: int
    period_s: Number
    cpu: Cpu
    time: Whereabouts
    memory: MemoryUse
    io: InputOutput
    nodes: Shared
    gpus: tuple[GpuUse, ...]
    energy: Energy
    completeness: JobCompleteness
    hosts: tuple[HostFigures, ...]
    advice: tuple[Advice, ...] = ()
    advice_withheld: str = ""
    curves: tuple[Curve, ...] = ()
    switches: Number = None
    involuntary_switches: Number = None
    tasks_peak: Number = None
    warnings: tuple[str, ...] = ()

    @property
    def cores(self) -> Number:
        """CPUs that ran for it, on average."""
        return cores_of(self.cpu.used_s, self.wall_s, self.cpu.cpus)

    @property
    def shares(self) -> TimeShares:
        """The shares of its cores' time by state."""
        return shares_of(self.time, self.cpu.available_s)
