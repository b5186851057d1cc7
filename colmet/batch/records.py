"""What a batch system knows of a job: the record of one run, and the interface of the sources of records."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from colmet.batch.answers import MAX_TEXT, FormError, must, name

log = logging.getLogger(__name__)

# Words of `JobRecord.state`.
RUNNING, DONE, FAILED = "running", "done", "failed"
CANCELLED, TIMEOUT, OUT_OF_MEMORY, NODE_FAILED = "cancelled", "timeout", "out_of_memory", "node_failed"

MAX_REMEMBERED = 100_000  # dependencies
MAX_HOSTS = 20_000  # of one job
MAX_SIGNAL = 64
_MOST_TEXT = 4096  # characters of a text that is a list, such as dependencies
_LARGEST = 1 << 53
_BRACKETS = re.compile(r"([^\[\],]*)\[([^\[\]]*)\]")


class JobRecord(NamedTuple):
    """One run of a job. None: unknown. The fields are columns of the job archive, which describes them."""

    job: int  # its number, as in the names of its cgroups
    system: str
    batch_id: str
    state: str | None  # None: ended, the batch system does not report how
    started: int
    ended: int | None = None
    owner: str | None = None
    name: str | None = None
    project: str | None = None
    queue: str | None = None
    submitted: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    reason: str | None = None
    allocated_cores: int | None = None
    allocated_memory: int | None = None
    allocated_gpus: int | None = None
    requested_cores: int | None = None
    requested_memory: int | None = None
    requested_gpus: int | None = None
    requested_walltime_s: int | None = None
    array: str | None = None
    array_index: int | None = None
    dependency: str | None = None
    batch_hosts: str | None = None


class RecordSource(ABC):
    """A source of the records of one batch system. For one thread.

    Every method raises `BatchError` if no answer is available.

    Attributes:
        name: of the batch system.
        skipped: number of records skipped so far: of an unknown form, or contradictory.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self.skipped = 0
        self._dependencies: dict[int, str] = {}  # of jobs that wait or waited, by number of the job or its array

    @abstractmethod
    def running(self) -> Sequence[JobRecord]:
        """Return the jobs that run now; others that ended a moment ago may be among them."""

    @abstractmethod
    def ended(self, since: float, until: float) -> Sequence[JobRecord]:
        """Return the runs that ended in this interval, and did run."""

    def named(self, jobs: Collection[int]) -> Sequence[JobRecord] | None:
        """Return the records of these jobs; None if `ended` already returns each record, whenever it comes."""
        del jobs
        return None

    def close(self) -> None:  # noqa: B027 - most keep nothing open
        """Release everything; idempotent."""

    def accept(
        self, records: Iterable[JobRecord | None], skipped: int = 0, jobs: Collection[int] | None = None
    ) -> list[JobRecord]:
        """Return the records of an answer that count.

        Two records of one run that name different users contradict each other: neither counts, and both are counted as
        skipped. A job that was not asked for is no error: Slurm adds the other tasks of an array.

        Args:
            records: of one answer; None for what did not run.
            skipped: number of records in an unknown form.
            jobs: numbers that were asked for; None for all.
        """
        by_run: dict[tuple[int, int], list[JobRecord]] = {}
        for record in records:
            if record is None or (jobs is not None and record.job not in jobs):
                continue
            by_run.setdefault((record.job, record.started), []).append(record)
        accepted = []
        for same in by_run.values():
            if len({record.owner for record in same} - {None}) > 1:
                skipped += len(same)
                log.warning(
                    "records of one run name several users, neither counts: system=%s job=%d", self.name, same[0].job
                )
                continue
            accepted += same
        self.skipped += skipped
        return accepted

    def remember(self, dependencies: Mapping[int, str]) -> None:
        """Keep dependencies, by job, until the jobs run: the batch system forgets them."""
        self._dependencies.update(dependencies)
        while len(self._dependencies) > MAX_REMEMBERED:
            del self._dependencies[next(iter(self._dependencies))]

    def with_dependency(self, record: JobRecord) -> JobRecord:
        """Return the record with the dependency that was kept."""
        found = self._dependencies.get(record.job) or self._dependencies.get(count(record.array) or 0)
        return record._replace(dependency=found) if found and not record.dependency else record


