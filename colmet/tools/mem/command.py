"""Show the memory that jobs reserved and used, by host: as a bar for each host, and for each job.

Asks the JSON interface of a collector (--http-listen), or a server of QmemTools. A collector tells what Grid Engine
says where it is set up to, and otherwise what Colmet has measured of OAR's or Slurm's jobs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from colmet.common import cli
from colmet.common.errors import ColmetError, ConfigError
from colmet.tools.mem import server, text
from colmet.tools.mem.model import Memory, Wanted, count
from colmet.tools.mem.server import Fetched, Server
from colmet.tools.top.view import clean

CONFIG = "/etc/colmet/collector.toml"
EPILOG = """\
examples:
  colmet mem https://head:8080            each host: used, reserved and available memory
  colmet mem head:8080 -u -h node-17      one host, with each of its jobs
  colmet mem head:8080 -o alice           where alice's jobs are, and what they use of what they reserved
  colmet mem head:8080 | cut -f 1,7       host and available memory: in a pipe, columns have tabs between them

exit status: 0; 1 where the server does not answer, or has no data; 2 where the command line cannot be used.
"""


def add_options(parser: cli.Parser) -> None:
    """Declare the server, and what is to be shown."""
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="of the server, or HOST:PORT (default: the collector of this machine, where --config says)",
    )
    add_choice(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, sizes in bytes")
    parser.add_argument("--no-color", action="store_true", help="no colours, as with NO_COLOR in the environment")
    parser.add_argument(
        "--watch", metavar="S", type=cli.positive_seconds, help="ask again after so many seconds, until Ctrl-C"
    )
    parser.add_argument(
        "--config", metavar="FILE", default=CONFIG, help="configuration of the collector (default: %(default)s)"
    )
    server.add_options(parser)


def add_choice(parser: cli.Parser) -> None:
    """Declare which hosts and jobs are shown: the options of QmemTools' viewer."""
    parser.conflict_handler = "resolve"  # -h is no help here: it was a host before Colmet had this
    group = parser.add_argument_group("what is shown")
    group.add_argument("-h", "--hostname", metavar="HOST", default="", help="only this host (help is --help alone)")
    group.add_argument(
        "-j", "--jobid", metavar="ID", default="", help="only this job, or this task of an array (17.3), with details"
    )
    group.add_argument("-o", "--owner", metavar="USER", default="", help="only the jobs of this user, with details")
    group.add_argument("-u", "--details", action="store_true", help="below each host its jobs")


def run(options: argparse.Namespace) -> int:
    """Ask, and print; the exit status.

    Raises:
        ColmetError: the server does not answer, or the options cannot be used.
    """
    url = server.checked_address(options.url) if options.url else configured_url(options.config)
    asked = Server.from_options(url, options)
    printing = Printing(options, text.SHORT_TITLES, "colmet mem")
    if options.watch is None:
        return printing.once(asked.fetch())
    if options.json or not sys.stdout.isatty():
        raise ConfigError("--watch is for a terminal; without it, a script gets one answer")
    return printing.watch(asked, options.watch)


def configured_url(path: str) -> str:
    """Where the collector of this machine serves its JSON interface.

    Args:
        path: of its configuration.

    Raises:
        ConfigError: nobody says; the text tells what to give.
    """
    from colmet.collector import main as collector  # takes all that a collector is made of
    from colmet.collector.backends import NAMES
    from colmet.common.configuration import Configuration

    what = "give the URL of a server, such as http://head:8080"
    try:
        options = Configuration(lambda: collector.build_parser(cli.load(NAMES)), ["--config", path]).read()
    except ConfigError as err:
        raise ConfigError(f"{err}; {what}, or the collector's file as --config") from err
    listen = getattr(options, "http_listen", None)
    if listen is None:
        raise ConfigError(f"{path} has no http-listen: {what}")
    host = "127.0.0.1" if listen.host in ("0.0.0.0", "::") else listen.host
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if options.http_tls_cert else 'http'}://{host}:{listen.port}"


class Printing:
    """Prints what a server told, as the options say.

    Args:
        options: of `add_options`; some may be missing.
        titles: of the columns on a terminal.
        program: that what is said on standard error begins with.
        only_with_jobs: leave out hosts without a job that is to be shown, where only some are.
    """

    def __init__(
        self, options: argparse.Namespace, titles: Sequence[str], program: str, only_with_jobs: bool = True
    ) -> None:
        self._options = options
        self._titles = titles
        self._program = program
        self._details = options.details or bool(options.jobid or options.owner)
        leaves_out = only_with_jobs and bool(options.owner)
        self._wanted = Wanted(options.hostname, options.jobid, options.owner, leaves_out)

    def once(self, fetched: Fetched) -> int:
        """Print it; the exit status."""
        memory = self._count(fetched)
        if self._options.json:
            print(json.dumps(text.document_of(memory, self._details), allow_nan=False))
        elif not self._on_terminal(memory):
            for line in text.plain(memory, self._details):
                print(line)
        sys.stdout.flush()
        for note in self._notes(fetched, memory):
            print(f"{self._program}: {note}", file=sys.stderr)
        return 0

    def watch(self, asked: Server, period_s: float) -> int:
        """Print what there is now, again and again, until Ctrl-C.

        Raises:
            ColmetError: the first answer cannot be had. One that comes later is told of, and then asked for again.
        """
        fetched, trouble = asked.fetch(), ""
        while True:
            notes = [trouble] if trouble else self._notes(fetched, self._count(fetched))
            stamp = f"{time.strftime('%H:%M:%S')}, every {period_s:g} s (Ctrl-C ends)"
            if not self._on_terminal(self._count(fetched), [stamp, *notes]):
                raise ConfigError("--watch takes the Python module rich: pip install 'colmet[tools]'")
            time.sleep(period_s)
            try:
                fetched, trouble = asked.fetch(), ""
            except ColmetError as err:
                trouble = f"{err}; this is of before"

    def _count(self, fetched: Fetched) -> Memory:
        return count(fetched.hosts, fetched.owners, self._wanted, fetched.knows_all)

    def _on_terminal(self, memory: Memory, above: Sequence[str] = ()) -> bool:
        """Print a table, if there is a terminal, and the library for it; with lines above it, as much as fits."""
        if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in ("", "dumb"):
            return False
        try:
            from colmet.tools.mem import screen
        except ModuleNotFoundError:  # columns do as well
            return False
        screen.show(memory, self._details, self._titles, above, not getattr(self._options, "no_color", False))
        return True

    def _notes(self, fetched: Fetched, memory: Memory) -> list[str]:
        """What has to be said of the numbers."""
        notes = []
        if self._wanted.host and self._wanted.host not in fetched.hosts:
            notes.append(f"there is no host {clean(self._wanted.host)}; without -h it shows which there are")
        if not fetched.knows_all:
            notes.append("these are your own jobs: what is available, with those of others, is not known")
        if memory.untold:
            notes.append(
                f"jobs of which it is not known what they use on a host, so that sums lack it: {memory.untold}"
            )
        if memory.unread:
            notes.append(f"sizes that are no numbers, and count as not known: {memory.unread}")
        return notes
