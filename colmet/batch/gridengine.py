"""Grid Engine: queues and jobs for `BatchSystem`, and the memory of its jobs.

Checked with Son of Grid Engine 8.1.9; the formats have been the same since 6.2.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import IO, NamedTuple

from colmet.batch import answers
from colmet.batch.gridengine_memory import COMMANDS, QmemData, parse_memory, read_memory
from colmet.batch.gridengine_xml import MAX_BYTES, Sieve, check_encoding, child_text, read_elements
from colmet.batch.model import BatchError, BatchJob, BatchSystem, Queue
from colmet.batch.qmem import Hosts, Owners
from colmet.common.errors import CommandFailed, ConfigError
from colmet.common.host.command import Command

log = logging.getLogger(__name__)

ENCODING = "utf-8"
DEADLINE_S = 30.0  # of a command; the commands' own is a minute or more
PERIOD_S = 10.0
KEPT_PERIODS = 10  # periods for which the last good answer is used
FILE_AGE_S = 900.0  # older files are refused: their writer has stopped
FILES = ("qhost_qmem.xml", "qstat_qmem.xml")
MAX_FILE = 1 << 30  # bytes read of a file, kept or not; a command has its deadline
NO_QUEUE = "unassigned"  # waiting jobs have no queue in Grid Engine, unless they requested one
_MIB = 1 << 20
_NUMBER = re.compile("[0-9]{1,10}")


def _command(argv: Sequence[str]) -> Command:
    return Command(argv, DEADLINE_S, max_answer=MAX_BYTES, sift=lambda: Sieve().keep)


def _run(command: Command) -> bytes:
    """Return the output of a command, filtered by `Sieve`.

    Raises:
        BatchError: it is missing, fails, prints more than `MAX_BYTES`, or reaches its timeout.
    """
    try:
        return answers.run(command)
    except CommandFailed as err:
        advice = {
            "absent": "; PATH, SGE_ROOT and SGE_CELL have to be as Grid Engine's settings.sh sets them",
            "status": "; is the master up?",
        }
        raise BatchError(f"{err}{advice.get(err.why, '')}") from err


class GridEngine(BatchSystem):
    """The cell of SGE_ROOT and SGE_CELL, queried with `qstat`."""

    name = "gridengine"

    def __init__(self) -> None:
        self._names = _command(["qstat", "-g", "c", "-xml"])
        # -r: with the requests; the user "*" is all users
        self._lines = _command(["qstat", "-r", "-u", "*", "-xml"])

    def queues(self) -> Sequence[Queue]:
        """Return every cluster queue, and `NO_QUEUE`, as `count_queues` counts them."""
        return count_queues(parse_queue_names(_run(self._names)), self._tasks())

    def jobs(self) -> Sequence[BatchJob]:
        """Return a job for each line of `qstat`; waiting tasks of an array are one job, such as "17.4-9:1"."""
        now = time.time()
        return [task.job(now) for task in self._tasks()]

    def _tasks(self) -> list[Task]:
        return parse_tasks(_run(self._lines))


class Task(NamedTuple):
    """A line of `qstat`: a job, a running task of an array job, or all waiting tasks of one."""

    number: str  # of the job
    tasks: str  # of the array, as printed: "3", "4-9:1" or "1-3:1,7"; "" for a job without tasks
    user: str  # its owner
    letters: str  # of its state, as printed: r, t, qw, hqw, Eqw, dr, S, ...
    started: float | None  # seconds since 1970; None while it waits
    queue: str  # its cluster queue, from the master task; "" while it waits
    asked: frozenset[str]  # requested cluster queues; "" among them for patterns
    slots: int  # all slots granted or, while it waits, requested
    h_vmem: float | None  # requested bytes for each slot; None without a request

    def state(self) -> str:
        """Return a state of `BatchJob`.

        A job with an error (E) waits for its clearing, a suspended one (s, S, T, N) for its resumption: both are held.
        One being deleted (d) is removed, even if its host does not answer.
        """
        letters = set(self.letters)
        if "d" in letters:
            return "removed"
        if letters & set("EsSTN"):
            return "held"
        if letters & set("rt"):
            return "running"
        if "h" in letters:
            return "held"
        return "idle" if "w" in letters else "unknown"

    def has_slots(self) -> bool:
        """Return whether it has been given its slots, whatever its state there."""
        return bool(self.queue)

    def size(self) -> int:
        """Return the number of tasks."""
        ranges = map(answers.task_range, self.tasks.split(","))
        return sum([1 if one is None else len(one) for one in ranges])

    def job(self, now: float) -> BatchJob:
        """Return it as a job; `now` in seconds since 1970."""
        runtime_s = int(max(now - self.started, 0)) if self.started is not None and self.has_slots() else 0
        number = f"{self.number}.{self.tasks}" if self.tasks else self.number
        return BatchJob(number, self.user, self.state(), runtime_s, self.queue or None)


def parse_queue_names(data: bytes) -> list[str]:
    """Return the names of the cluster queues, from `qstat -g c -xml`; raise BatchError for other output."""
    path = ("job_info", "cluster_queue_summary")
    names = [child_text(element, "name") for element in read_elements(data, ENCODING, "qstat -g c -xml", path)]
    return [name for name in names if name]


def parse_tasks(data: bytes, encoding: str = ENCODING) -> list[Task]:
    """Return every line of `qstat -r -u '*' -xml`; raise BatchError for other output."""
    command = "qstat -r -u '*' -xml"
    tasks = []
    for element in read_elements(data, encoding, command, ("job_info", "*", "job_list")):
        number, slots, letters = (child_text(element, tag) for tag in ("JB_job_number", "slots", "state"))
        if not (_NUMBER.fullmatch(number) and _NUMBER.fullmatch(slots) and letters):
            raise BatchError(f"{command}: a <job_list> without number, slots or state; what version is it?")
        h_vmem = None
        for request in element.iterfind("hard_request"):
            if request.get("name") == "h_vmem":
                h_vmem = parse_memory((request.text or "").strip())
        asked = frozenset(_asked_queue(queue.text or "") for queue in element.iterfind("hard_req_queue"))
        tasks.append(
            Task(
                number=number,
                tasks=child_text(element, "tasks"),
                user=child_text(element, "JB_owner"),
                letters=letters,
                started=parse_time(child_text(element, "JAT_start_time")),
                queue=child_text(element, "queue_name").partition("@")[0],
                asked=asked,
                slots=int(slots),
                h_vmem=h_vmem,
            )
        )
    return tasks


def _asked_queue(text: str) -> str:
    name = text.strip().partition("@")[0]
    return "" if re.search(r"[*?\[\]!&|()]", name) else name


def parse_time(text: str) -> float | None:
    """Return seconds since 1970 of a local time such as 2026-11-21T08:18:22."""
    try:
        return time.mktime(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def count_queues(names: Sequence[str], tasks: Sequence[Task]) -> list[Queue]:
    """Return every queue with its jobs, array tasks one by one.

    A waiting job counts for its requested queue; without a request, with several or with a pattern it counts for the
    artificial queue `NO_QUEUE`, always present. Cores are the slots in use, including those of jobs suspended or being
    deleted. Memory is the sum of these jobs' h_vmem requests, unknown as soon as one has none.
    """
    found: dict[str, list[Task]] = {name: [] for name in [*names, NO_QUEUE]}
    for task in tasks:
        (asked,) = task.asked if len(task.asked) == 1 else ("",)
        name = task.queue or asked
        found.get(name, found[NO_QUEUE]).append(task)
    return [_queue(name, found[name]) for name in found]


def _queue(name: str, tasks: Sequence[Task]) -> Queue:
    counts = {"idle": 0, "running": 0, "held": 0}
    cores = 0
    memory: float | None = 0.0
    for task in tasks:
        state = task.state()
        if state == "removed" and task.has_slots():
            state = "running"  # until its slots are free
        if state in counts:
            counts[state] += task.size()
        if task.has_slots():
            cores += task.slots
            memory = None if memory is None or task.h_vmem is None else memory + task.slots * task.h_vmem
    return Queue(name, **counts, cores=cores, memory_mb=None if memory is None else int(memory / _MIB))


class MemorySource(ABC):
    """Source of the two outputs.

    Attributes:
        names: of the two, for errors.
    """

    names: tuple[str, str] = COMMANDS

    @abstractmethod
    def read(self) -> tuple[bytes, bytes] | None:
        """Return the output of `qhost -j -xml` and `qstat -j '*' -xml`; None if unchanged.

        Raises:
            BatchError: they are not available.
        """

    def read_granted(self) -> bytes | None:
        """Return the output of `qstat -s r -u '*' -xml`, or raise BatchError; None if not available."""
        return None

    def forget(self) -> None:  # noqa: B027 - for sources that remember
        """Discard the last, unusable outputs: the next `read` returns them even if unchanged."""

    def cancel(self) -> None:  # noqa: B027 - for sources that block
        """End a `read` in another thread soon, and every later one."""


class CommandSource(MemorySource):
    """The commands as source; on PATH, with SGE_ROOT and SGE_CELL in the environment."""

    def __init__(self) -> None:
        self._qhost = _command(["qhost", "-j", "-xml"])
        self._qstat = _command(["qstat", "-j", "*", "-xml"])
        self._running = _command(["qstat", "-s", "r", "-u", "*", "-xml"])

    def read(self) -> tuple[bytes, bytes]:
        """Return the current output of both."""
        # The jobs' hosts first: a job that starts in between has its requests listed, and no host yet.
        return _run(self._qhost), _run(self._qstat)

    def read_granted(self) -> bytes:
        """Return the current output."""
        return _run(self._running)

    def cancel(self) -> None:
        """Kill the running command."""
        for command in (self._qhost, self._qstat, self._running):
            command.cancel()


class FileSource(MemorySource):
    """Two files of a directory as source, written by another program under QmemTools' names."""

    def __init__(self, directory: str, clock: Callable[[], float] = time.time) -> None:
        self.names = os.path.join(directory, FILES[0]), os.path.join(directory, FILES[1])
        self._clock = clock
        self._last: list[tuple[int, int, int]] = []

    def read(self) -> tuple[bytes, bytes] | None:
        """Return the content of both; None if neither has changed."""
        with contextlib.ExitStack() as stack:
            try:
                files = [stack.enter_context(open(path, "rb", opener=open_plain)) for path in self.names]
            except OSError as err:
                raise BatchError(
                    f"{err.filename}: {err.strerror}; write there what `qhost -j -xml` and `qstat -j '*' -xml` print"
                ) from err
            seen = [self._look(file) for file in files]
            if seen == self._last:
                return None
            qhost, qstat = map(_read_file, files)
        self._last = seen
        return qhost, qstat

    def forget(self) -> None:
        """Make the next `read` read them again."""
        self._last = []

    def _look(self, file: IO[bytes]) -> tuple[int, int, int]:
        status = os.fstat(file.fileno())
        age_s = self._clock() - status.st_mtime
        if age_s > FILE_AGE_S:
            raise BatchError(f"{file.name}: was written {age_s:.0f} s ago; see whether what writes it still runs")
        return status.st_ino, status.st_size, status.st_mtime_ns


