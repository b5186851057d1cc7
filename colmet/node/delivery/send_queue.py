"""The send queue: batches in memory between the measuring thread and the thread of the link."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.wakeup import Wakeup
from colmet.common.schema import Batch
from colmet.node.delivery.outbox import ENTRY_BYTES, Outbox
from colmet.node.delivery.spool import Dropped, EncodedBatch

log = logging.getLogger(__name__)

QUEUE_BYTES = 16 << 20  # of batches queued while the link's thread waits for a disk
MAX_OVERFLOWS = 256


class SendQueue:
    """Queue of encoded batches for the thread of the link. `put` never waits.

    While that thread is blocked, the queue drops its oldest batches beyond `max_bytes` and counts them.

    Args:
        encode: encoder of v1, of its short form or the full one.
        outbox: keeps the batches, in the thread of the link.
        max_bytes: limit of the queue.

    Attributes:
        fd: readable when there are batches to take.
        wake: makes `fd` readable.
        taken: number of batches put.
        overflowed: number of batches dropped by the queue.
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
    def epoch(self) -> int:
        """The epoch of this start of the agent."""
        return self.outbox.epoch

    @property
    def sent(self) -> int:
        """The number of batches sent, each counted once."""
        return self.outbox.sent_batches

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged batches, those of earlier starts included."""
        return self.outbox.acknowledged

    @property
    def waiting(self) -> int:
        """The number of batches in the outbox."""
        return len(self.outbox)

    @property
    def dropped(self) -> int:
        """The number of dropped batches."""
        return self.overflowed + self.outbox.dropped

    def dropped_ranges(self) -> list[Dropped]:
        """Return the latest ranges of batches dropped since the start."""
        return [*self._overflows, *self.outbox.dropped_ranges()]

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
