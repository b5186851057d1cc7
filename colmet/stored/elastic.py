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
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from colmet.common import database_client
from colmet.common.errors import ColmetError
from colmet.common.schema import MISSING_INT, NAME
from colmet.common.tables import schemas
from colmet.stored.series import NODE, ROW_VALUES, HeldRows, HostRows, RowQuery, RowStore, Series, missing_values

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
MAX_BYTES = 1 << 30  # of all columns of one table
INTEGERS = frozenset({"long", "integer", "short", "byte", "unsigned_long"})
FLOATS = frozenset({"double", "float", "half_float", "scaled_float"})
GROUPS = frozenset({"object", "nested", "flattened"})
HEADER = frozenset({"hostname", "job_id", "timestamp"})


class ElasticHistory(RowStore):
    """The rows written by the Elasticsearch output, or by Colmet 0.6."""

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
        with expected():
            found: Mapping[str, Any] = answer.get("aggregations", {}).get("indices", {})
            indices = [str(bucket["key"]) for bucket in found.get("buckets", ())]
            left_out = found.get("sum_other_doc_count", 0)
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
        rows = PagedColumns(table, wanted, kinds, MAX_BYTES, query.job)
        for page in self._pages(table, filters, host, wanted):
            rows.add(page)
        return list(rows.series())

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
        with expected():
            parts: Mapping[str, Any] = answer.get("aggregations", {})
            by_host: Mapping[str, Any] = parts.get("hosts", {})
            counts = {str(bucket["key"]): int(bucket["doc_count"]) for bucket in by_host.get("buckets", ())}
            left_out = by_host.get("sum_other_doc_count", 0)
            first, last = [int((parts.get(name, {}).get("value") or 0) // 1000) for name in edges]
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
        with expected():
            for bucket in answer.get("aggregations", {}).get("hours", {}).get("buckets", ()):
                yield int(bucket["key"]) // (1000 * 3600), int(bucket["doc_count"])

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
        rows = PagedColumns(table, columns, kinds_of(self._fields(table)), math.inf)
        for page in self._pages(table, asked[1], asked[0], [*columns, JOB]):
            rows.add([hit for hit in page if type(hit.source.get(JOB)) is int])
        yield from rows.series()

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
            hits.sort(key=lambda hit: (hit.place, hit.id))  # the id ends with the row's number
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
        key = table.lower()
        if key not in self._types:
            path = f"/{self._pattern(table)}/_field_caps?fields=*&{WHERE}&filter_path=fields.*.*.type"
            found = self._ask(path).get("fields", {})
            with expected():
                self._types[key] = {
                    str(name): {str(one["type"]) for one in types.values()} for name, types in found.items()
                }
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


def _hits(answer: Mapping[str, Any]) -> list[Hit]:
    found = []
    with expected():
        for hit in answer.get("hits", {}).get("hits", ()):
            ms, host = hit["sort"]
            found.append(Hit(ms, host, hit["_id"], hit["_index"], hit.get("_source", {})))
            if tuple(map(type, found[-1])) != (int, str, str, str, dict):
                raise TypeError(f"no document of Colmet: {found[-1]}")
    return found


@contextmanager
def expected() -> Iterator[None]:
    """Raise ColmetError for an answer in an unknown form."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as err:
        raise ColmetError(f"the answer to a search is not what was expected: {err!r}"[:500]) from err


def _interval(since: float | None, until: float | None) -> tuple[int, int]:
    first = 0 if since is None else math.ceil(min(max(0, since), MAX_TIME_S))
    last = MAX_TIME_S if until is None else math.floor(min(max(-1, until), MAX_TIME_S))
    return first, last


class Hit(NamedTuple):
    """A found document."""

    ms: int  # time of the sample, since 1970
    host: str  # its host
    id: str  # of the document
    index_name: str  # of its index
    source: Mapping[str, Any]  # its columns

    @property
    def place(self) -> tuple[int, str]:
        """Return the sort key of documents."""
        return self.ms, self.host


def kinds_of(types: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Return the kinds of columns, i, f or S as in numpy, by the types of fields."""
    return {
        name: "f" if known & FLOATS else "i" if known & INTEGERS else "S"
        for name, known in sorted((name, frozenset(known)) for name, known in types.items())
        if NAME.fullmatch(name)
        and name not in HEADER
        and not known <= GROUPS
        and not (name.endswith(".keyword") and name[: -len(".keyword")] in types)
    }


class PagedColumns:
    """Columns of a table gathered page by page.

    Args:
        kinds: declared kinds of their fields.
        job: of all rows; None if each has its own.
    """

    def __init__(
        self, table: str, names: Sequence[str], kinds: Mapping[str, str], max_bytes: float, job: int | None = None
    ) -> None:
        self._table, self._kinds, self._max_bytes, self._job = table, kinds, max_bytes, job
        self._hosts: dict[str, int] = {}
        self._rows: list[npt.NDArray[np.int64]] = []  # time, number of the host, and job
        self._columns: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
        self._widths = dict.fromkeys(names, 8)
        self._count = 0

    def add(self, page: Sequence[Hit]) -> None:
        """Add some rows; raise ColmetError for too many."""
        if not page:
            return
        hosts = [self._hosts.setdefault(hit.host, len(self._hosts)) for hit in page]
        jobs = [hit.source[JOB] if self._job is None else self._job for hit in page]
        self._rows.append(np.array([[hit.ms // 1000 for hit in page], hosts, jobs], dtype=np.int64))
        for name, parts in self._columns.items():
            column = column_of([hit.source.get(name) for hit in page], self._kinds[name])
            parts.append(column)
            self._widths[name] = max(self._widths[name], column.itemsize)
        self._count += len(page)
        if self._count * (16 + sum(self._widths.values())) > self._max_bytes:
            raise ColmetError(
                f"{self._table}: the rows require more than {MAX_BYTES >> 20} MiB; ask for fewer columns or hosts, or "
                "for a shorter interval"
            )

    def series(self) -> Iterator[Series]:
        """Yield all rows, a series for each job and host, sorted by both; the gathered parts are given up."""
        if not self._count:
            return
        columns = {}
        for name in self._columns:
            columns[name] = joined(self._columns[name], self._kinds[name])
            self._columns[name] = []
        names = sorted(self._hosts)
        ranks = {name: rank for rank, name in enumerate(names)}
        times, numbers, jobs = np.concatenate(self._rows, axis=1)
        hosts = np.array([ranks[name] for name in self._hosts])[numbers]
        order = np.lexsort((hosts, jobs))
        hosts, jobs = hosts[order], jobs[order]
        begins = np.flatnonzero(np.append(True, (np.diff(jobs) != 0) | (np.diff(hosts) != 0)))
        for start, end in zip(begins.tolist(), [*begins[1:].tolist(), len(jobs)]):
            rows = order[start:end]
            values = {name: column[rows] for name, column in columns.items()}
            yield Series(self._table, names[int(hosts[start])], int(jobs[start]), times[rows], values)


def column_of(values: list[Any], declared: str) -> npt.NDArray[Any]:
    """Return JSON values as a column of their own type: the index guesses it from the first value, possibly wrongly."""
    types = {*map(type, values)} - {type(None)}
    if not types:
        return missing_values(len(values), declared)
    if types == {int}:
        try:
            return np.array([MISSING_INT if value is None else value for value in values], dtype=np.int64)
        except OverflowError:  # from 2**63 on
            types.add(float)
    if types <= {int, float}:
        floats = np.array([math.nan if value is None else value for value in values], dtype=np.float64)
        floats[floats == MISSING_INT] = math.nan  # Colmet 0.6 wrote it
        return floats
    return np.array([_text(value) for value in values], dtype=np.bytes_)


def _text(value: Any) -> bytes:
    if value is None:
        return b""
    return (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "replace")


def joined(parts: list[npt.NDArray[Any]], declared: str) -> npt.NDArray[Any]:
    """Return the concatenated parts of a column, in the most general of their kinds and the declared one."""
    kind = max([declared, *[part.dtype.kind for part in parts]], key="ifS".index)
    return np.concatenate([_as_kind(part, kind) for part in parts])


def _as_kind(part: npt.NDArray[Any], kind: str) -> npt.NDArray[Any]:
    have = part.dtype.kind
    if have == kind:
        return part
    missing = part == MISSING_INT if have == "i" else np.isnan(part)
    if kind == "f":
        return np.where(missing, math.nan, part.astype(np.float64))
    return np.where(missing, b"", part.astype(np.bytes_))
