"""Queries of the JSON interface to the store: files or a database.

Reading a store can be slow, and needs memory. So each reading has a deadline, and a repeated query is answered from a
cache or by the one in progress. `workers` bounds the number of readings, and shares them among users.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Optional, TypeVar

import numpy as np

from colmet.common.errors import ColmetError
from colmet.jobs.archive.elastic import ElasticArchive
from colmet.jobs.archive.local import LocalArchive, is_shared, path_of
from colmet.jobs.archive.queries import ArchivedJob, JobArchive
from colmet.jobs.report.archived import find
from colmet.stored.curves import capacities
from colmet.stored.series import GroupedRows, HeldRows, History, HostRows, ReadingTooSlow, RowQuery, Series, groups_of
from colmet.web.recent_cache import AGAIN_S

READ_S = 30.0  # deadline of a reading: below that of a request, so that its client gets the reason
OPEN_S = 30.0  # a store is opened again after this time: files are added and removed
# How long the cache keeps an answer:
KEEP_S = 30.0  # rows, capacities, completeness
OWNER_S = 3600.0  # the users of a job
TABLES_S = 60.0  # the tables of a job
UNKNOWN_S = 10.0  # no users or tables: they may appear any time
MAX_KEPT, MAX_KEPT_BYTES = 2000, 64 << 20  # answers in the cache
MAX_HELD_ROWS = 1 << 19  # rows of a read in memory; more are read by groups of hosts
USER_VALUES = 8  # memory of a user's name, in numbers
GRID_S = 60.0  # times in queries are rounded to minutes, so that repeated queries are equal

T = TypeVar("T")
ArchiveOpener = Callable[[], Optional[JobArchive]]  # None without an archive


class StoreWarning(str):
    """A store's own message. It may name files and hosts, so only administrators see it."""

    __slots__ = ()


def warning_of(err: ColmetError) -> str:
    """Return the warning of a store that could not be read: its own message, or for everybody that it is too slow."""
    return str(err) if isinstance(err, ReadingTooSlow) else StoreWarning(err)


class StoreAnswer(NamedTuple):
    """The answer of a store."""

    value: Any  # the answer, of any type
    warnings: tuple[str, ...]  # one for each failure to read a part


class RowOwners(NamedTuple):
    """The users of the rows with one job number: several, if the number was used again."""

    users: frozenset[str]  # names as reported by the nodes; "" among them if some rows belong to a job without a user
    last: float  # time of the last row with a user, seconds since 1970; -inf if there is none


class _Used(NamedTuple):
    """What a client made of rows that are too many to be kept."""

    by: Callable[..., Any]
    result: Any


class _CachedAnswer(NamedTuple):
    until: float
    size_bytes: int
    answer: StoreAnswer


def opener(options: argparse.Namespace) -> Callable[[], History] | None:
    """Return a function to open the store of a collector with these options; None if the store is not readable."""
    if options.hdf5_filepath:
        from colmet.stored.hdf5 import Hdf5History  # imported here, as each requires a library of its own
        from colmet.stored.reading_process import files_of

        path = options.hdf5_filepath
        return lambda: Hdf5History([path]) if files_of(path) else EmptyHistory()
    if options.elastic_host:
        from colmet.stored.elastic import ElasticHistory

        return lambda: ElasticHistory.from_options(options)
    return None


def archive_opener(options: argparse.Namespace) -> ArchiveOpener:
    """Return a function to open the job archive of a collector with these options."""
    path = path_of(options)

    def opened() -> JobArchive | None:
        if is_shared(options):
            return ElasticArchive.from_options(options, READ_S)
        if not path or (getattr(options, "archive", None) is None and not os.path.exists(path)):
            return None
        return LocalArchive(path, READ_S)

    return opened


def find_in(
    open_archive: ArchiveOpener, job: int, start: int | None, users: Sequence[str] | None, projects: Sequence[str] = ()
) -> ArchivedJob | None:
    """Return a job of the archive, as `colmet.jobs.report.archived.find`; None without an archive."""
    archive = open_archive()
    if archive is None:
        return None
    with archive:
        return find(archive, job, start, users, projects)


class EmptyHistory(History):
    """A store without files so far."""

    def tables(self, job: int, since: float | None = None, until: float | None = None) -> dict[str, list[str]]:
        """Return no tables."""
        return {}

    def read(self, query: RowQuery) -> list[Series]:
        """Return no rows."""
        return []

    def close(self) -> None:
        """Do nothing."""


