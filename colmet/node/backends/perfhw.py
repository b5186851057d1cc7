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
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from colmet.common.errors import BackendUnavailable, ConfigError
from colmet.common.runtime.cli import Options, Rare
from colmet.common.runtime.configuration import require
from colmet.common.runtime.logs import powers_of_ten
from colmet.common.schema import Sample, Value
from colmet.common.tables.perfhw import AGENT_COUNTERS, MAX_EVENTS, SCHEMA
from colmet.node.backend import InputBackend
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.jobs.mounts import Mounts
from colmet.node.kernel import perfchoices, perfevents
from colmet.node.kernel.cpus import parse_cpu_list
from colmet.node.kernel.perfgroups import PerfGroups
from colmet.node.schedule import Every
from colmet.node.selfmetrics.mapping import CounterName
from colmet.node.system import clib
from colmet.node.system.host import Host, is_gone
from colmet.node.system.processes import Question

log = logging.getLogger(__name__)

DEFAULT_EVENTS = ("instructions", "cache_misses", "page_faults")
SLOW_TICKS = 12
_MAX_FILES = 1024  # of a job, among which a user's own perf events are looked for at one look
ABI = 2
_ONLINE = "/sys/devices/system/cpu/online"
_PARANOID = "/proc/sys/kernel/perf_event_paranoid"
_MOUNT = "mkdir -p /sys/fs/cgroup/perf_event && mount -t cgroup -o perf_event perf_event /sys/fs/cgroup/perf_event"


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
        library = clib.load("lib_perf_hw", ABI, "LIB_PERFHW_PATH")
        self.open, self.read, self.close = library.perf_hw_open, library.perf_hw_read, library.perf_hw_close
        numbers, handle, size = ctypes.POINTER(ctypes.c_int), ctypes.c_void_p, ctypes.c_size_t
        events = ctypes.POINTER(_Event)
        self.open.argtypes = (ctypes.c_int, events, size, numbers, size, numbers, ctypes.POINTER(handle))
        self.open.restype = ctypes.c_int
        self.read.argtypes = (handle, ctypes.POINTER(ctypes.c_uint64), size)
        self.read.restype = ctypes.c_int
        self.drop = library.perf_hw_drop
        self.drop.argtypes = (handle, size)
        self.drop.restype = ctypes.c_int
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
            group,
            packed,
            len(events),
            (ctypes.c_int * len(numbers))(*numbers),
            len(numbers),
            errors,
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

    def drop(self, event: int) -> int:
        """Count one of the events no more; how many descriptors that gives back, 0 where others need them."""
        given_back: int = self._library.drop(self._handle, event)
        return given_back

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


_NOTHING = [0, 0, 0]


class _Counted:
    """An event that is counted, as a key of tables: there is one of each event at a time."""

    __slots__ = ("event",)

    def __init__(self, event: perfevents.Event) -> None:
        self.event = event


class _Column:
    """One column with its scale.

    Attributes:
        number: of the column.
        counter: its name.
        scale: that of its scale.
        counted: what it counts.
        job_id: the job of which it is counted; None for all.
        every: when it has a value; None for at every sample.
    """

    __slots__ = ("counted", "counter", "every", "job_id", "number", "scale")

    def __init__(self, number: int, counted: _Counted, job_id: int | None, every: Every | None) -> None:
        self.number = number
        self.counter, self.scale = f"counter_{number}", f"scale_{number}"
        self.counted = counted
        self.job_id = job_id
        self.every = every


class _Opened:
    """Events of one job that were opened together.

    Attributes:
        counters: which count them.
        places: of those that are still wanted, in what `counters` reads.
        kept: descriptors.
    """

    __slots__ = ("counters", "kept", "places")

    def __init__(self, counters: Counters, events: Sequence[_Counted], kept: int) -> None:
        self.counters = counters
        self.places = {event: 3 * n for n, (event, code) in enumerate(zip(events, counters.errors)) if not code}
        self.kept = kept


