"""What the HDF5 output remembers, and what it does with files that are damaged, moved, held, or to be rotated."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import struct
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import h5py
import numpy as np
import pytest

import colmet
from colmet.collector import columnar
from colmet.collector.backend import JournalRecord
from colmet.collector.backends.hdf5 import expiry, h5file, isolated, known_tables, last_rows, library, repair
from colmet.collector.backends.hdf5 import output as output_module
from colmet.collector.backends.hdf5 import pace as pace_module
from colmet.collector.backends.hdf5.checkpoint import Checkpoint
from colmet.collector.backends.hdf5.chunk_backup import KeptTails, TailWriter, tails_path
from colmet.collector.backends.hdf5.h5table import Damaged
from colmet.collector.backends.hdf5.libhdf5 import Dataset
from colmet.collector.backends.hdf5.options import rotation
from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.collector.backends.hdf5.pace import BURST_S, TABLE_BYTES, BurstPace
from colmet.collector.journal.output_state import OutputState
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.schema import Batch, Table
from tests.support.hdf5_killed import NARROW, TIME_S, expected, record, stored
from tests.support.hdf5_writer import JOURNAL
from tests.support.waiting import Clock

tables = library.tables


def state_of(folder, end=0, oldest=0):
    """As the journal gives it at a start."""
    state = OutputState(str(folder / "state"), JOURNAL, oldest, 0)
    state.end = max(end, state.position)
    return state


def started(folder, path="x", end=0, oldest=0, **options):
    """An output that is open and has recovered."""
    output = Hdf5Output(str(folder / path), **options)
    state = state_of(folder, end, oldest)
    output.open(state)
    output.recover()
    return output, state


def write(output, state, end, step=10):
    """Records up to `end`, a few at a time, as an output worker does."""
    state.end = max(state.end, end)
    while state.position < end:
        output.write([record(number) for number in range(state.position, min(end, state.position + step))])


def files(folder):
    return sorted(path.name for path in folder.glob("x*"))


@pytest.fixture
def at(monkeypatch):
    """Set the clock: `at(seconds)`; removals of files have time enough on any machine, and read in this process."""
    monkeypatch.setattr(expiry, "REMOVAL_S", 60.0)
    monkeypatch.setattr(expiry, "last_row_s", lambda path: last_rows.last_row_s(path, lambda *_: None))
    return lambda now: monkeypatch.setattr(time, "time", lambda: float(now))


# -- bursts --


def test_a_burst_is_remembered_before_it_is_begun_and_after_it_is_on_disk(tmp_path, monkeypatch):
    steps = []
    save, flush, sync = OutputState.save, h5file.Hdf5File.flush, h5file.Hdf5File.sync
    append = Dataset.append
    output, state = started(tmp_path)
    write(output, state, 10)
    monkeypatch.setattr(
        OutputState, "save", lambda self, p, n, k: (steps.append(("save", p, dict(n["undo"]), k)), save(self, p, n, k))
    )
    monkeypatch.setattr(h5file.Hdf5File, "flush", lambda self: (steps.append("flush"), flush(self)))
    monkeypatch.setattr(h5file.Hdf5File, "sync", lambda self: (steps.append("sync"), sync(self)))
    monkeypatch.setattr(Dataset, "append", lambda self, rows: (steps.append("append"), append(self, rows)))
    write(output, state, 22)
    monkeypatch.undo()
    assert [step if isinstance(step, str) else step[0] for step in steps if step != "append"] == [
        *["save", "flush", "sync", "save"] * 2,
    ]
    (_, first, undo, keep_from), (_, last, nothing, _) = [step for step in steps if step[0] == "save"][:2]
    assert (first, last, keep_from, nothing) == (10, 20, 0, {})
    assert undo["/job_1/site_default"] == 10 and undo["/job_1/o"] == 5
    assert steps.index("append") > 0 and steps[-3:-1] == ["flush", "sync"]
    output.close()


def test_a_position_that_cannot_be_remembered_is_a_burst_that_was_not_written(tmp_path, monkeypatch):
    output, state = started(tmp_path)
    write(output, state, 10)
    save, calls, failing = OutputState.save, [], []

    def fail(self, *arguments):
        calls.append(arguments)
        if len(calls) in failing:
            raise OutputUnavailable("cannot write state: No space left on device")
        save(self, *arguments)

    monkeypatch.setattr(OutputState, "save", fail)
    for at_calls in ((1,), (2,), (2, 3), (2, 3, 4)):
        failing[:] = at_calls
        calls.clear()
        state.end = 20
        with pytest.raises(OutputUnavailable, match="No space left"):
            output.write([record(number) for number in range(10, 20)])
        assert state.position == 10
    monkeypatch.undo()
    write(output, state, 30)
    output.close()
    assert stored(tmp_path) == expected(30)


def test_records_for_more_tables_than_are_known_are_one_burst_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(known_tables, "MAX_TABLES", 8)
    saved = []
    output, state = started(tmp_path)
    save = OutputState.save
    monkeypatch.setattr(OutputState, "save", lambda self, p, n, k: (saved.append((p, n["undo"])), save(self, p, n, k)))
    write(output, state, 80, step=80)
    assert {position for position, _ in saved} == {0, 80}
    assert max(len(undo) for _, undo in saved) > 8 >= len(output._file.known_tables)
    write(output, state, 120, step=40)  # tables that are there, too
    monkeypatch.undo()
    output.close()
    assert stored(tmp_path) == expected(120)


# -- bursts that end in time --


@pytest.fixture
def clock(monkeypatch):
    """A clock that a new table sets forward, for bursts of few tables."""
    monkeypatch.setattr(pace_module, "MIN_BYTES", 25 * TABLE_BYTES)
    clock = Clock()

    def new_table(self, *arguments, _original=h5file.Hdf5File._new_table):
        clock.now += 0.1
        return _original(self, *arguments)

    monkeypatch.setattr(h5file.Hdf5File, "_new_table", new_table)
    return clock


SLOW_BYTES_PER_S = 10 * TABLE_BYTES


def many_jobs(number, jobs=200):
    """A record with rows of this many jobs."""
    rows = NARROW.empty_rows(jobs)
    rows["job_id"] = np.arange(jobs) * 4
    rows["number"] = number
    batches = (Batch("node", 1, number, 0, (), (Table(NARROW, 0, rows),)),)
    return JournalRecord(number, TIME_S * 10**9, batches)


@pytest.mark.parametrize("is_stopped", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_burst_with_many_new_tables_is_written_in_parts(tmp_path, clock, is_stopped):
    """Also if another start has fewer or more records at hand."""
    output, state = started(tmp_path, end=9, monotonic=clock)
    calls, counts = 0, [3, 9, 9, 2]
    while state.position < 9:
        before, output._pace._bytes_per_s = clock.now, SLOW_BYTES_PER_S
        output.write([many_jobs(number) for number in range(state.position, counts[calls % 4] if is_stopped else 9)])
        calls += 1
        assert clock.now - before < 4.6 or state.position == 2  # all of fewer records than at first
        if is_stopped:
            output.close()
            output, state = started(tmp_path, end=9, monotonic=clock)
    output.close()
    assert calls > (3 if is_stopped else 6) and clock.now == pytest.approx(1020)
    assert Checkpoint.load(state).places == 0
    assert stored(tmp_path) == sorted([(4 * job, "site_default", n) for job in range(200) for n in range(9)])


def test_jobs_that_share_a_place_are_written_in_one_burst(tmp_path, monkeypatch):
    """A sender can choose them."""
    monkeypatch.setattr(pace_module, "MAX_BYTES", TABLE_BYTES)
    of_first_place = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
    jobs = [job for job in (of_first_place * n % (1 << 64) for n in range(1, 50)) if job < 1 << 63]
    rows = NARROW.empty_rows(len(jobs))
    rows["job_id"] = jobs
    assert not columnar.place(rows["job_id"]).any()
    output, state = started(tmp_path, end=1)
    output.write([JournalRecord(0, TIME_S * 10**9, (Batch("node", 1, 0, 0, (), (Table(NARROW, 0, rows),)),))])
    output.close()
    assert state.position == 1 and [job for job, _, _ in stored(tmp_path)] == sorted(jobs)


@pytest.mark.parametrize("path", ["x", pytest.param("x.hdf5", marks=pytest.mark.slow)])
def test_a_file_moved_between_two_parts_keeps_its_rows_and_the_next_one_has_the_others(tmp_path, clock, path):
    output, state = started(tmp_path, path, end=2, monotonic=clock)
    records = [many_jobs(number) for number in range(2)]
    output._pace._bytes_per_s = SLOW_BYTES_PER_S
    output.write(records)
    assert state.position == 0
    os.rename(output.path, tmp_path / "x0.hdf5")
    while state.position < 2:
        output.write(records)
    assert Checkpoint.load(state).first is None  # the journal alone cannot rebuild it
    output.close()
    assert stored(tmp_path) == sorted([(4 * job, "site_default", n) for job in range(200) for n in range(2)])


def test_bursts_become_as_large_as_their_speed_allows():
    pace = BurstPace()
    sizes = []
    for _ in range(10):
        pieces = pace.pieces(1 << 30)
        sizes.append((1 << 30) / pieces)
        pace.note(int(sizes[-1]), sizes[-1] / (5 << 20))  # 5 MiB a second
    assert sizes[0] > 40e6 and all(size / (5 << 20) <= 1.25 * BURST_S for size in sizes[2:])
    pace.note(1000, 0.1)  # an fsync
    assert (1 << 30) / pace.pieces(1 << 30) > 8 << 20
    for _ in range(10):
        pace.note(1 << 30, 1.0)
    assert (1 << 30) / pace.pieces(1 << 30) <= 1.25 * 4096 * TABLE_BYTES


def test_bursts_do_not_shrink_to_single_tables_where_each_one_is_slow():
    """As where an fsync lasts longer than the aim for a burst."""
    pace = BurstPace()
    for _ in range(100):
        size = (1 << 30) // pace.pieces(1 << 30)
        pace.note(size, 3.0 + size / (60 << 20))
    assert size >= 128 * TABLE_BYTES


# -- starts --


def test_after_a_clean_stop_nothing_is_walked(tmp_path, monkeypatch):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 10)
    output.close()
    monkeypatch.setattr(output_module, "verify", lambda *_: pytest.fail("walked"))
    monkeypatch.setattr(h5file, "table_names", lambda *_: pytest.fail("listed"))
    monkeypatch.setattr(output_module, "boot_id", lambda: "another")
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 20)
    output.close()
    monkeypatch.undo()
    assert stored(tmp_path) == expected(20)


def counts(path):
    """Rows by table; the file may be open in this process."""
    with h5py.File(path) as file:
        return {f"/{job}/{name}": len(data) for job, group in file.items() for name, data in group.items()}


def killed_in_a_burst(folder, path="x.hdf5", at_record=30, **options):
    """A file and a state as a kill in the middle of a burst leaves them: more rows and tables than were committed."""
    output, state = started(folder, path, **options)
    write(output, state, at_record)
    notes = dict(state.notes)
    before = notes["tables"]
    undo = counts(notes["file"])
    write(output, state, at_record + 12, step=12)
    undo.update({name: None for name in counts(notes["file"]) if name not in undo})
    output.close()
    assert None in undo.values()
    state.save(at_record, {**notes, "undo": undo, "tables": before}, notes["first"])


def test_a_burst_that_was_killed_is_taken_back_in_its_file_whatever_the_command_line_says_now(tmp_path, caplog):
    killed_in_a_burst(tmp_path, "x.hdf5")
    before = state_of(tmp_path).notes["undo"]
    output, state = started(tmp_path, "xx.hdf5", end=50)
    assert {name: rows for name, rows in counts(tmp_path / "x.hdf5").items() if rows} == {
        name: rows for name, rows in before.items() if rows is not None
    }
    write(output, state, 50)
    output.close()
    assert files(tmp_path) == ["x.hdf5", "xx.hdf5"]
    assert stored(tmp_path) == expected(50)
    assert "interrupted write undone" in caplog.text


def test_after_a_power_failure_the_file_is_looked_through(tmp_path, monkeypatch):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 10)
    notes = dict(state.notes)
    output.close()
    state.save(10, {**notes, "boot": "another"}, 0)
    looked = []
    verify = output_module.verify
    monkeypatch.setattr(output_module, "verify", lambda *arguments: (looked.append(arguments[0]), verify(*arguments)))
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 20)
    output.close()
    assert looked == [str(tmp_path / "x.hdf5")]
    assert stored(tmp_path) == expected(20)


@pytest.mark.parametrize("wrong", [{"file": 3}, {"undo": []}, {"undo": {"/a": "1"}}, {"plan": "x"}, {"more": 1}])
def test_notes_that_are_not_ours_are_not_used(tmp_path, caplog, wrong):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 10)
    output.close()
    state.save(10, {**state.notes, **wrong})
    with pytest.raises(ValueError, match=r"undo|value|plan|unexpected"):
        Checkpoint.parse(state.notes)
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 20)
    output.close()
    assert "is invalid and not used" in caplog.text
    assert stored(tmp_path) == expected(20)


@pytest.mark.parametrize("path", ["x", "x.hdf5"])
def test_a_file_that_was_moved_is_not_a_damaged_one(tmp_path, caplog, path):
    output, state = started(tmp_path, path)
    write(output, state, 20)
    output.close()
    (moved,) = tmp_path.glob("x*.hdf5")
    moved.rename(tmp_path / "away")
    output, state = started(tmp_path, path, end=30)
    write(output, state, 30)
    (other,) = tmp_path.glob("x*.hdf5")
    other.rename(tmp_path / "away, too")  # and while it runs
    write(output, state, 40)
    output.close()
    assert "damaged" not in caplog.text
    assert caplog.text.count("file was moved or removed, continuing with the next one") == 2
    assert [number for _, _, number in stored(tmp_path)] == [n for _, _, n in expected(40) if n >= 30]


@pytest.mark.parametrize("path", ["x", "x.hdf5"])
@pytest.mark.parametrize("gone", ["directory", "file"])
def test_while_nothing_can_be_at_the_path_rows_wait(tmp_path, gone, path):
    (tmp_path / "data").mkdir()
    output = Hdf5Output(str(tmp_path / "data" / path))
    state = state_of(tmp_path)
    output.open(state)
    output.recover()
    write(output, state, 20)
    if gone == "directory":
        (tmp_path / "data").rename(tmp_path / "away")
        (tmp_path / "data").touch()
    else:
        (file,) = (tmp_path / "data").glob("x*.hdf5")
        file.rename(tmp_path / "away")
        file.symlink_to(file)
    state.end = 21
    for _ in range(3):
        with pytest.raises(OutputUnavailable):
            output.write([record(20)])
    if gone == "directory":
        (tmp_path / "data").unlink()
        (tmp_path / "data").mkdir()
    else:
        file.unlink()
    write(output, state, 30)
    output.close()
    assert [number for _, _, number in stored(tmp_path / "data")] == [n for _, _, n in expected(30) if n >= 20]


def test_an_end_at_which_the_file_was_not_closed_cleanly_is_no_clean_end(tmp_path, monkeypatch, caplog):
    output, state = started(tmp_path)
    write(output, state, 20)
    assert state.notes["boot"]
    fail(monkeypatch, tables.File, "_close_file", OSError(errno.EIO, os.strerror(errno.EIO)))
    output.close()
    assert "file not closed cleanly" in caplog.text
    assert state.notes["boot"]  # so that it is looked through after a power failure


def test_another_file_in_the_place_of_the_known_one_is_gone_on_with(tmp_path):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 20)
    output.close()
    other = tmp_path / "other"
    other.mkdir()
    output, other_state = started(other, "x.hdf5")
    write(output, other_state, 5)
    output.close()
    (other / "x.hdf5").replace(tmp_path / "x.hdf5")
    output, state = started(tmp_path, "x.hdf5", end=30)
    write(output, state, 30)
    assert state.notes["first"] is None  # the journal could not make it again
    output.close()
    assert [n for _, _, n in stored(tmp_path)] == [n for _, _, n in expected(30) if n < 5 or n >= 20]


# -- damage --


def zero(path, start, size):
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(size))


def places(path, what):
    """Where a kind of HDF5's structures is in a file."""
    content, found, at = path.read_bytes(), [], 0
    while (at := content.find(what, at)) >= 0:
        found.append(at)
        at += 1
    return found


