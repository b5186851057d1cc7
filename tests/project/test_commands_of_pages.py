"""Commands that pages print exist: `colmet ...` and the daemons accept each of these lines."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from colmet.commands.completion import COMMANDS, PROGRAMS, ProgramEntry

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
WRONG = {"colmet report 4242 --jsn"}  # tools/commands.md: an example of an error
ENDS = {"|", ">", ">>", "<", "&&", "||", ";", "2>&1"}
NUMBERS = {"JOB", "ID", "N"}


def commands(text):
    """Command lines of a page: of blocks for a shell, after a prompt, and in running text."""
    text = re.sub(r" *\\\n\s*", " ", text)
    lines = []
    for kind, block in re.findall(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", text, re.M | re.S):
        lines += re.findall(r"^ *(?:[$#] )?(.*)" if kind == "sh" else r"^ *[$#] (.*)", block, re.M)
    lines += re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S))
    for line in lines:
        found = re.match(r"(?:colmet [\w-]+ |colmet-(?:node|collector) (?=.*-)).+", line)
        if found and not re.search(r"\.\.\.|[…<>{}\[\]$]|: ", line) and line not in WRONG:
            yield line


def words(line):
    """The arguments, with numbers where a page has a name for one."""
    found = []
    for word in shlex.split(line, comments=True):
        if word in ENDS:
            break
        found.append("4242" if word in NUMBERS else word)
    return found


def refused(line):
    """Why the program does not accept a line, or None."""
    said = io.StringIO()
    try:
        program, *arguments = words(line)
        entry: ProgramEntry = PROGRAMS[program]
        if program == "colmet":
            name = next((word for word in arguments if not word.startswith("-")), "")
            if name.isupper() or (arguments[-1].startswith("--") and len(arguments) == 2):
                return None  # any command; an option that is only named
            entry, arguments = COMMANDS[f"colmet {name}"], arguments[arguments.index(name) + 1 :]
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            entry.build().parse_args(arguments)
    except (SystemExit, KeyError, ValueError) as err:
        return None if getattr(err, "code", 1) == 0 else f"{line}: {said.getvalue() or err!r}"
    return None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_each_command_of_a_page_is_accepted(path):
    assert [why for line in commands(path.read_text()) if (why := refused(line))] == []


@pytest.mark.parametrize("line", ["colmet jobs --owner alice", "colmet raport 4242", "colmet-node --frequency 5"])
def test_a_command_that_does_not_exist_is_found(line):
    assert list(commands(f"run `{line}` now")) == [line]
    assert refused(line)


def test_the_pages_have_commands():
    assert sum(len(list(commands(path.read_text()))) for path in PAGES) > 100
