"""The pictures of the documentation: those that pages show are there, small, and load nothing."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.name)
def test_a_picture_of_a_page_is_there_and_small(path):
    data = path.read_bytes()
    assert len(data) <= pictures.MAX_BYTES
    if path.suffix == ".svg":
        ElementTree.fromstring(data)
        assert b"@font-face" not in data and not re.search(rb"""(?:url\(|href=)["']?(?!#)""", data)


def test_each_page_of_a_tool_shows_one():
    assert {"plot.svg", "report.svg", "report-page.png", "top.svg", "doctor.svg"} <= {path.name for path in SHOWN}
