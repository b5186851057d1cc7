"""The report of a job, made from its stored rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from colmet.commands.report import gpus
from colmet.commands.report.advice import advise, withheld
from colmet.commands.report.curves import curves_of
from colmet.commands.report.energy import energy_of, shares_of
from colmet.commands.report.figures import (
    COLUMNS,
    cpu_of,
    host_of,
    io_of,
    memory_of,
    shared_of,
    whereabouts_of,
)
from colmet.commands.report.model import Number, Report
from colmet.common.measures import SWITCHES, SWITCHES_INVOLUNTARY
from colmet.common.runtime.plural import some_of
from colmet.stored.accounts import GAPS, LEDGER
from colmet.stored.job_completeness import DELAY_S, LATER_S, NODE_TABLES, completeness_of, is_past
from colmet.stored.series import NODE, History
from colmet.stored.stays import JobInterval, Stay, added, largest, read_stays

RUNNING, ENDED, UNKNOWN = "running", "ended", "unknown"
RARE = frozenset({LEDGER, GAPS, "agent_default", "mapping_default"})  # not at every tick


def gather(history: History, asked: JobInterval, now: float) -> Report | None:
    """Return the report of a job at a time; None if it has no rows; ColmetError if the store cannot be read."""
    job = asked.job
    stays = read_stays(history, asked, {**COLUMNS, **gpus.COLUMNS})
    if not stays:
        return None
    start, end = min(stay.start for stay in stays), max(stay.last for stay in stays)
    tables = history.tables(NODE, start, end)
    shares = shares_of(history, job, stays, tables)
    of_gpus = gpus.gpus_of(history, stays, tables)
    report = Report(
        job=job,
        user=next((stay.user for stay in stays if stay.user), ""),
        state=state_of(history, asked, stays, [name for name in tables if name not in RARE], now),
        start=start,
        end=end,
        wall_s=float(end - start),
        since=asked.since,
        until=asked.until,
        samples=max(stay.samples for stay in stays),
        period_s=_period_s(stays),
        cpu=cpu_of(stays),
        time=whereabouts_of(stays),
        memory=memory_of(stays),
        io=io_of(stays),
        nodes=shared_of(history, stays, tables),
        gpus=of_gpus,
        energy=energy_of(shares, stays, added(gpu.energy_joules for gpu in of_gpus)),
        completeness=completeness_of(history, job, stays, tables),
        hosts=tuple(host_of(stay, shares[stay.host].job_joules if stay.host in shares else None) for stay in stays),
        curves=curves_of(stays, shares),
        switches=added(stay.total(SWITCHES) for stay in stays),
        involuntary_switches=added(stay.total(SWITCHES_INVOLUNTARY) for stay in stays),
        tasks_peak=largest(stay.tasks_peak for stay in stays),
        warnings=(*_left_out(stays), *history.warnings),
    )
    why = withheld(report)
    return replace(report, advice_withheld=why, advice=() if why else advise(report))


def _left_out(stays: Sequence[Stay]) -> Sequence[str]:
    """Return warnings about CPU time missing from the sums: no rows, or impossible values."""
    found = []
    unknown = [stay.host for stay in stays if stay.cpu_s is None]
    if unknown and len(unknown) < len(stays):
        found.append(f"the CPU time on {some_of(unknown, 3)} is not known, and not in the sum")
    wrong = [stay.host for stay in stays if stay.cpu_left_out]
    if wrong:
        found.append(
            f"rows of {some_of(wrong, 3)} have more CPU time than its CPUs can have run, and that is not in the sum: "
            "they are of two nodes of one name, or were counted before the first row"
        )
    return found


def _period_s(stays: Sequence[Stay]) -> Number:
    periods = [stay.period_s for stay in stays if stay.period_s is not None]
    return float(np.median(periods)) if periods else None


def state_of(history: History, asked: JobInterval, stays: Sequence[Stay], tables: Sequence[str], now: float) -> str:
    """Return whether the job still runs, from the stored rows.

    A job has ended if its latest nodes have later rows without it, or are silent. Else it counts as running while its
    last row is within the normal delay.
    """
    last = {stay.host: stay.last for stay in stays}
    if asked.until is not None:  # rows may follow the interval
        table = max(stays[0].tables, key=lambda name: len(stays[0].tables[name]))
        for series in history.read(asked.job, table, [], asked.until, None, list(last)):
            if len(series):
                last[series.host] = max(last[series.host], int(series.times[-1]))
    end = max(last.values())
    late_s = DELAY_S + (largest(stay.period_s for stay in stays) or 0)
    latest = [host for host, time in last.items() if time >= end - late_s]
    table = next((name for name in NODE_TABLES if name in tables), next(iter(sorted(tables)), ""))
    later = history.read(NODE, table, [], end - LATER_S, end + LATER_S, latest) if table else []
    gone = {series.host for series in later if is_past(series.times, last[series.host])}
    if gone and all(host in gone or now - last[host] > late_s for host in latest):
        return ENDED
    return RUNNING if now - end <= late_s else UNKNOWN
