"""Space that a file needs, and that the file system promises before HDF5 writes."""

from __future__ import annotations

import errno
import os
from typing import Any

from colmet.collector.backends.hdf5.h5table import is_filtered

# HDF5 does not survive a full disk: what it cannot write of its own structures is a file that nobody can read. So the
# file system has to promise the space first: for rows, for the description of new tables, and this for the rest.
SPARE_BYTES = 256 << 10
NODE_BYTES = 4096  # of the index of a table's chunks, of which a new chunk may need another one


def chunk_bytes(table: Any, count: int) -> int:
    """Return by how many bytes a file grows at most for `count` more rows of a table."""
    chunk = int(table.chunkshape[0])
    rows = int(table.nrows)
    full = rows // chunk if is_filtered(table) else -(-rows // chunk)
    chunks = -(-(rows + count) // chunk) - full
    # a checksum takes 4 bytes more; what cannot be compressed may take more, too, in some libraries
    more = chunk * int(table.dtype.itemsize) // 64 + 64 if is_filtered(table) else 0
    return chunks * (chunk * int(table.dtype.itemsize) + more) + NODE_BYTES


def header_bytes(columns: int, row_bytes: int) -> int:
    """Return how many bytes HDF5 and PyTables write at most to describe a table; measured, then doubled."""
    return 4096 + 512 * columns + 3 * row_bytes


def promise(descriptor: int, start: int, size: int) -> None:
    """Have the file system set space aside for `size` bytes of a file from `start` on.

    Raises:
        OSError: the disk has less; the file is as it was.
    """
    length = os.fstat(descriptor).st_size
    try:
        os.posix_fallocate(descriptor, start, size)
    except OSError as err:
        os.ftruncate(descriptor, length)  # some file systems keep what they got
        if err.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        disk = os.fstatvfs(descriptor)  # the next best: nothing is promised, others may take it
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from err
