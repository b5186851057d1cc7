"""Diagnose a node or a collector, and suggest remedies."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from colmet import __version__
from colmet.commands.doctor.findings import Finding, Level, examine, quiet
from colmet.commands.doctor.table import CHECKS, Check
from colmet.commands.doctor.target import SIDES, Target, find_sides
from colmet.common.errors import ConfigError
from colmet.common.runtime import cli
from colmet.node.system.host import Host

MAX_WIDTH = 120
_INDENT, _REMEDY_INDENT = " " * 26, " " * 8
_NAMES = {Level.PASS: "pass", Level.WARN: "WARN", Level.FAIL: "FAIL"}
_COLOURS = {Level.PASS: "\033[32m", Level.WARN: "\033[33m", Level.FAIL: "\033[31m"}
_PLAIN = "\033[0m"
_SPACE = "\0"  # within a command


class Result(NamedTuple):
    """One finding, and whose."""

    side: str
    check: Check
    finding: Finding


def add_options(parser: cli.Parser) -> None:
    """Declare the options."""
    parser.usage = f"{parser.prog} [OPTION ...] [-- DAEMON-OPTION ...]"
    parser.epilog = (
        "Run it as root: it judges files with the rights of the daemon's user.\n"
        "\n"
        "exit status:\n"
        "  0  all is well\n"
        "  1  something is missing, or will be (WARN)\n"
        "  2  something cannot work (FAIL), or the command line is wrong\n"
        "\n"
        "examples:\n"
        "  colmet doctor                     what runs, or is configured, on this machine\n"
        "  colmet doctor -q                  only what is wrong\n"
        "  colmet doctor --node -- --zeromq-uri tcp://head:5556 --enable-perfhw\n"
        "                                    would a node with these options work here?"
    )
    parser.add_argument("--node", action="store_true", help="examine colmet-node")
    parser.add_argument("--collector", action="store_true", help="examine colmet-collector")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="configuration file of the daemon (default: that of the running daemon, else of its unit)",
    )
    parser.add_argument(
        "--control-socket", metavar="PATH", help=cli.Rare("socket of the daemon (default: that of its own default)")
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print only what is wrong")
    parser.add_argument("--json", action="store_true", help="print JSON: each finding with its check and remedy")
    parser.add_argument(
        "options", metavar="DAEMON-OPTION", nargs="*", help="judge the daemon with these options, instead of its own"
    )


def run(options: argparse.Namespace) -> int:
    """Examine, and print; the exit status."""
    host = Host()
    sides = [side for side in SIDES if getattr(options, side)]
    argv: list[str] | None = None
    if options.config is not None or options.options:
        argv = [*(["--config", options.config] if options.config is not None else []), *options.options]
    if len(sides) != 1 and (argv is not None or options.control_socket is not None):
        raise ConfigError("say --node or --collector: whose configuration or socket is it?")
    targets = [
        Target(side, host, argv, options.control_socket, bool(options.options))
        for side in sides or find_sides(host) or list(SIDES[:1])
    ]
    results: list[Result] = []
    try:
        with quiet():
            for target in targets:
                results += examine_all(target)
    finally:  # also with Ctrl-C, which programs in sessions of their own do not get
        host.stop_commands()
    worst = max([result.finding.level for result in results])
    text = as_json(results) if options.json else "\n".join(as_text(results, options.quiet, _width(), _colours()))
    _show(text)
    return int(worst)


def examine_all(target: Target, checks: Sequence[Check] = CHECKS) -> list[Result]:
    """All that the checks of a side find."""
    target.ask()
    results = []
    with _in_folder_of(target):
        for check in checks:
            if target.side in check.sides:
                found = examine(lambda check=check: check.function(target), check.bound_s)  # type: ignore[misc]
                results += [Result(target.side, check, finding) for finding in found]
    return results


@contextlib.contextmanager
def _in_folder_of(target: Target) -> Iterator[None]:
    """Meanwhile in the working directory of the running daemon, which its relative paths begin at."""
    with contextlib.ExitStack() as stack:
        # another user's, be it the daemon's or that of this command: absolute paths, as the units have them, are right
        # anywhere
        with contextlib.suppress(OSError):
            before = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, before)
            os.fchdir(before)  # whether it can be come back to
            if target.pid and not target.is_given:
                os.chdir(f"/proc/{target.pid}/cwd")
                stack.callback(os.fchdir, before)
        yield


# -- what is printed --


def as_json(results: Sequence[Result]) -> str:
    """All findings, for programs."""
    findings: list[dict[str, Any]] = [
        {
            "daemon": result.side,
            "group": result.check.group,
            "check": result.check.name,
            "level": result.finding.level.name.lower(),
            "found": result.finding.found,
            "remedy": result.finding.remedy,
        }
        for result in results
    ]
    worst = max([result.finding.level for result in results], default=Level.PASS)
    about = {"host": socket.gethostname(), "version": __version__, "level": worst.name.lower()}
    return json.dumps({**about, "findings": findings}, indent=2)


def as_text(results: Sequence[Result], only_wrong: bool, width: int, colours: bool) -> Iterator[str]:
    """The findings for people, line by line.

    Args:
        results: of one daemon or several.
        only_wrong: leave out what is well.
        width: characters in a line.
        colours: whether the terminal shows them.
    """
    shown = [result for result in results if not only_wrong or result.finding.level != Level.PASS]
    side = group = ""
    for result in shown:
        if result.side != side:
            side, group = result.side, ""
            system = os.uname()
            yield f"colmet-{side} on {printable(system.nodename)}, Linux {printable(system.release)}"
        if result.check.group != group:
            group = result.check.group
            yield f"\n{group}"
        yield from _lines(result, width, colours)
    if results and not only_wrong:
        levels = [result.finding.level for result in results]
        yield ""
        yield ", ".join([f"{levels.count(level)} {name}" for level, name in _NAMES.items()])


def _lines(result: Result, width: int, colours: bool) -> Iterator[str]:
    level, found, remedy = result.finding
    name = _NAMES[level]
    first = f"  {name}  {result.check.name:18}"
    lines = _wrapped(printable(found), first, _INDENT, width)
    if remedy:
        lines += _wrapped(printable(remedy), f"{_REMEDY_INDENT}-> ", f"{_REMEDY_INDENT}   ", width)
    if colours:
        lines[0] = lines[0].replace(name, f"{_COLOURS[level]}{name}{_PLAIN}", 1)
    yield from lines


def _wrapped(text: str, first: str, indent: str, width: int) -> list[str]:
    """Lines; a command, between grave accents, stays in one, so that it can be copied."""
    whole = re.sub(r"`[^`]*`", lambda match: match[0].replace(" ", _SPACE), text)
    lines = textwrap.wrap(
        whole,
        max(width, len(_INDENT) + 30),
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_SPACE, " ") for line in lines]


def printable(text: str) -> str:
    """Text without what could steer a terminal."""
    return "".join([one if one.isascii() and one.isprintable() else ascii(one)[1:-1] for one in text])


def _width() -> int:
    return min(shutil.get_terminal_size((80, 24)).columns, MAX_WIDTH)


def _colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _show(text: str) -> None:
    try:
        if text:
            print(text)
        sys.stdout.flush()
    except BrokenPipeError:  # its reader wants no more; nor is anything to be tried again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
