"""Slurm's queues and jobs from `squeue -o`, whose form has been the same since Slurm 20.11; its JSON changes.

A line of squeue is counted as squeue shows it: each part of a heterogeneous job ("12+0") is one, and a job waiting for
one of several partitions waits in each of them. All waiting tasks of an array are one line; they are counted one by
one.
"""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from colmet.batch.answers import (
    AskError,
    Cached,
    FormError,
    ask,
    must,
    name,
    parse_each,
    task_range,
    total,
    unknown_form,
    whole,
)
from colmet.batch.model import BatchJob, BatchSystem, Queue

log = logging.getLogger(__name__)

TEXT = ["squeue", "--all", "--noheader", "--format=%i|%P|%u|%T|%r|%M|%C"]
GIVEN = [
    "squeue",
    "--all",
    "--noheader",
    "--states=RUNNING,COMPLETING,CONFIGURING",
    "--Format=JobArrayID:64,tres-alloc:255",
]
PARTITIONS = ["sinfo", "--all", "--noheader", "--format=%R"]
ENDED = ["sacct", "--noheader", "--allusers", "--allocations", "--parsable2", "--endtime=now"]
ENDED += ["--state=COMPLETED,FAILED,OUT_OF_MEMORY", "--format=JobID,User,ElapsedRaw,Partition,End"]

# by default squeue cuts a list of tasks to 64 characters
ENVIRONMENT = {"SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "%s"}

MAX_LISTED = 10_000  # tasks of one waiting array that are listed one by one; all are counted

RUNNING = {"RUNNING", "COMPLETING", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "POWER_UP_NODE"}
HELD = {"SUSPENDED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
WAITING = {"PENDING", "REQUEUED", "REQUEUE_FED"}
ENDED_STATES = {
    "BOOT_FAIL": "finished",
    "CANCELLED": "removed",
    "COMPLETED": "finished",
    "DEADLINE": "removed",
    "FAILED": "finished",
    "NODE_FAIL": "finished",
    "OUT_OF_MEMORY": "finished",
    "PREEMPTED": "removed",
    "REVOKED": "removed",  # another cluster of the federation has it
    "TIMEOUT": "removed",
}

_LIST = re.compile(r"([0-9]+)_\[(.+)\]")
_ELAPSED = re.compile(r"(?:(?:([0-9]+)-)?([0-9]+):)?([0-9]+):([0-9]+)")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTPE]?)")


class SqueueLine(NamedTuple):
    """A line of squeue."""

    job: BatchJob  # the job; its id is the array's if it stands for several tasks
    tasks: Sequence[range]  # waiting tasks of an array, as ranges; empty for a single job
    cores: int | None  # allocated cores
    memory_mb: int | None  # allocated memory in MiB; None if unknown

    @property
    def size(self) -> int:
        """Return the number of jobs in the line."""
        return sum(map(len, self.tasks)) if self.tasks else 1

    @property
    def partitions(self) -> list[str]:
        """Return the partitions it is in, or waits for."""
        return (self.job.queue or "").split(",")


# -- pure --


def state_of(state: str, reason: str = "") -> str:
    """Return a state of `BatchJob` for Slurm's; with the reason why it waits."""
    if state in HELD:
        return "held"
    if state in RUNNING:
        return "running"  # its cores are its own until the last process has ended
    if state in WAITING:
        return "held" if reason.startswith(("JobHeld", "JobHold")) or reason.endswith("held") else "idle"
    return ENDED_STATES.get(state, "unknown")


def tasks_of(text: str) -> list[range]:
    """Return the tasks of an array, such as "1,4-5,10-20:2%3" (%3: at most 3 at once); raise FormError for others."""
    return [must(task_range(part), "list of tasks") for part in text.partition("%")[0].split(",")]


def tres(text: object) -> dict[str, str]:
    """Return the values of a list such as "cpu=2,mem=4G,node=1"."""
    if not isinstance(text, str):
        return {}
    return {key: value for key, _, value in (part.partition("=") for part in text.split(","))}


def size_mb(text: str | None) -> int | None:
    """Return MiB of a size in Slurm's form: "100M", "62.50G", MiB without a unit; None if invalid."""
    size = _size(text, "M")
    return None if size is None else round(size / 1024**2)


def count_of(text: str | None) -> int | None:
    """Return a count in Slurm's form: "64", or "2K" if exact; None if invalid."""
    return whole(_size(text))


def _size(text: str | None, unit: str = "") -> float | None:
    found = _SIZE.fullmatch(text or "")
    if found is None or len(found[1]) > 15:
        return None
    return float(found[1]) * 1024.0 ** " KMGTPE".index(found[2] or unit or " ")


def elapsed_s(text: str) -> int:
    """Return seconds of "1-02:03:04", "02:03:04" or "3:04"; 0 for "INVALID", printed after a clock was set back.

    Raises:
        FormError: none of these.
    """
    if text == "INVALID":
        return 0
    found = _ELAPSED.fullmatch(text)
    if found is None or len(text) > 20:
        raise FormError("time")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def text_entry(line: str) -> SqueueLine:
    """Parse a line of the output of `TEXT`; it lacks the memory of the job; raise FormError for another form."""
    words = line.split("|")
    if len(words) != 7:
        raise FormError("words")
    job, partition, user, said, reason, elapsed, cpus = (word.strip() for word in words)
    state = state_of(said, reason)
    array = _LIST.fullmatch(job)
    return SqueueLine(
        BatchJob(
            id=array[1] if array else must(name(job), "id"),
            user=must(name(user), "user"),
            state=state,
            runtime_s=elapsed_s(elapsed),
            queue=must(name(partition), "partition"),
        ),
        tasks_of(array[2]) if array else [],
        count_of(cpus) if state == "running" else None,
        None,
    )


