from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from colmet.collector.journal import journal as module
from colmet.collector.journal import segment_store as store_module
from colmet.collector.journal import segments
from colmet.collector.journal.cursor import Cursor
from colmet.collector.journal.journal import Journal
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.host import files
from colmet.common.wire import Decoder, v1
from tests.support.journal_batches import batch
from tests.support.place import mount_tmpfs
from tests.support.waiting import wait_for

MUCH = 1 << 40


class Rig:
    """Journals in one directory, one after the other."""

    def __init__(self, directory):
        self.directory = str(directory)
        self.open_one = None
        self.acknowledged = []
        self.size = MUCH

    def open(self, account=b"{}", keep=True, **options):
        """The next one; with an output that has written nothing and so keeps all of it, unless `keep` is false."""
        self.open_one = Journal(self.directory, self.size, self.acknowledged.extend, **options)
        if keep:
            self.open_one.state("keeps")
        self.restored = self.open_one.read_senders()
        self.restored = self.restored[0], list(self.restored[1])
        self.open_one.start(lambda: account)
        return self.open_one

    def close(self):
        if self.open_one is not None:
            self.open_one.close()


@pytest.fixture
def rig(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "COMMIT_S", 0.01)
    rig = Rig(tmp_path / "j")
    yield rig
    rig.close()


def put(journal, *seqs, wait=True):
    for seq in seqs:
        one = batch(seq)
        journal.append(v1.encode(one), [one])
    if wait:
        seen(journal, seqs[-1])


def seen(journal, seq, within_s=20):
    """Wait until the record with this batch can be read."""
    end = time.monotonic() + within_s
    while seq not in seqs(journal, max(0, journal.end - 3)):
        assert time.monotonic() < end, "not written"
        time.sleep(0.005)


def everything(journal, position=0):
    """All records from a position on, and how many are lost."""
    cursor, records, lost = Cursor(journal), [], 0
    while position < journal.end:
        reading = cursor.read(position, MUCH)
        assert reading.after > position
        records += reading.records
        lost += reading.lost
        position = reading.after
    cursor.close()
    return records, lost


def seqs(journal, position=0):
    return [one.seq for record in everything(journal, position)[0] for one in record.batches]


def test_what_is_appended_is_read_once_it_is_on_disk(rig, monkeypatch):
    journal = rig.open()
    hold = threading.Event()
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (hold.wait(20), sync(fd)))
    put(journal, 5, 6, wait=False)
    time.sleep(0.1)
    assert journal.end == 0 and seqs(journal) == [] and rig.acknowledged == []
    hold.set()
    seen(journal, 6)
    assert seqs(journal) == [5, 6]
    assert [record.number for record in rig.acknowledged] == [0, 1]
    assert journal.pending_bytes == 0


def test_the_next_process_reads_what_the_former_one_left(rig):
    journal = rig.open()
    put(journal, *range(10))
    rig.close()
    journal = rig.open()
    assert (journal.oldest, journal.end) == (0, 10)
    put(journal, 10, 11)
    assert seqs(journal) == list(range(12))
    assert seqs(journal, 9) == [9, 10, 11] and seqs(journal, 11) == [11] and seqs(journal, 12) == []
    cursor = Cursor(journal)  # in pieces, from disk and then from memory
    position, found = 0, []
    while position < journal.end:
        reading = cursor.read(position, 100)
        assert reading.lost == 0 and 1 <= len(reading.records) <= 2
        found += [record.batches[0].seq for record in reading.records]
        position = reading.after
    assert found == list(range(12))


def far_behind(rig):
    """A journal of several segments, of which memory has nothing."""
    for start in range(0, 12, 3):
        put(rig.open(), *range(start, start + 3))
        rig.close()
    return rig.open()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EACCES])
def test_a_segment_that_cannot_be_opened_now_is_not_passed_over(rig, monkeypatch, error):
    journal = far_behind(rig)
    cursor = Cursor(journal)
    whole = segments.os.open
    monkeypatch.setattr(segments.os, "open", lambda *_: (_ for _ in ()).throw(OSError(error, os.strerror(error), "x")))
    with pytest.raises(OutputUnavailable, match=r"journal: cannot read x: " + os.strerror(error)):
        cursor.read(0, MUCH)
    monkeypatch.setattr(segments.os, "open", whole)
    assert [record.number for record in cursor.read(0, MUCH).records] == list(range(12))


