"""Tables of a file: their names, their last chunk, and copies of them with other columns."""

from __future__ import annotations

import zlib
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
FORMER_TIMES = "thinned"  # a table beside the jobs in files that `colmet thin` of 1.0.0 made; nothing reads it
COPY_BYTES = 4 << 20  # read at a time from a table
# A chunk of a blosc2 table. PyTables would make it as large as the CPU's L3 cache, 272 MB on a Xeon with 260 MiB, and
# each burst compresses the last chunk again. 64 KiB is PyTables' choice for tables of the other libraries.
BLOSC2_CHUNK_BYTES = 64 << 10


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


def is_filtered(table: Any) -> bool:
    """Return whether a table's chunks are compressed or have checksums: HDF5 rewrites such a chunk to fill it."""
    return bool(table.filters.complevel or table.filters.fletcher32)


def chunk_rows(filters: Any, row_bytes: int) -> int | None:
    """Return the rows per chunk of a new table with these filters; None for PyTables' choice."""
    is_blosc2 = filters.complib is not None and filters.complib.startswith("blosc2")
    return max(1, BLOSC2_CHUNK_BYTES // row_bytes) if is_blosc2 else None


def create_table(file: Any, group: str, name: str, columns: Mapping[str, Any], title: str, filters: Any) -> Any:
    """Create a table in the group of a job, and the group if it does not exist."""
    rows = chunk_rows(filters, sum([c.itemsize for c in columns.values()]))
    table = file.create_table(group, name, columns, title, filters, chunkshape=rows, createparents=True)
    table.attrs.backend_version = BACKEND_VERSION
    return table


def last_chunk(table: Any, rows: int) -> int:
    """Return the first row of the last chunk of a table with `rows` rows."""
    return rows - rows % int(table.chunkshape[0])


def growth(table: Any, count: int) -> int:
    """Return the maximum growth of a file, in bytes, for `count` more rows of a table."""
    return chunk_bytes(int(table.nrows), count, int(table.chunkshape[0]), int(table.dtype.itemsize), is_filtered(table))


def tail_is(table: Any, rows: int, checksum: int) -> bool:
    """Return whether the rows in the last chunk have this checksum; False if they are unreadable."""
    try:
        return zlib.crc32(table.read(last_chunk(table, rows), rows).tobytes()) == checksum
    except Exception as err:  # on a damaged file, PyTables raises anything
        if is_of_system(err):
            raise
        return False


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
