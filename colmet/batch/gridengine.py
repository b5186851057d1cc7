"""Grid Engine: queues and jobs for `BatchSystem`, and what its jobs do with memory.

Seen with Son of Grid Engine 8.1.9; the forms have been the same since 6.2.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from colmet.batch import answers
from colmet.batch.gridengine_memory import COMMANDS, Memory, parse_memory, read_memory
from colmet.batch.gridengine_xml import MAX_BYTES, Sieve, check_encoding, read_elements
from colmet.batch.model import BatchError, BatchJob, BatchSystem, Queue
from colmet.batch.qmem import Hosts, Owners
from colmet.common.errors import CommandFailed, ConfigError
from colmet.node.system.command import Command

log = logging.getLogger(__name__)

ENCODING = "utf-8"
DEADLINE_S = 30.0  # of a command; that of the commands themselves is a minute and more
PERIOD_S = 10.0
KEPT_PERIODS = 10  # that the last good answer is told for
FILE_AGE_S = 900.0  # older files are not told: whatever writes them has stopped
FILES = ("qhost_qmem.xml", "qstat_qmem.xml")
MAX_FILE = 1 << 30  # bytes that are read of a file, whatever is kept of them; a command has its deadline
NO_QUEUE = "unassigned"  # jobs that wait have no queue in Grid Engine, unless they asked for one
_MIB = 1 << 20
_NUMBER = re.compile("[0-9]{1,10}")
_RANGE = re.compile("([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")


def _command(argv: Sequence[str], deadline_s: float) -> Command:
    return Command(argv, deadline_s, max_answer=MAX_BYTES, sift=lambda: Sieve().keep)


def _run(command: Command) -> bytes:
    """What a command prints, by `Sieve`.

    Raises:
        BatchError: it is not there, fails, prints more than `MAX_BYTES`, or takes too long.
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
    """The cell that SGE_ROOT and SGE_CELL name, asked by `qstat`.

    Args:
        deadline_s: seconds that a command may take.
        encoding: of what it prints.
    """

    name = "gridengine"

    def __init__(self, deadline_s: float = DEADLINE_S, encoding: str = ENCODING) -> None:
        self._names = _command(["qstat", "-g", "c", "-xml"], deadline_s)
        # -r: with what was asked for; the user "*" is all users
        self._lines = _command(["qstat", "-r", "-u", "*", "-xml"], deadline_s)
        self._encoding = encoding

    def queues(self) -> Sequence[Queue]:
        """Every cluster queue, and `NO_QUEUE`, as `count_queues` counts them."""
        return count_queues(parse_queue_names(_run(self._names), self._encoding), self._tasks())

    def jobs(self) -> Sequence[BatchJob]:
        """A job for each line of `qstat`: array tasks that wait are one, such as "17.4-9:1", as long as they do."""
        now = time.time()
        return [task.job(now) for task in self._tasks()]

    def _tasks(self) -> list[Task]:
        return parse_tasks(_run(self._lines), self._encoding)


