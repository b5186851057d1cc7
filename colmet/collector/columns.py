"""The rows of many messages as arrays, the columns of tables in files, and the conversion of the ones to the others.

Outputs work on arrays, not on messages; only the output knows the library of its file format.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common.schema import MISSING_INT, Batch, Rows, Schema, Table
from colmet.common.tables import column_types, is_declared
from colmet.common.wire.colmet06 import INVOLVED_JOBS_BYTES, pack_jobs

INT = np.dtype("<i8")
NAME = np.dtype("S255")
INVOLVED_JOBS = np.dtype(f"S{INVOLVED_JOBS_BYTES}")
HEADER = {"timestamp": INT, "hostname": NAME, "job_id": INT, "metric_backend": NAME}
NODE_TABLES = frozenset(
    {"RAPLstats_default", "infinibandstats_default", "lustrestats_default", "ipmipowerstats_default"}
)
# Columns of 0.6's tables in addition to those of its messages.
LEGACY_COLUMNS: Mapping[str, Mapping[str, np.dtype[Any]]] = {
    **{name: {"involved_jobs": INVOLVED_JOBS} for name in NODE_TABLES},
    "jobprocstats_default": {"involved_jobs": INVOLVED_JOBS},  # always empty there
    "procstats_default": {"meminfo_hardwarecorrupted": INT},  # never sent by any node
}

# Rows are converted in blocks for the processor's L2 cache; this also limits the memory of a large burst.
BLOCK_BYTES = 512 << 10
# HDF5 keeps the type of a row in one object header message and a row of defaults in another; each has less than 64 kB.
MAX_TYPE_BYTES = 65_000
MAX_ROW_BYTES = 65_000
OTHER = re.compile(r"_[0-9a-f]{8}$")  # end of the name of another table for the same rows


def names_for(schema: Schema) -> list[str]:
    """Return the possible tables for these rows; they go to the first fitting one.

    The first rows decide the columns of an undeclared table. The second name is derived from the rows' own columns, and
    no table of a message has such a name, so no other sender decides the columns of that table.
    """
    if is_declared(schema.name):
        return [schema.name]
    kinds = " ".join(sorted([f"{field.name}:{field.dtype[0]}" for field in schema.fields]))
    other = f"{schema.name}_{zlib.crc32(kinds.encode()):08x}"
    return [other] if OTHER.search(schema.name[-9:]) else [schema.name, other]


def type_bytes(name: str, dtype: np.dtype[Any]) -> int:
    """Return the bytes of one column in HDF5's description of a row.

    Source: HDF5 File Format Specification, datatype message, compound class, version 1.
    """
    padded_name = (len(name) // 8 + 1) * 8
    return padded_name + 32 + 8 + {"i": 4, "f": 12}.get(dtype.kind, 0)


def file_columns(schema: Schema) -> dict[str, np.dtype[Any]]:
    """Return the columns of this schema in a file.

    Declared columns are at least as wide as declared. One of Colmet's tables with further columns has all declared
    columns, and these first, so that further ones never displace them.
    """
    types = declared_columns(schema.name)
    columns = {**HEADER, **LEGACY_COLUMNS.get(schema.name, {}), **(types if schema.undeclared else {})}
    for name in schema.names:
        known, sent = types.get(name), schema.dtype[name]
        columns[name] = known if known is not None and not wider(known, sent) and known.kind == sent.kind else sent
    return columns


def declared_columns(table: str) -> dict[str, np.dtype[Any]]:
    """Return the declared columns of one of Colmet's tables."""
    return {name: np.dtype(dtype) for name, dtype in column_types(table).items()}


def grown(have: Mapping[str, np.dtype[Any]], wanted: Mapping[str, np.dtype[Any]]) -> dict[str, np.dtype[Any]]:
    """Return columns that include the wanted ones, as wide as wanted, in the order of their names.

    A column keeps its kind; columns beyond HDF5's limit for one table are dropped.
    """
    columns = dict(have)
    in_type = sum(type_bytes(name, dtype) for name, dtype in have.items())
    in_row = sum(dtype.itemsize for dtype in have.values())
    for name, dtype in wanted.items():
        old = columns.get(name)
        if old is not None and not wider(old, dtype):
            continue
        more_in_type = type_bytes(name, dtype) if old is None else 0
        more_in_row = dtype.itemsize - (0 if old is None else old.itemsize)
        if in_type + more_in_type <= MAX_TYPE_BYTES and in_row + more_in_row <= MAX_ROW_BYTES:
            columns[name] = dtype
            in_type += more_in_type
            in_row += more_in_row
    return dict(sorted(columns.items()))


def columns_of(dtype: np.dtype[Any]) -> dict[str, np.dtype[Any]]:
    """Return the columns of a row type, with their types."""
    return {name: dtype[name] for name in names_of(dtype)}


def missing(dtype: np.dtype[Any]) -> int | bytes:
    """Return the value for missing in a file: -1 in every number, floats too."""
    return b"" if dtype.kind == "S" else MISSING_INT


