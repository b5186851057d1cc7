"""Tasks that migrated to a job from elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from colmet.node.accounting.accumulator import Accumulator
from colmet.node.accounting.attribution import Attribution
from colmet.node.accounting.finished_tasks import FinishedTasks
from colmet.node.accounting.task_states import TaskStates
from colmet.node.jobs.job import Job
from colmet.node.kernel.textfiles import Stat


class MigratedTasks:
    """Search for tasks that migrated to a job from elsewhere: their usage until then is not the job's.

    ::

        listed now --known as the job's------------------------------------------------> not migrated
             |
             +--was seen to leave another job----------------------------------------------> migrated
             +--between two ticks, forks known: no parent among the job's tasks------------> migrated
             +--otherwise: a child, a task under a used number, or of any time since then -> not migrated

    At the first sight of a job no task is migrated, unless the job was seen to begin.

    Args:
        owners: the jobs of known tasks.
        totals: the former tasks of jobs.
        finished: tasks that have ended.
        states: reads the parents of tasks.
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

        Args:
            jobs: the jobs.
            listed: the tasks of each.
            overflows: how often forks were missed; None without fork events.
            tick: whether the tasks may have arrived at any time since the last tick.
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
