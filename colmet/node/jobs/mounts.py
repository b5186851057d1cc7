"""Read the mount points of the cgroup hierarchies."""

from __future__ import annotations

import os
import re
import select
from typing import NamedTuple

from colmet.common.host.host import Host, is_gone
from colmet.node.jobs.directory_keys import HIERARCHIES

_PATH = "/proc/self/mounts"
_CONTROLLERS = frozenset(
    (
        *("cpu", "cpuacct", "cpuset", "memory", "blkio", "devices", "freezer", "pids", "perf_event"),
        *("net_cls", "net_prio", "hugetlb", "rdma", "misc"),
    )
)


class CgroupMount(NamedTuple):
    """One cgroup mount."""

    point: str  # the directory
    version: int  # 1 or 2
    controllers: tuple[str, ...] = ()  # of a v1 hierarchy; one without controllers has "name=..."


def unescape(field: bytes) -> bytes:
    r"""Return a field of ``/proc/mounts``: the kernel writes space, tab, newline and backslash as ``\040`` etc."""
    return re.sub(rb"\\([0-3][0-7]{2})", lambda match: bytes([int(match[1], 8)]), field)


def parse_mounts(data: bytes) -> list[CgroupMount]:
    """Return the cgroup mounts in the text of ``/proc/<pid>/mounts``; lines of another form are skipped."""
    found = []
    for line in data.split(b"\n"):
        fields = line.split(b" ")
        if len(fields) < 4 or fields[2] not in (b"cgroup", b"cgroup2"):
            continue
        point = os.fsdecode(unescape(fields[1]))
        if fields[2] == b"cgroup2":
            found.append(CgroupMount(point, 2))
            continue
        options = os.fsdecode(fields[3]).split(",")
        names = [option for option in options if option in _CONTROLLERS or option.startswith("name=")]
        found.append(CgroupMount(point, 1, tuple(names)))
    return found


class Mounts:
    """The cgroup mounts of a machine; they are read again when the kernel reports a change.

    Attributes:
        mounts: all, in the order of mounting.
        v1: mount point of each v1 controller.
        unified: mount point of cgroup2, None without one.
    """

    def __init__(self, host: Host) -> None:
        self._file = host.keep(_PATH)
        self._poll = select.poll()
        self._registered = -1
        self.failures = 0  # reads of the file that failed
        self.mounts: list[CgroupMount] = []
        self.v1: dict[str, str] = {}
        self.unified: str | None = None

    def refresh(self, anyway: bool = False) -> bool:
        """Read the mounts again if the kernel reports a change, or anyway; return whether they have changed.

        The kernel raises POLLPRI on a descriptor of the file at each change, once.
        """
        is_reported = self._registered >= 0 and bool(self._poll.poll(0))
        if not (is_reported or anyway):
            return False
        try:
            mounts = parse_mounts(self._file.read(has_long_records=True))
        except OSError as err:
            if not is_gone(err):
                self.failures += 1
                return False  # a failure to read does not end the jobs
            mounts = []  # no /proc: named roots need none
        if self._registered != self._file.fileno():
            self._registered = self._file.fileno()
            self._poll.register(self._registered, select.POLLPRI)
        if mounts == self.mounts:
            return False
        self.mounts = mounts
        self.v1 = {}
        self.unified = None
        for mount in mounts:
            for controller in mount.controllers:
                self.v1.setdefault(controller, mount.point)
            if mount.version == 2 and self.unified is None:
                self.unified = mount.point
        return True

    def of(self, path: str) -> CgroupMount | None:
        """Return the cgroup mount that holds a path without symbolic links; None without one."""
        inside = [
            mount for mount in self.mounts if path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        ]
        return max(reversed(inside), key=lambda mount: len(mount.point), default=None)  # of two at a point, the later

    def point_of(self, path: str) -> str:
        """Return the mount point that holds such a path; "" without one."""
        mount = self.of(path)
        return mount.point if mount is not None else ""

    def is_unified(self, path: str) -> bool:
        """Return whether a directory is one of cgroup v2."""
        mount = self.of(path)
        return mount is not None and mount.version == 2

    def hierarchy_of(self, path: str) -> str:
        """Return the name in `HIERARCHIES` of such a path's hierarchy; "" for none of them."""
        mount = self.of(path)
        if mount is None:
            return ""
        names = ("unified",) if mount.version == 2 else mount.controllers
        return next((name for name in HIERARCHIES if name in names), "")

    def close(self) -> None:
        """Close the file; can be called twice."""
        if self._registered >= 0:
            self._poll.unregister(self._registered)
            self._registered = -1
        self._file.close()
