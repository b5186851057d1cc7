"""Reading of pieces of tables of an HDF5 file, in the process that reads it; see `colmet.stored.rows`."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from colmet.collector.backends.hdf5.libhdf5 import Dataset
from colmet.stored.library_tables import LibraryTables
from colmet.stored.rows import END_S, HEADER, TableRows, kinds_of, valid_rows

PIECE_BYTES = 64 << 10  # of a table; at least a chunk of the file
HOUR_S = 3600


def pieces_of(file: Any, columns: Mapping[str, Collection[str]], after: Sequence[Any], seconds: float) -> list[Any]:
    """Return the intervals of the pieces of tables, for as many tables as the time allows, at least one.

    Args:
        file: opened.
        columns: the wanted ones, by table.
        after: job and name of the last table of the answer before; empty for the first one.
        seconds: time limit.

    Returns:
        A list for each table: job, table, columns, rows of a piece, bytes of a row, first and last times of the pieces,
        hours with rows and the number of rows of each; then job and name of the last table, the number of following
        ones, and the number of rows without a host or a valid time.
    """
    until = time.monotonic() + seconds
    tables = LibraryTables(file)
    last = (int(after[0]), str(after[1])) if after else None
    left = [one for one in tables.names(last) if one[1] in columns and one != last]
    found: list[Any] = []
    done = nameless = 0
    for job, name in left:
        done += 1
        table = tables.find(job, name)
        if table is not None and table.rows:
            row_bytes = int(table.form.dtype.itemsize)
            there = [one for one in kinds_of(table.form) if one in columns[name] and one not in HEADER]
            step = max(table.form.chunk_rows, PIECE_BYTES // row_bytes, 1)
            *intervals, odd = _intervals(table, step)
            nameless += odd
            found.append([job, name, there, step, row_bytes, *intervals])
        if time.monotonic() > until:
            break
    return [found, list(left[done - 1]) if left else [], len(left) - done, nameless]


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

    Args:
        file: opened.
        parts: job, table, first row, end, and the wanted columns.
        since: seconds since 1970, inclusive.
        until: seconds since 1970, inclusive.
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
        block = block[keep]
        hosts: dict[bytes, int] = {}
        numbers = [hosts.setdefault(host, len(hosts)) for host in block["hostname"].tolist()]
        values = {column: _column(block[column]) for column in columns}
        rows = TableRows(block["timestamp"].astype(np.int64), np.array(numbers, np.int64), values, list(hosts), 0)
        found.append([job, name, rows])
    return found


def _column(values: Any) -> Any:
    """Return a column with the types of `TableRows`."""
    if values.dtype.kind == "S":
        width = max(2, int(np.char.str_len(values).max(initial=0)))
        return values.astype(f"S{width}")
    if values.dtype.kind == "f":
        return np.where(values == -1, np.nan, values.astype(np.float64))
    return values.astype(np.int64)
