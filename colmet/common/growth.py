"""Growth of a counter between its readings: the one place that computes growth, rates and sums.

A counter that decreases was reset, or the rows mix two senders, or a clock was set back. Rows do not identify the
cause. So growth counts only if it is possible: not negative, within the capacity of the hardware, and no leap to the
level of another counter. All else is missing, NaN: a gap, never 0 and never a spike.

Times are seconds since 1970. Nothing here reads or waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common.measures import (
    BY_CPUS,
    BY_TASKS,
    BY_TIME,
    CPUS,
    NODE_CPU_COUNT,
    TASKS_NOW,
    TASKS_PEAK,
    WAIT_CPU,
    bounded,
)

Floats = npt.NDArray[np.float64]

GAP_PERIODS = 3  # no rate between readings more than this many periods apart
ROUNDING = 1 + 1e-9  # of a bound, for sums and differences of fractions
SLACK_S = 1.0  # stored times are whole seconds, and counters are read shortly after the time of their sample
MOST_FALLS = 64  # of a counter, by clocks that were set; more are of two senders
MOST_WATTS = 5000.0  # of one GPU or one RAPL zone; the largest have a third of that


class Capacity(NamedTuple):
    """CPUs and most tasks of a job, or a node, at one time, on one host, or arrays of many hosts. NaN is unknown."""

    cpus: float | Floats = math.nan
    tasks: float | Floats = math.nan

    def joined(self, other: Capacity) -> Capacity:
        """Return the maximum of both."""
        return Capacity(*[float(np.fmax(*pair)) for pair in zip(self, other)])


_CPU_TIME, _WAITS, _PRESSURE = bounded(BY_CPUS), bounded(BY_TASKS), bounded(BY_TIME)
CAPACITY_COLUMNS = (CPUS.best.column, TASKS_NOW.best.column, TASKS_PEAK.best.column)  # all of one table
NODE_CPUS = (NODE_CPU_COUNT.best.table, NODE_CPU_COUNT.best.column)


def ceiling(table: str, column: str, capacity: Capacity) -> Floats:
    """Return the maximum growth of a time counter in one second, in seconds; infinite if unknown.

    CPU time is bounded by the CPUs, waits by the tasks. If the number of tasks is unknown, the CPUs bound waits for I/O
    and memory, and waits for a CPU are unbounded: any number of tasks may wait for one.
    """
    cpus, tasks = np.asarray(capacity.cpus, np.float64), np.asarray(capacity.tasks, np.float64)
    most = np.full(cpus.shape, np.nan)
    if (table, column) in _PRESSURE:
        most = np.ones(cpus.shape)
    elif (table, column) in _CPU_TIME:
        most = cpus
    elif (table, column) in _WAITS:  # more tasks may have existed between two samples
        most = np.where(tasks > 0, np.fmax(tasks, cpus), np.nan if (table, column) in WAIT_CPU.places else cpus)
    return np.where(most > 0, most, np.inf)


def is_late(table: str, column: str) -> bool:
    """Return whether a counter grows only at the end of an event: the kernel counts a wait when it is over."""
    return (table, column) in _WAITS


def largest(*columns: Floats) -> float:
    """Return the maximum of some columns; NaN if all are missing."""
    return float(np.fmax.reduce(np.concatenate([[np.nan], *columns])))


def of_columns(columns: Mapping[str, Floats]) -> Capacity:
    """Return a job's maximum capacity at one time, from the columns `CAPACITY_COLUMNS`."""
    cpus, *tasks = [columns[name] for name in CAPACITY_COLUMNS]
    return Capacity(largest(cpus), largest(*tasks))


def is_bounded(table: str, column: str) -> bool:
    """Return whether `ceiling` may bound a column."""
    return (table, column) in _CPU_TIME | _WAITS | _PRESSURE


