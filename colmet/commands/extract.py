"""Extract a job's rows from the store, as JSON, CSV, Parquet or HDF5.

The second form is that of OAR's REST API, and of the program colmet-extract: it prints gzip with one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import re
import sys
import syslog
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, NamedTuple

# OAR's users wait for each import, so modules required by the other form only are imported there. Nothing is computed
# here, so no library needs to start threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("NUMEXPR_NUM_THREADS", "1")
import numpy as np
import numpy.typing as npt

from colmet.common.errors import ColmetError, ConfigError
from colmet.common.runtime.dependencies import how_to_install
from colmet.common.runtime.plural import counted
from colmet.common.schema import MISSING_INT
from colmet.stored.names import natural, near, short
from colmet.stored.series import NODE, History, Series

if TYPE_CHECKING:
    from colmet.common.runtime import cli

USAGE, NO_FILE, NO_DATA = 1, 2, 4  # exit statuses of the form called by OAR, as in Colmet 0.6
FAILED = 3  # not in Colmet 0.6
ARGUMENTS = ("PREFIX", "JOB_ID", "START", "STOP", "METRICS")
MAX_METRICS = 1000
# Precedence of tables with equal column names; the others follow in the order of their names.
FIRST = ("taskstats_default", "jobprocstats_default", "perfhwstats_default", "procstats_default", "RAPLstats_default")
BLOCK_ROWS = 10_000  # of text formatted at a time
BACKEND_VERSION = 2  # attribute of every table in HDF5
ALWAYS = ("timestamp", "hostname")
_METRIC = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,255}(\*)?", re.ASCII)
_JOB = re.compile(r"\d{1,19}", re.ASCII)
_TIME = re.compile(r"[+-]?\d{1,15}(\.\d{0,9})?", re.ASCII)

Values = npt.NDArray[Any]


# -- the request --


class OutputColumn(NamedTuple):
    """A requested column.

    Attributes:
        name: in the answer.
        table: name of its table; empty if no table has it.
        column: name in the table.
        of_node: whether the table has rows of nodes.
    """

    name: str
    table: str = ""
    column: str = ""
    of_node: bool = False


def metrics(text: str) -> list[str]:
    """Return the column names in a comma-separated text, without duplicates: an option type.

    Raises:
        argparse.ArgumentTypeError: malformed names, or too many.
    """
    names = list(dict.fromkeys(filter(None, text.split(",", MAX_METRICS + 1))))
    if not names or len(names) > MAX_METRICS:
        raise argparse.ArgumentTypeError(f"{len(names)} metrics; give from 1 to {MAX_METRICS}, separated by commas")
    for name in names:
        if not _METRIC.fullmatch(name):
            raise argparse.ArgumentTypeError(f"{_shown(name)} is not the name of a metric, such as read_bytes")
    return [name for name in names if name not in ALWAYS]


def _shown(text: str) -> str:
    """Return foreign text, shortened and without terminal control characters."""
    return ascii(text[:60] + "..." if len(text) > 60 else text)


class Interval(NamedTuple):
    """A selection of rows: seconds since 1970, both ends included, and hosts; None for all."""

    since: float | None = None
    until: float | None = None
    hosts: Sequence[str] | None = None


def choose(history: History, job: int, asked: Sequence[str] | None, wanted: Interval) -> list[OutputColumn]:
    """Return the requested columns in order, those found in no table of the job or of nodes with an empty table.

    Args:
        history: the store.
        job: number of the job; its tables come first.
        asked: ``column``, ``table.column``, ``table.*``, or these without the _default of the table; all of the job's
            tables by default.
        wanted: selection of rows.
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


# -- rows --


Place = tuple[str, bool]  # a table, and whether it has rows of nodes
Found = Mapping[Place, Sequence[Series]]


def fetch(history: History, job: int, chosen: Sequence[OutputColumn], wanted: Interval) -> dict[Place, list[Series]]:
    """Read the rows of each table with requested columns; those of nodes only for the job's time and hosts.

    Args:
        history: the store.
        job: number of the job.
        chosen: columns.
        wanted: selection of rows.

    Returns:
        series by table and whether they are of nodes.
    """
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
    """Return the hosts and the time range of a job's rows, from its main table and tables already read."""
    rows = [series for some in found.values() for series in some]
    for table in _main(history, job, wanted):
        if (table, False) not in found:
            rows += history.read(job, table, [], *wanted)
    if not rows:
        return Interval(hosts=())
    times = [int(series.times[0]) for series in rows] + [int(series.times[-1]) for series in rows]
    return Interval(min(times), max(times), sorted({series.host for series in rows}))


