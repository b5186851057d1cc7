"""The HDF5 files of a collector, and the process that reads them, also while they are written.

It is a process of its own, as the HDF5 library can crash on damaged files, or never end.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import stat
import tempfile
import time
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import IO, Any, Callable, NamedTuple, TypeVar

from colmet.collector.backends.hdf5.libhdf5 import ForeignDataError
from colmet.collector.backends.hdf5.library import (
    STORAGE_ERRORS,
    cause,
    close_library,
    is_of_system,
    open_library,
    tables,
)
from colmet.common.errors import ConfigError
from colmet.stored import messages
from colmet.stored.rows import Progress, Spooled, TableRows, spool_of

MAX_HELD = 8  # files kept open
QUIET_S = 600.0  # limit for the longest table
MAGIC = b"\x89HDF\r\n\x1a\n"  # start of every HDF5 file

Stamp = tuple[int, int, int]
T = TypeVar("T")
SUFFIX = ".hdf5"
# A file has the rows received while it was written. Late rows come from nodes that could not send, which keep batches
# this long. Early rows come from nodes with a fast clock.
LATE_S = 7 * 86400
EARLY_S = 300
# A file being written can be read in the middle of a burst: it is read again.
LIVE_S = 300.0
BURST_S = 1.0  # missing rows may be there after this time
TRIES = 10
WAIT_S = 0.2


class Unreadable(Exception):
    """A file cannot be read.

    Attributes:
        may_change: whether a retry may succeed, if a process writes to the file.
    """

    def __init__(self, text: str, may_change: bool = False) -> None:
        super().__init__(text)
        self.may_change = may_change


class _Failure(NamedTuple):
    """An `Unreadable`, as an answer of the reading process."""

    text: str
    may_change: bool


class Reader:
    """The reading process. It starts at the first request, and ends with its client.

    Both processes share an unnamed temporary file, the spool: see `spool_of`.

    Attributes:
        left_s: returns the seconds left for reading; raises after the deadline.
    """

    def __init__(self, *reads: Callable[..., Any]) -> None:
        self._reads = {read.__name__: read for read in reads}
        self.left_s: Callable[[], float] = lambda: QUIET_S
        self._child = 0
        self._pipes: list[IO[bytes]] = []
        self._spool: IO[bytes] | None = None

    def ask(self, path: str, read: partial[T], progress: Callable[[float], None] = lambda _: None) -> T:
        """Return the result of one of the functions, with its arguments, for a file; Unreadable with the cause."""
        limit_s = min(self.left_s(), QUIET_S)
        if not self._child:
            self._start()
        questions, answers = self._pipes
        try:
            messages.send(questions, [path, read.func.__name__, read.keywords, limit_s])
            found = messages.receive(answers, ANSWERS)
            while isinstance(found, Progress):
                progress(found.share)
                found = messages.receive(answers, ANSWERS)
        except (EOFError, BrokenPipeError, ValueError) as err:
            status = self._end(signal.SIGTERM)
            if status & 127 == signal.SIGALRM:
                if limit_s < QUIET_S:
                    self.left_s()  # raises, or the process was only slower to start than the clock is exact
                raise Unreadable(f"it is damaged: reading it comes to no end in {QUIET_S:g} s") from err
            if status & 127 == signal.SIGKILL:  # not a signal of the library's own
                raise Unreadable("the process that reads was killed, as the system does where memory is short") from err
            how = signal.Signals(status & 127).name if status & 127 else f"status {status >> 8}"
            raise Unreadable(f"it is damaged, or not whole: the HDF5 library crashed on it ({how})", True) from err
        if isinstance(found, _Failure):
            raise Unreadable(*found)
        answer: T = found
        return answer

    def spooled(self, offset: int, size: int) -> bytes:
        """Return a part of the spool; raise Unreadable if it is not there."""
        self.left_s()
        data = os.pread(self._spool.fileno(), size, offset) if self._spool is not None else b""
        if len(data) != size:
            raise Unreadable("the reading process did not keep its rows")
        return data

    @property
    def spool_bytes(self) -> int:
        """Return the size of the spool."""
        return os.fstat(self._spool.fileno()).st_size if self._spool is not None else 0

    def cut_spool(self, size: int) -> None:
        """Drop the content of the spool from this size on."""
        if self._spool is not None:
            os.ftruncate(self._spool.fileno(), size)

    def close(self) -> None:
        """End the process."""
        self._end(signal.SIGTERM)
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _start(self) -> None:
        if self._spool is None:
            with contextlib.suppress(OSError):  # few requests need it
                is_default = "TMPDIR" not in os.environ and os.access("/var/tmp", os.W_OK)  # files are large
                folder = "/var/tmp" if is_default else None
                self._spool = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115 - open until close
        read_questions, write_questions = os.pipe2(os.O_CLOEXEC)
        read_answers, write_answers = os.pipe2(os.O_CLOEXEC)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads: those of libraries
            try:
                self._child = os.fork()
            except OSError as err:
                for descriptor in (read_questions, write_questions, read_answers, write_answers):
                    os.close(descriptor)
                raise Unreadable(f"no process can be started for it: {err.strerror}") from err
        if not self._child:
            try:
                os.close(write_questions)
                os.close(read_answers)
                _serve(os.fdopen(read_questions, "rb"), os.fdopen(write_answers, "wb"), self._spool, self._reads)
            finally:
                os._exit(1)
        os.close(read_questions)
        os.close(write_answers)
        self._pipes = [os.fdopen(write_questions, "wb"), os.fdopen(read_answers, "rb")]

    def _end(self, how: signal.Signals) -> int:
        """End the process; return its status from `os.waitpid`."""
        child, self._child = self._child, 0
        if not child:
            return 0
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            os.kill(child, how)
            _, status = os.waitpid(child, 0)
        return status


ANSWERS = {kind.__name__: kind for kind in (TableRows, Spooled, _Failure, Progress)}


# -- in the other process --


def _serve(
    questions: IO[bytes], answers: IO[bytes], spool: IO[bytes] | None, reads: Mapping[str, Callable[..., Any]]
) -> None:
    """Answer until the client is gone; output of libraries is discarded."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    # connections of the client would stay open here. Their numbers stay taken: some object may still close them.
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the list's own has gone
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.dup2(nowhere, descriptor, inheritable=False)
    faulthandler.disable()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client gets it, too, and closes the pipe
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends it also within the library
    files = _Files()
    while True:
        try:
            path, name, arguments, limit_s = messages.receive(questions, {})
        except EOFError:
            return
        limit_time(limit_s)
        read = partial(reads[name], **arguments)
        if name == spool_of.__name__:
            read = partial(read, spool=spool, answers=answers)
        found = files.read(path, read)
        signal.setitimer(signal.ITIMER_REAL, 0)
        messages.send(answers, found)


