"""Directories written by a daemon: made if missing, and checked before anything is opened."""

from __future__ import annotations

import errno
import logging
import os
import stat

log = logging.getLogger(__name__)

# Variables of systemd with the directories it makes for a service at each start.
_MADE = ("STATE_DIRECTORY", "RUNTIME_DIRECTORY", "CACHE_DIRECTORY", "LOGS_DIRECTORY")


def is_made(path: str) -> bool:
    """Return whether the service manager makes this directory on starting the daemon."""
    made = [one for name in _MADE for one in os.environ.get(name, "").split(":")]
    return os.path.abspath(path) in made


def make(path: str, mode: int = 0o777) -> None:
    """Make a directory and its parents, if missing; `mode`, less the umask, is of the directory itself.

    Raises:
        OSError: it cannot be made.
    """
    here = os.path.abspath(path)
    missing = []
    while not os.path.lexists(here):
        missing.append(here)
        here = os.path.dirname(here)
    for one in reversed(missing):
        os.makedirs(one, mode if one == missing[0] else 0o777, exist_ok=True)
        sync_directory(os.path.dirname(one))
        log.info("directory made, as it did not exist: path=%s", one)


def sync_directory(path: str) -> None:
    """Make creations, renames and removals in a directory survive a power failure."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(path: str, *, parents: bool = False) -> None:
    """Check that this process could make files in a directory, or the directory itself, or its `parents`, too.

    Raises:
        OSError: the error of making them.
    """
    here = os.path.abspath(path)
    try:
        mode = os.stat(here).st_mode
    except FileNotFoundError:
        above = os.path.dirname(here)
        if is_made(here) or is_made(above):
            return
        if parents:
            while not os.path.lexists(above):
                above = os.path.dirname(above)
        here, mode = above, os.stat(above).st_mode
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), here)
    if not os.access(here, os.W_OK | os.X_OK, effective_ids=True):
        why = errno.EROFS if os.statvfs(here).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(why, os.strerror(why), here)
