"""Ended tasks that are still listed by their cgroup."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from colmet.node.accounting.accumulator import Ints

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
        """Forget all, at a tick, except tasks of jobs that are not read; those still listed are noted as dying again.

        Args:
            unread: the tasks listed for these jobs.
        """
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
