"""The jobs on this node, found through their cgroups.

The kernel tells through inotify when a job's directory comes or goes, when a directory in it does, and when a task is
put into one; a full look from time to time finds what an event missed.
"""

from __future__ import annotations

import errno
import logging
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from colmet.common.errors import ConfigError
from colmet.common.runtime.plural import counted
from colmet.node.jobs.finder import Finder, Found
from colmet.node.jobs.mounts import Mounts
from colmet.node.jobs.owners import owner_of
from colmet.node.jobs.places import NamedRoot, Place, layout_places
from colmet.node.system.host import Host, Kept, is_gone
from colmet.node.system.processes import NO_ANSWER, Processes, Question

log = logging.getLogger(__name__)

DEFAULT_ROOT = "/dev/oar_cgroups_links/cpuset/oar/"
OAR2_ROOTS = (DEFAULT_ROOT, "/sys/fs/cgroup/cpuset/oar", "/dev/cpuset/oar")
DEFAULT_PATTERN = r"_(\d+)$"
NODE_JOB = 0  # the id of what is no job's: the node's own rows, and the unit that -c, -p and -t name
FULL_LOOK_S = 10.0
# A directory that a job lacks in some hierarchy is looked for at the first so many requests, then at every so-many-th.
_EAGER_MISSES = 8
_RARE_MISSES = 32
_USER_LOOKS, _USER_PROCESSES = 20, 32  # for whose job it is
MEMORY, TASKS = "memory_current", "pids_current"  # columns of cgroup_default; see `Job.counted`


