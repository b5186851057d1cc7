"""Draw metrics of a job over time: a picture (PNG or SVG) with a chart for each metric and a line for each host.

Without a METRIC, CPU, memory, I/O and GPUs are drawn, as far as they were measured. A METRIC is a column, or a measure
such as cpu_used or memory: on each host the first of several columns with values. Counters are drawn as rates: CPU time
as cores, bytes as bytes per second. A gap in the line is a time without samples. More than ten lines become their
median, minimum and maximum. Columns of nodes (power, temperatures, InfiniBand) are drawn for the job's hosts, during
the job.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from colmet.commands import archives, remote, selection
from colmet.commands.extract_rows import ALL_ROWS, Interval, interval_of
from colmet.commands.progress import shown_progress
from colmet.commands.remote_rows import open_history
from colmet.common.config import cli
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.growth import CAPACITY_COLUMNS, Capacity, is_bounded
from colmet.common.lines import Line, shown
from colmet.common.measures import CGROUP, CGROUP_TABLE, MEASURES, ORIGINS
from colmet.common.schema import Field, Unit
from colmet.common.tables import schemas
from colmet.common.text import Clock
from colmet.stored import sources
from colmet.stored.capacity import capacities, ceilings
from colmet.stored.curves import averaged, is_rate, lines, thinned, unit_of
from colmet.stored.names import names_of, near
from colmet.stored.series import NODE, GroupedRows, HeldRows, History, HostRows, RowQuery, Series, groups_of

KINDS = ("png", "svg")
WIDTH, PANEL_HEIGHT, HEAD_HEIGHT = 900, 220, 50  # pixels
STANDARD = ("cpu_used", "memory", "charged_read", "charged_write", "gpu_use", "gpu_memory")  # measures
MAX_HEIGHT, MAX_METRICS = 8000, 36
MAX_SAMPLES = 2 << 20  # in whole lines; beyond it, lines have `MAX_POINTS`, more than a picture has pixels
MAX_POINTS = 8000
_UNDECLARED = Field("unknown", "none", "gauge")  # for a column not declared in this version


def add_options(parser: cli.Parser) -> None:
    """Declare the options: the job, the metrics, and the picture."""
    parser.epilog = """\
examples:
  colmet plot 4242
  colmet plot 4242 --text
  colmet plot 4242 cpu_usage memory
  colmet plot -j 4242 memory --since yesterday --output job.svg

