"""The report of a job for its user: from the user's own rows, without figures of other jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from colmet.jobs.figures import Report
from colmet.stored.series import HeldRows, History, HostRows, RowQuery, RowsView, Series

UNREADABLE = "the stored data cannot be read, or not all of it; administrators see why"
LATEST = (1 << 63) - 1


class OwnHistory(RowsView):
    """A history with the rows of one job that belong to its user.

    Rows of the nodes are those of the same hosts. Other jobs of these hosts are read to share the energy, and
    `without_others` removes their part.

    Args:
        history: all rows; not closed by `close`.
        job: the number of the job.
        own: the hosts, and the start of the rows on each (None for all).
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
    energy = replace(
        report.energy,
        others_joules=None,
        nobody_joules=None,
        unshared_joules=None,
        nodes_joules=None,
        busy_ratio=None,
    )
    return replace(report, energy=energy)
