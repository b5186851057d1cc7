"""The rows of a job as columns of one length: chosen, read, joined by time and host, and written in a format."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common.errors import ColmetError, ConfigError
from colmet.common.lines import text_of
from colmet.common.schema import MISSING_INT
from colmet.common.text import how_to_install
from colmet.stored.series import NODE, HeldRows, History, HostRows, RowQuery, Series, groups_of, natural, short

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


def interval_of(rows: Iterable[HostRows]) -> Interval:
    """Return the time range and the hosts of rows; without rows, no host."""
    having = [one for one in rows if one.counts]
    if not having:
        return Interval(hosts=())
    hosts = sorted({host for one in having for host in one.counts})
    return Interval(min(one.first for one in having), max(one.last for one in having), hosts)


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
    return sorted(tables, key=lambda table: (FIRST.index(table) if table in FIRST else len(FIRST), table))


def _find(text: str, tables: Mapping[str, Sequence[str]], of_node: bool) -> list[OutputColumn]:
    for table in _ordered(tables):
        if text in tables[table]:
            return [OutputColumn(text, table, text, of_node)]
    known_as, _, name = text.partition(".")
    for table in _ordered(tables):
        if known_as in (table, short(table)) and name == "*":
            names = sorted(tables[table], key=natural)
            return [OutputColumn(f"{known_as}.{name}", table, name, of_node) for name in names]
        if known_as in (table, short(table)) and name in tables[table]:
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
            if of_job is None:
                more = [one for one in history.tables(job, *wanted[:2]) if (one, False) not in found]
                rows = [*found.values(), *[history.read(RowQuery(job, one, [], *wanted)) for one in more]]
                of_job = interval_of(map(HeldRows, rows))
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


def _of_job(history: History, job: int, places: Iterable[Place], wanted: Interval) -> Iterable[str]:
    """Return the tables with time and hosts of a job: all, as one may lack a host, if rows of nodes depend on it."""
    is_by_job = job != NODE and any(of_node for _, of_node in places)
    return history.tables(job, wanted.since, wanted.until) if is_by_job else _main(history, job, wanted)


def both(one: Interval, other: Interval) -> Interval:
    """Return the common part of two intervals, with the hosts of the first."""
    since = max([at for at in (one.since, other.since) if at is not None], default=None)
    until = min([at for at in (one.until, other.until) if at is not None], default=None)
    return Interval(since, until, one.hosts)


def _main(history: History, job: int, wanted: Interval) -> list[str]:
    """Return the table with a job's hosts and times, in a list; empty if the job has no table."""
    return _ordered(history.tables(job, wanted.since, wanted.until))[:1]


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
        for place in [*tables, *[(table, job == NODE) for table in _of_job(history, job, tables, wanted)]]
        if job == NODE or not place[1]
    }
    of_job = interval_of(rows.values())
    first, last, _ = of_job
    if first is None or last is None:
        return Plan(0, [wanted], None)
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

    @property
    def printable_names(self) -> list[str]:
        """The names of the hosts without terminal control characters."""
        return [text_of(name.encode("utf-8", "replace")) for name in self.names]


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


ALWAYS = ("timestamp", "hostname")
BLOCK_ROWS = 10_000  # of text formatted at a time


def plain(column: Values, missing: Any) -> list[Any]:
    """Return the values of a column as Python numbers and text, with a placeholder for missing ones."""
    values: list[Any] = column.tolist()
    if column.dtype.kind == "S":
        values = list(map(text_of, values))
    there = has(column)
    if there.all():
        return values
    return [value if here else missing for value, here in zip(values, there.tolist())]


def write_json(out: IO[bytes] | gzip.GzipFile, answer: Extraction, missing: Mapping[str, Any]) -> None:
    """Write one JSON object: the columns of an answer, and ``timestamp`` and ``hostname``, as lists.

    `missing` has the placeholder for missing values, by kind of column.
    """
    names = answer.printable_names
    head = [("timestamp", answer.times.tolist()), ("hostname", [names[n] for n in answer.hosts.tolist()])]
    between = "{"
    for name, values in chain(head, ((n, plain(c, missing[c.dtype.kind])) for n, c in answer.columns.items())):
        out.write(f"{between}{json.dumps(name)}: {json.dumps(values, allow_nan=False)}".encode())
        between = ", "
    out.write(b"}\n")


@contextlib.contextmanager
def opened_output(path: str | None) -> Iterator[IO[bytes]]:
    """Open standard output, or a file under a temporary name, renamed when complete."""
    if path is None:
        yield sys.stdout.buffer
        return
    real = os.path.realpath(path)
    if os.path.exists(real) and not os.path.isfile(real):  # a device would be replaced
        raise ColmetError(f"{path}: cannot be written: it is there, and no file")
    part = f"{real}.{os.getpid()}.part"
    try:
        with open(part, "xb") as out:
            yield out
        os.replace(part, real)
    except OSError as err:
        raise ColmetError(f"{path}: cannot be written: {err.strerror or err}") from err
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def _write_csv(out: IO[bytes], parts: Iterable[Extraction]) -> None:
    for number, answer in enumerate(parts):
        if not number:
            out.write(f"{','.join([_cell(name) for name in (*ALWAYS, *answer.columns)])}\n".encode())
        names = [_cell(name) for name in answer.printable_names]
        for begin in range(0, len(answer.times), BLOCK_ROWS):
            rows = slice(begin, begin + BLOCK_ROWS)
            changing = [answer.times[rows].tolist(), [names[n] for n in answer.hosts[rows].tolist()]]
            cells = ["%s", "%s"]
            for column in answer.columns.values():
                block = column[rows]
                if (block == block[0]).all():  # many are
                    cells.append(_cell(*plain(block[:1], "")).replace("%", "%%"))
                    continue
                cells.append("%s")
                values = plain(block, "")
                changing.append([*map(_cell, values)] if block.dtype.kind == "S" else values)
            line = f"{','.join(cells)}\n"
            out.write("".join([line % row for row in zip(*changing)]).encode())


