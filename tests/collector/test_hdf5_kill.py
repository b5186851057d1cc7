"""The HDF5 output is killed wherever it can be, started again, and in the end each row is in its files once."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time

import h5py
import numpy as np
import pytest

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.hdf5 import check, current_file
from colmet.collector.backends.hdf5.h5file import Hdf5File
from colmet.collector.backends.hdf5.libhdf5 import Dataset
from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.collector.journal.output_state import OutputState
from colmet.common.errors import OutputUnavailable
from colmet.common.schema import Batch, Field, Schema, Table
from tests.support.hdf5_killed import expected, record, stored, tables
from tests.support.hdf5_writer import JOURNAL
from tests.support.machine import fork

pytestmark = pytest.mark.slow


class Collector:
    """A child process that writes records to files in a folder, until it is done or killed.

    Args:
        has_all: whether the journal still has all records, or none of those that were written.
        options: of the output.
    """

    def __init__(self, folder, end, has_all=True, path="x", burst=(2, 20), **options):
        self.folder, self.end, self.has_all, self.path, self.burst = folder, end, has_all, path, burst
        self.options = options

    def state(self):
        state = OutputState(str(self.folder / "state"), JOURNAL, 0, 0)
        state.oldest, state.end = (0 if self.has_all else state.position), self.end
        return state

    def run(self, steps=None, patience=20):
        """What the child does; `steps` is called before and after each step that a kill could separate from others."""
        os.fsync = lambda _: None  # what the kernel was given survives SIGKILL, on disk or not
        if steps is not None:
            watch(steps)
        # in this process, which is killed more often than a second one could be started
        check.check = check.check_file
        state = self.state()
        opened = Hdf5Output(str(self.folder / self.path), **self.options)
        opened.open(state)
        rng = random.Random(state.position)
        for _ in range(patience):  # for what is to be done again
            try:
                opened.recover()
                while state.position < self.end:
                    state.end = self.end
                    state.oldest = state.oldest if self.has_all else max(state.oldest, state.position)
                    last = min(self.end, state.position + rng.randint(*self.burst))
                    opened.write([record(number) for number in range(state.position, last)])
                opened.close()
                return
            except OutputUnavailable as err:
                print(err)
        raise AssertionError("it does not get done")

    def fork(self, steps=None):
        child = fork()
        if child == 0:
            status = 1
            try:
                self.run(steps)
                status = 0
            finally:
                os._exit(status)
        return child

    def until_killed_or_done(self, steps=None):
        """Whether it was killed."""
        _, status = os.waitpid(self.fork(steps), 0)
        assert status in (0, signal.SIGKILL), status
        return status != 0


STEPS = [
    (OutputState, "save"),
    (Hdf5File, "flush"),
    (Hdf5File, "sync"),
    (Hdf5File, "close"),
    (Hdf5File, "undo"),
    (tables.Table, "append"),
    (tables.Table, "truncate"),
    (tables.Table, "_f_close"),
    (tables.File, "create_table"),
    (tables.File, "rename_node"),
    (tables.File, "remove_node"),
    (tables.File, "close"),
    (os, "fsync"),
    (os, "link"),
    (os, "rename"),
    (os, "replace"),
    (current_file, "sync_directory"),
]


def watch(step):
    """Have `step` called before and after each of these."""
    for owner, name in STEPS:
        original = getattr(owner, name)

        def called(*arguments, _original=original, _name=f"{owner.__name__}.{name}", **named):
            step(f"before {_name}")
            result = _original(*arguments, **named)
            step(f"after {_name}")
            return result

        setattr(owner, name, called)


class KillAt:
    def __init__(self, number):
        self.left = number

    def __call__(self, _name):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def count_steps(collector):
    """How many steps there are."""
    reader, writer = os.pipe()
    steps = []

    class Last:
        def __call__(self, name):
            steps.append(name)
            os.write(writer, b".")

    child = collector.fork(Last())
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        count = len(pipe.read())
    assert os.waitpid(child, 0)[1] == 0
    return count


KINDS = {
    "plain": {},
    "compressed": {"complevel": 9},
    "rotated": {"rotate_s": 25},
    "one file": {"path": "x.hdf5"},
    "by size": {"rotate_bytes": 400_000},
    "in parts": {},
}


@pytest.fixture
def parts(monkeypatch, kind):
    """Have few new tables in a burst."""
    if kind.endswith("in parts"):
        monkeypatch.setattr(current_file, "MAX_NEW_TABLES", 2)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(("kind", "has_all"), [*[(kind, True) for kind in KINDS], (next(iter(KINDS)), False)])
def test_killed_at_any_step_each_row_is_there_once(tmp_path, kind, has_all):
    end = 70
    (tmp_path / "whole").mkdir()
    whole = Collector(tmp_path / "whole", end, has_all, **KINDS[kind])
    steps = count_steps(whole)
    assert stored(whole.folder) == expected(end)
    assert steps > 100
    every = int(os.environ.get("COLMET_TEST_EVERY_STEP", steps // 2 + 1))
    for step in range(1 + random.randrange(every), steps, every):
        folder = tmp_path / str(step)
        folder.mkdir()
        collector = Collector(folder, end, has_all, **KINDS[kind])
        assert collector.until_killed_or_done(KillAt(step))
        for again in (7, 19):  # while it recovers, too
            if not collector.until_killed_or_done(KillAt(again)):
                break
        assert not collector.until_killed_or_done()
        assert stored(folder) == expected(end), f"step {step} of {steps}"


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("kind", ["compressed", "rotated", "in parts"])
def test_killed_at_random_moments_each_row_is_there_once(tmp_path, kind):
    rng = random.Random(kind)
    endless = Collector(tmp_path, 10**9, **KINDS[kind])
    reached = 0
    for _ in range(15):
        reader, writer = os.pipe()
        child = endless.fork(lambda name, writer=writer: os.write(writer, b"."))
        os.close(writer)
        for _ in range(rng.randrange(30, 120)):
            assert os.read(reader, 1)
        time.sleep(rng.uniform(0, 0.01))  # so that it is not in the middle of a write to the pipe
        os.kill(child, signal.SIGKILL)
        os.close(reader)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        reached = max(reached, endless.state().position)  # a file that is written again sets it back
    collector = Collector(tmp_path, endless.state().position + 50, **KINDS[kind])
    assert not collector.until_killed_or_done()
    assert stored(tmp_path) == expected(collector.end)
    assert reached > 10


@pytest.mark.parametrize("at", [300, 1500])
def test_a_kill_during_the_appends_of_many_tables_leaves_the_others_readable(tmp_path, at):
    """Although the library writes some of its structures before the end of a burst, for room in its cache."""
    schema = Schema("site_default", "job", [Field(f"column{n}", "none", "gauge") for n in range(30)])

    def of_jobs(number, jobs):
        rows = schema.empty_rows(jobs)
        rows["job_id"] = np.arange(1560 - jobs, 1560)
        return JournalRecord(number, 10**18, (Batch("node", 1, number, 0, (), (Table(schema, 0, rows),)),))

    file = Hdf5Output(str(tmp_path / "x.hdf5"))
    state = OutputState(str(tmp_path / "state"), JOURNAL, 0, 0)
    file.open(state)
    file.recover()
    while not state.position:
        file.write([of_jobs(0, 1500)])
    file.close()
    child = fork()
    if child == 0:
        appends = itertools.count(1)

        def append(self, rows, _original=Dataset.append):
            if next(appends) == at:
                os.kill(os.getpid(), signal.SIGKILL)
            _original(self, rows)

        Dataset.append = append
        file.open(state)
        file.recover()
        while state.position < 2:  # in several bursts, on a slow machine
            file.write([of_jobs(1, 1560)])
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    with h5py.File(tmp_path / "x.hdf5", "r", locking=False) as found:
        assert sum(len(found[name]["site_default"]) for name in found if int(name[4:]) >= 60) >= 1500
