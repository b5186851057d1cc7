"""The manual pages: what they say of options is what the parsers say."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import cannot_run

from colmet.collector import backends as outputs
from colmet.collector import main as collector
from colmet.common.cli import load
from colmet.node import backends as inputs
from colmet.node import main as node
from colmet.tools import colmet, extract, manpages

TEMPLATES = Path(__file__).parents[1] / "packaging/man"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    directory = tmp_path_factory.mktemp("man")
    assert manpages.main([str(TEMPLATES), str(directory)]) == 0
    return directory


def options(parser):
    return {name for action in parser._actions for name in action.option_strings}


def told(text):
    """The options that have a paragraph of their own."""
    tags = re.findall(r"^\.TP\n(.*)$", text, re.M)
    return {name.replace(r"\-", "-") for tag in tags for name in re.findall(r"\\fB(\\-[^\\]*(?:\\-[^\\]*)*)\\fR", tag)}


@pytest.mark.parametrize(
    ("name", "parser"),
    [
        ("colmet-node.8", node.build_parser(load(inputs.NAMES))),
        ("colmet-collector.8", collector.build_parser(load(outputs.NAMES))),
        ("colmet-extract.1", extract.build_parser()),
    ],
)
def test_a_page_tells_every_option(pages, name, parser):
    assert told((pages / name).read_text()) == options(parser)


def test_a_page_tells_every_command(pages):
    text = (pages / "colmet.1").read_text()
    assert re.findall(r"^\.SS colmet (.*)$", text, re.M) == list(colmet.COMMANDS)


def test_a_page_tells_which_words_a_command_takes(pages):
    text = (pages / "colmet.1").read_text()
    assert r"\fInode|collector\fR" in text.partition(".SS colmet status")[2]


def test_text_is_shown_as_it_is():
    assert manpages.escape("'a-b' `c` \\d ^~") == r"\(aqa\-b\(aq \(gac\(ga \ed \(ha\(ti"


@pytest.mark.parametrize("name", manpages.PAGES)
def test_man_shows_a_page_without_a_warning(pages, name):
    if not shutil.which("man"):
        cannot_run("no man; apt-get install man-db")
    done = subprocess.run(
        ["man", "--warnings", "-l", str(pages / name)],
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "100"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not done.stderr
    assert "--version" in done.stdout or "colmet status" in done.stdout
