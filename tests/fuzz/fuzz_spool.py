"""Segments of the node's spool."""

from __future__ import annotations

from zlib import crc32

from colmet.common.record_log import CRC, Damage, LogReader, seal
from colmet.node.delivery import spool

SEED = 0x0123456789ABCDEF
HEAD = spool.pack_head(SEED, 1_700_000_000, "node-1")
RECORDS = b"".join(
    [spool.FORM.header(SEED & 0xFFFFFFFF, seq, 5, b"message" * seq) + b"message" * seq for seq in range(3)]
)
SEEDS = [b"\0" + HEAD + RECORDS, b"\1" + HEAD + RECORDS, b"\1" + HEAD + RECORDS[:30] + RECORDS]


def sealed(data):
    """The same with checksums that hold: without them, nothing behind them would ever be looked at."""
    data = bytearray(data)
    if len(data) < spool._SEGMENT.size:
        return bytes(data)
    data[: len(spool.MAGIC)] = spool.MAGIC
    _, seed, _, length, described = spool._SEGMENT.unpack_from(data)
    end = spool._SEGMENT.size + length + described
    data[end : end + 4] = CRC.pack(crc32(data[:end]))
    at = data.find(spool.FORM.magic, end)
    while 0 <= at <= len(data) - spool.FORM.header_bytes:
        magic, size, seq, time_ns, _ = spool.FORM.fields.unpack_from(data, at)
        start = at + spool.FORM.header_bytes
        checksum = crc32(data[start : start + size], seed & 0xFFFFFFFF)
        spool.FORM.fields.pack_into(data, at, magic, size, seq, time_ns, checksum)
        behind = at + spool.FORM.fields.size
        data[behind : behind + 4] = CRC.pack(crc32(data[at:behind], seed & 0xFFFFFFFF))
        at = data.find(spool.FORM.magic, start + size if start + size <= len(data) else at + 1)
    return bytes(data)


def one(data: bytes) -> None:
    """Every byte belongs to one record or none, in order. The first byte says whether checksums are to hold."""
    data = sealed(data[1:]) if data[:1] == b"\1" else data[1:]
    head = spool.read_head(data)
    if head is None:
        return
    seed, epoch, host, start, _ = head
    assert isinstance(host, str) and 0 <= epoch < 1 << 64
    at = start
    reader = LogReader.of_bytes(spool.FORM, seed, data, start, checks_content=False)
    for part in reader.read():
        assert part.offset == at
        if isinstance(part, Damage):
            assert part.size > 0
            at += part.size
            continue
        # the checksum of the message is checked when it is read
        checksum = spool.FORM.fields.unpack_from(data, at)[-1]
        fields = spool.FORM.fields.pack(spool.FORM.magic, len(part.content), part.number, part.time_ns, checksum)
        packed = seal(fields, seed) + part.content
        assert data[at : at + len(packed)] == packed
        at += len(packed)
    assert at == reader.offset <= max(len(data), at)
