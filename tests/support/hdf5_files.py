"""Shared by tests: numbers, stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from colmet.collector.backends.hdf5 import library
from colmet.common.schema import Batch, Sample, Schema, Table
from colmet.common.wire import colmet06

tables = library.tables


TIME_S = 1_700_000_000


TASKSTATS = colmet06.RECORDS["taskstats_default"].schema


def batch(*parts: Table, host: str = "dahu-7", jobs: tuple[int, ...] | None = (17, 18)) -> Batch:
    return Batch(host, 1, 1, TIME_S * 10**9, jobs, parts)


def table(schema: Schema, *rows: tuple[int, dict[str, Any]], time_s: float = TIME_S) -> Table:
    return Table.from_samples(schema, int(time_s * 10**9), [Sample(job, values) for job, values in rows])


def numbers(job: int, count: int, first: int = 0, host: str = "dahu-7") -> list[Batch]:
    """`count` batches of one taskstats row; `cpu_count` numbers them from `first`."""
    return [
        batch(table(TASKSTATS, (job, {"cpu_count": first + n}), time_s=TIME_S + first + n), host=host)
        for n in range(count)
    ]


def stored(path: Path | str, node: str) -> Any:
    with tables.open_file(str(path)) as file:
        return file.get_node(node).read()
