"""List jobs, running and ended, with their state, efficiency, memory, energy and waste, from the job archive.

Users see their own jobs; root sees all.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from colmet.commands import archives, selection
from colmet.commands.times import moment
from colmet.commands.top.view import clean
from colmet.common.config import cli
from colmet.common.config.cli import did_you_mean
from colmet.common.errors import ConfigError
from colmet.common.text import UNKNOWN, Clock, cores, count, counted, duration, energy, percent, size
from colmet.jobs.archive.derived import ANSWERS
from colmet.jobs.archive.queries import JobPage
from colmet.jobs.columns import CANCELLED, DONE, FAILED, FOOTPRINT, NODE_FAILED, OUT_OF_MEMORY, RUNNING, TIMEOUT
from colmet.jobs.grades import EXCEEDED, GRADES, LOW, POOR, graded_jobs
from colmet.jobs.report.requested import GRADE_STYLES

DEFAULT = (
    *("job", "user", "name", "queue", "state", "start", "wall_s", "cpus", "cpu_ratio", "memory_peak"),
    *("memory_used_ratio", "energy_joules", "wasted_core_s", "advice_count"),
)
# Of these, the last ones are not shown where the terminal is narrow.
RANKS = (
    *("job", "user", "state", "cpu_ratio", "memory_peak", "start", "wall_s", "cpus", "memory_used_ratio", "name"),
    *("wasted_core_s", "advice_count", "energy_joules", "queue"),
)
ALL = {**ANSWERS, **GRADES}  # columns
GRADED = {"cpu_ratio": "cpu_grade", "memory_used_ratio": "memory_grade"}  # in the table, with their grade
LIMIT = 50
BAR = 5  # characters
STYLES = {
    **{RUNNING: "cyan", DONE: "green"},
    **dict.fromkeys((FAILED, TIMEOUT, OUT_OF_MEMORY, NODE_FAILED), "red"),
    CANCELLED: "yellow",
}


class Look(NamedTuple):
    """The display of a value."""

    heading: str
    text: Callable[[Any], str]
    is_right: bool = True


def _core_hours(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value / 3600:,.1f}"


def _word(value: object) -> str:
    return UNKNOWN if value in (None, "") else clean(str(value)[:40])


_BY_UNIT: Mapping[str, Look] = {
    "s": Look("", duration),
    "B": Look("", size),
    "J": Look("", energy),
    "share": Look("", percent),
    "date": Look("", lambda value: Clock().text(value)[:16] if value else UNKNOWN, False),
}
LOOKS: Mapping[str, Look] = {
    "state": Look("State", lambda value: _word(value).replace("_", " "), False),
    "wall_s": Look("Wall time", duration),
    "cpus": Look("Cores", cores),
    "cpu_ratio": Look("CPU", percent),
    "memory_peak": Look("Memory", size),
    "memory_used_ratio": Look("of memory", percent),
    "energy_joules": Look("Energy", energy),
    "wasted_core_s": Look("Wasted core h", _core_hours),
    "core_s": Look("Core h", _core_hours),
    "cpu_s": Look("Used core h", _core_hours),
    "advice_count": Look("Advice", lambda value: UNKNOWN if value is None else str(value) if value else ""),
}


def look_of(name: str) -> Look:
    """Return the display of a value of `ALL`."""
    if name in LOOKS:
        return LOOKS[name]
    column = ALL[name]
    heading = name.removesuffix("_s").removesuffix("_bytes").replace("_", " ").capitalize()
    if column.unit in _BY_UNIT:
        return _BY_UNIT[column.unit]._replace(heading=heading)
    is_text = column.kind == "TEXT"
    return Look(heading, _word if is_text or name in ("job", "array_index", "exit_code") else count, not is_text)


def add_options(parser: cli.Parser) -> None:
    """Declare the options: the selection, the order, and the outputs."""
    parser.epilog = """\
examples:
  colmet jobs
  colmet jobs --since 1w --state failed
  colmet jobs --all-users --sort wasted_core_s --limit 20
  colmet jobs --columns job,name,cpu_ratio,requested_memory --csv

