"""Thinning of rows: one row stands for those of a minute, so that sums over all rows stay as they are.

A kept row has the time of a stored one, the last of those it stands for. Growth of counters, value times time of gauges
and maxima are the same before and after:

* Rows stay around each fall of a counter, each step that readers do not believe, and each gap.
* The first two and the last two rows of a series stay, and the row with the largest value of a gauge with a peak.
* A row ends where a label, a limit or a number of CPUs or GPUs changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.collector.backends.hdf5.thin_rules import KEYS, LAST, LEAST, MOST, OWN, STEADY, SUM, Rules
from colmet.common.growth import GAP_PERIODS, ROUNDING, SLACK_S, Capacity, ceiling, is_bounded
from colmet.common.measures import Source
from colmet.common.schema import MISSING_INT

Rows = npt.NDArray[np.void]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

RARE_FALLS = 0.01  # of the steps: a column unknown to the catalogue that falls so seldom is a counter
FRACTION = 1 << 20  # parts of a whole in sums of rounding errors
END_S = 1 << 36  # end of valid times, as for readers


class Around(NamedTuple):
    """What the thinning of one table needs of others, by host."""

    times: Mapping[bytes, Ints]  # times whose rows stay
    capacities: Mapping[bytes, Capacity]  # of the job


def thinned(table: str, rows: Rows, rules: Rules, step_s: int, around: Around) -> Rows:
    """Return the thinned rows of some hosts, by time; rows without a host or a valid time stay as they are."""
    good = (rows["hostname"] != b"") & (rows["timestamp"] >= 0) & (rows["timestamp"] < END_S)
    odd, rows = rows[~good], rows[good]
    if len(rows):
        rows = _Series(table, rows, rules, around).thin(step_s)
    return np.concatenate([odd, rows[np.argsort(rows["timestamp"], kind="stable")]])


class _Series:
    """The rows of a table, one series after the other: those of one host and key, by time."""

    def __init__(self, table: str, rows: Rows, rules: Rules, around: Around) -> None:
        hosts, host = np.unique(rows["hostname"], return_inverse=True)
        host = host.reshape(-1)
        series = host.astype(np.int64)
        for name in rules.keys:
            words, word = np.unique(rows[name], return_inverse=True)
            series = series * len(words) + word.reshape(-1)
        _, series = np.unique(series, return_inverse=True)
        series = series.reshape(-1)
        times = rows["timestamp"].astype(np.int64)
        order = np.lexsort((times, series))
        self.table, self.rules, self.around = table, rules, around
        self.rows, self.times = rows[order], times[order]
        self.series, self.host, self.hosts = series[order], host[order], hosts
        self.fresh = np.append(True, self.series[1:] != self.series[:-1])  # the first row of each series
        self.last = np.append(self.fresh[1:], True)
        self.dt = np.where(self.fresh, 0, np.diff(self.times, prepend=self.times[0]))
        self.end = self.last.copy()  # rows that stay

    def thin(self, step_s: int) -> Rows:
        """Return the rows that stay, with steps of at most about `step_s` between them."""
        bucket = self.times // step_s
        self.end |= np.append(bucket[1:] != bucket[:-1], True)
        self._ends()
        self._gaps()
        for name, value in self.rules.values.items():
            if value == LAST:
                self._counter(name)
            elif value == STEADY:
                self._steady(self.rows[name])
        for name in self.rules.unknown:
            self._unknown(name)
        for name in self.rules.held:
            here = self._present(self.rows[name])
            self.end[:-1] |= here[1:] != here[:-1]
        for name in self.rules.highest:
            self._highest(name)
        self._wanted_times()
        if self.table in KEYS:  # readers add up zones and ports of one time
            pair = self.host.astype(np.int64) * (int(self.times.max()) + 1) + self.times
            self.end |= np.isin(pair, pair[self.end])
        return self._merged()

    # -- rows that stay --

    def _ends(self) -> None:
        """Keep the first two and the last two rows of each series."""
        self.end |= self.fresh
        self.end[1:] |= self.fresh[:-1]
        self.end[:-1] |= self.last[1:]

    def _alone(self, at: Ints) -> None:
        """Keep rows as they are, without those before them."""
        self.end[at] = True
        self.end[np.maximum(at - 1, 0)] = True

    def _gaps(self) -> None:
        first = np.flatnonzero(self.fresh)
        for start, stop in zip(first.tolist(), [*first[1:].tolist(), len(self.times)]):
            steps = self.dt[start + 1 : stop]
            some = steps[steps > 0]
            if len(some) > 1:
                self._alone(start + 1 + np.flatnonzero(steps > GAP_PERIODS * np.median(some)))

    def _steady(self, values: npt.NDArray[Any]) -> None:
        changed = values[1:] != values[:-1]
        if values.dtype.kind == "f":
            changed &= ~(np.isnan(values[1:]) & np.isnan(values[:-1]))
        self.end[:-1] |= changed

    def _counter(self, name: str) -> None:
        """Keep the rows around falls, at the return to the level before, and at steps beyond the possible."""
        at, values = self._known(name)
        if len(at) < 2:
            return
        same = self.series[at[1:]] == self.series[at[:-1]]
        steps = np.diff(values)
        falls = same & (steps < 0)
        marked = falls.copy()
        for series in np.unique(self.series[at[1:][falls]]).tolist():
            first, stop = np.searchsorted(self.series[at], [series, series + 1])
            highest = np.maximum.accumulate(values[first:stop])
            marked[first : stop - 1] |= (values[first : stop - 1] < highest[:-1]) & (
                values[first + 1 : stop] >= highest[:-1]
            )
        if is_bounded(self.table, name):
            most = np.array([self._most(name, host) for host in self.hosts.tolist()])[self.host[at[1:]]]
            grown = steps * Source(self.table, name).factor
            marked |= same & (grown > most * (np.diff(self.times[at]) + SLACK_S) * ROUNDING)
        self.end[at[:-1][marked]] = True
        self.end[at[1:][marked]] = True

    def _most(self, name: str, host: bytes) -> float:
        return float(ceiling(self.table, name, self.around.capacities.get(host, Capacity())))

    def _unknown(self, name: str) -> None:
        at, values = self._known(name)
        falls = np.flatnonzero((np.diff(values) < 0) & (self.series[at[1:]] == self.series[at[:-1]]))
        if len(falls) <= RARE_FALLS * len(at):
            self.end[at[falls]] = True
            self.end[at[falls + 1]] = True

    def _highest(self, name: str) -> None:
        """Keep the row with the largest value of each series, unless all are equal."""
        at, values = self._known(name)
        if not len(at):
            return
        starts = np.flatnonzero(np.append(True, self.series[at[1:]] != self.series[at[:-1]]))
        high, low = np.maximum.reduceat(values, starts), np.minimum.reduceat(values, starts)
        of = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(at))))
        highest = np.flatnonzero((values == high[of]) & (high > low)[of])
        _, first = np.unique(of[highest], return_index=True)
        self._alone(at[highest[first]])

    def _wanted_times(self) -> None:
        """Keep the rows of wanted times, and those before and after them."""
        for n, host in enumerate(self.hosts.tolist()):
            times = self.around.times.get(host)
            if times is None or not len(times):
                continue
            for series in np.unique(self.series[self.host == n]).tolist():
                first, stop = np.searchsorted(self.series, [series, series + 1])
                here = self.times[first:stop]
                before = np.searchsorted(here, times, "right") - 1
                after = np.searchsorted(here, times, "left")
                self.end[first + before[before >= 0]] = True
                self.end[first + after[after < len(here)]] = True

    # -- values --

    def _present(self, values: npt.NDArray[Any]) -> Mask:
        here = values != MISSING_INT
        return np.asarray(here & ~np.isnan(values) if values.dtype.kind == "f" else here)

    def _known(self, name: str) -> tuple[Ints, npt.NDArray[Any]]:
        values = self.rows[name]
        at = np.flatnonzero(self._present(values))
        return at, values[at]

    def _merged(self) -> Rows:
        """Return the rows that stay, each with the values of all rows since the one before."""
        ends = np.flatnonzero(self.end)
        starts = np.append(0, ends[:-1] + 1)
        made = self.rows[ends]
        for name, value in self.rules.values.items():
            if value not in (OWN, STEADY):
                made[name] = self._value(name, value, starts, ends)
        return made

    def _value(self, name: str, value: str, starts: Ints, ends: Ints) -> npt.NDArray[Any]:
        values = self.rows[name]
        here = self._present(values)
        some = np.add.reduceat(here.astype(np.int64), starts)
        latest = np.maximum.reduceat(np.where(here, np.arange(len(values)), -1), starts)
        last = values[np.where(some > 0, latest, ends)]
        if value == LAST:
            return last
        if value in (MOST, LEAST):
            low = -math.inf if value == MOST else math.inf
            reduced = (np.maximum if value == MOST else np.minimum).reduceat(np.where(here, values, low), starts)
            return np.where(some > 0, reduced, last).astype(values.dtype)
        if value == SUM:
            return np.where(some > 0, np.add.reduceat(np.where(here, values, 0), starts), last)
        mean = self._mean(np.where(here, values, 0).astype(np.float64), here, starts)
        several = some > 1
        if values.dtype.kind == "i":
            mean = _rounded(np.where(several, mean, 0.0), self.series[ends])
        return np.where(several, mean, last).astype(values.dtype)

    def _mean(self, values: npt.NDArray[np.float64], here: Mask, starts: Ints) -> npt.NDArray[np.float64]:
        """Return the mean of each stretch, each value weighted with the time since the row before."""
        weights = np.where(here, self.dt, 0).astype(np.float64)
        total = np.add.reduceat(weights, starts)
        weights[np.repeat(total == 0, np.diff(np.append(starts, len(values)))) & here] = 1.0
        total = np.add.reduceat(weights, starts)
        # sums of differences from one value: equal values have this mean exactly
        base = np.maximum.reduceat(np.where(here, values, -math.inf), starts)
        base = np.where(np.isfinite(base), base, 0.0)
        differences = (values - np.repeat(base, np.diff(np.append(starts, len(values))))) * weights
        return np.asarray(base + np.add.reduceat(differences, starts) / np.maximum(total, 1e-9))


def _rounded(values: npt.NDArray[np.float64], series: Ints) -> npt.NDArray[np.float64]:
    """Round to whole numbers; in each series the rounding errors of all up to each one add up to at most a half."""
    whole = np.floor(values)
    parts = np.cumsum(np.rint((values - whole) * FRACTION).astype(np.int64))
    fresh = np.append(True, series[1:] != series[:-1])
    starts = np.flatnonzero(fresh)
    before = np.where(starts > 0, parts[starts - 1], 0)
    carried = (parts - np.repeat(before, np.diff(np.append(starts, len(series)))) + FRACTION // 2) // FRACTION
    return np.asarray(whole + np.where(fresh, carried, np.diff(carried, prepend=0)))
