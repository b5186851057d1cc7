"""Each Python that Colmet starts is started by `python_command`, or with -I: none imports from its own directory."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HELPER = ROOT / "colmet/common/host/command.py"


def unsafe(source):
    """The lines with a list or tuple of words that has this Python, and the next word is not -I."""
    for node in ast.walk(ast.parse(source)):
        words = node.elts if isinstance(node, (ast.List, ast.Tuple)) else []
        for word, following in zip(words, [*words[1:], None]):
            text = ast.unparse(word)
            is_python = text == "sys.executable" or text.strip("'\"").rpartition("/")[2] in ("python", "python3")
            if is_python and (following is None or ast.unparse(following).strip("'\"") != "-I"):
                yield node.lineno


@pytest.mark.slow
def test_no_python_is_started_without_the_helper():
    found = {path: list(unsafe(path.read_text())) for path in (ROOT / "colmet").rglob("*.py") if path != HELPER}
    assert not {str(path): lines for path, lines in found.items() if lines}


@pytest.mark.parametrize(
    "text", ["[sys.executable, '-c', code]", "run((sys.executable, '-m', 'x'))", "['/usr/bin/python3', '-c', 'x']"]
)
def test_the_check_sees_others(text):
    assert list(unsafe(text)) and not list(unsafe("[sys.executable, '-I', path]"))
