"""Reading of all tables of an open file, in the process that reads it; see `colmet.stored.reading_process`.

The HDF5 library itself finds and reads them: PyTables needs 5 ms to open a table, and a file has those of thousands of
jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from colmet.collector.backends.hdf5.libhdf5 import Dataset
from colmet.stored.rows import BLOCK_BYTES, END_S, HEADER, LibraryTables, Part, kinds_of, valid_rows

PIECE_BYTES = 64 << 10  # of a table; at least a chunk of the file
HOUR_S = 3600


def pieces_of(file: Any, columns: Mapping[str, Collection[str]], after: Sequence[Any], seconds: float) -> list[Any]:
    """Return the intervals of the pieces of tables, for as many tables as the time allows, at least one.

    `after` are job and name of the last table of the answer before; empty for the first one.

    Returns:
        A list for each table: job, table, columns, rows of a piece, bytes of a row, first and last times of the pieces,
        hours with rows and the number of rows of each; then what `_each_table` returns.
    """
    tables = LibraryTables(file)
    found: list[Any] = []

    def read(job: int, name: str) -> int:
        table = tables.find(job, name)
        if table is None or not table.rows:
            return 0
        row_bytes = int(table.form.dtype.itemsize)
        there = [one for one in kinds_of(table.form) if one in columns[name] and one not in HEADER]
        step = max(table.form.chunk_rows, PIECE_BYTES // row_bytes, 1)
        *intervals, nameless = _intervals(table, step)
        found.append([job, name, there, step, row_bytes, *intervals])
        return int(nameless)

    return [found, *_each_table(tables, after, seconds, columns.__contains__, read)]


def _intervals(table: Dataset, step: int) -> list[Any]:
    """Return first and last times of pieces, hours, their numbers of rows, and the number of rows without a time."""
    count = table.rows
    at_once = max(1, (4 << 20) // (step * int(table.form.dtype.itemsize))) * step
    firsts, lasts, hours = [], [], [np.empty(0, np.int64)]
    nameless = 0
    for start in range(0, count, at_once):
        block = table.read(start, min(start + at_once, count))
        times = block["timestamp"].astype(np.int64)
        keep = valid_rows(block)
        nameless += int(len(keep) - keep.sum())
        hours.append(times[keep] // HOUR_S)
        begins = np.arange(0, len(times), step)
        firsts.append(np.minimum.reduceat(np.where(keep, times, END_S), begins))
        lasts.append(np.maximum.reduceat(np.where(keep, times, -1), begins))
    each, counts = np.unique(np.concatenate(hours), return_counts=True)
    return [np.concatenate(firsts), np.concatenate(lasts), each, counts, nameless]


def between_of(file: Any, parts: Sequence[Sequence[Any]], since: int, until: int) -> list[Any]:
    """Return the rows of an interval in parts of tables: job, table and `TableRows` of each part with rows.

    Each part is job, table, first row, end, and the wanted columns.
    """
    found = []
    tables = LibraryTables(file)
    for job, name, start, end, columns in parts:
        table = tables.find(job, name)
        if table is None:
            raise ValueError(f"/job_{job}/{name} has gone meanwhile")
        block = table.read(start, min(end, table.rows))
        times = block["timestamp"]
        keep = (block["hostname"] != b"") & (times >= since) & (times <= until)
        if not keep.any():
            continue
        part = Part(table, columns, 0)
        part.add(block[keep])
        found.append([job, name, part.rows()])
    return found


def times_of(file: Any, host: bytes | None, after: Sequence[Any], seconds: float) -> list[Any]:
    """Return the times of the rows of tables, for as many tables as the time allows, at least one; see `pieces_of`.

    Returns:
        A list for each table and host: job, table, host, and the times; then what `_each_table` returns.
    """
    tables = LibraryTables(file)
    found: list[Any] = []

    def read(job: int, name: str) -> int:
        table = tables.find(job, name)
        if table is None:
            return 0
        nameless = 0
        parts: dict[bytes, list[npt.NDArray[np.int64]]] = {}
        step = max(1, BLOCK_BYTES // int(table.form.dtype.itemsize))
        for start in range(0, table.rows, step):
            block = table.read(start, min(start + step, table.rows))
            keep = valid_rows(block)
            nameless += int(len(keep) - keep.sum())
            for one, times in _times_by_host(block[keep]):
                if host in (None, one):
                    parts.setdefault(one, []).append(times)
        found.extend([job, name, one, np.concatenate(times)] for one, times in parts.items())
        return nameless

    return [found, *_each_table(tables, after, seconds, lambda _: True, read)]


def _times_by_host(block: npt.NDArray[Any]) -> Iterator[tuple[bytes, npt.NDArray[np.int64]]]:
    hosts, times = block["hostname"], block["timestamp"].astype(np.int64)
    if len(hosts) and (hosts == hosts[0]).all():  # as nearly always
        yield bytes(hosts[0]), times
        return
    names, which = np.unique(hosts, return_inverse=True)
    for n, name in enumerate(names.tolist()):
        yield name, times[which == n]


def _each_table(
    tables: LibraryTables,
    after: Sequence[Any],
    seconds: float,
    is_wanted: Callable[[str], bool],
    read: Callable[[int, str], int],
) -> list[Any]:
    """Read the tables that follow one, by `read`, which returns a number of rows without a host or a valid time.

    Returns:
        Job and name of the last read table, empty at the end; the share of the jobs read so far; the sum of these
        numbers of rows.
    """
    until = time.monotonic() + seconds
    done = last = (int(after[0]), str(after[1])) if after else None
    nameless = 0
    for job, name in tables.names(last):
        if (job, name) == last or not is_wanted(name):
            continue
        if done is not None and done != last and time.monotonic() > until:
            return [list(done), tables.share_before(job), nameless]
        nameless += read(job, name)
        done = job, name
    return [[], 1.0, nameless]