class Extraction(NamedTuple):
    """Columns of one length, sorted by time and host.

    Attributes:
        times: seconds since 1970.
        hosts: of each row, by their number in `names`.
        names: of hosts.
        columns: int64, float64 or bytes, with -1, NaN or b"" for missing values.
    """

    times: npt.NDArray[np.int64]
    hosts: npt.NDArray[np.int64]
    names: list[str]
    columns: dict[str, Values]


def join(found: Found, chosen: Sequence[OutputColumn]) -> Extraction:
    """Join rows of several tables by time and host; repeated rows of one time are joined in order.

    Args:
        found: the result of `fetch`.
        chosen: the columns of the answer.
    """
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
    """Return the values of a column in the rows of an answer.

    Args:
        parts: values of each series; None for a series without the column.
        counts: rows of each series.
        rows: index in the answer of each row of all series.
        length: of the answer.
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


def plain(column: Values, missing: Any) -> list[Any]:
    """Return the values of a column as Python numbers and text.

    Args:
        column: of an answer.
        missing: placeholder for missing values.
    """
    if column.dtype.kind == "S":
        values: list[Any] = [text(value) for value in column.tolist()]
    else:
        values = column.tolist()
    there = has(column)
    if there.all():
        return values
    return [value if here else missing for value, here in zip(values, there.tolist())]


def text(value: bytes) -> str:
    """Decode text of a row, without terminal control characters."""
    decoded = value.decode("utf-8", "replace")
    return decoded if decoded.isprintable() else decoded.encode("unicode_escape").decode()


def write_json(out: IO[bytes] | gzip.GzipFile, answer: Extraction, missing: Mapping[str, Any]) -> None:
    """Write one JSON object: the columns of an answer, and ``timestamp`` and ``hostname``, as lists.

    Args:
        out: the output.
        answer: written column by column.
        missing: placeholder for missing values, by kind of column.
    """
    names = [text(name.encode("utf-8", "replace")) for name in answer.names]
    head = [("timestamp", answer.times.tolist()), ("hostname", [names[n] for n in answer.hosts.tolist()])]
    between = "{"
    for name, values in chain(head, ((n, plain(c, missing[c.dtype.kind])) for n, c in answer.columns.items())):
        out.write(f"{between}{json.dumps(name)}: {json.dumps(values, allow_nan=False)}".encode())
        between = ", "
    out.write(b"}\n")


# -- the form called by OAR --


class _Refused(Exception):
    """An answer of one line of text in place of data.

    Attributes:
        status: exit status of the program.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def answer_oar(arguments: Sequence[str], out: IO[bytes]) -> int:
    """Write the answer to OAR's REST API: gzip with one JSON object, or else one line on stderr.

    OAR merges stderr into the same stream, so stderr is closed to all other output, such as warnings of libraries.

    Args:
        arguments: PREFIX, JOB_ID, START, STOP and METRICS, unchecked.
        out: output for the data.

    Returns:
        the exit status: 0, `USAGE`, `NO_FILE`, `NO_DATA`, or `FAILED` for lack of memory.
    """
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        try:
            _write_oar(arguments, out)
        except MemoryError as err:
            raise _Refused(FAILED, "there is not enough memory for the answer; ask for a shorter interval") from err
        return 0
    except _Refused as err:
        os.write(kept, f"colmet-extract: {err}\n".encode("utf-8", "replace"))
        return err.status
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _write_oar(arguments: Sequence[str], out: IO[bytes]) -> None:
    """Write the data.

    Raises:
        _Refused: wrong arguments, or no data.
    """
    from colmet.stored.hdf5 import Hdf5History, files_of

    if len(arguments) != len(ARGUMENTS):
        raise _Refused(USAGE, f"{counted(len(arguments), 'arguments')}, not 5: colmet-extract {' '.join(ARGUMENTS)}")
    prefix, job_text, start, stop, asked = arguments
    if not _JOB.fullmatch(job_text) or int(job_text) >= 1 << 63:
        raise _Refused(USAGE, f"JOB_ID {_shown(job_text)} is not a job's number")
    for name, value in (("START", start), ("STOP", stop)):
        if not _TIME.fullmatch(value):
            raise _Refused(USAGE, f"{name} {_shown(value)} is not a time in seconds since 1970")
    job = int(job_text)
    try:
        names = metrics(asked)
    except argparse.ArgumentTypeError as err:
        raise _Refused(USAGE, f"METRICS: {err}") from err
    try:
        if not files_of(prefix):
            raise _Refused(NO_FILE, f"no file is named {_shown(prefix)} with .<10 digits>.hdf5 behind it")
        with Hdf5History([prefix]) as history:
            wanted = Interval(float(start), float(stop))
            main: Found = {(FIRST[0], False): history.read(job, FIRST[0], names, *wanted)}
            if _has_all(main, names):  # nearly always true; the other tables need not be read
                chosen, found, why = [OutputColumn(name, FIRST[0], name) for name in names], main, ""
            else:
                chosen = choose(history, job, names, wanted)
                found = fetch(history, job, chosen, wanted)
                why = "" if found else _why_none(history, job, names, wanted)
            for warning in history.warnings:
                syslog.syslog(syslog.LOG_WARNING, f"colmet-extract: {warning}")
    except ConfigError as err:
        raise _Refused(NO_FILE, str(err)) from err
    answer = join(found, chosen)
    if not len(answer.times):
        raise _Refused(NO_DATA, f"no data of job {job} from {start} to {stop}{why}")
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=6, mtime=0) as packed:
        write_json(packed, answer, {"i": -1, "f": -1, "S": ""})


