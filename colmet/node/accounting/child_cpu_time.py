"""CPU time of ended tasks beyond their exit records, from what their parents are charged with.

The kernel makes a task's record before it removes the task, and the CPU time in it may be as old as the last clock
tick: of a process that lives half a millisecond, most is missing. A process that waits for its child is charged with
all that the child, and the children that it had waited for, ever used (cutime and cstime, kernel/exit.c). So a live
process has the CPU time of its ended descendants, of which their records are subtracted. Until it has been read, and
for children that nobody waits for, there is an estimate.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from colmet.node.kernel.procstat import Stat, ask_stats
from colmet.node.system.host import Host
from colmet.node.system.processes import NoAnswer

_MAX_ANCESTORS = 64  # ended ones, up to the nearest that lives


class _Parent:
    """A live process that has ended descendants.

    Attributes:
        job: its job.
        came: whether it has come from elsewhere, so that its children until then were not of the job.
        counted_ns: CPU time in the records of descendants whose nearest live ancestor it is, and found beyond these.
        estimated_ns: estimate of what is beyond and was not found yet; may be negative for a single parent.
        base_ns: what it was charged with before its descendants' records were counted; None until it is read.
        charged_ns: what it has been charged with; None while that has not been read again.
    """

    __slots__ = ("base_ns", "came", "charged_ns", "counted_ns", "estimated_ns", "job")

    def __init__(self, job: int) -> None:
        self.job = job
        self.came = False
        self.counted_ns = 0
        self.estimated_ns = 0
        self.base_ns: int | None = None
        self.charged_ns: int | None = None


class ChildCpuTime:
    """Compares what processes are charged with for their children with the exit records of the children.

    ::

        read()    charged_ns of parents          in this order, so that everything that a process had been charged with
        add()     exit records, to the nearest   when it was read has its record by `settle`, and nothing is counted
                  live ancestor                  twice
        settle()  charged - base - counted = CPU time beyond the records

    Args:
        host: the machine.
        owner: returns the job of a live process, None without one.
        now_ns: time since boot; the children of a process that began before may have ended unheard.
        party: returns who can delay the reading of a job's processes (`system.processes`).
    """

    AT_ONCE = 4  # processes that are read at once, those with the most CPU time in records first
    MAX_PARENTS = 16384

    def __init__(
        self,
        host: Host,
        owner: Callable[[int], int | None],
        now_ns: int | None = None,
        party: Callable[[int], str] = "job {}".format,
    ) -> None:
        self._host = host
        self._owner = owner
        self._party = party
        self._since_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) if now_ns is None else now_ns
        self._parents: dict[int, _Parent] = {}
        self._fresh: set[int] = set()  # with records since they were read
        self._vanished: set[int] = set()
        self._read: list[_Parent] = []
        self._heirs: dict[int, int] = {}  # parents of ended processes
        self._former_heirs: dict[int, int] = {}
        self._debts: dict[int, int] = {}  # counted, but to no live process of the job

    def watch(self, pids: Iterable[int], job: int) -> None:
        """Note processes that have come to a job: the children that they waited for until now are not the job's."""
        for pid, stat in self._stats(dict.fromkeys(pids, job)).items():
            if stat is None:
                self._parents.pop(pid, None)
                continue
            parent = self._parents[pid] = _Parent(job)
            parent.came = True
            if isinstance(stat, Stat):
                parent.base_ns = stat.charged_ns

    def read(self) -> None:
        """Read what processes have been charged with, of those whose descendants have new records."""
        parents = self._parents
        self._fresh &= parents.keys()
        may_answer = self._host.processes.may_answer
        asked = heapq.nlargest(
            self.AT_ONCE,
            (pid for pid in self._fresh if may_answer(pid, self._party(parents[pid].job))),
            key=lambda pid: parents[pid].counted_ns,
        )
        for pid, stat in self._stats({pid: parents[pid].job for pid in asked}).items():
            if stat is None:  # its own record is on its way, or lost
                self._fresh.discard(pid)
                self._vanished.add(pid)
            elif isinstance(stat, Stat):
                self._fresh.discard(pid)
                parent = parents[pid]
                if parent.base_ns is None:
                    began_here = stat.began_ns > self._since_ns and not parent.came
                    parent.base_ns = 0 if began_here else stat.charged_ns
                parent.charged_ns = stat.charged_ns
                self._read.append(parent)

    def add(
        self, ids: Sequence[Sequence[int]], counted_ns: Iterable[int], beyond_ns: Iterable[int] = itertools.repeat(0)
    ) -> None:
        """Add exit records of jobs.

        Args:
            ids: thread, process and parent process of each.
            counted_ns: CPU time in each.
            beyond_ns: an estimate of the CPU time that is not in it.
        """
        if len(self._heirs) > self.MAX_PARENTS:
            self._former_heirs, self._heirs = self._heirs, {}
        heirs, parents = self._heirs, self._parents
        for tid, process, ppid in ids:  # first, as a parent's record may come before its child's, or after
            if tid == process:
                heirs[tid] = ppid
        children: dict[int, list[int]] = {}
        for (tid, process, ppid), counted, beyond in zip(ids, counted_ns, beyond_ns):
            sums = children.get(ppid)
            if sums is None:
                sums = children[ppid] = [0, 0]
            sums[0] += counted
            sums[1] += beyond
            if tid == process and tid in parents:
                ended = parents.pop(tid)
                ended.charged_ns = None  # its children's records from now on, and all beyond, are its parent's
                sums[0] += ended.counted_ns
                sums[1] += ended.estimated_ns
        for ppid, (counted, beyond) in children.items():
            self._count(ppid, counted, beyond)

    def _count(self, ppid: int, counted: int, beyond: int) -> None:
        """Count the records of a process's children to the process, or to its nearest live ancestor."""
        heir = ppid
        job = self._owner(heir)
        for _ in range(_MAX_ANCESTORS):
            if job is not None:
                break
            heir = self._heirs.get(heir) or self._former_heirs.get(heir, 0)
            if not heir:
                return
            job = self._owner(heir)
        if job is None:  # the children that it waited for may have been anybody's
            return
        parent = self._parents.get(heir)
        if parent is None:
            parent = self._parents[heir] = _Parent(job)
        parent.counted_ns += counted
        parent.estimated_ns += beyond
        self._fresh.add(heir)

    def settle(self) -> dict[int, int]:
        """Return the CPU time in ns found beyond records and estimates since the last call, by job."""
        found: dict[int, int] = {}
        for parent in self._read:
            if parent.charged_ns is None or parent.base_ns is None:
                continue
            beyond = parent.charged_ns - parent.base_ns - parent.counted_ns
            parent.charged_ns = None
            if beyond <= 0:
                continue
            parent.counted_ns += beyond
            more = beyond - parent.estimated_ns
            parent.estimated_ns = max(0, -more)
            if more > 0:
                found[parent.job] = found.get(parent.job, 0) + self._pay(parent.job, more)
        self._read = []
        return found

    def tick(self, jobs: Collection[int]) -> None:
        """Forget other jobs, processes that have vanished without a record, and parents of long-ended tasks."""
        self._former_heirs, self._heirs = self._heirs, {}
        for pid in [pid for pid, parent in self._parents.items() if parent.job not in jobs]:
            del self._parents[pid]
        vanished, self._vanished = self._vanished, set()
        vanished |= {pid for pid in self._parents if self._owner(pid) is None}
        if len(self._parents) > self.MAX_PARENTS:
            stats = self._stats({pid: parent.job for pid, parent in self._parents.items()})
            vanished |= {pid for pid, stat in stats.items() if stat is None}
        for pid in vanished & self._parents.keys():
            parent = self._parents.pop(pid)
            self.owe(parent.job, parent.counted_ns)
        self._debts = {job: debt for job, debt in self._debts.items() if job in jobs}

    def owe(self, job: int, cpu_ns: int) -> None:
        """Note CPU time that is counted, and that an unknown process is or will be charged with."""
        self._debts[job] = self._debts.get(job, 0) + cpu_ns

    def _pay(self, job: int, amount: int) -> int:
        """Return an amount less what is owed: it was counted before it was known who is charged with it."""
        debt = self._debts.get(job, 0)
        if debt:
            self._debts[job] = max(0, debt - amount)
        return max(0, amount - debt)

    def _stats(self, jobs: Mapping[int, int]) -> dict[int, Stat | NoAnswer | None]:
        """Return the stat of each process; None of those that have ended.

        Args:
            jobs: of each process its job.
        """
        return dict(zip(jobs, ask_stats(self._host, [(pid, self._party(job)) for pid, job in jobs.items()])))
