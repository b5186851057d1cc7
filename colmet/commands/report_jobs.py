"""The report of several jobs: a table of them from the job archive, with sums, spread and unusual jobs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from colmet.commands import archives
from colmet.commands.jobs import STYLES, look_of
from colmet.commands.remote import InterfaceClient
from colmet.commands.remote_archive import RemoteArchive, parameters_of
from colmet.commands.top.view import clean
from colmet.common.config import cli
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.text import UNKNOWN, duration, rough_percent, size
from colmet.jobs.archive.queries import MAX_ROWS, JobArchive, JobFilter, Row
from colmet.jobs.columns import FOOTPRINT
from colmet.jobs.grades import grades_of
from colmet.jobs.report.jobs_page import TEXTS, exit_of, html, states_of, sums_of, title_of, unusual_of
from colmet.jobs.report.requested import GRADE_STYLES
from colmet.jobs.report.several import (
    AT_ONCE,
    HEADINGS,
    UNITS,
    SeveralJobs,
    document_of_jobs,
    gather_jobs,
    is_task,
    name_of,
    task_of,
)

MOST_NAMED = 1000  # jobs on a command line
BAR = 5  # characters
MOST_SHOWN = 500  # rows of the table; sums, spread and unusual jobs are of all


def add_options(group: cli.Options) -> None:
    """Declare the options that select several jobs."""
    archives.add_users(group)
    archives.add_filter(group, ("project", "state", "array"))


def are_selected(options: argparse.Namespace) -> bool:
    """Return whether the options select several jobs, and not one."""
    conditions = (options.user, options.all_users, options.project, options.state, options.array)
    is_interval = options.since is not None or options.until is not None
    return len(options.words) > 1 or any(conditions) or (not options.words and is_interval)


def run(options: argparse.Namespace, client: InterfaceClient | None) -> None:
    """Print the report of several jobs, or write it to a file."""
    if options.png is not None:
        raise ConfigError("--png is of one job: several have --html")
    if options.start is not None:
        raise ConfigError("--start is of one job")
    if len(options.words) > MOST_NAMED:
        raise ConfigError(f"more than {MOST_NAMED} jobs are named; select them such as by --array")
    with RemoteArchive(client) if client is not None else archives.open_archive(options) as archive:
        where, tasks, note = _selection(options, archive)
        has_curves = options.html is not None and client is None
        report = gather_jobs(archive, where, MAX_ROWS, tasks, [FOOTPRINT.name] if has_curves else [])
        report = report._replace(notes=[*report.notes, *([note] if note else [])])
        if not report.rows:
            raise ColmetError("; ".join(["no such job is in the archive", *report.notes]))
        if options.html is not None:
            save(options.html, _page(report, client, where, bool(tasks)))
    if options.json:
        print(json.dumps(document_of_jobs(report), allow_nan=False))
    elif options.html is None:
        print_jobs(report, archives.width())


def _page(report: SeveralJobs, client: InterfaceClient | None, where: JobFilter, has_tasks: bool) -> bytes:
    """Return the page: the interface's has curves, which its lists of jobs have not."""
    if client is None or has_tasks or len(where.jobs) > AT_ONCE:
        return html(report)
    asked = {name: value for name, value in parameters_of(where).items() if value not in ("", None)}
    return client.read("report.html", {**asked, "limit": MAX_ROWS})


def save(path: str, content: bytes) -> None:
    """Write a file; ColmetError if it cannot be written."""
    try:
        Path(path).write_bytes(content)
    except OSError as err:
        raise ColmetError(f"{path}: {err.strerror or err}") from err


def _selection(options: argparse.Namespace, archive: JobArchive) -> tuple[JobFilter, list[tuple[int, int]], str]:
    """Return the conditions, the tasks of arrays, and whose jobs these are if not of all.

    Who names jobs or an array means those of any user.
    """
    tasks: list[tuple[int, int]] = []
    for word in [word for word in options.words if is_task(word)]:
        task = task_of(archive, word)
        if task is None:
            raise ColmetError(f"the archive has no task {word} of an array, or you may not see it")
        tasks.append(task)
    numbers = [int(word) for word in options.words if not is_task(word)]
    is_named = bool(options.words or options.array)
    scope = archives.Scope(list(options.user), "") if is_named else archives.scope_of(options, archive)
    return archives.filter_of(options, scope.users)._replace(jobs=numbers), tasks, scope.note


