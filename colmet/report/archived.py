"""The report of a job from its rows and the archive: from the rows while they are stored, else from the archive."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from colmet.archive.queries import ArchivedJob, JobArchive, JobFilter
from colmet.archive.reports import report_of
from colmet.common.errors import ColmetError
from colmet.report.collect import ENDED, RUNNING, UNKNOWN, gather
from colmet.report.model import Report
from colmet.stored.job_completeness import DELAY_S
from colmet.stored.series import HeldRows, History, HostRows, Series
from colmet.stored.stays import JobInterval

SHARE_OF_ROWS = 0.95  # of the archived samples or time of each host; below it, rows are gone
MOST_STARTS = 1000  # of one number


def find(
    archive: JobArchive, job: int, start: int | None = None, users: Sequence[str] | None = None
) -> ArchivedJob | None:
    """Return a job in the archive with its hosts; None for an unknown one.

    Args:
        archive: open.
        job: its number.
        start: of several jobs with this number, the one that started then, or last before; None for the latest.
        users: names of the only user with visible jobs; None for all.
    """
    rows = archive.jobs(JobFilter(users=users or (), jobs=[job]), ["start"], limit=MOST_STARTS).rows
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

    Args:
        found: the summary with its hosts, if any.
        opened: opens the store.
        asked: the job and its interval.
        now: seconds since 1970.
        seen: returns the visible rows of a history.
        without_rows: called with the store if it has no rows of the job.

    Raises:
        ColmetError: the store cannot be read, and there is no summary.
    """
    report: Report | None = None
    unread: ColmetError | None = None
    try:
        with opened() as history:
            report = gather(seen(rows_of(history, found)), asked, now)
            if report is None:
                without_rows(history)
    except ColmetError as err:
        if found is None:
            raise
        unread = err
    return joined(report, found, asked.since is not None or asked.until is not None), unread


def joined(report: Report | None, found: ArchivedJob | None, is_part: bool) -> Report | None:
    """Return the report of a job from that of its rows and its summary; None if there is neither.

    Args:
        report: of the stored rows, if any.
        found: the summary with its hosts, if any.
        is_part: whether the report is of an interval of the job: the archive has whole jobs only.
    """
    if found is None or (report is None and is_part):
        return report
    archived = replace(report_of(found.summary, found.hosts), starts=tuple(found.starts))
    if report is not None and archived.state == ENDED and not _is_same(report, archived):
        return report  # a later job with this number, which the archive does not have yet
    if report is None or (not is_part and _lacks_rows(report, archived)):
        return archived
    # the rows show an end only when later ones have come
    is_known = archived.batch is not None and archived.batch.state not in ("", RUNNING, ENDED)
    is_over = archived.state == ENDED and (is_known or report.state == UNKNOWN)
    return replace(
        report,
        batch=archived.batch,
        user=archived.user or report.user,
        starts=archived.starts,
        state=ENDED if is_over else report.state,
    )


def _is_same(report: Report, archived: Report) -> bool:
    return report.start <= archived.end + DELAY_S and report.end >= archived.start


def _lacks_rows(report: Report, archived: Report) -> bool:
    """Return whether rows of a host are gone: fewer than the archive has seen, of less time. Thinned ones suffice."""
    stored = {host.host: host for host in report.hosts}
    for host in archived.hosts:
        here = stored.get(host.host)
        if here is None:
            return True
        is_thin = here.samples < SHARE_OF_ROWS * host.samples
        if is_thin and here.last - here.first < SHARE_OF_ROWS * (host.last - host.first):
            return True
    return False


class OneOfSeveral(History):
    """A history with the rows of one of several jobs with the same number.

    Args:
        history: all rows; not closed by `close`.
        job: the number.
        first: start of the job, seconds since 1970.
        last: the last second before the next job with this number; None for the latest one.
    """

    def __init__(self, history: History, job: int, first: int, last: int | None) -> None:
        self._history = history
        self._job = job
        self._first = first
        self._last = (1 << 63) - 1 if last is None else last

    @property
    def warnings(self) -> Sequence[str]:  # type: ignore[override]  # read only
        """Return those of the history."""
        return self._history.warnings

    def tables(self, job: int, since: float | None = None, until: float | None = None) -> Mapping[str, Sequence[str]]:
        """Return the tables with rows of a job; see `History.tables`."""
        return self._history.tables(job, since, until)

    def read(
        self,
        job: int,
        table: str,
        columns: Sequence[str] | None = None,
        since: float | None = None,
        until: float | None = None,
        hosts: Collection[str] | None = None,
    ) -> list[Series]:
        """Return the rows of a job; see `History.read`."""
        found = self._history.read(job, table, columns, since, until, hosts)
        if job != self._job:
            return found
        return [part for one in found for part in [one.within(self._first, self._last)] if len(part)]

    def sampled(
        self, job: int, tables: Collection[str], hosts: Collection[str], since: float | None, until: float | None
    ) -> list[tuple[str, str, npt.NDArray[np.int64]]]:
        """Return the times of all samples in thinned parts of the store; see `History.sampled`."""
        found = self._history.sampled(job, tables, hosts, since, until)
        if job != self._job:
            return found
        return [(table, host, times[(times >= self._first) & (times <= self._last)]) for table, host, times in found]

    def by_hosts(
        self,
        job: int,
        table: str,
        columns: Sequence[str],
        since: float | None = None,
        until: float | None = None,
        hosts: Collection[str] | None = None,
    ) -> HostRows:
        """Return access to the rows of single hosts; see `History.by_hosts`."""
        if job == self._job:
            return HeldRows(self.read(job, table, columns, since, until, hosts))
        return self._history.by_hosts(job, table, columns, since, until, hosts)

    def close(self) -> None:
        """Do nothing."""


def rows_of(history: History, found: ArchivedJob | None) -> History:
    """Return the history with the rows of a job in the archive: of several with its number, only of this one."""
    if found is None or len(found.starts) < 2:
        return history
    start = int(found.summary["start"])
    following = [one for one in found.starts if one > start]
    return OneOfSeveral(history, int(found.summary["job"]), start, min(following) - 1 if following else None)
