"""The kernel's perf events of each job: instructions, cache misses, page faults.

Events are opened for the job's cgroup on each CPU of the job when the job is first seen. So tasks between two samples
are counted, and a job shorter than a period has its last row.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from colmet.common.config.cli import Options, Rare
from colmet.common.daemon.logs import OnceLog, powers_of_ten
from colmet.common.errors import BackendUnavailable, ConfigError
from colmet.common.host.capabilities import suggest
from colmet.common.host.host import Host, is_gone
from colmet.common.schema import Sample
from colmet.common.tables.tasks import MAX_EVENTS
from colmet.common.tables.tasks import PERFHW as SCHEMA
from colmet.common.tables.tasks import PERFHW_COUNTERS as AGENT_COUNTERS
from colmet.node.backend import InputBackend
from colmet.node.counter_names import CounterName
from colmet.node.jobs.job import Job
from colmet.node.kernel import perfevents
from colmet.node.kernel.perfevents import Event, EventChoice
from colmet.node.kernel.perfjobs import EventColumn, JobEvents, PerfPlaces
from colmet.node.schedule import Every

log = logging.getLogger(__name__)

DEFAULT_EVENTS = ("instructions", "cache_misses", "page_faults")
SLOW_TICKS = 12
_PARANOID = "/proc/sys/kernel/perf_event_paranoid"


class PerfhwBackend(InputBackend):
    """Rows of `SCHEMA`, one for each job whose events are open.

    States of a job, decided in `_look`::

                       +--no CPUs or no cgroup yet: next tick; refused: SLOW_TICKS later--+
                       v                                                                  |
        first seen --> waiting -------------------- its events open ---------------> counting --ended--> last row
                       ^                                                                  |
                       +---no perf in it any more--- yielding <---perf is used in it------+
                                                               (--perfhw-yield)

    The parts: `JobEvents` has a job's events, `PerfPlaces` finds its cgroup and CPUs, `PerfUse` searches it for perf.

    `make_groups` and `yields` are --perfhw-make-cgroup and --perfhw-yield.
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
        self._choices = perfevents.parse_choices(choices, MAX_EVENTS)
        self._monotonic = monotonic
        if make_groups:  # no user may write to cgroup v1's topmost directory
            self.capabilities = type(self).capabilities | {"CAP_DAC_OVERRIDE"}
        self._yields = yields
        self._places = PerfPlaces(host, make_groups)
        self._library: perfevents.PerfLibrary | None = None
        self._columns: list[EventColumn] = []
        self._jobs: dict[Job, JobEvents] = {}
        self._ticks = 0
        self._once = OnceLog(log)
        self._uncounted = self._shortages = self._yielded = self._read_failures = self._searches_bounded = 0

    @classmethod
    def add_options(cls, parser: Options) -> None:
        parser.add_argument("--enable-perfhw", action="store_true", help="count perf events of each job")
        parser.add_argument(
            "--perfhw-list",
            metavar="NAME",
            nargs="+",
            default=list(DEFAULT_EVENTS),
            help=f"count these events, at most {MAX_EVENTS}; names of colmet-node(8) or `perf list`; NAME:PERIOD:JOB "
            f"counts an event every PERIOD seconds, or for one job, only (default: {' '.join(DEFAULT_EVENTS)})",
        )
        parser.add_argument(
            "--perfhw-make-cgroup",
            action="store_true",
            help=Rare(
                "make a perf_event cgroup for each job without one (OAR 2 by default), and remove it after the job"
            ),
        )
        parser.add_argument(
            "--perfhw-yield",
            action="store_true",
            help=Rare("release a job's counters while a process of the job uses perf; rows are missing meanwhile"),
        )
        parser.require("--enable-perfhw", "--perfhw-")

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> PerfhwBackend | None:
        if not options.enable_perfhw:
            return None
        listed = options.perfhw_list  # as in Colmet 0.6, excess and unknown events are skipped
        if len(listed) > MAX_EVENTS:
            log.warning(
                "--perfhw-list names %d events, the first %d are counted; not counted: %s",
                len(listed),
                MAX_EVENTS,
                ", ".join(listed[MAX_EVENTS:]),
            )
        try:
            backend = cls(host, listed[:MAX_EVENTS], options.perfhw_make_cgroup, options.perfhw_yield)
        except ConfigError as err:
            raise ConfigError(f"--perfhw-list: {err}") from err
        backend._find()
        return backend

    def open(self) -> None:
        """Load the library, and try each event on this thread; BackendUnavailable if none can be counted."""
        self._library = perfevents.PerfLibrary()
        found = self._find()
        try:
            errors = self._try(self._library, [event for _, event in found]) if found else []
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
        self._places.mounts.refresh(anyway=True)

    def _find(self) -> list[tuple[int, Event]]:
        """Return the events possible on this machine, with their numbers; warn of each of the others."""
        found: list[tuple[int, Event]] = []
        for number, choice in enumerate(self._choices, 1):
            try:
                found.append((number, perfevents.find(choice.name, self._host)))
            except (perfevents.Absent, ValueError) as err:
                self._once.warning(f"--perfhw-list: {err}; counter_{number} is missing")
        return found

    def _try(self, library: perfevents.PerfLibrary, events: Sequence[Event]) -> list[int]:
        """Return for each event 0, or the errno of its refusal on this thread; OSError if nothing can be counted."""
        tried = perfevents.EventCounters(library, -1, events, sorted(self._places.online())[:1])
        tried.close()
        return tried.errors

    def _make_columns(self, numbered: Iterable[tuple[int, Event]]) -> list[EventColumn]:
        """Return columns for the choices; those of the same event share one count."""
        columns = []
        for number, event in numbered:
            choice = self._choices[number - 1]
            every = Every(choice.period_s, self._monotonic) if choice.period_s is not None else None
            columns.append(EventColumn(number, event, choice.job_id, every))
        return columns

    def changes(self) -> Mapping[str, Callable[[Any], Callable[[], Iterable[Sample]]]]:
        return {"perfhw_list": self._prepare}

    def _prepare(self, texts: Sequence[str]) -> Callable[[], Iterable[Sample]]:
        """Return the function to switch to other events; ConfigError if one of them cannot be counted here.

        It returns a last row of each job under the former columns. Counts of unchanged events continue.
        """
        try:
            choices = perfevents.parse_choices(texts, MAX_EVENTS)
            events = [perfevents.find(choice.name, self._host) for choice in choices]
            errors = self._try(self._library or perfevents.PerfLibrary(), events)
        except OSError as err:
            raise ConfigError(self._remedy(err)) from err
        except (perfevents.Absent, ValueError, BackendUnavailable, ConfigError) as err:
            raise ConfigError(f"--perfhw-list: {err}") from err
        for choice, code in zip(choices, errors):
            if code:
                raise ConfigError(f"--perfhw-list: {choice.name} is not supported by this CPU ({os.strerror(code)})")
        return lambda: self._change(choices, events)

    def _change(self, choices: Sequence[EventChoice], events: Sequence[Event]) -> Iterable[Sample]:
        rows = [self._row(job, state, state.columns) for job, state in self._jobs.items() if state.is_counting]
        paces = {self._choices[column.number - 1]: column.every for column in self._columns}
        self._choices = list(choices)
        self._columns = self._make_columns(enumerate(events, 1))
        for choice, column in zip(choices, self._columns):
            column.every = paces.get(choice) or column.every
        for job, state in self._jobs.items():
            state.change(self._columns_of(job))
            if state.missing and not state.yields:
                self._start(job, state)
        return [row for row in rows if row is not None]

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        self._ticks += 1
        self._places.mounts.refresh()
        listed = set(jobs)
        for job in [job for job in self._jobs if job not in listed]:
            self._end(self._jobs.pop(job))
        not_due = {column for column in self._columns if column.every is not None and not column.every.is_due()}
        rows = []
        for job in jobs:
            state = self._look(job)
            if state.is_counting:
                due = [column for column in state.columns if column not in not_due] if not_due else state.columns
                row = self._row(job, state, due)
                if row is not None:
                    rows.append(row)
                if self._yields and self._is_used(job, state, self._ticks % SLOW_TICKS == 0):
                    state.release()
                    state.yields = True
                    self._yielded += 1
                    log.info("counters given up, the job uses perf job=%d", job.id)
        self._places.find_left(self._jobs)
        self._places.remove_left()
        return rows

    def notice(self, job: Job) -> None:
        """Open the job's events unless open: it may be gone by the next tick."""
        self._look(job)

    def last(self, job: Job) -> Sample | None:
        """Return the job's row since the one before: its counts are lost when the events are closed."""
        state = self._jobs.pop(job, None)
        if state is None:
            return None
        row = self._row(job, state, state.columns) if state.is_counting else None
        self._end(state)
        self._places.remove_left()
        return row

    def counter_names(self) -> Sequence[CounterName]:
        units = {column.number: column.event.unit for column in self._columns}
        return [
            CounterName(f"counter_{n}", choice.name, units.get(n, "count")) for n, choice in enumerate(self._choices, 1)
        ]

    def mapping_file(self) -> tuple[str, Sequence[str]]:
        quoted = [f'"{choice.name}"' if "," in choice.name else choice.name for choice in self._choices]
        quoted += ["no_counter"] * (MAX_EVENTS - len(quoted))
        return "perfhw", [f"counter{number},{name}" for number, name in enumerate(quoted, 1)]

    def counters(self) -> Mapping[str, int]:
        return {
            "perf_jobs_uncounted": self._uncounted,
            "perf_fd_shortages": self._shortages,
            "perf_yields": self._yielded,
            "perf_files_left_out": self._searches_bounded,
            "perf_read_failures": self._read_failures,
            "perf_tasks_moved": self._places.moved,
            "perf_group_failures": self._places.failures,
        }

    def close(self) -> None:
        """Close all events; can be called twice. Groups made for jobs stay while these run."""
        for state in self._jobs.values():
            state.release()
        self._jobs = {}
        self._places.close()

    # -- the states of a job --

    def _look(self, job: Job) -> JobEvents:
        """Bring a job to the state possible now, before its counts are read."""
        state = self._jobs.get(job)
        if state is None:
            state = self._jobs[job] = JobEvents(self._host, self._columns_of(job))
        if state.yields and not self._is_used(job, state, thorough=True) and not state.use.is_partial:
            state.yields = False
        if state.missing:
            if not state.yields and self._ticks >= state.try_at:
                self._start(job, state)
        elif state.is_counting and self._ticks % SLOW_TICKS == 0:
            self._extend(job, state)
        if state.group:
            self._places.fill(state.group, job)
        return state

    def _columns_of(self, job: Job) -> list[EventColumn]:
        return [column for column in self._columns if column.job_id in (None, job.id)]

    def _start(self, job: Job, state: JobEvents) -> None:
        """Open the missing events, if the job has CPUs and a cgroup by now."""
        cpus = state.cpus or self._places.cpus(job)
        if not cpus:
            return  # its resource manager has not finished setting it up; it can have no task yet
        directory = self._directory(job, state)
        if directory and self._open(job, state, directory, state.missing, cpus):
            state.missing = []

    def _extend(self, job: Job, state: JobEvents) -> None:
        """Count also on CPUs that the job got after its events were opened."""
        more = self._places.cpus(job) - state.cpus
        if more and (directory := self._directory(job, state)):
            self._open(job, state, directory, state.wanted(), more)

    def _directory(self, job: Job, state: JobEvents) -> str:
        """Return the cgroup of the job's events; empty without one."""
        if state.group:
            return state.group
        group = self._places.group(job)
        if group.is_ours:
            state.group = group.path
        if group.why:
            self._count_uncounted(state, group.why)
        return group.path

    def _open(self, job: Job, state: JobEvents, directory: str, events: Sequence[Event], cpus: frozenset[int]) -> bool:
        """Open events on some CPUs; return whether they are open."""
        assert self._library is not None  # it is open
        try:
            refused = state.open(self._library, directory, events, cpus)
        except OSError as err:
            if err.errno in (errno.EMFILE, errno.ENFILE):
                self._note_shortage(job, state, len(events) * len(cpus))
            elif not (is_gone(err) and not self._host.is_directory(directory)):
                state.try_at = self._ticks + SLOW_TICKS
                self._count_uncounted(state, f"events of jobs cannot be opened: {self._remedy(err)}")
            return False
        for event, code in refused:
            self._refused(next(column.number for column in self._columns if column.event == event), code)
        return True

    def _row(self, job: Job, state: JobEvents, columns: Sequence[EventColumn]) -> Sample | None:
        """Return the values of some columns, each since its last one; None without any."""
        if not columns:
            return None
        try:
            values = state.values(columns)
        except OSError as err:
            self._read_failures += 1
            if powers_of_ten(self._read_failures):
                log.error("cannot read events job=%d failures=%d: %s", job.id, self._read_failures, err.strerror)
            return None
        return Sample(job.id, values) if values else None

    def _is_used(self, job: Job, state: JobEvents, thorough: bool) -> bool:
        """Return whether perf is used in the job: see `PerfUse.search`."""
        is_used = state.use.search(job, thorough)
        self._searches_bounded += state.use.was_bounded
        return is_used

    def _end(self, state: JobEvents) -> None:
        state.release()
        if state.group:
            self._places.leave(state.group)

    # -- failures --

    def _note_shortage(self, job: Job, state: JobEvents, count: int) -> None:
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
        state.try_at = self._ticks + 1
        self._count_uncounted(state)

    def _count_uncounted(self, state: JobEvents, why: str = "") -> None:
        """Count a job without any count, once; warn of a reason, once."""
        if not state.is_uncounted and not state.is_counting:
            state.is_uncounted = True
            self._uncounted += 1
        if why:
            self._once.warning(why)

    def _refused(self, number: int, code: int) -> None:
        self._once.warning(
            f"{self._choices[number - 1].name} is not supported by this CPU ({os.strerror(code)}); "
            f"counter_{number} is missing"
        )

    def _remedy(self, err: OSError) -> str:
        """Return the meaning of an error of perf_event_open, and its remedy."""
        if err.errno in (errno.EACCES, errno.EPERM):
            try:
                level = self._host.read(_PARANOID).decode("ascii", "replace").strip()
            except OSError:
                level = "?"
            return (
                "perf events are not permitted without CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8); "
                f"{suggest('CAP_PERFMON')}; or lower kernel.perf_event_paranoid, which is {level}"
            )
        if err.errno in (errno.ENOSYS, errno.EINVAL):
            return "this kernel has no perf events of cgroups: it needs CONFIG_PERF_EVENTS and CONFIG_CGROUP_PERF"
        if err.errno in (errno.ENOENT, errno.EBADF):
            return "perf_event is not in this cgroup hierarchy"
        return f"perf_event_open: {err.strerror}"
