"""The shapes of the answers, for the OpenAPI description only: answers are not validated by these models."""

import dataclasses
from typing import Any, Optional, Union, get_args, get_origin, get_type_hints  # evaluated at run time, on 3.9, too

from pydantic import BaseModel, Field, create_model

from colmet.common import measures
from colmet.common.lines import JobCompleteness, JobGap
from colmet.common.live.summary import JOB_MEASURES, NODE_MEASURES
from colmet.common.measures import Measure as DeclaredMeasure
from colmet.jobs import figures as report_model


def _description(measure: DeclaredMeasure) -> str:
    is_rate = measure.kind == "counter" and measure.is_rate
    return f"{measure.help} Growth per second." if is_rate else measure.help


# Descriptions of the values in rows of jobs and nodes; measures have their own.
_JOB_VALUES = {
    "cpu_share": "CPU cores used, as a share of those allocated",
    "memory_share": "memory used, as a share of the limit; the largest of its nodes",
    "wait": "waiting tasks, for any reason",
    "io": "bytes read and written per second",
    **{key: _description(measure) for key, measure in JOB_MEASURES.items()},
}
_NODE_VALUES = {
    "jobs": "jobs on it",
    "cpus": _description(NODE_MEASURES["cpus"]),
    "cpu": "use of its CPUs, as a share",
    "iowait": "share of the time of waits for a block device",
    "steal": "share of the time used by other virtual machines",
    "load": _description(NODE_MEASURES["load"]),
    "memory": "bytes used",
    "memory_total": _description(NODE_MEASURES["memtotal"]),
    "memory_share": "memory used, as a share",
    "swap": "bytes of swap used",
    "io": "bytes read and written per second",
    "read": _description(NODE_MEASURES["read"]),
    "write": _description(NODE_MEASURES["write"]),
    "seen_age": "seconds since its last message",
    "lag": "age of its latest message on arrival, in seconds",
    "network": "bytes received and sent per second over InfiniBand, Omni-Path and RoCE",
    "power": _description(measures.NODE_POWER),
    "temperature": "of the hottest sensor, in degrees Celsius",
}


class Error(BaseModel):
    """An error."""

    error: str = Field(..., description="what is wrong, and what to do")


class Whoami(BaseModel):
    """The user of the request."""

    user: Optional[str] = Field(..., description="null if the interface is open to all")
    admin: bool = Field(..., description="whether all jobs are visible")
    projects: list[str] = Field(
        ..., description="those that the user leads, with visible jobs of others in the archive"
    )
    version: str
    time: float
    gridengine: bool = Field(..., description="whether /qhost and /qstat have Grid Engine's values")
    zone: Optional[str] = Field(..., description="time zone of the interface's machine, such as Europe/Paris")
    sign_out: Optional[str] = Field(..., description="address at which a browser ends its login; null if there is none")
    archive: bool = Field(..., description="whether there is an archive of jobs")


class IssuedToken(BaseModel):
    """A token for the header `Authorization: Bearer TOKEN`, in place of a name and a password."""

    token: str
    until: int = Field(..., description="its end, in seconds since 1970; a changed password ends it earlier")


class NodeCounts(BaseModel):
    """Totals of all nodes. Ordinary users get only `heard` and `silent`."""

    heard: Optional[int] = Field(..., description="number of nodes that send")
    silent: Optional[int] = Field(..., description="number of nodes that do not send any more")
    cpu: Optional[float] = Field(..., description="use of the CPUs, as a share")
    memory: Optional[float]
    memory_total: Optional[float]
    load: Optional[float]


class JobCounts(BaseModel):
    """Totals of the visible jobs."""

    running: Optional[int]
    users: Optional[int]
    cpu: Optional[float] = Field(..., description="CPU cores used")
    cpus: Optional[float] = Field(..., description="CPU cores allocated")
    cpu_share: Optional[float]
    memory: Optional[float]
    read: Optional[float]
    write: Optional[float]
    tasks: Optional[float]
    gpus: Optional[float]


class MessageCounts(BaseModel):
    """Messages of nodes: received, and dropped before this process."""

    taken: Optional[int]
    left_out: Optional[int]


class Cluster(BaseModel):
    """Totals."""

    time: float
    nodes: NodeCounts
    jobs: JobCounts
    messages: MessageCounts
    kept_s: Optional[float] = Field(..., description="age of the oldest samples in memory, in seconds")
    warnings: list[str]


class MeasureSource(BaseModel):
    """A column with values of a measure."""

    table: str
    column: str
    origin: str = Field(..., description="cgroup, tasks or processes if the sources differ in what they count")


