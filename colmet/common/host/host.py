"""Files under a root and external programs: the node's only open(), and its only start of programs.

Production reads `/`; tests use an artificial or captured tree as root, and its programs. All else stays the same.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import resource
import shutil
import stat
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence

from colmet.common.host.command import Command
from colmet.common.host.files import write_all, write_whole
from colmet.common.host.processes import Processes

# Added to PATH: systemd's has all of these, that of cron and of `su` does not.
_PROGRAMS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_FIRST_READ = 8192
# Files of /proc made of many records (vmstat) return at most a page for each read, and end a read before a record that
# does not fit. A shorter result than this is complete.
_WHOLE_BELOW = 2048
# Reserved for sockets, logs, inotify and files that are not kept open; includes a socket for each CPU.
_SPARE_DESCRIPTORS = 64 + os.sysconf("SC_NPROCESSORS_CONF")


def is_gone(err: OSError) -> bool:
    """Return whether an error means that a process or cgroup has ended.

    ENOENT: its file is gone; ESRCH: gone since the file was opened; ENODEV: a removed cgroup; ENOTDIR: a removed
    cgroup reached through a link.
    """
    return err.errno in (errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.ENOTDIR)


class Kept:
    """A file for repeated reads: its descriptor stays open, and each read starts at byte 0.

    For files of /proc an open descriptor stays with its process: after a reuse of the process id, a read fails with
    ProcessLookupError instead of returning another process's values.
    """

    __slots__ = ("_fd", "_host", "path")

    def __init__(self, host: Host, path: str) -> None:
        self._host = host
        self.path = path
        self._fd = -1

    def read(self, has_long_records: bool = False) -> bytes:
        """Return the current content of the whole file.

        Args:
            has_long_records: see `Host.read`.

        Raises:
            OSError: FileNotFoundError, ProcessLookupError (ESRCH) or ENODEV if it is gone.
        """
        fd = self._fd
        if fd < 0:
            if not self._host.reserve(1):
                return self._host.read(self.path, has_long_records)
            try:
                fd = self._fd = self._host.open(self.path)
            except BaseException:
                self._host.release(1)
                raise
        return _rest(fd, 0) if has_long_records else _whole(fd)

    def fileno(self) -> int:
        """Return the descriptor, to poll; -1 before the first read, or if it could not be kept open."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor; also twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self._host.release(1)

    __del__ = close  # an abandoned thread may have opened it after it was closed (processes.py)


