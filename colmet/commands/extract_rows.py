"""The rows of a job as columns of one length: chosen, read, and joined by time and host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common.schema import MISSING_INT
from colmet.stored.names import natural, short
from colmet.stored.series import NODE, History, Series

# Precedence of tables with equal column names; the others follow in the order of their names.
FIRST = ("taskstats_default", "jobprocstats_default", "perfhwstats_default", "procstats_default", "RAPLstats_default")

Values = npt.NDArray[Any]
Place = tuple[str, bool]  # a table, and whether it has rows of nodes
Found = Mapping[Place, Sequence[Series]]


class OutputColumn(NamedTuple):
    """A requested column."""

    name: str  # in the answer
    table: str = ""  # name of its table; empty if no table has it
    column: str = ""  # name in the table
    of_node: bool = False  # whether the table has rows of nodes


class Interval(NamedTuple):
    """A selection of rows: seconds since 1970, both ends included, and hosts; None for all."""

    since: float | None = None
    until: float | None = None
    hosts: Sequence[str] | None = None


ALL_ROWS = Interval()


def interval_of(rows: Iterable[Series]) -> Interval:
    """Return the time range and the hosts of rows; without rows, no host."""
    having = [series for series in rows if len(series)]
    if not having:
        return Interval(hosts=())
    first, last = min(series.times[0] for series in having), max(series.times[-1] for series in having)
    return Interval(int(first), int(last), sorted({series.host for series in having}))


def choose(history: History, job: int, asked: Sequence[str] | None, wanted: Interval) -> list[OutputColumn]:
    """Return the requested columns in order, those found in no table of the job or of nodes with an empty table.

    A request is ``column``, ``table.column`` or ``table.*``, also without the _default of the table. By default it is
    all of the job's tables.
    """
    mine = history.tables(job, wanted.since, wanted.until)
    if asked is None:
        return [
            OutputColumn(f"{table}.{name}", table, name, job == NODE)
            for table in _ordered(mine)
            for name in sorted(mine[table], key=natural)
        ]
    chosen: list[OutputColumn] = []
    nodes: Mapping[str, Sequence[str]] | None = None
    for text in asked:
        found = _find(text, mine, job == NODE)
        if not found and job != NODE:
            nodes = history.tables(NODE, wanted.since, wanted.until) if nodes is None else nodes
            found = _find(text, nodes, True)
        chosen += found or [OutputColumn(text)]
    return list(dict.fromkeys(chosen))


def _ordered(tables: Iterable[str]) -> list[str]:
    """Sort tables in search order."""
    return sorted(tables, key=lambda table: (FIRST.index(table) if table in FIRST else len(FIRST), table))


def _find(text: str, tables: Mapping[str, Sequence[str]], of_node: bool) -> list[OutputColumn]:
    """Return the columns named by a text."""
    for table in _ordered(tables):
        if text in tables[table]:
            return [OutputColumn(text, table, text, of_node)]
    for table in _ordered(tables):
        for known_as in (table, short(table)):
            if text == f"{known_as}.*":
                names = sorted(tables[table], key=natural)
                return [OutputColumn(f"{known_as}.{name}", table, name, of_node) for name in names]
            name = text[len(known_as) + 1 :]
            if text.startswith(f"{known_as}.") and name in tables[table]:
                return [OutputColumn(text, table, name, of_node)]
    return []


def fetch(history: History, job: int, chosen: Sequence[OutputColumn], wanted: Interval) -> dict[Place, list[Series]]:
    """Read the rows of each table with requested columns; those of nodes only for the job's time and hosts."""
    by_table: dict[Place, list[str]] = {}
    for column in chosen:
        if column.table:
            by_table.setdefault((column.table, column.of_node), []).append(column.column)
    if not chosen:  # time and host alone
        by_table = {(table, job == NODE): [] for table in _main(history, job, wanted)}
    found: dict[Place, list[Series]] = {}
    of_job: Interval | None = wanted if job == NODE else None
    for (table, of_node), names in sorted(by_table.items(), key=lambda one: one[0][1]):
        if of_node and of_job is None:
            of_job = _of_job(history, job, wanted, found)
        read = (NODE, of_job) if of_node and of_job is not None else (job, wanted)
        found[table, of_node] = history.read(read[0], table, names, *read[1])
    return found


