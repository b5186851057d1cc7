"""Print the completion of Colmet's commands for a shell, made from their command lines.

The Debian packages install it. Elsewhere:
  bash   colmet completion bash >/etc/bash_completion.d/colmet
  zsh    colmet completion zsh >/usr/local/share/zsh/site-functions/_colmet
  fish   colmet completion fish >/etc/fish/completions/colmet.fish
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from colmet.common.runtime.cli import Parser

if TYPE_CHECKING:
    from colmet.commands.programs import ProgramEntry

# Kinds of values by metavar; others have no completion.
_KINDS = {"FILE": "file", "PATH": "file", "DIR": "directory", "HOST": "host", "USER": "user"}
_REPEATED = ("_AppendAction", "_CountAction")


class CompletionWord(NamedTuple):
    """An option or an argument, for the completion of shells."""

    names: Sequence[str]  # of an option; empty for an argument
    with_value: bool  # whether the option has a value; True for an argument
    choices: Sequence[str]
    kind: str  # of the value: file, directory, host, user, or "" for any text
    metavar: str
    repeats: bool
    help: str  # a line


def words_of(parser: Parser) -> list[CompletionWord]:
    """Return the options and arguments of a parser."""
    return [
        CompletionWord(
            action.option_strings,
            action.nargs != 0,
            [str(one) for one in action.choices or ()],
            _KINDS.get(str(action.metavar), ""),
            str(action.metavar or action.dest),
            type(action).__name__ in _REPEATED or action.nargs in ("*", "+"),
            parser.help_of(action, everything=False),
        )
        for _, actions in parser.sections()
        for action in actions
        if action.nargs != argparse.REMAINDER
    ]


Tree = Mapping[str, "ProgramEntry"]  # a program by its name, and its commands as ``program command``


def _function(name: str) -> str:
    """Return the name of a shell function, different for ``colmet-extract`` and ``colmet extract``."""
    return "_" + "".join(one if one.isalnum() else "__" if one == " " else "_" for one in name)


# -- bash --

_BASH_VALUE = {
    "file": 'COMPREPLY=($(compgen -f -- "$cur")); compopt -o filenames',
    "directory": 'COMPREPLY=($(compgen -d -- "$cur")); compopt -o filenames',
    "host": 'COMPREPLY=($(compgen -A hostname -- "$cur"))',
    "user": 'COMPREPLY=($(compgen -u -- "$cur"))',
    "": ":",
}


def bash(name: str, tree: Tree) -> Iterator[str]:
    """Yield the lines of a program's completion for bash."""
    yield f"# Completion of {name} for bash, made by `colmet completion bash`."
    for full, program in tree.items():
        yield from _bash_function(full, program.build(), [one for one in tree if one != full] if full == name else [])
    yield f"complete -F {_function(name)} {name}"


def _bash_function(full: str, parser: Parser, commands: Sequence[str]) -> Iterator[str]:
    words = words_of(parser)
    yield f"{_function(full)}() {{"
    if commands:
        names = [one.split(" ", 1)[1] for one in commands]
        yield f'    if [[ $COMP_CWORD -gt 1 && " {" ".join(names)} " == *" ${{COMP_WORDS[1]}} "* ]]; then'
        yield f'        "{_function(full)}__${{COMP_WORDS[1]}}"; return'
        yield "    fi"
    yield "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}"
    yield "    [[ $cur == = ]] && cur= || { [[ $prev == = ]] && prev=${COMP_WORDS[COMP_CWORD-2]}; }"
    yield "    COMPREPLY=()"
    yield "    case $prev in"
    for word in words:
        if word.names and word.with_value:
            yield f"        {'|'.join(word.names)}) {_bash_value(word)}; return ;;"
    yield "    esac"
    options = " ".join([option for word in words for option in word.names])
    yield f"    if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W '{options}' -- \"$cur\")); return; fi"
    if commands:
        yield f"    COMPREPLY=($(compgen -W '{' '.join(names)}' -- \"$cur\"))"
    for word in words:
        if not word.names and not commands and (word.choices or word.kind):
            yield f"    {_bash_value(word).replace('COMPREPLY=', 'COMPREPLY+=')}"  # for every argument
    yield "}"


def _bash_value(word: CompletionWord) -> str:
    if word.choices:
        return f"COMPREPLY=($(compgen -W '{' '.join(word.choices)}' -- \"$cur\"))"
    return _BASH_VALUE[word.kind]


# -- zsh --

_ZSH_VALUE = {"file": "_files", "directory": "_files -/", "host": "_hosts", "user": "_users", "": " "}


