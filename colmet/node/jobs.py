"""The jobs on this node, found through their cgroups.

OAR makes one cpuset cgroup a job, named ``<user>_<job id>``, under one root. The kernel tells through inotify when
one comes or goes; a scan at every tick finds what an event missed.
"""

from __future__ import annotations

import logging
import os
import re
import select
from collections.abc import Iterable, Sequence

import pyinotify

from colmet.common.cli import powers_of_ten
from colmet.common.errors import ConfigError
from colmet.node.host import Host, is_gone

log = logging.getLogger(__name__)

DEFAULT_ROOT = "/dev/oar_cgroups_links/cpuset/oar/"
DEFAULT_PATTERN = r"_(\d+)$"
NODE_JOB = 0  # the id of what is no job's: the node's own rows, and the unit that -c, -p and -t name
MAX_JOB_ID = (1 << 63) - 1


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
            raise ConfigError(f"--regex_job_id {text!r}: not a regular expression: {err}") from err
        if not pattern.groups:
            raise ConfigError(f"--regex_job_id {text!r}: put the job id in parentheses, as in {DEFAULT_PATTERN!r}")
        compiled.append(pattern)
    return compiled


class Job:
    """One job on this node, or the unit of tasks that the command line names (id 0).

    `tids` and `pids` are read at most once a tick, whoever asks.

    Attributes:
        id: the job's number.
        user: whose job it is, "" where its cgroup's name does not say.
        cgroups: its directories, one under each root that has the job.
        attributed_cpu_ns: CPU time that its tasks, live and ended, are known to have used; None where nothing
            measures it. Written by the backend that does.
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
    ) -> None:
        self.id = job_id
        self.user = user
        self.cgroups = tuple(cgroups)
        self.attributed_cpu_ns: int | None = None
        self.witnessed = False
        self._host = host
        self._named_pids = tuple(pids)
        self._named_tids = tuple(tids)
        self._tids: list[int] | None = None
        self._pids: list[int] | None = None

    def __repr__(self) -> str:
        return f"Job({self.id}, {self.user!r}, {list(self.cgroups)})"

    @property
    def identity(self) -> str:
        """Tells it from every other job and unit since the machine's boot, also after a restart of the agent."""
        return f"{self.cgroups} {self._named_pids} {self._named_tids}"

    def directory(self, controller: str) -> str | None:
        """Its directory in the hierarchy of a cgroup v1 controller, or of v2 ("unified"); None where it has none."""
        return None

    def forget_tasks(self) -> None:
        """A new tick: read the tasks again when they are asked for."""
        self._tids = self._pids = None

    def tids(self) -> list[int]:
        """Its threads now, in ascending order. Source: the cgroup's ``tasks``."""
        if self._tids is None:
            found = set(self._named_tids)
            for cgroup in self.cgroups:
                found.update(self._listed(f"{cgroup}/tasks"))
            for pid in self._named_pids:
                try:
                    found.update(map(int, self._host.names(f"/proc/{pid}/task")))
                except OSError as err:
                    if not is_gone(err):
                        raise
            self._tids = sorted(found)
        return self._tids

    def pids(self) -> list[int]:
        """Its processes now, in ascending order. Source: the cgroup's ``cgroup.procs``."""
        if self._pids is None:
            found = set(self._named_pids)
            for cgroup in self.cgroups:
                found.update(self._listed(f"{cgroup}/cgroup.procs"))
            for tid in self._named_tids:
                try:
                    status = self._host.read(f"/proc/{tid}/status")
                except OSError as err:
                    if not is_gone(err):
                        raise
                    continue
                match = re.search(rb"^Tgid:\s+(\d+)$", status, re.M)
                if match:
                    found.add(int(match[1]))
            self._pids = sorted(found)
        return self._pids

    def _listed(self, path: str) -> list[int]:
        # Opened anew for each read: through a kept descriptor, cgroup v1 answers from a list that it keeps for a
        # second after each read, and at a period of a second or less the list would never be made again.
        try:
            return [int(number) for number in self._host.read(path).split()]
        except OSError as err:
            if not is_gone(err):
                raise
            return []


class _Watches:
    """inotify watches on directories, through pyinotify."""

    def __init__(self) -> None:
        self._manager = pyinotify.WatchManager()
        self._notifier = pyinotify.Notifier(self._manager, pyinotify.ProcessEvent(), timeout=0)
        self.fd: int = self._manager.get_fd()
        self.failures = 0

    def add(self, path: str) -> None:
        """Watch for directories that come and go in `path`, unless it is watched already."""
        if self._manager.get_wd(path) is not None:
            return
        mask = pyinotify.IN_CREATE | pyinotify.IN_DELETE | pyinotify.IN_MOVED_FROM | pyinotify.IN_MOVED_TO
        mask |= pyinotify.IN_DELETE_SELF | pyinotify.IN_ONLYDIR
        if self._manager.add_watch(path, mask, quiet=True).get(path, -1) < 0:
            self.failures += 1
            if powers_of_ten(self.failures):
                log.warning(
                    "cannot watch path=%s failures=%d; jobs there are found at each tick only "
                    "(is fs.inotify.max_user_watches or max_user_instances too small?)",
                    path,
                    self.failures,
                )

    def remove(self, path: str) -> None:
        watch = self._manager.get_wd(path)
        if watch is not None:
            self._manager.rm_watch(watch, quiet=True)

    def drain(self) -> bool:
        """Take in what has happened; whether anything has."""
        happened = False
        while select.select([self.fd], [], [], 0)[0]:
            self._notifier.read_events()
            self._notifier.process_events()
            happened = True
        return happened

    def close(self) -> None:
        self._notifier.stop()