def plausible(grown: Floats, seconds: Floats, most: float | Floats = math.inf) -> Floats:
    """Return `grown`, the growth of each step; NaN if it is impossible: beyond `most` in a second, if that is known."""
    with np.errstate(invalid="ignore"):
        possible = (grown >= 0) & (seconds >= 0)
        if np.any(most < math.inf):
            possible &= ~(grown > most * (seconds + SLACK_S) * ROUNDING)
        return grown if possible.all() else np.where(possible, grown, np.nan)


def per_second(grown: Floats, seconds: Floats, most: float | Floats = math.inf) -> Floats:
    """Return the rates of `plausible` growth: never above `most`, NaN for two readings with one time."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(seconds > 0, plausible(grown, seconds, most) / seconds, np.nan)
    return np.minimum(found, np.where(np.isnan(most), np.inf, most))


def in_order(times: npt.NDArray[np.number], values: Floats) -> tuple[Floats, Floats]:
    """Return the known readings of a counter by time, those of one second by value: stores need not keep order."""
    here = np.isfinite(values)
    if not here.all():
        times, values = times[here], values[here]
    at = times.astype(np.float64)
    if (np.diff(values) >= 0).all() and (np.diff(at) >= 0).all():
        return at, values
    order = np.lexsort((values, at))
    return at[order], values[order]


def _without_strays(at: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Drop each single reading below its predecessor and not above its successor.

    A single low reading comes from a clock that was set back. If every other one is low, there is a second sender: they
    stay, and no step is known.
    """
    falls = values[1:-1] < values[:-2]
    if not falls.any():
        return at, values
    low = np.zeros(len(values) + 4, bool)
    low[3:-3] = falls & (values[2:] >= values[:-2])
    keep = ~low[2:-2] | low[:-4] | low[4:]
    return at[keep], values[keep]


def _without_reruns(at: Floats, values: Floats, most: float) -> tuple[Floats, Floats]:
    """Drop the readings from one fall to the next if a possible step before them spans their values and lasts longer.

    A clock was set forward and back: that step has the growth of all of them. A counter that was reset after a gap,
    and did not get back to where it was before, looks alike: its growth is dropped, too.
    """
    edges = np.flatnonzero(np.diff(values) < 0) + 1
    if not 0 < len(edges) <= MOST_FALLS:
        return at, values
    keep = np.ones(len(values), bool)
    steps = np.where(np.isnan(plausible(np.diff(values), np.diff(at), most)), 0.0, np.diff(at))
    for first, end in zip(edges, [*edges[1:], len(values)]):
        fits = (values[: first - 1] <= values[first]) & (values[1:first] >= values[end - 1])
        keep[first:end] = not (fits & (steps[: first - 1] > at[end - 1] - at[first])).any()
    return at[keep], values[keep]


def grown(times: Floats, values: Floats, most: float = math.inf) -> Floats:
    """Return the growth from each reading to the next; NaN if impossible. Shape (n - 1,).

    `times` are ascending, `values` without NaN, shape (n,); `most` is the maximum growth in a second.
    """
    steps = np.diff(values)
    found = plausible(steps, np.diff(times), most)
    if (steps < 0).any():
        found[_leaps_up(values) | _leaps_up(-values[::-1])[::-1]] = np.nan
    return found


def gaps(times: Floats) -> npt.NDArray[np.bool_]:
    """Return a mask of the gaps: steps in time far longer than their neighbours; shape (n - 1,).

    The sampling period may change later: the two steps before and after define it.
    """
    steps = np.diff(times)
    if not len(steps) or steps.max() <= GAP_PERIODS * steps.min():
        return np.zeros(len(steps), bool)
    around = np.sort(np.lib.stride_tricks.sliding_window_view(np.pad(steps, 2, constant_values=np.inf), 5), axis=1)
    middle = (np.isfinite(around).sum(axis=1) - 1) // 2
    return np.asarray(steps > GAP_PERIODS * around[np.arange(len(steps)), middle])


class Rates(NamedTuple):
    """Growth of a counter per second, for each time with a value except the first; shape (n - 1,) each."""

    times: Floats  # ends of the steps, unique and ascending
    seconds: Floats  # duration of each step
    values: Floats  # NaN if unknown


