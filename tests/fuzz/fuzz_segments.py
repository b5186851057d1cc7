"""Segments of the collector's journal."""

from __future__ import annotations

import contextlib
import os
from zlib import crc32

from colmet.collector.journal import segments
from colmet.common.record_log import CRC, Damage, seal

JOURNAL = "0123456789abcdef"
SEED = segments.seed_of(JOURNAL)


def packed(number, content, kind=segments.MESSAGE):
    """A record."""
    return segments.FORM.header(SEED, number, 5, content, kind) + content


RECORDS = packed(1, b'{"node-1": {"1": [0, 3, [[1, 2]]]}}', segments.SENDERS) + packed(2, b"message") + packed(3, b"")
SEEDS = [
    b"\0" + segments.pack_segment(JOURNAL, 1, 5) + RECORDS,
    b"\1" + segments.pack_segment(JOURNAL, 1, 5) + RECORDS,
    b"\1" + segments.pack_segment(JOURNAL, 1, 5) + RECORDS[:20] + RECORDS,
]


def sealed(data):
    """The same with checksums that hold: without them, nothing behind them would ever be looked at."""
    data = bytearray(data)
    header = segments._SEGMENT.size
    if len(data) >= segments.SEGMENT_HEADER_BYTES:
        data[: len(segments.SEGMENT_MAGIC)] = segments.SEGMENT_MAGIC
        data[header : header + 4] = CRC.pack(crc32(data[:header]))
    seed = int.from_bytes(data[8:12], "little")
    at = data.find(segments.FORM.magic)
    while 0 <= at <= len(data) - segments.FORM.header_bytes:
        magic, size, number, received_ns, _ = segments.FORM.fields.unpack_from(data, at)
        start = at + segments.FORM.header_bytes
        checksum = crc32(data[start : start + size], seed)
        segments.FORM.fields.pack_into(data, at, magic, size, number, received_ns, checksum)
        end = at + segments.FORM.fields.size
        data[end : end + 4] = CRC.pack(crc32(data[at:end], seed))
        at = data.find(segments.FORM.magic, at + (start - at + size if start + size <= len(data) else 1))
    return bytes(data)


@contextlib.contextmanager
def file_of(data):
    """The path of a file with this content."""
    descriptor = os.memfd_create("fuzz")
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def one(data: bytes) -> None:
    """Every byte belongs to one record or one damage, in order. The first byte says whether checksums are to hold."""
    data = sealed(data[1:]) if data[:1] == b"\1" else data[1:]
    with file_of(data) as path:
        reader = segments.SegmentReader(path)
        try:
            at = reader.offset
            seed = segments.seed_of(reader.header.journal if reader.header else "0")
            for part in reader.read():
                assert part.offset == at
                if isinstance(part, Damage):
                    assert part.size > 0
                    at += part.size
                    continue
                start = segments.FORM.magic + bytes([part.kind])  # a kind of a later version, too
                checksum = crc32(part.content, seed)
                fields = segments.FORM.fields.pack(start, len(part.content), part.number, part.time_ns, checksum)
                header = seal(fields, seed)
                assert data[at : at + len(header) + len(part.content)] == header + part.content
                at += len(header) + len(part.content)
            assert at == reader.offset <= max(len(data), at)
        finally:
            reader.close()
