"""Files under a root: the only open() of the node. And programs: the only place that starts any.

Production reads `/`; tests give a made-up or captured tree as root, and all else stays the same: programs are those
under that root.
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

from colmet.common.runtime.files import write_all, write_whole
from colmet.node.system.command import Command
from colmet.node.system.processes import Processes

# Where services may not look by themselves: systemd's PATH has them all, that of cron and of `su` has not.
_PROGRAMS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_FIRST_READ = 8192
# Files of /proc made of many records (vmstat) give at most a page a read, and end a read where the next record does not
# fit. Whatever gave less than this is whole.
_WHOLE_BELOW = 2048
# Left to sockets, logs, inotify and the files that are not kept; a socket for each CPU is among them.
_SPARE_DESCRIPTORS = 64 + os.sysconf("SC_NPROCESSORS_CONF")


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
            if not self._host.reserve(1):
                return self._host.read(self.path)
            try:
                fd = self._fd = self._host.open(self.path)
            except BaseException:
                self._host.release(1)
                raise
        data = os.pread(fd, _FIRST_READ, 0)
        return data if len(data) < _WHOLE_BELOW else data + _rest(fd, len(data))

    def fileno(self) -> int:
        """The descriptor, to poll; -1 before the first read, or where it could not be kept."""
        return self._fd

    def close(self) -> None:
        """Give the descriptor back; also twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self._host.release(1)

    __del__ = close  # a thread that was given up may have opened it after it was closed (processes.py)


def _plain(path: str, max_bytes: int, dir_fd: int | None = None) -> bytes:
    """A plain file, whole; no link, nothing that could block, and no more than so many bytes."""
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


def _rest(fd: int, offset: int) -> bytes:
    """What a file holds after `offset`."""
    parts: list[bytes] = []
    while True:
        part = os.pread(fd, 1 << 16, offset)
        if not part:
            return b"".join(parts)
        parts.append(part)
        offset += len(part)