class Task(NamedTuple):
    """A line of `qstat`: a job, a task of an array job that runs, or all those of one that wait.

    Attributes:
        number: of the job.
        tasks: of the array, as printed: "3", "4-9:1" or "1-3:1,7"; "" for a job that is no array.
        user: its owner.
        letters: of its state, as printed: r, t, qw, hqw, Eqw, dr, S, ...
        started: seconds since 1970; None for one that waits.
        queue: its cluster queue; that of the master task; "" for one that waits.
        asked: cluster queues that it asked for; "" among them for patterns.
        slots: that it has, all together, or wants.
        h_vmem: bytes for each slot that it asked for; None where it did not.
    """

    number: str
    tasks: str
    user: str
    letters: str
    started: float | None
    queue: str
    asked: frozenset[str]
    slots: int
    h_vmem: float | None

    def state(self) -> str:
        """One of `BatchJob`'s.

        A job with an error (E) waits for somebody to clear it, and one that is suspended (s, S, T, N) for somebody to
        let it go on: both are held. One that is being deleted (d) is removed, be it that its host does not answer.
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
        """Whether it has been given its slots, whatever has become of it there."""
        return bool(self.queue)

    def size(self) -> int:
        """How many tasks it is."""
        total = 0
        for part in self.tasks.split(","):
            match = _RANGE.fullmatch(part)
            if match is None:
                total += 1
                continue
            first, last, step = (int(number) if number else 0 for number in match.groups())
            total += max((last - first) // (step or 1), 0) + 1 if last else 1
        return total

    def job(self, now: float) -> BatchJob:
        """It as a job; `now` in seconds since 1970."""
        runtime_s = int(max(now - self.started, 0)) if self.started is not None and self.has_slots() else 0
        number = f"{self.number}.{self.tasks}" if self.tasks else self.number
        return BatchJob(number, self.user, self.state(), runtime_s, self.queue or None)


def parse_queue_names(data: bytes, encoding: str = ENCODING) -> list[str]:
    """Names of the cluster queues, from `qstat -g c -xml`.

    Raises:
        BatchError: it is not what that prints.
    """
    path = ("job_info", "cluster_queue_summary")
    names = [_text(element, "name") for element in read_elements(data, encoding, "qstat -g c -xml", path)]
    return [name for name in names if name]


def parse_tasks(data: bytes, encoding: str = ENCODING) -> list[Task]:
    """Every line of `qstat -r -u '*' -xml`.

    Raises:
        BatchError: it is not what that prints.
    """
    command = "qstat -r -u '*' -xml"
    tasks = []
    for element in read_elements(data, encoding, command, ("job_info", "*", "job_list")):
        number, slots = _text(element, "JB_job_number"), _text(element, "slots")
        letters = _text(element, "state")
        if not (_NUMBER.fullmatch(number) and _NUMBER.fullmatch(slots) and letters):
            raise BatchError(f"{command}: a <job_list> without number, slots or state; what version is it?")
        h_vmem = None
        for request in element.iterfind("hard_request"):
            if request.get("name") == "h_vmem":
                h_vmem = parse_memory(request.text or "")
        asked = frozenset(_asked_queue(queue.text or "") for queue in element.iterfind("hard_req_queue"))
        tasks.append(
            Task(
                number=number,
                tasks=_text(element, "tasks"),
                user=_text(element, "JB_owner"),
                letters=letters,
                started=_parse_time(_text(element, "JAT_start_time")),
                queue=_text(element, "queue_name").partition("@")[0],
                asked=asked,
                slots=int(slots),
                h_vmem=h_vmem,
            )
        )
    return tasks


def _text(element: Element, tag: str) -> str:
    return (element.findtext(tag) or "").strip()


def _asked_queue(text: str) -> str:
    name = text.strip().partition("@")[0]
    return "" if re.search(r"[*?\[\]!&|()]", name) else name


def _parse_time(text: str) -> float | None:
    """Seconds since 1970 of a local time such as 2026-11-21T08:18:22."""
    try:
        return time.mktime(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def count_queues(names: Sequence[str], tasks: Sequence[Task]) -> list[Queue]:
    """Every queue with its jobs, array tasks one by one.

    A job that waits is counted for the queue that it asked for; where it asked for none, for several or for a pattern,
    for the made-up queue `NO_QUEUE`, which is always there. Cores are the slots that are taken, by jobs that are
    suspended or being deleted, too; memory is what those jobs asked for as h_vmem, unknown as soon as one did not.
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
            state = "running"  # until it has gone
        if state in counts:
            counts[state] += task.size()
        if task.has_slots():
            cores += task.slots
            memory = None if memory is None or task.h_vmem is None else memory + task.slots * task.h_vmem
    return Queue(name, **counts, cores=cores, memory_mb=None if memory is None else int(memory / _MIB))


