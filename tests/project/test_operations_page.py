"""docs/messages.md has remedies for messages that are logged, and for none that is not."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/messages.md").read_text()
ENTRIES = re.findall(r"^\* (`[^`]+`(?:, `[^`]+`)*): ", PAGE, re.M)
EXPLAINED = [text for entry in ENTRIES for text in re.findall(r"`([^`]+)`", entry)]


@pytest.fixture(scope="module")
def texts():
    """All texts of the source."""
    trees = (ast.walk(ast.parse(path.read_text())) for path in (ROOT / "colmet").rglob("*.py"))
    constants = (node.value for tree in trees for node in tree if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def unknown(explained, texts):
    patterns = {text: re.compile(".*?".join(map(re.escape, text.split("...")))) for text in explained}
    return [text for text, pattern in patterns.items() if not any(pattern.match(value) for value in texts)]


def test_each_line_of_the_page_has_a_message_and_a_remedy():
    assert len(ENTRIES) == len(re.findall(r"^\* ", PAGE, re.M)) > 50


@pytest.mark.slow
def test_what_is_explained_is_logged(texts):
    assert unknown(EXPLAINED, texts) == []


@pytest.mark.slow
def test_a_message_that_is_not_logged_would_be_seen(texts):
    assert unknown(["the moon is full"], texts)