def test_a_segment_that_is_removed_before_it_is_opened_costs_its_own_records_alone(rig):
    journal = far_behind(rig)
    os.unlink(journal.store.paths[0][1])  # as the thread of the journal does, for lack of room
    os.unlink(journal.store.paths[2][1])
    assert seqs(journal) == [3, 4, 5, 9, 10, 11] and everything(journal)[1] == 6


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), MemoryError()])
def test_an_error_while_it_reads_costs_no_record(rig, monkeypatch, error):
    journal = far_behind(rig)
    cursor = Cursor(journal)
    assert [record.number for record in cursor.read(0, 1).records] == [0]
    whole, calls = Decoder.decode, []

    def fails_once(self, message):
        calls.append(message)
        if len(calls) == 3:
            raise error
        return whole(self, message)

    monkeypatch.setattr(Decoder, "decode", fails_once)
    with pytest.raises((OutputUnavailable, MemoryError)):
        cursor.read(1, MUCH)
    assert [record.number for record in cursor.read(1, MUCH).records] == list(range(1, 12))


def test_two_outputs_read_at_their_own_pace(rig):
    journal = rig.open(segment_bytes=1 << 20)
    slow, fast = journal.state("slow"), journal.state("fast")
    put(journal, 1, 2, 3)
    fast.save(3)
    assert seqs(journal, slow.position) == [1, 2, 3] and seqs(journal, fast.position) == []
    rig.close()
    journal = rig.open()
    assert journal.state("slow").position == 0 and journal.state("fast").position == 3
    new = journal.state("new")
    assert new.position == journal.end and new.is_new  # what came before it was asked for is not its own


@pytest.mark.parametrize("size", [1, 20, 60, 100])
def test_a_torn_tail_is_cut_and_nothing_else(rig, caplog, size):
    journal = rig.open()
    put(journal, *range(5))
    path = journal.store.paths[-1][1]
    rig.close()
    os.truncate(path, os.path.getsize(path) - size)
    journal = rig.open()
    assert seqs(journal) == list(range(4)) and journal.store.torn_bytes > 0 and "cut off" in caplog.text
    put(journal, 9)  # the number is given again: nobody has seen the record that was torn
    assert [record.number for record in everything(journal)[0]] == [0, 1, 2, 3, 4]
    rig.close()
    assert seqs(rig.open()) == [0, 1, 2, 3, 9] and rig.open_one.store.torn_bytes == 0


def test_what_a_killed_one_may_not_have_synced_is_synced_before_it_counts(rig, monkeypatch):
    journal = rig.open()
    put(journal, *range(3))
    path = journal.store.paths[-1][1]
    rig.close()
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), fsync(fd)))
    journal = Journal(rig.directory, MUCH)
    try:
        assert os.stat(path).st_ino in synced and os.stat(rig.directory).st_ino in synced
    finally:
        journal.close()


@pytest.mark.parametrize(
    "garbage", [b"\0" * 5000, os.urandom(5000), segments.FORM.magic * 100], ids=["zeros", "random", "magic"]
)
def test_garbage_at_the_end_is_cut(rig, garbage):
    journal = rig.open()
    put(journal, *range(5))
    path = journal.store.paths[-1][1]
    rig.close()
    size = os.path.getsize(path)
    with open(path, "ab") as file:
        file.write(garbage)
    journal = rig.open()
    assert journal.store.torn_bytes == len(garbage) and os.path.getsize(path) == size
    put(journal, 5)
    assert seqs(journal) == list(range(6))


def test_no_number_is_given_twice_even_where_the_segments_have_gone(rig):
    journal = rig.open()
    state = journal.state("x")
    put(journal, *range(5))
    state.save(5)
    rig.close()
    for _, path in segments.list_segments(rig.directory):
        os.unlink(path)
    journal = rig.open()
    assert journal.end == 5 and journal.state("x").position == 5
    put(journal, 99)
    assert [record.number for record in Cursor(journal).read(5, MUCH).records] == [5]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    "content", [b"[" * 5000, b'{"position": 1e999, "keep_from": 0}', b'{"position": [1]}', b"\xff"]
)
def test_a_position_that_is_none_does_not_count(rig, content):
    put(rig.open(), 1, 2)
    rig.close()
    Path(rig.directory, "other.json").write_bytes(content)
    assert store_module.read_positions(rig.directory) == {"keeps": (0, 0)}
    assert rig.open().end == 2
    rig.open_one.state("other")
    assert Path(rig.directory, "other.json.unreadable").read_bytes() == content