class MemorySource(ABC):
    """Where the two answers come from.

    Attributes:
        names: of the two, for errors.
    """

    names: tuple[str, str] = COMMANDS

    @abstractmethod
    def read(self) -> tuple[bytes, bytes] | None:
        """`qhost -j -xml` and `qstat -j '*' -xml`; None where they are the same as before.

        Raises:
            BatchError: they cannot be had.
        """

    @abstractmethod
    def read_granted(self) -> bytes | None:
        """`qstat -s r -u '*' -xml`; None where that cannot be had.

        Raises:
            BatchError: it fails.
        """

    @abstractmethod
    def forget(self) -> None:
        """The last ones could not be used: give them again, the same or not."""

    @abstractmethod
    def cancel(self) -> None:
        """End a `read` that another thread is in, soon, and every later one."""


class CommandSource(MemorySource):
    """From the commands; on PATH, with SGE_ROOT and SGE_CELL in the environment."""

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self._qhost = _command(["qhost", "-j", "-xml"], deadline_s)
        self._qstat = _command(["qstat", "-j", "*", "-xml"], deadline_s)
        self._running = _command(["qstat", "-s", "r", "-u", "*", "-xml"], deadline_s)

    def read(self) -> tuple[bytes, bytes]:
        """What both print now."""
        # The job's hosts first: of a job that begins in between, it is told what it asked for, and it has no host yet.
        return _run(self._qhost), _run(self._qstat)

    def read_granted(self) -> bytes:
        """What it prints now."""
        return _run(self._running)

    def forget(self) -> None:
        """It is never the same."""

    def cancel(self) -> None:
        """Kill the command that runs."""
        for command in (self._qhost, self._qstat, self._running):
            command.cancel()


class FileSource(MemorySource):
    """From two files that something else writes, by the names that QmemTools gives them.

    Args:
        directory: where they are.
        clock: seconds since 1970.
    """

    def __init__(self, directory: str, clock: Callable[[], float] = time.time) -> None:
        self.names = os.path.join(directory, FILES[0]), os.path.join(directory, FILES[1])
        self._clock = clock
        self._last: list[tuple[int, int, int]] = []

    def read(self) -> tuple[bytes, bytes] | None:
        """What both hold; None where neither has changed."""
        files = []
        for path in self.names:
            try:
                files.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError as err:
                for fd in files:
                    os.close(fd)
                raise BatchError(
                    f"{path}: {err.strerror}; write there what `qhost -j -xml` and `qstat -j '*' -xml` print"
                ) from err
        try:
            seen = [self._look(path, fd) for path, fd in zip(self.names, files)]
            if seen == self._last:
                return None
            qhost, qstat = (_read_file(path, fd) for path, fd in zip(self.names, files))
        finally:
            for fd in files:
                os.close(fd)
        self._last = seen
        return qhost, qstat

    def read_granted(self) -> None:
        """QmemTools has no such file."""

    def forget(self) -> None:
        """Read them again."""
        self._last = []

    def cancel(self) -> None:
        """Files do not keep anybody waiting."""

    def _look(self, path: str, fd: int) -> tuple[int, int, int]:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise BatchError(f"{path}: is no regular file")
        age_s = self._clock() - status.st_mtime
        if age_s > FILE_AGE_S:
            raise BatchError(f"{path}: was written {age_s:.0f} s ago; see whether what writes it still runs")
        return status.st_ino, status.st_size, status.st_mtime_ns


