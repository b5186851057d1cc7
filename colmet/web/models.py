"""The shapes of the answers, for the OpenAPI description only: answers are not validated by these models."""

from typing import Any, Optional, Union, get_args, get_origin, get_type_hints  # evaluated at run time, on 3.9, too

from pydantic import Field, create_model

from colmet.batch import gridengine_memory as qmem
from colmet.common import measures
from colmet.common.live.summary import JOB_MEASURES, NODE_MEASURES
from colmet.common.measures import Measure as DeclaredMeasure
from colmet.web.health import CONNECTIONS, RECEIVED, SPOOL
from colmet.web.queries import TOTALS

Number, Whole, Text = Optional[float], Optional[int], Optional[str]

# The shapes of dataclasses, NamedTuples and TypedDicts, which are attributes of this module, too.
_SHAPES: dict[Any, Any] = {}


def shape(name: str, about: str, /, **fields: Any) -> Any:
    """Return the shape of an answer.

    A field is its type, or a pair of this and of its description or pydantic's field. [float] is a list of floats.
    """
    declared: dict[str, Any] = {}
    for key, field in fields.items():
        kind, text = field if isinstance(field, tuple) else (field, ...)
        declared[key] = (type_of(kind), Field(..., description=text) if isinstance(text, str) else text)
    made: Any = create_model(name, __module__=__name__, **declared)
    made.__doc__ = about
    return made


def type_of(kind: Any) -> Any:
    """Return the type that is meant by [float] and {str: float}, and other types as they are."""
    if isinstance(kind, list):
        return list[type_of(kind[0])]  # type: ignore[misc]
    return dict[str, type_of(kind[str])] if isinstance(kind, dict) else kind  # type: ignore[misc]


def shape_of(kind: Any) -> Any:
    """Return the shape of a type."""
    if get_origin(kind) is tuple:
        return list[shape_of(get_args(kind)[0])]  # type: ignore[misc]
    if get_origin(kind) is dict:
        return dict[str, shape_of(get_args(kind)[1])]  # type: ignore[misc]
    if get_origin(kind) is Union:
        return Optional[shape_of(get_args(kind)[0])]
    return _SHAPES.get(kind, kind)


def add_shape(kind: Any, name: str, **derived: Any) -> None:
    """Add the shape of a dataclass, a NamedTuple or a TypedDict; `derived` are values that it computes."""
    values = {key: shape_of(hint) for key, hint in get_type_hints(kind).items() if key != "curves"}
    about = (kind.__doc__ or "").partition("\n")[0]
    _SHAPES[kind] = globals()[name] = shape(name, about, **{**values, **derived})


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
    **{key: _description(NODE_MEASURES[key]) for key in ("cpus", "load", "read", "write")},
    "jobs": "jobs on it",
    "cpu": "use of its CPUs, as a share",
    "iowait": "share of the time of waits for a block device",
    "steal": "share of the time used by other virtual machines",
    "memory": "bytes used",
    "memory_total": _description(NODE_MEASURES["memtotal"]),
    "memory_share": "memory used, as a share",
    "swap": "bytes of swap used",
    "io": "bytes read and written per second",
    "seen_age": "seconds since its last message",
    "lag": "age of its latest message on arrival, in seconds",
    "network": "bytes received and sent per second over InfiniBand, Omni-Path and RoCE",
    "power": _description(measures.NODE_POWER),
    "temperature": "of the hottest sensor, in degrees Celsius",
}
Error = shape("Error", "An error.", error=(str, "what is wrong, and what to do"))
Whoami = shape(
    "Whoami",
    "The user of the request.",
    user=(Text, "null if the interface is open to all"),
    admin=(bool, "whether all jobs are visible"),
    projects=([str], "those that the user leads, with visible jobs of others in the archive"),
    version=str,
    time=float,
    gridengine=(bool, "whether /qhost and /qstat have Grid Engine's values"),
    zone=(Text, "time zone of the interface's machine, such as Europe/Paris"),
    sign_out=(Text, "address at which a browser ends its login; null if there is none"),
    archive=(bool, "whether there is an archive of jobs"),
)
IssuedToken = shape(
    "IssuedToken",
    "A token for the header `Authorization: Bearer TOKEN`; it replaces name and password.",
    token=str,
    until=(int, "its end, in seconds since 1970; a changed password ends it earlier"),
)


