"""A clock that tests set, free ports, and waiting for a condition."""

from __future__ import annotations

import time

from dev.live import free_port as free_port


class Clock:
    """A clock, in seconds, that stands still until a test sets `now`."""

    def __init__(self, now=1000.0):
        self.now = now

    def __call__(self):
        return self.now

    def ns(self):
        return int(self.now * 1e9)


def wait_for(condition, timeout_s=60):
    """Wait until a condition holds; fail after the timeout."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)
