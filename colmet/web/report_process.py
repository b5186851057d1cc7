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

from colmet.common.errors import ColmetError, ConfigError
from colmet.common.runtime.dependencies import how_to_install
from colmet.report.collect import gather
from colmet.report.document import document_of
from colmet.report.model import Report
from colmet.report.own import OwnHistory, without_others
from colmet.stored.series import History
from colmet.stored.stays import JobInterval
from colmet.web.reports import MissingLibrary, ReportQuery
from colmet.web.responses import to_json
from colmet.web.store import opener

NICE = 5  # the interface has priority
MAX_MEMORY = 1536 << 20  # bytes of data; a job of 500 hosts and a day needs 250 MB
MAX_CPU_S = 120


def report_of(history: History, query: ReportQuery, now: float) -> bytes | None:
    """Return a report in its form; None without rows of the job."""
    seen = history if query.own is None else OwnHistory(history, query.job, query.own)
    report = gather(seen, JobInterval(query.job, query.since, query.until), now)
    if report is None:
        return None
    if query.own is not None:
        report = without_others(report)
    if query.form == "html":
        return _page_of(report)
    return to_json(document_of(report))


def _page_of(report: Report) -> bytes:
    try:
        from colmet.report.page import html
    except ModuleNotFoundError as err:
        name = str(err.name).partition(".")[0]
        raise MissingLibrary(f"the page requires the Python module {name}: {how_to_install(name)}") from err
    except ConfigError as err:  # of charts, likewise
        raise MissingLibrary(str(err)) from err
    return html(report)


def main() -> int:
    """Make the report; return the exit status."""
    asked = json.loads(sys.stdin.buffer.read())
    with contextlib.suppress(OSError, ValueError):  # a unit may forbid it
        os.nice(NICE)
    for which, limit in ((resource.RLIMIT_DATA, MAX_MEMORY), (resource.RLIMIT_CPU, MAX_CPU_S)):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(which, (limit, limit))
    open_history = opener(argparse.Namespace(**asked.pop("store")))
    said: dict[str, str] = {}
    body = None
    try:
        if open_history is not None:
            with open_history() as history:
                body = report_of(history, ReportQuery(**asked), time.time())
    except MissingLibrary as err:
        said = {"missing": str(err)}
    except MemoryError:
        said = {"error": "not enough memory for the report; ask for a shorter interval"}
    except ColmetError as err:
        said = {"error": str(err)}
    sys.stdout.buffer.write(json.dumps(said).encode() + b"\n" + (body or b""))
    sys.stdout.buffer.flush()
    return 0
