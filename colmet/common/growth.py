"""By how much a counter has grown between its readings: the one place where two readings become growth, rate or sum.

A counter that goes back began again, or the rows are of two senders, or of a clock that was set back. Rows do not say
which it is. So growth counts only where it is possible: it is not negative, not more than the hardware can do in the
time, and no leap to the level of another counter. All else is missing, NaN: a gap, never 0 and never a spike.

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

GAP_PERIODS = 3  # readings that are more than this many periods apart have no rate
SLACK_S = 1.0  # stored times are whole seconds, and what a sample reads is read after its time
MOST_WATTS = 5000.0  # of one GPU or one RAPL zone; the largest have a third of that


class Capacity(NamedTuple):
    """What a job, or a node, has on one host, or on each of many: arrays of one shape. NaN is not known.

    Attributes:
        cpus: on which it can run at one time.
        tasks: that it had at one time, at most.
    """

    cpus: float | Floats = math.nan
    tasks: float | Floats = math.nan

    def joined(self, other: Capacity) -> Capacity:
        """The most of both."""
        return Capacity(*[float(np.fmax(*pair)) for pair in zip(self, other)])


_CPU_TIME, _WAITS, _PRESSURE = bounded(BY_CPUS), bounded(BY_TASKS), bounded(BY_TIME)
CAPACITY_COLUMNS = (CPUS.best.column, TASKS_NOW.best.column, TASKS_PEAK.best.column)  # all of one table
NODE_CPUS = (NODE_CPU_COUNT.best.table, NODE_CPU_COUNT.best.column)


def ceiling(table: str, column: str, capacity: Capacity) -> Floats:
    """The most by which a counter of time can grow in a second, in seconds; infinite where it is not known.

    CPU time is bounded by the CPUs, waits by the tasks. Where the number of tasks is not known, the CPUs bound waits
    for I/O and memory. Nothing bounds waits for a CPU then: any number of tasks may wait for one.
    """
    cpus, tasks = np.asarray(capacity.cpus, np.float64), np.asarray(capacity.tasks, np.float64)
    most = np.full(cpus.shape, np.nan)
    if (table, column) in _PRESSURE:
        most = np.ones(cpus.shape)
    elif (table, column) in _CPU_TIME:
        most = cpus
    elif (table, column) in _WAITS:  # more tasks may have been there between two samples
        most = np.where(tasks > 0, np.fmax(tasks, cpus), np.nan if (table, column) in WAIT_CPU.places else cpus)
    return np.where(most > 0, most, np.inf)


def is_late(table: str, column: str) -> bool:
    """Whether a counter grows at the end of what it counts: the kernel counts a wait when it is over."""
    return (table, column) in _WAITS


def largest(*columns: Floats) -> float:
    """The largest value of some columns; NaN where none has one."""
    return float(np.fmax.reduce(np.concatenate([[np.nan], *columns])))


def of_columns(columns: Mapping[str, Floats]) -> Capacity:
    """What a job had at one time at most, as the columns `CAPACITY_COLUMNS` say."""
    cpus, *tasks = [columns[name] for name in CAPACITY_COLUMNS]
    return Capacity(largest(cpus), largest(*tasks))


def is_bounded(table: str, column: str) -> bool:
    """Whether `ceiling` may bound a column."""
    return (table, column) in _CPU_TIME | _WAITS | _PRESSURE


def plausible(grown: Floats, seconds: Floats, most: float | Floats = math.inf) -> Floats:
    """What has grown between two readings each; NaN where that cannot be.

    Args:
        grown: by which the later reading is higher.
        seconds: between both.
        most: by which it can grow in a second; infinite or NaN where it is not known.
    """
    with np.errstate(invalid="ignore"):
        return np.where((grown >= 0) & (seconds >= 0) & ~(grown > most * (seconds + SLACK_S)), grown, np.nan)


def per_second(grown: Floats, seconds: Floats, most: float | Floats = math.inf) -> Floats:
    """The rates of `plausible` growth: never above `most`, NaN where two readings have one time."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(seconds > 0, plausible(grown, seconds, most) / seconds, np.nan)
    return np.minimum(found, np.where(np.isnan(most), np.inf, most))


def in_order(times: npt.NDArray[np.number], values: Floats) -> tuple[Floats, Floats]:
    """The known readings of a counter, by time and those of one second by value: stores need not keep their order."""
    here = np.isfinite(values)
    at, values = times[here].astype(np.float64), values[here]
    if (np.diff(values) >= 0).all() and (np.diff(at) >= 0).all():
        return at, values
    order = np.lexsort((values, at))
    return at[order], values[order]


