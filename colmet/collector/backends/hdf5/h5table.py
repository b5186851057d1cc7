"""Tables of a file: their names, their last chunk, and copies of them with other columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from colmet.collector.backends.hdf5.libhdf5 import ForeignDataError
from colmet.collector.backends.hdf5.library import BACKEND_VERSION, cause, is_of_system, tables
from colmet.collector.backends.hdf5.space import chunk_bytes
from colmet.collector.columns import missing
from colmet.common.errors import ColmetError, OutputUnavailable

REBUILT, REPLACED = "_rebuilt_", "_replaced_"  # never names of messages' tables: these start with a letter
COPY_BYTES = 4 << 20  # read at a time from a table
# A chunk of most tables. PyTables would make one of a blosc2 table as large as the CPU's L3 cache, 272 MB on a Xeon
# with 260 MiB, and each burst compresses the last chunk again.
CHUNK_BYTES = 64 << 10
# A chunk of a new table has room for this many times its first rows, so a job with one row needs little of the disk.
# Larger chunks are read and written faster. A compressed chunk needs only the bytes of its rows.
FIRST_ROWS_TIMES = 4
MIN_CHUNK_BYTES = 4 << 10


class Damaged(ColmetError):
    """The file, or a table in it, cannot be read."""


def column(dtype: np.dtype[Any], position: int, default: Any = None) -> Any:
    """Return PyTables' description of a column."""
    return tables.Col.from_dtype(dtype, dflt=missing(dtype) if default is None else default, pos=position)


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Raise Damaged for all that PyTables raises on a damaged file, and OutputUnavailable for errors of the system."""
    try:
        yield
    except (Damaged, OutputUnavailable):
        raise
    except ForeignDataError as err:
        raise Damaged(f"{path}: {err}") from err
    except Exception as err:  # on a damaged file, PyTables raises anything
        if is_of_system(err):
            raise OutputUnavailable(f"cannot read {path}: {cause(err)}") from err
        raise Damaged(f"{path}: {type(err).__name__} {cause(err)}") from err


def chunk_rows(filters: Any, row_bytes: int, rows: int) -> int:
    """Return the rows per chunk of a table with these filters that gets this many rows at first."""
    size = CHUNK_BYTES
    while not filters.complevel and size // 2 >= max(MIN_CHUNK_BYTES, FIRST_ROWS_TIMES * rows * row_bytes):
        size //= 2
    return max(1, size // row_bytes)


def create_table(
    file: Any, group: str, name: str, columns: Mapping[str, Any], title: str, filters: Any, chunk: int | None = None
) -> Any:
    """Create a table in the group of a job, and the group if it does not exist.

    Args:
        file: an open one.
        group: path of the group.
        name: of the table.
        columns: PyTables' descriptions by name.
        title: of the table.
        filters: PyTables' filters.
        chunk: rows of a chunk; None for those of a long table.
    """
    chunk = chunk or max(1, CHUNK_BYTES // sum([c.itemsize for c in columns.values()]))
    table = file.create_table(group, name, columns, title, filters, chunkshape=chunk, createparents=True)
    table.attrs.backend_version = BACKEND_VERSION
    return table


def growth(table: Any, count: int) -> int:
    """Return the maximum growth of a file, in bytes, for `count` more rows of a table."""
    filtered = bool(table.filters.complevel or table.filters.fletcher32)
    return chunk_bytes(int(table.nrows), count, int(table.chunkshape[0]), int(table.dtype.itemsize), filtered)


def group_path(job: int) -> str:
    """Return the path of the group of a job."""
    return f"/job_{job}"


def table_names(file: Any, order: Callable[[str], Any] | None = None) -> Iterator[str]:
    """Yield the paths of all tables of jobs except temporary ones, opening the groups but no table.

    Args:
        file: an open one.
        order: sorts the groups, by their names.
    """
    groups = list(file.root._v_children)
    for job in groups if order is None else sorted(groups, key=order):
        if job.startswith("job_") and job in file.root._v_groups:
            for name in list(file.get_node(f"/{job}")._v_children):
                if not name.startswith((REBUILT, REPLACED)):
                    yield f"/{job}/{name}"


def temporary(path: str, prefix: str) -> str:
    """Return the temporary path of a table during its rebuild."""
    group, name = path.rsplit("/", 1)
    return f"{group}/{prefix}{name}"


def title(job: int | str) -> str:
    """Return the title of a job's tables, as in 0.6's files."""
    return f"Metrics for the Job {job}"


def copy_rows(table: Any, target: Any) -> None:
    """Append all rows of a table to one with at least the same columns, in bounded parts."""
    step = max(1, COPY_BYTES // target.dtype.itemsize)
    for start in range(0, table.nrows, step):
        target.append(converted(table.read(start, start + step), target.dtype))


def converted(rows: Any, dtype: np.dtype[Any]) -> Any:
    """Return rows with the columns of `dtype`; values of new columns are missing."""
    copied = np.empty(len(rows), dtype=dtype)
    for name in dtype.names or ():
        copied[name] = rows[name] if name in rows.dtype.names else missing(dtype[name])
    return copied
