"""Command lines of colmet-facility, and of afmetrics_collector, which has the options of the program of this name."""

from __future__ import annotations

import argparse
import logging
import os
from typing import NamedTuple

from colmet import __version__
from colmet.batch.systems import SYSTEMS
from colmet.common.config import cli
from colmet.common.host.files import check_writable
from colmet.common.transport import curve
from colmet.facility.machine import DISKS

STATE_DIRECTORY = "/var/lib/colmet-facility"
STATE_VARIABLE = "STATE_DIRECTORY"  # of systemd, with the directory of the unit
TOKEN_VARIABLE = "COLMET_FACILITY_TOKEN"
EPILOG = "exit status: 0; 1 where a source did not answer, or a document is not delivered; 2 where options are wrong."


class Program(NamedTuple):
    """Differences of the two programs."""

    name: str  # of the command
    description: str  # for its help
    cluster: str | None = None  # default name of the facility; None if it is required
    url: str | None = None  # default endpoint; None for none
    state_file: str | None = None  # of the network counters; None for one in the state directory
    is_alias: bool = False  # whether it has the options of afmetrics_collector, and logs as it did


def queue(text: str) -> tuple[str, str]:
    """Parse the option type NAME:CONSTRAINT, split at the first colon."""
    name, colon, constraint = text.partition(":")
    if not colon or not name:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not of the form NAME:CONSTRAINT, such as 'all:'")
    return name, constraint


def path(text: str) -> str:
    """Parse the option type of an absolute path."""
    if not text.startswith("/") or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not an absolute path")
    return os.path.normpath(text)


def interval(text: str) -> float:
    """Parse the option type of seconds from one run to the next."""
    value = cli.positive_seconds(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 86400")
    return value


def build_parser(program: Program) -> cli.Parser:
    """Return the command line of a program; both have the same attributes.

    Short options are those of the alias alone, but for -v and -vv.
    """
    parser = cli.Parser(prog=program.name, description=program.description, epilog=EPILOG)
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}", help="print the version, and exit"
    )
    for names, level, text in (
        (("-v", "--verbose"), logging.INFO, "log what is done (INFO)"),
        (("-vv", "--very-verbose"), logging.DEBUG, "log details (DEBUG)"),
    ):
        parser.add_argument(
            *(names if program.is_alias else names[:1]), dest="loglevel", action="store_const", const=level, help=text
        )
    _add_common(parser, program)
    if program.is_alias:
        _add_old(parser)
    else:
        _add_own(parser)
        parser.require("--ssh", "--ssh-history")
        parser.require("--host", "--disk")
        parser.require("--jupyter", "--namespace", "--label")
    return parser


def _add_common(parser: cli.Parser, program: Program) -> None:
    """Declare the options of both programs."""

    def add(short: str, name: str, **settings: object) -> None:
        names = (short, name) if short and program.is_alias else (name,)
        parser.add_argument(*names, **settings)

    default = " (default: %(default)s)"
    add(
        "-c",
        "--cluster",
        metavar="NAME",
        default=program.cluster,
        help=f"name of this facility{default if program.cluster else ' (required)'}",
    )
    add("-s", "--ssh", action="store_true", help="users logged in on this machine (who)")
    add("-S", "--ssh-history", action="store_true", help="with --ssh: also those of the last 5 minutes (last)")
    add("", "--host", action="store_true", help="load, memory, network and disks of this machine")
    add(
        "-q",
        "--queue",
        metavar="NAME:CONSTRAINT",
        type=queue,
        action="append",
        default=[],
        help="count HTCondor jobs under this constraint as the queue NAME; repeatable; 'all:' is all jobs",
    )
    add("-j", "--jupyter", action="store_true", help="users with Jupyter notebooks in Kubernetes")
    add("-n", "--namespace", metavar="NAME", default="af-jupyter", help=f"namespace of the notebooks' pods{default}")
    add("-l", "--label", metavar="NAME", default="owner", help=f"label of these pods with the user's name{default}")
    add("-g", "--group", metavar="NAME", default="", help="only members of this Unix group; not in queues and hosts")
    add(
        "-O",
        "--obfuscate-hosts",
        metavar="DOMAIN",
        default="",
        help="name this machine 'atlas', the digits of its name and this domain",
    )
    add(
        "-u",
        "--url",
        metavar="URL",
        default=program.url,
        help=f"send the documents to this endpoint{default if program.url else ''}",
    )