def limit_time(limit_s: float = QUIET_S) -> None:
    """End this process after some seconds from now on; the client may be gone before."""
    signal.setitimer(signal.ITIMER_REAL, limit_s)


class _Files:
    """Open files; one modified in the meantime is reopened."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, tuple[Stamp, Any]] = OrderedDict()  # last used last

    def read(self, path: str, read: Callable[[Any], Any]) -> Any:
        """Return the result of a function for a file, or a `_Failure`."""
        try:
            return read(self._file(path))
        except MemoryError:
            return _Failure(
                "not enough memory for this request; ask for fewer columns or hosts, or a shorter interval", False
            )
        except Exception as err:  # noqa: BLE001 - PyTables raises any exception on a damaged file
            self._drop(path)
            return _Failure(_reason(path, err), not (is_of_system(err) or isinstance(err, ForeignDataError)))

    def _drop(self, path: str) -> None:
        _, file = self._open.pop(path, (None, None))
        if file is not None:
            with contextlib.suppress(*STORAGE_ERRORS):  # nothing was written to it
                close_library(file)

    def _file(self, path: str) -> Any:
        """Return a file, opened; raise any exception of PyTables if it cannot be opened."""
        stamp = _stamp(path)
        if path in self._open and self._open[path][0] == stamp:
            self._open.move_to_end(path)
            return self._open[path][1]
        self._drop(path)
        if len(self._open) >= MAX_HELD:
            self._drop(next(iter(self._open)))
        file = open_library(path, "r")
        self._open[path] = stamp, file
        return file


def _reason(path: str, err: Exception) -> str:
    if isinstance(err, tables.HDF5ExtError) and not is_of_system(err):
        try:
            with open(path, "rb") as file:
                if file.read(len(MAGIC)) != MAGIC:
                    return "it is no HDF5 file, or its beginning is damaged"
        except OSError as problem:
            return problem.strerror or str(problem)
        return "it is damaged, or being written all the time"
    return cause(err)[:200].encode("unicode_escape").decode()


def _stamp(path: str) -> Stamp:
    """Return a stamp of a file: it changes with every write, and for another file in its place."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


