"""Batches from node to collector: ZeroMQ PUSH and PULL.

`Push.send` never waits, `Pull.receive` waits at most its timeout.
"""

from __future__ import annotations

from typing import NamedTuple

import zmq

from colmet.common.transport.authenticator import Authenticator
from colmet.common.transport.curve import Client
from colmet.common.transport.listening import Listening
from colmet.common.transport.outgoing import Outgoing
from colmet.common.transport.waiting import Socket

# Above this libzmq drops the connection, so a peer cannot make the collector hold any amount of memory. It is twice the
# limit of the decoders: a message slightly too large is still received, refused and counted.
MAX_RECEIVED_BYTES = 16 << 20
DATA = "--zeromq-bind-uri"
MAX_WAITING = 100  # waiting messages of each connection; further ones wait at their node


class Push(Outgoing):
    """The node's end. A message goes to a connected collector, or is refused: no message waits for one that is away.

    Args:
        uri: of the collector.
        hwm: messages that wait for a slow collector before `send` refuses more.
        linger_ms: time for `close` to send the queued messages; -1 is for ever.
        security: keys, or None.

    Raises:
        ConfigError: the URI cannot be used.
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
