"""The journal: received records until every output has written them; on disk, and the latest also in memory.

A record becomes visible to the outputs once it is on disk for good. Each output reads at its own pace with a `Cursor`:
recent records from memory, the others from the segments. Without a directory it is in memory only.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from colmet.collector.backend import JournalRecord
from colmet.collector.journal import segments
from colmet.collector.journal.memory import RecentRecords, SenderShares
from colmet.collector.journal.output_state import OutputState
from colmet.collector.journal.segment_store import SegmentStore
from colmet.collector.journal.segments import DESCRIPTION, MESSAGE, SENDERS
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import ConfigError, OutputUnavailable, WireError
from colmet.common.schema import Batch
from colmet.common.wire import v1

log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
# Records received within this time share one fsync.
COMMIT_S = 0.2
# Then descriptions are repeated: damage to one costs at most the messages of this many bytes.
DESCRIBE_BYTES = 4 << 20
# Limit of received records not on disk yet. Beyond it reception stops, and the nodes keep their batches.
MAX_PENDING_BYTES = 256 << 20
# Decoded records in memory: with a directory a short cut, more than an output gathers; without one the only copy.
TAIL_BYTES = 160 << 20
MAX_MEMORY_BYTES = 256 << 20
RETRY_S = 2.0


class _PendingRecord(NamedTuple):
    """A record waiting to be written; `size_bytes` is that of its batches in memory, `rows` their rows."""

    kind: int
    received_ns: int
    content: bytes
    batches: tuple[Batch, ...]
    size_bytes: int
    rows: int


class Journal:
    """Received records, kept until every output has written them.

    `append` is for one thread, and each `Cursor` for one. A record::

        append --> pending -- commit: written, synced --> visible -- written by all outputs --> removable
                     ^  |                                    `-- beyond the limit of size --> dropped
                     +--+  failed: after RETRY_S

    Without a directory a record becomes visible at once. The thread::

        waits -- append --> gathers for COMMIT_S --> writes -- done --> waits
          |                                          ^    `-- failed --> pauses for RETRY_S --+
          | finish                                   +----------------------------------------+
          `--> writes all pending records once, and ends

    Args:
        directory: of the segments, created if it does not exist; empty for memory only.
        max_bytes: of all segments. Beyond it the oldest are removed, written or not, and counted in `dropped`.
        durable: called with records once they are on disk, by the writing thread; without a directory, once they are in
            memory, by the appending thread.
        segment_bytes: of one segment.

    Attributes:
        store: of the segments; None without a directory.
        journal: name of this journal, 16 hexadecimal digits.
        end: number of the next visible record.
        why: cause of the write failure; empty while writes succeed.
        unreadable: whole records with an undecodable message.
        pending_bytes: of records not on disk yet, with their batches in memory.
        changed: guards the data shared by threads; notified when records become visible.

    Raises:
        ConfigError: the directory cannot be used, or another collector uses it.
    """

    def __init__(
        self,
        directory: str,
        max_bytes: int,
        durable: Callable[[Sequence[JournalRecord]], None] = lambda records: None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.directory = directory
        self._shares = SenderShares(max_bytes if directory else MAX_MEMORY_BYTES)
        self.failures = self.all_failures = self.unreadable = 0
        self.why = ""
        self.store = SegmentStore(directory, max_bytes, segment_bytes) if directory else None
        self.journal = self.store.journal if self.store is not None else secrets.token_hex(8)
        self._seed = segments.seed_of(self.journal)
        self._senders: Callable[[], bytes] = lambda: b""
        self._since_senders = 0  # bytes after the latest state of the senders
        self._described = v1.Described()
        self._since_described = 0  # bytes in the segment, after the first description
        self._durable = durable
        self._states: list[OutputState] = []
        self._pending: list[_PendingRecord] = []
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.pending_bytes = 0
        self.changed = threading.Condition()
        first = self.store.next if self.store is not None else 0
        self._next = self.end = self._appended = first
        self._tail = RecentRecords(first)

    def limit(self, max_bytes: int) -> None:
        """Set the limit of all segments, in bytes."""
        if self.store is not None:
            self._shares.limit(max_bytes)
            self.store.limit(max_bytes)

    def read_senders(self) -> tuple[bytes, Iterator[bytes]]:
        """Return the input of the receiver's `restore`; to be read before the first append."""
        return self.store.read_senders() if self.store is not None else (b"", iter(()))

    def state(self, name: str) -> OutputState:
        """Return the state of an output, whose position keeps records from now on; ConfigError if unreadable."""
        path = os.path.join(self.directory, f"{name}.json") if self.directory else ""
        try:
            state = OutputState(path, self.journal, self.oldest, self.end)
        except OSError as err:
            raise ConfigError(f"journal: cannot read how far {name} is: {path}: {err.strerror}") from err
        if state.is_new:
            try:
                state.save(state.position)  # the start position survives a crash
            except OutputUnavailable as err:
                log.error("journal: the start of an output is not noted yet: output=%s cause=%s", name, err)
        elif state.position < state.oldest:
            log.warning(
                "journal: output was away for longer than the journal reaches back: output=%s records=%d",
                name,
                state.oldest - state.position,
            )
        self._states.append(state)
        return state

    @property
    def oldest(self) -> int:
        """Return the number of the first record still in the journal."""
        if self.store is None:
            return self._tail.first
        paths = self.store.paths
        return paths[0][0] if paths else self.end

    @property
    def dropped(self) -> int:
        """Return the number of records removed before every output had written them."""
        return self.store.dropped if self.store is not None else 0

    @property
    def full(self) -> bool:
        """Return whether the pending records have reached their limit, so that reception stops."""
        return self.pending_bytes >= MAX_PENDING_BYTES

    @property
    def works(self) -> bool:
        """Return whether appended records will be written: the thread, if any, is alive."""
        return self._thread is None or self._thread.is_alive()

    # -- writing --

    def start(self, senders: Callable[[], bytes]) -> None:
        """Begin a segment, each of which starts with what `senders` returns, and start the writing thread."""
        self._senders = senders
        if self.store is not None:
            self._shares.add("", self.store.size_bytes if self._passed() < self.end else 0, self.end)
            self._add_senders()
            self._thread = threading.Thread(target=self._run, args=(self.store,), name="journal", daemon=True)
            self._thread.start()

    def admits(self, sender: str, size: int) -> bool:
        """Return whether a sender may add a message of this size.

        For the appending thread. While an output is unavailable, no sender may displace the records of others.
        """
        if self._shares.admits(sender, size):
            return True
        self._release()
        return self._shares.admits(sender, size)

    def _release(self) -> None:
        """Release the shares of records that every output has written, or that are dropped."""
        self._shares.passed(max(self._passed(), self.oldest), self._appended)

    def append(self, message: bytes, batches: Sequence[Batch], sender: str = "") -> None:
        """Append a message of a sender. Never waits."""
        self.append_all([(message, batches, sender)])

    def append_all(self, messages: Sequence[tuple[bytes, Sequence[Batch], str]]) -> None:
        """Append messages, each with its batches and its sender. Never waits."""
        if not messages:
            return
        self._release()
        now_ns = time.time_ns()
        is_stored = self.store is not None
        found = []
        received = waiting = 0
        for content, batches, sender in messages:
            size = rows = 0
            for batch in batches:
                size += batch.size_bytes
                rows += batch.row_count
            length = len(content)
            received += length
            waiting += length + size
            self._appended += 1
            self._shares.add(sender, length if is_stored else size, self._appended)
            found.append(_PendingRecord(MESSAGE, now_ns, content, tuple(batches), size, rows))
        if self.store is None:
            records = [JournalRecord(n, now_ns, one.batches, one.rows) for n, one in enumerate(found, self._next)]
            self._next += len(records)
            self._show(records, [entry.size_bytes for entry in found])
            self._durable(records)
            return
        self._add(found, waiting)
        self._since_senders += received
        if self._since_senders >= self.store.segment_bytes:
            self._add_senders()  # after all messages covered by it, and before any other

    def _add_senders(self) -> None:
        self._since_senders = 0
        state = self._senders()
        self._add([_PendingRecord(SENDERS, time.time_ns(), state, (), 0, 0)], len(state))

    def _add(self, found: Sequence[_PendingRecord], size: int) -> None:
        with self.changed:
            first = not self._pending
            self._pending += found
            self.pending_bytes += size
            if first:
                self.changed.notify_all()

    def _run(self, store: SegmentStore) -> None:
        while True:
            with self.changed:
                while not self._pending and not self._stopping:
                    self.changed.wait()
                if not self._pending:
                    return
                if not self._stopping:
                    self.changed.wait(COMMIT_S)
                pending, self._pending = self._pending, []
            left = self._commit(store, pending)
            if left:
                with self.changed:
                    self._pending = left + self._pending
                    if self._stopping:
                        return
                    self.changed.wait_for(lambda: self._stopping, RETRY_S)

    def _commit(self, store: SegmentStore, pending: list[_PendingRecord]) -> list[_PendingRecord]:
        """Write records, one group for each segment, and show them; return the ones to retry."""
        at = 0
        while at < len(pending):
            end = at + 1
            while end < len(pending) and pending[end].kind != SENDERS:
                end += 1
            try:
                self._write(store, pending[at:end])
            except OSError as err:
                self._described.clear()
                self._failed(store, err)
                return pending[at:]
            # A defect is logged with its trace, shown by the status and retried: without this thread nothing is stored.
            except Exception as err:
                self._described.clear()
                self.failures += 1
                self.all_failures += 1
                self.why = f"defect: {err!r}"
                if powers_of_ten(self.failures):
                    log.exception("journal: defect, records=%d are retried", len(pending) - at)
                return pending[at:]
            if self.failures:
                log.warning("journal: can be written to again: path=%s waiting=%d", self.directory, len(pending) - at)
                self.failures, self.why = 0, ""
            at = end
        return []

    def _write(self, store: SegmentStore, group: Sequence[_PendingRecord]) -> None:
        parts: list[bytes] = []
        records: list[JournalRecord] = []
        sizes: list[int] = []
        number, seed, header = self._next, self._seed, segments.FORM.header
        begins = group[0].kind == SENDERS
        if begins or not store.is_begun or self._since_described >= DESCRIBE_BYTES:
            self._described.clear()
            self._since_described = 0
        written = 0
        for kind, received_ns, content, batches, size, rows in group:
            for schema in self._described.new(batches):
                description = v1.pack_description(schema)
                parts += (header(seed, number, received_ns, description, DESCRIPTION), description)
            parts += (header(seed, number, received_ns, content, kind), content)
            written += len(content) + size
            if kind == MESSAGE:
                records.append(JournalRecord(number, received_ns, batches, rows))
                sizes.append(size)
                number += 1
        packed = b"".join(parts)
        store.write(self._next, packed, begins)
        self._since_described += len(packed)
        self._next = number
        with self.changed:
            self.pending_bytes -= written
        self._show(records, sizes)
        try:
            self._durable(records)
        except Exception:  # a defect there must not cause a second write
            log.exception("journal: defect in reporting that records=%d are on disk", len(records))
        if begins:
            self.trim()

    def _failed(self, store: SegmentStore, err: OSError) -> None:
        self.failures += 1
        self.all_failures += 1
        self.why = err.strerror or str(err)
        if err.errno in (errno.ENOSPC, errno.EDQUOT):
            store.trim(self._passed(), self._passed())
        if powers_of_ten(self.failures):
            log.error(
                "journal: cannot be written to, received data waits in memory: path=%s failures=%d "
                "waiting_mbytes=%d of %d: %s; make room, or move --journal-dir",
                *(self.directory, self.failures, self.pending_bytes >> 20, MAX_PENDING_BYTES >> 20, err.strerror),
            )

    def _show(self, records: Sequence[JournalRecord], sizes: Sequence[int]) -> None:
        with self.changed:
            self._tail.extend(records, sizes)
            self.end += len(records)
            self._tail.forget(self._passed(), TAIL_BYTES if self.directory else MAX_MEMORY_BYTES)
            self.changed.notify_all()

    def _passed(self) -> int:
        """Return the number of the first record that some output has not written."""
        return min([state.position for state in self._states], default=self.end)

    def trim(self) -> None:
        """Remove the segments not needed any more, and the oldest ones beyond the limit."""
        if self.store is not None:
            keep_from = min([state.keep_from for state in self._states], default=self.end)
            self.store.trim(self._passed(), keep_from)

    def finish(self) -> None:
        """Write pending records, as far as possible now, and end the thread; idempotent. Append nothing after this."""
        with self.changed:
            self._stopping = True
            self.changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if self._pending:
                log.error("journal: records lost that could not be written: records=%d", len(self._pending))

    def close(self) -> None:
        """Finish, and close everything; idempotent."""
        self.finish()
        if self.store is not None:
            self.store.close()

    def counters(self) -> dict[str, int]:
        """Return the counters, by name."""
        store = self.store
        return {
            "records": self.end,
            "oldest": self.oldest,
            "segments": len(store.paths) if store is not None else 0,
            "bytes": store.size_bytes if store is not None else 0,
            "waiting_bytes": self.pending_bytes,
            "failures": self.all_failures,
            "dropped": self.dropped,
            "damaged": store.damages if store is not None else 0,
            "unreadable": self.unreadable,
            "torn_bytes": store.torn_bytes if store is not None else 0,
        }

    # -- reading --

    def waiting(self, position: int) -> tuple[bool, int, int]:
        """Return the backlog of an output: whether part of it is on disk only, and its bytes and rows in memory.

        Call this with `changed` locked.
        """
        size, rows = self._tail.size(position)
        return position < min(self._tail.first, self.end), size, rows

    def recent(self, position: int, most_bytes: int) -> tuple[list[JournalRecord] | None, int]:
        """Return records from memory, None if the position is before them; and the number of the first in memory."""
        with self.changed:
            if position < self._tail.first:
                return None, self._tail.first
            return self._tail.read(position, most_bytes), self._tail.first

    def refuse(self, number: int, cause: WireError) -> None:
        """Count an undecodable record."""
        with self.changed:
            self.unreadable += 1
            count = self.unreadable
        if powers_of_ten(count):
            log.error("journal: record cannot be read: number=%d unreadable=%d cause=%s", number, count, cause)
