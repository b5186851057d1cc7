"""The completeness of a job's rows: by the ledgers of its hosts, else by the steps between rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from colmet.report.model import JobCompleteness, JobGap
from colmet.stored.accounts import LEDGER_COLUMNS, StoredHost, TableOnHost, gathered, ledger_rows, look
from colmet.stored.gap_finder import TableCompleteness, TableGap, Times, cadence_s, holes_of_job
from colmet.stored.series import NODE, History, RowQuery
from colmet.stored.stays import OUTLINE_COLUMNS, JobInterval, JobRows, Outline, Stay

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
    for stays in rows.groups():
        found.update({stay.host: FoundRows([], []) for stay in stays})
        lines, unseen = found_of(rows, stays, tables)
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


def found_of(rows: JobRows, stays: Sequence[Stay], tables: Mapping[str, Sequence[str]]) -> FoundRows:
    """Return the rows of each table of some hosts; `tables` are those of the nodes themselves, with their columns.

    Rows of other jobs are not read: their missing rows leave no hole in this job's.
    """
    outline = rows.outline
    assert outline is not None, "there are stays"
    hosts = {stay.host: StoredHost() for stay in stays}
    for stay in stays:
        for table, series in stay.tables.items():
            hosts[stay.host].add(table, rows.job, series.times)
    since, until = outline.first - MARGIN_S, outline.last + MARGIN_S
    of_job = {table for stay in stays for table in stay.tables}
    for name, wanted in LEDGER_COLUMNS.items():
        if set(wanted) <= set(tables.get(name, ())):
            for series in rows.read(RowQuery(NODE, name, wanted, since, until, list(hosts))):
                for row in ledger_rows(series, of_job | {"*"}):
                    hosts[series.host].note(name, row)
    lines = [
        _by_steps(line, hosts[line.host].times[line.table][rows.job]) for line in look(hosts, rows.job, None, None)
    ]
    return FoundRows(lines, [] if outline.period_s is None else _unseen(rows, stays, tables, outline, outline.period_s))


def is_past(times: Times, last: int) -> bool:
    """Return whether rows at these times, one a sample, go on after one at this time."""
    return bool(times[-1] > last + 1.5 * (cadence_s(times, 0) or 1) + 1)


def _unseen(
    rows: JobRows, stays: Sequence[Stay], tables: Mapping[str, Sequence[str]], outline: Outline, period_s: float
) -> list[JobGap]:
    """Return the gaps before the first rows, and of hosts silent up to the end of the job."""
    delay_s, end = DELAY_S + period_s, outline.last
    found = [
        _lacks(stay, stay.start, stay.first, UNSEEN, period_s) for stay in stays if stay.first > stay.start + delay_s
    ]
    early = {stay.host: stay for stay in stays if stay.last < end - delay_s}
    table = next((name for name in NODE_TABLES if name in tables), None)
    if not early or table is None:
        return found
    for node in rows.read(RowQuery(NODE, table, [], outline.earliest_last - LATER_S, end, list(early))):
        stay = early[node.host]
        if is_past(node.times, stay.last):
            continue  # the job has left the host
        found.append(_lacks(stay, stay.last, end, SILENT, period_s))
    return found


def _lacks(stay: Stay, first: int, last: int, why: str, period_s: float) -> JobGap:
    """Return a gap of all tables of a job on a host, before its first row or after its last one."""
    rows = 0
    for series in stay.tables.values():
        once = series.seconds
        rows += round((last - first) / cadence_s(once, stay.period_s or period_s) * len(series) / len(once))
    return JobGap(stay.host, first, last, why, tuple(sorted(stay.tables)), rows)


def _by_steps(line: TableOnHost, times: Times) -> TableOnHost:
    """Return a table without a ledger with its gaps, from unusually wide steps between rows."""
    if line.found.until:
        return line
    gaps: list[TableGap] = [gap._replace(why=UNKNOWN) for gap in holes_of_job(times)]
    return line._replace(
        found=TableCompleteness(line.found.here, sum(gap.rows for gap in gaps), tuple(gaps), line.found.twice, 0)
    )
