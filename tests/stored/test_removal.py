"""Removal of rows in a process of its own: the file stays as it is when that process ends early."""

from __future__ import annotations

import os
import signal

import h5py
import numpy as np
import pytest

from colmet.commands import colmet
from colmet.common.errors import ColmetError
from colmet.stored import removal
from colmet.stored.removal import Removed, Remover
from tests.support.small_store import JOB, START, make_store

ALL = {JOB: [(START, START + 9)]}


@pytest.fixture
def path(tmp_path):
    make_store(tmp_path)
    return tmp_path / f"rows.{START}.hdf5"


@pytest.fixture
def crash(monkeypatch):
    """The library crashes while the copy is written."""
    monkeypatch.setattr(removal, "_copy", lambda *_: os.kill(os.getpid(), signal.SIGSEGV))


def test_rows_of_an_interval_are_counted_and_removed(path):
    jobs = {JOB: [(START, START), (START + 2, START + 9)], 4: [(START, START)]}
    with Remover() as remover:
        assert remover.count(str(path), jobs) == remover.remove(str(path), jobs) == Removed([JOB], 2)
        assert remover.count(str(path), jobs) == Removed([], 0)
    with h5py.File(path) as file:
        assert file[f"job_{JOB}/cgroup_default"]["timestamp"].tolist() == [START + 1]


@pytest.mark.usefixtures("crash")
def test_a_crash_of_the_library_leaves_the_file_as_it_was(path):
    before = path.read_bytes()
    with Remover() as remover, pytest.raises(ColmetError, match="crashed"):
        remover.remove(str(path), ALL)
    assert path.read_bytes() == before and not list(path.parent.glob("*.forgetting"))


@pytest.mark.usefixtures("crash")
def test_a_crash_ends_no_command_and_keeps_the_jobs(path, monkeypatch, capsys):
    monkeypatch.chdir(path.parent)
    words = ["--hdf5", "rows", "--archive", "rows.archive.sqlite"]
    assert colmet.main(["archive", "forget", "--user", "alice", "--rows", "--yes", *words]) == 1
    assert "crashed" in capsys.readouterr().err
    assert colmet.main(["archive", "forget", "--user", "alice", "--dry-run", *words]) == 0
    assert "would lose the whole summary of 1 job" in capsys.readouterr().out


def test_a_file_with_rows_of_others_is_not_copied(path):
    with h5py.File(path, "a") as file:
        made = h5py.VirtualLayout(shape=(3,), dtype=np.dtype([("timestamp", "<i8")]))
        made[:] = h5py.VirtualSource(str(path.parent / "other.hdf5"), "x", shape=(3,))
        file.create_virtual_dataset("job_5/cgroup_default", made)
    before = path.read_bytes()
    with Remover() as remover, pytest.raises(ColmetError, match="only what is in the file itself is read"):
        remover.remove(str(path), ALL)
    assert path.read_bytes() == before
