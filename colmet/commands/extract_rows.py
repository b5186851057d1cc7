"""The rows of a job as columns of one length: chosen, read, and joined by time and host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common.schema import MISSING_INT
from colmet.stored.series import NODE, History, RowQuery, Series, groups_of, natural, short

# Precedence of tables with equal column names; the others follow in the order of their names.
FIRST = ("taskstats_default", "jobprocstats_default", "perfhwstats_default", "procstats_default", "RAPLstats_default")

WINDOW_VALUES = 2 << 20  # read at a time
BUCKETS = 10_000  # of the time, from which windows are made

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


def fetch(
    history: History, job: int, chosen: Sequence[OutputColumn], wanted: Interval, of_job: Interval | None = None
) -> dict[Place, list[Series]]:
    """Read the rows of each table with requested columns; those of nodes only for the job's time and hosts.

    `of_job` has these for a part of the job's time; by default they are those of the rows read.
    """
    found: dict[Place, list[Series]] = {}
    for (table, of_node), names in _places(history, job, chosen, wanted).items():
        if of_node and job != NODE:
            of_job = of_job or _of_job(history, job, wanted, found)
            found[table, of_node] = history.read(RowQuery(NODE, table, names, *both(of_job, wanted)))
        else:
            found[table, of_node] = history.read(RowQuery(job, table, names, *wanted))
    return found


def _places(history: History, job: int, chosen: Sequence[OutputColumn], wanted: Interval) -> dict[Place, list[str]]:
    """Return the columns to read, by table; tables of nodes come last."""
    by_table: dict[Place, list[str]] = {}
    for column in chosen:
        if column.table:
            by_table.setdefault((column.table, column.of_node), []).append(column.column)
    if not chosen:  # time and host alone
        by_table = {(table, job == NODE): [] for table in _main(history, job, wanted)}
    return dict(sorted(by_table.items(), key=lambda one: one[0][1]))


def both(one: Interval, other: Interval) -> Interval:
    """Return the common part of two intervals, with the hosts of the first."""
    since = max([at for at in (one.since, other.since) if at is not None], default=None)
    until = min([at for at in (one.until, other.until) if at is not None], default=None)
    return Interval(since, until, one.hosts)


def _main(history: History, job: int, wanted: Interval) -> list[str]:
    """Return the table with a job's hosts and times, in a list; empty if the job has no table."""
    return _ordered(history.tables(job, wanted.since, wanted.until))[:1]


def _of_job(history: History, job: int, wanted: Interval, found: Found) -> Interval:
    """Return the time range and the hosts of a job's rows, from its main table and tables already read."""
    rows = [series for some in found.values() for series in some]
    for table in _main(history, job, wanted):
        if (table, False) not in found:
            rows += history.read(RowQuery(job, table, [], *wanted))
    return interval_of(rows)


class Plan(NamedTuple):
    """How to read an answer in bounded memory."""

    values: int  # number of all values
    windows: list[Interval]  # intervals to read one after the other
    of_job: Interval | None  # the time and the hosts of the job, for rows of nodes; None for one window


def plan(history: History, job: int, chosen: Sequence[OutputColumn], wanted: Interval) -> Plan:
    """Return the number of values, and intervals of at most `WINDOW_VALUES` each; more if they have one second.

    Each table is read once for this, without its columns.
    """
    tables = _places(history, job, chosen, wanted)
    rows = {
        place: history.by_hosts(RowQuery(job, place[0], [], *wanted))
        for place in [*tables, *[(table, False) for table in _main(history, job, wanted)]]
        if job == NODE or not place[1]
    }
    having = [one for one in rows.values() if one.counts]
    if not having:
        return Plan(0, [wanted], None)
    first, last = min(one.first for one in having), max(one.last for one in having)
    of_job = Interval(first, last, sorted({host for one in having for host in one.counts}))
    for place in tables:
        if place not in rows:
            rows[place] = history.by_hosts(RowQuery(NODE, place[0], [], *of_job))
    edges = np.unique(np.linspace(first, last + 1, BUCKETS + 1).astype(np.int64))
    values = np.zeros(len(edges) - 1, np.int64)
    for place, names in tables.items():
        for group in groups_of([(rows[place], 0)]):
            for series in rows[place].read(group):
                values += np.histogram(series.times, edges)[0] * (len(names) + 2)
    total = int(values.sum())
    if total <= WINDOW_VALUES:
        return Plan(total, [wanted], None)
    windows, begin, held = [], 0, 0
    for n, count in enumerate(values.tolist()):
        if held and held + count > WINDOW_VALUES:
            windows.append(Interval(int(edges[begin]), int(edges[n]) - 1, wanted.hosts))
            begin, held = n, 0
        held += count
    windows.append(Interval(int(edges[begin]), last, wanted.hosts))
    return Plan(total, windows, of_job)


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
