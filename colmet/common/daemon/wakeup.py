"""Waiting for descriptors, waking a thread that waits, and signals as data."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import signal
from collections.abc import Iterable
from typing import Any


class Wakeup:
    """A pipe: any thread wakes the polling one.

    Attributes:
        fd: readable from `wake` to `clear`; -1 once closed.
        write_fd: for direct writers, such as `signal.set_wakeup_fd`; -1 once closed.
    """

    def __init__(self) -> None:
        self.fd, self.write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        """Make `fd` readable, from any thread; never waits."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full: it is readable already
            os.write(self.write_fd, b"\0")

    def clear(self) -> None:
        """Make `fd` unreadable; read the announced data after this, so that nothing is missed."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self.fd, 4096)) == 4096:
                pass

    def close(self) -> None:
        """Close both ends; idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            os.close(self.write_fd)
            self.fd = self.write_fd = -1


def readable(descriptors: Iterable[int], timeout_s: float | None) -> set[int]:
    """Return the descriptors readable without waiting, also at their end; OSError (EBADF) if one is not open."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    found = poller.poll(None if timeout_s is None else max(0, math.ceil(1000 * timeout_s)))
    if any(event & select.POLLNVAL for _, event in found):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return {descriptor for descriptor, _ in found}


class Signals:
    """Handlers that note signals: a descriptor that becomes readable, and the set of received signals.

    Use in the main thread, as a context manager; the former handlers are restored at the end.
    """

    def __init__(self, wanted: Iterable[signal.Signals]) -> None:
        self.pending: set[signal.Signals] = set()
        self._wanted = tuple(wanted)
        self._former: dict[signal.Signals, Any] = {}
        self._former_fd = -1
        self.fd = -1

    def __enter__(self) -> Signals:
        self._wakeup = Wakeup()
        self.fd = self._wakeup.fd
        self._former_fd = signal.set_wakeup_fd(self._wakeup.write_fd, warn_on_full_buffer=False)
        for number in self._wanted:
            self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_fd)
        self._wakeup.close()

    def _note(self, number: int, _frame: object) -> None:
        self.pending.add(signal.Signals(number))

    def stop_wanted(self) -> bool:
        """Return whether SIGTERM or SIGINT came."""
        return bool(self.pending & {signal.SIGTERM, signal.SIGINT})

    def take(self, number: signal.Signals) -> bool:
        """Return whether this signal came since the last call."""
        came = number in self.pending
        self.pending.discard(number)
        return came

    def drain(self) -> None:
        """Make the descriptor unreadable again. The next wait sees every later signal."""
        self._wakeup.clear()
