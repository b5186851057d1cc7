"""The report of several jobs, such as an array: a row for each from the archive, sums, spread, and unusual jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from colmet.common.text import some_of
from colmet.jobs.archive.derived import ANSWERS
from colmet.jobs.archive.queries import MAX_ROWS, JobArchive, JobFilter, Row, task_parts
from colmet.jobs.columns import DONE, ENDED, RUNNING
from colmet.jobs.grades import grades_of

COLUMNS = (
    *("job", "start", "end", "batch_id", "user", "name", "project", "queue", "state", "reason"),
    *("exit_code", "exit_signal", "hosts", "wall_s", "waited_s", "requested_walltime_s", "walltime_ratio"),
    *("cpus", "requested_cores", "core_s", "cpu_s", "cpu_ratio", "wasted_core_s"),
    *("memory_peak", "requested_memory", "memory_limit", "memory_used_ratio", "oom_kills"),
    *("gpus", "requested_gpus", "gpu_s", "gpu_busy_s", "gpu_ratio", "energy_joules"),
    *("rules", "advice_count", "array", "array_index"),
)
SUMMED = ("core_s", "cpu_s", "wasted_core_s", "gpu_s", "gpu_busy_s", "energy_joules")
SPREAD = (
    *("wall_s", "waited_s", "walltime_ratio", "cpu_ratio", "memory_peak", "memory_used_ratio", "gpu_ratio"),
    "energy_joules",
)
COMPARED = ("wall_s", "cpu_ratio", "memory_peak", "gpu_ratio")  # of the jobs of an array
FEWEST, FAR, FACTOR = 5, 5.0, 1.5  # jobs to compare; unusual: deviations from the median, and factor to it
# The least difference that counts: a minute, five points, and an amount of memory that a request would name.
LEAST = {"wall_s": 60.0, "cpu_ratio": 0.05, "memory_peak": 16 << 20, "gpu_ratio": 0.05}
MOST_UNUSUAL = 10
AT_ONCE = 200  # numbers of one question: of a URL


class Spread(NamedTuple):
    """The spread of a value over jobs."""

    min: float
    median: float
    max: float


class Unusual(NamedTuple):
    """A job of an array that is far from the others."""

    job: int
    start: int
    name: str  # as the batch system prints its id
    what: str  # one of `COMPARED`
    value: float
    median: float


class SeveralJobs(NamedTuple):
    """The report of several jobs."""

    total: int  # of the selection, of which `rows` may be a part
    rows: list[Row]  # values of `COLUMNS`, the latest start first
    states: dict[str, int]  # number of jobs by state, the most frequent first
    sums: dict[str, float | None]  # of `SUMMED`, and the used share of CPU time and of GPUs
    spread: dict[str, Spread]  # of `SPREAD`, of ended jobs unless all run
    array: str  # id of the array that all of them belong to; empty without one
    unusual: list[Unusual]  # of an array
    notes: list[str]  # such as jobs that are not in the archive


def task_of(archive: JobArchive, text: str, start: int | None = None) -> tuple[int, int] | None:
    """Return number and start of a task named by its batch system, of its last run up to `start`; None without one."""
    if not is_task(text):
        return None
    rows = archive.jobs(JobFilter(task=text), ("job", "start", "batch_id")).rows
    rows = [row for row in rows if start is None or row["start"] <= start]
    named = [(row["job"], row["start"]) for row in sorted(rows, key=lambda row: row["batch_id"] != text)]
    return named[0] if named else None


def is_task(text: str) -> bool:
    """Return whether a text names a task of an array."""
    return task_parts(text) is not None


def gather_jobs(
    archive: JobArchive,
    where: JobFilter,
    limit: int = MAX_ROWS,
    tasks: Collection[tuple[int, int]] = (),
    more: Sequence[str] = (),
) -> SeveralJobs:
    """Return the report of the jobs that fulfil the conditions, the latest `limit`, with `more` columns.

    Of several jobs with one of the numbers in `where` the latest counts; `tasks` are numbers and starts of further
    jobs.
    """
    columns = (*COLUMNS, *more)
    if not where.jobs and not tasks:
        page = archive.jobs(where, columns, limit=limit)
        return made_of(page.rows, page.total)
    numbers = list(dict.fromkeys([*where.jobs, *[job for job, _ in tasks]]))
    rows: list[Row] = []
    for at in range(0, len(numbers), AT_ONCE):
        rows += archive.jobs(where._replace(jobs=numbers[at : at + AT_ONCE]), columns, limit=MAX_ROWS).rows
    times = Counter([row["job"] for row in rows])
    kept: dict[tuple[int, int], Row] = {}
    seen: set[int] = set()
    for row in sorted(rows, key=lambda one: (one["start"], one["job"]), reverse=True):
        key = row["job"], row["start"]
        if key in tasks or (row["job"] in where.jobs and row["job"] not in seen):
            kept[key] = row
        seen.add(row["job"])
    again = [str(number) for number in where.jobs if times[number] > 1]
    lacking = [str(number) for number in where.jobs if not times[number]]
    notes = [f"several jobs have the number {some_of(again, 5)}: the latest counts"] if again else []
    if lacking:
        notes.append(f"not found among the jobs that you may see: {some_of(lacking, 10)}")
    return made_of(list(kept.values())[:limit], len(kept), notes)


def made_of(rows: list[Row], total: int = 0, notes: Sequence[str] = ()) -> SeveralJobs:
    """Return the report of some jobs."""
    ended = [row for row in rows if row["state"] != RUNNING]
    arrays = {row["array"] for row in rows}
    array = str(arrays.pop() or "") if len(arrays) == 1 else ""
    return SeveralJobs(
        total=total,
        rows=rows,
        states=dict(Counter([str(row["state"]) for row in rows]).most_common()),
        sums=_sums(rows),
        spread=_spread(ended or rows),
        array=array,
        unusual=_unusual(ended) if array else [],
        notes=list(notes),
    )


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [row[name] for row in rows if row[name] is not None]


def _sums(rows: Sequence[Row]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in SUMMED:
        values = _values(rows, name)
        found[name] = float(sum(values)) if values else None
    for name, part, whole in (("cpu_ratio", "cpu_s", "core_s"), ("gpu_ratio", "gpu_busy_s", "gpu_s")):
        both = [(row[part], row[whole]) for row in rows if row[part] is not None and row[whole]]
        held = sum(one for _, one in both)
        found[name] = sum(used for used, _ in both) / held if held else None
    return found


def _spread(rows: Sequence[Row]) -> dict[str, Spread]:
    values = {name: _values(rows, name) for name in SPREAD}
    return {name: Spread(min(some), median(some), max(some)) for name, some in values.items() if some}


def _unusual(rows: Sequence[Row]) -> list[Unusual]:
    """Return the values far from the median, the farthest first."""
    found: list[tuple[float, Unusual]] = []
    for name in COMPARED:
        values = _values(rows, name)
        if len(values) < FEWEST:
            continue
        middle = float(median(values))
        deviation = float(median([abs(one - middle) for one in values]))
        for row in rows:
            value = row[name]
            if value is None or abs(value - middle) <= max(FAR * deviation, LEAST[name]):
                continue
            if middle / FACTOR <= value <= middle * FACTOR:
                continue
            factor = max(value, middle) / max(min(value, middle), 1e-9)
            found.append((factor, Unusual(row["job"], row["start"], name_of(row), name, value, middle)))
    found.sort(key=lambda one: -one[0])
    return [one for _, one in found[:MOST_UNUSUAL]]


def name_of(row: Row) -> str:
    """Return the id of a job as its batch system prints it, else its number."""
    return str(row["batch_id"] or row["job"])


def troubled(report: SeveralJobs) -> dict[str, list[str]]:
    """Return the names of jobs that ended in another state than done, by state."""
    found: dict[str, list[str]] = {}
    for row in report.rows:
        if row["state"] not in (DONE, ENDED, RUNNING):
            found.setdefault(str(row["state"]), []).append(name_of(row))
    return found


def document_of_jobs(report: SeveralJobs) -> dict[str, Any]:
    """Return the report as JSON values."""
    return {
        "total": report.total,
        "array": report.array or None,
        "states": report.states,
        "sums": report.sums,
        "spread": {name: one._asdict() for name, one in report.spread.items()},
        "unusual": [one._asdict() for one in report.unusual],
        "jobs": [{**{name: row[name] for name in COLUMNS}, **grades_of(row)} for row in report.rows],
        "notes": report.notes,
    }


HEADINGS: Mapping[str, str] = {
    **{"wall_s": "wall time", "waited_s": "waited", "walltime_ratio": "of walltime", "cpu_ratio": "CPU"},
    **{"memory_peak": "memory", "memory_used_ratio": "memory of request", "gpu_ratio": "GPU"},
    "energy_joules": "energy",
}
UNITS = {name: ANSWERS[name].unit for name in SPREAD}  # s, B, J, share
