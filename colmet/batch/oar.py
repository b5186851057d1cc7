"""OAR's queues, jobs and records: from `oarstat -J` and `oarnotify -l`, or records from its REST interface.

OAR allocates resources: their meaning is the site's choice, nearly always a core; they are counted as cores. No command
prints the memory of a resource in a common form, so it is unknown. A dependency is known while the job waits for it
only: OAR forgets it when the other job ends.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, NamedTuple

from colmet.batch import systems
from colmet.batch.answers import (
    DEADLINE_S,
    LONG_TEXT,
    MAX_ANSWER,
    AskError,
    BatchError,
    Cached,
    FormError,
    ask,
    count,
    exit_of,
    hosts_text,
    json_values,
    moment_or_none,
    must,
    name,
    text,
    unknown_form,
    whole_below,
)
from colmet.batch.systems import BatchJob, BatchSystem, JobRecord, Queue, RecordSource
from colmet.common.errors import ConfigError
from colmet.common.http_client import HttpClient, HttpFailure, parse_url

log = logging.getLogger(__name__)

SYSTEM = "oar"
JOBS = ["oarstat", "-J"]  # of all users
WHOLE_JOBS = [*JOBS, "-f", "--sql"]  # with all fields, and a condition on OAR's table of jobs
QUEUES = ["oarnotify", "-l"]  # for root and OAR's administrators alone
QUEUES_DEADLINE_S = 10.0  # it blocks for ever without OAR's database
# In a condition, a tuple is printed as a list of SQL.
RUN = ("Running", "Suspended", "Resuming", "Finishing")
OVER = ("Terminated", "Error")
# A job that is launched has the planned start, and gets another one some seconds later, when it runs.
WAITING = ("Waiting", "Hold", "toAckReservation", "toLaunch", "Launching")
WAIT_FOR_OTHERS = "state IN ('Waiting','Hold') AND job_id IN (SELECT job_id FROM job_dependencies)"
# Launching and finishing jobs have their resources. A suspended job has returned its resources, as it is held.
QUEUE_STATES = {
    **dict.fromkeys(("Waiting", "toAckReservation"), "idle"),
    **dict.fromkeys(("Hold", "Suspended"), "held"),
    **dict.fromkeys(("toLaunch", "Launching", "Running", "Resuming", "Finishing"), "running"),
    "Terminated": "finished",
    **dict.fromkeys(("Error", "toError"), "removed"),
}

PAGE = 500  # jobs of one answer of the REST interface
MAX_PAGES = 200
TIMEOUT_S = 20.0  # of one step of a request

# The first of these events that a failed job has names its cause. WALLTIME brings a FRAG_JOB_REQUEST by OAR itself;
# else that is a person's.
CAUSES: Mapping[str, str] = {
    "WALLTIME": systems.TIMEOUT,
    "BESTEFFORT_KILL": systems.CANCELLED,
    **dict.fromkeys(
        (
            *("PING_CHECKER_NODE_SUSPECTED_END_JOB", "PING_CHECKER_NODE_SUSPECTED", "CPUSET_ERROR"),
            *("CANNOT_CREATE_TMP_DIRECTORY", "CANNOT_WRITE_NODE_FILE", "CANNOT_WRITE_PID_FILE", "RESERVATION_NO_NODE"),
            *("LAUNCHING_OAREXEC_TIMEOUT", "SSH_TRANSFER_TIMEOUT", "EXIT_VALUE_OAREXEC"),
        ),
        systems.NODE_FAILED,
    ),
    **dict.fromkeys(
        (
            *("PROLOGUE_ERROR", "EPILOGUE_ERROR", "SERVER_PROLOGUE_ERROR", "SERVER_PROLOGUE_TIMEOUT"),
            *("SERVER_PROLOGUE_EXIT_CODE_ERROR", "WORKING_DIRECTORY", "OUTPUT_FILES", "USER_SHELL"),
        ),
        systems.FAILED,
    ),
    "FRAG_JOB_REQUEST": systems.CANCELLED,
    "EXTERMINATE_JOB": systems.NODE_FAILED,
}
# Names of the REST interface, and of OAR 3, whose oarstat prints those of its database, without resources.
_OTHER_NAMES = {
    **{"id": "Job_Id", "start_time": "startTime", "stop_time": "stopTime", "submission_time": "submissionTime"},
    **{"user": "owner", "queue_name": "queue"},
}
_LEVEL = re.compile(r"([A-Za-z_]+)=([0-9]{1,6}|ALL|BEST|BESTHALF)")
_GPU_LEVELS = ("gpu", "gpudevice", "gpu_id")


class ListedJob(NamedTuple):
    """A job of oarstat, for queues; each job of an array is one."""

    job: BatchJob  # the job; its state may be finished or removed, too
    resources: int  # number of allocated resources


def read_jobs(answer: str, command: str) -> list[object]:
    """Return the jobs of oarstat: one object with an object for each, or nothing at all; BatchError for other forms."""
    values = json_values(answer, command)
    if not values:
        return []
    if len(values) > 1 or not isinstance(values[0], dict):
        raise unknown_form(command, answer)
    return list(values[0].values())


def listed_job(content: object, now: float) -> ListedJob:
    """Return the job of a JSON value of oarstat; raise FormError with the missing field."""
    if not isinstance(content, dict):
        raise FormError("no object")
    said = must(name(content.get("state")), "state")
    runtime_s = 0
    if said in (*RUN, *OVER, "toError"):
        start = must(count(content.get("startTime")), "startTime")
        stop = count(content.get("stopTime")) or int(now)  # only oarstat -f has it, 0 before the job's end
        runtime_s = max(0, stop - start) if start else 0
    resources = content.get("assigned_resources")
    if not isinstance(resources, list):
        raise FormError("assigned_resources")
    job = BatchJob(
        id=str(must(count(content.get("Job_Id")), "Job_Id")),
        user=must(name(content.get("owner")), "owner"),
        state=QUEUE_STATES.get(said, "unknown"),
        runtime_s=runtime_s,
        queue=must(name(content.get("queue")), "queue"),
    )
    return ListedJob(job, len(resources))


def job_record(content: object, heads: Collection[int] = ()) -> JobRecord | None:
    """Return the record of a job of oarstat, or of the REST interface; None if it did not run.

    `heads` are numbers of jobs that are the first of an array, as far as others show it. FormError names the missing
    field.
    """
    if not isinstance(content, dict):
        raise FormError("no object")
    job: dict[str, object] = {_OTHER_NAMES.get(str(key), str(key)): value for key, value in content.items()}
    number = must(count(job.get("Job_Id")), "Job_Id")
    said = must(name(job.get("state")), "state")
    if said in WAITING:
        return None
    if said not in (*RUN, *OVER, "toError"):
        raise FormError("state")
    if "startTime" not in job:
        raise FormError("startTime")
    started = moment_or_none(job["startTime"], "startTime")
    resources = job.get("assigned_resources", job.get("resources"))
    if started is None or resources == []:
        return None  # never started: refused, or deleted while it waited
    is_over = said in OVER
    ended = must(moment_or_none(job.get("stopTime"), "stopTime"), "stopTime") if is_over else None
    status = count(job.get("exit_code")) if is_over else None
    code, signal = exit_of(status)
    state, reason = _end(said, status, job.get("events")) if is_over else (systems.RUNNING, None)
    array, index = _array(job, number, heads)
    wanted = text(job.get("wanted_resources"), 1024) or ""
    return JobRecord(
        job=number,
        system=SYSTEM,
        batch_id=str(number),
        state=state,
        started=started,
        ended=None if ended is None else max(started, ended),
        owner=must(name(job.get("owner")), "owner"),
        name=text(job.get("name")),
        project=text(job.get("project")),
        queue=text(job.get("queue")),
        submitted=moment_or_none(job.get("submissionTime"), "submissionTime"),
        exit_code=code,
        exit_signal=signal,
        reason=reason,
        allocated_cores=len(resources) if isinstance(resources, list) else None,
        requested_gpus=gpus_of(wanted),
        requested_walltime_s=count(job.get("walltime")),
        array=array,
        array_index=index,
        dependency=_dependency(job.get("dependencies")),
        batch_hosts=_hosts(job),
    )


def _end(said: str, status: int | None, events: object) -> tuple[str, str]:
    """Return the state of a job that is over, and OAR's word for it."""
    types = [one.get("type") for one in events if isinstance(one, dict)] if isinstance(events, list) else []
    cause = next((one for one in CAUSES if one in types), None)
    if said == "Terminated" and status == 0:
        return systems.DONE, said
    if cause is not None:
        return CAUSES[cause], cause
    return (systems.DONE if said == "Terminated" and status is None else systems.FAILED), said


