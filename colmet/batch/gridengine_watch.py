"""Grid Engine's memory figures, read again and again: from its commands, or from files that another program writes."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import IO

from colmet.batch.answers import BatchError, FormError
from colmet.batch.gridengine import ENCODING, make_command, open_plain, read_jobs, read_task, run_command
from colmet.batch.gridengine_memory import COMMANDS, Hosts, Owners, QmemData, read_memory
from colmet.batch.gridengine_xml import MAX_BYTES, Sieve, check_encoding
from colmet.common.errors import ConfigError

log = logging.getLogger(__name__)

GRANTED = ["qstat", "-s", "r", "-u", "*", "-xml"]
PERIOD_S = 10.0
KEPT_PERIODS = 10  # periods for which the last good answer is used
FILE_AGE_S = 900.0  # older files are refused: their writer has stopped
FILES = ("qhost_qmem.xml", "qstat_qmem.xml")
MAX_FILE = 1 << 30  # bytes read of a file, kept or not; a command has its deadline
_MIB = 1 << 20


class MemorySource(ABC):
    """Source of the two outputs."""

    names: tuple[str, str] = COMMANDS  # of the two, for errors

    @abstractmethod
    def read(self, even_unchanged: bool) -> tuple[bytes, bytes] | None:
        """Return the output of `qhost -j -xml` and `qstat -j '*' -xml`, or raise BatchError; None if unchanged."""

    def read_granted(self) -> bytes | None:
        """Return the output of `qstat -s r -u '*' -xml`, or raise BatchError; None if not available."""
        return None

    def cancel(self) -> None:  # noqa: B027 - for sources that block
        """End a `read` in another thread soon, and every later one."""


class CommandSource(MemorySource):
    """The commands as source; on PATH, with SGE_ROOT and SGE_CELL in the environment."""

    def __init__(self) -> None:
        self._qhost = make_command(["qhost", "-j", "-xml"])
        self._qstat = make_command(["qstat", "-j", "*", "-xml"])
        self._running = make_command(GRANTED)

    def read(self, even_unchanged: bool) -> tuple[bytes, bytes]:
        """Return the current output of both."""
        del even_unchanged
        # The jobs' hosts first: a job that starts in between has its requests listed, and no host yet.
        return run_command(self._qhost), run_command(self._qstat)

    def read_granted(self) -> bytes:
        """Return the current output."""
        return run_command(self._running)

    def cancel(self) -> None:
        """Kill the running command."""
        for command in (self._qhost, self._qstat, self._running):
            command.cancel()


class FileSource(MemorySource):
    """Two files of a directory as source, written by another program under QmemTools' names."""

    def __init__(self, directory: str) -> None:
        self.names = os.path.join(directory, FILES[0]), os.path.join(directory, FILES[1])
        self._last: list[tuple[int, int, int]] = []

    def read(self, even_unchanged: bool) -> tuple[bytes, bytes] | None:
        """Return the content of both; None if neither has changed."""
        with contextlib.ExitStack() as stack:
            try:
                files = [stack.enter_context(open(path, "rb", opener=open_plain)) for path in self.names]
            except OSError as err:
                raise BatchError(
                    f"{err.filename}: {err.strerror}; write there what `qhost -j -xml` and `qstat -j '*' -xml` print"
                ) from err
            seen = list(map(_check_age, files))
            if seen == self._last and not even_unchanged:
                return None
            qhost, qstat = map(_read_file, files)
        self._last = seen
        return qhost, qstat


