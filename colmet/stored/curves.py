"""What was stored, as lines over time: counters as rates, units that people read, gaps where nothing is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from colmet.common.growth import gaps, rates
from colmet.common.schema import Field
from colmet.common.units import UNITS, Unit
from colmet.stored.series import Series

Floats = npt.NDArray[np.float64]

MAX_NAME = 40  # characters of a host's or a GPU's name that are shown


def unit_of(field: Field, rate: bool) -> Unit:
    """Return the unit of a column, or that of its growth per second."""
    unit = UNITS[field.unit]
    return unit.per_second("CPU time" in field.help) if rate else unit


@dataclass(frozen=True)
class Line:
    """A value over time.

    Attributes:
        host: where it was measured.
        label: of what, where a host has several at one time: a GPU, a zone; else empty.
        times: seconds since 1970, ascending, shape (n,).
        values: NaN where the line is interrupted, shape (n,).
    """

    host: str
    label: str
    times: Floats
    values: Floats

    @property
    def name(self) -> str:
        """For a legend."""
        return " ".join([shown(text) for text in (self.host, self.label) if text])


def shown(text: str, longest: int = MAX_NAME) -> str:
    """Text of unknown origin as it can be shown: no control characters, and not too long."""
    text = "".join([one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text[: longest + 1]])
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def is_rate(field: Field) -> bool:
    """Whether a column is looked at by how fast it grows: counters, but dates."""
    return field.kind == "counter" and field.unit != "ts_date"


def lines(
    found: Iterable[Series],
    column: str,
    label: str | None,
    rate: bool,
    factor: float,
    most: Mapping[str, float] | None = None,
) -> list[Line]:
    """The lines of a column: one for each host, or for each of a host's GPUs, zones and the like.

    Args:
        found: rows of one table.
        column: of numbers.
        label: the column that says what each row is about, for tables with several rows at one time.
        rate: whether the growth per second is wanted.
        factor: by which values are multiplied.
        most: by host, what a rate cannot go beyond; none where that is not known.
    """
    made = []
    for series in found:
        values = series.values(column) * factor
        labels = series.columns.get(label) if label is not None else None
        if labels is None or not _at_one_time(series.times, labels):
            parts = [("", np.ones(len(series), bool))]
        else:
            parts = [(text(one), labels == one) for one in np.unique(labels)]
        for name, rows in parts:
            at, of_it = series.times[rows], values[rows]
            if rate:
                times, _, of_it = rates(at, of_it, (most or {}).get(series.host, math.inf))
            else:
                times, of_it = broken(*once(at, of_it))
            if not np.isnan(of_it).all():
                made.append(Line(series.host, name, times, of_it))
    return made


def text(value: object) -> str:
    """A label as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _at_one_time(times: npt.NDArray[np.int64], labels: npt.NDArray[Any]) -> bool:
    """Whether rows of one time have different labels; two rows of one label are samples in one second."""
    first = np.append(True, times[1:] != times[:-1])[: len(times)]
    return bool(np.any(labels[1:][~first[1:]] != labels[:-1][~first[1:]]))


def once(times: npt.NDArray[np.number], values: Floats) -> tuple[Floats, Floats]:
    """Each time that has a value, with the last one."""
    here = ~np.isnan(values)
    times, values = times[here].astype(np.float64), values[here]
    keep = np.append(times[1:] != times[:-1], True)[: len(times)]
    return times[keep], values[keep]


def broken(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """A line, interrupted by a value that is missing in the middle of each gap."""
    at = np.flatnonzero(gaps(times))
    return np.insert(times, at + 1, (times[at] + times[at + 1]) / 2), np.insert(values, at + 1, np.nan)


def thinned(line: Line, most: int) -> Line:
    """A line of about `most` points: the lowest and the highest of each part of it, so that no peak is lost."""
    count = len(line.times)
    if count <= most:
        return line
    edges = np.linspace(0, count, most // 2 + 1).astype(int)
    keep: list[int] = []
    for first, end in zip(edges[:-1], edges[1:]):
        part = line.values[first:end]
        missing = np.isnan(part)
        if missing.any():
            keep.append(int(first + missing.argmax()))
        if not missing.all():
            keep += [int(first + np.nanargmin(part)), int(first + np.nanargmax(part))]
    at = np.unique(keep)
    return Line(line.host, line.label, line.times[at], line.values[at])


@dataclass(frozen=True)
class Band:
    """Many lines as one: the lowest, the middle and the highest at each time; shape (n,) each."""

    times: Floats
    low: Floats
    middle: Floats
    high: Floats


def band(many: Sequence[Line], most: int) -> Band:
    """What many lines have in common, at up to `most` times; at each the mean of what a line has around it."""
    first, last = min(line.times[0] for line in many), max(line.times[-1] for line in many)
    steps = np.concatenate([np.diff(line.times) for line in many])
    period = max(float(np.median(steps)) if len(steps) else 1.0, 1.0, (last - first) / most)
    count = int((last - first) // period) + 1
    table = np.full((len(many), count), np.nan)
    for row, line in zip(table, many):
        here = ~np.isnan(line.values)
        at = ((line.times[here] - first) // period).astype(int)
        found = np.bincount(at, minlength=count)
        np.divide(np.bincount(at, line.values[here], count), found, out=row, where=found > 0)
    known = ~np.isnan(table).all(axis=0)
    times, table = first + (np.flatnonzero(known) + 0.5) * period, table[:, known]
    middle, high = [broken(times, of(table, axis=0))[1] for of in (np.nanmedian, np.nanmax)]
    return Band(*broken(times, np.nanmin(table, axis=0)), middle, high)