# -- fields, read from untrusted input --


def text(value: object, most: int = MAX_TEXT) -> str | None:
    """Return a text with unprintable characters replaced, cut to `most`; None for an empty one or no text."""
    if not isinstance(value, str) or not value.strip():
        return None
    return "".join([one if one.isprintable() else "\ufffd" for one in value.strip()[:most]])


def long_text(value: object) -> str | None:
    """Return a text that is a list; see `text`."""
    return text(value, _MOST_TEXT)


def moment(value: object) -> int | None:
    """Return seconds since 1970 from digits or a number; None for 0, and for all else."""
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) <= 16 else None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 40:
        return None
    return value


def moment_or_none(value: object, field: str, absent: Collection[object] = ()) -> int | None:
    """Return seconds since 1970; None only for 0, nothing, or a word that says so; FormError for another form.

    Args:
        value: of the answer.
        field: its name, for the error.
        absent: words by which the batch system says that there is no time.
    """
    if value is None or value in ("", "0", 0) or value in absent:
        return None
    return must(moment(value), field)


def count(value: object) -> int | None:
    """Return a whole number from digits or a number, 0 or more; None for all else."""
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) <= 16 else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST else None


def whole_below(value: float | None) -> int | None:
    """Return a computed number as a whole one; None if it is too large for the archive, or unknown."""
    return None if value is None or not 0 <= value <= _LARGEST else int(value)


def exit_of(status: int | None) -> tuple[int | None, int | None]:
    """Return the exit code and the signal of a wait status, as of wait(2); None for the one that it has not."""
    if status is None or not 0 <= status <= 0xFFFF:
        return None, None
    signal = status & 0x7F
    if signal:
        return None, signal if signal <= MAX_SIGNAL else None
    return status >> 8, None


def hosts_text(hosts: Iterable[object]) -> str | None:
    """Return the text of the column `batch_hosts`, each host once and in order; None without hosts."""
    found = [one for one in dict.fromkeys(hosts) if name(one) is not None and "," not in str(one)]
    return ",".join(sorted(map(str, found[:MAX_HOSTS]))) or None


def expand_hosts(expression: str) -> list[str]:
    """Return the hosts of an expression such as `n[01-03,7],login`, `r[1-2]n[1-4]`; FormError for others."""
    found: list[str] = []
    for part in _split(expression):
        found += _expanded(part)
        if len(found) > MAX_HOSTS:
            raise FormError("too many hosts")
    return found


def _split(expression: str) -> list[str]:
    """Return the parts between commas outside of brackets."""
    parts, depth, since = [], 0, 0
    for at, one in enumerate(expression):
        depth += (one == "[") - (one == "]")
        if depth not in (0, 1):
            raise FormError("hosts")
        if one == "," and not depth:
            parts.append(expression[since:at])
            since = at + 1
    if depth:
        raise FormError("hosts")
    return [part for part in [*parts, expression[since:]] if part]


def _expanded(part: str) -> list[str]:
    """Return the hosts of one part: each bracket multiplies."""
    found, end = [""], 0
    while match := _BRACKETS.match(part, end):  # where the one before ended: a search would be quadratic
        numbers = [number for text_ in match[2].split(",") for number in _numbers(text_)]
        if len(found) * len(numbers) > MAX_HOSTS or len(found[0]) > MAX_TEXT:
            raise FormError("hosts")
        found = [f"{before}{match[1]}{number}" for before in found for number in numbers]
        end = match.end()
    if "[" in part[end:] or "]" in part[end:]:
        raise FormError("hosts")
    return [f"{before}{part[end:]}" for before in found]


def _numbers(text_: str) -> list[str]:
    first, dash, last = text_.partition("-")
    if not all(one.isascii() and one.isdigit() and len(one) <= 9 for one in (first, last if dash else first)):
        raise FormError("hosts")
    end = int(last) if dash else int(first)
    if not 0 <= end - int(first) < MAX_HOSTS:
        raise FormError("hosts")
    return [str(number).zfill(len(first)) for number in range(int(first), end + 1)]
