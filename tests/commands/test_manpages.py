"""The manual pages and completions of shells: what they have of options is what the parsers have."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
from pathlib import Path

import pytest

from colmet.commands import colmet, completion
from colmet.node.kernel.perfevents import NAMES_06
from dev import generate, manpages
from tests.support.place import require_programs
from tests.support.project import scripts

ROOT = Path(__file__).parents[2]
PAGES = manpages.pages()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("made")
    assert generate.main([str(ROOT / "packaging/man"), str(directory)]) == 0
    return directory


def options(parser):
    return {name for action in parser.actions for name in action.option_strings}


def described(text):
    """The options that have a paragraph of their own."""
    tags = re.findall(r"^\.TP\n(.*)$", text, re.M)
    return {name.replace(r"\-", "-") for tag in tags for name in re.findall(r"\\fB(\\-[^\\]*(?:\\-[^\\]*)*)\\fR", tag)}


@pytest.mark.parametrize("name", [name for name in PAGES if name != "colmet.1"])
def test_a_page_has_every_option(made, name):
    expected = options(PAGES[name].build())
    if name == "colmet-extract.1":
        expected |= options(completion.COMMANDS["colmet extract"].build())
    assert described((made / "man" / name).read_text()) == expected


def test_each_program_and_command_has_a_page(made):
    names = {path.name.rpartition(".")[0] for path in (made / "man").iterdir()}
    assert names == {*completion.PROGRAMS, *[name.replace(" ", "-") for name in completion.COMMANDS]}
    text = (made / "man/colmet.1").read_text()
    assert re.findall(r"^\\fBcolmet ([a-z]+)\\fR$", text, re.M) == list(colmet.COMMANDS)


def test_each_page_of_a_command_has_examples_and_exit_statuses(made):
    for path in (made / "man").iterdir():
        assert ".SH EXIT STATUS" in path.read_text() or path.name == "colmet-completion.1", path.name


def test_the_page_of_the_node_has_the_names_of_perf_events(made):
    text = (made / "man/colmet-node.8").read_text()
    assert all(name in text for name in NAMES_06)


@pytest.mark.slow
def test_man_shows_the_pages_without_a_warning(made):
    require_programs("man")
    for path in sorted((made / "man").iterdir()):
        done = subprocess.run(
            ["man", "--warnings", "-l", str(path)],
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "100"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert not done.stderr and "DESCRIPTION" in done.stdout, path.name


# -- the packages --


def listed(kind):
    """Path in the build -> the packages whose lists of this kind have it."""
    found = {}
    for path in (ROOT / "packaging/debian").glob(f"*.{kind}"):
        for line in path.read_text().splitlines():
            found.setdefault(line.split()[0], []).append(path.stem)
    return found


def test_the_packages_install_every_page_and_completion(made):
    pages, installed = listed("manpages"), listed("install")
    for path in made.rglob("*"):
        if path.is_file():
            name = f"debian/made/{path.relative_to(made)}"
            assert len((pages if "man/" in name else installed).get(name, ())) == 1, name
    assert {name for name in [*pages, *installed] if name.startswith("debian/made")} == {
        f"debian/made/{path.relative_to(made)}" for path in made.rglob("*") if path.is_file()
    }


def test_the_packages_and_pip_install_the_same_programs():
    setup = set(scripts())
    installed = {name.removeprefix("usr/bin/") for name in listed("install") if name.startswith("usr/bin/")}
    assert setup == installed
    assert setup - {"qmemview.py"} == set(completion.PROGRAMS)


# -- completion --


def completed(made, words):
    """What bash offers for the last of these words."""
    script = f"""
        for file in {made}/bash/*; do source $file; done
        compopt() {{ :; }}
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        function=$(complete -p "$1"); function=${{function#*-F }}; ${{function%% *}}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    command = ["bash", "--norc", "-c", script, "bash", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=made)
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["colmet", "rep"], {"report"}),
        (["colmet", "comp"], {"completeness", "completion"}),
        (["colmet", "report", "--js"], {"--json"}),
        (["colmet", "extract", "--format", "p"], {"parquet"}),
        (["colmet", "extract", "--format", "=", "h"], {"hdf5"}),
        (["colmet", "top", "-j", "7", "c"], {"collector"}),
        (["colmet", "access", "users", "rem"], {"remove"}),
        (["colmet", "report", "--html", "b"], {"bash"}),
        (["colmet-extract", "--h"], {"--help", "--help-all"}),
        (["colmet-node", "--wire", ""], {"auto", "colmet06", "v1"}),
        (["colmet-node", "--sample-period", ""], set()),
        (["qmemview", "--own"], {"--owner"}),
    ],
)
def test_bash_completes(made, words, expected):
    assert set(completed(made, words)) == expected


@pytest.mark.slow
def test_zsh_completes_with_the_functions_of_bash(made):
    require_programs("zsh")
    shell, terminal = pty.fork()
    if not shell:
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb"})
    start = f"PS1=; fpath=({made}/zsh $fpath); autoload -Uz compinit; compinit -D -u; print begun\n"
    shown = b""
    for text in (start, "colmet rep\t--js\t", "\x15colmet-node --wire colmet\t"):
        os.write(terminal, text.encode())
        while select.select([terminal], [], [], 2)[0]:
            shown += os.read(terminal, 4096)
    os.close(terminal)
    os.waitpid(shell, 0)
    assert b"colmet report " in shown and b"--json " in shown and b"--wire colmet06 " in shown


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_command_prints_all_of_it(shell, capsys):
    assert colmet.main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ["enable-infiniband", "colmet", "qmemview", "afmetrics_collector", "spool-size"])