class _Watched:
    """One job.

    Attributes:
        columns: that it has.
        opened: its events; those of CPUs that it got later, or that were wanted later, by themselves.
        missing: events that are wanted and are not opened.
        cpus: on which they are counted.
        before: what they had counted at the column's value before.
        refused: events that one of its CPUs does not support.
        group: the group that was made for it, "" where it has its own or none.
        yields: whether somebody in it uses perf, and is left alone.
        told: whether it was counted among those of which nothing is counted.
        try_at: the tick from which on it is tried again.
        looked: processes whose open files have been looked through; empty where those of all have.
    """

    __slots__ = (
        *("before", "columns", "cpus", "group", "looked", "missing", "opened", "refused", "told", "try_at", "yields"),
    )

    def __init__(self, columns: Sequence[_Column]) -> None:
        self.columns = columns
        self.opened: list[_Opened] = []
        self.missing = self.wanted()
        self.cpus: frozenset[int] = frozenset()
        self.before: dict[_Column, list[int]] = {}
        self.refused: set[_Counted] = set()
        self.group = ""
        self.yields = self.told = False
        self.try_at = 0
        self.looked: set[int] = set()

    def wanted(self) -> list[_Counted]:
        """What is counted of it."""
        return list(dict.fromkeys(column.counted for column in self.columns))


class _Look:
    """One look at the processes of a job.

    Args:
        host: the machine.
        left: how many open files may be looked through; 0 for none.
    """

    def __init__(self, host: Host, left: int) -> None:
        self.left = left
        self._host = host

    def at(self, pid: int, thorough: bool) -> bool | None:
        """Whether a process is perf, or has perf events open; None where its files were not looked through."""
        if self._host.read(f"/proc/{pid}/comm").strip() == b"perf":
            return True
        if not thorough or self.left <= 0:
            return None
        folder = f"/proc/{pid}/fd"
        names = self._host.some_names(folder, self.left)
        self.left -= len(names)
        for name in names:
            try:
                if self._host.link(f"{folder}/{name}") == "anon_inode:[perf_event]":
                    return True
            except OSError:
                continue  # closed meanwhile
        return False


