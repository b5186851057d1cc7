"""Why a job or a node has no rows of a table: what is known for certain, by the nodes' reports if there are any."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from colmet.common.live.latest_tables import HostTables
from colmet.common.runtime.quantities import some_of
from colmet.common.tables import schemas
from colmet.web.recent_cache import AGENT_TABLE

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
    """Return why each table is missing, by its name, where hosts report the state of its backend.

    Args:
        scope: of the tables: "job" or "node".
        hosts: those of a job, or one node, with their latest tables.
        there: names of the tables with rows.
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
    parts = [
        f"off on {some_of(off, MOST_HOSTS)}{_by(source)}" if off else "",
        f"on, but not measuring on {some_of(failing, MOST_HOSTS)}: `colmet doctor` there names why" if failing else "",
        f"measured on {some_of(measured, MOST_HOSTS)}, which sent no rows of it" if measured else "",
    ]
    return "; ".join([part for part in parts if part])


def _by(source: _Source) -> str:
    how = "with" if source.option.startswith("--disable") else "without"
    return f" (colmet-node runs {how} {source.option})" if source.option else ""


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
