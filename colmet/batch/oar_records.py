"""Records of OAR's jobs: from `oarstat -J -f`, or from OAR's REST interface where its commands are not.

OAR allocates resources, nearly always a core each: they are counted as cores. It requests no memory. A dependency is
known while the job waits for it only: OAR forgets it when the other job ends.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from colmet.batch.answers import (
    DEADLINE_S,
    MAX_ANSWER,
    AskError,
    FormError,
    ask,
    json_values,
    must,
    name,
    parse_each,
    unknown_form,
)
from colmet.batch.model import BatchError
from colmet.batch.records import (
    CANCELLED,
    DONE,
    FAILED,
    NODE_FAILED,
    RUNNING,
    TIMEOUT,
    JobRecord,
    RecordSource,
    count,
    exit_of,
    hosts_text,
    long_text,
    moment_or_none,
    text,
    whole_below,
)
from colmet.common.errors import ConfigError
from colmet.common.http_client import HttpClient, HttpFailure, parse_url

log = logging.getLogger(__name__)

SYSTEM = "oar"
COMMAND = ["oarstat", "-J", "-f", "--sql"]  # of all users; with a condition on OAR's table of jobs
RUN = ("Running", "Suspended", "Resuming", "Finishing")
OVER = ("Terminated", "Error")
# A job that is launched has the planned start, and gets another one some seconds later, when it runs.
WAITING = ("Waiting", "Hold", "toAckReservation", "toLaunch", "Launching")
WAIT_FOR_OTHERS = "state IN ('Waiting','Hold') AND job_id IN (SELECT job_id FROM job_dependencies)"

PAGE = 500  # jobs of one answer of the REST interface
MAX_PAGES = 200
TIMEOUT_S = 20.0  # of one step of a request

# The first of these events that a failed job has names its cause. WALLTIME brings a FRAG_JOB_REQUEST by OAR itself;
# else that is a person's.
CAUSES: Mapping[str, str] = {
    "WALLTIME": TIMEOUT,
    "BESTEFFORT_KILL": CANCELLED,
    **dict.fromkeys(
        (
            *("PING_CHECKER_NODE_SUSPECTED_END_JOB", "PING_CHECKER_NODE_SUSPECTED", "CPUSET_ERROR"),
            *("CANNOT_CREATE_TMP_DIRECTORY", "CANNOT_WRITE_NODE_FILE", "CANNOT_WRITE_PID_FILE", "RESERVATION_NO_NODE"),
            *("LAUNCHING_OAREXEC_TIMEOUT", "SSH_TRANSFER_TIMEOUT", "EXIT_VALUE_OAREXEC"),
        ),
        NODE_FAILED,
    ),
    **dict.fromkeys(
        (
            *("PROLOGUE_ERROR", "EPILOGUE_ERROR", "SERVER_PROLOGUE_ERROR", "SERVER_PROLOGUE_TIMEOUT"),
            *("SERVER_PROLOGUE_EXIT_CODE_ERROR", "WORKING_DIRECTORY", "OUTPUT_FILES", "USER_SHELL"),
        ),
        FAILED,
    ),
    "FRAG_JOB_REQUEST": CANCELLED,
    "EXTERMINATE_JOB": NODE_FAILED,
}
# Names of the REST interface, and of OAR 3, whose oarstat prints those of its database, without resources.
_OTHER_NAMES = {
    **{"id": "Job_Id", "start_time": "startTime", "stop_time": "stopTime", "submission_time": "submissionTime"},
    **{"user": "owner", "queue_name": "queue"},
}
_LEVEL = re.compile(r"([A-Za-z_]+)=([0-9]{1,6}|ALL|BEST|BESTHALF)")
_GPU_LEVELS = ("gpu", "gpudevice", "gpu_id")


def job_record(content: object, heads: Collection[int] = ()) -> JobRecord | None:
    """Return the record of a job of oarstat, or of the REST interface; None if it did not run.

    Args:
        content: of JSON.
        heads: numbers of jobs that are the first of an array, as far as others show it.

    Raises:
        FormError: a field is missing; the text names it.
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
    state, reason = _end(said, status, job.get("events")) if is_over else (RUNNING, None)
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
        return DONE, said
    if cause is not None:
        return CAUSES[cause], cause
    return (DONE if said == "Terminated" and status is None else FAILED), said


def _array(job: Mapping[str, object], number: int, heads: Collection[int]) -> tuple[str | None, int | None]:
    """Return the array of a job and its place there. A job without one has its own number as that of an array."""
    array, request = count(job.get("array_id")), job.get("initial_request")
    is_asked = isinstance(request, str) and " --array" in request
    if array is None or (array == number and number not in heads and not is_asked):
        return None, None
    index = count(job.get("array_index"))
    return str(array), 1 if index is None and array == number else index


