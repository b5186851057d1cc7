"""Removal of rows of jobs from a file that is no longer written, in the process that reads it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from colmet.collector.backends.hdf5.checkpoint import remove_tails
from colmet.collector.backends.hdf5.h5file import lock
from colmet.collector.backends.hdf5.h5table import COPY_BYTES, group_path
from colmet.collector.backends.hdf5.library import cause, is_of_system, opened_library, tables
from colmet.common.errors import ColmetError, OutputUnavailable
from colmet.common.host.files import copy_owner, make_private, sync_directory
from colmet.stored.reading_process import Reader, Unreadable, limit_time

UNFINISHED = ".forgetting"  # behind the name of a file, while its copy is made

Intervals = Mapping[int, Sequence[tuple[int, int]]]  # of a job: first and last time, seconds since 1970


class Removed(NamedTuple):
    """What was removed."""

    jobs: Sequence[int]  # with rows in the file
    rows: int


class Remover:
    """Removes rows in a process of its own: the library can crash on a file of others. A context manager."""

    def __init__(self) -> None:
        self._reader = Reader(rows_of_jobs, remove_rows)

    def count(self, path: str, jobs: Intervals) -> Removed:
        """Return the jobs with rows in a file in these intervals, and the number of rows; ColmetError as `remove`."""
        return self._ask(path, partial(rows_of_jobs, jobs=dict(jobs)))

    def remove(self, path: str, jobs: Intervals) -> Removed:
        """Remove the rows of jobs in some intervals: a copy without them replaces the file, when it is on disk.

        Raises:
            ColmetError: another process writes the file, it cannot be read, or the disk is full; it stays as it is.
        """
        try:
            return self._ask(path, partial(remove_rows, jobs=dict(jobs)))
        except ColmetError:
            with contextlib.suppress(FileNotFoundError):  # of a process that has crashed
                os.unlink(path + UNFINISHED)
            raise

    def _ask(self, path: str, read: partial[tuple[list[int], int]]) -> Removed:
        try:
            return Removed(*self._reader.ask(path, read))
        except Unreadable as err:
            raise ColmetError(str(err)) from err

    def __enter__(self) -> Remover:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._reader.close()


def rows_of_jobs(file: Any, jobs: Intervals) -> tuple[list[int], int]:
    """Return the jobs with rows in an open file in these intervals, and the number of rows."""
    found = {job: _count(file, job, intervals) for job, intervals in jobs.items() if group_path(job) in file}
    return sorted([job for job, count in found.items() if count]), sum(found.values())


def remove_rows(file: Any, jobs: Intervals) -> tuple[list[int], int]:
    """Remove the rows of jobs in some intervals from the file that is open; see `Remover.remove`.

    Raises:
        ConfigError: another process writes the file.
        OutputUnavailable: an error of the system, such as a full disk; the file stays as it is.
    """
    removed = rows_of_jobs(file, jobs)
    if not removed[1]:
        return removed
    path = str(file.filename)
    new = path + UNFINISHED
    descriptor = lock(path)
    try:
        status = os.fstat(descriptor)
        make_private(new)
        with opened_library(new, "w") as copy:
            _copy(file, copy, jobs)
        os.chmod(new, status.st_mode & 0o7777)
        copy_owner(new, status)
        os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))  # --hdf5-keep goes by it
        with open(new, "rb") as written:
            os.fsync(written.fileno())
        os.replace(new, path)
        remove_tails(path)
        sync_directory(os.path.dirname(os.path.abspath(path)))
    except Exception as err:
        if is_of_system(err):
            raise OutputUnavailable(f"cannot write {new}: {cause(err)}") from err
        raise
    finally:
        if os.path.lexists(new):
            os.unlink(new)
        os.close(descriptor)
    return removed


def _copy(old: Any, new: Any, jobs: Intervals) -> None:
    old.root._v_attrs._f_copy(new.root)
    of_group = {group_path(job)[1:]: intervals for job, intervals in jobs.items()}
    for name in list(old.root._v_children):
        node = old.get_node(f"/{name}")
        if name not in of_group or not isinstance(node, tables.Group):
            node._f_copy(new.root, recursive=True)
            continue
        for table in list(node._v_children):
            _copy_table(old.get_node(f"/{name}/{table}"), new, f"/{name}", partial(_rows_within, of_group[name]))
        if f"/{name}" in new:
            node._v_attrs._f_copy(new.get_node(f"/{name}"))


def _copy_table(table: Any, new: Any, group: str, removed: Callable[[Any], Any]) -> None:
    """Copy a table without the rows to be removed; one without rows is left out."""
    limit_time()
    target = None
    step = max(1, COPY_BYTES // int(table.dtype.itemsize))
    for start in range(0, int(table.nrows), step):
        rows = table.read(start, start + step)
        rows = rows[~removed(rows)]
        if not len(rows):
            continue
        if target is None:
            parent = new.get_node(group) if group in new else new.create_group("/", group[1:])
            target = table.copy(parent, table.name, stop=0)
        target.append(rows)
    if target is not None:
        target.flush()


def _count(file: Any, job: int, intervals: Sequence[tuple[int, int]]) -> int:
    found = 0
    for table in file.iter_nodes(group_path(job), "Table"):
        step = max(1, COPY_BYTES // int(table.dtype.itemsize))
        for start in range(0, int(table.nrows), step):
            found += int(_rows_within(intervals, table.read(start, start + step)).sum())
    return found


def _rows_within(intervals: Sequence[tuple[int, int]], rows: Any) -> Any:
    found = np.zeros(len(rows), bool)
    for first, last in intervals:
        found |= (rows["timestamp"] >= first) & (rows["timestamp"] <= last)
    return found
