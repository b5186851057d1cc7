"""Fold the series of several hosts and devices to one: their sum, mean, min and max at each time.

No function reads or waits. Times are seconds since 1970; NaN is a missing value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from colmet.stored.curves import broken
from colmet.web.series import Extent, Floats, SeriesPart, folded, json_values, step_of

CARRIED = 2  # intervals for which the last value of a host counts


class Grid(NamedTuple):
    """Intervals of equal width, shared by all series."""

    origin: float  # start of an interval
    width: float  # seconds
    shown: float  # seconds from the start of an interval to its time in answers


class NodeSpread(NamedTuple):
    """Several series as one, with one value for each time."""

    times: Floats  # ascending, shape (n,)
    sums: Floats  # NaN if the value of a series is missing, shape (n,)
    means: Floats  # of the known values; likewise the next ones
    mins: Floats
    maxs: Floats


def period_of(part: SeriesPart) -> float:
    """Return the usual time between two values; 0 for a single value."""
    if len(part.times) < 2:
        return 0.0
    span = float(part.times[-1] - part.times[0])
    return span / max(1, round(span / float(np.median(np.diff(part.times)))))  # exact although samples may be late


def grid_of(extent: Extent, period: float, points: int) -> Grid:
    """Return at most `points` intervals over all series: as wide as their period, if there is room for that.

    Then values are in the middle of their interval, so a slightly early or late one is in its own.
    """
    width = period if period > 0 else 1.0
    if not extent.points or round((extent.last - extent.first) / width) < points:
        return Grid(extent.first - width / 2 if extent.points else 0.0, width, width / 2)
    return Grid(0.0, step_of(extent._replace(points=points + 1), points), 0.0)


def spread_of(parts: Iterable[SeriesPart], grid: Grid, extent: Extent, fold: str) -> NodeSpread:
    """Return the sum, mean, min and max of some series.

    A series counts from its first value to its last. In a gap, its last value counts for `CARRIED` intervals; then its
    value is missing, and with it the sum.
    """
    if not extent.points:
        return NodeSpread(*[np.zeros(0)] * 5)
    first = math.floor((extent.first - grid.origin) / grid.width)
    count = math.floor((extent.last - grid.origin) / grid.width) - first + 1
    sums, known, lacking = np.zeros(count), np.zeros(count), np.zeros(count, bool)
    mins, maxs, fresh = np.full(count, np.nan), np.full(count, np.nan), np.zeros(count, bool)
    for part in parts:
        if not len(part.times):
            continue
        begins, cells = folded(part._replace(times=part.times - grid.origin), grid.width, fold)
        at = np.clip(np.rint(begins / grid.width).astype(np.int64) - first, 0, count - 1)
        values, counts = _carried(at, cells, count)
        fresh[at[~np.isnan(cells)]] = True
        here = ~np.isnan(values)
        sums[here] += values[here]
        known += here
        lacking |= counts & ~here
        mins, maxs = np.fmin(mins, values), np.fmax(maxs, values)
    keep = fresh | (lacking & (known == 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.where(known > 0, sums / known, np.nan)
    times = np.asarray(grid.origin + grid.shown + (first + np.flatnonzero(keep)) * grid.width, np.float64)
    columns = (np.where(lacking | (known == 0), np.nan, sums), means, mins, maxs)
    lines = [broken(times, column[keep]) for column in columns]
    return NodeSpread(lines[0][0], *[values for _, values in lines])


def _carried(at: Any, cells: Floats, count: int) -> tuple[Floats, Any]:
    """Return the values of a series in all intervals, and in which of them it counts."""
    intervals = np.arange(count)
    source = np.full(count, -1)
    source[at] = np.arange(len(at))
    last = np.maximum.accumulate(np.where(source >= 0, intervals, -1))
    is_near = (last >= 0) & (intervals - last <= CARRIED)
    found = np.where(is_near, cells[source[np.maximum(last, 0)]], np.nan)
    begin = 0 if at[0] <= CARRIED else at[0]  # all series of a job begin at about the same time
    return found, (intervals >= begin) & (intervals <= at[-1] + CARRIED)


def spread_answer(spread: NodeSpread, series: int) -> dict[str, Any]:
    """Return a spread as JSON values, with the number of its series."""
    return {
        "series": series,
        "times": spread.times.round(3).tolist(),
        "sum": json_values(spread.sums),
        "mean": json_values(spread.means),
        "min": json_values(spread.mins),
        "max": json_values(spread.maxs),
    }
