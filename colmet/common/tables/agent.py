"""Tables of the agent: its own costs and counters, the names of numbered columns, and how complete its samples are.

`agent_default` has a row for the agent, and one for each backend; `mapping_default` names the event counted by
counter_7 on a node.

A sample is one table at one time. `completeness_default` has a row for each table and one for whole batches (`ALL`);
its counters start at 0 with the agent, and inapplicable ones are missing. `gaps_default` has a row for each run of
missing samples. The agent's completeness statistics fill both; readers of the store compare them with the stored rows.
"""

from __future__ import annotations

from colmet.common.schema import Field, Schema, counter, gauge, label
from colmet.common.tables import COMMANDS, COMMANDS_KILLED, LATE, LEFT_OUT, PART_FAILURES
from colmet.common.tables.cgroup import CGROUP_COUNTERS
from colmet.common.tables.network import INFINIBAND_COUNTERS, LUSTRE_COUNTERS
from colmet.common.tables.nvidia import NVIDIA_COUNTERS
from colmet.common.tables.power import RAPL_COUNTERS, TEMPERATURE_COUNTERS
from colmet.common.tables.tasks import PERFHW_COUNTERS, TASKSTATS_COUNTERS


def _counter(name: str, unit: str, text: str, source: str = "the agent") -> Field:
    return counter(name, unit, text, source)


def _gauge(name: str, unit: str, text: str, source: str = "the agent") -> Field:
    return gauge(name, unit, text, source)


# Counters of backends about themselves, in the order of the columns.
_OF_BACKENDS = (
    *(LEFT_OUT, LATE, COMMANDS, COMMANDS_KILLED, PART_FAILURES),
    *(*TASKSTATS_COUNTERS, *CGROUP_COUNTERS, *RAPL_COUNTERS, *TEMPERATURE_COUNTERS),
    *(*INFINIBAND_COUNTERS, *LUSTRE_COUNTERS, *NVIDIA_COUNTERS, *PERFHW_COUNTERS),
)

BACKEND_COUNTERS = frozenset([field.name for field in _OF_BACKENDS])

# Counters start at 0 with the agent. Fields that do not apply to a row are missing in it.
AGENT = Schema(
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


_MEASURING = "the backend that measures the column"
MAPPING = Schema(
    "mapping_default",
    "node",
    [
        label("metric", 64, "Table of the column, RAPLstats_default.", _MEASURING),
        label("counter", 32, "The column, counter_7.", _MEASURING),
        label("name", 128, "Meaning of the counter on this node.", _MEASURING),
        label("unit", 32, "Unit of its values.", _MEASURING),
        label("zone", 64, "Part of the node; empty for the whole node.", _MEASURING),
    ],
)


ALL = "*"  # the row of whole batches


def _samples(name: str, text: str, source: str = "the agent") -> Field:
    return counter(name, "count", text, source)


_EPOCH = gauge("epoch", "nsec", "Start of the agent, since 1970; identifies the start.", "the agent")
_SPOOL = "the spool"
COMPLETENESS = Schema(
    "completeness_default",
    "node",
    [
        label("table", 64, f"Table of the row; '{ALL}' for whole batches.", "the agent"),
        _EPOCH,
        gauge("period", "usec", "From one tick to the next.", "--sample-period"),
        gauge("is_last", "count", "1 in the last rows of the agent, else 0.", "the agent"),
        _samples("due", "Samples due up to this time: taken, failed and late."),
        _samples("taken", "Measured samples; in rows of batches, batches. This one is included."),
        _samples("failed", "Samples that failed, or lost a requirement."),
        _samples("late", "Samples skipped because the previous one had not ended, or a tick was skipped."),
        _samples("rows", "Rows of the samples taken."),
        gauge("rows_now", "count", "Rows with the time of this batch, in whole seconds.", "the agent"),
        _samples("sent", "Samples sent to a collector, each once; up to the one before this.", _SPOOL),
        _samples("acknowledged", "Samples acknowledged by a collector.", _SPOOL),
        _samples("dropped", "Samples dropped before a collector had them.", _SPOOL),
        _samples("duplicate", "Batches received more than once by the collector; it keeps one.", "the collector"),
    ],
)
GAPS = Schema(
    "gaps_default",
    "node",
    [
        label("table", 64, f"Table with missing samples; '{ALL}' for all tables of the batches.", "the agent"),
        label("why", 16, "failed, late, or dropped.", "the agent"),
        _EPOCH,
        gauge("first", "ts_date", "Time of the first missing sample.", "the agent"),
        gauge("last", "ts_date", "Time of the last one; a growing gap is reported again.", "the agent"),
        gauge("samples", "count", "Missing samples, or batches, in between.", "the agent"),
        gauge("first_batch", "count", "Number of the first dropped batch.", "the spool"),
        gauge("last_batch", "count", "Number of the last one.", "the spool"),
    ],
)