def _without_strays(at: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Readings without a single one that is lower than the one before, while the next is not.

    It is of a clock that was set back. Every other one is of another sender, and stays: then no step is known.
    """
    low = np.zeros(len(values) + 4, bool)
    low[3:-3] = (values[1:-1] < values[:-2]) & (values[2:] >= values[:-2])
    keep = ~low[2:-2] | low[:-4] | low[4:]
    return at[keep], values[keep]


def grown(times: Floats, values: Floats, most: float = math.inf) -> Floats:
    """The growth from each reading to the next; NaN where it cannot have been. Shape (n - 1,).

    Args:
        times: ascending, shape (n,).
        values: known, shape (n,).
        most: what a second can have.
    """
    found = plausible(np.diff(values), np.diff(times), most)
    found[_leaps_up(values) | _leaps_up(-values[::-1])[::-1]] = np.nan
    return found


def gaps(times: Floats) -> npt.NDArray[np.bool_]:
    """Which steps from one time to the next are gaps: far longer than those around them; shape (n - 1,).

    The period of samples may be another one later on: it is that of the two steps before and after.
    """
    steps = np.diff(times)
    if not len(steps):
        return np.zeros(0, bool)
    around = np.sort(np.lib.stride_tricks.sliding_window_view(np.pad(steps, 2, constant_values=np.inf), 5), axis=1)
    middle = (np.isfinite(around).sum(axis=1) - 1) // 2
    return np.asarray(steps > GAP_PERIODS * around[np.arange(len(steps)), middle])


class Rates(NamedTuple):
    """The growth of a counter per second; one less than there are times with a value, shape (n - 1,) each.

    Attributes:
        times: at the end of each step, each once and ascending.
        seconds: that each step took.
        values: NaN where not known.
    """

    times: Floats
    seconds: Floats
    values: Floats


def rates(times: npt.NDArray[np.number], values: Floats, most: float = math.inf) -> Rates:
    """The growth per second up to each time but the first; NaN after a gap, and where it cannot have been.

    Of rows of one second the first counts: a job's last row may be of the second of the sample before, and of the last
    one of both the growth would be that of nearly two seconds in one.

    Args:
        times: of the readings, in any order, shape (n,).
        values: NaN where missing, shape (n,).
        most: what a second can have.
    """
    at, values = _without_strays(*in_order(times, values))
    if len(at) < 2:
        return Rates(at[:0], at[:0], at[:0])
    first = np.append(True, at[1:] != at[:-1])
    at, values = at[first], values[first]
    seconds = np.diff(at)
    found = per_second(grown(at, values, most), seconds, most)
    found[gaps(at)] = np.nan
    return Rates(at[1:], seconds, found)


def _leaps_up(values: Floats) -> npt.NDArray[np.bool_]:
    """Which steps lead back to, or beyond, a level that had been left, in one leap: that of another sender.

    A counter that began again passes that level, too; its step is small against the way. Of values turned round, those
    are found that leave the level.
    """
    steps = np.diff(values)
    if not (steps < 0).any():
        return np.zeros(len(steps), bool)
    highest = np.fmax.accumulate(values)[:-1]
    fell = np.append(True, steps < 0)
    low = values[np.maximum.accumulate(np.where(fell, np.arange(len(values)), 0))][:-1]
    return np.asarray(
        (values[:-1] < highest) & (values[1:] >= highest) & (steps > 0.5 * (highest - low)),
    )


class Sum(NamedTuple):
    """What a counter has counted up to each of some times; it never falls.

    Attributes:
        times: ascending, shape (n,).
        values: shape (n,).
        left_out: steps that cannot have been, and are not in it.
    """

    times: Floats
    values: Floats
    left_out: int

    @property
    def total(self) -> float:
        """All of it; NaN where there is no reading."""
        return float(self.values[-1]) if len(self.values) else math.nan


def summed(
    times: npt.NDArray[np.number],
    values: Floats,
    most: float = math.inf,
    since: float | None = None,
    late: bool = False,
) -> Sum:
    """What a counter has counted, whatever its readings do. Later rows never make it less.

    Where a counter goes back, what it counts from there on is added; where it then comes back to the level that it had
    in one leap, only what is beyond that level.

    Args:
        times: of the readings, in any order, shape (n,).
        values: NaN where missing, shape (n,).
        most: what a second can have: in each step and in all of them.
        since: when the counter was 0; None where what it had at first was counted earlier, and is not asked for.
        late: whether a step may have what belongs to the time before it, as `is_late` tells.
    """
    at, values = in_order(times, values)
    if not len(at):
        return Sum(at, values, 0)
    steps, seconds = np.diff(values), np.diff(at)
    highest = np.maximum.accumulate(values)[:-1]
    leaps = _leaps_up(values)
    steps = np.where(leaps, values[1:] - highest, steps)
    was_highest = np.maximum.accumulate(np.where(values[:-1] >= highest, np.arange(len(steps)), 0))
    seconds = np.where(leaps, at[1:] - at[was_highest], seconds)
    if since is None:
        steps, seconds = np.insert(steps, 0, 0.0), np.insert(seconds, 0, 0.0)
    else:
        steps, seconds = np.insert(steps, 0, values[0]), np.insert(seconds, 0, max(0.0, at[0] - since))
    elapsed = at - at[0] + seconds[0]
    known = plausible(steps, elapsed if late else seconds, most)
    left_out = int(np.count_nonzero(np.isnan(known) & (steps > 0)))
    total = np.nancumsum(known)
    if math.isfinite(most):  # a second of slack for each step may be more than there was
        beyond = np.maximum.accumulate(np.maximum(total - most * (elapsed + SLACK_S), 0.0))
        left_out += int(beyond[-1] > 0)
        total = total - beyond
    return Sum(at, total, left_out)
