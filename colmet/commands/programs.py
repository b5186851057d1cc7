"""All programs and commands with their command lines: for manual pages, the completion of shells, and tests."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from colmet.commands import colmet
from colmet.common.config import cli
from colmet.common.daemon import startup


class ProgramEntry(NamedTuple):
    """A program, or a command of ``colmet``."""

    build: Callable[[], cli.Parser]
    summary: str  # its purpose, as a line of a list
    section: int = 1  # of the manual


def _build_command(name: str) -> cli.Parser:
    command = colmet.COMMANDS[name]
    return colmet.build_command_parser(name, command, importlib.import_module(command.module))


def _load(module: str) -> Any:
    """Import a module of a program on use: it may not be installed."""
    return importlib.import_module(f"colmet.{module}")


def _build_daemon(name: str) -> cli.Parser:
    main = _load(f"{name}.main")
    parser: cli.Parser = main.build_parser(startup.load(main.NAMES))
    return parser


def _build_facility(program: str) -> cli.Parser:
    parser: cli.Parser = _load("facility.options").build_parser(getattr(_load("facility.command"), program))
    return parser


PROGRAMS: Mapping[str, ProgramEntry] = {
    "colmet": ProgramEntry(lambda: colmet.build_parser(colmet.COMMANDS), "query and manage Colmet"),
    "colmet-node": ProgramEntry(partial(_build_daemon, "node"), "measure what each job on a compute node uses", 8),
    "colmet-collector": ProgramEntry(
        partial(_build_daemon, "collector"), "receive what nodes measure, and write it", 8
    ),
    "colmet-extract": ProgramEntry(
        lambda: _load("commands.extract").build_parser(), "extract a job's rows, for OAR's REST API"
    ),
    "colmet-facility": ProgramEntry(
        partial(_build_facility, "PROGRAM"), "send logins, queues, Jupyter users and hosts as documents"
    ),
    "afmetrics_collector": ProgramEntry(
        partial(_build_facility, "AFMETRICS"), "colmet-facility with the options of afmetrics_collector"
    ),
    "colmet-web": ProgramEntry(
        lambda: _load("web.options").build_parser(), "serve jobs and nodes as JSON and as a page", 8
    ),
    "qmemview": ProgramEntry(
        lambda: _load("gridengine.qmemview").build_parser(), "show memory used and reserved, as QmemTools' viewer"
    ),
}
COMMANDS: Mapping[str, ProgramEntry] = {
    f"colmet {name}": ProgramEntry(partial(_build_command, name), command.help)
    for name, command in colmet.COMMANDS.items()
}
