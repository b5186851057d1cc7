"""The perf events of each job: its cgroup and CPUs, open events and counts, and its own use of perf."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import posixpath
import stat
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.host.host import Host, is_gone
from colmet.common.host.processes import Question
from colmet.common.schema import Value
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.jobs.mounts import Mounts
from colmet.node.kernel import perfevents
from colmet.node.kernel.perfevents import Event
from colmet.node.kernel.textfiles import cpu_files, parse_cpu_list
from colmet.node.schedule import Every

log = logging.getLogger(__name__)


# The sticky bit marks our groups: the kernel gives it no meaning here, and no resource manager sets it. The next agent
# recognises them by it.
_OURS = 0o1755
_MAX_DEPTH = 8
_MAX_GROUPS = 4096
_MAX_ROUNDS = 3  # over the tasks of a job: they may fork while they are moved


_ONLINE = "/sys/devices/system/cpu/online"
_MOUNT = "mkdir -p /sys/fs/cgroup/perf_event && mount -t cgroup -o perf_event perf_event /sys/fs/cgroup/perf_event"


class PerfGroup(NamedTuple):
    """The cgroup in which the events of a job are counted."""

    path: str = ""  # its directory; empty for none
    is_ours: bool = False  # whether an agent made it
    why: str = ""  # reason for a missing group, for people; empty if one may exist later


class PerfPlaces:
    """Finder of the cgroups and CPUs of jobs; makes, fills and removes groups in the perf_event hierarchy if asked."""

    def __init__(self, host: Host, make_groups: bool) -> None:
        self.moved = 0  # processes moved into a group
        self.failures = 0  # groups that could not be made, filled or removed
        self._host = host
        self._make_groups = make_groups
        self.mounts = Mounts(host)
        self._unused: set[str] = set()
        self._found_left = False

    def group(self, job: Job) -> PerfGroup:
        """Return the cgroup of a job; make it if requested."""
        point = self.mounts.v1.get("perf_event")
        directory = job.directory("perf_event" if point is not None else "unified")
        if directory is not None:
            is_ours = point is not None and self._make_groups and self.is_ours(directory)
            return PerfGroup(directory, is_ours)  # made by an agent before
        if job.id != NODE_JOB and not job.pids():
            return PerfGroup()  # it may have one before its first task
        if point is None:
            return PerfGroup(
                why="jobs have no cgroup v2, and the perf_event hierarchy is not mounted, so nothing of them is "
                f"counted: `{_MOUNT}`, and start with --perfhw-make-cgroup"
            )
        place = job.place("perf_event") if self._make_groups and job.id != NODE_JOB else None
        if place is not None and self._make(place, point):
            return PerfGroup(place, is_ours=True)
        return PerfGroup(
            why="jobs have no cgroup in the perf_event hierarchy, so nothing of them is counted; "
            "--perfhw-make-cgroup makes one for each"
        )

    def cpus(self, job: Job) -> frozenset[int]:
        """Return the CPUs that a job may use now; all without a cpuset, none while its cpuset is not set up."""
        online = self.online()
        for path in cpu_files(job):
            with contextlib.suppress(OSError, ValueError):  # v2 may be without cpuset
                return parse_cpu_list(self._host.read(path)) & online
        return online

    def online(self) -> frozenset[int]:
        """Return the online CPUs."""
        try:
            return parse_cpu_list(self._host.read(_ONLINE))
        except (OSError, ValueError):
            return frozenset(range(os.sysconf("SC_NPROCESSORS_CONF")))

    def close(self) -> None:
        """Release descriptors; can be called twice. Groups stay while their jobs run: the next agent uses them."""
        self._found_left = False
        self.mounts.close()

    def is_ours(self, path: str) -> bool:
        """Return whether this agent or an earlier one made a group."""
        try:
            return bool(self._host.mode(path) & stat.S_ISVTX)
        except OSError:
            return False

    def _make(self, path: str, point: str) -> bool:
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
        """Mark the group of an ended job for `remove_left`."""
        self._unused.add(path)

    def find_left(self, jobs: Iterable[Job]) -> None:
        """Find, once, the groups made by an earlier agent for jobs that have ended since."""
        point = self.mounts.v1.get("perf_event")
        if self._found_left or not self._make_groups or point is None:
            return
        self._found_left = True
        keep = [place for job in jobs if (place := job.place("perf_event"))]
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

    def remove_left(self) -> None:
        """Remove the groups of ended jobs, and our groups above them.

        Remaining processes of a group are moved to the top group; a group that is still in use stays marked.
        """
        point = self.mounts.v1.get("perf_event", "")
        for path in sorted(self._unused, key=len, reverse=True) if point else ():
            if not self._remove(path):
                with contextlib.suppress(OSError):
                    for pid in self._host.read(f"{path}/cgroup.procs").split():
                        self._move(int(pid), point)
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

    def _failed(self, what: str, path: str, err: OSError) -> None:
        self.failures += 1
        if powers_of_ten(self.failures):
            log.warning("cannot %s %s failures=%d: %s", what, path, self.failures, err.strerror)


_MAX_FILES = 1024  # of a job read in one search


class PerfUse:
    """Search of one job's processes for perf, and for open perf events.

    A job controls the number of its open files, so one thorough search reads `_MAX_FILES` of them, and the next ones
    continue with the remaining processes.

    ::

        complete --search, more files than the bound--> partial --search--> ... --search of the last process--> complete

    Attributes:
        was_bounded: whether the last search stopped at the bound.
    """

    def __init__(self, host: Host) -> None:
        self.was_bounded = False
        self._host = host
        self._searched: set[int] = set()  # processes; empty once all have been
        self._left = 0  # files that may still be read

    @property
    def is_partial(self) -> bool:
        """Whether some processes have not been searched yet."""
        return bool(self._searched)

    def search(self, job: Job, thorough: bool) -> bool:
        """Return whether a process of the job is perf, or, if thorough, has perf events open."""
        pids = job.pids()
        self._left = _MAX_FILES if thorough else 0
        known = self._searched if thorough else set(pids)
        found = self._host.processes.ask(
            [Question(pid, job.party, partial(self._at, pid, pid not in known)) for pid in pids]
        )
        self.was_bounded = thorough and self._left <= 0
        if thorough:
            self._searched = {pid for pid, answer in zip(pids, found) if pid in self._searched or answer is not None}
            if True in found or self._searched.issuperset(pids):
                self._searched = set()
        return True in found

    def _at(self, pid: int, thorough: bool) -> bool | None:
        """Return whether a process is perf, or has perf events open; None if its files were not read."""
        if self._host.read(f"/proc/{pid}/comm").strip() == b"perf":
            return True
        if not thorough or self._left <= 0:
            return None
        folder = f"/proc/{pid}/fd"
        names = self._host.some_names(folder, self._left)
        self._left -= len(names)
        for name in names:
            try:
                if self._host.link(f"{folder}/{name}") == "anon_inode:[perf_event]":
                    return True
            except OSError:
                continue  # closed meanwhile
        return False


_NOTHING = [0, 0, 0]


class EventColumn:
    """One column, and the column of its scale."""

    def __init__(self, number: int, event: Event, job_id: int | None, every: Every | None) -> None:
        self.number = number
        self.counter, self.scale = f"counter_{number}", f"scale_{number}"  # their names
        self.event = event
        self.job_id = job_id  # the only job counted; None for all
        self.every = every  # times of its values; None for every sample


class _OpenedEvents:
    """Events of one job that were opened together."""

    def __init__(self, counters: perfevents.EventCounters, events: Sequence[Event], descriptors: int) -> None:
        self.counters = counters
        # of the events still wanted, in the result of `counters.read`
        self.places = {event: 3 * n for n, (event, code) in enumerate(zip(events, counters.errors)) if not code}
        self.descriptors = descriptors  # their number


class JobEvents:
    """The perf events of one job.

    ::

        wanted, not open --open()--> counting --extend: open() on more CPUs--> counting
              ^                        |  |
              |                        |  +--change(): some are closed, others wanted--> counting, some not open
              +--------release()-------+

    The host bounds the number of descriptors.
    """

    def __init__(self, host: Host, columns: Sequence[EventColumn]) -> None:
        self.columns = columns  # those of the job
        self.missing = self.wanted()  # wanted events that are not open
        self.cpus: frozenset[int] = frozenset()  # on which they are counted
        self.refused: set[Event] = set()  # not supported by one of the CPUs
        self.group = ""  # the group made for the job, "" for its own or none
        self.use = PerfUse(host)  # searches the job for other users of perf
        self.yields = False  # whether the job uses perf itself: no event may be open then
        self.is_uncounted = False  # whether the job was counted as one without counted events
        self.try_at = 0  # the first tick for the next attempt to open
        self._host = host
        self._opened: list[_OpenedEvents] = []
        self._before: dict[EventColumn, list[int]] = {}  # counts at the column's last value

    @property
    def is_counting(self) -> bool:
        """Whether events are open."""
        return bool(self._opened)

    def wanted(self) -> list[Event]:
        """Return the events in its columns, each once."""
        return list(dict.fromkeys(column.event for column in self.columns))

    def open(
        self, library: perfevents.PerfLibrary, directory: str, events: Sequence[Event], cpus: frozenset[int]
    ) -> list[tuple[Event, int]]:
        """Open events of a cgroup on some CPUs; return those that a CPU does not support, each with the errno.

        OSError: nothing can be counted; EMFILE: no descriptors are left.
        """
        count = len(events) * len(cpus)
        if not self._host.reserve(count):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        try:
            group = self._host.open(directory)
            try:
                counters = perfevents.EventCounters(library, group, events, cpus)
            finally:
                os.close(group)
        except BaseException:
            self._host.release(count)
            raise
        self._opened.append(_OpenedEvents(counters, events, count))
        self.cpus |= cpus
        refused = [(event, code) for event, code in zip(events, counters.errors) if code]
        self.refused.update(event for event, _ in refused)
        return refused

    def change(self, columns: Sequence[EventColumn]) -> None:
        """Set other columns: close the events in none of them, and note the missing ones.

        Remaining events continue their counts.
        """
        self.columns = columns
        wanted = self.wanted()
        for opened in self._opened:
            for event in [event for event in opened.places if event not in wanted]:
                released = opened.counters.drop(opened.places.pop(event) // 3)
                opened.descriptors -= released
                self._host.release(released)
            if not opened.places:
                opened.counters.close()
                self._host.release(opened.descriptors)
        self._opened = [opened for opened in self._opened if opened.places]
        if not self._opened:
            self.cpus = frozenset()
        self.refused.intersection_update(wanted)
        have = self.refused.union(*[opened.places for opened in self._opened])
        before = {column.event: counts for column, counts in self._before.items() if column.event in have}
        self._before = {column: before[column.event] for column in columns if column.event in before}
        self.missing = [event for event in wanted if event not in have]
        self.try_at = 0

    def values(self, columns: Sequence[EventColumn]) -> dict[str, Value]:
        """Return the values and scales of some columns, each since its last value; OSError if unreadable."""
        counts = self._read()
        found: dict[str, Value] = {}
        before = self._before
        for column in columns:
            now = counts.get(column.event)
            if now is not None:
                grown = [later - former for later, former in zip(now, before.get(column, _NOTHING))]
                before[column] = now
                found[column.counter], found[column.scale] = perfevents.scaled(*grown)
        return found

    def _read(self) -> dict[Event, list[int]]:
        """Return count, ns enabled and ns counted of each event, summed over its open counters."""
        counts: dict[Event, list[int]] = {}
        for opened in self._opened:
            read = opened.counters.read()
            for event, at in opened.places.items():
                former = counts.get(event, _NOTHING)
                counts[event] = [count + other for count, other in zip(read[at : at + 3], former)]
        for event in self.refused:
            counts.pop(event, None)
        return counts

    def release(self) -> None:
        """Close all events; all wanted ones are missing then."""
        for opened in self._opened:
            opened.counters.close()
            self._host.release(opened.descriptors)
        self._opened, self._before, self.cpus = [], {}, frozenset()
        self.missing = self.wanted()