DAMAGE = {
    "superblock": lambda path: zero(path, 0, 64),
    "cut short": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "names": lambda path: zero(path, places(path, b"HEAP")[0], 32),
    "a group": lambda path: zero(path, places(path, b"SNOD")[-1], 16),
    "chunks": lambda path: [zero(path, place, 8) for place in places(path, b"TREE")[-3:]],
    "rows": lambda path: zero(path, path.stat().st_size - 60_000, 50_000),
    "all but the beginning": lambda path: zero(path, 2048, path.stat().st_size - 2048),
}


@pytest.mark.slow
@pytest.mark.parametrize("complevel", [0, 9])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_written_again_where_the_journal_has_it_all(tmp_path, kind, complevel, caplog):
    killed_in_a_burst(tmp_path, complevel=complevel)
    DAMAGE[kind](tmp_path / "x.hdf5")
    damaged = (tmp_path / "x.hdf5").read_bytes()
    output, state = started(tmp_path, "x.hdf5", end=50)
    if state.position == 0:  # else the burst that is taken back had been damaged
        assert "all its rows are written again from the journal" in caplog.text
        if kind not in ("a group", "chunks"):  # those may be noticed when the burst is taken back
            assert (tmp_path / "x.hdf5.damaged").read_bytes() == damaged
        assert output.counters()["files_damaged"] == 1
    write(output, state, 50)
    output.close()
    assert stored(tmp_path) == expected(50)


