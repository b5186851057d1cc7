"""All that a report says, whatever it is shown as: text, JSON, a page.

A value that was not measured is None, never 0. Times of the clock are seconds since 1970; durations end in ``_s``,
sizes in ``_bytes``, energies in ``_joules``; a share ends in ``_ratio`` and is 1 where it is all.
"""

from __future__ import annotations

from dataclasses import dataclass

from colmet.stored.curves import Line
from colmet.stored.job_completeness import JobCompleteness
from colmet.stored.stays import Number as Number


def ratio(part: Number, whole: Number) -> Number:
    """One by the other; None where either is not known, or nothing can be shared."""
    return None if part is None or not whole else part / whole


def share(part: Number, whole: Number) -> Number:
    """A ratio of something that cannot be more than the whole: times are whole seconds, counters are not."""
    found = ratio(part, whole)
    return None if found is None else min(1.0, found)


def cores_of(used_s: Number, wall_s: float, cpus: Number) -> Number:
    """CPUs that ran on average, and no more than there were."""
    found = ratio(used_s, wall_s)
    return found if found is None or cpus is None else min(found, cpus)


@dataclass(frozen=True)
class Cpu:
    """CPU time, of all hosts.

    Attributes:
        used_s: by the job.
        source: ``cgroup`` where the kernel counted it for the job's cgroup, ``tasks`` where it is the sum of its tasks.
        user_s: of it in user mode.
        system_s: of it in the kernel.
        unattributed_s: of it by no known task.
        cpus: that it may run on, all hosts together; None where that is not known of each.
        available_s: wall time of each host by its CPUs.
        throttled_s: kept from running by a quota.
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
        """Of what was available."""
        return share(self.used_s, self.available_s)

    @property
    def system_ratio(self) -> Number:
        """The part of the CPU time that was in the kernel; older kernels count by clock ticks, not as all of it."""
        if self.user_s is None or self.system_s is None:
            return None
        return ratio(self.system_s, self.user_s + self.system_s)


@dataclass(frozen=True)
class Whereabouts:
    """Where the time of the job's tasks went, summed over tasks: the kernel's delay accounting.

    Attributes:
        running_s: on a CPU.
        waiting_cpu_s: ready to run, without a CPU.
        block_io_s: waiting for block devices.
        swap_s: waiting for pages in swap.
        reclaim_s: waiting for memory to be freed.
        note: why some are missing; empty where none is.
    """

    running_s: Number = None
    waiting_cpu_s: Number = None
    block_io_s: Number = None
    swap_s: Number = None
    reclaim_s: Number = None
    note: str = ""


@dataclass(frozen=True)
class TimeShares:
    """How the time of the job's cores was spent: shares of wall time by cores, which add up to 1.

    A core that runs a task runs. Of the rest, cores count as waiting for as long as tasks waited; where several tasks
    waited at one time, the waits share the rest. What is left is idle.

    Attributes:
        running_ratio: on a CPU.
        waiting_cpu_ratio: ready to run, without a CPU.
        block_io_ratio: waiting for block devices.
        swap_ratio: waiting for pages in swap.
        reclaim_ratio: waiting for memory to be freed.
        idle_ratio: the rest; waits that were not measured are in it.
        at_once: whether tasks waited longer in all than the cores did not run.
    """

    running_ratio: Number = None
    waiting_cpu_ratio: Number = None
    block_io_ratio: Number = None
    swap_ratio: Number = None
    reclaim_ratio: Number = None
    idle_ratio: Number = None
    at_once: bool = False


def shares_of(time: Whereabouts, available_s: Number) -> TimeShares:
    """The shares of some time by cores; all are None where that, or the CPU time, is not known."""
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

    On the host that had most of it in relation to its limit.

    Attributes:
        host: which host that is.
        peak_bytes: the most at one time.
        sampled: whether the peak is the largest sample, and may have been missed; else the kernel's own.
        limit_bytes: None where there is none, or it is not known.
        now_bytes: in the last row.
        anon_peak_bytes: the most that was neither page cache nor the kernel's, of all samples.
        total_peak_bytes: the peaks of all hosts together.
        swap_peak_bytes: of all samples.
        limit_hits: times that the limit was reached, on all hosts.
        oom_kills: processes that the kernel killed, on all hosts.
        refaults: pages needed again soon after they had been reclaimed, on all hosts.
        major_faults: page faults with I/O, on all hosts.
        source: where the peak is from: ``cgroup`` or ``processes``; empty where it was not measured.
        note: why it was not measured; empty where it was.
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
    """What was read and written, on all hosts.

    Attributes:
        read_bytes: from storage.
        written_bytes: to storage.
        read_ops: on block devices.
        write_ops: on block devices.
        source: ``tasks`` where the bytes are those that the kernel charges the job's tasks for, cached writes and
            network file systems too; ``cgroup`` where they are those of block devices.
        asked_read_bytes: by read calls, whatever the page cache has.
        asked_written_bytes: by write calls.
        read_calls: how many of them.
        write_calls: how many of them.
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
    """What the nodes did while the job was there: that of other jobs is in it, where there were any.

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
    """A GPU or MIG instance that the job held or used.

    Attributes:
        host: where it is.
        uuid: which one.
        name: product.
        held_s: for how long it is known to have been the job's.
        idle_s: of it without a process of the job.
        use_ratio: mean share of the time in which something computed on it.
        memory_peak_bytes: the most that was used there, of all samples.
        memory_bytes: that it has.
        energy_joules: while it was the job's, divided by the jobs that had it at the time.
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
    """Energy of the nodes while the job was there, shared among the jobs by CPU time.

    job + others + nobody + unshared are all of the nodes' energy.

    Attributes:
        job_joules: the job's share.
        others_joules: that of other jobs.
        nobody_joules: by the CPU time that no job used: system, daemons, and intervals in which no CPU ran.
        unshared_joules: of intervals in which CPU times are missing.
        nodes_joules: all of it.
        source: ``rapl`` (processors and memory), ``ipmi`` (the whole node), or both.
        method: how, in a sentence.
        covered_ratio: the part of the job's time on its hosts of which the energy is known.
        busy_ratio: CPU time of the nodes that was used by anyone.
        gpu_joules: of the job's GPUs, beside the nodes' energy as RAPL tells it; in it as IPMI tells it.
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
    """What could be done better.

    Attributes:
        rule: its name.
        text: with the figures of this job.
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
        samples: rows of the table that has most.
        wall_s: from the start of the job on it to its last row.
        cpus: that the job may run on.
        cpu_used_s: CPU time.
        memory_peak_bytes: the most at one time.
        memory_limit_bytes: None where there is none, or it is not known.
        memory_anon_peak_bytes: the most that was neither page cache nor the kernel's, of all samples.
        read_bytes: from storage.
        written_bytes: to storage.
        tasks_peak: the most tasks at one time.
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
        """Of the CPU time that was available."""
        return share(self.cores, self.cpus)


