"""Layout of text for a terminal: printable characters, wrapped paragraphs, aligned columns."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Sequence

_SPACE = "\0"  # stands for a space within a command while a paragraph is wrapped


def printable(text: str) -> str:
    """Return a text in ASCII: all other characters, terminal controls included, are escaped."""
    return "".join([one if one.isascii() and one.isprintable() else ascii(one)[1:-1] for one in text])


def wrap(text: str, width: int, first: str = "", indent: str = "") -> list[str]:
    """Return the lines of a paragraph, at least one, with prefixes: `first`, then `indent`.

    A command, between grave accents, stays in one line, so that it can be copied.
    """
    lines = textwrap.wrap(
        re.sub(r"`[^`]*`", lambda match: match[0].replace(" ", _SPACE), text),
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_SPACE, " ") for line in lines] or [first.rstrip()]


def columns(rows: Sequence[Sequence[str]], right: Collection[int] | None = None, indent: str = "") -> list[str]:
    """Return rows of cells as aligned lines.

    Args:
        rows: rows of equal length; the first one may be a head.
        right: indices of right-aligned columns; by default those of numbers and dashes below the head, without the
            first column.
        indent: prefix of each line.
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    if right is None:
        right = [n for n in range(1, len(widths)) if all(row[n][:1].isdigit() or row[n] == "-" for row in rows[1:])]
    lines = []
    for row in rows:
        cells = [cell.rjust(w) if n in right else cell.ljust(w) for n, (cell, w) in enumerate(zip(row, widths))]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines
