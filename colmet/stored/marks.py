"""Reading of the times of all rows of an HDF5 file, in the process that reads it; see `colmet.stored.rows`."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from colmet.stored.library_tables import LibraryTables
from colmet.stored.rows import BLOCK_BYTES, Marks, valid_rows


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
    for job, name in reader.tables.names(after):
        if job == 0 and name in whole:
            continue
        if read and time.monotonic() > until:
            return reader.marks([job, name])
        reader.read(job, name, False)
        read += 1
    return reader.marks(None)


class _TableReader:
    """Reads tables of an open file.

    Attributes:
        found: what was read.
        tables: those of the file.
    """

    def __init__(self, file: Any, host: bytes | None) -> None:
        self._host = host
        self._nameless = 0
        self.tables = LibraryTables(file)
        self.found = Marks([], [], None, 0)

    def marks(self, following: list[Any] | None) -> Marks:
        """Return what was read."""
        return self.found._replace(following=following, nameless=self._nameless)

    def read(self, job: int, name: str, whole: bool) -> None:
        """Add the content of a table, if there is one with times and hosts."""
        table = self.tables.find(job, name)
        if table is None:
            return
        step = max(1, BLOCK_BYTES // int(table.form.dtype.itemsize))
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