@dataclass(frozen=True, eq=False)
class Curve:
    """What a chart shows, at most some hundred points a host.

    Attributes:
        name: stable: ``cpu``, ``memory``, ``waiting``, ``read``, ``written``, ``gpu``, ``power``.
        title: for people.
        unit: of the values: ``cores``, ``bytes``, ``tasks``, ``bytes/s``, ``percent``, ``watts``.
        lines: of each host, by name; NaN where the line is broken.
        bound: what the values of one host cannot go beyond (allocated CPUs, memory limit), where all hosts have the
            same; None where there is none.
    """

    name: str
    title: str
    unit: str
    lines: tuple[Line, ...]
    bound: Number = None


@dataclass(frozen=True, eq=False)
class Report:
    """A job.

    Attributes:
        job: its number.
        user: whose; empty where it is not known.
        state: ``running``, ``ended``, or ``unknown`` where nothing has come of its nodes since its last row.
        start: of its first task where that is known, else the first row.
        end: the last row.
        since: the interval that was asked for, if any.
        until: the same.
        samples: times with rows of the job, on the host that has most.
        period_s: between samples.
        hosts: by name.
        advice_withheld: why there is no advice; empty where the rules were looked at.
        warnings: of the store, such as files that could not be read; hosts of which the CPU time is not known.
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
        """How the time of its cores was spent."""
        return shares_of(self.time, self.cpu.available_s)
