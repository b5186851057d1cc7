"""The tables of an open file: found, made, and rebuilt with more columns, so that a job's rows have a place."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from colmet.collector.backends.hdf5.checkpoint import Undo
from colmet.collector.backends.hdf5.h5table import (
    REBUILT,
    REPLACED,
    Templates,
    column,
    copy_rows,
    create_table,
    group_path,
    growth,
    temporary,
    title,
)
from colmet.collector.backends.hdf5.libhdf5 import Dataset, LibraryFile, NotFlatError
from colmet.collector.backends.hdf5.library import opened_library
from colmet.collector.columns import RowLayout, RowsByJob, columns_of, declared_columns, file_columns, grown, names_for
from colmet.common.schema import Schema
from colmet.common.tables import column_types

log = logging.getLogger(__name__)

MAX_KNOWN = 1 << 15  # tables, 0.5 kB each; to find one in the file needs 0.06 ms
MAX_LAYOUTS = 64  # each has a block
MAX_WARNINGS = 1000
FLUSHED_TABLES = 128  # their descriptions, of 14 kB, fit into `METADATA_CACHE_BYTES`
# Of one table, for columns not declared by Colmet, while a file is open; a site runs few versions at a time.
MAX_REBUILDS = 16


class Piece(NamedTuple):
    """Rows `first` to `last`, in the order by job, for one table."""

    table: Dataset
    layout: RowLayout
    first: int
    last: int


def header_bytes(columns: int, row_bytes: int) -> int:
    """Return the maximum size of a table's description in the file, in bytes; measured, then doubled."""
    return 4096 + 512 * columns + 3 * row_bytes


