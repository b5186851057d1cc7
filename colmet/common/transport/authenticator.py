"""Authenticate the peers of listening sockets, and bound the number of their connections.

Access control uses CURVE and ZeroMQ's authentication protocol (RFC 27/ZAP). Messages are bounded by the sockets'
options (ZMQ_MAXMSGSIZE, high-water marks), handshakes by ZMQ_HANDSHAKE_IVL.

libzmq accepts each connection at once, and its monitor reports it. Excess connections are closed here, which needs no
descriptor, so that descriptors remain for files and for later peers.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import os
import resource
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import zmq
from zmq.utils import z85

from colmet.common.config import cli
from colmet.common.config.keys import DIRECTORY, NODES, KeyPair, KnownKeys, default
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.wakeup import Wakeup
from colmet.common.transport.curve import HANDSHAKE_MS, KeyFiles, key_files, read_own_pair
from colmet.common.transport.ports import Listeners, monitor_address

log = logging.getLogger(__name__)

BACKLOG = 1024  # new connections that wait; net.core.somaxconn limits it, too
KEYS_MS = 2000  # between two searches for withdrawn keys
ASKED_S = 0.05  # between two searches for unknown keys
MAX_EVENTS = 256  # at a time
REPORTED = 20  # addresses with refusals
MAX_ADDRESSES = 1024  # with separate counts of refusals; a peer may come from many
SECRET = "collector.secret"
_ZAP = "inproc://zeromq.zap.01"
_DOMAIN = b"colmet"
_FAILURES = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL  # ZAP counts its own
# without accept failures: lacking descriptors, libzmq would report them endlessly
_EVENTS = zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _FAILURES
_EVENT = struct.Struct("=HI")  # its kind, and a descriptor or an error


class Guarded:
    """A listening socket of the authenticator.

    Attributes:
        monitor: reports its connections.
        failed: whether the next connection to end does so for lack of an accepted key.
    """

    def __init__(self, socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        self.socket = socket
        self.monitor = monitor
        self.failed = False


class Authenticator:
    """Accepts connections, in a thread of its own, and bounds their number.

    Without keys it accepts all.

    Args:
        pair: of this daemon.
        known: keys of the accepted peers.
        listeners: held by the service manager.

    Attributes:
        context: of all its sockets.
        listeners: bind these.
    """

    def __init__(
        self, pair: KeyPair | None = None, known: KnownKeys | None = None, listeners: Listeners | None = None
    ) -> None:
        self.context = zmq.Context()
        self.listeners = listeners or Listeners()
        self._pair = pair
        self._known = known
        self._guarded: list[Guarded] = []
        self._ended: list[zmq.Socket[bytes]] = []  # monitors of closed sockets
        self._lock = threading.Lock()
        self._refused: dict[tuple[str, str], int] = {}
        self._counts = dict.fromkeys(("let_in", "unknown_key", "key_withdrawn", "handshake_failed"), 0)
        self._limit = ConnectionLimit()
        self._wakeup = Wakeup()
        self._zap: zmq.Socket[bytes] | None = None
        if pair is not None:
            self._zap = self.context.socket(zmq.ROUTER)
            self._zap.setsockopt(zmq.LINGER, 0)
            self._zap.bind(_ZAP)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="authenticator", daemon=True)
        self._thread.start()

    @property
    def locked(self) -> bool:
        """Return whether only known keys are accepted."""
        return self._pair is not None

    def guard(self, socket: zmq.Socket[bytes]) -> Guarded:
        """Set up a socket of `context`, before it is bound."""
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.BACKLOG, BACKLOG)
        # a peer switched off is detected after minutes, not after the hours of the kernel's defaults
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 120)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 30)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 4)
        if self._pair is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._pair.secret.encode("ascii"))
            socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without an answer from ZAP, refuse
        address = monitor_address()
        socket.monitor(address, _EVENTS)
        monitor = self.context.socket(zmq.PAIR)
        monitor.setsockopt(zmq.LINGER, 0)
        monitor.setsockopt(zmq.RCVHWM, 0)  # if this is full, libzmq waits, and all connections with it
        monitor.connect(address)
        guarded = Guarded(socket, monitor)
        with self._lock:
            self._guarded.append(guarded)
        self._wakeup.wake()
        return guarded

    def release(self, guarded: Guarded) -> None:
        """Release a socket about to be closed."""
        with self._lock:
            self._guarded.remove(guarded)
            guarded.socket.disable_monitor()
            self._ended.append(guarded.monitor)
        self._wakeup.wake()

    def user(self, frame: zmq.Frame) -> str | None:
        """Return the owner of a message's key; '' without keys, None if the key is no longer known."""
        if self._known is None:
            return ""
        user = self._known.owner(str(frame.get("User-Id")))
        if user is None:
            self._refuse("key_withdrawn", str(frame.get("Peer-Address")))
        return user

    def counters(self) -> dict[str, int]:
        """Return the numbers of accepted, refused and closed connections since the start, and of those open."""
        known = {} if self._known is None else {"keys": len(self._known), "broken_keys": self._known.broken}
        return {**self._counts, "closed": self._limit.closed, "connections": len(self._limit.known), **known}

    def refusals(self) -> list[tuple[str, str, int]]:
        """Return why, from where and how often connections were refused since the start: the most frequent first."""
        with self._lock:
            found = [(why, address, count) for (why, address), count in self._refused.items()]
        return sorted(found, key=lambda one: (-one[2], one))[:REPORTED]

    def close(self) -> None:
        """Stop; after all guarded sockets are closed. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        self._wakeup.wake()
        self._thread.join()
        self._close_ended()
        if self._zap is not None:
            self._zap.close()
        self._wakeup.close()
        self.context.term()

    def _run(self) -> None:
        while not self._stopping:
            poller = zmq.Poller()
            poller.register(self._wakeup.fd, zmq.POLLIN)
            if self._zap is not None:
                poller.register(self._zap, zmq.POLLIN)
            with self._lock:
                guarded = list(self._guarded)
                self._close_ended()
            for one in guarded:
                poller.register(one.monitor, zmq.POLLIN)
            came = {source for source, _ in poller.poll(None if self._known is None else KEYS_MS)}
            if self._wakeup.fd in came:
                self._wakeup.clear()
            if self._known is not None:
                self._known.refresh()
            if self._zap in came:
                self._answer()
            for one in guarded:
                if one.monitor in came:
                    self._note(one)
            self._limit.enforce()

    def _close_ended(self) -> None:
        while self._ended:
            self._ended.pop().close()

    def _answer(self) -> None:
        """Answer whether a peer's key is accepted."""
        assert self._zap is not None
        for _ in range(1000):
            try:
                frames = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            envelope, request = frames[:2], frames[2:]
            version, number = request[:2]
            user = self._let_in(request[2:])
            # 300 rather than 400: after 400 libzmq's client gives up for ever; after 300 it retries, and its key may
            # have been added meanwhile
            status = [b"200", b"OK", user] if user else [b"300", b"unknown key", b""]
            self._zap.send_multipart([*envelope, version, number, *status, b""])

    def _let_in(self, request: Sequence[bytes]) -> bytes:
        """Return the key as text if it is known, else b''."""
        _domain, address, _identity, mechanism, *credentials = request
        if mechanism != b"CURVE" or len(credentials) != 1 or len(credentials[0]) != 32:
            self._refuse("unknown_key", address.decode("ascii", "replace"))
            return b""
        key = z85.encode(credentials[0]).decode("ascii")
        if self._known is not None and self._known.owner(key) is None:
            self._known.refresh(ASKED_S)  # it may have been added just now
        if self._known is None or self._known.owner(key) is None:
            self._refuse("unknown_key", address.decode("ascii", "replace"), key)
            return b""
        self._counts["let_in"] += 1
        return key.encode("ascii")

    def _refuse(self, why: str, address: str, key: str = "") -> None:
        with self._lock:
            self._counts[why] += 1
            if (why, address) not in self._refused and len(self._refused) >= MAX_ADDRESSES:
                address = "(others)"
            count = self._refused[why, address] = self._refused.get((why, address), 0) + 1
        if powers_of_ten(count) and why == "handshake_failed":
            log.warning(
                "connection refused, it has no key, or another key for this collector from=[%s] refused=%d",
                *(address or "unknown", count),
            )
        elif powers_of_ten(count):
            log.warning("connection refused why=%s from=[%s] refused=%d key=%s", why, address, count, key or "-")

    def _note(self, guarded: Guarded) -> None:
        """Process a bounded number of libzmq's events of a socket: there may be too many connections."""
        for _ in range(MAX_EVENTS):
            try:
                event, endpoint = guarded.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            kind, value = _EVENT.unpack(event)
            if kind == zmq.EVENT_LISTENING:
                if endpoint.startswith(b"tcp:"):
                    self._limit.listening(value)
            elif kind == zmq.EVENT_ACCEPTED:
                self._limit.accepted(value)
            elif kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._limit.greeted(value)
            elif kind == zmq.EVENT_DISCONNECTED:
                peer = self._limit.gone(value)
                if guarded.failed and self._pair is not None:
                    self._refuse("handshake_failed", peer)
                guarded.failed = False
            else:  # the event of this connection's end comes next
                guarded.failed = True


