"""What was received, until every output has written it: on disk, and the latest of it in memory, too.

A record becomes visible to the outputs once it is on disk for good. They read at their own pace: what is recent from
memory, the rest from the segments. Without a directory there is memory alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import secrets
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from colmet.collector.backend import JournalRecord
from colmet.collector.journal import segments
from colmet.collector.journal.output_state import MAX_BYTES, OutputState, parse
from colmet.collector.journal.segments import MESSAGE, SENDERS, SegmentReader
from colmet.collector.journal.sender_shares import SenderShares
from colmet.common.errors import ConfigError, OutputUnavailable, WireError
from colmet.common.record_log import Damage, LogRecord, LogWriter
from colmet.common.runtime.directories import check_writable, make, sync_directory
from colmet.common.runtime.files import write_whole
from colmet.common.runtime.logs import powers_of_ten
from colmet.common.schema import Batch
from colmet.common.wire import Decoder

log = logging.getLogger(__name__)

FORM = 1  # of the directory
NAME_FILE = "journal.json"
JOURNAL = re.compile("[0-9a-f]{16}", re.ASCII)
LOCK_FILE = "lock"
NEW_FILE = "new"  # a segment that is begun
ASIDE = "damaged"
SEGMENT_BYTES = 64 << 20
# Records that come within this time share one fsync.
COMMIT_S = 0.2
# What has been received and is not on disk yet. Beyond it nothing more is received, so that the nodes keep it.
MAX_PENDING_BYTES = 256 << 20
# Decoded records in memory: with a journal they are a short cut, without one they are all there is.
TAIL_BYTES = 96 << 20
MAX_MEMORY_BYTES = 256 << 20
MAX_ASIDE_BYTES, MAX_ASIDE_FILES = 64 << 20, 1000
RETRY_S = 2.0
# Of the room: what is written everywhere may stay this long, for a damaged file to be made anew.
KEEP_SHARE = 0.5


class Reading(NamedTuple):
    """Records in order.

    Attributes:
        records: as many as were asked for.
        lost: how many that should have been before or between them are gone.
        after: position behind them.
    """

    records: list[JournalRecord]
    lost: int
    after: int


class _PendingRecord(NamedTuple):
    """What waits to be written to the journal; `size_bytes` is that of the batches in memory."""

    kind: int
    received_ns: int
    content: bytes
    batches: tuple[Batch, ...]
    size_bytes: int


class _Tail:
    """The latest records, decoded, with what they add up to."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.records: list[JournalRecord] = []
        # of all records ever up to and with this one
        self._bytes: list[int] = []
        self._rows: list[int] = []
        self._bytes_before = self._rows_before = 0

    def extend(self, records: Sequence[JournalRecord], sizes: Sequence[int]) -> None:
        size = self._bytes[-1] if self._bytes else self._bytes_before
        rows = self._rows[-1] if self._rows else self._rows_before
        for record, more in zip(records, sizes):
            size += more
            rows += sum([batch.row_count for batch in record.batches])
            self._bytes.append(size)
            self._rows.append(rows)
        self.records.extend(records)

    def size(self, position: int) -> tuple[int, int]:
        """Bytes and rows of the records from this position on, as far as they are here."""
        at = position - self.first
        if not self.records or at >= len(self.records):
            return 0, 0
        size, rows = (self._bytes[at - 1], self._rows[at - 1]) if at > 0 else (self._bytes_before, self._rows_before)
        return self._bytes[-1] - size, self._rows[-1] - rows

    def read(self, position: int, most_bytes: int) -> list[JournalRecord]:
        """Records from a position on that is here; at least one if there is any."""
        at = position - self.first
        if at >= len(self.records):
            return []
        before = self._bytes[at - 1] if at > 0 else self._bytes_before
        end = bisect_right(self._bytes, before + most_bytes, lo=at)
        return self.records[at : max(end, at + 1)]

    def forget(self, passed: int, most_bytes: int) -> None:
        """Forget records before `passed`, and the oldest beyond so many bytes."""
        if not self.records:
            return
        beyond = bisect_right(self._bytes, self._bytes[-1] - most_bytes)
        count = min(max(passed - self.first, beyond), len(self.records))
        # a list is cut at its front in time that goes with its length: in large pieces
        if count and (count >= 256 or count * 4 >= len(self.records)):
            self._bytes_before, self._rows_before = self._bytes[count - 1], self._rows[count - 1]
            del self.records[:count], self._bytes[:count], self._rows[:count]
            self.first += count


