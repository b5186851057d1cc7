"""Command line of colmet-facility, and of afmetrics_collector, with the same options and other defaults."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
from typing import NamedTuple

from colmet import __version__
from colmet.batch.systems import SYSTEMS
from colmet.common.runtime import cli
from colmet.common.runtime.cli import Rare
from colmet.common.runtime.configuration import require
from colmet.common.runtime.files import check_writable
from colmet.common.transport import curve
from colmet.facility.machine import DISKS

SPOOLS = "/var/spool"  # of the default
TOKEN_VARIABLE = "COLMET_FACILITY_TOKEN"
EPILOG = "exit status: 0; 1 where a source did not answer, or a document is not delivered; 2 where options are wrong."


class Program(NamedTuple):
    """Differences of the two programs."""

    name: str  # of the command
    description: str  # for its help
    cluster: str | None  # default name of the facility; None if it is required
    url: str | None  # default endpoint; None for none
    state_file: str | None  # of the network counters; None for one beside the spool
    is_alias: bool  # whether it logs, accepts and omits the same as afmetrics_collector


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
    """Return the command line of a program."""
    parser = cli.Parser(prog=program.name, description=program.description, epilog=EPILOG)
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}", help="print the version, and exit"
    )
    parser.add_argument(
        "-v", "--verbose", dest="loglevel", action="store_const", const=logging.INFO, help="log what is done (INFO)"
    )
    parser.add_argument(
        "-vv", "--very-verbose", dest="loglevel", action="store_const", const=logging.DEBUG, help="log details (DEBUG)"
    )
    parser.add_argument("--interval", metavar="S", type=interval, help="run every S seconds (default: run once)")
    parser.add_argument(
        "-c",
        "--cluster",
        metavar="NAME",
        default=program.cluster,
        help="name of this facility" + (" (default: %(default)s)" if program.cluster else " (required)"),
    )
    _add_sources(parser, program)
    _add_people(parser.add_argument_group("users and names"))
    _add_outputs(parser, program)
    if not program.is_alias:
        require(parser, "--ssh", "--ssh-history")
        require(parser, "--host", "--disk")
        require(parser, "--jupyter", "--namespace", "--label", "--kubeconfig")
    return parser


def _add_sources(parser: cli.Parser, program: Program) -> None:
    group = parser.add_argument_group("what is collected")
    group.add_argument("-s", "--ssh", action="store_true", help="users logged in on this machine (who)")
    group.add_argument(
        "-S", "--ssh-history", action="store_true", help="with -s: also those of the last 5 minutes (last)"
    )
    group.add_argument("--host", action="store_true", help="load, memory, network and disks of this machine")
    group.add_argument(
        "--disk",
        metavar="PATH",
        type=path,
        action="append",
        help=Rare(f"with --host: this file system; repeatable (default: {', '.join(DISKS)}, if they exist)"),
    )
    group.add_argument(
        "--state-file",
        metavar="FILE",
        help=Rare(
            "with --host: keep the network counters between runs in this file (default: "
            + (f"{program.state_file} if it can be written, else " if program.state_file else "")
            + "network-HOST.json in the directory of the spool)"
        ),
    )
    group.add_argument("-b", "--batch", action="store_true", help="queues and jobs of the batch system")
    group.add_argument(
        "--batch-system",
        metavar="NAME",
        choices=list(SYSTEMS),
        action="append",
        help=f"batch system: {', '.join(SYSTEMS)}; repeatable; implies -b (default: condor)",
    )
    group.add_argument(
        "-q",
        "--queue",
        metavar="NAME:CONSTRAINT",
        type=queue,
        action="append",
        default=[],
        help="count HTCondor jobs under this constraint as the queue NAME; repeatable; 'all:' is all jobs",
    )
    group.add_argument("-j", "--jupyter", action="store_true", help="users with Jupyter notebooks in Kubernetes")
    group.add_argument(
        "-n",
        "--namespace",
        metavar="NAME",
        default="af-jupyter",
        help=Rare("namespace of the notebooks' pods (default: %(default)s)"),
    )
    group.add_argument(
        "-l",
        "--label",
        metavar="NAME",
        default="owner",
        help=Rare("label of these pods with the user's name (default: %(default)s)"),
    )
    group.add_argument(
        "--kubeconfig",
        metavar="FILE",
        default="",
        help=Rare("configuration of the Kubernetes client (default: $KUBECONFIG, ~/.kube/config, or the pod's own)"),
    )
    group.add_argument(
        "--source-timeout",
        metavar="S",
        type=cli.positive_seconds,
        default=30.0,
        help=Rare("wait at most S seconds for each of who, last, a disk, Kubernetes (default: %(default)g)"),
    )


def _add_people(group: cli.Options) -> None:
    group.add_argument(
        "-g", "--group", metavar="NAME", default="", help="only members of this Unix group; not in queues and hosts"
    )
    group.add_argument(
        "-o",
        "--obfuscate-users",
        action="store_true",
        help="replace user names by hashes (easily guessed: use --key-file)",
    )
    group.add_argument(
        "--key-file",
        metavar="FILE",
        help="replace user names by HMAC-SHA-256 with the key in this file; recommended; implies -o",
    )
    group.add_argument(
        "--make-key",
        metavar="FILE",
        help=Rare("write a new key to this file, and exit; use one key on all machines of a site"),
    )
    salts = group.add_mutually_exclusive_group()
    salts.add_argument(
        "-z",
        "--salt",
        metavar="TEXT",
        default="",
        help=Rare("with -o: hash this with each name; all users of this machine can read it in the list of processes"),
    )
    salts.add_argument("--salt-file", metavar="FILE", help=Rare("with -o: the salt is in this file"))
    group.add_argument(
        "-O",
        "--obfuscate-hosts",
        metavar="DOMAIN",
        default="",
        help="name this machine 'atlas', the digits of its name and this domain",
    )


def _add_outputs(parser: cli.Parser, program: Program) -> None:
    group = parser.add_argument_group("where the documents go")
    # No default but that of the alias: user names must not reach a third party by a forgotten option.
    group.add_argument(
        "-u",
        "--url",
        metavar="URL",
        default=program.url,
        help="send the documents to this endpoint" + (" (default: %(default)s)" if program.url else ""),
    )
    tokens = group.add_mutually_exclusive_group()
    tokens.add_argument(
        "-t",
        "--token",
        metavar="TEXT",
        help="put this token into each document (visible in the list of processes: use --token-file)",
    )
    tokens.add_argument(
        "--token-file", metavar="FILE", help=f"read the token from this file (default: ${TOKEN_VARIABLE})"
    )
    if not program.is_alias:
        group.add_argument(
            "--json-lines", action="store_true", help="print the documents, one a line, without the token"
        )
    group.add_argument(
        "-d",
        "--debug",
        action="store_true",
        help="append the documents to files in the current directory, and send nothing",
    )
    add_sending(group, program.name)
    add_collector(parser.add_argument_group("output to colmet-collector"))


def add_sending(parser: cli.Options, name: str = "colmet-facility") -> None:
    """Declare the options of sending and keeping documents.

    The default directory has the program's name: documents of one are not sent to the endpoint of another.
    """
    parser.set_defaults(spool_name=name)
    parser.add_argument(
        "--spool-dir",
        metavar="DIR",
        help=Rare(
            "keep unsent documents in this directory; '': nowhere, documents that cannot be sent are lost (default: "
            f"{SPOOLS}/{name} where it can be written, else ~/.local/state/{name})"
        ),
    )
    parser.add_argument(
        "--spool-size",
        metavar="SIZE",
        type=cli.size_bytes,
        default=64 << 20,
        help=Rare("limit of the spool; beyond it the oldest documents are dropped (default: 64M)"),
    )
    parser.add_argument(
        "--spool-age",
        metavar="DAYS",
        type=cli.whole_number(1, 3650),
        default=7,
        help=Rare("drop documents that could not be sent within DAYS days (default: %(default)s)"),
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=cli.positive_seconds,
        default=10.0,
        help=Rare("wait at most S seconds for an answer of the endpoint (default: %(default)g)"),
    )
    parser.add_argument(
        "--tries",
        metavar="N",
        type=cli.whole_number(1, 100),
        default=3,
        help=Rare("try to send a document N times in a run (default: %(default)s)"),
    )
    parser.add_argument(
        "--deadline",
        metavar="S",
        type=cli.positive_seconds,
        default=120.0,
        help=Rare("send for at most S seconds in a run, and keep the rest for the next (default: %(default)g)"),
    )
    parser.add_argument(
        "--rate",
        metavar="N",
        type=cli.whole_number(1, 100_000),
        default=100,
        help=Rare("send at most N documents a second (default: %(default)s)"),
    )
    parser.add_argument(
        "--ca-file", metavar="FILE", help="CA certificates (PEM) for the endpoint (default: those of this machine)"
    )
    parser.add_argument(
        "--timestamp",
        action="store_true",
        help="add the time to each document; as the field timestamp, in seconds since 1970; without it a document that "
        "was kept for an hour looks an hour younger",
    )


def add_collector(parser: cli.Options) -> None:
    """Declare the options of the collector; those of the spool are declared by `add_sending`."""
    parser.add_argument(
        "--zeromq-uri",
        metavar="URI",
        action="append",
        help="send the same as rows to colmet-collector at this address; such as tcp://collector:5556; repeatable: the "
        "next one is used while the first is away",
    )
    parser.add_argument(
        "--zeromq-link-uri",
        metavar="URI",
        action="append",
        help=Rare(
            "address of the collector for acknowledgements, in the order of --zeromq-uri; '': none (default: the "
            "next port)"
        ),
    )
    curve.add_options(parser, "facility.secret")
    parser.add_argument(
        "--collector-host-name",
        metavar="NAME",
        help=Rare(
            "host name in the rows; not that of a colmet-node; with keys, the name of this program's key pair "
            "(default: this machine's, with -facility behind it)"
        ),
    )


def spool_directory(options: argparse.Namespace) -> str:
    """Return the spool's directory as an absolute path; empty for none."""
    directory: str | None = options.spool_dir
    if directory is None:
        common = os.path.join(SPOOLS, options.spool_name)
        with contextlib.suppress(OSError):
            check_writable(common)
            return common
        state = os.environ.get("XDG_STATE_HOME", "")
        if not os.path.isabs(state):
            state = os.path.expanduser("~/.local/state")
        return os.path.join(state, options.spool_name) if os.path.isabs(state) else ""
    return os.path.abspath(directory) if directory else ""
