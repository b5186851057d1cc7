"""Files written whole: a reader finds the former content or the new one, however the writer ends."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets

from colmet.common.runtime.directories import sync_directory


def write_all(descriptor: int, content: bytes) -> None:
    """Write all bytes to a descriptor.

    Raises:
        OSError: they cannot be written; ENOSPC if a write accepts nothing.
    """
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
