"""Extract a job's rows from the store, as JSON, CSV, Parquet or HDF5.

The second form is for OAR's REST API, as colmet-extract: it prints one JSON object, compressed with gzip.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import sys
import syslog
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

# OAR's users wait for each import, so modules required by the other form only are imported there.
from colmet.commands import extract_rows
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.text import counted
from colmet.stored.series import NODE, History, RowQuery, natural, near

if TYPE_CHECKING:
    from colmet.common.config import cli

USAGE, NO_FILE, NO_DATA = 1, 2, 4  # exit statuses of the form called by OAR, as in Colmet 0.6
FAILED = 3  # not in Colmet 0.6
ARGUMENTS = {
    "PREFIX": "the collector's --hdf5-filepath: the files are PREFIX.<10 digits>.hdf5",
    "JOB_ID": "the job's number; 0 for the nodes themselves",
    "START": "read the files from this time on, in seconds since 1970; of the nodes themselves: the rows",
    "STOP": "read the files up to this time; of the nodes themselves: the rows",
    "METRICS": "columns, separated by commas; table.column where several tables have one",
}
MAX_METRICS = 1000
MAX_VALUES = 8 << 20  # of formats that are not written part by part
_METRIC = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,255}(\*)?", re.ASCII)
_JOB = re.compile(r"\d{1,19}", re.ASCII)
_TIME = re.compile(r"[+-]?\d{1,15}(\.\d{0,9})?", re.ASCII)


def metrics(text: str) -> list[str]:
    """Return the column names in a comma-separated text, without duplicates: an option type."""
    names = list(dict.fromkeys(filter(None, text.split(",", MAX_METRICS + 1))))
    if not names or len(names) > MAX_METRICS:
        raise argparse.ArgumentTypeError(f"{len(names)} metrics; give from 1 to {MAX_METRICS}, separated by commas")
    for name in names:
        if not _METRIC.fullmatch(name):
            raise argparse.ArgumentTypeError(f"{_shown(name)} is not the name of a metric, such as read_bytes")
    return [name for name in names if name not in extract_rows.ALWAYS]


def _shown(text: str) -> str:
    """Return foreign text, shortened and without terminal control characters."""
    shown = ascii(text[:100])
    return shown if len(shown) <= 62 else f"{shown[:61]}...{shown[0]}"


# -- the form called by OAR --


class _Refused(Exception):
    """An exit status, and a line of text instead of data."""


def answer_oar(arguments: Sequence[str], out: IO[bytes]) -> int:
    """Write the answer to OAR's REST API: gzip with one JSON object, or else one line on stderr.

    OAR merges stderr into the same stream, so stderr is closed to all other output, such as warnings of libraries.
    Returns the exit status: 0, `USAGE`, `NO_FILE`, `NO_DATA`, or `FAILED` for lack of memory.
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
        status, text = err.args
        os.write(kept, f"colmet-extract: {text}\n".encode("utf-8", "replace"))
        return int(status)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _write_oar(arguments: Sequence[str], out: IO[bytes]) -> None:
    from colmet.stored.hdf5 import Hdf5History
    from colmet.stored.reading_process import files_of

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
        interval = extract_rows.Interval(float(start), float(stop))
        # of a job all rows, as in Colmet 0.6: the last one, with its totals, may be measured after its end in OAR
        wanted = extract_rows.ALL_ROWS if job != NODE else interval
        with Hdf5History([prefix], interval.since, interval.until) as history:
            found: extract_rows.Found
            main, why = history.read(RowQuery(job, extract_rows.FIRST[0], names, *wanted)), ""
            if main and all(name in one.columns for one in main for name in names):  # nearly always
                chosen, found = (
                    [extract_rows.OutputColumn(name, extract_rows.FIRST[0], name) for name in names],
                    {(extract_rows.FIRST[0], False): main},
                )
            else:
                chosen = extract_rows.choose(history, job, names, wanted)
                found = extract_rows.fetch(history, job, chosen, wanted)
                if not found:
                    tables = history.tables(job, wanted.since, wanted.until)
                    which = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
                    why = f": none of its tables, {', '.join(tables)}, has {which}"
                    why = why if tables else ": no file of that time has rows of it"
            for warning in history.warnings:
                syslog.syslog(syslog.LOG_WARNING, f"colmet-extract: {warning}")
    except ConfigError as err:
        raise _Refused(NO_FILE, str(err)) from err
    answer = extract_rows.join(found, chosen)
    if not len(answer.times):
        raise _Refused(NO_DATA, f"no data of job {job} from {start} to {stop}{why}")
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=6, mtime=0) as packed:
        extract_rows.write_json(packed, answer, {"i": -1, "f": -1, "S": ""})


