"""Records of Grid Engine's jobs: of ended ones from its file `accounting`, of running ones from `qstat`.

Grid Engine appends a line for each ended task to SGE_ROOT/SGE_CELL/common/accounting. Only new lines are read. Checked
with Son of Grid Engine 8.1.9; times in milliseconds, as Univa's, are read too.

All tasks of an array have one number. The accounts do not distinguish qdel from any other SIGKILL.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import IO, ClassVar
from xml.etree.ElementTree import Element

from colmet.batch.answers import AskError, FormError, ask, must, name, parse_each
from colmet.batch.gridengine import ENCODING, open_plain, parse_time
from colmet.batch.gridengine_memory import parse_memory
from colmet.batch.gridengine_xml import child_text, read_elements
from colmet.batch.model import BatchError
from colmet.batch.records import (
    CANCELLED,
    DONE,
    FAILED,
    NODE_FAILED,
    OUT_OF_MEMORY,
    RUNNING,
    TIMEOUT,
    JobRecord,
    RecordSource,
    count,
    hosts_text,
    long_text,
    moment_or_none,
    text,
    whole_below,
)

log = logging.getLogger(__name__)

SYSTEM = "gridengine"
QSTAT = ["qstat", "-s", "rs", "-u", "*", "-r", "-xml"]  # of all users, with their requests
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


# -- pure --


def account(line: str) -> JobRecord | None:
    """Return the record of a line of the accounts; None for a part of a parallel job, or a task that did not start.

    Raises:
        FormError: another form.
    """
    words = line.split(":")
    if len(words) < _FIELDS:
        raise FormError("fields")
    number, started = must(count(words[_NUMBER]), "job_number"), _moment(words[_STARTED], "start_time")
    if words[_PE_TASK] != "NONE" or started is None:
        return None
    task = count(words[_TASK]) or None
    slots = count(words[_SLOTS]) or 1
    asked = requests_of(":".join(words[_CATEGORY:_BEHIND]))
    failed, status = must(count(words[_FAILED]), "failed"), must(count(words[_EXIT]), "exit_status")
    ended = max(started, must(_moment(words[_ENDED], "end_time"), "end_time"))
    memory = _memory(asked, slots)
    signal = status - 128 if failed in (_LIMIT, _AFTER) and 128 < status < 193 else None
    is_out = memory is not None and _number(words[_MAXVMEM]) >= memory
    is_over = _reached(asked, ("h_rt", "s_rt"), ended - started) or _reached(
        asked, ("h_cpu", "s_cpu"), _number(words[_CPU]) / ACCOUNTED_SHARE
    )
    return JobRecord(
        job=number,
        system=SYSTEM,
        batch_id=str(number) if task is None else f"{number}.{task}",
        state=_state(failed, status, signal, is_out, is_over),
        started=started,
        ended=ended,
        owner=must(name(words[_OWNER]), "owner"),
        name=text(words[_NAME]),
        project=_given(words[_PROJECT]),
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
            return OUT_OF_MEMORY
        if failed == _LIMIT or is_over:
            return TIMEOUT
        return CANCELLED if signal in _KILLS else FAILED
    if failed in _RESCHEDULED:
        return CANCELLED
    if failed in _NOT_STARTED:
        return NODE_FAILED
    return FAILED if failed or status else DONE


def running_task(element: Element) -> JobRecord | None:
    """Return the record of a <job_list> of qstat; None for one that does not run; FormError for another form."""
    start = child_text(element, "JAT_start_time")
    queue, _, host = child_text(element, "queue_name").partition("@")
    if not start or not queue:
        return None
    started = must(parse_time(start), "JAT_start_time")
    number = must(count(child_text(element, "JB_job_number")), "JB_job_number")
    task = count(child_text(element, "tasks"))
    slots = count(child_text(element, "slots")) or 1
    asked = {one.get("name", ""): (one.text or "").strip() for one in element.iterfind("hard_request")}
    return JobRecord(
        job=number,
        system=SYSTEM,
        batch_id=str(number) if task is None else f"{number}.{task}",
        state=RUNNING,
        started=int(started),
        owner=must(name(child_text(element, "JB_owner")), "JB_owner"),
        name=text(child_text(element, "full_job_name")) or text(child_text(element, "JB_name")),
        queue=text(queue),
        allocated_cores=slots,
        requested_memory=_memory(asked, slots),
        requested_gpus=_gpus(asked),
        requested_walltime_s=_seconds(asked.get("h_rt")),
        array=None if task is None else str(number),
        array_index=task,
        dependency=long_text(",".join([one.text or "" for one in element.iterfind("predecessor_jobs_req")])),
        batch_hosts=hosts_text([host]) if host else None,
    )


def requests_of(category: str) -> dict[str, str]:
    """Return the requests of `-l` by name, from the field `category`."""
    found = _REQUESTS.findall(category[:4096])
    pairs = [part.partition("=") for one in found for part in one.split(",")]
    return {key: value for key, _, value in pairs}


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
    first, second, last = match.groups()
    hours, minutes = (first, second) if second is not None else (None, first)
    return 3600 * int(hours or 0) + 60 * int(minutes or 0) + int(last)


def _reached(asked: Mapping[str, str], limits: Sequence[str], used_s: float) -> bool:
    return any(limit is not None and used_s >= limit for limit in [_seconds(asked.get(one)) for one in limits])


def _moment(word: str, field: str) -> int | None:
    found = count(word)
    return moment_or_none(found // 1000 if found is not None and found > 10**11 else word, field)


def _number(word: str) -> float:
    try:
        return float(word) if len(word) < 40 else 0.0
    except ValueError:
        return 0.0


def _given(word: str) -> str | None:
    return None if word == "NONE" else text(word)


# -- read --


class AccountsFile:
    """The file, read from where the last reading ended; a rotated one is read to its end first.

    Args:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self._rest = b""  # of a line that is being written

    def read(self, since: float) -> list[str]:
        """Return new lines, at most `MOST_BYTES`; at first those from about this end time on.

        Raises:
            BatchError: it cannot be read.
        """
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
            self._file.close()
            self._file, self._rest = self._opened(), b""
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