def add_options(parser: cli.Options) -> None:
    """Declare the options of the collector."""
    parser.add_argument(
        "--zeromq-curve-secret",
        metavar="FILE",
        default=default(SECRET),
        help=cli.Rare(
            "encrypt with this key pair, which `colmet keygen collector` makes, and receive only from known keys; '': "
            f"no keys, as nodes of Colmet 0.6 require (default: {DIRECTORY}/{SECRET}, if it exists)"
        ),
    )
    parser.add_argument(
        "--zeromq-curve-nodes",
        metavar="DIR",
        default=default(NODES),
        help=cli.Rare(
            "directory of the nodes' public keys, written by `colmet enrol`; NAME.key admits the node with hostname "
            f"NAME; read again every 10 s (default: {DIRECTORY}/{NODES}, if it exists)"
        ),
    )


def files(options: argparse.Namespace) -> KeyFiles | None:
    """Return the files of the collector's options, as `key_files`."""
    needs = (
        "the collector's pair and the nodes' public keys; `colmet keygen collector --if-missing` makes what is missing"
    )
    secret, nodes = options.zeromq_curve_secret, options.zeromq_curve_nodes
    return key_files(secret, nodes, default(NODES), "--zeromq-curve-nodes", needs)


class Keys(NamedTuple):
    """The key pair of this daemon, and the keys of the accepted peers."""

    pair: KeyPair
    known: KnownKeys


def read_keys(options: argparse.Namespace, uid: int | None = None) -> Keys | None:
    """Return the keys of the options of `add_options`, of files of the user `uid`; None to accept all.

    Raises:
        ConfigError: only one of the options is given, or a file or the folder cannot be used.
    """
    found = files(options)
    if found is None:
        return None
    pair = read_own_pair(found.secret, "--zeromq-curve-secret", uid)
    return Keys(pair, KnownKeys(found.others, "--zeromq-curve-nodes"))


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
