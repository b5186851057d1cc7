"""Groups in cgroup v1's perf_event hierarchy for jobs without one there (`--perfhw-make-cgroup`).

The kernel counts perf events of a cgroup only in this hierarchy, and OAR 2 makes no group there by default. A group has
the job's path; the job's processes are moved into it, and it is removed after the job.
"""

from __future__ import annotations

import errno
import logging
import posixpath
import stat
from collections.abc import Iterable

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.host.host import Host, is_gone
from colmet.node.jobs.job import Job

log = logging.getLogger(__name__)

# The sticky bit marks our groups: the kernel gives it no meaning here, and no resource manager sets it. The next agent
# recognises them by it.
_OURS = 0o1755
_MAX_DEPTH = 8
_MAX_GROUPS = 4096
_MAX_ROUNDS = 3  # over the tasks of a job: they may fork while they are moved


class PerfGroups:
    """Maker, filler and remover of the jobs' groups.

    Attributes:
        moved: number of processes moved into a group.
        failures: number of groups that could not be made, filled or removed.
    """

    def __init__(self, host: Host) -> None:
        self.moved = self.failures = 0
        self._host = host
        self._unused: set[str] = set()

    def is_ours(self, path: str) -> bool:
        """Return whether this agent or an earlier one made a group."""
        try:
            return bool(self._host.mode(path) & stat.S_ISVTX)
        except OSError:
            return False

    def make(self, path: str, point: str) -> bool:
        """Make a group, and missing ones between it and the mount point; return whether it exists now."""
        missing = []
        while path != point and not self._host.is_directory(path):
            missing.append(path)
            path = posixpath.dirname(path)
        for group in reversed(missing):
            try:
                self._host.make_group(group, _OURS)
            except FileExistsError:
                pass  # another program was faster: the group is not ours
            except OSError as err:
                self._failed("make", group, err)
                return False
            self._unused.discard(group)
        return True

    def fill(self, path: str, job: Job) -> None:
        """Move the job's processes into its group; their children start in it.

        A process that enters the job from elsewhere is moved at the next call.
        """
        for _ in range(_MAX_ROUNDS):
            try:
                inside = set(map(int, self._host.read(f"{path}/cgroup.procs").split()))
            except OSError as err:
                if not is_gone(err):
                    self._failed("read", path, err)
                return
            outside = [pid for pid in job.pids() if pid not in inside]
            moved = [self._move(pid, path) for pid in outside]
            if not any(moved):
                return
            job.forget_tasks()

    def _move(self, pid: int, path: str) -> bool:
        try:
            self._host.write_group(f"{path}/cgroup.procs", f"{pid}")
        except OSError as err:
            if not is_gone(err):
                self._failed(f"put process {pid} into", path, err)
            return False
        self.moved += 1
        return True

    def leave(self, path: str) -> None:
        """Mark the group of an ended job for `tidy`."""
        self._unused.add(path)

    def find_left(self, point: str, used: Iterable[str]) -> None:
        """Mark unused groups of an earlier agent under a mount point for `tidy`."""
        keep = tuple(used)
        level = [point]
        for _ in range(_MAX_DEPTH):
            inside: list[str] = []
            for path in level:
                try:
                    inside += [f"{path.rstrip('/')}/{name}" for name in self._host.directories(path)]
                except OSError:
                    continue  # gone meanwhile
            level = inside[:_MAX_GROUPS]
            for path in level:
                if self.is_ours(path) and not any(group == path or group.startswith(path + "/") for group in keep):
                    self._unused.add(path)

    def tidy(self, point: str) -> None:
        """Remove the marked groups, and our groups above them.

        Remaining processes of a group are moved to the top group; a group that is still in use stays marked.
        """
        for path in sorted(self._unused, key=len, reverse=True):
            if not self._remove(path):
                self._empty(path, point)
                if not self._remove(path):
                    continue
            self._unused.discard(path)
            above = posixpath.dirname(path)
            while above.startswith(point.rstrip("/") + "/") and self.is_ours(above) and self._remove(above):
                above = posixpath.dirname(above)

    def _remove(self, path: str) -> bool:
        try:
            self._host.remove_group(path)
        except OSError as err:
            if err.errno not in (errno.EBUSY, errno.ENOTEMPTY) and not is_gone(err):
                self._failed("remove", path, err)
            return is_gone(err)
        return True

    def _empty(self, path: str, point: str) -> None:
        """Move the processes of a group to the top group."""
        try:
            pids = [int(pid) for pid in self._host.read(f"{path}/cgroup.procs").split()]
        except OSError:
            return
        for pid in pids:
            self._move(pid, point)

    def _failed(self, what: str, path: str, err: OSError) -> None:
        self.failures += 1
        if powers_of_ten(self.failures):
            log.warning("cannot %s %s failures=%d: %s", what, path, self.failures, err.strerror)