class DescribedMeasure(BaseModel):
    """A quantity such as memory used, from the first of its columns with values."""

    label: str
    help: str
    scope: str = Field(..., description="job or node")
    kind: str = Field(..., description="counter or gauge")
    unit: str = Field(..., description="as stored in the first column")
    rate: bool = Field(..., description="whether charts show the growth per second")
    hosts: str = Field(..., description="fold over hosts: sum, mean, max, or all (a sum, missing if a host lacks it)")
    time: str = Field(..., description="fold over samples: total, mean, max, last")
    sources: list[MeasureSource]


class MeasureTerm(BaseModel):
    """A part of a sum."""

    measure: str
    sign: int


class UnitFormat(BaseModel):
    """The display of a unit."""

    factor: float = Field(..., description="factor to bytes, seconds, watts, shares of 1")
    family: str = Field(..., description="such as size, flow, duration, share")


class Measures(BaseModel):
    """Measures by key, sums of measures, and the units of columns and of their growth."""

    measures: dict[str, DescribedMeasure]
    sums: dict[str, list[MeasureTerm]]
    units: dict[str, UnitFormat]
    absent: dict[str, str] = Field(..., description="what a table requires, by its name")


class _JobRow(BaseModel):
    job: int
    user: Optional[str] = Field(..., description="empty if no node reports the user")
    nodes: Optional[int] = Field(..., description="number of its nodes")


# key -> description; values are of colmet.common.measures.ORIGINS
_JOB_ORIGINS = {
    "memory_source": "source of memory: cgroup, or processes without a cgroup that counts it",
    "tasks_source": "source of tasks, likewise",
}


def _columns(texts: dict[str, str], kind: Any = float) -> dict[str, Any]:
    return {key: (Optional[kind], Field(..., description=text)) for key, text in texts.items()}


_JobValues: Any = create_model("_JobValues", __base__=_JobRow, **_columns(_JOB_VALUES), **_columns(_JOB_ORIGINS, str))
_NodeValues: Any = create_model("_NodeValues", node=(str, Field(..., description="its name")), **_columns(_NODE_VALUES))


class JobRow(_JobValues):  # type: ignore[misc]  # made above, out of a table
    """A job with its current or last use on all its nodes."""

    on: Optional[str] = Field(..., description="the first of its nodes")
    time: Optional[float] = Field(..., description="time of its latest row")
    first: Optional[float] = Field(..., description="time of its first sample in this process")
    last: Optional[float] = Field(..., description="time of its last sample in this process")
    running: bool


class JobNodeRow(_JobValues):  # type: ignore[misc]  # made above, out of a table
    """The use of a job on one node."""

    node: str


class NodeRow(_NodeValues):  # type: ignore[misc]  # made above, out of a table
    """A node with its current use."""

    silent: bool = Field(..., description="whether it does not send any more")


class _Page(BaseModel):
    total: int
    offset: int
    limit: int


class Jobs(_Page):
    """A page of the jobs of a query."""

    items: list[JobRow]


class Nodes(_Page):
    """A page of the nodes of a query."""

    items: list[NodeRow]


class Column(BaseModel):
    """A column of a table; `metric` of /series is TABLE.COLUMN."""

    name: str
    unit: Optional[str]
    kind: Optional[str] = Field(..., description="such as counter or gauge")
    help: Optional[str]


_ABSENT = "why a table is missing, by its name, where the job's running nodes, or the node, report it"


class Job(BaseModel):
    """A job with its nodes and its tables."""

    job: JobRow
    nodes: list[JobNodeRow]
    hosts: list[str] = Field(..., description="names of all its hosts, in memory and in the store")
    tables: dict[str, list[Column]]
    absent: dict[str, str] = Field(..., description=_ABSENT)
    stored: bool
    warnings: list[str]


class Node(BaseModel):
    """A node with its tables and its visible jobs."""

    node: NodeRow
    jobs: list[JobNodeRow]
    tables: dict[str, list[Column]]
    absent: dict[str, str] = Field(..., description=_ABSENT)


class OneSeries(BaseModel):
    """The values of one node, or of one of its devices."""

    node: str
    labels: dict[str, str]
    times: list[float]
    values: list[Optional[float]]


class SeriesTogether(BaseModel):
    """The values of all nodes and devices as one: null for a missing value."""

    series: int = Field(..., description="number of series that are folded")
    times: list[float]
    sum: list[Optional[float]] = Field(..., description="null if one of them is missing")
    mean: list[Optional[float]] = Field(..., description="of the known values")
    min: list[Optional[float]]
    max: list[Optional[float]]


