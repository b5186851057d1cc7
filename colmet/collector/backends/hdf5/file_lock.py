"""The lock of a file's writer, against other writers."""

from __future__ import annotations

import fcntl
import logging
import os
import struct

from colmet.common.errors import ConfigError

log = logging.getLogger(__name__)


def lock(path: str) -> int:
    """Lock a file against other writers, which would damage it; return its descriptor: closing it ends the lock.

    It is an open file description lock. HDF5 uses another kind, so readers with default settings are not blocked.
    Closing other descriptors of this process does not release it.

    Raises:
        ConfigError: another process has locked the file.
        OSError: the file cannot be opened for writing.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        # struct flock: type, whence, start, length (0: to the end), pid
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except (BlockingIOError, PermissionError) as err:
        os.close(descriptor)
        raise ConfigError(
            f"{path}: another process writes to it; stop the other colmet-collector or change --hdf5-filepath"
        ) from err
    except OSError as err:  # a file system without such locks
        log.info("file cannot be locked: path=%s cause=%s", path, err.strerror)
    return descriptor
