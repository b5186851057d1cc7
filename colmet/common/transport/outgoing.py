"""Connections of a node to its collector: made anew for ever, numbered, with the reason where there is none."""

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
UNANSWERED_S = 0.8 * CONNECT_TIMEOUT_MS / 1000  # an attempt that lasted as long got no answer
MIN_AGAIN_MS = 100  # before a connection that has ended is made anew
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
    """Have a socket connect anew as often as is good for both sides, at other moments than other nodes."""
    socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)  # the kernel alone would try for minutes
    socket.setsockopt(zmq.RECONNECT_IVL, random.randrange(MIN_AGAIN_MS, 300))
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, random.randrange(4000, 6000))


class Outgoing:
    """The connection of a socket to one peer. Made before the socket connects.

    libzmq tries for ever where nobody answers, but gives up for good where somebody answered and did not speak as it
    should: a collector that was not given its keys yet, or another program on its port. Then it is connected anew
    after a minute.

    Args:
        socket: that is to be connected.
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
        """Number of the connection that there is now; 0 while there is none.

        A connection that has ended is known to have ended 100 ms before the next one is made, at the latest.
        """
        while True:
            try:
                event = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return self._number
            self._note(_EVENT.unpack(event[0])[0])

    @property
    def problem(self) -> str:
        """Why there is no connection, as far as the last attempt says; empty where there is one, or none was made."""
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
        """Whether the socket can be written to; where it could not for long, it is connected again."""
        now = self._monotonic()
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
            self._writable_at = now
            return True
        if now - self._writable_at > ANEW_S:
            self._writable_at = now
            with contextlib.suppress(zmq.ZMQError):  # given up: there is nothing to disconnect
                self._socket.disconnect(self._uri)
            self._socket.connect(self._uri)
        return False

    def close(self) -> None:
        """Watch no more, before the socket is closed; also twice."""
        if not self._monitor.closed:
            self._socket.disable_monitor()
            self._monitor.close()
