"""Make reports of jobs, each in a process of its own with limits on time and memory.

A report of a long job needs seconds of CPU time and hundreds of megabytes: in the process of the JSON interface it
would delay all other answers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from colmet.common.errors import ColmetError
from colmet.common.host.command import python_command, python_environment
from colmet.web.workers import Busy

FORMS = ("json", "html", "png")
DEADLINE_S = 50.0  # then the process is killed
MAX_BYTES = 64 << 20  # of an answer
# options, beside those of database and archive
STORE = ("hdf5_filepath", "http_credentials", "no_check_certificates", "journal_dir", "no_shared_archive")
START = "from colmet.web.report_process import main; sys.exit(main())"


class ReportQuery(NamedTuple):
    """A query for a report."""

    job: int  # its number
    since: int | None = None  # seconds since 1970; None for all of the job
    until: int | None = None
    own: Mapping[str, float | None] | None = None  # only these hosts, as `Queries.own`; None for all
    form: str = "json"  # one of `FORMS`
    start: int | None = None  # of several jobs with this number, as in `colmet.jobs.report.archived.find`
    zone: str = ""  # of the times of a page or a picture, such as Europe/Paris; empty for UTC
    users: Sequence[str] | None = None  # names of the only user with visible summaries; None for all
    projects: Sequence[str] = ()  # those whose summaries are visible to this user, too
    is_unread: bool = False  # whether the store of the rows of `own` cannot be read


class ReportError(ColmetError):
    """The store cannot be read, or the report needs too much; may name files and hosts."""


class MissingLibrary(ColmetError):
    """A Python module is missing; the text has the remedy."""


Reporter = Callable[[ReportQuery], "bytes | None"]  # None without rows of the job


def store_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return those of the collector's options that name its store and its archive."""
    return {
        name: value
        for name, value in vars(options).items()
        if name in STORE or name.startswith(("elastic_", "archive"))
    }


class ReportProcesses:
    """Reports made by processes, one for each report; for any thread.

    Args:
        options: of the collector.
        command: command to start, for tests.
        deadline_s: timeout of a report.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        command: tuple[str, ...] = python_command(START),
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._store = store_of(options)
        self._command = command
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._cache = ""  # a directory for the list of fonts, which is slow to make

    def __call__(self, query: ReportQuery) -> bytes | None:
        """Return a report in its form; None without rows of the job.

        Raises:
            MissingLibrary: the form requires a missing module.
            Busy: the deadline is over.
            ReportError: it cannot be made.
        """
        asked = json.dumps({"store": self._store, **query._asdict()}).encode()
        try:
            with subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment(query.form)
            ) as process:
                try:
                    said, _ = process.communicate(asked, self._deadline_s)
                except subprocess.TimeoutExpired:
                    raise Busy("the report needs too long; ask for a shorter interval", 60.0) from None
                finally:
                    process.kill()
        except OSError as err:
            raise ReportError(f"no report can be made: {err.strerror}") from err
        head, newline, body = said.partition(b"\n")
        if process.returncode or not newline or len(body) > MAX_BYTES:
            raise ReportError("no report: its process ended early, or requires more memory; ask for a shorter interval")
        found = json.loads(head)
        if "missing" in found:
            raise MissingLibrary(str(found["missing"]))
        if "error" in found:
            raise ReportError(str(found["error"]))
        return body or None

    def _environment(self, form: str) -> dict[str, str]:
        found = python_environment()
        if form != "json":
            with self._lock:
                self._cache = self._cache or tempfile.mkdtemp(prefix="colmet-web-")
            found["MPLCONFIGDIR"] = self._cache
        return found

    def close(self) -> None:
        """Remove the temporary directory."""
        shutil.rmtree(self._cache, ignore_errors=True)