def _check_age(file: IO[bytes]) -> tuple[int, int, int]:
    """Return what changes with the content of a file; raise BatchError if it is too old."""
    status = os.fstat(file.fileno())
    age_s = time.time() - status.st_mtime
    if age_s > FILE_AGE_S:
        raise BatchError(f"{file.name}: was written {age_s:.0f} s ago; see whether what writes it still runs")
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read_file(file: IO[bytes]) -> bytes:
    """Return its content, filtered by `Sieve`."""
    sieve = Sieve()
    kept = bytearray()
    for _ in range(MAX_FILE // _MIB):
        part = file.read(_MIB)
        if not part:
            return bytes(kept)
        kept += sieve.keep(part)
        if len(kept) > MAX_BYTES:
            raise BatchError(f"{file.name}: more than {MAX_BYTES >> 20} MiB, not counting jobs' environments; refused")
    raise BatchError(f"{file.name}: {MAX_FILE >> 20} MiB or more; refused")


class MemoryWatch:
    """Cache of the data of `/qhost` and `/qstat`, refreshed by its own thread.

    The last good answers are kept for `KEPT_PERIODS`, or four times as long as they took; older ones are not returned.
    Reading the cache never blocks on a refresh.

    `left_out` counts unusable jobs and tasks of the last good answers; `why` is the reason of the last refresh's
    failure, "" if it succeeded. ConfigError for an unknown encoding.
    """

    def __init__(
        self,
        source: MemorySource,
        period_s: float = PERIOD_S,
        encoding: str = ENCODING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        try:
            check_encoding(encoding)
        except BatchError as err:
            raise ConfigError(str(err)) from err
        self.refreshes = self.failures = self.left_out = 0
        self.why = ""
        self._source = source
        self._period_s = period_s
        self._encoding = encoding
        self._clock = clock
        # valid until; replaced as a whole, so no lock is needed
        self._last: tuple[float, QmemData] | None = None
        self._is_logged = False  # the failure has been logged
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread of refreshes."""
        self._thread = threading.Thread(target=self._watch, name="gridengine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and the command in progress."""
        self._stop.set()
        self._source.cancel()
        if self._thread is not None:
            self._thread.join()

    def hosts(self) -> Hosts:
        """Return hosts with their jobs, read-only; empty without data."""
        data = self._known()
        return data.hosts if data else {}

    def owners(self) -> Owners:
        """Return owners with their jobs' requests and usage, read-only; empty without data."""
        data = self._known()
        return data.owners if data else {}

    def warnings(self) -> list[str]:
        """Return problems of the data, for administrators."""
        said = [f"Grid Engine does not answer: {self.why}"] if self._is_logged else []
        if self.left_out:
            said.append(f"jobs and tasks of Grid Engine that could not be read: {self.left_out}")
        return said

    def refresh(self) -> bool:
        """Query once, return whether it succeeded. For one thread only."""
        began = self._clock()
        last = self._last
        try:
            outputs = self._source.read(even_unchanged=last is None or bool(self.why))
            if outputs is not None:
                data = read_memory(*outputs, self._encoding, self._granted, self._source.names)
            else:
                assert last is not None
                data = last[1]
        except (BatchError, OSError) as err:
            return self._fail(str(err), None)
        except Exception as err:  # noqa: BLE001 - a defect: the next answer may be read all the same
            return self._fail(f"a defect, report it: {type(err).__name__}: {err}", err)
        if self._is_logged:
            log.info("Grid Engine answers again failures=%d", self.failures)
        self.why, self._is_logged = "", False
        self.left_out = data.left_out
        # a slow cell is queried seldom: its last answer is used until the next one
        now = self._clock()
        self._last = (began + max(KEPT_PERIODS * self._period_s, 4 * (now - began)), data)
        self.refreshes += 1
        return True

    def _fail(self, why: str, defect: Exception | None) -> bool:
        if self._stop.is_set():
            return False
        self.failures += 1
        # a single failure is no problem with an older answer: a file may have been read while it was written
        if not self._is_logged and (self.why or self._last is None):
            log.warning("Grid Engine does not answer why=%s", why, exc_info=defect)
            self._is_logged = True
        self.why = why
        if self._known() is None:
            self._last = None  # frees its memory
        return False

    def _granted(self) -> dict[tuple[str, str], int]:
        answer = self._source.read_granted()
        slots: dict[tuple[str, str], int] = {}
        for element in () if answer is None else read_jobs(answer, GRANTED, self._encoding):
            with contextlib.suppress(FormError):
                task = read_task(element)
                slots[task.number, task.tasks] = task.slots
        return slots

    def _known(self) -> QmemData | None:
        last = self._last
        return None if last is None or self._clock() > last[0] else last[1]

    def _watch(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            was_good = self.refresh()
            took_s = time.monotonic() - began
            # A slow cell is queried half of the time at most. A silent one is retried within a period, so that its
            # return is noticed soon.
            pause_s = took_s if was_good else min(took_s, self._period_s)
            self._stop.wait(max(self._period_s - took_s, pause_s))
