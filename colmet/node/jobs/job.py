"""One job on this node: its directories, its tasks, its user."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from colmet.node.jobs.mounts import Mounts
from colmet.node.jobs.owners import owner_of
from colmet.node.system.host import Host, Kept, is_gone
from colmet.node.system.processes import NO_ANSWER, Question

log = logging.getLogger(__name__)

NODE_JOB = 0  # the id of what is no job's: the node's own rows, and the unit that -c, -p and -t name
# A directory that a job lacks in some hierarchy is searched at each of the first requests, then at one request in 32.
_EAGER_MISSES = 8
_RARE_MISSES = 32
_USER_SEARCHES, _USER_PROCESSES = 20, 32  # bounds of the search for a job's user


class Job:
    """One job on this node, or the unit of tasks that the command line names (id 0).

    `tids` and `pids` are read at most once a tick, whoever asks.

    Args:
        host: the machine.
        job_id: the job's number.
        user: its owner.
        cgroups: its directories.
        pids: processes that it has besides.
        tids: threads that it has besides.
        mounts: where cgroups are mounted; without them all directories are taken for cgroup v1.

    Attributes:
        id: the job's number.
        user: whose job it is, a uid as text where its layout has that, "" where it does not say and `learn_user` has
            not found it.
        tops: its own directories, without those inside them.
        cgroups: the directories whose lists of tasks make up its tasks, step groups inside others included.
        witnessed: whether it began while the agent was looking, so that what a task had used when it was first seen
            in the job was used before.
    """

    def __init__(
        self,
        host: Host,
        job_id: int,
        user: str = "",
        cgroups: Iterable[str] = (),
        pids: Iterable[int] = (),
        tids: Iterable[int] = (),
        mounts: Mounts | None = None,
    ) -> None:
        self.id = job_id
        self.user = user
        self.cgroups = tuple(cgroups)
        self.tops = self.cgroups
        self.witnessed = False
        self._host = host
        self._mounts = mounts
        self._named_pids = tuple(pids)
        self._named_tids = tuple(tids)
        self._tids: list[int] | None = None
        self._pids: list[int] | None = None
        self._kept: dict[str, Kept] = {}
        self._unified: dict[str, bool] = {}
        self._identity = ""
        self._misses: dict[str, int] = {}
        self._user_looks = 0
        self._within: list[str] = []

    def __repr__(self) -> str:
        return f"Job({self.id}, {self.user!r}, {list(self.cgroups)})"

    @property
    def identity(self) -> str:
        """Text that no other job or unit has had since the machine's boot; the same after a restart of the agent."""
        if not self._identity:
            self.read_identity()
        return self._identity

    def read_identity(self) -> None:
        """Read what identifies the job, while its directory exists.

        That is the path and the inode number of its directory: a directory that is made again has another number. Of
        the unit, it is what the command line names.
        """
        if self.id == NODE_JOB or not self.tops:
            self._identity = f"{self.tops} {self._named_pids} {self._named_tids}"
            return
        try:
            inode = self._host.inode(self.tops[0])
        except OSError:
            inode = 0  # removed already
        self._identity = f"{self.tops[0]} {inode}"

    @property
    def party(self) -> str:
        """Who can have the reading of its processes wait: its user, as far as that is known (`processes`)."""
        return self.user or f"job {self.id}"

    def learn_user(self) -> None:
        """Where its directory does not say whose it is, as with Slurm on cgroup v2: the uid of its first processes.

        Those of root do not count: Slurm's own are among them. Looked for a few times, at few processes.
        """
        if self.user or self.id == NODE_JOB or self._user_looks >= _USER_SEARCHES:
            return
        pids = self.pids()[:_USER_PROCESSES]
        self._user_looks += bool(pids)
        for uid in self._ask(pids, lambda pid: owner_of(self._host, pid)):
            if uid is not None:
                self.user = str(uid)
                return

    def directory(self, controller: str) -> str | None:
        """Its directory in the hierarchy of a cgroup v1 controller, or of v2 ("unified"); None where it has none.

        The same path, from the mount point on, as that of its own directory; None where it has several, in none of
        which all of it is. Who asks at each tick keeps what was found; what was not is looked for again, ever more
        rarely.
        """
        asked = self._misses.get(controller, 0)
        if asked >= _EAGER_MISSES and asked % _RARE_MISSES:
            self._misses[controller] = asked + 1
            return None
        path = self.place(controller)
        if path is not None and self._host.is_directory(path):
            self._misses.pop(controller, None)
            return path
        self._misses[controller] = asked + 1
        return None

    def place(self, controller: str) -> str | None:
        """Where its directory in a hierarchy is, or would be.

        None where that hierarchy is not mounted, or where it has no directory of its own, or several.
        """
        if self._mounts is None:
            self._mounts = Mounts(self._host)
            self._mounts.refresh(anyway=True)
            self._mounts.close()
        point = self._mounts.unified if controller == "unified" else self._mounts.v1.get(controller)
        within = set(self._within_mounts(self._mounts)) if point is not None else set()
        return f"{point}".rstrip("/") + within.pop() if len(within) == 1 else None

    def _within_mounts(self, mounts: Mounts) -> Sequence[str]:
        """Its own directories, each from the mount point of its hierarchy on."""
        if not self._within:
            for real in map(self._host.resolve, self.tops):
                mount = mounts.of(real)
                if mount is not None:
                    self._within.append(real[len(mount.point.rstrip("/")) :])
            if len(set(self._within)) > 1:
                log.warning(
                    "a job has several cgroups side by side, and no controller has their sum: its cgroup columns are "
                    "missing job=%d cgroups=%s",
                    self.id,
                    " ".join(self.tops),
                )
        return self._within

    def regroup(self, tops: Sequence[str], cgroups: Sequence[str]) -> bool:
        """Take note of its directories now, its own and all; whether they are others than before."""
        if tuple(tops) != self.tops:
            self.tops = tuple(tops)
            self._within = []
        if tuple(cgroups) == self.cgroups:
            return False
        self.cgroups = tuple(cgroups)
        self._unified.clear()
        inside = set(cgroups)
        for path in [path for path in self._kept if path.rpartition("/")[0] not in inside]:
            self._kept.pop(path).close()
        self.forget_tasks()
        return True

    def close(self) -> None:
        """Its directories are gone, or another job's: it has no tasks but the named ones. Also twice."""
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()
        self.cgroups = ()
        self.forget_tasks()

    def reopen(self) -> None:
        """Give the descriptors back that it keeps; they are opened anew when they are wanted."""
        for kept in self._kept.values():
            kept.close()

    def use(self, mounts: Mounts) -> None:
        """Have it read the cgroups in these mounts as what they are."""
        self._mounts = mounts
        self._unified.clear()
        self._within = []

    def forget_tasks(self) -> None:
        """A new tick: read the tasks again when they are asked for."""
        self._tids = self._pids = None

    def tids(self) -> list[int]:
        """Its threads now, in ascending order. Source: ``tasks`` of cgroup v1, ``cgroup.threads`` of v2."""
        if self._tids is None:
            found = set(self._named_tids)
            for cgroup in self.cgroups:
                found.update(self._threads(cgroup))
            for names in self._ask(self._named_pids, lambda pid: self._host.names(f"/proc/{pid}/task")):
                found.update(map(int, names))
            self._tids = sorted(found)
        return self._tids

    def pids(self) -> list[int]:
        """Its processes now, in ascending order. Source: the cgroup's ``cgroup.procs``."""
        if self._pids is None:
            found = set(self._named_pids)
            for cgroup in self.cgroups:
                try:
                    found.update(self._listed(f"{cgroup}/cgroup.procs", self._is_unified(cgroup)))
                except OSError as err:
                    if err.errno != errno.EOPNOTSUPP:
                        raise
                    # a threaded group of v2 lists threads only
                    found.update(self._processes(self._threads(cgroup)))
            found.update(self._processes(self._named_tids))
            self._pids = sorted(found)
        return self._pids

    def _processes(self, tids: Iterable[int]) -> list[int]:
        """The processes that threads belong to."""
        found = []
        for status in self._ask(tids, lambda tid: self._host.read(f"/proc/{tid}/status")):
            match = re.search(rb"^Tgid:\s+(\d+)$", status, re.M)
            if match:
                found.append(int(match[1]))
        return found

    def _ask(self, numbers: Iterable[int], find: Callable[[int], Any]) -> Iterator[Any]:
        """What is found about tasks, of those that have not ended, and that answer."""
        questions = [Question(number, self.party, partial(find, number)) for number in numbers]
        for answer in self._host.processes.ask(questions) if questions else ():
            if isinstance(answer, Exception):
                if not isinstance(answer, OSError) or not is_gone(answer):
                    raise answer
            elif answer is not NO_ANSWER:
                yield answer

    def _threads(self, cgroup: str) -> list[int]:
        unified = self._is_unified(cgroup)
        return self._listed(f"{cgroup}/{'cgroup.threads' if unified else 'tasks'}", unified)

    def _is_unified(self, cgroup: str) -> bool:
        known = self._unified.get(cgroup)
        if known is None:
            known = self._unified[cgroup] = self._mounts is not None and self._mounts.is_unified(cgroup)
        return known

    def _listed(self, path: str, keep: bool) -> list[int]:
        # Of v1 opened anew for each read: through a kept descriptor, it answers from a list that it keeps for a
        # second after each read, and at a period of a second or less the list would never be made again. v2 makes
        # the list at each read.
        try:
            if keep:
                kept = self._kept.get(path)
                if kept is None:
                    kept = self._kept[path] = self._host.keep(path)
                data = self._again(kept)
            else:
                data = self._host.read(path)
            return [int(number) for number in data.split()]
        except OSError as err:
            if not is_gone(err):
                raise
            return []

    @staticmethod
    def _again(kept: Kept) -> bytes:
        try:
            return kept.read()
        except OSError as err:
            if not is_gone(err):
                raise
            kept.close()  # a step's directory may have been made again meanwhile
            return kept.read()
