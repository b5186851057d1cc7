"""Measures, units, and declarations of columns, for answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Optional

from colmet.common.measures import MEASURES, NODE_CPU_INTERRUPTS, NODE_MEMORY_USED, NODE_SWAP_USED
from colmet.common.schema import Schema
from colmet.common.tables import schemas
from colmet.common.units import UNITS
from colmet.web.absent import RULES

Declaration = tuple[Optional[str], Optional[str], Optional[str]]

_SUMS = {
    "node_cpu_interrupts": NODE_CPU_INTERRUPTS,
    "node_memory_used": NODE_MEMORY_USED,
    "node_swap_used": NODE_SWAP_USED,
}


@lru_cache(maxsize=1)
def measures_answer() -> dict[str, Any]:
    """Return all measures by key, the sums of measures in charts, and the units of columns and their growth."""
    measures = {
        key: {
            "label": measure.label,
            "help": measure.help,
            "scope": measure.scope,
            "kind": measure.kind,
            "unit": measure.unit.name,
            "rate": measure.kind == "counter" and measure.is_rate,
            "hosts": measure.hosts,
            "time": measure.time,
            "sources": [source._asdict() for source in measure.sources],
        }
        for key, measure in MEASURES.items()
    }
    sums = {name: [{"measure": measure.key, "sign": sign} for measure, sign in terms] for name, terms in _SUMS.items()}
    return {"measures": measures, "sums": sums, "units": _units(), "absent": dict(RULES)}


def _units() -> dict[str, dict[str, Any]]:
    """Return the factor and the family of formats of each unit."""
    found = {name: {"factor": unit.scale, "family": unit.family} for name, unit in UNITS.items() if unit.family}
    for unit in UNITS.values():
        growth = unit.per_second()
        if growth.family:
            found[growth.name] = {"factor": unit.scale, "family": growth.family}
    return {**found, "seconds/s": {"factor": 1.0, "family": "cores"}}  # unit of the growth of all durations in answers


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
