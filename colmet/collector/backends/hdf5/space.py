"""Space needed by a file, reserved in the file system before HDF5 writes."""

from __future__ import annotations

import errno
import os
from typing import Any

from colmet.collector.backends.hdf5.h5table import is_filtered

# HDF5 does not survive a full disk: if it cannot write its own structures, the file becomes unreadable. So space is
# reserved in the file system first: for rows, for the headers of new tables, and this for the rest.
SPARE_BYTES = 256 << 10
NODE_BYTES = 4096  # of the index of a table's chunks; a new chunk may need another node


def chunk_bytes(table: Any, count: int) -> int:
    """Return the maximum growth of a file, in bytes, for `count` more rows of a table."""
    chunk = int(table.chunkshape[0])
    rows = int(table.nrows)
    full = rows // chunk if is_filtered(table) else -(-rows // chunk)
    chunks = -(-(rows + count) // chunk) - full
    # a checksum adds 4 bytes; some libraries enlarge incompressible data
    more = chunk * int(table.dtype.itemsize) // 64 + 64 if is_filtered(table) else 0
    return chunks * (chunk * int(table.dtype.itemsize) + more) + NODE_BYTES


def header_bytes(columns: int, row_bytes: int) -> int:
    """Return the maximum size of a table's description in the file, in bytes; measured, then doubled."""
    return 4096 + 512 * columns + 3 * row_bytes


def promise(descriptor: int, start: int, size: int) -> None:
    """Reserve space in the file system for `size` bytes of a file from `start` on.

    Raises:
        OSError: the disk has less space; the file is unchanged.
    """
    length = os.fstat(descriptor).st_size
    try:
        os.posix_fallocate(descriptor, start, size)
    except OSError as err:
        os.ftruncate(descriptor, length)  # some file systems keep a partial reservation
        if err.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        disk = os.fstatvfs(descriptor)  # fallback: free space is checked, but not reserved
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from err
