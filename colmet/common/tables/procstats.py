"""Table of the node as a whole: uptime, memory, paging, CPU time, load."""

from __future__ import annotations

from colmet.common.schema import Field, Schema, counter, gauge


def _meminfo(key: str, text: str, unit: str = "kbytes") -> Field:
    return gauge(f"meminfo_{key.lower()}", unit, text, f"/proc/meminfo {key}")


def _vmstat(key: str, text: str, unit: str = "count") -> Field:
    return counter(f"vmstat_{key}", unit, text, f"/proc/vmstat {key}")


def _cpu(key: str, column: int, text: str) -> Field:
    return counter(f"stat_cpu_{key}", "jiffies", f"CPU time of all CPUs {text}.", f"/proc/stat cpu, column {column}")


def _stat(key: str, kind: str, text: str) -> Field:
    return Field(f"stat_{key}", "count", kind, f"{text} Source: /proc/stat {key}.")


def _load(key: str, text: str) -> Field:
    return gauge(f"loadavg_{key}", "none", text, "/proc/loadavg", "f4")


# In the order of the columns of the cpu line of /proc/stat.
CPU = [
    _cpu("user", 1, "in user mode"),
    _cpu("nice", 2, "in user mode at low priority"),
    _cpu("system", 3, "in the kernel"),
    _cpu("idle", 4, "idle"),
    _cpu("iowait", 5, "idle, waiting for I/O"),
    _cpu("irq", 6, "in hardware interrupts"),
    _cpu("softirq", 7, "in software interrupts"),
    _cpu("steal", 8, "given to others by the hypervisor; Colmet 0.6 stored it as stat_cpu_guest"),
    _cpu("guest", 9, "for guests, also counted in user"),
    _cpu("guest_nice", 10, "for guests at low priority, also counted in nice"),
]
LOAD = [
    _load("1min", "Runnable or blocked tasks, averaged over 1 minute."),
    _load("5min", "The same over 5 minutes."),
    _load("15min", "The same over 15 minutes."),
    _load("runnable", "Runnable tasks now."),
    _load("total_threads", "Tasks on the node now."),
]
SCHEMA = Schema(
    "procstats_default",
    "node",
    [
        counter("uptime_total", "sec", "Time since boot.", "/proc/uptime, column 1"),
        counter("uptime_idle", "sec", "Idle time, summed over CPUs.", "/proc/uptime, column 2"),
        _meminfo("MemTotal", "Usable memory."),
        _meminfo("MemFree", "Unused memory."),
        _meminfo("Buffers", "Raw disk blocks in memory."),
        _meminfo("Cached", "File pages in memory."),
        _meminfo("SwapCached", "Pages both in memory and in swap."),
        _meminfo("Active", "Recently used pages."),
        _meminfo("Inactive", "Less recently used pages."),
        _meminfo("Unevictable", "Unreclaimable pages."),
        _meminfo("Mlocked", "Pages locked by mlock()."),
        _meminfo("SwapTotal", "Swap space."),
        _meminfo("SwapFree", "Unused swap space."),
        _meminfo("Dirty", "Pages to be written to disk."),
        _meminfo("Writeback", "Pages being written to disk."),
        _meminfo("AnonPages", "Anonymous pages mapped by processes."),
        _meminfo("Mapped", "File pages mapped by processes."),
        _meminfo("Shmem", "Shared memory and tmpfs."),
        _meminfo("Slab", "Kernel data structures."),
        _meminfo("SReclaimable", "Reclaimable part of Slab."),
        _meminfo("SUnreclaim", "Unreclaimable part of Slab."),
        _meminfo("KernelStack", "Kernel stacks of tasks."),
        _meminfo("PageTables", "Page tables."),
        _meminfo("NFS_Unstable", "NFS pages sent but not committed; gone from recent kernels."),
        _meminfo("Bounce", "Bounce buffers of block devices."),
        _meminfo("WritebackTmp", "Temporary buffers of FUSE."),
        _meminfo("CommitLimit", "Limit of committed memory."),
        _meminfo("Committed_AS", "Committed memory."),
        _meminfo("VmallocTotal", "Size of the vmalloc area."),
        _meminfo("VmallocUsed", "Used part of the vmalloc area."),
        _meminfo("VmallocChunk", "Largest free chunk of the vmalloc area."),
        _meminfo("AnonHugePages", "Anonymous huge pages mapped by processes."),
        _meminfo("HugePages_Total", "Reserved huge pages.", "count"),
        _meminfo("HugePages_Free", "Unused huge pages.", "count"),
        _meminfo("HugePages_Rsvd", "Huge pages promised but not yet used.", "count"),
        _meminfo("HugePages_Surp", "Huge pages beyond the reserved ones.", "count"),
        _meminfo("Hugepagesize", "Size of a huge page."),
        _meminfo("DirectMap4k", "Memory mapped by the kernel in 4 kB pages."),
        _meminfo("DirectMap2M", "Memory mapped by the kernel in 2 MB pages."),
        _vmstat("pgpgin", "Read from block devices.", "kbytes"),
        _vmstat("pgpgout", "Written to block devices.", "kbytes"),
        _vmstat("pswpin", "Pages read from swap."),
        _vmstat("pswpout", "Pages written to swap."),
        _vmstat("pgfault", "Page faults."),
        _vmstat("pgmajfault", "Page faults with I/O."),
        *CPU,
        gauge("stat_cpus", "count", "Online CPUs.", "/proc/stat, its lines cpu0, cpu1, .."),
        _stat("intr", "counter", "Interrupts."),
        _stat("ctxt", "counter", "Context switches."),
        _stat("processes", "counter", "Tasks started since boot."),
        _stat("procs_blocked", "gauge", "Tasks waiting for I/O now."),
        *LOAD,
    ],
)
