"""OAR's jobs from `oarstat -J` and `oarnotify -l`.

OAR allocates resources: their meaning is the site's choice, nearly always a core; they are counted as cores. No command
prints the memory of a resource in a common form, so it is unknown.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from colmet.batch.answers import (
    AskError,
    Cached,
    FormError,
    ask,
    json_values,
    must,
    name,
    parse_each,
    unknown_form,
    whole,
)
from colmet.batch.model import BatchJob, BatchSystem, Queue

log = logging.getLogger(__name__)

JOBS = ["oarstat", "-J"]  # of all users
QUEUES = ["oarnotify", "-l"]  # for root and OAR's administrators alone
QUEUES_DEADLINE_S = 10.0  # it blocks for ever without OAR's database

# Launching and finishing jobs have their resources. A suspended job has returned its resources, as it is held.
STATES = {
    "Waiting": "idle",
    "toAckReservation": "idle",
    "Hold": "held",
    "Suspended": "held",
    "toLaunch": "running",
    "Launching": "running",
    "Running": "running",
    "Resuming": "running",
    "Finishing": "running",
    "Terminated": "finished",
    "Error": "removed",
    "toError": "removed",
}
_STARTED = {"Running", "Suspended", "Resuming", "Finishing", "Terminated", "Error", "toError"}  # have run


class OarJob(NamedTuple):
    """A job of oarstat; each job of an array is one."""

    job: BatchJob  # the job; its state may be finished or removed, too
    resources: int  # number of allocated resources


def oar_job(content: object, now: float) -> OarJob:
    """Return the job of a JSON value of oarstat; raise FormError with the missing field."""
    if not isinstance(content, dict):
        raise FormError("no object")
    said = must(name(content.get("state")), "state")
    has_run = said in _STARTED
    runtime_s = 0
    if has_run:
        start = must(whole(content.get("startTime")), "startTime")
        stop = whole(content.get("stopTime")) or int(now)  # only oarstat -f has it, 0 before the job's end
        runtime_s = max(0, stop - start) if start else 0
    resources = content.get("assigned_resources")
    if not isinstance(resources, list):
        raise FormError("assigned_resources")
    job = BatchJob(
        id=str(must(whole(content.get("Job_Id")), "Job_Id")),
        user=must(name(content.get("owner")), "owner"),
        state=STATES.get(said, "unknown"),
        runtime_s=runtime_s,
        queue=must(name(content.get("queue")), "queue"),
    )
    return OarJob(job, len(resources))


def oar_jobs(text: str, command: str, now: float) -> tuple[list[OarJob], int]:
    """Return the jobs of oarstat's output, and the number skipped (unknown form); raise BatchError if all are.

    The output is one object with an object for each job, or nothing at all without jobs.
    """
    values = json_values(text, command)
    if not values:
        return [], 0
    if len(values) > 1 or not isinstance(values[0], dict):
        raise unknown_form(command, text)
    return parse_each(values[0].items(), lambda item: oar_job(item[1], now), "oar", command)


def oar_queues(text: str) -> list[str]:
    """Return all queues' names from the output of `oarnotify -l`: a name, and below it its properties, indented."""
    lines = [line.rstrip() for line in text.split("\n")]
    return [line for line in lines if name(line) and not line[0].isspace()]


class OAR(BatchSystem):
    """OAR, queried with its own commands."""

    name: ClassVar[str] = "oar"

    def __init__(self) -> None:
        self._jobs = Cached(self._ask)

    def queues(self) -> Sequence[Queue]:
        """Return every queue with a job; if `oarnotify` is permitted (as root), all queues."""
        jobs = self._jobs()
        names = dict.fromkeys(self._queue_names())
        names.update(dict.fromkeys(of.job.queue or "" for of in jobs if of.job.state in ("idle", "running", "held")))
        return [_queue(each, [of for of in jobs if of.job.queue == each]) for each in names]

    def jobs(self) -> Sequence[BatchJob]:
        """Return every waiting, running or held job; each job of an array is one."""
        return [of.job for of in self._jobs() if of.job.state not in ("finished", "removed")]

    def ended(self, within_s: int) -> Sequence[BatchJob]:
        """Return jobs that ended by themselves (Terminated); deleted and timed-out jobs are in Error."""
        now = time.time()
        # --sql: a condition on OAR's table of jobs; -f: with the end times
        condition = f"state = 'Terminated' AND stop_time >= {int(now) - within_s}"
        return [of.job for of in self._counted([*JOBS, "-f", "--sql", condition], now)]

    def _ask(self) -> list[OarJob]:
        return self._counted(JOBS, time.time())

    def _counted(self, command: list[str], now: float) -> list[OarJob]:
        jobs, left_out = oar_jobs(ask(command, "OAR"), " ".join(command), now)
        self.leave_out(left_out)
        return jobs

    def _queue_names(self) -> list[str]:
        try:
            return oar_queues(ask(QUEUES, "OAR", QUEUES_DEADLINE_S))
        except AskError as err:
            log.debug("queues without a job are not known system=oar error=%s", err)
            return []


def _queue(queue: str, jobs: Sequence[OarJob]) -> Queue:
    states = [of.job.state for of in jobs]
    cores = sum(of.resources for of in jobs if of.job.state == "running")
    return Queue(queue, states.count("idle"), states.count("running"), states.count("held"), cores)
