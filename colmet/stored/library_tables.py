"""The tables of an open file, read by the HDF5 library itself, in the process that reads it; see `colmet.stored.rows`.

PyTables needs 5 ms to open a table, and a file has those of thousands of jobs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from colmet.collector.backends.hdf5.libhdf5 import Dataset, ForeignDataError, NotFlatError, OpenFile, TableForm
from colmet.collector.backends.hdf5.library import BACKEND_VERSION
from colmet.common.errors import is_later, later_form
from colmet.common.schema import NAME
from colmet.stored.rows import check_size, has_header

VERSION = b"backend_version"
JOB = re.compile(r"job_(\d{1,19})", re.ASCII)  # a job's group


class LibraryTables:
    """The tables of jobs in a file that PyTables has opened.

    Args:
        file: the open one.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._library = OpenFile(file.root._v_objectid)
        self._file_bytes = os.stat(file.filename).st_size
        self._has_header: dict[TableForm, bool] = {}

    def names(self, begin: tuple[int, str] | None = None) -> Iterator[tuple[int, str]]:
        """Yield jobs and names of tables, sorted, from `begin` on; each group is listed when its turn comes."""
        for name in filter(JOB.fullmatch, list(self._file.root._v_links)):
            self._library.check_own(f"/{name}".encode())
        groups = [match for match in map(JOB.fullmatch, list(self._file.root._v_groups)) if match]
        for job, group in sorted([(int(match[1]), match[0]) for match in groups]):
            if begin is not None and job < begin[0]:
                continue
            for name in self._library.names(f"/{group}".encode()):
                table = name.decode("utf-8", "surrogateescape")
                if begin is None or (job, table) >= begin:
                    yield job, table

    def find(self, job: int, name: str) -> Dataset | None:
        """Return a table with times and hosts; None if there is none of this name.

        Raises:
            ValueError: it is of a later version, or claims an impossible size.
            ForeignDataError: it is a link, or its rows are in other files.
        """
        group = f"/job_{job}"
        path = f"{group}/{name}"
        if not NAME.fullmatch(name) or not self._library.exists(group.encode()):
            return None
        if not self._library.is_group(group.encode()):
            return None
        if not self._library.exists(path.encode()):
            return None
        try:
            table = self._library.find(path.encode())
        except ForeignDataError:
            raise
        except NotFlatError:
            return None
        if table.form not in self._has_header:
            self._has_header[table.form] = has_header(table.form)
        if not self._has_header[table.form]:
            return None
        version = table.number(VERSION)
        if version is not None and is_later(version, BACKEND_VERSION):
            raise ValueError(later_form(path, version, BACKEND_VERSION, "read the file with that one"))
        check_size(path, table.rows, int(table.form.dtype.itemsize), self._file_bytes)
        return table
