"""The link besides the data: a DEALER on each node, a ROUTER on the collector. Messages: `wire.link`."""

from __future__ import annotations

from typing import NamedTuple

import zmq

from colmet.common.transport.authenticator import Authenticator
from colmet.common.transport.curve import Client
from colmet.common.transport.listening import Listening
from colmet.common.transport.outgoing import Outgoing
from colmet.common.transport.waiting import Socket

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
    """The node's end.

    Args:
        uri: of the collector.
        security: keys, or None.
        beside: see `Outgoing`.

    Raises:
        ConfigError: the URI cannot be used.
    """

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
    """The collector's end.

    Args:
        uri: to bind.
        authenticator: of the connections, shared with other sockets; one of its own without.

    Raises:
        ConfigError: the URI cannot be bound.
    """

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
