"""Documents on disk: what is written, in which order it comes back, and what goes beyond the bounds."""

from __future__ import annotations

import json
import os
import stat
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.facility.spool import MAX_REFUSED_BYTES, DocumentSpool, pack, unpack
from tests.support.place import mount_tmpfs

NS = 10**9
HOUR_NS = 3600 * NS


class NanosecondClock:
    def __init__(self):
        self.now_ns = 1_700_000_000 * NS

    def __call__(self):
        self.now_ns += 1000
        return self.now_ns


@pytest.fixture
def clock():
    return NanosecondClock()


@pytest.fixture
def open_spool(tmp_path, clock):
    opened = []

    def run(**options):
        opened.append(DocumentSpool(str(tmp_path / "state/spool"), now_ns=clock, **options))
        return opened[-1]

    yield run
    for spool in opened:
        spool.close()


def texts_of(*numbers):
    return [json.dumps({"token": None, "n": number}).encode() for number in numbers]


def numbers_in(spool):
    assert spool.acquire()
    found = [json.loads(entry.text)["n"] for entry in spool.entries()]
    assert len(found) == len(spool)
    return found


def names(tmp_path):
    return sorted(os.listdir(tmp_path / "state/spool"))


def test_documents_come_back_in_the_order_of_their_runs(open_spool):
    for start in range(0, 30, 10):
        spool = open_spool()
        assert spool.put(texts_of(*range(start, start + 10))) == 10
        spool.close()
    assert numbers_in(open_spool()) == list(range(30))


def test_thousands_of_documents_are_few_files_and_keep_their_order(open_spool, tmp_path):
    spool = open_spool()
    spool.put(texts_of(*range(20_000)))
    assert len(names(tmp_path)) < 10
    assert numbers_in(spool) == list(range(20_000))


def test_nobody_else_can_read_them(open_spool, tmp_path):
    spool = open_spool()
    spool.put(texts_of(1, 2))
    assert spool.acquire()
    first, second = spool.entries()
    spool.done(first)
    spool.refuse(second, "no")
    spool.put(texts_of(3))
    for path in (tmp_path / "state").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_what_is_done_is_not_there_for_the_next_run_and_leaves_no_file(open_spool, tmp_path):
    spool = open_spool()
    spool.put(texts_of(*range(5)))
    assert spool.acquire()
    entries = list(spool.entries())
    for entry in (entries[0], entries[3], entries[1]):
        spool.done(entry)
    spool.close()
    spool = open_spool()
    assert numbers_in(spool) == [2, 4]
    for entry in list(spool.entries()):
        spool.done(entry)
    assert len(spool) == 0
    assert names(tmp_path) == ["lock"]


def test_documents_that_an_older_version_noted_as_finished_are_not_sent_again(open_spool, tmp_path):
    spool = open_spool()
    spool.put(texts_of(*range(5)))
    (path,) = (tmp_path / "state/spool").glob("*.documents")
    path.with_suffix(".done").write_bytes(b"\0\0\0\0\2\0\0\0\1\0")  # 0, 2, and a note that was torn
    assert numbers_in(spool) == [1, 3, 4]
    spool.done(list(spool.entries())[-1])
    spool.close()
    spool = open_spool()
    assert numbers_in(spool) == [1, 3]
    for entry in list(spool.entries()):
        spool.done(entry)
    assert names(tmp_path) == ["lock"]


def test_a_line_that_is_damaged_costs_no_neighbour_however_short_it_is(open_spool, tmp_path):
    spool = open_spool()
    spool.put(texts_of(*range(3)))
    (path,) = (tmp_path / "state/spool").glob("*.documents")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\nx\n" + lines[1] + b"x" + lines[2][1:])
    for damaged in (2, 0):
        spool = open_spool()
        assert numbers_in(spool) == [0, 1] and spool.damaged == damaged
        spool.close()


def test_a_run_that_was_killed_in_the_middle_of_writing_leaves_nothing_for_ever(open_spool, tmp_path, clock):
    spool = open_spool()
    spool.put(texts_of(1))
    half = tmp_path / f"state/spool/.{clock.now_ns:020d}-{'a' * 16}.documents.new"
    half.write_bytes(pack(texts_of(2, 3))[:20])
    assert numbers_in(spool) == [1]
    assert half.exists(), "another run may be writing it"
    clock.now_ns += 2 * HOUR_NS
    assert numbers_in(spool) == [1]
    assert not half.exists()


@pytest.mark.parametrize("offset", [0, 5, 9, 30, -1])
def test_a_damaged_document_is_counted_once_and_the_others_are_there(open_spool, tmp_path, offset):
    spool = open_spool()
    spool.put(texts_of(*range(5)))
    (path,) = (tmp_path / "state/spool").glob("*.documents")
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x20
    path.write_bytes(data)
    found = numbers_in(spool)
    assert len(found) >= 3 and spool.damaged == 5 - len(found) > 0 and found == sorted(found)
    spool.close()
    spool = open_spool()
    assert numbers_in(spool) == found and spool.damaged == 0


