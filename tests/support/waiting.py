"""A clock that tests set, free ports, and waiting for a condition."""

from __future__ import annotations

import contextlib
import random
import socket
import time


class Clock:
    """A clock, in seconds, that stands still until a test sets `now`."""

    def __init__(self, now=1000.0):
        self.now = now

    def __call__(self):
        return self.now

    def ns(self):
        return int(self.now * 1e9)


def free_port():
    """A free port, as the one after it, below the ports that the kernel gives to clients (ip_local_port_range).

    No client takes it while the server is down. A client that connects to such a port while the server is down could
    even reach itself.
    """
    while True:
        port = random.randrange(20000, 32000, 2)
        with socket.socket() as one, socket.socket() as other, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 1))
            return port


def wait_for(condition, timeout_s=60):
    """Wait until a condition holds; fail after the timeout."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)