exit status:
  0  done
  1  no rows of this job and metric, or the picture cannot be written
  2  wrong command line or configuration, or an unknown metric"""
    parser.usage = f"{parser.prog} [OPTION ...] JOB [METRIC ...]"
    parser.add_argument(
        "metrics",
        metavar="JOB [METRIC ...]",
        nargs="*",
        help="the job (unless given by --job) and the metrics: COLUMN, TABLE.COLUMN if several tables have the "
        "column, or a measure such as cpu_used, memory or tasks (default: "
        f"{', '.join(STANDARD)})",
    )
    selection.add_job(parser, "draw this job; 0: the nodes themselves")
    selection.add_interval(parser)
    selection.add_hosts(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write to this file, .png or .svg; - for PNG (default: job-JOB-....png)"
    )
    parser.add_argument("--text", action="store_true", help="draw in the terminal; a picture only with --output")
    parser.add_argument("--json", action="store_true", help="print the values as JSON; a picture only with --output")
    sources.add_options(parser)
    remote.add_options(parser)


class Choice(NamedTuple):
    """A requested column; `job` is `NODE` for a column of the nodes."""

    job: int
    table: str
    column: str
    field: Field
    measure: str = ""  # key of the requested measure, of which this column and `others` are sources; else empty
    others: tuple[Choice, ...] = ()  # columns for hosts without this one, in order of preference

    @property
    def columns(self) -> tuple[Choice, ...]:
        """All columns to read."""
        return (self._replace(others=()), *self.others)


class Plotted(NamedTuple):
    """A chart of a column: rate or value, unit, the lines, and the column of each line."""

    choice: Choice
    rate: bool
    unit: Unit
    lines: Sequence[Line]
    columns: Sequence[Choice]
    is_standard: bool = False  # not named on the command line

    @property
    def title(self) -> str:
        """The content of the chart, in a line."""
        if self.is_standard:
            label = MEASURES[self.choice.measure].label
            return label[:1].upper() + label[1:]
        if self.choice.measure:
            measure = MEASURES[self.choice.measure]
            origins = {(one.table, one.column): one.origin for one in measure.sources if one.origin}
            said = dict.fromkeys([ORIGINS[origins[one[1:3]]] for one in self.columns if one[1:3] in origins])
            return f"{measure.key}: {'that of ' + ' and '.join(said) if said else measure.label}"
        about = self.choice.field.help.partition(" Source: ")[0].partition(". ")[0].rstrip(".;")
        return f"{self.choice.column}: {about}" if about else self.choice.column


def choose(texts: Sequence[str], tables: Mapping[int, Mapping[str, Sequence[str]]]) -> list[Choice]:
    """Return the columns named by texts: ``column``, ``table.column``, or the latter without _default.

    `tables` has the columns by table, those of the job before those of the nodes.

    Raises:
        ConfigError: no such column, or more than one; the error lists similar names.
    """
    declared = {schema.name: {field.name: field for field in schema.fields} for schema in schemas().values()}
    names: dict[str, list[tuple[int, str, str]]] = {}
    for job, found in tables.items():
        for table, columns in found.items():
            for column in columns:
                for name in names_of(table, column):
                    names.setdefault(name, []).append((job, table, column))
    chosen = []
    own = next(iter(tables))
    for text in texts:
        measured = _measured(text, own, tables[own], declared) if text not in names and text in MEASURES else None
        if measured is not None:
            chosen.append(measured)
            continue
        candidates = names.get(text, [])
        candidates = [one for one in candidates if one[0] == candidates[0][0]]
        if not candidates:
            there = near(text, [one for found in tables.values() for one in found.items()])
            raise ConfigError(f"no metric {shown(text)!r} is stored of this job; {there}")
        if len(candidates) > 1:
            each = ", ".join([shown(f"{table}.{column}", 100) for _, table, column in candidates])
            raise ConfigError(f"{text!r} is a column of several tables; name one of {each}")
        job, table, column = candidates[0]
        field = declared.get(table, {}).get(column, _UNDECLARED)
        if field.kind == "label":
            raise ConfigError(f"{text!r} is text, which cannot be drawn")
        chosen.append(Choice(job, table, column, field))
    return chosen


def _measured(
    key: str, job: int, stored: Mapping[str, Sequence[str]], declared: Mapping[str, Mapping[str, Field]]
) -> Choice | None:
    """Return a measure of a job, read from its stored sources; None if none of them is stored."""
    found = [
        Choice(job, table, column, declared[table][column], key)
        for table, column in MEASURES[key].places
        if column in stored.get(table, ())
    ]
    return found[0]._replace(others=tuple(found[1:])) if found else None


def _standard(job: int, stored: Mapping[str, Sequence[str]]) -> list[Choice]:
    """Return the measures of `STANDARD` with a stored source."""
    declared = {schema.name: {field.name: field for field in schema.fields} for schema in schemas().values()}
    found = [_measured(key, job, stored, declared) for key in STANDARD]
    chosen = [one for one in found if one is not None]
    if not chosen:
        raise ColmetError(f"neither CPU nor memory, I/O or GPUs of job {job} are stored; name a metric")
    return chosen


def _label(table: str) -> str | None:
    """Return the column of a table with the subject of its rows."""
    fields = schemas()[table].fields if table in schemas() else ()
    return next((field.name for field in fields if field.kind == "label"), None)


def gather(
    history: History,
    job: int,
    texts: Sequence[str],
    wanted: Interval = ALL_ROWS,
    is_drawn: bool = False,
) -> list[Plotted]:
    """Return the charts of the columns or measures named by texts, of counters as rates.

    Without texts they are those of `STANDARD` with values.

    The rows of a group of hosts are in memory at a time. With `is_drawn`, lines are shortened if there are many values.

    Raises:
        ColmetError: nothing is stored of the job, or of the requested columns.
    """
    tables = {job: history.tables(job)}
    if not tables[job]:
        raise ColmetError(f"nothing is stored of job {job} there")
    if job != NODE:
        tables[NODE] = history.tables(NODE)
    chosen = choose(texts, tables) if texts else _standard(job, tables[job])
    grouped = GroupedRows(history)
    columns = [column for choice in chosen for column in choice.columns]
    # access to the rows of each job and table, and their number of columns
    read: dict[tuple[int, str], tuple[HostRows, int]] = {}
    of_nodes: Interval | None = None
    for choice in columns:
        key = choice.job, choice.table
        if key in read:
            continue
        names = list(dict.fromkeys([one.column for one in columns if one[:2] == key]))
        if choice.table == CGROUP_TABLE:
            names += CAPACITY_COLUMNS
        if label := _label(choice.table):
            names.append(label)
        limits = wanted
        if choice.job != job:  # of nodes: several tables of the job, as one may lack some of its hosts
            limits = of_nodes = of_nodes or _interval_of(grouped, job, tables[job], wanted)
        query = RowQuery(choice.job, choice.table, names, *limits)
        rows = HeldRows(history.read(query)) if wanted.hosts is not None else grouped.rows(query)  # few hosts
        read[key] = rows, len(names)
    groups = groups_of(read.values())
    grouped.hosts = [host for group in groups for host in group]
    samples = sum([sum(rows.counts.values()) for rows, _ in read.values()])
    if samples > MAX_SAMPLES and not is_drawn:
        raise ColmetError(
            f"{samples} values are too many for --json, and the limit is {MAX_SAMPLES}; ask for fewer hosts or a "
            "shorter interval"
        )
    hosts = sum(map(len, groups))
    made: list[list[tuple[Line, Choice]]] = [[] for _ in chosen]
    rated = [is_rate(choice.field) for choice in chosen]
    for done, group in enumerate(groups):
        series = {key: rows.read(group) for key, (rows, _) in read.items()}
        there: dict[int, dict[str, Capacity]] = {}
        for choice, rate, drawn in zip(chosen, rated, made):
            found_lines = _lines_of(grouped, choice, rate, series, wanted._replace(hosts=group), there)
            if samples > MAX_SAMPLES:
                found_lines = [(shortened(line, hosts), column) for line, column in found_lines]
            drawn += found_lines
        history.progress("compute", (done + 1) / len(groups))
    plotted = []
    for choice, rate, drawn in zip(chosen, rated, made):
        drawn.sort(key=lambda pair: pair[0].host)
        unit = unit_of(choice.field, rate)
        if drawn or texts:
            lines_of, columns_of = [line for line, _ in drawn], [column for _, column in drawn]
            plotted.append(Plotted(choice, rate, unit, lines_of, columns_of, not texts))
    if not any(one.lines for one in plotted):
        where = "there" if wanted == ALL_ROWS else "there in this time and on these hosts"
        instead = [
            measure.key
            for choice in chosen
            for measure in MEASURES.values()
            if measure.best.origin == CGROUP and measure.best[:2] == choice[1:3]
        ]
        hint = f"; {', '.join(instead)} may be: no cgroup counted it" if instead else "; a rate requires two samples"
        raise ColmetError(f"nothing is stored of job {job} {where} that could be drawn{hint}")
    return plotted


def _interval_of(history: GroupedRows, job: int, tables: Iterable[str], wanted: Interval) -> Interval:
    """Return the time range and the hosts of a job's rows."""
    if wanted.hosts is not None:
        return interval_of([one for table in tables for one in history.read(RowQuery(job, table, (), *wanted))])
    every = [history.rows(RowQuery(job, table, (), wanted.since, wanted.until)) for table in tables]
    having = [rows for rows in every if rows.counts]
    if not having:
        return Interval(hosts=())
    hosts = sorted({host for rows in having for host in rows.counts})
    return Interval(min(rows.first for rows in having), max(rows.last for rows in having), hosts)


