"""The send queue of the measuring thread, and the outbox of the link's thread.

The outbox keeps batches until a collector acknowledges them: on disk with a spool directory, else in memory.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.wakeup import Wakeup
from colmet.common.schema import Batch
from colmet.common.wire.link import Ranges
from colmet.node.delivery.spool import Dropped, EncodedBatch, Spool

log = logging.getLogger(__name__)

MAX_MEMORY_BYTES = 64 << 20
MAX_AGE_S = 7 * 86400.0
MAX_DROPPED_RANGES = 256
MAX_KINDS = 1024  # sets of tables; all further ones count as one, without tables
WHAT = ("taken", "sent", "acknowledged", "dropped")
ENTRY_BYTES = 500  # memory of an entry in addition to its message


class DeliveryStats:
    """Counts of the batches of one start of the agent, by table and outcome. For any thread.

    Batches come with ascending numbers; their outcomes come as ranges of numbers. Consecutive batches have the same
    tables most of the time, so millions of them need little memory.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, ...], int] = {(): 0}
        self._counts: dict[str, list[int]] = {what: [0] for what in WHAT}
        # runs of batches with the same tables: number of the first one, and their kind
        self._firsts: list[int] = []
        self._run_kinds: list[int] = []

    def take(self, number: int, tables: tuple[str, ...]) -> None:
        """Count a batch with this number, above all former ones, and with rows of these tables."""
        with self._lock:
            kind = self._kinds.get(tables)
            if kind is None:
                kind = 0
                if len(self._kinds) < MAX_KINDS:
                    kind = self._kinds[tables] = len(self._kinds)
                    for counts in self._counts.values():
                        counts.append(0)
            if not self._run_kinds or self._run_kinds[-1] != kind:
                self._firsts.append(number)
                self._run_kinds.append(kind)
            self._counts["taken"][kind] += 1

    def count(self, what: str, first: int, last: int) -> None:
        """Count an outcome, one of `WHAT`, of the batches with these numbers, all of them counted by `take`."""
        with self._lock:
            counts = self._counts[what]
            at = max(0, bisect_right(self._firsts, first) - 1)
            while first <= last and at < len(self._firsts):
                end = self._firsts[at + 1] - 1 if at + 1 < len(self._firsts) else last
                counts[self._run_kinds[at]] += max(0, min(end, last) - first + 1)
                first = max(first, end + 1)
                at += 1

    def forget(self, before: int) -> None:
        """Forget batches with lower numbers: they have no further outcome."""
        with self._lock:
            done = bisect_right(self._firsts, before) - 1
            if done >= 64:
                del self._firsts[:done], self._run_kinds[:done]

    def totals(self) -> dict[str, int]:
        """Return the numbers of batches taken, sent, acknowledged and dropped."""
        with self._lock:
            return {what: sum(counts) for what, counts in self._counts.items()}

    def by_table(self) -> dict[str, dict[str, int]]:
        """Return the numbers of batches taken, sent, acknowledged and dropped with rows of each table."""
        with self._lock:
            found: dict[str, dict[str, int]] = {}
            for tables, kind in self._kinds.items():
                for table in tables:
                    counts = found.setdefault(table, dict.fromkeys(WHAT, 0))
                    for what in WHAT:
                        counts[what] += self._counts[what][kind]
            return found