def _add_old(parser: cli.Parser) -> None:
    """Declare the options of afmetrics_collector alone."""
    parser.add_argument("-b", "--batch", action="store_true", help="queues and jobs of HTCondor")
    parser.add_argument("-o", "--obfuscate-users", action="store_true", help="replace user names by hashes")
    parser.add_argument(
        "-z", "--salt", metavar="TEXT", default="", help="with -o: hash this with each name (visible to all in ps)"
    )
    parser.add_argument(
        "-t",
        "--token",
        metavar="TEXT",
        help=f"put this token into each document; visible to all in ps (default: ${TOKEN_VARIABLE})",
    )
    parser.add_argument(
        "-d",
        "--debug",
        action="store_true",
        help="append the documents to files in the current directory, and send nothing",
    )
    absent = ("interval", "batch_system", "disk", "key_file", "make_key", "salt_file", "token_file", "ca_file")
    parser.set_defaults(json_lines=False, zeromq_uri=None, **dict.fromkeys(absent))


def _add_own(parser: cli.Parser) -> None:
    """Declare the options of colmet-facility alone."""
    parser.add_argument("--interval", metavar="S", type=interval, help="run every S seconds (default: run once)")
    parser.add_argument(
        "--batch-system",
        metavar="NAME",
        choices=list(SYSTEMS),
        action="append",
        help=f"queues and jobs of this batch system: {', '.join(SYSTEMS)}; repeatable",
    )
    parser.add_argument(
        "--disk",
        metavar="PATH",
        type=path,
        action="append",
        help=f"with --host: this file system; repeatable (default: {', '.join(DISKS)}, if they exist)",
    )
    names = parser.add_argument_group("names of users")
    group = parser.add_argument_group("where the documents go")
    guessed = "with the salt in this file; easily guessed"
    for where, option, text in (
        (names, "--key-file", "replace user names by HMAC-SHA-256 with the key in this file; recommended"),
        (names, "--make-key", "write a new key to this file, and exit; use one key on all machines"),
        (names, "--salt-file", f"replace user names as afmetrics_collector does, {guessed}"),
        (group, "--token-file", f"put the token in this file into each document (default: ${TOKEN_VARIABLE})"),
        (group, "--ca-file", "CA certificates (PEM) for the endpoint (default: those of this machine)"),
    ):
        where.add_argument(option, metavar="FILE", help=text)
    group.add_argument("--json-lines", action="store_true", help="print the documents, one a line, without the token")
    add_collector(parser.add_argument_group("output to colmet-collector"))
    parser.set_defaults(batch=False, obfuscate_users=False, salt="", token=None, debug=False)


def add_collector(parser: cli.Options) -> None:
    """Declare the options of the collector."""
    parser.add_argument(
        "--zeromq-uri",
        metavar="URI",
        action="append",
        help="send the same as rows to colmet-collector at this address; such as tcp://collector:5556; repeatable: the "
        "next one is used while the first is away",
    )
    curve.add_options(parser, "facility.secret")


def find_state_directory() -> str:
    """Return the directory of the network counters: systemd's, the machine's if it can be written, or the user's."""
    directory = os.environ.get(STATE_VARIABLE, "").partition(":")[0] or STATE_DIRECTORY
    try:
        check_writable(directory)
    except OSError:
        state = os.environ.get("XDG_STATE_HOME", "")
        if not os.path.isabs(state):
            state = os.path.expanduser("~/.local/state")
        directory = os.path.join(state, "colmet-facility")
    return directory
