"""The stored rows of each host, from any store, and the rows that are missing.

They are missing by the ledgers of the hosts; of a job without one, by the steps between its rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from colmet.common.lines import JobCompleteness, JobGap
from colmet.stored.gap_finder import (
    GapFinder,
    LedgerRow,
    ReportedGap,
    TableCompleteness,
    TableGap,
    Times,
    cadence_s,
    holes_of_job,
    of_job,
)
from colmet.stored.job_rows import OUTLINE_COLUMNS, HostJob, JobInterval, JobRows, Outline
from colmet.stored.series import NODE, History, RowQuery, Series

LEDGER, GAPS = "completeness_default", "gaps_default"
# Columns of both: texts, then counts.
LEDGER_COLUMNS: Mapping[str, tuple[str, ...]] = {
    LEDGER: ("table", "epoch", "period", "is_last", "due", "taken", "failed", "late", "rows", "rows_now"),
    GAPS: ("table", "why", "epoch", "first", "last", "samples", "first_batch"),
}
MAX_SAMPLES = 10**7  # of one gap
DELAY_S = 150  # longest time from the measurement of a row to its storage
LATER_S = 600  # after the last row, the search range for rows of the nodes themselves
NODE_TABLES = ("procstats_default", "RAPLstats_default", "ipmipowerstats_default")
MARGIN_S = 600  # around a job, for the rows of the ledger before its first row and after its last
UNSEEN = "not here: the job was not measured from its start on"
SILENT = "not here: nothing has come of the node since"
UNKNOWN = "not here, and there is no ledger that would say why"


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

    def note(self, series: Series, about: set[str] | None = None) -> None:
        """Add the rows of `LEDGER` or `GAPS` about some tables, all by default; none if a column has another type."""
        kinds = {column: values.dtype.kind for column, values in series.columns.items()}
        texts = ("table", "why")
        if any(kinds.get(one) != ("S" if one in texts else "i") for one in LEDGER_COLUMNS[series.table]):
            return
        for n, time_s in enumerate(series.times.tolist()):
            row = {column: series.columns[column][n].item() for column in LEDGER_COLUMNS[series.table]}
            table = row["table"].decode("ascii", "replace")
            if about is not None and table not in about:
                continue
            if series.table == LEDGER:
                counts = [max(0, row[name]) for name in ("due", "taken", "failed", "late", "rows", "rows_now")]
                ends = row["is_last"] == 1
                self.accounts[table].append(LedgerRow(time_s, row["epoch"], row["period"] / 1e6, ends, *counts))
            else:
                why, times = row["why"].decode("ascii", "replace"), (max(0, row["first"]), max(0, row["last"]))
                samples = min(row["samples"], MAX_SAMPLES)
                self.reported.append(ReportedGap(time_s, table, why, row["epoch"], *times, samples, row["first_batch"]))


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


class FoundRows(NamedTuple):
    """The rows of a job on some hosts: by table, and the gaps before the first and after the last rows."""

    lines: list[TableOnHost]
    unseen: list[JobGap]


def hosts_of(history: History, asked: JobInterval) -> dict[str, JobCompleteness]:
    """Return the completeness by host; empty for a job without rows."""
    rows = JobRows(history, asked, OUTLINE_COLUMNS)
    if rows.outline is None:
        return {}
    tables = history.tables(NODE, rows.outline.start, rows.outline.last)
    found: dict[str, FoundRows] = {}
    for hosts in rows.groups():
        found.update({stored.host: FoundRows([], []) for stored in hosts})
        lines, unseen = found_of(rows, hosts, tables)
        for line in lines:
            found[line.host].lines.append(line)
        for gap in unseen:
            found[gap.host].unseen.append(gap)
    return {host: completeness_of([one]) for host, one in found.items()}


def completeness_of(found: Iterable[FoundRows]) -> JobCompleteness:
    """Return the completeness of a job's rows on some hosts."""
    parts = list(found)
    lines = [line for part in parts for line in part.lines]
    unseen = [gap for part in parts for gap in part.unseen]
    by_ledger = sum(line.found.until > 0 for line in lines)
    gaps = [
        JobGap(host, gap.first, gap.last, gap.why, tuple(sorted(rows)), sum(rows.values()))
        for host, gap, rows in gathered(lines)
    ]
    return JobCompleteness(
        here=sum(line.found.here for line in lines),
        missing=sum(line.found.missing for line in lines) + sum(gap.rows for gap in unseen),
        method="ledger" if by_ledger == len(lines) else "mixed" if by_ledger else "steps",
        gaps=(*gaps, *unseen),
    )


