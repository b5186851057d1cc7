from __future__ import annotations

import errno
import os
import random

import pytest

from colmet.common.host.host import Host, PrivateDirectory
from colmet.common.schema import Batch, Field, Schema, Table
from colmet.common.wire import v1
from colmet.node.delivery import spool as spool_module
from colmet.node.delivery.link import NodeLink
from colmet.node.delivery.outbox import Outbox
from colmet.node.delivery.spool import FORM, EncodedBatch, Spool
from colmet.node.delivery.uplink import Times, Uplink
from tests.support.node_link import FakePush
from tests.support.waiting import Clock

NOW = 10**18


def open_files(path, epoch, max_bytes=1 << 20, **options):
    options = {"max_age_s": 10**9 * 9, "segment_bytes": 2000, **options}
    return Spool(Host().private_directory(str(path)), "node-1", epoch, max_bytes, **options)


def entries(epoch, *numbers, size=100):
    return [EncodedBatch(epoch, n, NOW + n, b"%d:%d:" % (epoch, n) + b"x" * size) for n in numbers]


def names(path):
    return sorted(entry.name for entry in path.iterdir() if entry.suffix == ".spool")


@pytest.fixture
def spool(tmp_path):
    return tmp_path / "spool"


def reopened(path, epoch=99):
    files = open_files(path, epoch)
    return files, [(one, seq) for one, first, last in files.scan() for seq in range(first, last + 1)]


def test_what_was_written_is_found_and_read_by_the_next_process(spool):
    files = open_files(spool, 5)
    wanted = entries(5, *range(1, 50))
    assert files.append(wanted) == 49
    assert len(names(spool)) > 3, "in several segments"
    again, found = reopened(spool)
    assert found == [(5, n) for n in range(1, 50)]
    assert [again.read(5, entry.seq) for entry in wanted] == [entry.message for entry in wanted]
    assert again.damaged == again.torn_bytes == 0
    assert spool.stat().st_mode & 0o777 == 0o700
    assert all((spool / name).stat().st_mode & 0o777 == 0o600 for name in names(spool))


def test_a_segment_goes_when_all_of_it_is_done_and_the_last_one_is_emptied(spool):
    files = open_files(spool, 5)
    files.append(entries(5, *range(1, 50)))
    segments = names(spool)
    files.remove(5, 2, 45)
    assert len(names(spool)) < len(segments), "those in the middle"
    files.remove(5, 1, 1)
    files.remove(5, 46, 49)
    assert len(names(spool)) == files.counters()["segments"] == 1
    assert (spool / names(spool)[0]).stat().st_size < 100
    files.append(entries(5, 50))
    assert files.read(5, 50) == entries(5, 50)[0].message
    files.remove(5, 50, 50)
    files.close()
    assert [(spool / name).stat().st_size < 100 for name in names(spool)] == [True]


def test_an_epoch_is_above_the_last_one_where_nothing_waits_and_the_clock_was_set_back(spool):
    files = open_files(spool, 5)
    files.append(entries(5, 1, 2))
    files.remove(5, 1, 2)
    files.close()
    assert Spool.last_epoch(Host().private_directory(str(spool))) == 5
    again, found = reopened(spool, 6)
    again.append(entries(6, 1))
    assert found == [] and names(spool) == [f"{6:020d}-{1:020d}.spool"], "the former one is not needed any more"


@pytest.mark.parametrize("seed", range(20))
def test_a_process_killed_at_any_byte_loses_the_batch_that_it_was_writing_alone(spool, seed):
    files = open_files(spool, 5, segment_bytes=10**6)
    wanted = entries(5, *range(1, 20), size=random.Random(seed).randrange(300))
    files.append(wanted)
    (path,) = [spool / name for name in names(spool)]
    data = path.read_bytes()
    cut = random.Random(seed).randrange(len(data))
    path.write_bytes(data[:cut])
    again, found = reopened(spool)
    whole = [n for n, entry in enumerate(wanted, 1) if data.index(entry.message) + len(entry.message) <= cut]
    assert found == [(5, n) for n in whole]
    assert again.damaged == 0
    for n in whole:
        assert again.read(5, n) == wanted[n - 1].message


def test_damage_is_passed_over_counted_and_what_is_around_it_is_read(spool, caplog):
    files = open_files(spool, 5, segment_bytes=10**6)
    wanted = entries(5, *range(1, 20))
    files.append(wanted)
    (path,) = [spool / name for name in names(spool)]
    data = bytearray(path.read_bytes())
    data[data.index(wanted[4].message) + 50] ^= 1  # in the message of 5
    data[data.index(wanted[9].message) - 10] ^= 1  # in the header of 10
    path.write_bytes(data)
    again, found = reopened(spool)
    assert [seq for _, seq in found] == [n for n in range(1, 20) if n != 10]
    assert again.damaged == 1
    outbox = Outbox(99, again)
    outbox.load()
    assert outbox.message((5, 5)) is None and (5, 5) not in outbox and outbox.dropped == 1
    assert outbox.message((5, 6)) == wanted[5].message
    (dropped,) = outbox.dropped_ranges
    assert dropped[:3] == (5, 5, 5) and dropped.cause == "damage"
    assert "damaged, skipped" in caplog.text


