"""Table of the processes of each job, from /proc."""

from __future__ import annotations

from colmet.common.schema import Field, Schema, counter, gauge
from colmet.common.tables.runs import RUN_FIELDS


def _io(name: str, unit: str, text: str) -> Field:
    return counter(name, unit, text, f"/proc/<pid>/io {name}")


IO_FIELDS = [
    _io("rchar", "bytes", "Bytes asked for by read calls, cache hits too."),
    _io("wchar", "bytes", "Bytes given to write calls, cached ones too."),
    _io("syscr", "count", "Read calls."),
    _io("syscw", "count", "Write calls."),
    _io("read_bytes", "bytes", "Bytes read from storage."),
    _io("write_bytes", "bytes", "Bytes written, or to be written, to storage."),
    _io("cancelled_write_bytes", "bytes", "Bytes of write_bytes cancelled by a truncation."),
]
CPU_FIELD = counter(
    "cpu_time",
    "nsec",
    "CPU time of its processes and of the ended children that they have waited for, counted in clock ticks.",
    "/proc/<pid>/stat utime, stime, cutime and cstime",
)
SCHEMA = Schema(
    "jobprocstats_default",
    "job",
    [
        *IO_FIELDS,
        gauge("VmRSS", "kbytes", "Resident memory, summed over processes.", "/proc/<pid>/statm column 2"),
        gauge("RssShmem", "kbytes", "Shared memory and tmpfs within it.", "/proc/<pid>/status RssShmem"),
        gauge("VmSize", "kbytes", "Virtual memory.", "/proc/<pid>/statm column 1"),
        Field(
            "RssAnon",
            "kbytes",
            "gauge",
            "Resident memory without files and shared memory, summed over processes; pages shared after a fork count "
            "for both. Source: /proc/<pid>/statm column 2 less column 3.",
        ),
        Field(
            "memory_used",
            "bytes",
            "gauge",
            "Memory of its processes: RssAnon, and once the files and shared memory of the process that maps most of "
            "them. In place of memory_current of cgroup_default where no cgroup counts it; without page cache that no "
            "process maps. Source: /proc/<pid>/statm.",
        ),
        gauge("processes", "count", "Its processes now.", "cgroup.procs"),
        gauge("tasks", "count", "Its tasks now, threads too.", "tasks, or cgroup.threads"),
        CPU_FIELD,
        gauge("cpus_allowed", "count", "CPUs that its processes may run on.", "/proc/<pid>/status Cpus_allowed"),
        *RUN_FIELDS,
    ],
)
