"""docs/messages.md explains each message that is logged, and none that is not."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/messages.md").read_text()
EXPLAINED = [text for row in re.findall(r"^\| (`.*?) \|", PAGE, re.M) for text in re.findall(r"`([^`]+)`", row)]
LEVELS = ("warning", "error", "exception")


@pytest.fixture(scope="module")
def source():
    """Messages that are logged, and all texts; no syntax tree is kept."""
    logged, texts = set(), set()
    for path in (ROOT / "colmet").rglob("*.py"):
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, (ast.Call, ast.Constant))]
        logged.update(messages(nodes))
        texts.update(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return logged, texts


def is_log(function):
    if not isinstance(function, ast.Attribute) or function.attr not in LEVELS:
        return False
    return ast.unparse(function.value) in ("log", "self._once")


def messages(nodes):
    """Warnings and worse that the source has in one piece; not the text of an error alone."""
    for node in nodes:
        if (
            isinstance(node, ast.Call)
            and is_log(node.func)
            and isinstance(node.args[0], ast.Constant)
            and re.search(r"[a-z]{3}", re.sub(r"\w+=|%\w", "", node.args[0].value))
        ):
            yield node.args[0].value


@functools.cache
def pattern(explained):
    return re.compile(".*?".join(map(re.escape, explained.split("..."))))


def matches(explained, text):
    return pattern(explained).match(text) is not None


def unexplained(texts):
    return [text for text in texts if not any(matches(explained, text) for explained in EXPLAINED)]


def test_each_message_is_explained(source):
    logged = sorted(source[0])
    assert len(logged) > 100 and unexplained(logged) == []


def test_what_is_explained_is_logged(source):
    # whole where they are put together of several
    assert [explained for explained in EXPLAINED if not any(matches(explained, text) for text in source[1])] == []


def test_a_message_that_is_not_explained_would_be_seen():
    assert unexplained(["the moon is full phase=%d"])