def build_parser() -> cli.Parser:
    """Return the parser for the help of colmet-extract and its manual page; it does not parse OAR's arguments."""
    from colmet import __version__
    from colmet.common.config import cli

    parser = cli.Parser(
        prog="colmet-extract",
        description="Print the stored rows of a job for OAR's REST API: gzip with one JSON object of lists: one for "
        "each metric, and timestamp and hostname.",
        epilog="example:\n"
        "  colmet-extract /var/lib/colmet/colmet 4242 1700000000 1700003600 cpu_run_real_total,coremem | gunzip\n\n"
        "colmet extract --job does more.",
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}", help="print the version, and exit"
    )
    for name, help_text in ARGUMENTS.items():
        parser.add_argument(name, help=help_text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``colmet-extract``; return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) == 1 and arguments[0] in ("-h", "--help", "--version"):
        build_parser().parse_args(arguments)
    try:
        status = answer_oar(arguments, sys.stdout.buffer)
        sys.stdout.flush()
        return status
    except OSError as err:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # avoids an error of Python at exit
        os.close(nowhere)
        if isinstance(err, BrokenPipeError):
            return 0
        print(f"colmet-extract: the answer cannot be written: {err.strerror or err}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130  # a shell's status for SIGINT


# -- the form with options --


def add_options(parser: cli.Parser) -> None:
    """Declare the options."""
    from colmet.commands import remote, selection
    from colmet.stored import sources  # loads the library for databases, not required by OAR's form

    parser.epilog = """\
examples:
  colmet extract -j 4242 --list
  colmet extract -j 4242 --metrics cpu_run_real_total,coremem --format csv
  colmet extract -j 4242 --metrics 'taskstats_default.*' --since 2h
  colmet extract -j 4242 --format parquet --output job4242.parquet
  colmet extract /var/lib/colmet/colmet 4242 1700000000 1700003600 coremem | gunzip

exit status:
  0  done
  1  no matching rows, or the output cannot be written
  2  wrong command line or configuration, or an unreadable file
The second form has the statuses of colmet-extract."""
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
        "--format",
        choices=extract_rows.FORMATS,
        help="write this format; parquet and hdf5 require --output (default: json)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write to this file (default: standard output)")
    sources.add_options(parser)
    remote.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Write the requested data; return 0, or 1 if nothing of the job is stored."""
    return main(options.oar) if options.oar else _run(options)


def _run(options: argparse.Namespace) -> int:
    from colmet.commands import selection
    from colmet.commands.histories import open_history, shown_progress

    if options.job is None:
        raise ConfigError("no job is named; give --job JOB")
    selection.check_interval(options)
    if options.list and (options.output or options.metrics or options.format not in (None, "json")):
        raise ConfigError("--list excludes --metrics, --output and all formats but json")
    form = options.format or "json"
    if form in ("parquet", "hdf5") and options.output is None and not options.list:
        raise ConfigError(f"--format {form} requires a file: give --output FILE")
    with open_history(options) as history:
        wanted = extract_rows.Interval(options.since, options.until, options.host)
        try:
            if options.list:
                return _list(history, options.job, wanted, options.format is not None)
            chosen = extract_rows.choose(history, options.job, options.metrics, wanted)
            unknown = [column.name for column in chosen if not column.table]
            numbers = (options.job, NODE) if unknown else ()
            known = [one for job in numbers for one in history.tables(job, *wanted[:2]).items()]
            hints = [near(name, known) for name in unknown]
            if chosen and len(unknown) == len(chosen):
                names = ", ".join([_shown(name) for name in unknown[:5]])
                raise ColmetError(f"job {options.job} has none of {names}; {hints[0]}; --list prints what is stored")
            with shown_progress(history, "colmet extract"):
                planned = extract_rows.plan(history, options.job, chosen, wanted)
        finally:
            warned = [*history.warnings]
            _warn(warned)
        _warn([f"no table has {name}; {hint}" for name, hint in zip(unknown, hints)])
        if not planned.values:
            raise ColmetError(f"nothing is stored of job {options.job} in this interval; --list prints what is")
        if form not in extract_rows.BY_PARTS:
            if planned.values > MAX_VALUES:
                raise ColmetError(
                    f"{planned.values} values are too many for --format {form}, and the limit is {MAX_VALUES}; give "
                    f"--format {' or '.join(extract_rows.BY_PARTS)}, fewer metrics or a shorter interval"
                )
            planned = planned._replace(windows=[wanted], of_job=None)
        columns = [column for column in chosen if column.table]

        def parts() -> Iterator[extract_rows.Found]:
            for done, window in enumerate(planned.windows):
                yield extract_rows.fetch(history, options.job, chosen, window, planned.of_job)
                history.progress("write", (done + 1) / len(planned.windows))

        with extract_rows.opened_output(options.output) as out, shown_progress(history, "colmet extract"):
            extract_rows.write(form, out, options.job, parts(), columns)
        _warn([text for text in history.warnings if text not in warned])
    return 0


def _warn(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"colmet extract: {line}", file=sys.stderr)


def _list(history: History, job: int, wanted: extract_rows.Interval, as_json: bool) -> int:
    """Print the stored tables and columns of a job; return 0, or 1 if there are none."""
    from colmet.common.tables import schemas

    units = {schema.name: {field.name: field.unit for field in schema.fields} for schema in schemas().values()}
    listed = []
    for table, columns in history.tables(job, wanted.since, wanted.until).items():
        rows = history.by_hosts(RowQuery(job, table, [], *wanted))
        listed.append(
            {
                "table": table,
                "rows": sum(rows.counts.values()),
                "hosts": sorted(rows.counts),
                "from": rows.first if rows.counts else None,
                "to": rows.last if rows.counts else None,
                "columns": {name: units.get(table, {}).get(name, "") for name in sorted(columns, key=natural)},
            }
        )
    print(json.dumps(listed) if as_json else "\n".join(_lines(listed)) or f"nothing of job {job}")
    return 0 if listed else 1


def _lines(listed: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    import shutil
    import textwrap

    from colmet.common.text import utc

    for one in listed:
        hosts = len(one["hosts"])
        yield f"{one['table']}: {counted(one['rows'], 'rows')} of {counted(hosts, 'hosts')}"
        if one["rows"]:
            yield f"  from {utc(one['from'])} to {utc(one['to'])} UTC"
        columns = [f"{name} ({unit})" if unit not in ("", "none") else name for name, unit in one["columns"].items()]
        yield from textwrap.wrap(
            ", ".join(columns), shutil.get_terminal_size().columns, initial_indent="  ", subsequent_indent="  "
        )


if __name__ == "__main__":
    sys.exit(main())
