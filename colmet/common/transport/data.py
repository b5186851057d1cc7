"""Batches from node to collector: ZeroMQ PUSH and PULL.

`Push.send` never waits, `Pull.receive` waits at most its timeout.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import zmq

from colmet.common.errors import ConfigError
from colmet.common.transport import claims
from colmet.common.transport.authenticator import Authenticator
from colmet.common.transport.curve import Client
from colmet.common.transport.outgoing import Outgoing, try_again
from colmet.common.transport.uris import check_target, check_uri
from colmet.common.transport.waiting import Socket

# Above this libzmq drops the connection, so a peer cannot make the collector hold any amount of memory. It is twice the
# limit of the decoders: a message slightly too large is still received, refused and counted.
MAX_RECEIVED_BYTES = 16 << 20
DATA = "--zeromq-bind-uri"
MAX_WAITING = 100  # waiting messages of each connection; further ones wait at their node


class Push:
    """The node's end. Connects in the background and retries for ever.

    A message goes to a connected collector, or is refused: no message waits for one that is away.

    Args:
        uri: of the collector.
        hwm: messages that wait for a slow collector before `send` refuses more.
        linger_ms: time for `close` to send the queued messages; -1 is for ever.
        security: keys, or None.

    Raises:
        ConfigError: the URI cannot be used.
    """

    def __init__(self, uri: str, hwm: int, linger_ms: int, security: Client | None = None) -> None:
        check_target(uri, "--zeromq-uri")
        self._uri = uri
        self._hwm = hwm
        self._linger_ms = linger_ms
        self._context = zmq.Context()
        self._security = security
        self._numbers = itertools.count(1)
        try:
            self._socket = self._connect()
        except zmq.ZMQError as err:
            self._context.term()
            raise ConfigError(f"--zeromq-uri {uri}: {err}; give tcp://HOST:PORT of the collector") from err

    def _connect(self) -> Socket:
        socket = self._context.socket(zmq.PUSH)
        try_again(socket)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.SNDHWM, self._hwm)
        socket.setsockopt(zmq.LINGER, self._linger_ms)
        socket.setsockopt(zmq.IPV6, 1)
        # Detects a collector's machine that vanished silently; libzmq then reconnects.
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        if self._security is not None:
            self._security.secure(socket)
        try:
            self._outgoing = Outgoing(socket, self._uri, self._numbers)
        except zmq.ZMQError:
            socket.close(0)
            raise
        return socket

    @property
    def socket(self) -> Socket:
        """Return the socket for `wait`; `reopen` replaces it."""
        return self._socket

    @property
    def connected(self) -> bool:
        """Return whether `send` would accept a message now; to be called regularly."""
        return self._outgoing.look()

    @property
    def connection(self) -> int:
        """Return the number of the connection used by `send`; 0 without one."""
        return self._outgoing.number

    def send(self, message: bytes) -> bool:
        """Send a message; return False without a connected collector, or if its queue is full."""
        try:
            self._socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def reopen(self) -> None:
        """Reconnect, and drop queued messages. If that fails, nothing changes."""
        before, outgoing = self._socket, self._outgoing
        self._socket = self._connect()
        outgoing.close()
        before.close(0)

    def close(self) -> None:
        """Close; idempotent."""
        self._outgoing.close()
        self._socket.close()
        self._context.term()


class Received(NamedTuple):
    """A message, its sender's address (empty for ipc), and the owner of its key ('' without)."""

    message: bytes
    peer: str
    user: str = ""


class Pull:
    """The collector's end.

    Args:
        uri: to bind; port ``*`` binds any free one, then found in `uri`.
        hwm: messages in each node's queue before that node keeps the next ones; at most `MAX_WAITING`, as they use this
            machine's memory.
        authenticator: of the connections, shared with other sockets; one of its own without.
        option: of the URI; that of a collector claims a default port from others.
        max_bytes: of a message; beyond it libzmq drops the connection.

    Raises:
        ConfigError: the URI cannot be bound.
    """

    def __init__(
        self,
        uri: str,
        hwm: int,
        authenticator: Authenticator | None = None,
        option: str = DATA,
        max_bytes: int = MAX_RECEIVED_BYTES,
    ) -> None:
        check_uri(uri, option)
        self._authenticator = Authenticator() if authenticator is None else authenticator
        self._owns_authenticator = authenticator is None
        self._socket = self._authenticator.context.socket(zmq.PULL)
        self._guarded = self._authenticator.guard(self._socket)
        self._socket.setsockopt(zmq.RCVHWM, min(hwm, MAX_WAITING))
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, int("[" in uri))
        self._socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
        self._poller = zmq.Poller()
        self._is_tcp = uri.startswith("tcp:")
        try:
            claims.bind(lambda: self._authenticator.bind(self._guarded, uri, option), uri if option == DATA else "")
        except ConfigError:
            self.close()
            raise
        except zmq.ZMQError as err:
            self.close()
            raise ConfigError(
                f"{option} {uri}: {err}; give an address of this machine and a port that nothing else uses, "
                "not even colmet-collector.socket or another collector's --zeromq-link-bind-uri"
            ) from err
        self.uri: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller.register(self._socket, zmq.POLLIN)

    def wake_on(self, source: int | Socket) -> None:
        """Have `wait` also return when this descriptor or socket is readable."""
        self._poller.register(source, zmq.POLLIN)

    def sleep_on(self, source: int | Socket) -> None:
        """Stop `wait` from returning for this descriptor or socket."""
        self._poller.unregister(source)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a message, at most `timeout_s`; return whether one is there."""
        self._authenticator.waiting = True
        came = self._poller.poll(max(0, int(timeout_s * 1000)))
        self._authenticator.waiting = False
        return any(source is self._socket for source, _ in came)

    def receive(self) -> Received | None:
        """Return the next message, or None. Of a message in parts, unknown to all dialects, each part is a message."""
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self._guarded.readings.emptied += 1
                return None
            user = self._authenticator.user(frame, self._guarded)
            if user is not None:
                return Received(frame.bytes, str(frame.get("Peer-Address")) if self._is_tcp else "", user)

    def counters(self) -> dict[str, int]:
        """Return counters of the connections; see `Authenticator.counters`."""
        return self._authenticator.counters()

    def close(self) -> None:
        """Close; idempotent."""
        if not self._socket.closed:
            self._authenticator.release(self._guarded)
            self._socket.close()
        if self._owns_authenticator:
            self._authenticator.close()
