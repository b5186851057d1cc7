"""PyTables with Colmet's settings: its import, the opening of files, and the meaning of its errors."""

from __future__ import annotations

import os
import pickle
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# HDF5 locks an open file, so that other programs with default settings could not open the live one. HDF5 reads this
# variable when loaded, so it is set before the import of PyTables; a value from the environment is kept.
os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")
import tables as tables  # other modules import it from here, as it must be loaded after the line above
import tables.atom
import tables.attributeset


class _NoPickle:
    """Replacement of the module `pickle` in PyTables: opening or reading a file never runs code from the file.

    PyTables unpickles text attributes ending with a dot, and the rows of arrays of objects. Colmet writes neither.
    """

    HIGHEST_PROTOCOL = pickle.HIGHEST_PROTOCOL

    @staticmethod
    def loads(*_: Any, **__: Any) -> Any:
        """Raise UnpicklingError; PyTables then returns the raw bytes, or raises."""
        raise pickle.UnpicklingError("this file has a pickled Python object, which is not read as it could run code")

    @staticmethod
    def dumps(*_: Any, **__: Any) -> bytes:
        """Raise PicklingError: pickled objects could not be read back."""
        raise pickle.PicklingError("Colmet's files have no pickled Python objects")


for _module in (tables.attributeset, tables.atom):
    if not hasattr(_module, "pickle"):
        raise ImportError(f"{_module.__name__} has no name `pickle`: this version of PyTables may run code of files")
    _module.pickle = _NoPickle

# No chunk cache: rows go to the file within `append`, where PyTables detects write errors, and a handle keeps no chunk
# (64 to 128 kB). As each burst ends with a flush, a cache would save nothing: 100 rows per table and burst need 7 %
# less CPU time without one, or 2 % more if the partly filled chunk must be decompressed first.
CHUNK_CACHE_BYTES = 0

BACKEND_VERSION = 2  # attribute of every table, as in 0.6's files

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
    """Return one line for a failure: the system's error, extracted from HDF5's back trace if present."""
    text = str(err)
    found = _ERRNO_TEXT.search(text)
    if found:
        return found.group(2)
    if isinstance(err, OSError) and err.strerror:
        return err.strerror
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else type(err).__name__


def is_of_system(err: BaseException) -> bool:
    """Return whether the system failed, e.g. a full disk; otherwise the content of the file is invalid.

    On a damaged file PyTables raises anything: AttributeError, MemoryError, SystemError, UnicodeDecodeError...
    """
    return isinstance(err, OSError) or (isinstance(err, tables.HDF5ExtError) and bool(_ERRNO_TEXT.search(str(err))))


def open_library(path: str, mode: str, **options: Any) -> Any:
    """Open a file in PyTables with Colmet's settings, and options of PyTables."""
    # PyTables warns of column names that are not Python identifiers, such as 0.6's utilization-gpu.
    warnings.filterwarnings("ignore", category=tables.NaturalNameWarning)
    file = tables.open_file(
        path,
        mode,
        chunk_cache_size=CHUNK_CACHE_BYTES,
        # Both are only thresholds for PyTables' warnings.
        max_group_width=1 << 40,
        max_columns=1 << 20,
        **options,
    )
    if mode != "w":
        _refuse_foreign_data(file)
    return file


def _refuse_foreign_data(file: Any) -> None:
    """Let PyTables open no link, and nothing with data in other files: a file of others would show any file."""
    # It calls the library that PyTables has loaded, by this module.
    from colmet.collector.backends.hdf5.libhdf5 import OpenFile

    manager, library = file._node_manager, OpenFile(file.root._v_objectid)
    load = manager.node_factory

    def load_own(path: str) -> Any:
        library.check_own(os.fsencode(path))
        return load(path)

    manager.node_factory = load_own


def close_library(file: Any) -> None:
    """Close PyTables' file; after a failure mark it as closed, so that its path can be reopened."""
    try:
        file.close()
    except Exception:  # after a failure of HDF5, PyTables raises anything
        tables.file._open_files.remove(file)
        raise


@contextmanager
def opened_library(path: str, mode: str) -> Iterator[Any]:
    """Open a file in PyTables for a `with` block."""
    file = open_library(path, mode)
    try:
        yield file
    finally:
        close_library(file)