@pytest.mark.parametrize(
    ("kind", "complevel"),
    [
        *[(kind, 9) for kind in ("superblock", "rows")],
        *[
            pytest.param(kind, 9, marks=pytest.mark.slow)
            for kind in ("empty", "names", "a group", "all but the beginning", "cut short", "chunks")
        ],
        *[pytest.param(kind, 0, marks=pytest.mark.slow) for kind in DAMAGE],
    ],
)
def test_of_a_damaged_file_all_is_kept_that_can_be_read_where_the_journal_has_it_no_more(
    tmp_path, kind, complevel, caplog
):
    killed_in_a_burst(tmp_path, complevel=complevel)
    DAMAGE[kind](tmp_path / "x.hdf5")
    output, state = started(tmp_path, "x.hdf5", end=50, oldest=30, complevel=complevel)
    assert state.position == 30
    for file in tmp_path.glob("x.hdf5.damaged"):
        assert "replaced by what can be read of it" in caplog.text
        assert file.stat().st_ino != (tmp_path / "x.hdf5").stat().st_ino
    write(output, state, 50)
    lost = output.counters()["rows_lost"]
    output.close()
    assert not list(tmp_path.glob("*.rebuilding"))
    found = stored(tmp_path)
    assert len(set(found)) == len(found)
    assert set(found) <= set(expected(50))
    missing = set(expected(50)) - set(found)
    assert all(number < 30 for _, _, number in missing)
    if kind in ("rows", "chunks"):
        assert len(missing) == lost
    with tables.open_file(str(tmp_path / "x.hdf5")) as file:
        for table in file.walk_nodes("/", "Table"):
            assert table.attrs.backend_version == 2
            assert table.title == f"Metrics for the Job {table._v_parent._v_name[4:]}"
            assert table.filters.complevel == complevel
            assert all(default in (-1, b"") for default in table.coldflts.values())


def test_a_damaged_file_is_noticed_after_a_clean_stop_if_it_cannot_be_opened(tmp_path):
    for n in range(2):
        output, state = started(tmp_path, "x.hdf5", end=20 * n)
        write(output, state, 20 * (n + 1))
        output.close()
        zero(tmp_path / "x.hdf5", 0, 64)
    output, state = started(tmp_path, "x.hdf5", end=50)
    write(output, state, 50)
    output.close()
    assert files(tmp_path) == ["x.hdf5", "x.hdf5.damaged", "x.hdf5.damaged.1"]
    assert stored(tmp_path) == expected(50)