def check_directory(directory: str) -> None:
    """See that a journal could be kept in a directory, short of writing there; "" is memory.

    Raises:
        ConfigError: it could not.
    """
    if not directory:
        return
    try:
        check_writable(directory, parents=True)
        read_name(directory)
    except OSError as err:
        raise _unusable(directory, err) from err


def _unusable(directory: str, err: OSError) -> ConfigError:
    return ConfigError(f"journal {directory}: {err.strerror}; give --journal-dir a directory that this user can write")


class Journal:
    """Append-only, checksummed, fsynced in groups.

    `append` is for one thread, `Cursor`s are for one thread each.

    Args:
        directory: of the segments, created if it is not there; empty for memory alone.
        max_bytes: of all segments. Beyond it the oldest go, whether written everywhere or not, and that is counted.
        durable: told of records once they are on disk, by the thread that writes them; without a directory, once they
            are in memory, by the one that appends.

    Attributes:
        journal: name of this journal, 16 hexadecimal digits.
        end: number that the next visible record will have.
        failures: times in a row that it could not be written to.
        all_failures: times that it could not be written to.
        why: it cannot be written to; empty while it can.
        dropped: records that were removed before every output had written them.
        torn_bytes: behind the last whole record, cut off at the start.

    Raises:
        ConfigError: the directory cannot be used, or is used by another collector.
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
        self.failures = self.all_failures = self.dropped = self.torn_bytes = self.damages = self.unreadable = 0
        self.why = ""
        self._most_segment_bytes = segment_bytes
        self.limit(max_bytes)
        self._senders: Callable[[], bytes] = lambda: b""
        self._durable = durable
        self._states: list[OutputState] = []
        self._lock = -1
        self._writer: LogWriter | None = None
        self._since_senders = 0
        self._senders_from = 0  # first record of a segment whose account, with what came since, tells all that has come
        self._pending: list[_PendingRecord] = []
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._damages: set[tuple[str, int]] = set()  # path and offset of what has been told
        self._paths: list[tuple[int, str]] = []
        self._sizes: dict[str, int] = {}
        self.pending_bytes = 0
        # Guards all of the above that more than one thread uses; notified when records become visible.
        self.changed = threading.Condition()
        self.journal = secrets.token_hex(8)
        first = 0
        if directory:
            try:
                first = self._open()
            except OSError as err:
                self._unlock()
                raise _unusable(directory, err) from err
            except BaseException:
                self._unlock()
                raise
        self._next = self.end = self._appended = first
        self._seed = segments.seed_of(self.journal)
        self._tail = _Tail(first)

    def limit(self, max_bytes: int) -> None:
        """Let all segments have this size from now on."""
        self._max_bytes = max_bytes
        if self.directory:
            self._shares.limit(max_bytes)
        self._segment_bytes = min(self._most_segment_bytes, max_bytes // 8)

    # -- the directory --

    def _open(self) -> int:
        """Lock the directory and look through it; the number of the next record."""
        make(self.directory, 0o700)
        self._lock = os.open(os.path.join(self.directory, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise ConfigError(
                f"journal {self.directory}: another process uses it; stop the other colmet-collector, "
                f"or let --journal-dir name another directory"
            ) from err
        self._paths = segments.list_segments(self.directory)
        name = read_name(self.directory)
        if name:
            self.journal = name
        else:
            if self._paths:  # under another name, its own records would be garbage to it
                self.journal = _name_in(self._paths)
                log.warning("journal: %s was missing, its segments name it: path=%s", NAME_FILE, self.directory)
            text = json.dumps({"form": FORM, "journal": self.journal})
            write_whole(os.path.join(self.directory, NAME_FILE), text.encode())
        self._sizes = {path: os.path.getsize(path) for _, path in self._paths}
        numbers = [first for first, _ in self._paths]
        if self._paths:
            # what a write has left that failed, in the segment before, may go further than the last one
            numbers += [_after(path, self.journal)[0] for _, path in self._paths[-2:-1]]
            numbers.append(self._cut(self._paths[-1][1]))
        # a record's number names it in the outputs, so none is given twice, whatever became of the segments
        numbers += [position for position, _ in read_positions(self.directory).values()]
        return max(numbers, default=0)

    def _cut(self, path: str) -> int:
        """Cut what is behind the last whole record of the last segment; the number after it."""
        if (named := _named(path)) not in ("", self.journal):
            raise ConfigError(f"{path}: of another journal ({named}, this is {self.journal}); move it away")
        after, offset, torn = _after(path, self.journal)
        if torn > 0:
            os.truncate(path, offset)
            self._sizes[path] = offset
            self.torn_bytes = torn
            log.warning("journal: incomplete record cut off: path=%s bytes=%d", path, torn)
        # one that was killed before it synced acknowledged nothing of that; this one will
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(self.directory)
        return after

    def read_senders(self) -> tuple[bytes, Iterator[bytes]]:
        """What the receiver needs to know the senders again: the last account, and each message after it.

        To be read before anything is appended.
        """
        start = len(self._paths)
        senders = b""
        while start > 0 and not senders:
            start -= 1
            senders = _senders_of(self._paths[start][1], self.journal)
        self._senders_from = self._paths[start][0] if senders else 0
        return senders, self._messages(self._paths[start:])

    def _messages(self, paths: Sequence[tuple[int, str]]) -> Iterator[bytes]:
        for _, path in paths:
            reader = SegmentReader(path, self.journal)
            try:
                for record in reader.read():
                    if not isinstance(record, Damage) and record.kind == MESSAGE:
                        yield record.content
            finally:
                reader.close()

    def state(self, name: str) -> OutputState:
        """What the output of this name remembers. Its position counts from now on.

        Raises:
            ConfigError: the file cannot be read.
        """
        path = os.path.join(self.directory, f"{name}.json") if self.directory else ""
        try:
            state = OutputState(path, self.journal, self.oldest, self.end)
        except OSError as err:
            raise ConfigError(f"journal: cannot read how far {name} is: {path}: {err.strerror}") from err
        if state.is_new:
            try:
                state.save(state.position)  # from now on, whatever happens
            except OutputUnavailable as err:
                log.error("journal: the start of an output is not remembered yet: output=%s cause=%s", name, err)
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
        """Number of the first record that it still has."""
        if self.directory:
            paths = self._paths
            return paths[0][0] if paths else self.end
        return self._tail.first

    @property
    def size_bytes(self) -> int:
        """Of all segments."""
        return sum(list(self._sizes.values()))

    @property
    def full(self) -> bool:
        """Whether too much waits to be written for more to be received."""
        return self.pending_bytes >= MAX_PENDING_BYTES

    @property
    def works(self) -> bool:
        """Whether what is appended will be written: its thread, where there is one, goes on."""
        return self._thread is None or self._thread.is_alive()

    # -- writing --

    def start(self, senders: Callable[[], bytes]) -> None:
        """Begin a segment, and to write what is appended.

        Args:
            senders: returns the state of the senders, for the start of each segment.
        """
        self._senders = senders
        if self.directory:
            left = sum([self._sizes[path] for _, path in self._paths]) if self._passed() < self.end else 0
            self._shares.add("", left, self.end)
            self._add(SENDERS, self._senders(), (), 0)
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._thread.start()

    def admits(self, sender: str, size: int) -> bool:
        """Return whether a sender may have a message of this size wait here until all outputs have written it.

        For the thread that appends. One whose messages wait may not drive those of others out, while an output is away.
        """
        self._shares.passed(max(self._passed(), self.oldest), self._appended)
        return self._shares.admits(sender, size)

    def append(self, message: bytes, batches: Sequence[Batch], sender: str = "") -> None:
        """Have a message of a sender written. Never waits."""
        size = sum([batch.size_bytes for batch in batches])
        self._appended += 1
        self._shares.add(sender, len(message) if self.directory else size, self._appended)
        if not self.directory:
            record = JournalRecord(self._next, time.time_ns(), tuple(batches))
            self._next += 1
            self._show([record], [size])
            self._durable([record])
            return
        self._add(MESSAGE, message, tuple(batches), size)
        if self._since_senders >= self._segment_bytes:
            # behind all that it accounts for, and before anything else
            self._add(SENDERS, self._senders(), (), 0)

    def _add(self, kind: int, content: bytes, batches: tuple[Batch, ...], size: int) -> None:
        self._since_senders = 0 if kind == SENDERS else self._since_senders + len(content)
        with self.changed:
            first = not self._pending
            self._pending.append(_PendingRecord(kind, time.time_ns(), content, batches, size))
            self.pending_bytes += len(content) + size
            if first:
                self.changed.notify_all()

    def _run(self) -> None:
        """The thread that writes."""
        while True:
            with self.changed:
                while not self._pending and not self._stopping:
                    self.changed.wait()
                if not self._pending:
                    return
                if not self._stopping:
                    self.changed.wait(COMMIT_S)
                pending, self._pending = self._pending, []
            left = self._commit(pending)
            if left:
                with self.changed:
                    self._pending = left + self._pending
                    if self._stopping:
                        return
                    self.changed.wait_for(lambda: self._stopping, RETRY_S)

    def _commit(self, pending: list[_PendingRecord]) -> list[_PendingRecord]:
        """Write records, one group for each segment, and show them; those that cannot be written now."""
        at = 0
        while at < len(pending):
            end = at + 1
            while end < len(pending) and pending[end].kind != SENDERS:
                end += 1
            try:
                self._write(pending[at:end])
            except OSError as err:
                self._failed(err)
                return pending[at:]
            except Exception:  # a defect must not end the thread
                log.exception("journal: defect, records=%d are tried again", len(pending) - at)
                return pending[at:]
            if self.failures:
                log.warning("journal: can be written to again: path=%s waiting=%d", self.directory, len(pending) - at)
                self.failures, self.why = 0, ""
            at = end
        return []

    def _write(self, group: Sequence[_PendingRecord]) -> None:
        parts: list[bytes] = []
        records: list[JournalRecord] = []
        sizes: list[int] = []
        number = self._next
        for kind, received_ns, content, batches, size in group:
            parts.append(segments.FORM.header(self._seed, number, received_ns, content, kind))
            parts.append(content)
            if kind == MESSAGE:
                records.append(JournalRecord(number, received_ns, batches))
                sizes.append(size)
                number += 1
        packed = b"".join(parts)
        if self._writer is None or group[0].kind == SENDERS:
            self._begin_segment(packed)
        else:
            self._extend_segment(self._writer, packed)
        self._next = number
        with self.changed:
            self.pending_bytes -= sum([len(entry.content) + entry.size_bytes for entry in group])
        self._show(records, sizes)
        try:
            self._durable(records)
        except Exception:  # a defect there must not have them written again
            log.exception("journal: defect in reporting that records=%d are on disk", len(records))
        if group[0].kind == SENDERS:
            self._senders_from = self._paths[-1][0]
            self.trim()

    def _begin_segment(self, packed: bytes) -> None:
        """Begin a segment with these records.

        It appears under its name with all of them: it may take the place of one that has nothing but an account, which
        is not to be lost.
        """
        self._end_segment()
        path = os.path.join(self.directory, segments.segment_name(self._next))
        new = os.path.join(self.directory, NEW_FILE)
        content = segments.pack_segment(self.journal, self._next, time.time_ns()) + packed
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        writer = LogWriter(descriptor)
        try:
            writer.append(content, durable=True)
            os.rename(new, path)
            sync_directory(self.directory)
        except OSError:
            writer.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)
            raise
        self._writer = writer
        if not self._paths or self._paths[-1][1] != path:
            self._paths = [*self._paths, (self._next, path)]
        self._sizes[path] = len(content)

    def _extend_segment(self, writer: LogWriter, packed: bytes) -> None:
        """Append records to the segment; after a failure of the disk itself, the next ones go to another segment."""
        try:
            writer.append(packed, durable=True)
        except OSError as err:
            self._take_back(writer, err)
            raise
        self._sizes[self._paths[-1][1]] = writer.size

    def _take_back(self, writer: LogWriter, err: OSError) -> None:
        """Cut off what a failed write left; end the segment where the disk itself may have failed."""
        try:
            writer.cut()
            # another segment without a record would be the same file
            if err.errno in (errno.ENOSPC, errno.EDQUOT) or self._paths[-1][0] == self._next:
                return
        except OSError as worse:
            log.warning("journal: cannot cut off a failed write: path=%s cause=%s", self._paths[-1][1], worse.strerror)
        # after a failed fsync nobody knows what is on disk, so the same bytes are written elsewhere
        self._end_segment()

    def _end_segment(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _failed(self, err: OSError) -> None:
        self.failures += 1
        self.all_failures += 1
        self.why = err.strerror or str(err)
        if err.errno in (errno.ENOSPC, errno.EDQUOT):
            self.trim(keep=False)
        if powers_of_ten(self.failures):
            log.error(
                "journal: cannot be written to, what is received waits in memory: path=%s failures=%d "
                "waiting_mbytes=%d of %d: %s; make room, or move --journal-dir",
                self.directory,
                self.failures,
                self.pending_bytes >> 20,
                MAX_PENDING_BYTES >> 20,
                err.strerror,
            )

    def _show(self, records: Sequence[JournalRecord], sizes: Sequence[int]) -> None:
        with self.changed:
            self._tail.extend(records, sizes)
            self.end += len(records)
            self._tail.forget(self._passed(), TAIL_BYTES if self.directory else MAX_MEMORY_BYTES)
            self.changed.notify_all()

    def _passed(self) -> int:
        """Number of the first record that some output has not written yet."""
        return min([state.position for state in self._states], default=self.end)

    def trim(self, keep: bool = True) -> None:
        """Remove segments that no output needs any more, and the oldest where there are too many.

        The one with the latest account that is safely on disk stays, and so do those behind it.

        Args:
            keep: leave those that only a rebuilding would need, while there is room.
        """
        passed = self._passed()
        keep_from = min([state.keep_from for state in self._states], default=self.end) if keep else passed
        while len(self._paths) > 1 and self._paths[0][0] < self._senders_from:
            (first, path), after = self._paths[0], self._paths[1][0]
            size = self.size_bytes + self._segment_bytes  # the last segment grows
            written = after <= passed
            if not (after <= keep_from or (written and size > KEEP_SHARE * self._max_bytes) or size > self._max_bytes):
                return
            self._paths = self._paths[1:]
            self._sizes.pop(path, None)
            with self.changed:
                self._damages = {damage for damage in self._damages if damage[0] != path}
            try:
                os.unlink(path)
            except OSError as err:
                log.error("journal: cannot remove a segment: path=%s cause=%s", path, err.strerror)
            if not written:
                before, self.dropped = self.dropped, self.dropped + after - max(first, passed)
                if powers_of_ten(self.dropped, before):
                    log.error(
                        "journal: records dropped that an output has not written, as the journal has more than "
                        "--journal-size: path=%s dropped=%d",
                        self.directory,
                        self.dropped,
                    )

    def finish(self) -> None:
        """Write what waits, as far as it can be written now; nothing is appended any more. Also twice."""
        with self.changed:
            self._stopping = True
            self.changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if self._pending:
                log.error("journal: records lost that could not be written: records=%d", len(self._pending))

    def close(self) -> None:
        """Finish, and give everything back; also twice."""
        self.finish()
        self._end_segment()
        self._unlock()

    def counters(self) -> dict[str, int]:
        """What it counts, by name, for the log."""
        return {
            "records": self.end,
            "oldest": self.oldest,
            "segments": len(self._paths),
            "bytes": self.size_bytes,
            "waiting_bytes": self.pending_bytes,
            "failures": self.all_failures,
            "dropped": self.dropped,
            "damaged": self.damages,
            "unreadable": self.unreadable,
            "torn_bytes": self.torn_bytes,
        }

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # -- reading --

    def waiting(self, position: int) -> tuple[bool, int, int]:
        """What an output at this position has to write: whether it is behind what is in memory, bytes and rows there.

        To be called with `changed` held.
        """
        size, rows = self._tail.size(position)
        return position < min(self._tail.first, self.end), size, rows

    def recent(self, position: int, most_bytes: int) -> tuple[list[JournalRecord] | None, int]:
        """Records from memory, None where the position is further back; and where memory starts."""
        with self.changed:
            if position < self._tail.first:
                return None, self._tail.first
            return self._tail.read(position, most_bytes), self._tail.first

    def segment_after(self, first: int) -> tuple[int, str] | None:
        """The next segment behind the one that starts with this record."""
        return next((entry for entry in self._paths if entry[0] > first), None)

    def segment_of(self, position: int) -> tuple[int, str] | None:
        """The segment that has this record, or the first one behind it."""
        paths = self._paths
        at = bisect_right([first for first, _ in paths], position)
        return paths[max(at - 1, 0)] if paths else None

    def set_aside(self, reader: SegmentReader, damage: Damage) -> None:
        """Keep a copy of what could not be read, and tell of it; `damages` counts."""
        with self.changed:  # another output may come across it
            if (reader.path, damage.offset) in self._damages:
                return
            self._damages.add((reader.path, damage.offset))
            self.damages += 1
            count = self.damages
        path = os.path.join(self.directory, ASIDE, f"{os.path.basename(reader.path)}.{damage.offset}")
        cause = "kept"
        try:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            with os.scandir(os.path.dirname(path)) as entries:
                kept = [entry.stat(follow_symlinks=False).st_size for entry in entries]
            if len(kept) < MAX_ASIDE_FILES and sum(kept) < MAX_ASIDE_BYTES:
                write_whole(path, reader.content(damage, MAX_ASIDE_BYTES - sum(kept)))
            else:
                cause = "not kept: there is much already"
        except OSError as err:
            cause = f"not kept: {err.strerror}"
        if powers_of_ten(count):
            log.error(
                "journal: damaged, bytes skipped: path=%s offset=%d bytes=%d damaged=%d aside=%s (%s)",
                reader.path,
                damage.offset,
                damage.size,
                count,
                path,
                cause,
            )

    def refuse(self, number: int, cause: WireError) -> None:
        """Count a whole record that no output can make anything of."""
        with self.changed:
            self.unreadable += 1
            count = self.unreadable
        if powers_of_ten(count):
            log.error("journal: record cannot be read: number=%d unreadable=%d cause=%s", number, count, cause)


class Cursor:
    """Where one output reads."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._decoder = Decoder()
        self._reader: SegmentReader | None = None
        self._first = -1  # of the segment
        self._position = -1  # of the next record in it

    def read(self, position: int, most_bytes: int) -> Reading:
        """Records from a position on, about so many bytes of them; none where there are none yet.

        Raises:
            OutputUnavailable: a segment that is there cannot be read now.
        """
        records, memory_from = self._journal.recent(position, most_bytes)
        if records is None:
            try:
                records = self._from_disk(position, memory_from, most_bytes)
            except OSError as err:
                path = self._reader.path if self._reader is not None else err.filename
                self.close()  # what was read of it before is to be read again
                raise OutputUnavailable(f"journal: cannot read {path}: {err.strerror}") from err
            if not records:  # they are gone
                records, memory_from = self._journal.recent(memory_from, most_bytes)
        else:
            self.close()
        records = records or []
        after = records[-1].number + 1 if records else max(position, memory_from)
        return Reading(records, after - position - len(records), after)

    def _from_disk(self, position: int, limit: int, most_bytes: int) -> list[JournalRecord]:
        """Records from a position on, and before another one."""
        if self._reader is None or position != self._position:
            self.close()
            self._open(self._journal.segment_of(position))
        self._position = -1  # an error on the way leaves the reader somewhere else
        records: list[JournalRecord] = []
        size = 0
        # never beyond the limit: what is there may be being written
        while self._reader is not None and position < limit and (size < most_bytes or not records):
            for found in self._reader.read():
                if isinstance(found, Damage):
                    self._journal.set_aside(self._reader, found)
                elif found.number >= limit:
                    self._reader.offset = found.offset  # memory has it
                    self._position = limit
                    return records
                elif found.kind == MESSAGE and found.number >= position:
                    size += len(found.content)
                    position = found.number + 1  # after a failed write, one may be in two segments
                    try:
                        batches = self._decoder.decode(found.content).batches
                        records.append(JournalRecord(found.number, found.time_ns, batches))
                    except WireError as err:  # of another version of Colmet
                        self._journal.refuse(found.number, err)
                    if position >= limit or (size >= most_bytes and records):
                        break
            else:
                self._next_segment()
        self._position = records[-1].number + 1 if records else -1
        return records

    def _open(self, segment: tuple[int, str] | None) -> None:
        """Open a segment, or the first one behind it that has not been removed; none where there is none."""
        while segment is not None and self._reader is None:
            self._first, path = segment
            try:
                self._reader = SegmentReader(path, self._journal.journal)
            except FileNotFoundError:
                segment = self._journal.segment_after(self._first)

    def _next_segment(self) -> None:
        """Go on with the segment behind this one; none if it is the last."""
        following = self._journal.segment_after(self._first)
        if self._reader is not None and following is not None:
            rest = self._reader.size() - self._reader.offset
            if rest > 0:
                self._journal.set_aside(self._reader, Damage(self._reader.offset, rest))
        self.close()
        self._open(following)

    def close(self) -> None:
        """Give the segment back; also twice."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def read_name(directory: str) -> str:
    """The name of the journal in a directory; empty where there is none.

    Raises:
        ConfigError: what is there is something else.
    """
    path = os.path.join(directory, NAME_FILE)
    try:
        with open(path, "rb") as file:
            document = json.loads(file.read(4096))
        name = document["journal"]
        if document["form"] != FORM or not isinstance(name, str) or not JOURNAL.fullmatch(name):
            raise ValueError(f"form {document['form']!r}, journal {name!r}")
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError, RecursionError) as err:
        raise ConfigError(
            f"{path}: not the name of a journal of this version ({err}); move the directory away to start a new journal"
        ) from err
    return name


def read_positions(directory: str) -> dict[str, tuple[int, int]]:
    """For each output that left its state in a journal's directory: its position, and from where it keeps records.

    What cannot be read is left out; the output itself tells of it.
    """
    found = {}
    for entry in sorted(os.listdir(directory)):
        name, suffix = os.path.splitext(entry)
        if suffix == ".json" and entry != NAME_FILE:
            try:
                with open(os.path.join(directory, entry), "rb") as file:
                    state = parse(file.read(MAX_BYTES + 1))
            except (OSError, ValueError):
                continue
            found[name] = state["position"], state["keep_from"]
    return found


def _named(path: str) -> str:
    """The journal that a segment says it is of; empty where its header is damaged."""
    reader = SegmentReader(path)
    reader.close()
    return reader.header.journal if reader.header else ""


def _name_in(paths: Sequence[tuple[int, str]]) -> str:
    """The journal that segments are of.

    Raises:
        ConfigError: none of them says, or not all say the same.
    """
    names = {name for _, path in paths if (name := _named(path))}
    if len(names) != 1:
        raise ConfigError(
            f"{os.path.dirname(paths[0][1])}: {NAME_FILE} is missing, and the segments name {sorted(names) or 'none'}; "
            f"move the directory away to start a new journal"
        )
    return names.pop()


def _after(path: str, journal: str) -> tuple[int, int, int]:
    """The number after the last record of a segment, the offset behind it, and how many bytes are there."""
    reader = SegmentReader(path, journal)
    try:
        after = 0
        for record in reader.read():
            if isinstance(record, LogRecord) and record.kind == MESSAGE:
                after = record.number + 1
        return after, reader.offset, reader.size() - reader.offset
    finally:
        reader.close()


def _senders_of(path: str, journal: str) -> bytes:
    """The account that a segment begins with; empty where it has none."""
    reader = SegmentReader(path, journal)
    try:
        first = next((found for found in reader.read() if isinstance(found, LogRecord)), None)
        return first.content if first is not None and first.kind == SENDERS else b""
    finally:
        reader.close()
