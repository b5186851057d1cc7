"""Segments of the node's spool."""

from __future__ import annotations

from zlib import crc32

from colmet.node import spoolfiles

SEED = 0x0123456789ABCDEF
HEAD = spoolfiles.pack_head(SEED, 1_700_000_000, "node-1")
RECORDS = b"".join([spoolfiles.pack_record(SEED, seq, 5, b"message" * seq) for seq in range(3)])
SEEDS = [b"\0" + HEAD + RECORDS, b"\1" + HEAD + RECORDS, b"\1" + HEAD + RECORDS[:30] + RECORDS]


def sealed(data):
    """The same with checksums that hold: without them, nothing behind them would ever be looked at."""
    data = bytearray(data)
    if len(data) < spoolfiles._SEGMENT.size:
        return bytes(data)
    data[: len(spoolfiles.MAGIC)] = spoolfiles.MAGIC
    _, seed, _, length = spoolfiles._SEGMENT.unpack_from(data)
    end = spoolfiles._SEGMENT.size + length
    data[end : end + 4] = spoolfiles._CRC.pack(crc32(data[:end]))
    at = data.find(spoolfiles.RECORD_MAGIC, end)
    while 0 <= at <= len(data) - spoolfiles.RECORD_BYTES:
        magic, size, seq, time_ns, _ = spoolfiles._RECORD.unpack_from(data, at)
        start = at + spoolfiles.RECORD_BYTES
        checksum = crc32(data[start : start + size], seed & 0xFFFFFFFF)
        spoolfiles._RECORD.pack_into(data, at, magic, size, seq, time_ns, checksum)
        behind = at + spoolfiles._RECORD.size
        data[behind : behind + 4] = spoolfiles._CRC.pack(crc32(data[at:behind], seed & 0xFFFFFFFF))
        at = data.find(spoolfiles.RECORD_MAGIC, start + size if start + size <= len(data) else at + 1)
    return bytes(data)


def one(data: bytes) -> None:
    """Every byte belongs to one record or none, in order. The first byte says whether checksums are to hold."""
    data = sealed(data[1:]) if data[:1] == b"\1" else data[1:]
    head = spoolfiles.read_head(data)
    if head is None:
        return
    seed, epoch, host, start = head
    assert isinstance(host, str) and 0 <= epoch < 1 << 64
    at = start
    for part in spoolfiles.find_records(data, seed, start):
        if isinstance(part, spoolfiles.Lost):
            assert part.start == at < part.end
            at = part.end
            continue
        # the checksum of the message is looked at when it is read
        fields = (part.end - part.start, part.seq, part.time_ns, part.checksum)
        header = spoolfiles._RECORD.pack(spoolfiles.RECORD_MAGIC, *fields)
        assert data[at : part.start] == header + spoolfiles._CRC.pack(crc32(header, seed & 0xFFFFFFFF))
        at = part.end
    assert at == max(len(data), start)
