"""Sums over jobs of the shared archive.

The database adds up jobs that count as a whole: those that lie within the interval and, by months, weeks or days,
within one of these. All others are read, and each adds its shares. By hosts, all are read.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from colmet.jobs.archive.derived import ANSWERS
from colmet.jobs.archive.documents import HOSTS, JOBS, WHOLE, row_of
from colmet.jobs.archive.elastic import ElasticArchive, Filters, filters_of, from_on, unexpected
from colmet.jobs.archive.queries import SPANS, SUMS, JobFilter, Span, UsageGroup, by_size, check_count, spans
from colmet.jobs.columns import HOST_COLUMNS, Value, whole_of

GROUPS_AT_ONCE = 1000
JOBS_AT_ONCE = 1000  # whose hosts are read together
FIRST, LAST = -1e18, 1e18  # of an interval without limits
_TIMES = ("job", "start", "end")
_OF_HOST = ("job", "host", "user", "start", "last", *[name for name in SUMS if name in HOST_COLUMNS])
_ENERGY = ("joules", "gpu_joules", "energy_source")
_ORDER = [{"start": {"order": "asc", "unmapped_type": "date"}}, {"job": {"order": "asc", "unmapped_type": "long"}}]


class _Part(NamedTuple):
    """A part of the interval."""

    name: str
    since: float
    until: float


class _Sums:
    """Sums by group."""

    def __init__(self, by: Sequence[str]) -> None:
        self._by = by
        self._found: dict[tuple[str, ...], list[Any]] = {}  # jobs, then a sum for each of `SUMS`

    def add(self, of: Mapping[str, Any], part: str, jobs: int, values: Iterable[Value]) -> None:
        """Add values to a group, given by word; None for a missing one."""
        keys = tuple([part if word in SPANS else "" if of[word] is None else str(of[word]) for word in self._by])
        group = self._found.setdefault(keys, [0, *[None] * len(SUMS)])
        check_count(len(self._found))
        group[0] += jobs
        for n, value in enumerate(values, 1):
            if isinstance(value, (int, float)):
                group[n] = value + (group[n] or 0.0)

    def groups(self) -> list[UsageGroup]:
        """Return all groups, the largest first."""
        return by_size(
            [UsageGroup(keys, count, dict(zip(SUMS, sums))) for keys, (count, *sums) in self._found.items() if count]
        )


def usage_of(archive: ElasticArchive, where: JobFilter, by: Sequence[str]) -> list[UsageGroup]:
    """Return sums by groups; see `JobArchive.usage`."""
    sums = _Sums(by)
    span = next((word for word in by if word in SPANS), None)
    since = FIRST if where.since is None else float(where.since)
    until = LAST if where.until is None else float(where.until)
    parts = [_Part("", since, until)]
    if span is not None:
        parts = _parts(archive, where, span)
        if not parts:
            return []
    filters = filters_of(where)
    if "host" in by:
        _add_hosts(archive, where, by, parts, sums)
        return sums.groups()
    whole: Filters = []  # what holds for jobs that count as a whole
    if where.since is not None:
        whole.append(from_on("start", where.since))
    if where.until is not None:
        whole.append({"range": {"end": {"lte": math.floor(min(max(-1.0, until), 1e12)), "format": "epoch_second"}}})
    if span is not None:
        whole.append({"exists": {"field": WHOLE[span]}})
    _add_whole(archive, [*filters, *whole], by, span, sums)
    if whole:
        others = {"bool": {"must_not": [{"bool": {"filter": whole}}]}}
        columns = [*_TIMES, *[word for word in by if word not in SPANS], *SUMS]
        for hit in archive.pages(JOBS, [*filters, others], _ORDER, columns):
            row = row_of(hit.source, ANSWERS, columns)
            for part, share in _shares(parts, whole_of(row["start"]), whole_of(row["end"])):
                sums.add(row, part, 1, _times(row, share))
    return sums.groups()


def _parts(archive: ElasticArchive, where: JobFilter, span: str) -> list[_Part]:
    """Return the months, weeks or days of the jobs within the interval."""
    edges = {"first": {"min": {"field": "start"}}, "last": {"max": {"field": "end"}}}
    query = {"size": 0, "query": {"bool": {"filter": filters_of(where)}}, "aggs": edges, "track_total_hits": False}
    found = archive.search(JOBS, query).get("aggregations") or {}
    try:
        first, last = [found.get(name, {}).get("value") for name in edges]
        if first is None or last is None:
            return []
        first, last = float(first) / 1000, float(last) / 1000
    except (TypeError, ValueError, AttributeError) as err:
        raise unexpected(err) from err
    since = FIRST if where.since is None else where.since
    until = LAST if where.until is None else where.until
    some: list[Span] = spans(span, max(first, since), min(last, until))
    return [_Part(one.name, max(one.since, since), min(one.until, until)) for one in some]


def _add_whole(archive: ElasticArchive, filters: Filters, by: Sequence[str], span: str | None, sums: _Sums) -> None:
    """Add jobs that the database sums up."""
    fields = [WHOLE[word] if word in SPANS else word for word in by]
    sources = [{word: {"terms": {"field": name, "missing_bucket": True}}} for word, name in zip(by, fields)]
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
                values = [one[name]["sum"] if one[name]["count"] else None for name in SUMS]
                sums.add(one["key"], str(one["key"][span]) if span else "", int(one["doc_count"]), values)
        except (LookupError, TypeError, ValueError, AttributeError) as err:
            raise unexpected(err) from err
        if len(buckets) < GROUPS_AT_ONCE or "after_key" not in found:
            return
        composite["after"] = found["after_key"]


def _shares(parts: Sequence[_Part], start: int, end: int) -> Iterator[tuple[str, float]]:
    """Yield the parts with some of a time, and which share of it; without duration, its start counts."""
    at = max(0, bisect_right([part.since for part in parts], start) - 1)
    for part in parts[at:]:
        if part.since > max(start, end):
            return
        if end > start:
            share = max(0.0, min(end, part.until) - max(start, part.since)) / (end - start)
        else:
            share = float(part.since <= start < part.until)
        if share > 0:
            yield part.name, share


def _times(row: Mapping[str, Value], share: float) -> list[Value]:
    return [value * share if isinstance(value, (int, float)) else None for value in [row[name] for name in SUMS]]


def _add_hosts(
    archive: ElasticArchive, where: JobFilter, by: Sequence[str], parts: Sequence[_Part], sums: _Sums
) -> None:
    """Add the hosts of all jobs."""
    users = (None, "", *where.users) if where.only_own_hosts else None
    columns = [*_TIMES, *{"user", *[word for word in by if word not in SPANS and word != "host"]}]
    some: list[Mapping[str, Value]] = []
    for hit in archive.pages(JOBS, filters_of(where), _ORDER, columns):
        row = row_of(hit.source, ANSWERS, columns)
        if row["job"] is not None:
            some.append(row)
        if len(some) == JOBS_AT_ONCE:
            _add_hosts_of(archive, some, users, parts, sums)
            some = []
    if some:
        _add_hosts_of(archive, some, users, parts, sums)


def _add_hosts_of(
    archive: ElasticArchive,
    jobs: Sequence[Mapping[str, Value]],
    users: Sequence[Value] | None,
    parts: Sequence[_Part],
    sums: _Sums,
) -> None:
    """Add the hosts of some jobs; with `users`, only those that name one of them."""
    by_number: dict[Value, list[Mapping[str, Value]]] = {}
    for one in jobs:
        by_number.setdefault(one["job"], []).append(one)
    begin, end = min([whole_of(one["start"]) for one in jobs]), max([whole_of(one["end"]) for one in jobs])
    filters: Filters = [
        {"terms": {"job": list(by_number)}},
        {"range": {"start": {"gte": begin, "lte": end, "format": "epoch_second"}}},
    ]
    order = [
        {"job": {"order": "asc", "unmapped_type": "long"}},
        {"start": {"order": "asc", "unmapped_type": "date"}},
        {"host": {"order": "asc", "unmapped_type": "keyword"}},
    ]
    columns = [*_OF_HOST, *_ENERGY]
    counted: set[tuple[Value, ...]] = set()  # jobs of a host and a part: it may have several summaries there
    for hit in archive.pages(HOSTS, filters, order, columns):
        row = row_of(hit.source, HOST_COLUMNS, columns)
        if users is not None and row["user"] not in users:
            continue
        start, last = whole_of(row["start"]), whole_of(row["last"])
        values = {**row, "energy_joules": _energy(row)}
        of_number = by_number.get(row["job"], ())
        there = [one for one in of_number if whole_of(one["start"]) <= start <= whole_of(one["end"])]
        for job in [one for one in there if one["user"] == row["user"]] or there:
            for part, share in _shares(parts, start, last):
                key = (job["job"], job["start"], row["host"], part)
                sums.add({**job, "host": row["host"]}, part, key not in counted, _times(values, share))
                counted.add(key)


def _energy(host: Mapping[str, Value]) -> Value:
    """Return the energy of a job on a host: a meter of the whole node includes its GPUs."""
    joules, of_gpus = host["joules"], host["gpu_joules"]
    if not isinstance(joules, (int, float)):
        return of_gpus
    return joules + of_gpus if host["energy_source"] == "rapl" and isinstance(of_gpus, (int, float)) else joules
