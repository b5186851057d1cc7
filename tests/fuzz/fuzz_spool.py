"""Segments of the node's spool."""

from __future__ import annotations

from zlib import crc32

from colmet.node.delivery import spool

SEED = 0x0123456789ABCDEF
HEAD = spool.pack_head(SEED, 1_700_000_000, "node-1")
RECORDS = b"".join([spool.pack_record(SEED, seq, 5, b"message" * seq) for seq in range(3)])
SEEDS = [b"\0" + HEAD + RECORDS, b"\1" + HEAD + RECORDS, b"\1" + HEAD + RECORDS[:30] + RECORDS]


def sealed(data):
    """The same with checksums that hold: without them, nothing behind them would ever be looked at."""
    data = bytearray(data)
    if len(data) < spool._SEGMENT.size:
        return bytes(data)
    data[: len(spool.MAGIC)] = spool.MAGIC
    _, seed, _, length = spool._SEGMENT.unpack_from(data)
    end = spool._SEGMENT.size + length
    data[end : end + 4] = spool._CRC.pack(crc32(data[:end]))
    at = data.find(spool.RECORD_MAGIC, end)
    while 0 <= at <= len(data) - spool.RECORD_BYTES:
        magic, size, seq, time_ns, _ = spool._RECORD.unpack_from(data, at)
        start = at + spool.RECORD_BYTES
        checksum = crc32(data[start : start + size], seed & 0xFFFFFFFF)
        spool._RECORD.pack_into(data, at, magic, size, seq, time_ns, checksum)
        behind = at + spool._RECORD.size
        data[behind : behind + 4] = spool._CRC.pack(crc32(data[at:behind], seed & 0xFFFFFFFF))
        at = data.find(spool.RECORD_MAGIC, start + size if start + size <= len(data) else at + 1)
    return bytes(data)


def one(data: bytes) -> None:
    """Every byte belongs to one record or none, in order. The first byte says whether checksums are to hold."""
    data = sealed(data[1:]) if data[:1] == b"\1" else data[1:]
    head = spool.read_head(data)
    if head is None:
        return
    seed, epoch, host, start = head
    assert isinstance(host, str) and 0 <= epoch < 1 << 64
    at = start
    for part in spool.find_records(data, seed, start):
        if isinstance(part, spool.Lost):
            assert part.start == at < part.end
            at = part.end
            continue
        # the checksum of the message is looked at when it is read
        fields = (part.end - part.start, part.seq, part.time_ns, part.checksum)
        header = spool._RECORD.pack(spool.RECORD_MAGIC, *fields)
        assert data[at : part.start] == header + spool._CRC.pack(crc32(header, seed & 0xFFFFFFFF))
        at = part.end
    assert at == max(len(data), start)
