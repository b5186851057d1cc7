"""The HDF5 library that PyTables has loaded, called directly.

PyTables needs 4 ms to open a table and 3 ms to make one, most of it in Python; the library needs 0.1 ms. There is one
library, so PyTables can open a file that is open here.

Source: HDF5 Reference Manual, https://support.hdfgroup.org/documentation/hdf5/latest/_r_m.html
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from colmet.collector.backends.hdf5.library import CHUNK_CACHE_BYTES, tables
from colmet.collector.backends.hdf5.space import chunk_bytes

_CHUNKED, _VIRTUAL, _RDWR = 2, 3, 1
_FILE, _GROUP, _DATASET = 1, 2, 5  # H5I_type_t
_INTEGER, _FLOAT, _TIME, _STRING, _COMPOUND, _REFERENCE, _VLEN, _ARRAY = 0, 1, 2, 3, 6, 7, 9, 10  # H5T_class_t
_BIG_ENDIAN = 1
_NOT_FLAT = frozenset({_COMPOUND, _VLEN, _REFERENCE})
_ID, _SIZE, _INT = ctypes.c_int64, ctypes.c_uint64, ctypes.c_int
_TEXT, _BYTES = ctypes.c_char_p, ctypes.c_void_p
_SIZES = ctypes.POINTER(ctypes.c_uint64)
_One = _SIZE * 1

NROWS = b"NROWS"

# Of descriptions of tables and indexes of chunks, as in the file. In memory they need seven times as much.
METADATA_CACHE_BYTES = 2 << 20
# Of all forms of a file, 0.9 kB each; the columns of undeclared tables are their sender's choice.
MAX_COLUMNS = 1 << 14

# Symbols are looked up in the libraries of this module of PyTables. A PyDLL keeps the GIL: the threads of the collector
# compete for it, and to get it back can cost more than the call. Rows are written, and the file flushed, without it.
_holding, _releasing = (load(tables.hdf5extension.__file__) for load in (ctypes.PyDLL, ctypes.CDLL))


def _checked(result: int, function: Any, _arguments: tuple[Any, ...]) -> int:
    if result < 0:  # the exception has the library's own error stack
        raise tables.HDF5ExtError(f"{function.__name__} failed")
    return result


def _function(name: str, result: Any, *arguments: Any, library: Any = _holding) -> Callable[..., int]:
    found = library[name]
    found.__name__, found.restype, found.argtypes, found.errcheck = name, result, arguments, _checked
    return found  # type: ignore[no-any-return]


_a_exists = _function("H5Aexists", _INT, _ID, _TEXT)
_a_space = _function("H5Aget_space", _ID, _ID)
_a_size = _function("H5Aget_storage_size", _SIZE, _ID)
_a_open = _function("H5Aopen", _ID, _ID, _TEXT, _ID)
_a_read = _function("H5Aread", _INT, _ID, _ID, _BYTES)
_a_write = _function("H5Awrite", _INT, _ID, _ID, _BYTES)
_a_type = _function("H5Aget_type", _ID, _ID)
_a_close = _function("H5Aclose", _INT, _ID)
_d_create_plist = _function("H5Dget_create_plist", _ID, _ID)
_d_extend = _function("H5Dset_extent", _INT, _ID, _SIZES)
_d_read = _function("H5Dread", _INT, _ID, _ID, _ID, _ID, _ID, _BYTES, library=_releasing)
_d_space = _function("H5Dget_space", _ID, _ID)
_d_type = _function("H5Dget_type", _ID, _ID)
_d_write = _function("H5Dwrite", _INT, _ID, _ID, _ID, _ID, _ID, _BYTES, library=_releasing)
_f_close = _function("H5Fclose", _INT, _ID, library=_releasing)
_f_flush = _function("H5Fflush", _INT, _ID, _INT, library=_releasing)
_f_open = _function("H5Fopen", _ID, _TEXT, ctypes.c_uint, _ID)
_f_size = _function("H5Fget_filesize", _INT, _ID, _SIZES)
_g_info = _function("H5Gget_info", _INT, _ID, _BYTES)
_i_type = _function("H5Iget_type", _INT, _ID)
_HAS_TOKENS = hasattr(_holding, "H5Lget_info2")  # HDF5 1.12, not 1.10


class _Token(ctypes.Structure):
    """H5O_token_t: the place of an object in its file."""

    _fields_ = [("bytes", ctypes.c_uint8 * 16)]


class _Target(ctypes.Union):
    """Member of the next structure."""

    _fields_ = [("place", _Token if _HAS_TOKENS else _SIZE), ("text_bytes", ctypes.c_size_t)]


class _LinkInfo(ctypes.Structure):
    """H5L_info2_t, H5L_info_t."""

    _fields_ = [
        ("type", _INT),  # 0 for an object's own
        ("has_order", ctypes.c_bool),
        ("order", ctypes.c_int64),
        ("charset", _INT),
        ("target", _Target),
    ]


class _GroupInfo(ctypes.Structure):
    """H5G_info_t."""

    _fields_ = [("storage", _INT), ("links", _SIZE), ("order", ctypes.c_int64), ("is_mounted", ctypes.c_bool)]


_l_info = _function("H5Lget_info2" if _HAS_TOKENS else "H5Lget_info", _INT, _ID, _TEXT, _BYTES, _ID)
_l_exists = _function("H5Lexists", _INT, _ID, _TEXT, _ID)
_l_name = _function("H5Lget_name_by_idx", ctypes.c_ssize_t, _ID, _TEXT, _INT, _INT, _SIZE, _TEXT, ctypes.c_size_t, _ID)
_o_close = _function("H5Oclose", _INT, _ID)
_o_copy = _function("H5Ocopy", _INT, _ID, _TEXT, _ID, _TEXT, _ID, _ID)
_o_open = _function("H5Oopen", _ID, _ID, _TEXT, _ID)
_o_open_at = _function(
    "H5Oopen_by_token" if _HAS_TOKENS else "H5Oopen_by_addr", _ID, _ID, _Token if _HAS_TOKENS else _SIZE
)
_p_chunk = _function("H5Pget_chunk", _INT, _ID, _INT, _SIZES)
_p_close = _function("H5Pclose", _INT, _ID)
_p_create = _function("H5Pcreate", _ID, _ID)
_p_external = _function("H5Pget_external_count", _INT, _ID)
_p_filters = _function("H5Pget_nfilters", _INT, _ID)
_p_layout = _function("H5Pget_layout", _INT, _ID)
_p_get_metadata_cache = _function("H5Pget_mdc_config", _INT, _ID, _BYTES)
_p_set_metadata_cache = _function("H5Pset_mdc_config", _INT, _ID, _BYTES)
_p_set_cache = _function("H5Pset_cache", _INT, _ID, _INT, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_double)
_s_close = _function("H5Sclose", _INT, _ID)
_s_create = _function("H5Screate_simple", _ID, _INT, _SIZES, _SIZES)
_s_dims = _function("H5Sget_simple_extent_dims", _INT, _ID, _SIZES, _SIZES)
_s_rank = _function("H5Sget_simple_extent_ndims", _INT, _ID)
_s_select = _function("H5Sselect_hyperslab", _INT, _ID, _INT, _SIZES, _SIZES, _SIZES, _SIZES)
_t_class = _function("H5Tget_class", _INT, _ID)
_t_close = _function("H5Tclose", _INT, _ID)
_t_copy = _function("H5Tcopy", _ID, _ID)
_t_encode = _function("H5Tencode", _INT, _ID, _BYTES, ctypes.POINTER(ctypes.c_size_t))
_t_is_variable = _function("H5Tis_variable_str", _INT, _ID)
_t_member_name = _holding["H5Tget_member_name"]
_t_member_name.restype, _t_member_name.argtypes = ctypes.c_void_p, [_ID, ctypes.c_uint]
_free_memory = _function("H5free_memory", _INT, _BYTES)
_t_member_offset = _holding["H5Tget_member_offset"]
_t_member_offset.restype, _t_member_offset.argtypes = ctypes.c_size_t, [_ID, ctypes.c_uint]
_t_member_type = _function("H5Tget_member_type", _ID, _ID, ctypes.c_uint)
_t_members = _function("H5Tget_nmembers", _INT, _ID)
_t_native = _function("H5Tget_native_type", _ID, _ID, _INT)
_t_pack = _function("H5Tpack", _INT, _ID)
_t_super = _function("H5Tget_super", _ID, _ID)
_t_order = _function("H5Tget_order", _INT, _ID)
_t_sign = _function("H5Tget_sign", _INT, _ID)
_t_size = _holding["H5Tget_size"]
_t_size.restype, _t_size.argtypes = ctypes.c_size_t, [_ID]


_INT64 = _ID.in_dll(_holding, "H5T_NATIVE_INT64_g").value


@contextmanager
def _closing(identifier: int, close: Callable[[int], int]) -> Iterator[int]:
    try:
        yield identifier
    finally:
        close(identifier)


class _MetadataCache(ctypes.Structure):
    """Start of H5AC_cache_config_t, and room for the rest."""

    _fields_ = [
        ("version", ctypes.c_int),
        ("flags", ctypes.c_bool * 3),
        ("trace_file", ctypes.c_char * 1025),
        ("more_flags", ctypes.c_bool * 2),
        ("initial_size", ctypes.c_size_t),
        ("min_clean_fraction", ctypes.c_double),
        ("max_size", ctypes.c_size_t),
        ("min_size", ctypes.c_size_t),
        ("rest", ctypes.c_char * 512),
    ]


class NotFlatError(Exception):
    """An object is no table, or its columns have columns or no fixed size."""


class ForeignDataError(NotFlatError):
    """An object is a link, or its data are not in its file: a file shows nothing but itself."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path:.100} {what}; only what is in the file itself is read")