def _read_file(path: str, fd: int) -> bytes:
    """What it holds, by `Sieve`."""
    sieve = Sieve()
    kept = bytearray()
    with open(fd, "rb", closefd=False) as file:
        for _ in range(MAX_FILE // _MIB):
            part = file.read(_MIB)
            if not part:
                return bytes(kept)
            kept += sieve.keep(part)
            if len(kept) > MAX_BYTES:
                raise BatchError(f"{path}: more than {MAX_BYTES >> 20} MiB, not counting jobs' environments; refused")
    raise BatchError(f"{path}: {MAX_FILE >> 20} MiB or more; refused")


class MemoryWatch:
    """Keeps what `/qhost` and `/qstat` tell, refreshed by a thread of its own.

    The last good answers are told for `KEPT_PERIODS`, or four times as long as they took; what is older is no longer
    told. Nobody waits for a refresh.

    Args:
        source: of the answers.
        period_s: seconds between two refreshes; at least as long as one takes.
        encoding: of the answers.
        clock: seconds, never set back.

    Attributes:
        refreshes: that were good.
        failures: that were not.
        left_out: jobs and tasks of the last good answers that could not be used.
        why: the last refresh failed; "" where it did not.

    Raises:
        ConfigError: there is no such encoding.
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
        self._last: tuple[float, float, Memory] | None = (
            None  # asked for, told until; replaced as a whole, so nobody needs a lock
        )
        self._is_told = False  # that it fails
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Refresh from now on."""
        self._thread = threading.Thread(target=self._watch, name="gridengine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and the command that it waits for."""
        self._stop.set()
        self._source.cancel()
        if self._thread is not None:
            self._thread.join()

    def hosts(self) -> Hosts:
        """Hosts with their jobs; empty where nothing is known. Not to be changed."""
        memory = self._known()
        return memory.hosts if memory else {}

    def owners(self) -> Owners:
        """Owners with what their jobs asked for and used; empty where nothing is known. Not to be changed."""
        memory = self._known()
        return memory.owners if memory else {}

    def warnings(self) -> list[str]:
        """What is wrong with what is told, for administrators."""
        said = [f"Grid Engine does not answer: {self.why}"] if self._is_told else []
        return said + (
            [f"jobs and tasks of Grid Engine that could not be read: {self.left_out}"] if self.left_out else []
        )

    def age_s(self) -> float | None:
        """Seconds since the last good answers; None where there were none."""
        last = self._last
        return None if last is None else self._clock() - last[0]

    def refresh(self) -> bool:
        """Ask once; whether that was good. Called by one thread only."""
        began = self._clock()
        try:
            memory = self._read()
        except (BatchError, OSError) as err:
            return self._fail(str(err), None)
        except Exception as err:  # noqa: BLE001 - a defect: the next answer may be read all the same
            return self._fail(f"a defect, report it: {type(err).__name__}: {err}", err)
        if self._is_told:
            log.info("Grid Engine answers again failures=%d", self.failures)
        self.why, self._is_told = "", False
        self.left_out = memory.left_out
        # a cell that takes long is asked seldom: what it said has to do until it has said something else
        now = self._clock()
        self._last = (began, began + max(KEPT_PERIODS * self._period_s, 4 * (now - began)), memory)
        self.refreshes += 1
        return True

    def _read(self) -> Memory:
        answers = self._source.read()
        if answers is not None:
            return read_memory(*answers, self._encoding, self._granted, self._source.names)
        if self._last is None:
            raise BatchError("the files are the same as before, and could not be used")
        return self._last[2]

    def _fail(self, why: str, defect: Exception | None) -> bool:
        self._source.forget()
        if self._stop.is_set():
            return False
        self.failures += 1
        # once is no trouble while there is an answer: a file may have been read while it was written
        if not self._is_told and (self.why or self._last is None):
            log.warning("Grid Engine does not answer why=%s", why, exc_info=defect)
            self._is_told = True
        self.why = why
        if self._known() is None:
            self._last = None  # the memory that it takes
        return False

    def _granted(self) -> dict[tuple[str, str], int]:
        answer = self._source.read_granted()
        if answer is None:
            return {}
        return {(task.number, task.tasks): task.slots for task in parse_tasks(answer, self._encoding)}

    def _known(self) -> Memory | None:
        last = self._last
        return None if last is None or self._clock() > last[1] else last[2]

    def _watch(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            was_good = self.refresh()
            self._stop.wait(pause_s(self._period_s, time.monotonic() - began, was_good))


def pause_s(period_s: float, took_s: float, was_good: bool) -> float:
    """Seconds from the end of a refresh to the next.

    A cell that takes long to answer is asked half of the time at most. One that does not answer at all is asked again
    within a period, so that it is not waited for long once it is there again.

    Args:
        period_s: between two refreshes.
        took_s: the last one.
        was_good: whether there was an answer.
    """
    return max(period_s - took_s, took_s if was_good else min(took_s, period_s))
