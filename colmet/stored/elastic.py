"""Rows stored as documents in Elasticsearch or OpenSearch: those of this version, and of Colmet 0.6.

A user with the right to read the indices is enough: the requests are searches and lists of fields.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from colmet.common import database_client
from colmet.common.errors import ColmetError
from colmet.common.schema import NAME
from colmet.common.tables import schemas
from colmet.stored.elastic_columns import Hit, PagedColumns, by_job_and_host, column_of, joined, kinds_of
from colmet.stored.series import NODE, ROW_VALUES, HeldRows, HostRows, RowQuery, RowStore, Series

MAX_INDICES = MAX_HOSTS = 10_000  # with rows of one job
MIN_PAGE_ROWS = 100
MAX_PAGE_ROWS = 10_000  # a server's default limit for one answer
PAGE_BYTES = 16 << 20  # about half of an answer's limit
VALUE_BYTES = 40  # of a document, for each column: its name and its value
LISTS = {"involved_jobs": 6 << 10}  # enough for the numbers of some hundred jobs
MAX_TIME_S = 1 << 40
JOB = "job_id"

WHERE = "ignore_unavailable=true&allow_no_indices=true"
# Suffix of an undeclared table's name: it begins with a dash, and has a number.
SUFFIX = re.compile(r"-(?=[^-]*\d).*", re.ASCII | re.DOTALL)

E = TypeVar("E", bound="ElasticHistory")


class ElasticHistory(RowStore):
    """The rows written by the Elasticsearch output, or by Colmet 0.6.

    Args:
        client: of the servers.
        prefix: of the names of all indices.
    """

    def __init__(self, client: database_client.DatabaseClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._types: dict[str, dict[str, set[str]]] = {}  # of fields, by table

    @classmethod
    def from_options(cls: type[E], options: argparse.Namespace) -> E:
        """Return the history for the options of `database_client.add_options`; raise ConfigError for invalid ones."""
        prefix = database_client.checked_prefix(options)
        return cls(database_client.open_client(options), prefix)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def tables(self, job: int, since: float | None = None, until: float | None = None) -> dict[str, list[str]]:
        """Return the tables of a job; see `History`. The columns are the fields of the table's indices, at any time."""
        if not 0 <= job < 1 << 63:
            return {}
        by_index = {"terms": {"field": "_index", "size": MAX_INDICES}}
        query = {"size": 0, "query": {"term": {"job_id": job}}, "aggs": {"indices": by_index}}
        answer = self._search(f"{self._prefix}*", query, "aggregations")
        try:
            found: Mapping[str, Any] = answer.get("aggregations", {}).get("indices", {})
            indices = [str(bucket["key"]) for bucket in found.get("buckets", ())]
            left_out = found.get("sum_other_doc_count", 0)
        except (LookupError, TypeError, AttributeError) as err:
            raise unexpected(err) from err
        if left_out:
            raise ColmetError(f"job {job} has rows in more than {MAX_INDICES} indices {self._prefix}*; name one table")
        names = {name for name in map(self._table_of, indices) if name is not None}
        return {name: list(kinds_of(self._fields(name))) for name in sorted(names)}

    def read(self, query: RowQuery) -> list[Series]:
        """Return the rows of a job; see `History`. `involved_jobs` is the text of a JSON list, as in HDF5."""
        found = self._filters(query)
        if found is None:
            return []
        host, filters = found
        table, columns = query.table, query.columns
        kinds = kinds_of(self._fields(table))
        wanted = list(kinds) if columns is None else [name for name in dict.fromkeys(columns) if name in kinds]
        rows = PagedColumns(table, wanted, kinds)
        for page in self._pages(table, filters, host, wanted):
            rows.add(page)
        return rows.series(query.job)

    def by_hosts(self, query: RowQuery) -> HostRows:
        """Return access to the rows of single hosts; see `History.by_hosts`. The database counts them."""
        found = self._filters(query)
        if found is None:
            return HeldRows([])
        host, filters = found
        table = query.table
        edges = {name: {name: {"field": "timestamp"}} for name in ("min", "max")}
        asked = {
            "size": 0,
            "query": {"bool": {"filter": filters}},
            "aggs": {"hosts": {"terms": {"field": host, "size": MAX_HOSTS}}, **edges},
        }
        answer = self._search(self._pattern(table), asked, "aggregations")
        try:
            parts: Mapping[str, Any] = answer.get("aggregations", {})
            by_host: Mapping[str, Any] = parts.get("hosts", {})
            counts = {str(bucket["key"]): int(bucket["doc_count"]) for bucket in by_host.get("buckets", ())}
            left_out = by_host.get("sum_other_doc_count", 0)
            first, last = [int((parts.get(name, {}).get("value") or 0) // 1000) for name in edges]
        except (LookupError, TypeError, ValueError, AttributeError) as err:
            raise unexpected(err) from err
        if left_out:
            raise ColmetError(f"{table}: job {query.job} has rows of more than {MAX_HOSTS} hosts; ask for some of them")
        if sum(counts.values()) <= MAX_PAGE_ROWS:
            return HeldRows(self.read(query))
        return _HostPages(self, query, counts, first, last)

    def amounts(self, columns: Mapping[str, Collection[str]]) -> Mapping[int, int]:
        """Return the number of values by hour; see `RowStore`. The database counts them."""
        found: Counter[int] = Counter()
        for n, (table, some) in enumerate(columns.items(), 1):
            count = len(self._wanted(table, some)) + ROW_VALUES
            for hour, rows in self._hours(table):
                found[hour] += rows * count
            self.progress(f"count {table}", n / len(columns))
        return found

    def _hours(self, table: str) -> Iterator[tuple[int, int]]:
        asked = self._filters(RowQuery(NODE, table), of_all_jobs=True)
        if asked is None:
            return
        by_hour = {"date_histogram": {"field": "timestamp", "fixed_interval": "1h", "min_doc_count": 1}}
        query = {"size": 0, "query": {"bool": {"filter": asked[1]}}, "aggs": {"hours": by_hour}}
        answer = self._search(self._pattern(table), query, "aggregations")
        try:
            for bucket in answer.get("aggregations", {}).get("hours", {}).get("buckets", ()):
                yield int(bucket["key"]) // (1000 * 3600), int(bucket["doc_count"])
        except (LookupError, TypeError, ValueError, AttributeError) as err:
            raise unexpected(err) from err

    def _wanted(self, table: str, columns: Collection[str]) -> list[str]:
        kinds = kinds_of(self._fields(table))
        return [name for name in columns if name in kinds]

    def between(self, columns: Mapping[str, Collection[str]], first: int, last: int) -> Iterator[Series]:
        """Yield the rows of an interval; see `RowStore`."""
        for table, some in columns.items():
            yield from self._of_all_jobs(table, self._wanted(table, some), first, last)

    def _of_all_jobs(self, table: str, columns: list[str], first: int, last: int) -> Iterator[Series]:
        asked = self._filters(RowQuery(NODE, table, None, first, last), of_all_jobs=True)
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
            yield from by_job_and_host(table, list(names), np.array(jobs), np.array(hosts), np.array(times), values)

    def _filters(self, query: RowQuery, of_all_jobs: bool = False) -> tuple[str, list[dict[str, Any]]] | None:
        """Return the field of the host, and the filters for rows of an interval; None if there can be none."""
        job, table, hosts = query.job, query.table, query.hosts
        first, last = _interval(query.since, query.until)
        if not 0 <= job < 1 << 63 or not NAME.fullmatch(table) or first > last:
            return None
        # a site's own template may lack the second; in the indices of 0.6 the first is text
        host = "hostname.keyword" if "hostname.keyword" in self._fields(table) else "hostname"
        return host, [
            {"exists": {"field": "job_id"}} if of_all_jobs else {"term": {"job_id": job}},
            {"exists": {"field": host}} if hosts is None else {"terms": {host: sorted(hosts)}},
            {"range": {"timestamp": {"gte": first, "lte": last, "format": "epoch_second"}}},
        ]

    def _pages(
        self, table: str, filters: list[dict[str, Any]], host: str, columns: Sequence[str]
    ) -> Iterator[list[Hit]]:
        """Yield the rows, by time and host.

        Each page begins after the last time and host of the previous one: this needs no state on the server, and no
        sort fields that some documents lack.
        """
        row_bytes = 3 * VALUE_BYTES + sum([LISTS.get(name, VALUE_BYTES) for name in columns])
        size = max(MIN_PAGE_ROWS, min(MAX_PAGE_ROWS, PAGE_BYTES // row_bytes))
        query: dict[str, Any] = {
            "size": size,
            "query": {"bool": {"filter": filters}},
            "sort": [
                {"timestamp": {"order": "asc", "unmapped_type": "date"}},
                {host: {"order": "asc", "unmapped_type": "keyword"}},
            ],
            "_source": list(columns) or False,
            "track_total_hits": False,
        }
        parts = ",".join([f"hits.hits.{part}" for part in ("_index", "_id", "_source", "sort")])
        while True:
            hits = _hits(self._search(self._pattern(table), query, parts))
            is_last = len(hits) < size
            if not is_last:  # there may be more of the last time and host
                last = hits[-1].place
                hits = [hit for hit in hits if hit.place != last]
                if not hits:
                    raise ColmetError(f"{table}: more than {size} rows of {last[1]} at one time")
                query["search_after"] = hits[-1].place
            hits.sort(key=_order)
            yield self._of_table(table, hits)
            if is_last:
                return

    def _of_table(self, table: str, hits: list[Hit]) -> list[Hit]:
        """Return the hits without rows of tables with this one's name as a prefix.

        An index behind an alias may have any name.
        """
        name = self._declared.get(table.lower(), table.lower())
        of_table = {index: self._table_of(index) in (None, name) for index in {hit.index_name for hit in hits}}
        return [hit for hit in hits if of_table[hit.index_name]]

    def _search(self, pattern: str, query: Mapping[str, Any], parts: str) -> Mapping[str, Any]:
        """Return the given parts of the answer to a search; nothing without a matching index."""
        path = f"/{pattern}/_search?{WHERE}&allow_partial_search_results=false&filter_path=timed_out,{parts}"
        answer = self._ask(path, query)
        if answer.get("timed_out"):
            raise ColmetError("the database gave up a search for lack of time; ask for a shorter interval")
        return answer

    def _ask(self, path: str, query: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        body = None if query is None else json.dumps(query).encode()
        self.left_s()
        answer = self._client.ask("POST", path, body)
        why = ": ".join(answer.error)
        if answer.status == 403:
            raise ColmetError(f"may not read {self._prefix}*: {why}; give the user the right to read these indices")
        if answer.status != 200:  # a missing index is no error
            raise ColmetError(f"a search is answered with status {answer.status}: {why}")
        return answer.body

    # -- names --

    @cached_property
    def _declared(self) -> Mapping[str, str]:
        """Return the names of known tables, by their lower-case form."""
        return {name.lower(): name for name in schemas()}

    def _pattern(self, table: str) -> str:
        name = self._prefix + table.lower()
        return f"{name},{name}-*"

    def _table_of(self, index: str) -> str | None:
        """Return the table of an index; None if its name lacks the prefix."""
        name = index.rpartition(".ds-")[2]  # of a data stream; a text before it marks a moved index
        start = name.find(self._prefix)
        if start < 0:
            return None
        name = name[start + len(self._prefix) :]
        known = [lower for lower in self._declared if name == lower or name.startswith(lower + "-")]
        if known:
            return self._declared[max(known, key=len)]
        name = SUFFIX.sub("", name)
        return name if NAME.fullmatch(name) else None

    def _fields(self, table: str) -> dict[str, set[str]]:
        """Return the types of the fields of a table's indices, by their names."""
        key = table.lower()
        if key not in self._types:
            path = f"/{self._pattern(table)}/_field_caps?fields=*&{WHERE}&filter_path=fields.*.*.type"
            found = self._ask(path).get("fields", {})
            try:
                self._types[key] = {
                    str(name): {str(one["type"]) for one in types.values()} for name, types in found.items()
                }
            except (LookupError, TypeError, AttributeError) as err:
                raise unexpected(err) from err
        return self._types[key]


class _HostPages(HostRows):
    """Rows in the database, read for some hosts at a time."""

    def __init__(
        self, history: ElasticHistory, query: RowQuery, counts: Mapping[str, int], first: int, last: int
    ) -> None:
        self.counts, self.first, self.last = counts, first, last
        self._history = history
        self._query = query

    def read(self, hosts: Collection[str], columns: Collection[str] | None = None) -> list[Series]:
        """Return the rows of some hosts; see `HostRows`."""
        every = self._query.columns
        chosen = every if columns is None or every is None else [name for name in every if name in columns]
        found = self._history.read(replace(self._query, columns=chosen, hosts=hosts))
        return [series for series in found if len(series)]


def _order(hit: Hit) -> tuple[tuple[int, str], str]:
    return hit.place, hit.id  # it ends with the row's number


def _hits(answer: Mapping[str, Any]) -> list[Hit]:
    """Return the documents in an answer."""
    found = []
    try:
        for hit in answer.get("hits", {}).get("hits", ()):
            ms, host = hit["sort"]
            found.append(Hit(ms, host, hit["_id"], hit["_index"], hit.get("_source", {})))
    except (LookupError, TypeError, ValueError, AttributeError) as err:
        raise unexpected(err) from err
    for one in found:
        if tuple(map(type, one)) != (int, str, str, str, dict):
            raise unexpected(TypeError(f"no document of Colmet: {one}"))
    return found


def unexpected(err: Exception) -> ColmetError:
    """Return the error for an answer in an unknown form."""
    return ColmetError(f"the answer to a search is not what was expected: {err!r}"[:500])


def _interval(since: float | None, until: float | None) -> tuple[int, int]:
    """Return the first and the last whole second."""
    first = 0 if since is None else math.ceil(min(max(0, since), MAX_TIME_S))
    last = MAX_TIME_S if until is None else math.floor(min(max(-1, until), MAX_TIME_S))
    return first, last
