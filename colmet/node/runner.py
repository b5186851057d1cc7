"""The calls into backends: each is opened, retried, measured and counted, so that no failure stops the others.

A backend that may block runs in a thread of its own: no tick waits for it.

A backend names the values it provides in `provides` and the values it reads in `needs`. Backends never import each
other: each runs after the providers of its values, which `connect` gives it.
"""

from __future__ import annotations

import argparse
import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from colmet.common.config.cli import Options
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.pacing import Backoff
from colmet.common.errors import BackendUnavailable, CommandFailed, ConfigError, ParseError
from colmet.common.host.command import Call
from colmet.common.host.host import Host
from colmet.common.host.processes import Processes
from colmet.common.schema import Sample, Schema, Table
from colmet.common.tables import COMMANDS, COMMANDS_KILLED, LATE, LEFT_OUT, RUN, UPTIME
from colmet.common.tables.agent import BACKEND_COUNTERS
from colmet.node import agent_tables
from colmet.node.agent_tables import Meter
from colmet.node.backend import InputBackend
from colmet.node.counter_names import CounterName
from colmet.node.jobs.job import Job

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_NS = 1_000_000_000
FIRST_RETRY_S = 60.0
LAST_RETRY_S = 3600.0


class NotYet(Exception):
    """The backend's `open()` has not returned yet; the next tick checks again."""


