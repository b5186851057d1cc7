"""Records of Slurm's jobs: of running ones from `squeue`, of ended ones from `sacct`.

The text form of both commands has been the same since Slurm 20.11; their JSON changes. Where Slurm keeps no accounts,
`squeue` shows an ended job for some minutes (MinJobAge), without a signal.

A dependency is known while the job waits for it only, so it is remembered here.

Names and accounts are texts of users, and both commands print them as they are, with line feeds and separators. So each
field ends with a mark that is drawn at random for each question: no text can have it. The mark of squeue is in its
environment, which other users cannot read.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, NamedTuple

from colmet.batch.answers import AskError, FormError, ask, must, name, parse_each, unknown_form
from colmet.batch.records import (
    CANCELLED,
    DONE,
    FAILED,
    MAX_SIGNAL,
    NODE_FAILED,
    OUT_OF_MEMORY,
    RUNNING,
    TIMEOUT,
    JobRecord,
    RecordSource,
    count,
    exit_of,
    expand_hosts,
    hosts_text,
    long_text,
    moment_or_none,
    text,
    whole_below,
)
from colmet.batch.slurm import ENVIRONMENT, count_of, size_mb, tres

log = logging.getLogger(__name__)

SYSTEM = "slurm"
ACCOUNTED = (
    *("JobIDRaw", "JobID", "User", "Account", "Partition", "Submit", "Start", "End", "State", "ExitCode"),
    *("TimelimitRaw", "ReqTRES", "AllocTRES", "NodeList", "JobName"),
)
SACCT = ["sacct", "--allusers", "--duplicates", "--allocations", "--parsable", "--noheader"]
SACCT += [f"--format={','.join(ACCOUNTED)}"]
OVER = "BF,CA,CD,DL,F,NF,OOM,PR,RQ,RV,TO"  # the states of ended runs
NAMED_DAYS = 30  # how far back sacct looks for jobs by number
NAMED_AT_ONCE = 500

# id, id as printed, array, task, user, account, partition, submit, start, end, state, cores, limit, hosts, reason, name
QUEUED = "AiFKuaPVSeTClNrj"
SQUEUE = ["squeue", "--all", "--noheader"]
SQUEUE_STATES = "R,S,CG,CF,ST,SI,SO,RS"
SQUEUE_OVER = "CD,F,CA,TO,OOM,NF,PR,BF,DL"
GIVEN = ["squeue", "--all", "--noheader", "--Format=JobID:20,exit_code:10,tres-alloc:255"]
WAITING = ["squeue", "--all", "--noheader", "--states=PD", "--format=%A|%E"]
NO_ACCOUNTS_S = 3600.0  # between two tries of sacct where Slurm keeps no accounts

STATES: Mapping[str, str] = {
    **dict.fromkeys(("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "SIGNALING", "RESIZING"), RUNNING),
    **dict.fromkeys(("STAGE_OUT", "EXPEDITING"), RUNNING),
    "COMPLETED": DONE,
    "FAILED": FAILED,
    "TIMEOUT": TIMEOUT,
    "DEADLINE": TIMEOUT,
    "OUT_OF_MEMORY": OUT_OF_MEMORY,
    **dict.fromkeys(("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"), NODE_FAILED),
    **dict.fromkeys(("CANCELLED", "PREEMPTED", "REQUEUED", "REVOKED", "SPECIAL_EXIT", "REQUEUE_HOLD"), CANCELLED),
}
WAIT = ("PENDING", "REQUEUE_FED")
_STATUS = re.compile(r"\([a-z]*\)")  # of a dependency, such as (unfulfilled)
_NO_REASON = ("None", "", "(null)")
_NO_TIME = ("Unknown", "None", "N/A", "NONE")


class Given(NamedTuple):
    """What `GIVEN` prints of a job."""

    exit_code: int | None
    allocated: Mapping[str, str]  # by kind of resource


# -- pure --


def records_of(answer: str, mark: str, fields: int, command: str) -> list[list[str]]:
    """Return the fields of each record of an answer.

    Args:
        answer: of the command; every field ends with the mark, every record with a line feed as well.
        mark: of this question.
        fields: number of fields of a record.
        command: as an administrator types it.

    Raises:
        BatchError: another form.
    """
    *words, rest = answer.split(mark)
    records = [words[at : at + fields] for at in range(0, len(words), fields)]
    for record in records[1:]:
        if not record[0].startswith("\n"):
            raise unknown_form(command, answer.replace(mark, "|"))
        record[0] = record[0][1:]
    if rest.strip("\n") or len(words) % fields:
        raise unknown_form(command, answer.replace(mark, "|"))
    return records


def accounted(words: Sequence[str]) -> JobRecord | None:
    """Return the record of a run from sacct's fields; None if the job did not run; FormError for another form."""
    of = dict(zip(ACCOUNTED, words))
    job, started = must(count(of["JobIDRaw"]), "JobIDRaw"), moment_or_none(of["Start"], "Start", _NO_TIME)
    ended, submitted = [moment_or_none(of[field], field, _NO_TIME) for field in ("End", "Submit")]
    if started is None or of["State"] in WAIT:
        return None
    state, reason = state_of(of["State"])
    if state != RUNNING and ended == started and not of["AllocTRES"]:
        return None  # cancelled while it waited
    code, signal = exit_code_of(of["ExitCode"]) if state != RUNNING else (None, None)
    requested, allocated = tres(of["ReqTRES"]), tres(of["AllocTRES"])
    limit = count(of["TimelimitRaw"])
    array, index = array_of(of["JobID"])
    return JobRecord(
        job=job,
        system=SYSTEM,
        batch_id=must(name(of["JobID"]), "JobID"),
        state=state,
        started=started,
        ended=must(ended, "End") if state != RUNNING else None,
        owner=text(of["User"]),
        name=text(of["JobName"]),
        project=text(of["Account"]),
        queue=text(of["Partition"]),
        submitted=submitted,
        exit_code=code,
        exit_signal=signal,
        reason=reason,
        allocated_cores=count_of(allocated.get("cpu")),
        allocated_memory=memory_of(allocated),
        allocated_gpus=gpus_of(allocated),
        requested_cores=count_of(requested.get("cpu")),
        requested_memory=memory_of(requested),
        requested_gpus=gpus_of(requested),
        requested_walltime_s=whole_below(None if limit is None else 60 * limit),
        array=array,
        array_index=index,
        batch_hosts=hosts_of(of["NodeList"]),
    )