class Series(BaseModel):
    """Values over time."""

    job: int = Field(..., description="0 for the node's own values")
    metric: str
    unit: Optional[str]
    kind: Optional[str]
    rate: bool
    since: Optional[float]
    until: Optional[float]
    step: Optional[float] = Field(..., description="width of the intervals in seconds; 0 for one value for each sample")
    source: str = Field(..., description="memory, stored, both or none")
    warnings: list[str]
    series: list[OneSeries] = Field(..., description="empty with `together`")
    together: Optional[SeriesTogether] = Field(..., description="null without the parameter `together`")


class StoredTables(BaseModel):
    """The tables of a job in the store, with their columns."""

    job: int
    tables: dict[str, list[str]]
    warnings: list[str]


class StoredRows(BaseModel):
    """Stored rows of one node."""

    node: str
    times: list[int]
    columns: dict[str, list[Any]] = Field(..., description="a value for each time; null for a missing one")


class Rows(BaseModel):
    """A page of the stored rows of a job in a table, by node and time."""

    job: int
    table: str
    total: int = Field(..., description="number of rows; may include those up to a minute before and after")
    first: Optional[int]
    last: Optional[int]
    kinds: dict[str, str] = Field(..., description="type of each column: i (integer), f (float), S (text)")
    rows: list[StoredRows]
    next: Optional[str] = Field(..., description="parameter `after` of the next page; null at the end")
    warnings: list[str]


class Gap(BaseModel):
    """Missing samples."""

    since: Optional[float]
    until: Optional[float]
    why: str
    samples: Optional[float]


class HostCompleteness(BaseModel):
    """The stored share of a job's samples of one node."""

    node: str
    share: Optional[float]
    expected: Optional[float]
    present: Optional[float]
    gaps: list[Gap]


class Completeness(BaseModel):
    """The stored share of a job's samples."""

    job: int
    share: Optional[float]
    expected: Optional[float]
    present: Optional[float]
    hosts: list[HostCompleteness]
    warnings: list[str]


def _shape(kind: Any) -> Any:
    """Return the shape of a type of the report: that of a dataclass has its fields."""
    if get_origin(kind) is tuple:
        return list[_shape(get_args(kind)[0])]  # type: ignore[misc]
    if get_origin(kind) is Union:
        return Optional[_shape(get_args(kind)[0])]
    return _REPORT.get(kind, kind)


def _add_shape(kind: Any, **derived: Any) -> None:
    """Add a dataclass of the report to the shapes, and to this module; `derived` are values that it computes."""
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind) if field.name != "curves"]
    values = {**{name: _shape(hints[name]) for name in names}, **derived}
    shape = kind.__name__ if kind is report_model.Report else f"Report{kind.__name__}"
    about = (kind.__doc__ or "").partition("\n")[0]
    fields: dict[str, Any] = {key: (value, ...) for key, value in values.items()}
    made: Any = create_model(shape, __module__=__name__, **fields)
    made.__doc__ = about
    _REPORT[kind] = globals()[shape] = made


# The shapes of a report and of its parts, by dataclass; docs/tools/report.md has the values.
_REPORT: dict[Any, Any] = {}
_NUMBER = report_model.Number
for _kind, _derived in (
    (report_model.Cpu, {"used_ratio": _NUMBER}),
    (report_model.TimeShares, {}),
    (report_model.MemoryUse, {}),
    (report_model.InputOutput, {}),
    (report_model.Shared, {}),
    (report_model.GpuUse, {}),
    (report_model.Energy, {}),
    (JobGap, {}),
    (JobCompleteness, {"here_ratio": _NUMBER}),
    (report_model.Advice, {}),
    (report_model.BatchFacts, {}),
    (report_model.Use, {}),
    (report_model.Judgement, {}),
    (report_model.Ending, {}),
    (report_model.HostFigures, {"cores": _NUMBER, "cpu_used_ratio": _NUMBER}),
):
    _add_shape(_kind, **_derived)
_add_shape(report_model.Whereabouts, shares=_REPORT[report_model.TimeShares])
_add_shape(
    report_model.Report,
    cores=_NUMBER,
    ending=Optional[_REPORT[report_model.Ending]],
    uses=_shape(tuple[report_model.Use, ...]),
    verdict=_shape(tuple[report_model.Judgement, ...]),
)
Report = _REPORT[report_model.Report]


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
    """The request of a job, and its maximum use on each host."""

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
    users: Optional[int] = Field(..., description="number of names in the users' file; null if the interface is open")
    waiting: dict[str, int] = Field(..., description="requests in progress, from memory and from stores")
