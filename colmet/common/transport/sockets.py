"""The sockets of node and collector: batches by PUSH and PULL, all else over the link, a DEALER and a ROUTER.

`Push.send` never waits, `Pull.receive` waits at most its timeout. The messages of the link are those of `wire.link`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import zmq

from colmet.common.errors import ConfigError
from colmet.common.transport.authenticator import Authenticator
from colmet.common.transport.curve import Client
from colmet.common.transport.outgoing import Outgoing
from colmet.common.transport.ports import Socket, bind_claiming, check_uri


class Listening:
    """A bound socket, base of the collector's ends; ConfigError if the URI cannot be bound.

    Args:
        kind: of the socket.
        uri: to bind; port ``*`` binds any free one, then found in `uri`.
        option: of the URI, for errors.
        authenticator: of the connections, shared with other sockets; one of its own without.
        settings: of the socket.
        claimed_uri: claims this port from a collector that uses it by default; empty for none.
        others: what else may use the address, for errors.
    """

    def __init__(
        self,
        kind: int,
        uri: str,
        option: str,
        authenticator: Authenticator | None,
        settings: Mapping[zmq.SocketOption, int],
        claimed_uri: str = "",
        others: str = "",
    ) -> None:
        check_uri(uri, option)
        self._authenticator = Authenticator() if authenticator is None else authenticator
        self._owns_authenticator = authenticator is None
        self._socket = self._authenticator.context.socket(kind)
        self._guarded = self._authenticator.guard(self._socket)
        for setting, value in {zmq.IPV6: int("[" in uri), **settings}.items():
            self._socket.setsockopt(setting, value)
        self._is_tcp = uri.startswith("tcp:")
        try:
            bind_claiming(lambda: self._authenticator.listeners.bind(self._socket, uri, option), claimed_uri)
        except ConfigError:
            self.close()
            raise
        except zmq.ZMQError as err:
            self.close()
            raise ConfigError(
                f"{option} {uri}: {err}; give an address of this machine and a port that nothing else uses{others}"
            ) from err
        self.uri: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def close(self) -> None:
        """Close; idempotent."""
        if not self._socket.closed:
            self._authenticator.release(self._guarded)
            self._socket.close()
        if self._owns_authenticator:
            self._authenticator.close()


# Above this libzmq drops the connection, so a peer cannot make the collector hold any amount of memory. It is twice the
# limit of the decoders: a message slightly too large is still received, refused and counted.
MAX_RECEIVED_BYTES = 16 << 20
DATA = "--zeromq-bind-uri"
MAX_WAITING = 100  # waiting messages of each connection; further ones wait at their node


class Push(Outgoing):
    """The node's end. A message goes to a connected collector, or is refused: no message waits for one that is away.

    Args as of `Outgoing`, and:
        hwm: messages that wait for a slow collector before `send` refuses more.
        linger_ms: time for `close` to send the queued messages; -1 is for ever.
    """

    def __init__(self, uri: str, hwm: int, linger_ms: int, security: Client | None = None) -> None:
        # keep-alive detects a collector's machine that vanished silently; libzmq then reconnects
        settings = {zmq.SNDHWM: hwm, zmq.LINGER: linger_ms, zmq.TCP_KEEPALIVE: 1}
        super().__init__(zmq.PUSH, uri, "--zeromq-uri", settings, security)


class Received(NamedTuple):
    """A message, its sender's address (empty for ipc), and the owner of its key ('' without)."""

    message: bytes
    peer: str
    user: str = ""


