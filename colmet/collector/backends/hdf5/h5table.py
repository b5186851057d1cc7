"""Tables of a file: their names, their last chunk, copies of them with other columns, and templates of new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from colmet.collector.backends.hdf5.libhdf5 import Dataset, ForeignDataError, LibraryFile, chunk_bytes
from colmet.collector.backends.hdf5.library import (
    BACKEND_VERSION,
    cause,
    close_library,
    is_of_system,
    open_library,
    tables,
)
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
MAX_TEMPLATES = 256  # the columns of undeclared tables are their sender's choice
_GROUP = "group"


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
    """Create a table in the group of a job, and the group if it does not exist."""
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
    """Yield the paths of all tables of jobs except temporary ones, opening the groups but no table."""
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


class Templates:
    """A file in memory with an empty group and empty tables."""

    def __init__(self, filters: Any) -> None:
        self._filters = filters
        self._file: Any = None
        self._names: dict[tuple[bytes, int, int], bytes] = {}  # by key, length of the title, and rows of a chunk
        self._row_bytes: dict[bytes, int] = {}

    def add_group(self, target: LibraryFile, path: str) -> None:
        """Make the group of a job."""
        self._open()
        target.copy(self._file.root._v_objectid, _GROUP.encode(), path.encode())

    def add_table(
        self, target: LibraryFile, path: str, title: str, key: bytes, columns: Mapping[str, Any], rows: int
    ) -> Dataset:
        """Make a table in an existing group, which gets this many rows at first, and return it.

        `columns` are numpy types by name; `key` is the same for the same columns.
        """
        text = title.encode()
        if key not in self._row_bytes:
            self._row_bytes[key] = sum([np.dtype(dtype).itemsize for dtype in columns.values()])
        chunk = chunk_rows(self._filters, self._row_bytes[key], rows)
        name = self._names.get((key, len(text), chunk))
        if name is None:
            if len(self._names) >= MAX_TEMPLATES:
                self.close()
            self._open()
            leaf = f"table_{len(self._names)}"
            described = {n: column(np.dtype(dtype), i) for i, (n, dtype) in enumerate(columns.items())}
            create_table(self._file, "/", leaf, described, "x" * len(text), self._filters, chunk)._f_close()
            self._file.flush()
            name = self._names[key, len(text), chunk] = leaf.encode()
        return target.add(self._file.root._v_objectid, name, path.encode(), text, (key, chunk))

    def _open(self) -> None:
        if self._file is None:
            name = f"templates-{id(self)}"  # of no file: PyTables opens a name once
            self._file = open_library(name, "w", driver="H5FD_CORE", driver_core_backing_store=0)
            self._file.create_group("/", _GROUP)._f_close()

    def close(self) -> None:
        """Forget all templates."""
        file, self._file = self._file, None
        self._names.clear()
        self._row_bytes.clear()
        if file is not None:
            close_library(file)
