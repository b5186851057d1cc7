"""Tables of the tasks of each job: the kernel's accounting, its processes in /proc, and perf events."""

from __future__ import annotations

from colmet.common.schema import Field, Schema, counter, gauge
from colmet.common.tables import RUN_FIELDS


def _taskstat(name: str, unit: str, text: str, fold: str = "sum") -> Field:
    return counter(name, unit, text, f"struct taskstats.{name}", fold)


TASKSTATS = Schema(
    "taskstats_default",
    "job",
    [
        _taskstat("cpu_count", "count", "Times a task waited for a CPU."),
        _taskstat("cpu_delay_total", "nsec", "Time runnable but without a CPU."),
        _taskstat("blkio_count", "count", "Waits for synchronous block I/O; needs kernel.task_delayacct=1."),
        _taskstat("blkio_delay_total", "nsec", "Time in these waits; needs kernel.task_delayacct=1."),
        _taskstat("swapin_count", "count", "Waits for pages to come in from swap; needs kernel.task_delayacct=1."),
        _taskstat("swapin_delay_total", "nsec", "Time in these waits; needs kernel.task_delayacct=1."),
        _taskstat("cpu_run_real_total", "nsec", "CPU time, user and system; on many kernels counted by clock ticks."),
        _taskstat("cpu_run_virtual_total", "nsec", "CPU time as the scheduler measured it, to the nanosecond."),
        _taskstat("ac_btime", "ts_date", "Start of the first task.", fold="min"),
        _taskstat("ac_etime", "usec", "Age of the oldest task.", fold="max"),
        _taskstat("ac_utime", "usec", "CPU time in user mode."),
        _taskstat("ac_stime", "usec", "CPU time in the kernel."),
        _taskstat("ac_minflt", "count", "Page faults without I/O."),
        _taskstat("ac_majflt", "count", "Page faults with I/O."),
        _taskstat("coremem", "mbytes-usec", "Resident memory, integrated over CPU time."),
        _taskstat("virtmem", "mbytes-usec", "Virtual memory, integrated over CPU time."),
        _taskstat("read_char", "bytes", "Bytes asked for by read calls, cache hits too."),
        _taskstat("write_char", "bytes", "Bytes given to write calls, cached ones too."),
        _taskstat("read_syscalls", "count", "Read calls."),
        _taskstat("write_syscalls", "count", "Write calls."),
        _taskstat("read_bytes", "bytes", "Bytes read from storage."),
        _taskstat("write_bytes", "bytes", "Bytes written, or to be written, to storage."),
        _taskstat("cancelled_write_bytes", "bytes", "Bytes of write_bytes cancelled by a truncation."),
        _taskstat("nvcsw", "count", "Voluntary context switches."),
        _taskstat("nivcsw", "count", "Involuntary context switches."),
        _taskstat("ac_utimescaled", "usec", "User CPU time, scaled by the CPU's frequency if the kernel supports it."),
        _taskstat(
            "ac_stimescaled", "usec", "System CPU time, scaled by the CPU's frequency if the kernel supports it."
        ),
        _taskstat(
            "cpu_scaled_run_real_total", "nsec", "CPU time, scaled by the CPU's frequency if the kernel supports it."
        ),
        _taskstat("freepages_count", "count", "Waits for memory reclaim; needs kernel.task_delayacct=1."),
        _taskstat("freepages_delay_total", "nsec", "Time in these waits; needs kernel.task_delayacct=1."),
        Field(
            "cpu_total",
            "nsec",
            "counter",
            "CPU time of all tasks that is known to be the job's: cpu_run_virtual_total. By netlink it lacks what "
            "tasks used after their records. Source: task_struct.se.sum_exec_runtime, struct taskstats.",
        ),
        counter(
            *("tasks_ended", "count", "Tasks (processes and threads) that have ended; missing without exit records."),
            "sched_process_exit, exit records",
        ),
        *RUN_FIELDS,
    ],
)


def _record_count(name: str, text: str) -> Field:
    return counter(name, "count", text, "the taskstats backend")


