"""What the HDF5 output remembers, and what it does with files that are damaged, moved, held, or to be rotated."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import h5py
import numpy as np
import pytest

import colmet
from colmet.collector.backend import JournalRecord
from colmet.collector.backends.hdf5 import check, current_file, h5file, job_tables, library
from colmet.collector.backends.hdf5 import files as files_module
from colmet.collector.backends.hdf5.checkpoint import Checkpoint, KeptTails, TailWriter, tails_path
from colmet.collector.backends.hdf5.files import rotation
from colmet.collector.backends.hdf5.h5table import Damaged
from colmet.collector.backends.hdf5.libhdf5 import Dataset
from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.collector.journal.output_state import OutputState
from colmet.common.config import cli
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.schema import Batch, Table
from tests.support.hdf5_killed import NARROW, TIME_S, expected, record, stored
from tests.support.hdf5_writer import JOURNAL

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
    monkeypatch.setattr(files_module, "REMOVAL_S", 60.0)
    monkeypatch.setattr(files_module, "last_row_s", check.read_last_row_s)
    return lambda now: monkeypatch.setattr(time, "time", lambda: float(now))


# -- bursts --


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


def many_jobs(number, jobs):
    """A record with rows of this many jobs of its own."""
    rows = NARROW.empty_rows(jobs)
    rows["job_id"] = number * jobs + np.arange(jobs)
    rows["number"] = number
    batches = (Batch("node", 1, number, 0, (), (Table(NARROW, TIME_S * 10**9, rows),)),)
    return JournalRecord(number, TIME_S * 10**9, batches)


@pytest.mark.slow
@pytest.mark.parametrize("known", [8, 1 << 15])
def test_many_new_tables_are_written_in_several_bursts(tmp_path, monkeypatch, known):
    """So that a stop takes a short time; also where few tables are kept in memory."""
    monkeypatch.setattr(job_tables, "MAX_KNOWN", known)
    monkeypatch.setattr(current_file, "MAX_NEW_TABLES", 50)  # two for each: rows can need another one
    positions = []
    output, _ = started(tmp_path, end=9, monotonic=lambda: 0.0)
    save = OutputState.save
    monkeypatch.setattr(OutputState, "save", lambda self, p, n, k: (positions.append(p), save(self, p, n, k)))
    output.write([many_jobs(number, 10) for number in range(9)])
    output.close()
    assert sorted(set(positions)) == [0, 2, 4, 6, 8, 9]
    assert stored(tmp_path) == sorted([(10 * n + job, "site_default", n) for job in range(10) for n in range(9)])


# -- starts --


def test_after_a_clean_stop_nothing_is_walked(tmp_path, monkeypatch):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 10)
    output.close()
    monkeypatch.setattr(check, "check", lambda *_: pytest.fail("walked"))
    monkeypatch.setattr(h5file, "table_names", lambda *_: pytest.fail("listed"))
    monkeypatch.setattr(current_file, "boot_id", lambda: "another")
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
    monkeypatch.setattr(check, "check", lambda *arguments: (looked.append(arguments[0]), check.check_file(*arguments)))
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 20)
    output.close()
    assert looked == [str(tmp_path / "x.hdf5")]
    assert stored(tmp_path) == expected(20)


@pytest.mark.parametrize("wrong", [{"file": 3}, {"undo": []}, {"undo": {"/a": "1"}}, {"aside": 3}, {"more": 1}])
def test_notes_that_are_not_ours_are_not_used(tmp_path, caplog, wrong):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 10)
    output.close()
    state.save(10, {**state.notes, **wrong})
    with pytest.raises(ValueError, match=r"undo|another type|unexpected"):
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
    assert state.notes["first"] == 20  # what came before is not from this journal
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
    output, state = started(tmp_path, "x.hdf5", end=50)
    if state.position == 0:  # else the burst that is taken back had been damaged
        assert "damaged file set aside" in caplog.text and " gone=0;" in caplog.text
        assert output.counters()["files_damaged"] == 1
    write(output, state, 50)
    output.close()
    assert stored(tmp_path) == expected(50)


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


def fail(monkeypatch, owner, name, error, times=1):
    """Have the next calls fail."""
    original, calls = getattr(owner, name), []

    def called(*arguments, **named):
        calls.append(arguments)
        if len(calls) <= times:
            raise error
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, called)


def written(output, state, end):
    """Write as the worker does, where the output is unavailable at times."""
    for _ in range(10):
        with contextlib.suppress(OutputUnavailable):
            write(output, state, end)
            return
    raise AssertionError("it does not get done")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["superblock", "all but the beginning", "rows"])
def test_a_damaged_file_is_begun_again_with_what_the_journal_still_has(tmp_path, kind, caplog):
    """Its older rows are in the file set aside alone, and the status says so until that is moved."""
    killed_in_a_burst(tmp_path, complevel=9)
    DAMAGE[kind](tmp_path / "x.hdf5")
    output, state = started(tmp_path, "x.hdf5", end=50, oldest=12, complevel=9)
    assert state.position == 12 and " records=18 gone=12;" in caplog.text
    write(output, state, 50)
    aside = str(tmp_path / "x.hdf5.damaged")
    assert output.details() == {"set_aside": [aside]} and output.counters()["files_damaged"] == 1
    if kind == "rows":  # one job's are unreadable, others can be read
        with tables.open_file(aside) as file:
            assert file.root.job_100.site_default.col("number").tolist() == list(range(20))
    os.unlink(aside)
    assert output.details() == {"set_aside": []}
    output.close()
    assert stored(tmp_path) == [row for row in expected(50) if row[2] >= 12]


def test_a_file_that_was_there_before_is_filled_from_where_the_collector_went_on(tmp_path):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 20)
    output.close()
    (tmp_path / "state").unlink()
    state = OutputState(str(tmp_path / "state"), JOURNAL, 0, 20)
    output = Hdf5Output(str(tmp_path / "x.hdf5"))
    output.open(state)
    output.recover()
    write(output, state, 30)
    output.close()
    zero(tmp_path / "x.hdf5", 0, 64)
    output, state = started(tmp_path, "x.hdf5", end=40)
    assert state.position == 20
    write(output, state, 40)
    output.close()
    assert stored(tmp_path) == [row for row in expected(40) if row[2] >= 20]


@pytest.mark.parametrize("done", ["nothing", "moved", "taken away", "begun"])
def test_setting_a_file_aside_is_completed_after_a_kill(tmp_path, done):
    killed_in_a_burst(tmp_path)
    aside = tmp_path / "x.hdf5.damaged"
    state = state_of(tmp_path)
    state.save(0, Checkpoint(str(tmp_path / "x.hdf5"), tables=0, aside=str(aside))._asdict(), 0)
    if done in ("moved", "begun"):
        (tmp_path / "x.hdf5").rename(aside)
    if done == "taken away":
        (tmp_path / "x.hdf5").unlink()
    if done == "begun":
        with tables.open_file(str(tmp_path / "x.hdf5"), "w"):
            pass
    output, state = started(tmp_path, "x.hdf5", end=50)
    assert state.position == 0 and aside.exists() == (done != "taken away")
    write(output, state, 50)
    output.close()
    assert stored(tmp_path) == expected(50)


@pytest.mark.slow
def test_a_file_that_goes_bad_while_it_is_written_is_begun_again(tmp_path, monkeypatch):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 20)
    with monkeypatch.context() as broken:
        fail(broken, Dataset, "append", tables.HDF5ExtError("unable to write raw data"))
        fail(broken, tables.Table, "truncate", tables.HDF5ExtError("unable to read"))
        state.end = 30
        with pytest.raises(OutputUnavailable):
            output.write([record(number) for number in range(20, 30)])
        for place in places(tmp_path / "x.hdf5", b"SNOD"):
            zero(tmp_path / "x.hdf5", place, 16)
        with pytest.raises(OutputUnavailable, match="filled again from the journal"):
            output.write([record(number) for number in range(20, 30)])
        assert state.position == 0
    write(output, state, 40)
    output.close()
    assert stored(tmp_path) == expected(40)
    assert files(tmp_path) == ["x.hdf5", "x.hdf5.damaged"]


# what PyTables was seen to raise on damaged files
ODD = [AttributeError("'NoneType'"), SystemError("Negative size"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "start")]


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
    output._current.close()
    fail(monkeypatch, tables.File, "_close_file", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    output.reopen()
    assert files(tmp_path) == ["x.0000001000.hdf5"]
    write(output, state, 20)
    output.close()
    assert files(tmp_path) == ["x.0000001000.hdf5", "x.0000002000.hdf5"]
    assert stored(tmp_path) == expected(20)


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
            fail(broken, h5file.Hdf5File, "undo", ODD[0])
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


@pytest.mark.slow
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
    parser = cli.Parser()
    Hdf5Output.add_options(parser)
    return Hdf5Output.from_options(parser.parse_args(words))


def test_options_of_rotation():
    output = from_command_line("--hdf5-filepath=x", "--hdf5-rotate=1d", "--hdf5-rotate=10G")
    assert (output.rotation.period_s, output.rotation.max_bytes, output.share) == (86400, 10 << 30, 0.005)
    with pytest.raises(ConfigError, match=r"ends in \.hdf5, so it is the one file.*give --hdf5-filepath x,"):
        from_command_line("--hdf5-filepath=x.hdf5", "--hdf5-rotate=1d")
    with pytest.raises(ConfigError, match="one period, one size"):
        from_command_line("--hdf5-filepath=x", "--hdf5-rotate=1d", "--hdf5-rotate=6h")


@pytest.mark.slow
@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
def test_whatever_pytables_raises_on_a_file_that_goes_bad_no_row_is_dropped(tmp_path, monkeypatch, error):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 20)
    fail(monkeypatch, Dataset, "append", error)
    for place in places(tmp_path / "x.hdf5", b"SNOD"):
        zero(tmp_path / "x.hdf5", place, 16)
    written(output, state, 40)
    output.close()
    assert stored(tmp_path) == expected(40)
    assert files(tmp_path) == ["x.hdf5", "x.hdf5.damaged"]


def fails_to_append(monkeypatch, applies, error):
    append = h5file.Hdf5File.append

    def failing(self, part):
        if applies(self, part):
            raise error
        append(self, part)

    monkeypatch.setattr(h5file.Hdf5File, "append", failing)


@pytest.mark.slow
def test_a_file_that_can_be_read_and_not_written_is_begun_again(tmp_path, monkeypatch):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 30)
    ill = os.stat(tmp_path / "x.hdf5").st_ino
    error = tables.HDF5ExtError("Problems closing the Group job_1")
    fails_to_append(monkeypatch, lambda file, part: os.stat(file.path).st_ino == ill, error)
    written(output, state, 50)
    output.close()
    assert stored(tmp_path) == expected(50)
    assert files(tmp_path) == ["x.hdf5", "x.hdf5.damaged"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "count"), [(tables.HDF5ExtError("Problems closing the Group"), 2), (ZeroDivisionError(), 1)], ids=str
)
def test_a_record_that_no_file_accepts_is_raised_and_has_no_more_files_set_aside(tmp_path, monkeypatch, error, count):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 30)
    fails_to_append(monkeypatch, lambda file, part: 35 in part.batch.rows["number"].tolist(), error)
    with pytest.raises(type(error)):
        written(output, state, 50)
    assert state.position <= 35
    assert len(files(tmp_path)) == count
    written(output, state, 35)
    state.save(36, keep_from=state.keep_from)  # as the worker drops it
    written(output, state, 50)
    output.close()
    assert stored(tmp_path) == [row for row in expected(50) if row[2] != 35]


# -- the process that reads --


@pytest.fixture
def child(monkeypatch):
    """Have the process that reads run a line before its task."""

    def runs(line):
        command = check.python_command
        monkeypatch.setattr(check, "python_command", lambda statement: command(f"{line}\n{statement}"))

    return runs


def test_a_crash_of_hdf5_in_the_reading_process_is_damage(tmp_path, child):
    child("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    for read in (lambda: check.check(str(tmp_path / "x"), 3, {}, {}), lambda: check.last_row_s("x")):
        with pytest.raises(Damaged, match=r"crashed on it \(SIGSEGV\)"):
            read()


@pytest.mark.parametrize("signal", ["TERM", "INT", "KILL"])
def test_a_reading_process_that_someone_ends_says_nothing_of_the_file(tmp_path, child, signal):
    child(f"import os, signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), signal.SIG{signal})")
    with pytest.raises(OutputUnavailable, match=r"ended too early \(status -[0-9]+\)"):
        check.check(str(tmp_path / "x"), 3, {}, {})


def test_the_reading_process_ends_in_silence_with_the_collector(tmp_path):
    command = check.python_command("from colmet.collector.backends.hdf5.check import main; main()")
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes, env=check.python_environment()) as process:
        process.stdout.close()  # as a kill does
        process.stdin.write(json.dumps(["read_last_row_s", [str(tmp_path / "x")]]).encode())
        process.stdin.close()
        assert process.stderr.read() == b""


def test_reading_that_never_ends_is_given_up(tmp_path, child):
    output, state = started(tmp_path, "x.hdf5")
    write(output, state, 5)
    output.close()
    child(
        "import time; from colmet.collector.backends.hdf5 import check; check.QUIET_S = 1; "
        "check._check_table = lambda *_: time.sleep(60)"
    )
    with pytest.raises(Damaged, match="comes to no end in"):
        check.check(str(tmp_path / "x.hdf5"), None, {}, {})


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


@pytest.mark.slow
def test_old_files_are_removed_at_start_and_after_each_rotation_and_nothing_else(tmp_path, at, monkeypatch, caplog):
    monkeypatch.setattr(files_module, "last_row_s", check.last_row_s)
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
    script = "import sys; from colmet.collector.backends.hdf5 import h5file as f; f.lock(sys.argv[1]); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(colmet.__file__).parents[1],
    ) as process:
        process.stdout.readline()
        yield
        process.stdin.close()


def test_a_file_with_a_late_row_is_removed_when_that_is_old_enough(tmp_path, at):
    four_days(tmp_path, at, now_day=40)
    set_time_of_last_row(tmp_path / DAYS[0], TIME_S + 39 * DAY_S)
    os.utime(tmp_path / DAYS[0], (TIME_S, TIME_S))
    output, state = started(tmp_path, rotate_s=DAY_S, keep_s=2 * DAY_S)
    for day, is_there in ((40.5, True), (41.5, False)):
        at(TIME_S + int(day * DAY_S))
        state.end = state.position + 1
        output.write([record(0)._replace(number=state.position, received_ns=int((TIME_S + day * DAY_S) * 1e9))])
        assert (DAYS[0] in files(tmp_path)) is is_there
    output.close()


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
    monkeypatch.setattr(files_module, "REMOVAL_S", -1.0)
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


@pytest.mark.slow
def test_a_file_in_use_does_not_hold_back_the_removal_of_others(tmp_path, at, monkeypatch, caplog):
    four_days(tmp_path, at, now_day=40)
    monkeypatch.setattr(files_module, "REMOVAL_S", -1.0)
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