exit status:
  0  done, also without any job
  1  the archive cannot be read
  2  wrong command line or configuration"""
    selection.add_job(parser, "only jobs with this number")
    archives.add_users(parser)
    archives.add_filter(parser)
    parser.add_argument("--since", metavar="TIME", type=moment, help="jobs that ran at this time or later")
    parser.add_argument("--until", metavar="TIME", type=moment, help="jobs that started before this time")
    parser.add_argument("--sort", metavar="COLUMN", default="start", help="order, largest first (default: start)")
    parser.add_argument("--reverse", action="store_true", help="smallest first")
    parser.add_argument(
        "--limit", metavar="N", type=cli.whole_number(0, 10_000), help=f"at most N jobs (default: {LIMIT}; CSV: 10,000)"
    )
    parser.add_argument("--columns", metavar="LIST", help="columns, separated by commas; 'help' lists them")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--csv", action="store_true", help="print CSV: seconds, bytes, joules and shares of 1")
    archives.add_options(parser)


def columns_of(text: str | None, default: Sequence[str]) -> list[str]:
    """Return the columns of --columns; ConfigError for an unknown one."""
    if text is None:
        return list(default)
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in ALL or name == FOOTPRINT.name:
            raise ConfigError(f"--columns: {name!r:.100} is not known{did_you_mean(name, ALL)}; see --columns help")
    if not names:
        raise ConfigError("--columns is empty; see --columns help")
    return names


def run(options: argparse.Namespace) -> int:
    """Print the jobs; return 0."""
    if options.columns == "help":
        for name, column in ALL.items():
            if name != FOOTPRINT.name:
                print(f"{name:24} {column.unit or '-':6} {column.help}")
        return 0
    if options.json and options.csv:
        raise ConfigError("--json and --csv: choose one")
    selection.check_interval(options)
    is_table = not options.json and not options.csv
    names = columns_of(options.columns, DEFAULT if is_table else (*DEFAULT, *GRADES))
    grades = [GRADED[name] for name in names if is_table and name in GRADED]
    limit = options.limit if options.limit is not None else LIMIT if is_table else 10_000
    with archives.open_archive(options) as archive:
        scope = archives.scope_of(options, archive)
        where = archives.filter_of(options, scope.users)
        where = where._replace(jobs=[] if options.job is None else [options.job])
        page = graded_jobs(archive, where, [*names, *grades], options.sort, not options.reverse, 0, limit)
    if options.json:
        print(json.dumps({"total": page.total, "jobs": page.rows}, allow_nan=False))
    elif options.csv:
        _print_csv(names, page)
    else:
        width = archives.width() if options.columns is None else None
        _print_table(names, page, options.sort, width)
    archives.print_note(scope.note, is_table)
    return 0


def _print_csv(names: Sequence[str], page: JobPage) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([[archives.csv_cell(row[name]) for name in names] for row in page.rows])


def _print_table(names: Sequence[str], page: JobPage, sort: str, width: int | None) -> None:
    """Print the jobs as a table; the column of their order is shown at any width, and the time zone once."""
    if not page.rows:
        print("no jobs" if page.total == 0 else f"{counted(page.total, 'jobs')}, none of them shown")
        return
    columns = []
    clock = Clock()
    graded: set[str] = set()
    dates = [name for name in names if ALL[name].unit == "date"]
    times = [float(row[name]) for name in dates for row in page.rows if row[name]]
    for name in names:
        look = look_of(name)
        if name in dates:
            heading = f"{look.heading} ({clock.zone(min(times, default=0), max(times, default=0))})"
            look = look._replace(
                heading=heading if name == dates[0] else look.heading,
                text=lambda value: clock.text(value)[:16] if value else UNKNOWN,
            )
        cells = [look.text(row[name]) for row in page.rows]
        if name == "cpu_ratio":
            longest = max(map(len, cells))
            cells = [f"{archives.bar(row[name], BAR)} {text:>{longest}}" for row, text in zip(page.rows, cells)]
        styles = [STYLES.get(str(row[name]), "") for row in page.rows] if name == "state" else []
        if name in GRADED:
            words = [str(row[GRADED[name]] or "") for row in page.rows]
            graded.update(words)
            longest = max(map(len, words))
            cells = [f"{cell} {word:<{longest}}" if longest else cell for cell, word in zip(cells, words)]
            styles = [GRADE_STYLES.get(word, "") for word in words]
        rank = RANKS.index(name) if name in RANKS and name != sort else 0
        columns.append(archives.TableColumn(look.heading, cells, look.is_right, rank, styles))
    archives.print_table(columns, width, rest="--columns selects")
    if graded.intersection((LOW, POOR, EXCEEDED)):
        print("colmet report JOB: what to do about low and poor")
    if page.total > len(page.rows):
        print(f"{len(page.rows)} of {page.total:,} jobs; --limit and --since show others")