def _check_storage(properties: int, path: bytes) -> None:
    """Check that the data of a dataset are in its file; ForeignDataError if they are in others."""
    if _p_layout(properties) == _VIRTUAL or _p_external(properties):
        raise ForeignDataError(os.fsdecode(path), "has its rows in other files")


class TableForm:
    """What tables of the same columns have in common.

    Args:
        row: the library's type of a row in the file.
        chunk_rows: rows in a chunk.
        is_filtered: whether chunks are compressed or have checksums.

    Attributes:
        dtype: of a row in memory.
        memory_type: the library's type for it.
    """

    def __init__(self, row: int, chunk_rows: int, is_filtered: bool) -> None:
        names, kinds, is_foreign = [], [], False
        for n in range(_t_members(row)):
            pointer = _t_member_name(row, n)
            if not pointer:
                raise tables.HDF5ExtError("H5Tget_member_name failed")
            names.append(ctypes.string_at(pointer).decode("utf-8", "surrogateescape"))
            _free_memory(pointer)
            with _closing(_t_member_type(row, n), _t_close) as member:
                kinds.append(_kind(member))
                is_foreign |= kinds[-1] in "iuf" and _t_order(member) == _BIG_ENDIAN
        self.memory_type = _t_native(row, 0) if is_foreign else _t_copy(row)
        if is_foreign:
            _t_pack(self.memory_type)  # as PyTables has them in memory
        size, starts = _t_size(self.memory_type), [_t_member_offset(self.memory_type, n) for n in range(len(names))]
        formats = []
        for n, kind in enumerate(kinds):
            with _closing(_t_member_type(self.memory_type, n), _t_close) as member:
                formats.append(f"{kind}{_t_size(member)}")
        described = {"names": names, "formats": formats, "offsets": starts, "itemsize": size}
        try:
            self.dtype = np.dtype(described)  # type: ignore[call-overload]
        except (TypeError, ValueError, OverflowError) as err:  # numbers of 3 bytes, a name used twice
            raise NotFlatError from err
        self.chunk_rows, self.is_filtered = chunk_rows, is_filtered

    def __del__(self) -> None:
        if hasattr(self, "memory_type"):
            _t_close(self.memory_type)


