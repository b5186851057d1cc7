"""The content of a report, independent of its format: text, JSON, a page.

A missing value is None, never 0. Times of the clock are seconds since 1970. Names of durations end in ``_s``, of sizes
in ``_bytes``, of energies in ``_joules``, of shares in ``_ratio`` (0 to 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from colmet.common.lines import JobCompleteness, Line

Number = Optional[float]  # None: unknown
Bound = Optional[int]  # of an interval, seconds since 1970; None without one
_ALL_GPU_TIME = 1.05  # of a GPU's time: samples of processes and of use are not of one moment


def ratio(part: Number, whole: Number) -> Number:
    """Return part / whole; None if either is unknown, or the whole is 0."""
    return None if part is None or not whole else part / whole


def added(values: Iterable[Number]) -> Number:
    """Return the sum of the known values; None without any."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


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
    """CPU time, of all hosts."""

    used_s: Number = None  # by the job
    source: str = ""  # ``cgroup`` if counted by the kernel for it, else the sum over its ``tasks``, or ``processes``
    user_s: Number = None  # part of it in user mode
    system_s: Number = None  # part of it in the kernel
    unattributed_s: Number = None  # part of it by no known task
    cpus: Number = None  # allowed CPUs, all hosts together; None if unknown for any of them
    available_s: Number = None  # sum over hosts of wall time times CPUs
    throttled_s: Number = None  # time throttled by a quota

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
    """The time of the job's tasks by state, summed over tasks: the kernel's delay accounting."""

    running_s: Number = None  # on a CPU
    waiting_cpu_s: Number = None  # ready to run, without a CPU
    block_io_s: Number = None  # waiting for block devices
    swap_s: Number = None  # waiting for pages in swap
    reclaim_s: Number = None  # waiting for memory to be freed
    note: str = ""  # why some are missing; empty if none is
    remedy: str = ""  # for the administrators of the nodes


@dataclass(frozen=True)
class TimeShares:
    """The use of the job's cores: shares of wall time times cores, with a sum of 1.

    A core with a running task counts as running. Of the rest, cores count as waiting for as long as tasks waited; waits
    of several tasks at one time share that rest. The remainder is idle.
    """

    running_ratio: Number = None
    waiting_cpu_ratio: Number = None
    block_io_ratio: Number = None
    swap_ratio: Number = None
    reclaim_ratio: Number = None
    idle_ratio: Number = None  # the rest, including missing waits
    at_once: bool = False  # whether the sum of the waits exceeds the time of cores without a task


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
    """Memory of the job's cgroup, page cache included, else of its processes; on the host nearest to its limit."""

    host: str = ""
    peak_bytes: Number = None
    sampled: bool = False  # whether the peak is the largest sample; else it is the kernel's own
    limit_bytes: Number = None  # None if unlimited or unknown
    now_bytes: Number = None  # in the last row
    anon_peak_bytes: Number = None  # the largest sample without page cache and kernel memory
    total_peak_bytes: Number = None  # the sum of the peaks of all hosts
    swap_peak_bytes: Number = None  # the largest sample
    limit_hits: Number = None  # number of times the limit was reached, on all hosts
    oom_kills: Number = None  # processes killed by the kernel, on all hosts
    refaults: Number = None  # pages needed again soon after they had been reclaimed, on all hosts
    major_faults: Number = None  # page faults with I/O, on all hosts
    source: str = ""  # origin of the peak: ``cgroup`` or ``processes``; empty if missing
    note: str = ""  # why the peak is missing; else empty
    remedy: str = ""  # for the administrators of the nodes


@dataclass(frozen=True)
class InputOutput:
    """I/O on all hosts."""

    read_bytes: Number = None  # from storage
    written_bytes: Number = None  # to storage
    read_ops: Number = None  # on block devices
    write_ops: Number = None  # on block devices
    source: str = ""  # ``tasks``: charged to tasks by the kernel, with cached writes; ``cgroup``: of block devices
    asked_read_bytes: Number = None  # by read calls, including reads from the page cache
    asked_written_bytes: Number = None  # by write calls
    read_calls: Number = None
    write_calls: Number = None


@dataclass(frozen=True)
class Shared:
    """I/O of the nodes during the job, including that of other jobs."""

    network_sent_bytes: Number = None  # by InfiniBand, Omni-Path and RoCE
    network_received_bytes: Number = None
    lustre_read_bytes: Number = None  # by programs
    lustre_written_bytes: Number = None


@dataclass(frozen=True)
class GpuUse:
    """A GPU or MIG instance allocated to or used by the job."""

    host: str
    uuid: str  # of the GPU or instance
    name: str = ""  # product
    held_s: Number = None  # known duration of the allocation
    idle_s: Number = None  # part of it without a process of the job
    use_ratio: Number = None  # mean share of the time with computations on the GPU
    memory_peak_bytes: Number = None  # used memory, the largest sample
    memory_bytes: Number = None  # installed memory
    energy_joules: Number = None  # during the allocation, divided by the number of jobs sharing the GPU

    @property
    def is_used_by_others(self) -> bool:
        """Whether it was used for longer than the job had a process on it."""
        return (self.use_ratio or 0.0) + (ratio(self.idle_s, self.held_s) or 0.0) > _ALL_GPU_TIME


@dataclass(frozen=True)
class Energy:
    """Energy of the nodes during the job, shared among the jobs by CPU time.

    job + others + nobody + unshared = the nodes' energy.
    """

    job_joules: Number = None
    others_joules: Number = None  # the share of other jobs
    nobody_joules: Number = None  # of CPU time outside jobs (system, daemons), and of intervals without CPU time
    unshared_joules: Number = None  # of intervals with missing CPU times
    nodes_joules: Number = None  # the whole energy
    source: str = ""  # ``rapl`` (processors and memory), ``ipmi`` (the whole node), or both
    method: str = ""  # of sharing, in a sentence
    covered_ratio: Number = None  # the part of the job's time on its hosts with known energy
    busy_ratio: Number = None  # used share of the nodes' CPU time, by all users
    gpu_joules: Number = None  # of the job's GPUs; not included in the nodes' energy of RAPL, included in that of IPMI


