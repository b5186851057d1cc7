"""Table of the kernel's counters for the cgroups of each job."""

from __future__ import annotations

from colmet.common.schema import Field, Schema, counter, gauge, label
from colmet.common.tables import RUN_FIELDS

USER_BYTES = 64


def _counter(name: str, unit: str, text: str, v1: str, v2: str) -> Field:
    return counter(name, unit, text, f"v1 {v1}; v2 {v2}")


def _gauge(name: str, unit: str, text: str, v1: str, v2: str) -> Field:
    return gauge(name, unit, text, f"v1 {v1}; v2 {v2}")


def _quota(name: str, unit: str, text: str, v2: str) -> Field:
    return _counter(name, unit, text, f"cpu.stat {name}", f"cpu.stat {v2}")


def _memory(name: str, text: str, v1: str, v2: str) -> Field:
    return _gauge(f"memory_{name}", "bytes", text, f"memory.stat total_{v1}", f"memory.stat {v2}")


def _events(name: str, text: str, key: str, v2: str = "none") -> Field:
    return _counter(f"memory_{name}", "count", text, f"memory.stat total_{key}", v2)


def _io(name: str, unit: str, text: str, v1: str, v2: str) -> Field:
    text += (
        ", on block devices, without those made of others (LVM, md). v1 counts no write-back of cached writes; missing "
        "in v1 on Linux 5.16 to 6.4 but for groups with a blkio.throttle limit, and since 6.10 until a disk has one."
    )
    return _counter(f"io_{name}", unit, text, f"blkio.throttle.{v1}", f"io.stat {v2}, summed over devices")


def _pressure(what: str, kind: str, text: str) -> Field:
    return _counter(f"{what}_pressure_{kind}", "usec", text, "none", f"{what}.pressure {kind}, total")


