"""States of the jobs' tasks (alive or ended), from /proc."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from colmet.common.host.host import Host
from colmet.common.host.processes import NoAnswer
from colmet.node.jobs.job import Job
from colmet.node.kernel.textfiles import Stat, ask_stats


class TaskStates:
    """Reader of the states of tasks; a job's processes can delay the reading of that job's alone (`processes`).

    Args:
        host: the machine.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._parties: dict[int, str] = {}

    def note(self, jobs: Iterable[Job]) -> None:
        """Note the party of each job's processes."""
        self._parties.update((job.id, job.party) for job in jobs)

    def party(self, job: int) -> str:
        """Return the party that can delay the reading of a job's processes."""
        return self._parties.get(job) or f"job {job}"

    def stats(self, job: int, tids: Sequence[int]) -> Iterable[tuple[int, Stat | NoAnswer | None]]:
        """Return each task of a job with its stat; None for an ended one."""
        return zip(tids, ask_stats(self._host, [(tid, self.party(job)) for tid in tids]))

    def alive(self, job: int, tids: Sequence[int], unasked: bool) -> list[int]:
        """Return the tasks that exist and are not about to end.

        A task that ends holds no lock needed by a reader: a task with a waiting reader is alive.

        Args:
            job: the job.
            tids: its tasks.
            unasked: whether unreadable tasks count as alive, too.
        """
        found = []
        for tid, stat in self.stats(job, tids):
            if isinstance(stat, NoAnswer):
                lives = unasked or self._host.processes.is_waited_for(tid)
            else:
                lives = stat is not None and not stat.is_ending
            if lives:
                found.append(tid)
        return found

    def keep_only(self, jobs: Collection[int]) -> None:
        """Forget every other job."""
        self._parties = {job: party for job, party in self._parties.items() if job in jobs}

    def forget(self, job: int) -> None:
        """Forget a job."""
        self._parties.pop(job, None)