class PrivateDirectory:
    """A directory in which nobody but this process's user can write, and small files in it.

    All goes through the directory's descriptor, so what happens to the path afterwards cannot lead elsewhere.

    Args:
        path: where it really is; made, with the rights for its owner alone, if it is not there.

    Raises:
        PermissionError: it is not this user's, others may write in it, or it may not be made.
        OSError: it is a link, or something else, or it cannot be made.
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
        """Take the lock of this name until `close`, or until the process ends in whatever way.

        Raises:
            BlockingIOError: someone has it.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=self._fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        self._locks.append(fd)

    def read(self, name: str, max_bytes: int) -> bytes:
        """A file, whole.

        Raises:
            OSError: it is not there, is a link or no plain file, or is larger than that.
        """
        return _plain(name, max_bytes, self._fd)

    def write(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Replace a file, or create it; a reader finds the former content or the new one.

        Args:
            name: of the file.
            data: its content.
            durable: whether it survives a power failure; waits for the disk.

        Raises:
            OSError: it cannot be written; the former content stays.
        """
        write_whole(name, data, directory=self._fd, durable=durable)

    def create(self, name: str) -> int:
        """A descriptor to append to a new file with.

        Raises:
            OSError: FileExistsError where something of that name is there.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self._fd)

    def names(self) -> list[str]:
        """Names of everything in it."""
        return os.listdir(self._fd)

    def remove(self, name: str) -> None:
        """Remove a file."""
        os.unlink(name, dir_fd=self._fd)

    def rename(self, name: str, new: str) -> None:
        """Give a file another name; who had that is gone."""
        os.rename(name, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def close(self) -> None:
        """Give the locks and the directory back; also twice."""
        for fd in [*self._locks, self._fd]:
            if fd >= 0:
                os.close(fd)
        self._locks.clear()
        self._fd = -1


class Host:
    """The files of one machine.

    Args:
        root: where its `/` is.
        max_kept: descriptors that `keep` may hold; beyond that files are opened for each read, slower but right.
            None: what the process's limit on open files leaves.

    Attributes:
        kept: descriptors that are kept.
        processes: reads what processes may have a reader wait for; for the thread that ticks.
    """

    def __init__(self, root: str = "/", max_kept: int | None = None) -> None:
        self.root = root.rstrip("/")
        if max_kept is None:
            max_kept = max(0, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_DESCRIPTORS)
        self.max_kept = max_kept
        self.kept = 0
        self.processes = Processes()
        self._kept_lock = threading.RLock()  # the collector of garbage may close a file in the middle of it
        self._commands: weakref.WeakSet[Command] = weakref.WeakSet()
        self._commands_lock = threading.Lock()  # backends make theirs in threads of their own
        self._commands_stopped = False

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

    def read_start(self, path: str, max_bytes: int) -> bytes:
        """At most so many bytes of a file, for those whose length others choose."""
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
        """A file of someone, whole.

        Raises:
            OSError: it is not there, is a link or no plain file, or is larger than that.
        """
        return _plain(self.root + path, max_bytes)

    def write_new(self, path: str, data: bytes) -> None:
        """Write a file for all to read.

        Raises:
            OSError: FileExistsError where something of that name is there, be it a link that leads nowhere.
        """
        fd = os.open(self.root + path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)

    def keep(self, path: str) -> Kept:
        """The file for many reads; it is opened at the first."""
        return Kept(self, path)

    def reserve(self, count: int) -> bool:
        """Count this many descriptors, which someone is about to keep, as kept; False where that would be too many."""
        with self._kept_lock:
            if self.kept + count > self.max_kept:
                return False
            self.kept += count
            return True

    def release(self, count: int) -> None:
        """Reserved descriptors have been closed."""
        with self._kept_lock:
            self.kept -= count

    def command(
        self, argv: Sequence[str], deadline_s: float, env: Mapping[str, str] | None = None, hide: Iterable[str] = ()
    ) -> Command:
        """A program to ask again and again; one that is given without its path is looked for where programs are.

        Args:
            argv: program and arguments.
            deadline_s: seconds that one run may take.
            env: added to the environment.
            hide: words that no text of this command may show, such as passwords.
        """
        made = Command(argv, deadline_s, self.program, env, hide)
        with self._commands_lock:
            self._commands.add(made)
            if self._commands_stopped:
                made.cancel()
        return made

    def program(self, name: str) -> str | None:
        """Where a program is, by its name or path; None where there is none. Those of administrators are found, too."""
        if "/" in name:
            return shutil.which(self.root + name if name.startswith("/") else os.path.abspath(name))
        folders = [*os.environ.get("PATH", "").split(":"), *_PROGRAMS]
        return shutil.which(name, path=":".join([self.root + folder for folder in folders if folder.startswith("/")]))

    def stop_commands(self) -> None:
        """End all programs that run, and start no more; from any thread."""
        with self._commands_lock:
            self._commands_stopped = True
            for command in self._commands:
                command.cancel()

    def private_directory(self, path: str) -> PrivateDirectory:
        """A directory to write in, made if it is not there; what it raises, see there."""
        return PrivateDirectory(self.root + path)

    def directories(self, path: str) -> list[str]:
        """Names of the directories in a directory."""
        with os.scandir(self.root + path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def names(self, path: str) -> list[str]:
        """Names of everything in a directory."""
        return os.listdir(self.root + path)

    def some_names(self, path: str, most: int) -> list[str]:
        """Return at most this many names of a directory; the rest is not read."""
        with os.scandir(self.root + path) as entries:
            return [entry.name for entry in itertools.islice(entries, most)]

    def size(self, path: str) -> int:
        """Bytes in a file, or what a special file says in their place."""
        return os.stat(self.root + path).st_size

    def is_directory(self, path: str) -> bool:
        """Whether a directory is there."""
        return os.path.isdir(self.root + path)

    def inode(self, path: str) -> int:
        """Inode number of a file or directory. Among cgroups, a directory that is made again has another one."""
        return os.stat(self.root + path).st_ino

    def mode(self, path: str) -> int:
        """Type and permissions of a file or directory, as stat(2) has them."""
        return os.stat(self.root + path).st_mode

    def owner(self, path: str) -> int:
        """The uid that a file or directory belongs to; of ``/proc/<pid>``, that which the process runs as."""
        return os.stat(self.root + path).st_uid

    def link(self, path: str) -> str:
        """What a symbolic link says, such as those in ``/proc/<pid>/fd``."""
        return os.readlink(self.root + path)

    def make_group(self, path: str, mode: int) -> None:
        """Make the directory of a cgroup, with exactly these permissions."""
        os.mkdir(self.root + path)
        os.chmod(self.root + path, mode)

    def remove_group(self, path: str) -> None:
        """Remove the directory of a cgroup; EBUSY where it has tasks or groups."""
        os.rmdir(self.root + path)

    def write_group(self, path: str, text: str) -> None:
        """Write to a file of a cgroup, by one system call."""
        fd = os.open(self.root + path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)

    def resolve(self, path: str) -> str:
        """The path without symbolic links; what does not exist stays as it is."""
        real = os.path.realpath(self.root + path)
        root = os.path.realpath(self.root) if self.root else ""
        return real[len(root) :] or "/" if real == root or real.startswith(root + "/") else real
