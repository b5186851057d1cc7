"""Measures, units and declarations of columns, why tables are missing, and the time zone: for answers."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Optional

from colmet.common.live.latest_tables import HostTables
from colmet.common.measures import MEASURES, NODE_CPU_INTERRUPTS, NODE_MEMORY_USED, NODE_SWAP_USED
from colmet.common.schema import UNITS, Schema
from colmet.common.tables import schemas
from colmet.common.text import some_of
from colmet.web.recent_cache import AGENT_TABLE

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
            **{name: getattr(measure, name) for name in ("label", "help", "scope", "kind", "hosts", "time")},
            "unit": measure.unit.name,
            "rate": measure.kind == "counter" and measure.is_rate,
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


def columns_of(tables: Mapping[str, Schema], stored: Mapping[str, Sequence[str]]) -> dict[str, list[dict[str, Any]]]:
    """Return the declared columns of tables in the recent cache and in the store."""
    kinds: dict[str, dict[str, tuple[str | None, str | None]]] = {
        table: {field.name: (field.unit, field.kind) for field in schema.fields} for table, schema in tables.items()
    }
    for table, names in stored.items():
        known = kinds.setdefault(table, {})
        for name in names:
            known.setdefault(name, declared(table, name)[:2])
    return {
        table: [
            {"name": name, "unit": unit, "kind": kind, "help": declared(table, name)[2]}
            for name, (unit, kind) in columns.items()
        ]
        for table, columns in sorted(kinds.items())
    }


@lru_cache(maxsize=1)
def load_catalogue() -> Mapping[tuple[str, str], Declaration]:
    """Return all declarations; the first call is slow."""
    return {
        (table, field.name): (field.unit, field.kind, field.help or None)
        for table, schema in schemas().items()
        for field in schema.fields
    }


# -- why a job or a node has no rows of a table: what is known for certain, by the nodes' reports if there are any --

MOST_HOSTS = 3  # are named


class _Source(NamedTuple):
    """The backend of a table: how it is switched on, and what it requires."""

    backend: str
    option: str  # of colmet-node; --disable-... switches it off; empty if it is always on
    requires: str

    @property
    def rule(self) -> str:
        """Return what holds for every node."""
        if not self.option:
            return f"it requires {self.requires}"
        is_on = self.option.startswith("--disable")
        default = f"on by default, {self.option} ends it" if is_on else f"off by default, {self.option} starts it"
        return f"{default}; it requires {self.requires}"


_NVIDIA = _Source("nvidia", "--enable-nvidia", "an NVIDIA GPU with its driver")
_SOURCES = {
    "cgroup_default": _Source("cgroup", "--disable-cgroup", "a cgroup of the job"),
    "taskstats_default": _Source("taskstats", "", "the kernel's taskstats"),
    "jobprocstats_default": _Source("jobproc", "", "a job without its own memory or pids cgroup"),
    "nvidiastats_default": _NVIDIA,
    "nvidiajobs_default": _NVIDIA,
    "nvidiagpus_default": _NVIDIA,
    "infinibandstats_default": _Source("infiniband", "--enable-infiniband", "a port of InfiniBand, Omni-Path or RoCE"),
    "lustrestats_default": _Source("lustre", "--enable-lustre", "a mount of Lustre"),
    "ipmipowerstats_default": _Source("ipmipower", "--enable-ipmipower", "a BMC that reports power"),
    "raplzones_default": _Source("rapl", "--enable-rapl", "the RAPL counters of a processor"),
    "temperatures_default": _Source("temperature", "--enable-temperature", "a sensor that the kernel shows"),
    "procstats_default": _Source("procstats", "--disable-procstats", "/proc of the node"),
}
RULES: Mapping[str, str] = {table: source.rule for table, source in _SOURCES.items()}


def reasons(scope: str, hosts: Iterable[tuple[str, HostTables]], there: Collection[str]) -> dict[str, str]:
    """Return why each table of a scope is missing, by its name, where hosts report the state of its backend.

    `hosts` are those of a job, or one node, with their latest tables; `there` are the tables with rows.
    """
    states = {host: _states(kept) for host, kept in hosts}
    known = {host: one for host, one in states.items() if one}
    if not known:
        return {}
    of_scope = [(table, source) for table, source in _SOURCES.items() if schemas()[table].scope == scope]
    return {table: _reason(source, known) for table, source in of_scope if table not in there}


def _reason(source: _Source, known: Mapping[str, Mapping[str, bool]]) -> str:
    off = [host for host, states in known.items() if source.backend not in states]
    failing = [host for host, states in known.items() if states.get(source.backend) is False]
    measured = [host for host, states in known.items() if states.get(source.backend)]
    how = "with" if source.option.startswith("--disable") else "without"
    by = f" (colmet-node runs {how} {source.option})" if source.option else ""
    parts = [
        f"off on {some_of(off, MOST_HOSTS)}{by}" if off else "",
        f"on, but not measuring on {some_of(failing, MOST_HOSTS)}: `colmet doctor` there names why" if failing else "",
        f"measured on {some_of(measured, MOST_HOSTS)}, which sent no rows of it" if measured else "",
    ]
    return "; ".join([part for part in parts if part])


def _states(kept: HostTables) -> dict[str, bool]:
    """Return the backends switched on on a host, and whether each measures; empty if it does not report them."""
    pair = kept.tables.get(AGENT_TABLE)
    if pair is None:
        return {}
    names = pair.latest.schema.names
    if "backend" not in names or "is_on" not in names:
        return {}
    rows = pair.latest.rows
    return {
        backend.decode("utf-8", "replace"): is_on == 1
        for backend, is_on in zip(rows["backend"].tolist(), rows["is_on"].tolist())
    }


# -- the time zone --

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,31}(?:/[A-Za-z0-9_+-]{1,32}){0,2}")


def local_zone(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> str | None:
    """Return the name of this machine's time zone, such as Europe/Paris; None if unknown.

    Sources: the variable TZ, the link /etc/localtime; without any of them the C library uses UTC.
    """
    link = root / "etc/localtime"
    named = os.path.realpath(link) if os.path.lexists(link) else ""
    found = environment.get("TZ", named).removeprefix(":").rpartition("zoneinfo/")[2] or "UTC"
    return found if _NAME.fullmatch(found) else None
