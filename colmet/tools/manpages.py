"""Write the manual pages: their text from templates, the options from the parsers themselves.

usage: python -m colmet.tools.manpages TEMPLATES DIRECTORY
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from colmet import __version__
from colmet.collector import backends as outputs
from colmet.collector import main as collector
from colmet.common import cli
from colmet.node import backends as inputs
from colmet.node import main as node
from colmet.tools import colmet, extract
from colmet.tools.facility import options as facility
from colmet.tools.facility.command import PROGRAM as FACILITY

# In a template, a line for itself.
HEAD = r".\" HEAD"
OPTIONS = r".\" OPTIONS"


def escape(text: str) -> str:
    """Text as roff shows it, character by character."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    text = text.replace("^", r"\(ha").replace("~", r"\(ti")
    return rf"\&{text}" if text.startswith(".") else text


def _tag(action: argparse.Action) -> str:
    """The names of an option and what it takes, as the first line of its paragraph."""
    if not action.option_strings:
        names = action.choices if action.metavar is None else None
        return rf"\fI{escape('|'.join(names) if names else str(action.metavar or action.dest))}\fR"
    names = ", ".join([rf"\fB{escape(name)}\fR" for name in action.option_strings])
    if action.nargs == 0:
        return names
    value = escape(str(action.metavar)) if action.metavar else "|".join(map(escape, action.choices or ()))
    more = rf" [\fI{value}\fR ...]" if action.nargs == "+" else ""
    return rf"{names} \fI{value}\fR{more}"


def options_of(parser: argparse.ArgumentParser, heading: str = ".SS") -> Iterator[str]:
    """The lines of roff that describe a parser's options, a part for each of its groups."""
    formatter = argparse.HelpFormatter(parser.prog)
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help is not argparse.SUPPRESS]
        if not actions:
            continue
        if group.title and group.title not in ("options", "optional arguments", "positional arguments"):
            yield f"{heading} {escape(group.title[0].upper() + group.title[1:])}"
        for action in actions:
            yield ".TP"
            yield _tag(action)
            yield escape(formatter._expand_help(action)) if action.help else r"\&"


def _commands() -> Iterator[str]:
    for name, command in colmet.COMMANDS.items():
        module: Any = importlib.import_module(command.module)
        parser = cli.Parser(prog=f"colmet {name}")
        module.add_options(parser)
        yield f".SS colmet {escape(name)}"
        for at, paragraph in enumerate((module.__doc__ or command.help).strip().split("\n\n")):
            if at:
                yield ".PP"
            yield escape(" ".join(paragraph.split()))
        yield from options_of(parser)


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "colmet.1": _commands,
    "colmet-extract.1": lambda: options_of(extract.build_parser()),
    "colmet-facility.1": lambda: options_of(facility.build_parser(FACILITY)),
    "colmet-node.8": lambda: options_of(node.build_parser(cli.load(inputs.NAMES))),
    "colmet-collector.8": lambda: options_of(collector.build_parser(cli.load(outputs.NAMES))),
}


def page(name: str, template: str) -> str:
    """The page of this name, such as ``colmet-node.8``, from its template."""
    title, _, section = name.rpartition(".")
    day = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    parts = {
        HEAD: [f'.TH {title.upper()} {section} "{day}" "Colmet {__version__}" "Colmet"', ".nh", ".ad l"],
        OPTIONS: list(PAGES[name]()),
    }
    return "".join(f"{out}\n" for line in template.splitlines() for out in parts.get(line, [line]))


def main(argv: Sequence[str]) -> int:
    """Write all pages; the exit status."""
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    templates, directory = map(Path, argv)
    directory.mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        (directory / name).write_text(page(name, (templates / name).read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
