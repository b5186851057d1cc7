"""Attribute ended tasks to their jobs.

An exit record names the parent of a task but no cgroup. So the tasks of jobs are remembered: those listed by a
cgroup, and their forks since.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet

from colmet.node.accounting.accumulator import Ints
from colmet.node.kernel.taskstats import Exits

NOBODY = -1


class Attribution:
    """The jobs of ended tasks.

    ::

        exit record --listed by a cgroup----------------> known
                    --forked by a task of the job-------> by_fork
                    --parent or process of the job------> by_parent
                    --otherwise: waits `PATIENCE` ticks for its parent's record --found--> by_parent
                                                                                --not----> other

    Attributes:
        known: number of ended tasks that were listed by their job's cgroup.
        by_fork: number of ended tasks forked by a task of the job.
        by_parent: number of ended tasks whose parent or process belongs or belonged to the job.
        other: number of ended tasks without a job, or whose job was not found.
    """

    MAX_PARENTS = 8192  # ended tasks remembered as parents
    MAX_WAITING = 8192  # records waiting for their parent's
    PATIENCE = 2  # ticks until a waiting record is given up

    def __init__(self) -> None:
        self.known = 0
        self.by_fork = 0
        self.by_parent = 0
        self.other = 0
        # by task: its job if a cgroup listed it, ~job if a task of the job forked it
        self._owner: dict[int, int] = {}
        self._former: dict[int, int] = {}  # as of the tick before
        self._alive: dict[int, int] = {}  # tasks in _owner by job
        self._forked: dict[int, int] = {}  # children in the last forks
        self._parents: dict[int, int] = {}  # jobs of ended tasks
        self._former_parents: dict[int, int] = {}
        self._departed: set[int] = set()
        self._closed: frozenset[int] = frozenset()
        self._waiting: deque[tuple[int, Exits]] = deque()
        self._waiting_count = 0
        self._news = False  # whether new tasks are known: waiting records may name them
        self._tick = 0

    def add_forks(self, forks: Ints) -> None:
        """Add forks: shape (n, 4), see `ForkEvents.receive`."""
        owner, former, alive = self._owner, self._former, self._alive
        self._forked = forked = {}
        if not owner and not former and not self._parents and not self._former_parents:
            return
        for parent, parent_process, child, process in forks.tolist():
            # the kernel names the process's parent as a thread's parent
            first = parent if child == process else process
            value = owner.get(first)
            if value is None:
                value = owner.get(parent_process) if child == process else former.get(first)
                if value is None:  # of no job: the number's former task has ended
                    former.pop(child, None)
                    self._parents.pop(child, None)
                    self._former_parents.pop(child, None)
                    continue
            job = value if value >= 0 else ~value
            if child != process or job not in self._closed:
                forked[child] = job
                if child in owner:
                    self._add(child, ~job)
                else:  # the usual case, without a call
                    owner[child] = ~job
                    alive[job] = alive.get(job, 0) + 1

    def unknown(self, job: int, tids: Collection[int]) -> list[int]:
        """Return the tasks not yet known as the job's."""
        if dict.fromkeys(tids, job).items() <= self._owner.items():  # the usual tick
            return []
        get = self._owner.get
        return [tid for tid in tids if get(tid) not in (job, ~job)]

    def has_left(self, tid: int) -> bool:
        """Return whether a task was seen to leave the cgroup of its job alive."""
        return tid in self._departed

    def leave(self, job: int, tid: int) -> None:
        """Note that a task has left its job's cgroup alive; a task listed by another job stays that job's."""
        if self._owner.get(tid, job) not in (job, ~job):
            return
        if len(self._departed) >= self.MAX_PARENTS:
            self._departed.pop()
        self._departed.add(tid)
        self._remove(tid)

    def list_all(self, tids: Mapping[int, Collection[int]], closed: Collection[int] = ()) -> None:
        """Replace the tasks of all jobs by those listed by the cgroups at a tick.

        Call it after `add_forks`: children younger than the lists stay their jobs'. Processes started by tasks of a
        `closed` job are not the job's; their threads are.
        """
        self._tick += 1
        self._closed = frozenset(closed)
        self._former, self._owner = self._owner, {}
        self._former_parents, self._parents = self._parents, {}
        owner = self._owner
        for job, members in tids.items():
            owner.update(dict.fromkeys(members, job))
        self._alive = {job: len(members) for job, members in tids.items()}
        if len(owner) != sum(self._alive.values()):  # a task is listed by two jobs
            self._alive = Counter(owner.values())
        if self._waiting and not owner.items() <= self._former.items():
            self._news = True
        if self._departed:
            self._departed.difference_update(owner)
        for child, job in self._forked.items():
            if job in tids and child not in self._owner:
                self._add(child, ~job)
        self._forked = {}

    def list_one(self, job: int, tids: Collection[int], closed: bool = False) -> None:
        """Add the tasks listed by a job's cgroup between ticks; `closed`: see `list_all`."""
        if closed and tids:  # a job that has ended has no cgroups either
            self._closed |= {job}
        known = (job, ~job)
        for tid in tids:
            if self._owner.get(tid) not in known and self._former.get(tid) not in known:
                self._news = True
            self._add(tid, job)
            self._departed.discard(tid)

    def without_owner(self, tids: AbstractSet[int]) -> set[int]:
        """Return the tasks for which `owner` returns None."""
        if not self._closed and tids <= self._owner.keys():  # the usual tick
            return set()
        owner = self.owner if self._closed else self._owner.get
        return {tid for tid in tids if owner(tid) is None}

    def owner(self, tid: int) -> int | None:
        """Return the job of a live task if the task's children are the job's, too; otherwise None."""
        value = self._owner.get(tid)
        if value is None:
            return None
        job = value if value >= 0 else ~value
        return None if job in self._closed else job

    def forget(self, job: int) -> None:
        """Forget a job and all its tasks."""
        for known in (self._owner, self._former):
            for tid in [tid for tid, value in known.items() if value in (job, ~job)]:
                del known[tid]
        for parents in (self._parents, self._former_parents):
            for tid in [tid for tid, of in parents.items() if of == job]:
                del parents[tid]
        self._alive.pop(job, None)

    def alive(self, job: int) -> int:
        """Return the number of known tasks of a job that have not ended."""
        return self._alive.get(job, 0)

    def take(self, exits: Exits) -> list[tuple[int, Exits]]:
        """Return the jobs of ended tasks; a record with an unknown parent waits for `retry`."""
        if not len(exits.ids):
            return []
        jobs = self._jobs_of(exits)
        self._wait(exits, jobs, self._tick)
        return _split(exits, jobs)

    def retry(self) -> list[tuple[int, Exits]]:
        """Return the jobs of waiting records, if more tasks have become known."""
        found = []
        if self._news:
            self._news = False
            waiting, self._waiting, self._waiting_count = self._waiting, deque(), 0
            for tick, exits in waiting:
                jobs = self._jobs_of(exits, again=True)
                found += _split(exits, jobs)
                self._wait(exits, jobs, tick)
        while self._waiting and self._tick - self._waiting[0][0] >= self.PATIENCE:
            self._give_up()
        return found

    def _give_up(self) -> None:
        _, oldest = self._waiting.popleft()
        self._waiting_count -= len(oldest.ids)
        self.other += len(oldest.ids)
        self._departed.difference_update(oldest.ids[:, 0].tolist())

    def _add(self, tid: int, value: int) -> None:
        job = value if value >= 0 else ~value
        former = self._owner.get(tid)
        if former is None or former not in (job, ~job):
            if former is not None:
                self._alive[former if former >= 0 else ~former] -= 1
            self._alive[job] = self._alive.get(job, 0) + 1
        self._owner[tid] = value

    def _remove(self, tid: int) -> int | None:
        """Forget a task; return its job, None if unknown."""
        value = self._owner.pop(tid, None)
        if value is None:
            return self._former.pop(tid, None)
        self._former.pop(tid, None)
        self._alive[value if value >= 0 else ~value] -= 1
        return value

    def _jobs_of(self, exits: Exits, again: bool = False) -> list[int]:
        """Return the job of each record, or NOBODY; the numbers in waiting records may be other tasks' by now."""
        jobs = []
        unknown = []
        owner, former, alive = self._owner, self._former, self._alive
        known, by_fork, most = 0, 0, self.MAX_PARENTS
        for index, (tid, process, parent) in enumerate(exits.ids.tolist()):
            value = None if again else owner.pop(tid, None)
            if value is not None:  # as in `_remove`, without a call
                former.pop(tid, None)
                alive[value if value >= 0 else ~value] -= 1
            elif not again:
                value = former.pop(tid, None)
            if value is None:
                job = self._job_by_parent(tid, process, parent)
            elif value >= 0:
                job = value
                known += 1
            else:
                job = ~value
                by_fork += 1
            jobs.append(job)
            if job == NOBODY:
                unknown.append(index)
            elif len(self._parents) < most:
                self._parents[tid] = job
            else:
                self._remember(tid, job)
        self.known += known
        self.by_fork += by_fork
        while unknown:  # a child's record may come before its parent's, from another CPU
            still = []
            for index in unknown:
                tid, process, parent = exits.ids[index].tolist()
                job = jobs[index] = self._job_by_parent(tid, process, parent)
                if job == NOBODY:
                    still.append(index)
                else:
                    self._remember(tid, job)
            if len(still) == len(unknown):
                break
            unknown = still
        return jobs

    def _job_by_parent(self, tid: int, process: int, parent: int) -> int:
        if tid in self._departed:
            return NOBODY
        for relative in (process, parent) if process != tid else (parent,):
            for known in (self._owner, self._former, self._parents, self._former_parents):
                value = known.get(relative)
                if value is not None:
                    job = value if value >= 0 else ~value
                    if relative == parent and job in self._closed:
                        break
                    self.by_parent += 1
                    self._news = True  # its own children may be waiting
                    return job
        return NOBODY

    def _remember(self, tid: int, job: int) -> None:
        if len(self._parents) >= self.MAX_PARENTS:
            self._former_parents, self._parents = self._parents, {}
        self._parents[tid] = job

    def _wait(self, exits: Exits, jobs: list[int], tick: int) -> None:
        if NOBODY not in jobs:
            return
        unknown = [index for index, job in enumerate(jobs) if job == NOBODY]
        if not self._owner and not self._former and not self._parents:  # no job here
            self.other += len(unknown)
            return
        if len(unknown) < len(jobs):
            exits = Exits(exits.ids[unknown], exits.values[unknown])
        self._waiting.append((tick, exits))
        self._waiting_count += len(unknown)
        while self._waiting_count > self.MAX_WAITING:
            self._give_up()


def _split(exits: Exits, jobs: list[int]) -> list[tuple[int, Exits]]:
    """Return the records of each job."""
    different = set(jobs) - {NOBODY}
    if len(different) == 1 and NOBODY not in jobs:
        return [(jobs[0], exits)]
    parts = []
    for job in different:
        places = [index for index, owner in enumerate(jobs) if owner == job]
        parts.append((job, Exits(exits.ids[places], exits.values[places])))
    return parts
