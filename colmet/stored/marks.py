"""Reading of the times of all rows of an HDF5 file, in the process that reads it; see `colmet.stored.rows`.

Tables are read by the HDF5 library itself: PyTables needs 5 ms to open one, and a file has those of thousands of jobs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from colmet.collector.backends.hdf5 import thin_times
from colmet.collector.backends.hdf5.libhdf5 import Dataset, NotFlatError, OpenFile, TableForm
from colmet.collector.backends.hdf5.library import BACKEND_VERSION
from colmet.common.errors import is_later, later_form
from colmet.common.schema import NAME
from colmet.stored.rows import BLOCK_BYTES, JOB, Marks, check_size, has_header, valid_rows

VERSION = b"backend_version"


def marks_of(
    file: Any, whole: Collection[str], host: bytes | None, begin: Sequence[Any] | None, seconds: float
) -> Marks:
    """Return the times of the rows of all tables in a file, for as many tables as the time allows, at least one.

    Args:
        file: opened.
        whole: tables of the node itself to read whole. They are read first, and alone: rows they report are in the
            other tables by then.
        host: the only host to read; None for all.
        begin: job and table to begin with, from the answer before; None for the first answer.
        seconds: time limit.

    Raises:
        ValueError: a table is of a later version, or claims an impossible size.
    """
    until = time.monotonic() + seconds
    reader = _TableReader(file, host)
    if begin is None:
        for name in sorted(whole):
            reader.read(0, name, True)
        if reader.found.times:
            return reader.marks([0, ""])
    after = None if begin is None else (int(begin[0]), str(begin[1]))
    read = 0
    for job, name in _names(file, reader.library, after):
        if job == 0 and name in whole:
            continue
        if read and time.monotonic() > until:
            return reader.marks([job, name])
        reader.read(job, name, False)
        read += 1
    return reader.marks(None)


def _names(file: Any, library: OpenFile, begin: tuple[int, str] | None) -> Iterator[tuple[int, str]]:
    """Yield jobs and tables, sorted; each group is listed when its turn comes."""
    groups = [match for match in map(JOB.fullmatch, list(file.root._v_groups)) if match]
    for job, group in sorted([(int(match[1]), match[0]) for match in groups]):
        if begin is not None and job < begin[0]:
            continue
        for name in library.names(f"/{group}".encode()):
            table = name.decode("utf-8", "surrogateescape")
            if begin is None or (job, table) >= begin:
                yield job, table


class _TableReader:
    """Reads tables of an open file.

    Attributes:
        found: what was read.
        library: the file.
    """

    def __init__(self, file: Any, host: bytes | None) -> None:
        self._file = file
        self._host = host
        self._size = os.stat(file.filename).st_size
        self._nameless = 0
        self._has_header: dict[TableForm, bool] = {}
        self.library = OpenFile(file.root._v_objectid)
        self.found = Marks([], [], None, 0)

    def marks(self, following: list[Any] | None) -> Marks:
        """Return what was read."""
        return self.found._replace(following=following, nameless=self._nameless)

    def read(self, job: int, name: str, whole: bool) -> None:
        """Add the content of a table, if there is one with times and hosts."""
        path = f"/job_{job}/{name}"
        if not NAME.fullmatch(name) or not self.library.exists(f"/job_{job}".encode()):
            return
        if not self.library.exists(path.encode()):
            return
        try:
            table = self.library.find(path.encode())
        except NotFlatError:
            return
        if table.form not in self._has_header:
            self._has_header[table.form] = has_header(table.form)
        if not self._has_header[table.form]:
            return
        version = table.number(VERSION)
        if version is not None and is_later(version, BACKEND_VERSION):
            raise ValueError(later_form(path, version, BACKEND_VERSION, "read the file with that one"))
        self._mark(table, job, name, whole)
        before = thin_times.sampled(self._file, job, name)
        self.found.times.extend(
            (job, name, host, times) for host, times in before if self._host is None or host == self._host
        )

    def _mark(self, table: Dataset, job: int, name: str, whole: bool) -> None:
        """Add the rows of a table."""
        row_bytes = int(table.form.dtype.itemsize)
        check_size(f"/job_{job}/{name}", table.rows, row_bytes, self._size)
        step = max(1, BLOCK_BYTES // row_bytes)
        parts: dict[bytes, list[npt.NDArray[np.int64]]] = {}
        for start in range(0, table.rows, step):
            block = table.read(start, min(start + step, table.rows))
            keep = valid_rows(block)
            self._nameless += int(len(keep) - keep.sum())
            if self._host is not None:
                keep &= block["hostname"] == self._host
            if not keep.all():
                block = block[keep]
            for host, times in _by_host(block):
                parts.setdefault(host, []).append(times)
            if whole:
                self.found.rows.extend((name, {one: row[one].item() for one in row.dtype.names}) for row in block)
        self.found.times.extend((job, name, host, np.concatenate(some)) for host, some in parts.items())


def _by_host(block: npt.NDArray[Any]) -> Iterator[tuple[bytes, npt.NDArray[np.int64]]]:
    """Yield the hosts of rows, and the times of each."""
    hosts, times = block["hostname"], block["timestamp"].astype(np.int64)
    if len(hosts) and (hosts == hosts[0]).all():  # as nearly always
        yield bytes(hosts[0]), times
        return
    names, which = np.unique(hosts, return_inverse=True)
    for n, name in enumerate(names.tolist()):
        yield name, times[which == n]
