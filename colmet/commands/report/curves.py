"""The curves of a report: what the job did over time, on each host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from colmet.commands.report.energy import Share
from colmet.commands.report.gpus import SUMMED
from colmet.commands.report.model import Curve, Number
from colmet.common.growth import ceiling, rates
from colmet.common.measures import MEMORY
from colmet.stored.curves import Line, broken, once, thinned
from colmet.stored.stays import CPU_COLUMNS, NS, PROCESSES, TASKS, Stay

MOST_POINTS = 400  # of a line

Places = Sequence[tuple[str, str, float]]  # table, column, by what its values are multiplied; the first that is there

RATES: Sequence[tuple[str, str, str, Places]] = (
    ("cpu", "CPU", "cores", [(table, column, NS) for table, column in CPU_COLUMNS]),
    ("waiting", "Waiting for a CPU", "tasks", [(TASKS, "cpu_delay_total", NS)]),
    ("read", "Read", "bytes/s", [(TASKS, "read_bytes", 1.0), (PROCESSES, "read_bytes", 1.0)]),
    ("written", "Written", "bytes/s", [(TASKS, "write_bytes", 1.0), (PROCESSES, "write_bytes", 1.0)]),
)
VALUES: Sequence[tuple[str, str, str, Places]] = (
    ("memory", "Memory", "bytes", [source[:3] for source in MEMORY.sources]),
    ("gpu", "GPU", "percent", [(SUMMED, "utilization-gpu", 1.0)]),
)
ORDER = ("cpu", "memory", "waiting", "read", "written", "gpu", "power")


def curves_of(stays: Sequence[Stay], shares: Mapping[str, Share]) -> tuple[Curve, ...]:
    """All curves that there are.

    Args:
        stays: the job's rows, by host.
        shares: of the energy of the hosts of which it is known.
    """
    bounds = {
        "cpu": _same([stay.cpus for stay in stays]),
        "memory": _same([stay.memory_limit for stay in stays]),
        "gpu": 100.0,
    }
    found = [
        Curve(name, title, unit, lines, bounds.get(name))
        for tables in (RATES, VALUES)
        for name, title, unit, places in tables
        for lines in [_lines(stays, places, tables is RATES)]
    ]
    found.append(Curve("power", "Power, the job's share", "watts", tuple(_power(shares))))
    return tuple(sorted([curve for curve in found if curve.lines], key=lambda curve: ORDER.index(curve.name)))


def _same(values: Sequence[Number]) -> Number:
    return values[0] if len(set(values)) == 1 else None


def _lines(stays: Sequence[Stay], places: Places, is_rate: bool) -> tuple[Line, ...]:
    lines = []
    for stay in stays:
        for table, column, factor in places:
            series = stay.tables.get(table)
            if series is None:
                continue
            values = series.values(column) * factor
            if not np.isnan(values).all():
                if is_rate:
                    most = float(ceiling(table, column, stay.capacity))
                    times, _, values = rates(series.times, values, most)
                else:
                    times, values = broken(*once(series.times, values))
                if not np.isnan(values).all():
                    lines.append(thinned(Line(stay.host, "", times, values), MOST_POINTS))
                break
    return tuple(lines)


def _power(shares: Mapping[str, Share]) -> Sequence[Line]:
    lines = [
        Line(host, "", *broken(share.steps.ends, share.job / (share.steps.ends - share.steps.starts)))
        for host, share in shares.items()
    ]
    return [thinned(line, MOST_POINTS) for line in lines if not np.isnan(line.values).all()]