def zsh(name: str, tree: Tree) -> Iterator[str]:
    """Yield the lines of a program's completion for zsh."""
    for full, program in tree.items():
        commands = [one for one in tree if one != full] if full == name else []
        yield f"{_function(full)}() {{"
        if commands:
            yield "    local state; local -a commands; commands=("
            for one in commands:
                yield f"        {_quoted(one.split(' ', 1)[1] + ':' + tree[one].summary)}"
            yield "    )"
        yield "    _arguments -s \\"
        for word in words_of(program.build()):
            if not (commands and not word.names):
                yield from [f"        {_quoted(spec)} \\" for spec in _zsh_specs(word)]
        if commands:
            yield "        '1: :->command' '*:: :->arguments'"
            yield "    case $state in"
            yield "        command) _describe command commands ;;"
            inner = f"{_function(full)}__$words[1]"
            yield f"        arguments) (( ${{+functions[{inner}]}} )) && {inner} ;;"
            yield "    esac"
        else:
            yield "        && return"
        yield "}"


def _zsh_specs(word: CompletionWord) -> Iterator[str]:
    said = _zsh_escape(word.help)
    value = f"({' '.join(word.choices)})" if word.choices else _ZSH_VALUE[word.kind]
    metavar = _zsh_escape(word.metavar)
    if not word.names:
        yield f"{'*' if word.repeats else ''}:{metavar}:{value}"
        return
    for option in word.names:
        others = "" if word.repeats or len(word.names) == 1 else f"({' '.join(word.names)})"
        has_value = f"{'=' if option.startswith('--') else '+'}[{said}]:{metavar}:{value}"
        yield f"{'*' if word.repeats else others}{option}{has_value if word.with_value else f'[{said}]'}"


def _zsh_escape(text: str) -> str:
    return "".join([f"\\{one}" if one in "[]:\\" else one for one in text])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -- fish --


_FISH_VALUE = {
    "file": " -F",
    "directory": " -a '(__fish_complete_directories)'",
    "host": " -a '(__fish_print_hostnames)'",
    "user": " -a '(__fish_complete_users)'",
    "": "",
}


def fish(name: str, tree: Tree) -> Iterator[str]:
    """Yield the lines of a program's completion for fish."""
    yield f"# Completion of {name} for fish, made by `colmet completion fish`."
    commands = [one.split(" ", 1)[1] for one in tree if one != name]
    yield f"complete -c {name} -f"
    for one in commands:
        said = _fish_quoted(tree[f"{name} {one}"].summary)
        yield f"complete -c {name} -n 'not __fish_seen_subcommand_from {' '.join(commands)}' -a {one} -d {said}"
    for full, program in tree.items():
        when = f" -n '__fish_seen_subcommand_from {full.split(' ', 1)[1]}'" if full != name else ""
        if full == name and commands:
            when = f" -n 'not __fish_seen_subcommand_from {' '.join(commands)}'"
        for word in words_of(program.build()):
            yield from _fish_lines(f"complete -c {name}{when}", word, bool(commands) and full == name)


def _fish_lines(head: str, word: CompletionWord, has_commands: bool) -> Iterator[str]:
    value = f" -a '{' '.join(word.choices)}'" if word.choices else _FISH_VALUE[word.kind]
    if not word.names:
        if value and not has_commands:
            yield f"{head}{value}"
        return
    line = head
    for option in word.names:
        flag = "-l" if option.startswith("--") else "-s" if len(option) == 2 else "-o"
        line += f" {flag} {option.lstrip('-')}"
    needs = "" if not word.with_value else " -r" if word.kind == "file" else " -x"
    yield f"{line}{needs}{value} -d {_fish_quoted(word.help)}"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: Mapping[str, Callable[[str, Tree], Iterator[str]]] = {"bash": bash, "zsh": zsh, "fish": fish}


def trees() -> Mapping[str, Tree]:
    """Return each interactive program with its commands, if their Python modules are installed."""
    from colmet.commands.programs import COMMANDS, PROGRAMS  # not at the top: it lists this module

    found = {name: {name: one} for name, one in PROGRAMS.items() if _is_installed(one)}
    found["colmet"].update({name: one for name, one in COMMANDS.items() if _is_installed(one)})
    return found


def _is_installed(program: ProgramEntry) -> bool:
    try:
        program.build()
    except ModuleNotFoundError:
        return False
    return True


def script(shell: str, programs: Mapping[str, Tree]) -> str:
    """Return the completion of programs for a shell, as one file."""
    lines = [line for name, tree in programs.items() for line in SHELLS[shell](name, tree)]
    if shell == "zsh":  # the file is one function for all its programs
        cases = [f"    {name}) {_function(name)} ;;" for name in programs]
        lines = [f"#compdef {' '.join(programs)}", *lines, "case $service in", *cases, "esac"]
    return "\n".join(lines) + "\n"


def add_options(parser: Parser) -> None:
    """Declare the shell."""
    parser.add_argument("shell", choices=list(SHELLS), help="the shell")


def run(options: argparse.Namespace) -> int:
    """Print the completion."""
    print(script(options.shell, trees()), end="")
    return 0
