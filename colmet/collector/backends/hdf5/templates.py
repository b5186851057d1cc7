"""Empty tables made by PyTables, to be copied: its attributes, titles and defaults at a twentieth of its time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from colmet.collector.backends.hdf5.h5table import chunk_rows, column, create_table
from colmet.collector.backends.hdf5.libhdf5 import Dataset, LibraryFile
from colmet.collector.backends.hdf5.library import close_library, open_library

MAX_TEMPLATES = 256  # the columns of undeclared tables are their sender's choice
_GROUP = "group"


class Templates:
    """A file in memory with an empty group and empty tables.

    Args:
        filters: PyTables' filters of the tables.
    """

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
        """Make a table in an existing group, and return it.

        Args:
            target: file of the table.
            path: of the table.
            title: of the table.
            key: the same for the same columns.
            columns: their numpy types by name.
            rows: that it gets at first.
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