class HeldFile(NamedTuple):
    """A file, and the interval of its writing, in seconds since 1970."""

    path: str
    begins: float = float("-inf")
    ends: float = float("inf")

    def overlaps(self, since: float | None, until: float | None) -> bool:
        """Return whether rows of the interval may be in it."""
        return (since is None or self.ends >= since - EARLY_S) and (until is None or self.begins <= until + LATE_S)


def files_of(path: str) -> list[HeldFile]:
    """Return the files of a collector's ``--hdf5-filepath``, by time; empty without any.

    The path is a file, or the part before ``.<10 digits>.hdf5``.

    Raises:
        ConfigError: the directory cannot be read.
    """
    single = [HeldFile(path)] if os.path.isfile(path) else []
    directory, name = os.path.split(path)
    pattern = re.compile(rf"{re.escape(name)}\.(\d{{10}}){re.escape(SUFFIX)}", re.ASCII)
    try:
        found = [(int(match[1]), match[0]) for match in map(pattern.fullmatch, os.listdir(directory or ".")) if match]
    except (FileNotFoundError, NotADirectoryError):
        return single
    except (OSError, ValueError) as err:
        if single:
            return single
        raise ConfigError(f"{printable(path)}: {getattr(err, 'strerror', None) or err}") from err
    found.sort()
    ends = [float(begins) for begins, _ in found[1:]] + [float("inf")]
    dated = [HeldFile(os.path.join(directory, name), begins, end) for (begins, name), end in zip(found, ends)]
    return single + dated


def printable(path: str) -> str:
    """Return a path that can neither control a terminal nor add a line of its own."""
    return path if path.isprintable() else ascii(path)


def ask(
    reader: Reader,
    path: str,
    read: partial[T],
    torn: Callable[[T], bool],
    progress: Callable[[float], None] = lambda _: None,
) -> T:
    """Return the result of `read` for a file; for one being written, with retries.

    `torn`: whether a result is from the middle of a burst, with rows ahead of their values.

    Raises:
        ConfigError: it cannot be read.
    """
    kept_bytes = reader.spool_bytes
    for left in reversed(range(TRIES)):
        reader.cut_spool(kept_bytes)
        try:
            found = reader.ask(path, read, progress)
            if not left or not torn(found) or not is_live(path):
                return found
        except Unreadable as err:
            if not left or not err.may_change or not is_live(path):
                reader.cut_spool(kept_bytes)
                raise ConfigError(f"{printable(path)}: cannot be read: {err}") from err
        time.sleep(WAIT_S)
    raise AssertionError("unreachable")


def is_live(path: str, within_s: float = LIVE_S) -> bool:
    """Return whether a file was written to within the last seconds."""
    try:
        return abs(time.time() - os.stat(path).st_mtime) < within_s
    except OSError:
        return False
