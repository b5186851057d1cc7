"""Report a job's efficiency from the stored rows: its use of the allocation, its time by state, and advice."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from colmet.commands import remote, selection
from colmet.commands.progress import shown_progress
from colmet.commands.remote import InterfaceClient
from colmet.commands.times import shown
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.runtime import cli
from colmet.common.runtime.dependencies import how_to_install
from colmet.report.collect import gather
from colmet.report.document import document_of, report_of
from colmet.report.model import Report
from colmet.stored.series import NODE, History
from colmet.stored.sources import add_options as add_source_options
from colmet.stored.sources import open_history
from colmet.stored.stays import JobInterval


def add_options(parser: cli.Parser) -> None:
    """Declare the options: the job, the interval, and the outputs."""
    parser.epilog = """\
examples:
  colmet report 4242
  colmet report -j 4242 --since yesterday --html job-4242.html
  colmet report 4242 --hdf5 /var/lib/colmet/cluster --json

exit status:
  0  done
  1  no rows of the job, or the store cannot be read
  2  wrong command line or configuration"""
    parser.usage = f"{parser.prog} [OPTION ...] JOB"
    parser.add_argument("words", metavar="JOB", nargs="*", help="the job (unless given by --job)")
    selection.add_job(parser, "report on this job")
    selection.add_interval(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page with charts to this file")
    parser.add_argument("--png", metavar="FILE", help="write a picture with charts to this file")
    add_source_options(parser)
    remote.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Print the report of a job, or write it to files."""
    options.job = selection.job_of(options, options.words)
    if options.words:
        raise ConfigError(f"unexpected argument {options.words[0]!r:.100}: a report is of one job")
    if not options.job:
        raise ConfigError("job 0 stands for the nodes themselves, and a report is of a job")
    selection.check_interval(options)
    asked = JobInterval(options.job, options.since, options.until)
    client = remote.client_of(options)
    try:
        if client is None:
            _run_stored(asked, options)
        else:
            _run_remote(client, asked, options)
    except ModuleNotFoundError as err:
        name = str(err.name).partition(".")[0]
        raise ConfigError(f"it requires the Python module {name}: {how_to_install(name)}") from err
    return 0


def _run_stored(asked: JobInterval, options: argparse.Namespace) -> None:
    """Print or write the report of stored rows."""
    with open_history(options) as history, shown_progress(history, "colmet report"):
        report = gather(history, asked, time.time())
        if report is None:
            raise ColmetError(nothing_of(history, asked))
    for path, kind in ((options.html, "html"), (options.png, "png")):
        if path is not None:
            _write(report, path, kind)
    if options.json:
        print(json.dumps(document_of(report), allow_nan=False))
    elif options.html is None and options.png is None:
        _show(report)


def _show(report: Report) -> None:
    from colmet.report.text import show

    show(report, sys.stdout)


def _run_remote(client: InterfaceClient, asked: JobInterval, options: argparse.Namespace) -> None:
    """Print or write the report that the JSON interface makes."""
    if options.hdf5 or options.elastic_host:
        raise ConfigError("--url excludes --hdf5 and --elastic-host")
    if options.png is not None:
        raise ConfigError("--png requires the stored rows: --url excludes it, and has --html")
    limits = {"since": asked.since, "until": asked.until}
    if options.html is not None:
        _save(options.html, client.read(f"jobs/{asked.job}/report.html", limits))
        if not options.json:
            return
    document = client.get(f"jobs/{asked.job}/report", limits)
    if options.json:
        print(json.dumps(document, allow_nan=False))
    else:
        _show(report_of(document))


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
    from colmet.report import page

    _save(path, page.html(report) if kind == "html" else page.png(report))


def _save(path: str, content: bytes) -> None:
    try:
        Path(path).write_bytes(content)
    except OSError as err:
        raise ColmetError(f"{path}: {err.strerror or err}") from err
