"""Tables of a file kept open between bursts."""

from __future__ import annotations

import contextlib
from collections import OrderedDict

from colmet.collector.backends.hdf5.libhdf5 import Dataset
from colmet.collector.backends.hdf5.space import chunk_bytes
from colmet.collector.columns import RowLayout

MAX_BLOCK_JOBS = 128  # jobs with rows converted together: all of their tables are open
MAX_TABLES = 1024  # an open one uses 40 kB of memory, most of it in the cache of the library; opening one needs 0.15 ms


MAX_COLUMNS = 1 << 17  # of all open tables: 0.9 kB each, and senders choose those of undeclared tables


class OpenTable:
    """An open table, and the layout of its latest rows."""

    __slots__ = ("columns", "dataset", "digest", "layout")

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.columns = len(dataset.form.dtype)
        self.digest = b""
        self.layout: RowLayout | None = None

    def growth(self, count: int) -> int:
        """Return the maximum growth of the file, in bytes, for `count` more rows."""
        form = self.dataset.form
        return chunk_bytes(self.dataset.rows, count, form.chunk_rows, form.dtype.itemsize, form.is_filtered)


class OpenTables:
    """Open tables by job and name, least recently used first; None where another object has the path."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[int, str], OpenTable | None] = OrderedDict()
        self._columns = 0

    def __len__(self) -> int:
        return len(self._tables)

    def __contains__(self, key: tuple[int, str]) -> bool:
        return key in self._tables

    def use(self, key: tuple[int, str]) -> OpenTable | None:
        """Return the entry of a key and mark it as the most recently used; KeyError if there is none."""
        self._tables.move_to_end(key)
        return self._tables[key]

    def keep(self, key: tuple[int, str], dataset: Dataset | None) -> OpenTable | None:
        """Keep a table, or None, and close the least recently used ones beyond the limits."""
        kept = self._tables[key] = None if dataset is None else OpenTable(dataset)
        self._columns += 0 if kept is None else kept.columns
        while len(self._tables) > MAX_TABLES or (
            self._columns > MAX_COLUMNS and len(self._tables) > 2 * MAX_BLOCK_JOBS + 2
        ):
            self._close(self._tables.popitem(last=False)[1])
        return kept

    def drop(self, key: tuple[int, str]) -> None:
        """Close a table."""
        self._close(self._tables.pop(key, None))

    def close(self) -> None:
        """Close all tables; the first failure is raised behind the last."""
        with contextlib.ExitStack() as stack:
            while self._tables:
                stack.callback(self._close, self._tables.popitem()[1])

    def _close(self, table: OpenTable | None) -> None:
        if table is not None:
            self._columns -= table.columns
            table.dataset.close()