class Outbox:
    """Batches kept until they are acknowledged. For one thread; `dropped_ranges` and the counts are for any.

    Args:
        epoch: of this start.
        spool: keeps them on disk; None keeps all in memory.
        max_memory_bytes, max_age_s: limits of the batches in memory; beyond them the oldest are dropped.

    Attributes:
        dropped: number of dropped batches.
        dropped_ranges: those dropped since the start, the latest last; at most the latest 256.
        sent_batches: batches of this start that were sent, each counted once.
        acknowledged: number of batches on a collector's disk, those of earlier starts included.
        stats: counts of the batches of this start, by table.
    """

    def __init__(
        self,
        epoch: int,
        spool: Spool | None = None,
        max_memory_bytes: int = MAX_MEMORY_BYTES,
        max_age_s: float = MAX_AGE_S,
    ) -> None:
        self.epoch = epoch
        self.spool = spool
        self.stats = DeliveryStats()
        self.dropped = self.acknowledged = self.sent_batches = 0
        self.coming = 0
        self.memory_bytes = 0
        self._max_memory_bytes = max_memory_bytes
        self._max_age_ns = int(max_age_s * 1e9)
        self._memory: dict[tuple[int, int], EncodedBatch] = {}
        self._numbers: dict[int, Ranges] = {}  # by epoch, the oldest first
        self._sent: dict[int, Ranges] = {}  # by this process, by epoch
        self.dropped_ranges: tuple[Dropped, ...] = ()

    def __len__(self) -> int:
        """Return the number of batches kept."""
        return sum([numbers.count for numbers in list(self._numbers.values())])

    def __contains__(self, key: tuple[int, int]) -> bool:
        """Return whether the batch of this epoch and number is kept."""
        numbers = self._numbers.get(key[0])
        return numbers is not None and key[1] in numbers

    def load(self) -> None:
        """Find the batches left on disk by earlier starts."""
        if self.spool is not None:
            for epoch, first, last in self.spool.scan():
                self._numbers.setdefault(epoch, Ranges()).add(first, last)
            self.drop_beyond()

    def add(self, entries: Iterable[EncodedBatch]) -> None:
        """Keep new batches, given in order."""
        for entry in entries:
            self._memory[entry[:2]] = entry
            self.memory_bytes += len(entry.message) + ENTRY_BYTES
            self._numbers.setdefault(entry.epoch, Ranges()).add(entry.seq, entry.seq)
            self.coming = entry.seq + 1
        self.flush()
        self.drop_beyond()

    def flush(self) -> None:
        """Write batches to disk that are in memory only, as far as possible now."""
        if self.spool is None or not self._memory:
            return
        written = self.spool.append(list(self._memory.values()))
        for key in list(self._memory)[:written]:
            self._forget(key)

    def drop_beyond(self) -> None:
        """Drop the oldest batches beyond the limits of size and age."""
        if self.spool is not None:
            for dropped in self.spool.beyond():
                self.drop(dropped)
        too_old_ns = time.time_ns() - self._max_age_ns
        while self._memory:
            oldest = next(iter(self._memory.values()))
            if self.memory_bytes <= self._max_memory_bytes and oldest.time_ns >= too_old_ns:
                break
            cause = "age" if oldest.time_ns < too_old_ns else "memory"
            self.drop(Dropped(oldest.epoch, oldest.seq, oldest.seq, oldest.time_ns, oldest.time_ns, cause))

    def _forget(self, key: tuple[int, int]) -> None:
        entry = self._memory.pop(key, None)
        if entry is not None:
            self.memory_bytes -= len(entry.message) + ENTRY_BYTES

    def message(self, key: tuple[int, int]) -> bytes | None:
        """Return the message of a batch, in the full form; drop the batch and return None if it is damaged.

        Raises:
            OSError: it cannot be read now.
        """
        entry = self._memory.get(key)
        if entry is not None:
            return entry.full
        message = self.spool.read(*key) if self.spool is not None else None
        if message is None:
            self.drop_damaged(key)
        return message

    def following(self, key: tuple[int, int]) -> tuple[int, int] | None:
        """Return the first kept batch at or after this one; None without one."""
        for epoch, numbers in self._numbers.items():
            if epoch >= key[0]:
                seq = numbers.at_or_after(key[1] if epoch == key[0] else 0)
                if seq is not None:
                    return epoch, seq
        return None

    def ranges(self) -> list[tuple[int, int, int]]:
        """Return epoch, lowest and highest number for each epoch with kept batches."""
        return [(epoch, numbers.first, numbers.last) for epoch, numbers in self._numbers.items()]

    def sent(self, key: tuple[int, int]) -> None:
        """Note that this batch was sent, for the first time or again."""
        if self._sent.setdefault(key[0], Ranges()).add(key[1], key[1]) and key[0] == self.epoch:
            self.sent_batches += 1
            self.stats.count("sent", key[1], key[1])

    def was_sent(self, key: tuple[int, int]) -> bool:
        """Return whether this process has sent this batch."""
        return key[1] in self._sent.get(key[0], ())

    def acknowledge(self, epoch: int, first: int, last: int) -> None:
        """Remove acknowledged batches."""
        self.acknowledged += _count(self._remove(epoch, first, last, "acknowledged"))

    def count_in(self, epoch: int, first: int, last: int) -> int:
        """Return the number of kept batches in a range."""
        numbers = self._numbers.get(epoch)
        return _count(numbers.within(first, last)) if numbers is not None else 0

    def unsent_of(self, epoch: int, first: int, last: int) -> int:
        """Return the number of kept batches in a range that belong to this start and were never sent."""
        if epoch != self.epoch:
            return 0
        numbers = self._numbers.get(epoch, Ranges())
        sent = self._sent.get(epoch, Ranges())
        return sum([b - a + 1 - _count(sent.within(a, b)) for a, b in numbers.within(first, last)])

    def release(self, key: tuple[int, int]) -> None:
        """Remove a batch sent to a collector without acknowledgements."""
        self._remove(*key, key[1], "")

    def drop_damaged(self, key: tuple[int, int]) -> None:
        """Drop a batch that cannot be read any more; its time is unknown."""
        self.drop(Dropped(*key, key[1], 0, 0, "damage"))

    def drop(self, batches: Dropped) -> None:
        """Drop batches, as far as they are kept."""
        for low, high in self._remove(batches.epoch, batches.first, batches.last, "dropped"):
            self._note_dropped(batches._replace(first=low, last=high))

    def _note_dropped(self, dropped: Dropped) -> None:
        before, self.dropped = self.dropped, self.dropped + dropped.last - dropped.first + 1
        if powers_of_ten(self.dropped, before):
            log.error(
                "batches dropped that no collector has acknowledged cause=%s dropped=%d epoch=%d numbers=%d..%d",
                *(dropped.cause, self.dropped, *dropped[:3]),
            )
        ranges = self.dropped_ranges
        following = dropped.epoch, dropped.first, dropped.cause
        if ranges and (ranges[-1].epoch, ranges[-1].last + 1, ranges[-1].cause) == following:
            dropped = ranges[-1]._replace(last=dropped.last, until_ns=dropped.until_ns)
            ranges = ranges[:-1]
        self.dropped_ranges = (*ranges, dropped)[-MAX_DROPPED_RANGES:]

    def _remove(self, epoch: int, first: int, last: int, what: str) -> list[tuple[int, int]]:
        """Remove batches, as far as they are kept, and count their outcome; return their numbers, as ranges."""
        numbers = self._numbers.get(epoch)
        if numbers is None:
            return []
        gone = numbers.remove(first, last)
        for low, high in gone:
            if epoch == self.epoch and what:
                self.stats.count(what, low, high)
            if self._memory:
                if high - low < len(self._memory):
                    seqs: Iterable[int] = range(low, high + 1)
                else:
                    seqs = [key[1] for key in self._memory if key[0] == epoch and low <= key[1] <= high]
                for seq in seqs:
                    self._forget((epoch, seq))
            if self.spool is not None:
                self.spool.remove(epoch, low, high)
        if not numbers.count:
            del self._numbers[epoch]
        if epoch == self.epoch:
            lowest = numbers.first if numbers.count else self.coming
            self.stats.forget(lowest)
            self._sent.get(epoch, Ranges()).remove(0, lowest - 1)
        elif not numbers.count:
            self._sent.pop(epoch, None)
        return gone

    def counters(self) -> dict[str, int]:
        """Return the counters, by name."""
        return {
            "sent": self.sent_batches,
            "acknowledged": self.acknowledged,
            "dropped": self.dropped,
            "held": len(self),
            "oldest_s": self.oldest_s(),
            "memory_bytes": self.memory_bytes,
            **({f"disk_{name}": n for name, n in self.spool.counters().items()} if self.spool is not None else {}),
        }

    def oldest_s(self) -> int:
        """Return the age of the oldest kept batch in seconds; 0 without batches. From any thread."""
        times = [entry.time_ns for entry in list(self._memory.values())[:1]]
        if self.spool is not None and self.spool.since_ns():
            times.append(self.spool.since_ns())
        return max(0, time.time_ns() - min(times)) // 10**9 if times else 0

    def close(self) -> None:
        """Close the spool; log the loss of batches that are not on disk."""
        if self.spool is not None:
            self.spool.retry()
            self.flush()
            self.spool.close()
        if self._memory:
            log.warning(
                "ending with batches=%d that no collector has acknowledged, and that are lost", len(self._memory)
            )


