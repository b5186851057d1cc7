"""One HDF5 file for appending rows: its tables, its lock, its space, and the rollback of a failed write.

A burst is `plan`, `make_tables`, any number of `append`, `flush` and `sync`; `restore` rolls it back. Between bursts
the file is complete on disk: other programs can open it, and a kill harms nothing.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from colmet.collector.backends.hdf5.chunk_backup import KeptTails, TailWriter, remove_tails
from colmet.collector.backends.hdf5.file_lock import lock
from colmet.collector.backends.hdf5.h5table import (
    REBUILT,
    REPLACED,
    Damaged,
    column,
    copy_rows,
    create_table,
    group_path,
    growth,
    last_chunk,
    reading,
    table_names,
    tail_is,
    temporary,
    title,
)
from colmet.collector.backends.hdf5.known_tables import KnownTables
from colmet.collector.backends.hdf5.libhdf5 import Dataset, LibraryFile, NotFlatError
from colmet.collector.backends.hdf5.library import (
    STORAGE_ERRORS,
    cause,
    close_library,
    is_of_system,
    open_library,
    opened_library,
    tables,
)
from colmet.collector.backends.hdf5.space import SPARE_BYTES, header_bytes, promise
from colmet.collector.backends.hdf5.templates import Templates
from colmet.collector.columnar import RowsByJob
from colmet.collector.columns import (
    RowLayout,
    columns_of,
    declared_columns,
    file_columns,
    grown,
    involved_jobs,
    names_for,
)
from colmet.common.errors import ColmetError, ConfigError, OutputUnavailable
from colmet.common.runtime.files import reason_with_remedy, sync_directory
from colmet.common.schema import Schema
from colmet.common.tables import column_types

log = logging.getLogger(__name__)


MAX_LAYOUTS = 64  # each has a block
MAX_WARNINGS = 1000
# Of one table, for columns not declared by Colmet, while a file is open; a site runs few versions at a time.
MAX_REBUILDS = 16

_BUSY = re.compile(rf"unable to lock file.*errno = ({errno.EAGAIN}|{errno.EACCES}),")

# Path of a table -> its row count before the burst; None for a table created by it.
Undo = Mapping[str, "int | None"]
# Path of a table -> checksum of the rows in its last chunk, if HDF5 rewrites that chunk (see chunk_backup.py).
Tails = Mapping[str, int]


class _Piece(NamedTuple):
    """Rows `first` to `last`, in the order by job, for one table."""

    table: Dataset
    layout: RowLayout
    first: int
    last: int


def _blocks(pieces: Iterator[_Piece]) -> Iterator[list[_Piece]]:
    """Yield groups of adjacent pieces for conversion in one step."""
    block: list[_Piece] = []
    for piece in pieces:
        if block and (
            piece.layout is not block[0].layout
            or piece.first != block[-1].last
            or piece.last - block[0].first > piece.layout.capacity
        ):
            yield block
            block = []
        block.append(piece)
    if block:
        yield block


class Hdf5File:
    """HDF5 file being written.

    Args:
        path: absolute.
        filters: PyTables' filters for new tables.

    Attributes:
        created: whether `open` created it.
        tables: number of its tables; None if not counted.
        known_tables: those of recent rows.
        left_out: counts of values and of rows dropped by the current burst.
        replaced: former versions of tables rebuilt by the last burst; see `drop_replaced`.
    """

    def __init__(self, path: str, filters: Any) -> None:
        self.path = path
        self.created = False
        self.tables: int | None = None
        self.left_out = [0, 0]
        self._filters = filters
        self._file: LibraryFile | None = None
        self._templates = Templates(filters)
        self._lock = -1
        self.known_tables = KnownTables()
        self._layout = lru_cache(MAX_LAYOUTS)(lambda schema, form: RowLayout(schema, form.dtype))
        self._columns = lru_cache(MAX_LAYOUTS)(lambda schema: grown({}, file_columns(schema)))
        self._rebuilds: dict[str, int] = {}
        self.replaced: list[str] = []
        self._header_bytes = 0
        self._warned: set[tuple[str, str]] = set()

    # -- the file --

    @property
    def is_open(self) -> bool:
        """Return whether rows can be appended."""
        return self._file is not None

    @property
    def size_bytes(self) -> int:
        """Return the file size in bytes."""
        return self._library.size_bytes

    @property
    def _library(self) -> LibraryFile:
        assert self._file is not None  # open
        return self._file

    @property
    def inode(self) -> int:
        """Return the inode number, to recognise another file at the same path."""
        return os.fstat(self._lock).st_ino

    def lock(self) -> None:
        """Lock the file against other writers, with the errors of `file_lock.lock`."""
        if self._lock < 0:
            self._lock = lock(self.path)

    def open(self) -> None:
        """Open or create the file, and try to write to it.

        Raises:
            ConfigError: the file cannot be created or opened; nothing is left behind.
            OutputUnavailable: a reader has locked it.
            Damaged: the library does not recognise it as HDF5, or cannot open it.
        """
        directory = os.path.dirname(self.path)
        if not os.path.isdir(directory):
            raise ConfigError(f"{self.path}: directory {directory} does not exist; create it or change --hdf5-filepath")
        self.created = not os.path.lexists(self.path)
        try:
            if self.created:
                self._create()
            with open(self.path, "r+b"):  # the system's errors are clearer than those of HDF5
                pass
            if not tables.is_hdf5_file(self.path):
                raise Damaged(f"{self.path}: exists and is not an HDF5 file")
            self.lock()
            self._file = LibraryFile(self.path)
            with opened_library(self.path, "r+"):  # PyTables checks the version of its format
                self.flush()
        except ColmetError:
            self.close(keep_tails=True)
            raise
        except Exception as err:  # on a damaged file, PyTables raises anything
            self.close(keep_tails=True)
            if _BUSY.search(str(err)):
                raise OutputUnavailable(f"{self.path} is held open by a reader; waiting until that closes it") from err
            if not is_of_system(err):
                raise Damaged(f"{self.path}: cannot be opened for writing: {cause(err)}") from err
            raise ConfigError(
                f"{self.path}: cannot be opened for writing: {reason_with_remedy(self.path, cause(err))}; "
                f"check its owner, rights and disk, or change --hdf5-filepath"
            ) from err
        if self.created:
            self.tables = 0

    def _create(self) -> None:
        """Create the file under a temporary name, and rename it once complete."""
        new = f"{self.path}.new"
        try:
            with open(new, "wb") as file:
                promise(file.fileno(), 0, SPARE_BYTES)
            close_library(open_library(new, "w"))
            with open(new, "rb") as file:
                os.fsync(file.fileno())
            os.rename(new, self.path)
            sync_directory(os.path.dirname(self.path))
        except STORAGE_ERRORS:
            if os.path.lexists(new):
                os.unlink(new)
            raise

    def close(self, keep_tails: bool = False) -> bool:
        """Complete the file on disk and close it; return whether both succeeded.

        Args:
            keep_tails: whether a later rollback needs the backup of the last chunks.
        """
        clean = True
        file, self._file = self._file, None
        self._rebuilds.clear()
        self.replaced.clear()
        if file is not None:
            self.known_tables.clear()
            for step in (self._templates.close, file.close, self.sync):
                try:
                    step()
                except Exception as err:  # noqa: BLE001 - after a failure of HDF5, PyTables raises anything
                    log.warning("file not closed cleanly: path=%s cause=%s", self.path, cause(err))
                    clean = False
            try:
                if clean and not keep_tails:
                    remove_tails(self.path)
            except OSError as err:
                log.warning("file not closed cleanly: path=%s cause=%s", self.path, cause(err))
                clean = False
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        return clean

    def was_moved(self) -> bool:
        """Return whether the open file was moved or removed from its path; OSError if unknown."""
        try:
            there = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return True
        return not os.path.samestat(there, os.fstat(self._lock))

    def flush(self) -> None:
        """Write HDF5's own structures to the file, or raise the failure; rows are already there."""
        self._library.flush()
        os.ftruncate(self._lock, self.size_bytes)  # release unused reserved space

    def sync(self) -> None:
        """Sync the file to disk."""
        os.fsync(self._lock)

    def count(self) -> None:
        """Count the tables once, at 0.2 ms per job; Damaged if they cannot be listed."""
        if self.tables is not None:
            return
        with reading(self.path), opened_library(self.path, "r+") as file:
            self.tables = sum(1 for _ in table_names(file))

    # -- a burst --

    def plan(self, parts: Iterable[RowsByJob]) -> tuple[dict[str, int | None], dict[str, int]]:
        """Return the row counts of the tables touched by a burst, and the checksums of their last chunks."""
        self.left_out = [0, 0]
        self._header_bytes = 0
        undo: dict[str, int | None] = {}
        with TailWriter(self.path) as tails:
            for part in parts:
                names = names_for(part.batch.schema)
                for job, name in ((job, name) for job in part.jobs for name in names):
                    found, table = self._find(job, name)
                    path = f"{group_path(job)}/{name}"
                    if table is None:
                        if not found:
                            undo[path] = None
                        continue
                    rows = undo[path] = table.rows
                    form = table.form
                    if form.is_filtered and rows % form.chunk_rows:
                        tails.add(path, table.read(rows - rows % form.chunk_rows, rows).tobytes())
        return undo, tails.checksums

    def make_tables(self, parts: Iterable[RowsByJob], undo: Undo) -> None:
        """Make the tables that a burst lacks, and write the library's structures to the file.

        The library writes some of them at any time, for room in its cache. If these refer to groups that are not in the
        file yet, a kill during the appends makes all of the file unreadable.
        """
        new = {path for path, rows in undo.items() if rows is None}
        if not new:
            return
        wanted: dict[tuple[int, str], Schema] = {}
        for part in parts:
            before, schema = len(wanted), part.batch.schema
            name = names_for(schema)[0]
            for job in part.jobs:
                if f"{group_path(job)}/{name}" in new:
                    wanted.setdefault((job, name), schema)
            if len(wanted) > before:
                self._add_headers(self._columns(schema), len(wanted) - before)
        for (job, name), schema in wanted.items():
            self._new_table(job, name, schema)
        self._library.flush()

    def append(self, part: RowsByJob) -> None:
        """Convert the rows of one schema and append them to their jobs' tables."""
        batch = part.batch
        hosts = np.array([host.encode() for host in batch.hosts], dtype="S")
        involved = involved_jobs(batch)
        for block in _blocks(self._pieces(batch.schema, part.jobs, part.starts)):
            self._reserve(sum([piece.table.growth(piece.last - piece.first) for piece in block]))
            start = block[0].first
            rows = block[0].layout.fill(batch, part.order[start : block[-1].last], hosts, involved)
            for table, _, first, last in block:
                table.append(rows[first - start : last - start])

    def _reserve(self, size: int) -> None:
        """Reserve space in the file system for `size` bytes and the burst's headers, or raise OSError."""
        # the last blocks of the file may be holes: allocated by HDF5, but not written yet
        start = max(0, self.size_bytes - SPARE_BYTES)
        promise(self._lock, start, SPARE_BYTES + size + self._header_bytes + SPARE_BYTES)

    def _pieces(self, schema: Schema, jobs: Sequence[int], starts: Sequence[int]) -> Iterator[_Piece]:
        """Yield the rows of each job with their table, split into pieces of at most a block."""
        for job, start, stop in zip(jobs, starts, starts[1:]):
            table, layout = self._table(job, schema)
            if table is None or layout is None:
                self.left_out[1] += stop - start
                continue
            self.left_out[0] += (len(layout.unfit) + len(layout.left_out)) * (stop - start)
            for first in range(start, stop, layout.capacity):
                yield _Piece(table, layout, first, min(first + layout.capacity, stop))

    # -- rollback --

    def restore(self, undo: Undo, tails: Tails) -> None:
        """Truncate tables to their previous rows, and remove tables created since.

        Raises:
            Damaged: a table has fewer rows than before, or different ones.
            Exception: after a failure of HDF5, PyTables raises anything.
        """
        self.known_tables.clear()
        self.replaced.clear()
        kept = KeptTails(self.path, tails)
        with opened_library(self.path, "r+") as file:
            for path, rows in undo.items():
                _settle(file, path)
                if rows is None:
                    _remove(file, path)
                    continue
                table = file.get_node(path) if path in file else None
                if table is None or table.nrows < rows:
                    raise Damaged(f"{self.path}: {path} has fewer than the {rows} rows that were written")
                if path in tails and not tail_is(table, rows, tails[path]):
                    self._mend(table, rows, kept.get(path))
                elif table.nrows > rows:
                    table.truncate(rows)
        self.tables = None
        self.count()
        self.flush()
        self.sync()

    def _mend(self, table: Any, rows: int, tail: bytes | None) -> None:
        """Restore the last chunk of a table from the backup."""
        if tail is None:
            raise Damaged(f"{self.path}: the last rows of {table._v_pathname} are others than those written")
        table.truncate(last_chunk(table, rows))
        self._reserve(growth(table, rows - int(table.nrows)))
        table.append(np.frombuffer(tail, table.dtype))

    def drop_replaced(self) -> None:
        """Remove former tables, after the commit of the burst only, as HDF5 reuses their space."""
        with opened_library(self.path, "r+") as file:
            for path in self.replaced:
                file.remove_node(path)
        self.replaced.clear()
        self.flush()
        self.sync()

    # -- tables --

    def _find(self, job: int, name: str) -> tuple[bool, Dataset | None]:
        """Return whether the table's path is in use, and the table; None if another object is there."""
        key = (job, name)
        if key in self.known_tables:
            return True, self.known_tables.use(key)
        group, path = group_path(job), f"{group_path(job)}/{name}"
        file = self._library
        in_the_way = group
        if not file.exists(group.encode()):
            return False, None
        with contextlib.suppress(NotFlatError):
            if file.is_group(group.encode()):
                in_the_way = path
                if not file.exists(path.encode()):
                    return False, None
                return True, self._look_up(job, name)
        self.known_tables.keep(key, None)
        if self._is_news(in_the_way, ""):
            log.warning("rows dropped, another object has their path: path=%s node=%s", self.path, in_the_way)
        return True, None

    def _look_up(self, job: int, name: str) -> Dataset:
        """Return the table that the file has; NotFlatError if it is another thing."""
        self._forget_forms()
        table = self._library.find(f"{group_path(job)}/{name}".encode())
        self.known_tables.keep((job, name), table)
        return table

    def _forget_forms(self) -> None:
        if self._library.forget_forms():
            self.known_tables.clear()

    def _table(self, job: int, schema: Schema) -> tuple[Dataset | None, RowLayout | None]:
        """Return the table for a job's rows, and their layout there; None if there can be none.

        It has all columns of the rows. If earlier rows had conflicting columns, these rows go to another table. This
        concerns only columns not declared by Colmet: rows of its own tables never do.
        """
        table, layout = None, None
        names = names_for(schema)
        for name in names:
            found, table = self._find(job, name)
            if not found:
                self._add_headers(self._columns(schema), 1)
                table = self._new_table(job, name, schema)
            if table is None:
                continue
            if table.digest != schema.digest:
                table = self._fitted(table, job, name, schema, is_last=name == names[-1])
            layout = self._layout(schema, table.form)
            if layout.unfit or layout.left_out:
                self._warn_of_misfits(schema.name, layout, name, names[-1])
            if layout.fits:
                break
        return table, layout

    def _fitted(self, table: Dataset, job: int, name: str, schema: Schema, is_last: bool) -> Dataset:
        """Return the table, with its missing columns added if the rows go there."""
        layout = self._layout(schema, table.form)
        own = column_types(schema.name)
        # all declared columns are added at once, so that one rebuild is enough
        if (
            layout.lacking
            and (is_last or not layout.conflicting)
            and (any(column in own for column in layout.lacking) or self._may_rebuild(job, name))
        ):
            table = self._widen(job, name, schema)
        table.digest = schema.digest
        return table

    def _warn_of_misfits(self, table: str, layout: RowLayout, name: str, last: str) -> None:
        """Warn once of values without a column."""
        if not layout.fits and name != last:
            if self._is_news(table, last):
                log.warning(
                    "rows go to another table, others came first with other columns: path=%s table=%s other=%s",
                    *(self.path, table, last),
                )
            return
        for name in layout.conflicting:
            self._warn(table, name, "the file has it with another kind of value")
        if layout.lacking:
            self._warn(table, f"{layout.lacking[0]}...", f"the table was rebuilt {MAX_REBUILDS} times")
        elif layout.left_out:
            self._warn(table, f"{layout.left_out[0]}...", "more columns than HDF5 can describe")

    def _may_rebuild(self, job: int, name: str) -> bool:
        """Count a rebuild of a table and return whether it is allowed: each one copies all rows."""
        path = f"{group_path(job)}/{name}"
        self._rebuilds[path] = self._rebuilds.get(path, 0) + 1
        return self._rebuilds[path] <= MAX_REBUILDS

    def _warn(self, table: str, name: str, reason: str) -> None:
        if self._is_news(table, name):
            log.warning("column dropped: path=%s table=%s column=%s cause=%s", self.path, table, name, reason)

    def _is_news(self, table: str, name: str) -> bool:
        """Return whether to log this warning: each one once, and a limited number in all."""
        is_new = (table, name) not in self._warned and len(self._warned) < MAX_WARNINGS
        if is_new:
            self._warned.add((table, name))
        return is_new

    def _new_table(self, job: int, name: str, schema: Schema) -> Dataset:
        """Make a table, for whose header space is reserved."""
        group = group_path(job)
        if not self._library.exists(group.encode()):
            self._templates.add_group(self._library, group)
        self._forget_forms()
        path = f"{group}/{name}"
        table = self._templates.add_table(self._library, path, title(job), schema.digest, self._columns(schema))
        self.known_tables.keep((job, name), table)
        self.tables = None if self.tables is None else self.tables + 1
        return table

    def _add_headers(self, columns: Mapping[str, Any], count: int) -> None:
        """Reserve space for the descriptions of more tables."""
        self._header_bytes += count * header_bytes(len(columns), sum([np.dtype(d).itemsize for d in columns.values()]))
        self._reserve(0)

    def _widen(self, job: int, name: str, schema: Schema) -> Dataset:
        """Rebuild a table under its name with all columns of a schema, and return it.

        The former one stays under another name until the burst is committed. Each step is on disk before the next.
        """
        group, path = group_path(job), f"{group_path(job)}/{name}"
        rebuilt, replaced = temporary(path, REBUILT), temporary(path, REPLACED)
        self.known_tables.drop((job, name))
        with opened_library(self.path, "r+") as file:
            table = file.get_node(path)
            wanted = {**declared_columns(schema.name), **file_columns(schema)}
            dtypes = grown(columns_of(table.dtype), wanted)
            defaults = {name: table.coldescrs[name].dflt for name in table.colnames}
            columns = {name: column(dtype, i, defaults.get(name)) for i, (name, dtype) in enumerate(dtypes.items())}
            log.info("table gets more columns: path=%s table=%s rows=%d", self.path, path, table.nrows)
            self._add_headers(dtypes, 1)
            target = create_table(file, group, f"{REBUILT}{name}", columns, table.title, table.filters)
            self._reserve(growth(target, int(table.nrows)))
            table.attrs._f_copy(target)
            copy_rows(table, target)
            file.flush()
            self.flush()
            self.sync()
            table._f_close(flush=False)
            if replaced in file:  # widened again in the same burst
                file.remove_node(path)
            else:
                file.rename_node(path, f"{REPLACED}{name}")
                self.replaced.append(replaced)
            file.rename_node(rebuilt, name)
        self.flush()
        self.sync()
        return self._look_up(job, name)


def _settle(file: Any, path: str) -> None:
    """Undo the rebuild of a table: its former version is unchanged."""
    rebuilt, replaced = temporary(path, REBUILT), temporary(path, REPLACED)
    if rebuilt in file:
        file.remove_node(rebuilt)
    if replaced in file:
        if path in file:
            file.remove_node(path)
        file.rename_node(replaced, path.rsplit("/", 1)[1])


def _remove(file: Any, path: str) -> None:
    group = path.rsplit("/", 1)[0]
    if path in file:
        file.remove_node(path)
    if group in file and file.get_node(group)._v_nchildren == 0:
        file.remove_node(group)
