"""The CPU time attributed to each job."""

from __future__ import annotations

from collections.abc import Collection
from weakref import WeakKeyDictionary

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

        Args:
            job: the job.
            counted_ns: CPU time of all its tasks.
            group_ns: CPU time of its cgroup; None if not measured.
            newcomers_ns: CPU time of the newcomers.
            are_migrated: whether they are known to come from elsewhere: without a counting cgroup, none of their time
                is the job's if so, and all of it if not.
        """
        if group_ns is None or not newcomers_ns:
            return 1.0 if are_migrated else 0.0
        excess_ns = counted_ns - group_ns + (self.beyond.get(job, 0) if are_migrated else -ROUNDING_NS)
        return min(1.0, max(0, excess_ns) / newcomers_ns)

    def group_ns(self, job: int) -> int | None:
        """Return the CPU time of the job's cgroup at the last update; None if not measured, or if a task has ended."""
        return self._group_ns.get(job)

    def update(self, job: Job, counted_ns: int, group_ns: int | None, left_ns: int = 0) -> int:
        """Update a job's attributed CPU time, and return it.

        Args:
            job: the job.
            counted_ns: CPU time of all its tasks.
            group_ns: CPU time of its cgroup; None if not measured, or if the cgroup is removed.
            left_ns: what tasks that have left the job used since they were last read in it, there and elsewhere.
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
