"""Count the stored and missing samples of nodes and jobs in HDF5 files, with times and reasons.

Stored rows are compared with the nodes' own counts in the same files (tables completeness_default and gaps_default).
Give all files of the interval: rows in other files count as missing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from colmet.commands import selection
from colmet.commands.times import shown
from colmet.common.config import cli
from colmet.common.errors import ConfigError
from colmet.common.text import counted, percent
from colmet.stored import sources
from colmet.stored.accounts import LEDGER_COLUMNS, StoredHost, TableOnHost, gathered, ledger_rows, look
from colmet.stored.hdf5 import Hdf5History
from colmet.stored.hdf5_files import BURST_S, is_live
from colmet.stored.series import NODE, RowQuery


def add_options(parser: cli.Parser) -> None:
    """Declare the options: the files, and the selection of rows."""
    parser.epilog = """\
examples:
  colmet completeness -j 4242
  colmet completeness --host node-7 --since yesterday /var/lib/colmet/colmet.*.hdf5

exit status:
  0  nothing is missing
  1  samples are missing
  2  a file cannot be read, or has no row of the job or host"""
    parser.add_argument(
        "files", metavar="FILE", nargs="*", help="HDF5 file (default: those of the collector's configuration)"
    )
    selection.add_job(parser, "only this job; 0: the nodes themselves")
    parser.add_argument("--host", metavar="HOST", help="only this host")
    selection.add_interval(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    sources.add_config(parser)


def read(paths: Iterable[str], host: str | None = None) -> dict[str, StoredHost]:
    """Read the rows of all hosts, or of one, in files.

    The ledger is read first: the rows that it counts are in the other tables by then.
    """
    hosts: dict[str, StoredHost] = defaultdict(StoredHost)
    with Hdf5History(paths) as history:
        for table, columns in LEDGER_COLUMNS.items():
            for series in history.read(RowQuery(NODE, table, columns, hosts=None if host is None else [host])):
                for row in ledger_rows(series):
                    hosts[series.host].note(table, row)
        if any(is_live(path, BURST_S) for path in history.paths):
            time.sleep(BURST_S)  # rows counted by the ledger may not be written yet
        for job, table, name, times in history.times(host):
            hosts[name].add(table, job, times)
    return {name: one for name, one in hosts.items() if one.times}


def stored_percent(here: int, due: int) -> str:
    """Return a share in percent; 100 % only for all."""
    return percent(1.0 if here >= due else here / due)


def text_of(lines: Sequence[TableOnHost], what: str) -> Iterator[str]:
    """Yield the answer as text."""
    here, due = sum(line.found.here for line in lines), sum(line.due for line in lines)
    unknown = sum(not line.found.until for line in lines)
    share = stored_percent(here, due)
    yield f"{share} of the samples of {what} are stored: {here:,} of {due:,}, {due - here:,} missing"
    if unknown:
        tables = counted(len(lines), "tables")
        yield f"{unknown} of {tables} without a ledger: samples missing from them cannot be noticed"
    widths = [
        max([len(text) for text in column], default=0) for column in zip(*[(one.host, one.table) for one in lines])
    ]
    yield ""
    for line in lines:
        found = line.found
        said = stored_percent(found.here, line.due) if found.until else "no ledger"
        more = f"  more than were taken: {found.twice}" if found.twice else ""
        until = f"  up to {shown(found.until)}" if found.until else ""
        yield f"{line.host:{widths[0]}}  {line.table:{widths[1]}}  {said:>9}  {found.here} of {line.due}{until}{more}"
    gaps = gathered(lines)
    if gaps:
        yield ""
        yield "gaps"
    for host, gap, rows in gaps:
        of = ", ".join([f"{table} {count}" for table, count in sorted(rows.items())])
        yield f"{host}  {shown(gap.first)} .. {shown(gap.last)}  {gap.why}: {of}"


def document_of(lines: Sequence[TableOnHost]) -> dict[str, Any]:
    """Return the answer as JSON values."""
    return {
        "here": sum(line.found.here for line in lines),
        "missing": sum(line.found.missing for line in lines),
        "tables": [
            {
                "host": line.host,
                "table": line.table,
                "here": line.found.here,
                "missing": line.found.missing,
                "more_than_taken": line.found.twice,
                "ledger_until": line.found.until or None,
                "gaps": [
                    {"first": gap.first, "last": gap.last, "samples": gap.samples, "rows": gap.rows, "why": gap.why}
                    for gap in line.found.gaps
                ],
            }
            for line in lines
        ],
    }


def run(options: argparse.Namespace) -> int:
    """Print the completeness; return 0 if nothing is missing, else 1."""
    selection.check_interval(options)
    files = options.files or sources.configured_files(options.config)
    lines = list(look(read(files, options.host), options.job, options.since, options.until))
    what = f"job {options.job}" if options.job is not None else (options.host or "all nodes")
    if not lines:
        raise ConfigError(f"nothing of {what} in {', '.join(files)}")
    if options.json:
        print(json.dumps(document_of(lines)))
    else:
        print("\n".join(text_of(lines, what)))
    return 1 if any(line.found.missing for line in lines) else 0
