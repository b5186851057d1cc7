"""Answers from the shared archive in Elasticsearch or OpenSearch, the same as from the archive's file.

The right to read its indices is enough: the requests are searches.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from colmet.common import database_client
from colmet.common.database_client import DatabaseClient
from colmet.common.errors import OutputUnavailable
from colmet.jobs.archive import queries
from colmet.jobs.archive.derived import ANSWERS
from colmet.jobs.archive.documents import HOST_NAMES, HOSTS, JOBS, LOWER_NAME, RULE_WORDS, row_of
from colmet.jobs.archive.queries import ArchivedJob, Deadline, JobArchive, JobFilter, JobPage, Row, UsageGroup
from colmet.jobs.archive.store import ArchiveError
from colmet.jobs.columns import HOST_COLUMNS, LARGE, RUNNING
from colmet.jobs.job_summaries import hosts_of_job

PAGE = 10_000  # a server's default limit for one answer
PAGE_BYTES = 16 << 20  # about half of an answer's limit
VALUE_BYTES, LARGE_BYTES = 40, 4 << 10  # of a document, for each column
MAX_INT = (1 << 63) - 1
MAX_TIME_S = 1 << 40
_WHERE = "ignore_unavailable=true&allow_no_indices=true&allow_partial_search_results=false"
_LARGE = frozenset(column.name for column in LARGE)
_NOTHING: dict[str, Any] = {"match_none": {}}

Filters = list[dict[str, Any]]


class Hit(NamedTuple):
    """A found document."""

    source: Mapping[str, Any]
    sort: list[Any]


class ElasticArchive(JobArchive):
    """The shared archive, in indices whose names begin with `prefix`. Used by one thread."""

    def __init__(self, client: DatabaseClient, prefix: str, limit_s: float = math.inf) -> None:
        self._client = client
        self._prefix = prefix
        self._deadline = Deadline(limit_s)

    @classmethod
    def from_options(cls, options: argparse.Namespace, limit_s: float = math.inf) -> ElasticArchive:
        """Return the archive for the options of `database_client.add_options`; ConfigError for invalid ones."""
        prefix = database_client.checked_prefix(options)
        return cls(database_client.open_client(options, warns=False), prefix, limit_s)

    def close(self) -> None:
        """Close all connections; idempotent."""
        self._client.close()

    def _page(self, where: JobFilter, wanted: list[str], order: tuple[str, bool], offset: int, limit: int) -> JobPage:
        sort, way = order[0], "desc" if order[1] else "asc"
        keys = [in_order("start", way, "date"), in_order("job", way, "long")]
        if sort != "start":
            keys.insert(0, in_order(sort, way, "keyword"))
        filters = filters_of(where)
        total = self._count(filters)
        rows: list[Row] = []
        after: list[Any] | None = None
        if PAGE - limit < offset < total:  # the server counts no further
            for hit in self.pages(JOBS, filters, keys, (), offset):
                after = hit.sort
            offset = 0
        if offset < total:
            rows = [
                row_of(hit.source, ANSWERS, wanted)
                for hit in self.pages(JOBS, filters, keys, wanted, limit, offset, after)
            ]
        return JobPage(total, rows)

    def job(self, job: int, start: int | None = None) -> ArchivedJob | None:
        """Return a job with its hosts; see `JobArchive.job`."""
        if not 0 <= job <= MAX_INT:
            return None
        filters: Filters = [{"term": {"job": job}}]
        rows = [
            row_of(hit.source, ANSWERS, ["start"])
            for hit in self.pages(JOBS, filters, [in_order("start", "desc", "date")], ["start"])
        ]
        starts = [row["start"] for row in rows if isinstance(row["start"], int)]
        if not starts or (start is not None and start not in starts):
            return None
        of = starts[0] if start is None else start
        at = {"range": {"start": {"gte": of, "lte": of, "format": "epoch_second"}}}
        found = list(self.pages(JOBS, [*filters, at], [in_order("start", "desc", "date")], list(ANSWERS), 1))
        if not found:  # it has another start by now
            return None
        summary = row_of(found[0].source, ANSWERS, list(ANSWERS))
        end = summary["end"]
        last = max(of, end if isinstance(end, int) else of)
        while_there = {"range": {"start": {"gte": of, "lte": last, "format": "epoch_second"}}}
        order = [in_order("start", "asc", "date"), in_order("host", "asc", "keyword")]
        names = list(HOST_COLUMNS)
        hosts: list[Row] = [
            row_of(hit.source, HOST_COLUMNS, names) for hit in self.pages(HOSTS, [*filters, while_there], order, names)
        ]
        return ArchivedJob(summary, list(hosts_of_job(summary, hosts)), starts)

    def _usage(self, where: JobFilter, by: Sequence[str]) -> list[UsageGroup]:
        from colmet.jobs.archive.elastic_usage import usage_of

        return usage_of(self, where, by)

    # -- searches --

    def search(self, index: str, query: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to a search; without the index, an empty one.

        ArchiveError if the server does not answer, or not as expected; QueryError if the time for answers is over.
        """
        self._deadline.check()
        path = f"/{self._prefix}{index}/_search?{_WHERE}"
        try:
            answer = self._client.ask("POST", path, json.dumps(query).encode())
        except OutputUnavailable as err:
            raise ArchiveError(
                f"the shared archive of jobs does not answer: {err}; --archive PATH names the file of one collector"
            ) from err
        why = ": ".join(answer.error)
        if answer.status == 403:
            raise ArchiveError(f"may not read {self._prefix}{index}: {why}; give the user the right to read this index")
        if answer.status != 200 or answer.body.get("timed_out"):
            raise ArchiveError(f"a search in the shared archive is answered with status {answer.status}: {why}")
        return answer.body

    def pages(
        self,
        index: str,
        filters: Filters,
        order: Sequence[Mapping[str, Any]],
        columns: Sequence[str],
        limit: int | None = None,
        offset: int = 0,
        after: Sequence[Any] | None = None,
    ) -> Iterator[Hit]:
        """Yield documents in an order that no two share a place in; all without `limit`.

        `offset` documents are skipped, with `limit` at most `PAGE`; or all up to the place `after`.
        """
        row_bytes = 200 + sum([LARGE_BYTES if name in _LARGE else VALUE_BYTES for name in columns])
        most = max(1, min(PAGE - offset, PAGE_BYTES // row_bytes))
        query: dict[str, Any] = {
            "query": {"bool": {"filter": filters}},
            "sort": list(order),
            "_source": list(columns) or False,
            "track_total_hits": False,
        }
        left = limit
        while left is None or left > 0:
            size = most if left is None else min(most, left)
            query.update(size=size, **({"from": offset} if after is None and offset else {}))
            if after is not None:
                query["search_after"] = list(after)
            hits = _hits(self.search(index, query))
            yield from hits
            if len(hits) < size:
                return
            after, offset = hits[-1].sort, 0
            query.pop("from", None)
            left = None if left is None else left - len(hits)

    def _count(self, filters: Filters) -> int:
        query = {"size": 0, "query": {"bool": {"filter": filters}}, "track_total_hits": True}
        answer = self.search(JOBS, query)
        try:
            return int(answer["hits"]["total"]["value"])
        except (LookupError, TypeError, ValueError) as err:
            raise unexpected(err) from err


def in_order(name: str, way: str, kind: str) -> Mapping[str, Any]:
    """Return an order of documents by one field; missing values come last."""
    column = ANSWERS.get(name)
    if column is not None and kind == "keyword":
        kind = {"INTEGER": "long", "REAL": "double"}.get(column.kind, kind)
    return {name: {"order": way, "missing": "_last", "unmapped_type": kind}}


def _hits(answer: Mapping[str, Any]) -> list[Hit]:
    try:
        return [Hit(dict(hit.get("_source", {})), list(hit["sort"])) for hit in answer["hits"]["hits"]]
    except (LookupError, TypeError, ValueError, AttributeError) as err:
        raise unexpected(err) from err


def unexpected(err: Exception) -> ArchiveError:
    """Return the error for an answer in another form."""
    return ArchiveError(f"the answer to a search in the shared archive is not what was expected: {err!r}"[:500])


def moment(value: float) -> int:
    """Return the first whole second from a moment on, within what a date can be."""
    return math.ceil(min(max(0.0, value), MAX_TIME_S))


def from_on(name: str, value: float) -> dict[str, Any]:
    """Return the filter for times from a moment on."""
    return {"range": {name: {"gte": moment(value), "format": "epoch_second"}}}


def before(name: str, value: float) -> dict[str, Any]:
    """Return the filter for times before a moment."""
    return {"range": {name: {"lt": moment(value), "format": "epoch_second"}}}


def filters_of(where: JobFilter) -> Filters:
    """Return the conditions on whole jobs."""
    found: Filters = []
    for field, some in (
        *(("user", where.users), ("project", where.projects), ("queue", where.queues)),
        *(("state", where.states), (HOST_NAMES, where.hosts)),
    ):
        if some:
            found.append({"terms": {field: list(some)}})
    if where.jobs:
        jobs = [job for job in where.jobs if abs(job) <= MAX_INT]
        found.append({"terms": {"job": jobs}} if jobs else _NOTHING)
    if where.array:
        found.append({"term": {"array": where.array}})
    if where.task:
        task = queries.task_parts(where.task) or ("", -1)  # of no array
        named = [{"term": {"batch_id": where.task}}, {"term": {"array_index": task[1]}}]
        found += [{"term": {"array": task[0]}}, {"bool": {"should": named}}]
    if where.name:
        found.append(
            {"wildcard": {LOWER_NAME: {"value": "*" + re.sub(r"[\\*?]", r"\\\g<0>", _lower(where.name)) + "*"}}}
        )
    if where.since is not None:
        found.append({"bool": {"should": [from_on("end", where.since), {"term": {"state": RUNNING}}]}})
    if where.until is not None:
        found.append(before("start", where.until))
    if where.efficiency_below is not None:
        found.append({"range": {"cpu_ratio": {"lt": min(where.efficiency_below, 1e300)}}})
    if where.rule:
        found.append({"term": {RULE_WORDS: where.rule}})
    return found


def _lower(text: str) -> str:
    """Return a text in lower case, as SQLite does: letters of ASCII alone."""
    return "".join([letter.lower() if letter.isascii() else letter for letter in text])