NodeCounts = shape(
    "NodeCounts",
    "Totals of all nodes. Ordinary users get only `heard` and `silent`.",
    heard=(Whole, "number of nodes that send"),
    silent=(Whole, "number of nodes that do not send any more"),
    cpu=(Number, "use of the CPUs, as a share"),
    **dict.fromkeys(("memory", "memory_total", "load"), Number),
)
JobCounts = shape(
    "JobCounts",
    "Totals of the visible jobs; `cpu` and `cpus` are CPU cores, used and allocated.",
    running=Whole,
    users=Whole,
    cpu_share=Number,
    **dict.fromkeys(TOTALS, Number),
)
MessageCounts = shape(
    "MessageCounts", "Messages of nodes: received, and dropped before this process.", taken=Whole, left_out=Whole
)
Cluster = shape(
    "Cluster",
    "Totals.",
    time=float,
    nodes=NodeCounts,
    jobs=JobCounts,
    messages=MessageCounts,
    kept_s=(Number, "age of the oldest samples in memory, in seconds"),
    warnings=[str],
)
add_shape(measures.Source, "MeasureSource")
DescribedMeasure = shape(
    "DescribedMeasure",
    "A quantity such as memory used, from the first of its columns with values.",
    label=str,
    help=str,
    scope=(str, "job or node"),
    kind=(str, "counter or gauge"),
    unit=(str, "as stored in the first column"),
    rate=(bool, "whether charts show the growth per second"),
    hosts=(str, "fold over hosts: sum, mean, max, or all (a sum, missing if a host lacks it)"),
    time=(str, "fold over samples: total, mean, max, last"),
    sources=[shape_of(measures.Source)],
)
MeasureTerm = shape("MeasureTerm", "A part of a sum.", measure=str, sign=int)
UnitFormat = shape(
    "UnitFormat",
    "The display of a unit.",
    factor=(float, "factor to bytes, seconds, watts, shares of 1"),
    family=(str, "such as size, flow, duration, share"),
)
Measures = shape(
    "Measures",
    "Measures by key, sums of measures, and the units of columns and of their growth.",
    measures={str: DescribedMeasure},
    sums={str: [MeasureTerm]},
    units={str: UnitFormat},
    absent=({str: str}, "what a table requires, by its name"),
)
_JOB_FIELDS: dict[str, Any] = {
    **{"job": int, "user": (Text, "empty if no node reports the user"), "nodes": (Whole, "number of its nodes")},
    **{key: (Number, text) for key, text in _JOB_VALUES.items()},
    "memory_source": (Text, "source of memory: cgroup, or processes without a cgroup that counts it"),
    "tasks_source": (Text, "source of tasks, likewise"),
}
_NODE_FIELDS: dict[str, Any] = {key: (Number, text) for key, text in _NODE_VALUES.items()}
JobRow = shape(
    "JobRow",
    "A job with its current or last use on all its nodes.",
    **_JOB_FIELDS,
    on=(Text, "the first of its nodes"),
    time=(Number, "time of its latest row"),
    first=(Number, "time of its first sample in this process"),
    last=(Number, "time of its last sample in this process"),
    running=bool,
)
JobNodeRow = shape("JobNodeRow", "The use of a job on one node.", **_JOB_FIELDS, node=str)
NodeRow = shape(
    "NodeRow",
    "A node with its current use.",
    node=(str, "its name"),
    **_NODE_FIELDS,
    silent=(bool, "whether it does not send any more"),
)
PAGE: dict[str, Any] = {"total": int, "offset": int, "limit": int}
Jobs = shape("Jobs", "A page of the jobs of a query.", **PAGE, items=[JobRow])
Nodes = shape("Nodes", "A page of the nodes of a query.", **PAGE, items=[NodeRow])
Column = shape(
    "Column",
    "A column of a table; `metric` of /series is TABLE.COLUMN.",
    name=str,
    unit=Text,
    kind=(Text, "such as counter or gauge"),
    help=Text,
)
_ABSENT = "why a table is missing, by its name, where the job's running nodes, or the node, report it"
Job = shape(
    "Job",
    "A job with its nodes and its tables.",
    job=JobRow,
    nodes=[JobNodeRow],
    hosts=([str], "names of all its hosts, in memory and in the store"),
    tables={str: [Column]},
    absent=({str: str}, _ABSENT),
    stored=bool,
    warnings=[str],
)
Node = shape(
    "Node",
    "A node with its tables and its visible jobs.",
    node=NodeRow,
    jobs=[JobNodeRow],
    tables={str: [Column]},
    absent=({str: str}, _ABSENT),
)
OneSeries = shape(
    "OneSeries",
    "The values of one node, or of one of its devices.",
    node=str,
    labels={str: str},
    times=[float],
    values=[Number],
)
SeriesTogether = shape(
    "SeriesTogether",
    "The values of all nodes and devices as one: null for a missing value.",
    series=(int, "number of series that are folded"),
    times=[float],
    sum=([Number], "null if one of them is missing"),
    mean=([Number], "of the known values"),
    min=[Number],
    max=[Number],
)
Series = shape(
    "Series",
    "Values over time.",
    job=(int, "0 for the node's own values"),
    metric=str,
    unit=Text,
    kind=Text,
    rate=bool,
    since=Number,
    until=Number,
    step=(Number, "width of the intervals in seconds; 0 for one value for each sample"),
    source=(str, "memory, stored, both or none"),
    warnings=[str],
    series=([OneSeries], "empty with `together`"),
    together=(Optional[SeriesTogether], "null without the parameter `together`"),
)
add_shape(qmem.JobOnHost, "QmemJobOnHost")
add_shape(qmem.BatchHost, "QmemHost")
add_shape(qmem.RequestedJob, "QmemRequestedJob")
add_shape(qmem.Owner, "QmemOwner")
_ENVELOPE: dict[str, Any] = {"success": bool, "message": str}
Qhost = shape("Qhost", "Hosts with their jobs, in QmemTools' envelope.", **_ENVELOPE, data=shape_of(qmem.Hosts))
Qstat = shape("Qstat", "Owners with their jobs, in QmemTools' envelope.", **_ENVELOPE, data=shape_of(qmem.Owners))
Status = shape(
    "Status",
    "Counters of this process.",
    version=str,
    time=float,
    since=(float, "start of the counters"),
    counts={str: int},
    connections=int,
    users=(Whole, "number of names in the users' file; null if the interface is open"),
    waiting=({str: int}, "requests in progress, from memory and from stores"),
)