def text_entries(text: str) -> tuple[list[SqueueLine], int]:
    """Parse the output of `TEXT`; return its entries, and the number of lines skipped because of an unknown form.

    Raises:
        BatchError: no line is in a known form.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    return _unfinished(parse_each(lines, text_entry, "slurm", " ".join(TEXT)))


def _unfinished(parsed: tuple[list[SqueueLine], int]) -> tuple[list[SqueueLine], int]:
    entries, left_out = parsed
    return [entry for entry in entries if entry.job.state not in ("finished", "removed")], left_out


def given_mb(text: str) -> dict[str, int]:
    """Return the memory of running jobs in MiB, by id, from the output of `GIVEN`; jobs without are skipped."""
    found = {}
    for line in text.split("\n"):
        job, _, given = line.strip().partition(" ")
        memory_mb = size_mb(tres(given.strip()).get("mem"))
        if memory_mb is not None:
            found[job] = memory_mb
    return found


def ended_jobs(text: str, since: float) -> tuple[list[BatchJob], int]:
    """Return the jobs in the output of `ENDED` since then, and the number of lines skipped (unknown form)."""
    jobs, left_out = [], 0
    for line in filter(None, text.split("\n")):
        words = line.split("|")
        if len(words) != 5 or not all(map(name, words[:4])) or not words[2].isdecimal() or len(words[2]) > 12:
            left_out += 1
        elif not words[4].isdecimal() or int(words[4][:12]) >= since:  # else sacct has filtered by time
            jobs.append(BatchJob(words[0], words[1], "finished", int(words[2]), words[3]))
    return jobs, left_out


# -- asked --


class Slurm(BatchSystem):
    """Slurm, queried with its own commands."""

    name: ClassVar[str] = "slurm"

    def __init__(self) -> None:
        self._entries = Cached(self._ask)

    def queues(self) -> Sequence[Queue]:
        """Return every partition, also hidden ones."""
        entries = self._entries()
        found: dict[str, list[SqueueLine]] = {partition: [] for partition in self._partitions()}
        for entry in entries:
            for partition in entry.partitions:
                found.setdefault(partition, []).append(entry)
        return [_queue(partition, within) for partition, within in found.items()]

    def jobs(self) -> Sequence[BatchJob]:
        """Return every waiting, running or held job; each task of an array is one."""
        jobs: list[BatchJob] = []
        for entry in self._entries():
            if not entry.tasks:
                jobs.append(entry.job)
                continue
            numbers = itertools.islice(itertools.chain.from_iterable(entry.tasks), MAX_LISTED)
            jobs.extend(entry.job._replace(id=f"{entry.job.id}_{task}") for task in numbers)
            if entry.size > MAX_LISTED:
                self.left_out += entry.size - MAX_LISTED
                log.warning(
                    "tasks of a long array are skipped array=%s count=%d", entry.job.id, entry.size - MAX_LISTED
                )
        return jobs

    def ended(self, within_s: int) -> Sequence[BatchJob]:
        """Return jobs that ended by themselves, successful or not; none if Slurm keeps no accounts."""
        since = time.time() - within_s
        try:
            text = ask([*ENDED, f"--starttime=now-{within_s}"], "Slurm", env=ENVIRONMENT)
        except AskError as err:
            if err.why == "absent" or (err.why == "status" and "accounting storage is disabled" in str(err)):
                return []
            raise
        jobs, left_out = ended_jobs(text, since)
        if left_out and not jobs:
            raise unknown_form(" ".join(ENDED), text)
        self.leave_out(left_out)
        return jobs

    def _ask(self) -> list[SqueueLine]:
        entries, left_out = text_entries(ask(TEXT, "Slurm", env=ENVIRONMENT))
        self.leave_out(left_out)
        try:
            memory_mb = given_mb(ask(GIVEN, "Slurm", env=ENVIRONMENT))
        except AskError as err:
            log.debug("memory of jobs is not known system=slurm error=%s", err)
            memory_mb = {}
        return [entry._replace(memory_mb=memory_mb.get(entry.job.id)) for entry in entries]

    def _partitions(self) -> list[str]:
        try:
            lines = ask(PARTITIONS, "Slurm", env=ENVIRONMENT).split("\n")
        except AskError as err:
            log.warning("partitions without a job are not known system=slurm error=%s", err)
            return []
        return list(dict.fromkeys(line.strip() for line in lines if name(line.strip())))


def _queue(partition: str, entries: Sequence[SqueueLine]) -> Queue:
    running = [entry for entry in entries if entry.job.state == "running"]
    counts = {state: sum(entry.size for entry in entries if entry.job.state == state) for state in ("idle", "held")}
    cores, memory_mb = total([entry.cores for entry in running]), total([entry.memory_mb for entry in running])
    return Queue(partition, counts["idle"], len(running), counts["held"], cores, memory_mb)
