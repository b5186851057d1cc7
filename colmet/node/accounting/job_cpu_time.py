"""The CPU time that is attributed to each job."""

from __future__ import annotations

from collections.abc import Collection
from weakref import WeakKeyDictionary

from colmet.node.jobs.job import Job

# By which the CPU times of tasks may add up to more than their group's, which is in us in cgroup v2.
_ROUNDING_NS = 1_000_000


class JobCpuTime:
    """Attributes CPU time to jobs.

    ::

          counted     values of the job's tasks, and exit records of those that have ended
        + beyond      what no record counts: estimates, and what processes are charged with for their children
        ---------
          attributed  at most the CPU time of the job's cgroup, where that can be read; never less than before

    Once the cgroup is removed, its last figure is the bound, until another task of the job ends.

    Attributes:
        beyond: CPU time in ns that no record counts, by job.
        attributed: CPU time in ns that a job's tasks, live and ended, are known to have used. It is kept for as long as
            the job's object exists: other backends read it for their last row.
    """

    def __init__(self) -> None:
        self.beyond: dict[int, int] = {}
        self.attributed: WeakKeyDictionary[Job, int] = WeakKeyDictionary()
        self._group_ns: dict[int, int] = {}  # of the cgroup, where no task of the job has ended since
        self._excess_ns: dict[int, int] = {}  # that its tasks used beyond that of the cgroup, as of the last reading

    def add_beyond(self, job: int, beyond_ns: int) -> None:
        """Add CPU time that no record counts."""
        self.beyond[job] = self.beyond.get(job, 0) + beyond_ns

    def end_tasks(self, job: int) -> None:
        """Note that tasks of a job have ended: its cgroup may have used more than when it was read."""
        self._group_ns.pop(job, None)

    def share_elsewhere(
        self, job: int, counted_ns: int, group_ns: int | None, newcomers_ns: int, are_migrated: bool
    ) -> float:
        """Return what share of their CPU time the tasks that are new in a job used before they came, 0 to 1.

        The cgroup counts what is used in it alone: what the tasks used beyond that, newcomers used elsewhere.

        Args:
            job: the job.
            counted_ns: CPU time of all its tasks.
            group_ns: CPU time of its cgroup; None where nothing measures it.
            newcomers_ns: CPU time of the newcomers.
            are_migrated: whether they are known to come from elsewhere: without a cgroup that counts, nothing is the
                job's then, and otherwise all.
        """
        if group_ns is None or not newcomers_ns:
            return 1.0 if are_migrated else 0.0
        excess_ns = counted_ns - group_ns + (self.beyond.get(job, 0) if are_migrated else -_ROUNDING_NS)
        return min(1.0, max(0, excess_ns) / newcomers_ns)

    def update(self, job: Job, counted_ns: int, group_ns: int | None) -> int:
        """Bring a job's attributed CPU time up to date, and return it.

        Args:
            job: the job.
            counted_ns: CPU time of all its tasks.
            group_ns: CPU time of its cgroup; None where nothing measures it, or it is removed.
        """
        cpu_ns = counted_ns + self.beyond.get(job.id, 0)
        if group_ns is not None:
            self._group_ns[job.id], self._excess_ns[job.id] = group_ns, max(0, counted_ns - group_ns)
        else:
            cpu_ns -= self._excess_ns.get(job.id, 0)
            group_ns = self._group_ns.get(job.id, cpu_ns)
        attributed_ns = self.attributed[job] = max(min(cpu_ns, group_ns), self.attributed.get(job, 0))
        return attributed_ns

    def keep_only(self, jobs: Collection[int]) -> None:
        """Forget every other job, but not what was attributed to it."""
        self.beyond = {job: beyond for job, beyond in self.beyond.items() if job in jobs}
        self._group_ns = {job: group for job, group in self._group_ns.items() if job in jobs}
        self._excess_ns = {job: excess for job, excess in self._excess_ns.items() if job in jobs}

    def forget(self, job: int) -> None:
        """Forget a job, but not what was attributed to it."""
        for values in (self.beyond, self._group_ns, self._excess_ns):
            values.pop(job, None)
