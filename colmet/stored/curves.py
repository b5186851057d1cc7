"""Stored samples as lines over time: counters as rates, in readable units, with gaps for missing data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from colmet.common.growth import gaps, rates
from colmet.common.lines import Line
from colmet.common.schema import UNITS, Field, Unit
from colmet.stored.series import Series

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


def unit_of(field: Field, rate: bool) -> Unit:
    """Return the unit of a column, or that of its growth per second."""
    unit = UNITS[field.unit]
    return unit.per_second("CPU time" in field.help) if rate else unit


def is_rate(field: Field) -> bool:
    """Return whether a column is shown as a rate: counters, except dates."""
    return field.kind == "counter" and field.unit != "ts_date"


def lines(
    found: Iterable[Series],
    column: str,
    label: str | None,
    rate: bool,
    factor: float,
    most: Mapping[str, float] | None = None,
) -> list[Line]:
    """Return the lines of a column: one for each host, or for each of a host's GPUs, zones and the like.

    Args:
        found: rows of one table.
        column: of numbers.
        label: the column with the subject of each row, for tables with several rows at one time.
        rate: whether to return the growth per second.
        factor: multiplier of the values.
        most: by host, the upper limit of a rate; none if unknown.
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
    """Return a label as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _at_one_time(times: npt.NDArray[np.int64], labels: npt.NDArray[Any]) -> bool:
    """Return whether rows of one time have different labels; two rows of one label are samples in one second."""
    first = np.append(True, times[1:] != times[:-1])[: len(times)]
    return bool(np.any(labels[1:][~first[1:]] != labels[:-1][~first[1:]]))


def once(times: npt.NDArray[np.number], values: Floats) -> tuple[Floats, Floats]:
    """Return each time with a value, with its last one."""
    here = ~np.isnan(values)
    times, values = times[here].astype(np.float64), values[here]
    keep = np.append(times[1:] != times[:-1], True)[: len(times)]
    return times[keep], values[keep]


def broken(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Return a line, interrupted by a missing value in the middle of each gap."""
    at = np.flatnonzero(gaps(times))
    return np.insert(times, at + 1, (times[at] + times[at + 1]) / 2), np.insert(values, at + 1, np.nan)


def thinned(line: Line, most: int) -> Line:
    """Return a line of about `most` points: minimum and maximum of each part, so that no peak is lost."""
    count = len(line.times)
    if count <= most:
        return line
    edges = np.linspace(0, count, most // 2 + 1).astype(int)
    starts, sizes = edges[:-1], np.diff(edges)
    low, high = [np.repeat(of.reduceat(line.values, starts), sizes) for of in (np.fmin, np.fmax)]
    masks = np.isnan(line.values), line.values == low, line.values == high
    keep = [_first_in(starts, edges[1:], mask) for mask in masks]
    at = np.unique(np.concatenate(keep))
    return Line(line.host, line.label, line.times[at], line.values[at])


def averaged(line: Line, most: int) -> Line:
    """Return a line of about `most` points: the mean of each part of its time, without its interruptions."""
    here = ~np.isnan(line.values)
    times, values = line.times[here], line.values[here]
    if len(times) <= most:
        return Line(line.host, line.label, times, values)
    part = ((times - times[0]) / (times[-1] - times[0]) * (most - 1)).astype(int)
    starts = np.flatnonzero(np.append(True, np.diff(part) > 0))
    counts = np.diff(np.append(starts, len(part)))
    middle, mean = [np.add.reduceat(some, starts) / counts for some in (times - times[0], values)]
    return Line(line.host, line.label, times[0] + middle, mean)


def _first_in(starts: Places, ends: Places, mask: npt.NDArray[np.bool_]) -> Places:
    """Return the first place of a mask in each part, without parts that have none."""
    places = np.append(np.flatnonzero(mask), len(mask))
    found = places[np.searchsorted(places, starts)]
    return np.asarray(found[found < ends])


@dataclass(frozen=True)
class Band:
    """Many lines as one: the minimum, the median and the maximum at each time; shape (n,) each."""

    times: Floats
    low: Floats
    middle: Floats
    high: Floats


def band(many: Sequence[Line], most: int) -> Band:
    """Return the band of many lines, at up to `most` times; each line counts with its mean around that time."""
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
