"""The report of a job, made from its stored rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from colmet.common.measures import SWITCHES, SWITCHES_INVOLUNTARY, TASKS_ENDED
from colmet.common.text.quantities import some_of
from colmet.report import gpus
from colmet.report.advice import advise, withheld
from colmet.report.curves import Lines, curves_of, lines_of
from colmet.report.energy import NodeEnergy, energy_of, node_energy, shares_of
from colmet.report.figures import (
    COLUMNS,
    cpu_of,
    host_of,
    io_of,
    memory_of,
    shared_by_all,
    shared_of,
    whereabouts_of,
)
from colmet.report.model import GpuUse, HostFigures, Number, Report, Shared
from colmet.stored.accounts import GAPS, LEDGER
from colmet.stored.job_completeness import (
    DELAY_S,
    LATER_S,
    NODE_TABLES,
    FoundRows,
    completeness_of,
    found_of,
    is_past,
)
from colmet.stored.series import NODE, History, RowQuery
from colmet.stored.stays import JobInterval, JobRows, Stay, added, largest

RUNNING, ENDED, UNKNOWN = "running", "ended", "unknown"
RARE = frozenset({LEDGER, GAPS, "agent_default", "mapping_default"})  # not at every tick


def gather(history: History, asked: JobInterval, now: float) -> Report | None:
    """Return the report of a job at a time; None if it has no rows; ColmetError if the store cannot be read.

    The rows of a group of hosts are in memory at a time.
    """
    rows = JobRows(history, asked, {**COLUMNS, **gpus.COLUMNS})
    span = rows.outline
    if span is None:
        return None
    tables = history.tables(NODE, span.start, span.last)
    stays: list[Stay] = []
    nodes: list[NodeEnergy] = []
    hosts: list[HostFigures] = []
    of_gpus: list[GpuUse] = []
    shared: list[Shared] = []
    found: list[FoundRows] = []
    lines: Lines = defaultdict(list)
    last: dict[str, int] = {}
    longest = ""
    for group in rows.groups():
        longest = longest or group[0].longest
        shares = shares_of(rows, group, tables, span)
        of_gpus += gpus.gpus_of(rows, group, tables, span)
        shared.append(shared_of(rows, group, tables, span))
        found.append(found_of(rows, group, tables))
        for name, some in lines_of(group, shares).items():
            lines[name] += some
        for stored in group:
            energy = node_energy(shares[stored.host], stored) if stored.host in shares else None
            nodes += [] if energy is None else [energy]
            last[stored.host] = stored.last
            stay = stored.by_first_clock()
            hosts.append(host_of(stay, None if energy is None else energy.job_joules))
            _figures_of([stay])
            stays.append(stay.folded())
    if not stays:  # removed meanwhile
        return None
    start, end = min(stay.start for stay in stays), max(stay.last for stay in stays)
    report = Report(
        **_figures_of(stays),
        job=asked.job,
        state=state_of(history, asked, stays, last, longest, [name for name in tables if name not in RARE], now),
        start=start,
        end=end,
        wall_s=float(end - start),
        since=asked.since,
        until=asked.until,
        nodes=shared_by_all(shared),
        gpus=tuple(of_gpus),
        energy=energy_of(nodes, math.fsum(stay.wall_s for stay in stays), added(gpu.energy_joules for gpu in of_gpus)),
        completeness=completeness_of(found),
        hosts=tuple(hosts),
        curves=curves_of(stays, lines),
        warnings=(*_left_out(stays), *history.warnings),
    )
    why = withheld(report)
    return replace(report, advice_withheld=why, advice=() if why else advise(report))


def _figures_of(stays: Sequence[Stay]) -> dict[str, Any]:
    """Return the figures of a report from the job's own tables; of folded stays, from what these keep."""
    return {
        "user": next((stay.user for stay in stays if stay.user), ""),
        "samples": max(stay.samples for stay in stays),
        "period_s": _period_s(stays),
        "cpu": cpu_of(stays),
        "time": whereabouts_of(stays),
        "memory": memory_of(stays),
        "io": io_of(stays),
        "switches": added(stay.total(SWITCHES) for stay in stays),
        "involuntary_switches": added(stay.total(SWITCHES_INVOLUNTARY) for stay in stays),
        "tasks_peak": largest(stay.tasks_peak for stay in stays),
        "tasks_ended": added(stay.total(TASKS_ENDED) for stay in stays),
    }


def _left_out(stays: Sequence[Stay]) -> Sequence[str]:
    """Return warnings about CPU time missing from the sums: no rows, or impossible values."""
    found = []
    unknown = [stay.host for stay in stays if stay.cpu_s is None]
    if unknown and len(unknown) < len(stays):
        found.append(f"the CPU time on {some_of(unknown, 3)} is not known, and not in the sum")
    wrong = [stay.host for stay in stays if stay.cpu_left_out]
    clocks = [stay.host for stay in stays if stay.is_clock_set]
    if clocks:
        found.append(
            f"the clock of {some_of(clocks, 3)} was set while the job ran: times are by the clock at its start"
        )
    if wrong:
        found.append(
            f"rows of {some_of(wrong, 3)} have more CPU time than its CPUs can have run, and that is not in the sum: "
            "they are of two nodes of one name, or were counted before the first row"
        )
    return found


def _period_s(stays: Sequence[Stay]) -> Number:
    periods = [stay.period_s for stay in stays if stay.period_s is not None]
    return float(np.median(periods)) if periods else None


def state_of(
    history: History,
    asked: JobInterval,
    stays: Sequence[Stay],
    last: dict[str, int],
    table: str,
    tables: Sequence[str],
    now: float,
) -> str:
    """Return whether the job still runs, from the stored rows: in `table` of the job and `tables` of the nodes.

    `last` are the times of the last rows by host, as they are stored.

    A job has ended if its latest nodes have later rows without it, or are silent. Else it counts as running while its
    last row is within the normal delay.
    """
    if asked.until is not None:  # rows may follow the interval
        later_rows = history.by_hosts(RowQuery(asked.job, table, [], asked.until, None, list(last)))
        for host in last:
            for series in later_rows.read([host]):
                last[series.host] = max(last[series.host], int(series.times[-1]))
    end = max(last.values())
    late_s = DELAY_S + (largest(stay.period_s for stay in stays) or 0)
    latest = [host for host, time in last.items() if time >= end - late_s]
    of_nodes = next((name for name in NODE_TABLES if name in tables), next(iter(sorted(tables)), ""))
    later = history.read(RowQuery(NODE, of_nodes, [], end - LATER_S, end + LATER_S, latest)) if of_nodes else []
    gone = {series.host for series in later if is_past(series.times, last[series.host])}
    if gone and all(host in gone or now - last[host] > late_s for host in latest):
        return ENDED
    return RUNNING if now - end <= late_s else UNKNOWN
