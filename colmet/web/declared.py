"""Look up declarations of columns in the catalogue of tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Optional

from colmet.common.schema import Schema
from colmet.common.tables import schemas

Declaration = tuple[Optional[str], Optional[str], Optional[str]]


def declared(table: str, column: str) -> Declaration:
    """Return unit, kind and help of a column; None for each if not declared."""
    return load_catalogue().get((table, column), (None, None, None))


def labels_of(table: str, schema: Schema | None) -> list[str]:
    """Return the label columns of a table, from the schema if given, else from the catalogue."""
    known = schema or schemas().get(table)
    return [] if known is None else [field.name for field in known.fields if field.kind == "label"]


@lru_cache(maxsize=1)
def load_catalogue() -> Mapping[tuple[str, str], Declaration]:
    """Return all declarations; the first call is slow."""
    return {
        (table, field.name): (field.unit, field.kind, field.help or None)
        for table, schema in schemas().items()
        for field in schema.fields
    }
