"""Tables of a file that stay open between bursts."""

from __future__ import annotations

import gc
import time
from collections import OrderedDict
from typing import Any

from colmet.collector.columns import RowLayout

# An open table takes 0.05 MB, or 0.2 MB until it is opened again after it was created; opening one takes 3 to 5 ms.
# A burst for more tables than that opens each of them twice.
MAX_TABLES = 4096
MAX_COLUMNS = 1 << 18  # of all of them; each takes 2 kB
# What PyTables knows of a table refers to itself, and Python looks for such things seldom (`tune_garbage_collector`).
MAX_CLOSED = 512
IDLE_S = 900.0  # a table that got no rows for so long is closed: its job has ended


class OpenTable:
    """An open table, and how the rows that it got last are laid out in it."""

    __slots__ = ("columns", "digest", "layout", "table", "used")

    def __init__(self, table: Any) -> None:
        self.table = table
        self.columns = len(table.colnames)
        self.digest = b""
        self.layout: RowLayout | None = None
        self.used = time.monotonic()


class OpenTables:
    """Keeps tables open by job and name, the least recently used one first; None where no table can be."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[int, str], OpenTable | None] = OrderedDict()
        self._columns = 0
        self._closed = 0  # since their memory was given back

    def __len__(self) -> int:
        return len(self._tables)

    def __contains__(self, key: tuple[int, str]) -> bool:
        return key in self._tables

    def use(self, key: tuple[int, str]) -> OpenTable | None:
        """Return what is kept under a key, as the most recently used; KeyError where nothing is."""
        self._tables.move_to_end(key)
        found = self._tables[key]
        if found is not None:
            found.used = time.monotonic()
        return found

    def keep(self, key: tuple[int, str], table: Any) -> OpenTable | None:
        """Keep a table, or None, and close others where there are too many."""
        kept = self._tables[key] = None if table is None else OpenTable(table)
        if kept is not None:
            self._columns += kept.columns
        while len(self._tables) > MAX_TABLES or self._columns > MAX_COLUMNS:
            self._close_oldest()
        return kept

    def forget(self) -> None:
        """Forget all tables, which are closed or of no use now."""
        self._tables.clear()
        self._columns = 0

    def close_idle(self) -> None:
        """Close tables that got no rows for a while."""
        before = time.monotonic() - IDLE_S
        while self._tables:
            oldest = next(iter(self._tables.values()))
            if oldest is not None and oldest.used >= before:
                break
            self._close_oldest()
        if self._closed >= MAX_CLOSED:
            self._closed = 0
            gc.collect()

    def _close_oldest(self) -> None:
        _, oldest = self._tables.popitem(last=False)
        self._closed += 1
        if oldest is not None:
            self._columns -= oldest.columns
            oldest.table._f_close(flush=False)  # the burst ends with a flush of the whole file