def open_plain(path: str, flags: int) -> int:
    """Open a regular file, as `opener` of open(); raise BatchError for anything else."""
    fd = os.open(path, flags | os.O_NONBLOCK)  # a pipe in its place does not block
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise BatchError(f"{path}: is no regular file")


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

    Args:
        source: of the answers.
        period_s: seconds between two refreshes; at least as long as one lasts.
        encoding: of the answers.
        clock: monotonic seconds.

    Attributes:
        refreshes: number of successful ones.
        failures: number of failed ones.
        left_out: unusable jobs and tasks of the last good answers.
        why: reason of the last refresh's failure; "" if it succeeded.

    Raises:
        ConfigError: unknown encoding.
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
        try:
            data = self._read()
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

    def _read(self) -> QmemData:
        outputs = self._source.read()
        if outputs is not None:
            return read_memory(*outputs, self._encoding, self._granted, self._source.names)
        if self._last is None:
            raise BatchError("the files are the same as before, and could not be used")
        return self._last[1]

    def _fail(self, why: str, defect: Exception | None) -> bool:
        self._source.forget()
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
        if answer is None:
            return {}
        return {(task.number, task.tasks): task.slots for task in parse_tasks(answer, self._encoding)}

    def _known(self) -> QmemData | None:
        last = self._last
        return None if last is None or self._clock() > last[0] else last[1]

    def _watch(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            was_good = self.refresh()
            self._stop.wait(pause_s(self._period_s, time.monotonic() - began, was_good))


def pause_s(period_s: float, took_s: float, was_good: bool) -> float:
    """Return seconds from the end of a refresh to the next.

    A slow cell is queried half of the time at most. A silent one is retried within a period, so that its return is
    noticed soon.
    """
    return max(period_s - took_s, took_s if was_good else min(took_s, period_s))
