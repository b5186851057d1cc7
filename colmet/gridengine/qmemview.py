"""Show the memory that jobs reserved and used, by host.

Compatible with qmemview of QmemTools, with its options; `colmet mem` has more.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from colmet.commands.colmet import ended
from colmet.common.config import cli
from colmet.common.errors import ColmetError, ConfigError
from colmet.gridengine import server, text
from colmet.gridengine.command import Printing
from colmet.gridengine.server import QmemClient

FAILED = 1
EPILOG = """\
examples:
  qmemview head:8080                      each host
  qmemview head:8080 -u -h node-17        one host, with each of its jobs
  qmemview head:8080 -o alice             the hosts with a job of alice, and her jobs
  qmemview head:8080 -j 4242              the hosts with this job, and its memory

exit status:
  0  done
  1  the server does not answer, or its address is wrong
  2  wrong command line"""


def build_parser() -> cli.Parser:
    """Return the command line."""
    # -h was a host before Colmet had this program
    parser = cli.Parser("qmemview", (__doc__ or "").strip(), EPILOG, help_names=("--help",))
    parser.add_argument("place", metavar="HOST:PORT", help="address of the server, or a URL for one with TLS")
    group = parser.add_argument_group("selection")
    group.add_argument("-h", "--hostname", metavar="HOST", default="", help="only this host (-h is not help here)")
    group.add_argument(
        "-j", "--jobid", metavar="ID", default="", help="only this job, or this task of an array (17.3), with details"
    )
    group.add_argument("-o", "--owner", metavar="USER", default="", help="only the jobs of this user, with details")
    group.add_argument("-u", dest="details", action="store_true", help="show the jobs of each host")
    parser.set_defaults(json=False)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``qmemview``; return the exit status: 2 for a wrong command line, 1 for other failures."""
    return ended("qmemview", lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(argv: Sequence[str]) -> int:
    logging.basicConfig(level=logging.WARNING, format="qmemview: %(message)s", stream=sys.stderr)
    parser = build_parser()
    if not argv or argv[-1] == "-h":
        why = "-h requires the name of a host" if argv else "no server is given; give HOST:PORT"
        print(f"qmemview: {why}", file=sys.stderr)
        print(parser.format_help(), end="", file=sys.stderr)
        return cli.EXIT_CONFIG
    options = parser.parse_args(argv)
    status = FAILED  # of a wrong address
    try:
        url = server.checked_address(options.place)
        status = cli.EXIT_CONFIG
        return Printing(options, text.TITLES, "qmemview").print(QmemClient(url).fetch())
    except ColmetError as err:
        print(f"qmemview: {err}", file=sys.stderr)
        return status if isinstance(err, ConfigError) else FAILED


if __name__ == "__main__":
    sys.exit(main())
