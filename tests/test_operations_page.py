"""docs/operations.md tells what each message means: all that are logged, and none that are not."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/operations.md").read_text()
TOLD = [
    text
    for row in re.findall(r"^\| (`.*?) \|", PAGE.partition("## What each message means")[2], re.M)
    for text in re.findall(r"`([^`]+)`", row)
]
LEVELS = ("warning", "error", "exception")
NODES = [node for path in (ROOT / "colmet").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
# whole where they are put together of several
TEXTS = {node.value for node in NODES if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def messages():
    """What is logged as a warning or worse, where the source says it in one place; not what is an error's own text."""
    for node in NODES:
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in [f"log.{level}" for level in LEVELS]
            and isinstance(node.args[0], ast.Constant)
            and re.search(r"[a-z]{3}", re.sub(r"\w+=|%\w", "", node.args[0].value))
        ):
            yield node.args[0].value


def matches(told, text):
    return re.match(".*?".join(map(re.escape, told.split("..."))), text) is not None


@pytest.mark.parametrize("message", sorted(set(messages())))
def test_a_message_is_explained(message):
    assert [told for told in TOLD if matches(told, message)]


@pytest.mark.parametrize("told", TOLD)
def test_what_is_explained_is_said(told):
    assert [text for text in TEXTS if matches(told, text)]


def test_a_message_that_is_not_explained_would_be_seen():
    assert not [told for told in TOLD if matches(told, "the moon is full phase=%d")]
