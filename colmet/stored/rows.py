"""Reading of the tables of an open HDF5 file, in the process that reads it; see `colmet.stored.reading_process`."""

from __future__ import annotations

import os
import re
import time
from bisect import bisect
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.collector.backends.hdf5.libhdf5 import Dataset, ForeignDataError, NotFlatError, OpenFile, TableForm
from colmet.collector.backends.hdf5.library import BACKEND_VERSION
from colmet.common.errors import is_later, later_form
from colmet.common.schema import NAME
from colmet.stored import messages

HEADER = frozenset({"timestamp", "hostname", "job_id", "metric_backend"})  # every table's columns besides its own
BLOCK_BYTES = 4 << 20  # read at a time
SEGMENT_BYTES = 96 << 20  # of rows sorted by host at a time
MIN_TEXT = 2  # width of text at first
PROGRESS_S = 0.2  # between reports of progress
MAX_RATIO = 10_000  # largest ratio of the rows' size to that of their file, compressed
END_S = 1 << 36  # end of valid times: the year 4147

VERSION = b"backend_version"
JOB = re.compile(r"job_(\d{1,19})", re.ASCII)  # a job's group

Column = npt.NDArray[Any]


class Progress(NamedTuple):
    """A report of progress, before the answer."""

    share: float  # of the table


class TableRows(NamedTuple):
    """Rows of a table, in any order."""

    times: npt.NDArray[np.int64]  # seconds since 1970
    hosts: npt.NDArray[np.int64]  # index of each row's host in `names`
    columns: dict[str, Column]  # by name: int64, float64 or bytes
    names: list[bytes]  # of hosts
    nameless: int  # number of rows without a host or a valid time, skipped


class LibraryTables:
    """The tables of jobs in a file that PyTables has opened."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._library = OpenFile(file.root._v_objectid)
        self._file_bytes = os.stat(file.filename).st_size
        self._has_header: dict[TableForm, bool] = {}

    def names(self, begin: tuple[int, str] | None = None) -> Iterator[tuple[int, str]]:
        """Yield jobs and names of tables, sorted, from `begin` on; each group is listed when its turn comes."""
        for name in filter(JOB.fullmatch, list(self._file.root._v_links)):
            self._library.check_own(f"/{name}".encode())
        for job, group in self._groups:
            if begin is not None and job < begin[0]:
                continue
            for name in self._library.names(f"/{group}".encode()):
                table = name.decode("utf-8", "surrogateescape")
                if begin is None or (job, table) >= begin:
                    yield job, table

    @cached_property
    def _groups(self) -> list[tuple[int, str]]:
        groups = [match for match in map(JOB.fullmatch, list(self._file.root._v_groups)) if match]
        return sorted([(int(match[1]), match[0]) for match in groups])

    def share_before(self, job: int) -> float:
        """Return the share of the jobs before one."""
        return bisect(self._groups, (job, "")) / max(1, len(self._groups))

    def _has_group(self, job: int) -> bool:
        group = f"/job_{job}".encode()
        return self._library.exists(group) and self._library.is_group(group)

    def of_job(self, job: int) -> Iterator[tuple[str, Dataset]]:
        """Yield the tables of a job with times, hosts and rows, by name; an exception for a link among them."""
        for name in self._library.names(f"/job_{job}".encode()) if self._has_group(job) else ():
            table = self.find(job, name.decode("utf-8", "surrogateescape"))
            if table is not None and table.rows:
                yield name.decode(), table

    def find(self, job: int, name: str) -> Dataset | None:
        """Return a table with times and hosts; None if there is none of this name.

        Raises:
            ValueError: it is of a later version, or claims an impossible size.
            ForeignDataError: it is a link, or its rows are in other files.
        """
        path = f"/job_{job}/{name}"
        if not NAME.fullmatch(name) or not self._has_group(job) or not self._library.exists(path.encode()):
            return None
        try:
            table = self._library.find(path.encode())
        except ForeignDataError:
            raise
        except NotFlatError:
            return None
        if table.form not in self._has_header:
            self._has_header[table.form] = has_header(table.form)
        if not self._has_header[table.form]:
            return None
        version = table.number(VERSION)
        if version is not None and is_later(version, BACKEND_VERSION):
            raise ValueError(later_form(path, version, BACKEND_VERSION, "read the file with that one"))
        check_size(path, table.rows, int(table.form.dtype.itemsize), self._file_bytes)
        return table


def tables_of(file: Any, job: int) -> dict[str, list[str]]:
    """Return a job's tables with rows in a file, and their columns; an exception for a link among them."""
    of_job = LibraryTables(file).of_job(job)
    return {name: [column for column in kinds_of(table.form) if column not in HEADER] for name, table in of_job}