def queued(words: Sequence[str], given: Mapping[int, Given]) -> JobRecord | None:
    """Return the record of a run from squeue's fields; None for a job that does not run; FormError for another form."""
    raw, shown, array, task, user, account, partition, submit, start, end, said, cores, limit, nodes, why, named = words
    job = must(count(raw), "id")
    started, ended = moment_or_none(start, "start", _NO_TIME), moment_or_none(end, "end", _NO_TIME)
    if started is None or said in WAIT:
        return None  # of one that waits, the start is the planned one
    state, reason = state_of(said, why)
    if state != RUNNING and not nodes:
        return None
    more = given.get(job, Given(None, {}))
    code, signal = exit_of(more.exit_code) if state != RUNNING else (None, None)
    index = count(task)
    return JobRecord(
        job=job,
        system=SYSTEM,
        batch_id=must(name(shown), "id"),
        state=state,
        started=started,
        ended=must(ended, "end") if state != RUNNING else None,
        owner=text(user),
        name=text(named),
        project=None if account == "(null)" else text(account),
        queue=text(partition),
        submitted=moment_or_none(submit, "submit", _NO_TIME),
        exit_code=code,
        exit_signal=signal,
        reason=reason,
        allocated_cores=count_of(more.allocated.get("cpu")) or count(cores),
        allocated_memory=memory_of(more.allocated),
        allocated_gpus=gpus_of(more.allocated),
        requested_walltime_s=limit_s(limit),
        array=text(array) if index is not None else None,
        array_index=index,
        batch_hosts=hosts_of(nodes),
    )


def state_of(said: str, why: str = "") -> tuple[str, str | None]:
    """Return the state and the reason for Slurm's words, such as "CANCELLED by 1000"; FormError for unknown words."""
    word = said.split(" ", 1)[0].rstrip("+")
    if word not in STATES:
        raise FormError("state")
    state = STATES[word]
    if state == RUNNING:
        return state, None
    return state, text(said if why in _NO_REASON else f"{said}: {why}")


def exit_code_of(words: str) -> tuple[int | None, int | None]:
    """Return the exit code and the signal of "3:0" or "0:9"."""
    code, _, signal = words.partition(":")
    exit_signal = count(signal) or None
    if exit_signal is not None and exit_signal > MAX_SIGNAL:  # 125: Slurm's own mark for OUT_OF_MEMORY
        return None, None
    return (None if exit_signal else count(code)), exit_signal


def array_of(job: str) -> tuple[str | None, int | None]:
    """Return the array and the place there of an id such as "17_3"; None for others."""
    array, _, task = job.partition("_")
    index = count(task)
    return (array, index) if index is not None else (None, None)


def memory_of(requests: Mapping[str, str]) -> int | None:
    """Return the bytes of memory of a list of requests."""
    asked_mb = size_mb(requests.get("mem"))
    return whole_below(None if asked_mb is None else asked_mb << 20)


def gpus_of(requests: Mapping[str, str]) -> int | None:
    """Return the GPUs of a list of requests: "gres/gpu=2"; without a total, the sum over "gres/gpu:a100=2"."""
    total = count_of(requests.get("gres/gpu"))
    if total is not None:
        return total
    found = [count_of(number) for kind, number in requests.items() if kind.startswith("gres/gpu:")]
    return sum([number for number in found if number is not None]) if found else None


