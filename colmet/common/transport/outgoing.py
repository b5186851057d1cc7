"""Connections of a node to its collector: retried for ever, numbered, with the reason of failure."""

from __future__ import annotations

import contextlib
import itertools
import random
import struct
import time
from collections.abc import Callable, Iterator

import zmq

from colmet.common.transport.waiting import Socket

ANEW_S = 60.0
CONNECT_TIMEOUT_MS = 5000
UNANSWERED_S = 0.8 * CONNECT_TIMEOUT_MS / 1000  # an attempt of this duration got no answer
MIN_AGAIN_MS = 100  # before a reconnection
_FAILURES = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_EVENTS = (
    zmq.EVENT_CONNECT_DELAYED
    | zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | _FAILURES
)
_EVENT = struct.Struct("=HI")  # its kind, and a descriptor or an error


def try_again(socket: Socket) -> None:
    """Set a socket's intervals of reconnection: bounded for both sides, and random, so that nodes spread."""
    socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)  # the kernel alone would retry for minutes
    socket.setsockopt(zmq.RECONNECT_IVL, random.randrange(MIN_AGAIN_MS, 300))
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, random.randrange(4000, 6000))


class Outgoing:
    """The connection of a socket to one peer. Made before the socket connects.

    libzmq retries for ever if there is no answer, but gives up for good after a failed handshake: with a collector that
    lacks the node's key yet, or another program on its port. Then this reconnects after a minute.

    Args:
        socket: to be connected.
        uri: of the peer.
        numbers: gives each connection its number, from 1; shared with the connections of an earlier socket.
    """

    def __init__(
        self,
        socket: Socket,
        uri: str,
        numbers: Iterator[int] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket = socket
        self._uri = uri
        self._numbers = itertools.count(1) if numbers is None else numbers
        self._monotonic = monotonic
        self._writable_at = self._tried_at = monotonic()
        self._number = 0
        self._is_greeted = False
        self._problem = ""
        address = f"inproc://monitor-{id(socket)}"
        socket.monitor(address, _EVENTS)
        self._monitor = socket.context.socket(zmq.PAIR)
        self._monitor.setsockopt(zmq.LINGER, 0)
        try:
            self._monitor.connect(address)
            socket.connect(uri)
        except zmq.ZMQError:
            self.close()
            raise

    @property
    def number(self) -> int:
        """Return the number of the current connection; 0 without one.

        The end of a connection is known at the latest 100 ms before the next one.
        """
        while True:
            try:
                event = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return self._number
            self._note(_EVENT.unpack(event[0])[0])

    @property
    def problem(self) -> str:
        """Return why there is no connection, from the last attempt; empty if connected or never tried."""
        if self.number and not self._is_greeted:
            return "something listens there that is no collector of this version"
        return self._problem

    def _note(self, event: int) -> None:
        now = self._monotonic()
        if event == zmq.EVENT_CONNECT_DELAYED:
            self._tried_at = now
        elif event == zmq.EVENT_CONNECTED:
            self._number = next(self._numbers)
            self._is_greeted = False
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._is_greeted = True
            self._problem = ""
        elif event == zmq.EVENT_CLOSED:
            unanswered = now - self._tried_at >= UNANSWERED_S
            self._problem = "connections are not answered" if unanswered else "connections are refused"
        else:
            if not self._is_greeted:
                self._problem = "something listens there that is no collector of this version"
            self._number = 0

    def look(self) -> bool:
        """Return whether the socket is writable; reconnect it after a long failure."""
        now = self._monotonic()
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
            self._writable_at = now
            return True
        if now - self._writable_at > ANEW_S:
            self._writable_at = now
            with contextlib.suppress(zmq.ZMQError):  # libzmq gave up: nothing to disconnect
                self._socket.disconnect(self._uri)
            self._socket.connect(self._uri)
        return False

    def close(self) -> None:
        """Stop watching, before the socket is closed; idempotent."""
        if not self._monitor.closed:
            self._socket.disable_monitor()
            self._monitor.close()
