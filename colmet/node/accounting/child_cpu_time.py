"""What ended tasks used beyond what their exit records say.

The kernel makes a task's record before it takes the task down, and the CPU time in it may be as old as the last clock
tick: of a process that lives half a millisecond, most is missing. When a process waits for its child, it is charged
with all that the child, and whom the child had waited for, ever used (cutime and cstime, kernel/exit.c). So a living
process tells what its ended descendants used, and what their records told is taken off. Until it has told, and of those
for whom nobody waits, there is an estimate.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from colmet.node.kernel.procstat import Stat, ask_stats
from colmet.node.system.host import Host
from colmet.node.system.processes import NoAnswer

_HOPS = 64  # ended ancestors that are looked through


class _Parent:
    """A process that has ended descendants.

    Attributes:
        job: whose it is.
        came: whether it has come from elsewhere, so that its children until then were not of the job.
        told_ns: what their records told, and what was found beyond it, of those whose nearest living ancestor it is.
        estimated_ns: what is thought to be beyond, and was not found yet; of single ones it may be less than nothing.
        base_ns: what it had been charged with before its descendants' records were counted; None until it is read.
        charged_ns: what it has been charged with; None while that has not been read again.
    """

    __slots__ = ("base_ns", "came", "charged_ns", "estimated_ns", "job", "told_ns")

    def __init__(self, job: int) -> None:
        self.job = job
        self.came = False
        self.told_ns = 0
        self.estimated_ns = 0
        self.base_ns: int | None = None
        self.charged_ns: int | None = None


class ChildCpuTime:
    """Compares what processes are charged with for their children with what the children's records told.

    Call `read` before the records are received, `add` with those that are a job's, then `settle`: everything that a
    process had been charged with when it was read has been told of by then, so nothing is counted twice.

    Args:
        host: the machine.
        owner: the job of a process that lives, None where it is of none.
        now_ns: time since boot; what began before that is not known to have been listened to from its start.
        party: who can have the reading of a job's processes wait (`processes`).
    """

    AT_ONCE = 4  # processes that are read at once, those first of which the most was told
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
        self._fresh: set[int] = set()  # with more told than when they were read
        self._vanished: set[int] = set()
        self._read: list[_Parent] = []
        self._heirs: dict[int, int] = {}  # parents of ended processes
        self._former_heirs: dict[int, int] = {}
        self._debts: dict[int, int] = {}  # counted, but told to no process of the job that lives

    def watch(self, pids: Iterable[int], job: int) -> None:
        """Processes have come to a job: whom they have waited for until now was not of the job."""
        for pid, stat in self._stats(dict.fromkeys(pids, job)).items():
            if stat is None:
                self._parents.pop(pid, None)
                continue
            parent = self._parents[pid] = _Parent(job)
            parent.came = True
            if isinstance(stat, Stat):
                parent.base_ns = stat.charged_ns

    def read(self) -> None:
        """See what processes have been charged with, of those whose descendants' records have come since."""
        parents = self._parents
        self._fresh &= parents.keys()
        may_answer = self._host.processes.may_answer
        asked = heapq.nlargest(
            self.AT_ONCE,
            (pid for pid in self._fresh if may_answer(pid, self._party(parents[pid].job))),
            key=lambda pid: parents[pid].told_ns,
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
        self, ids: Sequence[Sequence[int]], told_ns: Iterable[int], beyond_ns: Iterable[int] = itertools.repeat(0)
    ) -> None:
        """Take in exit records of jobs.

        Args:
            ids: thread, process and parent process of each.
            told_ns: CPU time that it tells.
            beyond_ns: an estimate of what it leaves out.
        """
        if len(self._heirs) > self.MAX_PARENTS:
            self._former_heirs, self._heirs = self._heirs, {}
        heirs, parents = self._heirs, self._parents
        for tid, process, ppid in ids:  # first, as a parent's record may come before or after its child's
            if tid == process:
                heirs[tid] = ppid
        children: dict[int, list[int]] = {}
        for (tid, process, ppid), told, beyond in zip(ids, told_ns, beyond_ns):
            sums = children.get(ppid)
            if sums is None:
                sums = children[ppid] = [0, 0]
            sums[0] += told
            sums[1] += beyond
            if tid == process and tid in parents:
                ended = parents.pop(tid)
                ended.charged_ns = None  # children that are told of from now on, and all beyond, are its parent's
                sums[0] += ended.told_ns
                sums[1] += ended.estimated_ns
        for ppid, (told, beyond) in children.items():
            self._tell(ppid, told, beyond)

    def _tell(self, ppid: int, told: int, beyond: int) -> None:
        """Count what was told of children of a process to itself, or to its nearest ancestor that lives."""
        heir = ppid
        job = self._owner(heir)
        for _ in range(_HOPS):
            if job is not None:
                break
            heir = self._heirs.get(heir) or self._former_heirs.get(heir, 0)
            if not heir:
                return
            job = self._owner(heir)
        if job is None:  # whom it waited for may have been anybody's
            return
        parent = self._parents.get(heir)
        if parent is None:
            parent = self._parents[heir] = _Parent(job)
        parent.told_ns += told
        parent.estimated_ns += beyond
        self._fresh.add(heir)

    def settle(self) -> dict[int, int]:
        """What was found beyond the records and the estimates, by job, in ns, since the last call."""
        found: dict[int, int] = {}
        for parent in self._read:
            if parent.charged_ns is None or parent.base_ns is None:
                continue
            beyond = parent.charged_ns - parent.base_ns - parent.told_ns
            parent.charged_ns = None
            if beyond <= 0:
                continue
            parent.told_ns += beyond
            more = beyond - parent.estimated_ns
            parent.estimated_ns = max(0, -more)
            if more > 0:
                found[parent.job] = found.get(parent.job, 0) + self._pay(parent.job, more)
        self._read = []
        return found

    def tick(self, jobs: Collection[int]) -> None:
        """Forget other jobs, processes that have vanished without a record, and parents of the long ended."""
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
            self.owe(parent.job, parent.told_ns)
        self._debts = {job: debt for job, debt in self._debts.items() if job in jobs}

    def owe(self, job: int, cpu_ns: int) -> None:
        """CPU time is counted that processes are or will be charged with, and it is not known which."""
        self._debts[job] = self._debts.get(job, 0) + cpu_ns

    def _pay(self, job: int, amount: int) -> int:
        """Less what was told of descendants of which it is not known to whom they are charged."""
        debt = self._debts.get(job, 0)
        if debt:
            self._debts[job] = max(0, debt - amount)
        return max(0, amount - debt)

    def _stats(self, jobs: Mapping[int, int]) -> dict[int, Stat | NoAnswer | None]:
        """What the kernel says of processes; None of those that have ended.

        Args:
            jobs: of each process its job.
        """
        return dict(zip(jobs, ask_stats(self._host, [(pid, self._party(job)) for pid, job in jobs.items()])))
