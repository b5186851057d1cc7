"""The report of a job from its rows and the archive: from the rows while they are stored, else from the archive."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from colmet.common.errors import ColmetError
from colmet.common.tables import RUN
from colmet.jobs.advice import advise
from colmet.jobs.archive.queries import ArchivedJob, JobArchive, JobFilter
from colmet.jobs.figures import Report
from colmet.jobs.report.requested import excesses, with_held_cores
from colmet.jobs.report.rows import ENDED, RUNNING, UNKNOWN, gather
from colmet.jobs.summary_report import report_of
from colmet.stored.completeness import DELAY_S
from colmet.stored.job_rows import JobInterval, StoredRun, jobs_of, stored_runs
from colmet.stored.series import HeldRows, History, HostRows, RowQuery, RowsView, Series

SHARE_OF_ROWS = 0.95  # of the archived samples or time of each host; below it, rows are gone
MOST_STARTS = 1000  # of one number
LATEST_OF_SEVERAL = "several jobs have this number, and this is the latest; the job archive has the others"


def find(
    archive: JobArchive,
    job: int,
    start: int | None = None,
    users: Sequence[str] | None = None,
    projects: Sequence[str] = (),
) -> ArchivedJob | None:
    """Return a job in the archive with its hosts; None for an unknown one.

    Of several jobs with this number it is the one that began at `start`, or last before; without, the latest. With
    `users`, it is visible to the user with these names alone, or to who may see the `projects`.
    """
    found = _find(archive, JobFilter(users=users or (), jobs=[job]), start, users)
    if users is None or not projects or (found is not None and start in (None, found.summary["start"])):
        return found
    led = _find(archive, JobFilter(projects=projects, jobs=[job]), start, None)
    return led if found is None or (led is not None and led.summary["start"] == start) else found


def _find(archive: JobArchive, where: JobFilter, start: int | None, users: Sequence[str] | None) -> ArchivedJob | None:
    (job,) = where.jobs
    rows = archive.jobs(where, ["start"], limit=MOST_STARTS).rows
    starts = [int(row["start"]) for row in rows]
    chosen = next((one for one in starts if start is None or one <= start), None)
    found = None if chosen is None else archive.job(job, chosen)
    if found is None:
        return None
    hosts = found.hosts
    if users is not None:
        known = (*users, None, "") if found.summary.get("owner") else users
        hosts = [row for row in hosts if row.get("user") in known]
    return ArchivedJob(found.summary, hosts, starts)


def made_from(
    found: ArchivedJob | None,
    opened: Callable[[], AbstractContextManager[History]],
    asked: JobInterval,
    now: float,
    seen: Callable[[History], History] = lambda history: history,
    without_rows: Callable[[History], None] = lambda _: None,
) -> tuple[Report | None, ColmetError | None]:
    """Return the report of a job from its stored rows and its summary, and the error of an unreadable store.

    `opened` opens the store, `seen` returns the visible rows of a history, and `without_rows` is called with a store
    that has no rows of the job. ColmetError if the store cannot be read, and there is no summary.
    """
    report: Report | None = None
    unread: ColmetError | None = None
    try:
        with opened() as history:
            rows = rows_of(history, asked.job, found)
            report = gather(seen(rows), asked, now)
            if report is not None and found is None and rows is not history:
                report = replace(report, warnings=(*report.warnings, LATEST_OF_SEVERAL))
            if report is None:
                without_rows(history)
    except ColmetError as err:
        if found is None:
            raise
        unread = err
    return joined(report, found, asked.since is not None or asked.until is not None), unread


def joined(report: Report | None, found: ArchivedJob | None, is_part: bool) -> Report | None:
    """Return the report of a job from that of its rows and its summary, as far as there are any.

    A report of an interval of the job (`is_part`) is of its rows alone: the archive has whole jobs only.
    """
    if found is None or (report is None and is_part):
        return report
    archived = replace(report_of(found.summary, found.hosts), starts=tuple(found.starts))
    is_apart = report is not None and (report.start > archived.end + DELAY_S or report.end < archived.start)
    if is_apart and archived.state == ENDED:
        return report  # a later job with this number, which the archive does not have yet
    if report is None or (not is_part and _lacks_rows(report, archived)):
        return replace(archived, warnings=(*archived.warnings, *excesses(archived)))
    # the rows show an end only when later ones have come
    is_known = archived.batch is not None and archived.batch.state not in ("", RUNNING, ENDED)
    is_over = archived.state == ENDED and (is_known or report.state == UNKNOWN)
    report = replace(
        report,
        batch=archived.batch,
        user=archived.user or report.user,
        starts=archived.starts,
        state=ENDED if is_over else report.state,
    )
    held = with_held_cores(report, archived.cpu.cpus)
    if held is not report and not held.advice_withheld:
        held = replace(held, advice=advise(held))
    return replace(held, warnings=(*held.warnings, *excesses(held)))


def _lacks_rows(report: Report, archived: Report) -> bool:
    """Return whether rows of a host are gone: fewer than the archive has seen, of less time."""
    stored = {host.host: host for host in report.hosts}
    for host in archived.hosts:
        here = stored.get(host.host)
        if here is None:
            return True
        lacks = here.samples < SHARE_OF_ROWS * host.samples
        if lacks and here.last - here.first < SHARE_OF_ROWS * (host.last - host.first):
            return True
    return False


class OneRun(RowsView):
    """A history with the rows of one of several jobs with the same number, from `first` to `last`, seconds since 1970.

    The column `run` of the rows separates runs. Rows without it, of older nodes or other tables, are separated by time.
    `runs` are those of all jobs with the number. The given history is not closed by `close`.
    """

    def __init__(
        self, history: History, job: int, runs: Collection[StoredRun], first: int, last: int | None = None
    ) -> None:
        super().__init__(history)
        self._job = job
        self._interval = first, (1 << 63) - 1 if last is None else last
        self._runs: dict[str, list[StoredRun]] = {run.host: [] for run in runs}
        for run in runs:
            if self._interval[0] <= run.start <= self._interval[1]:
                self._runs[run.host].append(run)

    def read(self, query: RowQuery) -> list[Series]:
        """Return the rows of a job; see `History.read`."""
        if query.job != self._job:
            return self._history.read(query)
        has_run = query.columns is None or RUN in query.columns
        asked = query if has_run else replace(query, columns=[*(query.columns or ()), RUN])
        parts = [self._part(one) for one in self._history.read(asked)]
        if not has_run:
            parts = [replace(one, columns={n: v for n, v in one.columns.items() if n != RUN}) for one in parts]
        return [part for part in parts if len(part)]

    def _part(self, series: Series) -> Series:
        """Return the rows of the job."""
        runs = self._runs.get(series.host)
        if runs is None:
            return series.within(*self._interval)
        is_own = np.zeros(len(series), np.bool_)
        for run in runs:
            is_own |= (series.times >= run.first) & (series.times <= run.last)
        numbers = series.columns.get(RUN)
        if numbers is not None:
            is_own = np.where(numbers > 0, np.isin(numbers, [run.number for run in runs]), is_own)
        return series.selected(is_own)

    def by_hosts(self, query: RowQuery) -> HostRows:
        """Return access to the rows of single hosts; see `History.by_hosts`."""
        return HeldRows(self.read(query)) if query.job == self._job else self._history.by_hosts(query)


def rows_of(history: History, job: int, found: ArchivedJob | None) -> History:
    """Return the history with the rows of one run of a job: of that in the archive, else of the latest."""
    runs = stored_runs(history, job)
    if found is not None and len(found.starts) > 1:
        first = int(found.summary["start"])
        last = found.summary["end"] or first
        # the archive may not have the latest run yet
        following = [*found.starts, *[run[0].start for run in jobs_of(runs) if run[0].start > last]]
        following = [one for one in following if one > first]
        return OneRun(history, job, runs, first, min(following) - 1 if following else None)
    jobs = jobs_of(runs)
    if len(jobs) < 2:
        return history
    return OneRun(history, job, runs, jobs[-1][0].start)


UNREADABLE = "the stored data cannot be read, or not all of it; administrators see why"
LATEST = (1 << 63) - 1
# Values of the energy of a job that other jobs are part of.
OF_OTHERS = ("others_joules", "nobody_joules", "unshared_joules", "nodes_joules", "busy_ratio")


class OwnHistory(RowsView):
    """A history with the rows of one job that belong to its user: of `own` hosts, each from a start on (None for all).

    Rows of the nodes are those of the same hosts. Other jobs of these hosts are read to share the energy, and
    `without_others` removes their part. The given history is not closed by `close`.
    """

    def __init__(self, history: History, job: int, own: Mapping[str, float | None]) -> None:
        super().__init__(history)
        self._job = job
        self._own = own

    @property
    def warnings(self) -> Sequence[str]:  # type: ignore[override]  # read only
        """Return that parts of the store are unreadable, without names of files."""
        return (UNREADABLE,) if self._history.warnings else ()

    def read(self, query: RowQuery) -> list[Series]:
        """Return the rows of a job; see `History.read`."""
        return [self._cut(series) for series in self._history.read(self._visible(query))]

    def by_hosts(self, query: RowQuery) -> HostRows:
        """Return access to the rows of single hosts; see `History.by_hosts`."""
        if query.job == self._job and any(start is not None for start in self._own.values()):
            return HeldRows(self.read(query))
        return self._history.by_hosts(self._visible(query))

    def _visible(self, query: RowQuery) -> RowQuery:
        hosts = query.hosts
        return replace(query, hosts=[host for host in self._own if hosts is None or host in hosts])

    def _cut(self, series: Series) -> Series:
        start = self._own.get(series.host)
        if start is None or series.job != self._job:
            return series
        return series.within(math.ceil(start), LATEST)


def without_others(report: Report) -> Report:
    """Return a report without the energy and the CPU use of other jobs, and without what reveals their sum."""
    hidden: Mapping[str, Any] = dict.fromkeys(OF_OTHERS)
    return replace(report, energy=replace(report.energy, **hidden))
