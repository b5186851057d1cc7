"""Files written whole, and the directories of a daemon.

A reader finds the former content of a file or the new one, however the writer ends. Directories are made if missing,
and checked before anything is opened.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import stat

log = logging.getLogger(__name__)

# Variables of systemd with the directories it makes for a service at each start.
# Errors of giving a file to a user: of no permission, and of a user who does not exist in this user namespace.
NOT_GIVEN = (errno.EPERM, errno.EINVAL)
_MADE = ("STATE_DIRECTORY", "RUNTIME_DIRECTORY", "CACHE_DIRECTORY", "LOGS_DIRECTORY")


def is_made(path: str) -> bool:
    """Return whether the service manager makes this directory on starting the daemon."""
    made = [one for name in _MADE for one in os.environ.get(name, "").split(":")]
    return os.path.abspath(path) in made


def size_of(path: str) -> int:
    """Return the size of a file in bytes; 0 if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


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


def make_private(path: str) -> None:
    """Create an empty file that only its owner can read, or empty one: for a copy of a file until it has its rights.

    Raises:
        OSError: it cannot be created, or is a link.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def copy_owner(path: str, like: os.stat_result) -> None:
    """Give a new file the owner and group of another one; OSError if the system refuses."""
    now = os.stat(path)
    if (now.st_uid, now.st_gid) == (like.st_uid, like.st_gid):
        return
    try:
        os.chown(path, like.st_uid, like.st_gid)
    except OSError as err:
        why = f"may not belong to user {like.st_uid} and group {like.st_gid}, as the former file: {err.strerror}"
        raise OSError(err.errno, f"{why}; run this as that user", path) from err


def sync_directory(path: str) -> None:
    """Make creations, renames and removals in a directory survive a power failure."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(path: str, *, parents: bool = False) -> None:
    """Check that files can be made in a directory, or itself, or its `parents`, too; OSError of making them if not."""
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


def reason_with_remedy(path: str, why: str | None) -> str:
    """Return why a file cannot be written, with the remedy if it is the sandbox of a systemd unit."""
    if why != os.strerror(errno.EROFS):
        return str(why)
    folder = os.path.dirname(os.path.abspath(path))
    return f"{why}; for its unit: `systemctl edit` it, and add ReadWritePaths={folder} below [Service]"


def write_all(descriptor: int, content: bytes) -> None:
    """Write all bytes to a descriptor; OSError if they cannot be written; ENOSPC if a write accepts nothing."""
    rest = memoryview(content)
    while rest:
        written = os.write(descriptor, rest)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rest = rest[written:]


def write_whole(
    path: str,
    content: bytes,
    *,
    mode: int = 0o600,
    owner: int = -1,
    group: int = -1,
    directory: int | None = None,
    replace: bool = True,
    durable: bool = True,
    shared: bool = False,
) -> None:
    """Write a file: at any time it has the former content or the new one.

    The content is written to another file beside it, `.NAME.new`, which is renamed.

    Args:
        path: of the file; a plain name with `directory`.
        content: of the file.
        mode: permissions, independent of the umask.
        owner: user number; -1: this process's.
        group: group number; -1: this process's.
        directory: descriptor of the directory; None: `path` has the directory.
        replace: whether an existing file is replaced.
        durable: whether the content survives a power failure; waits for the disk.
        shared: whether several processes may write the file at once.

    Raises:
        FileExistsError: the file exists and is not to be replaced.
        OSError: it cannot be written; the former content stays.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.new" if shared else f".{name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)  # of a process killed at this point
    descriptor = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        try:
            if (owner, group) != (-1, -1):
                os.fchown(descriptor, owner, group)
            os.fchmod(descriptor, mode)
            write_all(descriptor, content)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if replace:
            os.rename(temporary, path, src_dir_fd=directory, dst_dir_fd=directory)
        else:
            os.link(temporary, path, src_dir_fd=directory, dst_dir_fd=directory)
            os.unlink(temporary, dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
    if durable and directory is None:
        sync_directory(folder)
    elif durable and directory is not None:
        with contextlib.suppress(OSError):  # not supported by every file system; the file exists all the same
            os.fsync(directory)
