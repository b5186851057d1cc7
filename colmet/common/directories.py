"""Whether a directory can be written to, seen without writing: for checks before anything is opened."""

from __future__ import annotations

import errno
import os
import stat

# Where systemd names the directories that it makes for a service at each start.
_MADE = ("STATE_DIRECTORY", "RUNTIME_DIRECTORY", "CACHE_DIRECTORY", "LOGS_DIRECTORY")


def is_made(path: str) -> bool:
    """Return whether the service manager makes this directory when it starts the daemon."""
    made = [one for name in _MADE for one in os.environ.get(name, "").split(":")]
    return os.path.abspath(path) in made


def check_writable(path: str) -> None:
    """See that this process could make files in a directory, or the directory itself in the one above it.

    Raises:
        OSError: why not, as making them would raise it.
    """
    here = os.path.abspath(path)
    try:
        mode = os.stat(here).st_mode
    except FileNotFoundError:
        above = os.path.dirname(here)
        if is_made(here) or is_made(above):
            return
        here, mode = above, os.stat(above).st_mode
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), here)
    if not os.access(here, os.W_OK | os.X_OK, effective_ids=True):
        why = errno.EROFS if os.statvfs(here).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(why, os.strerror(why), here)
