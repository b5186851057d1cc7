"""The lock of an archive's writer: the collector, or `colmet archive rebuild`."""

from __future__ import annotations

import fcntl
import logging
import os

from colmet.jobs.archive.store import MODE, ArchiveError

log = logging.getLogger(__name__)


def lock(path: str) -> int:
    """Lock an archive against other writers; return a descriptor: closing it ends the lock.

    A missing file is created, empty. It is a lock of flock(2): SQLite uses another kind, so readers, and short writes
    of this and other processes, go on. Closing a descriptor of a file ends SQLite's own locks of this process: lock
    before the archive is opened, and close after it.

    Raises:
        ArchiveError: another process has locked it, or it cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
    except OSError as err:
        raise ArchiveError(f"{path}: {err.strerror}") from err
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as err:
        os.close(descriptor)
        raise ArchiveError(
            f"{path}: another process writes it: colmet-collector, or colmet archive rebuild; wait for its end"
        ) from err
    except OSError as err:  # a file system without such locks
        log.info("archive cannot be locked: path=%s cause=%s", path, err.strerror)
    return descriptor


def is_of(descriptor: int, path: str) -> bool:
    """Return whether a descriptor of `lock` is of the file at a path; -1 is of none."""
    try:
        return descriptor >= 0 and os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
