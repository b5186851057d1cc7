"""Connections of a node to its collector: retried for ever, numbered, with the reason of failure."""

from __future__ import annotations

import contextlib
import random
import struct
import time
from collections.abc import Callable, Mapping

import zmq

from colmet.common.errors import ConfigError
from colmet.common.transport.curve import Client
from colmet.common.transport.ports import Socket, check_target, monitor_address

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


class Outgoing:
    """A socket connected to one peer, in the background; base of the node's ends.

    libzmq retries for ever if there is no answer, but gives up for good after a failed handshake: with a collector that
    lacks the node's key yet, or another program on its port. Then this reconnects after a minute.

    Args:
        kind: of the socket.
        uri: of the peer.
        option: of the URI, for errors.
        settings: of the socket, besides those of all.
        security: keys, or None.
        beside: a socket whose thread of libzmq serves this one, too; it is closed after this one.
        monotonic: a clock, in seconds.

    Attributes:
        socket: for `wait`; `reopen` replaces it.

    Raises:
        ConfigError: the URI cannot be used.
    """

    def __init__(
        self,
        kind: int,
        uri: str,
        option: str,
        settings: Mapping[zmq.SocketOption, int],
        security: Client | None = None,
        beside: Outgoing | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        check_target(uri, option)
        self.uri = uri
        self._kind = kind
        self._settings = settings
        self._security = security
        self._monotonic = monotonic
        self._connections = 0
        self._is_guest = beside is not None
        self._context: zmq.Context[Socket] = zmq.Context() if beside is None else beside._context
        try:
            self._open()
        except zmq.ZMQError as err:
            self._end()
            raise ConfigError(f"{option} {uri}: {err}; give tcp://HOST:PORT of the collector") from err

    def _open(self) -> None:
        socket = self._context.socket(self._kind)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)  # the kernel alone would retry for minutes
        # intervals of reconnection: bounded for both sides, and random, so that nodes spread
        socket.setsockopt(zmq.RECONNECT_IVL, random.randrange(MIN_AGAIN_MS, 300))
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, random.randrange(4000, 6000))
        socket.setsockopt(zmq.IMMEDIATE, 1)  # messages queued for an absent collector would be stale
        socket.setsockopt(zmq.IPV6, 1)
        for setting, value in self._settings.items():
            socket.setsockopt(setting, value)
        if self._security is not None:
            self._security.secure(socket)
        address = monitor_address()
        socket.monitor(address, _EVENTS)
        monitor = self._context.socket(zmq.PAIR)
        monitor.setsockopt(zmq.LINGER, 0)
        try:
            monitor.connect(address)
            socket.connect(self.uri)
        except zmq.ZMQError:
            _close(socket, monitor, 0)
            raise
        self.socket, self._monitor = socket, monitor
        self._writable_at = self._tried_at = self._monotonic()
        self._number = 0
        self._is_greeted = False
        self._problem = ""

    @property
    def connection(self) -> int:
        """Return the number of the connection used by `send`, from 1; 0 without one.

        The end of a connection is known at the latest 100 ms before the next one.
        """
        self._read_events()
        return self._number

    def _read_events(self) -> None:
        """Read what libzmq reports of the connection: its thread waits for the reader of some 2,000 reports."""
        while True:
            try:
                event = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._note(_EVENT.unpack(event[0])[0])

    @property
    def problem(self) -> str:
        """Return why there is no connection, from the last attempt; empty if connected or never tried."""
        if self.connection and not self._is_greeted:
            return "something listens there that is no collector of this version"
        return self._problem

    def _note(self, event: int) -> None:
        now = self._monotonic()
        if event == zmq.EVENT_CONNECT_DELAYED:
            self._tried_at = now
        elif event == zmq.EVENT_CONNECTED:
            self._connections += 1
            self._number = self._connections
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

    @property
    def connected(self) -> bool:
        """Return whether `send` would accept a message.

        To be called regularly: it reads the events of the connection, and reconnects after a long failure.
        """
        self._read_events()
        now = self._monotonic()
        if int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
            self._writable_at = now
            return True
        if now - self._writable_at > ANEW_S:
            self._writable_at = now
            with contextlib.suppress(zmq.ZMQError):  # libzmq gave up: nothing to disconnect
                self.socket.disconnect(self.uri)
            self.socket.connect(self.uri)
        return False

    def send(self, message: bytes) -> bool:
        """Send a message; return False without a connected collector, or if its queue is full."""
        try:
            self.socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def reopen(self) -> None:
        """Reconnect, and drop queued messages, sent and received. If that fails, nothing changes."""
        before = self.socket, self._monitor
        self._open()
        _close(*before, 0)

    def close(self) -> None:
        """Close; idempotent."""
        _close(self.socket, self._monitor)
        self._end()

    def _end(self) -> None:
        if not self._is_guest:
            self._context.term()


def _close(socket: Socket, monitor: Socket, linger_ms: int | None = None) -> None:
    if not monitor.closed:
        socket.disable_monitor()
        monitor.close()
    socket.close(linger_ms)