def limit_s(limit: str) -> int | None:
    """Return seconds of squeue's limit, "1-02:03:04", "02:03:04", "3:04"; None for UNLIMITED and others."""
    days, dash, clock = limit.rpartition("-")
    parts = [count(part) for part in clock.split(":")]
    if not 1 < len(parts) < 4 or None in parts or (dash and count(days) is None):
        return None
    seconds = 0
    for part in parts:
        seconds = 60 * seconds + (part or 0)
    return whole_below(seconds + 86400 * (count(days) or 0))


def hosts_of(nodes: str) -> str | None:
    """Return the hosts of a list such as "n[1-3]"; None without, or for an unknown form."""
    if nodes in ("", "(null)", "None assigned"):
        return None
    try:
        return hosts_text(expand_hosts(nodes))
    except FormError:
        return None


def given_of(answer: str) -> dict[int, Given]:
    """Return what `GIVEN` prints, by job; lines of another form are skipped, BatchError if all are."""
    found = {}
    for line in answer.split("\n"):
        words = line.split()
        job = count(words[0]) if len(words) in (2, 3) else None
        if job is not None:
            found[job] = Given(count(words[1]), tres(words[2]) if len(words) == 3 else {})
    if answer.strip() and not found:
        raise unknown_form(" ".join(GIVEN), answer)
    return found


def dependencies_of(answer: str) -> dict[int, str]:
    """Return the dependencies that `WAITING` prints, by job; those without have none. BatchError for another form."""
    found = {}
    numbers = 0
    for line in answer.split("\n"):
        job, _, on = line.partition("|")
        number, dependency = count(job), long_text(on)
        numbers += number is not None
        if number is not None and dependency is not None and dependency != "(null)":
            found[number] = _STATUS.sub("", dependency)
    if answer.strip() and not numbers:
        raise unknown_form(" ".join(WAITING), answer)
    return found


# -- asked --


class SlurmRecords(RecordSource):
    """Records from squeue and sacct, of PATH."""

    name: ClassVar[str] = SYSTEM

    def __init__(self) -> None:
        super().__init__()
        self._sacct_from = 0.0  # time of the next try, by the monotonic clock

    @property
    def _has_accounts(self) -> bool:
        return time.monotonic() >= self._sacct_from

    def running(self) -> Sequence[JobRecord]:
        """Return the jobs that run now; where Slurm keeps no accounts, also those that squeue shows as ended."""
        states = SQUEUE_STATES if self._has_accounts else f"{SQUEUE_STATES},{SQUEUE_OVER}"
        mark = _draw_mark()
        answer = _ask([*SQUEUE, f"--states={states}"], {"SQUEUE_FORMAT": "".join([f"%{key}{mark}" for key in QUEUED])})
        fields = records_of(answer, mark, len(QUEUED), "squeue")
        given = given_of(_ask([*GIVEN, f"--states={states}"])) if fields else {}
        records, skipped = parse_each(fields, lambda words: queued(words, given), SYSTEM, "squeue")
        self.remember(dependencies_of(_ask(WAITING)))
        return [self.with_dependency(one) for one in self.accept(records, skipped)]

    def ended(self, since: float, until: float) -> Sequence[JobRecord]:
        """Return the runs that ended in this interval, and did run; none if Slurm keeps no accounts."""
        now = time.time()
        times = [f"--starttime=now-{max(0, int(now - since))}", f"--endtime=now-{max(0, int(now - until))}"]
        return self._accounts([f"--state={OVER}", *times])

    def named(self, jobs: Collection[int]) -> Sequence[JobRecord]:
        """Return the records of these jobs; none if Slurm keeps no accounts."""
        found: list[JobRecord] = []
        numbers = sorted(jobs)
        for at in range(0, len(numbers), NAMED_AT_ONCE):
            part = ",".join(map(str, numbers[at : at + NAMED_AT_ONCE]))
            found += self._accounts([f"--jobs={part}", f"--starttime=now-{NAMED_DAYS}days"], jobs)
        return found

    def _accounts(self, arguments: Sequence[str], jobs: Collection[int] | None = None) -> list[JobRecord]:
        """Return the records that sacct prints, of these jobs alone; none if Slurm keeps no accounts."""
        if not self._has_accounts:
            return []
        mark = _draw_mark()
        try:
            answer = _ask([*SACCT, f"--delimiter={mark}", *arguments])
        except AskError as err:
            if err.why == "absent" or "accounting storage is disabled" in str(err):
                self._sacct_from = time.monotonic() + NO_ACCOUNTS_S
                log.info("Slurm keeps no accounts, ended jobs are those of squeue: %s", err)
                return []
            raise
        fields = records_of(answer, mark, len(ACCOUNTED), "sacct")
        records, skipped = parse_each(fields, accounted, SYSTEM, "sacct")
        return [self.with_dependency(one) for one in self.accept(records, skipped, jobs)]


def _draw_mark() -> str:
    return f":{secrets.token_hex(16)}:"


def _ask(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    return ask(command, "Slurm", env={**ENVIRONMENT, **(environment or {})})
