"""The HDF5 library called directly: files of other programs, hostile ones too, and failures of single calls."""

from __future__ import annotations

import os

import h5py
import numpy as np
import pytest

from colmet.collector.backends.hdf5 import calls, libhdf5
from colmet.collector.backends.hdf5.libhdf5 import Dataset
from colmet.collector.backends.hdf5.library import tables
from colmet.common.errors import OutputUnavailable
from colmet.common.schema import Field, Schema
from tests.support.hdf5_files import batch, numbers, stored, table
from tests.support.hdf5_writer import opened, write_once

NAME = "/job_1/taskstats_default"


def descriptors(path):
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{fd}") == str(path)]


@pytest.mark.parametrize("value", [np.arange(1000), "text", np.float64(1), np.bytes_("12345678"), h5py.Empty("f8")])
def test_a_count_of_rows_of_another_type_stays_and_the_rows_are_written(tmp_path, value):
    path = tmp_path / "x.hdf5"
    write_once(path, numbers(1, 3))
    with h5py.File(path, "a") as file:
        del file[NAME].attrs["NROWS"]
        file[NAME].attrs["NROWS"] = value
    write_once(path, numbers(1, 4, first=3))
    with h5py.File(path) as file:
        assert len(file[NAME]) == 7
        kept = file[NAME].attrs["NROWS"]
        assert isinstance(value, h5py.Empty) or (np.asarray(kept) == np.asarray(value)).all()


@pytest.mark.parametrize("kind", ["soft", "external", "dangling"])
def test_a_link_in_place_of_a_table_or_a_job_is_never_followed(tmp_path, kind, caplog):
    path, other = tmp_path / "x.hdf5", tmp_path / "other.hdf5"
    for one in (path, other):
        write_once(one, numbers(2, 3))
    link = {
        "soft": h5py.SoftLink("/job_2/taskstats_default"),
        "external": h5py.ExternalLink(str(other), "/job_2/taskstats_default"),
        "dangling": h5py.SoftLink("/nothing"),
    }[kind]
    with h5py.File(path, "a") as file:
        file[NAME] = link
        file["/job_3"] = h5py.SoftLink("/job_2")
    output = write_once(path, [b for job in (1, 2, 3) for b in numbers(job, 4, first=3)])
    assert output.rows_left_out == 8 and "another object has their path" in caplog.text
    assert len(stored(path, "/job_2/taskstats_default")) == 7
    assert len(stored(other, "/job_2/taskstats_default")) == 3


def test_a_failure_to_close_one_table_leaves_no_file_open(tmp_path, monkeypatch):
    path = tmp_path / "x.hdf5"
    output = opened(path)
    close, failures = calls.o_close, [tables.HDF5ExtError("a failure")]

    def failing(identifier):
        close(identifier)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(calls, "o_close", failing)
    with pytest.raises(OutputUnavailable, match="a failure"):
        output.write([b for job in range(5) for b in numbers(job, 2)])
    assert output.file.close()
    assert descriptors(path) == []


@pytest.mark.parametrize("complevel", [0, 5])
def test_rows_of_big_endian_numbers_are_written_and_their_last_chunk_can_be_restored(tmp_path, complevel, monkeypatch):
    path = tmp_path / "x.hdf5"
    dtype = np.dtype([("a", "i1"), ("timestamp", ">i8"), ("x", ">i8"), ("s", "S3")])
    with tables.open_file(str(path), "w") as file:
        filters = tables.Filters(complevel)
        file.create_table("/job_1", "x_default", dtype, filters=filters, createparents=True, byteorder="big").append(
            np.array([(1, 2, 3, b"abc")], dtype.newbyteorder("="))
        )
    schema = Schema("x_default", "job", [Field("x", "count", "gauge")])
    rows = batch(table(schema, (1, {"x": 5})))
    output = opened(path)
    with monkeypatch.context() as broken:
        append = Dataset.append
        broken.setattr(Dataset, "append", lambda self, rows: (append(self, rows), 1 // 0))
        with pytest.raises(OutputUnavailable, match="by zero"):
            output.write([rows])
    output.write([rows])
    output.close()
    found = stored(path, "/job_1/x_default")
    assert found["x"].tolist() == [3, 5] and found["s"].tolist() == [b"abc", b""]


def test_forms_of_tables_are_forgotten_beyond_a_number_of_columns(tmp_path, monkeypatch):
    monkeypatch.setattr(libhdf5, "MAX_COLUMNS", 100)
    path = tmp_path / "x.hdf5"
    output = opened(path)
    schemas = [Schema(f"x{n}_default", "job", [Field(f"c{n}", "count", "gauge")]) for n in range(40)]
    for _ in range(2):
        output.write([batch(table(schema, (1, {schema.names[0]: 5}))) for schema in schemas])
        assert output.file._file._columns <= 100 + 5 and len(output.file.jobs._known) < 30
    output.close()
    assert {len(stored(path, f"/job_1/{schema.name}")) for schema in schemas} == {2}
