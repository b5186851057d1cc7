"""Make one report: the process started by `colmet.web.reports`, which reads a query as JSON from standard input.

It writes a line of JSON, empty or with an error, and then the report.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from colmet.common.errors import ColmetError, ConfigError
from colmet.common.text import UTC, Clock, how_to_install
from colmet.jobs.archive.queries import JobArchive
from colmet.jobs.figures import Report
from colmet.jobs.report.archived import UNREADABLE, OwnHistory, find, made_from, without_others
from colmet.jobs.report.document import document_of
from colmet.stored.job_rows import JobInterval
from colmet.stored.series import History
from colmet.web.reports import MissingLibrary, ReportQuery
from colmet.web.responses import to_json
from colmet.web.store import EmptyHistory, archive_opener, opener

NICE = 5  # the interface has priority
MAX_MEMORY = 1536 << 20  # bytes of data; a job of 500 hosts and a day needs 250 MB
MAX_CPU_S = 120


def report_of(
    open_history: Callable[[], History],
    query: ReportQuery,
    now: float,
    open_archive: Callable[[], JobArchive | None] = lambda: None,
) -> bytes | None:
    """Return a report in its form, from the rows of the job, else from the archive; None if it is in neither.

    Raises:
        ColmetError: one of them cannot be read, and the other has nothing of the job.
    """
    found, unread = None, None
    try:
        archive = open_archive()
        with contextlib.nullcontext() if archive is None else archive:
            found = None if archive is None else find(archive, query.job, query.start, query.users, query.projects)
    except ColmetError as err:
        if query.start is not None:
            raise
        unread = err
    if found is None and query.start is not None:
        return None
    opened = open_history if query.own is None or query.own else EmptyHistory
    asked = JobInterval(query.job, query.since, query.until)

    def own(history: History) -> History:
        return history if query.own is None else OwnHistory(history, query.job, query.own)

    if query.is_unread:
        unread = ColmetError(UNREADABLE)
    report, unread_rows = made_from(found, opened, asked, now, own)
    unread = unread_rows or unread
    if report is None:
        if unread is not None:
            raise unread
        return None
    if unread is not None:
        report = replace(report, warnings=(*report.warnings, str(unread) if query.own is None else UNREADABLE))
    if query.own is not None:
        report = without_others(report)
    return to_json(document_of(report)) if query.form == "json" else _drawn(report, query)


def _drawn(report: Report, query: ReportQuery) -> bytes:
    clock = Clock.of_place(query.zone) if query.zone else UTC
    unknown = "" if clock else query.zone
    try:
        from colmet.jobs.report.page import html, png
    except ModuleNotFoundError as err:
        name = str(err.name).partition(".")[0]
        raise MissingLibrary(f"the page requires the Python module {name}: {how_to_install(name)}") from err
    except ConfigError as err:  # of charts, likewise
        raise MissingLibrary(str(err)) from err
    return html(report, clock or UTC, unknown) if query.form == "html" else png(report, clock or UTC)


def main() -> int:
    """Make the report; return the exit status."""
    asked = json.loads(sys.stdin.buffer.read())
    with contextlib.suppress(OSError, ValueError):  # a unit may forbid it
        os.nice(NICE)
    for which, limit in ((resource.RLIMIT_DATA, MAX_MEMORY), (resource.RLIMIT_CPU, MAX_CPU_S)):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(which, (limit, limit))
    options = argparse.Namespace(**asked.pop("store"))
    open_history = opener(options) or EmptyHistory
    said: dict[str, str] = {}
    body = None
    try:
        body = report_of(open_history, ReportQuery(**asked), time.time(), archive_opener(options))
    except MissingLibrary as err:
        said = {"missing": str(err)}
    except MemoryError:
        said = {"error": "not enough memory for the report; ask for a shorter interval"}
    except ColmetError as err:
        said = {"error": str(err)}
    sys.stdout.buffer.write(json.dumps(said).encode() + b"\n" + (body or b""))
    sys.stdout.buffer.flush()
    return 0
