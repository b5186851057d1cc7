"""The catalogue: every table that Colmet sends, one module of declarations for each source. Nothing here measures."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import lru_cache

from colmet.common.schema import Schema

MODULES = (
    *("taskstats", "cgroup", "procstats", "jobproc", "perfhw", "rapl", "temperature", "ipmipower", "infiniband"),
    *("lustre", "nvidia", "mapping", "agent", "completeness", "facility"),
)


@lru_cache(maxsize=1)
def schemas() -> Mapping[str, Schema]:
    """Return the schemas of all tables that this version can send, by their names."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in MODULES]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Schema)]
    return {schema.name: schema for schema in found}


@lru_cache(maxsize=1)
def _types() -> Mapping[str, Mapping[str, str]]:
    """Return the type of each column of each table, those of older versions included; columns ordered by type."""
    from colmet.common.wire import colmet06, colmet_rs  # these packages decode with the catalogue's help

    older = [record.schema for record in colmet06.RECORDS.values()] + list(colmet_rs.SCHEMAS.values())
    types: dict[str, dict[str, str]] = {}
    for schema in (*schemas().values(), *older):
        types.setdefault(schema.name, {}).update({field.name: field.dtype for field in schema.fields})
    return {
        table: dict(sorted(columns.items(), key=lambda column: (column[1], column[0])))
        for table, columns in sorted(types.items())
    }


def table_names() -> tuple[str, ...]:
    """Return the names of all tables that this version or an older one can send."""
    return tuple(_types())


def column_types(table: str) -> Mapping[str, str]:
    """Return the type of each column that Colmet declares for a table; empty for an unknown table."""
    return _types().get(table, {})


def is_declared(table: str) -> bool:
    """Return whether Colmet itself has a table of this name."""
    return table in _types()


def misfits(schema: Schema) -> list[str]:
    """Return the columns of one of Colmet's tables whose kind of value is not the declared one."""
    types = column_types(schema.name)
    return [field.name for field in schema.fields if types.get(field.name, field.dtype)[0] != field.dtype[0]]


def undeclared(schema: Schema) -> int:
    """Return the number of columns that Colmet does not declare: those of a later version, or a site's own."""
    types = column_types(schema.name)
    return sum([name not in types for name in schema.names])
