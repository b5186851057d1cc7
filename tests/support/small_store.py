"""A small store: two HDF5 files with rows of one job of alice, and their archive."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from colmet.collector.backends.hdf5.library import tables
from colmet.jobs.archive.store import ArchiveStore

START = 1_700_000_000
JOB = 17
ROW = np.dtype(
    [("timestamp", "<i8"), ("hostname", "S8"), ("job_id", "<i8"), ("metric_backend", "S24"), ("cpu_usage", "<i8")]
)


def rows(count: int = 3) -> np.ndarray:
    """Rows of the job on one host."""
    made = np.zeros(count, ROW)
    made["timestamp"], made["hostname"], made["job_id"] = START + np.arange(count), b"node-1", JOB
    made["metric_backend"], made["cpu_usage"] = b"cgroup_default", np.arange(count)
    return made


def make_store(folder: Path, count: int = 3) -> None:
    """Write rows.1700000000.hdf5, the newer rows.1700000001.hdf5, and rows.archive.sqlite."""
    for n in range(2):
        with tables.open_file(str(folder / f"rows.{START + n}.hdf5"), "w") as file:
            file.create_table(f"/job_{JOB if n == 0 else 18}", "cgroup_default", rows(count), createparents=True)
    store = ArchiveStore(str(folder / "rows.archive.sqlite"), writable=True)
    values = (JOB, START, START + count - 1, 0, "alice", 1)
    store.database.execute(
        "INSERT INTO jobs (job, start, last, is_running, user, hosts) VALUES (?, ?, ?, ?, ?, ?)", values
    )
    store.close()
