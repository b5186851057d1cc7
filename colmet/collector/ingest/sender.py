"""One sender: the numbers of its received batches, and its counts."""

from __future__ import annotations

import base64
import itertools
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from colmet.common.wire.link import Hello, Ranges

# Starts of one node with batches that may still come: a node started several times while the collector was away sends
# all of them, and again if the collector is killed before it has acknowledged them.
MAX_EPOCHS = 256
# Ranges of received batches of one start: new batches arrive among re-sent older ones, and some go to another
# collector.
MAX_RUNS = 1024
MAX_CHECKSUMS = 16384  # of one sender, about; those of its latest starts
# Of one start of an agent: more than its unacknowledged batches in flight, and than most files of its spool have, as
# the next start sends all of such a file again. So a re-sent one is recognised.
KEPT = 4096
LOW = (1 << 32) - 1
END = 1 << 63  # above all numbers
# Counts of received data: kind of the metric, and its help.
COUNTS = {
    "batches": ("counter", "Batches taken in."),
    "rows": ("counter", "Rows in them."),
    "missing": ("gauge", "Batches that were sent, going by their numbers, and have not come."),
    "duplicates": ("counter", "Batches that had come before, and were left out."),
    "rejects": ("counter", "Messages that could not be read, by address."),
    "skipped": ("counter", "Values of the Rust node that have no name here."),
    "elsewhere": ("gauge", "Batches that another collector has, or that the node has given up."),
    "foreign": ("counter", "Messages with its key and data of another host, refused."),
    "limited": ("counter", "Messages beyond what is taken from one sender, left out."),
    "left_out": ("counter", "Rows left out, of tables that do not fit or are beyond what one sender may make."),
    "conflicts": ("counter", "Batches with the number of one that had come and other content; both are kept."),
    "second_machine": ("counter", "Batches of another machine or agent with its host name, refused; they stay there."),
    "undescribed": ("counter", "Messages without a description that has not come either, refused; they come again."),
}


class Checksums:
    """Checksums of the latest batches of one start, by number, and of those that may be sent again. 8 bytes each."""

    def __init__(self) -> None:
        # A node sends what it has just measured among what its spool has, so the order is that of arrival.
        self._latest = array("Q")
        self._next = 0  # place of the next one, once all are taken
        self._kept = array("Q")

    def __len__(self) -> int:
        """Return the number of checksums."""
        return len(self._latest) + len(self._kept)

    def note(self, number: int, crc: int) -> None:
        """Keep the checksum of a number; beyond `KEPT` it replaces the oldest."""
        entry = (number + 1 & LOW) << 32 | crc
        if len(self._latest) < KEPT:
            self._latest.append(entry)
        else:
            self._latest[self._next] = entry
            self._next = (self._next + 1) % KEPT

    def has(self, number: int, crc: int) -> bool | None:
        """Return whether a batch of this number and checksum has come; None if its checksum is not kept (any more)."""
        entry = (number + 1 & LOW) << 32 | crc
        if entry in self._latest or entry in self._kept:
            return True
        place = entry >> 32
        return False if any(other >> 32 == place for other in itertools.chain(self._latest, self._kept)) else None

    def keep(self, floor: int) -> None:
        """Keep those of numbers from `floor` on until the next call: a new start of the node sends them again.

        Batches of the same start that it had not sent before come first, more than `KEPT` of them after an outage.
        """
        self._kept = self._entries(floor)[-2 * KEPT :]
        self._latest, self._next = array("Q"), 0

    def _entries(self, floor: int) -> array[int]:
        """Return the entries of numbers from `floor` on, the latest last."""
        entries = [*self._kept, *self._latest[self._next :], *self._latest[: self._next]]
        return array("Q", [entry for entry in entries if (entry >> 32) - 1 >= floor])

    def state(self, floor: int) -> str:
        """Return the checksums that may be needed again, of numbers from `floor` on, as text for `restored`."""
        return base64.b64encode(self._entries(floor).tobytes()).decode()

    @classmethod
    def restored(cls, state: str) -> Checksums:
        """Return the checksums of a `state`; ValueError or TypeError if the text is malformed."""
        checksums = cls()
        checksums._kept.frombytes(base64.b64decode(state, validate=True)[-8 * 3 * KEPT :])
        return checksums


