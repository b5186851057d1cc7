"""The curves of a report: the job's activity over time, on each host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from colmet.common.growth import ceiling, rates
from colmet.common.measures import (
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
from colmet.report.energy import Share
from colmet.report.model import Curve, Line, Number
from colmet.stored.curves import broken, once, thinned
from colmet.stored.stays import Stay

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


def lines_of(stays: Sequence[Stay], shares: Mapping[str, Share]) -> Lines:
    """Return the lines of some hosts, from the job's rows and its shares of the energy."""
    return {
        **{name: _lines(stays, sources, is_rate) for name, _, _, is_rate, sources in CURVES},
        "power": _power(shares),
    }


def curves_of(stays: Sequence[Stay], lines: Mapping[str, Sequence[Line]]) -> tuple[Curve, ...]:
    """Return all curves with lines."""
    bounds = {
        "cpu": _same([stay.cpus for stay in stays]),
        "memory": _same([stay.memory_limit for stay in stays]),
        "gpu": 100.0,
    }
    found = [Curve(name, title, unit, tuple(lines[name]), bounds.get(name)) for name, title, unit, _, _ in CURVES]
    found.append(Curve("power", "Power, the job's share", "watts", tuple(lines["power"])))
    return tuple([curve for curve in found if curve.lines])


def _same(values: Sequence[Number]) -> Number:
    return values[0] if len(set(values)) == 1 else None


def _lines(stays: Sequence[Stay], sources: Sequence[Source], is_rate: bool) -> list[Line]:
    lines = []
    for stay in stays:
        for source in sources:
            series = stay.tables.get(source.table)
            if series is None:
                continue
            values = series.values(source.column) * source.unit.factor
            if not np.isnan(values).all():
                if is_rate:
                    most = float(ceiling(source.table, source.column, stay.capacity))
                    times, _, values = rates(series.times, values, most)
                else:
                    times, values = broken(*once(series.times, values))
                if not np.isnan(values).all():
                    lines.append(thinned(Line(stay.host, "", times, values), MOST_POINTS))
                break
    return lines


def _power(shares: Mapping[str, Share]) -> list[Line]:
    lines = [
        Line(host, "", *broken(share.steps.ends, share.job / (share.steps.ends - share.steps.starts)))
        for host, share in shares.items()
    ]
    return [thinned(line, MOST_POINTS) for line in lines if not np.isnan(line.values).all()]
