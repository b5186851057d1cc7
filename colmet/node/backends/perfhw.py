"""What the kernel's perf events count for each job: instructions, cache misses, page faults. Off by default.

Events are opened for the job's cgroup on each CPU that the job may use, when the job is first seen, so tasks that come
and go between samples are counted, and a job that is shorter than a period has its last row.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import logging
import os
from collections.abc import Iterable, Mapping, Sequence

from colmet.common.cli import Options, powers_of_ten
from colmet.common.errors import BackendUnavailable, ConfigError
from colmet.common.schema import Field, Sample, Schema, Value
from colmet.node import clib
from colmet.node.backend import InputBackend
from colmet.node.discovery.mounts import Mounts
from colmet.node.host import Host, is_gone
from colmet.node.jobs import NODE_JOB, Job
from colmet.node.kernel import perfevents
from colmet.node.kernel.cpus import parse_cpu_list
from colmet.node.kernel.perfgroups import PerfGroups
from colmet.node.mapping import CounterName

log = logging.getLogger(__name__)

MAX_EVENTS = 5
DEFAULT_EVENTS = ("instructions", "cache_misses", "page_faults")
SLOW_TICKS = 12
_MAX_FILES = 1024  # of a process, among which a user's own perf events are looked for
_ABI = 1
_ONLINE = "/sys/devices/system/cpu/online"
_PARANOID = "/proc/sys/kernel/perf_event_paranoid"
_MOUNT = "mkdir -p /sys/fs/cgroup/perf_event && mount -t cgroup -o perf_event perf_event /sys/fs/cgroup/perf_event"
_SOURCE = "Source: perf_event_open(2), PERF_FLAG_PID_CGROUP"


def _counter(number: int) -> Field:
    text = (
        f"Events of the job since its row before, of the kind that --perfhw-list names as number {number}, as "
        "mapping_default says; scaled up where the event had a counter for a part of the time only."
    )
    return Field(f"counter_{number}", "count", "gauge", f"{text} {_SOURCE}.")


def _scale(number: int) -> Field:
    text = f"Part of the job's CPU time in which event {number} had a counter; 1 where nothing was scaled."
    return Field(f"scale_{number}", "none", "gauge", f"{text} {_SOURCE}, time running / time enabled.", dtype="f8")


_NUMBERS = range(1, MAX_EVENTS + 1)
SCHEMA = Schema("perfhwstats_default", "job", [*map(_counter, _NUMBERS), *map(_scale, _NUMBERS)])


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint64),
        ("config", ctypes.c_uint64),
        ("config1", ctypes.c_uint64),
        ("config2", ctypes.c_uint64),
    )


class Library:
    """lib_perf_hw, with the types of its functions.

    Raises:
        BackendUnavailable: it is not built, or of another Colmet.
    """

    def __init__(self) -> None:
        library = clib.load("lib_perf_hw", _ABI, "LIB_PERFHW_PATH")
        self.open, self.read, self.close = library.perf_hw_open, library.perf_hw_read, library.perf_hw_close
        numbers, handle, size = ctypes.POINTER(ctypes.c_int), ctypes.c_void_p, ctypes.c_size_t
        events = ctypes.POINTER(_Event)
        self.open.argtypes = (ctypes.c_int, events, size, numbers, size, numbers, ctypes.POINTER(handle))
        self.open.restype = ctypes.c_int
        self.read.argtypes = (handle, ctypes.POINTER(ctypes.c_uint64), size)
        self.read.restype = ctypes.c_int
        self.close.argtypes = (handle,)
        self.close.restype = None


class Counters:
    """Events of one cgroup on some CPUs, counted from now on.

    Args:
        library: which opens and reads them.
        group: descriptor of the cgroup's directory, -1 for this thread.
        events: what to count.
        cpus: where.

    Attributes:
        errors: for each event 0, or the errno with which it was refused.

    Raises:
        OSError: nothing can be counted, or EMFILE.
    """

    def __init__(self, library: Library, group: int, events: Sequence[perfevents.Event], cpus: Iterable[int]) -> None:
        packed = (_Event * len(events))(*[_Event(*event[:4]) for event in events])
        numbers = sorted(cpus)
        errors = (ctypes.c_int * len(events))()
        self._handle = ctypes.c_void_p()
        code = library.open(
            *(group, packed, len(events), (ctypes.c_int * len(numbers))(*numbers), len(numbers), errors),
            ctypes.byref(self._handle),
        )
        if code < 0:
            raise OSError(-code, os.strerror(-code))
        self.errors = list(errors)
        self._library = library
        self._counts = (ctypes.c_uint64 * (3 * len(events)))()

    def read(self) -> list[int]:
        """Of each event: its count, ns for which it was enabled, ns for which it was counted; summed over the CPUs."""
        code = self._library.read(self._handle, self._counts, len(self.errors))
        if code < 0:
            raise OSError(-code, os.strerror(-code))
        return self._counts[:]

    def close(self) -> None:
        """Give the descriptors back; also twice."""
        self._library.close(self._handle)
        self._handle = ctypes.c_void_p()


def scaled(count: int, enabled_ns: int, running_ns: int) -> tuple[int | None, float | None]:
    """The value of an interval, and its scale.

    None as the value where the job ran and the event never had a counter, as the scale where the job did not run.
    """
    if enabled_ns <= 0:
        return count, None
    if running_ns <= 0:
        return None, 0.0
    if running_ns >= enabled_ns:
        return count, 1.0
    return round(count * enabled_ns / running_ns), running_ns / enabled_ns


class _Watched:
    """One job.

    Attributes:
        counters: of its events, those of CPUs that it got later in further ones; none while nothing is counted.
        cpus: of all of them.
        before: what they had counted at the row before.
        refused: events that one of its CPUs does not support.
        group: the group that was made for it, "" where it has its own or none.
        yields: whether somebody in it uses perf, and is left alone.
        told: whether it was counted among those of which nothing is counted.
        try_at: the tick from which on it is tried again.
    """

    __slots__ = ("before", "counters", "cpus", "group", "refused", "told", "try_at", "yields")

    def __init__(self) -> None:
        self.counters: list[Counters] = []
        self.cpus: frozenset[int] = frozenset()
        self.before: list[int] = []
        self.refused: set[int] = set()
        self.group = ""
        self.yields = self.told = False
        self.try_at = 0


class PerfhwBackend(InputBackend):
    """Rows of `SCHEMA`, one for each job whose events are open.

    Args:
        host: the machine.
        names: of the events, at most `MAX_EVENTS`.
        make_groups: whether to make groups in the perf_event hierarchy for jobs that have none.
        yields: whether to leave jobs alone in which somebody uses perf.
    """

    name = "perfhw"
    schema = SCHEMA
    of_interval = True

    def __init__(self, host: Host, names: Sequence[str], make_groups: bool = False, yields: bool = False) -> None:
        self._host = host
        self._names = list(names)
        self._make_groups = make_groups
        self._yields = yields
        self._mounts = Mounts(host)
        self._groups = PerfGroups(host)
        self._library: Library | None = None
        self._events: list[perfevents.Event] = []
        self._columns: list[int] = []
        self._watched: dict[Job, _Watched] = {}
        self._ticks = 0
        self._looked_for_left = False
        self._warned: set[str] = set()
        self._uncounted = self._shortages = self._yielded = self._read_failures = 0

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """Declare --enable-perfhw and what goes with it."""
        parser.add_argument("--enable-perfhw", action="store_true", help="count perf events of each job")
        parser.add_argument(
            "--perfhw-list",
            metavar="NAME",
            nargs="+",
            default=list(DEFAULT_EVENTS),
            help=f"the events, {MAX_EVENTS} at most: {', '.join(perfevents.NAMES_06)}; or as `perf list` names them, "
            "such as LLC-load-misses, cpu/mem-loads/, cpu/event=0x3c,umask=0x00/, r1a8 "
            f"(default: {' '.join(DEFAULT_EVENTS)})",
        )
        parser.add_argument(
            "--perfhw-make-cgroup",
            action="store_true",
            help="where jobs have no cgroup in the perf_event hierarchy (OAR 2 as it is installed): make one for each, "
            "put its tasks there, and remove it at the end",
        )
        parser.add_argument(
            "--perfhw-yield",
            action="store_true",
            help="give a job's counters up while somebody in it uses perf; its rows are missing meanwhile",
        )

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> PerfhwBackend | None:
        """On where --enable-perfhw asks for it.

        Raises:
            ConfigError: an event that cannot be, or too many.
        """
        if not options.enable_perfhw:
            return None
        if len(options.perfhw_list) > MAX_EVENTS:
            raise ConfigError(f"--perfhw-list: {len(options.perfhw_list)} events; give {MAX_EVENTS} at most")
        for name in options.perfhw_list:
            try:
                perfevents.find(name, host)
            except perfevents.Absent:
                pass  # other nodes may have it: told when the backend opens
            except ValueError as err:
                raise ConfigError(f"--perfhw-list: {err}") from err
        return cls(host, options.perfhw_list, options.perfhw_make_cgroup, options.perfhw_yield)

    def open(self) -> None:
        """Load the library, and try each event on this thread.

        Raises:
            BackendUnavailable: no library, no right, no such kernel, or none of the events.
        """
        self._library = Library()
        found: list[tuple[int, perfevents.Event]] = []
        for number, name in enumerate(self._names, 1):
            try:
                found.append((number, perfevents.find(name, self._host)))
            except (perfevents.Absent, ValueError) as err:
                self._warn(f"{err}; counter_{number} is missing")
        errors: list[int] = []
        if found:
            try:
                tried = Counters(self._library, -1, [event for _, event in found], sorted(self._online())[:1])
            except OSError as err:
                raise BackendUnavailable(self._remedy(err)) from err
            errors = tried.errors
            tried.close()
        for (number, _), code in zip(found, errors):
            if code:
                self._refused(number, code)
        supported = [pair for pair, code in zip(found, errors) if not code]
        if not supported:
            raise BackendUnavailable(
                f"none of {', '.join(self._names)} is supported here; name others with --perfhw-list, such as "
                "page_faults and task_clock, which every machine has"
            )
        self._columns = [number for number, _ in supported]
        self._events = [event for _, event in supported]
        self._mounts.refresh(anyway=True)

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        """One row for each job whose events are open."""
        self._ticks += 1
        self._mounts.refresh()
        listed = set(jobs)
        for job in [job for job in self._watched if job not in listed]:
            self._end(self._watched.pop(job))
        rows = []
        for job in jobs:
            watched = self._look(job)
            if watched.counters:
                row = self._row(job, watched)
                if row is not None:
                    rows.append(row)
                if self._yields and self._is_used(job, self._ticks % SLOW_TICKS == 0):
                    self._give_up(job, watched)
        if not self._looked_for_left:
            self._look_for_left()
        self._tidy()
        return rows

    def notice(self, job: Job) -> None:
        """Open its events, if they are not: it may be gone by the next tick."""
        self._look(job)

    def last(self, job: Job) -> Sample | None:
        """Its row since the one before: the counts are there for as long as the events are open."""
        watched = self._watched.pop(job, None)
        if watched is None:
            return None
        row = self._row(job, watched) if watched.counters else None
        self._end(watched)
        self._tidy()
        return row

    def counter_names(self) -> Sequence[CounterName]:
        """The events as --perfhw-list names them."""
        units = dict(zip(self._columns, [event.unit for event in self._events]))
        return [CounterName(f"counter_{n}", name, units.get(n, "count")) for n, name in enumerate(self._names, 1)]

    def mapping_file(self) -> tuple[str, Sequence[str]]:
        """The same as Colmet 0.6 wrote it."""
        quoted = [f'"{name}"' if "," in name else name for name in self._names]
        return "perfhw", [f"counter{number},{name}" for number, name in enumerate(quoted, 1)]

    def counters(self) -> Mapping[str, int]:
        """Jobs of which nothing was counted, and what went wrong."""
        return {
            "perf_jobs_uncounted": self._uncounted,
            "perf_fd_shortages": self._shortages,
            "perf_yields": self._yielded,
            "perf_read_failures": self._read_failures,
            "perf_tasks_moved": self._groups.moved,
            "perf_group_failures": self._groups.failures,
        }

    def close(self) -> None:
        """Close all events; also twice. Groups that were made stay while their jobs run: the next agent takes them."""
        for watched in self._watched.values():
            self._close(watched)
        self._watched = {}
        self._looked_for_left = False
        self._mounts.close()

    # -- one job --

    def _look(self, job: Job) -> _Watched:
        """Whatever is to be done for a job before its counts are read."""
        watched = self._watched.get(job)
        if watched is None:
            watched = self._watched[job] = _Watched()
        if watched.yields and not self._is_used(job, thorough=True):
            watched.yields = False
        if not watched.counters:
            if not watched.yields and self._ticks >= watched.try_at:
                self._start(job, watched)
        elif self._ticks % SLOW_TICKS == 0:
            self._extend(job, watched)
        if watched.group:
            self._groups.fill(watched.group, job)
        return watched

    def _start(self, job: Job, watched: _Watched) -> None:
        """Open its events, if it has what that takes by now."""
        cpus = self._cpus(job)
        if not cpus:
            return  # its resource manager is not through with setting it up; it can have no task yet
        directory = self._directory(job, watched)
        if directory is not None:
            self._open(job, watched, directory, cpus)

    def _extend(self, job: Job, watched: _Watched) -> None:
        """Count on the CPUs, too, that it may use since it was opened."""
        more = self._cpus(job) - watched.cpus
        if more:
            directory = self._directory(job, watched)
            if directory is not None:
                self._open(job, watched, directory, more)

    def _open(self, job: Job, watched: _Watched, directory: str, cpus: frozenset[int]) -> None:
        assert self._library is not None  # it is open
        count = len(self._events) * len(cpus)
        if not self._host.reserve(count):
            self._short(job, watched, count)
            return
        opened = None
        try:
            group = self._host.open(directory)
            try:
                opened = Counters(self._library, group, self._events, cpus)
            finally:
                os.close(group)
        except OSError as err:
            if err.errno in (errno.EMFILE, errno.ENFILE):
                self._short(job, watched, count)
            elif not (is_gone(err) and not self._host.is_directory(directory)):
                watched.try_at = self._ticks + SLOW_TICKS
                self._leave_out(watched, f"events of jobs cannot be opened: {self._remedy(err)}")
            return
        finally:
            if opened is None:
                self._host.release(count)
        for event, code in enumerate(opened.errors):
            if code:
                watched.refused.add(event)
                self._refused(self._columns[event], code)
        watched.counters.append(opened)
        watched.cpus |= cpus
        watched.before = watched.before or [0] * (3 * len(self._events))

    def _row(self, job: Job, watched: _Watched) -> Sample | None:
        try:
            counts = watched.counters[0].read()
            for further in watched.counters[1:]:
                counts = [one + other for one, other in zip(counts, further.read())]
        except OSError as err:
            self._read_failures += 1
            if powers_of_ten(self._read_failures):
                log.error("cannot read events job=%d failures=%d: %s", job.id, self._read_failures, err.strerror)
            return None
        before, watched.before = watched.before, counts
        values: dict[str, Value] = {}
        for event, number in enumerate(self._columns):
            if event in watched.refused:
                continue
            at = 3 * event
            values[f"counter_{number}"], values[f"scale_{number}"] = scaled(
                counts[at] - before[at], counts[at + 1] - before[at + 1], counts[at + 2] - before[at + 2]
            )
        return Sample(job.id, values)

    def _close(self, watched: _Watched) -> None:
        for counters in watched.counters:
            counters.close()
        self._host.release(len(self._events) * len(watched.cpus))
        watched.counters, watched.before, watched.cpus = [], [], frozenset()

    def _end(self, watched: _Watched) -> None:
        self._close(watched)
        if watched.group:
            self._groups.leave(watched.group)

    # -- where it is --

    def _directory(self, job: Job, watched: _Watched) -> str | None:
        """The cgroup in which its events are counted; made, where that is asked for."""
        if watched.group:
            return watched.group
        point = self._mounts.v1.get("perf_event")
        directory = job.directory("perf_event" if point is not None else "unified")
        if directory is not None:
            if point is not None and self._make_groups and self._groups.is_ours(directory):
                watched.group = directory  # of an agent before
            return directory
        if job.id != NODE_JOB and not job.pids():
            return None  # it may have one before its first task
        if point is None:
            self._leave_out(
                watched,
                "jobs have no cgroup v2, and the perf_event hierarchy is not mounted, so nothing of them is counted: "
                f"`{_MOUNT}`, and start with --perfhw-make-cgroup",
            )
            return None
        place = job.place("perf_event") if self._make_groups and job.id != NODE_JOB else None
        if place is not None and self._groups.make(place, point):
            watched.group = place
            return place
        self._leave_out(
            watched,
            "jobs have no cgroup in the perf_event hierarchy, so nothing of them is counted; "
            "--perfhw-make-cgroup makes one for each",
        )
        return None

    def _cpus(self, job: Job) -> frozenset[int]:
        """The CPUs that it may use now; all where no cpuset has it, none while its cpuset is not set up."""
        files = []
        for controller, names in (
            ("cpuset", ("cpuset.effective_cpus", "cpuset.cpus")),
            ("unified", ("cpuset.cpus.effective",)),
        ):
            directory = job.directory(controller)
            files += [f"{directory}/{name}" for name in names if directory is not None]
        online = self._online()
        for path in files:
            try:
                return parse_cpu_list(self._host.read(path)) & online
            except (OSError, ValueError):
                continue  # before Linux 3.17 there are no effective ones; v2 may be without cpuset
        return online

    def _online(self) -> frozenset[int]:
        try:
            return parse_cpu_list(self._host.read(_ONLINE))
        except (OSError, ValueError):
            return frozenset(range(os.sysconf("SC_NPROCESSORS_CONF")))

    def _tidy(self) -> None:
        """Remove groups that were made for jobs that have ended."""
        point = self._mounts.v1.get("perf_event")
        if self._make_groups and point is not None:
            self._groups.tidy(point)

    def _look_for_left(self) -> None:
        """Find the groups of an agent before whose jobs have ended meanwhile, once all jobs of now are known."""
        point = self._mounts.v1.get("perf_event")
        if self._make_groups and point is not None:
            self._looked_for_left = True
            self._groups.find_left(point, [place for job in self._watched if (place := job.place("perf_event"))])

    # -- a user's own perf --

    def _is_used(self, job: Job, thorough: bool) -> bool:
        """Whether a process of the job is perf, or, looked at thoroughly, has perf events open."""
        for pid in job.pids():
            try:
                if self._host.read(f"/proc/{pid}/comm").strip() == b"perf":
                    return True
                if thorough and self._has_events(pid):
                    return True
            except OSError:
                continue  # ended, or not to be looked into
        return False

    def _has_events(self, pid: int) -> bool:
        folder = f"/proc/{pid}/fd"
        for name in self._host.names(folder)[:_MAX_FILES]:
            try:
                if self._host.link(f"{folder}/{name}") == "anon_inode:[perf_event]":
                    return True
            except OSError:
                continue  # closed meanwhile
        return False

    def _give_up(self, job: Job, watched: _Watched) -> None:
        self._close(watched)
        watched.yields = True
        self._yielded += 1
        log.info("counters given up, the job uses perf job=%d", job.id)

    # -- what is told --

    def _short(self, job: Job, watched: _Watched, count: int) -> None:
        self._shortages += 1
        if powers_of_ten(self._shortages):
            log.warning(
                "no descriptors left for the events of a job, which take %d (events times CPUs) job=%d shortages=%d: "
                "raise the limit on open files (LimitNOFILE of the service), or give fewer events in --perfhw-list",
                count,
                job.id,
                self._shortages,
            )
        watched.try_at = self._ticks + 1
        self._leave_out(watched, "")

    def _leave_out(self, watched: _Watched, why: str) -> None:
        if not watched.told and not watched.counters:
            watched.told = True
            self._uncounted += 1
        if why:
            self._warn(why)

    def _refused(self, number: int, code: int) -> None:
        self._warn(
            f"{self._names[number - 1]} is not supported by this CPU ({os.strerror(code)}); counter_{number} is missing"
        )

    def _warn(self, text: str) -> None:
        """Each text once."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    def _remedy(self, err: OSError) -> str:
        """What an error of perf_event_open says, and what to do."""
        if err.errno in (errno.EACCES, errno.EPERM):
            try:
                level = self._host.read(_PARANOID).decode("ascii", "replace").strip()
            except OSError:
                level = "?"
            return (
                f"perf events are not permitted: start as root, give CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8), or "
                f"lower kernel.perf_event_paranoid, which is {level}"
            )
        if err.errno in (errno.ENOSYS, errno.EINVAL):
            return "this kernel has no perf events of cgroups: it needs CONFIG_PERF_EVENTS and CONFIG_CGROUP_PERF"
        if err.errno in (errno.ENOENT, errno.EBADF):
            return "perf_event is not in this cgroup hierarchy"
        return f"perf_event_open: {err.strerror}"
