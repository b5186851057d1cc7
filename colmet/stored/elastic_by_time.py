"""Rows in Elasticsearch or OpenSearch by time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from colmet.stored.by_time import HOUR_S, ROW_VALUES, Columns, RowsByTime
from colmet.stored.elastic import ElasticHistory, column_of, joined, kinds_of, unexpected
from colmet.stored.series import Series

JOB = "job_id"


class ElasticRowsByTime(ElasticHistory, RowsByTime):
    """The rows written by the Elasticsearch output, or by Colmet 0.6, by time."""

    def amounts(self, columns: Columns) -> Mapping[int, int]:
        """Return the number of values by hour; see `RowsByTime`. The database counts them."""
        found: Counter[int] = Counter()
        for n, (table, some) in enumerate(columns.items(), 1):
            count = len(self._wanted(table, some)) + ROW_VALUES
            for hour, rows in self._hours(table):
                found[hour] += rows * count
            self.progress(f"count {table}", n / len(columns))
        return found

    def _hours(self, table: str) -> Iterator[tuple[int, int]]:
        asked = self._filters(None, table, None, None, None)
        if asked is None:
            return
        by_hour = {"date_histogram": {"field": "timestamp", "fixed_interval": "1h", "min_doc_count": 1}}
        query = {"size": 0, "query": {"bool": {"filter": asked[1]}}, "aggs": {"hours": by_hour}}
        answer = self._search(self._pattern(table), query, "aggregations")
        try:
            for bucket in answer.get("aggregations", {}).get("hours", {}).get("buckets", ()):
                yield int(bucket["key"]) // (1000 * HOUR_S), int(bucket["doc_count"])
        except (LookupError, TypeError, ValueError, AttributeError) as err:
            raise unexpected(err) from err

    def _wanted(self, table: str, columns: Collection[str]) -> list[str]:
        kinds = kinds_of(self._fields(table))
        return [name for name in columns if name in kinds]

    def between(self, columns: Columns, first: int, last: int) -> Iterator[Series]:
        """Yield the rows of an interval; see `RowsByTime`."""
        for table, some in columns.items():
            yield from self._of_all_jobs(table, self._wanted(table, some), first, last)

    def _of_all_jobs(self, table: str, columns: list[str], first: int, last: int) -> Iterator[Series]:
        asked = self._filters(None, table, first, last, None)
        if asked is None:
            return
        kinds = kinds_of(self._fields(table))
        names: dict[str, int] = {}
        jobs, hosts, times = [], [], []
        parts: dict[str, list[Any]] = {name: [] for name in columns}
        for page in self._pages(table, asked[1], asked[0], [*columns, JOB]):
            page = [hit for hit in page if type(hit.source.get(JOB)) is int]
            jobs += [hit.source[JOB] for hit in page]
            hosts += [names.setdefault(hit.host, len(names)) for hit in page]
            times += [hit.ms // 1000 for hit in page]
            for name, part in parts.items():
                if page:
                    part.append(column_of([hit.source.get(name) for hit in page], kinds[name]))
        if jobs:
            values = {name: joined(part, kinds[name]) for name, part in parts.items()}
            yield from _split(table, list(names), np.array(jobs), np.array(hosts), np.array(times), values)


def _split(
    table: str, names: list[str], jobs: Any, hosts: Any, times: Any, columns: Mapping[str, Any]
) -> Iterator[Series]:
    """Yield rows, by time, as a series for each job and host."""
    order = np.lexsort((hosts, jobs))
    jobs, hosts = jobs[order], hosts[order]
    begins = np.flatnonzero(np.append(True, (np.diff(jobs) != 0) | (np.diff(hosts) != 0)))
    for start, end in zip(begins.tolist(), [*begins[1:].tolist(), len(jobs)]):
        rows = order[start:end]
        values = {name: column[rows] for name, column in columns.items()}
        yield Series(table, names[int(hosts[start])], int(jobs[start]), times[rows], values)
