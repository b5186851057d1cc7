"""What pyproject.toml says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from colmet.common.config.configuration import tomllib

ROOT = Path(__file__).parents[2]


def metadata() -> dict[str, Any]:
    """Return the file's content."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def scripts() -> dict[str, str]:
    """Return the installed programs: module and function by name."""
    return metadata()["project"]["scripts"]


def extras() -> set[str]:
    """Return the names of the extras."""
    return set(metadata()["tool"]["setuptools"]["dynamic"]["optional-dependencies"])
