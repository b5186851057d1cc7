"""The CPU time of each job: of its tasks, of its cgroup, and which job has used none since it was read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from colmet.common.host.host import Host, Kept, is_gone
from colmet.node.jobs.job import Job

# Bound on the rounding error of a group's CPU time against the sum of its tasks: cgroup v2 counts in us.
ROUNDING_NS = 1_000_000


class JobCpuTime:
    """CPU time attributed to jobs.

    ::

          counted     values of the job's tasks, and exit records of the ended ones
        + beyond      time in no record: estimates, CPU time charged to processes for their children, and the last one
                      of tasks that left the job alive, as far as the job's cgroup has it
        ---------
          attributed  at most the CPU time of the job's cgroup, where readable; never less than before

    Once the cgroup is removed, its last value is the bound, until another task of the job ends.

    Attributes:
        beyond: CPU time in ns in no record, by job.
        attributed: CPU time in ns known to be used by a job's tasks, live and ended. It is kept as long as the job's
            object exists: other backends read it for their last row.
    """

    def __init__(self) -> None:
        self.beyond: dict[int, int] = {}
        self.attributed: WeakKeyDictionary[Job, int] = WeakKeyDictionary()
        self._group_ns: dict[int, int] = {}  # of the cgroup; removed when a task of the job ends
        self._excess_ns: dict[int, int] = {}  # of its tasks over the cgroup, as of the last reading

    def add_beyond(self, job: int, beyond_ns: int) -> None:
        """Add CPU time in no record."""
        self.beyond[job] = self.beyond.get(job, 0) + beyond_ns

    def end_tasks(self, job: int) -> None:
        """Note that tasks of a job have ended: its cgroup may have used more than at the last reading."""
        self._group_ns.pop(job, None)

    def share_elsewhere(
        self, job: int, counted_ns: int, group_ns: int | None, newcomers_ns: int, are_migrated: bool
    ) -> float:
        """Return the share of their CPU time used by a job's new tasks before their arrival, 0 to 1.

        The cgroup counts only CPU time used inside it: the newcomers used the excess of the tasks over it elsewhere.
        Without a counting cgroup, none of their time is the job's if they `are_migrated`, and all of it if not.
        """
        if group_ns is None or not newcomers_ns:
            return 1.0 if are_migrated else 0.0
        excess_ns = counted_ns - group_ns + (self.beyond.get(job, 0) if are_migrated else -ROUNDING_NS)
        return min(1.0, max(0, excess_ns) / newcomers_ns)

    def group_ns(self, job: int) -> int | None:
        """Return the CPU time of the job's cgroup at the last update; None if not measured, or if a task has ended."""
        return self._group_ns.get(job)

    def update(self, job: Job, counted_ns: int, group_ns: int | None, left_ns: int = 0) -> int:
        """Update a job's attributed CPU time by that of all its tasks and of its cgroup, and return it.

        `left_ns`: what tasks that have left the job used since they were last read in it, there and elsewhere.
        """
        cpu_ns = counted_ns + self.beyond.get(job.id, 0)
        if group_ns is not None:
            if left_ns > 0 and cpu_ns < group_ns:
                left_ns = min(left_ns, group_ns - cpu_ns)
                self.add_beyond(job.id, left_ns)
                cpu_ns += left_ns
            self._group_ns[job.id], self._excess_ns[job.id] = group_ns, max(0, counted_ns - group_ns)
        else:
            cpu_ns -= self._excess_ns.get(job.id, 0)
            group_ns = self._group_ns.get(job.id, cpu_ns)
        attributed_ns = self.attributed[job] = max(min(cpu_ns, group_ns), self.attributed.get(job, 0))
        return attributed_ns

    def keep_only(self, jobs: Collection[int]) -> None:
        """Forget every other job, except its attributed time."""
        self.beyond = {job: beyond for job, beyond in self.beyond.items() if job in jobs}
        self._group_ns = {job: group for job, group in self._group_ns.items() if job in jobs}
        self._excess_ns = {job: excess for job, excess in self._excess_ns.items() if job in jobs}

    def forget(self, job: int) -> None:
        """Forget a job, except its attributed time."""
        for values in (self.beyond, self._group_ns, self._excess_ns):
            values.pop(job, None)


# Controller, file, start of its first line, unit in ns.
_FILES = (("cpuacct", "cpuacct.usage", b"", 1), ("unified", "cpu.stat", b"usage_usec ", 1000))


class GroupCpuTime:
    """Reader of the CPU time of all tasks ever in a job's cgroup. One file of each job stays open."""

    def __init__(self, host: Host) -> None:
        self._host = host
        # by job, with the start and the unit, and the job's own directories then
        self._files: dict[int, tuple[Kept, bytes, int, tuple[str, ...]]] = {}

    def read(self, job: Job) -> int | None:
        """Return the CPU time in ns; None if nothing counts it."""
        known = self._files.get(job.id)
        if known is not None and known[3] != job.tops:  # another directory, or no directory has all of the job
            self.forget(job.id)
            known = None
        if known is not None:
            try:
                return _parse(known[0].read(), *known[1:3])
            except OSError as err:
                self.forget(job.id)
                if not is_gone(err):
                    raise
        for controller, name, start, unit_ns in _FILES:
            directory = job.directory(controller)
            if directory is None:
                continue
            file = self._host.keep(f"{directory}/{name}")
            try:
                found = _parse(file.read(), start, unit_ns)
            except OSError as err:
                if not is_gone(err):
                    raise
                continue
            if found is not None:
                self._files[job.id] = file, start, unit_ns, job.tops
                return found
        return None

    def keep_only(self, jobs: Collection[int]) -> None:
        """Close the files of every other job."""
        for job in [job for job in self._files if job not in jobs]:
            self.forget(job)

    def forget(self, job: int) -> None:
        """Close a job's file."""
        known = self._files.pop(job, None)
        if known is not None:
            known[0].close()

    def close(self) -> None:
        """Close all files; can be called twice."""
        self.keep_only(())


def _parse(data: bytes, start: bytes, unit_ns: int) -> int | None:
    line = data.partition(b"\n")[0]
    return int(line[len(start) :]) * unit_ns if line.startswith(start) and line[len(start) :].isdigit() else None


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
        """Return the tasks of a job if none has run since the last reading, by the CPU time of its cgroup now."""
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
        """Note a reading of tasks, and the CPU time of the job's cgroup after it; return whether values may differ."""
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