def test_segments_of_another_host_and_other_files_are_left_alone(spool, caplog):
    files = open_files(spool, 5)
    files.append(entries(5, 1))
    (spool / "notes.txt").write_text("x")
    other = Spool(Host().private_directory(str(spool)), "node-2", 6, 1 << 20, 1e9)
    assert other.scan() == []
    assert "of another host" in caplog.text
    assert len(names(spool)) == 1 and (spool / "notes.txt").exists()


def test_beyond_its_room_the_oldest_go_and_are_named(spool, caplog):
    files = open_files(spool, 5, max_bytes=6000)
    outbox = Outbox(5, files)
    wanted = entries(5, *range(1, 200))
    for entry in wanted:
        outbox.add([entry])
        assert files.size_bytes <= 6000 + 2000
    dropped = {n for one in outbox.dropped_ranges for n in range(one.first, one.last + 1)}
    (only,) = outbox.dropped_ranges
    assert only.cause == "size" and only.first == 1 and (only.since_ns, only.until_ns) == (NOW + 1, NOW + only.last)
    kept = {seq for seq in range(1, 200) if (5, seq) in outbox}
    assert kept | dropped == set(range(1, 200)) and not kept & dropped
    assert outbox.dropped == len(dropped) > 100
    assert all(outbox.message((5, n)) == wanted[n - 1].message for n in kept)
    assert caplog.text.count("batches dropped") == 2


def test_what_is_too_old_goes(spool):
    files = open_files(spool, 5, max_age_s=7 * 86400)  # the batches are of 2001
    outbox = Outbox(5, files)
    outbox.add(entries(5, 1, 2, 3))
    assert len(outbox) == 0 and outbox.dropped == 3
    assert [one[:3] + one[5:] for one in outbox.dropped_ranges] == [(5, 1, 3, "age")]


def test_a_full_disk_leaves_batches_in_memory_and_they_go_to_disk_when_there_is_room(spool, monkeypatch, caplog):
    clock = Clock()
    files = open_files(spool, 5, monotonic=clock)
    outbox = Outbox(5, files, max_age_s=9e9)
    write, full = os.write, False

    def failing(fd, data):
        if full:
            write(fd, data[: len(data) // 2])  # a part may fit
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "write", failing)
    outbox.add(entries(5, 1, 2))
    full = True
    for n in range(3, 103):
        outbox.add(entries(5, n))
        clock.now += 3
    assert files.failures == 100 and caplog.text.count("cannot be written to") == 3
    assert outbox.memory_bytes > 0
    assert [outbox.message((5, n)) is not None for n in range(1, 103)] == [True] * 102
    full = False
    outbox.add(entries(5, 103))
    assert outbox.memory_bytes == 0
    assert "can be written to again" in caplog.text
    again, found = reopened(spool)
    assert found == [(5, n) for n in range(1, 104)] and again.damaged == again.torn_bytes == 0


def test_a_segment_that_cannot_be_read_for_a_moment_is_not_given_up(spool, monkeypatch, caplog):
    open_files(spool, 5).append(entries(5, 1, 2, 3))
    outbox = Outbox(9, open_files(spool, 9), max_age_s=9e9)
    outbox.load()
    clock, push = Clock(), FakePush()
    link = NodeLink("node-1", outbox, [Uplink("uri", push, None, Times(), clock())], list, -1, monotonic=clock)

    def failing(*args):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(PrivateDirectory, "read", failing)
        for _ in range(50):
            clock.now += 0.1
            link.step()
    assert outbox.dropped == 0 and len(outbox) == 3 and push.sent == []
    assert 2 < outbox.spool.unread < 10 and "cannot be read" in caplog.text, "not as often as it is possible"
    clock.now += 2
    link.step()
    assert push.sent == [entry.message for entry in entries(5, 1, 2, 3)]


def test_the_end_tries_the_disk_once_more(spool, monkeypatch):
    outbox = Outbox(5, open_files(spool, 5, monotonic=Clock()), max_age_s=9e9)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: 0)
        outbox.add(entries(5, 1, 2))
    outbox.close()
    assert reopened(spool)[1] == [(5, 1), (5, 2)]


def test_without_a_disk_memory_is_bounded_and_the_oldest_go():
    outbox = Outbox(5, None, max_memory_bytes=10_000, max_age_s=9e9)
    outbox.add(entries(5, *range(1, 101)))
    assert outbox.memory_bytes <= 10_000
    (dropped,) = outbox.dropped_ranges
    assert (dropped.first, dropped.cause) == (1, "memory")
    assert [n for n in range(1, 101) if (5, n) in outbox] == list(range(dropped.last + 1, 101))
    outbox.acknowledge(5, 1, 100)
    assert outbox.memory_bytes == 0 and len(outbox) == 0 and outbox.acknowledged == 100 - outbox.dropped