class GridEngineRecords(RecordSource):
    """Records from qstat, of PATH, and the accounts.

    Args:
        path: of the accounts; "" for those of SGE_ROOT and SGE_CELL.
    """

    name: ClassVar[str] = SYSTEM

    def __init__(self, path: str = "") -> None:
        super().__init__()
        self._accounts = AccountsFile(path or accounts_path(os.environ))
        self._since = 0.0
        self._unsaved: list[JobRecord] = []

    def running(self) -> Sequence[JobRecord]:
        """Return the tasks that run now; none without qstat."""
        try:
            answer = ask(QSTAT, "Grid Engine")
        except AskError as err:
            if err.why != "absent":
                raise
            log.debug("running jobs are not known system=%s error=%s", SYSTEM, err)
            return []
        command = " ".join(QSTAT)
        elements = list(read_elements(answer.encode(), ENCODING, command, ("job_info", "*", "job_list")))
        records, skipped = parse_each(elements, running_task, SYSTEM, command)
        return self.accept(records, skipped)

    def ended(self, since: float, until: float) -> Sequence[JobRecord]:
        """Return the tasks of new lines; those of the last answer again, unless the interval has moved on since."""
        del until
        if since > self._since:
            self._unsaved, self._since = [], since
        lines = self._accounts.read(since)
        records, skipped = parse_each(lines, account, SYSTEM, self._accounts.path)
        self._unsaved += self.accept(records, skipped)
        return self._unsaved

    def close(self) -> None:
        """Close the file; idempotent."""
        self._accounts.close()


def accounts_path(environment: Mapping[str, str]) -> str:
    """Return the path of the accounts of SGE_ROOT and SGE_CELL."""
    return os.path.join(
        environment.get("SGE_ROOT", ""), environment.get("SGE_CELL") or "default", "common", "accounting"
    )