# -- nodes over time, and the health of the collector --

_LEVEL = "ok, warning, critical or unknown, as of `colmet status --check`"
NodeOverTime = shape(
    "NodeOverTime",
    "The values of a node.",
    node=str,
    values=([Number], "one for each of `starts`; null if not measured"),
)
NodeHistory = shape(
    "NodeHistory",
    "A measure by node and interval.",
    time=float,
    measure=str,
    unit=str,
    span=(str, "hour or day"),
    step=(int, "width of an interval in seconds"),
    since=(Number, "first record of this process; null before it"),
    starts=([float], "start of each interval"),
    total=int,
    offset=int,
    items=[NodeOverTime],
)
HealthFinding = shape("HealthFinding", "A part of the verdict.", level=(str, _LEVEL), found=str, remedy=Text)
ReportingCollector = shape("ReportingCollector", "The collector.", host=Text, version=Text, uptime_s=Number)
SendingNodes = shape(
    "SendingNodes",
    "Numbers of nodes, and the age of their rows on arrival in seconds.",
    heard=Whole,
    silent=Whole,
    gone=(Whole, "silent for more than a day"),
    late=(int, "whose latest rows were older than 10 s on arrival"),
    lag_median_s=Number,
    lag_max_s=Number,
)
SilentNode = shape(
    "SilentNode",
    "A node without a message.",
    node=str,
    seen_age=(Number, "seconds since its last message"),
    version=Text,
)
LateNode = shape("LateNode", "A node with old rows.", node=str, lag=Number)
NodeVersion = shape(
    "NodeVersion", "A version of colmet-node, or the dialect of nodes without one.", version=str, nodes=int
)
OutputHealth = shape(
    "OutputHealth",
    "An output of the collector.",
    name=str,
    available=bool,
    why=(Text, "reason of its absence"),
    away_s=Number,
    behind_s=(Number, "age of the oldest message that waits for it"),
    waiting=(Whole, "messages that wait for it"),
    written=(Whole, "rows"),
    lost=(Whole, "messages that were gone when their turn came"),
    dropped=(Whole, "rows dropped for a defect"),
)
JournalHealth = shape(
    "JournalHealth",
    "The journal of the collector.",
    directory=(Text, "empty: in memory"),
    bytes=Whole,
    full=Optional[bool],
    why=(Text, "reason why it cannot be written to; empty if it can"),
)
ReceivedCounts = shape("ReceivedCounts", "Counters of all senders since the start.", **dict.fromkeys(RECEIVED, Whole))
RecentEvent = shape(
    "RecentEvent",
    "A counter that has grown in the last hour.",
    what=str,
    count=int,
    dropped=(bool, "whether it counts data that is not stored"),
    harmless=(bool, "whether it is no part of the verdict"),
)
NodeSpool = shape("NodeSpool", "Batches of a node.", node=str, **dict.fromkeys(SPOOL, Whole))
NodeSpools = shape(
    "NodeSpools",
    "Batches that the nodes keep until they are acknowledged.",
    nodes=(int, "nodes that report their spool"),
    waiting=Number,
    dropped=Number,
    remarkable=(int, "nodes with many waiting batches, or with dropped ones"),
    worst=([NodeSpool], "of the remarkable ones, at most 100"),
)
RefusedConnection = shape("RefusedConnection", "An address with refused connections.", why=str, address=str, count=int)
KeyHealth = shape(
    "KeyHealth",
    "Keys, and connections: open ones, and others since the start.",
    required=(Optional[bool], "whether only known keys are accepted"),
    **dict.fromkeys(CONNECTIONS, Whole),
    refused=[RefusedConnection],
    findings=[HealthFinding],
)
Health = shape(
    "Health",
    "The state of the collector, its outputs and the nodes.",
    time=float,
    level=(str, _LEVEL),
    findings=[HealthFinding],
    reported_age=(Number, "age of the collector's report; null before the first"),
    collector=ReportingCollector,
    nodes=SendingNodes,
    silent=([SilentNode], "at most 100; `nodes` has the number of all"),
    late=([LateNode], "at most 100; `nodes` has the number of all"),
    versions=[NodeVersion],
    outputs=[OutputHealth],
    journal=JournalHealth,
    received=ReceivedCounts,
    last_hour=[RecentEvent],
    spools=NodeSpools,
    keys=KeyHealth,
)
