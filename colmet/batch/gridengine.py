"""Grid Engine: queues, jobs and records, from `qstat` and, of ended jobs, from its file `accounting`.

Checked with Son of Grid Engine 8.1.9; the formats have been the same since 6.2. Grid Engine appends a line for each
ended task to SGE_ROOT/SGE_CELL/common/accounting. Only new lines are read; times in milliseconds, as Univa's, are read
too. All tasks of an array have one number. The accounts do not distinguish qdel from any other SIGKILL.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, ClassVar, NamedTuple
from xml.etree.ElementTree import Element

from colmet.batch import answers, systems
from colmet.batch.answers import (
    LONG_TEXT,
    AskError,
    BatchError,
    FormError,
    count,
    hosts_text,
    moment_or_none,
    must,
    name,
    text,
    whole_below,
)
from colmet.batch.gridengine_memory import parse_memory, parse_number
from colmet.batch.gridengine_xml import MAX_BYTES, Sieve, child_text, read_elements
from colmet.batch.systems import BatchJob, BatchSystem, JobRecord, Queue, RecordSource
from colmet.common.errors import CommandFailed
from colmet.common.host.command import Command

log = logging.getLogger(__name__)

SYSTEM = "gridengine"
ENCODING = "utf-8"
DEADLINE_S = 30.0  # of a command; the commands' own is a minute or more
NO_QUEUE = "unassigned"  # waiting jobs have no queue in Grid Engine, unless they requested one
QUEUES = ["qstat", "-g", "c", "-xml"]
JOBS = ["qstat", "-r", "-u", "*", "-xml"]  # of all users, with their requests
RUNNING_JOBS = ["qstat", "-s", "rs", "-u", "*", "-r", "-xml"]
_MIB = 1 << 20
_DIGITS = re.compile("[0-9]{1,10}")
MOST_BYTES = 8 << 20  # of the file in one answer; the rest is in the next one
LATE_S = 3600  # the first reading begins with jobs that ended earlier by this, as lines are only roughly in order
ACCOUNTED_SHARE = 0.9  # of the CPU time for which a job is killed (h_cpu), the accounts may lack the last part

# Fields of a line, from the left, and from the right: a request among the fields of the middle may have colons.
_QUEUE, _HOST, _OWNER, _NAME, _NUMBER, _SUBMITTED, _STARTED, _ENDED = 0, 1, 3, 4, 5, 8, 9, 10
_FAILED, _EXIT, _WALL, _PROJECT, _SLOTS, _TASK, _CPU, _CATEGORY = 11, 12, 13, 31, 34, 35, 36, 39
_PE_TASK, _MAXVMEM, _BEHIND = -4, -3, -5
_FIELDS = 45

# Of the field `failed` (accounting(5)). Up to 11 and those here, the task could not be started, or its host was lost.
_NOT_STARTED = {*range(1, 12), 19, 21}
_RESCHEDULED = {24, 25}
_LIMIT, _AFTER = 37, 100
FAILURES: Mapping[int, str] = {
    8: "prolog",
    10: "start of the parallel environment",
    15: "epilog",
    19: "host lost before the exit status was known",
    21: "host lost",
    24: "migrated",
    25: "rescheduled",
    26: "input or output file",
    27: "no such shell",
    28: "no such working directory",
    30: "the job requested to be held in error",
    _LIMIT: "limit enforced by the master",
    _AFTER: "ended by a signal",
}
_KILLS = (9, 15)
_REQUESTS = re.compile(r"(?:^| )-l (\S+)")
_CLOCK = re.compile(r"(?:([0-9]{0,6}):)?(?:([0-9]{0,6}):)?([0-9]{1,9})(?:\.[0-9]{0,9})?")


def make_command(argv: Sequence[str]) -> Command:
    """Return a command of Grid Engine; its output passes `Sieve`."""
    return Command(argv, DEADLINE_S, max_answer=MAX_BYTES, sift=lambda: Sieve().keep)


def run_command(command: Command) -> bytes:
    """Return the output of a command, filtered by `Sieve`; AskError as of `answers.ask`."""
    try:
        return answers.run(command)
    except CommandFailed as err:
        advice = {
            "absent": "; PATH, SGE_ROOT and SGE_CELL have to be as Grid Engine's settings.sh sets them",
            "status": "; is the master up?",
        }
        raise AskError(f"{err}{advice.get(err.why, '')}", err.why) from err


class Task(NamedTuple):
    """A line of `qstat`: a job, a running task of an array job, or all waiting tasks of one."""

    number: str  # of the job
    tasks: str  # of the array, as printed: "3", "4-9:1" or "1-3:1,7"; "" for a job without tasks
    user: str  # its owner
    name: str | None  # of the job
    letters: str  # of its state, as printed: r, t, qw, hqw, Eqw, dr, S, ...
    started: float | None  # seconds since 1970; None while it waits
    queue: str  # its cluster queue, from the master task; "" while it waits
    host: str  # of the master task; "" while it waits
    asked: frozenset[str]  # requested cluster queues; "" among them for patterns
    slots: int  # all slots granted or, while it waits, requested
    requests: Mapping[str, str]  # for each slot, by name
    dependency: str | None  # jobs that it waited for

    def state(self) -> str:
        """Return a state of `BatchJob`.

        A job with an error (E) waits for its clearing, a suspended one (s, S, T, N) for its resumption: both are held.
        One being deleted (d) is removed, even if its host does not answer.
        """
        order = (("removed", "d"), ("held", "EsSTN"), ("running", "rt"), ("held", "h"), ("idle", "w"))
        return next((state for state, letters in order if set(letters) & set(self.letters)), "unknown")

    def size(self) -> int:
        """Return the number of tasks."""
        ranges = map(answers.task_range, self.tasks.split(","))
        return sum([1 if one is None else len(one) for one in ranges])

    def job(self, now: float) -> BatchJob:
        """Return it as a job; `now` in seconds since 1970."""
        runtime_s = int(max(now - self.started, 0)) if self.started is not None and self.queue else 0
        number = f"{self.number}.{self.tasks}" if self.tasks else self.number
        return BatchJob(number, self.user, self.state(), runtime_s, self.queue or None)


def read_jobs(data: bytes, command: Sequence[str], encoding: str = ENCODING) -> Iterable[Element]:
    """Yield the lines of a `qstat` with -r and -xml; raise BatchError for other output."""
    return read_elements(data, encoding, " ".join(command), ("job_info", "*", "job_list"))


def read_task(element: Element) -> Task:
    """Return a line of `qstat`; raise FormError with the faulty field."""
    number, slots, letters = (child_text(element, tag) for tag in ("JB_job_number", "slots", "state"))
    if not (_DIGITS.fullmatch(number) and _DIGITS.fullmatch(slots) and letters):
        raise FormError("JB_job_number, slots or state")
    queue, _, host = child_text(element, "queue_name").partition("@")
    start = child_text(element, "JAT_start_time")
    others = [other.text or "" for other in element.iterfind("predecessor_jobs_req")]
    return Task(
        number=number,
        tasks=child_text(element, "tasks"),
        user=must(name(child_text(element, "JB_owner")), "JB_owner"),
        name=text(child_text(element, "full_job_name")) or text(child_text(element, "JB_name")),
        letters=letters,
        started=must(parse_time(start), "JAT_start_time") if start else None,
        queue=queue,
        host=host,
        asked=frozenset(_asked_queue(asked.text or "") for asked in element.iterfind("hard_req_queue")),
        slots=int(slots),
        requests={asked.get("name", ""): (asked.text or "").strip() for asked in element.iterfind("hard_request")},
        dependency=text(",".join(others), LONG_TEXT),
    )


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
        if state == "removed" and task.queue:
            state = "running"  # until its slots are free
        if state in counts:
            counts[state] += task.size()
        if task.queue:  # it has been given its slots, whatever its state there
            cores += task.slots
            h_vmem = parse_memory(task.requests.get("h_vmem", ""))
            memory = None if memory is None or h_vmem is None else memory + task.slots * h_vmem
    return Queue(name, **counts, cores=cores, memory_mb=None if memory is None else int(memory / _MIB))


def account(line: str) -> JobRecord | None:
    """Return the record of a line of the accounts; None for a part of a parallel job, or a task that did not start."""
    words = line.split(":")
    if len(words) < _FIELDS:
        raise FormError("fields")
    number, started = must(count(words[_NUMBER]), "job_number"), _moment(words[_STARTED], "start_time")
    if words[_PE_TASK] != "NONE" or started is None:
        return None
    task = count(words[_TASK]) or None
    slots = count(words[_SLOTS]) or 1
    lists = _REQUESTS.findall(":".join(words[_CATEGORY:_BEHIND])[:4096])
    asked = {key: value for key, _, value in [one.partition("=") for listed in lists for one in listed.split(",")]}
    failed, status = must(count(words[_FAILED]), "failed"), must(count(words[_EXIT]), "exit_status")
    ended = max(started, must(_moment(words[_ENDED], "end_time"), "end_time"))
    memory = _memory(asked, slots)
    signal = status - 128 if failed in (_LIMIT, _AFTER) and 128 < status < 193 else None
    peak, cpu_s = (parse_number(words[place][:40]) or 0.0 for place in (_MAXVMEM, _CPU))
    is_out = memory is not None and peak >= memory
    used_s = {"h_rt": ended - started, "h_cpu": cpu_s / ACCOUNTED_SHARE}
    used_s.update(s_rt=used_s["h_rt"], s_cpu=used_s["h_cpu"])
    limits = {key: _seconds(asked.get(key)) for key in used_s}
    is_over = any(limit is not None and used_s[key] >= limit for key, limit in limits.items())
    return JobRecord(
        job=number,
        system=SYSTEM,
        batch_id=str(number) if task is None else f"{number}.{task}",
        state=_state(failed, status, signal, is_out, is_over),
        started=started,
        ended=ended,
        owner=must(name(words[_OWNER]), "owner"),
        name=text(words[_NAME]),
        project=None if words[_PROJECT] == "NONE" else text(words[_PROJECT]),
        queue=text(words[_QUEUE]),
        submitted=_moment(words[_SUBMITTED], "submission_time"),
        exit_code=status if signal is None else None,
        exit_signal=signal,
        reason=text(f"failed {failed}: {FAILURES.get(failed, 'see accounting(5)')}") if failed else None,
        allocated_cores=slots,
        requested_memory=memory,
        requested_gpus=_gpus(asked),
        requested_walltime_s=_seconds(asked.get("h_rt")),
        array=None if task is None else str(number),
        array_index=task,
        batch_hosts=hosts_text([words[_HOST]]),
    )


def _state(failed: int, status: int, signal: int | None, is_out: bool, is_over: bool) -> str:
    if failed in (_LIMIT, _AFTER):
        if is_out:
            return systems.OUT_OF_MEMORY
        if failed == _LIMIT or is_over:
            return systems.TIMEOUT
        return systems.CANCELLED if signal in _KILLS else systems.FAILED
    if failed in _RESCHEDULED:
        return systems.CANCELLED
    if failed in _NOT_STARTED:
        return systems.NODE_FAILED
    return systems.FAILED if failed or status else systems.DONE


def running_record(task: Task) -> JobRecord | None:
    """Return the record of a line of `qstat`; None for one that does not run."""
    if task.started is None or not task.queue:
        return None
    index = count(task.tasks)
    return JobRecord(
        job=int(task.number),
        system=SYSTEM,
        batch_id=task.number if index is None else f"{task.number}.{index}",
        state=systems.RUNNING,
        started=int(task.started),
        owner=task.user,
        name=task.name,
        queue=text(task.queue),
        allocated_cores=task.slots,
        requested_memory=_memory(task.requests, task.slots),
        requested_gpus=_gpus(task.requests),
        requested_walltime_s=_seconds(task.requests.get("h_rt")),
        array=None if index is None else task.number,
        array_index=index,
        dependency=task.dependency,
        batch_hosts=hosts_text([task.host]) if task.host else None,
    )


def _memory(asked: Mapping[str, str], slots: int) -> int | None:
    """Return bytes of h_vmem, which is for each slot."""
    size = parse_memory(asked.get("h_vmem", ""))
    return whole_below(size * slots) if size else None


def _gpus(asked: Mapping[str, str]) -> int | None:
    return next((count(asked[key]) for key in ("gpu", "gpus", "ngpus") if key in asked), None)


def _seconds(limit: str | None) -> int | None:
    """Return seconds of a time_specifier (sge_types(1)), such as 600 or 1:0:0; None for INFINITY and others."""
    match = _CLOCK.fullmatch(limit or "")
    if match is None:
        return None
    seconds = 0
    for part in match[0].partition(".")[0].split(":"):
        seconds = 60 * seconds + int(part or 0)
    return seconds


def _moment(word: str, field: str) -> int | None:
    found = count(word)
    return moment_or_none(found // 1000 if found is not None and found > 10**11 else word, field)


def open_plain(path: str, flags: int) -> int:
    """Open a regular file, as `opener` of open(); raise BatchError for anything else."""
    fd = os.open(path, flags | os.O_NONBLOCK)  # a pipe in its place does not block
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise BatchError(f"{path}: is no regular file")


class AccountsFile:
    """The file, read from where the last reading ended; a rotated one is read to its end first."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self._rest = b""  # of a line that is being written

    def read(self, since: float) -> list[str]:
        """Return new lines, at most `MOST_BYTES`; at first those from about this end time on; or raise BatchError."""
        try:
            if self._file is None:
                self._file = self._opened()
                self._file.seek(_place_of(self._file, since - LATE_S))
            data = self._more()
        except (OSError, BatchError) as err:
            self.close()
            said = err.strerror if isinstance(err, OSError) else err
            raise BatchError(
                f"{self.path}: {said}; gridengine=PATH names the file `accounting` of the cell, which must be readable"
            ) from err
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-(1 << 16) :]
        return [line.decode(ENCODING, "replace") for line in lines if line and not line.startswith(b"#")]

    def _opened(self) -> IO[bytes]:
        return open(self.path, "rb", opener=open_plain)

    def _more(self) -> bytes:
        assert self._file is not None
        if os.fstat(self._file.fileno()).st_size < self._file.tell():  # emptied by its rotation
            self._file.seek(0)
            self._rest = b""
        data = self._file.read(MOST_BYTES)
        if not data and self._is_replaced(self._file):
            self.close()
            self._file = self._opened()
            data = self._file.read(MOST_BYTES)
        return data

    def _is_replaced(self, file: IO[bytes]) -> bool:
        """Return whether the path has another file; after a rotation it has none until the next job ends."""
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return not os.path.samestat(there, os.fstat(file.fileno()))

    def close(self) -> None:
        """Close the file; idempotent."""
        file, self._file, self._rest = self._file, None, b""
        if file is not None:
            file.close()