def fits(have: np.dtype[Any], want: np.dtype[Any]) -> bool:
    """Return whether a column can hold values of another type, possibly after widening."""
    return have.kind == want.kind or (have.kind == "f" and want.kind == "i")


def wider(have: np.dtype[Any], want: np.dtype[Any]) -> bool:
    """Return whether a column must be widened for values of another type."""
    return have.kind == want.kind and have.itemsize < want.itemsize


def names_of(dtype: np.dtype[Any]) -> tuple[str, ...]:
    """Return the names of a row type's columns."""
    return dtype.names or ()


def offset_of(dtype: np.dtype[Any], name: str) -> int:
    """Return the offset of a column in a row, in bytes."""
    return int(dtype.fields[name][1])  # type: ignore[index]


class _Copy(NamedTuple):
    """Columns adjacent both in the file's rows and, in another order, in packed rows."""

    target: npt.NDArray[Any]  # view of the block: (rows, columns)
    dtype: np.dtype[Any]  # of the packed values
    offset: int  # of the first packed column of the run
    columns: int  # in the run of packed columns
    picks: npt.NDArray[np.intp]  # indexes of the columns to copy, in the file's order


class RowLayout:
    """The conversion of packed rows of one schema to rows of one form of table.

    It is computed once; `fill` then moves whole runs of columns at a time, for a block of rows.

    Attributes:
        lacking: columns missing or too narrow in the table, and possible there.
        unfit: columns that stay missing, as they are too narrow or of another kind in the table.
        conflicting: those of another kind.
        left_out: columns missing in the table.
        fits: whether rows of this schema would have no more values in a table of their own.
        capacity: rows for one call of `fill`.
    """

    def __init__(self, schema: Schema, dtype: np.dtype[Any]) -> None:
        self.schema = schema
        wanted = file_columns(schema)
        there = columns_of(dtype)
        # not by get(): numpy accepts None as a column of floats
        self.lacking = [n for n, wide in grown(there, wanted).items() if n not in there or there[n] != wide]
        self.unfit = [
            n for n in wanted if n in there and not (fits(there[n], wanted[n]) and not wider(there[n], wanted[n]))
        ]
        self.conflicting = [n for n in self.unfit if not fits(there[n], wanted[n])]
        self.left_out = [n for n in wanted if n not in there]
        alone = grown({}, wanted)
        self.fits = not any(n in alone for n in (*self.unfit, *self.left_out))
        self.capacity = max(1, BLOCK_BYTES // dtype.itemsize)
        self._block = np.zeros(self.capacity, dtype=dtype)
        for name in there:
            if dtype[name].kind in "if":
                self._block[name] = MISSING_INT
        metric_backend = self._column("metric_backend")
        if metric_backend is not None:
            metric_backend[:] = schema.name.encode()
        self._timestamp = self._column("timestamp")
        self._hostname = self._column("hostname")
        self._involved_jobs = self._column("involved_jobs") if schema.name in NODE_TABLES else None
        self._copies = list(self._runs(["job_id", *schema.names]))

    def _column(self, name: str) -> npt.NDArray[Any] | None:
        """Return the block's column, or None if the table lacks it or has another kind of value."""
        return None if name in self.unfit or name not in names_of(self._block.dtype) else self._block[name]

    def _runs(self, names: Sequence[str]) -> Iterator[_Copy]:
        """Yield the copies for these columns, as few as the two orders of columns allow."""
        packed, block = self.schema.dtype, self._block.dtype
        runs = packed_runs(packed)
        targets = [n for n in names_of(block) if n in names and n not in self.unfit]
        run: list[str] = []
        for name in sorted(targets, key=lambda name: offset_of(block, name)):
            if run and not (
                runs[name] == runs[run[-1]]
                and block[name] == block[run[-1]]
                and offset_of(block, name) == offset_of(block, run[-1]) + block[name].itemsize
            ):
                yield self._copy(run, runs[run[0]])
                run = []
            run.append(name)
        if run:
            yield self._copy(run, runs[run[0]])

    def _copy(self, names: Sequence[str], run: tuple[int, int]) -> _Copy:
        packed, block = self.schema.dtype, self._block.dtype
        source, target = packed[names[0]], block[names[0]]
        view: npt.NDArray[Any] = np.ndarray(
            (self.capacity, len(names)),
            target,
            self._block.data,
            offset_of(block, names[0]),
            (block.itemsize, target.itemsize),
        )
        picks = np.array([(offset_of(packed, name) - run[0]) // source.itemsize for name in names])
        return _Copy(view, source, run[0], run[1], picks)

    def fill(self, batch: ColumnBatch, order: Ints, hosts: npt.NDArray[Any], jobs: npt.NDArray[Any] | None) -> Rows:
        """Return the rows `order` of `batch`, at most `capacity` of them, as rows of the table.

        The result is in the layout's own block, valid until the next call.

        Args:
            batch: rows of this schema.
            order: indexes of rows.
            hosts: `batch.hosts` as an array.
            jobs: `involved_jobs` of each source, and at the end that of rows of jobs.
        """
        count = len(order)
        packed = batch.rows.take(order)
        source = batch.source.take(order)
        for target, dtype, offset, columns, picks in self._copies:
            strides = (packed.dtype.itemsize, dtype.itemsize)
            values = np.ndarray((count, columns), dtype, packed.data, offset, strides).take(picks, axis=1)
            if dtype.kind == "f":
                np.copyto(values, MISSING_INT, where=np.isnan(values))
            target[:count] = values
        if self._timestamp is not None:
            self._timestamp[:count] = batch.time_s.take(source)
        if self._hostname is not None:
            self._hostname[:count] = hosts.take(batch.host_of.take(source))
        if self._involved_jobs is not None and jobs is not None:
            self._involved_jobs[:count] = jobs.take(np.where(packed["job_id"] == 0, source, len(jobs) - 1))
        return self._block[:count]


def packed_runs(dtype: np.dtype[Any]) -> dict[str, tuple[int, int]]:
    """Return, for each column of packed rows, the offset and the length of its run of columns of one type."""
    runs: list[list[str]] = []
    for name in names_of(dtype):
        if not runs or dtype[runs[-1][-1]] != dtype[name]:
            runs.append([])
        runs[-1].append(name)
    return {name: (offset_of(dtype, run[0]), len(run)) for run in runs for name in run}


def involved_jobs(batch: ColumnBatch) -> npt.NDArray[Any] | None:
    """Return the column `involved_jobs` of each source, with an empty string at the end; None if the table lacks it."""
    if batch.schema.name not in NODE_TABLES:
        return None
    packed = {jobs: b"" if jobs is None else pack_jobs(jobs) for jobs in set(batch.jobs)}
    # objects, as 8 kB for each source would need much memory
    return np.array([*[packed[jobs] for jobs in batch.jobs], b""], dtype=object)


NS = 1_000_000_000
Ints = npt.NDArray[np.int64]


class ColumnBatch(NamedTuple):
    """All rows of one schema, in order of arrival.

    A source is one table of one batch; values common to all its rows are kept once, in `hosts[host_of[s]]`, `time_s[s]`
    and `jobs[s]`.
    """

    schema: Schema  # of every row
    rows: Rows  # one contiguous structured array
    source: Ints  # for each row, the index of its source
    hosts: list[str]  # the host names, each once
    host_of: Ints  # for each source, the index of its host in `hosts`
    time_s: Ints  # for each source, seconds since the epoch, rounded down
    # for each source, the jobs on its node at that tick, or None if its dialect lacks them
    jobs: list[tuple[int, ...] | None]

    def by_job(self) -> RowsByJob:
        """Return the rows grouped by job, within a job in order of arrival."""
        job_ids = self.rows["job_id"]
        order = np.argsort(job_ids, kind="stable")
        ordered = job_ids[order]
        count = len(ordered)
        if count == 0:
            return RowsByJob(self, order, [], [0])
        starts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist()]
        return RowsByJob(self, order, ordered[starts].tolist(), [*starts, count])


class RowsByJob(NamedTuple):
    """Rows of one schema, with their order by job."""

    batch: ColumnBatch
    order: Ints  # of the rows
    jobs: list[int]
    starts: list[int]  # of each job in that order, and the row count


def _join(schema: Schema, sources: list[tuple[Batch, Table]]) -> ColumnBatch:
    batches, tables = zip(*sources)
    # by bytes: np.concatenate needs 100 times as long for many small structured arrays
    packed = [table.packed for table in tables]
    rows = np.frombuffer(b"".join(packed), dtype=schema.dtype)
    hosts: dict[str, int] = {}
    host_of = [hosts.setdefault(batch.host, len(hosts)) for batch in batches]
    count = len(packed)
    return ColumnBatch(
        schema,
        rows,
        np.repeat(np.arange(count), np.fromiter(map(len, packed), np.int64, count) // schema.dtype.itemsize),
        list(hosts),
        np.array(host_of, dtype=np.int64),
        np.array([table.time_ns for table in tables], dtype=np.int64) // NS,
        [batch.jobs for batch in batches],
    )


def join(batches: Iterable[Batch]) -> list[ColumnBatch]:
    """Return the rows of all batches, one `ColumnBatch` for each schema, in the order of their first rows."""
    # By identity first: a decoder returns one object for each schema, and hash(schema) costs more than the rest.
    known: dict[int, list[tuple[Batch, Table]]] = {}
    found: dict[bytes, tuple[Schema, list[tuple[Batch, Table]]]] = {}
    for batch in batches:
        for table in batch.tables:
            schema = table.schema
            sources = known.get(id(schema))
            if sources is None:
                sources = known[id(schema)] = found.setdefault(schema.digest, (schema, []))[1]
            sources.append((batch, table))
    return [_join(schema, sources) for schema, sources in found.values()]
