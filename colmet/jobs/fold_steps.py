"""Steps of counters and gauges from one row of each slot to the next, on arrays of `colmet.jobs.fold_state`."""

from __future__ import annotations

import numpy as np

from colmet.common.growth import ROUNDING, SLACK_S
from colmet.common.measures import JOB_GPUS
from colmet.common.schema import MISSING_INT
from colmet.jobs import fold_layout as layout
from colmet.jobs.fold_layout import LAYOUTS, Floats, Ints, Mask, TableLayout
from colmet.jobs.fold_state import Count, FoldState, Gauge, Head, Rows


def most_growth(kind: int, head: Ints) -> Floats:
    """Return the most seconds that a counter can grow by in a second; infinite if unknown."""
    if kind == layout.TIME:
        return np.ones(len(head))
    own, of_node = head[:, Head.MOST_CPUS], head[:, Head.NODE_CPUS]
    cpus = np.where(own > 0, own, of_node)
    most = cpus
    if kind in (layout.TASKS, layout.WAIT):
        tasks = head[:, Head.MOST_TASKS]
        most = np.where(tasks > 0, np.maximum(tasks, cpus), 0 if kind == layout.WAIT else cpus)
    return np.where(most > 0, most.astype(np.float64), np.inf)


def with_busy(values: Ints) -> Ints:
    """Return the values of GPUs with `GPU_BUSY` as a further column."""
    names = LAYOUTS[JOB_GPUS].gauges
    gpus, use = values[:, names.index(layout.GPU_COUNT)], values[:, names.index(layout.GPU_USE)]
    busy = np.where((gpus >= 0) & (use >= 0), gpus * use, MISSING_INT)
    return np.concatenate([values, busy[:, None]], axis=1)


def peaks(gauges: Ints, values: Ints) -> Mask:
    """Add the parts of gauges that do not depend on the order; return which values are present."""
    present = values >= 0
    np.maximum(gauges[:, Gauge.MOST], values, out=gauges[:, Gauge.MOST])
    _add(gauges[:, Gauge.SUM], values, present)
    gauges[:, Gauge.COUNT] += present
    return present


def _add(sums: Ints, values: Ints, where: Mask) -> None:
    """Add values to a part of the state, in place."""
    np.add(sums, values, out=sums, where=where)


def gauges_step(table: TableLayout, arrays: Ints, slots: Ints, since: Ints, values: Ints) -> None:
    """Add values of gauges, with the seconds since the row before."""
    at = _place(slots)
    gauges = arrays[at]
    present = peaks(gauges, values)
    _add(gauges[:, Gauge.HELD], (values >> table.shifts) * since[:, None], present)
    np.copyto(gauges[:, Gauge.LAST], values, where=present)
    if at is slots:
        arrays[slots] = gauges


def vote(counted: Ints, steps: Ints) -> None:
    """Count the steps between rows: the one of the majority remains in `Rows.STEP`."""
    step, votes = counted[:, Rows.STEP], counted[:, Rows.VOTES]
    is_step = steps > 0
    is_same = steps == step
    none = is_step & ~is_same & (votes == 0)
    counted[:, Rows.STEP] = np.where(none, steps, step)
    counted[:, Rows.VOTES] = np.where(is_step, np.where(is_same | none, votes + 1, votes - 1), votes)


def possible_growth(
    table: TableLayout, head: Ints, times: Ints, values: Ints, last: Ints, last_times: Ints
) -> tuple[Ints, Mask, Mask]:
    """Return the growth of counters since their last values, whether it is possible, and which values are present.

    `values` and `last`, shape (n, counters), are -1 if missing: without a last value a counter grew from 0, or if it is
    of a node by an unknown amount. `head` is of the slot of each row, or of the slot of all.
    """
    present, fresh = values >= 0, last < 0
    grown = values - last
    has_fresh = bool(fresh.any())
    if has_fresh:
        np.copyto(grown, 0 if table.is_of_node else values, where=fresh)
    good = present & (grown >= 0)
    known = head[:, Head.BEGAN] > 0
    whole = np.where(known, (times - head[:, Head.START]).astype(np.float64), np.inf)  # since the counter was 0
    elapsed = np.where(known, whole, times - head[:, Head.FIRST])
    for kind, where in table.groups:
        most = most_growth(kind, head)[:, None]
        since = elapsed[:, None] if kind in (layout.TASKS, layout.WAIT) else times[:, None] - last_times[:, where]
        if has_fresh:
            since = np.where(fresh[:, where], whole[:, None], since)
        with np.errstate(invalid="ignore"):
            limit = most * (since + SLACK_S) * ROUNDING
        good[:, where] &= ~(grown[:, where] * table.factors[where] > limit)
    return grown, good, present


def counters_step(state: FoldState, table: TableLayout, slots: Ints, times: Ints, values: Ints) -> None:
    """Add the growth of counters in one row of each slot, where it is possible."""
    at = _place(slots)
    counters = state.counters[table.name][at]
    last, last_times = counters[:, Count.LAST], counters[:, Count.TIME]
    grown, good, present = possible_growth(table, state.head[slots], times, values, last, last_times)
    _add(counters[:, Count.GROWN], grown, good)
    counters[:, Count.COUNT] += present
    left = present & ~good
    if left.any():
        counters[:, Count.LEFT] += left & (grown > 0)
    np.copyto(counters[:, Count.LAST], values, where=present)
    np.copyto(counters[:, Count.TIME], times[:, None], where=present)
    if at is slots:
        state.counters[table.name][slots] = counters


