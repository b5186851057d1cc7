"""One job on this node: its directories, its tasks, its user."""

from __future__ import annotations

import errno
import logging
import pwd
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from colmet.common.host.host import Host, Kept, is_gone
from colmet.common.host.processes import NO_ANSWER, Question
from colmet.common.schema import digest_of
from colmet.node.jobs.directory_keys import DirectoryName
from colmet.node.jobs.mounts import Mounts
from colmet.node.state import BOOT_ID

log = logging.getLogger(__name__)

NODE_JOB = 0  # the id of the node's own rows, and of the unit named by -c, -p and -t
# A missing directory of a job in some hierarchy is searched at each of the first requests, then at one request in 32.
_EAGER_MISSES = 8
_SURE_CALLS = 32  # for which an existing directory is not looked for again
_RARE_MISSES = 32
_USER_SEARCHES, _USER_PROCESSES = 20, 32  # bounds of the search for a job's user


class Job:
    """One job on this node, or the unit of tasks named by the command line (id 0).

    `tids` and `pids` are read at most once a tick. Without `mounts` all directories count as cgroup v1.

    Attributes:
        id: the job's number.
        user: the job's user, a uid as text if the layout has that; "" while unknown, see `learn_user`.
        tops: the job's own directories, without those inside them.
        cgroups: all directories that list tasks of the job, those of its steps included.
        witnessed: whether the agent was running at the job's start: earlier usage of a task first seen in the job was
            elsewhere.
        listed_ns: time since the machine's boot at which the reading of the present `pids` began.
        keys: the job's own directories in all hierarchies, by the keys of the kernel's programs.
        run: number of this run, see `colmet.common.tables`; None if the job's directory was not seen.
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
        self._last_lists: list[bytes] = []  # texts of the lists of threads, and the threads in them
        self._last_tids: list[int] = sorted(set(self._named_tids))
        self._pids: list[int] | None = None
        self._kept: dict[str, Kept] = {}
        self._unified: dict[str, bool] = {}
        self._identity = f"{self.tops} {self._named_pids} {self._named_tids}" if job_id == NODE_JOB else ""
        self.keys: dict[int, DirectoryName] = {}
        self.run: int | None = None
        self.listed_ns = 0
        self._misses: dict[str, int] = {}
        self._known_directories: dict[
            str, tuple[str, int]
        ] = {}  # by controller, with the calls until it is looked for again
        self._user_searches = 0
        self._within: set[str] = set()

    @property
    def identity(self) -> str:
        """Text unique among all jobs and units since the machine's boot; the same after a restart of the agent."""
        if not self._identity:
            self.read_identity()
        return self._identity

    def read_identity(self) -> None:
        """Read the job's identity, while its directory exists.

        That is the path and the inode number of its directory: a directory created again has another number. Of the
        unit, it is the cgroups and tasks of the command line.
        """
        if self.id == NODE_JOB or not self.tops:
            self._identity = f"{self.tops} {self._named_pids} {self._named_tids}"
            return
        try:
            self.identify(self._host.inode(self.tops[0]))
        except OSError:
            self._identity = f"{self.tops[0]} 0"  # removed already

    def identify(self, inode: int) -> None:
        """Set the identity by the inode number of the job's directory."""
        self.run = self._run_of(inode)
        self._identity = f"{self.tops[0]} {inode}"

    def _run_of(self, inode: int) -> int:
        """Return a number below 2^48 for a directory's inode since this boot: programs keep whole numbers up to 2^53.

        Since Linux 4.14 the kernel gives the number of a removed cgroup to another one only after all others.
        """
        try:
            boot_id = self._host.read(BOOT_ID).strip()
        except OSError:
            boot_id = b""
        return int.from_bytes(digest_of(b"%s %d" % (boot_id, inode))[:6], "big") or 1

    @property
    def party(self) -> str:
        """Party that can delay the reading of the job's processes: its user, if known (`host.processes`)."""
        return self.user or f"job {self.id}"

    def learn_user(self) -> None:
        """Set `user` to the uid of the job's first processes, if its directory does not name the user.

        That is the case with Slurm on cgroup v2. Processes of root are skipped, as Slurm's own are among them. Both the
        calls with a search and the processes searched are bounded.
        """
        if self.user or self.id == NODE_JOB or self._user_searches >= _USER_SEARCHES:
            return
        pids = self.pids()[:_USER_PROCESSES]
        self._user_searches += bool(pids)
        for uid in self._ask(pids, lambda pid: owner_of(self._host, pid)):
            if uid is not None:
                self.user = str(uid)
                return

    def directory(self, controller: str) -> str | None:
        """Return the job's directory in the hierarchy of a v1 controller, or of v2 ("unified"); None without one.

        It has the same path, from the mount point on, as the job's own directory. A job with several directories side
        by side has none, as no directory holds all of it. After a few misses, only one call in 32 searches again.
        """
        known = self._known_directories.get(controller)
        if known is not None and known[1]:
            self._known_directories[controller] = (known[0], known[1] - 1)
            return known[0]
        misses = self._misses.get(controller, 0)
        if misses < _EAGER_MISSES or not misses % _RARE_MISSES:
            path = self.place(controller)
            if path is not None and self._host.is_directory(path):
                self._misses.pop(controller, None)
                self._known_directories[controller] = (path, _SURE_CALLS)
                return path
        self._known_directories.pop(controller, None)
        self._misses[controller] = misses + 1
        return None

    def place(self, controller: str) -> str | None:
        """Return the actual or possible path of the job's directory in a hierarchy.

        None if that hierarchy is not mounted, or if the job has no directory of its own, or several.
        """
        if self._mounts is None:
            self._mounts = Mounts(self._host)
            self._mounts.refresh(anyway=True)
            self._mounts.close()
        point = self._mounts.unified if controller == "unified" else self._mounts.v1.get(controller)
        if point is None:
            return None
        if not self._within:  # its own directories, each from the mount point of its hierarchy on
            for real in map(self._host.resolve, self.tops):
                mount = self._mounts.of(real)
                if mount is not None:
                    self._within.add(real[len(mount.point.rstrip("/")) :])
            if len(self._within) > 1:
                log.warning(
                    "a job has several cgroups side by side, and no controller has their sum: its cgroup columns are "
                    "missing job=%d cgroups=%s",
                    self.id,
                    " ".join(self.tops),
                )
        return point.rstrip("/") + next(iter(self._within)) if len(self._within) == 1 else None

    def regroup(self, tops: Sequence[str], cgroups: Sequence[str]) -> bool:
        """Set the job's own directories and all its directories; return whether they have changed."""
        if tuple(tops) != self.tops:
            self.tops = tuple(tops)
            self._within = set()
            self._known_directories = {}
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
        """Release the job's directories, removed or another job's by now; can be called twice."""
        self.reopen()
        self._kept.clear()
        self._known_directories = {}
        self.cgroups = ()
        self.forget_tasks()

    def reopen(self) -> None:
        """Close the files kept open; they are opened again on demand."""
        for kept in self._kept.values():
            kept.close()

    def use(self, mounts: Mounts) -> None:
        """Set the cgroup mounts: they determine the version of each directory."""
        self._mounts = mounts
        self._unified.clear()
        self._within = set()
        self._known_directories = {}

    def forget_tasks(self) -> None:
        """Read the tasks again at the next call of `tids` or `pids`."""
        self._tids = self._pids = None
        # a number whose task has ended is another program's some day
        gone = {n for n in self._named_pids + self._named_tids if not self._host.is_directory(f"/proc/{n}")}
        if gone:
            self._named_pids = tuple([n for n in self._named_pids if n not in gone])
            self._named_tids = tuple([n for n in self._named_tids if n not in gone])
            self._last_lists = [b"?"]  # equal to no reading

    def tids(self) -> list[int]:
        """Return the threads, ascending; the same list while they are the same.

        Source: ``tasks`` of cgroup v1, ``cgroup.threads`` of v2.
        """
        if self._tids is None:
            lists = [self._threads(cgroup) for cgroup in self.cgroups]
            if lists == self._last_lists and not self._named_pids:
                self._tids = self._last_tids
                return self._tids
            found = set(self._named_tids)
            found.update([int(number) for data in lists for number in data.split()])
            for names in self._ask(self._named_pids, lambda pid: self._host.names(f"/proc/{pid}/task")):
                found.update(map(int, names))
            self._last_lists, self._tids = lists, sorted(found)
            self._last_tids = self._tids
        return self._tids

    def pids(self) -> list[int]:
        """Return the processes, ascending. Source: the cgroup's ``cgroup.procs``."""
        if self._pids is None:
            self.listed_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            found = set(self._named_pids)
            for cgroup in self.cgroups:
                try:
                    found.update(map(int, self._listed(f"{cgroup}/cgroup.procs", self._is_unified(cgroup)).split()))
                except OSError as err:
                    if err.errno != errno.EOPNOTSUPP:
                        raise
                    # a threaded group of v2 lists threads only
                    found.update(self._processes(map(int, self._threads(cgroup).split())))
            found.update(self._processes(self._named_tids))
            self._pids = sorted(found)
        return self._pids

    def _processes(self, tids: Iterable[int]) -> list[int]:
        """Return the processes of threads."""
        found = []
        for status in self._ask(tids, lambda tid: self._host.read(f"/proc/{tid}/status")):
            match = re.search(rb"^Tgid:\s+(\d+)$", status, re.M)
            if match:
                found.append(int(match[1]))
        return found

    def _ask(self, numbers: Iterable[int], find: Callable[[int], Any]) -> Iterator[Any]:
        """Return the result of `find` for each task, except those that have ended or do not answer."""
        questions = [Question(number, self.party, partial(find, number)) for number in numbers]
        for answer in self._host.processes.ask(questions) if questions else ():
            if isinstance(answer, Exception):
                if not isinstance(answer, OSError) or not is_gone(answer):
                    raise answer
            elif answer is not NO_ANSWER:
                yield answer

    def _threads(self, cgroup: str) -> bytes:
        unified = self._is_unified(cgroup)
        return self._listed(f"{cgroup}/{'cgroup.threads' if unified else 'tasks'}", unified)

    def _is_unified(self, cgroup: str) -> bool:
        known = self._unified.get(cgroup)
        if known is None:
            known = self._unified[cgroup] = self._mounts is not None and self._mounts.is_unified(cgroup)
        return known

    def _listed(self, path: str, keep: bool) -> bytes:
        """Return the text of a list of tasks; empty if its directory is removed."""
        # A v1 file is opened for each read: through a kept descriptor, the kernel answers from a list kept for a second
        # after each read, and at a period of a second or less would never update it. v2 makes the list at each read.
        try:
            if not keep:
                return self._host.read(path)
            kept = self._kept.get(path)
            if kept is None:
                kept = self._kept[path] = self._host.keep(path)
            try:
                return kept.read()
            except OSError as err:
                if not is_gone(err):
                    raise
                kept.close()  # a step's directory may have been made again meanwhile
                return kept.read()
        except OSError as err:
            if not is_gone(err):
                raise
            return b""


SUBUIDS = "/etc/subuid"
_MOST_OF_FILE = 1 << 20
_UID = re.compile(rb"^Uid:\s+(\d+)\s", re.MULTILINE)


def owner_of(host: Host, pid: int) -> int | None:
    """Return the uid of a process's user; None for root, and if it is unknown.

    That is the real uid in its status: /proc files of a process protected from reading belong to root. A subordinate
    uid (subuid(5)) of a process in a container is mapped to its owner's.

    The process and the user database may block the reader: call it in the thread of `host.processes`.

    Raises:
        OSError: the process has ended.
    """
    try:
        found = _UID.search(host.read(f"/proc/{pid}/status"))
    except PermissionError:  # /proc is mounted with hidepid, and this is not root
        return None
    uid = int(found[1]) if found else 0
    if not uid:
        return None
    try:
        lines = host.read_start(SUBUIDS, _MOST_OF_FILE).decode("utf-8", "replace").split("\n")
    except OSError:
        return uid
    for line in lines:
        name, *numbers = line.split(":")
        if len(numbers) == 2 and all(number.isdecimal() for number in numbers):
            first, count = map(int, numbers)
            if first <= uid < first + count:
                try:
                    return (int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid) or None
                except KeyError:
                    return None
    return uid
