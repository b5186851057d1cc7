"""The link to the nodes: acknowledgements of batches that are on disk, requests, and the port for them.

The default is the port after the data port. Where collectors of several clusters have consecutive ports, the next one
receives data there. It gets the port (`Claims`), and a note in the journal's directory keeps this one from binding it
first after a reboot: a node of Colmet 0.6 connected to a link instead of its collector never connects again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from colmet import __version__
from colmet.collector.backend import JournalRecord
from colmet.collector.ingest.rate_limit import RateLimit
from colmet.collector.ingest.receiver import MAX_SENDERS, Receiver
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.wakeup import Wakeup
from colmet.common.errors import ConfigError, WireError
from colmet.common.schema import Batch
from colmet.common.transport import Called, LinkServer, Socket, link_uri
from colmet.common.transport.authenticator import Authenticator
from colmet.common.transport.ports import Claims
from colmet.common.wire import link as wire

log = logging.getLogger(__name__)

BURST = 1000  # messages received in one turn, before the next look at the data
RATE, BYTE_RATE = 500, 4 << 20  # per second of one node, with one Hello every few seconds
FORGET_S = 60.0  # of silence of a node
ASK_S = 1.0  # between two requests for descriptions to one node
READS = f"{__version__} {wire.SHORT}"
MAX_CALLERS = 8  # of one host name: those heard last
Key = tuple[str, int, int]  # host, epoch and number


class DurableBatches:
    """Batches on disk and not acknowledged yet, passed from the journal's thread to the main one.

    Attributes:
        fd: readable if there are any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: list[Key] = []
        self._wakeup = Wakeup()
        self.fd = self._wakeup.fd

    def put(self, records: Iterable[JournalRecord]) -> None:
        """Add batches that are on disk."""
        keys = [
            (batch.host, batch.epoch, batch.seq)
            for record in records
            for batch in record.batches
            if batch.epoch is not None and batch.seq is not None
        ]
        with self._lock:
            was_empty = not self._keys
            self._keys += keys
        if was_empty and keys:
            self._wakeup.wake()

    def take(self) -> list[Key]:
        """Return the batches added since the last call."""
        self._wakeup.clear()
        with self._lock:
            keys, self._keys = self._keys, []
        return keys

    def close(self) -> None:
        """Close the descriptors."""
        self._wakeup.close()


class Caller(NamedTuple):
    """A node connected to the link."""

    host: str  # its name, from its Hello
    heard_at: float  # time of its last Hello, monotonic
    epoch: int  # its start
    epochs: frozenset[int]  # this start, and the earlier ones with batches in its outbox


