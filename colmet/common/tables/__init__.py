"""The catalogue: all tables sent by Colmet, in modules by subject. Nothing here measures."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import lru_cache

from colmet.common.schema import Schema

MODULES = ("tasks", "cgroup", "procstats", "power", "network", "nvidia", "agent", "facility")


@lru_cache(maxsize=1)
def schemas() -> Mapping[str, Schema]:
    """Return the schemas of all tables of this version, by their names."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in MODULES]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Schema)]
    return {schema.name: schema for schema in found}


@lru_cache(maxsize=1)
def _types() -> Mapping[str, Mapping[str, str]]:
    """Return the type of each column of each table, those of older versions included; columns ordered by type."""
    from colmet.common.wire import colmet06, colmet_rs  # these packages use the catalogue to decode

    older = [record.schema for record in colmet06.RECORDS.values()] + list(colmet_rs.SCHEMAS.values())
    types: dict[str, dict[str, str]] = {}
    for schema in (*schemas().values(), *older):
        types.setdefault(schema.name, {}).update({field.name: field.dtype for field in schema.fields})
    return {
        table: dict(sorted(columns.items(), key=lambda column: (column[1], column[0])))
        for table, columns in sorted(types.items())
    }


def table_names() -> tuple[str, ...]:
    """Return the names of all tables of this version and of older ones."""
    return tuple(_types())


def column_types(table: str) -> Mapping[str, str]:
    """Return the type of each declared column of a table; empty for an unknown table."""
    return _types().get(table, {})


def is_declared(table: str) -> bool:
    """Return whether a table name is one of Colmet's own."""
    return table in _types()


def misfits(schema: Schema) -> list[str]:
    """Return the columns of one of Colmet's tables with another kind of value than declared."""
    types = column_types(schema.name)
    return [field.name for field in schema.fields if types.get(field.name, field.dtype)[0] != field.dtype[0]]


def undeclared(schema: Schema) -> int:
    """Return the number of columns not declared by Colmet: those of a later version, or a site's own."""
    types = column_types(schema.name)
    return sum([name not in types for name in schema.names])
