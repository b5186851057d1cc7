"""Table of the agent's own costs and counters: a row for the agent, and one for each backend."""

from __future__ import annotations

from colmet.common.schema import Field, Schema, counter, gauge, label
from colmet.common.tables import cgroup, infiniband, lustre, nvidia, perfhw, rapl, taskstats, temperature
from colmet.common.tables.agent_counters import COMMANDS, COMMANDS_KILLED, LATE, LEFT_OUT, PART_FAILURES


def _counter(name: str, unit: str, text: str, source: str = "the agent") -> Field:
    return counter(name, unit, text, source)


def _gauge(name: str, unit: str, text: str, source: str = "the agent") -> Field:
    return gauge(name, unit, text, source)


# Counters of backends about themselves, in the order of the columns.
_OF_BACKENDS = (
    *(LEFT_OUT, LATE, COMMANDS, COMMANDS_KILLED, PART_FAILURES),
    *(*taskstats.AGENT_COUNTERS, *cgroup.AGENT_COUNTERS, *rapl.AGENT_COUNTERS, *temperature.AGENT_COUNTERS),
    *(*infiniband.AGENT_COUNTERS, *lustre.AGENT_COUNTERS, *nvidia.AGENT_COUNTERS, *perfhw.AGENT_COUNTERS),
)

BACKEND_COUNTERS = frozenset([field.name for field in _OF_BACKENDS])

# Counters start at 0 with the agent. Fields that do not apply to a row are missing in it.
SCHEMA = Schema(
    "agent_default",
    "node",
    [
        label("backend", 32, "Input backend; 'agent' for the whole agent.", "the agent"),
        # of every row
        _gauge("is_on", "count", "1 while it measures, 0 while a requirement is missing and it is retried."),
        _counter(
            "cpu_time",
            "usec",
            "CPU time of the backend's work; of the agent, of its process with all threads and the start.",
            "CLOCK_THREAD_CPUTIME_ID and, of the agent, CLOCK_PROCESS_CPUTIME_ID",
        ),
        _counter("wall_time", "usec", "Elapsed time of the same work; of the agent, of its ticks up to the last."),
        _counter("rows", "count", "Rows measured, but for those of this table."),
        _counter("failures", "count", "Failed samples without rows."),
        _counter("overruns", "count", "Samples longer than the period; of the agent, skipped ticks."),
        # of the agent's row
        _counter("ticks", "count", "Ticks, this one included."),
        _counter("batches_sent", "count", "Batches sent, each counted once, up to the one before this."),
        _counter("batches_dropped", "count", "Batches given up, beyond the bounds of the spool.", "the spool"),
        _counter(
            "batches_acknowledged", "count", "Batches acknowledged, those of earlier starts included.", "the spool"
        ),
        _gauge("batches_waiting", "count", "Batches kept until they are acknowledged.", "the spool"),
        _counter(
            "programs_cpu_time", "usec", "CPU time of ended child programs of backends.", "getrusage, RUSAGE_CHILDREN"
        ),
        _gauge("rss", "kbytes", "Resident memory.", "/proc/self/statm, resident"),
        _gauge("open_files", "count", "Open descriptors; missing before Linux 6.2.", "stat of /proc/self/fd, st_size"),
        _gauge("kept_files", "count", "Open files of /proc and cgroups, and perf events."),
        _gauge("jobs", "count", "Jobs on the node."),
        _counter("jobs_started", "count", "New jobs, including those at the start."),
        _counter("jobs_ended", "count", "Ended jobs."),
        _counter("discovery_failures", "count", "Failed lists of jobs' cgroups."),
        _counter("jobs_unmapped", "count", "Cgroups of jobs with an unknown id (text ids of Slurm)."),
        _counter("job_conflicts", "count", "Cgroups skipped because another layout has a job with that id."),
        _counter("groups_left_out", "count", "Cgroups inside jobs', too many or too deep to be looked at."),
        _counter("jobs_without_rows", "count", "Jobs ended before their first measurement."),
        _counter("watch_overflows", "count", "Overflows of inotify, each followed by a full list."),
        _counter("reads_unanswered", "count", "Processes of jobs that did not answer a read in time."),
        _counter("reads_left_out", "count", "Processes of jobs not read, as others of their user did not answer."),
        _gauge("reads_waiting", "count", "Processes of jobs without an answer yet; a thread waits for each."),
        _gauge("cpus", "count", "CPUs allowed to it."),
        _counter("placement_failures", "count", "Threads whose CPUs or priority could not be set."),
        _counter("mapping_failures", "count", "Failed writes of files with names of counters."),
        # of the row of a backend, the declaring one
        *dict.fromkeys(_OF_BACKENDS),
    ],
)
