"""Summaries of jobs on single hosts, from the state of their folds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from colmet.common.growth import ROUNDING, SLACK_S
from colmet.common.measures import JOB_GPUS
from colmet.jobs import columns, footprint
from colmet.jobs.columns import JobColumn, Value
from colmet.jobs.fold import Fold
from colmet.jobs.fold_layout import FREE, GPU_BUSY, JOB_TABLES, LAYOUTS, TASKS, WAIT, Floats, Ints, Mask
from colmet.jobs.fold_nodes import IPMI, RAPL
from colmet.jobs.fold_state import Count, Gauge, Head, Rows
from colmet.jobs.fold_steps import most_growth

_PARTS = {columns.MEAN: Gauge.SUM, columns.HELD: Gauge.HELD, columns.LAST: Gauge.LAST, columns.MOST: Gauge.MOST}
_SOURCES = {0: None, RAPL: "rapl", IPMI: "ipmi", RAPL | IPMI: "ipmi and rapl"}


class _Values:
    """The columns of some slots, as they are made; NaN for a missing value."""

    def __init__(self, fold: Fold, slots: Ints) -> None:
        self.fold, self.slots = fold, slots
        self.head = fold.state.head[slots]
        self.known: dict[str, Floats] = {}
        # a run whose start was moved by a second may have all its rows in that second
        self.wall_s: Floats = np.maximum(self.head[:, Head.LAST] - self.head[:, Head.START], 0).astype(np.float64)

    def __getitem__(self, name: str) -> Floats:
        return self.known[name]

    def of(self, column: JobColumn) -> Floats:
        """Return a column: of its first source with values, or the largest one."""
        found: Floats = np.full(len(self.slots), np.nan)
        for measure in column.measures:
            for source in measure.sources:
                values = self._of_source(column, source.table, source.column) * source.factor
                found = np.fmax(found, values) if measure.is_largest else np.where(np.isnan(found), values, found)
        return found

    def _of_source(self, column: JobColumn, table: str, name: str) -> Floats:
        state, layout = self.fold.state, LAYOUTS[table]
        if column.how in (columns.GROWN, columns.OF_NODE):
            at = layout.counters.index(name)
            counters = state.counters[table][self.slots, :, at]
            grown, left = counters[:, Count.GROWN], counters[:, Count.LEFT]
            seen = counters[:, Count.COUNT] > (1 if column.how == columns.OF_NODE else 0)
            kind = next((kind for kind, where in layout.groups if where.start <= at < where.stop), FREE)
            values = grown.astype(np.float64)
            if kind != FREE:
                values, seen = self._bounded(kind, values, layout.factors[at], left, seen)
            return np.where(seen & (grown >= 0), values, np.nan)
        at = layout.gauges.index(name)
        gauges = state.gauges[table][self.slots, :, at]
        count = gauges[:, Gauge.COUNT]
        values = gauges[:, _PARTS[column.how]].astype(np.float64)
        if column.how == columns.MEAN:
            values /= np.maximum(count, 1)
        elif column.how == columns.HELD:
            values *= 2.0 ** int(layout.shifts[at])
        return np.where(count > 0, values, np.nan)

    def _bounded(self, kind: int, values: Floats, factor: float, left: Ints, seen: Mask) -> tuple[Floats, Mask]:
        """Limit growth to the possible one since the start; waits with impossible steps are missing."""
        # rows before the start: the clock was set back
        begin = np.minimum(self.head[:, Head.START], self.head[:, Head.FIRST])
        elapsed = (self.head[:, Head.LAST] - begin + SLACK_S) * ROUNDING
        limit = np.where(self.head[:, Head.BEGAN] > 0, most_growth(kind, self.head) * elapsed / factor, np.inf)
        if kind in (TASKS, WAIT):
            seen = seen & (left == 0) & (values <= limit)
        return np.minimum(values, limit), seen

    def gauge(self, table: str, name: str, which: int) -> Floats:
        """Return a part of the state of a gauge, NaN without values."""
        gauges = self.fold.state.gauges[table][self.slots, :, LAYOUTS[table].gauges.index(name)]
        return np.where(gauges[:, Gauge.COUNT] > 0, gauges[:, which].astype(np.float64), np.nan)


def samples_of(fold: Fold, slots: Ints) -> Floats:
    """Return the number of samples folded in some slots."""
    rows = [fold.state.tables[name][slots, Rows.ROWS] for name in JOB_TABLES]
    return np.asarray(np.max(rows, axis=0), np.float64)


def _missing_samples(v: _Values) -> Floats:
    tables = np.array([v.fold.state.tables[name][v.slots] for name in JOB_TABLES])
    most = tables[:, :, Rows.ROWS].argmax(axis=0)
    step = tables[most, np.arange(len(v.slots)), Rows.STEP]
    due = np.rint((v.head[:, Head.LAST] - v.head[:, Head.FIRST]) / np.maximum(step, 1)) + 1
    return np.where(step > 0, np.maximum(due - v["samples"], 0), 0.0)


def _core_s(v: _Values) -> Floats:
    of_node = v.head[:, Head.NODE_CPUS]
    cpus = np.where(np.isnan(v["cpus"]), np.where(of_node > 0, of_node, np.nan), v["cpus"])
    return v.wall_s * cpus


def _share(part: Floats, whole: Floats) -> Floats:
    found: Floats = np.full(len(part), np.nan)
    np.divide(part, whole, out=found, where=whole > 0)
    return np.asarray(np.minimum(found, 1.0))


def _joules(v: _Values, which: int) -> Floats:
    return np.where(v.head[:, Head.SOURCE] > 0, v.head[:, which] * 1e-6, np.nan)


# Columns without a rule of `colmet.jobs.columns`; texts are added later.
_OWN: Mapping[str, Callable[[_Values], Floats]] = {
    "last": lambda v: v.head[:, Head.LAST].astype(np.float64),
    "is_running": lambda v: (v.head[:, Head.OVER] == 0).astype(np.float64),
    "hosts": lambda v: np.ones(len(v.slots)),
    "wall_s": lambda v: v.wall_s,
    "host_s": lambda v: v.wall_s,
    "samples": lambda v: samples_of(v.fold, v.slots),
    "rows": lambda v: v["samples"],
    "missing": _missing_samples,
    "core_s": _core_s,
    "cpu_ratio": lambda v: _share(v["cpu_s"], v["core_s"]),
    "wasted_core_s": lambda v: np.maximum(v["core_s"] - v["cpu_s"], 0.0),
    "memory_peak_host": lambda v: v["memory_peak"],
    "memory_ratio": lambda v: v["memory_peak"] / np.where(v["memory_limit"] > 0, v["memory_limit"], np.nan),
    "gpu_busy_s": lambda v: v.gauge(JOB_GPUS, GPU_BUSY, Gauge.HELD) / 100,
    "joules": lambda v: _joules(v, Head.JOULES),
    "node_joules": lambda v: _joules(v, Head.NODE_JOULES),
    "energy_s": lambda v: np.where(v.head[:, Head.SOURCE] > 0, v.head[:, Head.ENERGY_S], np.nan),
}
_TEXTS = ("user", "energy_source")


def host_summaries(fold: Fold, slots: Ints) -> list[dict[str, Value]]:
    """Return the summaries of the jobs on hosts in some slots, without advice."""
    values = _Values(fold, slots)
    for column in columns.MEASURED:
        if column.name in _TEXTS:
            continue
        made = _OWN[column.name](values) if not column.how else values.of(column)
        if column.name == "unattributed_s":  # a part of the CPU time
            made = np.minimum(made, np.where(np.isnan(values["cpu_s"]), 0.0, values["cpu_s"]))
        values.known[column.name] = made
    names = list(values.known)
    listed = [_listed(values[name], kind) for name, kind in zip(names, [_KIND[name] for name in names])]
    found = []
    for n, (slot, row) in enumerate(zip(slots.tolist(), zip(*listed))):
        summary: dict[str, Value] = dict(zip(names, row))
        head = values.head[n]
        user = int(head[Head.USER])
        curves = footprint.of_slot(fold.state.footprint, slot, int(head[Head.LAST] - head[Head.START]))
        summary.update(
            job=int(head[Head.JOB]),
            host=fold.nodes.names[int(head[Head.HOST])],
            start=int(head[Head.START]),
            user=fold.state.users[user] if user >= 0 else None,
            energy_source=_SOURCES[int(head[Head.SOURCE])],
        )
        summary[columns.FOOTPRINT.name] = footprint.encode(curves) if curves.curves else None
        found.append(summary)
    return found


_KIND = {column.name: column.kind for column in columns.MEASURED}


def _listed(values: Floats, kind: str) -> list[Value]:
    """Return the values of a column, None for missing ones."""
    if kind == columns.INTEGER:
        return [None if value != value else round(value) for value in values.tolist()]
    return [None if value != value else value for value in values.tolist()]