def test_a_file_that_goes_bad_while_it_is_written_is_replaced(tmp_path, monkeypatch):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 20)
    append, truncate = Dataset.append, tables.Table.truncate

    def fail(*_):
        raise tables.HDF5ExtError("unable to write raw data")

    monkeypatch.setattr(Dataset, "append", fail)
    monkeypatch.setattr(tables.Table, "truncate", fail)
    for path in ("/job_1/site_default",):  # a part of the burst is there and cannot be taken back
        original, once = append, [path]

        def append_once(self, rows, original=original, once=once):
            if once:
                once.pop()
                return original(self, rows)
            raise tables.HDF5ExtError("unable to write raw data")

        monkeypatch.setattr(Dataset, "append", append_once)
    state.end = 30
    with pytest.raises(OutputUnavailable):
        output.write([record(number) for number in range(20, 30)])
    monkeypatch.setattr(Dataset, "append", append)
    with pytest.raises(OutputUnavailable, match="written again from the journal"):
        output.write([record(number) for number in range(20, 30)])
    assert state.position == 0
    monkeypatch.setattr(tables.Table, "truncate", truncate)
    write(output, state, 40)
    output.close()
    assert stored(tmp_path) == expected(40)
    assert files(tmp_path) == ["x.hdf5", "x.hdf5.damaged"]


def fail(monkeypatch, owner, name, error, times=1):
    """Have the next calls fail."""
    original, calls = getattr(owner, name), []

    def called(*arguments, **named):
        calls.append(arguments)
        if len(calls) <= times:
            raise error
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, called)


# what PyTables was seen to raise on damaged files
ODD = [AttributeError("'NoneType'"), SystemError("Negative size"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "start")]


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
def test_whatever_pytables_raises_on_a_file_that_goes_bad_it_is_replaced_and_no_row_is_dropped(
    tmp_path, monkeypatch, error
):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 20)
    fail(monkeypatch, Dataset, "append", error)
    for place in places(tmp_path / "x.hdf5", b"SNOD"):
        zero(tmp_path / "x.hdf5", place, 16)
    state.end = 30
    with pytest.raises(OutputUnavailable, match="was damaged and has been replaced"):
        output.write([record(20)])
    write(output, state, 40)
    output.close()
    assert stored(tmp_path) == expected(40)
    assert files(tmp_path) == ["x.hdf5", "x.hdf5.damaged"]


@pytest.mark.slow
def test_for_one_defect_a_sound_file_is_looked_through_once(tmp_path, monkeypatch):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 20)
    state.end = 30
    looked, verify = [], output_module.verify
    monkeypatch.setattr(output_module, "verify", lambda *arguments: (looked.append(arguments), verify(*arguments)))
    with monkeypatch.context() as broken:
        broken.setattr(Dataset, "append", lambda *_: 1 // 0)
        for count in (10, 5, 2, 1):
            with pytest.raises(ZeroDivisionError):
                output.write([record(number) for number in range(20, 20 + count)])
    assert len(looked) == 1
    write(output, state, 40)
    output.close()
    assert stored(tmp_path) == expected(40)


@pytest.mark.parametrize(("where", "times"), [("table_names", 1), ("LibraryFile", 2)])
def test_a_file_that_cannot_be_opened_or_listed_is_a_damaged_one_whatever_pytables_raises(
    tmp_path, monkeypatch, where, times
):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 20)
    output.close()
    state.save(20, {**state.notes, "tables": None}, 0)
    fail(monkeypatch, h5file, where, ODD[1], times)
    output, state = started(tmp_path, "x.hdf5", end=30)
    write(output, state, 30)
    output.close()
    assert stored(tmp_path) == expected(30)
    assert files(tmp_path) == ["x.hdf5", "x.hdf5.damaged"]


def test_a_new_file_that_could_not_be_closed_can_be_made_again(tmp_path, monkeypatch, at):
    at(1000)
    output, state = started(tmp_path)
    write(output, state, 10)
    at(2000)
    output._close_file()
    fail(monkeypatch, tables.File, "_close_file", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    output.reopen()
    assert files(tmp_path) == ["x.0000001000.hdf5"]
    write(output, state, 20)
    output.close()
    assert files(tmp_path) == ["x.0000001000.hdf5", "x.0000002000.hdf5"]
    assert stored(tmp_path) == expected(20)


@pytest.mark.parametrize("complevel", [0, 9])
def test_a_table_that_claims_to_have_more_rows_than_there_can_be_is_read_as_far_as_there_are_any(tmp_path, complevel):
    output, state = started(tmp_path, "x.hdf5", complevel=complevel)
    write(output, state, 30)
    output.close()
    path = tmp_path / "x.hdf5"
    content = path.read_bytes()
    extent = struct.pack("<QQ", 30, 2**64 - 1)  # of /job_1/site_default, which grows without bounds
    assert content.count(extent) == 1
    path.write_bytes(content.replace(extent, struct.pack("<QQ", 1 << 50, 2**64 - 1)))
    found = repair.salvage(str(path), str(tmp_path / "x.new.hdf5"), str(path), None, {}, {})
    path.unlink()
    assert found.tables > 5 and found.rows == len(expected(30))
    assert stored(tmp_path) == expected(30)


def test_what_a_damaged_table_has_lost_of_itself_is_described_again(tmp_path):
    path = str(tmp_path / "x.hdf5")
    with repair.opened_library(path, "w") as file:
        rows = np.full(5, 7, dtype=[("job_id", "<i8")])
        file.create_table("/job_7", "t_default", obj=rows, createparents=True)
    found = repair.salvage(path, f"{path}.new", "", None, {}, {})
    assert (found.tables, found.rows) == (1, 5)
    with tables.open_file(f"{path}.new") as file:
        table = file.get_node("/job_7/t_default")
        assert (table.title, table.attrs.backend_version) == ("Metrics for the Job 7", 2)


@pytest.mark.parametrize("step", ["_readable", "_written", "_most_rows"])
def test_what_fails_in_any_way_for_one_table_of_a_damaged_file_costs_that_one_alone(tmp_path, monkeypatch, step):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 30)
    output.close()
    fail(monkeypatch, repair, step, ODD[1])
    found = repair.salvage(str(tmp_path / "x.hdf5"), str(tmp_path / "new.hdf5"), "", None, {}, {})
    assert len(expected(30)) - 30 <= found.rows < len(expected(30))
    assert found.lost_rows or found.lost_tables == 1