def array_heads(jobs: Collection[object]) -> set[int]:
    """Return the numbers of arrays that have other jobs than the first."""
    found = set()
    for one in jobs:
        if isinstance(one, dict):
            array, number = count(one.get("array_id")), count(one.get("Job_Id", one.get("id")))
            if array is not None and array != number:
                found.add(array)
    return found


def dependencies_of(jobs: Collection[object]) -> dict[int, str]:
    """Return the dependencies of jobs, by number; those without have none."""
    found: dict[int, str] = {}
    for one in jobs:
        if isinstance(one, dict):
            number, dependency = count(one.get("Job_Id", one.get("id"))), _dependency(one.get("dependencies"))
            if number is not None and dependency is not None:
                found[number] = dependency
    return found


def _dependency(jobs: object) -> str | None:
    if not isinstance(jobs, list):
        return None
    return long_text(",".join([str(number) for number in map(count, jobs) if number is not None]))


def _hosts(job: Mapping[str, object]) -> str | None:
    hosts = job.get("assigned_network_address")
    if isinstance(hosts, list):
        return hosts_text(hosts)
    nodes = job.get("nodes")
    return hosts_text(
        [one.get("network_address") for one in nodes if isinstance(one, dict)] if isinstance(nodes, list) else []
    )


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


class _OarSource(RecordSource):
    """What both sources share."""

    name: ClassVar[str] = SYSTEM

    def read(self, jobs: Collection[object], command: str, numbers: Collection[int] | None) -> list[JobRecord]:
        """Return the records of jobs that ran, of these numbers if given; dependencies of those that wait are kept."""
        self.remember(dependencies_of(jobs))
        heads = array_heads(jobs)
        records, skipped = parse_each(jobs, lambda one: job_record(one, heads), SYSTEM, command)
        return [self.with_dependency(one) for one in self.accept(records, skipped, numbers)]


class OarRecords(_OarSource):
    """Records from oarstat, of PATH."""

    def running(self) -> Sequence[JobRecord]:
        """Return the jobs that run now."""
        return self._ask(f"state IN ({_quoted(RUN)}) OR ({WAIT_FOR_OTHERS})")

    def ended(self, since: float, until: float) -> Sequence[JobRecord]:
        """Return the jobs that ended in this interval, and did run."""
        return self._ask(f"state IN ({_quoted(OVER)}) AND stop_time >= {int(since)} AND stop_time <= {int(until)}")

    def named(self, jobs: Collection[int]) -> Sequence[JobRecord]:
        """Return the records of these jobs."""
        return self._ask(f"job_id IN ({','.join(map(str, jobs))})", jobs) if jobs else []

    def _ask(self, condition: str, numbers: Collection[int] | None = None) -> list[JobRecord]:
        command = [*COMMAND, condition]
        answer, shown = ask(command, "OAR"), " ".join(COMMAND)
        values = json_values(answer, shown)
        if not values:  # how oarstat prints that there is no job
            return []
        if len(values) > 1 or not isinstance(values[0], dict):
            raise unknown_form(shown, answer)
        return self.read(list(values[0].values()), shown, numbers)


class OarRestRecords(_OarSource):
    """Records from OAR's REST interface.

    Args:
        url: such as http://127.0.0.1:6668/oarapi; user and password may stand before the host.

    Attributes:
        url: without user and password, for messages.

    Raises:
        ConfigError: no HTTP URL.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        parts = parse_url(url)
        if parts is None or parts.query or parts.fragment:
            raise ConfigError("oar=: not a URL; such as oar=http://oar-server/oarapi")
        self._url = url.rstrip("/")
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
        for numbers in _parts(sorted(jobs), 100):
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
        try:
            response = self._client.request(
                "GET", url, timeout_s=TIMEOUT_S, deadline_s=max(0.1, end - time.monotonic())
            )
            answer = response.body().decode("utf-8", "replace")
        except HttpFailure as err:
            late = "late" if err.is_late else ""
            raise AskError(
                f"{self.url}: {err}; does OAR's REST interface run there, and may this machine ask?", late
            ) from err
        if response.status != 200:
            raise BatchError(
                f"{self.url}: status {response.status}; does OAR's REST interface run there, and may this machine ask?"
            )
        values = json_values(answer, self.url)
        items = values[0].get("items") if len(values) == 1 and isinstance(values[0], dict) else None
        if not isinstance(items, list):
            raise unknown_form(self.url, answer)
        return items


def _quoted(states: Sequence[str]) -> str:
    return ",".join([f"'{state}'" for state in states])


def _parts(numbers: Sequence[int], size: int) -> list[Sequence[int]]:
    return [numbers[at : at + size] for at in range(0, len(numbers), size)]