def _kind(member: int) -> str:
    """Return numpy's letter for a column: V where Colmet has no such values."""
    kind = _t_class(member)
    if kind in _NOT_FLAT or (kind == _STRING and _t_is_variable(member)):
        raise NotFlatError
    if kind == _TIME and _t_order(member) == _BIG_ENDIAN:  # has no native type
        raise NotFlatError
    if kind == _ARRAY:
        with _closing(_t_super(member), _t_close) as base:
            _kind(base)
    if kind == _INTEGER:
        return "i" if _t_sign(member) else "u"
    return {_FLOAT: "f", _STRING: "S"}.get(kind, "V")


class Dataset:
    """A table of an open file. Each call opens it: an open one needs 0.1 MB.

    Args:
        file: the library's identifier of the file.
        place: of the table in the file; to find it by its path would read four more structures.
        form: of its rows.
        rows: their number.
        has_count: whether the attribute NROWS has them, too.

    Attributes:
        digest: of the schema of its latest rows.
    """

    __slots__ = ("_file", "_has_count", "_place", "digest", "form", "rows")

    def __init__(self, file: int, place: Any, form: TableForm, rows: int, has_count: bool) -> None:
        self._file, self._place, self.form, self.rows, self._has_count = file, place, form, rows, has_count
        self.digest = b""

    def growth(self, count: int) -> int:
        """Return the maximum growth of the file, in bytes, for `count` more rows."""
        form = self.form
        return chunk_bytes(self.rows, count, form.chunk_rows, form.dtype.itemsize, form.is_filtered)

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Append rows of the form's type, contiguous in memory."""
        after = _One(self.rows + len(rows))
        table = _o_open_at(self._file, self._place)
        try:
            _d_extend(table, after)
            self._transfer(_d_write, table, rows, self.rows)
            if self._has_count:
                attribute = _a_open(table, NROWS, 0)
                try:
                    _a_write(attribute, _INT64, after)
                finally:
                    _a_close(attribute)
        finally:
            _o_close(table)
        self.rows = after[0]

    def number(self, attribute: bytes) -> int | None:
        """Return an attribute, a whole number; None without it, or for another kind of value."""
        with _closing(_o_open_at(self._file, self._place), _o_close) as table:
            if not _a_exists(table, attribute):
                return None
            with _closing(_a_open(table, attribute, 0), _a_close) as found:
                with _closing(_a_type(found), _t_close) as kind, _closing(_a_space(found), _s_close) as space:
                    if _t_class(kind) != _INTEGER or _s_rank(space):
                        return None
                value = ctypes.c_int64()
                _a_read(found, _INT64, ctypes.byref(value))
                return value.value

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows."""
        rows = np.zeros(stop - start, self.form.dtype)  # padding included
        with _closing(_o_open_at(self._file, self._place), _o_close) as table:
            self._transfer(_d_read, table, rows, start)
        return rows

    def _transfer(self, way: Callable[..., int], table: int, rows: npt.NDArray[Any], start: int) -> None:
        count = _One(len(rows))
        memory = _s_create(1, count, None)
        try:
            place = _d_space(table)
            try:
                _s_select(place, 0, _One(start), None, count, None)
                way(table, self.form.memory_type, memory, place, 0, rows.ctypes.data)
            finally:
                _s_close(place)
        finally:
            _s_close(memory)


def _fits(attribute: int, kind: int, data: npt.NDArray[Any]) -> bool:
    """Return whether an attribute of some type can be overwritten with this text or number."""
    if _a_size(attribute) != data.nbytes:
        return False
    if data.dtype.kind == "S":
        return _t_class(kind) == _STRING and not _t_is_variable(kind)
    return _t_class(kind) == _INTEGER


def _has_count(table: int) -> bool:
    """Return whether a table has PyTables' count of rows, as a number of 8 bytes."""
    if not _a_exists(table, NROWS):
        return False
    with _closing(_a_open(table, NROWS, 0), _a_close) as attribute, _closing(_a_type(attribute), _t_close) as kind:
        return _fits(attribute, kind, np.zeros((), np.int64))