class Pull(Listening):
    """The collector's end.

    Args as of `Listening`, and:
        hwm: messages in each node's queue before that node keeps the next ones; at most `MAX_WAITING`, as they use this
            machine's memory.
        option: of the URI; that of a collector claims a default port from others.
        max_bytes: of a message; beyond it libzmq drops the connection.
    """

    def __init__(
        self,
        uri: str,
        hwm: int,
        authenticator: Authenticator | None = None,
        option: str = DATA,
        max_bytes: int = MAX_RECEIVED_BYTES,
    ) -> None:
        settings = {zmq.RCVHWM: min(hwm, MAX_WAITING), zmq.LINGER: 0, zmq.MAXMSGSIZE: max_bytes}
        others = ", not even colmet-collector.socket or another collector's --zeromq-link-bind-uri"
        super().__init__(zmq.PULL, uri, option, authenticator, settings, uri if option == DATA else "", others)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)

    def wake_on(self, source: int | Socket) -> None:
        """Have `wait` also return when this descriptor or socket is readable."""
        self._poller.register(source, zmq.POLLIN)

    def sleep_on(self, source: int | Socket) -> None:
        """Stop `wait` from returning for this descriptor or socket."""
        self._poller.unregister(source)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a message, at most `timeout_s`; return whether one is there."""
        came = self._poller.poll(max(0, int(timeout_s * 1000)))
        return any(source is self._socket for source, _ in came)

    def receive(self) -> Received | None:
        """Return the next message, or None. Of a message in parts, unknown to all dialects, each part is a message."""
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            user = self._authenticator.user(frame)
            if user is not None:
                return Received(frame.bytes, str(frame.get("Peer-Address")) if self._is_tcp else "", user)

    def receive_all(self, most: int, most_bytes: int) -> list[Received]:
        """Return the next messages, at most this many, and none behind the one that exceeds this size of all."""
        found: list[Received] = []
        while len(found) < most and most_bytes > 0 and (received := self.receive()) is not None:
            found.append(received)
            most_bytes -= len(received.message)
        return found

    def counters(self) -> dict[str, int]:
        """Return counters of the connections; see `Authenticator.counters`."""
        return self._authenticator.counters()


# Messages of the link are small; above this libzmq drops the connection.
MAX_LINK_BYTES = 1 << 20
QUEUE = 1000  # waiting messages of one peer
MAX_SKIPPED = 1000  # parts of a message dropped at a time
# Detects a peer that vanished silently; the connection is then made again.
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 5000, 15000
_SETTINGS = {
    **{zmq.HEARTBEAT_IVL: HEARTBEAT_MS, zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS},
    **{zmq.SNDHWM: QUEUE, zmq.RCVHWM: QUEUE, zmq.MAXMSGSIZE: MAX_LINK_BYTES},
}


class LinkClient(Outgoing):
    """The node's end; arguments as of `Outgoing`."""

    def __init__(self, uri: str, security: Client | None = None, beside: Outgoing | None = None) -> None:
        super().__init__(zmq.DEALER, uri, "--zeromq-link-uri", {**_SETTINGS, zmq.LINGER: 0}, security, beside)

    def receive(self) -> bytes | None:
        """Return the next message, or None."""
        try:
            parts = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return b"".join(parts)  # our messages have one part; any other fails to decode


class Called(NamedTuple):
    """A message, the identity of its sender, its address (empty for ipc), and the owner of its key ('' without)."""

    caller: bytes
    message: bytes
    peer: str
    user: str = ""


class LinkServer(Listening):
    """The collector's end; arguments as of `Listening`."""

    def __init__(self, uri: str, authenticator: Authenticator | None = None) -> None:
        # 200 ms for the last acknowledgements; sending to a departed caller is an error
        settings = {**_SETTINGS, zmq.LINGER: 200, zmq.ROUTER_MANDATORY: 1}
        super().__init__(zmq.ROUTER, uri, "--zeromq-link-bind-uri", authenticator, settings)
        self._rest = False

    @property
    def socket(self) -> Socket:
        """Return the socket for `wait`."""
        return self._socket

    @property
    def is_held(self) -> bool:
        """Return whether the service manager holds the port, independent of this process."""
        return int(self._socket.getsockopt(zmq.USE_FD)) >= 0

    def receive(self) -> Called | None:
        """Return the next message, or None. Of a message in parts, which we never send, the first part."""
        while self._skip_rest():
            try:
                caller = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return None
            frame = self._socket.recv(copy=False)
            self._rest = frame.more
            user = self._authenticator.user(frame)
            if user is not None:
                return Called(caller, frame.bytes, str(frame.get("Peer-Address")) if self._is_tcp else "", user)
        return None

    def _skip_rest(self) -> bool:
        """Drop some parts of the previous message; return whether those were all."""
        for _ in range(MAX_SKIPPED):
            if not self._rest:
                return True
            self._rest = self._socket.recv(copy=False).more
        return not self._rest

    def send(self, caller: bytes, message: bytes) -> bool:
        """Send to a caller; return False if it has gone or does not read: messages of the link are repeated anyway."""
        try:
            self._socket.send_multipart([caller, message], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True
