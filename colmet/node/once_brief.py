"""One screen of what is measured on this node: ``colmet-node --once --brief``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from colmet.common import measures
from colmet.common.daemon.checks import Finding, Level
from colmet.common.measures import Measure
from colmet.common.schema import Table
from colmet.common.text import UNKNOWN, columns, cores, count, counted, duration, printable, size, wrap
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.jobs.places import ABSENT, PlaceState

WIDTH = 80
MOST_JOBS = 10
LONGEST_USER = 16  # characters
_INDENT = "  "
# Heading, measure, and text of its value.
_FIGURES: Sequence[tuple[str, Measure, Callable[[float], str]]] = (
    ("tasks", measures.TASKS_NOW, count),
    ("cores", measures.CPUS, cores),
    ("CPU time", measures.CPU_USED, duration),
    ("memory", measures.MEMORY, size),
    ("read", measures.CHARGED_READ, size),
    ("written", measures.CHARGED_WRITE, size),
)

Values = Mapping[tuple[int, str, str], float]  # by job, table and column; missing ones are not there


class Tried(NamedTuple):
    """A backend, and whether it can measure here."""

    name: str
    is_on: bool
    is_requested: bool
    finding: Finding


def values_of(tables: Sequence[Table]) -> Values:
    """Return the known values of one sample."""
    found = {}
    for table in tables:
        for sample in table.samples():
            for name, value in sample.values.items():
                if isinstance(value, (int, float)):
                    found[sample.job_id, table.schema.name, name] = float(value)
    return found


def lines_of(
    head: Sequence[str],
    places: Sequence[PlaceState],
    jobs: Sequence[Job],
    tried: Sequence[Tried],
    values: Values,
) -> Iterator[str]:
    """Yield the lines: the jobs with a line for each, the working backends, and the others with reasons.

    Args:
        head: about this node.
        places: that were searched for jobs.
        jobs: found there; job 0 is the node.
        tried: all backends.
        values: of one sample.
    """
    yield from head
    yield ""
    yield from _jobs(places, [job for job in jobs if job.id != NODE_JOB], values)
    yield ""
    yield from _backends(tried)


def _jobs(places: Sequence[PlaceState], jobs: Sequence[Job], values: Values) -> Iterator[str]:
    here = [printable(place.path) for place in places if place.state != ABSENT]
    where = f" in {', '.join(here)}" if here else ""
    if not jobs:
        why = "" if here else ": none of the places of OAR and Slurm is here; --cpuset_rootpath names another one"
        yield from wrap(f"No job found{where}{why}.", WIDTH)
        return
    yield from wrap(f"{counted(len(jobs), 'jobs')} found{where}", WIDTH)
    shown = sorted(jobs, key=lambda job: -(_value(job, measures.CPU_USED, values) or 0.0))[:MOST_JOBS]
    rows = [["job", "user", *[heading for heading, _, _ in _FIGURES]]]
    for job in shown:
        figures = [(text, _value(job, measure, values)) for _, measure, text in _FIGURES]
        cells = [UNKNOWN if value is None else text(value) for text, value in figures]
        rows.append([str(job.id), printable(job.user)[:LONGEST_USER] or UNKNOWN, *cells])
    yield from columns(rows, range(2, len(rows[0])), _INDENT)
    if len(jobs) > len(shown):
        yield f"{_INDENT}and {len(jobs) - len(shown):,} more, with less CPU time"


def _value(job: Job, measure: Measure, values: Values) -> float | None:
    """Return a measure of a job, from the first of its columns with a value."""
    for source in measure.sources:
        value = values.get((job.id, source.table, source.column))
        if value is not None:
            return value * source.factor
    return None


def _backends(tried: Sequence[Tried]) -> Iterator[str]:
    """Yield those that are on in a line, those that cannot measure with reasons, and those not requested in a line."""
    groups = (
        ("on", [one.name for one in tried if one.is_on and one.finding.level == Level.PASS]),
        ("not requested", [one.name for one in tried if not one.is_requested]),
    )
    failing = [one for one in tried if one.finding.level != Level.PASS]
    for word, names in groups:
        if names:
            yield from wrap(f"{word}: {', '.join(names)}", WIDTH, "", _INDENT)
        if word == "on":
            for one in failing:
                yield from wrap(f"{one.name} {one.finding.found}", WIDTH, "", _INDENT)
