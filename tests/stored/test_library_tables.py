"""Tables are those of the file itself: a link leads to no other file."""

from __future__ import annotations

import h5py
import pytest

from colmet.collector.backends.hdf5.libhdf5 import ForeignDataError
from colmet.collector.backends.hdf5.library import opened_library
from colmet.common.schema import Batch, Sample, Table
from colmet.common.tables import schemas
from colmet.stored.library_tables import LibraryTables
from tests.support.hdf5_writer import write_once

NAME = "cgroup_default"
SCHEMA = schemas()[NAME]
BATCH = Batch("node-1", 5, 1, 10**18, (7,), (Table.from_samples(SCHEMA, 10**18, [Sample(7, {"cpu_usage": 1})]),))


@pytest.mark.parametrize("target", ["/job_7", "/job_7/cgroup_default"])
def test_a_link_to_another_file_is_refused(tmp_path, target):
    write_once(tmp_path / "other.hdf5", [BATCH])
    path = tmp_path / "links.hdf5"
    with h5py.File(path, "w") as file:
        file[target] = h5py.ExternalLink("other.hdf5", target)
    with opened_library(str(tmp_path / "other.hdf5"), "r") as file:
        assert LibraryTables(file).find(7, NAME) is not None
    with opened_library(str(path), "r") as file, pytest.raises(ForeignDataError, match=f"{target} is a link"):
        LibraryTables(file).find(7, NAME)
