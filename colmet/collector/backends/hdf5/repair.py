"""Verification of an HDF5 file after an interrupted write, and salvage of the readable rows of a damaged one."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from collections.abc import Callable, Container, Iterator
from typing import Any, NamedTuple

import numpy as np

from colmet.collector.backends.hdf5.chunk_backup import KeptTails
from colmet.collector.backends.hdf5.h5file import Tails, Undo
from colmet.collector.backends.hdf5.h5table import (
    COPY_BYTES,
    REPLACED,
    Damaged,
    column,
    create_table,
    is_filtered,
    last_chunk,
    reading,
    table_names,
    tail_is,
    temporary,
    title,
)
from colmet.collector.backends.hdf5.libhdf5 import ForeignDataError
from colmet.collector.backends.hdf5.library import (
    cause,
    close_library,
    is_of_system,
    open_library,
    opened_library,
    tables,
)
from colmet.collector.columns import names_of
from colmet.common.errors import OutputUnavailable

log = logging.getLogger(__name__)

# Last rows of a table touched by a burst, all of them read; earlier rows are only sampled.
READ_BYTES = 256 << 20
# HDF5 indexes chunks in nodes of up to 64, and splits full nodes in halves: each one holds at least half of that.
PROBE_CHUNKS = 32


# Progress callback: ("at", name) before reading an object on which HDF5 may crash, ("read", name) after it.
ReportProgress = Callable[[str, str], None]


def _silent(kind: str, name: str) -> None:
    pass


def verify(path: str, expected: int | None, undo: Undo, tails: Tails, report: ReportProgress = _silent) -> None:
    """Check that all tables exist and are readable, and check the rows of tables touched by a burst.

    Args:
        path: of the file.
        expected: number of its tables, without those created by the burst; None if unknown.
        undo: tables touched by the burst, with their previous row counts; None for tables created by it.
        tails: checksums of their last chunks.
        report: progress callback.

    Raises:
        Damaged: the file is not sound.
        OutputUnavailable: a system error prevents reading the file.
    """
    with reading(path):
        kept = KeptTails(path, tails)
        with opened_library(path, "r") as file:
            found = 0
            for name in table_names(file):
                report("at", name)
                found += 1 if undo.get(name, 0) is not None else 0
                with contextlib.suppress(ForeignDataError):  # the collector writes nothing there, and says so
                    _verify_table(file.get_node(name), undo.get(name, -1))
            for name, rows in undo.items():
                if rows is None:
                    continue
                report("at", name)
                replaced = temporary(name, REPLACED)  # present if the burst was replacing it with a wider one
                if name not in file:
                    if replaced not in file:
                        raise Damaged(f"{path}: {name} is not there")
                    found += 1
                table = file.get_node(replaced if replaced in file else name)
                _verify_rows(table, name, rows, tails.get(name), kept)
            if expected is not None and found != expected:
                raise Damaged(f"{path}: has {found} tables, {expected} were written")


def _verify_table(table: Any, rows: int | None) -> None:
    """Check that a table opens with a readable last row."""
    if isinstance(table, tables.UnImplemented):
        raise Damaged(f"{table._v_pathname} cannot be opened")
    if rows == -1 and isinstance(table, tables.Table) and table.nrows:
        table.read(table.nrows - 1, table.nrows)


def _verify_rows(table: Any, name: str, rows: int, tail: int | None, kept: KeptTails) -> None:
    """Check the number and the job of a table's rows, without the last ones if they are in the backup."""
    if not isinstance(table, tables.Table) or table.nrows < rows:
        raise Damaged(f"{name} has fewer than the {rows} rows that were written")
    if tail is not None and not tail_is(table, rows, tail):
        if kept.get(name) is None:
            raise Damaged(f"the last rows of {name} are others than those written")
        rows = last_chunk(table, rows)
    for part in _parts(table, rows):
        if not _written(table, name, part).all():
            raise Damaged(f"{name} has rows that were never written to it")


