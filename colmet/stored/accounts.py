"""The stored rows of each host, from any store, and the rows that are missing by the host's ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from colmet.stored.gap_finder import GapFinder, LedgerRow, ReportedGap, TableCompleteness, TableGap, Times, of_job
from colmet.stored.series import Series

LEDGER, GAPS = "completeness_default", "gaps_default"
# Columns of both: texts, then counts.
LEDGER_COLUMNS: Mapping[str, tuple[str, ...]] = {
    LEDGER: ("table", "epoch", "period", "is_last", "due", "taken", "failed", "late", "rows", "rows_now"),
    GAPS: ("table", "why", "epoch", "first", "last", "samples"),
}
TEXTS = ("table", "why")
MAX_SAMPLES = 10**7  # of one gap


class StoredHost:
    """The stored rows of one host.

    Attributes:
        times: of rows, in seconds, by table and job.
        accounts: rows of the ledger, by table.
        reported: gaps that the node reported.
    """

    def __init__(self) -> None:
        self.times: dict[str, dict[int, Times]] = defaultdict(dict)
        self.accounts: dict[str, list[LedgerRow]] = defaultdict(list)
        self.reported: list[ReportedGap] = []

    def add(self, table: str, job: int, times: Times) -> None:
        """Add the rows of one file; rows also stored in another file count once."""
        times = np.sort(times)
        there = self.times[table].get(job)
        if there is not None:
            (old, counts), (new, more) = [np.unique(some, return_counts=True) for some in (there, times)]
            both = np.union1d(old, new)
            most = np.zeros(len(both), np.int64)
            for some, count in ((old, counts), (new, more)):
                at = np.searchsorted(both, some)
                most[at] = np.maximum(most[at], count)
            times = np.repeat(both, most)
        self.times[table][job] = times

    def note(self, table: str, row: Mapping[str, Any]) -> None:
        """Add a row of `LEDGER` or `GAPS`, with its `timestamp`."""
        about = row["table"].decode("ascii", "replace")
        numbers = {name: int(value) for name, value in row.items() if isinstance(value, (int, float))}
        if table == LEDGER:
            columns = ("due", "taken", "failed", "late", "rows", "rows_now")
            self.accounts[about].append(
                LedgerRow(
                    *(numbers["timestamp"], numbers["epoch"], numbers["period"] / 1e6, numbers["is_last"] == 1),
                    *[max(0, numbers[name]) for name in columns],
                )
            )
        else:
            why = row["why"].decode("ascii", "replace")
            times = max(0, numbers["first"]), max(0, numbers["last"])
            self.reported.append(
                ReportedGap(
                    numbers["timestamp"], about, why, numbers["epoch"], *times, min(numbers["samples"], MAX_SAMPLES)
                )
            )


def ledger_rows(series: Series, about: set[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of `LEDGER` or `GAPS` about some tables, all by default; none if a column has another type."""
    columns = LEDGER_COLUMNS[series.table]
    kinds = {column: values.dtype.kind for column, values in series.columns.items()}
    if any(kinds.get(column) != ("S" if column in TEXTS else "i") for column in columns):
        return
    tables = series.columns["table"]
    wanted = np.ones(len(series), bool) if about is None else np.isin(tables, [table.encode() for table in about])
    for n in np.flatnonzero(wanted).tolist():
        row = {column: series.columns[column][n] for column in columns}
        row.update({column: int(row[column]) for column in columns if column not in TEXTS})
        yield {**row, "timestamp": int(series.times[n])}


class TableOnHost(NamedTuple):
    """The stored and the missing rows of one table of one host."""

    host: str
    table: str
    found: TableCompleteness

    @property
    def due(self) -> int:
        """Return the number of due rows: stored or missing."""
        return self.found.here + self.found.missing


def look(hosts: dict[str, StoredHost], job: int | None, since: int | None, until: int | None) -> Iterator[TableOnHost]:
    """Yield the stored and the missing rows in an interval, by host and table; of a job, from its first to its last."""
    for name, host in sorted(hosts.items()):
        began = min(int(times[0]) for jobs in host.times.values() for times in jobs.values() if len(times))
        of_it = [jobs[job] for jobs in host.times.values() if job in jobs] if job is not None else []
        if job is not None and not of_it:
            continue
        every = of_it or [times for jobs in host.times.values() for times in jobs.values()]
        first, last = min(int(times[0]) for times in every), max(int(times[-1]) for times in every)
        first, last = max(first, since or first), min(last, last if until is None else until)
        for table in sorted({*host.times, *host.accounts} - {"*"}):
            jobs = host.times.get(table, {})
            if job is not None and job not in jobs:
                continue
            found = GapFinder(table, jobs, host.accounts.get(table, ()), host.reported, began).find()
            if job is not None:
                times = jobs[job]
                period_s = max([one.period_s for one in host.accounts.get(table, ())], default=0)
                gaps = of_job(job, times, found.gaps, first, last, period_s)
            else:
                times = np.sort(np.concatenate([np.empty(0, np.int64), *jobs.values()]))
                gaps = [gap for gap in found.gaps if gap.last >= first and gap.first <= last]
            if since is not None or until is not None or job is not None:
                here = int(np.count_nonzero((times >= first) & (times <= last)))
                twice = found.twice if job is None else 0  # counted by host, not by job
                found = TableCompleteness(here, sum(gap.rows for gap in gaps), tuple(gaps), twice, found.until)
            yield TableOnHost(name, table, found)


def gathered(lines: Iterable[TableOnHost]) -> list[tuple[str, TableGap, dict[str, int]]]:
    """Return the gaps of all tables, merged by time and cause: host, gap, missing rows by table."""
    together: dict[tuple[str, int, int, str], tuple[str, TableGap, dict[str, int]]] = {}
    for line in lines:
        for gap in line.found.gaps:
            key = line.host, gap.first, gap.last, gap.why
            rows = together.setdefault(key, (line.host, gap, {}))[2]
            rows[line.table] = rows.get(line.table, 0) + gap.rows
    return [together[key] for key in sorted(together)]
