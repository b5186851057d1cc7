"""The pictures of the documentation: those that pages show are there, small, and load nothing."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dev import pictures

DOCS = Path(__file__).parents[2] / "docs"
SHOWN = sorted(
    {
        path.parent / name
        for path in DOCS.rglob("*.md")
        for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", path.read_text())
    }
)

# Fills the screen twice, as one that shows something live does, and ends at a key.
LIVE = r"""
import os, sys, tty
tty.setcbreak(0)
print("\x1b[?1049h\x1b[Hfirst\x1b[H\x1b[31msecond\x1b[0m", os.get_terminal_size().columns, end="", flush=True)
pressed = sys.stdin.read(1)
print("\x1b[?1049l" + pressed)
"""


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.name)
def test_a_picture_of_a_page_is_there_and_small(path):
    data = path.read_bytes()
    assert len(data) <= pictures.MAX_BYTES
    if path.suffix == ".svg":
        ElementTree.fromstring(data)
        assert b"@font-face" not in data and not re.search(rb"""(?:url\(|href=)["']?(?!#)""", data)


def test_each_page_of_a_tool_shows_one():
    assert {"plot.svg", "report.svg", "report-page.png", "top.svg", "doctor.svg"} <= {path.name for path in SHOWN}


@pytest.mark.slow
def test_the_screen_of_a_live_program_is_that_before_the_key():
    assert pictures.in_terminal([sys.executable, "-c", LIVE], keys=[(1.0, "q")]) == "\x1b[31msecond\x1b[0m 80"


def test_a_terminal_as_a_picture():
    text = pictures.terminal_svg("\x1b[1mbold\x1b[0m & <plain>\n", "colmet report")
    root = ElementTree.fromstring(text)
    shown = "".join(root.itertext()).replace("\xa0", " ")
    assert "bold" in shown and "& <plain>" in shown and "colmet report" in shown
    assert "font-face" not in text and "Fira" not in text
