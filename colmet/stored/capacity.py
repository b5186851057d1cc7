"""Stored CPUs and tasks of jobs and nodes: upper limits for the growth of their counters of time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from colmet.common.growth import CAPACITY_COLUMNS, NODE_CPUS, Capacity, ceiling, largest, of_columns
from colmet.common.measures import CGROUP_TABLE
from colmet.stored.series import NODE, History, RowQuery, Series, each_series


def of_job(series: Series) -> Capacity:
    """Return the largest CPUs and tasks at one time in rows of `cgroup_default`."""
    return of_columns({name: series.values(name) for name in CAPACITY_COLUMNS})


def capacities(
    history: History,
    job: int,
    since: float | None = None,
    until: float | None = None,
    hosts: Collection[str] | None = None,
    rows: Iterable[Series] | None = None,
) -> dict[str, Capacity]:
    """Return the CPUs and tasks of a job on each host in an interval, or of the nodes; by default the CPUs of the node.

    `rows` are those of the job in `cgroup_default`, if already read; `RowQuery` has the other arguments.
    """
    found: dict[str, Capacity] = {}
    if job != NODE:
        if rows is None:
            rows = each_series(history, RowQuery(job, CGROUP_TABLE, CAPACITY_COLUMNS, since, until, hosts))
        found = {series.host: of_job(series) for series in rows}
        is_whole = found.keys() >= set(found if hosts is None else hosts)
        if found and is_whole and not any(np.isnan(one.cpus) for one in found.values()):
            return found
    table, column = NODE_CPUS
    for series in each_series(history, RowQuery(NODE, table, [column], since, until, hosts)):
        of_it = found.get(series.host, Capacity())
        if np.isnan(of_it.cpus):
            found[series.host] = of_it._replace(cpus=largest(series.values(column)))
    return found


def ceilings(table: str, column: str, found: Mapping[str, Capacity]) -> dict[str, float]:
    """Return, by host, the largest growth of a column of time, in seconds per second."""
    return {host: float(ceiling(table, column, capacity)) for host, capacity in found.items()}