@pytest.mark.parametrize("plan", ["replay", pytest.param("salvage", marks=pytest.mark.slow)])
def test_a_damaged_file_that_someone_took_away_before_it_was_replaced_holds_nothing_up(tmp_path, plan, caplog):
    killed_in_a_burst(tmp_path)
    oldest = 0 if plan == "replay" else 30
    state = state_of(tmp_path)
    state.save(30, {**state.notes, "plan": plan, "aside": str(tmp_path / "x.hdf5.damaged")}, 0)
    (tmp_path / "x.hdf5").unlink()
    output, state = started(tmp_path, "x.hdf5", end=50, oldest=oldest)
    assert state.position == oldest
    write(output, state, 50)
    output.close()
    assert stored(tmp_path) == [row for row in expected(50) if row[2] >= oldest]


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_former_tables_that_cannot_be_removed_are_removed_before_the_next_file_is_begun(
    tmp_path, monkeypatch, at, times
):
    at(1000)
    output, state = started(tmp_path)
    write(output, state, 30)
    with monkeypatch.context() as broken:
        fail(broken, h5file.Hdf5File, "drop_replaced", ODD[0])
        if times > 1:  # nor can that be taken back
            fail(broken, h5file.Hdf5File, "restore", ODD[0])
        state.end = 31
        with pytest.raises(OutputUnavailable, match="former tables not removed") if times > 1 else nullcontext():
            output.write([record(30)])
        assert state.position == 31
        at(2000)
        output.reopen()
    write(output, state, 45)
    output.close()
    assert files(tmp_path) == ["x.0000001000.hdf5", "x.0000002000.hdf5"]
    assert numbers_in(tmp_path / "x.0000001000.hdf5") == list(range(31))
    assert stored(tmp_path) == expected(45)


def test_a_table_without_recent_rows_is_looked_at_too(tmp_path):
    killed_in_a_burst(tmp_path)
    notes = dict(OutputState(str(tmp_path / "state"), JOURNAL, 0, 0).notes)
    with tables.open_file(notes["file"], "a") as file:
        file.remove_node("/job_100", recursive=True)
    undo = {path: rows for path, rows in notes["undo"].items() if not path.startswith("/job_100/")}
    OutputState(str(tmp_path / "state"), JOURNAL, 0, 0).save(30, {**notes, "undo": undo}, 0)
    output, state = started(tmp_path, "x.hdf5", end=40)
    assert state.position == 0
    write(output, state, 40)
    output.close()
    assert stored(tmp_path) == expected(40)


# -- the rows of last chunks --


def test_rows_of_last_chunks_come_back_as_they_were_kept(tmp_path):
    path = str(tmp_path / "x.hdf5")
    with TailWriter(path) as none:
        pass
    assert not os.path.exists(tails_path(path)) and none.checksums == {}
    with TailWriter(path) as kept:
        kept.add("/job_1/a", b"some rows" * 1000)
        kept.add("/job_2/a", b"others")
    found = KeptTails(path, kept.checksums)
    assert found.get("/job_1/a") == b"some rows" * 1000 and found.get("/job_2/a") == b"others"
    assert found.get("/job_3/a") is None
    assert KeptTails(path, {"/job_1/a": 1}).get("/job_1/a") is None
    whole = Path(tails_path(path)).read_bytes()
    for size in range(len(whole)):
        Path(tails_path(path)).write_bytes(whole[:size] + b"\xff" * (len(whole) - size))
        got = KeptTails(path, kept.checksums)
        assert got.get("/job_1/a") in (None, b"some rows" * 1000)
        assert got.get("/job_2/a") in (None, b"others")
        Path(tails_path(path)).write_bytes(whole[:size])
        assert KeptTails(path, kept.checksums).get("/job_2/a") is None


# -- readers --

