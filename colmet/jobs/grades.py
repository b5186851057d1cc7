"""Grades of what a job used of what it held: the one definition for reports, lists and the page.

A grade is a word for people; colours follow from it. It is computed when a job is shown, and never stored. A bad one
comes with a sentence that says what to do (`complete_advice` of the report), and a good one is not said of what an
advice blames.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from colmet.jobs.advice import CPU_LOW, GPU_USE, LEAST_WALL_S, MEMORY_HIGH, MEMORY_LOW, WAITING
from colmet.jobs.archive.queries import JobArchive, JobFilter, JobPage, Row, UsageGroup
from colmet.jobs.columns import DONE, ENDED, OUT_OF_MEMORY, RUNNING, TEXT, TIMEOUT, JobColumn, Summary
from colmet.jobs.figures import Number

GOOD, LOW, POOR, EXCEEDED = "good", "low", "poor", "exceeded"
CORES, MEMORY, GPUS, WALLTIME = "cores", "memory", "gpus", "walltime"
# Used shares: good from the first on, low from the second on, else poor.
THRESHOLDS: Mapping[str, tuple[float, float]] = {
    CORES: (CPU_LOW, 0.2),
    MEMORY: (0.5, MEMORY_LOW),
    GPUS: (0.5, GPU_USE),
    WALLTIME: (0.5, 0.1),
}
MOST_SHARE = 1.05  # of memory: beyond it, the job has used more than it was given
# The rules of advice that blame a thing, and those that explain a bad grade of it.
_SHORT_OF_MEMORY = frozenset(("oom", "memory-high", "swap", "reclaim"))
BLAMES: Mapping[str, frozenset[str]] = {
    CORES: frozenset(("one-core", "idle", "cpu-low", "host-idle", "imbalance", "idle-end")),
    MEMORY: _SHORT_OF_MEMORY | {"memory-low", "memory-exceeded"},
    GPUS: frozenset(("gpu-idle", "gpu-low")),
    WALLTIME: frozenset(("walltime-low", "walltime-exceeded")),
}
EXPLAINS: Mapping[str, frozenset[str]] = {**BLAMES, CORES: BLAMES[CORES] | {*WAITING}}
_OVER = (DONE, ENDED)  # jobs with these states show how much walltime they need; others ended too early


class Judged(NamedTuple):
    """What decides whether the use of a job can be judged."""

    state: str  # one of `colmet.jobs.columns.STATES`; empty if unknown
    is_running: bool
    wall_s: float
    is_measured: bool  # whether its samples suffice for advice
    is_killed: bool  # whether the kernel killed processes of it for lack of memory
    rules: Collection[str] = ()  # names of the rules of advice that apply


def grade(what: str, share: Number, job: Judged) -> str:
    """Return the grade of a used share of what the job held or of its walltime; empty if it cannot be judged.

    There is none without enough samples or half a minute of wall time, of memory and walltime while the job runs, of
    walltime if the job failed or was cancelled, and where an advice says the opposite.
    """
    if what == MEMORY and (job.state == OUT_OF_MEMORY or (job.is_killed and (share is None or share >= MEMORY_HIGH))):
        return EXCEEDED
    if what == WALLTIME:
        if job.state == TIMEOUT:
            return EXCEEDED
        is_judged = not job.is_running and job.state in _OVER
    else:
        is_judged = job.is_measured and job.wall_s >= LEAST_WALL_S and not (what == MEMORY and job.is_running)
    if share is None or not is_judged:
        return ""
    if what == MEMORY and share > MOST_SHARE:
        return EXCEEDED
    good, low = THRESHOLDS[what]
    if (BLAMES[what] if share >= good else _OPPOSITE.get(what, frozenset())).intersection(job.rules):
        return ""
    return GOOD if share >= good else LOW if share >= low else POOR


_OPPOSITE = {MEMORY: _SHORT_OF_MEMORY}  # of a bad grade: it has to ask for more, and not for less


def grade_of_usage(group: UsageGroup) -> str | None:
    """Return the grade of the CPU time that several jobs used of the allocated; None if it is unknown."""
    return grade(CORES, group.cpu_ratio, Judged("", False, LEAST_WALL_S, True, False)) or None


# Grades in answers: what is graded, and the column with its share.
_GRADED = {
    "cpu_grade": (CORES, "cpu_ratio"),
    "memory_grade": (MEMORY, "memory_used_ratio"),
    "gpu_grade": (GPUS, "gpu_ratio"),
    "walltime_grade": (WALLTIME, "walltime_ratio"),
}
_HELP = "Grade of {}: good, low, poor or exceeded; missing if it cannot be judged."
GRADES: Mapping[str, JobColumn] = {
    name: JobColumn(name, TEXT, "", _HELP.format(share)) for name, (_, share) in _GRADED.items()
}
NEEDED = ("state", "wall_s", "rules", "oom_kills", *[share for _, share in _GRADED.values()])  # columns of the archive


def grades_of(row: Summary) -> Row:
    """Return the grades of a whole job's summary by name of `GRADES`; None for what cannot be judged."""
    wall_s, kills = row["wall_s"], row["oom_kills"]
    job = Judged(
        state=str(row["state"] or ""),
        is_running=row["state"] == RUNNING,
        wall_s=float(wall_s) if isinstance(wall_s, (int, float)) else 0.0,
        is_measured=row["rules"] is not None,
        is_killed=isinstance(kills, (int, float)) and kills > 0,
        rules=str(row["rules"] or "").split(),
    )
    found: Row = {}
    for name, (what, share) in _GRADED.items():
        value = row[share]
        found[name] = grade(what, float(value) if isinstance(value, (int, float)) else None, job) or None
    return found


def graded_jobs(
    archive: JobArchive, where: JobFilter, columns: Sequence[str], sort: str, descending: bool, offset: int, limit: int
) -> JobPage:
    """Return a page of jobs as `JobArchive.jobs`, whose columns may be grades."""
    if not GRADES.keys() & set(columns):
        return archive.jobs(where, columns, sort, descending, offset, limit)
    page = archive.jobs(where, stored(columns), sort, descending, offset, limit)
    rows = [{**row, **grades_of(row)} for row in page.rows]
    return page._replace(rows=[{name: row[name] for name in columns} for row in rows])


def stored(columns: Iterable[str]) -> list[str]:
    """Return the columns to be read for some columns with grades."""
    return list(dict.fromkeys([*[name for name in columns if name not in GRADES], *NEEDED]))
