"""Lines of a report on requests, and on what the batch system knows."""

from __future__ import annotations

from colmet.common.runtime.quantities import UNKNOWN, cores, count, duration, rough_percent, size, utc
from colmet.report.advice import EXCEEDED, GOOD, LOW, POOR
from colmet.report.model import BatchFacts, Report, Use
from colmet.report.requested import uses_of
from colmet.stored.stays import text_of

GRADES = {GOOD: "green", LOW: "yellow", POOR: "red", EXCEEDED: "bold red"}  # styles
MOST_STARTS = 4
WORDS = {"cores": "CPU", "memory": "memory", "gpus": "GPU", "walltime": "walltime"}
BARS = {"cores": "cyan", "memory": "magenta", "gpus": "blue", "walltime": "green"}
LONGEST_NAME = 60  # characters of a job's name
_AMOUNTS = {"cores": cores, "memory": size, "gpus": cores, "walltime": duration}


def verdict(report: Report) -> list[tuple[str, str]]:
    """Return a few words on each graded use, and the grade."""
    return [
        (f"{WORDS[use.what]} {rough_percent(use.ratio)} {use.grade}", use.grade)
        for use in uses_of(report)
        if use.grade and use.ratio is not None
    ]


def of_request(use: Use) -> str:
    """Return what was used of a request."""
    amount = _AMOUNTS[use.what]
    requested = count(use.requested) if use.what in ("cores", "gpus") else amount(use.requested)
    mean = " on average" if use.what in ("cores", "gpus") else ""
    return f"{'GPUs' if use.what == 'gpus' else use.what}: {amount(use.used)} of {requested}{mean}"


def about(batch: BatchFacts) -> str:
    """Return the project, the queue and others in a line; empty without any."""
    waited = None
    if batch.submitted is not None and batch.started is not None and batch.started >= batch.submitted:
        waited = float(batch.started - batch.submitted)
    parts = (
        ("project", batch.project),
        ("queue", batch.queue),
        ("array", batch.array),
        ("after", batch.dependency),
        ("submitted", "" if batch.submitted is None else f"{utc(batch.submitted)} UTC"),
        ("waited", duration(waited or None).replace(UNKNOWN, "")),
    )
    return ", ".join([f"{name} {text_of(value[:LONGEST_NAME])}" for name, value in parts if value])


def others(report: Report) -> str:
    """Return the other jobs with this number."""
    this = min(report.starts, key=lambda one: abs(one - report.start))
    others = [utc(one).replace(" ", "T") + "Z" for one in report.starts if one != this]
    more = f" and {len(others) - MOST_STARTS} more" if len(others) > MOST_STARTS else ""
    return f"{len(report.starts)} jobs have this number; others by --start: {', '.join(others[:MOST_STARTS])}{more}."
