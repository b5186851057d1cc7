"""The shapes of answers from stored rows, of reports and of answers from the job archive, as `colmet.web.models`."""

import dataclasses
from typing import Any, Optional, Union, get_args, get_origin, get_type_hints  # evaluated at run time, on 3.9, too

from pydantic import BaseModel, Field, create_model

from colmet.common.lines import JobCompleteness, JobGap
from colmet.jobs import figures as report_model
from colmet.jobs.archive.derived import ANSWERS
from colmet.jobs.archive.queries import SUMS
from colmet.jobs.columns import BLOB, HOST_COLUMNS, INTEGER, LARGE, REAL, JobColumn
from colmet.jobs.grades import GRADES
from colmet.jobs.report.several import COMPARED


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
Report: Any = _REPORT[report_model.Report]


_KINDS: dict[str, Any] = {INTEGER: int, REAL: float}
VALUES = {name: column for name, column in ANSWERS.items() if column.kind != BLOB}  # of a whole job
SHOWN = {**VALUES, **GRADES}
_HOST_VALUES = {name: column for name, column in HOST_COLUMNS.items() if column not in LARGE}


def _fields(columns: dict[str, JobColumn], default: Any) -> Any:
    """Return the fields of some columns, all of them nullable; `default` is `...` if they are always there."""
    fields: dict[str, Any] = {}
    for name, column in columns.items():
        text = f"{column.help} Unit: {column.unit}." if column.unit else column.help
        fields[name] = (Optional[_KINDS.get(column.kind, str)], Field(default, description=text))
    return fields


_Values: Any = create_model("_Values", **_fields(SHOWN, None))
_HostValues: Any = create_model("_HostValues", **_fields(_HOST_VALUES, None))
_Sums: Any = create_model("_Sums", **_fields(SUMS, ...))


class RuleOfAdvice(BaseModel):
    """A rule of advice that applies to a job."""

    rule: str
    text: str


class ArchivedValues(_Values):  # type: ignore[misc]  # made above, out of the columns
    """Values of a job; those that were not asked for are missing."""


class ArchivedHost(_HostValues):  # type: ignore[misc]  # made above, out of the columns
    """Values of a job on one host."""


class ShortCurves(BaseModel):
    """Short curves over the life of a job, at most 64 points each; null for a missing point."""

    step_s: int = Field(..., description="seconds of a point; the first one begins with the job")
    cpu: Optional[list[Optional[float]]] = Field(None, description="CPUs in use")
    memory: Optional[list[Optional[float]]] = Field(None, description="bytes in use, the most of each point")
    gpu: Optional[list[Optional[float]]] = Field(None, description="GPUs in use")


class ArchivedRow(ArchivedValues):
    """A job of a list."""

    footprint: Optional[ShortCurves] = Field(None, description="on request; null if the job was too short")


ONLY: Any = Field(..., description="the only user whose jobs these are; null for those of all users")


class ArchivedJobs(BaseModel):
    """A page of the jobs in the archive."""

    total: int
    offset: int
    limit: int
    items: list[ArchivedRow]
    only: Optional[str] = ONLY


class JobInArchive(BaseModel):
    """A job in the archive, with its hosts."""

    job: ArchivedValues
    advice: Optional[list[RuleOfAdvice]] = Field(..., description="null if there were too few samples")
    footprint: Optional[ShortCurves] = Field(..., description="null if the job was too short")
    hosts: list[ArchivedHost]
    starts: list[int] = Field(..., description="of all jobs with this number, the latest first; parameter `start`")


class JobSummary(BaseModel):
    """The report of a job from the archive, with its short curves."""

    report: Optional[Report] = Field(..., description="null if the archive lacks the job, or there is no archive")
    footprint: Optional[ShortCurves]


class SpreadOfJobs(BaseModel):
    """The spread of a value over jobs."""

    min: float
    median: float
    max: float


class UnusualJob(BaseModel):
    """A job of an array that is far from the others."""

    job: int
    start: int
    name: str = Field(..., description="as the batch system prints its id")
    what: str = Field(..., description=f"one of {', '.join(COMPARED)}")
    value: float
    median: float


class JobsReport(BaseModel):
    """The report of several jobs."""

    total: int = Field(..., description="of the selection, of which `jobs` may be the latest part")
    array: Optional[str] = Field(..., description="id of the array that all of them belong to")
    states: dict[str, int] = Field(..., description="number of jobs by state")
    sums: dict[str, Optional[float]] = Field(
        ..., description="of all jobs here, and the used share of CPU and GPU time"
    )
    spread: dict[str, SpreadOfJobs] = Field(..., description="of ended jobs, by name of the value")
    unusual: list[UnusualJob] = Field(..., description="of an array")
    jobs: list[ArchivedValues]
    notes: list[str]


class UsageSums(_Sums):  # type: ignore[misc]  # made above, out of the columns
    """Sums over jobs; a job counts with the share of its wall time within the interval."""


class UsageOfGroup(BaseModel):
    """The sums of one group."""

    keys: list[str] = Field(..., description="one for each word of `by`; empty for a missing value")
    jobs: int
    sums: UsageSums
    cpu_ratio: Optional[float] = Field(
        ..., description="CPU time used of the allocated, without jobs of which one of both is unknown; null if unknown"
    )
    cpu_grade: Optional[str] = Field(..., description="grade of the CPU time used of the allocated; null if unknown")
    co2_g: Optional[float] = Field(..., description="grams of CO2; null without a factor, or without the energy")
    cost: Optional[float] = Field(..., description="of energy and core hours; null without a factor, or without a sum")


class UsageAnswer(BaseModel):
    """Sums by groups, the group with the most allocated CPU time first."""

    by: list[str]
    groups: list[UsageOfGroup]
    total: UsageOfGroup = Field(
        ..., description="of all groups, without keys; a job of two months or hosts counts twice"
    )
    sources: list[str] = Field(..., description="the factors of CO2 and cost, each with its source; a site's own")
    currency: Optional[str] = Field(..., description="of `cost`")
    warnings: list[str] = Field(..., description="such as unreadable factors")
    only: Optional[str] = ONLY
