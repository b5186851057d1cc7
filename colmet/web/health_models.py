"""The shapes of the answers on the nodes over time and on the health of the collector, as `colmet.web.models`."""

from typing import Optional  # evaluated at run time, on 3.9, too

from pydantic import BaseModel, Field

_LEVEL = "ok, warning, critical or unknown, as of `colmet status --check`"


class NodeOverTime(BaseModel):
    """The values of a node."""

    node: str
    values: list[Optional[float]] = Field(..., description="one for each of `starts`; null if not measured")


class NodeHistory(BaseModel):
    """A measure by node and interval."""

    time: float
    measure: str
    unit: str
    span: str = Field(..., description="hour or day")
    step: int = Field(..., description="width of an interval in seconds")
    since: Optional[float] = Field(..., description="first record of this process; null before it")
    starts: list[float] = Field(..., description="start of each interval")
    total: int
    offset: int
    items: list[NodeOverTime]


class HealthFinding(BaseModel):
    """A part of the verdict."""

    level: str = Field(..., description=_LEVEL)
    found: str
    remedy: Optional[str]


class ReportingCollector(BaseModel):
    """The collector."""

    host: Optional[str]
    version: Optional[str]
    uptime_s: Optional[float]


class SendingNodes(BaseModel):
    """Numbers of nodes, and the age of their rows on arrival in seconds."""

    heard: Optional[int]
    silent: Optional[int]
    gone: Optional[int] = Field(..., description="silent for more than a day")
    late: int = Field(..., description="whose latest rows were older than 10 s on arrival")
    lag_median_s: Optional[float]
    lag_max_s: Optional[float]


class SilentNode(BaseModel):
    """A node without a message."""

    node: str
    seen_age: Optional[float] = Field(..., description="seconds since its last message")
    version: Optional[str]


class LateNode(BaseModel):
    """A node with old rows."""

    node: str
    lag: Optional[float]


class NodeVersion(BaseModel):
    """A version of colmet-node, or the dialect of nodes without one."""

    version: str
    nodes: int


class OutputHealth(BaseModel):
    """An output of the collector."""

    name: str
    available: bool
    why: Optional[str] = Field(..., description="reason of its absence")
    away_s: Optional[float]
    behind_s: Optional[float] = Field(..., description="age of the oldest message that waits for it")
    waiting: Optional[int] = Field(..., description="messages that wait for it")
    written: Optional[int] = Field(..., description="rows")
    lost: Optional[int] = Field(..., description="messages that were gone when their turn came")
    dropped: Optional[int] = Field(..., description="rows dropped for a defect")


class JournalHealth(BaseModel):
    """The journal of the collector."""

    directory: Optional[str] = Field(..., description="empty: in memory")
    bytes: Optional[int]
    full: Optional[bool]
    why: Optional[str] = Field(..., description="reason why it cannot be written to; empty if it can")


class ReceivedCounts(BaseModel):
    """Counters of all senders since the start."""

    batches: Optional[int]
    rows: Optional[int]
    missing: Optional[int]
    duplicates: Optional[int]
    rejects: Optional[int]
    foreign: Optional[int]
    limited: Optional[int]
    left_out: Optional[int]
    conflicts: Optional[int]


class RecentEvent(BaseModel):
    """A counter that has grown in the last hour."""

    what: str
    count: int
    dropped: bool = Field(..., description="whether it counts data that is not stored")
    harmless: bool = Field(..., description="whether it is no part of the verdict")


class NodeSpool(BaseModel):
    """Batches of a node."""

    node: str
    waiting: Optional[int]
    dropped: Optional[int]
    acknowledged: Optional[int]


class NodeSpools(BaseModel):
    """Batches that the nodes keep until they are acknowledged."""

    nodes: int = Field(..., description="nodes that report their spool")
    waiting: Optional[float]
    dropped: Optional[float]
    remarkable: int = Field(..., description="nodes with many waiting batches, or with dropped ones")
    worst: list[NodeSpool] = Field(..., description="of the remarkable ones, at most 100")


class RefusedConnection(BaseModel):
    """An address with refused connections."""

    why: str
    address: str
    count: int


class KeyHealth(BaseModel):
    """Keys, and connections since the start."""

    required: Optional[bool] = Field(..., description="whether only known keys are accepted")
    connections: Optional[int] = Field(..., description="open ones")
    let_in: Optional[int]
    unknown_key: Optional[int]
    key_withdrawn: Optional[int]
    handshake_failed: Optional[int]
    keys: Optional[int] = Field(..., description="known keys of nodes")
    broken_keys: Optional[int] = Field(..., description="files of keys that cannot be used")
    refused: list[RefusedConnection]
    findings: list[HealthFinding]


class Health(BaseModel):
    """The state of the collector, its outputs and the nodes."""

    time: float
    level: str = Field(..., description=_LEVEL)
    findings: list[HealthFinding]
    reported_age: Optional[float] = Field(..., description="age of the collector's report; null before the first")
    collector: ReportingCollector
    nodes: SendingNodes
    silent: list[SilentNode] = Field(..., description="at most 100; `nodes` has the number of all")
    late: list[LateNode] = Field(..., description="at most 100; `nodes` has the number of all")
    versions: list[NodeVersion]
    outputs: list[OutputHealth]
    journal: JournalHealth
    received: ReceivedCounts
    last_hour: list[RecentEvent]
    spools: NodeSpools
    keys: KeyHealth
