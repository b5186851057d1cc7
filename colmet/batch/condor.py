"""HTCondor's jobs from `condor_q` and `condor_history`.

HTCondor has no queues: the client names them, each with a ClassAd expression for its jobs. The queries of queues, and
the rule for ended jobs, are those of the Analysis Facility metrics collector.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from colmet.batch.answers import AskError, FormError, Lately, ask, json_values, must, name, unknown_form, whole
from colmet.batch.model import BatchError, BatchJob, BatchSystem, Queue

log = logging.getLogger(__name__)

TOTALS = ["condor_q", "-all", "-totals", "-json"]
GIVEN = ["condor_q", "-all", "-run", "-autoformat", "CpusProvisioned", "MemoryProvisioned", "-json"]
ATTRIBUTES = ("Owner", "ClusterId", "ProcId", "JobStatus", "RemoteWallClockTime", "JobCurrentStartDate")
JOBS = ["condor_q", "-all", "-json", "-attributes", ",".join(ATTRIBUTES)]
HISTORY = ["condor_history", "-json", "-attributes", ",".join(ATTRIBUTES)]
HISTORY_DEADLINE_S = 240.0  # it reads the schedd's whole, possibly long history

EXCLUDED = ("atlas-coffea",)  # owners whose jobs are skipped: accounts of services

STATES = ("unexpanded", "idle", "running", "removed", "finished", "held", "submission_err")  # by JobStatus
_RUNS = (2, 6, 7)  # running, sending its output, suspended: all have a machine
_FINISHED = 4
_LONG_S = 10**12
_UNDEFINED = ("undefined", "error")  # printed by -autoformat for an attribute without a value


class QueueName(NamedTuple):
    """A queue, as the client names it.

    Attributes:
        name: name of the queue in reports.
        constraint: a ClassAd expression satisfied by its jobs; "": all jobs.
    """

    name: str
    constraint: str = ""


# -- pure --


def classads(text: str, command: str) -> list[dict[str, object]]:
    """Return the ClassAds of a command's output with -json.

    Older versions print a list for each schedd, one after another; and nothing at all without jobs.

    Raises:
        BatchError: another form.
    """
    found: list[dict[str, object]] = []
    for value in json_values(text, command):
        ads = value if isinstance(value, list) else [value]
        for ad in ads:
            if not isinstance(ad, dict):
                raise unknown_form(command, text)
            found.append(ad)
    return found


def totals(text: str, command: str) -> tuple[int, int, int]:
    """Return idle, running and held jobs, over all schedds that answered.

    Raises:
        BatchError: another form.
    """
    counts = [[whole(ad.get(key)) for key in ("Idle", "Running", "Held")] for ad in classads(text, command)]
    if not counts or any(count is None for of in counts for count in of):
        raise unknown_form(command, text)
    idle, running, held = (sum(count or 0 for count in of) for of in zip(*counts))
    return idle, running, held


def given(text: str, command: str) -> tuple[int | None, int | None]:
    """Return cores, and memory in MiB, of running jobs; None if no job reports them.

    A job run by the schedd itself, such as DAGMan, has no allocation, and lacks these attributes.

    Raises:
        BatchError: another form.
    """
    if text.lstrip().startswith(("[", "{")):
        pairs = [(ad.get("CpusProvisioned"), ad.get("MemoryProvisioned")) for ad in classads(text, command)]
    else:  # some versions ignore -json with -autoformat
        pairs = [_pair(line, command, text) for line in text.splitlines() if line.strip()]
    cores = [whole(pair[0]) for pair in pairs if pair[0] is not None]
    memory_mb = [whole(pair[1]) for pair in pairs if pair[1] is not None]
    return _sum(cores, len(pairs)), _sum(memory_mb, len(pairs))


def _pair(line: str, command: str, text: str) -> tuple[object, object]:
    words = line.split()
    if len(words) != 2 or not all(word in _UNDEFINED or word.isdecimal() for word in words):
        raise unknown_form(command, text)
    cores, memory_mb = (None if word in _UNDEFINED else int(word[:18]) for word in words)
    return cores, memory_mb


def _sum(values: Sequence[int | None], asked: int) -> int | None:
    """Return the sum; None if a value is no number (an expression, say), or if jobs run and none has a value."""
    known = [value for value in values if value is not None]
    return None if len(known) != len(values) or (asked and not known) else sum(known)


def condor_job(ad: dict[str, object], now: float) -> BatchJob:
    """Return the job of a ClassAd.

    Args:
        ad: as printed with -json.
        now: seconds since 1970.

    Raises:
        FormError: unknown form; the text names the missing field.
    """
    code = must(whole(ad.get("JobStatus")), "JobStatus")
    # the time of earlier runs; HTCondor adds that of this run at its end
    before = ad.get("RemoteWallClockTime")
    runtime_s = int(before) if isinstance(before, (int, float)) and 0 <= before < _LONG_S else 0
    start = whole(ad.get("JobCurrentStartDate"))
    if code in _RUNS and start:
        runtime_s += max(0, int(now) - start)
    return BatchJob(
        id=f"{must(whole(ad.get('ClusterId')), 'ClusterId')}.{must(whole(ad.get('ProcId')), 'ProcId')}",
        user=must(name(ad.get("Owner")), "Owner"),
        state=STATES[code] if code < len(STATES) else "unknown",
        runtime_s=runtime_s,
    )


def condor_jobs(text: str, command: str, now: float) -> tuple[list[BatchJob], int]:
    """Return the printed jobs, and the number skipped because of an unknown form.

    Raises:
        BatchError: all of it is in another form.
    """
    jobs, left_out = [], 0
    for ad in classads(text, command):
        try:
            jobs.append(condor_job(ad, now))
        except FormError as err:
            log.debug("job in a form that is not known system=condor lacks=%s", err)
            left_out += 1
    if left_out and not jobs:
        raise unknown_form(command, text)
    return jobs, left_out


def _is_late(err: BatchError) -> bool:
    return isinstance(err, AskError) and err.why == "late"


def quoted(text: str) -> str:
    """Return a text quoted for ClassAd expressions."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# -- asked --


