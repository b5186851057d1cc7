"""Table of what the agent itself costs and counts: a row for the agent, and one for each backend."""

from __future__ import annotations

from colmet.common.schema import Field, Schema, label


def _counter(name: str, unit: str, text: str, source: str = "the agent") -> Field:
    return Field(name, unit, "counter", f"{text} Source: {source}.")


def _gauge(name: str, unit: str, text: str, source: str = "the agent") -> Field:
    return Field(name, unit, "gauge", f"{text} Source: {source}.")


def _backend(name: str, text: str, backend: str = "taskstats backend") -> Field:
    return Field(name, "count", "counter", f"{text} Source: the {backend}.")


# Counters start at 0 with the agent. What a row has nothing to tell of is missing in it.
SCHEMA = Schema(
    "agent_default",
    "node",
    [
        label("backend", 32, "Input backend that the row is about; 'agent' for all of the agent.", "the agent"),
        # of every row
        _gauge("is_on", "count", "1 while it measures, 0 while what it needs is absent and it is tried again."),
        _counter(
            "cpu_time",
            "usec",
            "CPU time of the backend's work; of the agent, that of its process, all threads and the start included.",
            "CLOCK_THREAD_CPUTIME_ID and, of the agent, CLOCK_PROCESS_CPUTIME_ID",
        ),
        _counter("wall_time", "usec", "Time that the same work took; of the agent, that of its ticks up to the last."),
        _counter("rows", "count", "Rows measured, but for those of this table."),
        _counter("failures", "count", "Samples that failed and left no rows."),
        _counter(
            "overruns", "count", "Samples that took longer than the period; of the agent, ticks that were skipped."
        ),
        # of the agent's row
        _counter("ticks", "count", "Ticks, this one included."),
        _counter("batches_sent", "count", "Batches sent, each counted once, up to the one before this."),
        _counter("batches_dropped", "count", "Batches given up, beyond the bounds of the spool.", "the spool"),
        _counter(
            "batches_acknowledged", "count", "Batches acknowledged, those of earlier starts included.", "the spool"
        ),
        _gauge("batches_waiting", "count", "Batches that are kept until they are acknowledged.", "the spool"),
        _counter(
            "programs_cpu_time",
            "usec",
            "CPU time of the programs that backends have started and that have ended.",
            "getrusage, RUSAGE_CHILDREN",
        ),
        _gauge("rss", "kbytes", "Resident memory.", "/proc/self/statm, resident"),
        _gauge("open_files", "count", "Open descriptors; missing before Linux 6.2.", "stat of /proc/self/fd, st_size"),
        _gauge("kept_files", "count", "Files of /proc and cgroups, and perf events, that are kept open."),
        _gauge("jobs", "count", "Jobs on the node."),
        _counter("jobs_started", "count", "Jobs that came, those that the start found included."),
        _counter("jobs_ended", "count", "Jobs that went."),
        _counter("discovery_failures", "count", "Times that jobs' cgroups could not be listed."),
        _counter("jobs_unmapped", "count", "Cgroups of jobs whose id could not be told (text ids of Slurm)."),
        _counter("job_conflicts", "count", "Cgroups left out as another layout has a job of that id."),
        _counter("groups_left_out", "count", "Cgroups inside jobs', too many or too deep to be looked at."),
        _counter("jobs_without_rows", "count", "Jobs that went before anything of them could be measured."),
        _counter("watch_overflows", "count", "Times that inotify lost events, so that all was listed again."),
        _counter("reads_unanswered", "count", "Processes of jobs that did not answer in time when they were read."),
        _counter("reads_left_out", "count", "Processes of jobs not read, as others of their user did not answer."),
        _gauge("reads_waiting", "count", "Processes of jobs that have not answered yet; a thread waits for each."),
        _gauge("cpus", "count", "CPUs that it may run on."),
        _counter("placement_failures", "count", "Threads whose CPUs or priority could not be set."),
        _counter("mapping_failures", "count", "Files with names of counters that could not be written."),
        # of the row of a backend in a thread of its own
        _counter("left_out", "count", "Ticks without rows, the measurement before not having ended."),
        _counter("late", "count", "Measurements that took longer than their deadline and were waited for."),
        # of the row of a backend that fills them through InputBackend.counters() or programs()
        _backend("commands", "Programs started.", "backend that asks programs"),
        _backend("commands_killed", "Programs killed at their deadline.", "backend that asks programs"),
        _backend(
            "part_failures",
            "Zones, sensors, ports, mounts and values of GPUs that could not be read or parsed, and are missing.",
            "backend that measures them",
        ),
        _backend("exit_records", "Records that the kernel sent of ended tasks."),
        _backend("exit_records_lost", "Records of ended tasks that are known not to have arrived."),
        _backend("exit_overflows", "Times that the kernel had no room for records of ended tasks (ENOBUFS)."),
        _backend("exits_known", "Ended tasks given to the job in which a tick had seen them."),
        _backend("exits_by_fork", "Ended tasks that no tick had seen, given to their job by their fork event."),
        _backend("exits_by_parent", "Ended tasks that no tick had seen, given to their parent's job."),
        _backend("exits_other", "Ended tasks that belong to no job, or to none that is known."),
        _backend("fork_events", "Fork events that the kernel sent."),
        _backend("fork_overflows", "Times that the kernel had no room for fork events (ENOBUFS)."),
        _backend("answers_lost", "Answers for live tasks that did not arrive and were asked for again."),
        _backend("delays_implausible", "Growths of a task's delay dropped, longer than it can have waited."),
        _backend("state_failures", "Times that the state for the next start could not be saved."),
        Field(
            "exit_records_on",
            "count",
            "gauge",
            "1 while the kernel tells of ended tasks. Source: the taskstats backend.",
        ),
        Field("fork_events_on", "count", "gauge", "1 while the kernel reports forks. Source: the taskstats backend."),
        _backend("file_failures", "Files of cgroups that could not be read or parsed.", "cgroup backend"),
        _backend("overattributed", "Rows with more CPU time attributed than the cgroup had used.", "cgroup backend"),
        _backend("zone_resets", "Energy counters that began anew, not at their range.", "rapl backend"),
        _backend("gpus_lost", "GPUs that did not answer, once a sample.", "nvidia backend"),
        _backend("jobs_unread", "Times that a job's processes could not be read.", "nvidia backend"),
        _backend("perf_jobs_uncounted", "Jobs whose events could not be opened at first.", "perfhw backend"),
        _backend("perf_fd_shortages", "Times that there were no descriptors for a job's events.", "perfhw backend"),
        _backend("perf_yields", "Times that events were closed for a user's own perf.", "perfhw backend"),
        _backend("perf_files_left_out", "Looks for a user's own perf that did not see all files.", "perfhw backend"),
        _backend("perf_read_failures", "Times that a job's events could not be read.", "perfhw backend"),
        _backend("perf_tasks_moved", "Processes put into groups of --perfhw-make-cgroup.", "perfhw backend"),
        _backend("perf_group_failures", "Failures to make, fill or remove such groups.", "perfhw backend"),
    ],
)
