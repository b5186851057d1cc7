"""Connections to a listening socket, and the memory of their incomplete messages.

libzmq bounds messages and their number, but neither the parts of an endless message, nor data sent in place of a
greeting: a single connection could fill all memory. The kernel counts the bytes received on each connection.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import logging
import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import Iterator

from colmet.common.runtime.logs import powers_of_ten

log = logging.getLogger(__name__)

MAX_HELD_BYTES = 32 << 20  # of one connection: larger than any message, with the kernel's buffers
MAX_ALL_HELD_BYTES = 256 << 20  # of all of them
_RECEIVED_AT = 128  # tcpi_bytes_received in struct tcp_info, since Linux 4.1 (include/uapi/linux/tcp.h)
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # include/uapi/asm-generic/socket.h
_DROP = array.array("Q", struct.pack("=HBBI", 0x06, 0, 0, 0))  # one BPF instruction: return 0, for every packet
_numbers = itertools.count()


class Readings:
    """Messages read from a socket; written by the reader, read by the watcher.

    Attributes:
        messages: by descriptor of the connection; each part counts.
        total: of all connections; only the last part counts.
        emptied: number of times the socket was found empty.
    """

    def __init__(self) -> None:
        self.messages: dict[int, int] = {}
        self.total = 0
        self.emptied = 0

    def note(self, descriptor: int, more: bool) -> None:
        """Count a message, or a part of one with more to come."""
        self.messages[descriptor] = self.messages.get(descriptor, 0) + 1
        self.total += not more


class Connection:
    """A connection to the socket.

    Attributes:
        number: of all connections of this process, in the order of arrival.
        peer: its address.
        heard: whether it has delivered a message.
    """

    __slots__ = ("base", "heard", "inode", "messages", "number", "peer", "received")

    def __init__(self, inode: int, peer: str, messages: int) -> None:
        self.number = next(_numbers)
        self.inode = inode
        self.peer = peer
        self.heard = False
        self.messages = messages  # read by descriptor, at the last look
        self.base = 0  # bytes received when a check last saw a new message
        self.received = 0  # bytes received at the last check


class Connections:
    """Connections to one TCP port of this process, as reported by libzmq's monitor. Used by one thread.

    Args:
        readings: of the socket.
        unheard: by address, connections without a message; may be shared with other ports.

    Attributes:
        known: open connections, by descriptor.
        fresh: addresses of new connections; emptied by the reader.
        closed: number of connections closed here.
    """

    def __init__(self, readings: Readings, unheard: Counter[str] | None = None) -> None:
        self.known: dict[int, Connection] = {}
        self.fresh: set[str] = set()
        self.closed = 0
        self._readings = readings
        self._unheard = Counter[str]() if unheard is None else unheard
        self._listener = self._listener_inode = self._port = -1
        self._total = self._emptied = 0

    # -- events of the monitor --

    def listening(self, descriptor: int, backlog: int) -> None:
        """Note the descriptor of the listening socket, and set its backlog."""
        with contextlib.suppress(OSError), _borrowed(descriptor) as one:
            self._port = one.getsockname()[1]
            self._listener, self._listener_inode = descriptor, os.fstat(descriptor).st_ino
            one.listen(backlog)
            self.admit(True)  # an inherited one may have been left closed

    def accepted(self, descriptor: int) -> None:
        """Add an accepted connection."""
        with contextlib.suppress(OSError), _borrowed(descriptor) as one:  # closed meanwhile
            if one.getsockname()[1] == self._port:  # else the descriptor has been reused
                inode, peer = os.fstat(descriptor).st_ino, str(one.getpeername()[0])
                self.gone(descriptor)
                self.known[descriptor] = Connection(inode, peer, self._readings.messages.get(descriptor, 0))
                self._unheard[peer] += 1
                self.fresh.add(peer)

    def gone(self, descriptor: int) -> None:
        """Remove an ended connection."""
        one = self.known.pop(descriptor, None)
        if one is not None and not one.heard:
            self._hear(one)

    def _hear(self, one: Connection) -> None:
        """Mark a connection as heard."""
        one.heard = True
        self._unheard[one.peer] -= 1
        if not self._unheard[one.peer]:
            del self._unheard[one.peer]

    # -- limits --

    def admit(self, admitted: bool) -> None:
        """Have the kernel drop packets of peers without a connection, or accept them again.

        A peer retries after 1, 2, 4 ... s, as after a lost packet. It needs no descriptor.

        Raises:
            OSError: the kernel has no socket filters.
        """
        try:
            if os.fstat(self._listener).st_ino != self._listener_inode:
                return
        except OSError:  # it has been closed
            return
        with contextlib.suppress(FileNotFoundError), _borrowed(self._listener) as one:
            if admitted:
                one.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)  # ENOENT: no filter
            else:
                program = struct.pack("HP", len(_DROP), _DROP.buffer_info()[0])  # struct sock_fprog
                one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

    def listen(self) -> None:
        """Update the marks of heard connections."""
        messages = self._readings.messages
        for descriptor, one in self.known.items():
            if not one.heard and messages.get(descriptor, 0) != one.messages:
                self._hear(one)

    def check(self, waiting: bool) -> None:
        """Close connections that hold too much.

        A connection holds the bytes received from its last message read up to the previous check. They count only if
        the reader has read since, or is waiting: otherwise whole messages may wait, and libzmq bounds their number.
        """
        total, emptied = self._readings.total, self._readings.emptied
        # libzmq reads all connections in turn, one message with all its parts from each: after this number of messages,
        # each connection with a whole message has had its turn
        reading = waiting or emptied != self._emptied or total - self._total > 2 * len(self.known) + 10
        self._total, self._emptied = total, emptied
        messages = dict(self._readings.messages)
        held: list[tuple[int, int]] = []
        for descriptor, one in list(self.known.items()):
            try:
                if os.fstat(descriptor).st_ino != one.inode:
                    raise FileNotFoundError
                received = _received(descriptor)
            except OSError:  # closed meanwhile
                self.gone(descriptor)
                continue
            count = messages.get(descriptor, 0)
            if count != one.messages:
                one.messages, one.base = count, received
                if not one.heard:
                    self._hear(one)
            elif reading:
                held.append((one.received - one.base, descriptor))
            one.received = received
        held.sort(reverse=True)
        left = sum(size for size, _ in held)
        for size, descriptor in held:
            if size <= MAX_HELD_BYTES and left <= MAX_ALL_HELD_BYTES:
                break
            left -= size
            self.close(descriptor, f"{size} bytes that do not end as a message")

    def hang_up(self, descriptor: int, peer: str) -> None:
        """Close a connection after one of its messages, unless it is gone; not counted here. For any thread."""
        one = self.known.get(descriptor)
        if one is not None and one.peer == peer:
            _shut(descriptor, one.inode)

    def close(self, descriptor: int, why: str) -> None:
        """Close a known connection, and count it; `why` is its offence, for the log. It needs no descriptor."""
        one = self.known[descriptor]
        self.gone(descriptor)
        _shut(descriptor, one.inode)
        self.closed += 1
        if powers_of_ten(self.closed):
            log.warning("connection closed from=[%s] closed=%d, it sent %s", one.peer, self.closed, why)


def _shut(descriptor: int, inode: int) -> None:
    """End a connection; libzmq then closes its descriptor."""
    with contextlib.suppress(OSError), _borrowed(descriptor) as one:
        if os.fstat(descriptor).st_ino == inode:  # else it has been reused
            one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Yield a socket object for a descriptor owned by other code."""
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)  # any family: no call depends on it
    try:
        yield one
    finally:
        one.detach()


def _received(descriptor: int) -> int:
    """Return the bytes received on a TCP connection since its start."""
    with _borrowed(descriptor) as one:
        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8)
    return int.from_bytes(info[_RECEIVED_AT : _RECEIVED_AT + 8], sys.byteorder)
