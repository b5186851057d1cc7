"""Numbers of things in English: 1 node, 1,200 missing batches, a, b and 3 more."""

from __future__ import annotations

import re
from collections.abc import Sequence

# of a plural noun at the end of a text, or before its complement
_ENDING = re.compile(r"(ies|(?:ss|ch|sh|x)es|s)(?=$| without | unanswered)")


def counted(number: int, plural: str) -> str:
    """Return a number and its noun, in the singular if it is one: "1 node", "1,200 missing batches".

    Args:
        number: of things.
        plural: the things, with the noun last, or before "without ..." or "unanswered".
    """
    return f"{number:,} {plural if number != 1 else _ENDING.sub(_singular, plural, count=1)}"


def some_of(names: Sequence[str], most: int) -> str:
    """Return names as text: up to `most`, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _singular(ending: re.Match[str]) -> str:
    return "y" if ending[0] == "ies" else ending[0][:-2] if ending[0] != "s" else ""