def test_a_file_cut_at_any_byte_gives_the_documents_before_it():
    data = pack(texts_of(*range(4)))
    for end in range(len(data)):
        whole = [text for text in unpack(data[:end]).values() if text is not None]
        assert whole == texts_of(*range(4))[: data[:end].count(b"\n")]


@given(
    documents=st.one_of(st.binary(max_size=200), st.lists(st.binary(max_size=20)).map(pack)),
    done=st.binary(max_size=40),
)
def test_whatever_is_in_the_files_is_read_or_counted(documents, done):
    with tempfile.TemporaryDirectory() as folder:
        spool = DocumentSpool(folder)
        stem = Path(folder, f"{time.time_ns():020d}-{'0' * 16}")
        stem.with_suffix(".documents").write_bytes(documents)
        stem.with_suffix(".done").write_bytes(done)
        assert spool.acquire()
        waiting = len(spool)
        entries = list(spool.entries())
        assert len(entries) == waiting
        for entry in entries:
            assert b"%s\n" % entry.text in documents
            spool.refuse(entry, "no")
        assert len(spool) == 0 and not list(Path(folder).glob("*.documents"))
        spool.close()


def test_beyond_its_size_the_oldest_go_and_are_counted(open_spool):
    spool = open_spool(max_bytes=1 << 20)
    for start in range(0, 40_000, 4_000):
        spool.put(texts_of(*range(start, start + 4_000)))
    assert spool.acquire()
    assert spool.size_bytes > 1 << 20
    dropped = spool.drop_beyond()
    assert spool.size_bytes <= 1 << 20
    assert dropped == spool.dropped and dropped + len(spool) == 40_000
    assert numbers_in(spool) == list(range(dropped, 40_000))
    assert len(spool) > 25_000, "not more than had to"


def test_what_is_too_old_goes_and_is_counted(open_spool, clock):
    spool = open_spool(max_age_s=7200)
    spool.put(texts_of(1, 2))
    clock.now_ns += HOUR_NS
    spool.put(texts_of(3))
    clock.now_ns += HOUR_NS + NS
    assert spool.acquire()
    assert spool.drop_beyond() == 2
    assert numbers_in(spool) == [3]


def test_two_runs_do_not_send_the_same_and_both_can_add(open_spool):
    first, second = open_spool(), open_spool()
    assert first.acquire()
    assert not second.acquire()
    second.put(texts_of(1))
    first.put(texts_of(2))
    assert len(first) == 1, "what the other one adds is for the next run"
    first.release()
    assert numbers_in(second) == [1, 2]


def test_refused_documents_are_put_aside_with_the_reason_within_a_bound(open_spool, tmp_path):
    spool = open_spool()
    spool.put([json.dumps({"token": None, "n": n, "text": "x" * 10_000}).encode() for n in range(300)])
    assert spool.acquire()
    for entry in spool.entries():
        number = json.loads(entry.text)["n"]
        spool.refuse(entry, f'status 400: "{number}"')
    assert len(spool) == 0
    folder = tmp_path / "state/spool"
    lines = [json.loads(line) for line in (folder / "refused.jsonl").read_text().splitlines()]
    assert lines[-1]["document"]["n"] == 299 and lines[-1]["reason"] == 'status 400: "299"'
    assert (folder / "refused.jsonl").stat().st_size <= MAX_REFUSED_BYTES
    assert names(tmp_path) == ["lock", "refused.jsonl", "refused.jsonl.old"]


def test_a_directory_of_somebody_else_or_a_link_is_not_used(tmp_path):
    (tmp_path / "open").mkdir(mode=0o777)
    os.chmod(tmp_path / "open", 0o777)
    with pytest.raises(PermissionError):
        DocumentSpool(str(tmp_path / "open"))
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with pytest.raises(OSError, match="link"):
        DocumentSpool(str(tmp_path / "link"))


def test_a_disk_without_room_is_reported_and_nothing_is_there_in_part(tmp_path, root):
    import subprocess

    point = tmp_path / "small"
    point.mkdir()
    mount_tmpfs(point, "size=64k,mode=700")
    try:
        spool = DocumentSpool(str(point / "spool"), max_bytes=1 << 20)
        (point / "filler").write_bytes(b"x" * 40_000)
        assert spool.put(texts_of(1, 2)) == 2
        assert spool.put(texts_of(*range(3, 3000))) == 0
        assert spool.failures == 1
        assert numbers_in(spool) == [1, 2]
        spool.close()
    finally:
        subprocess.run(["umount", str(point)], check=False)
