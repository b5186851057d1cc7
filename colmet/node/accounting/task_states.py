"""The states of the jobs' tasks: alive, ended and still listed, migrated from elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from colmet.common.host.host import Host
from colmet.common.host.processes import NoAnswer
from colmet.node.accounting.accumulator import Accumulator, Ints
from colmet.node.accounting.attribution import Attribution
from colmet.node.jobs.job import Job
from colmet.node.kernel.textfiles import Stat, ask_stats


class TaskStates:
    """Reader of the states of tasks; a job's processes can delay the reading of that job's alone (`processes`)."""

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
        """Return the tasks that exist and are not about to end; with `unasked`, those that cannot be read, too.

        A task that ends holds no lock needed by a reader: a task with a waiting reader is alive.
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


MAX_FINISHED = 65536


class FinishedTasks:
    """Tasks with counted final values, not to be counted as live tasks, too.

    The kernel sends the exit record first and removes the task from its cgroup later. A task number still in use after
    its record is either the same task, still dying, or a new task with a reused number.

    ::

        live --add()--> finished --note_dying(), while it is listed--> dying --next tick, if not listed--> forgotten
                           |                                             |
                           +------revive(): another task has its number--+--> live
    """

    def __init__(self) -> None:
        self._finished: list[Ints] = []  # since the last tick
        self._count = 0
        self._dying: set[int] = set()  # finished before the last tick, and listed at it

    def add(self, tids: Ints) -> None:
        """Note tasks with counted final values. Beyond `MAX_FINISHED`, the earliest are forgotten."""
        self._finished.append(tids)
        self._count += len(tids)
        while self._count > MAX_FINISHED:
            self._count -= len(self._finished.pop(0))

    def since_last_tick(self) -> list[Ints]:
        """Return the tasks finished since the last tick, in arrays."""
        return self._finished

    def all(self) -> Ints:
        """Return the tasks that may still be listed: the finished and the dying."""
        return np.concatenate([*self._finished, np.fromiter(self._dying, dtype=np.int64)])

    def forget(self, unread: Collection[int] = ()) -> None:
        """Forget all, at a tick, except the `unread` ones, listed for jobs that are not read: they are dying again."""
        left: set[int] = set(self.all().tolist()).intersection(unread) if unread else set()
        self._finished, self._count, self._dying = [], 0, left

    def note_dying(self, tids: Collection[int]) -> None:
        """Note finished tasks that are still listed."""
        self._dying.update(tids)

    def revive(self, tids: Collection[int]) -> None:
        """Forget finished tasks whose numbers belong to other tasks now."""
        if tids:
            self._finished = [finished[~np.isin(finished, list(tids))] for finished in self._finished]
            self._dying.difference_update(tids)


class MigratedTasks:
    """Search for tasks that migrated to a job from elsewhere: their usage until then is not the job's.

    ::

        listed now --known as the job's------------------------------------------------> not migrated
             |
             +--was seen to leave another job----------------------------------------------> migrated
             +--between two ticks, forks known: no parent among the job's tasks------------> migrated
             +--otherwise: a child, a task under a used number, or of any time since then -> not migrated

    At the first sight of a job no task is migrated, unless the job was seen to begin.

    """

    def __init__(self, owners: Attribution, totals: Accumulator, finished: FinishedTasks, states: TaskStates) -> None:
        self._owners = owners
        self._totals = totals
        self._finished = finished
        self._states = states
        self._seen: set[int] = set()
        self._overflows = 0

    def find(
        self, jobs: Sequence[Job], listed: Mapping[int, Sequence[int]], overflows: int | None, tick: bool
    ) -> dict[int, list[int]]:
        """Return the migrated tasks of each job that has any, ascending. Call it before the owners know them.

        `overflows`: how often forks were missed, None without fork events; `tick`: whether the `listed` tasks may have
        arrived at any time since the last tick.
        """
        before, self._overflows = self._overflows, overflows or 0
        forks_are_known = overflows is not None and overflows == before
        found: dict[int, list[int]] = {}
        for job in jobs:
            if job.id not in self._seen and not job.witnessed:
                continue
            unknown = self._owners.unknown(job.id, listed[job.id])
            if not unknown:
                continue
            tids = set(listed[job.id])
            new = sorted(set(unknown).difference(self._known(job.id)))
            migrated = {tid for tid in new if self._owners.has_left(tid)}
            if forks_are_known and not tick:
                # a task that does not answer counts as the job's own: nothing is subtracted
                migrated |= {
                    tid
                    for tid, stat in self._states.stats(job.id, new)
                    if stat is None or (isinstance(stat, Stat) and stat.parent not in tids)
                }
            if migrated:
                found[job.id] = sorted(migrated)
        return found

    def _known(self, job: int) -> list[int]:
        tids: list[int] = np.concatenate([self._totals.last_seen(job)[0], *self._finished.since_last_tick()]).tolist()
        return tids

    def note_seen(self, job: int) -> None:
        """Note that a job's tasks are known: later new tasks may have migrated."""
        self._seen.add(job)

    def keep_only(self, jobs: Collection[int]) -> None:
        """Forget every other job."""
        self._seen.intersection_update(jobs)

    def forget(self, job: int) -> None:
        """Forget a job."""
        self._seen.discard(job)
