"""What the connections to a listening socket hold that is no whole message yet.

libzmq bounds messages and their number, but neither the parts of one that never ends, nor what a peer sends while it
should still greet: a single connection could fill all memory. The kernel knows what came over each connection.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import stat
import sys
from collections.abc import Iterator
from typing import NamedTuple

from colmet.common.cli import powers_of_ten

log = logging.getLogger(__name__)

MAX_HELD_BYTES = 32 << 20  # of one connection: no message is as large, with what the kernel buffers
MAX_ALL_HELD_BYTES = 256 << 20  # of all of them
SPARE_SHARE = 1 / 8  # of the descriptors that this process may have: for files, and for who comes next
MANY = 4  # connections of one address: those of a node or two, which are not closed as others are too many
_RECEIVED_AT = 128  # tcpi_bytes_received in struct tcp_info, since Linux 4.1 (include/uapi/linux/tcp.h)


class Readings:
    """What has been read from a socket; written by whoever reads it, read by whoever watches it.

    Attributes:
        messages: by descriptor of the connection; each part counts.
        total: of all of them; only the last part counts.
        emptied: times that nothing more was there.
    """

    def __init__(self) -> None:
        self.messages: dict[int, int] = {}
        self.total = 0
        self.emptied = 0

    def note(self, descriptor: int, more: bool) -> None:
        """A message was read, or a part of one with more to come."""
        self.messages[descriptor] = self.messages.get(descriptor, 0) + 1
        self.total += not more


class _Connection(NamedTuple):
    heard: bool  # a message has come
    base: int  # bytes that had come when a check last saw that one had
    received: int  # and by the last check


class Connections:
    """Those to one TCP port of this process.

    Args:
        port: where it listens.
        readings: of the socket.
    """

    def __init__(self, port: int, readings: Readings) -> None:
        self._port = port
        self._readings = readings
        self._known: dict[tuple[int, int], _Connection | None] = {}  # by descriptor and inode; None: not to our port
        self._messages: dict[int, int] = {}  # read, by descriptor, at the last check
        self._total = self._emptied = 0
        self.open = 0
        self.closed = 0
        self.unseen = 0

    def check(self, waiting: bool) -> None:
        """Look at each connection, and close those that hold too much.

        What a connection holds is what came from the last message that was read from it to the check before this one.
        It counts only if somebody has read since: otherwise whole messages may wait, whose number libzmq bounds.

        Args:
            waiting: whether the reader waits for a message.
        """
        total, emptied = self._readings.total, self._readings.emptied
        # libzmq takes from all connections in turn, a message with all its parts from each: so many have met each one
        # that had a whole message
        reading = waiting or emptied != self._emptied or total - self._total > 2 * self.open + 10
        self._total, self._emptied = total, emptied
        messages = dict(self._readings.messages)
        known: dict[tuple[int, int], _Connection | None] = {}
        held: list[tuple[int, tuple[int, int]]] = []
        try:
            names = os.listdir("/proc/self/fd")
        except OSError as err:  # there is no descriptor left to look with
            self.unseen += 1
            if powers_of_ten(self.unseen):
                log.error("connections cannot be looked at: %s unseen=%d", err, self.unseen)
            return
        for text in names:
            descriptor = int(text)
            with contextlib.suppress(OSError):  # closed meanwhile
                status = os.fstat(descriptor)
                if not stat.S_ISSOCK(status.st_mode):
                    continue
                key = (descriptor, status.st_ino)
                before = self._known.get(key)
                if before is None and key in self._known:
                    known[key] = None
                    continue
                if before is None and not self._is_ours(descriptor):
                    known[key] = None
                    continue
                received = _received(descriptor)
                if messages.get(descriptor) != self._messages.get(descriptor):
                    known[key] = _Connection(True, received, received)
                elif before is None:
                    known[key] = _Connection(False, 0, received)
                else:
                    if reading:
                        held.append((before.received - before.base, key))
                    known[key] = before._replace(received=received)
        self._messages = messages
        self._known = known
        self.open = len(known) - list(known.values()).count(None)
        self._close_largest(held)
        self._close_idle(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def _close_largest(self, held: list[tuple[int, tuple[int, int]]]) -> None:
        held.sort(reverse=True)
        left = sum(size for size, _ in held)
        for size, key in held:
            if size <= MAX_HELD_BYTES and left <= MAX_ALL_HELD_BYTES:
                break
            left -= size
            self._close(f"{size} bytes that do not end as a message", *key)

    def _close_idle(self, limit: int) -> None:
        """Have descriptors left, where very many connect.

        Of those that have sent no message yet, some are closed; where these are too few, of the addresses that have the
        most connections some of those as well that have sent any, which is as easily done.
        """
        beyond = len(self._known) - int(limit * (1 - SPARE_SHARE))
        if beyond <= 0:
            return
        idle = [key for key, one in self._known.items() if one is not None and not one.heard]
        for key in sorted(idle, key=_inode, reverse=True)[:beyond]:
            self._close("no message, and there are too many connections", *key)
        beyond -= len(idle)
        if beyond <= 0:
            return
        older: dict[str, int] = {}  # connections of an address
        ranks = []
        for key in sorted([key for key, one in self._known.items() if one is not None and one.heard], key=_inode):
            with contextlib.suppress(OSError), _borrowed(key[0]) as one:
                peer = str(one.getpeername()[0])
                older[peer] = older.get(peer, 0) + 1
                ranks.append((older[peer], key))
        for rank, key in sorted(ranks, reverse=True)[:beyond]:
            if rank > MANY:
                self._close("some messages, over too many connections", *key)

    def hang_up(self, descriptor: int, peer: str) -> None:
        """Close a connection of which a message came, unless it is gone; not counted here."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as own:
            if own.getpeername()[0] == peer and own.getsockname()[1] == self._port:
                own.shutdown(socket.SHUT_RDWR)

    def _is_ours(self, descriptor: int) -> bool:
        with _borrowed(descriptor) as one:
            if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
                return False
            try:
                one.getpeername()
            except OSError:  # it listens, or has just been closed from afar
                return False
            return bool(one.getsockname()[1] == self._port)

    def _close(self, why: str, descriptor: int, inode: int) -> None:
        peer = "?"
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as own:
            if os.fstat(own.fileno()).st_ino != inode:  # another one meanwhile
                return
            peer = str(own.getpeername()[0])
            own.shutdown(socket.SHUT_RDWR)
        self.closed += 1
        if powers_of_ten(self.closed):
            log.warning("connection closed from=[%s] closed=%d, it sent %s", peer, self.closed, why)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A socket object for a descriptor that stays another's."""
    one = socket.socket(fileno=descriptor)
    try:
        yield one
    finally:
        one.detach()


def _inode(key: tuple[int, int]) -> int:
    """Of a connection: it tells the younger from the older."""
    return key[1]


def _received(descriptor: int) -> int:
    """Bytes that have come over a TCP connection, since it began."""
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
    try:
        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8)
    finally:
        one.detach()
    return int.from_bytes(info[_RECEIVED_AT : _RECEIVED_AT + 8], sys.byteorder)
