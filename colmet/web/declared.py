"""Look up what the catalogue of tables declares of a column."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Optional

from colmet.common.schema import Schema
from colmet.common.tables import schemas

Declaration = tuple[Optional[str], Optional[str], Optional[str]]


def declared(table: str, column: str) -> Declaration:
    """Return unit, kind and help of a column; None for each where it is not declared."""
    return load_catalogue().get((table, column), (None, None, None))


def labels_of(table: str, schema: Schema | None) -> list[str]:
    """Return the columns that distinguish the rows of a job or node; of a schema, else as declared."""
    known = schema or schemas().get(table)
    return [] if known is None else [field.name for field in known.fields if field.kind == "label"]


@lru_cache(maxsize=1)
def load_catalogue() -> Mapping[tuple[str, str], Declaration]:
    """Return all declarations; the first call takes long."""
    return {
        (table, field.name): (field.unit, field.kind, field.help or None)
        for table, schema in schemas().items()
        for field in schema.fields
    }