def _array(job: Mapping[str, object], number: int, heads: Collection[int]) -> tuple[str | None, int | None]:
    """Return the array of a job and its place there. A job without one has its own number as that of an array."""
    array, request = count(job.get("array_id")), job.get("initial_request")
    is_asked = isinstance(request, str) and " --array" in request
    if array is None or (array == number and number not in heads and not is_asked):
        return None, None
    index = count(job.get("array_index"))
    return str(array), 1 if index is None and array == number else index


def _dependency(jobs: object) -> str | None:
    numbers = [count(job) for job in jobs] if isinstance(jobs, list) else []
    return text(",".join([str(number) for number in numbers if number is not None]), LONG_TEXT)


def _hosts(job: Mapping[str, object]) -> str | None:
    hosts, nodes = job.get("assigned_network_address"), job.get("nodes")
    if not isinstance(hosts, list):
        listed = nodes if isinstance(nodes, list) else []
        hosts = [node.get("network_address") for node in listed if isinstance(node, dict)]
    return hosts_text(hosts)


def gpus_of(wanted: str) -> int | None:
    """Return the GPUs of a request such as `-l "{...}/host=2/gpu=1/core=4,walltime=1:0:0"`; None without."""
    total = 0
    for alternative in wanted.split('-l "')[1:2]:  # several are moldable: the first is as good as the others
        for part in alternative.split("+"):
            product: int | None = 1
            for level, number in _LEVEL.findall(re.sub(r"\{[^}]*\}", "", part)):
                product = product * int(number) if product is not None and number.isdigit() else None
                if level in _GPU_LEVELS:
                    if product is None:
                        return None
                    total += product
                    break
    return whole_below(total) or None


