"""The summary of a whole job, from those of its hosts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from colmet.archive import footprint
from colmet.archive.columns import (
    ADVICE,
    FIRST,
    FOOTPRINT,
    INTEGER,
    MEASURED,
    OWN,
    SAME,
    JobColumn,
    Summary,
    Value,
    whole_of,
)
from colmet.archive.footprint import Footprint
from colmet.archive.reports import footprints_of, report_of
from colmet.common.live.namesakes import counted_once
from colmet.common.measures import ALL, MAX, SUM
from colmet.report.advice import advise, withheld

APART_S = 600  # hosts that begin so long after the end of all others are of another run


def runs_of(hosts: Iterable[Summary]) -> list[list[Summary]]:
    """Return the summaries of one job id by runs: one job, or several with one id, one after the other.

    On a host each run has one summary.
    """
    runs: list[list[Summary]] = []
    ends: dict[object, int] = {}
    for host in sorted(hosts, key=lambda one: (whole_of(one.get("start")), str(one["host"]))):
        start, last = whole_of(host.get("start")), whole_of(host.get("last"))
        if not runs or host["host"] in ends or start > max(ends.values()) + APART_S:
            runs.append([])
            ends = {}
        runs[-1].append(host)
        ends[host["host"]] = last
    return runs


def job_summary(run: Sequence[Summary]) -> dict[str, Value]:
    """Return the summary of a job from those of all its hosts; two agents on one machine count once."""
    names = set(counted_once([str(one["host"]) for one in run]))
    hosts = sorted([one for one in run if one["host"] in names], key=lambda one: str(one["host"]))
    start = min(whole_of(one.get("start")) for one in run)
    found: dict[str, Value] = {"job": run[0]["job"], "start": start}
    for column in MEASURED:
        found[column.name] = _folded(column, [one.get(column.name) for one in hosts])
    found["wall_s"] = float(max(whole_of(one.get("last")) for one in run) - start)
    used, held = found["cpu_s"], found["core_s"]
    if isinstance(used, (int, float)) and isinstance(held, (int, float)):
        found["cpu_ratio"] = min(1.0, used / held) if held else None
        found["wasted_core_s"] = max(0.0, held - used)
    else:
        found["cpu_ratio"] = found["wasted_core_s"] = None
    sources = {part for one in hosts for part in str(one.get("energy_source") or "").split(" and ") if part}
    found["energy_source"] = " and ".join(sorted(sources)) or None
    curves = footprints_of(hosts)
    found[FOOTPRINT.name] = _footprint(hosts, curves)
    found[ADVICE.name] = advice_of(found, hosts, curves)
    return found


def _footprint(hosts: Sequence[Summary], curves: Sequence[tuple[Summary, Footprint]]) -> Value:
    """Return the curves of all hosts together."""
    if len(hosts) == 1:
        return hosts[0].get(FOOTPRINT.name)
    summed = footprint.summed([(whole_of(one.get("start")), found) for one, found in curves])
    return None if summed is None else footprint.encode(summed)


def _folded(column: JobColumn, values: Sequence[Value]) -> Value:
    """Return the value of a job from those of its hosts."""
    known: list[Any] = [value for value in values if value is not None]
    how = column.hosts
    if how == OWN or not known or (how == ALL and len(known) < len(values)):
        return None
    if how in (SUM, ALL):
        return sum(known) if column.kind == INTEGER else math.fsum(known)
    if how == SAME:
        return known[0] if known.count(known[0]) == len(known) else None
    found: Value = known[0] if how == FIRST else max(known) if how == MAX else min(known)
    return found


def advice_of(
    job: Summary, hosts: Sequence[Summary], curves: Sequence[tuple[Summary, Footprint]] | None = None
) -> str | None:
    """Return the advice on a job as JSON; None if there are too few samples. For `curves` see `report_of`."""
    report = report_of(job, hosts, curves)
    if withheld(report):
        return None
    return json.dumps([{"rule": one.rule, "text": one.text} for one in advise(report)], ensure_ascii=False)
