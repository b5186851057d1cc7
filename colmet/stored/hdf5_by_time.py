"""Rows of HDF5 files by time.

The rows of a table lie nearly in the order of time. So each file is read once for the intervals of the pieces of its
tables; then each interval reads its pieces alone.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common.errors import ColmetError, ConfigError
from colmet.stored.by_time import ROW_VALUES, Columns, RowsByTime
from colmet.stored.hdf5 import Hdf5History, ask, series_of
from colmet.stored.rows import READS, Reader, TableRows
from colmet.stored.rows_by_time import between_of, pieces_of
from colmet.stored.series import Series

ASK_S = 5.0  # for one answer with intervals
ASK_BYTES = 64 << 20  # of rows read for one answer
ASK_PARTS = 2000

Ints = npt.NDArray[np.int64]


class _Table(NamedTuple):
    """A table of a file, as `pieces_of` returns it."""

    job: int
    name: str
    columns: list[str]
    step: int  # rows of a piece
    row_bytes: int
    firsts: Ints  # of the pieces, seconds since 1970
    lasts: Ints


class _File(NamedTuple):
    """A file, and its tables."""

    inode: int
    tables: list[_Table]
    firsts: Ints  # of the tables
    lasts: Ints


class Hdf5RowsByTime(Hdf5History, RowsByTime):
    """The rows in HDF5 files, by time. Rows that are written after `amounts` are not read.

    Args:
        paths: files, or values of a collector's ``--hdf5-filepath``.

    Raises:
        ConfigError: there is no file.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        super().__init__(paths)
        self._reader = Reader({**READS, pieces_of.__name__: pieces_of, between_of.__name__: between_of})
        self._pieces: dict[str, _File] = {}

    def amounts(self, columns: Columns) -> Mapping[int, int]:
        """Return the number of values by hour; see `RowsByTime`. Reads each file once."""
        found: Counter[int] = Counter()
        sizes = {file.path: _size(file.path) for file in self._files}
        whole, done = max(1, sum(sizes.values())), 0
        failed: list[str] = []
        for file in self._files:
            try:
                self._read_pieces(file.path, columns, found, done / whole, sizes[file.path] / whole)
            except ConfigError as err:
                failed.append(str(err))
            done += sizes[file.path]
        if failed and not self._pieces:
            raise ConfigError(failed[0] if len(failed) == 1 else f"{failed[0]} (and {len(failed) - 1} more files)")
        for text in failed:
            self._warn(text)
        return found

    def _read_pieces(self, path: str, columns: Columns, amounts: Counter[int], done: float, share: float) -> None:
        wanted = {table: list(some) for table, some in columns.items()}
        inode = _inode(path)
        made: list[_Table] = []
        after: list[Any] = []
        read, following, nameless = 0, 1, 0
        while following:
            asked = partial(pieces_of, columns=wanted, after=after, seconds=ASK_S)
            some, after, following, odd = ask(self._reader, path, asked, lambda found: bool(found[3]))
            for *table, hours, counts in some:
                made.append(_Table(*table))
                for hour, count in zip(hours.tolist(), counts.tolist()):
                    amounts[hour] += count * (len(made[-1].columns) + ROW_VALUES)
            nameless += odd
            read += len(some)
            self.progress(f"look through {os.path.basename(path)}", done + share * read / max(1, read + following))
        if nameless:
            self._warn(f"{path}: rows without a host or a time skipped: {nameless}")
        firsts = np.array([one.firsts.min() for one in made], np.int64)
        lasts = np.array([one.lasts.max() for one in made], np.int64)
        self._pieces[path] = _File(inode, made, firsts, lasts)

    def between(self, columns: Columns, first: int, last: int) -> Iterator[Series]:
        """Yield the rows of an interval; see `RowsByTime`. After `amounts`, with the same columns."""
        found: defaultdict[tuple[int, str], list[TableRows]] = defaultdict(list)
        for path, file in self._pieces.items():
            of_file: defaultdict[tuple[int, str], list[TableRows]] = defaultdict(list)
            for parts in _asked(file, first, last):
                if _inode(path) != file.inode:
                    raise ColmetError(f"{path} was replaced meanwhile, as by colmet archive forget; run it again")
                for job, name, rows in ask(
                    self._reader, path, partial(between_of, parts=parts, since=first, until=last), lambda _: False
                ):
                    of_file[job, name].append(rows)
            for key, some in of_file.items():
                found[key].append(_joined(some))
        for (job, name), several in found.items():
            yield from series_of(several, name, job)


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError as err:
        raise ConfigError(f"{path}: {err.strerror}; it was there at the start: run it again") from err


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _asked(file: _File, first: int, last: int) -> Iterator[list[list[Any]]]:
    """Yield the parts of a file's tables with rows of an interval, as many as are read for one answer."""
    parts: list[list[Any]] = []
    size = 0
    for at in np.flatnonzero((file.firsts <= last) & (file.lasts >= first)).tolist():
        table = file.tables[at]
        pieces = np.flatnonzero((table.firsts <= last) & (table.lasts >= first))
        most = max(1, ASK_BYTES // (table.step * table.row_bytes))
        for run in np.split(pieces, np.flatnonzero(np.diff(pieces) > 1) + 1) if len(pieces) else ():
            for begin in range(int(run[0]), int(run[-1]) + 1, most):
                end = min(int(run[-1]) + 1, begin + most)
                parts.append([table.job, table.name, begin * table.step, end * table.step, table.columns])
                size += (end - begin) * table.step * table.row_bytes
                if size >= ASK_BYTES or len(parts) >= ASK_PARTS:
                    yield parts
                    parts, size = [], 0
    if parts:
        yield parts


def _joined(parts: Sequence[TableRows]) -> TableRows:
    """Return the rows of parts of one table as one."""
    if len(parts) == 1:
        return parts[0]
    names = list(dict.fromkeys([name for part in parts for name in part.names]))
    place = {name: n for n, name in enumerate(names)}
    hosts = [np.array([place[name] for name in part.names], np.int64)[part.hosts] for part in parts]
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    return TableRows(np.concatenate([part.times for part in parts]), np.concatenate(hosts), columns, names, 0)
