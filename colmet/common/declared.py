"""The columns of Colmet's own tables and their types, which no sender decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from colmet.common.catalogue import TABLES

if TYPE_CHECKING:
    from colmet.common.schema import Schema


@lru_cache(maxsize=len(TABLES))
def columns(table: str) -> Mapping[str, str]:
    """The type of each column that Colmet declares for a table; empty for a table that it does not know."""
    found = {}
    dtype = ""
    for word in TABLES.get(table, "").split():
        if word.endswith(":"):
            dtype = word[:-1]
        else:
            found[word] = dtype
    return found


def is_declared(table: str) -> bool:
    """Whether Colmet itself has a table of this name."""
    return table in TABLES


def misfits(schema: Schema) -> list[str]:
    """Columns of one of Colmet's own tables that are described with another kind of value than Colmet gives them."""
    types = columns(schema.name) if schema.name in TABLES else {}
    return [field.name for field in schema.fields if types.get(field.name, field.dtype)[0] != field.dtype[0]]


def undeclared(table: str, names: Iterable[str]) -> int:
    """How many of some columns Colmet does not declare for a table."""
    types = columns(table) if table in TABLES else {}
    return sum([name not in types for name in names])