class BackgroundBackend(InputBackend):
    """A blocking backend, with calls that never block: each runs in a thread of its own.

    A tick returns the result of the measurement started by the last tick, and starts the next one. If that has not
    ended, the tick is skipped: nothing waits, nothing accumulates.

    ::

        closed --open(): starts a thread--> opening --open() has returned--> idle --sample()--> measuring
          ^                                                                    ^                      |
          |                                                                    +---sample() or take()-+
          +--------------- close(): as soon as the call under way has returned ----- any state

    Attributes:
        meter: CPU and wall time of the calls.
        measured_ns: end of the measurement last returned by `sample()` or `take()`, since the epoch.
        is_busy: whether the last `sample()` was skipped, because of an unfinished measurement.
    """

    def __init__(self, backend: InputBackend, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.name = backend.name  # type: ignore[misc]
        self.schema = backend.schema
        self.others = backend.others
        self.agent_counters = (LEFT_OUT, LATE, COMMANDS, COMMANDS_KILLED, *backend.agent_counters)
        self.meter = Meter()
        self.measured_ns = 0
        self.is_busy = False
        self._backend = backend
        self._monotonic = monotonic
        self._call: Call[Any] | None = None
        self._closing: Call[None] | None = None
        self._is_late = False
        self._began = 0.0
        self._skipped = self._late = 0

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """Do nothing: the backend declares its options."""

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> None:
        """Return None: the object is made around a backend."""

    def open(self) -> None:
        """Start to open the backend, and return once it is open; NotYet before."""
        if self._closing is not None:
            if not self._closing.ended_ns:
                raise NotYet  # a driver still blocks the former call
            self._closing = self._call = None
        if self._call is None:
            self._begin(self._backend.open)
        if not self._has_ended():
            raise NotYet
        self._result()

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        """Return the rows measured since the last call, or raise its error, and start the next measurement."""
        self.is_busy = not self._has_ended()
        if self.is_busy:
            self._skipped += 1
            return ()
        asked = self._backend.ask(jobs)
        is_usable = True
        try:
            return self.take()
        except BackendUnavailable:
            is_usable = False  # it is closed, and opened again later
            raise
        finally:
            if is_usable:  # after any other failure the next measurement may succeed
                self._begin(lambda: list(self._backend.sample(asked)))

    def take(self) -> Iterable[Sample]:
        """Return the rows measured since the last call, and start nothing."""
        if self._call is None or not self._has_ended():
            return ()
        self.measured_ns = self._call.ended_ns
        samples: Iterable[Sample] = self._result()
        return samples

    def counter_names(self) -> Sequence[CounterName]:  # noqa: D102 - these are the backend's
        return self._backend.counter_names()

    def mapping_file(self) -> tuple[str, Sequence[str]] | None:  # noqa: D102
        return self._backend.mapping_file()

    def counters(self) -> Mapping[str, int]:
        """Return the backend's counters, and the numbers of skipped and late calls and of its programs."""
        programs = list(self._backend.programs())
        return {
            "left_out": self._skipped,
            "late": self._late,
            "commands": sum(program.runs for program in programs),
            "commands_killed": sum(program.killed for program in programs),
            **self._backend.counters(),
        }

    def close(self) -> None:
        """Close the backend as soon as its call has returned, without waiting; can be called twice."""
        if self._closing is None:
            under_way = self._call
            self._closing = Call(lambda: self._close(under_way), f"colmet-{self.name}")

    def join(self, within_s: float) -> None:
        """Wait until it is closed after `close()`, at most `within_s` seconds."""
        if self._closing is not None:
            self._closing.wait(within_s)

    def _begin(self, function: Callable[[], Any]) -> None:
        self._began = self._monotonic()

        def measured() -> Any:
            with self.meter:
                return function()

        self._call = Call(measured, f"colmet-{self.name}")

    def _has_ended(self) -> bool:
        """Return whether no call is under way; log once a call that exceeds its deadline."""
        call = self._call
        if call is None or call.ended_ns:
            if self._is_late and call is not None:
                log.info("backend answers again backend=%s after=%.0f s", self.name, self._monotonic() - self._began)
            self._is_late = False
            return True
        took_s = self._monotonic() - self._began
        if took_s > self._backend.deadline_s and not self._is_late:
            self._is_late = True
            self._late += 1
            log.error(
                "backend does not answer backend=%s late=%d: nothing for %.0f s; the other backends continue",
                self.name,
                self._late,
                took_s,
            )
        return False

    def _result(self) -> Any:
        assert self._call is not None
        call, self._call = self._call, None
        return call.result()

    def _close(self, under_way: Call[Any] | None) -> None:
        """Close the backend once its call has returned, in the thread of `close`."""
        if under_way is not None:
            under_way.thread.join()
        try:
            self._backend.close()
        except Exception:  # nobody waits for the result
            log.exception("close failed backend=%s", self.name)


def connect(backends: Sequence[InputBackend]) -> list[InputBackend]:
    """Connect backends with the providers of the values they need; log values without a provider.

    Return them in calling order: each after its providers. ConfigError if two provide one value, or need each other's.
    """
    providers: dict[str, InputBackend] = {}
    for backend in backends:
        for name in backend.provides:
            if name in providers:
                raise ConfigError(f"the backends {providers[name].name} and {backend.name} both provide {name}")
            providers[name] = backend
    ordered: list[InputBackend] = []
    waiting = list(backends)
    while waiting:
        ready = next((one for one in waiting if not any(providers.get(name) in waiting for name in one.needs)), None)
        if ready is None:
            raise ConfigError(f"the backends {', '.join([one.name for one in waiting])} need values of each other")
        waiting.remove(ready)
        ordered.append(ready)
        for name in ready.needs:
            if name in providers:
                ready.use_value(name, providers[name].job_value(name))
            else:
                log.info("no backend provides a value that another needs backend=%s value=%s", ready.name, name)
    return ordered


class Runner:
    """Caller of one backend: opens it, retries with back-off, measures its cost, counts its failures.

    A blocking backend blocks the caller, unless it is wrapped in a `BackgroundBackend`.

    Attributes:
        meter: CPU and wall time of the backend's calls, in this thread and in that of `processes`.
        rows: number of rows measured.
        failures: number of failed calls.
        overruns: number of samples longer than the period.
        sampled_ns: time of the last rows, since the epoch; 0 before the first.
    """

    def __init__(
        self,
        backend: InputBackend,
        monotonic: Callable[[], float] = time.monotonic,
        period_s: float = math.inf,
        processes: Processes | None = None,
    ) -> None:
        self.backend = backend
        self.name = backend.name
        self.meter = Meter(processes)
        self.rows = self.failures = self.overruns = self.sampled_ns = 0
        self.missed = ""  # why the last `sample()` measured nothing, FAILED or LATE
        self.is_open = False
        self.why = "not opened yet"  # why the backend is off; empty while it is on
        self.error = ""  # the last failure
        self.dropped_counters: set[str] = set()  # returned by the backend and not declared in its `agent_counters`
        self._counter_names = BACKEND_COUNTERS.intersection([field.name for field in backend.agent_counters])
        self._period_ns = period_s * 1e9
        self._backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S, monotonic)

    def open(self) -> bool:
        """Open the backend if it is closed and a retry is due; return whether it is open."""
        if not self.is_open and self._backoff.is_due():
            try:
                with self.meter:
                    self.backend.open()
            except NotYet:
                pass
            except (BackendUnavailable, CommandFailed) as err:
                self._wait(err)
            except Exception as err:  # noqa: BLE001 - a defect of ours in one backend must not stop the others
                self._failed(err, defect=not isinstance(err, (ParseError, OSError)))
                self._wait(err)
            else:
                self.is_open = True
                self.why = ""
                log.info("backend on backend=%s", self.backend.name)
        return self.is_open

    def _wait(self, err: Exception) -> None:
        self.why = str(err)
        if not self._backoff.failures:
            log.warning("backend off backend=%s: %s", self.backend.name, err)
        else:
            log.debug("backend still off backend=%s: %s", self.backend.name, err)
        self.is_open = False
        try:
            self.backend.close()
        except Exception:  # it is opened again later anyway
            log.exception("close failed backend=%s", self.name)
        self._backoff.fail()

    @property
    def fd(self) -> int:
        """Descriptor that is readable when `drain` has work; -1 while there is none."""
        return self.backend.fd if self.is_open else -1

    @property
    def cpu_ns(self) -> int:
        """CPU time of the backend, including that of its own thread."""
        return self.meter.cpu_ns + (self.backend.meter.cpu_ns if isinstance(self.backend, BackgroundBackend) else 0)

    @property
    def wall_ns(self) -> int:
        """Wall time of the backend, including that of its own thread."""
        return self.meter.wall_ns + (self.backend.meter.wall_ns if isinstance(self.backend, BackgroundBackend) else 0)

    def sample(self, jobs: Sequence[Job], time_ns: int) -> list[Table]:
        """Return the tables of this tick; none without rows."""

        def measure() -> list[Table]:
            tables = self._tables(self.backend.sample(self.backend.ask(jobs)), time_ns, jobs)
            is_late = isinstance(self.backend, BackgroundBackend) and self.backend.is_busy
            self.missed = agent_tables.LATE if is_late else ""
            return tables

        self.missed = agent_tables.FAILED
        if not self.open():
            return []
        tables: list[Table] = self._call(measure, [])
        self.overruns += self.meter.last_wall_ns > self._period_ns
        return tables

    def change(self, commit: Callable[[], Iterable[Sample]], time_ns: int) -> list[Table]:
        """Change an option of the backend; return the tables measured until then."""
        self._backoff.reset()  # its requirements may exist now
        return self._call(lambda: self._tables(commit(), time_ns), [])

    def pace(self, period_s: float) -> None:
        """Set the period; a longer sample is an overrun."""
        self._period_ns = period_s * 1e9

    def take(self) -> list[Table]:
        """Return the tables measured by a background backend since the last tick."""
        backend = self.backend
        if not self.is_open or not isinstance(backend, BackgroundBackend):
            return []
        return self._call(lambda: self._tables(backend.take(), 0), [])

    def drain(self) -> list[int]:
        """Have the backend read its events between ticks; return jobs possibly without any task left."""
        return self._call(lambda: list(self.backend.drain()), []) if self.is_open else []

    def notice(self, job: Job) -> None:
        """Have the backend measure a job with changed tasks."""
        if self.is_open:
            self._call(lambda: self.backend.notice(job), None)

    def last(self, jobs: Iterable[Job], time_ns: int) -> list[Table]:
        """Return the last rows of jobs with removed cgroups."""
        samples: list[Sample] = []
        jobs = list(jobs)
        for job in jobs:
            if not self.is_open:
                break
            sample = self._call(functools.partial(self.backend.last, job), None)
            if sample is not None:
                samples.append(sample)
        return self._call(lambda: self._tables(samples, time_ns, jobs), [])

    def _tables(self, samples: Iterable[Sample], time_ns: int, jobs: Iterable[Job] = ()) -> list[Table]:
        """Return the tables of samples of jobs, each with the time of its measurement."""
        by_schema: dict[Schema, list[Sample]] = {}
        for sample in samples:
            by_schema.setdefault(sample.schema or self.backend.schema, []).append(sample)
        if isinstance(self.backend, BackgroundBackend):
            time_ns = self.backend.measured_ns
        for schema in by_schema:
            if RUN in schema.name_set:
                # with the runs of their jobs, and the machine's uptime at a time of the wall clock
                uptime_s = (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - (time.time_ns() - time_ns)) // _NS
                runs = {job.id: job.run for job in jobs}
                by_schema[schema] = [
                    one._replace(values={**one.values, RUN: runs.get(one.job_id), UPTIME: max(0, uptime_s)})
                    for one in by_schema[schema]
                ]
        tables = [Table.from_samples(schema, time_ns, some) for schema, some in by_schema.items()]
        self.rows += sum(map(len, tables))
        if tables:
            self.sampled_ns = time_ns
            self._backoff.reset()  # the next failure is logged as a warning again
        return tables

    def _call(self, function: Callable[[], _Result], otherwise: _Result) -> _Result:
        """Call into the backend and measure the cost; on failure, log, count and return `otherwise`."""
        try:
            with self.meter:
                return function()
        except BackendUnavailable as err:
            self._wait(err)
        except (ParseError, CommandFailed, OSError) as err:
            self._failed(err)
        except Exception as err:  # noqa: BLE001 - a defect of ours in one backend must not stop the others
            self._failed(err, defect=True)
        return otherwise

    def counters(self) -> Mapping[str, int]:
        """Return the backend's own counters, by column of `agent_default`; drop undeclared ones."""
        return self._call(self._declared_counters, {})

    def _declared_counters(self) -> dict[str, int]:
        declared: dict[str, int] = {}
        given: Mapping[str, Any] = self.backend.counters()
        for name, count in given.items():
            if name in self._counter_names and isinstance(count, int) and count.bit_length() < 64:
                declared[name] = count
            elif name not in self.dropped_counters:
                self.dropped_counters.add(name)
                text = "counter dropped backend=%s counter=%s: not declared, or no whole number"
                log.warning(text, self.name, name)
        return declared

    def _failed(self, err: Exception, defect: bool = False) -> None:
        self.failures += 1
        self.error = f"{type(err).__name__}: {err}" if defect else str(err)
        if powers_of_ten(self.failures):
            log.error(
                "sample failed backend=%s failures=%d: %s", self.backend.name, self.failures, err, exc_info=defect
            )

    def changes(self) -> Mapping[str, Callable[[Any], Callable[[], Iterable[Sample]]]]:
        """Return the backend's options that can change while it runs."""
        return self._call(self.backend.changes, {})

    def close(self) -> None:
        """Close the backend; can be called twice."""
        self.backend.close()
        self.is_open = False