class OpenFile:
    """A file that is open.

    Args:
        identifier: the library's.

    Raises:
        HDF5ExtError: of PyTables, by all methods, with the library's error stack.
    """

    def __init__(self, identifier: int) -> None:
        self._id = identifier
        self._forms: dict[tuple[bytes, int, int], TableForm] = {}
        self._columns = 0  # of all forms

    def exists(self, path: bytes) -> bool:
        """Return whether a path has an object; all above it have one."""
        return bool(_l_exists(self._id, path, 0))

    def names(self, group: bytes) -> list[bytes]:
        """Return the names of all that is in a group of few objects, sorted; empty if there is no group at the path."""
        if not self.is_group(group):
            return []
        info = _GroupInfo()
        with _closing(_o_open(self._id, group, 0), _o_close) as found:
            _g_info(found, ctypes.byref(info))
            names = []
            for n in range(info.links):
                name = ctypes.create_string_buffer(_l_name(found, b".", 0, 0, n, None, 0, 0) + 1)
                _l_name(found, b".", 0, 0, n, name, len(name), 0)
                names.append(name.value)
        return names

    def check_own(self, path: bytes) -> None:
        """Check that the object at a path, if there is one, is in this file with all its data.

        Raises:
            ForeignDataError: it is a link or below one, or its data are in other files.
        """
        place = b""
        for name in path.strip(b"/").split(b"/"):
            if place and not self.is_group(place):
                return
            place += b"/" + name
            if not self.exists(place):
                return
        with _closing(_o_open_at(self._id, self._link(place).target.place), _o_close) as found:
            if _i_type(found) == _DATASET:
                with _closing(_d_create_plist(found), _p_close) as properties:
                    _check_storage(properties, path)

    def _link(self, path: bytes) -> _LinkInfo:
        """Return what is at a path; ForeignDataError for a link to another path, maybe in another file."""
        info = _LinkInfo()
        _l_info(self._id, path, ctypes.byref(info), 0)
        if info.type != 0:
            raise ForeignDataError(os.fsdecode(path), "is a link")
        return info

    def is_group(self, path: bytes) -> bool:
        """Return whether the object at a path is a group; ForeignDataError for a link."""
        with _closing(_o_open_at(self._id, self._link(path).target.place), _o_close) as found:
            return _i_type(found) == _GROUP

    def find(self, path: bytes) -> Dataset:
        """Return the table at a path.

        Raises:
            NotFlatError: the object there is another thing.
            ForeignDataError: it is a link, or its data are in other files.
        """
        link = self._link(path)
        with _closing(_o_open_at(self._id, link.target.place), _o_close) as found:
            if _i_type(found) != _DATASET:
                raise NotFlatError
            rows = _One()
            with _closing(_d_space(found), _s_close) as space:
                if _s_rank(space) != 1:
                    raise NotFlatError
                _s_dims(space, rows, None)
            return Dataset(self._id, link.target.place, self._form(found, path), int(rows[0]), _has_count(found))

    def _form(self, dataset: int, path: bytes) -> TableForm:
        with _closing(_d_create_plist(dataset), _p_close) as plist, _closing(_d_type(dataset), _t_close) as kind:
            _check_storage(plist, path)
            if _p_layout(plist) != _CHUNKED or _t_class(kind) != _COMPOUND:
                raise NotFlatError
            chunk, size = _One(), ctypes.c_size_t()
            _p_chunk(plist, 1, chunk)
            _t_encode(kind, None, size)
            encoded = ctypes.create_string_buffer(size.value)
            _t_encode(kind, encoded, size)
            key = encoded.raw, int(chunk[0]), _p_filters(plist)
            form = self._forms.get(key)
            if form is None:
                form = self._forms[key] = TableForm(kind, key[1], key[2] > 0)
                self._columns += len(form.dtype)
            return form


