"""Report a job's efficiency: its use of the allocation, its time by state, why it ended, and advice.

The figures come from the stored rows, and from the job archive where these are gone. Several jobs are a table, from the
archive.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from colmet.commands import archives, remote, selection
from colmet.commands.archives import RemoteArchive, parameters_of
from colmet.commands.histories import shown_progress
from colmet.commands.jobs import STYLES, look_of
from colmet.commands.remote import InterfaceClient
from colmet.commands.selection import moment, shown
from colmet.commands.top_view import clean
from colmet.common.config import cli
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.text import UNKNOWN, Clock, duration, how_to_install, rough_percent, size
from colmet.jobs.archive.queries import MAX_ROWS, ArchivedJob, JobArchive, JobFilter, Row
from colmet.jobs.archive.store import SUFFIX, ArchiveError
from colmet.jobs.columns import FOOTPRINT
from colmet.jobs.figures import Report
from colmet.jobs.grades import grades_of
from colmet.jobs.report import several
from colmet.jobs.report.archived import find, made_from
from colmet.jobs.report.document import document_of, report_of
from colmet.jobs.report.jobs_page import TEXTS, exit_of, html, states_of, sums_of, title_of, unusual_of
from colmet.jobs.report.requested import GRADE_STYLES
from colmet.stored.job_rows import JobInterval
from colmet.stored.series import NODE, History
from colmet.stored.sources import NoStore, open_history
from colmet.stored.sources import add_options as add_source_options


def add_options(parser: cli.Parser) -> None:
    """Declare the options: the job or several, the interval, and the outputs."""
    parser.epilog = """\
examples:
  colmet report 4242
  colmet report -j 4242 --since yesterday --html job-4242.html
  colmet report 4242 --hdf5 /var/lib/colmet/colmet --json
  colmet report 17_3 18 19
  colmet report --array 17 --html array-17.html
  colmet report --since 1w --state failed

Of one job, --since and --until are an interval of its rows; of several, they select the jobs that ran in it.

exit status:
  0  done
  1  nothing of the job in store and archive, or these cannot be read
  2  wrong command line or configuration"""
    parser.usage = f"{parser.prog} [OPTION ...] [JOB ...]"
    parser.add_argument(
        "words", metavar="JOB", nargs="*", help="the job, or a task of an array such as 17_3; several for a table"
    )
    selection.add_job(parser, "report on this job")
    parser.add_argument(
        "--start",
        metavar="TIME",
        type=moment,
        help=cli.Rare(
            "of several jobs with this number, the one that started then, or last before (default: the latest)"
        ),
    )
    selection.add_interval(parser)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="add the conditions of the advice; and hints for administrators"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page with charts to this file")
    parser.add_argument("--png", metavar="FILE", help="write a picture with charts to this file")
    group = parser.add_argument_group("several jobs, from the job archive")
    archives.add_users(group)
    archives.add_filter(group, ("project", "state", "array"))
    add_source_options(parser)
    archives.add_place(parser)
    remote.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Print the report of a job or of several jobs, or write it to files."""
    if options.job is not None:
        options.words.insert(0, str(options.job))
    selection.check_interval(options)
    is_several = are_selected(options)
    if not is_several and not options.words:
        raise ConfigError("no job is named; give JOB or --job JOB, or select several such as by --array or --user")
    for word in options.words:
        if not several.is_task(word) and selection.job_of(options, [word]) == 0:
            raise ConfigError("job 0 stands for the nodes themselves, and a report is of a job")
    client = remote.client_of(options)
    has_archive = bool(options.archive)
    if client is not None and (options.hdf5 or options.archive):
        raise ConfigError("--url excludes --hdf5 and --archive")
    if options.hdf5 and not has_archive:
        options.archive = f"{options.hdf5[0]}{SUFFIX}"  # that of the same collector
    try:
        if is_several:
            _run_several(options, client)
        elif client is None:
            _run_stored(options, has_archive)
        else:
            _run_remote(client, options)
    except ModuleNotFoundError as err:
        name = str(err.name).partition(".")[0]
        raise ConfigError(f"it requires the Python module {name}: {how_to_install(name)}") from err
    return 0


def _run_stored(options: argparse.Namespace, has_archive: bool) -> None:
    report = _gathered(options, has_archive)
    if options.html is not None or options.png is not None:
        from colmet.jobs.report import page

        for path, drawn in ((options.html, page.html), (options.png, page.png)):
            if path is not None:
                save(path, drawn(report))
    if options.json:
        print(json.dumps(document_of(report), allow_nan=False))
    elif options.html is None and options.png is None:
        _show(report, options)