class OAR(BatchSystem):
    """OAR's queues and jobs, from its own commands."""

    name: ClassVar[str] = SYSTEM

    def __init__(self) -> None:
        self._jobs = Cached(lambda: self._ask(JOBS))

    def queues(self) -> Sequence[Queue]:
        """Return every queue with a job; if `oarnotify` is permitted (as root), all queues."""
        names = dict.fromkeys(self._queue_names())
        names.update(dict.fromkeys(job.queue or "" for job in self.jobs() if job.state != "unknown"))
        return [self._queue(queue) for queue in names]

    def jobs(self) -> Sequence[BatchJob]:
        """Return every waiting, running or held job; each job of an array is one."""
        return [listed.job for listed in self._jobs() if listed.job.state not in ("finished", "removed")]

    def ended(self, within_s: int) -> Sequence[BatchJob]:
        """Return jobs that ended by themselves (Terminated); deleted and timed-out jobs are in Error."""
        condition = f"state = 'Terminated' AND stop_time >= {int(time.time()) - within_s}"
        return [listed.job for listed in self._ask([*WHOLE_JOBS, condition])]

    def _ask(self, command: list[str]) -> list[ListedJob]:
        shown, now = " ".join(command), time.time()
        return self.parse(read_jobs(ask(command, "OAR"), shown), lambda job: listed_job(job, now), shown)

    def _queue_names(self) -> list[str]:
        """Return the names of all queues; below each, oarnotify prints its properties, indented."""
        try:
            lines = [line.rstrip() for line in ask(QUEUES, "OAR", QUEUES_DEADLINE_S).split("\n")]
            return [line for line in lines if name(line) and not line[0].isspace()]
        except AskError as err:
            log.debug("queues without a job are not known system=oar error=%s", err)
            return []

    def _queue(self, queue: str) -> Queue:
        listed = [listed for listed in self._jobs() if listed.job.queue == queue]
        states = [job.state for job, _ in listed]
        cores = sum(resources for job, resources in listed if job.state == "running")
        return Queue(queue, states.count("idle"), states.count("running"), states.count("held"), cores)