class LibraryFile(OpenFile):
    """A file open for writing.

    Args:
        path: of an HDF5 file.

    Raises:
        HDF5ExtError: of PyTables, by this and all methods, with the library's error stack.
    """

    def __init__(self, path: str) -> None:
        access = _ID.in_dll(_holding, "H5P_CLS_FILE_ACCESS_ID_g").value
        with _closing(_p_create(access), _p_close) as properties:
            _p_set_cache(properties, 0, 521, CHUNK_CACHE_BYTES, 0.75)
            cache = _MetadataCache(version=1)
            _p_get_metadata_cache(properties, ctypes.byref(cache))
            cache.max_size = METADATA_CACHE_BYTES
            _p_set_metadata_cache(properties, ctypes.byref(cache))
            super().__init__(_f_open(os.fsencode(path), _RDWR, properties))
        self._copied: dict[bytes, tuple[TableForm, bool]] = {}  # forms of copies, and whether they have NROWS

    @property
    def size_bytes(self) -> int:
        """Return the size of the file in bytes."""
        size = _One()
        _f_size(self._id, size)
        return int(size[0])

    def flush(self) -> None:
        """Write the library's own structures to the file."""
        _f_flush(self._id, 0)

    def close(self) -> None:
        """Close the file."""
        _f_close(self._id)

    def forget_forms(self) -> bool:
        """Forget all forms if they have too many columns; return whether tables found before have to be forgotten."""
        if self._columns <= MAX_COLUMNS:
            return False
        self._forms.clear()
        self._copied.clear()
        self._columns = 0
        return True

    def copy(self, source: int, name: bytes, path: bytes) -> None:
        """Copy an object, with all in it, from a group of any file to a free path of this one."""
        _o_copy(source, name, self._id, path, 0, 0)

    def add(self, source: int, name: bytes, path: bytes, title: bytes, key: bytes) -> Dataset:
        """Copy an empty table from a group of any file to a free path of this one, with a title of the same length.

        Args:
            source: the group.
            name: of the table there.
            path: of the copy.
            title: of the copy; one of another type stays.
            key: the same for tables of the same form.
        """
        self.copy(source, name, path)
        place, text = self._link(path).target.place, np.array(title)
        with _closing(_o_open_at(self._id, place), _o_close) as found:
            attribute = _a_open(found, b"TITLE", 0)
            with _closing(attribute, _a_close), _closing(_a_type(attribute), _t_close) as kind:
                if _fits(attribute, kind, text):
                    _a_write(attribute, kind, text.ctypes.data)
            if key not in self._copied:
                self._copied[key] = self._form(found, path), _has_count(found)
        form, has_count = self._copied[key]
        return Dataset(self._id, place, form, 0, has_count)
