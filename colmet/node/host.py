"""Files under a root: the only open() of the node.

Production reads `/`; tests give a made-up or captured tree as root, and all else stays the same.
"""

from __future__ import annotations

import errno
import os
import resource

_FIRST_READ = 8192
# Files of /proc made of many records (vmstat) give at most a page a read, and end a read where the next record does not
# fit. Whatever gave less than this is whole.
_WHOLE_BELOW = 2048
# Left to sockets, logs, inotify and the files that are not kept.
_SPARE_DESCRIPTORS = 64


def is_gone(err: OSError) -> bool:
    """Whether an error says that a process or cgroup has ended meanwhile.

    ENOENT: its file is gone; ESRCH: gone since the file was opened; ENODEV: a removed cgroup; ENOTDIR: a removed
    cgroup that is reached through a link.
    """
    return err.errno in (errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.ENOTDIR)


class Kept:
    """A file that is read again and again: its descriptor is kept, and each read starts at byte 0.

    For files of /proc a kept descriptor stays with its process, so a process id that is used again is never
    mistaken: a read then fails with ProcessLookupError.
    """

    __slots__ = ("_fd", "_host", "path")

    def __init__(self, host: Host, path: str) -> None:
        self._host = host
        self.path = path
        self._fd = -1

    def read(self) -> bytes:
        """The whole file now.

        Raises:
            OSError: FileNotFoundError, ProcessLookupError (ESRCH) or ENODEV where it is gone.
        """
        fd = self._fd
        if fd < 0:
            if self._host.kept >= self._host.max_kept:
                return self._host.read(self.path)
            fd = self._fd = self._host.open(self.path)
            self._host.kept += 1
        data = os.pread(fd, _FIRST_READ, 0)
        return data if len(data) < _WHOLE_BELOW else data + _rest(fd, len(data))

    def fileno(self) -> int:
        """The descriptor, to poll; -1 before the first read, or where it could not be kept."""
        return self._fd

    def close(self) -> None:
        """Give the descriptor back; also twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._host.kept -= 1
            self._fd = -1


def _rest(fd: int, offset: int) -> bytes:
    """What a file holds after `offset`."""
    parts: list[bytes] = []
    while True:
        part = os.pread(fd, 1 << 16, offset)
        if not part:
            return b"".join(parts)
        parts.append(part)
        offset += len(part)


class Host:
    """The files of one machine.

    Args:
        root: where its `/` is.
        max_kept: descriptors that `keep` may hold; beyond that files are opened for each read, slower but right.
            None: what the process's limit on open files leaves.
    """

    def __init__(self, root: str = "/", max_kept: int | None = None) -> None:
        self.root = root.rstrip("/")
        if max_kept is None:
            max_kept = max(0, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_DESCRIPTORS)
        self.max_kept = max_kept
        self.kept = 0

    def path(self, path: str) -> str:
        """Where an absolute path of the host lies."""
        return self.root + path

    def open(self, path: str) -> int:
        """A descriptor to read from."""
        return os.open(self.root + path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, path: str) -> bytes:
        """The whole file, opened for this one read."""
        fd = self.open(path)
        try:
            return _rest(fd, 0)
        finally:
            os.close(fd)

    def keep(self, path: str) -> Kept:
        """The file for many reads; it is opened at the first."""
        return Kept(self, path)

    def directories(self, path: str) -> list[str]:
        """Names of the directories in a directory."""
        with os.scandir(self.root + path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def names(self, path: str) -> list[str]:
        """Names of everything in a directory."""
        return os.listdir(self.root + path)

    def is_directory(self, path: str) -> bool:
        """Whether a directory is there."""
        return os.path.isdir(self.root + path)

    def inode(self, path: str) -> int:
        """Inode number of a file or directory. Among cgroups, a directory that is made again has another one."""
        return os.stat(self.root + path).st_ino

    def resolve(self, path: str) -> str:
        """The path without symbolic links; what does not exist stays as it is."""
        real = os.path.realpath(self.root + path)
        root = os.path.realpath(self.root) if self.root else ""
        return real[len(root) :] or "/" if real == root or real.startswith(root + "/") else real
