"""The spool: batches on disk until they are acknowledged.

It survives any death of the process: each batch is one write, and none is synced. Little-endian:

    segment  8s "ColmetS2", Q random number, Q epoch, B bytes of the host's name, I bytes of descriptions,
             the name, the descriptions, deflated, I CRC-32 of these

Then come records (`common.record_log`): the message of each is a batch, in the short form if all its tables are
described in the head. The seed is random for each segment. A segment has batches of one epoch, and is only written by
the process that created it. Those of later versions stay, by the digit of their head.
"""

from __future__ import annotations

import errno
import logging
import re
import secrets
import struct
import time
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import WireError, is_later, later_form
from colmet.common.host.host import PrivateDirectory
from colmet.common.record_log import CRC, Damage, LogReader, LogRecord, LogWriter, RecordForm, is_sealed, seal
from colmet.common.schema import Schema
from colmet.common.wire import v1
from colmet.common.wire.link import Ranges

log = logging.getLogger(__name__)

MAGIC = b"ColmetS2"
FORM_READ = 2  # the digit of a head
_SEGMENT = struct.Struct("<8sQQBI")
NAME = re.compile(r"(\d{20})-(\d{20})\.spool", re.ASCII)
MAX_SCHEMAS = 256  # in a head
LOCK = "lock"
MAX_MESSAGE_BYTES = 8 << 20
SEGMENT_BYTES, MAX_SEGMENT_BYTES = 1 << 20, 16 << 20
MAX_FILE_BYTES = MAX_SEGMENT_BYTES + 2 * MAX_MESSAGE_BYTES
FORM = RecordForm(b"\xc7SR\n", kinds=0, max_bytes=MAX_FILE_BYTES)
MAX_SEGMENTS = 2000  # a node restarted again and again makes small ones
RETRY_S = 2.0
PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)  # errors not caused by the file


class EncodedBatch(NamedTuple):
    """A batch, encoded."""

    epoch: int  # of the start of the agent that measured it
    seq: int  # its number
    time_ns: int  # time of the measurement, since the epoch
    message: bytes  # v1; in the short form if there are schemas
    schemas: tuple[Schema, ...] = ()  # of its tables

    @property
    def full(self) -> bytes:
        """The message in the full form."""
        return v1.describe(self.message, self.schemas) if self.schemas else self.message


class Head(NamedTuple):
    """The head of a segment."""

    seed: int
    epoch: int
    host: str
    start: int  # offset of the first record
    descriptions: bytes  # deflated


def pack_head(seed: int, epoch: int, host: str, descriptions: bytes = b"") -> bytes:
    """Return the head of a segment."""
    name = host.encode()
    return seal(_SEGMENT.pack(MAGIC, seed, epoch, len(name), len(descriptions)) + name + descriptions)


def form_of(data: bytes) -> int:
    """Return the form of a segment, the digit of its head; 0 if the head is damaged."""
    magic, digit = data[: len(MAGIC)], data[len(MAGIC) - 1 : len(MAGIC)]
    return int(digit) if digit.isdigit() and magic[:-1] == MAGIC[:-1] else 0


def read_head(data: bytes) -> Head | None:
    """Return the head of a segment; None if it is damaged."""
    if len(data) < _SEGMENT.size:
        return None
    magic, seed, epoch, length, size = _SEGMENT.unpack_from(data)
    names_end = _SEGMENT.size + length
    end = names_end + size
    if magic != MAGIC or not is_sealed(data, end):
        return None
    host = data[_SEGMENT.size : names_end].decode(errors="replace")
    return Head(seed & 0xFFFFFFFF, epoch, host, end + CRC.size, data[names_end:end])


def _pack_schemas(schemas: Iterable[Schema]) -> bytes:
    """Return the descriptions for a head; empty without schemas, or if they are too long."""
    text = "\n\n".join([schema.text for schema in schemas]).encode()
    return zlib.compress(text) if 0 < len(text) <= v1.MAX_DESCRIPTION_BYTES else b""


def _read_schemas(descriptions: bytes) -> list[Schema]:
    """Return the schemas described in a head; ValueError or WireError if they are malformed."""
    texts = v1.inflated(descriptions).decode().split("\n\n") if descriptions else []
    return [Schema.parse(text) for text in texts]


