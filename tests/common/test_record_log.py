"""The log of records under the journal and the spools: what earlier versions wrote is read, and written the same."""

from __future__ import annotations

import os

import pytest

from colmet.collector.journal import segments
from colmet.common.record_log import LogWriter

# A file as Colmet wrote it when the journal had code of its own.
JOURNAL = bytes.fromhex(
    "436f6c6d65744a31efcdab896745230107000000000000000500000000000000218fb358"
    "c74a520a01020000000700000000000000ef03000000000000c667959f561324337b7d"
    "c74a520a00050000000700000000000000ef03000000000000d051df277fb90f3d68656c6c6f"
    "c74a520a00000000000800000000000000f003000000000000efcdab89d5db43f1"
)


def test_a_journal_of_earlier_versions_is_read_and_written_the_same(tmp_path):
    path = tmp_path / segments.segment_name(7)
    path.write_bytes(JOURNAL)
    reader = segments.SegmentReader(str(path))
    try:
        found = [(one.number, one.kind, one.time_ns, one.content) for one in reader.read()]
    finally:
        reader.close()
    assert reader.header == ("0123456789abcdef", 7, 5)
    assert found == [(7, 1, 1007, b"{}"), (7, 0, 1007, b"hello"), (8, 0, 1008, b"")]
    seed = segments.seed_of("0123456789abcdef")
    packed = [segments.FORM.header(seed, n, at, content, kind) + content for n, kind, at, content in found]
    assert b"".join([segments.pack_segment("0123456789abcdef", 7, 5), *packed]) == JOURNAL


def test_what_a_failed_write_left_is_cut_off(tmp_path, monkeypatch):
    path = tmp_path / "log"
    writer = LogWriter(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
    writer.append(b"whole", durable=True)
    write = os.write
    parts = iter([lambda fd, data: write(fd, bytes(data)[:3]), lambda fd, data: 0])
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: next(parts)(fd, data))
        with pytest.raises(OSError, match="No space"):
            writer.append(b"partly")
    assert path.read_bytes() == b"wholepar" and writer.size == 5
    writer.cut()
    writer.append(b", too")
    writer.close()
    writer.close()
    assert path.read_bytes() == b"whole, too" and not writer.is_open
