"""Bytes to batches, with an account of every sender: what came, what is missing, what came twice, what was refused."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from colmet.common.cli import powers_of_ten
from colmet.common.errors import WireError
from colmet.common.schema import Batch
from colmet.common.wire import Decoder

log = logging.getLogger(__name__)

# Hosts and addresses that are told apart. Anyone who can connect can make names up: more than these share one entry.
MAX_SENDERS = 8192
OTHERS = "(others)"
MAX_EPOCHS = 2  # starts of one node whose batches may still be on their way
MAX_GAPS = 64  # ranges of missing batches that are remembered, so that late ones are told from doubles


class Sequence64:
    """Which numbers of one count have come.

    The first number that comes starts the count: what a node sent before the collector listened is not missing.
    """

    def __init__(self) -> None:
        self._first = self._next = -1
        self._gaps: list[tuple[int, int]] = []  # ascending, each [first, end)
        self.missing = 0

    def add(self, number: int) -> bool:
        """Note a number; False where it has come before."""
        if self._next < 0:
            self._first, self._next = number, number + 1
            return True
        if number >= self._next:
            if number > self._next:
                self.missing += number - self._next
                self._gaps.append((self._next, number))
                del self._gaps[:-MAX_GAPS]  # those in the oldest gaps then stay missing, and are taken for doubles
            self._next = number + 1
            return True
        if number < self._first:  # sent before the first that came, and not seen: it overtook
            self._gaps.insert(0, (number + 1, self._first))
            self.missing += self._first - number - 1
            del self._gaps[:-MAX_GAPS]
            self._first = number
            return True
        for n, (first, end) in enumerate(self._gaps):
            if first <= number < end:
                self._gaps[n : n + 1] = [part for part in ((first, number), (number + 1, end)) if part[0] < part[1]]
                del self._gaps[:-MAX_GAPS]
                self.missing -= 1
                return True
        return False


@dataclass
class Sender:
    """What came from one host (or, for messages that name none, from one address).

    Attributes:
        batches: taken in.
        rows: in them.
        duplicates: batches that had come before, and were left out.
        rejects: messages that could not be read; they are counted by address.
        skipped: values that have no name here.
    """

    batches: int = 0
    rows: int = 0
    duplicates: int = 0
    rejects: int = 0
    skipped: int = 0
    _forgotten_missing: int = 0
    _epochs: OrderedDict[int, Sequence64] = field(default_factory=OrderedDict)

    @property
    def missing(self) -> int:
        """Batches that were sent, going by the numbers of those that came, and have not come."""
        return self._forgotten_missing + sum(sequence.missing for sequence in self._epochs.values())

    def is_new(self, batch: Batch) -> bool:
        """Note a batch; False where it has come before. Batches without numbers are always new."""
        if batch.epoch is None or batch.seq is None:
            return True
        sequence = self._epochs.get(batch.epoch)
        if sequence is None:
            sequence = self._epochs[batch.epoch] = Sequence64()
            if len(self._epochs) > MAX_EPOCHS:
                self._forgotten_missing += self._epochs.popitem(last=False)[1].missing
        return sequence.add(batch.seq)


class Receiver:
    """Decodes messages and keeps the account.

    Attributes:
        senders: by host name, or by address for what names no host; at most `MAX_SENDERS` and one for all others.
    """

    def __init__(self) -> None:
        self._decoder = Decoder()
        self.senders: dict[str, Sender] = {}
        self.dialects: dict[str, int] = {}
        self.rejects = 0

    def take(self, message: bytes, peer: str) -> list[Batch]:
        """The batches in a message that have not come before.

        A message that cannot be read is counted for `peer`, the address it came from, and gives none.
        """
        try:
            decoded = self._decoder.decode(message)
        except WireError as err:
            self._reject(err, message, peer)
            return []
        self.dialects[decoded.dialect] = self.dialects.get(decoded.dialect, 0) + 1
        if decoded.skipped:
            self.sender(decoded.batches[0].host if decoded.batches else peer).skipped += decoded.skipped
        fresh = []
        for batch in decoded.batches:
            sender = self.sender(batch.host)
            if sender.is_new(batch):
                sender.batches += 1
                sender.rows += batch.row_count
                fresh.append(batch)
            else:
                sender.duplicates += 1
                log.debug("batch came twice host=%s epoch=%s seq=%s", batch.host, batch.epoch, batch.seq)
        return fresh

    def sender(self, name: str) -> Sender:
        """The account of one sender."""
        sender = self.senders.get(name)
        if sender is None:
            if len(self.senders) >= MAX_SENDERS:
                name = OTHERS
            sender = self.senders.setdefault(name, Sender())
        return sender

    def _reject(self, err: WireError, message: bytes, peer: str) -> None:
        name = f"[{peer or 'local'}]"
        sender = self.sender(name)
        sender.rejects += 1
        self.rejects += 1
        if powers_of_ten(sender.rejects):
            log.warning("message refused from=%s refused=%d bytes=%d: %.300s", name, sender.rejects, len(message), err)

    def report(self) -> Sequence[str]:
        """A line for all senders, and one for each that lost, doubled, or sent what could not be read."""
        senders = self.senders.values()
        total = (
            f"received senders={len(senders)} batches={sum(s.batches for s in senders)} "
            f"rows={sum(s.rows for s in senders)} missing={sum(s.missing for s in senders)} "
            f"duplicates={sum(s.duplicates for s in senders)} refused={self.rejects} "
            f"skipped_values={sum(s.skipped for s in senders)}"
        )
        wrong = [
            f"sender {name} batches={s.batches} rows={s.rows} missing={s.missing} duplicates={s.duplicates} "
            f"refused={s.rejects} skipped_values={s.skipped}"
            for name, s in sorted(self.senders.items())
            if s.missing or s.duplicates or s.rejects or s.skipped
        ]
        return [total, *wrong]
