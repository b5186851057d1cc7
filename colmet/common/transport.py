"""Messages between the daemons: ZeroMQ PUSH on the node, PULL on the collector. The only import of zmq.

Nothing here blocks longer than the caller says: `Push.send` never waits, `Pull.receive` waits at most its timeout.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import zmq

from colmet.common.errors import ConfigError

# Above this libzmq itself drops the connection, so that a peer cannot make the collector hold any amount of memory.
# It is twice what the decoders accept: a message that is a little too large is still seen, refused and counted.
MAX_RECEIVED_BYTES = 16 << 20

_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.%\w]+\]|[^:/\s\[\]]+):(\d{1,5}|\*)", re.ASCII)


def check_uri(uri: str, option: str) -> str:
    """`uri`, if it is one that ZeroMQ can use.

    Raises:
        ConfigError: says what a URI looks like.
    """
    tcp = _TCP.fullmatch(uri)
    if tcp is not None:
        if tcp[2] == "*" or 0 < int(tcp[2]) < 65536:
            return uri
        raise ConfigError(f"{option} {uri}: the port must be a number from 1 to 65535")
    if re.fullmatch(r"ipc://.+", uri):
        return uri
    raise ConfigError(f"{option} {uri}: give tcp://HOST:PORT (or ipc://PATH), e.g. tcp://127.0.0.1:5556")


class Push:
    """The node's end. Connects in the background and goes on trying; queues at most `hwm` messages meanwhile.

    Args:
        uri: of the collector.
        hwm: messages that wait for the collector before `send` refuses more.
        linger_ms: how long `close` waits for queued messages to leave; -1 is for ever.

    Raises:
        ConfigError: the URI cannot be used.
    """

    def __init__(self, uri: str, hwm: int, linger_ms: int) -> None:
        check_uri(uri, "--zeromq-uri")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, hwm)
        self._socket.setsockopt(zmq.LINGER, linger_ms)
        self._socket.setsockopt(zmq.IPV6, 1)
        # A collector's machine that vanishes without a word is noticed, and its connection made anew.
        self._socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        try:
            self._socket.connect(uri)
        except zmq.ZMQError as err:
            self.close()
            raise ConfigError(f"--zeromq-uri {uri}: {err}; give tcp://HOST:PORT of the collector") from err

    def send(self, message: bytes) -> bool:
        """Queue a message; False where the queue is full (the collector is away or too slow)."""
        try:
            self._socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Close; also twice."""
        self._socket.close()
        self._context.term()


class Received(NamedTuple):
    """A message and the address of the machine it came from (empty for ipc)."""

    message: bytes
    peer: str


class Pull:
    """The collector's end.

    Args:
        uri: to bind; port ``*`` takes any free one, `uri` then tells which.
        hwm: messages that wait in each node's queue before that node has to keep the next ones.

    Raises:
        ConfigError: the URI cannot be bound.
    """

    def __init__(self, uri: str, hwm: int) -> None:
        check_uri(uri, "--zeromq-bind-uri")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, hwm)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, int("[" in uri))
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_RECEIVED_BYTES)
        self._poller = zmq.Poller()
        self._is_tcp = uri.startswith("tcp:")
        try:
            self._socket.bind(uri)
        except zmq.ZMQError as err:
            self.close()
            raise ConfigError(
                f"--zeromq-bind-uri {uri}: {err}; give an address of this machine and a port that nothing else uses"
            ) from err
        self.uri: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller.register(self._socket, zmq.POLLIN)

    def wake_on(self, fd: int) -> None:
        """Have `wait` also return when this descriptor can be read."""
        self._poller.register(fd, zmq.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Whether a message is there, after at most `timeout_s`."""
        return any(source is self._socket for source, _ in self._poller.poll(max(0, int(timeout_s * 1000))))

    def receive(self) -> Received | None:
        """The next message that is there, or None."""
        try:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        peer = str(frame.get("Peer-Address")) if self._is_tcp else ""
        message = frame.bytes
        while frame.more:  # no dialect has parts: joined, it fails to decode and is counted as one bad message
            frame = self._socket.recv(copy=False)
            if len(message) < MAX_RECEIVED_BYTES:
                message += frame.bytes
        return Received(message, peer)

    def close(self) -> None:
        """Close; also twice."""
        self._socket.close()
        self._context.term()