class JobSource:
    """Finds the jobs of cgroup v1 cpuset roots, and the unit that the command line names.

    Args:
        host: the machine.
        roots: directories whose sub-directories are jobs; all are used; one that does not exist yet is waited for.
        patterns: the first that matches a directory's name gives the job's id in its first group; what stands before
            the match is the job's user.
        unit: tasks to watch beside the jobs, as job 0.
    """

    def __init__(
        self, host: Host, roots: Sequence[str], patterns: Sequence[re.Pattern[str]], unit: Job | None = None
    ) -> None:
        self._host = host
        self._roots = [root.rstrip("/") or "/" for root in roots]
        self._patterns = patterns
        self._unit = unit
        self._watches = _Watches()
        self._watched: dict[str, str] = {}
        self._jobs: dict[int, Job] = {}
        self._listed: dict[str, list[str]] = {}
        self._ignored: set[str] = set()
        self._waited_for: set[str] = set()
        self._gone: list[Job] = []
        self.started = 0
        self.ended = 0
        self.failures = 0
        self.fd = self._watches.fd

    def scan(self) -> list[Job]:
        """The jobs that are there now, in ascending order of their ids; the unit first.

        The same job is the same object from scan to scan; its tasks are read anew.
        """
        self._watches.drain()
        found: dict[int, tuple[str, list[str]]] = {}
        for root in self._roots:
            self._watch(root)
            for name in self._names(root):
                job_id, user = self._parse(name)
                if job_id:
                    found.setdefault(job_id, (user, []))[1].append(f"{root}/{name}")
        self._update(found)
        jobs = [self._jobs[job_id] for job_id in sorted(self._jobs)]
        if self._unit is not None:
            jobs.insert(0, self._unit)
        for job in jobs:
            job.forget_tasks()
        return jobs

    def take_ended(self) -> list[Job]:
        """The jobs that have gone since this was called last."""
        gone, self._gone = self._gone, []
        return gone

    def take_changed(self) -> list[Job]:
        """The jobs that have come, or to which tasks were added, since this was called last."""
        return []

    def close(self) -> None:
        """Give the watches back; also twice."""
        if self.fd >= 0:
            self._watches.close()
            self.fd = -1

    def _update(self, found: dict[int, tuple[str, list[str]]]) -> None:
        for job_id in [job_id for job_id in self._jobs if job_id not in found]:
            self._gone.append(self._jobs.pop(job_id))
            self.ended += 1
            log.info("job ended job=%d", job_id)
        for job_id, (user, cgroups) in found.items():
            known = self._jobs.get(job_id)
            if known is None:
                self.started += 1
                log.info("job started job=%d user=%s cgroup=%s", job_id, user, cgroups[0])
            if known is None or known.cgroups != tuple(cgroups):
                self._jobs[job_id] = Job(self._host, job_id, user, cgroups)

    def _names(self, root: str) -> list[str]:
        try:
            names = sorted(self._host.directories(root))
        except OSError as err:
            if not is_gone(err) and not isinstance(err, PermissionError):
                self.failures += 1
                if powers_of_ten(self.failures):
                    log.error("cannot list the jobs' cgroups path=%s failures=%d: %s", root, self.failures, err)
                return self._listed.get(root, [])  # not knowing is no reason to end the jobs
            if root not in self._waited_for:
                self._waited_for.add(root)
                if isinstance(err, PermissionError):
                    log.warning("cannot read the jobs' cgroups path=%s error=%s; run as root", root, err)
                else:
                    log.info("waiting for the jobs' cgroups path=%s", root)
            return []
        if root in self._waited_for:
            self._waited_for.discard(root)
            log.info("found the jobs' cgroups path=%s", root)
        self._listed[root] = names
        return names

    def _parse(self, name: str) -> tuple[int, str]:
        """Job id and user from a directory's name; id 0 where it is no job's."""
        for pattern in self._patterns:
            match = pattern.search(name)
            if match is None:
                continue
            text = match[1] or ""
            # int() alone would take "+1", "1_0" and digits of other scripts
            if text.isascii() and text.isdigit() and 0 < int(text[:20]) <= MAX_JOB_ID:
                return int(text), name[: match.start()]
            if name not in self._ignored and len(self._ignored) < 1000:
                self._ignored.add(name)
                log.warning("not a job id: cgroup=%s pattern=%s gives=%r", name, pattern.pattern, text)
        return 0, ""

    def _watch(self, root: str) -> None:
        """Have inotify tell of changes in a root, or, while it does not exist, in what is to hold it."""
        path = root
        while path != "/" and not self._host.is_directory(path):
            path = os.path.dirname(path)
        before = self._watched.get(root)
        if before is not None and before != path and before not in self._roots:
            self._watches.remove(self._host.path(before))
        self._watched[root] = path
        self._watches.add(self._host.path(path))
