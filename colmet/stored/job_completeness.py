"""The completeness of a job's rows: by the ledgers of its hosts, else by the steps between rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from colmet.common.lines import JobCompleteness, JobGap
from colmet.stored.accounts import LEDGER_COLUMNS, StoredHost, TableOnHost, gathered, ledger_rows, look
from colmet.stored.gap_finder import TableCompleteness, TableGap, Times, cadence_s, holes_of_job
from colmet.stored.job_rows import OUTLINE_COLUMNS, HostJob, JobInterval, JobRows, Outline
from colmet.stored.series import NODE, History, RowQuery

DELAY_S = 150  # longest time from the measurement of a row to its storage
LATER_S = 600  # after the last row, the search range for rows of the nodes themselves
NODE_TABLES = ("procstats_default", "RAPLstats_default", "ipmipowerstats_default")
MARGIN_S = 600  # around a job, for the rows of the ledger before its first row and after its last
UNSEEN = "not here: the job was not measured from its start on"
SILENT = "not here: nothing has come of the node since"
UNKNOWN = "not here, and there is no ledger that would say why"


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
                for row in ledger_rows(series, of_job | {"*"}):
                    accounts[series.host].note(name, row)
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
    """Return a gap of all tables of a job on a host, before its first row or after its last one."""
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
