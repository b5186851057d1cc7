"""PyTables as Colmet loads it, how files are opened with it, and what its errors mean."""

from __future__ import annotations

import os
import pickle
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# HDF5 locks a file that it opens, so that other programs that use their defaults could not open the live one. HDF5
# reads this when it is loaded, so it is set before PyTables is imported; who sets it otherwise is obeyed.
os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")
import tables as tables  # others take it from here, as it has to be loaded after the line above
import tables.atom
import tables.attributeset


class _NoPickle:
    """Stands in PyTables for the module `pickle`: opening or reading a file never runs code that the file brings.

    PyTables unpickles each text attribute that ends with a dot, and the rows of arrays of objects. Colmet writes
    neither.
    """

    HIGHEST_PROTOCOL = pickle.HIGHEST_PROTOCOL

    @staticmethod
    def loads(*_: Any, **__: Any) -> Any:
        """Refuse; PyTables then returns the bytes as they are, or raises."""
        raise pickle.UnpicklingError("this file has a pickled Python object, which is not read as it could run code")

    @staticmethod
    def dumps(*_: Any, **__: Any) -> bytes:
        """Refuse to write what could not be read back."""
        raise pickle.PicklingError("Colmet's files have no pickled Python objects")


for _module in (tables.attributeset, tables.atom):
    if not hasattr(_module, "pickle"):
        raise ImportError(f"{_module.__name__} has no name `pickle`: this version of PyTables may run code of files")
    _module.pickle = _NoPickle

# No chunk cache: rows go to the file within `append`, where PyTables notices that they cannot, and a handle keeps no
# chunk (64 to 128 kB). As each burst ends with a flush, a cache would save nothing: 100 rows a table and burst take
# 7 % less CPU time without one, or 2 % more when the chunk that is being filled has to be uncompressed first.
CHUNK_CACHE_BYTES = 0

STORAGE_ERRORS = (
    OSError,
    tables.HDF5ExtError,
    tables.NodeError,
    tables.ClosedNodeError,
    tables.ClosedFileError,
    tables.FileModeError,
)
_ERRNO_TEXT = re.compile(r"errno = (\d+), error message = '([^']+)'")


def cause(err: BaseException) -> str:
    """Return one line for a failure: the system's error, out of HDF5's back trace where there is one."""
    text = str(err)
    found = _ERRNO_TEXT.search(text)
    if found:
        return found.group(2)
    if isinstance(err, OSError) and err.strerror:
        return err.strerror
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else type(err).__name__


def is_of_system(err: BaseException) -> bool:
    """Whether the system failed, e.g. a full disk; else what HDF5 found in the file is not in order.

    On a damaged file PyTables raises anything: AttributeError, MemoryError, SystemError, UnicodeDecodeError...
    """
    return isinstance(err, OSError) or (isinstance(err, tables.HDF5ExtError) and bool(_ERRNO_TEXT.search(str(err))))


def open_library(path: str, mode: str) -> Any:
    """PyTables' file, opened with our settings."""
    # PyTables warns of every column that is no Python identifier, such as 0.6's utilization-gpu.
    warnings.filterwarnings("ignore", category=tables.NaturalNameWarning)
    return tables.open_file(
        path,
        mode,
        chunk_cache_size=CHUNK_CACHE_BYTES,
        # Both only bound when PyTables warns.
        max_group_width=1 << 40,
        max_columns=1 << 20,
    )


def close_library(file: Any) -> None:
    """Close PyTables' file. Where that fails it does not count as open, or its path could not be opened again."""
    try:
        file.close()
    except Exception:
        tables.file._open_files.remove(file)
        raise


@contextmanager
def opened_library(path: str, mode: str) -> Iterator[Any]:
    """PyTables' file, for a `with` block."""
    file = open_library(path, mode)
    try:
        yield file
    finally:
        close_library(file)
