"""Bytes to batches, with an account of every sender: what came, what is missing, what came twice, what was refused."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from colmet.collector.rates import Rates
from colmet.common.cli import powers_of_ten
from colmet.common.errors import WireError
from colmet.common.ranges import Ranges
from colmet.common.schema import Batch
from colmet.common.top import Heard
from colmet.common.wire import Decoder
from colmet.common.wire.link import Hello

log = logging.getLogger(__name__)

# Hosts and addresses that are told apart. Anyone who can connect can make names up: more than these share one entry.
MAX_SENDERS = 16384
OTHERS = "(others)"
# Starts of one node whose batches may still come: one that was started again and again while the collector was away
# sends all of them, and again if the collector is killed before it has said that it has them.
MAX_EPOCHS = 256
# Ranges of batches that have come, of one start: new batches come beside older ones that are sent again, and others go
# to another collector.
MAX_RUNS = 1024
# Over all senders. Beyond it each may have few: (starts, ranges).
MAX_ALL_RUNS = 1 << 18
FEW = (4, 16)
LOOK_EVERY = 10_000  # messages, and starts that nodes tell of, between two looks at how many there are
END = 1 << 63  # above all numbers


class Sequence64:
    """Which numbers of one count have come.

    What it has to forget, as there are too many ranges, it takes for new when it comes again: that may be there twice
    then, and nothing is lost.

    Attributes:
        floor: nothing with a lower number is still to come, as the node says; -1 where it says nothing. What it sent
            before the collector listened is then not missing.
    """

    def __init__(self, floor: int = -1) -> None:
        self.floor = floor
        self._seen = Ranges()
        self._forgotten = 0  # missing between ranges that were forgotten

    def __len__(self) -> int:
        """How many ranges have come."""
        return len(self._seen)

    def add(self, number: int, most: int = MAX_RUNS) -> bool:
        """Note a number; False where it has come before. At most so many ranges are kept."""
        if not self._seen.add(number, number):
            return False
        while len(self._seen) > most:
            (first, last), (following, _) = itertools.islice(self._seen, 2)
            self._seen.remove(first, last)
            self._forgotten += max(0, following - max(last + 1, self.floor))
        return True

    @property
    def missing(self) -> int:
        """Numbers that are between those that came, or that the node says are still to come before them."""
        if not self._seen.count:
            return self._forgotten
        start, last = self.floor if self.floor >= 0 else self._seen.first, self._seen.last
        if start > last:
            return self._forgotten
        came = sum([b - a + 1 for a, b in self._seen.within(start, last)])
        return self._forgotten + last + 1 - start - came

    @property
    def elsewhere(self) -> int:
        """Numbers between those that came that are not to come any more: another collector has them, or nobody."""
        if not self._seen.count:
            return 0
        end = min(self.floor, self._seen.last + 1)
        came = sum([b - a + 1 for a, b in self._seen.within(self._seen.first, end - 1)])
        return max(0, end - self._seen.first - came)

    def seen(self, first: int, last: int) -> list[tuple[int, int]]:
        """Which of these have come, in ranges."""
        return self._seen.within(first, last)

    def state(self) -> list[Any]:
        """What `restored` makes the same of: the first number, the next one, the gaps, the floor."""
        if not self._seen.count:
            return [-1, -1, [], self.floor]
        runs = list(self._seen)
        gaps = [(last + 1, first) for (_, last), (first, _) in zip(runs, runs[1:])]
        return [self._seen.first, self._seen.last + 1, gaps, self.floor]

    @classmethod
    def restored(cls, state: Sequence[Any]) -> Sequence64:
        """A count as it was; ValueError or TypeError where that is none."""
        first, end, gaps, *rest = state
        sequence = cls(*[int(floor) for floor in rest])
        if int(first) < int(end):
            sequence._seen.add(int(first), int(end) - 1)
        for first, end in gaps[-MAX_RUNS:]:
            sequence._seen.remove(int(first), int(end) - 1)
        return sequence


@dataclass
class Sender:
    """What came from one host (or, for messages that name none, from one address).

    Attributes:
        batches: taken in.
        rows: in them.
        duplicates: batches that had come before, and were left out.
        rejects: messages that could not be read; they are counted by address.
        skipped: values that have no name here.
        seen_ns: when it was heard last, since the epoch; 0 before.
        lag_ns: how old its latest batch was when it came, by the clocks of both.
        dialect: of its last batch.
        version: of Colmet there; empty where it does not say, and takes no acknowledgements.
        foreign: messages with its key that held data of other hosts, and were refused.
        limited: messages beyond what is taken from one sender, left out before they were read.
    """

    batches: int = 0
    rows: int = 0
    duplicates: int = 0
    rejects: int = 0
    skipped: int = 0
    seen_ns: int = 0
    lag_ns: int = 0
    dialect: str = ""
    version: str = ""
    foreign: int = 0
    limited: int = 0
    _forgotten_missing: int = 0
    _epochs: OrderedDict[int, Sequence64] = field(default_factory=OrderedDict)
    _held: frozenset[int] = frozenset()  # epochs of which batches are still to come, as it says

    @property
    def missing(self) -> int:
        """Batches that were sent, going by the numbers of those that came, and have not come."""
        return self._forgotten_missing + sum(sequence.missing for sequence in self._epochs.values())

    @property
    def elsewhere(self) -> int:
        """Batches that are not to come any more: another collector has them, or the node has given them up."""
        return sum(sequence.elsewhere for sequence in self._epochs.values())

    @property
    def runs(self) -> int:
        """Ranges that are remembered, about."""
        return sum([1 + len(sequence) for sequence in self._epochs.values()])

    def _sequence(self, epoch: int, most: int) -> Sequence64:
        sequence = self._epochs.get(epoch)
        if sequence is None:
            sequence = self._epochs[epoch] = Sequence64()
            self._bound(most, epoch)
        return sequence

    def _bound(self, most: int, kept: int) -> None:
        """Forget starts beyond so many: of those of which nothing is to come, the oldest; nothing is lost with any."""
        extra = len(self._epochs) - most
        if extra > 0:
            for oldest in sorted(self._epochs, key=lambda one: (one == kept, one in self._held, one))[:extra]:
                self._forgotten_missing += self._epochs.pop(oldest).missing

    def is_new(self, batch: Batch, epochs: int = MAX_EPOCHS, runs: int = MAX_RUNS) -> bool:
        """Note a batch; False where it has come before. Batches without numbers are always new.

        At most so many starts are remembered, and so many ranges of each.
        """
        if batch.epoch is None or batch.seq is None:
            return True
        sequence = self._epochs.get(batch.epoch)
        if sequence is None:
            sequence = self._sequence(batch.epoch, epochs)
        return sequence.add(batch.seq, runs)

    def hello(self, hello: Hello, epochs: int = MAX_EPOCHS) -> None:
        """It tells what is still to come; at most so many starts are remembered."""
        self.version = hello.version
        self.seen_ns = time.time_ns()
        floors = {epoch: first for epoch, first, _ in hello.held[-epochs:]}
        floors.setdefault(hello.epoch, hello.coming)
        self._held = frozenset(floors)
        for epoch, floor in floors.items():
            self._epochs.setdefault(epoch, Sequence64()).floor = floor
        self._bound(epochs, hello.epoch)
        for epoch, sequence in self._epochs.items():
            if epoch < hello.epoch and epoch not in floors:
                sequence.floor = END

    def seen(self, epoch: int, first: int, last: int) -> list[tuple[int, int]]:
        """Which batches of these have come, in ranges."""
        sequence = self._epochs.get(epoch)
        return sequence.seen(first, last) if sequence is not None else []

    def epochs(self) -> dict[int, list[Any]]:
        """The counts of its latest starts, to be restored."""
        return {epoch: sequence.state() for epoch, sequence in self._epochs.items()}

    def restore(self, epochs: Mapping[str, Sequence[Any]]) -> None:
        """Go on from what `epochs` gave."""
        self._epochs = OrderedDict((int(epoch), Sequence64.restored(state)) for epoch, state in epochs.items())


class Receiver:
    """Decodes messages and keeps the account.

    Args:
        rates: how much is taken from whom.

    Attributes:
        senders: by host name, or by address for what names no host; at most `MAX_SENDERS` and one for all others.
        again: the batches of the latest message that had come before.
    """

    def __init__(self, rates: Rates | None = None) -> None:
        self._rates = rates or Rates()
        self._decoder = Decoder()
        self.senders: dict[str, Sender] = {}
        self.dialects: dict[str, int] = {}
        self.rejects = 0
        self.again: list[Batch] = []
        self._since_look = 0
        self._bounds = (MAX_EPOCHS, MAX_RUNS)

    def take(self, message: bytes, peer: str, user: str = "") -> list[Batch]:
        """The batches in a message that have not come before.

        A message that cannot be read is counted for `peer`, the address it came from, and gives none. So does one that
        comes with the key of `user` and has data of any other host, and one beyond what is taken from a sender.
        """
        self.again = []
        if not self._rates.admits(user, peer, len(message)):
            self._limit(peer, user)
            return []
        self._look(1)
        try:
            decoded = self._decoder.decode(message)
        except WireError as err:
            self._reject(err, message, peer)
            return []
        if user and any(batch.host != user for batch in decoded.batches):
            self._refuse_foreign(next(batch.host for batch in decoded.batches if batch.host != user), peer, user)
            return []
        self.dialects[decoded.dialect] = self.dialects.get(decoded.dialect, 0) + 1
        if decoded.skipped:
            self.sender(decoded.batches[0].host if decoded.batches else peer).skipped += decoded.skipped
        fresh = []
        now_ns = time.time_ns()
        for batch in decoded.batches:
            sender = self.sender(batch.host)
            sender.seen_ns, sender.lag_ns, sender.dialect = now_ns, now_ns - batch.time_ns, decoded.dialect
            # names that share an account are not told apart: each batch is taken
            if batch.host not in self.senders or sender.is_new(batch, *self._bounds):
                sender.batches += 1
                sender.rows += batch.row_count
                fresh.append(batch)
            else:
                sender.duplicates += 1
                self.again.append(batch)
                log.debug("batch came twice host=%s epoch=%s seq=%s", batch.host, batch.epoch, batch.seq)
        return fresh

    def hello(self, hello: Hello) -> None:
        """A node tells what is still to come."""
        self._look(1 + len(hello.held))
        self.sender(hello.host).hello(hello, self._bounds[0])

    def _look(self, more: int) -> None:
        """See to it now and then, by how much may have come to be remembered, that it is not too much."""
        self._since_look += more
        if self._since_look >= LOOK_EVERY:
            self._since_look = 0
            runs = sum([sender.runs for sender in self.senders.values()])
            self._bounds = FEW if runs > MAX_ALL_RUNS else (MAX_EPOCHS, MAX_RUNS)

    def account(self) -> bytes:
        """Which batches have come, for `restore`."""
        return json.dumps({name: epochs for name, s in self.senders.items() if (epochs := s.epochs())}).encode()

    def restore(self, account: bytes, messages: Iterable[bytes]) -> None:
        """Know again which batches have come, after a restart: those of an account, and those of messages since."""
        if account:
            try:
                for name, epochs in json.loads(account).items():
                    self.sender(name).restore(epochs)
            except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as err:
                log.error("account of the senders unreadable, what comes twice may be taken twice: %r", err)
        for message in messages:
            try:
                batches = self._decoder.decode(message).batches
            except WireError:
                continue
            for batch in batches:
                sender = self.sender(batch.host)
                if batch.host in self.senders:
                    sender.is_new(batch)
        now_ns = time.time_ns()
        for sender in self.senders.values():
            sender.seen_ns = now_ns  # they are given time to be heard again

    def sender(self, name: str) -> Sender:
        """The account of one sender."""
        sender = self.senders.get(name)
        if sender is None:
            if len(self.senders) >= MAX_SENDERS:
                name = OTHERS
            sender = self.senders.setdefault(name, Sender())
        return sender

    def heard(self) -> dict[str, Heard]:
        """For any thread: the nodes that send."""
        senders = list(self.senders.items())
        return {name: Heard(sender.seen_ns, sender.lag_ns) for name, sender in senders if sender.batches}

    def without_acknowledgements(self) -> int:
        """How many nodes send and do not say Hello."""
        return sum([sender.batches > 0 and not sender.version for sender in self.senders.values()])

    def _reject(self, err: WireError, message: bytes, peer: str) -> None:
        name = f"[{peer or 'local'}]"
        sender = self.sender(name)
        sender.rejects += 1
        sender.seen_ns = time.time_ns()
        self.rejects += 1
        if powers_of_ten(sender.rejects):
            log.warning("message refused from=%s refused=%d bytes=%d: %.300s", name, sender.rejects, len(message), err)

    def _refuse_foreign(self, host: str, peer: str, user: str) -> None:
        sender = self.sender(user)
        sender.foreign += 1
        if powers_of_ten(sender.foreign):
            log.warning(
                "message refused, the key is that of another host key=%s host=%s from=[%s] refused=%d; "
                "a key is for the host that its file is named after",
                *(user, host, peer, sender.foreign),
            )

    def _limit(self, peer: str, user: str) -> None:
        name = user or f"[{peer or 'local'}]"
        sender = self.sender(name)
        sender.limited += 1
        if powers_of_ten(sender.limited):
            log.warning(
                "messages left out, beyond --max-rate or --max-byte-rate from=%s left_out=%d", name, sender.limited
            )

    def report(self) -> Sequence[str]:
        """A line for all senders, and one for each that lost, doubled, or sent what could not be read.

        What is missing from a node that takes acknowledgements is not lost: it sends it again.
        """
        senders = self.senders.values()
        total = (
            f"received senders={len(senders)} batches={sum(s.batches for s in senders)} "
            f"rows={sum(s.rows for s in senders)} missing={sum(s.missing for s in senders)} "
            f"duplicates={sum(s.duplicates for s in senders)} refused={self.rejects} "
            f"skipped_values={sum(s.skipped for s in senders)} elsewhere={sum(s.elsewhere for s in senders)} "
            f"foreign={sum(s.foreign for s in senders)} limited={sum(s.limited for s in senders)}"
        )
        wrong = [
            f"sender {name} batches={s.batches} rows={s.rows} missing={s.missing} duplicates={s.duplicates} "
            f"refused={s.rejects} skipped_values={s.skipped} foreign={s.foreign} limited={s.limited}"
            for name, s in sorted(self.senders.items())
            if (s.missing and not s.version) or s.duplicates or s.rejects or s.skipped or s.foreign or s.limited
        ]
        return [total, *wrong]