def counters_in_order(
    state: FoldState, table: TableLayout, slot: int, times: Ints, values: Ints, is_whole: bool = True, place: int = 0
) -> Ints:
    """Add the growth of counters in successive rows of one slot, as `counters_step` does row by row.

    Without `is_whole` the counters did not grow from 0, and their first values count nothing. Return the growth of the
    counter at `place` in each row.
    """
    counters = state.counters[table.name][slot]
    present = values >= 0
    columns = np.flatnonzero(present.any(axis=0))
    if not len(columns):
        return np.zeros(len(times), np.int64)
    table, some, own = table.part(columns), values.T[columns].T, counters[:, columns]
    if present[:, columns].all():
        last = np.concatenate([own[[Count.LAST]], some[:-1]])
        last_times = np.concatenate([own[[Count.TIME]], np.broadcast_to(times[:-1, None], last[1:].shape)])
        end = np.full(len(columns), len(times) - 1)
    else:
        latest = np.maximum.accumulate(np.where(some >= 0, np.arange(len(times))[:, None], -1), axis=0)
        before, end = np.concatenate([np.full((1, len(columns)), -1), latest[:-1]]), latest[-1]
        at = np.maximum(before, 0)
        last = np.where(before >= 0, np.take_along_axis(some, at, 0), own[Count.LAST])
        last_times = np.where(before >= 0, times[at], own[Count.TIME])
    is_first = own[Count.LAST] < 0
    if not is_whole:
        fresh = last < 0
        last, last_times = np.where(fresh, some, last), np.where(fresh, times[:, None], last_times)
    growth, good, is_there = possible_growth(table, state.head[[slot]], times, some, last, last_times)
    own[Count.LEFT] += (is_there & ~good & (growth > 0)).sum(axis=0)
    growth = np.where(good, growth, 0)
    own[Count.GROWN] += growth.sum(axis=0)
    own[Count.COUNT] += is_there.sum(axis=0) - (is_first if not is_whole else 0)
    own[Count.TIME], own[Count.LAST] = times[end], some[end, np.arange(len(columns))]
    counters[:, columns] = own
    return np.asarray(growth[:, columns == place].sum(axis=1))


def gauges_in_order(table: TableLayout, gauges: Ints, since: Ints, values: Ints) -> None:
    """Add the values of gauges in successive rows of one slot, as `gauges_step` does row by row."""
    present = values >= 0
    gauges[Gauge.MOST] = np.maximum(gauges[Gauge.MOST], values.max(axis=0))
    gauges[Gauge.SUM] += np.where(present, values, 0).sum(axis=0)
    gauges[Gauge.HELD] += np.where(present, (values >> table.shifts) * since[:, None], 0).sum(axis=0)
    gauges[Gauge.COUNT] += present.sum(axis=0)
    end = np.where(present, np.arange(len(values))[:, None], -1).max(axis=0)
    gauges[Gauge.LAST] = np.where(end >= 0, values[end, np.arange(len(end))], gauges[Gauge.LAST])


def late_counters(state: FoldState, table: TableLayout, slots: Ints, times: Ints, values: Ints) -> None:
    """Add the growth of counters in rows older than others of their slot: the clock was set back since.

    A counter that was never reset, and whose growth is all known, is then above its last value. In a row that was only
    received late it is below that. The growth is possible in the time since the last value, a usual step if the clock
    was set between them, or the whole value in the time of the job.
    """
    head, counters = state.head[slots], state.counters[table.name][slots]
    last, step = counters[:, Count.LAST], state.tables[table.name][slots, Rows.STEP]
    grew = (last >= 0) & (values > last) & (counters[:, Count.GROWN] == last)
    elapsed = (head[:, Head.LAST] - np.minimum(head[:, Head.START], head[:, Head.FIRST]))[:, None]
    since = times[:, None] - counters[:, Count.TIME]
    since = np.where(since > 0, since, np.maximum(step, 0)[:, None])
    for kind, where in table.groups:
        most, factors = most_growth(kind, head)[:, None], table.factors[where]
        grown = (values - last)[:, where] * factors
        is_possible = grown <= most * (since[:, where] + SLACK_S) * ROUNDING
        grew[:, where] &= is_possible | (values[:, where] * factors <= most * (elapsed + SLACK_S) * ROUNDING)
    for part, news in ((Count.LAST, values), (Count.GROWN, values), (Count.TIME, times[:, None])):
        np.copyto(counters[:, part], news, where=grew)
    state.counters[table.name][slots] = counters


def _place(slots: Ints) -> Ints | slice:
    """Return neighbouring slots as a slice: rows of it are changed in place, those of others in a copy."""
    first = int(slots[0]) if len(slots) else 0
    is_row = len(slots) > 0 and int(slots[-1]) - first + 1 == len(slots) and bool((np.diff(slots) == 1).all())
    return slice(first, first + len(slots)) if is_row else slots
