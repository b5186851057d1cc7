"""Measures: quantities that people read of jobs and nodes, each declared once with its columns.

A measure has one column, or several; the first with a value counts. All readers of stored and latest rows, the
dashboards and the page read these declarations; the only other lists of columns are those of the old dialects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

from colmet.common.schema import UNITS, Field, Unit

JOBS, NODES = "job", "node"  # scopes
CGROUP, TASKS, PROCESSES = "cgroup", "tasks", "processes"
ORIGINS = {CGROUP: "its cgroup", TASKS: "its tasks", PROCESSES: "its processes, from /proc"}
SUM, MEAN, MAX, ALL = "sum", "mean", "max", "all"  # ways to fold hosts; ALL: a sum, missing if one host's value is
TOTAL, LAST = "total", "last"  # more ways to fold the samples of one host: all growth, and the last value
BY_CPUS, BY_TASKS, BY_TIME = "cpus", "tasks", "time"  # bounds of the growth of counters of time
CGROUP_TABLE, TASKS_TABLE, PROCESSES_TABLE = "cgroup_default", "taskstats_default", "jobprocstats_default"
JOB_GPUS, GPUS_OF_JOBS, GPUS = "nvidiastats_default", "nvidiajobs_default", "nvidiagpus_default"
POWER_TABLE, ZONES = "ipmipowerstats_default", "raplzones_default"
_ORIGIN_OF = {CGROUP_TABLE: CGROUP, TASKS_TABLE: TASKS, PROCESSES_TABLE: PROCESSES}


class Source(NamedTuple):
    """A column with values of a measure; `origin` is one of `ORIGINS` if its sources count different things."""

    table: str
    column: str
    origin: str = ""

    @property
    def field(self) -> Field:
        """Return the declaration of the column."""
        return _field(self.table, self.column)

    @property
    def unit(self) -> Unit:
        """Return the unit of the column, as stored."""
        return UNITS[self.field.unit]

    @property
    def factor(self) -> float:
        """Return the factor from stored numbers to bytes, seconds, watts and fractions."""
        return self.unit.scale


@cache
def _field(table: str, column: str) -> Field:
    from colmet.common.tables import schemas  # the whole catalogue, which daemons do not need

    return next(field for field in schemas()[table].fields if field.name == column)


class Measure(NamedTuple):
    """A quantity that people read."""

    key: str  # its name in commands and replies
    label: str  # a few words, for a legend
    help: str  # a sentence; of a counter, the counted things
    scope: str  # `JOBS` or `NODES`
    sources: tuple[Source, ...]  # the best first
    hosts: str = SUM  # fold of the values of several hosts: SUM, MEAN, MAX or ALL
    time: str = TOTAL  # fold of the samples of one host: TOTAL (of counters), MEAN, MAX or LAST
    is_rate: bool = True  # whether the current value of a counter is its growth per second, and not the counter
    bound: str = ""  # bound of the growth of a time counter: BY_CPUS, BY_TASKS, BY_TIME; empty for others
    is_largest: bool = False  # whether each source may lack a part of a total, so the largest counts, not the first

    @property
    def places(self) -> list[tuple[str, str]]:
        """Return table and column of each source."""
        return [(source.table, source.column) for source in self.sources]

    @property
    def best(self) -> Source:
        """Return the first source."""
        return self.sources[0]

    @property
    def kind(self) -> str:
        """Return the kind: counter or gauge."""
        return self.best.field.kind

    @property
    def unit(self) -> Unit:
        """Return the unit of the best source, as stored."""
        return self.best.unit

    def of(self, *origins: str) -> tuple[Source, ...]:
        """Return the sources with these origins."""
        return tuple(source for source in self.sources if source.origin in origins)


def columns_of(measures: Iterable[Measure]) -> dict[str, tuple[str, ...]]:
    """Return the columns of some measures, by table."""
    found: dict[str, dict[str, None]] = {}
    for measure in measures:
        for table, column in measure.places:
            found.setdefault(table, {})[column] = None
    return {table: tuple(columns) for table, columns in found.items()}


def bounded(bound: str) -> frozenset[tuple[str, str]]:
    """Return table and column of each source with this bound of its growth."""
    return frozenset(place for measure in MEASURES.values() if measure.bound == bound for place in measure.places)


def _measure(
    scope: str, key: str, label: str, text: str, columns: str, has_origins: bool = False, **folds: Any
) -> Measure:
    """Return a measure from the names of its columns, such as "cgroup.cpu_usage taskstats.cpu_total"."""
    places = [(f"{table}_default", column) for table, _, column in [name.partition(".") for name in columns.split()]]
    sources = tuple([Source(*place, _ORIGIN_OF[place[0]] if has_origins else "") for place in places])
    return Measure(key, label, text, scope, sources, **folds)


# -- jobs --

_job = partial(_measure, JOBS)

# before Colmet 1.0 there was no cpu_total; many kernels count cpu_run_real_total by clock ticks
CPU_USED = _job(
    *("cpu_used", "CPU used", "CPU time: that of the cgroup; without one, of the tasks or processes that are known."),
    "cgroup.cpu_usage taskstats.cpu_total taskstats.cpu_run_virtual_total taskstats.cpu_run_real_total "
    "jobprocstats.cpu_time",
    has_origins=True,
    bound=BY_CPUS,
)
CPU_USER = _job("cpu_user", "user mode", "CPU time in user mode.", "cgroup.cpu_user taskstats.ac_utime", bound=BY_CPUS)
CPU_SYSTEM = _job(
    "cpu_system", "kernel", "CPU time in the kernel.", "cgroup.cpu_system taskstats.ac_stime", bound=BY_CPUS
)
CPU_UNATTRIBUTED = _job(
    *("cpu_unattributed", "unattributed", "CPU time that no known task used."),
    "cgroup.cpu_unattributed",
    time=LAST,
    bound=BY_CPUS,
)
CPUS = _job(
    *("cpus", "CPUs allocated", "CPUs that the job may run on."),
    "cgroup.cpus_allocated jobprocstats.cpus_allowed",
    time=MEAN,
)
CPU_THROTTLED = _job(
    "cpu_throttled", "throttled", "Time without a CPU by a quota, summed over CPUs.", "cgroup.throttled_time"
)
# an older colmet-node sends VmRSS alone
MEMORY = _job(
    *("memory", "memory used", "Memory that the cgroup is charged for, page cache included; else of the processes."),
    "cgroup.memory_current jobprocstats.memory_used jobprocstats.VmRSS",
    has_origins=True,
    time=MAX,
)
MEMORY_ANON = _job(
    *("memory_anon", "anonymous memory", "Memory that is neither page cache nor shared nor the kernel's."),
    "cgroup.memory_anon jobprocstats.RssAnon",
    has_origins=True,
    time=MAX,
)
MEMORY_FILE = _job("memory_file", "files", "File pages, tmpfs and shared memory.", "cgroup.memory_file", time=MAX)
MEMORY_KERNEL = _job("memory_kernel", "kernel", "Data structures of the kernel.", "cgroup.memory_kernel", time=MAX)
MEMORY_PEAK = _job(
    *("memory_peak", "memory peak", "The most memory at one time, by the kernel's own record."),
    "cgroup.memory_peak",
    time=MAX,
)
MEMORY_LIMIT = _job(
    *("memory_limit", "memory limit", "The most memory that the job may have; missing without a limit."),
    "cgroup.memory_limit",
    hosts=ALL,
    time=LAST,
)
MEMORY_SWAP = _job("memory_swap", "in swap", "Memory in swap space.", "cgroup.memory_swap", time=MAX)
MEMORY_LIMIT_HITS = _job(
    "memory_limit_hits", "limit reached", "Times the memory limit was reached.", "cgroup.memory_limit_hits"
)
OOM_KILLS = _job(
    *("oom_kills", "processes killed", "Processes that the kernel killed for lack of memory."),
    "cgroup.memory_oom_kills",
    is_rate=False,
)
MAJOR_FAULTS = _job(
    "major_faults", "page faults with I/O", "Page faults with I/O.", "cgroup.memory_pgmajfault taskstats.ac_majflt"
)
REFAULTS_ANON = _job(
    *("refaults_anon", "anonymous refaults", "Anonymous pages needed again soon after they were reclaimed."),
    "cgroup.memory_refault_anon",
)
REFAULTS_FILE = _job(
    *("refaults_file", "file refaults", "File pages needed again soon after they were reclaimed."),
    "cgroup.memory_refault_file",
)
TASKS_NOW = _job(
    *("tasks", "tasks", "Tasks of the job, threads included."),
    "cgroup.pids_current jobprocstats.tasks",
    has_origins=True,
    time=MAX,
)
TASKS_PEAK = _job(
    *("tasks_peak", "tasks at most", "The most tasks at one time, by the kernel's own record."),
    "cgroup.pids_peak",
    time=MAX,
)
TASKS_ENDED = _job(
    *("tasks_ended", "tasks ended", "Tasks that have ended, processes and threads."), "taskstats.tasks_ended"
)
IO_READ = _job(
    *("io_read", "read", "Bytes read from block devices; without a cgroup, those that its tasks are charged for."),
    "cgroup.io_read_bytes taskstats.read_bytes jobprocstats.read_bytes",
)
IO_WRITE = _job(
    *("io_write", "written", "Bytes written to block devices; without a cgroup, those that its tasks are charged for."),
    "cgroup.io_write_bytes taskstats.write_bytes jobprocstats.write_bytes",
)
# v1 cgroups count no write-back of cached writes, so over a whole job the charges of tasks come first
CHARGED_READ = _job(
    *("charged_read", "read", "Bytes that its tasks are charged for as read; else bytes of block devices."),
    "taskstats.read_bytes jobprocstats.read_bytes cgroup.io_read_bytes",
    has_origins=True,
)
CHARGED_WRITE = _job(
    *("charged_write", "written", "Bytes that its tasks are charged for as written; else bytes of block devices."),
    "taskstats.write_bytes jobprocstats.write_bytes cgroup.io_write_bytes",
    has_origins=True,
)
CALLS_READ = _job(
    *("calls_read", "read", "Bytes of read calls: page cache, pipes and network file systems included."),
    "taskstats.read_char jobprocstats.rchar",
)
CALLS_WRITE = _job(
    *("calls_write", "written", "Bytes of write calls: page cache, pipes and network file systems included."),
    "taskstats.write_char jobprocstats.wchar",
)
# xacct_add_tsk() rounds the calls of a task down to a multiple of 1024; /proc/<pid>/io does not, and lacks those of
# processes that ended before they were read
READ_CALLS = _job(
    *("read_calls", "read", "Read calls, at least."), "jobprocstats.syscr taskstats.read_syscalls", is_largest=True
)
WRITE_CALLS = _job(
    *("write_calls", "written", "Write calls, at least."),
    "jobprocstats.syscw taskstats.write_syscalls",
    is_largest=True,
)
READ_OPS = _job("read_ops", "read", "Reads of block devices.", "cgroup.io_read_ops")
WRITE_OPS = _job("write_ops", "written", "Writes to block devices.", "cgroup.io_write_ops")
WAIT_CPU = _job(
    *("wait_cpu", "waiting for a CPU", "Time of runnable tasks without a CPU."),
    "taskstats.cpu_delay_total",
    bound=BY_TASKS,
)
WAIT_IO = _job(
    "wait_io", "block I/O", "Time of tasks that wait for block devices.", "taskstats.blkio_delay_total", bound=BY_TASKS
)
WAIT_SWAP = _job(
    "wait_swap", "swap", "Time of tasks that wait for swapped memory.", "taskstats.swapin_delay_total", bound=BY_TASKS
)
WAIT_RECLAIM = _job(
    *("wait_reclaim", "memory reclaim", "Time of tasks that wait for free memory."),
    "taskstats.freepages_delay_total",
    bound=BY_TASKS,
)
SWITCHES = _job("switches", "switches", "Voluntary context switches.", "taskstats.nvcsw")
SWITCHES_INVOLUNTARY = _job(
    "switches_involuntary", "involuntary switches", "Involuntary context switches.", "taskstats.nivcsw"
)
START = _job("start", "start", "Start of the first task.", "taskstats.ac_btime", hosts=MAX, time=LAST, is_rate=False)
AGE = _job("age", "age", "Time since the oldest task began.", "taskstats.ac_etime", hosts=MAX, time=LAST, is_rate=False)
JOB_GPU_COUNT = _job("gpus", "GPUs", "GPUs that the job holds.", "nvidiastats.gpus", time=MAX)
JOB_GPU_IDLE = _job(
    "gpus_idle", "idle", "GPUs that the job holds without a process on them.", "nvidiastats.gpus_idle", time=MAX
)
JOB_GPU_USE = _job(
    "gpu_use", "GPU use", "Use of the job's GPUs, as a share.", "nvidiastats.utilization-gpu", hosts=MEAN, time=MEAN
)
JOB_GPU_MEMORY = _job("gpu_memory", "used", "Memory used on the job's GPUs.", "nvidiastats.memory-used", time=MAX)
JOB_GPU_MEMORY_TOTAL = _job(
    "gpu_memory_total", "all", "Memory of the job's GPUs.", "nvidiastats.memory-total", time=MAX
)
JOB_GPU_POWER = _job("gpu_power", "power", "Power of the job's GPUs, by the driver.", "nvidiastats.power", time=MEAN)
GPU_OF_JOB_USE = _job(
    *("gpu_process_use", "use", "Share of the time in which the job's own processes computed on a GPU."),
    "nvidiajobs.utilization_sm",
    hosts=MEAN,
    time=MEAN,
)
GPU_OF_JOB_MEMORY = _job(
    "gpu_process_memory", "memory", "Memory of the job's own processes on a GPU.", "nvidiajobs.memory_used", time=MAX
)
PRESSURE = {
    f"{what}_{how}": _job(
        f"pressure_{what}_{how}",
        text,
        f"Time in which {'all' if how == 'full' else 'some'} tasks waited for {text}.",
        f"cgroup.{what}_pressure_{how}",
        hosts=MAX,
        bound=BY_TIME,
    )
    for what, text in (("cpu", "CPU"), ("memory", "memory"), ("io", "I/O"))
    for how in ("some", "full")
}

# -- nodes --

_node = partial(_measure, NODES, time=MEAN)

NODE_CPU = {
    state: _node(
        *(f"node_cpu_{state}", label, f"CPU time of all CPUs {text}."),
        f"procstats.stat_cpu_{state}",
        time=TOTAL,
        bound=BY_CPUS,
    )
    for state, label, text in (
        ("user", "user", "in user mode"),
        ("nice", "low priority", "in user mode at low priority"),
        ("system", "system", "in the kernel"),
        ("idle", "idle", "idle"),
        ("iowait", "waiting for storage", "idle, waiting for I/O"),
        ("irq", "hardware interrupts", "in hardware interrupts"),
        ("softirq", "software interrupts", "in software interrupts"),
        ("steal", "hypervisor", "that the hypervisor gave to others"),
        ("guest", "guests", "for guests, also counted in user"),
        ("guest_nice", "guests at low priority", "for guests at low priority, also counted in low priority"),
    )
}
NODE_CPU_INTERRUPTS = ((NODE_CPU["irq"], 1), (NODE_CPU["softirq"], 1))
NODE_CPU_COUNT = _node("node_cpus", "CPUs", "CPUs that are online.", "procstats.stat_cpus", time=MAX)
NODE_MEMORY = {
    kind: _node(f"node_memory_{kind}", label, text, f"procstats.meminfo_{kind}")
    for kind, label, text in (
        ("memtotal", "all", "Usable memory."),
        ("memfree", "free", "Unused memory."),
        ("buffers", "buffers", "Raw disk blocks in memory."),
        ("cached", "files", "File pages in memory."),
        ("sreclaimable", "reclaimable", "The kernel's data structures that can be reclaimed."),
        ("slab", "kernel", "The kernel's data structures."),
        ("shmem", "shared", "Shared memory and tmpfs."),
        ("anonpages", "programs", "Anonymous pages of processes."),
        ("swaptotal", "swap", "Swap space."),
        ("swapfree", "free swap", "Unused swap space."),
    )
}
# Memory in use: shared memory cannot be given back, but counts as cached.
NODE_MEMORY_USED = (
    *((NODE_MEMORY["memtotal"], 1), (NODE_MEMORY["memfree"], -1), (NODE_MEMORY["buffers"], -1)),
    *((NODE_MEMORY["cached"], -1), (NODE_MEMORY["sreclaimable"], -1), (NODE_MEMORY["shmem"], 1)),
)
NODE_SWAP_USED = ((NODE_MEMORY["swaptotal"], 1), (NODE_MEMORY["swapfree"], -1))
NODE_LOAD = _node("node_load", "1 minute", "Runnable or blocked tasks, over 1 minute.", "procstats.loadavg_1min")
NODE_LOAD_15 = _node(
    "node_load_15", "15 minutes", "Runnable or blocked tasks, over 15 minutes.", "procstats.loadavg_15min"
)
NODE_BLOCKED = _node("node_blocked", "waiting for I/O", "Tasks that wait for I/O.", "procstats.stat_procs_blocked")
NODE_READ = _node("node_read", "read", "Bytes read from block devices.", "procstats.vmstat_pgpgin", time=TOTAL)
NODE_WRITE = _node("node_write", "written", "Bytes written to block devices.", "procstats.vmstat_pgpgout", time=TOTAL)
NODE_UPTIME = _node("node_uptime", "up", "Time since boot.", "procstats.uptime_total", time=LAST, is_rate=False)
NETWORK_RECEIVED = _node(
    *("network_received", "received", "Bytes received over InfiniBand, Omni-Path and RoCE."),
    "infinibandstats.portRcvData",
    time=TOTAL,
)
NETWORK_SENT = _node(
    *("network_sent", "sent", "Bytes sent over InfiniBand, Omni-Path and RoCE."),
    "infinibandstats.portXmitData",
    time=TOTAL,
)
LUSTRE_READ = _node("lustre_read", "read", "Bytes read from Lustre.", "lustrestats.lustre_bytes_read", time=TOTAL)
LUSTRE_WRITE = _node(
    "lustre_write", "written", "Bytes written to Lustre.", "lustrestats.lustre_bytes_write", time=TOTAL
)
LUSTRE_METADATA = _node(
    *("lustre_metadata", "metadata", "Metadata operations on Lustre: files opened, created, listed, removed, ..."),
    "lustrestats.lustre_nb_metadata",
    time=TOTAL,
)
NODE_POWER = _node(
    *("power", "node", "Power of the whole node now, by its BMC."),
    "ipmipowerstats.current_power ipmipowerstats.average_power_consumption",
)
NODE_MEAN_POWER = _node(
    *("mean_power", "node", "Power of the whole node, averaged by its BMC: what energy is made of."),
    "ipmipowerstats.average_power_consumption ipmipowerstats.current_power",
)
ZONE_ENERGY = _node(
    "zone_energy", "energy", "Energy of processors and memory, by RAPL zone.", "raplzones.energy", time=TOTAL
)
ZONE_POWER = _node("zone_power", "power", "Power of processors and memory, by RAPL zone.", "raplzones.power")
TEMPERATURE = _node(
    "temperature", "mean", "Temperatures of the node's sensors.", "temperatures.temperature", hosts=MEAN
)
GPU_USE = _node("node_gpu_use", "use", "Use of each GPU, as a share.", "nvidiagpus.utilization_gpu", hosts=MEAN)
GPU_MEMORY = _node("node_gpu_memory", "memory", "Memory used on each GPU.", "nvidiagpus.memory_used", time=MAX)
GPU_MEMORY_TOTAL = _node("node_gpu_memory_total", "all", "Memory of each GPU.", "nvidiagpus.memory_total", time=MAX)
GPU_POWER = _node("node_gpu_power", "power", "Power of each GPU, by the driver.", "nvidiagpus.power")
GPU_ENERGY = _node("node_gpu_energy", "energy", "Energy of each GPU.", "nvidiagpus.energy", time=TOTAL)
GPU_TEMPERATURE = _node(
    "node_gpu_temperature", "temperature", "Temperature of each GPU.", "nvidiagpus.temperature", hosts=MEAN
)


def _declared(values: Iterable[object]) -> Iterator[Measure]:
    for value in values:
        if isinstance(value, Measure):
            yield value
        elif isinstance(value, dict):
            yield from (one for one in value.values() if isinstance(one, Measure))


MEASURES = {measure.key: measure for measure in _declared(list(globals().values()))}
