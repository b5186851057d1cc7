"""The HDF5 library that PyTables has loaded, called directly.

PyTables needs 4 ms to open a table and 3 ms to make one, most of it in Python; the library needs 0.1 ms. There is one
library, so PyTables can open a file that is open here.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from colmet.collector.backends.hdf5 import calls as h5
from colmet.collector.backends.hdf5.library import CHUNK_CACHE_BYTES, tables

NROWS = b"NROWS"

# Of descriptions of tables and indexes of chunks, as in the file. In memory they need seven times as much.
METADATA_CACHE_BYTES = 2 << 20
# Of all forms of a file, 0.9 kB each; the columns of undeclared tables are their sender's choice.
MAX_COLUMNS = 1 << 14
NODE_BYTES = 4096  # of the index of a table's chunks; a new chunk may need another node


class NotFlatError(Exception):
    """An object is no table, or its columns have columns or no fixed size."""


class ForeignDataError(NotFlatError):
    """An object is a link, or its data are not in its file: a file shows nothing but itself."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path:.100} {what}; only what is in the file itself is read")


def _check_storage(properties: int, path: bytes) -> None:
    """Check that the data of a dataset are in its file; ForeignDataError if they are in others."""
    if h5.p_layout(properties) == h5.VIRTUAL or h5.p_external(properties):
        raise ForeignDataError(os.fsdecode(path), "has its rows in other files")


