"""Which columns of the tables the fold reads, in which order, from `colmet.jobs.columns`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common import measures
from colmet.common.growth import CAPACITY_COLUMNS, is_bounded
from colmet.common.measures import Source
from colmet.common.schema import MISSING_INT, UNITS, Schema, Table
from colmet.jobs.columns import GROWN, MEASURED, OF_NODE

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

JOB_TABLES = (measures.CGROUP_TABLE, measures.TASKS_TABLE, measures.PROCESSES_TABLE, measures.JOB_GPUS)
START_COLUMN = measures.START.best.column  # of the tasks' table
GPU_COUNT, GPU_USE = measures.JOB_GPU_COUNT.best.column, measures.JOB_GPU_USE.best.column
GPU_BUSY = "gpus x use"  # a gauge made of two: GPUs in use, in percent of one
NODE_CPU_TABLE = measures.NODE_CPU_COUNT.best.table
KIB_SHIFT = 10  # sums of bytes over time are in KiB s
FREE, CPUS, TASKS, WAIT, TIME = range(5)  # bounds of counters: none, by CPUs, by tasks, of waits for a CPU, by time


class TableLayout(NamedTuple):
    """The columns of one table: first the counters, grouped by their bounds, then the gauges."""

    name: str
    counters: tuple[str, ...]
    gauges: tuple[str, ...]
    groups: tuple[tuple[int, slice], ...]  # bounded counters: the bound, and where they are
    factors: Floats  # of the counters, to seconds, bytes, ...
    shifts: Ints  # of the gauges, in sums over time
    is_of_node: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Return all columns, in order."""
        return (*self.counters, *self.gauges)

    def part(self, columns: Ints) -> TableLayout:
        """Return the layout of some of the counters, given by their places in order."""
        groups = [(kind, slice(*np.searchsorted(columns, [part.start, part.stop]))) for kind, part in self.groups]
        counters = tuple([self.counters[at] for at in columns.tolist()])
        kept = tuple([(kind, part) for kind, part in groups if part.stop > part.start])
        return self._replace(counters=counters, groups=kept, factors=self.factors[columns])

    def capacity(self) -> tuple[int, int, int]:
        """Return the places of CPUs, tasks and most tasks among the gauges of the cgroups' table."""
        cpus, *tasks = [self.gauges.index(name) for name in CAPACITY_COLUMNS]
        return cpus, tasks[0], tasks[1]


def _bound(source: Source) -> int:
    place = source.table, source.column
    if not is_bounded(*place):
        return FREE
    if place in measures.bounded(measures.BY_TIME):
        return TIME
    if place in measures.bounded(measures.BY_CPUS):
        return CPUS
    return WAIT if place in measures.WAIT_CPU.places else TASKS


def _layouts() -> dict[str, TableLayout]:
    counters: dict[str, dict[str, Source]] = {}
    gauges: dict[str, dict[str, Source]] = {name: {} for name in JOB_TABLES}
    of_node = set()
    for column in MEASURED:
        for measure in column.measures:
            for source in measure.sources:
                is_counter = column.how in (GROWN, OF_NODE)
                (counters if is_counter else gauges).setdefault(source.table, {})[source.column] = source
                if column.how == OF_NODE:
                    of_node.add(source.table)
    gauges[measures.JOB_GPUS][GPU_USE] = measures.JOB_GPU_USE.best
    found = {}
    for table in (*JOB_TABLES, *sorted(of_node)):
        some = sorted(counters.get(table, {}).values(), key=lambda one: (-_bound(one), one.column))
        bounds = [_bound(one) for one in some]
        groups = [
            (kind, slice(bounds.index(kind), len(bounds) - bounds[::-1].index(kind))) for kind in dict.fromkeys(bounds)
        ]
        names = tuple(gauges.get(table, {}))
        units = [gauges[table][name].unit for name in names]
        if table == measures.JOB_GPUS:
            names, units = (*names, GPU_BUSY), [*units, UNITS["count"]]
        found[table] = TableLayout(
            table,
            tuple([one.column for one in some]),
            names,
            tuple([(kind, where) for kind, where in groups if kind != FREE]),
            np.array([one.factor for one in some]),
            np.array([KIB_SHIFT if unit.name == "bytes" else 0 for unit in units], dtype=np.int64),
            table in of_node,
        )
    return found


LAYOUTS = _layouts()


class TableReader:
    """Reads some columns of packed rows as whole numbers, -1 for a missing value or column."""

    def __init__(self, schema: Schema, names: tuple[str, ...]) -> None:
        self.schema = schema
        self._names = names
        fields: Mapping[str, Any] = schema.dtype.fields or {}
        places = [fields[name] if name in schema.name_set else None for name in names]
        whole = [place for place in places if place is not None]
        self._words = schema.row_bytes // 8
        is_plain = schema.row_bytes % 8 == 0 and all(p[0] == np.dtype("<i8") and p[1] % 8 == 0 for p in whole)
        # the job's number is never missing: its place stands for absent columns, which are overwritten
        self._picks = np.array([0 if p is None else p[1] // 8 for p in places], dtype=np.intp) if is_plain else None
        self._absent = [n for n, place in enumerate(places) if place is None]

    def rows(self, packed: bytes) -> npt.NDArray[np.void]:
        """Return packed rows as an array of the schema's type."""
        return np.frombuffer(packed, self.schema.dtype)

    def read(self, packed: bytes) -> tuple[Ints, Ints]:
        """Return the jobs, shape (n,), and the values, shape (n, columns)."""
        if self._picks is None:
            rows = self.rows(packed)
            stored, missing = rows.dtype.names or (), np.zeros(len(rows), "S1")
            columns = [whole_numbers(rows[name] if name in stored else missing) for name in self._names]
            values = np.stack(columns, axis=1) if self._names else _NOTHING
            return rows["job_id"].astype(np.int64), values
        words = np.frombuffer(packed, "<i8").reshape(-1, self._words)
        values = words.take(self._picks, axis=1)
        if self._absent:
            values[:, self._absent] = MISSING_INT
        return words[:, 0], values


_NOTHING = np.empty((0, 0), np.int64)


def whole_numbers(values: npt.NDArray[Any]) -> Ints:
    """Return a column of any type as whole numbers, -1 for a missing value."""
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            values = np.where((values >= 0) & (values < 2.0**62), np.rint(values), MISSING_INT)
    elif values.dtype.kind not in "iu":
        return np.full(len(values), MISSING_INT, dtype=np.int64)
    return values.astype(np.int64)


class TablePart(NamedTuple):
    """The rows of one schema in a wave."""

    hosts: Ints  # for each row
    times: Ints  # seconds since 1970
    seen: Ints  # time of reception
    jobs: Ints
    values: Ints  # shape (n, columns)
    packed: bytes
    reader: TableReader

    @property
    def name(self) -> str:
        """Return the name of the table."""
        return self.reader.schema.name


def join(reader: TableReader, tables: Sequence[Table], hosts: Ints, seen: Ints) -> TablePart:
    """Return the rows of tables of one schema, each with its host and the time of its reception."""
    packed = [table.packed for table in tables]
    times = np.array([table.time_ns for table in tables], np.int64) // 10**9
    joined = b"".join(packed)
    jobs, values = reader.read(joined)
    if len(jobs) != len(tables) or b"" in packed:
        counts = np.array([len(one) for one in packed]) // reader.schema.row_bytes
        hosts, times, seen = [np.repeat(one, counts) for one in (hosts, times, seen)]
    return TablePart(hosts, times, seen, jobs, values, joined, reader)
