"""The shapes of the answers, for the OpenAPI description only: answers are not validated by these models."""

from typing import Any, Optional  # evaluated at run time, on Python 3.9, too

from pydantic import BaseModel, Field, create_model

from colmet.common.live.summary import JOB_MEASURES, NODE_MEASURES
from colmet.common.measures import Measure as DeclaredMeasure


def _description(measure: DeclaredMeasure) -> str:
    is_rate = measure.kind == "counter" and measure.is_rate
    return f"{measure.help} Growth per second." if is_rate else measure.help


# Descriptions of the values in rows of jobs and nodes; measures have their own.
_JOB_VALUES = {
    "cpu_share": "CPU cores used, as a share of those held",
    "memory_share": "memory used, as a share of the limit, on the node where it is nearest to it",
    "wait": "tasks that wait, for any reason",
    "io": "bytes read and written per second",
    **{key: _description(measure) for key, measure in JOB_MEASURES.items()},
}
_NODE_VALUES = {
    "jobs": "jobs on it",
    "cpus": _description(NODE_MEASURES["cpus"]),
    "cpu": "use of its CPUs, as a share",
    "iowait": "share of the time in which a CPU waits for a block device",
    "steal": "share of the time that another virtual machine had",
    "load": _description(NODE_MEASURES["load"]),
    "memory": "bytes used",
    "memory_total": _description(NODE_MEASURES["memtotal"]),
    "memory_share": "memory used, as a share",
    "swap": "bytes of swap used",
    "io": "bytes read and written per second",
    "read": _description(NODE_MEASURES["read"]),
    "write": _description(NODE_MEASURES["write"]),
    "seen_age": "seconds since the last message of it",
    "lag": "age of its latest message when it came, in seconds",
}


class Error(BaseModel):
    """An error."""

    error: str = Field(..., description="what is wrong and what to do")


class Whoami(BaseModel):
    """The user of the request."""

    user: Optional[str] = Field(..., description="null where the interface is open to all")
    admin: bool = Field(..., description="whether all jobs are shown")
    version: str
    time: float
    gridengine: bool = Field(..., description="whether /qhost and /qstat have Grid Engine's figures")


class NodeCounts(BaseModel):
    """Totals of all nodes; ordinary users see heard and silent alone."""

    heard: Optional[int] = Field(..., description="nodes that send")
    silent: Optional[int] = Field(..., description="nodes that have ceased to send")
    cpu: Optional[float] = Field(..., description="use of the CPUs, as a share")
    memory: Optional[float]
    memory_total: Optional[float]
    load: Optional[float]


class JobCounts(BaseModel):
    """Totals of the jobs that may be seen."""

    running: Optional[int]
    users: Optional[int]
    cpu: Optional[float] = Field(..., description="CPU cores used")
    cpus: Optional[float] = Field(..., description="CPU cores held")
    cpu_share: Optional[float]
    memory: Optional[float]
    read: Optional[float]
    write: Optional[float]
    tasks: Optional[float]
    gpus: Optional[float]


class MessageCounts(BaseModel):
    """Messages of nodes that this process received."""

    taken: Optional[int]
    left_out: Optional[int]


class Cluster(BaseModel):
    """Totals."""

    time: float
    nodes: NodeCounts
    jobs: JobCounts
    messages: MessageCounts
    kept_s: Optional[float] = Field(..., description="seconds that memory reaches back")
    warnings: list[str]


class MeasureSource(BaseModel):
    """A column that has a measure."""

    table: str
    column: str
    origin: str = Field(..., description="cgroup, tasks or processes, where the sources count different things")


class DescribedMeasure(BaseModel):
    """A quantity that people read; the first of its columns that has values counts."""

    label: str
    help: str
    scope: str = Field(..., description="job or node")
    kind: str = Field(..., description="counter or gauge")
    unit: str = Field(..., description="as stored in the first column")
    rate: bool = Field(..., description="whether charts show the growth per second")
    hosts: str = Field(..., description="how hosts are folded: sum, mean, max; all: a sum, missing where one is")
    time: str = Field(..., description="how samples are folded: total, mean, max, last")
    sources: list[MeasureSource]


class MeasureTerm(BaseModel):
    """A part of a sum."""

    measure: str
    sign: int


class UnitFormat(BaseModel):
    """How to show the numbers of a unit."""

    factor: float = Field(..., description="to bytes, seconds, watts, shares of one")
    family: str = Field(..., description="such as size, flow, duration, share")


class Measures(BaseModel):
    """The measures, by key; sums of some; the units of columns and of their growth."""

    measures: dict[str, DescribedMeasure]
    sums: dict[str, list[MeasureTerm]]
    units: dict[str, UnitFormat]


class _JobRow(BaseModel):
    job: int
    user: Optional[str] = Field(..., description="empty where no node names the user")
    nodes: Optional[int] = Field(..., description="on how many nodes it is")


# key -> description; values are of colmet.common.measures.ORIGINS
_JOB_ORIGINS = {
    "memory_source": "where memory is from: cgroup, or processes where no cgroup counts it",
    "tasks_source": "where tasks is from, likewise",
}


def _values(texts: dict[str, str]) -> dict[str, Any]:
    return {key: (Optional[float], Field(..., description=text)) for key, text in texts.items()}