class _Column(NamedTuple):
    """A column of the table: a heading, texts, and a style for each row."""

    heading: str
    text: Callable[[Row], str]
    rank: int
    style: Callable[[Row], str] = lambda _: ""
    is_right: bool = True


def _of(value: float | None, of: float | None, text: Callable[[float | None], str]) -> str:
    return text(value) if of is None else f"{text(value)} of {text(of)}"


def _graded(name: str) -> Callable[[Row], str]:
    return lambda row: GRADE_STYLES.get(grades_of(row)[name], "")


def _word(row: Row, name: str) -> str:
    """Return a grade as a word behind a share."""
    return f" {grades_of(row)[name] or ''}".rstrip()


def _bar(ratio: float | None) -> str:
    return f"{archives.bar(ratio, BAR)} {rough_percent(ratio)}"


_COLUMNS = (
    _Column("Job", lambda row: clean(name_of(row)), 0, is_right=False),
    _Column("User", lambda row: clean(str(row["user"] or UNKNOWN)), 6, is_right=False),
    _Column("Name", lambda row: clean(str(row["name"] or UNKNOWN)[:24]), 8, is_right=False),
    _Column(
        *("State", lambda row: str(row["state"]).replace("_", " "), 1, lambda row: STYLES.get(str(row["state"]), "")),
        is_right=False,
    ),
    _Column("Exit", lambda row: exit_of(row) or UNKNOWN, 4),
    _Column("Wall time", lambda row: _of(row["wall_s"], row["requested_walltime_s"], duration), 5),
    _Column(
        "CPU", lambda row: _bar(row["cpu_ratio"]) + _word(row, "cpu_grade"), 2, _graded("cpu_grade"), is_right=False
    ),
    _Column("Memory", lambda row: _of(row["memory_peak"], row["requested_memory"], size), 7),
    _Column(
        "of memory",
        lambda row: rough_percent(row["memory_used_ratio"]) + _word(row, "memory_grade"),
        3,
        _graded("memory_grade"),
        is_right=False,
    ),
    _Column(
        "GPU",
        lambda row: rough_percent(row["gpu_ratio"]) + _word(row, "gpu_grade"),
        3,
        _graded("gpu_grade"),
        is_right=False,
    ),
    _Column("Energy", lambda row: look_of("energy_joules").text(row["energy_joules"]), 9),
    _Column("Advice", lambda row: clean(str(row["rules"] or "")), 10, is_right=False),
)


def print_jobs(report: SeveralJobs, width: int) -> None:
    """Print the table, the sums, the spread and the unusual jobs."""
    print(f"{title_of(report)}: {states_of(report)}\n")
    shown = report.rows[:MOST_SHOWN]
    users = {row["user"] for row in report.rows}
    columns = []
    for one in _COLUMNS:
        cells = [one.text(row) for row in shown]
        if all(cell in ("", UNKNOWN, _bar(None)) for cell in cells) or (one.heading == "User" and len(users) == 1):
            continue
        styles = [one.style(row) for row in shown]
        columns.append(archives.TableColumn(one.heading, cells, one.is_right, one.rank, styles))
    archives.print_table(columns, width)
    if len(report.rows) > len(shown):
        print(f"and {len(report.rows) - len(shown):,} more (--json has all)")
    for line in sums_of(report):
        print(line)
    if len(report.rows) > 1:
        _print_spread(report)
    lines = unusual_of(report)
    if lines:
        print("\nUnusual")
        for line in lines:
            print(f"* {clean(line)}")
    for note in report.notes:
        print(f"note: {clean(note)}")
    if report.total > len(report.rows):
        print(f"note: these are {len(report.rows):,} of {report.total:,} jobs: --since and --until select others")


def _print_spread(report: SeveralJobs) -> None:
    names = list(report.spread)
    if not names:
        return
    print()
    texts = {name: TEXTS[UNITS[name]] for name in names}
    parts: Sequence[tuple[str, Callable[[str], float]]] = (
        ("min", lambda name: report.spread[name].min),
        ("median", lambda name: report.spread[name].median),
        ("max", lambda name: report.spread[name].max),
    )
    columns = [archives.TableColumn("Spread", [HEADINGS[name] for name in names], is_right=False)]
    columns += [archives.TableColumn(word, [texts[name](of(name)) for name in names]) for word, of in parts]
    archives.print_table(columns, None)