def _lines_of(
    history: History,
    choice: Choice,
    rate: bool,
    found: Mapping[tuple[int, str], Sequence[Series]],
    wanted: Interval,
    there: dict[int, dict[str, Capacity]],
) -> list[tuple[Line, Choice]]:
    """Return the lines of some hosts, each with its column; `there` keeps the capacities of these hosts, by job."""
    made: list[tuple[Line, Choice]] = []
    for column in choice.columns:
        most: dict[str, float] = {}
        if rate and is_bounded(column.table, column.column):
            if column.job not in there:
                there[column.job] = capacities(history, column.job, *wanted, found.get((column.job, CGROUP_TABLE)))
            most = ceilings(column.table, column.column, there[column.job])
        known = {line.host for line, _ in made}
        series = [one for one in found[column.job, column.table] if one.host not in known]
        factor = unit_of(column.field, rate).factor
        drawn = lines(series, column.column, _label(column.table), rate, factor, most)
        made += [(line, column) for line in drawn]
    return made


def shortened(line: Line, hosts: int) -> Line:
    """Return a long line with the extremes of many parts, or with their means if the chart will be a band."""
    from colmet.jobs.report.charts import MAX_LINES

    if len(line.times) <= MAX_POINTS:
        return line
    return averaged(line, MAX_POINTS // 2) if hosts > MAX_LINES else thinned(line, MAX_POINTS)


def document(job: int, plotted: Sequence[Plotted]) -> dict[str, Any]:
    """Return the drawn values as JSON values; a missing one is null."""
    return {
        "job": job,
        "metrics": [
            {
                "table": one.choice.table,
                "column": one.choice.column,
                "node": one.choice.job == NODE,
                **({"measure": one.choice.measure} if one.choice.measure else {}),
                "rate": one.rate,
                "unit": one.unit.symbol,
                "series": [
                    {
                        "host": line.host,
                        "label": line.label,
                        **({"table": column.table, "column": column.column} if one.choice.measure else {}),
                        "times": line.times.tolist(),
                        "values": [None if np.isnan(value) else value for value in line.values.tolist()],
                    }
                    for line, column in zip(one.lines, one.columns)
                ],
            }
            for one in plotted
        ],
    }


def picture(job: int, plotted: Sequence[Plotted], kind: str) -> bytes:
    """Return the picture, png or svg, with times in local time."""
    from colmet.jobs.report import charts  # requires matplotlib, and a second to load

    panels = [charts.Panel(one.title, one.unit, one.lines) for one in plotted]
    height = min(MAX_HEIGHT, HEAD_HEIGHT + PANEL_HEIGHT * len(panels))
    figure = charts.draw(panels, WIDTH, height, Clock(), _heading(job, plotted))
    return charts.rendered(figure, kind)


def text_of(job: int, plotted: Sequence[Plotted], clock: Clock, width: int) -> Iterator[str]:
    """Yield the charts as lines of text, with one time axis."""
    from colmet.jobs.report import text_charts

    has_blocks = (sys.stdout.encoding or "").lower().startswith("utf")
    bars = text_charts.BARS if has_blocks else text_charts.ASCII_BARS
    yield _heading(job, plotted)
    found = [line for one in plotted for line in one.lines]
    ends = min(float(line.times[0]) for line in found), max(float(line.times[-1]) for line in found)
    for one in plotted:
        yield ""
        yield from text_charts.chart(shown(one.title, width), one.unit, one.lines, ends, width, bars)
    yield text_charts.axis(ends, clock, width)


def _heading(job: int, plotted: Sequence[Plotted]) -> str:
    hosts = {line.host for one in plotted for line in one.lines}
    where = f"on {shown(min(hosts), 100)}" if len(hosts) == 1 else f"on {len(hosts)} nodes"
    return f"Job {job} {where}" if job != NODE else f"Measured {where}"


def target(options: argparse.Namespace) -> tuple[str, str]:
    """Return the output path of the picture, and its format."""
    output = options.output
    if output is None:
        of = f"-{options.metrics[0]}" if len(options.metrics) == 1 else ""
        return re.sub(r"[^A-Za-z0-9_.-]", "_", f"job-{options.job}{of}")[:100] + f".{KINDS[0]}", KINDS[0]
    if output == "-":
        if sys.stdout.isatty():
            raise ConfigError("--output -: the picture would go to this terminal; name a file, or send it elsewhere")
        return output, KINDS[0]
    kind = os.path.splitext(output)[1][1:].lower()
    if kind not in KINDS:
        raise ConfigError(f"--output {output}: give a name that ends in .png or .svg")
    return output, kind


def run(options: argparse.Namespace) -> int:
    """Make the picture; return the exit status: 1 if there is nothing to draw."""
    options.job = selection.job_of(options, options.metrics)
    if not options.metrics and options.job == NODE:
        raise ConfigError("no metric is named, such as loadavg_1min; `colmet extract -j 0 --list` prints all of nodes")
    if len(options.metrics) > MAX_METRICS:
        raise ConfigError(f"{len(options.metrics)} metrics: a picture has up to {MAX_METRICS}")
    selection.check_interval(options)
    draws = options.output is not None or not (options.json or options.text)
    if options.json and options.text:
        raise ConfigError("--json and --text: choose one")
    if (options.json or options.text) and options.output == "-":
        raise ConfigError("--json or --text, and --output -, both go to standard output; name a file")
    path, kind = target(options) if draws else ("", "")
    with open_history(options) as history, shown_progress(history, "colmet plot"):
        wanted = Interval(options.since, options.until, options.host)
        plotted = gather(history, options.job, options.metrics, wanted, is_drawn=not options.json)
        for text in history.warnings:
            print(f"colmet plot: {text}", file=sys.stderr)
    if draws:
        data = picture(options.job, plotted, kind)
        if path == "-":
            sys.stdout.buffer.write(data)
        else:
            try:
                Path(path).write_bytes(data)
            except OSError as err:
                raise ColmetError(f"{path}: cannot be written: {err.strerror}") from err
            if not options.json and not options.text:
                sys.stdout.buffer.write(f"{path}\n".encode("utf-8", "surrogateescape"))
    if options.json:
        print(json.dumps(document(options.job, plotted), allow_nan=False))
    elif options.text:
        print("\n".join(text_of(options.job, plotted, Clock(), archives.width())))
    return 0
