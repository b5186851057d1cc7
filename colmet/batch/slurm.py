"""Slurm's queues, jobs and records: from `squeue`, and of ended jobs from `sacct`.

The text form of both commands has been the same since Slurm 20.11; their JSON changes. Where Slurm keeps no accounts,
`squeue` shows an ended job for some minutes (MinJobAge), without a signal. A dependency is known while the job waits
for it only, so it is remembered.

Queues count a line of squeue as squeue shows it: each part of a heterogeneous job ("12+0") is one, and a job waiting
for one of several partitions waits in each of them. All waiting tasks of an array are one line; they are counted one by
one.

Names and accounts are texts of users, and both commands print them as they are, with line feeds and separators. So each
field of a record ends with a mark that is drawn at random for each question: no text can have it. The mark of squeue is
in its environment, which other users cannot read.
"""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, NamedTuple

from colmet.batch import systems
from colmet.batch.answers import (
    LONG_TEXT,
    MAX_SIGNAL,
    AskError,
    BatchError,
    Cached,
    FormError,
    ask,
    count,
    exit_of,
    expand_hosts,
    hosts_text,
    moment_or_none,
    must,
    name,
    task_range,
    text,
    total,
    unknown_form,
    whole_below,
)
from colmet.batch.systems import BatchJob, BatchSystem, JobRecord, Queue, RecordSource

log = logging.getLogger(__name__)

