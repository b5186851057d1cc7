"""Space needed by a file, reserved in the file system before HDF5 writes."""

from __future__ import annotations

import errno
import os

# HDF5 does not survive a full disk: if it cannot write its own structures, the file becomes unreadable. So space is
# reserved in the file system first: for rows, for the headers of new tables, and this for the rest.
SPARE_BYTES = 256 << 10
NODE_BYTES = 4096  # of the index of a table's chunks; a new chunk may need another node


def chunk_bytes(rows: int, count: int, chunk_rows: int, row_bytes: int, is_filtered: bool) -> int:
    """Return the maximum growth of a file, in bytes, for `count` more rows of a table with `rows` rows."""
    full = rows // chunk_rows if is_filtered else -(-rows // chunk_rows)
    chunks = -(-(rows + count) // chunk_rows) - full
    # a checksum adds 4 bytes; some libraries enlarge incompressible data
    more = chunk_rows * row_bytes // 64 + 64 if is_filtered else 0
    return chunks * (chunk_rows * row_bytes + more) + NODE_BYTES


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
