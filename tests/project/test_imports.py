"""What benchmarks, beds and developers' programs import exists: the quick tests run none of them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATHS = sorted(
    [path for name in ("benchmarks", "tests/beds", "tests/support", "dev") for path in (ROOT / name).rglob("*.py")]
)


@pytest.mark.slow
def test_every_imported_name_exists():
    for path in PATHS:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or node.module.split(".")[0] != "colmet":
                continue
            module = importlib.import_module(node.module)
            for alias in node.names:
                there = hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}")
                assert there, f"{path}:{node.lineno}: {node.module}.{alias.name}"
