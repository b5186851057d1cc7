"""The uplink: the connection to one collector, its state as seen from here, and the requests that come over it."""

from __future__ import annotations

import hashlib
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Container, Sequence
from enum import Enum
from typing import Any, NamedTuple

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.wakeup import Wakeup
from colmet.common.errors import WireError
from colmet.common.schema import Schema
from colmet.common.transport import LinkClient, Push
from colmet.common.wire import link as wire
from colmet.common.wire.link import Ranges

log = logging.getLogger(__name__)

MAX_RUNS = 1024  # ranges of numbers sent over one uplink, of one epoch
MAX_CARRIED = 64  # batches with new descriptions, on their way over one uplink
MAX_WAITING = 16  # requests
MAX_DESCRIBED = 512  # half of what a collector keeps
AUTO, V1, COLMET06 = "auto", "v1", "colmet06"


class Times(NamedTuple):
    """Intervals and timeouts, in seconds; tests shorten them."""

    ask_s: float = 2.0  # between two Hellos while an answer is missing
    hello_s: float = 10.0  # between two Hellos otherwise
    away_s: float = 10.0  # timeout of an answer; after it a collector is away
    # timeout of the link to a collector that receives data; after it the collector counts as one without
    # acknowledgements, with `AUTO` as one of Colmet 0.6
    mute_s: float = 15.0
    mute_known_s: float = 60.0  # the same for a collector that has acknowledged before
    resend_s: float = 15.0  # before the first retry of a batch; twice as long each time
    resend_most_s: float = 60.0  # longest pause before a retry
    back_s: float = 30.0  # time of uninterrupted presence of a preferred collector before it is used again
    farewell_s: float = 2.0  # to send waiting batches at the end


class UplinkState(Enum):
    """The state of a collector, as a node sees it.

    ::

    UNKNOWN -- answers --> THERE -- no answer for away_s --> AWAY -- answers --> THERE
       |                     |                                |
       +---------------------+---- receives data, no link ----+--> MUTE -- answers --> THERE
    """

    UNKNOWN = "not heard of yet"
    THERE = "there"
    AWAY = "away"
    MUTE = "there, without acknowledgements"


def by_preference(host: str, uris: Sequence[str]) -> list[str]:
    """Return the collectors in this host's order of preference.

    Hosts are spread evenly. A new collector gets its share of the hosts; the other hosts keep theirs.
    """
    return sorted(uris, key=lambda uri: hashlib.sha256(f"{host} {uri}".encode()).digest())


