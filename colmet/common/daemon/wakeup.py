"""Waiting for descriptors, and waking a thread that waits."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
from collections.abc import Iterable


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
