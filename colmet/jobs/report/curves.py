"""The curves of a report: the job's activity over time, on each host."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from colmet.common.growth import Capacity, ceiling, rates
from colmet.common.lines import Line
from colmet.common.measures import (
    CGROUP_TABLE,
    CHARGED_READ,
    CHARGED_WRITE,
    CPU_USED,
    JOB_GPU_USE,
    MEMORY,
    PROCESSES,
    TASKS,
    WAIT_CPU,
    Source,
)
from colmet.jobs.figures import Curve, HostFigures, Number
from colmet.jobs.report.energy import NodeEnergy
from colmet.stored.capacity import of_job
from colmet.stored.curves import broken, once, thinned
from colmet.stored.job_rows import HostJob

MOST_POINTS = 400  # of a line

# Name, title, unit, whether it is a rate, and the sources; the first one present on a host is drawn.
CURVES: Sequence[tuple[str, str, str, bool, Sequence[Source]]] = (
    ("cpu", "CPU", "cores", True, CPU_USED.sources),
    ("memory", "Memory", "bytes", False, MEMORY.sources),
    ("waiting", "Waiting for a CPU", "tasks", True, WAIT_CPU.sources),
    ("read", "Read", "bytes/s", True, CHARGED_READ.of(TASKS, PROCESSES)),
    ("written", "Written", "bytes/s", True, CHARGED_WRITE.of(TASKS, PROCESSES)),
    ("gpu", "GPU", "percent", False, JOB_GPU_USE.sources),
)


Lines = dict[str, list[Line]]  # by name of a curve


def lines_of(hosts: Sequence[HostJob], cpus: Mapping[str, float], energy: Mapping[str, NodeEnergy]) -> Lines:
    """Return the lines of some hosts, from the job's rows, the CPUs of its nodes, and its shares of their energy."""
    return {
        **{name: _lines(hosts, cpus, sources, is_rate) for name, _, _, is_rate, sources in CURVES},
        "power": _power(energy),
    }


def curves_of(hosts: Sequence[HostFigures], lines: Mapping[str, Sequence[Line]]) -> tuple[Curve, ...]:
    """Return all curves with lines."""
    bounds = {
        "cpu": _same([host.cpus for host in hosts]),
        "memory": _same([host.memory_limit_bytes for host in hosts]),
        "gpu": 100.0,
    }
    found = [Curve(name, title, unit, tuple(lines[name]), bounds.get(name)) for name, title, unit, _, _ in CURVES]
    found.append(Curve("power", "Power, the job's share", "watts", tuple(lines["power"])))
    return tuple([curve for curve in found if curve.lines])


def _same(values: Sequence[Number]) -> Number:
    return values[0] if len(set(values)) == 1 else None


def _lines(hosts: Sequence[HostJob], cpus: Mapping[str, float], sources: Sequence[Source], is_rate: bool) -> list[Line]:
    lines = []
    for stored in hosts:
        for source in sources:
            series = stored.tables.get(source.table)
            if series is None:
                continue
            values = series.values(source.column) * source.unit.factor
            if not np.isnan(values).all():
                if is_rate:
                    most = float(ceiling(source.table, source.column, _capacity(stored, cpus)))
                    times, _, values = rates(series.times, values, most)
                else:
                    times, values = broken(*once(series.times, values))
                if not np.isnan(values).all():
                    lines.append(thinned(Line(stored.host, "", times, values), MOST_POINTS))
                break
    return lines


def _capacity(stored: HostJob, cpus: Mapping[str, float]) -> Capacity:
    """Return the CPUs and tasks of the job on a host, as far as known."""
    series = stored.tables.get(CGROUP_TABLE)
    found = Capacity() if series is None else of_job(series)
    return found._replace(cpus=cpus.get(stored.host, math.nan)) if np.isnan(found.cpus) else found


def _power(energy: Mapping[str, NodeEnergy]) -> list[Line]:
    lines = [Line(host, "", *broken(one.ends, one.job / (one.ends - one.starts))) for host, one in energy.items()]
    return [thinned(line, MOST_POINTS) for line in lines if not np.isnan(line.values).all()]