def _parts(table: Any, rows: int) -> Iterator[Any]:
    """Yield the first `rows` rows of a table in parts; the beginning of a very long table is only sampled."""
    size = int(table.dtype.itemsize)
    whole = max(0, rows - READ_BYTES // size)
    for row in range(0, whole, PROBE_CHUNKS * int(table.chunkshape[0])):
        yield table.read(row, row + 1)
    step = max(1, COPY_BYTES // size)
    for start in range(whole, rows, step):
        yield table.read(start, min(start + step, rows))


def _written(table: Any, name: str, rows: Any) -> Any:
    """Return a mask of the rows that can have been written to this table.

    Rows of other jobs and empty rows cannot: for a lost chunk HDF5 returns zeros or missing values. (0.6 wrote rows
    without job and name, but with values.)
    """
    mask = np.ones(len(rows), dtype=bool)
    names = names_of(rows.dtype)
    job = name.split("/")[1].partition("_")[2]
    if "job_id" in names and rows.dtype["job_id"].kind == "i" and job.isdigit():
        mask &= (rows["job_id"] == int(job)) | (rows["job_id"] == -1)
    if "metric_backend" in names and rows.dtype["metric_backend"].kind == "S":
        empty = np.zeros(2, dtype=rows.dtype)
        for column_name in table.colnames:
            empty[column_name][1] = table.coldescrs[column_name].dflt
        nothing = {empty[0].tobytes(), empty[1].tobytes()}
        for row in np.flatnonzero(mask & (rows["metric_backend"] == b"")):
            mask[row] = rows[row].tobytes() not in nothing
    return mask


class Salvaged(NamedTuple):
    """Counts of tables and rows read from a damaged file, and of lost ones."""

    tables: int
    rows: int
    lost_tables: int
    lost_rows: int


def salvage(
    source: str,
    target: str,
    kept_by: str,
    expected: int | None,
    undo: Undo,
    tails: Tails,
    skip: Container[str] = (),
    only: Container[str] | None = None,
    report: ReportProgress = _silent,
) -> Salvaged:
    """Copy the readable rows of a damaged file to a new one, and sync that to disk.

    Args:
        source: the damaged file; a truncated one is extended.
        target: the new file; an existing one is replaced.
        kept_by: path of the damaged file at the time of its chunk backup.
        expected: as for `verify`.
        undo: tables touched by the last burst, with the number of rows to copy; None for tables created by it.
        tails: as for `verify`.
        skip: unread groups and tables; "" for the whole file.
        only: the tables to read; None for all.
        report: progress callback.

    Raises:
        OutputUnavailable: the target cannot be written, or a system error prevents reading the source.
    """
    if os.path.lexists(target):
        os.unlink(target)
    done = [0, 0, 0, 0]
    seen: set[str] = set()
    kept = KeptTails(kept_by, tails)
    try:
        with opened_library(target, "w") as new:
            report("at", "")
            old = None if "" in skip else _open_damaged(source)
            if old is not None:
                for path in _names(old, undo, skip, report):
                    seen.add(path.replace(f"/{REPLACED}", "/"))
                    if path in skip or (only is not None and path not in only):
                        _count_lost(path.replace(f"/{REPLACED}", "/"), undo, done, "HDF5 crashes on it")
                        continue
                    report("at", path)
                    _copy_table(old, path, new, undo, kept, done)
                    report("read", path)
                _close_damaged(old)
        with open(target, "rb") as file:
            os.fsync(file.fileno())
    except Exception as err:  # after a failure of HDF5, PyTables raises anything
        if os.path.lexists(target):
            os.unlink(target)
        raise OutputUnavailable(f"cannot rebuild {source} as {target}: {cause(err)}") from err
    for path, rows in undo.items():
        if rows and path not in seen:
            done[3] += rows
            log.error("rows lost: table=%s rows=%d of=%d", path, rows, rows)
    if expected is not None:
        done[2] = max(done[2], expected - done[0])
    return Salvaged(*done)


def _open_damaged(path: str) -> Any:
    """Open a damaged file; return None if nothing is readable."""
    _lengthen(path)
    try:
        return open_library(path, "r")
    except Exception as err:  # on a damaged file, PyTables raises anything
        if is_of_system(err):
            raise
        log.error("nothing can be read from the damaged file: path=%s cause=%s", path, cause(err))
        return None


def _close_damaged(file: Any) -> None:
    try:
        close_library(file)
    except Exception as err:  # noqa: BLE001 - all readable rows were read
        log.info("damaged file not closed cleanly: cause=%s", cause(err))


def _lengthen(path: str) -> None:
    """Extend a truncated file to the length in its header: HDF5 opens no shorter one.

    Source: HDF5 File Format Specification, superblock versions 0 and 1 (those that PyTables writes).
    """
    with open(path, "r+b") as file:
        head = file.read(56)
        if len(head) < 56 or head[:8] != b"\x89HDF\r\n\x1a\n" or head[8] > 1 or head[13] != 8:
            return
        end = struct.unpack_from("<Q", head, 40 if head[8] == 0 else 44)[0]
        size = os.fstat(file.fileno()).st_size
        if size < end <= size + (1 << 40):
            os.ftruncate(file.fileno(), end)


def _names(file: Any, undo: Undo, skip: Container[str], report: ReportProgress) -> list[str]:
    """Return the tables of a damaged file, as far as they can be listed."""
    names = []
    report("at", "/")
    jobs = [] if "/" in skip else [name for name in _children(file, "/") if name.startswith("job_")]
    for job in jobs:
        if f"/{job}" not in skip:
            report("at", f"/{job}")
            names += [f"/{job}/{name}" for name in _children(file, f"/{job}")]
    # if a burst was replacing a table with a wider one, the former one is unchanged
    former = [name for name in names if name.rsplit("/", 1)[1].startswith(REPLACED) and name not in undo]
    others = {name.replace(f"/{REPLACED}", "/") for name in former}
    return former + [name for name in names if not name.rsplit("/", 1)[1].startswith("_") and name not in others]


def _children(file: Any, group: str) -> list[str]:
    try:
        return list(file.get_node(group, classname="Group")._v_children)
    except Exception as err:  # on a damaged file, PyTables raises anything
        if is_of_system(err):
            raise
        log.error("group of the damaged file cannot be read: group=%s cause=%s", group, cause(err))
        return []


def _count_lost(name: str, undo: Undo, done: list[int], why: str) -> None:
    done[2] += 1
    done[3] += undo.get(name) or 0
    log.error("table lost: table=%s cause=%s", name, why)


def _copy_table(old: Any, path: str, new: Any, undo: Undo, kept: KeptTails, done: list[int]) -> None:
    """Copy the readable rows of one table; `done` counts tables, rows, lost tables and lost rows."""
    name = path.replace(f"/{REPLACED}", "/")
    if name in undo and undo[name] is None:
        return
    try:
        table = old.get_node(path)
        if not isinstance(table, tables.Table):
            raise Damaged("it is no table")
        # without the table's own defaults: they may be damaged
        columns = {n: column(table.dtype[n], i) for i, n in enumerate(table.colnames)}
        there = min(int(table.nrows), _most_rows(table))
        wanted = undo.get(name)
        rows = there if wanted is None else wanted
        readable = min(rows, there)
        tail = kept.get(name)
        if tail is not None:
            readable = min(readable, last_chunk(table, rows))
        group, leaf = name.rsplit("/", 1)
        heading = table.title or title(group[len("/job_") :])
        target = create_table(new, group, leaf, columns, heading, table.filters)
    except Exception as err:  # on a damaged file, PyTables raises anything
        if is_of_system(err):
            raise
        _count_lost(name, undo, done, cause(err))
        return
    try:
        table.attrs._f_copy(target)
    except Exception as err:  # noqa: BLE001 - as above
        log.error("attributes lost: table=%s cause=%s", name, cause(err))
    copied = 0
    try:
        for part in _readable(table, readable):
            good = part[_written(table, name, part)]
            target.append(good)
            copied += len(good)
        if tail is not None:
            target.append(np.frombuffer(tail, table.dtype))
            copied += len(tail) // int(table.dtype.itemsize)
    except Exception as err:  # as above
        if is_of_system(err):
            raise
        log.error("table cannot be read on: table=%s cause=%s", name, cause(err))
    target.flush()
    target._f_close()
    done[0] += 1
    done[1] += copied
    if copied < rows:
        done[3] += rows - copied
        log.error("rows lost: table=%s rows=%d of=%d", name, rows - copied, rows)


def _most_rows(table: Any) -> int:
    """Return the maximum row count of a table in a file of this size: its own count may be damaged, too.

    Source: HDF5 File Format Specification, version 1 B-trees: for each chunk of rows 32 bytes.
    """
    size = int(table._v_file.get_filesize())
    rows = size // 32 * int(table.chunkshape[0])
    return rows if is_filtered(table) else min(rows, size // int(table.dtype.itemsize))


def _readable(table: Any, rows: int) -> Iterator[Any]:
    """Yield the readable rows of a damaged table, chunk by chunk if a larger part is unreadable."""
    chunk = int(table.chunkshape[0])
    step = max(1, COPY_BYTES // (chunk * int(table.dtype.itemsize))) * chunk
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        part = _read(table, start, stop)
        if part is not None:
            yield part
            continue
        for first in range(start, stop, chunk):
            part = _read(table, first, min(first + chunk, stop))
            if part is not None:
                yield part


def _read(table: Any, start: int, stop: int) -> Any:
    try:
        return table.read(start, stop)
    except OSError:
        raise
    except Exception:  # noqa: BLE001 - as above; the lost rows are counted
        return None
