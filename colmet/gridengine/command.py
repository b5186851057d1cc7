"""Show the memory that jobs reserved and used, by host and by job.

The source is the JSON interface (colmet-web), or a server of QmemTools. The interface has the figures from the nodes
(OAR, Slurm), or with --gridengine from Grid Engine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from colmet.commands import remote
from colmet.commands.top_view import clean
from colmet.common.config import cli
from colmet.common.config.cli import did_you_mean
from colmet.common.errors import ConfigError
from colmet.common.text import counted
from colmet.gridengine import server, text
from colmet.gridengine.model import MemoryReport, Wanted, count
from colmet.gridengine.server import Fetched, QmemClient

if TYPE_CHECKING:
    from rich.console import Console

EPILOG = """\
examples:
  colmet mem https://head:8080            each host: used, reserved and available memory
  colmet mem head:8080 -d --host node-17  one host, with each of its jobs
  colmet mem head:8080 -u alice           where alice's jobs are, and what they use of what they reserved
  colmet mem head:8080 | cut -f 1,7       host and available memory: in a pipe, columns have tabs between them

exit status:
  0  done
  1  the server does not answer, or has no data
  2  wrong command line
"""


def add_options(parser: cli.Parser) -> None:
    """Declare the options of the server and of the figures."""
    parser.epilog = EPILOG
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="URL of the server, or HOST:PORT (default: $COLMET_URL, the only login of `colmet login`, or the site's)",
    )
    group = parser.add_argument_group("selection")
    group.add_argument("--host", metavar="HOST", dest="hostname", default="", help="only this host")
    group.add_argument(
        "-j", "--job", metavar="JOB", dest="jobid", default="", help="only this job, or this task of an array (17.3)"
    )
    group.add_argument("-u", "--user", metavar="USER", dest="owner", default="", help="only the jobs of this user")
    group.add_argument("-d", "--details", action="store_true", help="show the jobs of each host (implied by -j and -u)")
    parser.add_argument("--json", action="store_true", help="print JSON, sizes in bytes")
    parser.add_argument(
        "--ca-file", metavar="FILE", help="CA certificates (PEM) for https (default: those of this machine)"
    )


def run(options: argparse.Namespace) -> int:
    """Query the server and print; return the exit status; raise ColmetError for no answer or invalid options."""
    default = None if options.url else remote.default_interface(reads_archive=False)
    if default is not None:
        options.url, options.ca_file = default.url, options.ca_file or default.ca_file
    if not options.url:
        raise ConfigError("give the URL of a server, such as http://head:8080")
    fetched = QmemClient(server.checked_address(options.url), options.ca_file).fetch()
    return Printing(options, text.SHORT_TITLES, "colmet mem").print(fetched)


class Printing:
    """Printer of a server's answer, as the options specify; `program` begins lines on standard error."""

    def __init__(self, options: argparse.Namespace, titles: Sequence[str], program: str) -> None:
        self._options = options
        self._titles = titles
        self._program = program
        self._details = options.details or bool(options.jobid or options.owner)
        self._wanted = Wanted(options.hostname, options.jobid, options.owner)

    def print(self, fetched: Fetched) -> int:
        """Print the answer; return the exit status."""
        memory = count(fetched.hosts, fetched.owners, self._wanted, fetched.knows_all)
        if self._options.json:
            print(json.dumps(text.document_of(memory, self._details), allow_nan=False))
        elif not self._on_terminal(memory):
            for line in text.plain(memory, self._details, self._titles):
                print(line)
        sys.stdout.flush()
        for note in self._notes(fetched, memory):
            print(f"{self._program}: {note}", file=sys.stderr)
        return 0

    def _on_terminal(self, memory: MemoryReport) -> bool:
        """Print a table, if there is a terminal and the library for it."""
        if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in ("", "dumb"):
            return False
        try:
            show_table(memory, self._details, self._titles)
        except ModuleNotFoundError:  # print columns instead
            return False
        return True

    def _notes(self, fetched: Fetched, memory: MemoryReport) -> list[str]:
        """Return notes on data missing from the figures, or not found."""
        wanted, notes = self._wanted, []
        if wanted.host and wanted.host not in fetched.hosts:
            notes.append(f"there is no host {clean(wanted.host)}{clean(did_you_mean(wanted.host, fetched.hosts))}")
        elif not any(host.jobs for host in memory.hosts):
            where = f" on {clean(wanted.host)}" if wanted.host else ""
            if wanted.job:
                notes.append(f"there is no job {clean(wanted.job)}{where}, or you may not see it")
            elif wanted.owner:
                notes.append(f"user {clean(wanted.owner)} has no job{where}, or you may not see it")
        if not fetched.knows_all:
            notes.append("you see your own jobs only: the available memory depends on all jobs and is not shown")
        if memory.untold:
            them = "1 job: its" if memory.untold == 1 else f"{memory.untold} jobs: their"
            notes.append(f"{them} memory use on some host is not known; sums leave it out")
        if memory.unread:
            notes.append(f"{counted(memory.unread, 'sizes')} of the answer not understood, and skipped")
        return notes


def show_table(memory: MemoryReport, details: bool, titles: Sequence[str], console: Console | None = None) -> None:
    """Print a table for a terminal, `MemoryTable`."""
    from rich.console import Console
    from rich.text import Text

    console = console or Console(highlight=False, markup=False, emoji=False)
    table = text.MemoryTable(memory, details, console.width, titles).lines()
    lines = [Text.assemble(*[(part.text, part.style) for part in line]) for line in table]
    with console.capture() as captured:  # written at once, to avoid flicker
        for line in lines:
            console.print(line, no_wrap=True, overflow="crop", crop=True)
    console.file.write(captured.get())
    console.file.flush()