class Dropped(NamedTuple):
    """A range of dropped batches, from the first to the last number, both included."""

    epoch: int  # of the start of the agent that measured them
    first: int  # number of the first
    last: int  # number of the last
    since_ns: int  # time of the first
    until_ns: int  # time of the last
    cause: str  # memory, size, age, damage or queue


@dataclass(eq=False)
class _Segment:
    """A segment, and the numbers of its kept batches."""

    name: str
    epoch: int
    first: int  # by its name
    size: int
    since_ns: int = 0
    until_ns: int = 0
    numbers: Ranges = field(default_factory=Ranges)

    def note(self, seq: int, time_ns: int) -> None:
        if not self.numbers.count:
            self.since_ns = time_ns
        self.until_ns = max(self.until_ns, time_ns)
        self.numbers.add(seq, seq)


class Spool:
    """The segments in one directory, used by this process only. For one thread.

    Args:
        directory: locked by this process.
        host: name of this host; segments of other hosts stay untouched.
        epoch: of this start.
        max_bytes, max_age_s: limits of all segments, and of a batch's age.
        monotonic: clock for retries.
        segment_bytes: limit of a segment; 0 derives it from `max_bytes`.

    Attributes:
        failures: failed writes of batches.
        damaged: places with bytes other than those written.
        unread: failed reads of segments.
        torn_bytes: of incomplete records at the end of segments, left by killed processes.
    """

    def __init__(
        self,
        directory: PrivateDirectory,
        host: str,
        epoch: int,
        max_bytes: int,
        max_age_s: float,
        monotonic: Callable[[], float] = time.monotonic,
        segment_bytes: int = 0,
    ) -> None:
        self.failures = self.damaged = self.unread = self.torn_bytes = 0
        self._directory = directory
        self._host = host
        self._epoch = epoch
        self._max_bytes = max_bytes
        self._max_age_ns = int(max_age_s * 1e9)
        self._monotonic = monotonic
        suits = min(max(SEGMENT_BYTES, max_bytes // 1024), MAX_SEGMENT_BYTES, max_bytes // 8)
        self._segment_bytes = segment_bytes or suits
        self._segments: list[_Segment] = []  # ascending by epoch and first number
        self._head = b""
        self._seed = 0
        self._known: dict[bytes, Schema] = {}  # by digest, for the next head
        self._latest: tuple[Schema, ...] = ()  # of the latest batch
        self._digests: list[bytes] = []  # of these
        self._tried = self._described = frozenset[bytes]()  # known at the last segment's begin, and in its head
        self._writer: LogWriter | None = None  # of the last segment, while it is written to
        self._failing = False
        self._retry_at = monotonic()
        self._loaded: tuple[str, int] = ("", 0)  # name and size of the segment of `_messages`
        self._messages: dict[tuple[int, int], bytes] = {}

    @staticmethod
    def last_epoch(directory: PrivateDirectory) -> int:
        """Return the highest epoch with batches; 0 without any."""
        return max([int(name[:20]) for name in directory.names() if NAME.fullmatch(name)], default=0)

    @property
    def size_bytes(self) -> int:
        """The size of all segments."""
        return sum([segment.size for segment in self._segments])

    def since_ns(self) -> int:
        """Return the time of the oldest segment's first batch; 0 without any. From any thread."""
        return next((segment.since_ns for segment in list(self._segments) if segment.numbers.count), 0)

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self._segments)

    # -- reading --

    def scan(self) -> list[tuple[int, int, int]]:
        """Return the batches left by earlier processes, ascending: epoch, lowest and highest number of each range."""
        found: list[tuple[int, int, int]] = []
        foreign = count = 0
        later: list[tuple[str, int]] = []
        for name in sorted(filter(NAME.fullmatch, self._directory.names())):
            try:
                data = self._directory.read(name, MAX_FILE_BYTES)
            except OSError as err:
                self._note_damage(name, 0, err.strerror or str(err))
                continue
            if is_later(form := form_of(data), FORM_READ):
                later.append((name, form))
                continue
            head = read_head(data)
            if head is not None and head.host != self._host:
                foreign += 1
                continue
            epoch, first = [int(digits) for digits in name.partition(".")[0].split("-")]
            segment = _Segment(name, epoch, first, len(data))
            if head is not None:
                # the content is checked in `read`, so that a damaged batch is counted with its number
                reader = LogReader.of_bytes(FORM, head.seed, data, head.start, checks_content=False)
                for found_one in reader.read():
                    if isinstance(found_one, Damage):
                        self._note_damage(name, found_one.offset, f"{found_one.size} bytes are no batch")
                    else:
                        segment.note(found_one.number, found_one.time_ns)
                self.torn_bytes += max(0, len(data) - reader.offset)
            elif len(data) < len(pack_head(0, 0, self._host)):
                self.torn_bytes += len(data)
            else:
                self._note_damage(name, 0, "its head is damaged, nothing of it can be read")
            if segment.numbers.count:
                self._segments.append(segment)
                found += [(epoch, first, last) for first, last in segment.numbers]
                count += segment.numbers.count
            else:
                self._unlink(name)
        if later:
            why = later_form(*later[0], FORM_READ, "remove it: nothing else sends these batches")
            log.error("spool: a later version is needed segments=%d: %s", len(later), why)
        if foreign:
            log.warning("spool: segments=%d are of another host and stay unused; remove them", foreign)
        if count:
            log.info("spool: batches=%d are still to be sent, from before this start", count)
        return found

    def read(self, epoch: int, seq: int) -> bytes | None:
        """Return the message of a batch; None if it is damaged, counted in `damaged`.

        Raises:
            OSError: it cannot be read now: this process or the machine lacks descriptors or memory.
        """
        message = self._messages.get((epoch, seq))
        if message is not None:
            return message
        at = bisect_right([(segment.epoch, segment.first) for segment in self._segments], (epoch, seq)) - 1
        while at >= 0 and self._segments[at].epoch == epoch and seq not in self._segments[at].numbers:
            at -= 1
        if at < 0 or self._segments[at].epoch != epoch:
            return None
        segment = self._segments[at]
        if self._loaded != (segment.name, segment.size):  # it may have grown
            self._load(segment)
        message = self._messages.get((epoch, seq))
        if message is None:
            self._note_damage(segment.name, 0, f"batch {seq} cannot be read")
        return message

    def _load(self, segment: _Segment) -> None:
        self._messages = {}
        try:
            data = self._directory.read(segment.name, MAX_FILE_BYTES)
        except OSError as err:
            self.unread += 1
            if powers_of_ten(self.unread):
                log.warning("spool: cannot be read file=%s unread=%d: %s", segment.name, self.unread, err.strerror)
            if err.errno in PASSING:
                raise
            data = b""
        self._loaded = (segment.name, segment.size)
        head = read_head(data)
        if head is None:
            return
        try:
            schemas = _read_schemas(head.descriptions)
            for record in LogReader.of_bytes(FORM, head.seed, data, head.start).read():
                if isinstance(record, LogRecord) and record.number in segment.numbers:
                    message = v1.describe(record.content, schemas) if schemas else record.content
                    self._messages[segment.epoch, record.number] = message
        except (KeyError, ValueError, WireError) as err:  # the checksums are right: written by another version
            self._note_damage(segment.name, 0, f"descriptions: {err!r}")

    def _note_damage(self, name: str, offset: int, why: str) -> None:
        self.damaged += 1
        if powers_of_ten(self.damaged):
            log.error("spool: damaged, skipped file=%s offset=%d damaged=%d: %s", name, offset, self.damaged, why)

    # -- writing --

    def append(self, items: Sequence[EncodedBatch]) -> int:
        """Write batches of this epoch, in order; return the number written. Pass the others again later."""
        if self._monotonic() < self._retry_at:
            return 0
        written = 0
        try:
            for item in items:
                self._append(item)
                written += 1
        except OSError as err:
            self.failures += 1
            self._failing = True
            self._retry_at = self._monotonic() + RETRY_S
            if powers_of_ten(self.failures):
                log.error(
                    "spool: cannot be written to, batches stay in memory failures=%d: %s; make room, or change "
                    "--spool-dir",
                    self.failures,
                    err.strerror,
                )
        else:
            if self._failing:
                self._failing = False
                log.warning("spool: can be written to again batches=%d", written)
        return written

    def retry(self) -> None:
        """Let the next `append` try, even right after a failure."""
        self._retry_at = self._monotonic()

    def _append(self, item: EncodedBatch) -> None:
        if item.schemas != self._latest:  # most batches have the tables of the one before
            self._latest, self._digests = item.schemas, [schema.digest for schema in item.schemas]
            if not self._known.keys() >= set(self._digests):
                if len(self._known) >= MAX_SCHEMAS:
                    self._known.clear()
                self._known.update(zip(self._digests, item.schemas))
        writer = self._writer
        if writer is None:
            writer = self._begin(item.seq)
        elif self._segments[-1].numbers.count:
            if writer.size + FORM.header_bytes + len(item.message) > self._segment_bytes:
                writer = self._begin(item.seq)
        elif not self._tried.issuperset(self._digests):
            writer = self._begin(item.seq)
        segment = self._segments[-1]
        message = item.message if self._described.issuperset(self._digests) else item.full
        try:
            writer.append(FORM.header(self._seed, item.seq, item.time_ns, message) + message)
        except OSError:
            try:
                writer.cut()
            except OSError:
                self._end_segment()
            raise
        segment.size = writer.size
        segment.note(item.seq, item.time_ns)

    def _begin(self, first: int) -> LogWriter:
        self._end_segment()
        seed = secrets.randbits(63)
        descriptions = _pack_schemas(self._known.values())
        self._tried = frozenset(self._known)
        self._described = self._tried if descriptions else frozenset()
        self._seed, self._head = seed & 0xFFFFFFFF, pack_head(seed, self._epoch, self._host, descriptions)
        name = f"{self._epoch:020d}-{first:020d}.spool"
        try:
            descriptor = self._directory.create(name)
        except FileExistsError:  # of a write that failed here
            self._directory.remove(name)
            descriptor = self._directory.create(name)
        writer = LogWriter(descriptor)
        try:
            writer.append(self._head)
        except OSError:
            writer.close()
            self._unlink(name)
            raise
        self._writer = writer
        self._segments.append(_Segment(name, self._epoch, first, writer.size))
        return writer

    def _end_segment(self) -> None:
        """End the last segment; remove it if it has no batch."""
        if self._end_writing() and not self._segments[-1].numbers.count:
            self._unlink(self._segments.pop().name)

    def _end_writing(self) -> bool:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        return writer is not None

    def remove(self, epoch: int, first: int, last: int) -> None:
        """Remove batches; a segment without any is deleted."""
        done = []
        for segment in self._segments:
            if segment.epoch == epoch and segment.first <= last and segment.numbers.remove(first, last):
                if segment.numbers.count:
                    continue
                if self._writer is not None and segment is self._segments[-1]:
                    self._empty(segment, self._writer)
                else:
                    done.append(segment)
        for segment in done:
            self._segments.remove(segment)
            self._unlink(segment.name)

    def _empty(self, segment: _Segment, writer: LogWriter) -> None:
        """Empty the segment being written: its bytes not yet written to disk by the kernel never will be."""
        try:
            writer.cut(len(self._head))
        except OSError as err:
            log.warning("spool: cannot be emptied file=%s: %s", segment.name, err.strerror)
            return
        segment.size = writer.size
        self._loaded = ("", 0)

    def beyond(self) -> list[Dropped]:
        """Return the batches of the oldest segments beyond the limits of size and age; they stay until `remove`."""
        found = []
        size, count = self.size_bytes, len(self._segments)
        oldest_ns = time.time_ns() - self._max_age_ns
        for segment in list(self._segments):
            cause = "age" if segment.until_ns < oldest_ns else "size"
            if (cause == "size" and size <= self._max_bytes and count <= MAX_SEGMENTS) or not segment.numbers.count:
                break
            if segment is self._segments[-1]:
                self._end_writing()
            numbers = segment.numbers
            times = segment.since_ns, segment.until_ns
            found.append(Dropped(segment.epoch, numbers.first, numbers.last, *times, cause))
            size -= segment.size
            count -= 1
        return found

    def _unlink(self, name: str) -> None:
        try:
            self._directory.remove(name)
        except OSError as err:
            log.error("spool: cannot be removed file=%s: %s", name, err.strerror)

    def counters(self) -> dict[str, int]:
        """Return the counters, by name."""
        return {
            "bytes": self.size_bytes,
            "segments": len(self._segments),
            "failures": self.failures,
            "damaged": self.damaged,
            "unread": self.unread,
            "torn_bytes": self.torn_bytes,
        }

    def close(self) -> None:
        """Close the directory; can be called twice.

        The last segment stays: its name keeps the next epoch above this one.
        """
        self._end_writing()
        self._directory.close()