def compile_patterns(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    """The expressions that find a job's id in the name of its cgroup.

    Raises:
        ConfigError: one does not compile, or has no group for the id.
    """
    compiled = []
    for text in patterns:
        try:
            pattern = re.compile(text)
        except re.error as err:
            raise ConfigError(f"--regex_job_id {shlex.quote(text)}: not a regular expression: {err}") from err
        if not pattern.groups:
            raise ConfigError(
                f"--regex_job_id {shlex.quote(text)}: put the job id in parentheses, as in "
                f"{shlex.quote(DEFAULT_PATTERN)}"
            )
        compiled.append(pattern)
    return compiled


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
        attributed_cpu_ns: CPU time that its tasks, live and ended, are known to have used; None where nothing
            measures it. Written by the backend that does.
        counted: which of `MEMORY` and `TASKS` its cgroups had at this tick. Written by the backend that reads them.
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
        self.attributed_cpu_ns: int | None = None
        self.counted: frozenset[str] = frozenset()
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
        """Tells it from every other job and unit since the machine's boot, also after a restart of the agent.

        The path of its directory and the inode number there, which a directory made again has not; for the unit, what
        the command line names.
        """
        if not self._identity:
            if self.id == NODE_JOB or not self.tops:
                self._identity = f"{self.tops} {self._named_pids} {self._named_tids}"
            else:
                try:
                    inode = self._host.inode(self.tops[0])
                except OSError:
                    inode = 0  # gone before anyone asked
                self._identity = f"{self.tops[0]} {inode}"
        return self._identity

    @property
    def party(self) -> str:
        """Who can have the reading of its processes wait: its user, as far as that is known (`processes`)."""
        return self.user or f"job {self.id}"

    def learn_user(self) -> None:
        """Where its directory does not say whose it is, as with Slurm on cgroup v2: the uid of its first processes.

        Those of root do not count: Slurm's own are among them. Looked for a few times, at few processes.
        """
        if self.user or self.id == NODE_JOB or self._user_looks >= _USER_LOOKS:
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


ABSENT = "not here"


class State(NamedTuple):
    """What was found at one place.

    Attributes:
        name: of the layout, "root" where the command line names the place.
        help: one line on the layout.
        path: where it was looked for.
        state: what is there, for people.
        unmatched: names of some directories that no expression matches.
    """

    name: str
    help: str
    path: str
    state: str
    unmatched: tuple[str, ...] = ()


class JobSource:
    """Finds the jobs on this machine, and has the unit that the command line names beside them.

    Args:
        host: the machine.
        roots: directories whose sub-directories are jobs; all are used; one that does not exist yet is waited for.
            Where none is named, every layout of the table is looked for in every cgroup mount.
        patterns: for the roots: the first that matches a directory's name gives the job's id in its first group; what
            stands before the match is the job's user.
        unit: tasks to watch beside the jobs, as job 0.
        monotonic: seconds, for the time between full looks.

    Attributes:
        started: jobs that came.
        ended: jobs that went.
        fd: readable when something has happened that a scan takes in.
    """

    def __init__(
        self,
        host: Host,
        roots: Sequence[str],
        patterns: Sequence[re.Pattern[str]],
        unit: Job | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._unit = unit
        self._unit_tops = tuple(host.resolve(path) for path in unit.tops) if unit is not None else ()
        self._monotonic = monotonic
        self._mounts = Mounts(host)
        if unit is not None:
            unit.use(self._mounts)
        self._named = [NamedRoot(host, self._mounts, root, patterns) for root in roots]
        self._places: list[Place] = list(self._named)
        # here, as the collector's machine, whose commands read the backends' schemas, has no pyinotify
        from colmet.node.jobs.watches import Directories

        self._directories = Directories(host)
        self._finder = Finder(host, self._directories)
        self._jobs: dict[int, Job] = {}
        self._keys: dict[int, set[tuple[str, int]]] = {}
        self._found: dict[int, Found] = {}
        self._owners: dict[str, list[int]] = {}
        self._gone: list[Job] = []
        self._changed: set[int] = set()
        self._look_at = monotonic()
        self._overflows = 0
        self.started = 0
        self.ended = 0
        self.fd = self._directories.fd

    @property
    def failures(self) -> int:
        """Listings of directories that failed otherwise than by absence."""
        return self._directories.failures

    @property
    def unmapped(self) -> int:
        """Directories with a text id of Slurm for which no job id was found."""
        return self._finder.sluids.unmapped

    @property
    def left_out(self) -> int:
        """Directories in jobs' that are beyond the bounds of depth and number."""
        return self._finder.left_out

    @property
    def conflicts(self) -> int:
        """Directories left out as another layout has a job with that id."""
        return self._finder.conflicts

    @property
    def processes(self) -> Processes:
        """What reads the files of the jobs' processes."""
        return self._host.processes

    @property
    def overflows(self) -> int:
        """How often inotify dropped events."""
        return self._directories.overflows

    def scan(self) -> list[Job]:
        """The jobs that are there now, in ascending order of their ids; the unit first.

        The same job is the same object from scan to scan; its tasks are read anew. Where nothing has happened, no
        file is opened.
        """
        self._refresh()
        jobs = [self._jobs[job_id] for job_id in sorted(self._jobs)]
        if self._unit is not None:
            jobs.insert(0, self._unit)
        for job in jobs:
            job.forget_tasks()
        return jobs

    def take_ended(self) -> list[Job]:
        """The jobs that have gone since this was called last; they are kept until it is."""
        gone, self._gone = self._gone, []
        return gone

    def take_changed(self) -> list[Job]:
        """The jobs that have come, or to or from which tasks were moved, since this was called last.

        Their tasks are read anew.
        """
        self._refresh()
        ids, self._changed = self._changed, set()
        jobs = [self._jobs[job_id] for job_id in sorted(ids) if job_id in self._jobs]
        if NODE_JOB in ids and self._unit is not None:
            jobs.insert(0, self._unit)
        for job in jobs:
            job.forget_tasks()
        return jobs

    def describe(self) -> list[State]:
        """Every place where jobs are looked for, and what is there now."""
        self._refresh()
        states = []
        for place in self._places:
            count = sum(found.place is place for found in self._found.values())
            state = f"found, {counted(count, 'jobs')}" if count or place.here else ABSENT
            sluid = place.layout is not None and "sluid" in place.layout.job.groupindex
            if sluid and self._finder.sluids.waiting:
                state += f", {len(self._finder.sluids.waiting)} whose job id cannot be told"
            if place.unmatched:
                state += (
                    f"; {counted(len(place.unmatched), 'directories')} without a match of --regex_job_id, such as "
                    f"{place.unmatched[0]}"
                )
            states.append(State(place.name, place.help, place.path, state, place.unmatched))
        if not states:
            states.append(State("none", "every layout", "/proc/self/mounts", "no cgroup is mounted"))
        return states

    def close(self) -> None:
        """Give watches and descriptors back; also twice."""
        if self.fd >= 0:
            self._directories.close()
            self._mounts.close()
            self._host.processes.close()
            for job in self._jobs.values():
                job.reopen()
            if self._unit is not None:
                self._unit.reopen()
            self.fd = -1

    def _refresh(self) -> None:
        """Take in what has happened, and look at the directories again where that says so."""
        directories = self._directories
        directories.drain()
        now = self._monotonic()
        due = now >= self._look_at
        if self._mounts.refresh(anyway=due):
            directories.clear()
            for place in self._places:
                place.watched = False
            if not self._named:
                self._places = layout_places(self._mounts)
        if due:
            directories.expire()
            self._look_at = now + FULL_LOOK_S
        overflow = directories.overflows != self._overflows
        self._overflows = directories.overflows
        changed, directories.changed = directories.changed, set()
        for path in changed:
            self._changed.update(self._owners.get(path, ()))
        # a task put into a directory whose job is not known may be the one that tells
        if directories.stale or not changed.issubset(self._owners):
            self._walk(now)
        if overflow:
            self._changed.update(self._jobs)
            self._changed.add(NODE_JOB)

    def _walk(self, now: float) -> None:
        directories = self._directories
        directories.begin()
        found = self._finder.find(self._places, now)
        owners: dict[str, list[int]] = {}
        for job_id, job in list(found.items()):
            keys = self._finder.keys(job)
            cgroups = self._finder.groups(job.tops, job_id)
            if not (keys and cgroups):
                del found[job_id]  # gone since it was listed
                continue
            for path in cgroups:
                owners.setdefault(path, []).append(job_id)
            self._update(job_id, job, keys, cgroups)
        for job_id in [job_id for job_id in self._jobs if job_id not in found]:
            self._end(job_id)
        if self._unit is not None:
            cgroups = self._finder.groups(self._unit_tops, NODE_JOB) or list(self._unit_tops)
            for path in cgroups:
                owners.setdefault(path, []).append(NODE_JOB)
            if self._unit.regroup(self._unit.tops, cgroups):
                self._changed.add(NODE_JOB)
        self._found = found
        self._owners = owners
        for place in self._places:
            place.watched = True
        self._finder.forget({*found, NODE_JOB})
        directories.end()

    def _update(self, job_id: int, found: Found, keys: set[tuple[str, int]], cgroups: list[str]) -> None:
        known = self._jobs.get(job_id)
        if known is not None:
            before = {key for key in self._keys[job_id] if key[0] not in self._directories.gone}
            if not before & keys:
                self._end(job_id)
                known = None
        self._keys[job_id] = keys
        if known is None:
            self._begin(job_id, found, cgroups)
        elif known.regroup(found.tops, cgroups):
            self._changed.add(job_id)

    def _begin(self, job_id: int, found: Found, cgroups: list[str]) -> None:
        job = Job(self._host, job_id, found.user, found.tops, mounts=self._mounts)
        job.witnessed = found.watched
        _ = job.identity  # now, while its directory is there
        job.regroup(found.tops, cgroups)
        self._jobs[job_id] = job
        self._changed.add(job_id)
        self.started += 1
        log.info("job started job=%d user=%s layout=%s cgroup=%s", job_id, found.user, found.place.name, found.tops[0])

    def _end(self, job_id: int) -> None:
        job = self._jobs.pop(job_id)
        del self._keys[job_id]
        job.close()
        self._gone.append(job)
        self._changed.discard(job_id)
        self.ended += 1
        log.info("job ended job=%d", job_id)
