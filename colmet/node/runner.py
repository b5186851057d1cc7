"""The calls into backends: each is opened, retried, measured and counted, so that no failure stops the others.

A backend names the values it provides in `provides` and the values it reads in `needs`. Backends never import each
other: each runs after the providers of its values, which `connect` gives it.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.pacing import Backoff
from colmet.common.errors import BackendUnavailable, CommandFailed, ConfigError, ParseError
from colmet.common.host.processes import Processes
from colmet.common.schema import Sample, Schema, Table
from colmet.common.tables import RUN, UPTIME
from colmet.common.tables.agent import BACKEND_COUNTERS
from colmet.node.agent_tables import FAILED, LATE, Meter
from colmet.node.backend import InputBackend
from colmet.node.background import BackgroundBackend, NotYet
from colmet.node.jobs.job import Job

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_NS = 1_000_000_000
FIRST_RETRY_S = 60.0
LAST_RETRY_S = 3600.0


def connect(backends: Sequence[InputBackend]) -> list[InputBackend]:
    """Connect backends with the providers of the values they need; log values without a provider.

    Returns:
        The backends in calling order: each after its providers, otherwise as given.

    Raises:
        ConfigError: two backends provide one value, or need each other's.
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

    Every call into the backend goes through here, so that a failure of one does not stop the others.

    Args:
        backend: the backend; a blocking one blocks the caller, unless it is wrapped in a `BackgroundBackend`.
        period_s: the sample period.
        processes: the thread that reads files of processes for the backend.

    Attributes:
        meter: CPU and wall time of the backend's calls, in this thread and in that of `processes`.
        rows: number of rows measured.
        failures: number of failed calls.
        overruns: number of samples longer than the period.
        why: the reason why the backend is off; empty while it is on.
        error: the last failure; empty before the first.
        sampled_ns: time of the last rows, since the epoch; 0 before the first.
        dropped_counters: counters returned by the backend and not declared in its `agent_counters`.
        missed: why the last `sample()` measured nothing, FAILED or LATE; otherwise empty.
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
        self.missed = ""
        self.is_open = False
        self.why = "not opened yet"
        self.error = ""
        self.dropped_counters: set[str] = set()
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
        self._close_failed()
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
        self.missed = FAILED
        if not self.open():
            return []
        tables: list[Table] = self._call(lambda: self._measure(jobs, time_ns), [])
        self.overruns += self.meter.last_wall_ns > self._period_ns
        return tables

    def _measure(self, jobs: Sequence[Job], time_ns: int) -> list[Table]:
        tables = self._tables(self.backend.sample(self.backend.ask(jobs)), time_ns, jobs)
        self.missed = LATE if isinstance(self.backend, BackgroundBackend) and self.backend.is_busy else ""
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
                by_schema[schema] = self._with_runs(by_schema[schema], time_ns, {job.id: job.run for job in jobs})
        tables = [Table.from_samples(schema, time_ns, some) for schema, some in by_schema.items()]
        self.rows += sum(map(len, tables))
        if tables:
            self.sampled_ns = time_ns
            self._backoff.reset()  # the next failure is logged as a warning again
        return tables

    @staticmethod
    def _with_runs(samples: Iterable[Sample], time_ns: int, runs: Mapping[int, int | None]) -> list[Sample]:
        """Return samples with the runs of their jobs, and the machine's uptime at a time of the wall clock."""
        uptime_s = (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - (time.time_ns() - time_ns)) // _NS
        return [
            sample._replace(values={**sample.values, RUN: runs.get(sample.job_id), UPTIME: max(0, uptime_s)})
            for sample in samples
        ]

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

    def _close_failed(self) -> None:
        self.is_open = False
        try:
            self.backend.close()
        except Exception:  # it is opened again later anyway
            log.exception("close failed backend=%s", self.name)

    def close(self) -> None:
        """Close the backend; can be called twice."""
        self.backend.close()
        self.is_open = False