def _count(ranges: Iterable[tuple[int, int]]) -> int:
    return sum([last - first + 1 for first, last in ranges])


QUEUE_BYTES = 16 << 20  # of batches queued while the link's thread waits for a disk
MAX_OVERFLOWS = 256


class SendQueue:
    """Queue of encoded batches for the thread of the link. `put` never waits.

    While that thread is blocked, the queue drops its oldest batches beyond `max_bytes` and counts them.

    Args:
        encode: encoder of v1, of its short form or the full one.
        outbox: keeps the batches, in the thread of the link.

    Attributes:
        fd: readable when there are batches to take; `wake` makes it so.
        taken, overflowed: numbers of batches put, and of those dropped by the queue.
    """

    def __init__(self, encode: Callable[[Batch], bytes], outbox: Outbox, max_bytes: int = QUEUE_BYTES) -> None:
        self.outbox = outbox
        self.taken = self.overflowed = 0
        self._overflows: deque[Dropped] = deque(maxlen=MAX_OVERFLOWS)
        self._encode = encode
        self._max_bytes = max_bytes
        self._queue: deque[EncodedBatch] = deque()
        # each is written to by one thread alone
        self._bytes_in = self._bytes_out = self._bytes_dropped = 0
        self._wakeup = Wakeup()
        self.fd = self._wakeup.fd
        self.wake = self._wakeup.wake

    def put(self, batch: Batch) -> None:
        """Encode a batch and queue it."""
        message = self._encode(batch)
        schemas = tuple([table.schema for table in batch.tables])
        entry = EncodedBatch(self.outbox.epoch, batch.seq or 0, batch.time_ns, message, schemas)
        self.outbox.stats.take(entry.seq, tuple([schema.name for schema in schemas]))
        self.taken += 1
        self._bytes_in += len(message) + ENTRY_BYTES
        self._queue.append(entry)
        while self._bytes_in - self._bytes_out - self._bytes_dropped > self._max_bytes and len(self._queue) > 1:
            self._drop_oldest()
        log.debug("batch queued seq=%s bytes=%d rows=%d", batch.seq, len(message), batch.row_count)
        self.wake()

    def _drop_oldest(self) -> None:
        try:
            entry = self._queue.popleft()
        except IndexError:  # the other thread took them meanwhile
            return
        self._bytes_dropped += len(entry.message) + ENTRY_BYTES
        self.overflowed += 1
        self.outbox.stats.count("dropped", entry.seq, entry.seq)
        self._overflows.append(Dropped(entry.epoch, entry.seq, entry.seq, entry.time_ns, entry.time_ns, "queue"))
        if powers_of_ten(self.overflowed):
            log.error(
                "batch dropped, as the thread that keeps and sends them is behind dropped=%d; does the disk of "
                "--spool-dir answer?",
                self.overflowed,
            )

    @property
    def dropped(self) -> int:
        """The number of dropped batches."""
        return self.overflowed + self.outbox.dropped

    def dropped_ranges(self) -> list[Dropped]:
        """Return the latest ranges of batches dropped since the start."""
        return [*self._overflows, *self.outbox.dropped_ranges]

    def counters(self) -> dict[str, int]:
        """Return the counters, by name."""
        return {"taken": self.taken, "overflowed": self.overflowed, **self.outbox.counters()}

    def take(self) -> list[EncodedBatch]:
        """Return the batches put since the last call."""
        self._wakeup.clear()
        entries = []
        while self._queue:
            try:
                entries.append(self._queue.popleft())
            except IndexError:  # it overflowed meanwhile
                break
        self._bytes_out += sum([len(entry.message) + ENTRY_BYTES for entry in entries])
        return entries

    def close(self) -> None:
        """Close the descriptors."""
        self._wakeup.close()