def _gathered(options: argparse.Namespace, has_archive: bool) -> Report:
    """Return the report of the job; an archive that is named must be readable."""
    archive, lacking = _archive(options, has_archive)
    found: ArchivedJob | None = None
    with contextlib.nullcontext() if archive is None else archive:
        job, start = _job_of(options, archive)
        asked = JobInterval(job, options.since, options.until)
        if archive is not None:
            try:
                found = find(archive, job, start)
            except ArchiveError as err:
                if has_archive or start is not None:
                    raise
                lacking = str(err)
        elif start is not None:
            raise ConfigError(f"--start requires the job archive: {lacking or 'none is named; give --archive PATH'}")
    if start is not None and found is None:
        raise ColmetError(f"the archive has no job {job} that had started by {shown(start)}")
    reasons: list[str] = []

    @contextlib.contextmanager
    def opened() -> Iterator[History]:
        with open_history(options) as history, shown_progress(history, "colmet report"):
            try:
                yield history
            except ConfigError as err:  # the command line is right, the files are not
                raise ColmetError(str(err)) from err

    def without_rows(history: History) -> None:
        reasons.append(nothing_of(history, asked))

    report, unread = made_from(found, opened, asked, time.time(), without_rows=without_rows)
    if report is None:
        reasons += [str(unread)] if unread is not None else []
        if found is not None:
            reasons.append("the job archive has totals of the whole job: leave out --since and --until")
        raise ColmetError("; ".join([*reasons, *([lacking] if lacking else [])]))
    warnings = [] if unread is None or isinstance(unread, NoStore) else [str(unread)]
    if lacking and options.verbose:
        warnings.append(lacking)
    return replace(report, warnings=(*report.warnings, *warnings))


def _archive(options: argparse.Namespace, is_named: bool) -> tuple[JobArchive | None, str]:
    """Return the archive that belongs to the store; else None, and why it cannot be read, if there is one."""
    if not is_named and options.archive and not os.path.exists(options.archive):
        return None, ""
    try:
        return archives.open_archive(options), ""
    except ArchiveError as err:
        if is_named:
            raise
        return None, str(err)
    except ConfigError:
        return None, ""


def _job_of(options: argparse.Namespace, archive: JobArchive | None) -> tuple[int, int | None]:
    """Return the job of the command line, and its start; None for the latest of several jobs with this number."""
    (word,) = options.words
    if not several.is_task(word):
        return int(word), options.start
    if archive is None:
        raise ConfigError(f"{word} is a task of an array, known to the job archive only: give --archive PATH or --url")
    return _task(archive, word, options.start)


def _task(archive: JobArchive, word: str, start: int | None = None) -> tuple[int, int]:
    task = several.task_of(archive, word, start)
    if task is None:
        raise ColmetError(f"the archive has no task {word} of an array, or you may not see it")
    return task


def _show(report: Report, options: argparse.Namespace) -> None:
    from colmet.jobs.report.text import show

    show(report, sys.stdout, verbose=options.verbose, clock=Clock())


def _run_remote(client: InterfaceClient, options: argparse.Namespace) -> None:
    job, start = _job_of(options, RemoteArchive(client))
    given = {"since": options.since, "until": options.until, "start": start}
    for path, kind in ((options.html, "html"), (options.png, "png")):
        if path is not None:
            save(path, client.read(f"jobs/{job}/report.{kind}", given))
    if not options.json and (options.html is not None or options.png is not None):
        return
    document = client.get(f"jobs/{job}/report", given)
    if options.json:
        print(json.dumps(document, allow_nan=False))
    else:
        _show(report_of(document), options)


def nothing_of(history: History, asked: JobInterval) -> str:
    """Return why there is no report, with the stored data found instead."""
    if history.tables(asked.job):
        when = [
            f"{word} {shown(time_s)}" for word, time_s in (("since", asked.since), ("until", asked.until)) if time_s
        ]
        return f"job {asked.job} has no rows {' and '.join(when)}; leave out --since and --until to see all of it"
    tables = sorted(history.tables(NODE))
    if not tables:
        return f"nothing is stored of job {asked.job}, nor of any node: is this the right store?"
    return (
        f"nothing is stored of job {asked.job}; of the nodes there are {', '.join(tables)}. Is the number right, and "
        "has the collector written since the job began (it does at least once a minute)?"
    )