def test_a_position_that_cannot_be_read_is_reported(rig):
    os.makedirs(os.path.join(rig.directory, "x.json"))
    with pytest.raises(ConfigError, match=r"cannot read how far x is: .*x\.json: Is a directory"):
        rig.open().state("x")


def test_damage_in_the_middle_is_passed_over_counted_and_kept_aside(rig, caplog):
    journal = rig.open()
    put(journal, *range(10))
    path = journal.store.paths[-1][1]
    rig.close()
    content = bytearray(Path(path).read_bytes())
    middle = len(content) // 2
    content[middle : middle + 10] = b"\xff" * 10
    Path(path).write_bytes(bytes(content))
    journal = rig.open()
    records, lost = everything(journal)
    found = [record.batches[0].seq for record in records]
    assert len(found) == 9 and (set(range(10)) - set(found)).pop() in range(3, 8)
    assert lost == 1
    everything(journal)  # another output: logged once
    assert journal.store.damages == 1 and caplog.text.count("bytes skipped") == 1
    (aside,) = Path(rig.directory, store_module.ASIDE).iterdir()
    assert b"\xff" * 10 in aside.read_bytes() and aside.read_bytes() in bytes(content)


def test_damage_all_over_fills_neither_disk_nor_log(rig, monkeypatch, caplog):
    monkeypatch.setattr(store_module, "MAX_ASIDE_FILES", 5)
    journal = rig.open()
    put(journal, *range(40))
    path = journal.store.paths[-1][1]
    rig.close()
    content = bytearray(Path(path).read_bytes())
    parts = content.split(segments.FORM.magic)  # header, account, description, records
    for n in range(4, len(parts) - 1, 2):
        parts[n][-1] ^= 0xFF
    Path(path).write_bytes(segments.FORM.magic.join(parts))
    journal = rig.open()
    assert len(everything(journal)[0]) == 21 and journal.store.damages == 19
    assert caplog.text.count("bytes skipped") == 2, "the 1st and the 10th"
    assert len(os.listdir(os.path.join(rig.directory, store_module.ASIDE))) == 5
    assert "not kept: there is much already" in caplog.text


def test_records_that_this_version_cannot_read_are_counted_and_reported(rig, caplog):
    journal = rig.open()
    for seq in range(20):
        journal.append(b"no dialect", [batch(seq)])
    put(journal, 20)
    rig.close()
    journal = rig.open()
    records, lost = everything(journal)
    assert [record.number for record in records] == [20] and lost == 20
    assert journal.counters()["unreadable"] == 20 and caplog.text.count("record cannot be read") == 2


def test_segments_go_when_every_output_has_written_them(rig):
    journal = rig.open(keep=False, segment_bytes=1 << 20)
    states = [journal.state("a"), journal.state("b")]
    padding = bytes(300_000)

    def fill(start):
        for seq in range(start, start + 10):
            one = batch(seq)
            journal.append(v1.encode(one) + padding, [one])  # not decoded again: it is read from memory
        seen(journal, start + 9)

    fill(0)
    many = len(segments.list_segments(rig.directory))
    assert many >= 3 and journal.oldest == 0
    states[0].save(journal.end)
    journal.trim()
    assert len(segments.list_segments(rig.directory)) == many, "the other output has not"
    states[1].save(journal.end, keep_from=0)
    journal.trim()
    assert len(segments.list_segments(rig.directory)) == many, "it may need them again"
    states[1].save(journal.end)
    journal.trim()
    assert len(segments.list_segments(rig.directory)) == 1
    assert journal.dropped == 0 and journal.oldest > 0


@pytest.mark.slow
def test_what_is_kept_for_a_rebuilding_gives_way_when_half_the_room_is_taken(rig):
    rig.size = 8 << 20
    journal = rig.open(keep=False, segment_bytes=1 << 20)
    state = journal.state("a")
    for seq in range(60):
        one = batch(seq)
        journal.append(v1.encode(one) + bytes(300_000), [one])
        seen(journal, seq)
        state.save(journal.end, keep_from=0)
    assert 2 << 20 < journal.store.size_bytes <= 5 << 20
    assert journal.dropped == 0