def _place_of(file: IO[bytes], since: float) -> int:
    """Return the place of the first line whose job ended then or later, where ends grow from line to line."""
    low, high = 0, file.seek(0, os.SEEK_END)
    while high - low > 1 << 12:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline(1 << 16)
        words = file.readline(1 << 16).decode(ENCODING, "replace").split(":")
        ended = None
        with contextlib.suppress(FormError):  # which is counted when it is read
            ended = _moment(words[_ENDED], "end_time") if len(words) >= _FIELDS else None
        low, high = (middle, high) if ended is not None and ended < since else (low, middle)
    file.seek(low)
    if low:
        file.readline(1 << 16)
    return file.tell()


class GridEngine(BatchSystem):
    """Queues and jobs of the cell of SGE_ROOT and SGE_CELL, from `qstat`."""

    name: ClassVar[str] = SYSTEM

    def __init__(self) -> None:
        self._queues, self._jobs = make_command(QUEUES), make_command(JOBS)

    def queues(self) -> Sequence[Queue]:
        """Return every cluster queue, and `NO_QUEUE`, as `count_queues` counts them."""
        path = ("job_info", "cluster_queue_summary")
        elements = read_elements(run_command(self._queues), ENCODING, " ".join(QUEUES), path)
        return count_queues(list(filter(None, [child_text(element, "name") for element in elements])), self._tasks())

    def jobs(self) -> Sequence[BatchJob]:
        """Return a job for each line of `qstat`; waiting tasks of an array are one job, such as "17.4-9:1"."""
        now = time.time()
        return [task.job(now) for task in self._tasks()]

    def _tasks(self) -> list[Task]:
        return self.parse(read_jobs(run_command(self._jobs), JOBS), read_task, " ".join(JOBS))


