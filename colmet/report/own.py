"""The report of a job for its user: from the user's own rows, without figures of other jobs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from colmet.report.model import Report
from colmet.stored.series import HeldRows, History, HostRows, Series

UNREADABLE = "the stored data cannot be read, or not all of it; administrators see why"
LATEST = (1 << 63) - 1


class OwnHistory(History):
    """A history with the rows of one job that belong to its user.

    Rows of the nodes are those of the same hosts. Other jobs of these hosts are read to share the energy, and
    `without_others` removes their part.

    Args:
        history: all rows; not closed by `close`.
        job: the number of the job.
        own: the hosts, and the start of the rows on each (None for all).
    """

    def __init__(self, history: History, job: int, own: Mapping[str, float | None]) -> None:
        self._history = history
        self._job = job
        self._own = own

    @property
    def warnings(self) -> Sequence[str]:  # type: ignore[override]  # read only
        """Return that parts of the store are unreadable, without names of files."""
        return (UNREADABLE,) if self._history.warnings else ()

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
        found = self._history.read(job, table, columns, since, until, self._visible(hosts))
        return [self._cut(series) for series in found]

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
        if job == self._job and any(start is not None for start in self._own.values()):
            return HeldRows(self.read(job, table, columns, since, until, hosts))
        return self._history.by_hosts(job, table, columns, since, until, self._visible(hosts))

    def close(self) -> None:
        """Do nothing."""

    def _visible(self, hosts: Collection[str] | None) -> list[str]:
        return [host for host in self._own if hosts is None or host in hosts]

    def _cut(self, series: Series) -> Series:
        start = self._own.get(series.host)
        if start is None or series.job != self._job:
            return series
        return series.within(math.ceil(start), LATEST)


def without_others(report: Report) -> Report:
    """Return a report without the energy and the CPU use of other jobs, and without what reveals their sum."""
    energy = replace(
        report.energy,
        others_joules=None,
        nobody_joules=None,
        unshared_joules=None,
        nodes_joules=None,
        busy_ratio=None,
    )
    return replace(report, energy=energy)
