"""Table of the kernel's accounting for the tasks of each job."""

from __future__ import annotations

from colmet.common.schema import Field, Schema, counter, gauge
from colmet.common.tables.runs import RUN_FIELDS


def _counter(name: str, unit: str, text: str, fold: str = "sum") -> Field:
    return counter(name, unit, text, f"struct taskstats.{name}", fold)


SCHEMA = Schema(
    "taskstats_default",
    "job",
    [
        _counter("cpu_count", "count", "Times a task waited for a CPU."),
        _counter("cpu_delay_total", "nsec", "Time runnable but without a CPU."),
        _counter("blkio_count", "count", "Waits for synchronous block I/O; needs kernel.task_delayacct=1."),
        _counter("blkio_delay_total", "nsec", "Time in these waits; needs kernel.task_delayacct=1."),
        _counter("swapin_count", "count", "Waits for pages to come in from swap; needs kernel.task_delayacct=1."),
        _counter("swapin_delay_total", "nsec", "Time in these waits; needs kernel.task_delayacct=1."),
        _counter("cpu_run_real_total", "nsec", "CPU time, user and system; on many kernels counted by clock ticks."),
        _counter("cpu_run_virtual_total", "nsec", "CPU time as the scheduler measured it, to the nanosecond."),
        _counter("ac_btime", "ts_date", "Start of the first task.", fold="min"),
        _counter("ac_etime", "usec", "Age of the oldest task.", fold="max"),
        _counter("ac_utime", "usec", "CPU time in user mode."),
        _counter("ac_stime", "usec", "CPU time in the kernel."),
        _counter("ac_minflt", "count", "Page faults without I/O."),
        _counter("ac_majflt", "count", "Page faults with I/O."),
        _counter("coremem", "mbytes-usec", "Resident memory, integrated over CPU time."),
        _counter("virtmem", "mbytes-usec", "Virtual memory, integrated over CPU time."),
        _counter("read_char", "bytes", "Bytes asked for by read calls, cache hits too."),
        _counter("write_char", "bytes", "Bytes given to write calls, cached ones too."),
        _counter("read_syscalls", "count", "Read calls."),
        _counter("write_syscalls", "count", "Write calls."),
        _counter("read_bytes", "bytes", "Bytes read from storage."),
        _counter("write_bytes", "bytes", "Bytes written, or to be written, to storage."),
        _counter("cancelled_write_bytes", "bytes", "Bytes of write_bytes cancelled by a truncation."),
        _counter("nvcsw", "count", "Voluntary context switches."),
        _counter("nivcsw", "count", "Involuntary context switches."),
        _counter("ac_utimescaled", "usec", "User CPU time, scaled by the CPU's frequency if the kernel supports it."),
        _counter("ac_stimescaled", "usec", "System CPU time, scaled by the CPU's frequency if the kernel supports it."),
        _counter(
            "cpu_scaled_run_real_total", "nsec", "CPU time, scaled by the CPU's frequency if the kernel supports it."
        ),
        _counter("freepages_count", "count", "Waits for memory reclaim; needs kernel.task_delayacct=1."),
        _counter("freepages_delay_total", "nsec", "Time in these waits; needs kernel.task_delayacct=1."),
        Field(
            "cpu_total",
            "nsec",
            "counter",
            "CPU time of all tasks, including the part missing from exit records: cpu_run_virtual_total, plus the "
            "charge of processes for children beyond the children's records, or until that charge the difference to "
            "cpu_run_real_total of tasks shorter than 20 ms; never more than the use of the job's cgroup. "
            "Source: struct taskstats, /proc/<pid>/stat, cpuacct.usage, cpu.stat.",
        ),
        counter(
            *("tasks_ended", "count", "Tasks (processes and threads) that have ended; missing without exit records."),
            "exit records",
        ),
        *RUN_FIELDS,
    ],
)


def _count(name: str, text: str) -> Field:
    return counter(name, "count", text, "the taskstats backend")


AGENT_COUNTERS = (
    _count("exit_records", "Exit records sent by the kernel."),
    _count("exit_records_lost", "Exit records known to be lost."),
    _count("exit_overflows", "Overflows of the kernel's buffer for exit records (ENOBUFS)."),
    _count("exits_known", "Ended tasks attributed to the job of an earlier tick."),
    _count("exits_by_fork", "Ended tasks unseen by any tick, attributed by their fork event."),
    _count("exits_by_parent", "Ended tasks unseen by any tick, attributed to their parent's job."),
    _count("exits_other", "Ended tasks without a known job."),
    _count("fork_events", "Fork events sent by the kernel."),
    _count("fork_overflows", "Overflows of the kernel's buffer for fork events (ENOBUFS)."),
    _count("answers_lost", "Lost answers for live tasks, requested again."),
    _count("delays_implausible", "Growths of a task's delay dropped, longer than it can have waited."),
    _count("state_failures", "Failed saves of the state for the next start."),
    gauge("exit_records_on", "count", "1 while the kernel sends exit records.", "the taskstats backend"),
    gauge("fork_events_on", "count", "1 while the kernel reports forks.", "the taskstats backend"),
)
