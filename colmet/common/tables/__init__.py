"""The catalogue: all tables sent by Colmet, in modules by subject, and columns of several. Nothing here measures."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import lru_cache

from colmet.common.schema import Schema, counter, gauge

MODULES = ("tasks", "cgroup", "procstats", "power", "network", "nvidia", "agent", "facility")

# Of every backend that measures several things of a kind.
PART_FAILURES = counter(
    *("part_failures", "count"),
    "Unreadable zones, sensors, ports, mounts and values of GPUs; their values are missing.",
    "the backend that measures them",
)
# Of every backend in a thread of its own.
LEFT_OUT = counter("left_out", "count", "Ticks without rows, the measurement before not having ended.", "the agent")
LATE = counter("late", "count", "Measurements that ended after their deadline.", "the agent")
_ASKER = "the backend that asks programs"
COMMANDS = counter("commands", "count", "Programs started.", _ASKER)
COMMANDS_KILLED = counter("commands_killed", "count", "Programs killed at their deadline.", _ASKER)

# Columns that distinguish the runs of a job: of a number that is used again, and of a clock that is set.
RUN, UPTIME = "run", "uptime"
RUN_FIELDS = (
    gauge(
        *(RUN, "none", "Which run of the job it is of: a number that every other run of the job has another one of."),
        "inode number of the job's cgroup and the machine's boot id, as a checksum",
    ),
    gauge(UPTIME, "sec", "Time since the machine's boot, at the time of the row.", "CLOCK_BOOTTIME"),
)


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