def _has_all(found: Found, names: Sequence[str]) -> bool:
    """Return whether there are rows, all with these columns."""
    series = [series for some in found.values() for series in some]
    return bool(series) and all(name in one.columns for one in series for name in names)


def _why_none(history: History, job: int, names: Sequence[str], wanted: Interval) -> str:
    """Return why no table has the requested columns."""
    tables = history.tables(job, wanted.since, wanted.until)
    if not tables:
        return ": no file of that time has rows of it"
    return f": none of its tables, {', '.join(tables)}, has {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"


def build_parser() -> cli.Parser:
    """Return the parser for the help of colmet-extract and its manual page; it does not parse OAR's arguments."""
    from colmet import __version__
    from colmet.common.runtime import cli

    parser = cli.Parser(
        prog="colmet-extract",
        description="Hand out what has been stored of a job, as OAR's REST API asks for it: gzip with one JSON object, "
        "in which each metric has a list of values, beside the lists timestamp and hostname.",
        epilog="example:\n"
        "  colmet-extract /var/lib/colmet/colmet 4242 1700000000 1700003600 cpu_run_real_total,coremem | gunzip\n\n"
        "colmet extract --job does more.",
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}", help="print the version, and exit"
    )
    for name, help_text in zip(
        ARGUMENTS,
        (
            "what the collector has as --hdf5-filepath: the files are PREFIX.<10 digits>.hdf5",
            "the job's number; 0 for the nodes themselves",
            "rows from this time on, in seconds since 1970",
            "rows up to this time",
            "columns, as in docs/metrics.md, separated by commas; table.column where several tables have one",
        ),
    ):
        parser.add_argument(name, help=help_text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``colmet-extract``; return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) == 1 and arguments[0] in ("-h", "--help", "--version"):
        build_parser().parse_args(arguments)
    try:
        return ending_with_the_pipe(lambda: answer_oar(arguments, sys.stdout.buffer))
    except ColmetError as err:
        print(f"colmet-extract: {err}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130  # a shell's status for SIGINT


# -- the form with options --


def add_options(parser: cli.Options) -> None:
    """Declare the options."""
    from colmet.commands import selection
    from colmet.stored import sources  # loads the library for databases, not required by OAR's form

    if isinstance(parser, argparse.ArgumentParser):
        parser.epilog = """\
examples:
  colmet extract -j 4242 --list
  colmet extract -j 4242 --metrics cpu_run_real_total,coremem --format csv
  colmet extract -j 4242 --metrics 'taskstats_default.*' --since 2h --json
  colmet extract -j 4242 --format parquet --output job4242.parquet
  colmet extract /var/lib/colmet/colmet 4242 1700000000 1700003600 coremem | gunzip

exit status: 0; 1 where nothing is stored of what was asked for, or it cannot be written; 2 where the command line or
the configuration is wrong, or a file cannot be read. Without --job, that of colmet-extract."""
        parser.usage = f"{parser.prog} --job JOB [OPTION ...]\n{parser.prog} {' '.join(ARGUMENTS)}"
    parser.add_argument(
        "oar",
        metavar="PREFIX JOB_ID START STOP METRICS",
        nargs=argparse.REMAINDER,
        help="the form of OAR's REST API, without options; see colmet-extract --help",
    )
    selection.add_job(parser, "extract this job; 0: the nodes themselves")
    parser.add_argument(
        "--metrics",
        metavar="NAME,...",
        type=metrics,
        help="only these columns: COLUMN, TABLE.COLUMN or TABLE.*; of tables of nodes, the rows of the job's time and "
        "hosts (default: all tables of the job)",
    )
    selection.add_interval(parser)
    selection.add_hosts(parser)
    parser.add_argument("--list", action="store_true", help="print tables, their rows and columns with units")
    parser.add_argument(
        "--format", choices=list(WRITERS), help="write this format; parquet and hdf5 require --output (default: json)"
    )
    parser.add_argument("--json", action="store_true", help="the same as --format json; with --list: print JSON")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to this file (default: standard output)")
    sources.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Write the requested data; return 0, or 1 if nothing of the job is stored.

    Raises:
        ColmetError: the data cannot be read or written; the text gives the remedy.
    """
    return main(options.oar) if options.oar else _run(options)


def _run(options: argparse.Namespace) -> int:
    from colmet.commands import selection
    from colmet.stored import sources

    if options.job is None:
        raise ConfigError("no job is named; give --job JOB")
    selection.check_interval(options)
    if options.json and options.format not in (None, "json"):
        raise ConfigError(f"--json and --format {options.format}: give one of them")
    if options.list and (options.output or options.metrics or options.format not in (None, "json")):
        raise ConfigError("--list excludes --metrics, --output and all formats but json")
    form = options.format or "json"
    if form in ("parquet", "hdf5") and options.output is None and not options.list:
        raise ConfigError(f"--format {form} requires a file: give --output FILE")
    with sources.open_history(options) as history:
        wanted = Interval(options.since, options.until, options.host)
        try:
            if options.list:
                return _list(history, options.job, wanted, options.json)
            chosen = choose(history, options.job, options.metrics, wanted)
            unknown = [column.name for column in chosen if not column.table]
            hints = _hints(history, options.job, wanted, unknown)
            if chosen and len(unknown) == len(chosen):
                names = ", ".join([_shown(name) for name in unknown[:5]])
                raise ColmetError(f"job {options.job} has none of {names}; {hints[0]}; --list prints what is stored")
            found = fetch(history, options.job, chosen, wanted)
        finally:
            _warn(history.warnings)
    _warn([f"no table has {name}; {hint}" for name, hint in zip(unknown, hints)])
    if not any(found.values()):
        raise ColmetError(f"nothing is stored of job {options.job} in this interval; --list prints what is")
    chosen = [column for column in chosen if column.table]
    with _target(options.output) as out:
        WRITERS[form](out, options.job, found, chosen)
    return 0


def _hints(history: History, job: int, wanted: Interval, unknown: Sequence[str]) -> list[str]:
    """Return the nearest known names of each unknown name."""
    if not unknown:
        return []
    of_job, of_nodes = [history.tables(one, wanted.since, wanted.until) for one in (job, NODE)]
    return [near(name, [*of_job.items(), *of_nodes.items()]) for name in unknown]


def _warn(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"colmet extract: {line}", file=sys.stderr)


def ending_with_the_pipe(work: Callable[[], int]) -> int:
    """Do some work and return its exit status; 0 if the reader closed the pipe early.

    Raises:
        ColmetError: its output cannot be written.
    """
    try:
        status = work()
        sys.stdout.flush()
        return status
    except OSError as err:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # avoids an error of Python at exit
        os.close(nowhere)
        if isinstance(err, BrokenPipeError):
            return 0
        raise ColmetError(f"the answer cannot be written: {err.strerror or err}") from err


@contextlib.contextmanager
def _target(path: str | None) -> Iterator[IO[bytes]]:
    """Open standard output, or a file under a temporary name, renamed when complete.

    Raises:
        ColmetError: the file cannot be written.
    """
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


def _write_json(out: IO[bytes], _job: int, found: Found, chosen: Sequence[OutputColumn]) -> None:
    write_json(out, join(found, chosen), {"i": None, "f": None, "S": None})


def _write_csv(out: IO[bytes], _job: int, found: Found, chosen: Sequence[OutputColumn]) -> None:
    import csv

    answer = join(found, chosen)
    names = [text(name.encode("utf-8", "replace")) for name in answer.names]
    block = io.StringIO()
    writer = csv.writer(block, lineterminator="\n")
    writer.writerow([*ALWAYS, *answer.columns])
    for begin in range(0, len(answer.times), BLOCK_ROWS):
        rows = slice(begin, begin + BLOCK_ROWS)
        hosts = [names[n] for n in answer.hosts[rows].tolist()]
        columns = [plain(column[rows], "") for column in answer.columns.values()]
        writer.writerows(zip(answer.times[rows].tolist(), hosts, *columns))
        out.write(block.getvalue().encode())
        block.seek(0)
        block.truncate()
    out.write(block.getvalue().encode())  # the line of names, if there are no rows


def _write_parquet(out: IO[bytes], _job: int, found: Found, chosen: Sequence[OutputColumn]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as err:
        raise ConfigError(f"--format parquet requires the Python module pyarrow: {how_to_install('pyarrow')}") from err
    answer = join(found, chosen)
    names = [text(name.encode("utf-8", "replace")) for name in answer.names]
    columns: dict[str, Any] = {
        "timestamp": pyarrow.array(answer.times),
        "hostname": pyarrow.DictionaryArray.from_arrays(answer.hosts.astype(np.int32), pyarrow.array(names)),
    }
    for name, column in answer.columns.items():
        if column.dtype.kind == "S":
            columns[name] = pyarrow.array(plain(column, None), pyarrow.string())
        else:
            columns[name] = pyarrow.array(column, mask=~has(column))
    pyarrow.parquet.write_table(pyarrow.table(columns), out)


def _write_hdf5(out: IO[bytes], job: int, found: Found, chosen: Sequence[OutputColumn]) -> None:
    """Write tables in the collector's own format, readable by the same programs."""
    from colmet.collector.backends.hdf5.library import STORAGE_ERRORS, cause, opened_library
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


WRITERS: Mapping[str, Callable[[IO[bytes], int, Found, Sequence[OutputColumn]], None]] = {
    "json": _write_json,
    "csv": _write_csv,
    "parquet": _write_parquet,
    "hdf5": _write_hdf5,
}


def _list(history: History, job: int, wanted: Interval, as_json: bool) -> int:
    """Print the stored tables and columns of a job; return 0, or 1 if there are none."""
    from colmet.common.tables import schemas

    units = {schema.name: {field.name: field.unit for field in schema.fields} for schema in schemas().values()}
    told = []
    for table, columns in history.tables(job, wanted.since, wanted.until).items():
        rows = history.read(job, table, [], *wanted)
        told.append(
            {
                "table": table,
                "rows": sum(map(len, rows)),
                "hosts": [series.host for series in rows],
                "from": min([int(series.times[0]) for series in rows], default=None),
                "to": max([int(series.times[-1]) for series in rows], default=None),
                "columns": {name: units.get(table, {}).get(name, "") for name in sorted(columns, key=natural)},
            }
        )
    print(json.dumps(told) if as_json else "\n".join(_lines(told)) or f"nothing of job {job}")
    return 0 if told else 1


def _lines(told: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the list of tables and columns as text."""
    import shutil
    import textwrap

    for one in told:
        hosts = len(one["hosts"])
        yield f"{one['table']}: {counted(one['rows'], 'rows')} of {counted(hosts, 'hosts')}"
        if one["rows"]:
            yield f"  from {utc(one['from'])} to {utc(one['to'])} UTC"
        columns = [f"{name} ({unit})" if unit not in ("", "none") else name for name, unit in one["columns"].items()]
        yield from textwrap.wrap(
            ", ".join(columns), shutil.get_terminal_size().columns, initial_indent="  ", subsequent_indent="  "
        )


def utc(seconds: int) -> str:
    """Return a time as text, in UTC."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
    except (OSError, OverflowError, ValueError):  # a damaged file may have any value
        return f"{seconds} s since 1970"


if __name__ == "__main__":
    sys.exit(main())