@dataclass(eq=False)
class StoreReader:
    """Queries a store, from any thread.

    A query is answered from the cache, by the same query in progress, or from the store. Every method raises
    `colmet.common.errors.ColmetError` if the store cannot be read, `ReadingTooSlow` if it takes longer than `READ_S`.
    """

    open_history: Callable[[], History]
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[float, History]] = []
        self._kept: OrderedDict[Any, _CachedAnswer] = OrderedDict()
        self._kept_bytes = 0
        self._pending: dict[Any, Future[StoreAnswer]] = {}

    def tables(self, job: int, since: float | None = None) -> StoreAnswer:
        """Return the tables of a job with their columns, from `since` on, rounded down to a minute."""
        since, _ = _wider(since, None)
        lifetime = lambda found: TABLES_S if found else UNKNOWN_S  # noqa: E731
        return self._ask(("tables", job, since), lambda history: dict(history.tables(job, since)), lifetime)

    def read(self, query: RowQuery, use: Callable[[HostRows], T]) -> tuple[T, tuple[str, ...]]:
        """Return the result of `use` for the rows of a query, and warnings of the store.

        The interval is slightly longer than requested. `use` may run while another caller waits for the same query: it
        must not ask the store. More than `MAX_HELD_ROWS` rows are read by groups of hosts, and not kept.
        """
        since, until = _wider(query.since, query.until)
        hosts = None if query.hosts is None else sorted(query.hosts)
        wider = replace(query, since=since, until=until, hosts=hosts)
        key = ("read", wider)

        def work(history: History) -> Any:
            rows = history.by_hosts(wider)
            if sum(rows.counts.values()) <= MAX_HELD_ROWS:
                return rows.read(rows.counts)
            return _Used(use, use(rows))

        while True:
            answer = self._ask(key, work, lambda found: 0.0 if isinstance(found, _Used) else KEEP_S)
            if not isinstance(answer.value, _Used):
                return use(HeldRows(answer.value)), answer.warnings
            if answer.value.by is use:  # else it was read for another client
                return answer.value.result, answer.warnings

    def capacities(
        self, job: int, since: float | None, until: float | None, hosts: Collection[str] | None
    ) -> StoreAnswer:
        """Return the capacity of a job on each host, or of the node, as `colmet.stored.curves.capacities`."""
        limits = (*_wider(since, until), None if hosts is None else tuple(sorted(hosts)))
        return self._ask(("capacities", job, *limits), lambda history: capacities(history, job, *limits), KEEP_S)

    def owners(self, job: int) -> Mapping[str, RowOwners] | None:
        """Return the users of a job's rows, by the host of the rows; None for an unknown job."""

        def work(history: History) -> Mapping[str, RowOwners] | None:
            tables = history.tables(job)
            if not tables:
                return None
            names = sorted([name for name in tables if "user" in tables[name]])
            grouped = GroupedRows(history)
            rows = [grouped.rows(RowQuery(job, name, ["user"])) for name in names]
            found: dict[str, RowOwners] = {}
            for hosts in groups_of([(one, USER_VALUES) for one in rows]):
                of_host: dict[str, list[Series]] = {}
                for series in [series for one in rows for series in one.read(hosts)]:
                    of_host.setdefault(series.host, []).append(series)
                found.update({host: _owners(series) for host, series in of_host.items()})
            return found

        found: Mapping[str, RowOwners] | None = self._ask(
            ("owners", job),
            work,
            lambda found: OWNER_S if found and any(any(one.users) for one in found.values()) else UNKNOWN_S,
        ).value
        return found

    def completeness(self, job: int, since: int | None, until: int | None) -> StoreAnswer:
        """Return the stored share of a job's due samples, and its gaps, of each host with rows."""

        def work(history: History) -> Any:
            from colmet.stored.completeness import hosts_of
            from colmet.stored.job_rows import JobInterval

            return [
                {
                    "node": host,
                    "share": one.here_ratio,
                    "expected": one.here + one.missing,
                    "present": one.here,
                    "gaps": [
                        {"since": gap.first, "until": gap.last, "why": gap.why, "samples": gap.rows} for gap in one.gaps
                    ],
                }
                for host, one in hosts_of(history, JobInterval(job, since, until)).items()
            ]

        return self._ask(("completeness", job, since, until), work, KEEP_S)

    def close(self) -> None:
        """Close all idle stores. May be called twice."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, history in idle:
            history.close()

    def _ask(self, key: Any, work: Callable[[History], Any], keep_s: float | Callable[[Any], float]) -> StoreAnswer:
        """Return the result of `work`: from the cache, from another caller's query in progress, or from the store."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept.until > self.monotonic():
                self._kept.move_to_end(key)
                return kept.answer
            pending = self._pending.get(key)
            if pending is None:
                mine = self._pending[key] = Future()
        if pending is not None:
            return pending.result()
        try:
            answer = self._read_by(work)
        except BaseException as err:
            with self._lock:
                del self._pending[key]
            mine.set_exception(err)
            raise
        with self._lock:
            del self._pending[key]
            kept_s = keep_s(answer.value) if callable(keep_s) else keep_s
            # without a part of the store, a host or a user of it may be missing
            self._keep(key, answer, min(kept_s, UNKNOWN_S) if answer.warnings else kept_s)
        mine.set_result(answer)
        return answer

    def _read_by(self, work: Callable[[History], Any]) -> StoreAnswer:
        opened, history = self._take()
        history.allow(READ_S)
        try:
            answer = StoreAnswer(work(history), tuple(map(StoreWarning, history.warnings)))
        except MemoryError as err:
            history.close()
            raise ColmetError(
                "not enough memory for this request; ask for fewer columns or hosts, or a shorter interval"
            ) from err
        except BaseException:
            history.close()
            raise
        if isinstance(history, EmptyHistory):  # a file may appear any time
            return answer
        with self._lock:
            self._idle.append((opened, history))
        return answer

    def _take(self) -> tuple[float, History]:
        """Return the time of opening of a store, and the store."""
        now = self.monotonic()
        with self._lock:
            old = [one for one in self._idle if now - one[0] > OPEN_S]
            self._idle = [one for one in self._idle if now - one[0] <= OPEN_S]
            idle = self._idle.pop() if self._idle else None
        for _, history in old:
            history.close()
        return idle if idle is not None else (now, self.open_history())

    def _keep(self, key: Any, answer: StoreAnswer, keep_s: float) -> None:
        former = self._kept.pop(key, None)
        self._kept_bytes -= former.size_bytes if former is not None else 0
        size = _size(answer.value)
        if size > MAX_KEPT_BYTES // 2:
            return
        self._kept[key] = _CachedAnswer(self.monotonic() + keep_s, size, answer)
        self._kept_bytes += size
        while len(self._kept) > MAX_KEPT or self._kept_bytes > MAX_KEPT_BYTES:
            self._kept_bytes -= self._kept.popitem(last=False)[1].size_bytes


