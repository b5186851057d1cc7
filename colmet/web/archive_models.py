"""The shapes of answers from the job archive, made from its columns; for the OpenAPI description only."""

from typing import Any, Optional

from pydantic import BaseModel, Field, create_model

from colmet.jobs.archive.derived import ANSWERS
from colmet.jobs.archive.queries import SUMS
from colmet.jobs.columns import BLOB, HOST_COLUMNS, INTEGER, LARGE, REAL, JobColumn
from colmet.jobs.grades import GRADES
from colmet.jobs.report.several import COMPARED
from colmet.web.models import Report

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