class Uplink:
    """The connection to one collector. For one thread.

    With `AUTO`, v1 is sent only after an answer of the collector on the present data connection: a collector of Colmet
    0.6 ends at its first v1 message. Without an answer, colmet06 is sent: both versions can read it.

    Args:
        uri: of the collector, for the log.
        push, link: sockets for data and for acknowledgements.
        now: time on the clock of all other methods.
        wire: AUTO, or the dialect of the batches: V1 or COLMET06.

    Attributes:
        duplicates: batches of this node received by it more than once, since the node was started.
        bad_messages: unreadable messages of the link.
        doubted: batches acknowledged by it, but not sent to it since it was started.
        asked: its requests for descriptions.
    """

    def __init__(self, uri: str, push: Push, link: LinkClient | None, times: Times, now: float, wire: str = V1) -> None:
        self.uri = uri
        self.wire = wire
        self.sends = "" if wire == AUTO else wire  # the dialect as of the latest look, for any thread
        self.push = push
        self.link = link
        self.state = UplinkState.UNKNOWN if link is not None else UplinkState.MUTE
        self.since = now  # start of this state
        self.blocked_at: float | None = None  # since when a present collector has received no data
        self.version = ""  # of the collector, empty if unknown
        self.durable = True  # whether acknowledged batches are on its disk
        self.duplicates = self.bad_messages = self.doubted = self.asked = 0
        self._times = times
        self._asked_at = now  # the first question without an answer; infinite without one
        self._said_at = -math.inf
        self._heard_at = now
        self._data_only_since = math.inf
        self._connected_at = -math.inf  # the last time that data could be sent
        self._known = False  # it has acknowledged
        self._was_connected = False
        self._connection = 0  # the latest data connection seen
        self._answered = 0  # the data connection of the collector's last answer
        self._was_mute = False  # as of its last known state
        self._collector = 0
        self._reported_duplicates = 0  # by it, since it was started
        self._sent: dict[int, Ranges] = {}  # to the present process, by epoch
        self._reads_short = False  # the present process
        self._described: set[bytes] = set()  # digests whose descriptions it has acknowledged
        self._latest: tuple[Schema, ...] = ()  # of the latest batch, all among these
        self._described_over = 0  # the data connection of these
        self._carried: dict[tuple[int, int], tuple[Schema, ...]] = {}  # by batches on their way, in full
        self._times_away = self._times_mute = self._times_blocked = 0

    def _become(self, state: UplinkState, now: float) -> None:
        if state is not self.state:
            self.state = state
            self.since = now

    @property
    def is_asked(self) -> bool:
        """Whether an answer is missing."""
        return self._asked_at < math.inf

    @property
    def dialect(self) -> str:
        """The dialect for batches now; empty until the collector's dialects are known."""
        if self.wire != AUTO:
            return self.wire
        if self.state is UplinkState.MUTE:
            return COLMET06
        is_answered = self.state is UplinkState.THERE and self._answered and self._answered == self.push.connection
        return V1 if is_answered else ""

    def notice(self, now: float) -> bool:
        """Return whether the data connection is a new one, and may be to a collector without the earlier batches.

        With `AUTO` it is then asked again: the link is reopened, so that every answer is newer than the data
        connection. Call this before `receive`.
        """
        connection = self.push.connection if self.wire == AUTO and self.link is not None else 0
        if connection in (0, self._connection):
            return False
        self._connection = connection
        if self.link is None or self.state not in (UplinkState.THERE, UplinkState.MUTE):
            return False
        self.link.reopen()
        self._was_connected = False
        self._asked_at = min(self._asked_at, now)
        self._data_only_since = math.inf
        if self.state is UplinkState.MUTE:
            self._note_data()
            self._become(UplinkState.UNKNOWN, now)
        return True

    def usable(self, now: float) -> bool:
        """Return whether batches may be sent over this uplink."""
        if self.state is UplinkState.UNKNOWN:
            return now - self.since < self._times.away_s or self._data_only_since < math.inf
        if self.state is UplinkState.AWAY:
            return False
        # a collector that receives no data for long cannot be used, even if it answers
        return now - max(self._connected_at, self.since) < self._times.away_s

    def promising(self, now: float) -> bool:
        """Return whether batches can probably be sent over this uplink within a moment."""
        if not self.usable(now):
            return False
        # the link is connected, and this socket is about to: it retries a few times a second
        coming = self.state is UplinkState.THERE and self._connected_at == -math.inf
        return self.push.connected or coming

    def hello(self, now: float, waiting: bool) -> bool:
        """Return whether a Hello is due; `waiting`: batches wait for their acknowledgement."""
        if self.link is None:
            return False
        connected = self.link.connected
        came, self._was_connected = connected and not self._was_connected, connected
        if came:
            return True
        if self.is_asked or (waiting and now - self._heard_at >= self._times.ask_s):
            return now - self._said_at >= self._times.ask_s
        return now - self._said_at >= self._times.hello_s

    def say(self, hello: wire.Hello, now: float) -> None:
        """Send a Hello."""
        self._said_at = now
        self._asked_at = min(self._asked_at, now)
        if self.link is not None:
            self.link.send(wire.encode(hello))

    def sent(self, epoch: int, seq: int) -> None:
        """Note that this batch was sent over this uplink."""
        numbers = self._sent.setdefault(epoch, Ranges())
        numbers.add(seq, seq)
        if len(numbers) > MAX_RUNS:  # forgotten numbers are sent again
            numbers.remove(*next(iter(numbers)))

    def described(self, schemas: tuple[Schema, ...]) -> bool:
        """Return whether the collector has the descriptions of these schemas, and reads messages without them.

        Only what its present process has acknowledged over the present data connection counts.
        """
        if self.push.connection != self._described_over:
            self.forget_descriptions()
        if not self._reads_short or self.state is not UplinkState.THERE:
            return False
        if schemas != self._latest:  # most batches have the tables of the one before
            if not self._described.issuperset([schema.digest for schema in schemas]):
                return False
            self._latest = schemas
        return True

    def carry(self, key: tuple[int, int], schemas: tuple[Schema, ...]) -> None:
        """Note that this batch was sent with the descriptions of these schemas."""
        if self._reads_short and schemas:
            self._carried[key] = schemas
            if len(self._carried) > MAX_CARRIED:
                del self._carried[next(iter(self._carried))]

    def carried(self, epoch: int, first: int, last: int) -> None:
        """Note that the collector has acknowledged these batches, with their descriptions."""
        for key in [key for key in self._carried if key[0] == epoch and first <= key[1] <= last]:
            if len(self._described) >= MAX_DESCRIBED:
                self._described.clear()
                self._latest = ()
            self._described.update([schema.digest for schema in self._carried.pop(key)])

    def forget_descriptions(self) -> None:
        """Forget what the collector has: the next batches are sent in full."""
        self._described.clear()
        self._latest = ()
        self._carried.clear()
        self._described_over = self.push.connection

    def sent_of(self, one: wire.Range) -> list[tuple[int, int]]:
        """Return the numbers of a range sent to the collector's present process: it can have no others."""
        numbers = self._sent.get(one.epoch)
        return numbers.within(one.first, one.last) if numbers is not None else []

    def forget_sent(self, epochs: Container[int]) -> None:
        """Forget the numbers sent in all other epochs."""
        for epoch in [epoch for epoch in self._sent if epoch not in epochs]:
            del self._sent[epoch]

    def receive(self) -> list[wire.Message]:
        """Return the messages of the collector; unreadable ones are counted."""
        found: list[wire.Message] = []
        while self.link is not None and len(found) < 100 and (message := self.link.receive()) is not None:
            try:
                found.append(wire.decode(message))
            except WireError as err:
                self.bad_messages += 1
                if powers_of_ten(self.bad_messages):
                    log.warning("link: message refused from=%s refused=%d: %s", self.uri, self.bad_messages, err)
        return found

    def heard(self, ack: wire.Ack, now: float) -> bool:
        """Note an answer of the collector; return whether it comes from another process than the last one."""
        self._asked_at = math.inf
        self._heard_at = now
        if self.durable and not ack.durable:
            log.warning(
                "collector has no journal on disk: what it has not written is lost when it is killed; give it "
                "--journal-dir: collector=%s",
                self.uri,
            )
        self.durable = ack.durable
        self.version, *reads = ack.version.split(" ")
        self._reads_short = wire.SHORT in reads
        another = self._collector not in (0, ack.started)
        if self._collector == 0:  # duplicates of an earlier start of this node
            self._reported_duplicates = ack.duplicates
        elif another:
            self._reported_duplicates = 0
            self._sent.clear()
            self.forget_descriptions()
        self.duplicates += max(0, ack.duplicates - self._reported_duplicates)
        self._reported_duplicates = ack.duplicates
        self._collector = ack.started
        self._known = True
        if self._was_mute:
            log.warning("collector acknowledges collector=%s", self.uri)
        elif self.state is UplinkState.AWAY:
            log.warning("collector is there again collector=%s", self.uri)
        elif self.state is UplinkState.UNKNOWN:
            log.info("collector is there collector=%s version=%s", self.uri, self.version)
        self._was_mute = False
        self._answered = self._connection
        self._become(UplinkState.THERE, now)
        return another

    def look(self, now: float) -> bool:
        """Update the state of the collector; return whether it changed."""
        before = self.state
        if self.push.connected:
            self._connected_at = now
        self._look_at_data(now)
        self.sends = self.dialect
        if self.link is None:
            return False
        if self.link.connected or now - self._connected_at > self._times.ask_s or not self.is_asked:
            self._data_only_since = math.inf
        else:
            self._data_only_since = min(self._data_only_since, now)
        silent = now - self._asked_at > self._times.away_s
        # a collector that may never have had a link must not get batches twice
        if silent and (
            self.state is UplinkState.THERE or (self.state is UplinkState.UNKNOWN and self._data_only_since == math.inf)
        ):
            self._go_away(now)
        patience_s = self._times.mute_known_s if self._known else self._times.mute_s
        if self.state is not UplinkState.MUTE and now - self._data_only_since > patience_s:
            self._become_mute(now)
        return self.state is not before

    def _become_mute(self, now: float) -> None:
        """Note that the collector receives data and has no link."""
        self._become(UplinkState.MUTE, now)
        self._times_mute += 1
        is_news, self._was_mute = not self._was_mute, True
        if self.link is None or not (is_news or powers_of_ten(self._times_mute)):
            return
        if self.wire == AUTO:
            log.warning(
                "collector receives data and does not acknowledge: it gets the format and the tables of Colmet 0.6, "
                "without nvidiastats_default, and batches under way when it stops are lost; upgrade a collector of "
                "Colmet 0.6, and open the link port of a newer one to this node: collector=%s link=%s: %s times=%d",
                *(self.uri, self.link.uri, self.link.problem or "not connected", self._times_mute),
            )
        else:
            log.warning(
                "collector receives data and does not acknowledge: batches under way when it stops, or when "
                "colmet-node ends, are lost; is it of Colmet 0.6, or is the port of its "
                "--zeromq-link-bind-uri closed? collector=%s times=%d",
                self.uri,
                self._times_mute,
            )

    def _look_at_data(self, now: float) -> None:
        if self.state not in (UplinkState.THERE, UplinkState.MUTE) or self.usable(now):
            if self.state in (UplinkState.THERE, UplinkState.MUTE):
                self._note_data()
            self.blocked_at = None
        elif self.blocked_at is None:
            self.blocked_at = now
            self._times_blocked += 1
            if powers_of_ten(self._times_blocked):
                log.warning(
                    "collector receives no data, batches are kept; does it run, is the port of its --zeromq-bind-uri "
                    "open, and is there room for its journal? collector=%s times=%d",
                    self.uri,
                    self._times_blocked,
                )

    def _note_data(self) -> None:
        """Note that the collector receives data."""
        if self.blocked_at is not None:
            log.warning("collector receives data again collector=%s", self.uri)
        self.blocked_at = None

    def _go_away(self, now: float) -> None:
        self._times_away += 1
        if powers_of_ten(self._times_away):
            log.warning(
                "collector is away, batches are kept; is colmet-collector running and reachable, and, where there are "
                "keys, does it know this node's? collector=%s times=%d",
                self.uri,
                self._times_away,
            )
        self._become(UplinkState.AWAY, now)
        # batches in the old connection are sent again, over this uplink or another
        self.push.reopen()
        self._connected_at = -math.inf
        self._data_only_since = math.inf

    def close(self) -> None:
        """Close both sockets; can be called twice."""
        if self.link is not None:
            self.link.close()
        self.push.close()


