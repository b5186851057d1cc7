"""The times of all rows that a thinned file had, in runs: what completeness is computed from.

They are in a table of their own, `/thinned`, a row for each run of samples with equal steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from colmet.collector.backends.hdf5.library import tables

NAME = "thinned"  # of the table, in the root of the file
STEP = "colmet_thinned_step_s"  # attribute of the root: the step, in seconds
MAX_ROWS = 100_000_000  # of one table on one host
BLOCK = 16_384  # runs read at a time

Ints = npt.NDArray[np.int64]


def dtype_of(host_bytes: int) -> np.dtype[Any]:
    """Return the type of a row of the table; the names of hosts have at most this size."""
    return np.dtype(
        [
            *[("job_id", "<i8"), ("table", "S128"), ("hostname", f"S{max(1, host_bytes)}")],
            *[("first", "<i8"), ("step", "<i8"), ("samples", "<i8"), ("rows", "<i8")],  # rows of each sample
        ]
    )


def runs_of(times: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return sorted times as runs: the first time, the step, the number of samples, and the rows of each."""
    once, counts = np.unique(times, return_counts=True)
    steps = np.diff(once, prepend=once[:1])
    fresh = np.append(True, counts[1:] != counts[:-1])
    fresh[2:] |= steps[2:] != steps[1:-1]
    at = np.flatnonzero(fresh)
    samples = np.diff(np.append(at, len(once)))
    following = np.minimum(at + 1, len(once) - 1)
    return once[at], np.where(samples > 1, steps[following], 0), samples, counts[at]


def times_of(runs: npt.NDArray[np.void]) -> Ints:
    """Return the times of runs; ValueError for more rows than a table can have."""
    samples, rows = runs["samples"].astype(np.int64), runs["rows"].astype(np.int64)
    if len(runs) and (
        samples.min() < 1 or rows.min() < 1 or rows.max() > MAX_ROWS or float((samples * 1.0 * rows).sum()) > MAX_ROWS
    ):
        raise ValueError(f"/{NAME} has runs that no table can have")
    which = np.repeat(np.arange(len(runs)), samples)
    place = np.arange(len(which)) - np.repeat(np.cumsum(samples) - samples, samples)
    times = runs["first"][which] + runs["step"][which] * place
    return np.sort(np.repeat(times, rows[which])).astype(np.int64)


def step_of(file: Any) -> int:
    """Return the step with which an open file was thinned, in seconds; 0 if it was not."""
    found = getattr(file.root._v_attrs, STEP, 0)
    return int(found) if isinstance(found, (int, np.integer)) else 0


class StoredRuns:
    """The runs of an open file, read a part at a time; none if it was not thinned."""

    def __init__(self, file: Any) -> None:
        table = file.get_node(f"/{NAME}") if f"/{NAME}" in file else None
        wanted = set(dtype_of(1).names or ())
        self._table = table if isinstance(table, tables.Table) and wanted <= set(table.colnames) else None
        self._places: dict[tuple[int, bytes], list[tuple[int, int]]] = {}  # rows from, to
        if self._table is None:
            return
        for start in range(0, int(self._table.nrows), BLOCK):
            jobs, names = [self._table.read(start, start + BLOCK, field=one) for one in ("job_id", "table")]
            fresh = np.append(True, (jobs[1:] != jobs[:-1]) | (names[1:] != names[:-1]))
            at = np.flatnonzero(fresh)
            for first, stop in zip(at.tolist(), [*at[1:].tolist(), len(jobs)]):
                places = self._places.setdefault((int(jobs[first]), bytes(names[first])), [])
                places.append((start + first, start + stop))

    def of(self, job: int, table: str) -> Iterator[npt.NDArray[np.void]]:
        """Yield the runs of a table, some at a time."""
        for first, stop in self._places.get((job, table.encode()), ()):
            assert self._table is not None  # it has rows
            for start in range(first, stop, BLOCK):
                yield self._table.read(start, min(stop, start + BLOCK))


def sampled(file: Any, job: int, table: str) -> Iterator[tuple[bytes, Ints]]:
    """Yield hosts with rows of a table before it was thinned, and times of these rows; a host may come again."""
    runs = vars(file).get("colmet_runs")
    if runs is None:
        runs = vars(file)["colmet_runs"] = StoredRuns(file)
    for block in runs.of(job, table):
        for host in np.unique(block["hostname"]).tolist():
            yield host, times_of(block[block["hostname"] == host])
