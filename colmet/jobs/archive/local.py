"""Answers from the archive's file on this machine, and where that is."""

from __future__ import annotations

import argparse
import math
import os
import re
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from colmet.jobs.archive import queries
from colmet.jobs.archive.derived import ANSWERS, DERIVED, LISTED, sql_of
from colmet.jobs.archive.queries import ArchivedJob, Deadline, JobArchive, JobFilter, JobPage, Row, Span, UsageGroup
from colmet.jobs.archive.store import SUFFIX, ArchiveError, ArchiveStore
from colmet.jobs.columns import HOST_COLUMNS, LARGE, RUNNING, TEXT, JobColumn, fitting
from colmet.jobs.job_summaries import hosts_of_job

IN_JOURNAL = "archive.sqlite"  # name of the file in the journal's directory, without HDF5 files
_FOREVER = 10**12  # seconds: beyond every time
_STEPS = 10_000  # of SQLite's machine between two looks at the clock: some 0.1 ms
_INFINITE = (math.inf, -math.inf)  # sums of a damaged file
_LARGE = frozenset(column.name for column in LARGE)
# Energy of a host: a meter of the whole node includes its GPUs.
_HOST_SQL = {
    "energy_joules": "CASE WHEN h.joules IS NULL THEN h.gpu_joules WHEN h.energy_source = 'rapl' "
    "THEN h.joules + coalesce(h.gpu_joules, 0) ELSE h.joules END"
}
_OF_JOBS = "listed AS l", "l.start", 'l."end"'
# A host with rows of several jobs' number is of the one whose hosts name its user, else of that of the batch system.
_FIT = "2 * ({0}.user IS h.user) + ({0}.started NOT NULL)"
# In this order: `hosts` is read by job, `listed` is not.
_HOSTS_OF_JOBS = f"""listed AS l CROSS JOIN hosts AS h ON h.job = l.job AND h.start BETWEEN l.start AND l."end"
    AND NOT EXISTS (SELECT 1 FROM jobs AS j JOIN jobs AS o
    ON o.job = j.job AND o.start <> j.start AND h.start BETWEEN o.start AND o.last
    WHERE j.job = l.job AND j.start = l.start AND {_FIT.format("o")} > {_FIT.format("j")})"""
_OF_HOSTS = _HOSTS_OF_JOBS, "h.start", "h.last"
Where = tuple[str, list[Any]]  # a condition in SQL, and its values