HOLD = """
import sys, h5py
with h5py.File(sys.argv[1], "r"):
    print("open", flush=True)
    sys.stdin.read()
"""
WAIT = """
import logging, sys
sys.path.insert(0, sys.argv[1])
from tests.collector.test_hdf5_recovery import *
logging.basicConfig(format="%(message)s", stream=sys.stdout)
folder = Path(sys.argv[2])
output = Hdf5Output(str(folder / "x.hdf5"))
state = state_of(folder)
output.open(state)
for step in (output.recover, lambda: output.write([record(number) for number in range(state.position, 30)])):
    try:
        step()
    except OutputUnavailable as err:
        print(err, flush=True)
print("waiting", flush=True)
sys.stdin.readline()
output.recover()
write(output, state, 40)
output.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("under_way", [False, True])
def test_a_reader_that_locks_the_file_is_waited_for(tmp_path, under_way):
    if under_way:
        killed_in_a_burst(tmp_path, at_record=20)
    else:
        output, state = started(tmp_path, "x.hdf5")
        write(output, state, 20)
        output.close()
    environment = {**os.environ, "HDF5_USE_FILE_LOCKING": "TRUE", "PYTHONPATH": str(Path(colmet.__file__).parents[1])}
    here = str(Path(__file__).parents[1])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with (
        subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "x.hdf5")], **pipes) as reader,
        subprocess.Popen([sys.executable, "-c", WAIT, here, str(tmp_path)], **pipes) as collector,
    ):
        assert reader.stdout.readline() == "open\n"
        said = []
        while not said or said[-1] != "waiting\n":
            said.append(collector.stdout.readline())
            assert said[-1], said
        assert sum("is held open by a reader" in line for line in said) >= 2, said
        reader.communicate()
        out, _ = collector.communicate("go on\n")
        assert collector.returncode == 0, out
    assert stored(tmp_path) == expected(40)


# -- names of files --


def test_after_a_restart_what_came_before_goes_to_the_former_file(tmp_path, at):
    at(1000)
    output, state = started(tmp_path)
    write(output, state, 20)
    output.close()
    at(2000)
    output, state = started(tmp_path, end=30)
    assert len(list(tmp_path.glob("x.*.hdf5"))) == 1
    write(output, state, 45, step=20)
    output.close()
    assert files(tmp_path) == ["x.0000001000.hdf5", "x.0000002000.hdf5"]
    with tables.open_file(str(tmp_path / "x.0000001000.hdf5")) as file:
        assert sorted(file.root.job_1.site_default.col("number").tolist()) == list(range(30))
    with tables.open_file(str(tmp_path / "x.0000002000.hdf5")) as file:
        assert sorted(file.root.job_1.site_default.col("number").tolist()) == list(range(30, 45))


def test_a_restart_within_the_same_second_goes_on_with_the_file(tmp_path, at):
    at(1000)
    for n in range(3):
        output, state = started(tmp_path, end=10 * n)
        write(output, state, 10 * n + 10)
        output.close()
    assert files(tmp_path) == ["x.0000001000.hdf5"]
    assert stored(tmp_path) == expected(30)


def test_sighup_begins_the_next_file_with_what_comes_after_it(tmp_path, at):
    at(1000)
    output, state = started(tmp_path)
    write(output, state, 10)
    at(1100)
    state.end = 15
    output.reopen()  # there are five that came before it
    write(output, state, 20, step=20)
    at(1200)
    output.reopen()
    assert files(tmp_path)[-1] == "x.0000001200.hdf5"  # at once
    output.close()
    assert files(tmp_path) == ["x.0000001000.hdf5", "x.0000001100.hdf5", "x.0000001200.hdf5"]
    with tables.open_file(str(tmp_path / "x.0000001000.hdf5")) as file:
        assert sorted(file.root.job_1.site_default.col("number").tolist()) == list(range(15))
    assert stored(tmp_path) == expected(20)


def numbers_in(path):
    with tables.open_file(str(path)) as file:
        return sorted(file.root.job_1.site_default.col("number").tolist())


def test_rotation_by_period_follows_when_records_came(tmp_path, at):
    at(1_700_000_003)
    output, state = started(tmp_path, rotate_s=20)  # record n comes in second 1,700,000,000 + n
    write(output, state, 65, step=50)
    output.close()
    found = {path.name: numbers_in(path) for path in tmp_path.glob("x.*.hdf5")}
    assert found == {
        "x.1700000003.hdf5": list(range(20)),
        "x.1700000020.hdf5": list(range(20, 40)),
        "x.1700000040.hdf5": list(range(40, 60)),
        "x.1700000060.hdf5": list(range(60, 65)),
    }


def test_a_restart_begins_a_file_also_where_what_came_before_it_fills_several(tmp_path, at):
    at(1_700_000_003)
    output, state = started(tmp_path, rotate_s=20)  # record n comes in second 1,700,000,000 + n
    write(output, state, 10)
    output.close()
    at(1_700_000_047)
    output, state = started(tmp_path, end=45, rotate_s=20)
    write(output, state, 65, step=50)
    output.close()
    assert {path.name: numbers_in(path) for path in tmp_path.glob("x.*.hdf5")} == {
        "x.1700000003.hdf5": list(range(20)),
        "x.1700000020.hdf5": list(range(20, 40)),
        "x.1700000040.hdf5": list(range(40, 45)),
        "x.1700000047.hdf5": list(range(45, 60)),
        "x.1700000060.hdf5": list(range(60, 65)),
    }


def test_a_row_is_in_the_file_of_its_period_also_if_it_comes_long_after_a_restart(tmp_path, at):
    at(1_700_000_003)
    output, state = started(tmp_path, rotate_s=20)
    write(output, state, 10)
    output.close()
    at(1_700_000_023)
    output, state = started(tmp_path, end=15, rotate_s=20)
    write(output, state, 15)
    state.end = 50
    output.write([record(number)._replace(received_ns=1_700_000_045 * 10**9) for number in range(15, 50)])
    output.close()
    assert numbers_in(tmp_path / "x.1700000003.hdf5") == list(range(15))
    assert numbers_in(tmp_path / "x.1700000040.hdf5") == list(range(15, 50))


@pytest.mark.slow
def test_rotation_by_size(tmp_path, at):
    at(1_700_000_000)
    output, state = started(tmp_path, rotate_bytes=150_000)
    write(output, state, 80, step=5)
    output.close()
    paths = sorted(tmp_path.glob("x.*.hdf5"))
    assert len(paths) > 2
    assert all(path.stat().st_size > 140_000 for path in paths[:-1])
    for path in paths[1:]:
        assert int(path.name.split(".")[1]) == 1_700_000_000 + numbers_in(path)[0]
    assert stored(tmp_path) == expected(80)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [("30m", ("s", 1800)), ("6h", ("s", 21600)), ("1d", ("s", 86400)), ("500M", ("bytes", 500 << 20)),
     ("10G", ("bytes", 10 << 30))],
)  # fmt: skip
def test_periods_and_sizes(text, meaning):
    assert rotation(text) == meaning


@pytest.mark.parametrize("text", ["", "1", "d", "0d", "-1d", "1.5d", "1 d", "1D", "10k", "9999999999G", "1d\n"])
def test_what_is_no_period_and_no_size(text):
    with pytest.raises(argparse.ArgumentTypeError, match="neither a period"):
        rotation(text)


def from_command_line(*words):
    parser = argparse.ArgumentParser()
    Hdf5Output.add_options(parser)
    return Hdf5Output.from_options(parser.parse_args(words))


def test_options_of_rotation():
    output = from_command_line("--hdf5-filepath=x", "--hdf5-rotate=1d", "--hdf5-rotate=10G")
    assert (output.rotation.period_s, output.rotation.max_bytes, output.share) == (86400, 10 << 30, 0.005)
    with pytest.raises(ConfigError, match=r"ends in \.hdf5, so it is the one file.*give --hdf5-filepath x,"):
        from_command_line("--hdf5-filepath=x.hdf5", "--hdf5-rotate=1d")
    with pytest.raises(ConfigError, match="one period, one size"):
        from_command_line("--hdf5-filepath=x", "--hdf5-rotate=1d", "--hdf5-rotate=6h")


# -- checksums --


@pytest.mark.parametrize(
    "lib", ["blosc2", pytest.param(None, marks=pytest.mark.slow), pytest.param("zlib", marks=pytest.mark.slow)]
)
def test_checksums_are_in_new_tables_and_readers_need_nothing(tmp_path, lib):
    if lib and tables.which_lib_version(lib) is None:
        pytest.skip(f"this PyTables has no {lib}")  # pip's wheels differ: nothing that CI could install
    words = [f"--hdf5-complib={lib}", "--hdf5-complevel=5"] if lib else []
    output = from_command_line(f"--hdf5-filepath={tmp_path}/x.hdf5", "--hdf5-checksums", *words)
    state = state_of(tmp_path)
    output.open(state)
    output.recover()
    write(output, state, 40, step=3)
    output.close()
    with tables.open_file(str(tmp_path / "x.hdf5")) as file:
        for table in file.walk_nodes("/", "Table"):
            assert table.filters.fletcher32 and table.filters.complevel == (5 if lib else 0)
            assert table.chunkshape[0] * table.dtype.itemsize <= 128 << 10  # whatever caches this machine has
    if lib != "blosc2":  # h5py has it in a plug-in
        assert stored(tmp_path) == expected(40)
    if not lib:
        zero(tmp_path / "x.hdf5", places(tmp_path / "x.hdf5", b"node\0")[5], 3)
        with pytest.raises((OSError, tables.HDF5ExtError)):
            stored(tmp_path)


def test_a_file_that_hdf5_crashes_on_is_replaced(tmp_path, monkeypatch, caplog):
    """The collector itself does not crash; what is read before and behind is kept."""
    crash = (
        "import os, signal\n"
        "from colmet.collector.backends.hdf5 import repair\n"
        "whole = {name: getattr(repair, name) for name in ('_verify_table', '_copy_table')}\n"
        "def crashing(name):\n"
        "    def call(*arguments):\n"
        "        path = arguments[1] if name == '_copy_table' else arguments[0]._v_pathname\n"
        "        if '/job_2/' in path:\n"
        "            os.kill(os.getpid(), signal.SIGSEGV)\n"
        "        return whole[name](*arguments)\n"
        "    return call\n"
        "for name in whole:\n"
        "    setattr(repair, name, crashing(name))\n"
    )
    popen = isolated.subprocess.Popen
    monkeypatch.setattr(
        isolated.subprocess, "Popen", lambda command, **named: popen([*command[:2], f"{crash}\n{command[2]}"], **named)
    )
    path = str(tmp_path / "x.hdf5")
    with isolated.repair.open_library(path, "w") as file:
        for job in (1, 2, 3):
            rows = np.zeros(5, dtype=[("job_id", "<i8"), ("metric_backend", "S255")])
            rows["job_id"], rows["metric_backend"] = job, b"t_default"
            file.create_table(f"/job_{job}", "t_default", obj=rows, createparents=True)
    with pytest.raises(Damaged, match=r"crashed \(SIGSEGV\) on /job_2/t_default"):
        isolated.verify(path, 3, {}, {})
    saved = isolated.salvage(path, f"{path}.new", path, 3, {"/job_2/t_default": 5}, {})
    assert saved == (2, 10, 1, 5) and "SIGSEGV" in caplog.text
    with isolated.repair.open_library(f"{path}.new", "r") as file:
        assert sorted(file.root._v_children) == ["job_1", "job_3"]


@pytest.mark.parametrize("signal", ["TERM", "INT", "KILL"])
def test_a_reading_process_that_someone_ends_says_nothing_of_the_file(tmp_path, monkeypatch, signal):
    popen = isolated.subprocess.Popen
    command = ["/bin/sh", "-c", f"read line; kill -{signal} $$"]
    monkeypatch.setattr(isolated.subprocess, "Popen", lambda _, **named: popen(command, **named))
    with pytest.raises(OutputUnavailable, match=r"ended too early \(status -[0-9]+\)"):
        isolated.verify(str(tmp_path / "x"), 3, {}, {})


def test_one_that_never_ends_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(isolated, "QUIET_S", 0.5)
    popen = isolated.subprocess.Popen
    monkeypatch.setattr(
        isolated.subprocess, "Popen", lambda command, **named: popen(["/bin/sh", "-c", "exec sleep 60"], **named)
    )
    with pytest.raises(Damaged, match=r"came to no end in 0\.5 s"):
        isolated.verify(str(tmp_path / "x"), 3, {}, {})


def fails_to_append(monkeypatch, applies):
    append = h5file.Hdf5File.append

    def failing(self, part):
        if applies(self, part):
            raise tables.HDF5ExtError("Problems closing the Group job_1")
        append(self, part)

    monkeypatch.setattr(h5file.Hdf5File, "append", failing)


@pytest.mark.parametrize("has_all", [True, False], ids=["journal", "no journal"])
def test_a_file_that_can_be_read_and_not_written_is_replaced(tmp_path, monkeypatch, has_all):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 30)
    ill = os.stat(tmp_path / "x.hdf5").st_ino
    fails_to_append(monkeypatch, lambda file, part: os.stat(file.path).st_ino == ill)
    state.oldest = 0 if has_all else 10
    for _ in range(10):
        with contextlib.suppress(OutputUnavailable):
            write(output, state, 50)
            break
    output.close()
    assert stored(tmp_path) == expected(50)
    assert files(tmp_path) == ["x.hdf5", "x.hdf5.damaged"]


@pytest.mark.slow
def test_a_record_that_no_file_accepts_is_a_defect_and_has_no_more_files_replaced(tmp_path, monkeypatch):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 30)
    fails_to_append(monkeypatch, lambda file, part: 35 in part.batch.rows["number"].tolist())
    raised = []
    for _ in range(20):
        try:
            write(output, state, 50)
        except OutputUnavailable:
            continue
        except tables.HDF5ExtError as err:
            raised.append(err)
            break
    assert raised and state.position <= 35
    assert files(tmp_path) == ["x.hdf5", "x.hdf5.damaged"]
    output.close()


def test_the_reading_process_ends_in_silence_with_whoever_asked(tmp_path):
    path = str(tmp_path / "x.hdf5")
    with repair.opened_library(path, "w") as file:
        for job in range(1, 4):
            file.create_table(f"/job_{job}", "t", obj=np.zeros(5, dtype=[("job_id", "<i8")]), createparents=True)
    code = "from colmet.collector.backends.hdf5.isolated import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(colmet.__file__).parents[1],
    ) as process:
        process.stdout.close()  # as a kill does
        process.stdin.write(json.dumps(["verify", [path, 3, {}, {}]]) + "\n")
        process.stdin.flush()
        said = process.stderr.read()
        assert process.wait(60) == 1 and said == ""


@pytest.mark.parametrize("asked", ["", '["verify", ['])
def test_the_reading_process_ends_in_silence_where_nobody_came_to_ask(asked):
    done = subprocess.run(
        [sys.executable, "-c", "from colmet.collector.backends.hdf5.isolated import main; main()"],
        input=asked,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(colmet.__file__).parents[1],
    )
    assert (done.stdout, done.stderr) == ("", "")


# -- removal of old files --

DAY_S = 86400
DAYS = ["x.1700000000.hdf5", "x.1700006400.hdf5", "x.1700092800.hdf5", "x.1700179200.hdf5"]


def set_time_of_last_row(path, time_s):
    with tables.open_file(str(path), "r+") as file:
        table = file.root.job_1.site_default
        rows = table.read(table.nrows - 1)
        rows["timestamp"] = time_s
        table.modify_rows(table.nrows - 1, rows=rows)


def four_days(folder, at, now_day=4, **options):
    """Files of four days, each with a row and as old as it; an output started `now_day` days after the first."""
    for name in DAYS:
        begins = int(name.split(".")[1])
        at(begins)
        output, state = started(folder, end=0, **options)
        state.end = state.position + 1
        output.write([record(0)._replace(number=state.position, received_ns=begins * 10**9)])
        output.close()
        set_time_of_last_row(folder / name, begins)
        os.utime(folder / name, (begins, begins))
    at(TIME_S + now_day * DAY_S)


def test_old_files_are_removed_at_start_and_after_each_rotation_and_nothing_else(tmp_path, at, monkeypatch, caplog):
    monkeypatch.setattr(expiry, "last_row_s", isolated.last_row_s)
    four_days(tmp_path, at)
    others = ["x.1700000000.hdf5.damaged", "x.170000000.hdf5", "x.1700000000.h5", "xx.1700000000.hdf5", "x.json"]
    for name in others:
        (tmp_path / name).write_bytes(b"?")
        os.utime(tmp_path / name, (0, 0))
    caplog.set_level("INFO")
    output, state = started(tmp_path, rotate_s=DAY_S, keep_s=3 * DAY_S)
    now = f"x.{TIME_S + 4 * DAY_S}.hdf5"
    assert files(tmp_path) == sorted([*others, *DAYS[2:], now])
    assert [output.counters()[name] for name in ("files_removed", "files_not_removed")] == [2, 0]
    assert output.counters()["bytes_removed"] > 0
    assert [r.getMessage().split()[3] for r in caplog.records if r.getMessage().startswith("old file removed")] == [
        f"path={tmp_path / name}" for name in DAYS[:2]
    ]
    at(TIME_S + 20 * DAY_S)
    state.end = state.position + 1
    output.write([record(0)._replace(number=state.position, received_ns=(TIME_S + 20 * DAY_S) * 10**9)])
    output.close()
    assert len(files(tmp_path)) == len(others) + 2  # the one of the rotation and the one before: just written to
    assert output.counters()["files_removed"] == 4


def test_without_a_limit_no_file_is_removed(tmp_path, at):
    four_days(tmp_path, at, now_day=4000)
    output, _ = started(tmp_path)
    output.close()
    assert set(DAYS) < set(files(tmp_path))


@pytest.mark.parametrize(
    "kind",
    [
        *("other", "not hdf5", "late row", "locked", "link"),
        *[pytest.param(kind, marks=pytest.mark.slow) for kind in ("other table", "damaged")],
    ],
)
def test_what_is_not_an_old_file_of_the_collector_stays_and_is_reported_once(tmp_path, at, caplog, kind):
    four_days(tmp_path, at, now_day=40)
    path = tmp_path / DAYS[0]
    lock = nullcontext()
    if kind == "late row":
        set_time_of_last_row(path, TIME_S + 39 * DAY_S)
    elif kind in ("other", "other table"):
        with tables.open_file(str(path), "r+") as file:
            if kind == "other":
                file.create_group("/", "experiment")
            else:
                file.create_array("/job_1", "mine", [1, 2])
    elif kind == "not hdf5":
        path.write_bytes(b"notes")
    elif kind == "damaged":
        path.write_bytes(path.read_bytes()[:2000])
    elif kind == "locked":
        lock = locked_by_another(path)
    elif kind == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to("elsewhere")
    os.utime(path, (TIME_S, TIME_S))
    with lock:
        output, _ = started(tmp_path, keep_s=2 * DAY_S)
        output.recover()
        output.close()
    assert path.exists()
    assert not {*DAYS[1:]} & set(files(tmp_path))
    assert output.counters()["files_not_removed"] == (kind != "link")  # a link is not looked at
    messages = [r.getMessage() for r in caplog.records if r.getMessage().startswith("old file not removed")]
    assert len(messages) == (kind != "link")


@contextlib.contextmanager
def locked_by_another(path):
    """Another process has the file's lock."""
    script = (
        "import sys; from colmet.collector.backends.hdf5 import file_lock as f; f.lock(sys.argv[1]); print(); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(colmet.__file__).parents[1],
    ) as process:
        process.stdout.readline()
        yield
        process.stdin.close()


