r"""The files of the journal: records one after the other, each with its checksums.

A segment is a header and records; a record is a header and what was received, as it was received. Little-endian:

    segment  8s "ColmetJ1", Q journal, Q first record, Q created (ns since the epoch), I CRC-32 of these
    record   4s "\xc7JR\n", B kind, I bytes, Q number, Q received (ns since the epoch), I checksum of the bytes,
             I checksum of the fields before; then the bytes

The checksum of a record is a CRC-32 that starts with the journal's random name, so that no sender can make a message
that looks like records. A record whose checksums do not hold is passed over: the next one is found by its first four
bytes and its checksums. A segment is written to by the process that created it, and by no other.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

MESSAGE, SENDERS = 0, 1  # kinds of records: a message; the state of the senders, at the start of each segment

SUFFIX = ".segment"
NAME = re.compile(r"(\d{20})\.segment", re.ASCII)

SEGMENT_MAGIC = b"ColmetJ1"
RECORD_MAGIC = b"\xc7JR\n"
_SEGMENT = struct.Struct("<8sQQQ")
_RECORD = struct.Struct("<4sBIQQI")
_CRC = struct.Struct("<I")
SEGMENT_HEADER_BYTES = _SEGMENT.size + _CRC.size
RECORD_HEADER_BYTES = _RECORD.size + _CRC.size
MAX_RECORD_BYTES = 256 << 20  # the state of very many senders; messages are bounded by the transport
MAX_NUMBER = 1 << 63
READ_BYTES = 1 << 20


class SegmentRecord(NamedTuple):
    """A record as it is in a segment; `offset` is where it starts."""

    number: int
    kind: int
    received_ns: int
    content: bytes
    offset: int


class Damage(NamedTuple):
    """Bytes of a segment that are no record."""

    offset: int
    size: int


class SegmentHeader(NamedTuple):
    """What a segment says of itself; `journal` as 16 hexadecimal digits."""

    journal: str
    first: int
    created_ns: int


def segment_name(first: int) -> str:
    """The file whose first record has this number."""
    return f"{first:020d}{SUFFIX}"


def pack_segment(journal: str, first: int, created_ns: int) -> bytes:
    """The header of a segment."""
    packed = _SEGMENT.pack(SEGMENT_MAGIC, int(journal, 16), first, created_ns)
    return packed + _CRC.pack(crc32(packed))


def seed_of(journal: str) -> int:
    """What the checksums of a journal's records start with."""
    return int(journal, 16) & 0xFFFFFFFF


def pack_record(seed: int, number: int, kind: int, received_ns: int, content: bytes) -> bytes:
    """The header of a record with this content."""
    packed = _RECORD.pack(RECORD_MAGIC, kind, len(content), number, received_ns, crc32(content, seed))
    return packed + _CRC.pack(crc32(packed, seed))


def list_segments(directory: str) -> list[tuple[int, str]]:
    """First record and path of each segment in a directory, in order; what is no plain file is none."""
    with os.scandir(directory) as entries:
        found = [
            (int(match[1]), entry.path)
            for entry in entries
            if (match := NAME.fullmatch(entry.name)) and entry.is_file(follow_symlinks=False)
        ]
    return sorted([(first, path) for first, path in found if first < MAX_NUMBER])


class SegmentReader:
    """Reads the records of one segment, from its start or from an offset on.

    Args:
        path: of the segment.
        journal: that it belongs to; empty to believe its header.

    Attributes:
        header: None where it is damaged, or of another journal; the records may be readable all the same.
        offset: where the next record starts.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str, journal: str = "") -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._buffer = b""
        self._start = 0  # of the buffer, in the file
        try:
            header = self._read_header()
        except OSError:
            self.close()
            raise
        self.header = header if header and journal in ("", header.journal) else None
        self._seed = seed_of(journal or (header.journal if header else "0"))
        self.offset = SEGMENT_HEADER_BYTES if header else 0

    def close(self) -> None:
        """Close; also twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_header(self) -> SegmentHeader | None:
        packed = self._get(0, SEGMENT_HEADER_BYTES)
        if len(packed) < SEGMENT_HEADER_BYTES:
            return None
        magic, journal, first, created_ns = _SEGMENT.unpack_from(packed)
        if magic != SEGMENT_MAGIC or _CRC.unpack_from(packed, _SEGMENT.size)[0] != crc32(packed[: _SEGMENT.size]):
            return None
        return SegmentHeader(f"{journal:016x}", first, created_ns)

    def _get(self, offset: int, size: int) -> bytes:
        """Bytes of the file; fewer than asked for at its end."""
        start = offset - self._start
        if start < 0 or start + size > len(self._buffer):
            # again from the file, always: it may have grown
            self._buffer, self._start, start = self._pread(offset, max(size, READ_BYTES)), offset, 0
        return self._buffer[start : start + size]

    def _pread(self, offset: int, size: int) -> bytes:
        size = min(size, self.size() - offset)  # what a damaged record asks for would be allocated first
        parts = []
        while size > 0:
            part = os.pread(self._fd, size, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def _at(self, offset: int) -> SegmentRecord | None:
        """The whole record that starts there, or None."""
        packed = self._get(offset, RECORD_HEADER_BYTES)
        if len(packed) < RECORD_HEADER_BYTES or not packed.startswith(RECORD_MAGIC):
            return None
        _, kind, size, number, received_ns, checksum = _RECORD.unpack_from(packed)
        expected = crc32(packed[: _RECORD.size], self._seed)
        if _CRC.unpack_from(packed, _RECORD.size)[0] != expected or size > MAX_RECORD_BYTES:
            return None
        content = self._get(offset + RECORD_HEADER_BYTES, size)
        if len(content) < size or crc32(content, self._seed) != checksum:
            return None
        return SegmentRecord(number, kind, received_ns, content, offset)

    def _search(self, offset: int) -> int | None:
        """Where the next whole record starts, at `offset` or behind it."""
        while True:
            window = self._pread(offset, READ_BYTES)
            found = window.find(RECORD_MAGIC)
            while found >= 0:
                if self._at(offset + found) is not None:
                    return offset + found
                found = window.find(RECORD_MAGIC, found + 1)
            if len(window) < READ_BYTES:
                return None
            offset += len(window) - len(RECORD_MAGIC) + 1

    def read(self) -> Iterator[SegmentRecord | Damage]:
        """Records from `offset` on, which moves along, and what is between them.

        At the end of the file it stops, and can be called again when there is more. What is behind the last whole
        record is no damage: it may be a record that is being written.
        """
        while True:
            record = self._at(self.offset)
            if record is None:
                found = self._search(self.offset + 1)
                if found is None:
                    return
                self._buffer = b""
                record = self._at(self.offset)  # it may have been written meanwhile, as the one behind it was
                if record is None:
                    start, self.offset = self.offset, found
                    yield Damage(start, found - start)
                    continue
            self.offset += RECORD_HEADER_BYTES + len(record.content)
            yield record

    def content(self, damage: Damage, most: int) -> bytes:
        """The bytes of a damage, at most so many."""
        return self._pread(damage.offset, min(damage.size, most))

    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._fd).st_size