# -- several jobs --

MOST_NAMED = 1000  # jobs on a command line
BAR = 5  # characters
MOST_SHOWN = 500  # rows of the table; sums, spread and unusual jobs are of all


def are_selected(options: argparse.Namespace) -> bool:
    """Return whether the options select several jobs, and not one."""
    conditions = (options.user, options.all_users, options.project, options.state, options.array)
    is_interval = options.since is not None or options.until is not None
    return len(options.words) > 1 or any(conditions) or (not options.words and is_interval)


def _run_several(options: argparse.Namespace, client: InterfaceClient | None) -> None:
    if options.png is not None:
        raise ConfigError("--png is of one job: several have --html")
    if options.start is not None:
        raise ConfigError("--start is of one job")
    if len(options.words) > MOST_NAMED:
        raise ConfigError(f"more than {MOST_NAMED} jobs are named; select them such as by --array")
    with archives.open_archive(options) as archive:
        where, tasks, note = _selection(options, archive)
        has_curves = options.html is not None and client is None
        report = several.gather_jobs(archive, where, MAX_ROWS, tasks, [FOOTPRINT.name] if has_curves else [])
        report = report._replace(notes=[*report.notes, *([note] if note else [])])
        if not report.rows:
            raise ColmetError("; ".join(["no such job is in the archive", *report.notes]))
        if options.html is not None:
            # the interface's page has curves, which its lists of jobs have not
            if client is None or tasks or len(where.jobs) > several.AT_ONCE:
                save(options.html, html(report))
            else:
                save(options.html, client.read("report.html", {**parameters_of(where), "limit": MAX_ROWS}))
    if options.json:
        print(json.dumps(several.document_of_jobs(report), allow_nan=False))
    elif options.html is None:
        print_jobs(report, archives.width())


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
    tasks = [_task(archive, word) for word in options.words if several.is_task(word)]
    numbers = [int(word) for word in options.words if not several.is_task(word)]
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


def _graded(heading: str, rank: int, name: str, text: Callable[[float | None], str] = rough_percent) -> _Column:
    """Return the column of a share, with its grade as a word and a style."""

    def word(row: Row) -> str:
        return grades_of(row)[f"{name.partition('_')[0]}_grade"] or ""

    return _Column(
        *(heading, lambda row: f"{text(row[name])} {word(row)}".rstrip(), rank),
        *(lambda row: GRADE_STYLES.get(word(row), ""), False),
    )


def _bar(ratio: float | None) -> str:
    return f"{archives.bar(ratio, BAR)} {rough_percent(ratio)}"


_COLUMNS = (
    _Column("Job", lambda row: clean(several.name_of(row)), 0, is_right=False),
    _Column("User", lambda row: clean(str(row["user"] or UNKNOWN)), 6, is_right=False),
    _Column("Name", lambda row: clean(str(row["name"] or UNKNOWN)[:24]), 8, is_right=False),
    _Column(
        *("State", lambda row: str(row["state"]).replace("_", " "), 1, lambda row: STYLES.get(str(row["state"]), "")),
        is_right=False,
    ),
    _Column("Exit", lambda row: exit_of(row) or UNKNOWN, 4),
    _Column("Wall time", lambda row: _of(row["wall_s"], row["requested_walltime_s"], duration), 5),
    _graded("CPU", 2, "cpu_ratio", _bar),
    _Column("Memory", lambda row: _of(row["memory_peak"], row["requested_memory"], size), 7),
    _graded("of memory", 3, "memory_used_ratio"),
    _graded("GPU", 3, "gpu_ratio"),
    _Column("Energy", lambda row: look_of("energy_joules").text(row["energy_joules"]), 9),
    _Column("Advice", lambda row: clean(str(row["rules"] or "")), 10, is_right=False),
)


def print_jobs(report: several.SeveralJobs, width: int) -> None:
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


def _print_spread(report: several.SeveralJobs) -> None:
    names = list(report.spread)
    if not names:
        return
    print()
    columns = [archives.TableColumn("Spread", [several.HEADINGS[name] for name in names], is_right=False)]
    for word in ("min", "median", "max"):
        cells = [TEXTS[several.UNITS[name]](getattr(report.spread[name], word)) for name in names]
        columns.append(archives.TableColumn(word, cells))
    archives.print_table(columns, None)