def _wider(since: float | None, until: float | None) -> tuple[float | None, float | None]:
    """Return an interval that includes this one, with limits that are multiples of `GRID_S`."""
    first = None if since is None else since // GRID_S * GRID_S
    return first, None if until is None else (until // GRID_S + 1) * GRID_S


def _owners(found: Sequence[Series]) -> RowOwners:
    """Return the users of rows.

    The first rows of a job may lack its user. Pauses of more than AGAIN_S separate jobs with the same number: a job
    without a user is a span of rows without any.
    """
    columns = [(one.times, one.columns["user"]) for one in found if "user" in one.columns]
    columns = [(times, cells) for times, cells in columns if len(times) and cells.dtype.kind == "S"]
    if not columns:
        return RowOwners(frozenset(), -np.inf)
    times = np.concatenate([times for times, _ in columns]).astype(float)
    cells = np.concatenate([cells for _, cells in columns])
    order = np.argsort(times, kind="stable")
    times, cells = times[order], cells[order]
    is_named = cells != b""
    starts = np.flatnonzero(np.diff(times, prepend=-np.inf) > AGAIN_S)
    users = {one.decode("utf-8", "replace") for one in set(cells.tolist())}
    if np.logical_or.reduceat(is_named, starts).all():
        users.discard("")
    return RowOwners(frozenset(users), float(times[is_named].max(initial=-np.inf)))


def _size(value: Any) -> int:
    """Return the approximate memory of an answer in bytes."""
    if isinstance(value, list):
        return 1000 + sum([_size(one) for one in value])
    if isinstance(value, Series):
        return 1000 + int(value.times.nbytes) + sum([int(column.nbytes) for column in value.columns.values()])
    return 1000