class JobTables:
    """Tables of jobs in a file that is open for writing.

    Args:
        reserve: reserves space in the file system for this many more bytes of the file.
        sync: writes all of the file to disk.

    Attributes:
        count: number of tables; None if not counted.
        left_out: counts of values and of rows dropped by the current burst.
        replaced: former versions of tables rebuilt by the last burst.
        header_bytes: of the descriptions of tables made by the current burst, at most.
    """

    def __init__(
        self, path: str, library: LibraryFile, filters: Any, reserve: Callable[[int], None], sync: Callable[[], None]
    ) -> None:
        self._path, self._library, self._reserve, self._sync = path, library, reserve, sync
        self._templates = Templates(filters)
        self._known: OrderedDict[tuple[int, str], Dataset | None] = OrderedDict()  # last used last; None: not ours
        self._layout = lru_cache(MAX_LAYOUTS)(lambda schema, form: RowLayout(schema, form.dtype))
        self._columns = lru_cache(MAX_LAYOUTS)(lambda schema: grown({}, file_columns(schema)))
        self._rebuilds: Counter[tuple[int, str]] = Counter()
        self._warned: set[tuple[str, str]] = set()
        self.count: int | None = None
        self.left_out = [0, 0]
        self.replaced: list[str] = []
        self.header_bytes = 0

    def close(self) -> None:
        """Forget all templates."""
        self._templates.close()

    def forget(self) -> None:
        """Forget what is known of the file, after a change by others."""
        self._known.clear()
        self.replaced.clear()
        self.count = None

    def begin_burst(self) -> None:
        """Count from 0."""
        self.left_out = [0, 0]
        self.header_bytes = 0

    # -- for a burst --

    def of_part(self, part: RowsByJob) -> Iterator[tuple[str, Dataset | None]]:
        """Yield the path and the table, or None for a new one, of each table that rows may go to."""
        names = names_for(part.batch.schema)
        for job, name in ((job, name) for job in part.jobs for name in names):
            is_taken, table = self._find(job, name)
            if table is not None or not is_taken:
                yield f"{group_path(job)}/{name}", table

    def make(self, parts: Iterable[RowsByJob], undo: Undo) -> None:
        """Make the tables that a burst lacks, and write the library's structures to the file.

        The library writes some of them at any time, for room in its cache. If these refer to groups that are not in the
        file yet, a kill makes all of the file unreadable. So they are written before the cache is full.
        """
        new = {path for path, rows in undo.items() if rows is None}
        wanted: dict[tuple[int, str], tuple[Schema, int]] = {}
        for part in parts:
            before, schema = len(wanted), part.batch.schema
            name = names_for(schema)[0]
            for job, start, stop in zip(part.jobs, part.starts, part.starts[1:]):
                if f"{group_path(job)}/{name}" in new:
                    wanted.setdefault((job, name), (schema, stop - start))
            if len(wanted) > before:
                self._add_headers(self._columns(schema), len(wanted) - before)
        for n, ((job, name), (schema, rows)) in enumerate(wanted.items()):
            if n and n % FLUSHED_TABLES == 0:
                self._library.flush()
            self._new_table(job, name, schema, rows)
        self._library.flush()

    def pieces(self, schema: Schema, jobs: Sequence[int], starts: Sequence[int]) -> Iterator[Piece]:
        """Yield the rows of each job with their table, split into pieces of at most a block."""
        for job, start, stop in zip(jobs, starts, starts[1:]):
            table, layout = self._table(job, schema, stop - start)
            if table is None or layout is None:
                self.left_out[1] += stop - start
                continue
            self.left_out[0] += (len(layout.unfit) + len(layout.left_out)) * (stop - start)
            for first in range(start, stop, layout.capacity):
                yield Piece(table, layout, first, min(first + layout.capacity, stop))

    # -- one table --

    def _find(self, job: int, name: str) -> tuple[bool, Dataset | None]:
        """Return whether the table's path is in use, and the table; None if another object is there."""
        key = (job, name)
        if key in self._known:
            self._known.move_to_end(key)
            return True, self._known[key]
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
        self._know(key, None)
        if self._is_news(in_the_way, ""):
            log.warning("rows dropped, another object has their path: path=%s node=%s", self._path, in_the_way)
        return True, None

    def _know(self, key: tuple[int, str], table: Dataset | None) -> None:
        self._known[key] = table
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _look_up(self, job: int, name: str) -> Dataset:
        self._forget_forms()
        table = self._library.find(f"{group_path(job)}/{name}".encode())
        self._know((job, name), table)
        return table

    def _forget_forms(self) -> None:
        if self._library.forget_forms():
            self._known.clear()

    def _table(self, job: int, schema: Schema, rows: int) -> tuple[Dataset | None, RowLayout | None]:
        """Return the table for a job's rows, and their layout there; None if there can be none.

        It has all columns of the rows. If earlier rows had conflicting columns, these rows go to another table. This
        concerns only columns not declared by Colmet: rows of its own tables never do.
        """
        table, layout = None, None
        names = names_for(schema)
        for name in names:
            is_taken, table = self._find(job, name)
            if not is_taken:
                self._add_headers(self._columns(schema), 1)
                table = self._new_table(job, name, schema, rows)
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
            and (any(column in own for column in layout.lacking) or self._count_rebuild(job, name) <= MAX_REBUILDS)
        ):
            table = self._widen(job, name, schema)
        table.digest = schema.digest
        return table

    def _count_rebuild(self, job: int, name: str) -> int:
        """Count a rebuild of a table: each one copies all rows."""
        self._rebuilds[job, name] += 1
        return self._rebuilds[job, name]

    def _new_table(self, job: int, name: str, schema: Schema, rows: int) -> Dataset:
        """Make a table that gets this many rows at first, and for whose header space is reserved."""
        group = group_path(job)
        if not self._library.exists(group.encode()):
            self._templates.add_group(self._library, group)
        self._forget_forms()
        path = f"{group}/{name}"
        table = self._templates.add_table(self._library, path, title(job), schema.digest, self._columns(schema), rows)
        self._know((job, name), table)
        self.count = None if self.count is None else self.count + 1
        return table

    def _add_headers(self, columns: Mapping[str, Any], count: int) -> None:
        self.header_bytes += count * header_bytes(len(columns), sum([np.dtype(d).itemsize for d in columns.values()]))
        self._reserve(0)

    def _widen(self, job: int, name: str, schema: Schema) -> Dataset:
        """Rebuild a table under its name with all columns of a schema, and return it.

        The former one stays under another name until the burst is committed. Each step is on disk before the next.
        """
        group, path = group_path(job), f"{group_path(job)}/{name}"
        rebuilt, replaced = temporary(path, REBUILT), temporary(path, REPLACED)
        self._known.pop((job, name), None)
        with opened_library(self._path, "r+") as file:
            table = file.get_node(path)
            wanted = {**declared_columns(schema.name), **file_columns(schema)}
            dtypes = grown(columns_of(table.dtype), wanted)
            defaults = {name: table.coldescrs[name].dflt for name in table.colnames}
            columns = {name: column(dtype, i, defaults.get(name)) for i, (name, dtype) in enumerate(dtypes.items())}
            log.info("table gets more columns: path=%s table=%s rows=%d", self._path, path, table.nrows)
            self._add_headers(dtypes, 1)
            target = create_table(file, group, f"{REBUILT}{name}", columns, table.title, table.filters)
            self._reserve(growth(target, int(table.nrows)))
            table.attrs._f_copy(target)
            copy_rows(table, target)
            file.flush()
            self._sync()
            table._f_close(flush=False)
            if replaced in file:  # widened again in the same burst
                file.remove_node(path)
            else:
                file.rename_node(path, f"{REPLACED}{name}")
                self.replaced.append(replaced)
            file.rename_node(rebuilt, name)
        self._sync()
        return self._look_up(job, name)

    # -- warnings --

    def _warn_of_misfits(self, table: str, layout: RowLayout, name: str, last: str) -> None:
        if not layout.fits and name != last:
            if self._is_news(table, last):
                log.warning(
                    "rows go to another table, others came first with other columns: path=%s table=%s other=%s",
                    *(self._path, table, last),
                )
            return
        for name in layout.conflicting:
            self._warn(table, name, "the file has it with another kind of value")
        if layout.lacking:
            self._warn(table, f"{layout.lacking[0]}...", f"the table was rebuilt {MAX_REBUILDS} times")
        elif layout.left_out:
            self._warn(table, f"{layout.left_out[0]}...", "more columns than HDF5 can describe")

    def _warn(self, table: str, name: str, reason: str) -> None:
        if self._is_news(table, name):
            log.warning("column dropped: path=%s table=%s column=%s cause=%s", self._path, table, name, reason)

    def _is_news(self, table: str, name: str) -> bool:
        """Return whether to log this warning: each one once, and a limited number in all."""
        is_new = (table, name) not in self._warned and len(self._warned) < MAX_WARNINGS
        if is_new:
            self._warned.add((table, name))
        return is_new
