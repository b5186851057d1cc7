"""Choices of perf events, with period and job: ``name`` or ``name:period:job_id``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from colmet.common.errors import ConfigError

MAX_TEXT = 4096  # characters of a list
_DECIMAL = re.compile(r"[0-9]{1,10}(?:\.[0-9]{1,9})?", re.ASCII)
_JOB = re.compile(r"[0-9]{1,18}", re.ASCII)
_SHORTEST_S, _LONGEST_S = 0.01, 86400.0


class EventChoice(NamedTuple):
    """One event to count."""

    name: str
    period_s: float | None = None  # least time from one value to the next; None for a value at every sample
    job_id: int | None = None  # the only job counted; None for all


def parse(text: str) -> EventChoice:
    """Return the choice in a text, else ConfigError; -1 as its period or job means the default."""
    name, *rest = text.split(":")
    if not name or not name.isprintable() or len(rest) not in (0, 2):
        raise ConfigError(f"{text!r:.100}: give NAME, or NAME:PERIOD:JOB with -1 for every sample and for all jobs")
    if not rest:
        return EventChoice(name)
    period, job = rest
    period_s = float(period) if _DECIMAL.fullmatch(period) else 0.0
    if period != "-1" and not _SHORTEST_S <= period_s <= _LONGEST_S:
        raise ConfigError(f"{text!r:.100}: {period!r:.40} is no period of {_SHORTEST_S:g} to {_LONGEST_S:g} s, nor -1")
    number = int(job) if _JOB.fullmatch(job) else 0
    if job != "-1" and not number:
        raise ConfigError(f"{text!r:.100}: {job!r:.40} is not the number of a job, nor -1")
    return EventChoice(name, period_s or None, number or None)


def parse_all(texts: Sequence[str], most: int) -> list[EventChoice]:
    """Return the choices in several texts; ConfigError if one is not a choice, or for none or more than `most`."""
    if not 0 < len(texts) <= most:
        raise ConfigError(f"{len(texts)} events; give {most} at most, and one at least")
    return [parse(text) for text in texts]


def split(text: str) -> list[str]:
    """Return the parts of a list with commas; commas between slashes belong to the name of an event.

    Raises:
        ConfigError: it is too long.
    """
    if len(text) > MAX_TEXT:
        raise ConfigError(f"a list of events of {len(text)} characters; give at most {MAX_TEXT}")
    between = text.split("/")  # the odd ones are between slashes
    marked = "/".join(part if n % 2 else part.replace(",", "\0") for n, part in enumerate(between))
    return [part.strip() for part in marked.split("\0")]


def text(choice: EventChoice) -> str:
    """Return the shortest text of a choice."""
    if choice == EventChoice(choice.name):
        return choice.name
    period = -1 if choice.period_s is None else choice.period_s
    return f"{choice.name}:{period:.10g}:{-1 if choice.job_id is None else choice.job_id}"
