"""The link besides the data: a DEALER on each node, a ROUTER on the collector. Messages: `wire.link`."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import zmq

from colmet.common.errors import ConfigError
from colmet.common.transport.authenticator import Authenticator
from colmet.common.transport.curve import Client
from colmet.common.transport.outgoing import Outgoing, try_again
from colmet.common.transport.uris import check_target, check_uri
from colmet.common.transport.waiting import Socket

# Messages of the link are small; above this libzmq drops the connection.
MAX_LINK_BYTES = 1 << 20
QUEUE = 1000  # waiting messages of one peer
MAX_SKIPPED = 1000  # parts of a message dropped at a time
# Detects a peer that vanished silently; the connection is then made again.
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 5000, 15000


class LinkClient:
    """The node's end. Connects in the background and retries for ever.

    Args:
        uri: of the collector.
        option: of the URI, for errors.
        security: keys, or None.

    Raises:
        ConfigError: the URI cannot be used.
    """

    def __init__(self, uri: str, option: str = "--zeromq-link-uri", security: Client | None = None) -> None:
        check_target(uri, option)
        self.uri = uri
        self._security = security
        self._numbers = itertools.count(1)
        self._context = zmq.Context()
        try:
            self._socket = self._connect()
        except zmq.ZMQError as err:
            self._context.term()
            raise ConfigError(f"{option} {uri}: {err}; give tcp://HOST:PORT of the collector") from err

    def _connect(self) -> Socket:
        socket = self._context.socket(zmq.DEALER)
        try_again(socket)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.SNDHWM, QUEUE)
        socket.setsockopt(zmq.RCVHWM, QUEUE)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # messages queued for an absent collector would be stale
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_LINK_BYTES)
        if self._security is not None:
            self._security.secure(socket)
        try:
            self._outgoing = Outgoing(socket, self.uri, self._numbers)
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
        """Return whether the collector is connected; to be called regularly."""
        return self._outgoing.look()

    @property
    def problem(self) -> str:
        """Return why the collector is not connected, from the last attempt to connect."""
        return self._outgoing.problem

    def reopen(self) -> None:
        """Reconnect, and drop messages not yet received. If that fails, nothing changes."""
        before, outgoing = self._socket, self._outgoing
        self._socket = self._connect()
        outgoing.close()
        before.close(0)

    def send(self, message: bytes) -> bool:
        """Send a message; return False without a connected collector."""
        try:
            self._socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> bytes | None:
        """Return the next message, or None."""
        try:
            parts = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return b"".join(parts)  # our messages have one part; any other fails to decode

    def close(self) -> None:
        """Close; idempotent."""
        self._outgoing.close()
        self._socket.close()
        self._context.term()


class Called(NamedTuple):
    """A message, the identity of its sender, its address (empty for ipc), and the owner of its key ('' without)."""

    caller: bytes
    message: bytes
    peer: str
    user: str = ""


class LinkServer:
    """The collector's end.

    Args:
        uri: to bind.
        option: of the URI, for errors.
        authenticator: of the connections, shared with other sockets; one of its own without.

    Raises:
        ConfigError: the URI cannot be bound.
    """

    def __init__(
        self, uri: str, option: str = "--zeromq-link-bind-uri", authenticator: Authenticator | None = None
    ) -> None:
        check_uri(uri, option)
        self._authenticator = Authenticator() if authenticator is None else authenticator
        self._owns_authenticator = authenticator is None
        self._rest = False
        self._socket = self._authenticator.context.socket(zmq.ROUTER)
        self._guarded = self._authenticator.guard(self._socket)
        self._socket.setsockopt(zmq.LINGER, 200)  # ms, for the last acknowledgements
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a departed caller is an error
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        self._socket.setsockopt(zmq.IPV6, int("[" in uri))
        self._socket.setsockopt(zmq.SNDHWM, QUEUE)
        self._socket.setsockopt(zmq.RCVHWM, QUEUE)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_LINK_BYTES)
        self._is_tcp = uri.startswith("tcp:")
        try:
            self._authenticator.bind(self._guarded, uri, option)
        except ConfigError:
            self.close()
            raise
        except zmq.ZMQError as err:
            self.close()
            raise ConfigError(
                f"{option} {uri}: {err}; give an address of this machine and a port that nothing else uses"
            ) from err
        self.uri: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

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
                self._guarded.readings.emptied += 1
                return None
            frame = self._socket.recv(copy=False)
            self._rest = frame.more
            user = self._authenticator.user(frame, self._guarded)
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

    def close(self) -> None:
        """Close; idempotent."""
        if not self._socket.closed:
            self._authenticator.release(self._guarded)
            self._socket.close()
        if self._owns_authenticator:
            self._authenticator.close()