@pytest.mark.slow
def test_the_smallest_journal_keeps_what_fits(rig):
    rig.size = 1 << 20
    journal = rig.open()
    message = v1.encode(batch(0, rows=2000))
    fits = (3 << 18) // len(message)  # three quarters
    for seq in range(3 * fits):
        journal.append(message, [batch(seq)])
        seen(journal, seq)
        assert seq >= fits or (journal.dropped, journal.oldest) == (0, 0)
    assert journal.dropped > 0 and 3 << 18 <= journal.store.size_bytes <= 1 << 20


@pytest.mark.slow
def test_beyond_its_size_the_oldest_go_which_is_counted_and_reported(rig, caplog):
    rig.size = 8 << 20
    journal = rig.open(segment_bytes=1 << 20)
    state = journal.state("away")
    message = v1.encode(batch(0, rows=4000))
    for seq in range(200):
        journal.append(message, [batch(seq)])
        seen(journal, seq)
    assert journal.store.size_bytes <= 9 << 20
    assert journal.dropped > 0 and "journal has more than --journal-size" in caplog.text
    assert state.position == 0
    journal._tail.forget(journal.end, 0)  # as if it had been long ago
    journal._tail.first = journal.end
    assert caplog.text.count("journal has more than --journal-size") <= len(str(journal.dropped))
    reading = Cursor(journal).read(0, MUCH)
    assert reading.lost == journal.dropped == reading.records[0].number
    assert reading.after == 200


def test_a_full_disk_is_reported_and_nothing_is_lost(rig, monkeypatch, caplog):
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    journal = rig.open()
    put(journal, 1)
    full = threading.Event()
    full.set()
    write = os.write

    def half(fd, content):
        if full.is_set() and fd == journal.store._writer._descriptor:
            if len(content) > 40:
                return write(fd, content[:40])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, content)

    monkeypatch.setattr(os, "write", half)
    put(journal, 2, 3, wait=False)
    wait_for(lambda: "No space left" in caplog.text)
    assert "received data waits in memory" in caplog.text and journal.pending_bytes > 0
    assert seqs(journal) == [1] and len(rig.acknowledged) == 1
    full.clear()
    seen(journal, 3)
    assert seqs(journal) == [1, 2, 3] and journal.pending_bytes == 0
    wait_for(lambda: "can be written to again" in caplog.text)
    monkeypatch.undo()
    rig.close()
    assert seqs(rig.open()) == [1, 2, 3]


def test_after_a_failed_fsync_the_same_records_are_written_elsewhere(rig, monkeypatch):
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    journal = rig.open()
    put(journal, 1)
    sync, ill = os.fdatasync, [True]

    def broken(fd):
        if ill.pop() if ill else False:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", broken)
    monkeypatch.setattr(os, "ftruncate", lambda fd, size: broken_for_good())

    def broken_for_good():
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    put(journal, 2)
    assert len(segments.list_segments(rig.directory)) == 2
    put(journal, 3)
    rig.close()
    assert seqs(rig.open()) == [1, 2, 3], "the second is in both segments"


def test_a_kill_after_a_failed_write_that_stayed_has_no_number_given_twice(rig):
    """What came back as an error is on disk all the same, and behind it a segment that was just begun."""
    journal = rig.open()
    put(journal, 1, 2)
    rig.close()
    Path(rig.directory, segments.segment_name(1)).write_bytes(segments.pack_segment(journal.journal, 1, 5))
    put(rig.open(), 3)
    assert len(rig.restored[1]) == 2, "what the account has, an output has, too"
    assert [(record.number, record.batches[0].seq) for record in everything(rig.open_one)[0]] == [
        (0, 1),
        (1, 2),
        (2, 3),
    ]