class _OarSource(RecordSource):
    """What both sources share."""

    name: ClassVar[str] = SYSTEM

    def read(self, jobs: Collection[object], command: str, numbers: Collection[int] | None) -> list[JobRecord]:
        """Return the records of jobs that ran, of these numbers if given; dependencies of those that wait are kept."""
        heads = set()  # of arrays that have other jobs than the first
        dependencies = {}
        for job in jobs:
            if isinstance(job, dict):
                number, array = count(job.get("Job_Id", job.get("id"))), count(job.get("array_id"))
                dependency = _dependency(job.get("dependencies"))
                if array is not None and array != number:
                    heads.add(array)
                if number is not None and dependency is not None:
                    dependencies[number] = dependency
        self.remember(dependencies)
        return self.accept(self.parse(jobs, lambda job: job_record(job, heads), command), numbers)


class OarRecords(_OarSource):
    """Records from oarstat, of PATH."""

    def running(self) -> Sequence[JobRecord]:
        """Return the jobs that run now."""
        return self._ask(f"state IN {RUN} OR ({WAIT_FOR_OTHERS})")

    def ended(self, since: float, until: float) -> Sequence[JobRecord]:
        """Return the jobs that ended in this interval, and did run."""
        return self._ask(f"state IN {OVER} AND stop_time >= {int(since)} AND stop_time <= {int(until)}")

    def named(self, jobs: Collection[int]) -> Sequence[JobRecord]:
        """Return the records of these jobs."""
        return self._ask(f"job_id IN ({','.join(map(str, jobs))})", jobs) if jobs else []

    def _ask(self, condition: str, numbers: Collection[int] | None = None) -> list[JobRecord]:
        shown = " ".join(WHOLE_JOBS)
        return self.read(read_jobs(ask([*WHOLE_JOBS, condition], "OAR"), shown), shown, numbers)


class OarRestRecords(_OarSource):
    """Records from OAR's REST interface; ConfigError where its URL is none such as http://127.0.0.1:6668/oarapi.

    User and password may stand before the host.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        parts = parse_url(url)
        if parts is None or parts.query or parts.fragment:
            raise ConfigError("oar=: not a URL; such as oar=http://oar-server/oarapi")
        self._url = url.rstrip("/")
        # for messages
        self.url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        self._client = HttpClient({"Accept": "application/json"}, max_bytes=MAX_ANSWER)

    def running(self) -> Sequence[JobRecord]:
        """Return the jobs that run now."""
        self._ask("state=Waiting,Hold", pages=1)  # for their dependencies
        return self._ask(f"state={','.join(RUN)}")

    def ended(self, since: float, until: float) -> Sequence[JobRecord]:
        """Return the jobs that ended in this interval, and did run."""
        # from: stopped then or later; to: started before
        found = self._ask(f"state={','.join(OVER)}&from={int(since)}&to={int(until) + 1}")
        return [one for one in found if one.ended is not None and since <= one.ended <= until]

    def named(self, jobs: Collection[int]) -> Sequence[JobRecord]:
        """Return the records of these jobs."""
        found: list[JobRecord] = []
        wanted = sorted(jobs)
        for numbers in [wanted[at : at + 100] for at in range(0, len(wanted), 100)]:
            found += self._ask(f"ids={':'.join(map(str, numbers))}", numbers=numbers)
        return found

    def _ask(self, query: str, pages: int = MAX_PAGES, numbers: Collection[int] | None = None) -> list[JobRecord]:
        jobs: list[object] = []
        end = time.monotonic() + DEADLINE_S
        for page in range(pages):
            items = self._page(f"{self._url}/jobs/details.json?{query}&limit={PAGE}&offset={page * PAGE}", end)
            jobs += items
            if len(items) < PAGE:
                break
        else:
            if pages == MAX_PAGES:
                self.skipped += 1
                log.warning("OAR has more jobs than one query reads, the others are skipped: jobs=%d", len(jobs))
        return self.read(jobs, self.url, numbers)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _page(self, url: str, end: float) -> list[object]:
        question = "does OAR's REST interface run there, and may this machine ask?"
        try:
            response = self._client.request(
                "GET", url, timeout_s=TIMEOUT_S, deadline_s=max(0.1, end - time.monotonic())
            )
            answer = response.body().decode("utf-8", "replace")
        except HttpFailure as err:
            raise AskError(f"{self.url}: {err}; {question}", "late" if err.is_late else "") from err
        if response.status != 200:
            raise BatchError(f"{self.url}: status {response.status}; {question}")
        values = json_values(answer, self.url)
        items = values[0].get("items") if len(values) == 1 and isinstance(values[0], dict) else None
        if not isinstance(items, list):
            raise unknown_form(self.url, answer)
        return items