@dataclass(frozen=True)
class Advice:
    """A possible improvement."""

    rule: str
    text: str  # with the figures of this job
    because: str  # the rule in words, with its threshold


@dataclass(frozen=True)
class BatchFacts:
    """What the batch system knows of the job; None or empty for what it does not report."""

    system: str = ""  # oar, slurm or gridengine
    batch_id: str = ""  # as its commands print it
    state: str = ""  # one of `colmet.jobs.columns.STATES`
    name: str = ""
    project: str = ""
    queue: str = ""
    submitted: Bound = None
    started: Bound = None
    ended: Bound = None
    exit_code: Bound = None
    exit_signal: Bound = None
    reason: str = ""  # its own word for the end
    allocated_cores: Bound = None  # of OAR, resources
    allocated_memory_bytes: Bound = None  # on all hosts
    allocated_gpus: Bound = None
    requested_cores: Bound = None
    requested_memory_bytes: Bound = None  # on all hosts
    requested_gpus: Bound = None
    requested_walltime_s: Bound = None
    array: str = ""  # id of its array
    array_index: Bound = None
    dependency: str = ""


Batch = Optional[BatchFacts]  # None if the batch system was not asked, or does not know the job


@dataclass(frozen=True)
class Use:
    """The use of what a job held: of its walltime, of what it requested."""

    what: str  # ``cores``, ``memory``, ``gpus``, ``walltime``
    requested: Number  # CPUs, bytes, GPUs, seconds; None if it is allocated without a request
    used: Number  # likewise; of cores and GPUs, busy on average
    ratio: Number  # used of held
    grade: str = ""  # ``good``, ``low``, ``poor``, ``exceeded``; empty if it cannot be judged
    held: Number = None  # what it was given, else what it requested; None for a limit that differs by host


@dataclass(frozen=True)
class Judgement:
    """A part of the verdict."""

    what: str  # ``cores``, ``memory``, ``gpus``, ``walltime``
    text: str  # "CPU efficiency 17 %"
    grade: str  # ``good``, ``low``, ``poor``, ``exceeded``

    @property
    def sentence(self) -> str:
        """Return text and grade."""
        return f"{self.text}: {self.grade}."


@dataclass(frozen=True)
class Ending:
    """Why the job ended."""

    kind: str  # one of `colmet.jobs.columns.STATES`
    text: str  # a sentence
    remedy: str = ""  # what its user can do, a sentence or two


@dataclass(frozen=True)
class HostFigures:
    """The job on one host."""

    host: str
    first: int  # time of the first row
    last: int
    samples: int  # rows of the table with most rows
    wall_s: float  # from the start of the job on the host to its last row
    cpus: Number = None  # CPUs allowed to the job
    cpu_used_s: Number = None
    memory_peak_bytes: Number = None
    memory_limit_bytes: Number = None  # None if unlimited or unknown
    memory_anon_peak_bytes: Number = None  # the largest sample without page cache and kernel memory
    read_bytes: Number = None  # from storage
    written_bytes: Number = None  # to storage
    tasks_peak: Number = None  # maximum number of tasks at one time
    energy_joules: Number = None  # the job's share of the node's

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
    """The data of a chart, at most some hundred points a host."""

    name: str  # stable: ``cpu``, ``memory``, ``waiting``, ``read``, ``written``, ``gpu``, ``power``
    title: str
    unit: str  # of the values: ``cores``, ``bytes``, ``tasks``, ``bytes/s``, ``percent``, ``watts``
    lines: tuple[Line, ...]  # one per host, by name; NaN where the line is broken
    bound: Number = None  # of the values of a host (allocated CPUs, memory limit), if equal on all hosts


@dataclass(frozen=True, eq=False)
class Report:
    """The report of a job."""

    job: int
    user: str  # empty if unknown
    state: str  # ``running``, ``ended``, or ``unknown`` if its nodes have sent nothing since its last row
    start: int  # of its first task if known, else the first row
    end: int  # the last row
    wall_s: float
    since: Bound  # start of the requested interval, if any
    until: Bound  # end of the requested interval, if any
    samples: int  # times with rows of the job, on the host with most
    period_s: Number  # between samples
    cpu: Cpu
    time: Whereabouts
    memory: MemoryUse
    io: InputOutput
    nodes: Shared
    gpus: tuple[GpuUse, ...]
    energy: Energy
    completeness: JobCompleteness
    hosts: tuple[HostFigures, ...]  # by name
    advice: tuple[Advice, ...] = ()
    advice_withheld: str = ""  # why the rules were not applied; else empty
    curves: tuple[Curve, ...] = ()
    switches: Number = None
    involuntary_switches: Number = None
    tasks_peak: Number = None
    tasks_ended: Number = None  # processes and threads that have ended, on all hosts
    warnings: tuple[str, ...] = ()  # of the store, such as unreadable files; hosts with unknown CPU time
    batch: Batch = None
    source: str = "rows"  # ``rows`` or ``archive``: what the figures are made from
    starts: tuple[int, ...] = ()  # of all jobs with this number in the archive, the latest first

    @property
    def cores(self) -> Number:
        """CPUs that ran for it, on average."""
        return cores_of(self.cpu.used_s, self.wall_s, self.cpu.cpus)

    @property
    def shares(self) -> TimeShares:
        """The shares of its cores' time by state."""
        return shares_of(self.time, self.cpu.available_s)