class LocalArchive(JobArchive):
    """The archive in a file, given by its path or open. Used by one thread.

    All answers have to be ready within `limit_s` from now; later questions raise QueryError. ArchiveError for a file
    that cannot be read.
    """

    def __init__(self, path: str | ArchiveStore, limit_s: float = math.inf) -> None:
        self._store = path if isinstance(path, ArchiveStore) else ArchiveStore(path)
        self._deadline = Deadline(limit_s)
        self._store.database.set_progress_handler(self._deadline.is_over, _STEPS)

    def close(self) -> None:
        """Close the file; idempotent."""
        self._store.close()

    def _page(self, where: JobFilter, wanted: list[str], order: tuple[str, bool], offset: int, limit: int) -> JobPage:
        condition, values = _where(where)
        total = self._ask(f"SELECT count(*) AS n FROM listed AS l WHERE {condition}", values)[0]["n"]
        if total <= offset:
            return JobPage(total, [])
        keys = self._ask(f"{_ordered(condition, *order)} LIMIT ? OFFSET ?", [*values, limit, offset])
        if not wanted:
            return JobPage(total, [{} for _ in keys])
        if all(name in LISTED for name in wanted):
            one = f"SELECT {', '.join(map(_quoted, wanted)) or 1} FROM listed WHERE job = ? AND start = ?"
        else:
            details = " LEFT JOIN job_details USING (job, start)" if _LARGE.intersection(wanted) else ""
            one = f"SELECT {', '.join(map(sql_of, wanted))} FROM jobs{details} WHERE job = ? AND start = ?"
        rows = [row for key in keys for row in self._ask(one, key)]
        of = [ANSWERS[name] for name in wanted]
        return JobPage(total, [dict(zip(wanted, map(fitting, of, row))) for row in rows])

    def job(self, job: int, start: int | None = None) -> ArchivedJob | None:
        """Return a job with its hosts; see `JobArchive.job`."""
        starts = [row["start"] for row in self._ask("SELECT start FROM jobs WHERE job = ? ORDER BY start DESC", [job])]
        if not starts or (start is not None and start not in starts):
            return None
        of = starts[0] if start is None else start
        derived = ", ".join([f"{one.sql} AS derived_{n}" for n, one in enumerate(DERIVED)])
        (found,) = self._ask(
            f"SELECT *, {derived} FROM jobs LEFT JOIN job_details USING (job, start) WHERE job = ? AND start = ?",
            [job, of],
        )
        values = {name: found[name] for name in dict(found) if not name.startswith("derived_")}
        values.update({one.column.name: found[f"derived_{n}"] for n, one in enumerate(DERIVED)})
        summary = _fitting(ANSWERS, values)
        last = max(of, summary["end"] or of)
        hosts = [_fitting(HOST_COLUMNS, one) for one in self._store.hosts_of(job)]
        hosts = [one for one in hosts if of <= (one["start"] or 0) <= last]
        return ArchivedJob(summary, list(hosts_of_job(summary, hosts)), starts)

    def _usage(self, where: JobFilter, by: Sequence[str]) -> list[UsageGroup]:
        span = next((word for word in by if word in queries.SPANS), None)
        parts = [Span("", -_FOREVER, _FOREVER)]
        if span is not None:
            first, last = self._extent(where)
            parts = queries.spans(span, first, last) if first is not None and last is not None else []
        since = -_FOREVER if where.since is None else where.since
        until = _FOREVER if where.until is None else where.until
        self._ask("CREATE TEMP TABLE IF NOT EXISTS parts (since REAL PRIMARY KEY, until REAL, name TEXT)", [])
        self._ask("DELETE FROM parts", [])
        for one in parts:
            values = [max(one.since, since), min(one.until, until), one.name]
            self._ask("INSERT INTO parts VALUES (?, ?, ?)", values)
        return queries.by_size(self._sums(where, by))

    def _extent(self, where: JobFilter) -> tuple[float | None, float | None]:
        """Return the first and the last moment of the jobs within the interval; None without jobs."""
        condition, values = _where(where)
        (row,) = self._ask(
            f'SELECT min(l.start) AS first, max(l."end") AS last FROM listed AS l WHERE {condition}', values
        )
        if row["first"] is None:
            return None, None
        first, last = float(row["first"]), float(row["last"])
        first = first if where.since is None else max(first, where.since)
        return first, last if where.until is None else min(last, where.until)

    def _sums(self, where: JobFilter, by: Sequence[str]) -> list[UsageGroup]:
        """Return the sums of all parts of the interval, in one pass: each job is read once, and joined to its parts."""
        condition, values = _where(where)
        of_hosts = "host" in by
        source, start, end = _OF_HOSTS if of_hosts else _OF_JOBS
        if of_hosts and where.only_own_hosts:
            condition = f"{condition} AND coalesce(h.user, '') IN ('', {_marks(where.users)})"
            values = [*values, *where.users]
        column_of = {"host": "h.host", **dict.fromkeys(queries.SPANS, "p.name")}
        groups = [f"{column_of.get(word, f'l.{_quoted(word)}')} AS g{n}" for n, word in enumerate(by)]
        own, at = (_HOST_SQL, "h") if of_hosts else ({}, "l")
        columns = [f"{own.get(name, f'{at}.{name}')} AS {name}" for name in queries.SUMS]
        inner = ", ".join([*groups, "l.job AS job, l.start AS start", *columns, f"{_share(start, end)} AS part"])
        keys = ", ".join([f"g{n}" for n in range(len(by))])
        counted = "count(DISTINCT job || '.' || start)" if of_hosts else "count(*)"
        sums = [f"sum({name} * part) AS {name}" for name in queries.SUMS]
        first = f"coalesce((SELECT max(since) FROM parts WHERE since <= {start}), {-_FOREVER})"
        rows = self._ask(
            f"SELECT {keys}, {counted} AS jobs, {', '.join(sums)} FROM (SELECT {inner} FROM {source} "
            f"CROSS JOIN parts AS p ON p.since BETWEEN {first} AND max({start}, {end}) WHERE {condition}) "
            f"WHERE part > 0 GROUP BY {keys} LIMIT {queries.MAX_GROUPS + 1}",
            values,
        )
        queries.check_count(len(rows))
        return [
            UsageGroup(
                tuple(["" if row[n] is None else str(row[n]) for n in range(len(by))]),
                row["jobs"],
                {name: None if row[name] in _INFINITE else row[name] for name in queries.SUMS},
            )
            for row in rows
        ]

    def _ask(self, question: str, values: Sequence[Any]) -> list[sqlite3.Row]:
        try:
            return self._store.database.execute(question, values).fetchall()
        except sqlite3.Error as err:
            self._deadline.check()
            raise ArchiveError(f"{self._store.path}: {err}; is the disk readable, and the archive whole?") from err


