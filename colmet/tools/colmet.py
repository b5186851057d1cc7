"""colmet: one command for those who run the daemons, with a subcommand for each thing they do.

A subcommand is a module with `add_options(parser)` and `run(options)`, which returns the exit status.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from colmet import __version__
from colmet.common import cli
from colmet.common.errors import ColmetError, ConfigError

INTERRUPTED, PIPE_ENDED = 130, 141  # as a shell tells of SIGINT and SIGPIPE


class Command(NamedTuple):
    """A subcommand: the module that has it, which is loaded when it is used, and a line for the list of all."""

    module: str
    help: str


COMMANDS: Mapping[str, Command] = {
    "keygen": Command("colmet.tools.keygen", "make keys for the collector and the nodes"),
    "enrol": Command("colmet.tools.enrol", "add nodes to a cluster with keys"),
    "completeness": Command("colmet.tools.completeness", "what of the samples is there, and what is missing and why"),
    "extract": Command("colmet.tools.extract", "what has been stored of a job, as JSON, CSV, Parquet or HDF5"),
    "plot": Command("colmet.tools.plot", "a picture of what a job did over time"),
    "report": Command("colmet.tools.report.command", "what a job did, and what it could do better"),
    "status": Command("colmet.tools.status", "how a running daemon is"),
    "top": Command("colmet.tools.top.command", "what jobs and nodes use now, live in the terminal"),
    "mem": Command("colmet.tools.mem.command", "memory used and reserved, by host and job"),
    "access": Command("colmet.tools.access", "who may ask the collector's JSON interface"),
    "doctor": Command("colmet.tools.doctor", "what is in the way of a node or a collector, and the remedy"),
    "configure": Command("colmet.tools.configure", "another sample period or other perf events for running nodes"),
}


def build_parser(commands: Mapping[str, Command]) -> cli.Parser:
    """The command line up to the name of the subcommand."""
    width = max(map(len, commands))
    parser = cli.Parser(
        prog="colmet",
        description="See to colmet-node and colmet-collector.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n"
        + "\n".join([f"  {name:{width}}  {command.help}" for name, command in commands.items()])
        + "\n\ncolmet COMMAND --help tells more of one.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=list(commands), help="one of those below")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="of the command")
    return parser


def main(argv: Sequence[str] | None = None, commands: Mapping[str, Command] = COMMANDS) -> int:
    """Entry point of ``colmet``; the exit status: 2 where the command line is wrong."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal need not have every character of a user's name
    try:
        try:
            return _run(argv, commands)
        finally:  # also of what a help prints
            if sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        status = PIPE_ENDED
    except OSError as err:
        if err.errno != errno.ENOSPC or err.filename is not None:
            raise
        print(f"colmet: standard output: {err.strerror}", file=sys.stderr)
        status = 1
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what Python still flushes at its end
    return status


def _run(argv: Sequence[str] | None, commands: Mapping[str, Command]) -> int:
    chosen = build_parser(commands).parse_args(argv)
    command = commands[chosen.command]
    try:
        module: Any = importlib.import_module(command.module)
        parser = cli.Parser(prog=f"colmet {chosen.command}", description=(module.__doc__ or command.help).strip())
        module.add_options(parser)
        logging.basicConfig(level=logging.WARNING, format="colmet: %(message)s", stream=sys.stderr)
        return int(module.run(parser.parse_args(chosen.arguments)))
    except ModuleNotFoundError as err:  # compute nodes have no PyTables, for one
        print(
            f"colmet {chosen.command}: it takes the Python module {err.name}, which is not installed here; the "
            "collector's machine has what all commands take",
            file=sys.stderr,
        )
        return cli.EXIT_CONFIG
    except ColmetError as err:
        print(f"colmet {chosen.command}: {err}", file=sys.stderr)
        return cli.EXIT_CONFIG if isinstance(err, ConfigError) else 1


if __name__ == "__main__":
    sys.exit(main())
