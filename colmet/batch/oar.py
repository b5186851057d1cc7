"""OAR, as `oarstat -J` and `oarnotify -l` tell.

OAR gives out resources: what one is, is the site's choice, nearly always a core; they are counted as cores. How much
memory belongs to a resource no command tells in a common way, so it is unknown.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from colmet.batch.answers import AskError, FormError, Lately, ask, json_values, must, name, unknown_form, whole
from colmet.batch.model import BatchJob, BatchSystem, Queue

log = logging.getLogger(__name__)

JOBS = ["oarstat", "-J"]  # of all users
QUEUES = ["oarnotify", "-l"]  # for root and OAR's administrators alone
QUEUES_DEADLINE_S = 10.0  # it waits for ever where OAR's database has gone

# Launching jobs have their resources, as those have whose files are put in order at the end. A suspended job has given
# its resources back, since somebody holds it.
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
_STARTED = {"Running", "Suspended", "Resuming", "Finishing", "Terminated", "Error", "toError"}  # so they have run


class OarJob(NamedTuple):
    """A job, as oarstat tells; each job of an array is one.

    Attributes:
        job: as everywhere; its state may be finished or removed, too.
        resources: that it has.
    """

    job: BatchJob
    resources: int


def oar_job(content: object, now: float) -> OarJob:
    """A job out of oarstat's JSON.

    Args:
        content: that of one job.
        now: seconds since 1970.

    Raises:
        FormError: in a form that is not known; the text names what is missing.
    """
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
    """The jobs that oarstat prints, and how many were left out since their form is not known.

    Args:
        text: what it printed: one object with an object for each job, or nothing at all where there is no job.
        command: that printed it.
        now: seconds since 1970.

    Raises:
        BatchError: the whole of it is in another form.
    """
    values = json_values(text, command)
    if not values:
        return [], 0
    if len(values) > 1 or not isinstance(values[0], dict):
        raise unknown_form(command, text)
    jobs, left_out = [], 0
    for key, content in values[0].items():
        try:
            jobs.append(oar_job(content, now))
        except FormError as err:
            log.debug("job in a form that is not known system=oar job=%.40r lacks=%s", key, err)
            left_out += 1
    if left_out and not jobs:
        raise unknown_form(command, text)
    return jobs, left_out


def oar_queues(text: str) -> list[str]:
    """The names of all queues, of what `oarnotify -l` prints: a name, and below it its properties, indented."""
    lines = [line.rstrip() for line in text.splitlines()]
    return [line for line in lines if name(line) and not line[0].isspace()]


class OAR(BatchSystem):
    """OAR, asked by its own commands."""

    name: ClassVar[str] = "oar"

    def __init__(self) -> None:
        self._jobs = Lately(self._ask)

    def queues(self) -> Sequence[Queue]:
        """Every queue that a job is in; where `oarnotify` may be asked (as root), all that there are."""
        jobs = self._jobs()
        names = dict.fromkeys(self._queue_names())
        names.update(dict.fromkeys(of.job.queue or "" for of in jobs if of.job.state in ("idle", "running", "held")))
        return [_queue(each, [of for of in jobs if of.job.queue == each]) for each in names]

    def jobs(self) -> Sequence[BatchJob]:
        """Every job that waits, runs or is held; each job of an array is one."""
        return [of.job for of in self._jobs() if of.job.state not in ("finished", "removed")]

    def ended(self, within_s: int) -> Sequence[BatchJob]:
        """Jobs that ended by themselves (Terminated); those that were deleted or ran out of time are in Error."""
        now = time.time()
        # how oarstat is told: a condition on OAR's table of jobs; -f, for the time at which they stopped
        condition = f"state = 'Terminated' AND stop_time >= {int(now) - within_s}"
        return [of.job for of in self._counted([*JOBS, "-f", "--sql", condition], now)]

    def _ask(self) -> list[OarJob]:
        return self._counted(JOBS, time.time())

    def _counted(self, command: list[str], now: float) -> list[OarJob]:
        line = " ".join(command)
        jobs, left_out = oar_jobs(ask(command, "OAR"), line, now)
        if left_out:
            self.left_out += left_out
            log.warning("jobs of an unknown form are skipped system=oar count=%d", left_out)
        return jobs

    def _queue_names(self) -> list[str]:
        try:
            return oar_queues(ask(QUEUES, "OAR", QUEUES_DEADLINE_S))
        except AskError as err:
            log.debug("queues without a job are not known system=oar error=%s", err)
            return []


def _queue(queue: str, jobs: Sequence[OarJob]) -> Queue:
    states = [of.job.state for of in jobs]
    return Queue(
        name=queue,
        idle=states.count("idle"),
        running=states.count("running"),
        held=states.count("held"),
        cores=sum(of.resources for of in jobs if of.job.state == "running"),
    )