TASKSTATS_COUNTERS = (
    _record_count("exit_records", "Exit records sent by the kernel."),
    _record_count("exit_records_lost", "Exit records known to be lost."),
    _record_count("exit_overflows", "Overflows of the kernel's buffer for exit records (ENOBUFS)."),
    _record_count("exits_known", "Ended tasks attributed to the job of an earlier tick."),
    _record_count("exits_by_fork", "Ended tasks unseen by any tick, attributed by their fork event."),
    _record_count("exits_by_parent", "0; earlier versions attributed ended tasks to their parent's job."),
    _record_count("exits_other", "Ended tasks without a known job."),
    _record_count("fork_events", "Fork events sent by the kernel."),
    _record_count("fork_overflows", "Overflows of the kernel's buffer for fork events (ENOBUFS)."),
    _record_count("answers_lost", "Lost answers for live tasks, requested again."),
    _record_count("delays_implausible", "Growths of a task's delay dropped, longer than it can have waited."),
    _record_count("state_failures", "Failed saves of the state for the next start."),
    _record_count("jobs_full", "Directories of jobs without room in the kernel's map."),
    _record_count("tasks_full", "Tasks without room in the kernel's map, counted at their ends alone."),
    _record_count("late_moves", "Moves of tasks that a reading alone has seen."),
    _record_count("threads_beyond", "Moves of processes with more than 1,024 threads."),
    _record_count("too_deep", "Events of tasks in cgroups more than 24 levels below a job's."),
    _record_count("missed_ends", "Tasks whose last event the kernel did not report."),
    gauge("kernel_accounting_on", "count", "1 while the kernel adds up tasks by job.", "the taskstats backend"),
    gauge("exit_records_on", "count", "1 while the kernel sends exit records.", "the taskstats backend"),
    gauge("fork_events_on", "count", "1 while the kernel reports forks.", "the taskstats backend"),
)


def _process_io(name: str, unit: str, text: str) -> Field:
    return counter(name, unit, text, f"/proc/<pid>/io {name}")


IO_FIELDS = [
    _process_io("rchar", "bytes", "Bytes asked for by read calls, cache hits too."),
    _process_io("wchar", "bytes", "Bytes given to write calls, cached ones too."),
    _process_io("syscr", "count", "Read calls."),
    _process_io("syscw", "count", "Write calls."),
    _process_io("read_bytes", "bytes", "Bytes read from storage."),
    _process_io("write_bytes", "bytes", "Bytes written, or to be written, to storage."),
    _process_io("cancelled_write_bytes", "bytes", "Bytes of write_bytes cancelled by a truncation."),
]
CPU_FIELD = counter(
    "cpu_time",
    "nsec",
    "CPU time of its processes and of the ended children that they have waited for, counted in clock ticks.",
    "/proc/<pid>/stat utime, stime, cutime and cstime",
)
JOBPROC = Schema(
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


MAX_EVENTS = 5
_PERF = "perf_event_open(2), PERF_FLAG_PID_CGROUP"


def _perf_counter(number: int) -> Field:
    text = (
        f"Events of the job since its previous row: event number {number} of --perfhw-list, named in mapping_default; "
        "scaled up if the event had a counter for a part of the time only."
    )
    return gauge(f"counter_{number}", "count", text, _PERF)


def _perf_scale(number: int) -> Field:
    text = f"Share of the job's CPU time with a counter for event {number}; 1 if nothing was scaled."
    return gauge(f"scale_{number}", "none", text, f"{_PERF}, time running / time enabled", "f8")


_NUMBERS = range(1, MAX_EVENTS + 1)
PERFHW = Schema("perfhwstats_default", "job", [*map(_perf_counter, _NUMBERS), *map(_perf_scale, _NUMBERS)])

PERFHW_COUNTERS = (
    counter("perf_jobs_uncounted", "count", "Jobs whose events could not be opened at first.", "the perfhw backend"),
    counter("perf_fd_shortages", "count", "Shortages of descriptors for a job's events.", "the perfhw backend"),
    counter("perf_yields", "count", "Events closed for a user's own perf.", "the perfhw backend"),
    counter("perf_files_left_out", "count", "Incomplete searches for a user's own perf.", "the perfhw backend"),
    counter("perf_read_failures", "count", "Failed reads of a job's events.", "the perfhw backend"),
    counter("perf_tasks_moved", "count", "Processes put into groups of --perfhw-make-cgroup.", "the perfhw backend"),
    counter("perf_group_failures", "count", "Failures to make, fill or remove such groups.", "the perfhw backend"),
)
