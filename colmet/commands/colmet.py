"""The command colmet for users and administrators, with a subcommand for each task.

A subcommand is a module with `add_options(parser)` and `run(options)`; the latter returns the exit status, or raises
ConfigError for wrong options and files, and ColmetError for other failures. The module's docstring is its help.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from colmet import __version__
from colmet.common.config import cli
from colmet.common.config.cli import did_you_mean
from colmet.common.config.configuration import check_effects
from colmet.common.errors import ColmetError, ConfigError

INTERRUPTED, PIPE_ENDED = 130, 141  # as a shell reports SIGINT and SIGPIPE


class Subcommand(NamedTuple):
    """A subcommand: its module, imported on use, and a line for the list of all."""

    module: str
    help: str


COMMANDS: Mapping[str, Subcommand] = {
    "status": Subcommand("colmet.commands.status", "print or check the state of a running daemon"),
    "doctor": Subcommand("colmet.commands.doctor", "diagnose a node or a collector, and suggest remedies"),
    "top": Subcommand("colmet.commands.top.command", "show the current use of jobs and nodes"),
    "jobs": Subcommand("colmet.commands.jobs", "list jobs with efficiency, memory, energy and waste"),
    "usage": Subcommand("colmet.commands.usage", "sum up core hours, energy and cost by user, project, month"),
    "notices": Subcommand("colmet.notices.command", "send notices on idle, failing and other jobs by mail"),
    "report": Subcommand("colmet.commands.report", "report a job's efficiency, with advice"),
    "plot": Subcommand("colmet.commands.plot", "draw a job's metrics over time"),
    "extract": Subcommand("colmet.commands.extract", "extract a job's rows as JSON, CSV, Parquet or HDF5"),
    "completeness": Subcommand("colmet.commands.completeness", "count stored and missing samples, with the reasons"),
    "archive": Subcommand("colmet.commands.archive", "make the job archive again from rows, or forget a user"),
    "mem": Subcommand("colmet.gridengine.command", "show memory used and reserved, by host and job"),
    "configure": Subcommand("colmet.commands.configure", "change the sample period or perf events of running nodes"),
    "enrol": Subcommand("colmet.commands.enrol", "make keys for nodes, and copy them to the nodes"),
    "keygen": Subcommand("colmet.commands.keygen", "make keys for the collector and the nodes"),
    "access": Subcommand("colmet.commands.access", "manage the users of the JSON interface and the page"),
    "login": Subcommand("colmet.commands.login", "log in at a collector's JSON interface, for commands with --url"),
    "logout": Subcommand("colmet.commands.logout", "remove that login"),
    "completion": Subcommand("colmet.commands.completion", "print the completion of these commands for bash or zsh"),
}


def build_parser(commands: Mapping[str, Subcommand]) -> cli.Parser:
    """Return the command line up to the name of the subcommand."""
    width = max(map(len, commands))
    parser = cli.Parser(
        prog="colmet",
        description="Query and manage Colmet, and show the resource use of jobs.",
        epilog="commands:\n"
        + "\n".join([f"  {name:{width}}  {command.help}" for name, command in commands.items()])
        + "\n\ncolmet help COMMAND prints the options of a command. All commands name a job with --job (-j), a "
        "user with --user (-u), and an interval with --since and --until.",
    )
    parser.usage = "colmet [OPTION ...] COMMAND ..."
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}", help="print the version, and exit"
    )
    parser.add_argument("command", metavar="COMMAND", nargs="?", help="one of the commands below")
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="options and arguments of the command"
    )
    return parser


def build_command_parser(name: str, command: Subcommand, module: Any) -> cli.Parser:
    """Return the command line of a subcommand, declared by its module."""
    parser = cli.Parser(prog=f"colmet {name}", description=(module.__doc__ or command.help).strip())
    module.add_options(parser)
    return parser


def main(argv: Sequence[str] | None = None, commands: Mapping[str, Subcommand] = COMMANDS) -> int:
    """Run ``colmet``; return the exit status, 2 for a wrong command line."""
    return ended("colmet", lambda: _run(argv, commands))


def ended(program: str, work: Callable[[], int]) -> int:
    """Do the work of a program; return its exit status, even if its standard output is closed early."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack characters of a user's name
    try:
        try:
            return work()
        finally:  # also after --help
            if sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        status = PIPE_ENDED
    except OSError as err:
        if err.errno != errno.ENOSPC or err.filename is not None:
            raise
        print(f"{program}: standard output: {err.strerror}", file=sys.stderr)
        status = 1
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's flush at exit
    return status


def _run(argv: Sequence[str] | None, commands: Mapping[str, Subcommand]) -> int:
    top = build_parser(commands)
    chosen = top.parse_args(argv)
    if chosen.command == "help":
        chosen = top.parse_args([*chosen.arguments[:1], "--help"])
    elif chosen.command is None:
        top.print_help()
        return 0
    command = commands.get(chosen.command)
    if command is None:
        top.error(f"there is no command {chosen.command!r:.100}{did_you_mean(chosen.command, (*commands, 'help'))}")
    try:
        module: Any = importlib.import_module(command.module)
        parser = build_command_parser(chosen.command, command, module)
        logging.basicConfig(level=logging.WARNING, format="colmet: %(message)s", stream=sys.stderr)
        options = parser.parse_args(chosen.arguments)
        check_effects(parser, options)
        return int(module.run(options))
    except ModuleNotFoundError as err:  # compute nodes have no PyTables, for example
        print(
            f"colmet {chosen.command}: it requires the Python module {err.name}, which is not installed here; run it "
            "on the collector's machine",
            file=sys.stderr,
        )
        return cli.EXIT_CONFIG
    except ColmetError as err:
        print(f"colmet {chosen.command}: {err}", file=sys.stderr)
        return cli.EXIT_CONFIG if isinstance(err, ConfigError) else 1


if __name__ == "__main__":
    sys.exit(main())
