"""Tables of a file as they were found, so that a burst opens each once."""

from __future__ import annotations

from collections import OrderedDict

from colmet.collector.backends.hdf5.libhdf5 import Dataset

MAX_TABLES = 1 << 15  # 0.5 kB each; to find one in the file needs 0.06 ms


class KnownTables:
    """Tables by job and name, least recently used first; None where another object has the path."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[int, str], Dataset | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tables)

    def __contains__(self, key: tuple[int, str]) -> bool:
        return key in self._tables

    def use(self, key: tuple[int, str]) -> Dataset | None:
        """Return the entry of a key and mark it as the most recently used; KeyError if there is none."""
        self._tables.move_to_end(key)
        return self._tables[key]

    def keep(self, key: tuple[int, str], table: Dataset | None) -> None:
        """Keep a table, or None, and forget the least recently used one beyond the limit."""
        self._tables[key] = table
        if len(self._tables) > MAX_TABLES:
            self._tables.popitem(last=False)

    def drop(self, key: tuple[int, str]) -> None:
        """Forget a table."""
        self._tables.pop(key, None)

    def clear(self) -> None:
        """Forget all tables."""
        self._tables.clear()
