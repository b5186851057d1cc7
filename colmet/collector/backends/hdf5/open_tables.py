"""Tables of a file kept open between bursts."""

from __future__ import annotations

import gc
import time
from collections import OrderedDict
from typing import Any

from colmet.collector.columns import RowLayout

# An open table uses 0.05 MB of memory (0.2 MB from its creation to its first reopening); opening one takes 3 to 5 ms.
# A burst for more tables opens each of them twice.
MAX_TABLES = 4096
MAX_COLUMNS = 1 << 18  # of all open tables; 2 kB each
# PyTables' objects for a table are reference cycles, which Python collects seldom (`tune_garbage_collector`).
MAX_CLOSED = 512
IDLE_S = 900.0  # a table without rows for this time is closed: its job has ended


class OpenTable:
    """An open table, and the layout of its latest rows."""

    __slots__ = ("columns", "digest", "layout", "table", "used")

    def __init__(self, table: Any) -> None:
        self.table = table
        self.columns = len(table.colnames)
        self.digest = b""
        self.layout: RowLayout | None = None
        self.used = time.monotonic()


class OpenTables:
    """Open tables by job and name, least recently used first; None where another object has the path."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[int, str], OpenTable | None] = OrderedDict()
        self._columns = 0
        self._closed = 0  # since the last garbage collection

    def __len__(self) -> int:
        return len(self._tables)

    def __contains__(self, key: tuple[int, str]) -> bool:
        return key in self._tables

    def use(self, key: tuple[int, str]) -> OpenTable | None:
        """Return the entry of a key and mark it as the most recently used; KeyError if there is none."""
        self._tables.move_to_end(key)
        found = self._tables[key]
        if found is not None:
            found.used = time.monotonic()
        return found

    def keep(self, key: tuple[int, str], table: Any) -> OpenTable | None:
        """Keep a table, or None, and close the least recently used ones beyond the limits."""
        kept = self._tables[key] = None if table is None else OpenTable(table)
        if kept is not None:
            self._columns += kept.columns
        while len(self._tables) > MAX_TABLES or self._columns > MAX_COLUMNS:
            self._close_oldest()
        return kept

    def forget(self) -> None:
        """Forget all tables without closing them: they are closed or unusable."""
        self._tables.clear()
        self._columns = 0

    def close_idle(self) -> None:
        """Close tables without rows for `IDLE_S` seconds."""
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