def rates(times: npt.NDArray[np.number], values: Floats, most: float = math.inf) -> Rates:
    """Return the growth per second up to each time but the first; NaN after a gap, and for impossible growth.

    Of rows with the same second the first counts: a job's last row may share the second of the previous sample. With
    the last row, the growth of nearly two seconds would count as that of one.

    Args:
        times: of the readings, in any order, shape (n,).
        values: NaN if missing, shape (n,).
        most: maximum growth in a second.
    """
    at, values = _without_strays(*in_order(times, values))
    if len(at) < 2:
        return Rates(at[:0], at[:0], at[:0])
    seconds = np.diff(at)
    if not seconds.all():
        first = np.append(True, seconds != 0)
        at, values = at[first], values[first]
        seconds = np.diff(at)
    found = grown(at, values, most) / seconds
    if most < math.inf:
        np.minimum(found, most, out=found)
    found[gaps(at)] = np.nan
    return Rates(at[1:], seconds, found)


def _leaps_up(values: Floats) -> npt.NDArray[np.bool_]:
    """Return a mask of the steps that return in one leap to a level left before, or beyond it: another sender's.

    A counter after a reset passes its old level, too, but in steps small compared with the way. With reversed values,
    the mask has the steps that leave the level.
    """
    steps = np.diff(values)
    if not (steps < 0).any():
        return np.zeros(len(steps), bool)
    highest = np.fmax.accumulate(values)[:-1]
    fell = np.append(True, steps < 0)
    low = values[np.maximum.accumulate(np.where(fell, np.arange(len(values)), 0))][:-1]
    return np.asarray((values[:-1] < highest) & (values[1:] >= highest) & (steps > 0.5 * (highest - low)))


class Sum(NamedTuple):
    """Cumulative sum of a counter at ascending times; it never falls. `left_out` impossible steps are not in it."""

    times: Floats
    values: Floats
    left_out: int

    @property
    def total(self) -> float:
        """Return the final sum; NaN without a reading."""
        return float(self.values[-1]) if len(self.values) else math.nan


def summed(
    times: npt.NDArray[np.number],
    values: Floats,
    most: float = math.inf,
    since: float | None = None,
    late: bool = False,
) -> Sum:
    """Return the cumulative sum of a counter across resets and mixed senders. Later rows never make it less.

    After a decrease, growth from the lower level is added. If the counter then returns to its former level in one leap,
    only growth beyond that level is added. Growth under a clock that was set forward, and back, counts once.

    Args:
        times: of the readings, in any order, shape (n,).
        values: NaN if missing, shape (n,).
        most: maximum growth in a second: in each step and in all of them.
        since: when the counter was 0; None if its first value was counted earlier and is to be excluded.
        late: whether a step may include growth of the time before it, see `is_late`.
    """
    at, values = _without_reruns(*in_order(times, values), most)
    if not len(at):
        return Sum(at, values, 0)
    # the first step leads from 0 to the first value, or is none
    steps = np.diff(values, prepend=0.0 if since is not None else values[0])
    seconds = np.diff(at, prepend=at[0] if since is None else min(since, at[0]))
    leaps = np.flatnonzero(_leaps_up(values)) + 1
    if len(leaps):
        highest = np.maximum.accumulate(values)
        was_highest = np.maximum.accumulate(np.where(values >= highest, np.arange(len(values)), 0))
        steps[leaps] = values[leaps] - highest[leaps - 1]
        seconds[leaps] = at[leaps] - at[was_highest[leaps - 1]]
    elapsed = at - at[0] + seconds[0]
    known = plausible(steps, elapsed if late else seconds, most)
    left_out = int(np.count_nonzero(np.isnan(known) & (steps > 0)))
    total = np.nancumsum(known)
    if math.isfinite(most):  # a second of slack for each step may exceed the total time
        beyond = np.maximum.accumulate(np.maximum(total - most * (elapsed + SLACK_S) * ROUNDING, 0.0))
        left_out += int(beyond[-1] > 0)
        total = total - beyond
    return Sum(at, total, left_out)
