"""The rows of many messages as one array for each schema: outputs work on arrays, not on messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common.schema import Batch, Rows, Schema, Table

NS = 1_000_000_000
Ints = npt.NDArray[np.int64]


class ColumnBatch(NamedTuple):
    """All rows of one schema, in order of arrival.

    A source is one table of one batch; values common to all its rows are kept once, in `hosts[host_of[s]]`, `time_s[s]`
    and `jobs[s]`.
    """

    schema: Schema  # of every row
    rows: Rows  # one contiguous structured array
    source: Ints  # for each row, the index of its source
    hosts: list[str]  # the host names, each once
    host_of: Ints  # for each source, the index of its host in `hosts`
    time_s: Ints  # for each source, seconds since the epoch, rounded down
    # for each source, the jobs on its node at that tick, or None if its dialect lacks them
    jobs: list[tuple[int, ...] | None]

    def by_job(self) -> RowsByJob:
        """Return the rows grouped by job, within a job in order of arrival."""
        job_ids = self.rows["job_id"]
        order = np.argsort(job_ids, kind="stable")
        ordered = job_ids[order]
        count = len(ordered)
        if count == 0:
            return RowsByJob(self, order, [], [0])
        starts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist()]
        return RowsByJob(self, order, ordered[starts].tolist(), [*starts, count])


class RowsByJob(NamedTuple):
    """Rows of one schema, with their order by job."""

    batch: ColumnBatch
    order: Ints  # of the rows
    jobs: list[int]
    starts: list[int]  # of each job in that order, and the row count


def _join(schema: Schema, sources: list[tuple[Batch, Table]]) -> ColumnBatch:
    """Return the rows of some tables of one schema, one after the other."""
    batches, tables = zip(*sources)
    # by bytes: np.concatenate needs 100 times as long for many small structured arrays
    packed = [table.packed for table in tables]
    rows = np.frombuffer(b"".join(packed), dtype=schema.dtype)
    hosts: dict[str, int] = {}
    host_of = [hosts.setdefault(batch.host, len(hosts)) for batch in batches]
    count = len(packed)
    return ColumnBatch(
        schema,
        rows,
        np.repeat(np.arange(count), np.fromiter(map(len, packed), np.int64, count) // schema.dtype.itemsize),
        list(hosts),
        np.array(host_of, dtype=np.int64),
        np.array([table.time_ns for table in tables], dtype=np.int64) // NS,
        [batch.jobs for batch in batches],
    )


def join(batches: Iterable[Batch]) -> list[ColumnBatch]:
    """Return the rows of all batches, one `ColumnBatch` for each schema, in the order of their first rows."""
    # By identity first: a decoder returns one object for each schema, and hash(schema) costs more than the rest.
    known: dict[int, list[tuple[Batch, Table]]] = {}
    found: dict[bytes, tuple[Schema, list[tuple[Batch, Table]]]] = {}
    for batch in batches:
        for table in batch.tables:
            schema = table.schema
            sources = known.get(id(schema))
            if sources is None:
                sources = known[id(schema)] = found.setdefault(schema.digest, (schema, []))[1]
            sources.append((batch, table))
    return [_join(schema, sources) for schema, sources in found.values()]