class GridEngineRecords(RecordSource):
    """Records from qstat, of PATH, and the accounts at a path; "" is that of SGE_ROOT and SGE_CELL."""

    name: ClassVar[str] = SYSTEM

    def __init__(self, path: str = "") -> None:
        super().__init__()
        self._accounts = AccountsFile(path or accounts_path(os.environ))
        self._since = 0.0
        self._unsaved: list[JobRecord] = []

    def running(self) -> Sequence[JobRecord]:
        """Return the tasks that run now; none without qstat."""
        try:
            answer = run_command(make_command(RUNNING_JOBS))
        except AskError as err:
            if err.why != "absent":
                raise
            log.debug("running jobs are not known system=%s error=%s", SYSTEM, err)
            return []
        command = " ".join(RUNNING_JOBS)
        elements = read_jobs(answer, RUNNING_JOBS)
        return self.accept(self.parse(elements, lambda element: running_record(read_task(element)), command))

    def ended(self, since: float, until: float) -> Sequence[JobRecord]:
        """Return the tasks of new lines; those of the last answer again, unless the interval has moved on since."""
        del until
        if since > self._since:
            self._unsaved, self._since = [], since
        lines = self._accounts.read(since)
        self._unsaved += self.accept(self.parse(lines, account, self._accounts.path))
        return self._unsaved

    def close(self) -> None:
        """Close the file; idempotent."""
        self._accounts.close()


def accounts_path(environment: Mapping[str, str]) -> str:
    """Return the path of the accounts of SGE_ROOT and SGE_CELL."""
    return os.path.join(
        environment.get("SGE_ROOT", ""), environment.get("SGE_CELL") or "default", "common", "accounting"
    )