class Requests:
    """Queue of requests, answered one after the other by `handle`, in a thread that ends when the queue is empty.

    Attributes:
        fd: readable when there are answers.
        answered: number of requests answered.
        refused: number of requests without a handler, or beyond the limit of waiting ones.
        failures: number of requests not answered because of a defect.
    """

    def __init__(self, handle: Callable[[bytes], bytes] | None) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, bytes, Any]] = deque()
        self._answers: deque[tuple[int, bytes, Any]] = deque()
        self._thread: threading.Thread | None = None
        self._wakeup = Wakeup()
        self.fd = self._wakeup.fd
        self.answered = self.refused = self.failures = 0

    def ask(self, number: int, content: bytes, asker: Any) -> None:
        """Queue a request; `asker` is returned with the answer."""
        with self._lock:
            if self._handle is None or len(self._waiting) >= MAX_WAITING:
                self.refused += 1
                if powers_of_ten(self.refused):
                    log.warning("link: request not answered refused=%d", self.refused)
                return
            self._waiting.append((number, content, asker))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="requests", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or self._handle is None:
                    self._thread = None
                    return
                number, content, asker = self._waiting.popleft()
            try:
                answer = self._handle(content)
            except Exception:  # a defect there must not leave the others unanswered
                self.failures += 1
                if powers_of_ten(self.failures):
                    log.exception("link: defect in answering a request failures=%d", self.failures)
                continue
            self._answers.append((number, answer, asker))
            self.answered += 1
            self._wakeup.wake()

    def answers(self) -> list[tuple[int, bytes, Any]]:
        """Return number, answer and asker of each request answered since the last call."""
        self._wakeup.clear()
        return [self._answers.popleft() for _ in range(len(self._answers))]