_UNATTRIBUTED = "CPU time of the job without a known task. Source: cpu_usage less what taskstats knows."
_KERNEL_V2 = "memory.stat kernel (Linux 5.18), else kernel_stack plus pagetables, percpu and slab"
SCHEMA = Schema(
    "cgroup_default",
    "job",
    [
        label("user", USER_BYTES, "Whose job it is, a name or a uid.", "the name of its cgroup, else its processes"),
        _counter("cpu_usage", "nsec", "CPU time.", "cpuacct.usage", "cpu.stat usage_usec"),
        _counter("cpu_user", "nsec", "CPU time in user mode.", "cpuacct.stat user", "cpu.stat user_usec"),
        _counter("cpu_system", "nsec", "CPU time in the kernel.", "cpuacct.stat system", "cpu.stat system_usec"),
        Field("cpu_unattributed", "nsec", "gauge", _UNATTRIBUTED),
        _gauge(
            *("cpus_allocated", "count", "CPUs allowed to it."),
            *("cpuset.effective_cpus, else cpuset.cpus", "cpuset.cpus.effective"),
        ),
        _quota("nr_periods", "count", "Periods under a CPU quota.", "nr_periods"),
        _quota("nr_throttled", "count", "Periods with an exhausted quota.", "nr_throttled"),
        _quota("throttled_time", "nsec", "Time kept from running by it, summed over CPUs.", "throttled_usec"),
        _gauge("memory_current", "bytes", "All it is charged for.", "memory.usage_in_bytes", "memory.current"),
        _gauge(
            *("memory_peak", "bytes", "The most it was charged for at one time."),
            *("memory.max_usage_in_bytes", "memory.peak (Linux 5.19)"),
        ),
        _gauge(
            *("memory_limit", "bytes", "Memory limit; missing if unlimited."),
            *("memory.stat hierarchical_memory_limit", "memory.max"),
        ),
        _gauge(
            *("memory_swap_limit", "bytes", "Limit of memory and swap together; missing if unlimited."),
            *("memory.stat hierarchical_memsw_limit", "memory.max plus memory.swap.max"),
        ),
        _gauge("memory_swap", "bytes", "Swap space.", "memory.stat total_swap", "memory.swap.current"),
        _memory("anon", "Anonymous memory; in v1 the swap cache too.", "rss", "anon"),
        _memory("file", "File pages, tmpfs and shared memory.", "cache", "file"),
        _memory("shmem", "Shared memory and tmpfs.", "shmem", "shmem"),
        _gauge("memory_kernel", "bytes", "Kernel data structures.", "memory.kmem.usage_in_bytes", _KERNEL_V2),
        _memory("mapped_file", "File pages mapped by processes.", "mapped_file", "file_mapped"),
        _memory("dirty", "File pages to be written to disk.", "dirty", "file_dirty"),
        _memory("writeback", "File pages being written to disk.", "writeback", "file_writeback"),
        _memory("anon_thp", "Anonymous transparent huge pages.", "rss_huge", "anon_thp"),
        _memory("active_anon", "Recently used anonymous pages.", "active_anon", "active_anon"),
        _memory("inactive_anon", "Less recently used anonymous pages.", "inactive_anon", "inactive_anon"),
        _memory("active_file", "Recently used file pages.", "active_file", "active_file"),
        _memory("inactive_file", "Less recently used file pages.", "inactive_file", "inactive_file"),
        _memory("unevictable", "Unreclaimable pages.", "unevictable", "unevictable"),
        _events("pgfault", "Page faults.", "pgfault", "memory.stat pgfault"),
        _events("pgmajfault", "Page faults with I/O.", "pgmajfault", "memory.stat pgmajfault"),
        _events("pgpgin", "Pages it was charged for.", "pgpgin"),
        _events("pgpgout", "Pages it is no longer charged for.", "pgpgout"),
        _events(
            *("refault_anon", "Anonymous pages needed again soon after they were reclaimed: memory is short."),
            *("workingset_refault_anon", "memory.stat workingset_refault_anon (Linux 5.9)"),
        ),
        _events(
            *("refault_file", "File pages needed again soon after they were reclaimed: memory is short."),
            *("workingset_refault_file", "memory.stat workingset_refault_file (Linux 5.9)"),
        ),
        _counter("memory_limit_hits", "count", "Times its limit was reached.", "memory.failcnt", "memory.events max"),
        _counter(
            *("memory_oom_kills", "count", "Processes killed by the kernel for lack of memory."),
            *("memory.oom_control oom_kill (Linux 4.13)", "memory.events oom_kill"),
        ),
        _io("read_bytes", "bytes", "Bytes read", "io_service_bytes_recursive Read", "rbytes"),
        _io("write_bytes", "bytes", "Bytes written", "io_service_bytes_recursive Write", "wbytes"),
        _io("read_ops", "count", "Reads", "io_serviced_recursive Read", "rios"),
        _io("write_ops", "count", "Writes", "io_serviced_recursive Write", "wios"),
        _gauge("pids_current", "count", "Its tasks now, threads too.", "pids.current", "pids.current"),
        _gauge("pids_peak", "count", "The most it had at one time.", "pids.peak", "pids.peak (both Linux 6.1)"),
        _gauge("pids_limit", "count", "Limit of tasks; missing if unlimited.", "pids.max", "pids.max"),
        _counter(
            "pids_limit_hits", "count", "Tasks refused because of the limit.", "pids.events max", "pids.events max"
        ),
        _pressure("cpu", "some", "Time with a task waiting for a CPU."),
        _pressure("cpu", "full", "Time with tasks waiting for a CPU, and none running."),
        _pressure("memory", "some", "Time with a task waiting for memory."),
        _pressure("memory", "full", "Time with tasks waiting for memory, and none running."),
        _pressure("io", "some", "Time with a task waiting for I/O."),
        _pressure("io", "full", "Time with tasks waiting for I/O, and none running."),
        *RUN_FIELDS,
    ],
)

CGROUP_COUNTERS = (
    counter("file_failures", "count", "Unreadable or unparsable files of cgroups.", "the cgroup backend"),
    counter(
        *("overattributed", "count", "Rows with more CPU time attributed than the cgroup had used."),
        "the cgroup backend",
    ),
)
