"""Listings of directories, read again only after inotify has reported a change.

A removed cgroup sends no event itself and keeps its watch (Linux 6.18), so the parent directory is watched. pyinotify
places watches only: a name that is not UTF-8 makes its reader lose its buffer, and users choose names.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyinotify

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.wakeup import readable
from colmet.common.host.host import Host, is_gone

log = logging.getLogger(__name__)

_EVENT = struct.Struct("iIII")  # struct inotify_event: wd, mask, cookie, len
_COME = pyinotify.IN_CREATE | pyinotify.IN_MOVED_TO
_GO = pyinotify.IN_DELETE | pyinotify.IN_MOVED_FROM
_SELF = pyinotify.IN_DELETE_SELF | pyinotify.IN_MOVE_SELF | pyinotify.IN_UNMOUNT | pyinotify.IN_IGNORED
# IN_MASK_ADD: a directory watched under two paths, or for two reasons, reports the events of both
_MASK = _COME | _GO | pyinotify.IN_DELETE_SELF | pyinotify.IN_ONLYDIR | pyinotify.IN_MASK_ADD
# A write to one of the first three moves a task; the kernel modifies the last when a group fills or empties.
_TASK_FILES = frozenset(("tasks", "cgroup.procs", "cgroup.threads", "cgroup.events"))
_READ_BYTES = 1 << 18
_MAX_READS = 64  # at once: endless writes must not stop the tick


def parse_events(data: bytes) -> Iterator[tuple[int, int, str]]:
    """Return watch descriptor, mask and name of each event in the bytes of a read from inotify.

    pyinotify's own reader loses all events of a read if one name is not UTF-8, and users can choose names.
    """
    offset = 0
    while offset + _EVENT.size <= len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, offset)
        offset += _EVENT.size
        yield watch, mask, os.fsdecode(data[offset : offset + length].split(b"\0", 1)[0])
        offset += length


@dataclass
class _WatchedDirectory:
    """The last listing of one directory, and its watch."""

    names: tuple[str, ...] | None = None  # None: never listed
    listed: set[str] = field(default_factory=set)  # names new in the last listing: their events may still come
    fresh: bool = False
    watch: int = -1
    wants: set[Callable[[str], bool] | None] = field(default_factory=set)
    awaited: set[str] = field(default_factory=set)
    tasks: bool = False
    visited: bool = False


class Directories:
    """The directories visited by a walk. Directories not visited by the last walk lose their watch.

    Paths are without symbolic links. A walk is `begin`, any number of `names` and `wait_for`, `end`.

    Attributes:
        fd: readable when there are events.
        stale: whether a walk would read a directory again.
        changed: directories with a changed list of tasks, or possibly changed before they were watched; the caller
            clears them.
        removed: directories removed or moved away since the last walk, even if created again.
        overflows: number of times that the kernel dropped events; all directories are read again then.
        unwatched: number of failed watches; such directories are read at each walk.
        failures: number of failed listings of existing directories; the former listing is used then.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._manager = pyinotify.WatchManager()
        self._entries: dict[str, _WatchedDirectory] = {}
        self._paths: dict[int, list[str]] = {}
        self._incomplete = False
        self._newly_listed: list[_WatchedDirectory] = []  # with `listed`
        self.fd: int = self._manager.get_fd()
        self.stale = True
        self.changed: set[str] = set()
        self.removed: set[str] = set()
        self.overflows = 0
        self.unwatched = 0
        self.failures = 0

    def begin(self) -> None:
        """Start a walk."""
        self._incomplete = False
        for entry in self._entries.values():
            entry.visited = False
            entry.wants.clear()
            entry.awaited.clear()

    def end(self) -> None:
        """End a walk; forget unvisited directories."""
        for path in [path for path, entry in self._entries.items() if not entry.visited]:
            self._unwatch(path, self._entries.pop(path))
        self.removed.clear()
        self.stale = self._incomplete

    def names(self, path: str, wants: Callable[[str], bool] | None = None, tasks: bool = False) -> tuple[str, ...]:
        """Return the names of the directories in a directory, in order.

        Args:
            path: of the directory.
            wants: returns whether the creation or removal of a directory, given by its path, matters; None: always.
            tasks: whether writes to its list of tasks matter.

        Raises:
            OSError: it does not exist, or could never be read.
        """
        entry = self._visit(path)
        entry.wants.add(wants)
        if entry.fresh and entry.names is not None and (entry.tasks or not tasks):
            return entry.names
        return self._read(path, entry, tasks)

    def wait_for(self, path: str, name: str) -> None:
        """Report the creation or removal of `name`, of any kind, in a directory."""
        entry = self._visit(path)
        entry.awaited.add(name)
        self._watch(path, entry, "a new root there is found at the next full walk only")

    def expire(self) -> None:
        """Read all directories again at the next walk."""
        for entry in self._entries.values():
            entry.fresh = False
        self.stale = True

    def clear(self) -> None:
        """Forget all directories and watches: other directories may have the same paths now."""
        for path in list(self._entries):
            self._drop(path)
        self.stale = True

    def drain(self) -> None:
        """Read pending events."""
        for _ in range(_MAX_READS):
            if not readable([self.fd], 0):
                for entry in self._newly_listed:
                    entry.listed.clear()
                self._newly_listed.clear()
                break
            for watch, mask, name in parse_events(os.read(self.fd, _READ_BYTES)):
                if mask & pyinotify.IN_Q_OVERFLOW:
                    self.overflows += 1
                    if powers_of_ten(self.overflows):
                        log.warning("inotify dropped events, all jobs are scanned again overflows=%d", self.overflows)
                    self.expire()
                for path in tuple(self._paths.get(watch, ())):
                    self._handle(path, mask, name)
                if mask & pyinotify.IN_IGNORED:
                    self._paths.pop(watch, None)
                    self._manager.watches.pop(watch, None)

    def close(self) -> None:
        """Remove all watches; can be called twice."""
        if self.fd >= 0:
            self._manager.close()
            self.fd = -1

    def _handle(self, path: str, mask: int, name: str) -> None:
        entry = self._entries.get(path)
        if entry is None:
            return  # dropped by an event before this one
        child = f"{path.rstrip('/')}/{name}"
        if mask & _SELF:
            # not sent for removed cgroup directories: the event in the parent counts there
            if mask & pyinotify.IN_IGNORED:
                entry.watch = -1
            entry.fresh = False
            self.stale = True
        elif mask & pyinotify.IN_MODIFY:
            if entry.tasks and name in _TASK_FILES:
                self.changed.add(path)
        elif mask & _COME and name in entry.listed:
            entry.listed.discard(name)  # created between the watch and the listing
        elif name in entry.awaited or (
            mask & pyinotify.IN_ISDIR
            and entry.names is not None
            and any(wants is None or wants(child) for wants in entry.wants)
        ):
            # a directory created under a known name is another one, even if the removal was not reported
            if mask & _GO or (entry.names is not None and name in entry.names):
                self.removed.add(child)
                self._drop(child)
            entry.fresh = False
            self.stale = True

    def _visit(self, path: str) -> _WatchedDirectory:
        entry = self._entries.get(path)
        if entry is None:
            entry = self._entries[path] = _WatchedDirectory()
        entry.visited = True
        return entry

    def _read(self, path: str, entry: _WatchedDirectory, tasks: bool) -> tuple[str, ...]:
        entry.tasks = entry.tasks or tasks
        before = entry.watch
        # first, so that nothing comes between the listing and the watch
        entry.fresh = self._watch(path, entry, "", again=True)
        if tasks and entry.watch != before:
            self.changed.add(path)  # tasks may have come before the watch
        if tasks:
            # The kernel reports its own changes of a file only while the file's inode is in memory, that is, after
            # a look-up of the file (kernfs_notify_workfn, Linux 6.18).
            with contextlib.suppress(OSError):
                self._host.inode(f"{path}/cgroup.events")
        try:
            names = tuple(sorted(self._host.directories(path)))
        except OSError as err:
            entry.fresh = False
            if is_gone(err) or isinstance(err, PermissionError):
                self._drop(path)
                raise
            self._incomplete = True
            self.failures += 1
            if powers_of_ten(self.failures):
                log.error("cannot list the jobs' cgroups path=%s failures=%d: %s", path, self.failures, err)
            if entry.names is None:
                raise
            return entry.names  # a failure to list does not end the jobs
        if not entry.fresh:
            self._not_watched(path, "jobs there are searched at each tick")
        for name in set(entry.names or ()).difference(names):
            self._drop(f"{path.rstrip('/')}/{name}")
        entry.listed.update(set(names).difference(entry.names or ()))
        if entry.listed:
            self._newly_listed.append(entry)
        entry.names = names
        return names

    def _watch(self, path: str, entry: _WatchedDirectory, without: str, again: bool = False) -> bool:
        if entry.watch >= 0 and not again:
            return True
        mask = _MASK | (pyinotify.IN_MODIFY if entry.tasks else 0)
        try:
            watch: int = self._manager.add_watch(self._host.path(path), mask, quiet=False)[self._host.path(path)]
        except ValueError:
            return True  # pyinotify accepts UTF-8 names only: read at each full walk
        except pyinotify.WatchManagerError:
            entry.watch = -1
            if without and self._host.is_directory(path):
                self._not_watched(path, without)
            return False
        if entry.watch >= 0 and entry.watch != watch:
            self._unwatch(path, entry)  # another directory by the same path
        entry.watch = watch
        # a directory in two mounts has one watch
        paths = self._paths.setdefault(watch, [])
        if path not in paths:
            paths.append(path)
        return True

    def _not_watched(self, path: str, without: str) -> None:
        self._incomplete = True
        self.unwatched += 1
        if powers_of_ten(self.unwatched):
            log.warning(
                "cannot watch path=%s failures=%d; %s "
                "(is fs.inotify.max_user_watches or max_user_instances too small?)",
                path,
                self.unwatched,
                without,
            )

    def _unwatch(self, path: str, entry: _WatchedDirectory) -> None:
        paths = self._paths.get(entry.watch)
        if paths is not None and path in paths:
            paths.remove(path)
            if not paths:
                del self._paths[entry.watch]
                # quiet=False: pyinotify would write its own error if the kernel has dropped the watch meanwhile
                try:
                    self._manager.rm_watch(entry.watch, quiet=False)
                except pyinotify.WatchManagerError:
                    self._manager.watches.pop(entry.watch, None)
        entry.watch = -1

    def _drop(self, path: str) -> None:
        """Forget a directory and all in it."""
        todo = [path]
        while todo:
            path = todo.pop()
            entry = self._entries.pop(path, None)
            if entry is not None:
                self._unwatch(path, entry)
                todo += [f"{path.rstrip('/')}/{name}" for name in entry.names or ()]
