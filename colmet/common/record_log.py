r"""A log of records in a file: with its checksums, a reader finds every whole record in a damaged file.

Little-endian; the fields in brackets are in some logs only:

    record  4s magic, [B kind], I bytes, Q number, Q time (ns since the epoch), I checksum of the content,
            I checksum of the fields before; then the content

A checksum is a CRC-32 that starts with the log's seed, a random number, so no sender and no job can forge records. A
record with a wrong checksum is skipped: the next one is found by its magic and its checksums.

The collector's journal and the spool of node and facility are such logs. Each has its magic, and a header in its files.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple
from zlib import crc32

from colmet.common.host.files import write_all

CRC = struct.Struct("<I")
READ_BYTES = 1 << 20


class LogRecord(NamedTuple):
    """A record of a log."""

    number: int
    kind: int  # 0 in logs without kinds
    time_ns: int  # since the epoch
    content: bytes
    offset: int  # of its start in the file


class Damage(NamedTuple):
    """Damaged bytes of a log, outside all records."""

    offset: int
    size: int


def seal(packed: bytes, seed: int = 0) -> bytes:
    """Return bytes followed by their checksum."""
    return packed + CRC.pack(crc32(packed, seed))


def is_sealed(data: bytes, size: int, seed: int = 0) -> bool:
    """Return whether data begins with `size` bytes and their checksum."""
    return len(data) >= size + CRC.size and CRC.unpack_from(data, size)[0] == crc32(data[:size], seed)


class RecordForm:
    """The form of a log's records.

    Args:
        magic: the first four bytes of a record.
        kinds: number of kinds of records; 0: records have no kind.
        max_bytes: of a content.
    """

    def __init__(self, magic: bytes, kinds: int, max_bytes: int) -> None:
        self.magic = magic
        self.max_bytes = max_bytes
        self.has_kind = kinds > 0
        self.starts = tuple([magic + bytes([kind]) for kind in range(kinds)]) or (magic,)
        self.fields = struct.Struct(f"<{len(self.starts[0])}sIQQI")
        self.sealed_fields = struct.Struct(self.fields.format + "I")
        self.header_bytes = self.sealed_fields.size

    def header(self, seed: int, number: int, time_ns: int, content: bytes, kind: int = 0) -> bytes:
        """Return the header of a record with this content."""
        # inlined: a call of `seal`, or a tuple of the fields, costs as much as the checksum
        fields = self.fields.pack(self.starts[kind], len(content), number, time_ns, crc32(content, seed))
        return fields + CRC.pack(crc32(fields, seed))


class LogReader:
    """Reads the records of a log, from an offset on.

    Args:
        read: returns bytes of the file from an offset on, fewer at its end.
        size: returns the size of the file in bytes.
        offset: start of the first record.
        checks_content: whether a record with damaged content counts as damage; otherwise it is returned as it is.

    Attributes:
        offset: start of the next record.
    """

    def __init__(
        self,
        form: RecordForm,
        seed: int,
        read: Callable[[int, int], bytes],
        size: Callable[[], int],
        offset: int = 0,
        checks_content: bool = True,
    ) -> None:
        self.offset = offset
        self.size = size
        self._form = form
        self._seed = seed
        self._read = read
        self._checks_content = checks_content
        self._buffer = b""
        self._start = 0  # file offset of the buffer

    @classmethod
    def of_bytes(cls, form: RecordForm, seed: int, data: bytes, offset: int, checks_content: bool = True) -> LogReader:
        """Return a reader of a file in memory."""
        return cls(form, seed, lambda at, size: data[at : at + size], lambda: len(data), offset, checks_content)

    def _get(self, offset: int, size: int) -> bytes:
        start = offset - self._start
        if start < 0 or start + size > len(self._buffer):
            # always read the file again: it may have grown
            self._buffer, self._start, start = self._bytes(offset, max(size, READ_BYTES)), offset, 0
        return self._buffer[start : start + size]

    def _bytes(self, offset: int, size: int) -> bytes:
        size = min(size, self.size() - offset)  # do not allocate the size found in a damaged record
        return self._read(offset, size) if size > 0 else b""

    def _at(self, offset: int) -> LogRecord | None:
        """Return the whole record that starts at `offset`; None without one."""
        form = self._form
        packed = self._get(offset, form.header_bytes)
        if len(packed) < form.header_bytes or not packed.startswith(form.magic):
            return None
        start, size, number, time_ns, checksum, own_checksum = form.sealed_fields.unpack(packed)
        if own_checksum != crc32(packed[: -CRC.size], self._seed) or size > form.max_bytes:
            return None
        content = self._get(offset + form.header_bytes, size)
        if len(content) < size or (self._checks_content and crc32(content, self._seed) != checksum):
            return None
        return LogRecord(number, start[-1] if form.has_kind else 0, time_ns, content, offset)

    def _search(self, offset: int) -> int | None:
        """Return the start of the next whole record, at `offset` or behind it."""
        magic = self._form.magic
        while True:
            window = self._bytes(offset, READ_BYTES)
            found = window.find(magic)
            while found >= 0:
                if self._at(offset + found) is not None:
                    return offset + found
                found = window.find(magic, found + 1)
            if len(window) < READ_BYTES:
                return None
            offset += len(window) - len(magic) + 1

    def read(self) -> Iterator[LogRecord | Damage]:
        """Yield the records from `offset` on, and the damage between them; `offset` advances.

        It stops at the end of the file, and may be called again after more was written. Bytes behind the last whole
        record are not damage: they may be a record being written.
        """
        while True:
            record = self._at(self.offset)
            if record is None:
                found = self._search(self.offset + 1)
                if found is None:
                    return
                self._buffer = b""
                record = self._at(self.offset)  # it may be complete by now, as the one behind it is
                if record is None:
                    start, self.offset = self.offset, found
                    yield Damage(start, found - start)
                    continue
            self.offset += self._form.header_bytes + len(record.content)
            yield record

    def content(self, damage: Damage, max_bytes: int) -> bytes:
        """Return the damaged bytes, at most `max_bytes`."""
        return self._bytes(damage.offset, min(damage.size, max_bytes))


class LogWriter:
    """Appends records to one file of a log.

    Args:
        descriptor: of an empty file, open to append; the writer closes it.

    Attributes:
        size: bytes of the file up to the last whole record.
        is_open: whether more may be appended.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.is_open = True
        self.size = 0

    def append(self, packed: bytes, durable: bool = False) -> None:
        """Append records, which survive a power failure if `durable`; after OSError, `cut` removes a partial write."""
        write_all(self._descriptor, packed)
        if durable:
            os.fdatasync(self._descriptor)
        self.size += len(packed)

    def cut(self, size: int | None = None) -> None:
        """Remove a partial write, or all behind `size` bytes.

        Raises:
            OSError: it cannot be removed. Append no more: a reader would stop at it.
        """
        size = self.size if size is None else size
        os.ftruncate(self._descriptor, size)
        self.size = size

    def close(self) -> None:
        """Close the file; idempotent."""
        if self.is_open:
            self.is_open = False
            os.close(self._descriptor)