SYSTEM = "slurm"
# by default squeue cuts a list of tasks to 64 characters
ENVIRONMENT = {"SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "%s"}
SQUEUE = ["squeue", "--all", "--noheader"]
LISTED = [*SQUEUE, "--format=%i|%P|%u|%T|%r|%M|%C"]
# Fields of squeue, by their names in sacct.
QUEUED = {
    **{"JobIDRaw": "A", "JobID": "i", "User": "u", "Account": "a", "Partition": "P", "Submit": "V", "Start": "S"},
    **{"End": "e", "State": "T", "Cores": "C", "Limit": "l", "NodeList": "N", "Reason": "r", "JobName": "j"},
}
GIVEN = [*SQUEUE, "--Format=JobID:20,JobArrayID:64,exit_code:10,tres-alloc:255"]
WAITING = [*SQUEUE, "--states=PD", "--format=%A|%E"]
PARTITIONS = ["sinfo", "--all", "--noheader", "--format=%R"]
ACCOUNTED = (
    *("JobIDRaw", "JobID", "User", "Account", "Partition", "Submit", "Start", "End", "State", "ExitCode"),
    *("TimelimitRaw", "ElapsedRaw", "ReqTRES", "AllocTRES", "NodeList", "JobName"),
)
SACCT = ["sacct", "--allusers", "--allocations", "--parsable", "--noheader", f"--format={','.join(ACCOUNTED)}"]
# Source: sacctmgr(1), "withcoord"; the coordinators of an account are those of its parents, too.
COORDINATORS = ["sacctmgr", "--noheader", "--parsable2", "--readonly", "show", "account", "withcoord"]
COORDINATORS += ["format=account,coord"]

HOLDING = "R,S,CG,CF,ST,SI,SO,RS"  # the states of jobs with nodes
OVER = "CD,F,CA,TO,OOM,NF,PR,BF,DL"
OVER_IN_ACCOUNTS = f"{OVER},RQ,RV"
NAMED_DAYS = 30  # how far back sacct looks for jobs by number
NAMED_AT_ONCE = 500
NO_ACCOUNTS_S = 3600.0  # between two tries of sacct where Slurm keeps no accounts
MAX_LISTED = 10_000  # tasks of one waiting array that are listed one by one; all are counted

STATES: Mapping[str, str] = {
    **dict.fromkeys(
        ("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "SIGNALING", "RESIZING"), systems.RUNNING
    ),
    **dict.fromkeys(("STAGE_OUT", "EXPEDITING", "POWER_UP_NODE"), systems.RUNNING),
    "COMPLETED": systems.DONE,
    "FAILED": systems.FAILED,
    **dict.fromkeys(("TIMEOUT", "DEADLINE"), systems.TIMEOUT),
    "OUT_OF_MEMORY": systems.OUT_OF_MEMORY,
    **dict.fromkeys(("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"), systems.NODE_FAILED),
    **dict.fromkeys(
        ("CANCELLED", "PREEMPTED", "REQUEUED", "REVOKED", "SPECIAL_EXIT", "REQUEUE_HOLD"), systems.CANCELLED
    ),
}
WAIT = ("PENDING", "REQUEUE_FED")
HELD = ("SUSPENDED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
# All others are finished.
_QUEUE_STATES = {systems.RUNNING: "running", systems.CANCELLED: "removed", systems.TIMEOUT: "removed"}

_ARRAY = re.compile(r"([0-9]+)_\[(.+)\]")
_CLOCK = re.compile(r"(?:(?:([0-9]+)-)?([0-9]+):)?([0-9]+):([0-9]+)")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTPE]?)")
_STATUS = re.compile(r"\([a-z]*\)")  # of a dependency, such as (unfulfilled)
_NO_REASON = ("None", "", "(null)")
_NO_TIME = ("Unknown", "None", "N/A", "NONE")
_NO_NODES = ("", "(null)", "None assigned")
_ACCOUNT = re.compile(r"[^\s|,:#\x00-\x20\x7f][^|,:\x00-\x1f\x7f]{0,254}")


class ListedJob(NamedTuple):
    """A line of squeue, for queues."""

    job: BatchJob  # the job; its id is the array's if it stands for several tasks
    tasks: Sequence[range]  # waiting tasks of an array, as ranges; empty for a single job
    cores: int | None  # allocated cores

    @property
    def size(self) -> int:
        """Return the number of jobs in the line."""
        return sum(map(len, self.tasks)) if self.tasks else 1


class Given(NamedTuple):
    """What `GIVEN` prints of a job."""

    exit_code: int | None
    allocated: Mapping[str, str]  # by kind of resource


# -- fields --


def tres(listed: str) -> dict[str, str]:
    """Return the values of a list such as "cpu=2,mem=4G,node=1"."""
    return {key: value for key, _, value in (part.partition("=") for part in listed.split(","))}


def memory_of(resources: Mapping[str, str]) -> int | None:
    """Return the bytes of memory of a list of resources: "100M", "62.50G", MiB without a unit; in whole MiB."""
    size = _size(resources.get("mem", ""), "M")
    return whole_below(None if size is None else round(size / 1024**2) << 20)


def count_of(word: str | None) -> int | None:
    """Return a count in Slurm's form: "64", or "2K" if exact; None if invalid."""
    return count(_size(word or ""))


def _size(word: str, unit: str = "") -> float | None:
    match = _SIZE.fullmatch(word)
    if match is None or len(match[1]) > 15:
        return None
    return float(match[1]) * 1024.0 ** " KMGTPE".index(match[2] or unit or " ")


def gpus_of(resources: Mapping[str, str]) -> int | None:
    """Return the GPUs of a list of resources: "gres/gpu=2"; without a total, the sum over "gres/gpu:a100=2"."""
    if (gpus := count_of(resources.get("gres/gpu"))) is not None:
        return gpus
    kinds = [count_of(number) for kind, number in resources.items() if kind.startswith("gres/gpu:")]
    return sum(filter(None, kinds)) if kinds else None


def seconds_of(clock: str) -> int | None:
    """Return seconds of "1-02:03:04", "02:03:04" or "3:04"; None for UNLIMITED and others."""
    match = _CLOCK.fullmatch(clock)
    if match is None or len(clock) > 20:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def exit_code_of(words: str) -> tuple[int | None, int | None]:
    """Return the exit code and the signal of "3:0" or "0:9"."""
    code, _, signal = words.partition(":")
    exit_signal = count(signal) or None
    if exit_signal is not None and exit_signal > MAX_SIGNAL:  # 125: Slurm's own mark for OUT_OF_MEMORY
        return None, None
    return (None if exit_signal else count(code)), exit_signal


def state_of(said: str, why: str = "") -> tuple[str, str | None]:
    """Return the state and the reason for Slurm's words, such as "CANCELLED by 1000"; FormError for unknown words."""
    state = must(STATES.get(said.split(" ", 1)[0].rstrip("+")), "state")
    if state == systems.RUNNING:
        return state, None
    return state, text(said if why in _NO_REASON else f"{said}: {why}")


def queue_state_of(said: str, why: str = "") -> str:
    """Return a state of `BatchJob` for Slurm's word, with the reason why the job waits.

    The cores of a job that completes are its own until its last process has ended, so it runs.
    """
    if said in HELD:
        return "held"
    if said in (*WAIT, "REQUEUED"):
        return "held" if why.startswith(("JobHeld", "JobHold")) or why.endswith("held") else "idle"
    return _QUEUE_STATES.get(STATES[said], "finished") if said in STATES else "unknown"


def hosts_of(nodes: str) -> str | None:
    """Return the hosts of a list such as "n[1-3]"; None without, or for an unknown form."""
    if nodes in _NO_NODES:
        return None
    try:
        return hosts_text(expand_hosts(nodes))
    except FormError:
        return None


# -- answers --


def split_records(answer: str, mark: str, fields: int, command: str) -> list[list[str]]:
    """Return the fields of each record of an answer, whose every field ends with the mark of the question.

    A record ends with a line feed as well. `fields` is the number of its fields. BatchError for another form.
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


def listed_job(line: str) -> ListedJob:
    """Return the job of a line of `LISTED`; FormError for another form."""
    words = [word.strip() for word in line.split("|")]
    if len(words) != 7:
        raise FormError("words")
    shown, partition, user, said, why, elapsed, cores = words
    state = queue_state_of(said, why)
    array = _ARRAY.fullmatch(shown)  # such as 7_[1,4-5,10-20:2%3]; %3: at most 3 at once
    tasks = array[2].partition("%")[0].split(",") if array else []
    job = BatchJob(
        id=array[1] if array else must(name(shown), "id"),
        user=must(name(user), "user"),
        state=state,
        runtime_s=0 if elapsed == "INVALID" else must(seconds_of(elapsed), "time"),  # after a clock was set back
        queue=must(name(partition), "partition"),
    )
    ranges = [must(task_range(part), "list of tasks") for part in tasks]
    return ListedJob(job, ranges, count_of(cores) if state == "running" else None)


def accounted_job(words: Sequence[str]) -> BatchJob:
    """Return the ended job of sacct's fields; FormError for another form."""
    fields = dict(zip(ACCOUNTED, words))
    shown, user, partition = (must(name(fields[field]), field) for field in ("JobID", "User", "Partition"))
    return BatchJob(shown, user, "finished", must(count(fields["ElapsedRaw"]), "ElapsedRaw"), partition)


def job_record(
    fields: Mapping[str, str],
    exit_status: tuple[int | None, int | None],
    allocated: Mapping[str, str],
    walltime_s: int | None,
) -> JobRecord | None:
    """Return the record of a run from squeue or sacct; None if the job did not run; FormError for another form.

    `fields` are by sacct's names, `allocated` by kind of resource; `exit_status` is exit code and signal.
    """
    job = must(count(fields["JobIDRaw"]), "JobIDRaw")
    started, ended, submitted = [moment_or_none(fields[one], one, _NO_TIME) for one in ("Start", "End", "Submit")]
    if started is None or fields["State"] in WAIT:
        return None  # of one that waits, squeue prints the planned start
    state, reason = state_of(fields["State"], fields.get("Reason", ""))
    is_over = state != systems.RUNNING
    if is_over and fields["NodeList"] in _NO_NODES and not fields.get("AllocTRES"):
        return None  # cancelled while it waited
    requested = tres(fields.get("ReqTRES", ""))
    shown = must(name(fields["JobID"]), "JobID")
    array, _, task = shown.partition("_")
    index = count(task)
    return JobRecord(
        job=job,
        system=SYSTEM,
        batch_id=shown,
        state=state,
        started=started,
        ended=must(ended, "End") if is_over else None,
        owner=text(fields["User"]),
        name=text(fields["JobName"]),
        project=None if fields["Account"] == "(null)" else text(fields["Account"]),
        queue=text(fields["Partition"]),
        submitted=submitted,
        exit_code=exit_status[0] if is_over else None,
        exit_signal=exit_status[1] if is_over else None,
        reason=reason,
        allocated_cores=count_of(allocated.get("cpu")) or count(fields.get("Cores")),
        allocated_memory=memory_of(allocated),
        allocated_gpus=gpus_of(allocated),
        requested_cores=count_of(requested.get("cpu")),
        requested_memory=memory_of(requested),
        requested_gpus=gpus_of(requested),
        requested_walltime_s=whole_below(walltime_s),
        array=None if index is None else array,
        array_index=index,
        batch_hosts=hosts_of(fields["NodeList"]),
    )


def accounted(words: Sequence[str]) -> JobRecord | None:
    """Return the record of a run from sacct's fields; as `job_record`."""
    fields = dict(zip(ACCOUNTED, words))
    minutes = count(fields["TimelimitRaw"])
    walltime_s = None if minutes is None else 60 * minutes
    return job_record(fields, exit_code_of(fields["ExitCode"]), tres(fields["AllocTRES"]), walltime_s)


def queued(words: Sequence[str], given: Mapping[str, Given]) -> JobRecord | None:
    """Return the record of a run from squeue's fields; as `job_record`."""
    fields = dict(zip(QUEUED, words))
    more = given.get(fields["JobIDRaw"], Given(None, {}))
    return job_record(fields, exit_of(more.exit_code), more.allocated, seconds_of(fields["Limit"]))


def given_of(answer: str) -> dict[str, Given]:
    """Return what `GIVEN` prints, by both ids; lines of another form are skipped, BatchError if all are."""
    jobs = {}
    for line in answer.split("\n"):
        words = line.split()
        if len(words) in (3, 4) and count(words[0]) is not None:
            given = Given(count(words[2]), tres(words[3]) if len(words) == 4 else {})
            jobs.update(dict.fromkeys(words[:2], given))
    if answer.strip() and not jobs:
        raise unknown_form(" ".join(GIVEN), answer)
    return jobs


def dependencies_of(answer: str) -> dict[int, str]:
    """Return the dependencies that `WAITING` prints, by job; those without have none. BatchError for another form."""
    dependencies = {}
    numbers = 0
    for line in answer.split("\n"):
        job, _, on = line.partition("|")
        number, dependency = count(job), text(on, LONG_TEXT)
        numbers += number is not None
        if number is not None and dependency is not None and dependency != "(null)":
            dependencies[number] = _STATUS.sub("", dependency)
    if answer.strip() and not numbers:
        raise unknown_form(" ".join(WAITING), answer)
    return dependencies


def parse_coordinators(answer: str) -> Mapping[str, frozenset[str]]:
    """Return the coordinators of each account that has some: lines such as ``physics|alice,bob``.

    A line in another form is a BatchError: who may see what is not guessed from the others.
    """
    coordinators: dict[str, frozenset[str]] = {}
    for line in answer.splitlines():
        account, bar, listed = line.partition("|")
        names = [user for user in listed.split(",") if user]
        if not bar or account in coordinators or not all(_ACCOUNT.fullmatch(word) for word in (account, *names)):
            raise unknown_form(" ".join(COORDINATORS), line)
        coordinators[account] = frozenset(names)
    return {account: users for account, users in coordinators.items() if users}


# -- asked --


def _ask(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    return ask(command, "Slurm", env={**ENVIRONMENT, **(environment or {})})


def _draw_mark() -> str:
    return f":{secrets.token_hex(16)}:"


def _ask_accounts(arguments: Sequence[str]) -> list[list[str]] | None:
    """Return the fields of each record that sacct prints; None if Slurm keeps no accounts."""
    mark = _draw_mark()
    try:
        answer = _ask([*SACCT, f"--delimiter={mark}", *arguments])
    except AskError as err:
        if err.why == "absent" or "accounting storage is disabled" in str(err):
            log.info("Slurm keeps no accounts, ended jobs are those of squeue: %s", err)
            return None
        raise
    return split_records(answer, mark, len(ACCOUNTED), "sacct")


def read_coordinators() -> Mapping[str, frozenset[str]]:
    """Ask Slurm, and return the coordinators by account; BatchError without a usable answer."""
    return parse_coordinators(ask(COORDINATORS, "Slurm"))


def has_accounts() -> bool:
    """Return whether Slurm's accounts can be asked for on this machine."""
    return shutil.which(COORDINATORS[0]) is not None


class Slurm(BatchSystem):
    """Slurm's queues and jobs, from its own commands."""

    name: ClassVar[str] = SYSTEM

    def __init__(self) -> None:
        self._lines = Cached(self._ask_lines)

    def queues(self) -> Sequence[Queue]:
        """Return every partition, also hidden ones."""
        lines = self._lines()
        try:
            given = given_of(_ask([*GIVEN, f"--states={HOLDING}"]))
        except BatchError as err:
            log.debug("memory of jobs is not known system=slurm error=%s", err)
            given = {}
        partitions: dict[str, list[ListedJob]] = {partition: [] for partition in self._partitions()}
        for line in lines:
            for partition in (line.job.queue or "").split(","):
                partitions.setdefault(partition, []).append(line)
        return [_queue(partition, within, given) for partition, within in partitions.items()]

    def jobs(self) -> Sequence[BatchJob]:
        """Return every waiting, running or held job; each task of an array is one."""
        jobs: list[BatchJob] = []
        for line in self._lines():
            if not line.tasks:
                jobs.append(line.job)
                continue
            numbers = itertools.islice(itertools.chain.from_iterable(line.tasks), MAX_LISTED)
            jobs.extend(line.job._replace(id=f"{line.job.id}_{task}") for task in numbers)
            if line.size > MAX_LISTED:
                self.skipped += line.size - MAX_LISTED
                log.warning("tasks of a long array are skipped array=%s count=%d", line.job.id, line.size - MAX_LISTED)
        return jobs

    def ended(self, within_s: int) -> Sequence[BatchJob]:
        """Return jobs that ended by themselves, successful or not; none if Slurm keeps no accounts."""
        since = time.time() - within_s
        records = _ask_accounts(["--state=CD,F,OOM", f"--starttime=now-{within_s}", "--endtime=now"]) or []
        end = ACCOUNTED.index("End")
        # sacct's times are of jobs that had one of the states within them
        late = [words for words in records if (count(words[end]) or since) >= since]
        return self.parse(late, accounted_job, "sacct")

    def _ask_lines(self) -> list[ListedJob]:
        lines = [line for line in _ask(LISTED).split("\n") if line.strip()]
        jobs = self.parse(lines, listed_job, " ".join(LISTED))
        return [line for line in jobs if line.job.state not in ("finished", "removed")]

    def _partitions(self) -> list[str]:
        try:
            lines = _ask(PARTITIONS).split("\n")
        except AskError as err:
            log.warning("partitions without a job are not known system=slurm error=%s", err)
            return []
        return list(dict.fromkeys(line.strip() for line in lines if name(line.strip())))


def _queue(partition: str, lines: Sequence[ListedJob], given: Mapping[str, Given]) -> Queue:
    running = [line for line in lines if line.job.state == "running"]
    idle, held = (sum(line.size for line in lines if line.job.state == state) for state in ("idle", "held"))
    memory = [memory_of(given[line.job.id].allocated) if line.job.id in given else None for line in running]
    memory_mb = total([None if size is None else size >> 20 for size in memory])
    return Queue(partition, idle, len(running), held, total([line.cores for line in running]), memory_mb)


class SlurmRecords(RecordSource):
    """Records from squeue and sacct, of PATH."""

    name: ClassVar[str] = SYSTEM

    def __init__(self) -> None:
        super().__init__()
        self._sacct_from = 0.0  # time of the next try, by the monotonic clock

    def running(self) -> Sequence[JobRecord]:
        """Return the jobs that run now; where Slurm keeps no accounts, also those that squeue shows as ended."""
        states = HOLDING if time.monotonic() >= self._sacct_from else f"{HOLDING},{OVER}"
        mark = _draw_mark()
        form = "".join([f"%{letter}{mark}" for letter in QUEUED.values()])
        answer = _ask([*SQUEUE, f"--states={states}"], {"SQUEUE_FORMAT": form})
        fields = split_records(answer, mark, len(QUEUED), "squeue")
        given = given_of(_ask([*GIVEN, f"--states={states}"])) if fields else {}
        records = self.parse(fields, lambda words: queued(words, given), "squeue")
        self.remember(dependencies_of(_ask(WAITING)))
        return self.accept(records)

    def ended(self, since: float, until: float) -> Sequence[JobRecord]:
        """Return the runs that ended in this interval, and did run; none if Slurm keeps no accounts."""
        now = time.time()
        times = [f"--starttime=now-{max(0, int(now - since))}", f"--endtime=now-{max(0, int(now - until))}"]
        return self._accounts([f"--state={OVER_IN_ACCOUNTS}", *times])

    def named(self, jobs: Collection[int]) -> Sequence[JobRecord]:
        """Return the records of these jobs; none if Slurm keeps no accounts."""
        records: list[JobRecord] = []
        numbers = sorted(jobs)
        for at in range(0, len(numbers), NAMED_AT_ONCE):
            part = ",".join(map(str, numbers[at : at + NAMED_AT_ONCE]))
            records += self._accounts([f"--jobs={part}", f"--starttime=now-{NAMED_DAYS}days"], jobs)
        return records

    def _accounts(self, arguments: Sequence[str], jobs: Collection[int] | None = None) -> list[JobRecord]:
        """Return the records that sacct prints, of these jobs alone; none if Slurm keeps no accounts."""
        is_due = time.monotonic() >= self._sacct_from
        records = _ask_accounts(["--duplicates", *arguments]) if is_due else []
        if records is None:
            self._sacct_from = time.monotonic() + NO_ACCOUNTS_S
            return []
        return self.accept(self.parse(records, accounted, "sacct"), jobs)