class PerfhwBackend(InputBackend):
    """Rows of `SCHEMA`, one for each job whose events are open.

    Args:
        host: the machine.
        choices: which events, at most `MAX_EVENTS`, as --perfhw-list has them.
        make_groups: whether to make groups in the perf_event hierarchy for jobs that have none.
        yields: whether to leave jobs alone in which somebody uses perf.
    """

    name = "perfhw"
    schema = SCHEMA
    agent_counters = AGENT_COUNTERS
    capabilities = frozenset(("CAP_PERFMON",))
    of_interval = True

    def __init__(
        self,
        host: Host,
        choices: Sequence[str],
        make_groups: bool = False,
        yields: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._choices = perfchoices.parse_all(choices, MAX_EVENTS)
        self._monotonic = monotonic
        self._make_groups = make_groups
        if make_groups:  # cgroup v1's topmost directory is nobody's to write to
            self.capabilities = type(self).capabilities | {"CAP_DAC_OVERRIDE"}
        self._yields = yields
        self._mounts = Mounts(host)
        self._groups = PerfGroups(host)
        self._library: Library | None = None
        self._columns: list[_Column] = []
        self._watched: dict[Job, _Watched] = {}
        self._ticks = 0
        self._looked_for_left = False
        self._warned: set[str] = set()
        self._uncounted = self._shortages = self._yielded = self._read_failures = self._files_left_out = 0

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """Declare --enable-perfhw and what goes with it."""
        parser.add_argument("--enable-perfhw", action="store_true", help="count perf events of each job")
        parser.add_argument(
            "--perfhw-list",
            metavar="NAME",
            nargs="+",
            default=list(DEFAULT_EVENTS),
            help=f"count these events, at most {MAX_EVENTS}; by the names in colmet-node(8) or `perf list`; "
            f"NAME:PERIOD:JOB limits one to every PERIOD seconds or to one job (default: {' '.join(DEFAULT_EVENTS)})",
        )
        parser.add_argument(
            "--perfhw-make-cgroup",
            action="store_true",
            help=Rare(
                "make a perf_event cgroup for each job that has none (OAR 2 by default), and remove it when it ends"
            ),
        )
        parser.add_argument(
            "--perfhw-yield",
            action="store_true",
            help=Rare("release a job's counters while a process of the job uses perf; rows are missing meanwhile"),
        )
        require(parser, "--enable-perfhw", "--perfhw-")

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> PerfhwBackend | None:
        """On where --enable-perfhw asks for it. As in Colmet 0.6, too many events and unknown ones are left out.

        Raises:
            ConfigError: an event is not written as one.
        """
        if not options.enable_perfhw:
            return None
        texts, left_out = options.perfhw_list[:MAX_EVENTS], options.perfhw_list[MAX_EVENTS:]
        if left_out:
            log.warning(
                "--perfhw-list names %d events, the first %d are counted; not counted: %s",
                len(options.perfhw_list),
                MAX_EVENTS,
                ", ".join(left_out),
            )
        try:
            backend = cls(host, texts, options.perfhw_make_cgroup, options.perfhw_yield)
        except ConfigError as err:
            raise ConfigError(f"--perfhw-list: {err}") from err
        backend._find()
        return backend

    def open(self) -> None:
        """Load the library, and try each event on this thread.

        Raises:
            BackendUnavailable: no library, no right, no such kernel, or none of the events.
        """
        self._library = Library()
        found = self._find()
        errors: list[int] = []
        if found:
            try:
                errors = self._try(self._library, [event for _, event in found])
            except OSError as err:
                raise BackendUnavailable(self._remedy(err)) from err
        for (number, _), code in zip(found, errors):
            if code:
                self._refused(number, code)
        supported = [pair for pair, code in zip(found, errors) if not code]
        if not supported:
            raise BackendUnavailable(
                f"none of {', '.join(choice.name for choice in self._choices)} is supported here; name others with "
                "--perfhw-list, such as page_faults and task_clock, which every machine has"
            )
        self._columns = self._make_columns(supported)
        self._mounts.refresh(anyway=True)

    def _find(self) -> list[tuple[int, perfevents.Event]]:
        """Return the events that can be on this machine, with their numbers; warn of each of the others."""
        found: list[tuple[int, perfevents.Event]] = []
        for number, choice in enumerate(self._choices, 1):
            try:
                found.append((number, perfevents.find(choice.name, self._host)))
            except (perfevents.Absent, ValueError) as err:
                self._warn(f"--perfhw-list: {err}; counter_{number} is missing")
        return found

    def _try(self, library: Library, events: Sequence[perfevents.Event]) -> list[int]:
        """Of each event 0, or the errno with which it is refused on this thread.

        Raises:
            OSError: nothing can be counted.
        """
        tried = Counters(library, -1, events, sorted(self._online())[:1])
        tried.close()
        return tried.errors

    def _make_columns(self, numbered: Iterable[tuple[int, perfevents.Event]]) -> list[_Column]:
        """Columns for the choices; what is counted already is the same in them."""
        counted = {column.counted.event: column.counted for column in self._columns}
        columns = []
        for number, event in numbered:
            choice = self._choices[number - 1]
            every = Every(choice.period_s, self._monotonic) if choice.period_s is not None else None
            columns.append(_Column(number, counted.setdefault(event, _Counted(event)), choice.job_id, every))
        return columns

    def changes(self) -> Mapping[str, Callable[[Any], Callable[[], Iterable[Sample]]]]:
        """--perfhw-list."""
        return {"perfhw_list": self._prepare}

    def _prepare(self, texts: Sequence[str]) -> Callable[[], Iterable[Sample]]:
        """See that other events can be counted; what is returned has them counted from then on.

        That gives a last row of each job under the columns until then. The counts of events that stay go on.

        Raises:
            ConfigError: one of them cannot be counted here.
        """
        try:
            choices = perfchoices.parse_all(texts, MAX_EVENTS)
            events = [perfevents.find(choice.name, self._host) for choice in choices]
            errors = self._try(self._library or Library(), events)
        except OSError as err:
            raise ConfigError(self._remedy(err)) from err
        except (perfevents.Absent, ValueError, BackendUnavailable, ConfigError) as err:
            raise ConfigError(f"--perfhw-list: {err}") from err
        for choice, code in zip(choices, errors):
            if code:
                raise ConfigError(f"--perfhw-list: {choice.name} is not supported by this CPU ({os.strerror(code)})")
        return lambda: self._change(choices, events)

    def _change(
        self, choices: Sequence[perfchoices.EventChoice], events: Sequence[perfevents.Event]
    ) -> Iterable[Sample]:
        rows = [self._row(job, watched, watched.columns) for job, watched in self._watched.items() if watched.opened]
        paces = {self._choices[column.number - 1]: column.every for column in self._columns}
        self._choices = list(choices)
        self._columns = self._make_columns(enumerate(events, 1))
        for choice, column in zip(choices, self._columns):
            column.every = paces.get(choice) or column.every
        for job, watched in self._watched.items():
            self._rewire(job, watched)
        return [row for row in rows if row is not None]

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        """One row for each job whose events are open."""
        self._ticks += 1
        self._mounts.refresh()
        listed = set(jobs)
        for job in [job for job in self._watched if job not in listed]:
            self._end(self._watched.pop(job))
        waits = {column for column in self._columns if column.every is not None and not column.every.is_due()}
        rows = []
        for job in jobs:
            watched = self._look(job)
            if watched.opened:
                columns = watched.columns
                if waits:
                    columns = [column for column in columns if column not in waits]
                row = self._row(job, watched, columns)
                if row is not None:
                    rows.append(row)
                if self._yields and self._is_used(job, watched, self._ticks % SLOW_TICKS == 0):
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
        row = self._row(job, watched, watched.columns) if watched.opened else None
        self._end(watched)
        self._tidy()
        return row

    def counter_names(self) -> Sequence[CounterName]:
        """The events as --perfhw-list names them."""
        units = {column.number: column.counted.event.unit for column in self._columns}
        return [
            CounterName(f"counter_{n}", choice.name, units.get(n, "count")) for n, choice in enumerate(self._choices, 1)
        ]

    def mapping_file(self) -> tuple[str, Sequence[str]]:
        """The same as Colmet 0.6 wrote it."""
        quoted = [f'"{choice.name}"' if "," in choice.name else choice.name for choice in self._choices]
        return "perfhw", [f"counter{number},{name}" for number, name in enumerate(quoted, 1)]

    def counters(self) -> Mapping[str, int]:
        """Jobs of which nothing was counted, and what went wrong."""
        return {
            "perf_jobs_uncounted": self._uncounted,
            "perf_fd_shortages": self._shortages,
            "perf_yields": self._yielded,
            "perf_files_left_out": self._files_left_out,
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
            watched = self._watched[job] = _Watched(self._columns_of(job))
        if watched.yields and not self._is_used(job, watched, thorough=True) and not watched.looked:
            watched.yields = False
        if watched.missing:
            if not watched.yields and self._ticks >= watched.try_at:
                self._start(job, watched)
        elif watched.opened and self._ticks % SLOW_TICKS == 0:
            self._extend(job, watched)
        if watched.group:
            self._groups.fill(watched.group, job)
        return watched

    def _columns_of(self, job: Job) -> list[_Column]:
        return [column for column in self._columns if column.job_id in (None, job.id)]

    def _start(self, job: Job, watched: _Watched) -> None:
        """Open what it misses of its events, if it has what that takes by now."""
        cpus = watched.cpus or self._cpus(job)
        if not cpus:
            return  # its resource manager is not through with setting it up; it can have no task yet
        directory = self._directory(job, watched)
        if directory is not None and self._open(job, watched, directory, watched.missing, cpus):
            watched.missing = []

    def _extend(self, job: Job, watched: _Watched) -> None:
        """Count on the CPUs, too, that it may use since it was opened."""
        more = self._cpus(job) - watched.cpus
        if more:
            directory = self._directory(job, watched)
            if directory is not None:
                self._open(job, watched, directory, watched.wanted(), more)

    def _rewire(self, job: Job, watched: _Watched) -> None:
        """Other events are wanted: close those that are not, open those that are new."""
        watched.columns = self._columns_of(job)
        wanted = watched.wanted()
        for opened in watched.opened:
            for event in [event for event in opened.places if event not in wanted]:
                given_back = opened.counters.drop(opened.places.pop(event) // 3)
                opened.kept -= given_back
                self._host.release(given_back)
            if not opened.places:
                opened.counters.close()
                self._host.release(opened.kept)
        watched.opened = [opened for opened in watched.opened if opened.places]
        if not watched.opened:
            watched.cpus = frozenset()
        watched.refused.intersection_update(wanted)
        have = watched.refused.union(*[opened.places for opened in watched.opened])
        before = {column.counted: counts for column, counts in watched.before.items() if column.counted in have}
        watched.before = {column: before[column.counted] for column in watched.columns if column.counted in before}
        watched.missing = [event for event in wanted if event not in have]
        watched.try_at = 0
        if watched.missing and not watched.yields:
            self._start(job, watched)

    def _open(
        self, job: Job, watched: _Watched, directory: str, events: Sequence[_Counted], cpus: frozenset[int]
    ) -> bool:
        """Whether events are open on some CPUs now."""
        assert self._library is not None  # it is open
        count = len(events) * len(cpus)
        if not self._host.reserve(count):
            self._short(job, watched, count)
            return False
        counters = None
        try:
            group = self._host.open(directory)
            try:
                counters = Counters(self._library, group, [counted.event for counted in events], cpus)
            finally:
                os.close(group)
        except OSError as err:
            if err.errno in (errno.EMFILE, errno.ENFILE):
                self._short(job, watched, count)
            elif not (is_gone(err) and not self._host.is_directory(directory)):
                watched.try_at = self._ticks + SLOW_TICKS
                self._leave_out(watched, f"events of jobs cannot be opened: {self._remedy(err)}")
            return False
        finally:
            if counters is None:
                self._host.release(count)
        for counted, code in zip(events, counters.errors):
            if code:
                watched.refused.add(counted)
                self._refused(next(column.number for column in self._columns if column.counted is counted), code)
        watched.opened.append(_Opened(counters, events, count))
        watched.cpus |= cpus
        return True

    def _row(self, job: Job, watched: _Watched, columns: Sequence[_Column]) -> Sample | None:
        """The values of some columns, each since it had one before; None where there are none."""
        if not columns:
            return None
        counts: dict[_Counted, list[int]] = {}
        try:
            for opened in watched.opened:
                read = opened.counters.read()
                for counted, at in opened.places.items():
                    found = read[at : at + 3]
                    if counted in counts:
                        found = [one + other for one, other in zip(found, counts[counted])]
                    counts[counted] = found
        except OSError as err:
            self._read_failures += 1
            if powers_of_ten(self._read_failures):
                log.error("cannot read events job=%d failures=%d: %s", job.id, self._read_failures, err.strerror)
            return None
        for counted in watched.refused:
            counts.pop(counted, None)
        values: dict[str, Value] = {}
        before = watched.before
        for column in columns:
            now = counts.get(column.counted)
            if now is not None:
                then = before.get(column, _NOTHING)
                before[column] = now
                values[column.counter], values[column.scale] = scaled(
                    now[0] - then[0], now[1] - then[1], now[2] - then[2]
                )
        return Sample(job.id, values) if values else None

    def _close(self, watched: _Watched) -> None:
        for opened in watched.opened:
            opened.counters.close()
            self._host.release(opened.kept)
        watched.opened, watched.before, watched.cpus = [], {}, frozenset()

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

    def _is_used(self, job: Job, watched: _Watched, thorough: bool) -> bool:
        """Whether a process of the job is perf, or, looked at thoroughly, has perf events open.

        A job decides how many files it has open. At one look some are looked through, those of the other processes at
        the next ones.
        """
        pids = job.pids()
        look = _Look(self._host, _MAX_FILES if thorough else 0)
        seen = watched.looked if thorough else set(pids)
        found = self._host.processes.ask(
            [Question(pid, job.party, partial(look.at, pid, pid not in seen)) for pid in pids]
        )
        if thorough:
            watched.looked = {pid for pid, answer in zip(pids, found) if pid in watched.looked or answer is not None}
            self._files_left_out += look.left <= 0
            if True in found or watched.looked.issuperset(pids):
                watched.looked = set()
        return True in found

    def _give_up(self, job: Job, watched: _Watched) -> None:
        self._close(watched)
        watched.missing = watched.wanted()
        watched.yields = True
        self._yielded += 1
        log.info("counters given up, the job uses perf job=%d", job.id)

    # -- what is told --

    def _short(self, job: Job, watched: _Watched, count: int) -> None:
        self._shortages += 1
        if powers_of_ten(self._shortages):
            log.warning(
                "no descriptors left for the events of a job, which require %d (events times CPUs) job=%d "
                "shortages=%d: raise the limit on open files (LimitNOFILE of the service), or give fewer events in "
                "--perfhw-list",
                count,
                job.id,
                self._shortages,
            )
        watched.try_at = self._ticks + 1
        self._leave_out(watched, "")

    def _leave_out(self, watched: _Watched, why: str) -> None:
        if not watched.told and not watched.opened:
            watched.told = True
            self._uncounted += 1
        if why:
            self._warn(why)

    def _refused(self, number: int, code: int) -> None:
        self._warn(
            f"{self._choices[number - 1].name} is not supported by this CPU ({os.strerror(code)}); "
            f"counter_{number} is missing"
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
