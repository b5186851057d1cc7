"""HTCondor's jobs from `condor_q` and `condor_history`.

HTCondor has no queues: the client names them, each with a ClassAd expression for its jobs. The queries of queues, and
the rule for ended jobs, are those of the Analysis Facility metrics collector.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import ClassVar

from colmet.batch.answers import (
    DEADLINE_S,
    AskError,
    BatchError,
    Cached,
    ask,
    count,
    json_values,
    must,
    name,
    total,
    unknown_form,
)
from colmet.batch.systems import BatchJob, BatchSystem, Queue

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


def classads(answer: str, command: str) -> list[dict[str, object]]:
    """Return the ClassAds of a command's output with -json; raise BatchError for another form.

    Older versions print a list for each schedd, one after another; and nothing at all without jobs.
    """
    ads: list[dict[str, object]] = []
    for value in json_values(answer, command):
        for ad in value if isinstance(value, list) else [value]:
            if not isinstance(ad, dict):
                raise unknown_form(command, answer)
            ads.append(ad)
    return ads


def totals(answer: str, command: str) -> tuple[int, int, int]:
    """Return idle, running and held jobs, over all schedds that answered; raise BatchError for another form."""
    ads = classads(answer, command)
    idle, running, held = (total([count(ad.get(key)) for ad in ads]) for key in ("Idle", "Running", "Held"))
    if not ads or idle is None or running is None or held is None:
        raise unknown_form(command, answer)
    return idle, running, held


def given(answer: str, command: str) -> tuple[int | None, int | None]:
    """Return cores, and memory in MiB, of running jobs; None if no job reports them; BatchError for another form.

    A job run by the schedd itself, such as DAGMan, has no allocation, and lacks these attributes.
    """
    pairs: list[Sequence[object]]
    if answer.lstrip().startswith(("[", "{")):
        pairs = [(ad.get("CpusProvisioned"), ad.get("MemoryProvisioned")) for ad in classads(answer, command)]
    else:  # some versions ignore -json with -autoformat
        lines = [line.split() for line in answer.split("\n") if line.strip()]
        if not all(
            len(words) == 2 and all(word in _UNDEFINED or word.isdecimal() for word in words) for words in lines
        ):
            raise unknown_form(command, answer)
        pairs = [[None if word in _UNDEFINED else word for word in words] for words in lines]
    cores, memory_mb = ([count(pair[n]) for pair in pairs if pair[n] is not None] for n in (0, 1))
    return total(cores or [None] * len(pairs)), total(memory_mb or [None] * len(pairs))


def condor_job(ad: dict[str, object], now: float) -> BatchJob:
    """Return the job of a ClassAd; raise FormError with the missing field. `now` is in seconds since 1970."""
    code = must(count(ad.get("JobStatus")), "JobStatus")
    # the time of earlier runs; HTCondor adds that of this run at its end
    before = ad.get("RemoteWallClockTime")
    runtime_s = int(before) if isinstance(before, (int, float)) and 0 <= before < _LONG_S else 0
    start = count(ad.get("JobCurrentStartDate"))
    if code in _RUNS and start:
        runtime_s += max(0, int(now) - start)
    return BatchJob(
        id=f"{must(count(ad.get('ClusterId')), 'ClusterId')}.{must(count(ad.get('ProcId')), 'ProcId')}",
        user=must(name(ad.get("Owner")), "Owner"),
        state=STATES[code] if code < len(STATES) else "unknown",
        runtime_s=runtime_s,
    )


class HTCondor(BatchSystem):
    """HTCondor, queried with its own commands.

    Each of its queues is a name with a ClassAd expression satisfied by its jobs; "": all jobs.
    """

    name: ClassVar[str] = "condor"

    def __init__(self, queues: Iterable[tuple[str, str]] = ()) -> None:
        self._queues = list(queues)
        self._owners = [f'Owner =!= "{owner}"' for owner in EXCLUDED]
        self._jobs = Cached(lambda: self._read([*JOBS, "-constraint", " && ".join(self._owners)], DEADLINE_S))

    def queues(self) -> Sequence[Queue]:
        """Return the named queues without the unavailable ones; if all are unavailable, raise the first error.

        After a timeout the remaining queues are skipped: they share the schedd.
        """
        found: list[Queue] = []
        errors: list[BatchError] = []
        for queue, constraint in self._queues:
            try:
                if errors and isinstance(errors[-1], AskError) and errors[-1].why == "late":
                    raise errors[-1]
                found.append(self._queue(queue, constraint))
            except BatchError as err:
                errors.append(err)
                self.skipped += 1
                log.warning("queue is skipped system=condor queue=%s error=%s", queue, err)
        if errors and not found:
            raise errors[0]
        return found

    def jobs(self) -> Sequence[BatchJob]:
        """Return every job in the queue of a schedd, in any state."""
        return self._jobs()

    def ended(self, within_s: int) -> Sequence[BatchJob]:
        """Return completed jobs, without removed ones."""
        since = int(time.time()) - within_s
        conditions = [f"JobStatus == {_FINISHED}", f"JobFinishedHookDone >= {since}", *self._owners]
        return self._read([*HISTORY, "-constraint", " && ".join(conditions)], HISTORY_DEADLINE_S)

    def _read(self, command: list[str], deadline_s: float) -> list[BatchJob]:
        shown, now = " ".join(command), time.time()
        return self.parse(classads(ask(command, "HTCondor", deadline_s), shown), lambda ad: condor_job(ad, now), shown)

    def _queue(self, queue: str, constraint: str) -> Queue:
        restriction = ["-constraint", constraint] if constraint else []
        command = [*TOTALS, *restriction]
        idle, running, held = totals(ask(command, "HTCondor"), " ".join(command))
        command = [*GIVEN, *restriction]
        cores = memory_mb = None
        try:
            cores, memory_mb = given(ask(command, "HTCondor"), " ".join(command))
        except BatchError as err:
            log.warning("cores and memory of a queue are not known system=condor queue=%s error=%s", queue, err)
        return Queue(queue, idle, running, held, cores, memory_mb)