def _texts(texts: dict[str, str]) -> dict[str, Any]:
    return {key: (Optional[str], Field(..., description=text)) for key, text in texts.items()}


_JobValues: Any = create_model("_JobValues", __base__=_JobRow, **_values(_JOB_VALUES), **_texts(_JOB_ORIGINS))
_NodeValues: Any = create_model("_NodeValues", node=(str, Field(..., description="its name")), **_values(_NODE_VALUES))


class JobRow(_JobValues):  # type: ignore[misc]  # made above, out of a table
    """A job: what it uses now on all its nodes, or used last."""

    on: Optional[str] = Field(..., description="the first of its nodes")
    time: Optional[float] = Field(..., description="of its latest row")
    first: Optional[float] = Field(..., description="when this process saw it first")
    last: Optional[float] = Field(..., description="when this process saw it last")
    running: bool


class JobNodeRow(_JobValues):  # type: ignore[misc]  # made above, out of a table
    """What a job uses on one node."""

    node: str


class NodeRow(_NodeValues):  # type: ignore[misc]  # made above, out of a table
    """A node: what it uses now."""

    silent: bool = Field(..., description="whether it has ceased to send")


class Jobs(BaseModel):
    """Some of the jobs of a query."""

    total: int
    offset: int
    limit: int
    items: list[JobRow]


class Nodes(BaseModel):
    """Some of the nodes of a query."""

    total: int
    offset: int
    limit: int
    items: list[NodeRow]


class Column(BaseModel):
    """A column of a table; `metric` of /series is TABLE.COLUMN."""

    name: str
    unit: Optional[str]
    kind: Optional[str] = Field(..., description="such as counter or gauge")
    help: Optional[str]


class Job(BaseModel):
    """A job with its nodes and its tables."""

    job: JobRow
    nodes: list[JobNodeRow]
    tables: dict[str, list[Column]]
    stored: bool
    warnings: list[str]


class Node(BaseModel):
    """A node with its tables and its jobs that may be seen."""

    node: NodeRow
    jobs: list[JobNodeRow]
    tables: dict[str, list[Column]]
    warnings: list[str]


class OneSeries(BaseModel):
    """The values of one node, or of one of its devices."""

    node: str
    labels: dict[str, str]
    times: list[float]
    values: list[Optional[float]]


class Series(BaseModel):
    """Values over time."""

    job: int = Field(..., description="0 where they are a node's own")
    metric: str
    unit: Optional[str]
    kind: Optional[str]
    rate: bool
    since: Optional[float]
    until: Optional[float]
    step: Optional[float] = Field(..., description="width of the intervals in seconds; 0 where every sample is given")
    source: str = Field(..., description="memory, stored, both or none")
    warnings: list[str]
    series: list[OneSeries]


class Gap(BaseModel):
    """Missing samples."""

    since: Optional[float]
    until: Optional[float]
    why: str
    samples: Optional[float]


class HostCompleteness(BaseModel):
    """The share of a job's samples of one node that is stored."""

    node: str
    share: Optional[float]
    expected: Optional[float]
    present: Optional[float]
    gaps: list[Gap]


class Completeness(BaseModel):
    """The share of a job's samples that is stored."""

    job: int
    share: Optional[float]
    expected: Optional[float]
    present: Optional[float]
    hosts: list[HostCompleteness]
    warnings: list[str]


class QmemJobOnHost(BaseModel):
    """A job on a host."""

    jobcount: int
    master: bool
    taskid: list[str]
    owner: str
    jobname: str


class QmemHost(BaseModel):
    """A host."""

    num_proc: str
    mem_total: str
    jobs: dict[str, QmemJobOnHost]


class QmemRequestedJob(BaseModel):
    """What a job requested, and its maximum use on each host."""

    requested_h_vmem_strval: str
    requested_h_vmem_dblval: float
    hostname: dict[str, dict[str, str]]


class QmemOwner(BaseModel):
    """A user with jobs."""

    uid: str
    jobs: dict[str, QmemRequestedJob]


class Qhost(BaseModel):
    """Hosts with their jobs, in QmemTools' envelope."""

    success: bool
    message: str
    data: dict[str, QmemHost]


class Qstat(BaseModel):
    """Owners with their jobs, in QmemTools' envelope."""

    success: bool
    message: str
    data: dict[str, QmemOwner]


class Status(BaseModel):
    """Counters of this process."""

    version: str
    time: float
    since: float = Field(..., description="start of the counters")
    counts: dict[str, int]
    connections: int
    users: Optional[int] = Field(..., description="names in the file of users; null where the interface is open")
    waiting: dict[str, int] = Field(..., description="requests that run or wait: from memory, from stores")


MODELS = (
    *(
        Error,
        Whoami,
        MeasureSource,
        DescribedMeasure,
        MeasureTerm,
        UnitFormat,
        Measures,
        NodeCounts,
        JobCounts,
        MessageCounts,
        Cluster,
        JobRow,
        JobNodeRow,
        NodeRow,
        Jobs,
        Nodes,
        Column,
    ),
    *(Job, Node, OneSeries, Series, Gap, HostCompleteness, Completeness, QmemJobOnHost, QmemHost, QmemRequestedJob),
    *(QmemOwner, Qhost, Qstat, Status),
)
