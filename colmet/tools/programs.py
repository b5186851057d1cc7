"""All programs and commands with their command lines: for manual pages, the completion of shells, and tests."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from colmet.collector import backends as outputs
from colmet.collector import main as collector
from colmet.common import cli
from colmet.node import backends as inputs
from colmet.node import main as node
from colmet.tools import colmet, extract
from colmet.tools.facility import afmetrics
from colmet.tools.facility import command as facility
from colmet.tools.facility.options import build_parser as build_facility_parser
from colmet.tools.mem import qmemview


class Program(NamedTuple):
    """A program, or a command of ``colmet``.

    Attributes:
        build: makes its command line.
        summary: what it does, as a line of a list.
        section: of the manual.
    """

    build: Callable[[], cli.Parser]
    summary: str
    section: int = 1


def _build_command(name: str) -> cli.Parser:
    command = colmet.COMMANDS[name]
    return colmet.build_command_parser(name, command, importlib.import_module(command.module))


PROGRAMS: Mapping[str, Program] = {
    "colmet": Program(lambda: colmet.build_parser(colmet.COMMANDS), "query and manage Colmet"),
    "colmet-node": Program(
        lambda: node.build_parser(cli.load(inputs.NAMES)), "measure what each job on a compute node uses", 8
    ),
    "colmet-collector": Program(
        lambda: collector.build_parser(cli.load(outputs.NAMES)), "receive what nodes measure, and write it", 8
    ),
    "colmet-extract": Program(extract.build_parser, "extract a job's rows, for OAR's REST API"),
    "colmet-facility": Program(
        lambda: build_facility_parser(facility.PROGRAM), "send logins, queues, Jupyter users and hosts as documents"
    ),
    "afmetrics_collector": Program(
        lambda: build_facility_parser(afmetrics.PROGRAM), "colmet-facility with the options of afmetrics_collector"
    ),
    "colmet-web": Program(lambda: cli.Parser("colmet-web"), "serve the collector's JSON interface and page", 8),
    "qmemview": Program(qmemview.build_parser, "show memory used and reserved, as QmemTools' viewer"),
}
COMMANDS: Mapping[str, Program] = {
    f"colmet {name}": Program(partial(_build_command, name), command.help) for name, command in colmet.COMMANDS.items()
}
