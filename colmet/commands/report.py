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
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from colmet.commands import archives, remote, report_jobs, selection
from colmet.commands.progress import shown_progress
from colmet.commands.remote import InterfaceClient
from colmet.commands.remote_archive import RemoteArchive
from colmet.commands.times import moment, shown
from colmet.common.config import cli
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.text import Clock, how_to_install
from colmet.jobs.archive.queries import ArchivedJob, JobArchive
from colmet.jobs.archive.store import SUFFIX, ArchiveError
from colmet.jobs.figures import Report
from colmet.jobs.report.archived import find, made_from
from colmet.jobs.report.document import document_of, report_of
from colmet.jobs.report.several import is_task, task_of
from colmet.stored.job_rows import JobInterval
from colmet.stored.series import NODE, History
from colmet.stored.sources import add_options as add_source_options
from colmet.stored.sources import open_history


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
    report_jobs.add_options(parser.add_argument_group("several jobs, from the job archive"))
    add_source_options(parser)
    archives.add_place(parser)
    remote.add_options(parser)


class JobQuery(NamedTuple):
    """A job on the command line."""

    job: int  # its number
    start: int | None  # of several jobs with this number; None for the latest
    since: int | None
    until: int | None

    @property
    def interval(self) -> JobInterval:
        """Return the job and the interval of its rows."""
        return JobInterval(self.job, self.since, self.until)


def run(options: argparse.Namespace) -> int:
    """Print the report of a job or of several jobs, or write it to files."""
    if options.job is not None:
        options.words.insert(0, str(options.job))
    selection.check_interval(options)
    is_several = report_jobs.are_selected(options)
    if not is_several and not options.words:
        raise ConfigError("no job is named; give JOB or --job JOB, or select several such as by --array or --user")
    for word in options.words:
        if not is_task(word) and selection.job_of(options, [word]) == 0:
            raise ConfigError("job 0 stands for the nodes themselves, and a report is of a job")
    client = remote.client_of(options)
    has_archive = bool(options.archive)
    if client is not None and (options.hdf5 or options.archive):
        raise ConfigError("--url excludes --hdf5 and --archive")
    if options.hdf5 and not has_archive:
        options.archive = f"{options.hdf5[0]}{SUFFIX}"  # that of the same collector
    try:
        if is_several:
            report_jobs.run(options, client)
        elif client is None:
            _run_stored(options, has_archive)
        else:
            _run_remote(client, options)
    except ModuleNotFoundError as err:
        name = str(err.name).partition(".")[0]
        raise ConfigError(f"it requires the Python module {name}: {how_to_install(name)}") from err
    return 0


def _run_stored(options: argparse.Namespace, has_archive: bool) -> None:
    """Print or write the report of stored rows or of the archive."""
    report = _gathered(options, has_archive)
    for path, kind in ((options.html, "html"), (options.png, "png")):
        if path is not None:
            _write(report, path, kind)
    if options.json:
        print(json.dumps(document_of(report), allow_nan=False))
    elif options.html is None and options.png is None:
        _show(report, options)


def _gathered(options: argparse.Namespace, has_archive: bool) -> Report:
    """Return the report of the job; an archive that is named must be readable."""
    archive, lacking = _archive(options, has_archive)
    found: ArchivedJob | None = None
    with contextlib.nullcontext() if archive is None else archive:
        asked = _asked(options, archive)
        if archive is not None:
            try:
                found = find(archive, asked.job, asked.start)
            except ArchiveError as err:
                if has_archive or asked.start is not None:
                    raise
                lacking = str(err)
        elif asked.start is not None:
            raise ConfigError(f"--start requires the job archive: {lacking or 'none is named; give --archive PATH'}")
    if asked.start is not None and found is None:
        raise ColmetError(f"the archive has no job {asked.job} that had started by {shown(asked.start)}")
    reasons: list[str] = []

    @contextlib.contextmanager
    def opened() -> Iterator[History]:
        with open_history(options) as history, shown_progress(history, "colmet report"):
            yield history

    def without_rows(history: History) -> None:
        reasons.append(nothing_of(history, asked.interval))

    report, unread = made_from(found, opened, asked.interval, time.time(), without_rows=without_rows)
    if report is None:
        reasons += [str(unread)] if unread is not None else []
        if found is not None:
            reasons.append("the job archive has totals of the whole job: leave out --since and --until")
        raise ColmetError("; ".join([*reasons, *([lacking] if lacking else [])]))
    warnings = [] if unread is None or isinstance(unread, ConfigError) else [str(unread)]  # no store is named
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


def _asked(options: argparse.Namespace, archive: JobArchive | None) -> JobQuery:
    """Return the job of the command line; ColmetError for an unknown task of an array."""
    (word,) = options.words
    if not is_task(word):
        return JobQuery(int(word), options.start, options.since, options.until)
    if archive is None:
        raise ConfigError(f"{word} is a task of an array, known to the job archive only: give --archive PATH or --url")
    task = task_of(archive, word)
    if task is None:
        raise ColmetError(f"the archive has no task {word} of an array, or you may not see it")
    return JobQuery(*task, options.since, options.until)


def _show(report: Report, options: argparse.Namespace) -> None:
    from colmet.jobs.report.text import show

    show(report, sys.stdout, verbose=options.verbose, clock=Clock())


def _run_remote(client: InterfaceClient, options: argparse.Namespace) -> None:
    """Print or write the report that the JSON interface makes."""
    asked = _asked(options, RemoteArchive(client))
    given = {"since": asked.since, "until": asked.until, "start": asked.start}
    for path, kind in ((options.html, "html"), (options.png, "png")):
        if path is not None:
            report_jobs.save(path, client.read(f"jobs/{asked.job}/report.{kind}", given))
    if not options.json and (options.html is not None or options.png is not None):
        return
    document = client.get(f"jobs/{asked.job}/report", given)
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


def _write(report: Report, path: str, kind: str) -> None:
    from colmet.jobs.report import page

    report_jobs.save(path, page.html(report) if kind == "html" else page.png(report))