def test_batches_of_earlier_starts_are_held_in_order_and_not_loaded(spool):
    for epoch in (5, 6, 7):
        open_files(spool, epoch).append(entries(epoch, 1, 2, 3))
    outbox = Outbox(99, open_files(spool, 99))
    outbox.load()
    outbox.add([EncodedBatch(99, 1, NOW, b"new")])
    assert outbox.ranges() == [(5, 1, 3), (6, 1, 3), (7, 1, 3), (99, 1, 1)]
    order, key = [], (0, 0)
    while (key := outbox.following(key)) is not None:
        order.append(key)
        key = (key[0], key[1] + 1)
    assert order == [(epoch, n) for epoch in (5, 6, 7) for n in (1, 2, 3)] + [(99, 1)]
    outbox.acknowledge(6, 1, 2)
    assert outbox.ranges() == [(5, 1, 3), (6, 3, 3), (7, 1, 3), (99, 1, 1)]
    assert Spool.last_epoch(Host().private_directory(str(spool))) == 99


# -- descriptions --


def short_entries(epoch, numbers, *names):
    schemas = tuple([Schema(name, "node", [Field(f"number{n}", "count", "gauge") for n in range(9)]) for name in names])
    found = []
    for number in numbers:
        tables = tuple([Table(schema, NOW, schema.empty_rows(1)) for schema in schemas])
        one = Batch("node-1", epoch, number, NOW, (), tables)
        found.append(EncodedBatch(epoch, number, NOW + number, v1.encode_short(one), schemas))
    return found


def test_batches_are_kept_in_the_short_form_and_read_in_full(spool):
    files = open_files(spool, 5, segment_bytes=4000)
    wanted = [*short_entries(5, range(1, 30), "a"), *short_entries(5, range(30, 60), "a", "b")]
    assert files.append(wanted) == len(wanted) and len(names(spool)) > 3
    assert files.size_bytes < 0.85 * sum(len(entry.full) for entry in wanted)
    again, found = reopened(spool)
    assert found == [(5, n) for n in range(1, 60)]
    for reader in (files, again):
        assert [reader.read(5, entry.seq) for entry in wanted] == [entry.full for entry in wanted]
    assert again.damaged == again.torn_bytes == 0
    assert Spool.last_epoch(Host().private_directory(str(spool))) == 5


def test_an_emptied_segment_keeps_its_descriptions_and_another_one_follows_for_new_tables(spool):
    files = open_files(spool, 5)
    sizes = set()
    for number in range(1, 10):
        files.append(short_entries(5, [number], "a"))
        sizes.add(files.size_bytes)
        files.remove(5, number, number)
    assert names(spool) == [f"{5:020d}-{1:020d}.spool"] and len(sizes) == 1
    for number in range(10, 20):
        files.append(short_entries(5, [number], *("a", "b")[: 1 + number % 2]))
        assert files.read(5, number) == short_entries(5, [number], *("a", "b")[: 1 + number % 2])[0].full
        files.remove(5, number, number)
    assert names(spool) == [f"{5:020d}-{11:020d}.spool"]


def test_descriptions_too_long_for_a_head_stay_in_the_batches(spool, monkeypatch):
    monkeypatch.setattr(v1, "MAX_DESCRIPTION_BYTES", 10)
    files = open_files(spool, 5, segment_bytes=10**6)
    for number in range(1, 5):
        files.append(short_entries(5, [number], "a"))
    assert len(names(spool)) == 1
    again, found = reopened(spool)
    assert [again.read(*key) for key in found] == [entry.full for entry in short_entries(5, range(1, 5), "a")]


def test_a_head_with_damaged_descriptions_costs_its_segment_which_is_reported(spool, caplog):
    files = open_files(spool, 5)
    files.append(short_entries(5, [1], "a"))
    (name,) = names(spool)
    content = bytearray((spool / name).read_bytes())
    for at in range(len(content) - FORM.header_bytes):
        damaged = bytearray(content)
        damaged[at] ^= 1
        (spool / name).write_bytes(damaged)
        again, found = reopened(spool)
        if found:
            assert again.read(5, 1) in (None, short_entries(5, [1], "a")[0].full)
        again.close()
        (spool / name).write_bytes(content)
    for size in range(len(content)):
        (spool / name).write_bytes(content[:size])
        again, found = reopened(spool)
        again.close()
        assert found == []


def test_descriptions_of_another_version_cost_their_batches_which_are_counted(spool, monkeypatch):
    monkeypatch.setattr(spool_module, "_pack_schemas", lambda schemas: b"something else")
    files = open_files(spool, 5)
    files.append(short_entries(5, [1], "a"))
    monkeypatch.undo()
    again, found = reopened(spool)
    assert found == [(5, 1)] and again.read(5, 1) is None and again.damaged