def _ordered(condition: str, sort: str, descending: bool) -> str:
    """Return the question for job and start of all jobs that fulfil a condition, in order; missing values come last.

    Only these are sorted: whole rows would take twice as long.
    """
    way = "DESC" if descending else "ASC"
    keys = f"start {way}, job {way}"
    column = _quoted(sort)
    if sort == "start":  # the order of the key serves
        return f"SELECT l.job, l.start FROM listed AS l WHERE {condition} ORDER BY {keys}"
    order = f"{column} DESC, {keys}" if descending else f"{column} IS NULL, {column}, {keys}"
    if descending and LISTED[sort].kind == TEXT:
        # many are equal: read from the latest on (LIMIT keeps the order), the first ones read stay in the page
        some = f"SELECT l.job, l.start, l.{column} FROM listed AS l WHERE {condition} ORDER BY l.start DESC, l.job DESC"
        return f"SELECT job, start FROM ({some} LIMIT -1) ORDER BY {order}"
    return f"SELECT l.job, l.start FROM listed AS l WHERE {condition} ORDER BY {order}"


def _fitting(columns: Mapping[str, JobColumn], row: Mapping[str, Any]) -> Row:
    return {name: fitting(columns[name], value) for name, value in row.items() if name in columns}


def _quoted(name: str) -> str:
    return f'"{name}"'


def _share(start: str, end: str) -> str:
    """Return the share of a job's time within a part of the interval; without duration, its start counts."""
    whole = f"1.0 * max(0, min({end}, p.until) - max({start}, p.since)) / ({end} - {start})"
    return f"CASE WHEN {end} > {start} THEN {whole} ELSE {start} >= p.since AND {start} < p.until END"


def _where(where: JobFilter) -> Where:
    """Return the conditions on the rows of `listed AS l`."""
    parts: list[str] = []
    values: list[Any] = []

    def add(condition: str, *of: Any) -> None:
        parts.append(condition)
        values.extend(of)

    for column, some in (
        *(("user", where.users), ("project", where.projects), ("queue", where.queues)),
        ("state", where.states),
    ):
        if some:
            add(f"l.{_quoted(column)} IN ({_marks(some)})", *some)
    # by the keys of `jobs` and `hosts`: `listed` begins with the start
    if where.jobs:
        add(f"(l.start, l.job) IN (SELECT start, job FROM jobs WHERE job IN ({_marks(where.jobs)}))", *where.jobs)
    if where.hosts:
        on = "j.job = o.job AND o.start BETWEEN j.start AND coalesce(j.last, j.ended, j.start)"
        of = f"SELECT j.start, j.job FROM hosts AS o JOIN jobs AS j ON {on} WHERE o.host IN ({_marks(where.hosts)})"
        add(f"(l.start, l.job) IN ({of})", *where.hosts)
    if where.array:
        add("l.array = ?", where.array)
    if where.task:
        task = queries.task_parts(where.task) or ("", -1)  # of no array
        of = "SELECT batch_id = ? OR array_index = ? FROM jobs AS t WHERE t.job = l.job AND t.start = l.start"
        add(f"l.array = ? AND ({of})", task[0], where.task, task[1])
    if where.name:
        # LIKE makes no copy of each name, unlike lower(); both know the case of ASCII letters
        add("l.name LIKE ? ESCAPE '\\'", "%" + re.sub(r"([%_\\])", r"\\\1", where.name) + "%")
    if where.since is not None:
        add(f"(l.\"end\" >= ? OR l.state = '{RUNNING}')", where.since)
    if where.until is not None:
        add("l.start < ?", where.until)
    if where.efficiency_below is not None:
        add("l.cpu_ratio < ?", where.efficiency_below)
    if where.rule:
        add("instr(l.rules, ?) > 0 AND instr(' ' || l.rules || ' ', ' ' || ? || ' ') > 0", where.rule, where.rule)
    return " AND ".join(parts) or "1", values


def _marks(some: Sequence[Any]) -> str:
    return ", ".join("?" * len(some))


def path_of(options: argparse.Namespace) -> str:
    """Return the path of the archive's file: --archive, else beside the HDF5 files or in the journal; "" for none.

    Without HDF5 files there is one for a database only, whose journal is on disk.
    """
    named = getattr(options, "archive", None)
    if named is not None:
        return str(named)
    if options.hdf5_filepath:
        return f"{options.hdf5_filepath}{SUFFIX}"
    journal = getattr(options, "journal_dir", None)
    return os.path.join(journal, IN_JOURNAL) if has_database(options) and journal else ""


def has_database(options: argparse.Namespace) -> bool:
    """Return whether the collector writes to a database."""
    return bool(getattr(options, "elastic_host", None))


def is_in_database(options: argparse.Namespace) -> bool:
    """Return whether commands read the archive of a collector with these options in its database."""
    is_only_there = has_database(options) and options.archive is None and not path_of(options)
    return is_only_there or is_shared(options)


def is_shared(options: argparse.Namespace) -> bool:
    """Return whether the collector's archive is in its database, too."""
    return has_database(options) and bool(path_of(options)) and not getattr(options, "no_shared_archive", False)
