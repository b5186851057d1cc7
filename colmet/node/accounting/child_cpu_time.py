"""CPU time of ended tasks beyond their exit records, from the CPU time charged to their parents.

The kernel makes a task's record before it removes the task, and its CPU time may be as old as the last clock tick:
most of the time of a process that lives half a millisecond is missing. A process that waits for its child is charged
with all CPU time of the child, and of all children awaited by the child (cutime and cstime, kernel/exit.c).
So a live process has the CPU time of its ended descendants; their records are subtracted. Until the process has been
read, and for children without a waiting parent, the time is estimated.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from colmet.common.host.host import Host
from colmet.common.host.processes import NoAnswer
from colmet.node.kernel.textfiles import Stat, ask_stats

_MAX_ANCESTORS = 64  # ended ones, up to the nearest live one


class _Parent:
    """A live process with ended descendants."""

    __slots__ = ("base_ns", "came", "charged_ns", "counted_ns", "estimated_ns", "job")

    def __init__(self, job: int) -> None:
        self.job = job
        self.came = False  # whether it has migrated from elsewhere: its children until then were not of the job
        self.counted_ns = 0  # in records of descendants with it as nearest live ancestor, and found beyond
        self.estimated_ns = 0  # estimate of the time beyond, not found yet; may be negative for a single parent
        self.base_ns: int | None = None  # charged before its descendants' records were counted; None until it is read
        self.charged_ns: int | None = None  # time charged to it; None until it is read again


class ChildCpuTime:
    """Comparison of the CPU time charged to processes for their children with the children's exit records.

    ::

        read()    charged_ns of parents          in this order: all time charged to a process at its reading has its
        add()     exit records, to the nearest   record by `settle`, and nothing is counted twice
                  live ancestor
        settle()  charged - base - counted = CPU time beyond the records

    Args:
        owner: returns the job of a live process, None without one.
        without_owner: returns the processes for which `owner` returns None.
        now_ns: time since boot; the exit records of children of an older process may be missing.
        party: returns the party that can delay the reading of a job's processes (`host.processes`).
    """

    AT_ONCE = 4  # processes read at once, those with the most CPU time in records first
    MAX_PARENTS = 16384

    def __init__(
        self,
        host: Host,
        owner: Callable[[int], int | None],
        without_owner: Callable[[AbstractSet[int]], set[int]],
        now_ns: int | None = None,
        party: Callable[[int], str] = "job {}".format,
    ) -> None:
        self._host = host
        self._owner = owner
        self._without_owner = without_owner
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
        """Note processes that have migrated to a job: the children waited for until now are not the job's."""
        for pid, stat in self._stats(dict.fromkeys(pids, job)).items():
            if stat is None:
                self._parents.pop(pid, None)
                continue
            parent = self._parents[pid] = _Parent(job)
            parent.came = True
            if isinstance(stat, Stat):
                parent.base_ns = stat.charged_ns

    def read(self) -> None:
        """Read the CPU time charged to processes whose descendants have new records."""
        parents = self._parents
        self._fresh &= parents.keys()
        if not self._fresh:
            return
        may_answer = self._host.processes.may_answer
        asked = [pid for pid in self._fresh if may_answer(pid, self._party(parents[pid].job))]
        asked.sort(key=lambda pid: parents[pid].counted_ns, reverse=True)
        for pid, stat in self._stats({pid: parents[pid].job for pid in asked[: self.AT_ONCE]}).items():
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
        """Add exit records: thread, process and parent of each, the CPU time in it and an estimate of that missing."""
        if len(self._heirs) > self.MAX_PARENTS:
            self._former_heirs, self._heirs = self._heirs, {}
        heirs, parents = self._heirs, self._parents
        children: dict[int, list[int]] = {}  # counted at the end: a parent's record may come before its child's
        for (tid, process, ppid), counted, beyond in zip(ids, counted_ns, beyond_ns):
            sums = children.get(ppid)
            if sums is None:
                sums = children[ppid] = [0, 0]
            sums[0] += counted
            sums[1] += beyond
            if tid == process:
                heirs[tid] = ppid
                if tid in parents:
                    ended = parents.pop(tid)
                    ended.charged_ns = None  # its children's later records, and the time beyond, are its parent's
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
        if job is None:  # children waited for may have been of any job
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
        vanished |= self._without_owner(self._parents.keys())
        if len(self._parents) > self.MAX_PARENTS:
            stats = self._stats({pid: parent.job for pid, parent in self._parents.items()})
            vanished |= {pid for pid, stat in stats.items() if stat is None}
        for pid in vanished & self._parents.keys():
            parent = self._parents.pop(pid)
            self.owe(parent.job, parent.counted_ns)
        self._debts = {job: debt for job, debt in self._debts.items() if job in jobs}

    def owe(self, job: int, cpu_ns: int) -> None:
        """Note CPU time that is counted already, and is or will be charged to an unknown process."""
        self._debts[job] = self._debts.get(job, 0) + cpu_ns

    def _pay(self, job: int, amount: int) -> int:
        """Return an amount less the debt: CPU time counted before the process charged with it was known."""
        debt = self._debts.get(job, 0)
        if debt:
            self._debts[job] = max(0, debt - amount)
        return max(0, amount - debt)

    def _stats(self, jobs: Mapping[int, int]) -> dict[int, Stat | NoAnswer | None]:
        """Return the stat of each process of these jobs; None for ended ones."""
        return dict(zip(jobs, ask_stats(self._host, [(pid, self._party(job)) for pid, job in jobs.items()])))
