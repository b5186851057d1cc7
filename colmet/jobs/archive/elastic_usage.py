"""Sums over jobs of the shared archive.

The database adds up jobs that count as a whole: those that lie within the interval and, by months, weeks or days,
within one of these. All others, and by hosts all, are copied to a file of SQLite that lasts for one answer: there the
question is that to a local archive.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

from colmet.jobs.archive.derived import ANSWERS, LISTED
from colmet.jobs.archive.documents import HOSTS, JOBS, WHOLE, row_of
from colmet.jobs.archive.elastic import ElasticArchive, Filters, filters_of, from_on, in_order, unexpected
from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.queries import SPANS, SUMS, JobFilter, UsageGroup, by_size, check_count, total_of
from colmet.jobs.archive.store import ArchiveStore, transaction
from colmet.jobs.columns import HOST_COLUMNS, Value, whole_of

GROUPS_AT_ONCE = 1000
JOBS_AT_ONCE = 1000  # whose hosts are read together
_OF_JOB = ("job", "start", "user", "started", "last")  # columns of `jobs` that decide which of its jobs a host is of
_OF_HOST = ("job", "host", "start", "last", "user", *[name for name in SUMS if name in HOST_COLUMNS])
_ENERGY = ("joules", "gpu_joules", "energy_source")


def usage_of(archive: ElasticArchive, where: JobFilter, by: Sequence[str]) -> list[UsageGroup]:
    """Return sums by groups; see `JobArchive.usage`."""
    span = next((word for word in by if word in SPANS), None)
    filters, groups = filters_of(where), dict[tuple[str, ...], list[UsageGroup]]()
    if "host" not in by:
        whole: Filters = []  # what holds for jobs that count as a whole
        if where.since is not None:
            whole.append(from_on("start", where.since))
        if where.until is not None:
            until = math.floor(min(max(-1.0, where.until), 1e12))
            whole.append({"range": {"end": {"lte": until, "format": "epoch_second"}}})
        if span is not None:
            whole.append({"exists": {"field": WHOLE[span]}})
        for group in _summed_there(archive, [*filters, *whole], by):
            groups.setdefault(group.keys, []).append(group)
            check_count(len(groups))
        filters = [*filters, {"bool": {"must_not": [{"bool": {"filter": whole}}]}}] if whole else []
    if filters or "host" in by:
        with closing(ArchiveStore("", writable=True)) as copy:
            _copy(archive, filters, copy, by)
            of_copy = JobFilter(
                users=where.users, since=where.since, until=where.until, only_own_hosts=where.only_own_hosts
            )
            for group in LocalArchive(copy).usage(of_copy, by):
                groups.setdefault(group.keys, []).append(group)
    check_count(len(groups))
    return by_size([total_of(some)._replace(keys=keys) for keys, some in groups.items()])


def _summed_there(archive: ElasticArchive, filters: Filters, by: Sequence[str]) -> Iterator[UsageGroup]:
    """Yield the sums of the database."""
    sources = [{word: {"terms": {"field": WHOLE.get(word, word), "missing_bucket": True}}} for word in by]
    composite: dict[str, Any] = {"size": GROUPS_AT_ONCE, "sources": sources}
    stats = {name: {"stats": {"field": name}} for name in SUMS}
    query = {
        "size": 0,
        "query": {"bool": {"filter": filters}},
        "aggs": {"groups": {"composite": composite, "aggs": stats}},
        "track_total_hits": False,
    }
    while True:
        answer = archive.search(JOBS, query)
        try:
            found = (answer.get("aggregations") or {}).get("groups") or {}
            buckets = list(found.get("buckets", ()))
            for one in buckets:
                keys = tuple(["" if one["key"][word] is None else str(one["key"][word]) for word in by])
                sums = {name: float(one[name]["sum"]) if one[name]["count"] else None for name in SUMS}
                yield UsageGroup(keys, int(one["doc_count"]), sums)
        except (LookupError, TypeError, ValueError, AttributeError) as err:
            raise unexpected(err) from err
        if len(buckets) < GROUPS_AT_ONCE or "after_key" not in found:
            return
        composite["after"] = found["after_key"]


def _copy(archive: ElasticArchive, filters: Filters, copy: ArchiveStore, by: Sequence[str]) -> None:
    """Copy jobs, and by hosts these; documents without a key are none of either."""
    order = [in_order("start", "asc", "date"), in_order("job", "asc", "long")]
    listed = list(dict.fromkeys(["job", "start", "end", "user", "state", *[one for one in by if one in LISTED], *SUMS]))
    columns = list(dict.fromkeys([*listed, *_OF_JOB]))
    hits = archive.pages(JOBS, filters, order, columns)
    while some := [row_of(hit.source, ANSWERS, columns) for hit in islice(hits, JOBS_AT_ONCE)]:
        jobs = [{**row, "end": row["end"] or row["start"]} for row in some if row["job"] is not None and row["start"]]
        with transaction(copy.database):
            _insert(copy, "jobs", _OF_JOB, jobs)
            # Replaces what the trigger computed from these few columns.
            _insert(copy, "listed", listed, jobs)
            if "host" in by and jobs:
                _insert(copy, "hosts", [*_OF_HOST, *_ENERGY], _hosts_of(archive, jobs))


def _hosts_of(archive: ElasticArchive, jobs: Sequence[Mapping[str, Value]]) -> Iterator[Mapping[str, Value]]:
    """Yield the hosts of some jobs, and maybe others."""
    begin, end = min([whole_of(one["start"]) for one in jobs]), max([whole_of(one["end"]) for one in jobs])
    filters: Filters = [
        {"terms": {"job": list({one["job"] for one in jobs})}},
        {"range": {"start": {"gte": begin, "lte": end, "format": "epoch_second"}}},
    ]
    order = [in_order("job", "asc", "long"), in_order("start", "asc", "date"), in_order("host", "asc", "keyword")]
    columns = [*_OF_HOST, *_ENERGY]
    for hit in archive.pages(HOSTS, filters, order, columns):
        row = row_of(hit.source, HOST_COLUMNS, columns)
        if row["job"] is not None and row["host"] and row["start"]:
            yield {**row, "last": row["last"] or row["start"]}


def _insert(copy: ArchiveStore, table: str, names: Sequence[str], rows: Any) -> None:
    quoted, marks = ", ".join([f'"{name}"' for name in names]), ", ".join("?" * len(names))
    copy.database.executemany(
        f"INSERT OR REPLACE INTO {table} ({quoted}) VALUES ({marks})", [[row[name] for name in names] for row in rows]
    )
