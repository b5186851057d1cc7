"""Run backends that may block, each in a thread of its own: no tick waits for them."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from colmet.common.config.cli import Options
from colmet.common.errors import BackendUnavailable
from colmet.common.host.command import Call
from colmet.common.host.host import Host
from colmet.common.schema import Sample
from colmet.common.tables import COMMANDS, COMMANDS_KILLED, LATE, LEFT_OUT
from colmet.node.agent_tables import Meter
from colmet.node.backend import InputBackend
from colmet.node.counter_names import CounterName
from colmet.node.jobs.job import Job

log = logging.getLogger(__name__)


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

    Args:
        backend: the blocking one.

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
        """Start to open the backend, or return once it is open.

        Raises:
            NotYet: it has not returned yet.
            BackendUnavailable: raised by the backend.
        """
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
        if self._closing is None:
            under_way = self._call
            self._closing = Call(lambda: self._close(under_way), f"colmet-{self.name}")

    def join(self, within_s: float) -> None:
        """Wait until it is closed after `close()`, at most `within_s` seconds."""
        if self._closing is not None:
            self._closing.wait(within_s)

    def _begin(self, function: Callable[[], Any]) -> None:
        self._began = self._monotonic()
        self._call = Call(lambda: self._metered(function), f"colmet-{self.name}")

    def _metered(self, function: Callable[[], Any]) -> Any:
        with self.meter:
            return function()

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
