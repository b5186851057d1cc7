"""A limit on the number of connections, so that descriptors remain for files and for later peers.

libzmq accepts each connection at once, and its monitor reports it. Excess connections are closed here, which needs no
descriptor. The handshake interval of libzmq ends those that never say who they are.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Iterator

from colmet.common.daemon.logs import powers_of_ten

log = logging.getLogger(__name__)

SPARE_SHARE = 1 / 8  # of the descriptors of this process: for files, and for later peers
LEAST_SPARE = 64  # descriptors; at a very low limit, half the limit
LEAST_SHARE = 1 / 4  # of the descriptors, for connections, however many files are open
MANY = 4  # connections of one address: those of a node or two, not closed in favour of others
STEP_SHARE = 1 / 32  # of the descriptors: closed at once beyond the excess, as each look costs time
COUNT_S = 0.25  # between two counts of the other descriptors
_numbers = itertools.count()


class Connection:
    """A connection to a listening socket.

    Attributes:
        number: of all connections of this process, in the order of arrival.
        peer: its address.
        is_greeted: whether its handshake is done, with keys as a known peer.
    """

    __slots__ = ("inode", "is_greeted", "number", "peer")

    def __init__(self, inode: int, peer: str) -> None:
        self.number = next(_numbers)
        self.inode = inode
        self.peer = peer
        self.is_greeted = False


class ConnectionLimit:
    """The connections to the TCP ports of an authenticator, as libzmq's monitors report them. Used by its thread.

    Attributes:
        known: open connections, by descriptor.
        closed: number of connections closed here.
    """

    def __init__(self) -> None:
        self.known: dict[int, Connection] = {}
        self.closed = 0
        self._ports: set[int] = set()
        self._others = 64  # descriptors other than connections
        self._count_at = 0.0

    def listening(self, descriptor: int) -> None:
        """Note a listening socket."""
        with contextlib.suppress(OSError), _borrowed(descriptor) as one:
            self._ports.add(one.getsockname()[1])

    def accepted(self, descriptor: int) -> None:
        """Add an accepted connection."""
        with contextlib.suppress(OSError), _borrowed(descriptor) as one:  # closed meanwhile
            if one.getsockname()[1] in self._ports:  # else the descriptor has been reused
                self.known[descriptor] = Connection(os.fstat(descriptor).st_ino, str(one.getpeername()[0]))

    def greeted(self, descriptor: int) -> None:
        """Note that a connection's handshake is done."""
        if descriptor in self.known:
            self.known[descriptor].is_greeted = True

    def gone(self, descriptor: int) -> str:
        """Remove an ended connection, and return its address; "" if unknown."""
        ended = self.known.pop(descriptor, None)
        return "" if ended is None else ended.peer

    def enforce(self) -> None:
        """Close excess connections."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if len(self.known) <= limit * LEAST_SHARE:
            return
        if time.monotonic() >= self._count_at:
            self._count_at = time.monotonic() + COUNT_S
            with contextlib.suppress(OSError):  # without a free descriptor to look with: the former count
                self._others = max(0, len(os.listdir("/proc/self/fd")) - 1 - len(self.known))
        spare = max(int(limit * SPARE_SHARE), min(LEAST_SPARE, limit // 2))
        beyond = len(self.known) - max(int(limit * LEAST_SHARE), limit - spare - self._others)
        if beyond > 0:
            self._close(beyond + int(limit * STEP_SHARE))

    def _close(self, count: int) -> None:
        """Close this many connections, or as many as may be closed.

        Those without a handshake go first, of the addresses with the most connections, older ones before younger ones:
        a new peer has time to say who it is. Up to `MANY` of an address with a handshake stay.
        """
        ranks: Counter[str] = Counter()
        excess = []
        for descriptor, one in sorted(self.known.items(), key=lambda item: (not item[1].is_greeted, -item[1].number)):
            ranks[one.peer] += 1
            if not one.is_greeted or ranks[one.peer] > MANY:
                excess.append((one.is_greeted, -ranks[one.peer], one.number, descriptor))
        for *_, descriptor in sorted(excess)[:count]:
            self._end(descriptor)

    def _end(self, descriptor: int) -> None:
        """End a connection, and count it; libzmq then closes its descriptor."""
        one = self.known.pop(descriptor)
        with contextlib.suppress(OSError), _borrowed(descriptor) as borrowed:
            if os.fstat(descriptor).st_ino == one.inode:  # else it has been reused
                borrowed.shutdown(socket.SHUT_RDWR)
        self.closed += 1
        if powers_of_ten(self.closed):
            log.warning("connection closed, there are too many from=[%s] closed=%d", one.peer, self.closed)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Yield a socket object for a descriptor owned by other code."""
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)  # any family: no call depends on it
    try:
        yield one
    finally:
        one.detach()