class HTCondor(BatchSystem):
    """HTCondor, queried with its own commands.

    Args:
        queues: queues for `queues`; none by default.
        excluded: owners skipped by `jobs` and `ended`.
    """

    name: ClassVar[str] = "condor"

    def __init__(self, queues: Iterable[QueueName] = (), excluded: Iterable[str] = EXCLUDED) -> None:
        self._queues = list(queues)
        self._owners = [f"Owner =!= {quoted(owner)}" for owner in excluded]
        self._jobs = Lately(self._ask)

    def queues(self) -> Sequence[Queue]:
        """Return the named queues without the unavailable ones; if all are unavailable, raise the first error.

        After a timeout the remaining queues are skipped: they share the schedd.
        """
        found: list[Queue] = []
        errors: list[BatchError] = []
        for queue in self._queues:
            try:
                if errors and _is_late(errors[-1]):
                    raise errors[-1]
                found.append(self._queue(queue))
            except BatchError as err:
                errors.append(err)
                self.left_out += 1
                log.warning("queue is skipped system=condor queue=%s error=%s", queue.name, err)
        if errors and not found:
            raise errors[0]
        return found

    def jobs(self) -> Sequence[BatchJob]:
        """Return every job in the queue of a schedd, in any state."""
        return self._jobs()

    def ended(self, within_s: int) -> Sequence[BatchJob]:
        """Return completed jobs, without removed ones."""
        now = time.time()
        conditions = [f"JobStatus == {_FINISHED}", f"JobFinishedHookDone >= {int(now) - within_s}", *self._owners]
        return self._counted([*HISTORY, "-constraint", " && ".join(conditions)], HISTORY_DEADLINE_S, now)

    def _ask(self) -> list[BatchJob]:
        constraint = ["-constraint", " && ".join(self._owners)] if self._owners else []
        return self._counted([*JOBS, *constraint], None, time.time())

    def _counted(self, command: list[str], deadline_s: float | None, now: float) -> list[BatchJob]:
        text = ask(command, "HTCondor") if deadline_s is None else ask(command, "HTCondor", deadline_s)
        jobs, left_out = condor_jobs(text, " ".join(command), now)
        if left_out:
            self.left_out += left_out
            log.warning("jobs of an unknown form are skipped system=condor count=%d", left_out)
        return jobs

    def _queue(self, queue: QueueName) -> Queue:
        constraint = ["-constraint", queue.constraint] if queue.constraint else []
        command = [*TOTALS, *constraint]
        idle, running, held = totals(ask(command, "HTCondor"), " ".join(command))
        command = [*GIVEN, *constraint]
        cores = memory_mb = None
        try:
            cores, memory_mb = given(ask(command, "HTCondor"), " ".join(command))
        except BatchError as err:
            log.warning("cores and memory of a queue are not known system=condor queue=%s error=%s", queue.name, err)
        return Queue(queue.name, idle, running, held, cores, memory_mb)
