"""Print the completion of Colmet's commands for a shell, made from their command lines.

The Debian packages install it. Elsewhere:
  bash   colmet completion bash >/etc/bash_completion.d/colmet
  zsh    colmet completion zsh >/usr/local/share/zsh/site-functions/_colmet
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from colmet.commands import colmet
from colmet.common.config import cli
from colmet.common.config.cli import Parser
from colmet.common.daemon import startup

SHELLS = ("bash", "zsh")
# What completes the value of an option, by its metavar; others have no completion. zsh has no compopt.
_FILES = 'COMPREPLY=($(compgen {} -- "$cur")); type compopt >/dev/null 2>&1 && compopt -o filenames'
_VALUES = {
    "FILE": _FILES.format("-f"),
    "PATH": _FILES.format("-f"),
    "DIR": _FILES.format("-d"),
    "HOST": 'COMPREPLY=($(compgen -A hostname -- "$cur"))',
    "USER": 'COMPREPLY=($(compgen -u -- "$cur"))',
}

Tree = Mapping[str, "ProgramEntry"]  # a program by its name, and its commands as ``program command``


def _function(name: str) -> str:
    """Return the name of a shell function, different for ``colmet-extract`` and ``colmet extract``."""
    return "_complete_" + re.sub(r"[^a-zA-Z0-9]", "_", name.replace(" ", "__"))


def _program_lines(name: str, tree: Tree) -> Iterator[str]:
    for full, program in tree.items():
        commands = [one.split(" ", 1)[1] for one in tree if one != full] if full == name else []
        yield from _function_lines(full, program.build(), " ".join(commands))
    yield f"complete -F {_function(name)} {name}"


def _function_lines(full: str, parser: Parser, commands: str) -> Iterator[str]:
    """Yield the function that completes a program, or a command of one; `commands`: those of a program."""
    actions = [action for _, actions in parser.sections() for action in actions]
    yield f"{_function(full)}() {{"
    if commands:
        yield f'    if [[ $COMP_CWORD -gt 1 && " {commands} " == *" ${{COMP_WORDS[1]}} "* ]]; then'
        yield f'        "{_function(full)}__${{COMP_WORDS[1]}}"; return'
        yield "    fi"
    yield "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}"
    yield "    [[ $cur == = ]] && cur= || { [[ $prev == = ]] && prev=${COMP_WORDS[COMP_CWORD-2]}; }"
    yield "    COMPREPLY=()"
    yield "    case $prev in"
    for action in actions:
        if action.option_strings and action.nargs != 0:
            yield f"        {'|'.join(action.option_strings)}) {_value(action)}; return ;;"
    yield "    esac"
    yield f"    if [[ $cur == -* ]]; then {_words(' '.join(parser.names))}; return; fi"
    if commands:
        yield f"    {_words(commands)}"
    for action in actions:
        if not action.option_strings and not commands and (value := _value(action)) != ":":
            yield f"    {value.replace('COMPREPLY=', 'COMPREPLY+=')}"  # for every argument
    yield "}"


def _value(action: argparse.Action) -> str:
    if action.choices:
        return _words(" ".join(map(str, action.choices)))
    return _VALUES.get(str(action.metavar), ":")


def _words(words: str) -> str:
    return f"COMPREPLY=($(compgen -W '{words}' -- \"$cur\"))"


def trees() -> Mapping[str, Tree]:
    """Return each interactive program with its commands, if their Python modules are installed."""
    found: dict[str, dict[str, ProgramEntry]] = {}
    for name, program in {**PROGRAMS, **COMMANDS}.items():
        with contextlib.suppress(ModuleNotFoundError):
            program.build()
            found.setdefault(name.partition(" ")[0], {})[name] = program
    return found


def script(shell: str, programs: Mapping[str, Tree]) -> str:
    """Return the completion of programs for a shell, as one file. zsh reads that of bash."""
    lines = [line for name, tree in programs.items() for line in _program_lines(name, tree)]
    if shell == "zsh":
        before = [f"#compdef {' '.join(programs)}", "autoload -Uz bashcompinit && bashcompinit"]
        lines = [*before, *lines, "_bash_complete -F _complete_${service//[^a-zA-Z0-9]/_}"]
    return "\n".join(lines) + "\n"


def add_options(parser: Parser) -> None:
    """Declare the shell."""
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run(options: argparse.Namespace) -> int:
    """Print the completion."""
    print(script(options.shell, trees()), end="")
    return 0


class ProgramEntry(NamedTuple):
    """A program, or a command of ``colmet``."""

    build: Callable[[], cli.Parser]
    summary: str  # its purpose, as a line of a list
    section: int = 1  # of the manual


def _load(module: str) -> Any:
    """Import a module of a program on use: it may not be installed."""
    return importlib.import_module(f"colmet.{module}")


def _build_command(name: str) -> Parser:
    command = colmet.COMMANDS[name]
    return colmet.build_command_parser(name, command, importlib.import_module(command.module))


def _build_daemon(name: str) -> Any:
    main = _load(f"{name}.main")
    return main.build_parser(startup.load(main.NAMES))


def _build_facility(program: str) -> Any:
    return _load("facility.options").build_parser(getattr(_load("facility.command"), program))


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