class CollectorLink:
    """The link's answers to nodes. For the receiving thread.

    Args:
        on_disk: whether the journal is on disk, not only in memory.
        answered: called with host, number and content of each answer to a request.

    Attributes:
        is_open: whether nodes can connect.
        hellos: answered Hellos.
        refused: messages unreadable, unexpected, or with the key of another host.
        limited: messages dropped beyond the rate limit of a node.
        unsent: acknowledgements for disconnected nodes.
        asked: requests for descriptions.
    """

    def __init__(
        self,
        server: LinkServer,
        receiver: Receiver,
        durable: DurableBatches,
        on_disk: bool,
        answered: Callable[[str, int, bytes], None] = lambda host, number, content: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_open = True
        self.hellos = self.refused = self.limited = self.unsent = self.asked = 0
        self._rates = RateLimit(RATE, BYTE_RATE, monotonic)
        self._server = server
        self._receiver = receiver
        self._durable = durable
        self._on_disk = on_disk
        self._answered = answered
        self._monotonic = monotonic
        self._started = time.time_ns()
        self._callers: OrderedDict[bytes, Caller] = OrderedDict()  # the least recently heard first
        self._by_host: dict[str, list[bytes]] = {}  # the same, latest heard last
        self._asked_at: OrderedDict[str, float] = OrderedDict()  # by host, when it was asked for descriptions
        self._pending: dict[str, set[tuple[int, int]]] = {}  # by name: received, not on disk yet
        self._again: list[Key] = []

    def close(self) -> None:
        """Stop answering; batches are still noted, so that `DurableBatches` does not grow."""
        self.is_open = False
        self._server.close()
        self._callers.clear()
        self._by_host.clear()

    @property
    def callers(self) -> Iterable[str]:
        """Return the hosts connected for acknowledgements."""
        return self._by_host.keys()

    def took(self, fresh: Sequence[Batch], again: Sequence[Batch]) -> None:
        """Note received batches: new ones (`fresh`) and duplicates (`again`)."""
        for batch in fresh:
            if batch.epoch is not None and batch.seq is not None:
                self._pending.setdefault(batch.host, set()).add((batch.epoch, batch.seq))
        for batch in again:
            # a duplicate of a batch not on disk yet is acknowledged with it
            if batch.epoch is not None and batch.seq is not None:
                key = (batch.epoch, batch.seq)
                if key not in self._pending.get(batch.host, ()):
                    self._again.append((batch.host, *key))

    def serve(self) -> None:
        """Acknowledge batches that are on disk, and answer the nodes' messages."""
        self._acknowledge()
        for _ in range(BURST if self.is_open else 0):
            called = self._server.receive()
            if called is None:
                break
            if self._rates.admit(called.user, called.peer, len(called.message)) is None:
                self._limit(called)
                continue
            try:
                message = wire.decode(called.message)
                if isinstance(message, wire.Hello):
                    if called.user not in ("", message.host):
                        raise WireError(f"link: {message.host} says Hello with the key of {called.user}")
                    if not self._receiver.admits_host(message.host, called.peer, called.user):
                        self._limit(called)
                        continue
                    self._greet(called, message)
                elif isinstance(message, wire.Answer):
                    self._take_answer(called, message)
                else:
                    raise WireError("link: not for a collector")
            except WireError as err:
                self.refused += 1
                if powers_of_ten(self.refused):
                    log.warning("link: message refused from=[%s] refused=%d: %s", called.peer, self.refused, err)

    def _limit(self, called: Called) -> None:
        self.limited += 1
        if powers_of_ten(self.limited):
            name = called.user or f"[{called.peer}]"
            log.warning("link: messages dropped, too many from=%s limited=%d", name, self.limited)

    def _acknowledge(self) -> None:
        keys = self._durable.take()
        again, self._again = self._again, []
        by_caller: dict[bytes, list[tuple[int, int]]] = {}
        for name, epoch, seq in keys:
            waiting = self._pending.get(name)
            if waiting is not None:
                waiting.discard((epoch, seq))
                if not waiting:
                    del self._pending[name]
        for name, epoch, seq in [*keys, *again]:
            for caller in self._by_host.get(name, ()):
                if epoch in self._callers[caller].epochs:
                    by_caller.setdefault(caller, []).append((epoch, seq))
        for caller, numbers in by_caller.items():
            self._send(caller, wire.joined(numbers))

    def _send(self, caller: bytes, ranges: Sequence[wire.Range]) -> None:
        known = self._callers.get(caller)
        duplicates = 0 if known is None else self._receiver.sender(known.host).duplicates
        for start in range(0, max(1, len(ranges)), wire.MAX_RANGES):
            some = tuple(ranges[start : start + wire.MAX_RANGES])
            ack = wire.Ack(READS, self._started, self._on_disk, duplicates, some)
            if not self._server.send(caller, wire.encode(ack)):
                self.unsent += 1
                if known is not None:
                    self._forget(caller)
                return

    def _greet(self, called: Called, hello: wire.Hello) -> None:
        self.hellos += 1
        caller = called.caller
        if not self._receiver.hello(hello, called.peer, called.user):
            if caller in self._callers:
                self._forget(caller)
            self._send(caller, ())  # answered, so that it keeps its batches; none is acknowledged
            return
        now = self._monotonic()
        for known in list(self._by_host.get(hello.host, ())):
            if known == caller or self._callers[known].epoch == hello.epoch:  # reconnected
                self._forget(known)
        if caller in self._callers:
            self._forget(caller)
        epochs = frozenset([hello.epoch, *[epoch for epoch, _, _ in hello.held]])
        self._callers[caller] = Caller(hello.host, now, hello.epoch, epochs)
        same = self._by_host.setdefault(hello.host, [])
        same.append(caller)
        if len(same) > MAX_CALLERS:
            self._forget(same[0])
        while len(self._callers) > MAX_SENDERS or next(iter(self._callers.values())).heard_at < now - FORGET_S:
            self._forget(next(iter(self._callers)))
        self._send(caller, self._known(hello.host, hello.held))

    def _known(self, host: str, held: Iterable[wire.Range]) -> list[wire.Range]:
        """Return the part of these ranges on disk, at most `wire.MAX_RANGES`: the node asks for the others again."""
        found: list[wire.Range] = []
        pending: dict[int, list[int]] = {}
        for epoch, seq in sorted(self._pending.get(host, ())):
            pending.setdefault(epoch, []).append(seq)
        sender = self._receiver.sender(host)
        for epoch, first, last in held:
            waiting = pending.get(epoch, [])
            for low, high in sender.seen(epoch, first, last):
                start = low
                for seq in waiting[bisect_left(waiting, low) : bisect_right(waiting, high)]:
                    if start < seq:
                        found.append(wire.Range(epoch, start, seq - 1))
                    start = seq + 1
                if start <= high:
                    found.append(wire.Range(epoch, start, high))
            if len(found) >= wire.MAX_RANGES:
                break
        return found[: wire.MAX_RANGES]

    def _forget(self, caller: bytes) -> None:
        host = self._callers.pop(caller).host
        same = self._by_host[host]
        same.remove(caller)
        if not same:
            del self._by_host[host]

    def ask_descriptions(self, host: str, epoch: int) -> None:
        """Have a start of a node send its unacknowledged batches in full; at most once in `ASK_S`."""
        now = self._monotonic()
        if now - self._asked_at.get(host, -ASK_S) < ASK_S:
            return
        for caller in self._by_host.get(host, ()):
            if self._callers[caller].epoch == epoch and self._server.send(caller, wire.encode(wire.Describe(epoch))):
                self.asked += 1
                self._asked_at[host] = now
                self._asked_at.move_to_end(host)
        if len(self._asked_at) > MAX_SENDERS:
            self._asked_at.popitem(last=False)

    def ask(self, host: str, number: int, content: bytes) -> bool:
        """Send a request to a node; return False if it is not connected. Its answer goes to `answered`."""
        known = self._by_host.get(host)
        return known is not None and self._server.send(known[-1], wire.encode(wire.Request(number, content)))

    def _take_answer(self, called: Called, answer: wire.Answer) -> None:
        known = self._callers.get(called.caller)
        if known is None:
            raise WireError("link: an answer from a client without a Hello")
        host = known.host
        if called.user not in ("", host):  # a client may connect with the identity of another host's caller
            raise WireError(f"link: an answer of {host} with the key of {called.user}")
        self._answered(host, answer.number, answer.content)

    def counters(self) -> dict[str, int]:
        """Return the counters, by name."""
        return {
            "callers": len(self._callers),
            "hellos": self.hellos,
            "refused": self.refused,
            "limited": self.limited,
            "unsent": self.unsent,
            "asked": self.asked,
            "shared_names": len(self._receiver.shared_names()),
            "waiting": sum([len(waiting) for waiting in self._pending.values()]),
        }


NOTE = "link-port-given-up"
WAIT_S = 30.0  # for another collector that had the port before to start
_PAUSE_S = 0.2


class LinkPort(NamedTuple):
    """The bound port, where no option names it."""

    socket: Socket  # of the link
    claims: Claims  # of other collectors for the port
    directory: str  # of the journal; "" without one

    def give_up(self) -> None:
        """Note that another collector has the port; the caller closes the link."""
        self.claims.close()
        _note(self.directory)
        log.warning(
            "link given up, as another collector receives data on its port: nodes send the format of Colmet 0.6, "
            "and batches under way when the collector stops are lost; give --zeromq-link-bind-uri another port here, "
            "and --zeromq-link-uri to the nodes"
        )


def open_link(
    uri: str | None, data_uri: str, authenticator: Authenticator, directory: str
) -> tuple[LinkServer | None, LinkPort | None]:
    """Bind the link's socket and return its server, with the port if it may be given up; None without acknowledgements.

    Args:
        uri: address from an option, "" for no link, None for the port after the data port.
        data_uri: address of the data socket.
        authenticator: of the nodes' connections.
        directory: of the journal; "" without one.

    Raises:
        ConfigError: the address from the option cannot be bound.
    """
    if uri == "":
        log.info("no acknowledgements: batches under way when the collector stops are lost")
        return None, None
    if uri is not None:
        return LinkServer(uri, authenticator=authenticator), None
    uri = link_uri(data_uri)
    if directory and os.path.exists(os.path.join(directory, NOTE)) and _is_free(uri):
        log.warning("link waits up to %g s, for another collector that had its port before: uri=%s", WAIT_S, uri)
        until = time.monotonic() + WAIT_S
        while _is_free(uri) and time.monotonic() < until:
            time.sleep(_PAUSE_S)
    try:
        server = LinkServer(uri, authenticator=authenticator)
    except ConfigError as err:
        # no error: a site with an older configuration may run something else on this port
        log.warning("no acknowledgements: batches under way when the collector stops are lost: %s", err)
        _note(directory)
        return None, None
    if directory:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, NOTE))
    claims = None if server.is_held else Claims(server.uri)
    return server, LinkPort(server.socket, claims, directory) if claims is not None and claims.fd >= 0 else None


def _note(directory: str) -> None:
    if directory:
        with contextlib.suppress(OSError), open(os.path.join(directory, NOTE), "wb"):
            pass


def _is_free(uri: str) -> bool:
    """Return whether no process listens at an address, a numeric one."""
    host, _, port = uri.removeprefix("tcp://").rpartition(":")
    if not uri.startswith("tcp://"):
        return False
    host = host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, int(port)))
        except OSError as err:
            return err.errno != errno.EADDRINUSE
        except OverflowError:  # the port after 65535
            return False
    return True
