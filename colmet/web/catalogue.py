"""The measures and units of the page, for /api/v1/measures."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from colmet.common.measures import MEASURES, NODE_MEMORY_USED, NODE_SWAP_USED
from colmet.common.units import UNITS

_SUMS = {"node_memory_used": NODE_MEMORY_USED, "node_swap_used": NODE_SWAP_USED}


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
    return {"measures": measures, "sums": sums, "units": _units()}


def _units() -> dict[str, dict[str, Any]]:
    """Return the factor and the family of formats of each unit."""
    found = {name: {"factor": unit.scale, "family": unit.family} for name, unit in UNITS.items() if unit.family}
    for unit in UNITS.values():
        growth = unit.per_second()
        if growth.family:
            found[growth.name] = {"factor": unit.scale, "family": growth.family}
    return {**found, "seconds/s": {"factor": 1.0, "family": "cores"}}  # unit of the growth of all durations in answers
