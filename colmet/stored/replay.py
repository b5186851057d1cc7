"""Stored rows as batches again, in the order of time: what the nodes sent, for the fold of the job archive."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from colmet.common.schema import MISSING_INT, Batch, Schema, Table
from colmet.common.tables import schemas
from colmet.stored.series import Series

NS = 1_000_000_000
# Tables with a row at each tick; those of others may be measured between ticks, and are sent with the next one.
TICKS = frozenset({"procstats_default", "cgroup_default", "taskstats_default", "jobprocstats_default"})
LONGEST_WAIT_S = 3600  # of other rows for a tick of their host


def schema_of(table: str, columns: Collection[str]) -> Schema:
    """Return one of Colmet's schemas with some of its columns."""
    whole = schemas()[table]
    return Schema(whole.name, whole.scope, [field for field in whole.fields if field.name in columns])


class Replay:
    """Rows of some hosts as batches by time, one for each tick of a host; without lists of jobs.

    Args:
        columns: those to read, by table; other tables are left out.
    """

    def __init__(self, columns: Mapping[str, Collection[str]]) -> None:
        self._schemas = {table: schema_of(table, some) for table, some in columns.items()}
        self._waiting: list[Series] = []  # rows that were measured after the last tick of their host

    def batches(self, series: Iterable[Series], is_last: bool = True) -> Iterator[Batch]:
        """Yield the rows of an interval, which follows that of the call before; `is_last` for no further ones."""
        of_host: dict[str, dict[str, list[Series]]] = {}
        waiting, self._waiting = self._waiting, []
        for one in (*waiting, *series):
            if one.table in self._schemas and len(one):
                of_host.setdefault(one.host, {}).setdefault(one.table, []).append(one)
        if not is_last:
            for tables in of_host.values():
                self._hold(tables)
        hosts = [_of_host(host, tables, self._schemas) for host, tables in sorted(of_host.items()) if tables]
        yield from heapq.merge(*hosts, key=attrgetter("time_ns"))

    def _hold(self, tables: dict[str, list[Series]]) -> None:
        """Keep the rows of a host that are sent with its next tick."""
        ticks = [int(one.times[-1]) for table, some in tables.items() if table in TICKS for one in some]
        newest = max([int(one.times[-1]) for some in tables.values() for one in some])
        last = max(ticks, default=newest - LONGEST_WAIT_S)
        for table in [table for table in tables if table not in TICKS]:
            ready = []
            for one in tables.pop(table):
                rest = one.within(last + 1, newest)
                if len(rest):  # copies: else the arrays of the whole interval would stay
                    kept = {name: column.copy() for name, column in rest.columns.items()}
                    self._waiting.append(replace(rest, times=rest.times.copy(), columns=kept))
                ready.append(one.within(int(one.times[0]), last))
            ready = [one for one in ready if len(one)]
            if ready:
                tables[table] = ready


def _of_host(host: str, tables: Mapping[str, Sequence[Series]], packed: Mapping[str, Schema]) -> Iterator[Batch]:
    rows = {table: _packed(packed[table], some) for table, some in sorted(tables.items())}
    ticks = [times for table, (times, _) in rows.items() if table in TICKS]
    tick = np.unique(np.concatenate(ticks or [times for times, _ in rows.values()]))
    last = max([int(times[-1]) for times, _ in rows.values()])
    if last > tick[-1]:
        tick = np.append(tick, last)
    bounds = {table: np.searchsorted(times, tick, "right").tolist() for table, (times, _) in rows.items()}
    for n, time in enumerate(tick.tolist()):
        made: list[list[Table]] = [[]]  # the second part has rows of the next run of a job
        for table, (times, values) in rows.items():
            first, end = bounds[table][n - 1] if n else 0, bounds[table][n]
            while first < end:  # rows of one table have one time
                stop = min(end, int(np.searchsorted(times, times[first], "right")))
                for place, part in enumerate(
                    _once_each(values[first:stop]) if table in TICKS else (values[first:stop],)
                ):
                    if place == len(made):
                        made.append([])
                    made[place].append(Table(packed[table], int(times[first]) * NS, part.tobytes()))
                first = stop
        for part_tables in made:
            yield Batch(host, None, None, time * NS, None, tuple(part_tables))


def _once_each(rows: npt.NDArray[np.void]) -> Iterator[npt.NDArray[np.void]]:
    """Yield rows of one time, in parts with one row of each job.

    The last row of a run may have the time of the next one's first. Early versions sent two in a job's last second.
    """
    while len(rows):
        _, firsts = np.unique(rows["job_id"], return_index=True)
        if len(firsts) == len(rows):
            yield rows
            return
        yield rows[np.sort(firsts)]
        rows = np.delete(rows, firsts)


def _packed(schema: Schema, series: Sequence[Series]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
    times = np.concatenate([one.times for one in series])
    rows = schema.empty_rows(len(times))
    at = 0
    for one in series:
        part = rows[at : at + len(one)]
        part["job_id"] = one.job
        for field in schema.fields:
            values = one.columns.get(field.name)
            if values is None:
                continue
            if field.dtype[0] == "S":
                if values.dtype.kind == "S":
                    part[field.name] = values
            elif values.dtype.kind in "iu":
                part[field.name] = values
            elif values.dtype.kind == "f":
                part[field.name] = np.where(values >= 0, values, MISSING_INT)
        at += len(one)
    order = np.argsort(times, kind="stable")
    return times[order], rows[order]
