"""Lines of a report on requests, and on what the batch system knows."""

from __future__ import annotations

from collections.abc import Iterator

from colmet.common.lines import LONGEST, shown, text_of
from colmet.common.text import UNKNOWN, Clock, cores, count, duration, rough_percent, size, utc
from colmet.jobs.advice import LEAST_WALL_S
from colmet.jobs.columns import RUNNING
from colmet.jobs.figures import BatchFacts, Judgement, Report, Use
from colmet.jobs.grades import BLAMES, CORES, EXCEEDED, GOOD, GPUS, LOW, MEMORY, POOR, WALLTIME
from colmet.jobs.report.requested import uses_of

GRADE_STYLES = {GOOD: "green", LOW: "yellow", POOR: "red", EXCEEDED: "bold red"}
MOST_STARTS = 4
WORDS = {CORES: "CPU efficiency", MEMORY: "Memory", GPUS: "GPU use", WALLTIME: "Walltime"}
BARS = {CORES: "cyan", MEMORY: "magenta", GPUS: "blue", WALLTIME: "green"}
_JUDGED = {CORES: "CPU time", MEMORY: "memory", GPUS: "GPU time", WALLTIME: "walltime"}
_UNMEASURED = {
    CORES: "its CPU time was not measured",
    MEMORY: "its memory was not measured",
    GPUS: "the use of its GPUs was not measured",
    WALLTIME: "its walltime is judged of the whole job alone",
}
LONGEST_NAME = 60  # characters of a job's name
_AMOUNTS = {CORES: cores, MEMORY: size, GPUS: cores, WALLTIME: duration}


def verdict(report: Report) -> list[Judgement]:
    """Return a few words on each graded use of a job, and the grade."""
    return [Judgement(use.what, _judged(use, report), use.grade) for use in uses_of(report) if use.grade]


def no_verdict(report: Report) -> str:
    """Return why there is no verdict, as a sentence."""
    if report.advice_withheld:
        why = shown(report.advice_withheld, LONGEST)
    elif report.wall_s < LEAST_WALL_S:
        why = f"the job has run for {duration(report.wall_s)}, and {duration(LEAST_WALL_S)} are required"
    else:
        why = "; ".join(_ungraded(report))
    return f"No verdict: {why}."


def _ungraded(report: Report) -> Iterator[str]:
    """Yield why the uses of a job with enough samples and time have no grade."""
    uses = uses_of(report)
    known = [use.what for use in uses]
    if CORES not in known:
        yield "its cores are unknown"
    if MEMORY not in known:
        yield "neither a limit nor a request of memory is known"
    for use in uses:
        if use.used is None:
            yield _UNMEASURED[use.what]
        elif BLAMES[use.what].intersection([one.rule for one in report.advice]):
            yield f"on its {_JUDGED[use.what]}, see the advice"
        elif use.ratio is None:
            yield f"how much it had of its {_JUDGED[use.what]} is unknown"
        elif report.state == RUNNING:
            yield f"its {_JUDGED[use.what]} is judged when it has ended"
        else:
            state = "" if report.batch is None else report.batch.state.replace("_", " ")
            yield f"its {_JUDGED[use.what]} is judged of jobs that are done, and its state is {state or 'unknown'}"


def _judged(use: Use, report: Report) -> str:
    share = "" if use.ratio is None else f" {rough_percent(use.ratio)}"
    of = ""
    if use.what == MEMORY and share:
        of = (
            f" of the requested {size(use.held)}" if use.requested is not None else f" of the limit of {size(use.held)}"
        )
        if report.batch is not None and report.batch.allocated_memory_bytes:
            of = f" of {size(use.held)}"
    return f"{WORDS[use.what]}{share}{of}"


def used_of_held(use: Use) -> str:
    """Return what was used of what the job held, and what it requested, if that is not the same."""
    is_count = use.what in (CORES, GPUS)
    amount = _AMOUNTS[use.what]
    held, requested = [count(one) if is_count else amount(one) for one in (use.held, use.requested)]
    mean = " on average" if is_count else ""
    beside = f"; {requested} requested" if use.requested is not None and requested != held else ""
    return f"{'GPUs' if use.what == GPUS else use.what}: {amount(use.used)} of {held}{mean}{beside}"


def about(batch: BatchFacts, clock: Clock) -> str:
    """Return the project, the queue and others in a line; empty without any."""
    waited = None
    if batch.submitted is not None and batch.started is not None and batch.started >= batch.submitted:
        waited = float(batch.started - batch.submitted)
    parts = (
        ("project", batch.project),
        ("queue", batch.queue),
        ("array", batch.array),
        ("after", batch.dependency),
        ("submitted", "" if batch.submitted is None else clock.text(batch.submitted)),
        ("waited", duration(waited or None).replace(UNKNOWN, "")),
    )
    return ", ".join([f"{name} {text_of(value[:LONGEST_NAME])}" for name, value in parts if value])


def others(report: Report) -> str:
    """Return the other jobs with this number."""
    this = min(report.starts, key=lambda one: abs(one - report.start))
    others = [utc(one).replace(" ", "T") + "Z" for one in report.starts if one != this]
    more = f" and {len(others) - MOST_STARTS} more" if len(others) > MOST_STARTS else ""
    return f"{len(report.starts)} jobs have this number; others by --start: {', '.join(others[:MOST_STARTS])}{more}."