class Sequence64:
    """The received numbers of one count.

    Beyond the limit of ranges the oldest are forgotten. A forgotten number counts as new when it comes again: it may be
    stored twice then, and nothing is lost.

    Attributes:
        checksums: of the latest batches.
        floor: lowest number still to come, from the node's Hello; -1 without one. Batches sent before the collector
            listened are then not missing.
    """

    def __init__(self, floor: int = -1) -> None:
        self.floor = floor
        self.checksums = Checksums()
        self._seen = Ranges()
        self._forgotten = 0  # missing between forgotten ranges

    def __len__(self) -> int:
        """Return the number of received ranges."""
        return len(self._seen)

    def __contains__(self, number: int) -> bool:
        """Return whether this number has come."""
        return number in self._seen

    def add(self, number: int, most: int = MAX_RUNS) -> bool:
        """Note a number; return False if it is a duplicate. At most `most` ranges are kept."""
        if not self._seen.add(number, number):
            return False
        while len(self._seen) > most:
            (first, last), (following, _) = itertools.islice(self._seen, 2)
            self._seen.remove(first, last)
            self._forgotten += max(0, following - max(last + 1, self.floor))
        return True

    def follow(self, number: int, crc: int, most: int) -> bool:
        """Note a batch with the number after the last received one; return False for any other, which is not noted."""
        if len(self._seen) > most or not self._seen.follow(number):
            return False
        self.checksums.note(number, crc)
        return True

    @property
    def missing(self) -> int:
        """Return the count of missing numbers up to the last received: from the floor, or from the first received."""
        if not self._seen.count:
            return self._forgotten
        start = self.floor if self.floor >= 0 else self._seen.first
        return self._forgotten + self._absent(start, self._seen.last)

    @property
    def elsewhere(self) -> int:
        """Return the count of missing numbers below the floor: another collector has them, or they are lost."""
        return self._absent(self._seen.first, min(self.floor - 1, self._seen.last)) if self._seen.count else 0

    def _absent(self, first: int, last: int) -> int:
        """Return the count of numbers from `first` to `last` that have not come."""
        return max(0, last + 1 - first - sum([b - a + 1 for a, b in self._seen.within(first, last)]))

    def seen(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the received numbers from `first` to `last`, in ranges."""
        return self._seen.within(first, last)

    def state(self) -> list[Any]:
        """Return the state for `restored`: the first number, the next one, the gaps, the floor."""
        if not self._seen.count:
            return [-1, -1, [], self.floor]
        runs = list(self._seen)
        gaps = [(last + 1, first) for (_, last), (first, _) in zip(runs, runs[1:])]
        return [self._seen.first, self._seen.last + 1, gaps, self.floor]

    @classmethod
    def restored(cls, state: Sequence[Any]) -> Sequence64:
        """Return the count with this state; ValueError or TypeError if the state is malformed."""
        first, end, gaps, *rest = state
        sequence = cls(*[int(floor) for floor in rest])
        if int(first) < int(end):
            sequence._seen.add(int(first), int(end) - 1)
        for first, end in gaps[-MAX_RUNS:]:
            sequence._seen.remove(int(first), int(end) - 1)
        return sequence


@dataclass
class Sender:
    """Counts of one host (or of one address, for messages without a host)."""

    batches: int = 0  # accepted
    rows: int = 0  # in them
    duplicates: int = 0  # batches received before, dropped
    rejects: int = 0  # unreadable messages, counted by address
    skipped: int = 0  # values without a name here
    seen_ns: int = 0  # time of its latest message, since the epoch; 0 before
    lag_ns: int = 0  # age of its latest batch on arrival, by the clocks of both
    dialect: str = ""  # of its latest batch
    version: str = ""  # of Colmet there; empty without a Hello, for nodes without acknowledgements
    foreign: int = 0  # messages with its key and data of other hosts, refused
    limited: int = 0  # messages beyond the limits of one sender, dropped
    left_out: int = 0  # rows dropped from accepted batches, as their tables do not fit
    conflicts: int = 0  # batches with the number of an earlier one and other content; both are kept
    second_machine: int = 0  # batches of another machine with this host name, refused and not acknowledged
    undescribed: int = 0  # messages in the short form with a table unknown here, refused and not acknowledged
    _forgotten_missing: int = 0
    _epochs: dict[int, Sequence64] = field(default_factory=dict)
    _checked: list[int] = field(default_factory=list)  # epochs with checksums
    _held: frozenset[int] = frozenset()  # epochs with batches still to come, from its Hello

    @property
    def missing(self) -> int:
        """Return the number of batches sent, by the numbers of the received ones, and not received."""
        return self._forgotten_missing + sum(sequence.missing for sequence in self._epochs.values())

    @property
    def elsewhere(self) -> int:
        """Return the number of batches not to come any more: at another collector, or dropped by the node."""
        return sum(sequence.elsewhere for sequence in self._epochs.values())

    @property
    def runs(self) -> int:
        """Return the number of ranges in memory, about."""
        return sum([1 + len(sequence) for sequence in self._epochs.values()])

    def add(self, other: Sender) -> None:
        """Add the counts of another sender."""
        for name in COUNTS.keys() - {"missing", "elsewhere"}:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._forgotten_missing += other.missing

    def _bound(self, most: int, kept: int) -> None:
        """Forget starts beyond `most`, not their counts: the oldest without batches to come first, `kept` last."""
        extra = len(self._epochs) - most
        if extra > 0:
            for oldest in sorted(self._epochs, key=lambda epoch: (epoch == kept, epoch in self._held, epoch))[:extra]:
                self._forgotten_missing += self._epochs.pop(oldest).missing

    def knows(self, epoch: int, number: int) -> bool:
        """Return whether a batch of this number has come, with any content."""
        sequence = self._epochs.get(epoch)
        return sequence is not None and number in sequence

    def has(self, epoch: int, number: int, crc: int, is_keyed: bool) -> bool:
        """Return whether exactly this batch has come, by number and content.

        Where the content is forgotten, the number decides with a key: nobody else can have used it.
        """
        sequence = self._epochs.get(epoch)
        if sequence is None or number not in sequence:
            return False
        has = sequence.checksums.has(number, crc)
        return is_keyed if has is None else has

    def holds(self, epoch: int) -> bool:
        """Return whether the node has said that batches of this start are still to come."""
        return epoch in self._held

    def note(self, epoch: int, number: int, crc: int, epochs: int = MAX_EPOCHS, runs: int = MAX_RUNS) -> None:
        """Note a new batch.

        At most `epochs` starts are kept, with `runs` ranges each.
        """
        sequence = self._epochs.get(epoch)
        if sequence is None:
            sequence = self._epochs[epoch] = Sequence64()
            self._bound(epochs, epoch)
        sequence.add(number, runs)
        if epoch not in self._checked:
            self._bound_checksums()
            self._checked.append(epoch)
        sequence.checksums.note(number, crc)

    def follow(self, epoch: int, number: int, crc: int, runs: int) -> bool:
        """Note a new batch with the number after the last of its start; return False for any other, not noted.

        It is what `has` and `note` come to for most batches.
        """
        sequence = self._epochs.get(epoch)
        return sequence is not None and epoch in self._checked and sequence.follow(number, crc, runs)

    def _bound_checksums(self) -> None:
        """Limit the checksums of all starts together: those of the earliest starts are forgotten first."""
        self._checked = [epoch for epoch in self._checked if epoch in self._epochs]
        while sum([len(self._epochs[epoch].checksums) for epoch in self._checked]) > MAX_CHECKSUMS:
            self._epochs[self._checked.pop(0)].checksums = Checksums()

    def hello(self, hello: Hello, epochs: int = MAX_EPOCHS) -> None:
        """Note the batches still to come, from a Hello; at most `epochs` starts are kept."""
        self.version = hello.version
        self.seen_ns = time.time_ns()
        floors = {epoch: first for epoch, first, _ in hello.held[-epochs:]}
        floors.setdefault(hello.epoch, hello.coming)
        is_new_start = hello.epoch not in self._held
        self._held = frozenset(floors)
        for epoch, floor in floors.items():
            sequence = self._epochs.setdefault(epoch, Sequence64())
            sequence.floor = floor
            if is_new_start and epoch != hello.epoch:
                sequence.checksums.keep(floor)
        self._bound(epochs, hello.epoch)
        for epoch, sequence in self._epochs.items():
            if epoch < hello.epoch and epoch not in floors:
                sequence.floor = END

    def seen(self, epoch: int, first: int, last: int) -> list[tuple[int, int]]:
        """Return the received batches from `first` to `last`, in ranges."""
        sequence = self._epochs.get(epoch)
        return sequence.seen(first, last) if sequence is not None else []

    def dump(self) -> tuple[dict[int, list[Any]], dict[int, str]]:
        """Return the state for `restore`: numbers and checksums, each by epoch."""
        checked = [(epoch, self._epochs[epoch]) for epoch in self._checked if epoch in self._epochs]
        return (
            {epoch: sequence.state() for epoch, sequence in self._epochs.items()},
            {epoch: state for epoch, one in checked if (state := one.checksums.state(one.floor))},
        )

    def restore(self, epochs: Mapping[str, Sequence[Any]], checksums: Mapping[str, str]) -> None:
        """Continue from the result of `dump`."""
        self._epochs = {int(epoch): Sequence64.restored(state) for epoch, state in epochs.items()}
        for key, state in checksums.items():
            if int(key) in self._epochs:
                self._epochs[int(key)].checksums = Checksums.restored(state)
                self._checked.append(int(key))