def kinds_of(table: TableForm) -> dict[str, str]:
    """Return the columns of numbers or text of a table, one value a row."""
    fields = [(name, table.dtype[name]) for name in table.dtype.names or ()]
    return {n: dtype.kind for n, dtype in fields if NAME.fullmatch(n) and dtype.kind in "iufS" and not dtype.shape}


def has_header(table: TableForm) -> bool:
    """Return whether a table has the columns of time and host."""
    kinds = kinds_of(table)
    return kinds.get("timestamp", "") in ("i", "u") and kinds.get("hostname") == "S"


def rows_of(
    file: Any,
    job: int,
    table: str,
    columns: Collection[str] | None,
    since: float | None,
    until: float | None,
    hosts: Sequence[bytes] | None,
) -> TableRows | None:
    """Return the selected rows of a table in a file; None if it is missing or empty.

    Raises:
        ValueError: the file claims an impossible size.
    """
    node = LibraryTables(file).find(job, table)
    if node is None or not node.rows:
        return None
    part = Part(node, columns, BLOCK_BYTES)
    nameless = 0
    for block, odd in _blocks(node, _spans(file, job, table), since, until, hosts):
        nameless += odd
        part.add(block)
    return part.rows(nameless)


class Part:
    """Columns gathered from blocks of a table, in arrays that are used again.

    Args:
        room_bytes: of the arrays at first; they grow.

    Attributes:
        hosts: their numbers.
    """

    def __init__(self, table: Dataset, columns: Collection[str] | None, room_bytes: int) -> None:
        self.names = [n for n in kinds_of(table.form) if n not in HEADER and (columns is None or n in columns)]
        self.hosts: dict[bytes, int] = {}
        self.count = 0
        self._name_bytes = MIN_TEXT
        self._most = table.rows
        self._times, self._numbers = np.empty(0, np.int64), np.empty(0, np.int32)
        self._columns = {name: np.empty(0, _type(table.form.dtype[name])) for name in self.names}
        self._grow(min(room_bytes // self.row_bytes, self._most))

    @property
    def row_bytes(self) -> int:
        """Return the size of a row in the arrays, and in those of its order in `_write`."""
        return 40 + sum(column.itemsize for column in self._columns.values())

    def add(self, block: npt.NDArray[Any]) -> None:
        """Add the rows of a block."""
        part = slice(self.count, self.count + len(block))
        if part.stop > len(self._times):
            self._grow(max(part.stop, min(2 * len(self._times), self._most)))
        self._times[part] = block["timestamp"]
        self._numbers[part] = self._numbers_of(block["hostname"])
        for name, column in self._columns.items():
            values = block[name]
            if column.dtype.kind == "S":
                values = _text(values, column.itemsize)
                if values.itemsize > column.itemsize:
                    column = self._columns[name] = column.astype(values.dtype)
            column[part] = values
            if column.dtype.kind == "f":
                column[part][values == -1] = np.nan
        self.count = part.stop

    def rows(self, nameless: int = 0) -> TableRows:
        """Return the gathered rows; valid up to the next `add`."""
        columns = {name: column[: self.count] for name, column in self._columns.items()}
        hosts = self._numbers[: self.count].astype(np.int64)
        return TableRows(self._times[: self.count], hosts, columns, list(self.hosts), nameless)

    def _grow(self, count: int) -> None:
        self._times, self._numbers = self._longer(self._times, count), self._longer(self._numbers, count)
        self._columns = {name: self._longer(column, count) for name, column in self._columns.items()}

    def _longer(self, column: Column, count: int) -> Column:
        longer = np.empty(count, column.dtype)
        longer[: self.count] = column[: self.count]
        return longer

    def _numbers_of(self, names: Column) -> npt.NDArray[np.int32]:
        names = _text(names, self._name_bytes)
        self._name_bytes = names.itemsize
        texts = names.tolist()
        try:
            return np.fromiter(map(self.hosts.__getitem__, texts), np.int32, len(texts))
        except KeyError:
            return np.array([self.hosts.setdefault(name, len(self.hosts)) for name in texts], np.int32)


class Spooled(NamedTuple):
    """Selected rows of a table, in segments of the spool, each column by column, and sorted by host.

    Attributes:
        names: of hosts, sorted.
        columns: name and kind of each.
        segments: of each, its offset in the spool, and the types of the time and of each column.
        counts: rows of each host (number in `names`) in each segment, one segment after the other.
        first: time of the first row.
        last: time of the last row.
        nameless: number of rows without a host or a valid time, skipped.
    """

    names: list[bytes]
    columns: list[list[str]]
    segments: list[list[Any]]
    counts: npt.NDArray[np.int64]
    first: int
    last: int
    nameless: int


def spool_of(
    file: Any,
    job: int,
    table: str,
    columns: Collection[str] | None,
    since: float | None,
    until: float | None,
    hosts: Sequence[bytes] | None,
    spool: IO[bytes] | None,
    answers: IO[bytes],
) -> Spooled | None:
    """Write the selected rows of a table to the spool, sorted by host; None if it is missing or empty.

    The memory is that of a segment: rows of a host can then be read without the others.

    Raises:
        OSError: there is no spool, or no space.
        ValueError: the file claims an impossible size.
    """
    node = LibraryTables(file).find(job, table)
    if node is None or not node.rows:
        return None
    if spool is None:
        raise OSError("no temporary file can be made; set TMPDIR to a directory with space")
    part = Part(node, columns, SEGMENT_BYTES)
    segments: list[list[Any]] = []
    counts: list[npt.NDArray[np.int64]] = []
    bounds: list[int] = []
    nameless = 0
    reported = time.monotonic()
    for done, (block, odd) in enumerate(_blocks(node, _spans(file, job, table), since, until, hosts)):
        nameless += odd
        if part.count and (part.count + len(block)) * part.row_bytes > SEGMENT_BYTES:
            counts.append(_write(part, spool, segments, bounds))
        part.add(block)
        if time.monotonic() > reported + PROGRESS_S:
            reported = time.monotonic()
            messages.send(answers, Progress(min(1.0, done * _step(node.form) / node.rows)))
    if part.count:
        counts.append(_write(part, spool, segments, bounds))
    names = list(part.hosts)
    order = np.argsort(_ranks(names))
    every = [np.pad(one, (0, len(names) - len(one)))[order] for one in counts]
    return Spooled(
        names=[names[n] for n in order.tolist()],
        columns=[[name, _type(node.form.dtype[name]).kind] for name in part.names],
        segments=segments,
        counts=np.concatenate([np.empty(0, np.int64), *every]),
        first=min(bounds, default=0),
        last=max(bounds, default=0),
        nameless=nameless,
    )


def _write(part: Part, spool: IO[bytes], segments: list[list[Any]], bounds: list[int]) -> npt.NDArray[np.int64]:
    """Append a segment to the spool, column by column; return the number of its rows by host."""
    rows = part.rows()
    ranks = _ranks(rows.names)
    order = np.argsort(ranks.astype(np.uint16 if len(ranks) <= 1 << 16 else np.int64)[rows.hosts], kind="stable")
    offset = spool.seek(0, os.SEEK_END)
    kinds = []
    for column in (rows.times, *rows.columns.values()):
        kind = _narrowed(column)
        kinds.append(kind.str)
        data = column.astype(kind, copy=False)[order].view(np.uint8).data
        try:
            while data:
                data = data[spool.write(data) :]
        except OSError as err:
            raise OSError(f"its temporary file: {err.strerror}; set TMPDIR to a directory with more space") from err
    segments.append([offset, kinds])
    bounds += [int(rows.times.min()), int(rows.times.max())]
    part.count = 0
    return np.bincount(rows.hosts, minlength=len(rows.names))


def _ranks(names: Sequence[bytes]) -> npt.NDArray[np.int64]:
    ranks = np.empty(len(names), np.int64)
    ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    return ranks


def _narrowed(column: Column) -> np.dtype[Any]:
    """Return the smallest type for all values of a column of `TableRows`."""
    if column.dtype.kind != "i":
        return column.dtype
    low, high = column.min(), column.max()
    return next(
        one for one in map(np.dtype, ("i1", "i2", "i4", "i8")) if np.iinfo(one).min <= low and high <= np.iinfo(one).max
    )


def _step(form: TableForm) -> int:
    return max(1, BLOCK_BYTES // int(form.dtype.itemsize))


def check_size(path: str, rows: int, row_bytes: int, file_bytes: int) -> None:
    """Raise ValueError if a table claims a size that it cannot have in its file."""
    if rows * row_bytes > MAX_RATIO * file_bytes or row_bytes > BLOCK_BYTES:
        raise ValueError(f"{path} is said to have {rows} rows of {row_bytes} bytes")


def valid_rows(block: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which rows have a host and a valid time.

    Colmet 0.6 has rows without time, host and job; rows being written look the same.
    """
    times = block["timestamp"]
    return np.asarray((block["hostname"] != b"") & (times >= 0) & (times < END_S))


Spans = dict[int, tuple[int, int, int]]  # of a table: first and last time and nameless rows of each block, by its start


def _spans(file: Any, job: int, table: str) -> Spans:
    """Return what is known of a table; it is kept with the open file."""
    spans: Spans = vars(file).setdefault("colmet_spans", {}).setdefault((job, table), {})
    return spans


def _blocks(
    table: Dataset, spans: Spans, since: float | None, until: float | None, hosts: Sequence[bytes] | None
) -> Iterator[tuple[npt.NDArray[Any], int]]:
    """Yield the selected rows of a table, block by block, and the number of rows without a host or a valid time.

    Later reads of an interval skip the blocks that `spans` excludes: nearly all, as rows are nearly in order of time.
    """
    step = _step(table.form)
    for start in range(0, table.rows, step):
        if start in spans:
            first, last, nameless = spans[start]
            if (since is not None and last < since) or (until is not None and first > until):
                yield np.empty(0, table.form.dtype), nameless
                continue
        block = table.read(start, min(start + step, table.rows))
        names, times, keep = block["hostname"], block["timestamp"], valid_rows(block)
        nameless = int(len(keep) - keep.sum())
        if start not in spans:
            valid = times[keep]
            spans[start] = int(valid.min(initial=END_S)), int(valid.max(initial=-1)), nameless
        if since is not None:
            keep &= times >= since
        if until is not None:
            keep &= times <= until
        if hosts is not None:
            keep &= np.isin(names, np.array(hosts, "S")) if hosts else False
        yield block if keep.all() else block[keep], nameless


def _type(stored: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype({"f": "f8", "S": f"S{MIN_TEXT}"}.get(stored.kind, "i8"))


def _text(column: Column, width: int) -> Column:
    """Return a column of text that ends at its first zero byte, in about its smallest width, at least this one."""
    while width < column.dtype.itemsize:
        narrow = column.astype(f"S{width}")
        if not narrow.view(np.uint8)[width - 1 :: width].any():
            return narrow
        width *= 2
    return column