def test_a_file_that_waiting_rows_go_to_is_not_removed(tmp_path, at):
    four_days(tmp_path, at, now_day=40)
    notes = json.loads((tmp_path / "state").read_text())
    output, _ = started(tmp_path, end=notes["position"] + 5, keep_s=2 * DAY_S)  # it continues with the last file
    assert output.path == str(tmp_path / DAYS[-1])
    assert files(tmp_path) == [DAYS[-1]]
    output.close()


def test_check_names_the_files_that_a_start_removes_and_removes_none(tmp_path, at, caplog):
    four_days(tmp_path, at)
    Hdf5Output(str(tmp_path / "x"), keep_s=3 * DAY_S).check(str(tmp_path))
    named = [record.getMessage().split("path=")[1].split()[0] for record in caplog.records]
    assert named == [str(tmp_path / name) for name in DAYS[:2]]
    assert files(tmp_path) == DAYS


def test_the_time_for_removals_is_bounded_and_the_next_write_continues(tmp_path, at, monkeypatch):
    four_days(tmp_path, at, now_day=40)
    monkeypatch.setattr(expiry, "REMOVAL_S", -1.0)
    output, state = started(tmp_path, keep_s=2 * DAY_S)
    for count in (1, 2, 3):
        assert output.counters()["files_removed"] == count
        write(output, state, state.position + 1)
    assert output.counters()["files_removed"] == 4
    output.close()


