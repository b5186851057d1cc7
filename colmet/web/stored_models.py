"""The shapes of answers from stored rows, of reports and of answers from the job archive, as `colmet.web.models`."""

from dataclasses import is_dataclass
from typing import Any, Optional  # evaluated at run time, on 3.9, too

from pydantic import Field

from colmet.common.lines import JobCompleteness, JobGap, Line
from colmet.jobs import figures as report_model
from colmet.jobs.archive.derived import ANSWERS
from colmet.jobs.archive.queries import SUMS
from colmet.jobs.columns import BLOB, HOST_COLUMNS, INTEGER, LARGE, REAL, JobColumn
from colmet.jobs.grades import GRADES
from colmet.jobs.report.several import Spread, Unusual
from colmet.web.models import PAGE, Number, Text, Whole, add_shape, shape, shape_of, type_of

StoredTables = shape(
    "StoredTables",
    "The tables of a job in the store, with their columns.",
    job=int,
    tables={str: [str]},
    warnings=[str],
)
StoredRows = shape(
    "StoredRows",
    "Stored rows of one node.",
    node=str,
    times=[int],
    columns=({str: [Any]}, "a value for each time; null for a missing one"),
)
Rows = shape(
    "Rows",
    "A page of the stored rows of a job in a table, by node and time.",
    job=int,
    table=str,
    total=(int, "number of rows; may include those up to a minute before and after"),
    first=Whole,
    last=Whole,
    kinds=({str: str}, "type of each column: i (integer), f (float), S (text)"),
    rows=[StoredRows],
    next=(Text, "parameter `after` of the next page; null at the end"),
    warnings=[str],
)
Gap = shape("Gap", "Missing samples.", since=Number, until=Number, why=str, samples=Number)
HostCompleteness = shape(
    "HostCompleteness",
    "The stored share of a job's samples of one node.",
    node=str,
    **dict.fromkeys(("share", "expected", "present"), Number),
    gaps=[Gap],
)
Completeness = shape(
    "Completeness",
    "The stored share of a job's samples.",
    job=int,
    **dict.fromkeys(("share", "expected", "present"), Number),
    hosts=[HostCompleteness],
    warnings=[str],
)


# The shapes of a report and of its parts, by dataclass; docs/tools/report.md has the values.
_COMPUTED = {
    **{report_model.Cpu: ["used_ratio"], JobCompleteness: ["here_ratio"]},
    report_model.HostFigures: ["cores", "cpu_used_ratio"],
}
_WITH_PARTS = (report_model.Whereabouts, report_model.Report, report_model.Curve, Line)  # no part of a part
_kinds: list[Any] = [JobGap, *filter(is_dataclass, vars(report_model).values())]
for _kind in _kinds:
    if _kind not in _WITH_PARTS:
        add_shape(_kind, f"Report{_kind.__name__}", **dict.fromkeys(_COMPUTED.get(_kind, ()), Number))
add_shape(report_model.Whereabouts, "ReportWhereabouts", shares=shape_of(report_model.TimeShares))
add_shape(
    report_model.Report,
    "Report",
    cores=Number,
    ending=Optional[shape_of(report_model.Ending)],
    uses=shape_of(tuple[report_model.Use, ...]),
    verdict=shape_of(tuple[report_model.Judgement, ...]),
)
Report: Any = shape_of(report_model.Report)

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


RuleOfAdvice = shape("RuleOfAdvice", "A rule of advice that applies to a job.", rule=str, text=str)
ArchivedValues = shape(
    "ArchivedValues", "Values of a job; those that were not asked for are missing.", **_fields(SHOWN, None)
)
ArchivedHost = shape("ArchivedHost", "Values of a job on one host.", **_fields(_HOST_VALUES, None))
ShortCurves = shape(
    "ShortCurves",
    "Short curves over the life of a job, at most 64 points each; null for a missing point.",
    step_s=(int, "seconds of a point; the first one begins with the job"),
    cpu=(Optional[type_of([Number])], Field(None, description="CPUs in use")),
    memory=(Optional[type_of([Number])], Field(None, description="bytes in use, the most of each point")),
    gpu=(Optional[type_of([Number])], Field(None, description="GPUs in use")),
)
ArchivedRow = shape(
    "ArchivedRow",
    "A job of a list.",
    **_fields(SHOWN, None),
    footprint=(Optional[ShortCurves], Field(None, description="on request; null if the job was too short")),
)
ONLY = (Text, "the only user whose jobs these are; null for those of all users")
ArchivedJobs = shape("ArchivedJobs", "A page of the jobs in the archive.", **PAGE, items=[ArchivedRow], only=ONLY)
JobInArchive = shape(
    "JobInArchive",
    "A job in the archive, with its hosts.",
    job=ArchivedValues,
    advice=(Optional[type_of([RuleOfAdvice])], "null if there were too few samples"),
    footprint=(Optional[ShortCurves], "null if the job was too short"),
    hosts=[ArchivedHost],
    starts=([int], "of all jobs with this number, the latest first; parameter `start`"),
)
JobSummary = shape(
    "JobSummary",
    "The report of a job from the archive, with its short curves.",
    report=(Optional[Report], "null if the archive lacks the job, or there is no archive"),
    footprint=Optional[ShortCurves],
)
add_shape(Spread, "SpreadOfJobs")
add_shape(Unusual, "UnusualJob")
JobsReport = shape(
    "JobsReport",
    "The report of several jobs.",
    total=(int, "of the selection, of which `jobs` may be the latest part"),
    array=(Text, "id of the array that all of them belong to"),
    states=({str: int}, "number of jobs by state"),
    sums=({str: Number}, "of all jobs here, and the used share of CPU and GPU time"),
    spread=({str: shape_of(Spread)}, "of ended jobs, by name of the value"),
    unusual=([shape_of(Unusual)], "of an array"),
    jobs=[ArchivedValues],
    notes=[str],
)
UsageSums = shape(
    "UsageSums",
    "Sums over jobs; a job counts with the share of its wall time within the interval.",
    **_fields(SUMS, ...),
)
UsageOfGroup = shape(
    "UsageOfGroup",
    "The sums of one group.",
    keys=([str], "one for each word of `by`; empty for a missing value"),
    jobs=int,
    sums=UsageSums,
    cpu_ratio=(Number, "CPU time used of the allocated, without jobs of which one of both is unknown; null if unknown"),
    cpu_grade=(Text, "grade of the CPU time used of the allocated; null if unknown"),
    co2_g=(Number, "grams of CO2; null without a factor, or without the energy"),
    cost=(Number, "of energy and core hours; null without a factor, or without a sum"),
)
UsageAnswer = shape(
    "UsageAnswer",
    "Sums by groups, the group with the most allocated CPU time first.",
    by=[str],
    groups=[UsageOfGroup],
    total=(UsageOfGroup, "of all groups, without keys; a job of two months or hosts counts twice"),
    sources=([str], "the factors of CO2 and cost, each with its source; a site's own"),
    currency=(Text, "of `cost`"),
    warnings=([str], "such as unreadable factors"),
    only=ONLY,
)
