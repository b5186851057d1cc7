from __future__ import annotations

import os
import random
import tracemalloc

from colmet.collector.journal import segments
from colmet.collector.journal.segments import MESSAGE, SegmentReader
from colmet.common.record_log import LogRecord, seal

JOURNAL = "0123456789abcdef"
SEED = segments.seed_of(JOURNAL)


def record(number, content, kind=MESSAGE):
    return segments.FORM.header(SEED, number, 1000 + number, content, kind) + content


def segment(tmp_path, *parts, first=7):
    path = tmp_path / segments.segment_name(first)
    path.write_bytes(b"".join([segments.pack_segment(JOURNAL, first, 5), *parts]))
    return path


def read(path, journal=JOURNAL):
    reader = SegmentReader(str(path), journal)
    try:
        return list(reader.read()), reader.size() - reader.offset
    finally:
        reader.close()


def numbers(found):
    return [one.number for one in found if isinstance(one, LogRecord)]


def test_names_are_in_order_and_others_are_no_segments(tmp_path):
    for name in (segments.segment_name(10**15), segments.segment_name(9), "lock", "00000000000000000001.segment.new"):
        (tmp_path / name).touch()
    assert [first for first, _ in segments.list_segments(str(tmp_path))] == [9, 10**15]


def test_what_is_no_plain_file_is_no_segment(tmp_path):
    """A link would have another file cut, a pipe would have its reader wait for ever."""
    (tmp_path / "elsewhere").touch()
    (tmp_path / segments.segment_name(1)).symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / segments.segment_name(2))
    (tmp_path / segments.segment_name(3)).mkdir()
    (tmp_path / segments.segment_name(1 << 63)).touch()
    (tmp_path / segments.segment_name(5)).touch()
    assert segments.list_segments(str(tmp_path)) == [(5, str(tmp_path / segments.segment_name(5)))]


def test_a_record_that_is_being_written_is_no_damage_and_is_read_once_it_is_whole(tmp_path):
    whole = record(8, b"second" * 100)
    path = segment(tmp_path, record(7, b"first"), whole[:50])
    reader = SegmentReader(str(path), JOURNAL)
    assert numbers(reader.read()) == [7]
    assert list(reader.read()) == []
    assert reader.size() - reader.offset == 50
    with path.open("ab") as file:
        file.write(whole[50:])
    assert numbers(reader.read()) == [8]
    reader.close()


def test_a_record_that_is_written_while_it_is_looked_at_is_no_damage(tmp_path, monkeypatch):
    second, third = record(8, b"second" * 100), record(9, b"third")
    path = segment(tmp_path, record(7, b"first"), second[:50])
    whole = SegmentReader._search

    def search(self, offset):
        monkeypatch.undo()
        with path.open("ab") as file:
            file.write(second[50:] + third)
        return whole(self, offset)

    monkeypatch.setattr(SegmentReader, "_search", search)
    found, rest = read(path)
    assert numbers(found) == [7, 8, 9] and len(found) == 3 and rest == 0


def test_random_damage_costs_the_records_it_hits(tmp_path):
    rng = random.Random(4)
    for _ in range(100):
        parts = [record(7 + n, rng.randbytes(rng.randrange(3000))) for n in range(40)]
        starts = [segments.SEGMENT_HEADER_BYTES + sum(map(len, parts[:n])) for n in range(41)]
        path = segment(tmp_path, *parts)
        content = bytearray(path.read_bytes())
        offset = rng.randrange(starts[0], len(content))
        size = rng.randrange(1, 5000)
        content[offset : offset + size] = rng.randbytes(len(content[offset : offset + size]))
        path.write_bytes(bytes(content))
        found, _ = read(path)
        intact = [7 + n for n in range(40) if starts[n + 1] <= offset or starts[n] >= offset + size]
        assert numbers(found) == intact


def test_a_message_that_looks_like_records_is_not_taken_for_some(tmp_path):
    """Whoever sends it does not know the journal's name."""
    forged = segments.FORM.header(segments.seed_of("f" * 16), 8, 1, b"forged", MESSAGE) + b"forged"
    damaged = bytearray(record(7, forged * 3))
    damaged[6] ^= 1  # its header no longer leads behind it
    found, _ = read(segment(tmp_path, bytes(damaged), record(9, b"real")))
    assert numbers(found) == [9]


def test_a_record_that_claims_to_be_larger_than_the_file_costs_no_memory(tmp_path):
    path = tmp_path / segments.segment_name(1)
    form = segments.FORM
    header = form.fields.pack(form.starts[MESSAGE], form.max_bytes, 1, 5, 0)
    header = seal(header, segments.seed_of("0123456789abcdef"))
    path.write_bytes(segments.pack_segment("0123456789abcdef", 1, 5) + header + b"x" * 100)
    tracemalloc.start()
    reader = SegmentReader(str(path))
    assert list(reader.read()) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    reader.close()
    assert peak < 8 << 20
