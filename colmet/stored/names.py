"""Names of stored columns, in the forms people write."""

from __future__ import annotations

import re
from collections.abc import Iterable

from colmet.common.config.cli import near as nearest
from colmet.common.text import document

SUFFIX = "_default"
_NUMBER = re.compile(r"(\d+)", re.ASCII)


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key to sort names with numbers by: node2 comes before node10."""
    parts = enumerate(_NUMBER.split(text[:100]))  # every second one is a number
    return (*[(0, int(part), "") if n % 2 else (1, 0, part) for n, part in parts if part], (1, 0, text))


def short(table: str) -> str:
    """Return the name of a table without the common suffix."""
    return table.removesuffix(SUFFIX)


def names_of(table: str, column: str) -> dict[str, None]:
    """Return the possible names of a column: alone, with its table, and with the table's short name."""
    return dict.fromkeys([column, f"{table}.{column}", f"{short(table)}.{column}"])


def near(text: str, tables: Iterable[tuple[str, Iterable[str]]]) -> str:
    """Return a hint on an unknown name: similar names of columns of these tables, or the page with all names."""
    names = {name: None for table, columns in tables for column in columns for name in names_of(table, column)}
    found = nearest(text, names, 5, 0.5)
    printable = [name[:100].encode("unicode_escape").decode() for name in found]
    return f"near it: {', '.join(printable)}" if printable else f"{document('metrics.md')} has all of them"
