"""Make reports of jobs, each in a process of its own with limits on time and memory.

A report of a long job needs seconds of CPU time and hundreds of megabytes: in the process of the JSON interface it
would delay all other answers. The process, which begins with `main`, reads a query as JSON from standard input, and
writes a line of JSON, empty or with an error, and then the report.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from colmet.common.errors import ColmetError, CommandFailed, ConfigError
from colmet.common.host.command import Command, python_command, python_environment
from colmet.common.text import UTC, Clock, how_to_install
from colmet.jobs.figures import Report
from colmet.jobs.report.archived import UNREADABLE, OwnHistory, made_from, without_others
from colmet.jobs.report.document import document_of, to_json
from colmet.stored.job_rows import JobInterval
from colmet.stored.series import History
from colmet.web.store import ArchiveOpener, EmptyHistory, archive_opener, find_in, opener

log = logging.getLogger(__name__)

DEADLINE_S = 50.0  # then the process is killed
MAX_BYTES = 64 << 20  # of an answer
# options, beside those of database and archive
STORE = ("hdf5_filepath", "http_credentials", "no_check_certificates", "journal_dir", "no_shared_archive")
EARLY = "no report: its process ended early, or requires more memory; ask for a shorter interval"
START = "from colmet.web.reports import main; sys.exit(main())"


class ReportQuery(NamedTuple):
    """A query for a report."""

    job: int  # its number
    since: int | None = None  # seconds since 1970; None for all of the job
    until: int | None = None
    own: Mapping[str, float | None] | None = None  # only these hosts, as `Queries.own`; None for all
    form: str = "json"  # json, html or png
    start: int | None = None  # of several jobs with this number, as in `colmet.jobs.report.archived.find`
    zone: str = ""  # of the times of a page or a picture, such as Europe/Paris; empty for UTC
    users: Sequence[str] | None = None  # names of the only user with visible summaries; None for all
    projects: Sequence[str] = ()  # those whose summaries are visible to this user, too
    is_unread: bool = False  # whether the store of the rows of `own` cannot be read


class MissingLibrary(ColmetError):
    """A Python module is missing; the text has the remedy."""


class TooLarge(ColmetError):
    """A report needs more time or memory than it may have; the text has the remedy."""


Reporter = Callable[[ReportQuery], "bytes | None"]  # None without rows of the job


def store_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return those of the collector's options that name its store and its archive."""
    return {
        name: value
        for name, value in vars(options).items()
        if name in STORE or name.startswith(("elastic_", "archive"))
    }


@dataclass(eq=False)
class ReportProcesses:
    """Reports made by processes, one for each report; for any thread."""

    options: argparse.Namespace  # of the collector
    command: tuple[str, ...] = python_command(START)
    deadline_s: float = DEADLINE_S  # of a report

    @cached_property
    def _cache(self) -> str:
        """A directory for the list of fonts, which is slow to make."""
        return tempfile.mkdtemp(prefix="colmet-web-")

    def __call__(self, query: ReportQuery) -> bytes | None:
        """Return a report in its form; None without rows of the job.

        Raises:
            MissingLibrary: the form requires a missing module.
            TooLarge: the deadline is over, or the process ended for want of memory.
            ColmetError: it cannot be made; may name files and hosts.
        """
        asked = json.dumps({"store": store_of(self.options), **query._asdict()}).encode()
        environment = {**python_environment(), "MPLCONFIGDIR": self._cache}
        # The process that reads HDF5 files for this one is ended with it.
        command = Command(self.command, self.deadline_s, env=environment, max_answer=MAX_BYTES)
        try:
            said = command.run_bytes(asked)
        except CommandFailed as err:
            if err.why == "late":
                raise TooLarge("the report needs too long; ask for a shorter interval") from None
            if command.runs:
                log.warning("report not made job=%d: %s", query.job, err.text)
                raise TooLarge(EARLY) from err
            raise ColmetError(f"no report can be made: {err.text}") from err
        head, newline, body = said.partition(b"\n")
        if not newline:
            raise TooLarge(EARLY)
        found = json.loads(head)
        if "missing" in found:
            raise MissingLibrary(str(found["missing"]))
        if "large" in found:
            raise TooLarge(str(found["large"]))
        if "error" in found:
            raise ColmetError(str(found["error"]))
        return body or None

    def close(self) -> None:
        """Remove the temporary directory."""
        shutil.rmtree(vars(self).get("_cache", ""), ignore_errors=True)


NICE = 5  # the interface has priority
MAX_MEMORY = 1536 << 20  # bytes of data; a job of 500 hosts and a day needs 250 MB
MAX_CPU_S = 120


def report_of(
    open_history: Callable[[], History], query: ReportQuery, now: float, open_archive: ArchiveOpener = lambda: None
) -> bytes | None:
    """Return a report in its form, from the rows of the job, else from the archive; None if it is in neither.

    ColmetError if one of them cannot be read, and the other has nothing of the job.
    """
    found, unread = None, None
    try:
        found = find_in(open_archive, query.job, query.start, query.users, query.projects)
    except ColmetError as err:
        if query.start is not None:
            raise
        unread = err
    if found is None and query.start is not None:
        return None
    open_rows = open_history if query.own is None or query.own else EmptyHistory

    @contextlib.contextmanager
    def opened() -> Iterator[History]:
        with open_rows() as history:
            try:
                yield history
            except MemoryError as err:
                raise TooLarge("the report of its rows needs too much memory; ask for a shorter interval") from err

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
        is_told = query.own is None or isinstance(unread, TooLarge)
        report = replace(report, warnings=(*report.warnings, str(unread) if is_told else UNREADABLE))
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
    except (MemoryError, TooLarge) as err:
        said = {"large": str(err) or EARLY}
    except ColmetError as err:
        said = {"error": str(err)}
    sys.stdout.buffer.write(json.dumps(said).encode() + b"\n" + (body or b""))
    sys.stdout.buffer.flush()
    return 0
