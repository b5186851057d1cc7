"""What batch systems report: queues, jobs, and the record of each run of a job. The supported ones, by name."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar
from xml.etree.ElementTree import Element

from colmet.batch.answers import BatchError, FormError, unknown_form
from colmet.common.errors import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")
Part = TypeVar("Part")

# Words of `JobRecord.state`.
RUNNING, DONE, FAILED = "running", "done", "failed"
CANCELLED, TIMEOUT, OUT_OF_MEMORY, NODE_FAILED = "cancelled", "timeout", "out_of_memory", "node_failed"

MAX_REMEMBERED = 100_000  # dependencies

# name -> module and class; imported on first use
SYSTEMS = {
    "condor": ("colmet.batch.condor", "HTCondor"),
    "gridengine": ("colmet.batch.gridengine", "GridEngine"),
    "oar": ("colmet.batch.oar", "OAR"),
    "slurm": ("colmet.batch.slurm", "Slurm"),
}
# likewise, for what is known of single jobs
RECORDS = {
    "gridengine": ("colmet.batch.gridengine", "GridEngineRecords"),
    "oar": ("colmet.batch.oar", "OarRecords"),
    "slurm": ("colmet.batch.slurm", "SlurmRecords"),
}
COMMANDS = {"oar": "oarstat", "slurm": "squeue"}  # without which records cannot be had


class Queue(NamedTuple):
    """A queue in its present state."""

    name: str  # of the queue
    idle: int  # waiting jobs
    running: int  # running jobs
    held: int  # jobs on hold
    cores: int | None = None  # cores of running jobs; None if unknown
    memory_mb: int | None = None  # memory of running jobs in MiB; None if unknown


class BatchJob(NamedTuple):
    """A job in its present or final state."""

    id: str  # as the batch system's own commands print it, such as "4242", "17.3" (array task) or "123.0"
    user: str  # its owner
    state: str  # unexpanded, idle, running, removed, finished, held, submission_err or unknown
    runtime_s: int  # seconds it has run; 0 while it waits
    queue: str | None = None  # its queue or partition; None if unknown


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


class _Source(ABC):
    """What both kinds of sources share. Every method raises `BatchError` if no answer is available."""

    name: ClassVar[str]  # of the batch system
    skipped: int = 0  # jobs, queues and records skipped so far: of an unknown form, or contradictory

    def parse(self, parts: Iterable[Part], parse: Callable[[Part], T], command: str) -> list[T]:
        """Return the parsed parts of an answer; those in an unknown form are skipped, counted and logged.

        `parse` returns a part's value, or raises FormError; `command` is as an administrator types it. BatchError if no
        part is in a known form: the text shows the first one, and names its faulty field.
        """
        values: list[T] = []
        first: BatchError | None = None
        before = self.skipped
        for part in parts:
            try:
                values.append(parse(part))
            except FormError as err:
                first = first or unknown_form(command, f"{err} of {_part_text(part)}")
                self.skipped += 1
        if first is not None and not values:
            self.skipped = before
            raise first
        if first is not None and (len(str(before)) < len(str(self.skipped)) or not before):  # the first, the tenth, ...
            log.warning("some jobs are skipped: system=%s jobs=%d: %s", self.name, self.skipped, first)
        return values


def _part_text(part: object) -> str:
    """Return a job as text: the fields of a line, or JSON."""
    if isinstance(part, (list, tuple)) and all(isinstance(word, str) for word in part):
        return "|".join(part)
    if isinstance(part, Element):
        return " ".join(part.itertext())
    return part if isinstance(part, str) else repr(part)


class BatchSystem(_Source):
    """A batch system, queried with its own commands for its present queues and jobs."""

    @abstractmethod
    def queues(self) -> Sequence[Queue]:
        """Return every queue."""

    @abstractmethod
    def jobs(self) -> Sequence[BatchJob]:
        """Return every waiting, running or held job."""

    def ended(self, within_s: int) -> Sequence[BatchJob]:
        """Return jobs that finished within the last `within_s` seconds; empty if the system does not report them."""
        del within_s
        return []


class RecordSource(_Source):
    """A source of the records of one batch system. For one thread."""

    def __init__(self) -> None:
        self._dependencies: dict[str, str] = {}  # of jobs that wait or waited, by number of the job or its array

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

    def close(self) -> None:
        """Release everything; idempotent."""

    def accept(self, records: Iterable[JobRecord | None], jobs: Collection[int] | None = None) -> list[JobRecord]:
        """Return the records of an answer that count, with the dependencies that were kept.

        Two records of one run that name different users contradict each other: neither counts, and both are counted as
        skipped. A job that is not among `jobs`, those asked for, is no error: Slurm adds the other tasks of an array.
        """
        by_run: dict[tuple[int, int], list[JobRecord]] = {}
        for record in records:
            if record is None or (jobs is not None and record.job not in jobs):
                continue
            kept = self._dependencies.get(str(record.job)) or self._dependencies.get(record.array or "")
            if kept and not record.dependency:
                record = record._replace(dependency=kept)
            by_run.setdefault((record.job, record.started), []).append(record)
        accepted = []
        for same in by_run.values():
            if len({record.owner for record in same} - {None}) > 1:
                self.skipped += len(same)
                log.warning(
                    "records of one run name several users, neither counts: system=%s job=%d", self.name, same[0].job
                )
                continue
            accepted += same
        return accepted

    def remember(self, dependencies: Mapping[int, str]) -> None:
        """Keep dependencies, by job, until the jobs run: the batch system forgets them."""
        self._dependencies.update({str(job): dependency for job, dependency in dependencies.items()})
        while len(self._dependencies) > MAX_REMEMBERED:
            del self._dependencies[next(iter(self._dependencies))]


def find_systems(names: Iterable[str], condor_queues: Sequence[tuple[str, str]] = ()) -> list[BatchSystem]:
    """Return the batch systems of these names, each once, in that order; raise ConfigError for an unknown one.

    `condor_queues` are names and constraints of HTCondor's queues.
    """
    systems: list[BatchSystem] = []
    for name in dict.fromkeys(names):
        if name not in SYSTEMS:
            raise ConfigError(f"batch system {name!r} is not known; there are {', '.join(sorted(SYSTEMS))}")
        made = _imported(*SYSTEMS[name])
        systems.append(made(condor_queues) if name == "condor" else made())
    return systems


def _imported(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def find_record_sources(text: str) -> list[RecordSource]:
    """Return the sources of records of a list such as `slurm,oar=http://server/oarapi`; empty for `none`.

    `auto` are those whose commands or files are here. Behind a name: the URL of OAR's REST interface, the path of Grid
    Engine's accounts. ConfigError for an unknown name, or an unusable URL.
    """
    sources: dict[str, RecordSource] = {}
    for word in dict.fromkeys(part.strip() for part in text.split(",")):
        name, _, value = word.partition("=")
        if word == "auto":
            here = [name for name in RECORDS if name not in sources and _is_here(name)]
            sources.update({name: _imported(*RECORDS[name])() for name in here})
        elif name == "oar" and value:
            sources[name] = _imported(RECORDS[name][0], "OarRestRecords")(value)
        elif name in RECORDS and (name == "gridengine" or not value):
            sources[name] = _imported(*RECORDS[name])(*([value] if value else []))
        elif word not in ("", "none"):
            raise ConfigError(f"batch system {word!r:.100} is not known; there are auto, none, {', '.join(RECORDS)}")
    return list(sources.values())


def _is_here(name: str) -> bool:
    """Return whether this machine can ask a batch system."""
    if name == "gridengine":
        path = _imported(RECORDS[name][0], "accounts_path")(os.environ)
        return os.path.isabs(path) and os.path.exists(path)
    return shutil.which(COMMANDS[name]) is not None