def chunk_bytes(rows: int, count: int, chunk_rows: int, row_bytes: int, is_filtered: bool) -> int:
    """Return the maximum growth of a file, in bytes, for `count` more rows of a table with `rows` rows."""
    full = rows // chunk_rows if is_filtered else -(-rows // chunk_rows)
    chunks = -(-(rows + count) // chunk_rows) - full
    # a checksum adds 4 bytes; some libraries enlarge incompressible data
    more = chunk_rows * row_bytes // 64 + 64 if is_filtered else 0
    return chunks * (chunk_rows * row_bytes + more) + NODE_BYTES


class TableForm:
    """What tables of the same columns have in common.

    Args:
        is_filtered: whether chunks are compressed or have checksums.

    Attributes:
        dtype: of a row in memory.
        memory_type: the library's type for it.
    """

    def __init__(self, row: int, chunk_rows: int, is_filtered: bool) -> None:
        names, kinds, is_foreign = [], [], False
        for n in range(h5.t_members(row)):
            pointer = h5.t_member_name(row, n)
            if not pointer:
                raise tables.HDF5ExtError("H5Tget_member_name failed")
            names.append(ctypes.string_at(pointer).decode("utf-8", "surrogateescape"))
            h5.free_memory(pointer)
            with h5.closing(h5.t_member_type(row, n), h5.t_close) as member:
                kinds.append(_kind(member))
                is_foreign |= kinds[-1] in "iuf" and h5.t_order(member) == h5.BIG_ENDIAN
        self.memory_type = h5.t_native(row, 0) if is_foreign else h5.t_copy(row)
        if is_foreign:
            h5.t_pack(self.memory_type)  # as PyTables has them in memory
        size, starts = h5.t_size(self.memory_type), [h5.t_member_offset(self.memory_type, n) for n in range(len(names))]
        formats = []
        for n, kind in enumerate(kinds):
            with h5.closing(h5.t_member_type(self.memory_type, n), h5.t_close) as member:
                formats.append(f"{kind}{h5.t_size(member)}")
        described = {"names": names, "formats": formats, "offsets": starts, "itemsize": size}
        try:
            self.dtype = np.dtype(described)  # type: ignore[call-overload]
        except (TypeError, ValueError, OverflowError) as err:  # numbers of 3 bytes, a name used twice
            raise NotFlatError from err
        self.chunk_rows, self.is_filtered = chunk_rows, is_filtered

    def __del__(self) -> None:
        if hasattr(self, "memory_type"):
            h5.t_close(self.memory_type)


def _kind(member: int) -> str:
    """Return numpy's letter for a column: V where Colmet has no such values."""
    kind = h5.t_class(member)
    if kind in h5.NOT_FLAT or (kind == h5.STRING and h5.t_is_variable(member)):
        raise NotFlatError
    if kind == h5.TIME and h5.t_order(member) == h5.BIG_ENDIAN:  # has no native type
        raise NotFlatError
    if kind == h5.ARRAY:
        with h5.closing(h5.t_super(member), h5.t_close) as base:
            _kind(base)
    if kind == h5.INTEGER:
        return "i" if h5.t_sign(member) else "u"
    return {h5.FLOAT: "f", h5.STRING: "S"}.get(kind, "V")


class Dataset:
    """A table of an open file. Each call opens it: an open one needs 0.1 MB.

    Args:
        place: of the table in the file; to find it by its path would read four more structures.
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
        after = h5.One(self.rows + len(rows))
        table = h5.o_open_at(self._file, self._place)
        try:
            h5.d_extend(table, after)
            self._transfer(h5.d_write, table, rows, self.rows)
            if self._has_count:
                attribute = h5.a_open(table, NROWS, 0)
                try:
                    h5.a_write(attribute, h5.INT64, after)
                finally:
                    h5.a_close(attribute)
        finally:
            h5.o_close(table)
        self.rows = after[0]

    def number(self, attribute: bytes) -> int | None:
        """Return an attribute, a whole number; None without it, or for another kind of value."""
        with h5.closing(h5.o_open_at(self._file, self._place), h5.o_close) as table:
            if not h5.a_exists(table, attribute):
                return None
            with h5.closing(h5.a_open(table, attribute, 0), h5.a_close) as found:
                with (
                    h5.closing(h5.a_type(found), h5.t_close) as kind,
                    h5.closing(h5.a_space(found), h5.s_close) as space,
                ):
                    if h5.t_class(kind) != h5.INTEGER or h5.s_rank(space):
                        return None
                value = ctypes.c_int64()
                h5.a_read(found, h5.INT64, ctypes.byref(value))
                return value.value

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows."""
        rows = np.zeros(stop - start, self.form.dtype)  # padding included
        with h5.closing(h5.o_open_at(self._file, self._place), h5.o_close) as table:
            self._transfer(h5.d_read, table, rows, start)
        return rows

    def _transfer(self, way: Callable[..., int], table: int, rows: npt.NDArray[Any], start: int) -> None:
        count = h5.One(len(rows))
        memory = h5.s_create(1, count, None)
        try:
            place = h5.d_space(table)
            try:
                h5.s_select(place, 0, h5.One(start), None, count, None)
                way(table, self.form.memory_type, memory, place, 0, rows.ctypes.data)
            finally:
                h5.s_close(place)
        finally:
            h5.s_close(memory)


def _fits(attribute: int, kind: int, data: npt.NDArray[Any]) -> bool:
    """Return whether an attribute of some type can be overwritten with this text or number."""
    if h5.a_size(attribute) != data.nbytes:
        return False
    if data.dtype.kind == "S":
        return h5.t_class(kind) == h5.STRING and not h5.t_is_variable(kind)
    return h5.t_class(kind) == h5.INTEGER


def _has_count(table: int) -> bool:
    """Return whether a table has PyTables' count of rows, as a number of 8 bytes."""
    if not h5.a_exists(table, NROWS):
        return False
    with (
        h5.closing(h5.a_open(table, NROWS, 0), h5.a_close) as attribute,
        h5.closing(h5.a_type(attribute), h5.t_close) as kind,
    ):
        return _fits(attribute, kind, np.zeros((), np.int64))


class OpenFile:
    """A file that is open.

    Raises:
        HDF5ExtError: of PyTables, by all methods, with the library's error stack.
    """

    def __init__(self, identifier: int) -> None:
        self._id = identifier
        self._forms: dict[tuple[bytes, int, int], TableForm] = {}
        self._columns = 0  # of all forms

    def exists(self, path: bytes) -> bool:
        """Return whether a path has an object; all above it have one."""
        return bool(h5.l_exists(self._id, path, 0))

    def names(self, group: bytes) -> list[bytes]:
        """Return the names of all that is in a group of few objects, sorted; empty if there is no group at the path."""
        if not self.is_group(group):
            return []
        info = h5.GroupInfo()
        with h5.closing(h5.o_open(self._id, group, 0), h5.o_close) as found:
            h5.g_info(found, ctypes.byref(info))
            names = []
            for n in range(info.links):
                name = ctypes.create_string_buffer(h5.l_name(found, b".", 0, 0, n, None, 0, 0) + 1)
                h5.l_name(found, b".", 0, 0, n, name, len(name), 0)
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
        with h5.closing(h5.o_open_at(self._id, self._link(place).target.place), h5.o_close) as found:
            if h5.i_type(found) == h5.DATASET:
                with h5.closing(h5.d_create_plist(found), h5.p_close) as properties:
                    _check_storage(properties, path)

    def _link(self, path: bytes) -> h5.LinkInfo:
        """Return what is at a path; ForeignDataError for a link to another path, maybe in another file."""
        info = h5.LinkInfo()
        h5.l_info(self._id, path, ctypes.byref(info), 0)
        if info.type != 0:
            raise ForeignDataError(os.fsdecode(path), "is a link")
        return info

    def is_group(self, path: bytes) -> bool:
        """Return whether the object at a path is a group; ForeignDataError for a link."""
        with h5.closing(h5.o_open_at(self._id, self._link(path).target.place), h5.o_close) as found:
            return h5.i_type(found) == h5.GROUP

    def find(self, path: bytes) -> Dataset:
        """Return the table at a path.

        Raises:
            NotFlatError: the object there is another thing.
            ForeignDataError: it is a link, or its data are in other files.
        """
        link = self._link(path)
        with h5.closing(h5.o_open_at(self._id, link.target.place), h5.o_close) as found:
            if h5.i_type(found) != h5.DATASET:
                raise NotFlatError
            rows = h5.One()
            with h5.closing(h5.d_space(found), h5.s_close) as space:
                if h5.s_rank(space) != 1:
                    raise NotFlatError
                h5.s_dims(space, rows, None)
            return Dataset(self._id, link.target.place, self._form(found, path), int(rows[0]), _has_count(found))

    def _form(self, dataset: int, path: bytes) -> TableForm:
        with (
            h5.closing(h5.d_create_plist(dataset), h5.p_close) as plist,
            h5.closing(h5.d_type(dataset), h5.t_close) as kind,
        ):
            _check_storage(plist, path)
            if h5.p_layout(plist) != h5.CHUNKED or h5.t_class(kind) != h5.COMPOUND:
                raise NotFlatError
            chunk, size = h5.One(), ctypes.c_size_t()
            h5.p_chunk(plist, 1, chunk)
            h5.t_encode(kind, None, size)
            encoded = ctypes.create_string_buffer(size.value)
            h5.t_encode(kind, encoded, size)
            key = encoded.raw, int(chunk[0]), h5.p_filters(plist)
            form = self._forms.get(key)
            if form is None:
                form = self._forms[key] = TableForm(kind, key[1], key[2] > 0)
                self._columns += len(form.dtype)
            return form


class LibraryFile(OpenFile):
    """A file open for writing.

    Raises:
        HDF5ExtError: of PyTables, by this and all methods, with the library's error stack.
    """

    def __init__(self, path: str) -> None:
        access = h5.ID.in_dll(h5.holding, "H5P_CLS_FILE_ACCESS_ID_g").value
        with h5.closing(h5.p_create(access), h5.p_close) as properties:
            h5.p_set_cache(properties, 0, 521, CHUNK_CACHE_BYTES, 0.75)
            cache = h5.MetadataCache(version=1)
            h5.p_get_metadata_cache(properties, ctypes.byref(cache))
            cache.max_size = METADATA_CACHE_BYTES
            h5.p_set_metadata_cache(properties, ctypes.byref(cache))
            super().__init__(h5.f_open(os.fsencode(path), h5.RDWR, properties))
        self._copied: dict[Hashable, tuple[TableForm, bool]] = {}  # forms of copies, and whether they have NROWS

    @property
    def size_bytes(self) -> int:
        """Return the size of the file in bytes."""
        size = h5.One()
        h5.f_size(self._id, size)
        return int(size[0])

    def flush(self) -> None:
        """Write the library's own structures to the file."""
        h5.f_flush(self._id, 0)

    def close(self) -> None:
        """Close the file."""
        h5.f_close(self._id)

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
        h5.o_copy(source, name, self._id, path, 0, 0)

    def add(self, source: int, name: bytes, path: bytes, title: bytes, key: Hashable) -> Dataset:
        """Copy an empty table from a group of any file to a free path of this one, with a title of the same length.

        A title of another type stays. `key` is the same for tables of the same form.
        """
        self.copy(source, name, path)
        place, text = self._link(path).target.place, np.array(title)
        with h5.closing(h5.o_open_at(self._id, place), h5.o_close) as found:
            attribute = h5.a_open(found, b"TITLE", 0)
            with h5.closing(attribute, h5.a_close), h5.closing(h5.a_type(attribute), h5.t_close) as kind:
                if _fits(attribute, kind, text):
                    h5.a_write(attribute, kind, text.ctypes.data)
            if key not in self._copied:
                self._copied[key] = self._form(found, path), _has_count(found)
        form, has_count = self._copied[key]
        return Dataset(self._id, place, form, 0, has_count)
