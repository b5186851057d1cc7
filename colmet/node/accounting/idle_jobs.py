"""Jobs whose tasks need not be read: none of them has run since the last reading."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from colmet.node.accounting.job_cpu_time import ROUNDING_NS

FULL_TICKS = 30  # a job's tasks are read at one of these ticks at least


class TasksReading(NamedTuple):
    """A reading of a job's tasks."""

    group_ns: int | None  # CPU time of the cgroup just before; None if not measured
    tids: Sequence[int]  # the listed tasks
    counted_ns: int  # CPU time of the tasks
    oldest_us: int  # age of the oldest live task; -1 without any
    at_ns: int  # time of the reading


class IdleJobs:
    """Search for jobs without CPU time since their tasks were read.

    All counters of a task except its age grow only while the task itself runs, and its cgroup counts that time (see
    docs/inputs/taskstats.md). So a job is idle while its cgroup's CPU time and its list of tasks stay as they were.
    A task also runs when it forks or ends: without CPU time, the list changes only if a task is moved. The agent
    notices a move into a job's cgroup.

    A job is never idle if its cgroup counts no CPU time, or not that of its tasks.
    """

    def __init__(self) -> None:
        self._readings: dict[int, TasksReading] = {}
        self._uncounted: set[int] = set()  # jobs with tasks that ran without CPU time of the cgroup
        self._ticks = 0

    def keep_only(self, jobs: Collection[int]) -> None:
        """Begin a tick with these jobs: forget every other job."""
        self._ticks += 1
        self._readings = {job: reading for job, reading in self._readings.items() if job in jobs}
        self._uncounted.intersection_update(jobs)

    def tids(self, job: int, group_ns: int | None) -> Sequence[int] | None:
        """Return the tasks of a job if no task of the last reading has run since; otherwise None.

        Args:
            job: the job's id.
            group_ns: CPU time of its cgroup now; None if not measured.
        """
        last = self._readings.get(job)
        if (
            last is None
            or group_ns is None
            or group_ns != last.group_ns
            or (job + self._ticks) % FULL_TICKS == 0  # not all jobs at one tick
            or job in self._uncounted
        ):
            return None
        return last.tids

    def note(self, job: int, reading: TasksReading, after_ns: int | None) -> bool:
        """Note a reading of a job's tasks; return whether values may have changed since the last one.

        Args:
            job: the job's id.
            reading: the reading.
            after_ns: CPU time of the cgroup after it; None if not measured.
        """
        last = self._readings.get(job)
        self._readings[job] = reading
        if last is None:
            return True
        if after_ns == last.group_ns and reading.counted_ns > last.counted_ns + ROUNDING_NS:
            self._uncounted.add(job)
        is_same = after_ns == last.group_ns and reading.counted_ns == last.counted_ns and reading.tids == last.tids
        return after_ns is None or not is_same

    def age_us(self, job: int, now_ns: int) -> int:
        """Return the present age of the oldest live task of an idle job; -1 without any."""
        last = self._readings[job]
        return last.oldest_us + (now_ns - last.at_ns) // 1000 if last.oldest_us >= 0 else -1

    def forget(self, job: int) -> None:
        """Forget a job."""
        self._readings.pop(job, None)
        self._uncounted.discard(job)