def test_when_too_much_waits_it_says_so(rig, monkeypatch):
    monkeypatch.setattr(module, "MAX_PENDING_BYTES", 10_000)
    journal = rig.open()
    monkeypatch.setattr(journal, "_write", lambda group: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    assert not journal.full
    put(journal, *range(20), wait=False)
    assert journal.full


def test_the_account_of_the_senders_comes_back_with_what_came_since(rig):
    journal = rig.open(b'{"first": 1}')
    put(journal, 1, 2)
    rig.close()
    journal = rig.open(b'{"second": 2}')
    assert rig.restored[0] == b'{"first": 1}' and len(rig.restored[1]) == 2
    put(journal, 3)
    rig.close()
    journal = rig.open()
    assert rig.restored[0] == b'{"second": 2}' and rig.restored[1] == [v1.encode(batch(3))]


def test_a_segment_whose_account_is_torn_leaves_that_of_the_one_before(rig):
    journal = rig.open(b'{"first": 1}')
    journal.state("x").save(0)
    put(journal, 1)
    rig.close()
    journal = rig.open(b'{"second": 2}')
    put(journal, 2)
    path = journal.store.paths[-1][1]
    rig.close()
    os.truncate(path, segments.SEGMENT_HEADER_BYTES + 10)
    rig.open()
    assert rig.restored[0] == b'{"first": 1}' and rig.restored[1] == [v1.encode(batch(1))]


def test_a_damaged_header_does_not_hide_the_account_behind_it(rig):
    journal = rig.open(b'{"first": 1}')
    put(journal, 1)
    path = journal.store.paths[-1][1]
    rig.close()
    content = Path(path).read_bytes()
    Path(path).write_bytes(b"garbage!" + content[8:])
    rig.open()
    assert rig.restored[0] == b'{"first": 1}' and len(rig.restored[1]) == 1


def test_an_account_stands_behind_all_that_it_accounts_for(rig):
    journal = rig.open(segment_bytes=1 << 20)
    journal.state("x").save(0)
    counted = []
    journal._senders = lambda: str(len(counted)).encode()
    for seq in range(30):
        counted.append(seq)
        one = batch(seq)
        journal.append(v1.encode(one) + bytes(100_000), [one])
    seen(journal, 29)
    rig.close()
    for first, path in segments.list_segments(rig.directory)[1:]:
        assert store_module._senders_of(path, journal.journal) == str(first).encode()


def test_a_second_collector_is_refused(rig):
    rig.open()
    with pytest.raises(ConfigError, match="another process uses it"):
        Journal(rig.directory, MUCH)


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"[" * 4000, b'{"form": 9, "journal": "0123456789abcdef"}', b'{"form": 1, "journal": "../x"}'],
)
def test_another_name_file_is_refused(rig, content):
    os.mkdir(rig.directory)
    with open(os.path.join(rig.directory, store_module.NAME_FILE), "wb") as file:
        file.write(content)
    with pytest.raises(ConfigError, match="move the directory away"):
        Journal(rig.directory, MUCH)
    Rig(rig.directory + "2").open().close()


def test_a_name_file_that_is_missing_costs_no_record(rig, caplog):
    put(rig.open(), *range(5))
    name = rig.open_one.journal
    rig.close()
    os.unlink(os.path.join(rig.directory, store_module.NAME_FILE))
    journal = rig.open()
    assert journal.journal == name and seqs(journal) == list(range(5)) and journal.store.torn_bytes == 0
    assert "was missing" in caplog.text


def test_segments_of_other_journals_are_not_cut(rig, tmp_path):
    put(rig.open(), 1)
    rig.close()
    other = Rig(tmp_path / "other")
    put(other.open(), 1, 2)
    other.close()
    ((_, path),) = segments.list_segments(other.directory)
    foreign = os.path.join(rig.directory, segments.segment_name(7))
    os.rename(path, foreign)
    size = os.path.getsize(foreign)
    with pytest.raises(ConfigError, match="of another journal"):
        Journal(rig.directory, MUCH)
    os.unlink(os.path.join(rig.directory, store_module.NAME_FILE))
    with pytest.raises(ConfigError, match="is missing, and the segments name"):
        Journal(rig.directory, MUCH)
    assert os.path.getsize(foreign) == size
    os.unlink(foreign)
    assert seqs(rig.open()) == [1]


