"""Rows of many messages joined, one array for each schema, so that outputs work on arrays and not on messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.common.schema import Batch, Rows, Schema

NS = 1_000_000_000
Ints = npt.NDArray[np.int64]


class Joined(NamedTuple):
    """All rows of one schema, in order of arrival.

    A source is one table of one batch; what is the same for all of its rows is kept once, in `hosts[host_of[s]]`,
    `time_s[s]` and `jobs[s]`.

    Attributes:
        schema: of every row.
        rows: one contiguous structured array.
        source: for each row, the index of its source.
        hosts: the host names, each once.
        host_of: for each source, the index of its host in `hosts`.
        time_s: for each source, seconds since the epoch, rounded down.
        jobs: for each source, the jobs on its node at that tick, or None where its dialect does not say.
    """

    schema: Schema
    rows: Rows
    source: Ints
    hosts: list[str]
    host_of: Ints
    time_s: Ints
    jobs: list[tuple[int, ...] | None]

    def by_job(self) -> tuple[Ints, list[int], list[int]]:
        """The order that puts the rows of each job together, the jobs, and where in that order each job starts.

        Within a job the order is that of arrival. The starts have one more entry than the jobs: the row count.
        """
        job_ids = self.rows["job_id"]
        count = len(job_ids)
        if count == 0:
            return np.arange(0), [], [0]
        order = np.argsort(job_ids, kind="stable")
        ordered = job_ids[order]
        starts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist()]
        return order, ordered[starts].tolist(), [*starts, count]


class _Sources:
    """The tables of one schema, as they were found."""

    __slots__ = ("batches", "rows", "schema", "times_ns")

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.rows: list[Rows] = []
        self.times_ns: list[int] = []
        self.batches: list[Batch] = []

    def joined(self) -> Joined:
        """Every table's rows, one after the other."""
        dtype = self.schema.dtype
        try:
            # arrays are buffers, and np.concatenate takes 100 times as long for many small structured arrays
            rows = np.frombuffer(b"".join(self.rows), dtype=dtype)  # type: ignore[arg-type]
        except TypeError:  # rows that are not contiguous
            rows = np.concatenate(self.rows)
        names = [batch.host for batch in self.batches]
        hosts = {host: n for n, host in enumerate(dict.fromkeys(names))}
        sources = len(names)
        return Joined(
            self.schema,
            rows,
            np.repeat(np.arange(sources), np.fromiter(map(len, self.rows), np.int64, sources)),
            list(hosts),
            np.fromiter(map(hosts.__getitem__, names), np.int64, sources),
            np.array(self.times_ns, dtype=np.int64) // NS,
            [batch.jobs for batch in self.batches],
        )


def _tables(batches: Iterable[Batch]) -> Iterator[_Sources]:
    # By identity first: a decoder hands out one object for each schema, and hash(schema) costs more than the rest.
    known: dict[int, _Sources] = {}
    found: dict[bytes, _Sources] = {}
    for batch in batches:
        for schema, time_ns, rows in batch.tables:
            sources = known.get(id(schema))
            if sources is None:
                sources = known[id(schema)] = found.setdefault(schema.digest, _Sources(schema))
            sources.rows.append(rows)
            sources.times_ns.append(time_ns)
            sources.batches.append(batch)
    yield from found.values()


def join(batches: Iterable[Batch]) -> list[Joined]:
    """The rows of all batches, joined by schema, in the order in which the schemas first appear."""
    return [sources.joined() for sources in _tables(batches)]
