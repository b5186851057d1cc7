"""The jobs of tasks, by what is known of each: an exit record names no cgroup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from colmet.node.accounting.accumulator import Ints
from colmet.node.kernel.taskstats import Exits


class TaskOwners:
    """The jobs of tasks: those that a job's cgroup has listed, and the tasks that these have forked since.

    A task is forgotten at its end, and at the second tick without being listed.

    Attributes:
        known: number of ended tasks that were listed by their job's cgroup.
        by_fork: number of ended tasks that were forked by a task of the job, and never listed.
        other: number of ended tasks without a known job.
    """

    def __init__(self) -> None:
        self.known = self.by_fork = self.other = 0
        self._listed: dict[int, int] = {}  # job by task
        self._forked: dict[int, int] = {}  # since the last tick
        self._forked_before: dict[int, int] = {}  # between the two ticks before
        self._alone: set[int] = set()  # jobs whose processes own no children

    def job_of(self, tid: int) -> int | None:
        """Return the job of a live task; None if it is not known."""
        for jobs in (self._forked, self._listed, self._forked_before):
            if tid in jobs:
                return jobs[tid]
        return None

    def add_forks(self, forks: Ints) -> None:
        """Add forks: shape (n, 4), see `ForkEvents.receive`."""
        for parent, parent_process, child, process in forks.tolist():
            self._remove(child)  # the number is another task's now
            is_process = child == process
            # the kernel names the process's parent as a thread's parent
            job = self.job_of(parent if is_process else process)
            if job is None and is_process:
                job = self.job_of(parent_process)
            if job is not None and not (is_process and job in self._alone):
                self._forked[child] = job

    def list_job(self, job: int, tids: Collection[int], is_alone: bool) -> None:
        """Add the tasks that a job's cgroup lists; of a job that `is_alone`, processes own no children."""
        (self._alone.add if is_alone else self._alone.discard)(job)
        self._listed.update(dict.fromkeys(tids, job))

    def tick(self, listed: Mapping[int, Collection[int]]) -> None:
        """Keep the tasks listed now, and those forked since the tick before."""
        self._listed = {tid: job for job, tids in listed.items() for tid in tids}
        self._forked_before, self._forked = self._forked, {}
        self._alone.intersection_update(listed)

    def end(self, exits: Exits) -> dict[int, Exits]:
        """Return the ended tasks of each job."""
        places: dict[int, list[int]] = {}
        for place, tid in enumerate(exits.ids[:, 0].tolist()):
            is_listed = tid in self._listed
            job = self._remove(tid)
            if job is None:
                self.other += 1
                continue
            self.known += is_listed
            self.by_fork += not is_listed
            places.setdefault(job, []).append(place)
        return {job: Exits(exits.ids[some], exits.values[some]) for job, some in places.items()}

    def leave(self, job: int, tids: Iterable[int]) -> None:
        """Forget tasks that a job's cgroup lists no more, but those of another job by now."""
        for tid in tids:
            if self.job_of(tid) == job:
                self._remove(tid)

    def alive(self) -> Counter[int]:
        """Return the number of known tasks of each job."""
        return Counter({**self._forked_before, **self._listed, **self._forked}.values())

    def forget(self, job: int) -> None:
        """Forget a job and its tasks."""
        for jobs in (self._forked, self._listed, self._forked_before):
            for tid in [tid for tid, owner in jobs.items() if owner == job]:
                del jobs[tid]
        self._alone.discard(job)

    def _remove(self, tid: int) -> int | None:
        found = [jobs.pop(tid, None) for jobs in (self._forked, self._listed, self._forked_before)]
        return next((job for job in found if job is not None), None)