def found_of(rows: JobRows, hosts: Sequence[HostJob], tables: Mapping[str, Sequence[str]]) -> FoundRows:
    """Return the rows of each table of some hosts; `tables` are those of the nodes themselves, with their columns.

    Rows of other jobs are not read: their missing rows leave no hole in this job's.
    """
    outline = rows.outline
    assert outline is not None, "there are rows"
    accounts = {stored.host: StoredHost() for stored in hosts}
    for stored in hosts:
        for table, series in stored.tables.items():
            accounts[stored.host].add(table, rows.job, series.times)
    since, until = outline.first - MARGIN_S, outline.last + MARGIN_S
    of_job = {table for stored in hosts for table in stored.tables}
    for name, wanted in LEDGER_COLUMNS.items():
        if set(wanted) <= set(tables.get(name, ())):
            for series in rows.read(RowQuery(NODE, name, wanted, since, until, list(accounts))):
                accounts[series.host].note(series, of_job | {"*"})
    lines = [
        _by_steps(line, accounts[line.host].times[line.table][rows.job])
        for line in look(accounts, rows.job, None, None)
    ]
    return FoundRows(lines, [] if outline.period_s is None else _unseen(rows, hosts, tables, outline, outline.period_s))


def is_past(times: Times, last: int) -> bool:
    """Return whether rows at these times, one a sample, go on after one at this time."""
    return bool(times[-1] > last + 1.5 * (cadence_s(times, 0) or 1) + 1)


def _unseen(
    rows: JobRows, hosts: Sequence[HostJob], tables: Mapping[str, Sequence[str]], outline: Outline, period_s: float
) -> list[JobGap]:
    """Return the gaps before the first rows, and of hosts silent up to the end of the job."""
    delay_s, end = DELAY_S + period_s, outline.last
    found = [
        _lacks(stored, stored.start, stored.first, UNSEEN, period_s)
        for stored in hosts
        if stored.first > stored.start + delay_s
    ]
    early = {stored.host: stored for stored in hosts if stored.last < end - delay_s}
    table = next((name for name in NODE_TABLES if name in tables), None)
    if not early or table is None:
        return found
    for node in rows.read(RowQuery(NODE, table, [], outline.earliest_last - LATER_S, end, list(early))):
        stored = early[node.host]
        if is_past(node.times, stored.last):
            continue  # the job has left the host
        found.append(_lacks(stored, stored.last, end, SILENT, period_s))
    return found


def _lacks(stored: HostJob, first: int, last: int, why: str, period_s: float) -> JobGap:
    rows = 0
    for series in stored.tables.values():
        once = series.seconds
        rows += round((last - first) / cadence_s(once, stored.period_s or period_s) * len(series) / len(once))
    return JobGap(stored.host, first, last, why, tuple(sorted(stored.tables)), rows)


def _by_steps(line: TableOnHost, times: Times) -> TableOnHost:
    """Return a table without a ledger with its gaps, from unusually wide steps between rows."""
    if line.found.until:
        return line
    gaps: list[TableGap] = [gap._replace(why=UNKNOWN) for gap in holes_of_job(times)]
    return line._replace(
        found=TableCompleteness(line.found.here, sum(gap.rows for gap in gaps), tuple(gaps), line.found.twice, 0)
    )
