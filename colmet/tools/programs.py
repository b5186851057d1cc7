"""All programs and commands with their command lines: for manual pages, completion of shells, and tests."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial

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

PROGRAMS: Mapping[str, Callable[[], cli.Parser]] = {
    "colmet": lambda: colmet.build_parser(colmet.COMMANDS),
    "colmet-node": lambda: node.build_parser(cli.load(inputs.NAMES)),
    "colmet-collector": lambda: collector.build_parser(cli.load(outputs.NAMES)),
    "colmet-extract": extract.build_parser,
    "colmet-facility": lambda: build_facility_parser(facility.PROGRAM),
    "afmetrics_collector": lambda: build_facility_parser(afmetrics.PROGRAM),
    "qmemview": qmemview.build_parser,
}


def _build_command(name: str) -> cli.Parser:
    command = colmet.COMMANDS[name]
    return colmet.build_command_parser(name, command, importlib.import_module(command.module))


COMMANDS: Mapping[str, Callable[[], cli.Parser]] = {
    f"colmet {name}": partial(_build_command, name) for name in colmet.COMMANDS
}