def test_a_new_directory_survives_a_power_failure(rig, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    rig.open()
    assert synced[0] == os.path.dirname(rig.directory)


def test_a_directory_that_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in ("file", "file/below"):
        with pytest.raises(ConfigError, match="Not a directory; give --journal-dir"):
            Journal(str(tmp_path / path), MUCH)


def test_in_memory_it_is_visible_at_once_and_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_MEMORY_BYTES", 100_000)
    journal = Journal("", MUCH)
    state = journal.state("x")
    journal.start(lambda: b"")
    for seq in range(1000):
        journal.append(b"", [batch(seq)])
    reading = Cursor(journal).read(state.position, MUCH)
    assert reading.lost > 800 and reading.records[-1].batches[0].seq == 999 and reading.after == 1000
    assert sum(record.batches[0].size_bytes for record in reading.records) <= 130_000
    state.save(1000)
    journal.append(b"", [batch(1000)])
    assert len(journal._tail.records) < len(reading.records)
    journal.close()


def test_a_real_full_file_system(tmp_path, root, monkeypatch, caplog):
    monkeypatch.setattr(module, "RETRY_S", 0.1)
    monkeypatch.setattr(module, "COMMIT_S", 0.01)
    mount = tmp_path / "small"
    mount.mkdir()
    mount_tmpfs(mount, "size=4m")
    rig = Rig(mount / "j")
    try:
        journal = rig.open()
        journal.state("x")
        put(journal, 0)
        (mount / "hog").write_bytes(bytes(3 << 20))
        for seq in range(1, 40):
            one = batch(seq, rows=2000)
            journal.append(v1.encode(one), [one])
        end = time.monotonic() + 20
        while "No space left" not in caplog.text and time.monotonic() < end:
            time.sleep(0.01)
        assert "No space left" in caplog.text and journal.end < 40
        (mount / "hog").unlink()
        seen(journal, 39)
        assert seqs(journal) == list(range(40))
        rig.close()
        assert seqs(rig.open()) == list(range(40))
        assert rig.open_one.store.torn_bytes == 0
    finally:
        rig.close()
        subprocess.run(["umount", str(mount)], check=True)


def test_a_defect_in_writing_loses_nothing(rig, monkeypatch, caplog):
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    journal = rig.open()
    put(journal, 1)
    whole, broken = journal._write, [True]

    def write(store, group):
        if broken:
            broken.clear()
            raise RuntimeError("defect")
        whole(store, group)

    monkeypatch.setattr(journal, "_write", write)
    with caplog.at_level(logging.ERROR):
        put(journal, 2)
    assert "defect" in caplog.text and seqs(journal) == [1, 2]


def test_a_defect_has_nothing_written_twice(rig, monkeypatch, caplog):
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    monkeypatch.setattr(module, "COMMIT_S", 60)  # all of it comes in one go
    journal = rig.open(segment_bytes=1 << 20)
    whole, calls = journal._write, []

    def write(store, group):
        calls.append(group)
        monkeypatch.setattr(module, "COMMIT_S", 0.01)
        if len(calls) == 3:
            raise RuntimeError("defect")
        whole(store, group)

    monkeypatch.setattr(journal, "_write", write)
    monkeypatch.setattr(journal, "_durable", lambda records: 1 / 0)
    for seq in range(30):
        one = batch(seq)
        journal.append(v1.encode(one) + bytes(100_000), [one])
    with journal.changed:
        journal.changed.notify_all()
    seen(journal, 29)
    assert len(calls) > 3 and seqs(journal) == list(range(30))
    assert "defect, records=" in caplog.text and "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("fails", [1, 2, 3, 4])
def test_no_failed_write_costs_the_account_of_the_senders(rig, monkeypatch, error, fails):
    """Whatever call fails: who looks at the directory right then, and at the end, finds an account."""
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    put(rig.open(b'["first"]', keep=False), 1, 2)  # no output needs them: they go as soon as they can
    rig.close()
    sync, calls = os.fdatasync, []

    def broken(fd):
        calls.append(fd)
        if len(calls) == fails:
            raise OSError(error, os.strerror(error))
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", broken)

    def accounts():
        return [
            store_module._senders_of(path, rig.open_one.journal) for _, path in segments.list_segments(rig.directory)
        ]

    found = []
    whole = Journal._failed
    monkeypatch.setattr(
        Journal, "_failed", lambda self, store, err: (whole(self, store, err), found.append(accounts()))
    )
    journal = rig.open(b'["second"]', keep=False)
    while journal.pending_bytes:  # the account is alone in its segment for a moment
        time.sleep(0.005)
    for seq in range(3, 8):
        put(journal, seq)
    assert len(found) == 1 and any(found[0]) and any(accounts())
    monkeypatch.undo()
    rig.close()
    rig.open()
    assert rig.restored[0] in (b'["first"]', b'["second"]')
    assert [Decoder().decode(message).batches[0].seq for message in rig.restored[1]][-5:] == list(range(3, 8))


@pytest.mark.parametrize("step", ["write", "fdatasync", "rename"])
def test_an_account_is_there_until_the_next_one_is(rig, tmp_path, monkeypatch, step):
    """A segment that has nothing but an account is replaced at the next start: whole, or not at all."""
    rig.open(account=b'{"h": 1}')
    rig.close()
    work, copies = getattr(os, step), []

    def step_by_step(*arguments):
        done = work(*arguments)
        copies.append(tmp_path / f"killed-{len(copies)}")
        shutil.copytree(rig.directory, copies[-1])
        return done

    with monkeypatch.context() as patch:
        patch.setattr(os, step, step_by_step)
        rig.open(account=b'{"h": 2}')
        rig.close()
    accounts = []
    for copy in copies:
        with contextlib.closing(Journal(str(copy), MUCH)) as one:
            accounts.append(one.read_senders()[0])
    assert accounts
    assert set(accounts) <= {b'{"h": 1}', b'{"h": 2}'}


def test_directories_that_do_not_exist_are_made_the_journals_own_for_its_user_alone(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    directory = tmp_path / "data" / "cluster.journal"
    Journal(str(directory), MUCH, lambda records: None).close()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.parent.stat().st_mode) == 0o777 & ~umask()
    made = [record.getMessage() for record in caplog.records if "directory made" in record.getMessage()]
    assert made == [f"directory made, as it did not exist: path={path}" for path in (directory.parent, directory)]


def umask():
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def put_short(journal, *seqs):
    for seq in seqs:
        one = batch(seq)
        journal.append(v1.encode(one, is_short=True), [one])
    seen(journal, seqs[-1])


def kinds(path, journal):
    with contextlib.closing(segments.SegmentReader(path, journal.journal)) as reader:
        return [found.kind for found in reader.read()]


def test_short_messages_are_read_by_the_next_process_from_any_position(rig):
    journal = rig.open(segment_bytes=1024)
    put_short(journal, *range(20))
    for seq in range(20, 60):
        put_short(journal, seq)
    rig.close()
    journal = rig.open()
    assert len(journal.store.paths) > 3 and seqs(journal) == list(range(60))
    for position in range(60):
        assert seqs(journal, position) == list(range(position, 60))
    for _, path in journal.store.paths[:-1]:
        assert kinds(path, journal)[:3] == [segments.SENDERS, segments.DESCRIPTION, segments.MESSAGE]
        assert kinds(path, journal).count(segments.DESCRIPTION) == 1


def test_damage_to_a_description_costs_the_messages_up_to_the_next_one(rig, monkeypatch):
    monkeypatch.setattr(module, "DESCRIBE_BYTES", 1)
    journal = rig.open()
    put_short(journal, 0, 1, 2)
    put_short(journal, 3)
    rig.close()
    (_, path), *_ = journal.store.paths
    content = Path(path).read_bytes()
    at = content.index(v1.pack_description(batch(0).tables[0].schema))
    Path(path).write_bytes(content[:at] + b"X" + content[at + 1 :])
    journal = rig.open()
    assert seqs(journal)[-1:] == [3] and journal.counters()["unreadable"] >= 1 and journal.store.damages == 1


def test_after_a_failed_write_the_tables_are_described_again(rig, monkeypatch):
    journal = rig.open()
    put_short(journal, 0)
    sync, failures = os.fdatasync, [OSError(errno.EIO, "Input/output error")]

    def fails_once(descriptor):
        sync(descriptor)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(os, "fdatasync", fails_once)
    put_short(journal, 1)
    put_short(journal, 2)
    rig.close()
    journal = rig.open()
    assert seqs(journal, 1) == [1, 2] and seqs(journal) == [0, 1, 2]


def test_a_description_that_cannot_be_read_is_counted(rig, monkeypatch):
    message = v1.encode(batch(1))
    with monkeypatch.context() as patched:
        patched.setattr(v1, "pack_description", lambda schema: b"no description")
        journal = rig.open()
        journal.append(message, [batch(1)])
        rig.close()
    journal = rig.open()
    assert seqs(journal) == [1] and journal.counters()["unreadable"] == 1
