"""The files of the journal: segments, logs of records (`common.record_log`).

    segment  8s "ColmetJ1", Q journal, Q first record, Q created (ns since the epoch), I CRC-32 of these; then records

The content of a record is a message as received, the state of the senders, or a table's description as sent,
according to its kind. In a segment, each table of a message is described before its first message, and again after
some MiB: messages in the short form have no descriptions. The seed is the journal's random name. A segment is written
only by the process that created it.
"""

from __future__ import annotations

import os
import re
import struct
from typing import NamedTuple

from colmet.common.record_log import LogReader, RecordForm, is_sealed, seal

# Kinds of records: a message; the state of the senders, at the start of each segment; a description
MESSAGE, SENDERS, DESCRIPTION = 0, 1, 2

SUFFIX = ".segment"
NAME = re.compile(r"(\d{20})\.segment", re.ASCII)

SEGMENT_FORM = 1  # the digit of the magic
SEGMENT_MAGIC = b"ColmetJ%d" % SEGMENT_FORM
_SEGMENT = struct.Struct("<8sQQQ")
SEGMENT_HEADER_BYTES = _SEGMENT.size + 4
# 256 MiB: the state of very many senders; messages are bounded by the transport
FORM = RecordForm(b"\xc7JR\n", kinds=3, max_bytes=256 << 20)
MAX_NUMBER = 1 << 63


class SegmentHeader(NamedTuple):
    """The header of a segment; `journal` as 16 hexadecimal digits."""

    journal: str
    first: int
    created_ns: int


def segment_name(first: int) -> str:
    """Return the name of the file with this first record."""
    return f"{first:020d}{SUFFIX}"


def pack_segment(journal: str, first: int, created_ns: int) -> bytes:
    """Return the header of a segment."""
    return seal(_SEGMENT.pack(SEGMENT_MAGIC, int(journal, 16), first, created_ns))


def unpack_segment(packed: bytes) -> SegmentHeader | None:
    """Return the header at the start of a segment; None if it is damaged."""
    if not packed.startswith(SEGMENT_MAGIC) or not is_sealed(packed, _SEGMENT.size):
        return None
    _, journal, first, created_ns = _SEGMENT.unpack_from(packed)
    return SegmentHeader(f"{journal:016x}", first, created_ns)


def form_of(path: str) -> int | None:
    """Return the form of a segment; None if its header is damaged."""
    with open(path, "rb") as file:
        magic = file.read(len(SEGMENT_MAGIC))
    return int(magic[-1:]) if magic[:-1] == SEGMENT_MAGIC[:-1] and magic[-1:].isdigit() else None


def seed_of(journal: str) -> int:
    """Return the seed of a journal's checksums."""
    return int(journal, 16) & 0xFFFFFFFF


def list_segments(directory: str) -> list[tuple[int, str]]:
    """Return first record and path of each segment in a directory, in order; links and other non-files are skipped."""
    with os.scandir(directory) as entries:
        found = [
            (int(match[1]), entry.path)
            for entry in entries
            if (match := NAME.fullmatch(entry.name)) and entry.is_file(follow_symlinks=False)
        ]
    return sorted([(first, path) for first, path in found if first < MAX_NUMBER])


class SegmentReader(LogReader):
    """Reader of one segment's records, from its start or from an offset on.

    Args:
        path: of the segment.
        journal: of the segment; empty to accept the one in its header.

    Attributes:
        header: None if damaged, or of another journal; the records may still be readable.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str, journal: str = "") -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            header = unpack_segment(os.pread(self._descriptor, SEGMENT_HEADER_BYTES, 0))
        except OSError:
            self.close()
            raise
        self.header = header if header and journal in ("", header.journal) else None
        seed = seed_of(journal or (header.journal if header else "0"))
        super().__init__(
            FORM, seed, self._pread, lambda: os.fstat(self._descriptor).st_size, SEGMENT_HEADER_BYTES if header else 0
        )

    def _pread(self, offset: int, size: int) -> bytes:
        parts = []
        while size > 0 and (part := os.pread(self._descriptor, size, offset)):
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
