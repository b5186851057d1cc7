"""The functions of the HDF5 library that PyTables has loaded, as ctypes calls them, and what they fill in.

Source: HDF5 Reference Manual, https://support.hdfgroup.org/documentation/hdf5/latest/_r_m.html
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from colmet.collector.backends.hdf5.library import tables

CHUNKED, VIRTUAL, RDWR = 2, 3, 1
FILE, GROUP, DATASET = 1, 2, 5  # H5I_type_t
INTEGER, FLOAT, TIME, STRING, COMPOUND, REFERENCE, VLEN, ARRAY = 0, 1, 2, 3, 6, 7, 9, 10  # H5T_class_t
BIG_ENDIAN = 1
NOT_FLAT = frozenset({COMPOUND, VLEN, REFERENCE})
ID, _SIZE, _INT = ctypes.c_int64, ctypes.c_uint64, ctypes.c_int
TEXT, _BYTES = ctypes.c_char_p, ctypes.c_void_p
SIZES = ctypes.POINTER(ctypes.c_uint64)
One = _SIZE * 1

# Symbols are looked up in the libraries of this module of PyTables. A PyDLL keeps the GIL: the threads of the collector
# compete for it, and to get it back can cost more than the call. Rows are written, and the file flushed, without it.
holding, _releasing = (load(tables.hdf5extension.__file__) for load in (ctypes.PyDLL, ctypes.CDLL))


def _checked(result: int, function: Any, _arguments: tuple[Any, ...]) -> int:
    if result < 0:  # the exception has the library's own error stack
        raise tables.HDF5ExtError(f"{function.__name__} failed")
    return result


def _function(name: str, result: Any, *arguments: Any, library: Any = holding) -> Callable[..., int]:
    found = library[name]
    found.__name__, found.restype, found.argtypes, found.errcheck = name, result, arguments, _checked
    return found  # type: ignore[no-any-return]


a_exists = _function("H5Aexists", _INT, ID, TEXT)
a_space = _function("H5Aget_space", ID, ID)
a_size = _function("H5Aget_storage_size", _SIZE, ID)
a_open = _function("H5Aopen", ID, ID, TEXT, ID)
a_read = _function("H5Aread", _INT, ID, ID, _BYTES)
a_write = _function("H5Awrite", _INT, ID, ID, _BYTES)
a_type = _function("H5Aget_type", ID, ID)
a_close = _function("H5Aclose", _INT, ID)
d_create_plist = _function("H5Dget_create_plist", ID, ID)
d_extend = _function("H5Dset_extent", _INT, ID, SIZES)
d_read = _function("H5Dread", _INT, ID, ID, ID, ID, ID, _BYTES, library=_releasing)
d_space = _function("H5Dget_space", ID, ID)
d_type = _function("H5Dget_type", ID, ID)
d_write = _function("H5Dwrite", _INT, ID, ID, ID, ID, ID, _BYTES, library=_releasing)
f_close = _function("H5Fclose", _INT, ID, library=_releasing)
f_flush = _function("H5Fflush", _INT, ID, _INT, library=_releasing)
f_open = _function("H5Fopen", ID, TEXT, ctypes.c_uint, ID)
f_size = _function("H5Fget_filesize", _INT, ID, SIZES)
g_info = _function("H5Gget_info", _INT, ID, _BYTES)
i_type = _function("H5Iget_type", _INT, ID)
HAS_TOKENS = hasattr(holding, "H5Lget_info2")  # HDF5 1.12, not 1.10


class ObjectToken(ctypes.Structure):
    """H5O_token_t: the place of an object in its file."""

    _fields_ = [("bytes", ctypes.c_uint8 * 16)]


class LinkTarget(ctypes.Union):
    """Member of the next structure."""

    _fields_ = [("place", ObjectToken if HAS_TOKENS else _SIZE), ("text_bytes", ctypes.c_size_t)]


class LinkInfo(ctypes.Structure):
    """H5L_info2_t, H5L_info_t."""

    _fields_ = [
        ("type", _INT),  # 0 for an object's own
        ("has_order", ctypes.c_bool),
        ("order", ctypes.c_int64),
        ("charset", _INT),
        ("target", LinkTarget),
    ]


class GroupInfo(ctypes.Structure):
    """H5G_info_t."""

    _fields_ = [("storage", _INT), ("links", _SIZE), ("order", ctypes.c_int64), ("is_mounted", ctypes.c_bool)]


l_info = _function("H5Lget_info2" if HAS_TOKENS else "H5Lget_info", _INT, ID, TEXT, _BYTES, ID)
l_exists = _function("H5Lexists", _INT, ID, TEXT, ID)
l_name = _function("H5Lget_name_by_idx", ctypes.c_ssize_t, ID, TEXT, _INT, _INT, _SIZE, TEXT, ctypes.c_size_t, ID)
o_close = _function("H5Oclose", _INT, ID)
o_copy = _function("H5Ocopy", _INT, ID, TEXT, ID, TEXT, ID, ID)
o_open = _function("H5Oopen", ID, ID, TEXT, ID)
o_open_at = _function(
    "H5Oopen_by_token" if HAS_TOKENS else "H5Oopen_by_addr", ID, ID, ObjectToken if HAS_TOKENS else _SIZE
)
p_chunk = _function("H5Pget_chunk", _INT, ID, _INT, SIZES)
p_close = _function("H5Pclose", _INT, ID)
p_create = _function("H5Pcreate", ID, ID)
p_external = _function("H5Pget_external_count", _INT, ID)
p_filters = _function("H5Pget_nfilters", _INT, ID)
p_layout = _function("H5Pget_layout", _INT, ID)
p_get_metadata_cache = _function("H5Pget_mdc_config", _INT, ID, _BYTES)
p_set_metadata_cache = _function("H5Pset_mdc_config", _INT, ID, _BYTES)
p_set_cache = _function("H5Pset_cache", _INT, ID, _INT, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_double)
s_close = _function("H5Sclose", _INT, ID)
s_create = _function("H5Screate_simple", ID, _INT, SIZES, SIZES)
s_dims = _function("H5Sget_simple_extent_dims", _INT, ID, SIZES, SIZES)
s_rank = _function("H5Sget_simple_extent_ndims", _INT, ID)
s_select = _function("H5Sselect_hyperslab", _INT, ID, _INT, SIZES, SIZES, SIZES, SIZES)
t_class = _function("H5Tget_class", _INT, ID)
t_close = _function("H5Tclose", _INT, ID)
t_copy = _function("H5Tcopy", ID, ID)
t_encode = _function("H5Tencode", _INT, ID, _BYTES, ctypes.POINTER(ctypes.c_size_t))
t_is_variable = _function("H5Tis_variable_str", _INT, ID)
t_member_name = holding["H5Tget_member_name"]
t_member_name.restype, t_member_name.argtypes = ctypes.c_void_p, [ID, ctypes.c_uint]
free_memory = _function("H5free_memory", _INT, _BYTES)
t_member_offset = holding["H5Tget_member_offset"]
t_member_offset.restype, t_member_offset.argtypes = ctypes.c_size_t, [ID, ctypes.c_uint]
t_member_type = _function("H5Tget_member_type", ID, ID, ctypes.c_uint)
t_members = _function("H5Tget_nmembers", _INT, ID)
t_native = _function("H5Tget_native_type", ID, ID, _INT)
t_pack = _function("H5Tpack", _INT, ID)
t_super = _function("H5Tget_super", ID, ID)
t_order = _function("H5Tget_order", _INT, ID)
t_sign = _function("H5Tget_sign", _INT, ID)
t_size = holding["H5Tget_size"]
t_size.restype, t_size.argtypes = ctypes.c_size_t, [ID]


INT64 = ID.in_dll(holding, "H5T_NATIVE_INT64_g").value


@contextmanager
def closing(identifier: int, close: Callable[[int], int]) -> Iterator[int]:
    """Close an object of the library after a `with` block."""
    try:
        yield identifier
    finally:
        close(identifier)


class MetadataCache(ctypes.Structure):
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
