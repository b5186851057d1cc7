"""Run backends that may block, each in a thread of its own: no tick waits for them."""

from __future__ import annotations

import argparse
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from colmet.common.errors import BackendUnavailable
from colmet.common.runtime.cli import Options
from colmet.common.schema import Sample
from colmet.common.tables.agent_counters import COMMANDS, COMMANDS_KILLED, LATE, LEFT_OUT
from colmet.node.backend import InputBackend
from colmet.node.jobs.job import Job
from colmet.node.selfmetrics.agent_stats import Meter
from colmet.node.selfmetrics.mapping import CounterName
from colmet.node.system.host import Host

log = logging.getLogger(__name__)


class NotYet(Exception):
    """The backend's `open()` has not returned yet; the next tick checks again."""


class _Call:
    """One call into the backend, and its result.

    Attributes:
        began: its start, by the monotonic clock.
        ended_ns: its end, since the epoch; 0 before.
    """

    def __init__(self, function: Callable[[], Any], began: float) -> None:
        self.began = began
        self.ended_ns = 0
        self._function = function
        self._result: Any = None
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._result = self._function()
        except Exception as err:  # noqa: BLE001 - raised again where the result is taken
            self._error = err
        self.ended_ns = time.time_ns()

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


class BackgroundBackend(InputBackend):
    """A blocking backend in a thread, with calls that never block.

    A tick returns the result of the measurement started by the last tick, and starts the next one. If that has not
    ended, the tick is skipped: nothing waits, nothing accumulates.

    ::

        closed --open(): starts the thread--> opening --open() has returned--> idle --sample()--> measuring
          ^                                                                    ^                      |
          |                                                                    +---sample() or take()-+
          +--------------- close(): as soon as the call under way has returned ----- any state

    Args:
        backend: the blocking one.

    Attributes:
        meter: CPU and wall time of the thread.
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
        self._thread: threading.Thread | None = None
        self._call: _Call | None = None
        self._wake = threading.Semaphore(0)
        self._ends = False
        self._is_late = False
        self._skipped = self._late = 0

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """Do nothing: the backend declares its options."""

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> None:
        """Return None: the object is made around a backend."""

    def open(self) -> None:
        """Start to open the backend, or return once it is open.

        Raises:
            NotYet: it has not returned yet.
            BackendUnavailable: raised by the backend.
        """
        if self._ends:
            if self._thread is not None and self._thread.is_alive():
                raise NotYet  # a driver still blocks the former thread
            self._thread, self._call, self._ends = None, None, False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"colmet-{self.name}", daemon=True)
            self._thread.start()
        if self._call is None:
            self._begin(self._backend.open)
        if not self._has_ended():
            raise NotYet
        self._result()

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        """Return the rows measured since the last call, and start the next measurement.

        Raises:
            Exception: raised by the measurement.
        """
        self.is_busy = not self._has_ended()
        if self.is_busy:
            self._skipped += 1
            return ()
        asked = self._backend.ask(jobs)
        try:
            samples = self.take()
        except BackendUnavailable:
            raise  # it is closed, and opened again later
        except Exception:  # of any kind: the next measurement may succeed
            self._begin(lambda: list(self._backend.sample(asked)))
            raise
        self._begin(lambda: list(self._backend.sample(asked)))
        return samples

    def take(self) -> Iterable[Sample]:
        """Return the rows measured since the last call, and start nothing."""
        if self._call is None or not self._has_ended():
            return ()
        self.measured_ns = self._call.ended_ns
        samples: Iterable[Sample] = self._result()
        return samples

    def counter_names(self) -> Sequence[CounterName]:
        """Return the contents of the backend's numbered columns."""
        return self._backend.counter_names()

    def mapping_file(self) -> tuple[str, Sequence[str]] | None:
        """Return the backend's mapping file."""
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
        if not self._ends:
            self._ends = True
            self._wake.release()

    def join(self, within_s: float) -> None:
        """Wait until it is closed after `close()`, at most `within_s` seconds."""
        if self._thread is not None:
            self._thread.join(within_s)

    def _begin(self, function: Callable[[], Any]) -> None:
        self._call = _Call(function, self._monotonic())
        self._wake.release()

    def _has_ended(self) -> bool:
        """Return whether no call is under way; log once a call that exceeds its deadline."""
        call = self._call
        if call is None or call.ended_ns:
            if self._is_late and call is not None:
                log.info("backend answers again backend=%s after=%.0f s", self.name, self._monotonic() - call.began)
            self._is_late = False
            return True
        took_s = self._monotonic() - call.began
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

    def _run(self) -> None:
        """Run the calls, in the thread."""
        while True:
            self._wake.acquire()
            if self._call is not None and not self._call.ended_ns:
                with self.meter:
                    self._call.run()
            if self._ends:
                break
        try:
            self._backend.close()
        except Exception:  # the caller of `close` does not wait for the result
            log.exception("close failed backend=%s", self.name)
