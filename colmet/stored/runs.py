"""The runs of a job in its stored rows: a number that was used again has several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from colmet.common.measures import START
from colmet.common.tables import RUN
from colmet.stored.series import History, RowQuery, Series, each_series

START_COLUMN = START.best.column
APART_S = 600  # hosts that begin so long after the end of all others are of another job, as in the archive


class StoredRun(NamedTuple):
    """A run of a job on a host; times in seconds since 1970."""

    start: int  # of its first task if that is known, else its first row
    host: str
    number: int  # see `colmet.common.tables`
    first: int  # its first row
    last: int


def stored_runs(history: History, job: int) -> list[StoredRun]:
    """Return the runs of a job with numbers, by start; none in rows of older nodes."""
    found: dict[tuple[str, int], StoredRun] = {}
    for table, columns in history.tables(job).items():
        if RUN in columns:
            wanted = [column for column in (RUN, START_COLUMN) if column in columns]
            for series in each_series(history, RowQuery(job, table, wanted)):
                for run in _runs_of(series):
                    other = found.get((run.host, run.number), run)
                    merged = (min(run.start, other.start), *run[1:3], min(run.first, other.first))
                    found[run.host, run.number] = StoredRun(*merged, max(run.last, other.last))
    runs: list[StoredRun] = []
    for run in sorted(found.values(), key=lambda one: (one.host, one.first, one.last)):
        if runs and runs[-1].host == run.host:  # two runs of one second have two starts, as in the archive
            run = run._replace(start=max(run.start, runs[-1].start + 1))
        runs.append(run)
    return sorted(runs)


def _runs_of(series: Series) -> list[StoredRun]:
    numbers = series.columns.get(RUN)
    if numbers is None or numbers.dtype.kind != "i" or not (numbers > 0).any():
        return []
    starts = series.values(START_COLUMN)
    found = []
    for number in np.unique(numbers[numbers > 0]).tolist():
        rows = np.flatnonzero(numbers == number)
        first, last = int(series.times[rows].min()), int(series.times[rows].max())
        start = starts[rows[0]]
        found.append(StoredRun(int(start) if 0 < start <= first else first, series.host, number, first, last))
    return found


def jobs_of(runs: Iterable[StoredRun]) -> list[list[StoredRun]]:
    """Return runs by jobs, one after the other: each host is in a job once."""
    jobs: list[list[StoredRun]] = []
    for run in sorted(runs):
        now = jobs[-1] if jobs else []
        if not now or run.host in [one.host for one in now] or run.start > max(one.last for one in now) + APART_S:
            jobs.append([run])
        else:
            now.append(run)
    return jobs