def _cell(value: Any) -> str:
    """Return a value as a cell of CSV; text has no line breaks."""
    cell = str(value)
    return cell if '"' not in cell and "," not in cell else '"{}"'.format(cell.replace('"', '""'))


def _write_parquet(out: IO[bytes], parts: Iterable[Extraction], chosen: Sequence[OutputColumn]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as err:
        raise ConfigError(f"--format parquet requires the Python module pyarrow: {how_to_install('pyarrow')}") from err
    from colmet.common.tables import schemas  # the whole catalogue, which OAR's form does not need

    tables = (_arrow_table(pyarrow, answer) for answer in parts)
    table = next(tables)
    following = next(tables, None)
    if following is None:
        pyarrow.parquet.write_table(table, out)
        return
    kinds = {"i": pyarrow.int64(), "f": pyarrow.float64(), "S": pyarrow.string()}
    declared = {
        (schema.name, field.name): kinds[field.dtype[0]] for schema in schemas().values() for field in schema.fields
    }
    types = {column.name: declared[column[1:3]] for column in chosen if column[1:3] in declared}
    schema = pyarrow.schema([field.with_type(types.get(field.name, field.type)) for field in table.schema])
    try:
        with pyarrow.parquet.ParquetWriter(out, schema) as writer:
            for part in chain([table, following], tables):
                writer.write_table(part.cast(schema))
    except pyarrow.ArrowInvalid as err:
        raise ColmetError(f"a column has values of several types; give --format csv: {err}") from err


def _arrow_table(pyarrow: Any, answer: Extraction) -> Any:
    columns: dict[str, Any] = {
        "timestamp": pyarrow.array(answer.times),
        "hostname": pyarrow.DictionaryArray.from_arrays(
            answer.hosts.astype(np.int32), pyarrow.array(answer.printable_names)
        ),
    }
    for name, column in answer.columns.items():
        if column.dtype.kind == "S":
            columns[name] = pyarrow.array(plain(column, None), pyarrow.string())
        else:
            columns[name] = pyarrow.array(column, mask=~has(column))
    return pyarrow.table(columns)


def _write_hdf5(out: IO[bytes], job: int, found: Found, chosen: Sequence[OutputColumn]) -> None:
    """Write tables in the collector's own format, readable by the same programs."""
    from colmet.collector.backends.hdf5.library import BACKEND_VERSION, STORAGE_ERRORS, cause, opened_library
    from colmet.collector.columns import HEADER

    try:
        with opened_library(out.name, "w") as file:
            for (name, of_node), some in found.items():
                owner = NODE if of_node else job
                wanted = [column.column for column in chosen if (column.table, column.of_node) == (name, of_node)]
                columns = join({(name, of_node): some}, [OutputColumn(n, name, n, of_node) for n in wanted])
                fields = {**HEADER, **{n: values.dtype for n, values in columns.columns.items()}}
                rows = np.zeros(len(columns.times), np.dtype(sorted(fields.items())))
                rows["timestamp"], rows["job_id"], rows["metric_backend"] = columns.times, owner, name.encode()
                rows["hostname"] = (
                    np.array([n.encode() for n in columns.names], "S255")[columns.hosts] if len(rows) else b""
                )
                for n, values in columns.columns.items():
                    rows[n] = np.where(has(values), values, MISSING_INT) if values.dtype.kind == "f" else values
                table = file.create_table(
                    f"/job_{owner}", name, rows.dtype, f"Metrics for the Job {owner}", createparents=True
                )
                table.append(rows)
                table.attrs.backend_version = BACKEND_VERSION
    except STORAGE_ERRORS as err:
        raise OSError(cause(err)) from err


FORMATS = ("json", "csv", "parquet", "hdf5")
BY_PARTS = ("csv", "parquet")  # formats written part by part, so that their memory is bounded


def write(form: str, out: IO[bytes], job: int, found: Iterable[Found], chosen: Sequence[OutputColumn]) -> None:
    """Write the rows in one of the formats, of which only `BY_PARTS` have several parts; OSError where that fails."""
    if form == "hdf5":
        (one,) = found
        _write_hdf5(out, job, one, chosen)
        return
    answers = (join(one, chosen) for one in found)
    if form == "json":
        (answer,) = answers
        write_json(out, answer, dict.fromkeys("ifS"))
    elif form == "csv":
        _write_csv(out, answers)
    else:
        _write_parquet(out, answers, chosen)
