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
        raise ValueError(f"/{NAME} is said to have runs that no table can have")
    which = np.repeat(np.arange(len(runs)), samples)
    place = np.arange(len(which)) - np.repeat(np.cumsum(samples) - samples, samples)
    times = runs["first"][which] + runs["step"][which] * place
    return np.sort(np.repeat(times, rows[which])).astype(np.int64)


def step_of(file: Any) -> int:
    """Return the step with which an open file was thinned, in seconds; 0 if it was not."""
    found = getattr(file.root._v_attrs, STEP, 0)
    return int(found) if isinstance(found, (int, np.integer)) else 0


def stored_runs(file: Any) -> npt.NDArray[np.void]:
    """Return the runs of an open file; empty if it was not thinned."""
    table = file.get_node(f"/{NAME}") if f"/{NAME}" in file else None
    wanted = set(dtype_of(1).names or ())
    if not isinstance(table, tables.Table) or not wanted <= set(table.colnames):
        return np.empty(0, dtype_of(1))
    return np.asarray(table.read())


def sampled(file: Any, job: int, table: str) -> Iterator[tuple[bytes, Ints]]:
    """Yield the hosts with rows of a table before it was thinned, and the times of these rows."""
    runs = vars(file).setdefault("colmet_runs", None)
    if runs is None:
        runs = vars(file)["colmet_runs"] = stored_runs(file)
    mine = runs[(runs["job_id"] == job) & (runs["table"] == table.encode())]
    for host in np.unique(mine["hostname"]).tolist():
        yield host, times_of(mine[mine["hostname"] == host])
