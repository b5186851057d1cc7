"""A file of others shows nothing but itself: no reader follows a link, or reads rows that are in other files."""

from __future__ import annotations

import os

import h5py
import numpy as np
import pytest

from colmet.collector.backends.hdf5 import check
from colmet.collector.backends.hdf5.h5table import Damaged
from colmet.commands import colmet
from tests.support.small_store import JOB, START, make_store, rows

SECRET = b"root:$6$SECRET"
TABLE = f"job_{JOB}/cgroup_default"
DTYPE = np.dtype([*rows().dtype.descr, ("user", "S16")])


def external(file, folder):
    """A row of which the user is in a file of its reader."""
    made = np.zeros(1, DTYPE)
    for name in rows().dtype.names:
        made[name] = rows(1)[name]
    (folder / "head").write_bytes(made.tobytes()[:-16])
    (folder / "secret").write_bytes(SECRET.ljust(16))
    places = [(str(folder / name), 0, size) for name, size in (("head", DTYPE.itemsize - 16), ("secret", 16))]
    file.create_dataset(TABLE, shape=(1,), dtype=DTYPE, external=places)


def external_fifo(file, folder):
    os.mkfifo(folder / "fifo")
    file.create_dataset(TABLE, shape=(1,), dtype=DTYPE, external=[(str(folder / "fifo"), 0, DTYPE.itemsize)])


def virtual(file, folder):
    made = h5py.VirtualLayout(shape=(3,), dtype=rows().dtype)
    made[:] = h5py.VirtualSource(str(folder / f"rows.{START}.hdf5"), f"/{TABLE}", shape=(3,))
    file.create_virtual_dataset(TABLE, made)


def virtual_fifo(file, folder):
    made = h5py.VirtualLayout(shape=(3,), dtype=rows().dtype)
    made[:] = h5py.VirtualSource(str(folder / "fifo"), f"/{TABLE}", shape=(3,))
    file.create_virtual_dataset(TABLE, made)
    os.mkfifo(folder / "fifo")


def linked_table(file, folder):
    file[TABLE] = h5py.ExternalLink(str(folder / f"rows.{START}.hdf5"), f"/{TABLE}")


def linked_job(file, folder):
    file[f"job_{JOB}"] = h5py.ExternalLink(str(folder / f"rows.{START}.hdf5"), f"/job_{JOB}")


def own_linked_table(file, _folder):
    file.create_dataset("job_18/cgroup_default", data=rows(), chunks=(3,))
    file[TABLE] = h5py.SoftLink("/job_18/cgroup_default")


def own_linked_job(file, _folder):
    file.create_dataset("job_18/cgroup_default", data=rows(), chunks=(3,))
    file[f"job_{JOB}"] = h5py.SoftLink("/job_18")


KINDS = (external, external_fifo, virtual, virtual_fifo, linked_table, linked_job, own_linked_table, own_linked_job)
COMMANDS = {
    "list": ["extract", "--job", str(JOB), "--list"],
    "extract": ["extract", "--job", str(JOB), "--format", "csv"],
    "report": ["report", str(JOB)],
    "plot": ["plot", str(JOB), "--text"],
    "rebuild": ["archive", "rebuild", "--output", "again.sqlite"],
}


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def hostile(request, tmp_path, monkeypatch):
    """The path of a file with data of another one, in the current directory."""
    monkeypatch.chdir(tmp_path)
    make_store(tmp_path)
    with h5py.File("hostile.hdf5", "w") as file:
        request.param(file, tmp_path)
    return "hostile.hdf5"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_refuses_it(hostile, name, capsys):
    status = colmet.main([*COMMANDS[name], "--hdf5", hostile])
    said = capsys.readouterr()
    assert status in (1, 2) and SECRET.decode() not in said.out + said.err
    assert "only what is in the file itself is read" in said.err


def test_completeness_refuses_it(hostile, capsys):
    assert colmet.main(["completeness", hostile]) == 2
    assert "only what is in the file itself is read" in capsys.readouterr().err


def test_the_collector_does_not_read_it(hostile):
    """To remove it, or after a kill: what is not in the file is not looked at."""
    with pytest.raises(Damaged):
        check.read_last_row_s(hostile)
    check.check(hostile, None, {}, {})
    with pytest.raises(Damaged):
        check.check(hostile, None, {f"/{TABLE}": 1}, {f"/{TABLE}": 1})