def _main(history: History, job: int, wanted: Interval) -> list[str]:
    """Return the table with a job's hosts and times, in a list; empty if the job has no table."""
    return _ordered(history.tables(job, wanted.since, wanted.until))[:1]


def _of_job(history: History, job: int, wanted: Interval, found: Found) -> Interval:
    """Return the time range and the hosts of a job's rows, from its main table and tables already read."""
    rows = [series for some in found.values() for series in some]
    for table in _main(history, job, wanted):
        if (table, False) not in found:
            rows += history.read(job, table, [], *wanted)
    return interval_of(rows)


class Extraction(NamedTuple):
    """Columns of one length, sorted by time and host."""

    times: npt.NDArray[np.int64]  # seconds since 1970
    hosts: npt.NDArray[np.int64]  # of each row, by their number in `names`
    names: list[str]  # of hosts
    columns: dict[str, Values]  # int64, float64 or bytes, with -1, NaN or b"" for missing values


def join(found: Found, chosen: Sequence[OutputColumn]) -> Extraction:
    """Join rows of several tables by time and host; repeated rows of one time are joined in order."""
    names = sorted({series.host for some in found.values() for series in some})
    number = {name: n for n, name in enumerate(names)}
    keys: list[npt.NDArray[np.int64]] = [np.empty((3, 0), np.int64)]
    spans: dict[Place, slice] = {}
    begin = 0
    for table, some in found.items():
        for series in some:
            nth = np.arange(len(series)) - np.searchsorted(series.times, series.times, "left")
            keys.append(np.stack([nth, np.full(len(series), number[series.host]), series.times]))
        end = begin + sum(map(len, some))
        spans[table], begin = slice(begin, end), end
    every = np.concatenate(keys, axis=1)
    order = np.lexsort(every)
    in_order = every[:, order]
    new = np.ones(len(order), bool)
    new[1:] = (in_order[:, 1:] != in_order[:, :-1]).any(axis=0)
    row = np.empty(len(order), np.int64)
    row[order] = np.cumsum(new) - 1
    length = int(new.sum())
    columns = {}
    for column in chosen:
        place = column.table, column.of_node
        some = found.get(place, ())
        parts = [series.columns.get(column.column) for series in some]
        columns[column.name] = _spread(parts, [len(series) for series in some], row[spans.get(place, slice(0))], length)
    return Extraction(in_order[2][new], in_order[1][new], names, columns)


def _spread(parts: Sequence[Values | None], counts: Sequence[int], rows: npt.NDArray[np.int64], length: int) -> Values:
    """Return the values of a column in the rows of an answer of this length.

    `parts` has the values of each series, None for one without the column, `counts` its number of rows, and `rows` the
    index of each row in the answer.
    """
    there = [part for part in parts if part is not None]
    if not there:
        return np.broadcast_to(np.int64(MISSING_INT), length)  # needs no memory, whatever the length
    kinds = {part.dtype.kind for part in there}
    kind = "S" if "S" in kinds else "f" if "f" in kinds else "i"
    width = max([part.dtype.itemsize for part in there])
    column: Values = {"S": np.zeros(length, f"S{width}"), "f": np.full(length, np.nan), "i": np.full(length, -1)}[kind]
    begin = 0
    for part, count in zip(parts, counts):
        if part is not None and (part.dtype.kind == "S") == (kind == "S"):
            values = np.where(part == -1, np.nan, part) if kind == "f" and part.dtype.kind == "i" else part
            column[rows[begin : begin + count]] = values
        begin += count
    return column


def has(column: Values) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows with a value."""
    there: npt.NDArray[np.bool_] = (
        np.isfinite(column) if column.dtype.kind == "f" else column != (b"" if column.dtype.kind == "S" else -1)
    )
    return there
