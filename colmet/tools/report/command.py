"""What a job did: CPU, memory, I/O, GPUs and energy of what it was given, where its time went, and what to do better.

Reads what the collector has stored. Exit status: 0, 1 where there is nothing of the job or the store cannot be read, 2
where the command line or the configuration is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from colmet.common import cli
from colmet.common.errors import ColmetError, ConfigError
from colmet.tools.completeness import moment, shown
from colmet.tools.history.series import NODE, History
from colmet.tools.history.sources import add_options as add_source_options
from colmet.tools.history.sources import open_history
from colmet.tools.report.figures import Asked
from colmet.tools.report.gathering import gather
from colmet.tools.report.model import Report

DEBIAN = {"rich": "python3-rich", "matplotlib": "python3-matplotlib"}


def add_options(parser: cli.Parser) -> None:
    """Declare the job, the interval, and what is wanted of it."""
    parser.epilog = "example: colmet report 4242 --hdf5 /var/lib/colmet/cluster --html job-4242.html"
    parser.add_argument("job", metavar="JOB", type=cli.whole_number(1, (1 << 63) - 1), help="its number")
    for name, text in (("since", "from this time on"), ("until", "up to this time")):
        parser.add_argument(
            f"--{name}",
            metavar="TIME",
            type=moment,
            help=f"only {text}: seconds since 1970, or UTC as 2026-11-21T12:00:00",
        )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page with charts, one file")
    parser.add_argument("--png", metavar="FILE", help="write a picture with charts")
    add_source_options(parser)


def document_of(report: Report) -> dict[str, Any]:
    """All of a report but its curves, for programs; docs/tools/report.md has the names."""
    document = asdict(replace(report, curves=()))
    del document["curves"]
    document["cores"] = report.cores
    document["completeness"]["here_ratio"] = report.completeness.here_ratio
    document["cpu"]["used_ratio"] = report.cpu.used_ratio
    document["time"]["shares"] = asdict(report.shares)
    for host, of_it in zip(document["hosts"], report.hosts):
        host.update(cores=of_it.cores, cpu_used_ratio=of_it.cpu_used_ratio)
    return {name: _finite(value) for name, value in document.items()}


def _finite(value: Any) -> Any:
    """A value of JSON, which knows no NaN."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def run(options: argparse.Namespace) -> int:
    """Print the report of a job, or write it to files.

    Raises:
        ColmetError: there is nothing of it, it cannot be read or written, or a library is missing.
    """
    asked = Asked(options.job, options.since, options.until)
    if options.since is not None and options.until is not None and options.since > options.until:
        raise ConfigError("--since is later than --until")
    try:
        with open_history(options) as history:
            report = gather(history, asked, time.time())
            if report is None:
                raise ColmetError(nothing_of(history, asked))
        for path, kind in ((options.html, "html"), (options.png, "png")):
            if path is not None:
                _write(report, path, kind)
        if options.json:
            _print(lambda: print(json.dumps(document_of(report), allow_nan=False)))
        elif options.html is None and options.png is None:
            from colmet.tools.report.text import show

            _print(lambda: show(report, sys.stdout))
    except ModuleNotFoundError as err:
        name = str(err.name).partition(".")[0]
        debian = f", or the Debian package {DEBIAN[name]}" if name in DEBIAN else ""
        raise ConfigError(
            f"it takes the Python module {name}, which is not installed: pip install 'colmet[tools]'{debian}"
        ) from err
    return 0


def nothing_of(history: History, asked: Asked) -> str:
    """Why there is no report: what is stored instead.

    Args:
        history: where it was looked for.
        asked: what was.
    """
    if history.tables(asked.job):
        when = [
            f"{word} {shown(time_s)}" for word, time_s in (("since", asked.since), ("until", asked.until)) if time_s
        ]
        return f"job {asked.job} has no rows {' and '.join(when)} (UTC); leave out --since and --until to see all of it"
    tables = sorted(history.tables(NODE))
    if not tables:
        return f"nothing is stored of job {asked.job}, nor of any node: is this the right store?"
    return (
        f"nothing is stored of job {asked.job}; of the nodes there are {', '.join(tables)}. Is the number right, and "
        "has the collector written since the job began (it does at least once a minute)?"
    )


def _write(report: Report, path: str, kind: str) -> None:
    from colmet.tools.report import page

    write: Callable[[Report, str], None] = {"html": page.write_html, "png": page.write_png}[kind]
    try:
        write(report, path)
    except OSError as err:
        raise ColmetError(f"{path}: {err.strerror or err}") from err


def _print(write: Callable[[], None]) -> None:
    """Write to standard output; whoever reads it may have gone."""
    try:
        write()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
