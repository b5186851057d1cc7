"""What a thinned row has in each column: by the kind of the column in the catalogue, and what readers make of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from colmet.archive.columns import HELD, MEASURED
from colmet.common import measures
from colmet.common.measures import GPUS, GPUS_OF_JOBS, MAX, MEASURES, ZONES
from colmet.common.schema import Field
from colmet.common.tables import schemas
from colmet.common.tables.runs import RUN, UPTIME

# The value of a column in a row that stands for several.
OWN = "own"  # that of the last row
LAST = "last"  # the last known one: counters grow by the same
SUM = "sum"  # of values that are growth since the row before
MEAN = "mean"  # over time
MOST, LEAST = "most", "least"
STEADY = "steady"  # that of the last row; a row ends before each change

HEADER = ("timestamp", "hostname", "job_id", "metric_backend")
# Tables with several rows of a host at one time, and the columns that distinguish them.
KEYS: Mapping[str, tuple[str, ...]] = {
    ZONES: ("zone",),
    GPUS: ("uuid",),
    GPUS_OF_JOBS: ("uuid",),
    "temperatures_default": ("sensor",),
    "infinibandports_default": ("port",),
    "lustremounts_default": ("mount",),
    "agent_default": ("backend",),
}
WHOLE = frozenset({"completeness_default", "gaps_default", "mapping_default"})  # never thinned: once a minute, or rarer

_SUMS = {"RAPLstats_default": range(1, 25, 2), "perfhwstats_default": range(1, 6)}  # numbers of columns counter_<n>
_PEAKS = {"memory_peak", "pids_peak", "maximum_power"}
_LOWS = {"minimum_power"}
_STEADY = {
    *("cpus_allocated", "memory_limit", "memory_swap_limit", "pids_limit", "gpus", "gpus_idle", "gpus_shared"),
    *("held", RUN, "stat_cpus", "memory_total", "memory-total", "power_limit", "max_energy_range", "is_on"),
}
_BITS = {"index", "performance_state", "clock_event_reasons"}  # no means
# Gauges that readers integrate over time: a row ends where they appear or disappear.
_HELD = {
    place
    for measure in (
        *[one for column in MEASURED if column.how == HELD for one in column.measures],
        *(measures.NODE_MEAN_POWER, measures.GPU_POWER, measures.ZONE_POWER),
    )
    for place in measure.places
}
_HIGHEST = {place for one in MEASURES.values() if one.kind == "gauge" and one.time == MAX for place in one.places}


class Rules(NamedTuple):
    """How the rows of a table are thinned.

    Attributes:
        keys: text columns that distinguish rows of one time.
        values: of each column besides the header, one of `OWN` and the others.
        held: gauges whose value times time is kept.
        highest: gauges whose largest value stays as it was measured.
        unknown: columns of numbers that the catalogue does not know.
    """

    keys: tuple[str, ...]
    values: Mapping[str, str]
    held: tuple[str, ...]
    highest: tuple[str, ...]
    unknown: tuple[str, ...]


@lru_cache(maxsize=1)
def _fields() -> Mapping[str, Mapping[str, Field]]:
    """Return the declared fields of all tables, by table and column; those of older versions included."""
    from colmet.common.wire import colmet06, colmet_rs

    older = [record.schema for record in colmet06.RECORDS.values()] + list(colmet_rs.SCHEMAS.values())
    found: dict[str, dict[str, Field]] = {}
    for schema in (*older, *schemas().values()):
        found.setdefault(schema.name, {}).update({field.name: field for field in schema.fields})
    return found


def rules_of(table: str, dtype: np.dtype[Any]) -> Rules:
    """Return the rules of a stored table with these columns."""
    fields = _fields().get(table)
    names = [name for name in dtype.names or () if name not in HEADER]
    texts = tuple([name for name in names if dtype[name].kind == "S" and name != "involved_jobs"])
    is_listed = table in KEYS or (fields is not None and not table.startswith("facility_"))
    values = {name: _value(table, name, dtype[name], (fields or {}).get(name)) for name in names}
    places = [(table, name) for name in names if values[name] == MEAN]
    return Rules(
        keys=tuple([name for name in KEYS.get(table, ()) if name in texts]) if is_listed else texts,
        values=values,
        held=tuple([name for place, name in places if (place, name) in _HELD]),
        highest=tuple([name for place, name in places if (place, name) in _HIGHEST and table != GPUS]),
        unknown=tuple([name for name in names if name not in (fields or {}) and _is_number(dtype[name])]),
    )


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "if" and not dtype.shape


def _value(table: str, name: str, dtype: np.dtype[Any], field: Field | None) -> str:
    if dtype.kind == "S" and not dtype.shape:
        return STEADY
    if field is None or not _is_number(dtype):
        return OWN
    if field.kind == "counter":
        return LAST
    if name in {f"counter_{n}" for n in _SUMS.get(table, ())} or name in ("network_sent", "network_received"):
        return SUM
    if name in _PEAKS:
        return MOST
    if name in _LOWS:
        return LEAST
    if name in _STEADY or (table == GPUS_OF_JOBS and name == "processes") or table == "RAPLstats_default":
        return STEADY
    if name in _BITS or name == UPTIME or field.kind == "label" or field.unit in ("ts_date", "nsec"):
        return LAST
    return MEAN
