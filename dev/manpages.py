"""Manual pages: one for each program and command, from its parser and an optional template.

A template is a page in roff with comments such as HEAD and OPTIONS as placeholders for generated parts.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from colmet import __version__
from colmet.commands.completion import COMMANDS, PROGRAMS, ProgramEntry
from colmet.common.config.cli import Parser, form_of, name_of
from colmet.node.kernel.perfevents import NAMES_06

# Placeholders in a template, each a line of its own.
HEAD = r".\" HEAD"
OPTIONS = r".\" OPTIONS"
COMMAND_LIST = r".\" COMMANDS"
EVENTS = r".\" EVENTS"
OF_COMMAND = r".\" OPTIONS colmet extract"  # beside those of colmet-extract, in one page
# Commands described in the page of a program.
SHARED = {"colmet extract": "colmet-extract"}


def pages() -> Mapping[str, ProgramEntry]:
    """Return the program or command of each page, by the page's name, such as ``colmet-report.1``."""
    found = {name: program for name, program in {**PROGRAMS, **COMMANDS}.items() if name not in SHARED}
    return {f"{name.replace(' ', '-')}.{program.section}": program for name, program in found.items()}


def escape(text: str) -> str:
    """Escape text for roff, so that each character is printed unchanged."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    text = text.replace("^", r"\(ha").replace("~", r"\(ti")
    return rf"\&{text}" if text.startswith(".") else text


def _tag(action: argparse.Action) -> str:
    """Return the names and the value of an option, as the first line of its paragraph."""
    if not action.option_strings:
        return rf"\fI{escape(name_of(action))}\fR"
    names = ", ".join([rf"\fB{escape(name)}\fR" for name in action.option_strings])
    return names if action.nargs == 0 else rf"{names} \fI{escape(form_of(action))}\fR"


def options_of(parser: Parser) -> Iterator[str]:
    """Yield the description of a parser's options in roff, a part for each group."""
    for title, actions in parser.sections():
        if title not in ("options", "arguments"):
            yield f".SS {escape(title[:1].upper() + title[1:])}"
        for action in actions:
            yield from (".TP", _tag(action), escape(parser.help_of(action)))


def _paragraphs(text: str) -> Iterator[str]:
    """Yield text with paragraphs separated by empty lines in roff; paragraphs with indented lines stay unchanged."""
    for at, paragraph in enumerate(text.strip().split("\n\n")):
        if at:
            yield ".PP"
        if "\n  " in f"\n{paragraph}":
            yield from (".nf", *[escape(line.removeprefix("  ")) for line in paragraph.split("\n")], ".fi")
        else:
            yield escape(" ".join(paragraph.split()))


def _without_template(title: str, program: ProgramEntry) -> Iterator[str]:
    """Yield a page made from the parser alone; parts of the epilog with a title and a colon become sections."""
    parser = program.build()
    yield from (HEAD, ".SH NAME", rf"{escape(title)} \- {escape(program.summary)}", ".SH SYNOPSIS")
    yield from (".nf", *[rf"\fB{escape(line)}\fR" for line in parser.synopsis()], ".fi", ".SH DESCRIPTION")
    yield from _paragraphs(parser.description or program.summary)
    yield ".SH OPTIONS"
    yield from options_of(parser)
    for part in (parser.epilog or "").split("\n\n"):
        section, colon, text = part.partition(":")
        if colon and section.replace(" ", "").isalpha() and section.islower():
            yield f".SH {section.upper()}"
            yield from _paragraphs(text.strip("\n").lstrip(" ") if "\n  " not in text else text.strip("\n"))
        elif part.strip():
            yield ".PP"
            yield from _paragraphs(part)
    yield from (".SH SEE ALSO", r".BR colmet (1)")


def page(name: str, program: ProgramEntry, templates: Path) -> str:
    """Return the page of a program, such as ``colmet-node.8``, with a template if there is one."""
    title, _, section = name.rpartition(".")
    template = templates / name
    lines = template.read_text("utf-8").splitlines() if template.exists() else list(_without_template(title, program))
    day = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    parts: Mapping[str, Callable[[], Iterable[str]]] = {
        HEAD: lambda: [f'.TH {title.upper()} {section} "{day}" "Colmet {__version__}" "Colmet"', ".nh", ".ad l"],
        OPTIONS: lambda: options_of(program.build()),
        OF_COMMAND: lambda: options_of(COMMANDS["colmet extract"].build()),
        COMMAND_LIST: _command_list,
        EVENTS: lambda: [escape(f"{', '.join(NAMES_06)};")],
    }
    made = [out for line in lines for out in (parts[line]() if line in parts else [line])]
    return "\n".join(made) + "\n"


def _command_list() -> Iterator[str]:
    for name, command in COMMANDS.items():
        see = rf"{escape(command.summary)}; see \fB{escape(SHARED.get(name, name.replace(' ', '-')))}\fR(1)"
        yield from (".TP", rf"\fB{escape(name)}\fR", see)


def write(templates: Path, directory: Path) -> None:
    """Write all pages into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, program in pages().items():
        (directory / name).write_text(page(name, program, templates), encoding="utf-8")
