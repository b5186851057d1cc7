"""Waiting for sockets and descriptors at once; addresses of their monitors."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    Socket = zmq.Socket[bytes]
else:
    Socket = zmq.Socket  # pyzmq 22, of Ubuntu 22.04, has no index
_monitors = itertools.count(1)


def wait(readable: Iterable[int | Socket], writable: Iterable[Socket], timeout_s: float) -> None:
    """Wait until one of these can be read or written, at most `timeout_s`."""
    poller = zmq.Poller()
    for source in readable:
        poller.register(source, zmq.POLLIN)
    for socket in writable:
        poller.register(socket, zmq.POLLOUT)
    poller.poll(max(0, int(timeout_s * 1000 + 0.999)))


def monitor_address() -> str:
    """Return the address of a new monitor, used once: libzmq frees that of a closed one later."""
    return f"inproc://monitor-{next(_monitors)}"
