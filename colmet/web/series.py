"""Compute the series of charts from samples: rates of counters, intervals with one value each, a series for each label.

Several series are folded to one: their sum, mean, min and max at each time. No function reads or waits. Times are
seconds since 1970; NaN is a missing value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common.growth import gaps
from colmet.common.growth import rates as rates_of
from colmet.common.schema import MISSING_INT, UNITS, Field
from colmet.stored.curves import broken, once, text
from colmet.stored.series import Series
from colmet.web.recent_cache import JobSamples

Floats = npt.NDArray[np.float64]

_STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
DAY_S = 86400.0
FOLDS = ("mean", "min", "max", "last")
DIGITS = 4  # of short numbers in answers


class RawSeries(NamedTuple):
    """A column of one host as measured."""

    host: str  # name of the host
    times: Floats  # ascending, shape (n,); one time may have several rows (GPUs, zones)
    values: Floats  # shape (n,)
    labels: Mapping[str, npt.NDArray[Any]]  # label columns by name, shape (n,) each


class SeriesPart(NamedTuple):
    """A value over time, for one combination of labels on one host."""

    host: str  # name of the host
    labels: Mapping[str, str]  # labels by column; empty if the host has one series
    times: Floats  # ascending, without duplicates, shape (n,)
    values: Floats  # shape (n,)
    weights: Floats | None = None  # seconds covered by each value, shape (n,); None for equal weights


def of_samples(samples: JobSamples, column: str, labels: Sequence[str]) -> RawSeries:
    """Return a column of received rows; all values are missing if the schema lacks the column."""
    field = next((one for one in samples.schema.fields if one.name == column and one.dtype[0] != "S"), None)
    count = len(samples.times)
    values = np.full(count, np.nan) if field is None else _numbers(samples.rows[column], field)
    names = samples.schema.name_set
    # copies: a view of a column would keep the whole rows in memory
    kinds = {
        name: samples.rows[name].copy() for name in labels if name in names and samples.rows[name].dtype.kind == "S"
    }
    return RawSeries(samples.host, samples.times, values, kinds)


def _numbers(column: npt.NDArray[Any], field: Field) -> Floats:
    values = column.astype(np.float64)
    if field.dtype == "i8":
        values[column == MISSING_INT] = np.nan
    values[~np.isfinite(values)] = np.nan
    return values


def of_series(series: Series, column: str, labels: Sequence[str]) -> RawSeries:
    """Return a column of stored rows."""
    found = {name: series.columns[name] for name in labels if name in series.columns}
    values = series.values(column)
    values[~np.isfinite(values)] = np.nan
    return RawSeries(
        series.host,
        series.times.astype(np.float64),
        values,
        {name: cells for name, cells in found.items() if cells.dtype.kind == "S"},
    )


def before(raw: RawSeries, since: float, until: float, memory_from: float) -> RawSeries:
    """Return stored values of an interval, up to `memory_from`: the start of the complete samples in memory, or inf.

    Stored times are whole seconds: the second of that start is dropped, as its samples are duplicates, or other samples
    of the same second.
    """
    end = math.floor(memory_from) if memory_from < math.inf else math.inf
    keep = (raw.times >= since) & (raw.times <= until) & (raw.times < end)
    return raw if keep.all() else _picked(raw, keep)


def joined(parts: Iterable[RawSeries]) -> list[RawSeries]:
    """Join the values of several sources for each host, sorted by time."""
    of_hosts: dict[str, list[RawSeries]] = {}
    for raw in parts:
        if len(raw.times):
            of_hosts.setdefault(raw.host, []).append(raw)
    return [_one(host, found) for host, found in sorted(of_hosts.items())]


def _picked(raw: RawSeries, keep: npt.NDArray[Any]) -> RawSeries:
    return RawSeries(raw.host, raw.times[keep], raw.values[keep], {name: one[keep] for name, one in raw.labels.items()})


def _one(host: str, parts: Sequence[RawSeries]) -> RawSeries:
    if len(parts) == 1:
        return parts[0]
    names = dict.fromkeys([name for part in parts for name in part.labels])
    labels = {
        name: np.concatenate([part.labels.get(name, np.zeros(len(part.times), "S1")) for part in parts])
        for name in names
    }
    times = np.concatenate([part.times for part in parts])
    made = RawSeries(host, times, np.concatenate([part.values for part in parts]), labels)
    return _picked(made, np.argsort(times, kind="stable")) if (np.diff(times) < 0).any() else made


def keys_of(raws: Iterable[RawSeries], labels: Sequence[str]) -> list[str]:
    """Return a minimal list of labels to distinguish rows of one time, in their order."""
    needed: set[str] = set()
    for raw in raws:
        groups = _numbered(raw.times)
        for name in labels:
            count = int(groups.max()) + 1 if len(groups) else 0
            if count == len(groups):
                break
            cells = raw.labels.get(name)
            if cells is None:
                continue
            finer = _finer(groups, cells)
            if int(finer.max()) + 1 > count:
                needed.add(name)
                groups = finer
    return [name for name in labels if name in needed]


def _numbered(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.asarray(np.unique(values, return_inverse=True)[1].reshape(-1), np.int64)


def _finer(groups: npt.NDArray[np.int64], cells: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    numbers = _numbered(cells)
    return _numbered(groups * (int(numbers.max()) + 1) + numbers)


def parts_of(raws: Iterable[RawSeries], keys: Sequence[str]) -> list[SeriesPart]:
    """Return a series for each host, or for each combination of its labels."""
    found = []
    for raw in raws:
        there = [name for name in keys if name in raw.labels]
        if not there:
            found.append(SeriesPart(raw.host, {}, raw.times, raw.values))
            continue
        groups = np.zeros(len(raw.times), np.int64)
        for name in there:
            groups = _finer(groups, raw.labels[name])
        order = np.argsort(groups, kind="stable")
        bounds = np.flatnonzero(np.diff(groups[order])) + 1
        for rows in np.split(order, bounds):
            if len(rows):
                labels = {name: text(raw.labels[name][rows[0]]) for name in there}
                found.append(SeriesPart(raw.host, labels, raw.times[rows], raw.values[rows]))
    return found


def levels(part: SeriesPart) -> SeriesPart:
    """Return the values as measured, without duplicate times."""
    times, values = once(part.times, part.values)
    return part._replace(times=times, values=values)


def rates(part: SeriesPart, factor: float = 1.0, most: float = math.inf) -> SeriesPart:
    """Return the growth of a counter per second; NaN after a restart, after a gap, and for rates above `most`."""
    found = rates_of(part.times, part.values * factor, most)
    return part._replace(times=found.times, values=found.values, weights=found.seconds)


def unit_of(unit: str | None, is_rate: bool) -> tuple[str | None, float]:
    """Return the displayed unit, and the factor of stored numbers."""
    if not is_rate or unit is None:
        return unit, 1.0
    if unit in UNITS and UNITS[unit].family == "duration":
        return "seconds/s", UNITS[unit].scale
    return f"{unit}/s", 1.0


class Extent(NamedTuple):
    """The number of points of one or more series, of those with most, and their times."""

    points: int = 0
    first: float = math.inf
    last: float = -math.inf

    def joined(self, part: SeriesPart) -> Extent:
        """Return the extent with that of another series."""
        if not len(part.times):
            return self
        points = len(part.times) + int(np.count_nonzero(gaps(part.times)))
        first, last = float(part.times[0]), float(part.times[-1])
        return Extent(max(self.points, points), min(self.first, first), max(self.last, last))


def step_of(extent: Extent, points: int) -> float:
    """Return the interval width in seconds to limit each series to `points` values; 0 if every sample fits."""
    if extent.points <= points:
        return 0.0
    least = (extent.last - extent.first) / (points - 1)  # first and last interval may be partial: one interval more
    if least > DAY_S:
        return DAY_S * math.ceil(least / DAY_S)
    scale = 1.0
    while least <= scale / 10:  # several samples per second
        scale /= 10
    return next(scale * step for step in _STEPS if scale * step >= least)


def folded(part: SeriesPart, step: float, fold: str) -> tuple[Floats, Floats]:
    """Return the starts of intervals, and a value for each, NaN once for each gap.

    Intervals are `step` seconds wide, and begin at its multiples; with step 0 each sample is returned. `fold` is mean,
    min, max or last.
    """
    times, values = part.times, part.values
    if not len(times):
        return times, values
    if step <= 0:
        return broken(times, values)
    numbers = np.floor(times / step)
    starts = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
    made = _folded(values, starts, fold, part.weights)
    begins = numbers[starts] * step
    at = np.flatnonzero(gaps(begins))
    return np.insert(begins, at + 1, begins[at] + step), np.insert(made, at + 1, np.nan)


def _folded(values: Floats, starts: npt.NDArray[np.int64], fold: str, weights: Floats | None) -> Floats:
    if fold in ("min", "max"):
        least = fold == "min"
        return np.asarray((np.fmin if least else np.fmax).reduceat(values, starts), np.float64)
    known = ~np.isnan(values)
    if fold == "last":
        # position of the last row with a value in each interval
        at = np.where(known, np.arange(len(values)), -1)
        last = np.maximum.reduceat(at, starts)
        return np.where(last >= starts, values[np.maximum(last, 0)], np.nan)
    weight = np.where(known, 1.0 if weights is None else weights, 0.0)
    total = np.add.reduceat(np.where(known, values, 0.0) * weight, starts)
    count = np.add.reduceat(weight, starts)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(count > 0, total / count, np.nan)


def json_values(values: Floats) -> list[float | None]:
    """Return numbers for JSON: None (null) for a missing value."""
    return [round(value, 6) if math.isfinite(value) else None for value in values.tolist()]


def short_values(values: Iterable[float]) -> list[float | None]:
    """Return numbers for JSON with `DIGITS` significant digits, whole if they are large; None for a missing value."""
    short = [float(f"{value:.{DIGITS}g}") for value in values]
    return [None if not math.isfinite(one) else int(one) if abs(one) >= 10**DIGITS else one for one in short]


CARRIED = 2  # intervals for which the last value of a host counts


class Grid(NamedTuple):
    """Intervals of equal width, shared by all series."""

    origin: float  # start of an interval
    width: float  # seconds
    shown: float  # seconds from the start of an interval to its time in answers


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


def spread_of(parts: Iterable[SeriesPart], grid: Grid, extent: Extent, fold: str) -> dict[str, Floats]:
    """Return the sum, mean, min and max of some series at ascending `times`: the mean and so on of the known values.

    A series counts from its first value to its last. In a gap, its last value counts for `CARRIED` intervals; then its
    value is missing, and with it the sum.
    """
    if not extent.points:
        return dict.fromkeys(("times", "sum", "mean", "min", "max"), np.zeros(0))
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
    sums = np.where(lacking | (known == 0), np.nan, sums)
    columns = {"sum": sums, "mean": means, "min": mins, "max": maxs}
    lines = {name: broken(times, column[keep]) for name, column in columns.items()}
    return {"times": lines["sum"][0], **{name: values for name, (_, values) in lines.items()}}


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


def spread_answer(spread: Mapping[str, Floats], series: int) -> dict[str, Any]:
    """Return a spread as JSON values, with the number of its series."""
    values = {name: json_values(spread[name]) for name in ("sum", "mean", "min", "max")}
    return {"series": series, "times": spread["times"].round(3).tolist(), **values}