def _plain(path: str, max_bytes: int, dir_fd: int | None = None) -> bytes:
    """Return a whole plain file of at most `max_bytes`; opens no link, and nothing that could block."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a plain file", path)
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return _rest(fd, 0)
    finally:
        os.close(fd)


def _whole(fd: int) -> bytes:
    data = os.pread(fd, _FIRST_READ, 0)
    return data if len(data) < _WHOLE_BELOW else data + _rest(fd, len(data))


def _rest(fd: int, offset: int) -> bytes:
    parts: list[bytes] = []
    while True:
        part = os.pread(fd, 1 << 16, offset)
        if not part:
            return b"".join(parts)
        parts.append(part)
        offset += len(part)


class PrivateDirectory:
    """A directory writable for this process's user alone, and small files in it.

    All access goes through the directory's descriptor, so later changes of the path cannot redirect it.

    Args:
        path: its real path; made, with permissions for its owner alone, if missing.

    Raises:
        PermissionError: it belongs to another user, others may write in it, or it may not be made.
        OSError: it is a link or no directory, or cannot be made.
    """

    def __init__(self, path: str) -> None:
        self._locks: list[int] = []
        self._fd = -1
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(self._fd)
            if status.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, f"it belongs to user {status.st_uid}", path)
            if status.st_mode & 0o022:
                raise PermissionError(errno.EPERM, "others may write in it", path)
        except BaseException:
            self.close()
            raise

    def lock(self, name: str) -> None:
        """Take the lock of this name until `unlock` or `close`, or until the process ends in any way.

        Raises:
            BlockingIOError: the lock is taken.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=self._fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        self._locks.append(fd)

    def unlock(self) -> None:
        """Release all locks; also twice."""
        for fd in self._locks:
            os.close(fd)
        self._locks.clear()

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return a whole file; OSError for a link, for what is no plain file, and for one above `max_bytes`."""
        return _plain(name, max_bytes, self._fd)

    def write(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Replace a file, or create it, as `write_whole`."""
        write_whole(name, data, directory=self._fd, durable=durable)

    def create(self, name: str) -> int:
        """Create a file; return a descriptor to append to it; FileExistsError or another OSError if it cannot."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self._fd)

    def names(self) -> list[str]:
        """Return the names of all entries."""
        return os.listdir(self._fd)

    def remove(self, name: str) -> None:
        """Remove a file."""
        os.unlink(name, dir_fd=self._fd)

    def rename(self, name: str, new: str) -> None:
        """Rename a file; replaces any file of the new name."""
        os.rename(name, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def close(self) -> None:
        """Release the locks and close the directory; also twice."""
        self.unlock()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class Host:
    """The files of one machine.

    Args:
        root: path of its `/`.
        max_kept: descriptors that `keep` may hold open; any further file is opened for each read: slower, same
            result. None: derived from the process's limit on open files.

    Attributes:
        kept: descriptors held open.
        processes: reads files that a process can block; for the sampling thread.
    """

    def __init__(self, root: str = "/", max_kept: int | None = None) -> None:
        self.root = root.rstrip("/")
        if max_kept is None:
            max_kept = max(0, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_DESCRIPTORS)
        self.max_kept = max_kept
        self.kept = 0
        self.processes = Processes()
        self._kept_lock = threading.RLock()  # the garbage collector may close a file while this thread has the lock
        self._commands: weakref.WeakSet[Command] = weakref.WeakSet()
        self._commands_lock = threading.Lock()  # background backends make theirs in their own threads
        self._commands_stopped = False

    def path(self, path: str) -> str:
        """Return the real path of an absolute path of the host."""
        return self.root + path

    def open(self, path: str) -> int:
        """Open a file; return its descriptor for reading."""
        return os.open(self.root + path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, path: str, has_long_records: bool = False) -> bytes:
        """Return the whole file, opened for this one read.

        Args:
            path: of the file.
            has_long_records: whether a record may have more than 2 kB, such as a mount with many layers in a file of
                /proc: a read ends before it.
        """
        fd = self.open(path)
        try:
            return _rest(fd, 0) if has_long_records else _whole(fd)
        finally:
            os.close(fd)

    def read_start(self, path: str, max_bytes: int) -> bytes:
        """Return at most `max_bytes` of a file, for files whose length others choose."""
        fd = self.open(path)
        try:
            parts: list[bytes] = []
            left = max_bytes
            while left > 0 and (part := os.pread(fd, left, max_bytes - left)):
                parts.append(part)
                left -= len(part)
            return b"".join(parts)
        finally:
            os.close(fd)

    def read_plain(self, path: str, max_bytes: int) -> bytes:
        """Return a whole file of another user; errors as of `PrivateDirectory.read`."""
        return _plain(self.root + path, max_bytes)

    def write_new(self, path: str, data: bytes) -> None:
        """Write a new file, readable for all.

        Raises:
            OSError: FileExistsError if the name exists, even as a dangling link.
        """
        fd = os.open(self.root + path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)

    def keep(self, path: str) -> Kept:
        """Return the file for many reads; it is opened at the first."""
        return Kept(self, path)

    def reserve(self, count: int) -> bool:
        """Count descriptors about to be opened as kept; return False, uncounted, if that exceeds the limit."""
        with self._kept_lock:
            if self.kept + count > self.max_kept:
                return False
            self.kept += count
            return True

    def release(self, count: int) -> None:
        """Count reserved descriptors as closed."""
        with self._kept_lock:
            self.kept -= count

    def command(
        self,
        argv: Sequence[str],
        deadline_s: float,
        env: Mapping[str, str] | None = None,
        hide: Iterable[str] = (),
        statuses: Sequence[int] = (0,),
    ) -> Command:
        """Return a program for repeated runs, arguments as of `Command`.

        A name without a path is searched in PATH and the usual directories.
        """
        made = Command(argv, deadline_s, self.program, env, hide, statuses=statuses)
        with self._commands_lock:
            self._commands.add(made)
            if self._commands_stopped:
                made.cancel()
        return made

    def program(self, name: str) -> str | None:
        """Return the path of a program, by name or path; None if not found. Includes programs for administrators."""
        if "/" in name:
            return shutil.which(self.root + name if name.startswith("/") else os.path.abspath(name))
        folders = [*os.environ.get("PATH", "").split(":"), *_PROGRAMS]
        return shutil.which(name, path=":".join([self.root + folder for folder in folders if folder.startswith("/")]))

    def stop_commands(self) -> None:
        """End all running programs, and start no more; from any thread."""
        with self._commands_lock:
            self._commands_stopped = True
            for command in self._commands:
                command.cancel()

    def private_directory(self, path: str) -> PrivateDirectory:
        """Return a directory to write in, made if missing; errors are those of `PrivateDirectory`."""
        return PrivateDirectory(self.root + path)

    def directories(self, path: str) -> list[str]:
        """Return the names of the directories in a directory."""
        with os.scandir(self.root + path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def names(self, path: str) -> list[str]:
        """Return the names of all entries of a directory."""
        return os.listdir(self.root + path)

    def sorted_names(self, path: str) -> list[str]:
        """Return the names of all entries of a directory, sorted; none if it cannot be read."""
        try:
            return sorted(self.names(path))
        except (OSError, ValueError):  # ValueError: a null character in the path
            return []

    def some_names(self, path: str, most: int) -> list[str]:
        """Return at most `most` names of a directory; the rest is not read."""
        with os.scandir(self.root + path) as entries:
            return [entry.name for entry in itertools.islice(entries, most)]

    def size(self, path: str) -> int:
        """Return the size of a file in bytes; of a special file, the number it reports as size."""
        return os.stat(self.root + path).st_size

    def is_directory(self, path: str) -> bool:
        """Return whether a directory exists."""
        return os.path.isdir(self.root + path)

    def inode(self, path: str) -> int:
        """Return the inode number of a file or directory. A cgroup's directory made again has another one."""
        return os.stat(self.root + path).st_ino

    def links(self, path: str) -> int:
        """Return the links to a directory: 2, and one for each directory inside; 1 where they are not counted."""
        return os.stat(self.root + path).st_nlink

    def mode(self, path: str) -> int:
        """Return type and permissions of a file or directory, as in stat(2)."""
        return os.stat(self.root + path).st_mode

    def owner(self, path: str) -> int:
        """Return the uid of the owner of a file or directory; of ``/proc/<pid>``, the process's user."""
        return os.stat(self.root + path).st_uid

    def link(self, path: str) -> str:
        """Return the target of a symbolic link, such as those in ``/proc/<pid>/fd``."""
        return os.readlink(self.root + path)

    def make_group(self, path: str, mode: int) -> None:
        """Make the directory of a cgroup, with exactly these permissions."""
        os.mkdir(self.root + path)
        os.chmod(self.root + path, mode)

    def remove_group(self, path: str) -> None:
        """Remove the directory of a cgroup; EBUSY if it has tasks or groups."""
        os.rmdir(self.root + path)

    def write_group(self, path: str, text: str) -> None:
        """Write to a file of a cgroup in one system call."""
        fd = os.open(self.root + path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)

    def resolve(self, path: str) -> str:
        """Return the path without symbolic links; parts that do not exist stay unchanged."""
        real = os.path.realpath(self.root + path)
        root = os.path.realpath(self.root) if self.root else ""
        return real[len(root) :] or "/" if real == root or real.startswith(root + "/") else real