def test_files_that_became_too_old_are_removed_where_a_write_fails_too(tmp_path, at, monkeypatch):
    four_days(tmp_path, at)
    output, state = started(tmp_path, keep_s=6 * DAY_S)
    write(output, state, state.position + 1)
    assert set(DAYS) <= set(files(tmp_path))
    at(TIME_S + 9 * DAY_S)

    def fail(*_):
        raise OutputUnavailable("disk full")

    with monkeypatch.context() as failing:
        failing.setattr(Hdf5Output, "_prepare", fail)
        with pytest.raises(OutputUnavailable):
            write(output, state, state.position + 1)
    assert not set(DAYS[:2]) & set(files(tmp_path))
    write(output, state, state.position + 1)
    output.close()


def test_a_file_in_use_does_not_hold_back_the_removal_of_others(tmp_path, at, monkeypatch, caplog):
    four_days(tmp_path, at, now_day=40)
    monkeypatch.setattr(expiry, "REMOVAL_S", -1.0)
    with locked_by_another(tmp_path / DAYS[0]):
        output, state = started(tmp_path, rotate_s=DAY_S, keep_s=2 * DAY_S)
        for _ in range(4):
            write(output, state, state.position + 1)
        assert {*DAYS} & set(files(tmp_path)) == {DAYS[0]}
    assert caplog.text.count("old file not removed") == 1 and "another process writes to it" in caplog.text
    at(TIME_S + 50 * DAY_S)
    for _ in range(2):  # with the next file
        state.end = state.position + 1
        output.write([record(0)._replace(number=state.position, received_ns=(TIME_S + 50 * DAY_S) * 10**9)])
    assert not {*DAYS} & set(files(tmp_path))
    output.close()


def test_options_of_the_removal():
    assert from_command_line("--hdf5-filepath=x", "--hdf5-keep=90d")._expiry._keep_s == 90 * DAY_S
    with pytest.raises(ConfigError, match=r"--hdf5-keep: x\.hdf5 ends in \.hdf5.*--hdf5-rotate 1d"):
        from_command_line("--hdf5-filepath=x.hdf5", "--hdf5-keep=90d")
