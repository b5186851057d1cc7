"""Answer the queries of the JSON interface from the recent cache and from the store."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colmet.batch.qmem import Hosts, Owners
from colmet.common.errors import ColmetError
from colmet.common.live.summary import (
    DEVICE_KEYS,
    HEARD_S,
    JOB_KEYS,
    JobUsage,
    arranged,
    measure_devices,
    measure_jobs,
    measure_nodes,
    ordered,
    total,
)
from colmet.common.schema import Schema
from colmet.stored.series import NODE
from colmet.web.catalogue import declared, load_catalogue, reasons
from colmet.web.health import CollectorReport, health_answer, spools_of
from colmet.web.node_history import HistoryMemory, HistoryQuery
from colmet.web.ownership import Ownership
from colmet.web.recent_cache import RecentCache, RecentJob
from colmet.web.series_query import NO_STORE, SeriesQuery, SeriesReader
from colmet.web.store import StoreReader, warning_of

if TYPE_CHECKING:
    from colmet.batch.gridengine import MemoryWatch

SNAPSHOT_S = 1.0  # lifetime of a snapshot
_TOTALS = ("cpu", "cpus", "memory", "read", "write", "tasks", "gpus")


class RowPage(NamedTuple):
    """A page of rows."""

    total: int  # number of all rows
    offset: int  # position of the first row of the page
    items: Sequence[Mapping[str, Any]]  # the rows


class JobsQuery(NamedTuple):
    """A query for jobs."""

    user: str | None = None  # only jobs of this user; None for all
    jobs: frozenset[int] = frozenset()  # only these; empty for all
    state: str = "running"  # running, ended or all
    node: str = ""  # only jobs on this node; "" for all
    text: str = ""  # prefix of the number, or part of the name of the user or of a node; "" for all
    since: float | None = None  # only jobs seen at this time or later, seconds since 1970; None for all
    until: float | None = None  # only jobs seen at this time or earlier; None for all
    sort: str = "cpu"  # a key of the rows
    reverse: bool = False  # whether to reverse the order
    offset: int = 0  # position of the first row
    limit: int = 100  # max rows


class NodesQuery(NamedTuple):
    """A query for nodes."""

    names: frozenset[str] | None = None  # only these; None for all
    text: str = ""  # part of the name; "" for all
    sort: str = "node"  # a key of the rows
    reverse: bool = False  # whether to reverse the order
    offset: int = 0  # position of the first row
    limit: int = 100  # max rows


class _Snapshot(NamedTuple):
    """The latest values."""

    taken: float  # time by the monotonic clock
    time: float  # seconds since 1970
    jobs: JobUsage  # resource usage of each job on each node
    owners: Sequence[str]  # the user of each row of `jobs`
    rows: Mapping[int, dict[str, Any]]  # rows of running jobs with values, by job number
    running: frozenset[int]  # all running jobs
    on: Mapping[str, Sequence[int]]  # the jobs on each node
    nodes: Sequence[dict[str, Any]]  # one row for each node


class Queries:
    """Answers queries. `Ownership` maps rows to users, `SeriesReader` reads values over time.

    Any thread may call a method. Only the methods that say so wait for a store, and raise
    `colmet.common.errors.ColmetError` if it cannot be read.

    Without `gridengine`, /qhost and /qstat have the nodes' own data. `feed` returns counters of the collector's stream,
    `name_of` the name of a user reported by number, without a wait; `report` has the collector's latest status.
    """

    def __init__(
        self,
        recent: RecentCache,
        store: StoreReader | None,
        gridengine: MemoryWatch | None = None,
        feed: Callable[[], Mapping[str, int]] = dict,
        name_of: Callable[[str], str] = str,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        report: CollectorReport | None = None,
    ) -> None:
        self._recent = recent
        self._report = report or CollectorReport()
        self._history = HistoryMemory()
        self._store = store
        self._gridengine = gridengine
        self._feed = feed
        self._ownership = Ownership(recent, store, name_of)
        self._series = SeriesReader(recent, store, self._ownership, now)
        self._now = now
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._latest: _Snapshot | None = None

    def prepare(self) -> None:
        """Load the catalogue now, to speed up the first answer."""
        load_catalogue()

    # -- latest values --

    def _snapshot(self) -> _Snapshot:
        with self._lock:  # one thread makes the snapshot, the others wait
            latest = self._latest
            if latest is None or self._monotonic() - latest.taken >= SNAPSHOT_S:
                latest = self._latest = self._look()
        return latest

    def _look(self) -> _Snapshot:
        look, now = self._recent.look(), self._now()
        jobs = measure_jobs(look.hosts)
        every = np.flatnonzero(jobs.job != NODE)
        rows = {row["job"]: row for row in jobs.by_job(every)}
        on: dict[str, Sequence[int]] = {}
        for n, (host, kept) in enumerate(look.hosts):
            if host in look.silent:
                continue
            here = kept.jobs if kept.jobs is not None else jobs.job[jobs.host == n].tolist()
            on[host] = [job for job in dict.fromkeys(here) if job != NODE]
        for job, row in rows.items():
            row["user"] = self._ownership.owner(job, row["user"])
        owners = [
            self._ownership.owner_on(job, jobs.names[host], user)
            for job, host, user in zip(jobs.job.tolist(), jobs.host.tolist(), jobs.user)
        ]
        running = frozenset([job for here in on.values() for job in here])
        nodes = measure_nodes(look.hosts, look.taken, int(now * 1e9), look.heard)
        devices = measure_devices(look.hosts)
        nothing = dict.fromkeys(DEVICE_KEYS)
        nodes = [{**row, **(devices[n] if n < len(devices) else nothing)} for n, row in enumerate(nodes)]
        return _Snapshot(self._monotonic(), now, jobs, owners, rows, running, on, nodes)

    def record(self) -> None:
        """Add the latest values of the nodes to their history; once a minute."""
        look = self._recent.look()
        self._history.record(look.hosts, look.heard, look.taken, self._now())

    def history(self, query: HistoryQuery) -> Mapping[str, Any]:
        """Return the values of all nodes over time."""
        return {"time": self._now(), **self._history.answer(query)}

    def health(self) -> Mapping[str, Any]:
        """Return the state of the collector and of the nodes, with the verdict of `colmet status`."""
        status, age_s = self._report.look()
        return health_answer(status, age_s, self._snapshot().nodes, spools_of(self._recent.look().hosts), self._now())

    def _on(self, found: _Snapshot, user: str) -> dict[str, list[int]]:
        """Return the current jobs of a user on each node, as reported by the node."""
        owner_on = self._ownership.owner_on
        on = {host: [job for job in jobs if owner_on(job, host) == user] for host, jobs in found.on.items()}
        return {host: jobs for host, jobs in on.items() if jobs}

    def _rows_of(self, found: _Snapshot, user: str | None) -> Mapping[int, dict[str, Any]]:
        """Return a row for each job, from the rows of this user alone; from all rows if `user` is None."""
        if user is None:
            return found.rows
        chosen = [n for n, owner in enumerate(found.owners) if owner == user and found.jobs.job[n] != NODE]
        rows: dict[int, dict[str, Any]] = {row["job"]: row for row in found.jobs.by_job(np.array(chosen, np.int64))}
        for row in rows.values():
            row["user"] = user
        return rows

    def cluster(self, user: str | None) -> Mapping[str, Any]:
        """Return totals of nodes, and of the jobs of one user or of all users."""
        found = self._snapshot()
        chosen = np.array(
            [n for n, (job, owner) in enumerate(zip(found.jobs.job.tolist(), found.owners))
             if job != NODE and (user is None or owner == user)],
            np.int64,
        )  # fmt: skip
        totals = found.jobs.totals(chosen, _TOTALS)
        running = found.running
        if user is not None:
            running = frozenset([job for jobs in self._on(found, user).values() for job in jobs])
        machines = found.nodes
        busy = [row["cpu"] for row in machines if row["cpu"] is not None and not row["silent"]]
        sums = {key: total(machines, key) for key in ("memory", "memory_total", "load")}
        return {
            "time": found.time,
            "nodes": {
                "heard": sum([row["seen_age"] <= HEARD_S for row in found.nodes]),
                "silent": sum([row["seen_age"] > HEARD_S for row in found.nodes]),
                "cpu": None if user is not None or not busy else sum(busy) / len(busy),
                **(sums if user is None else dict.fromkeys(sums)),
            },
            "jobs": {
                "running": len(running),
                "users": int(bool(running))
                if user is not None
                else len({self._row_owner(found, job) for job in running} - {""}),
                "cpu_share": found.jobs.cpu_share(chosen),
                **totals,
            },
            "messages": {"taken": self._recent.batches, "left_out": self._recent.missed},
            "kept_s": round(self._recent.kept_s(), 3),
            "warnings": [
                *self._warnings(),
                *(self._gridengine_warnings() if user is None else []),
            ],
        }

    def counters(self) -> dict[str, int]:
        """Return counters of the collector's feed, and of kept and of dropped data."""
        return {**self._feed(), **self._recent.counters(), "not_over_time": self._history.left_out}

    def _warnings(self) -> list[str]:
        """Return warnings about missing data."""
        counts = self.counters()
        said = {
            "bad": "messages could not be read",
            "failures": "messages met a defect; see the log",
            "not_over_time": "values are missing in the map of nodes over time: there is no room for more nodes",
            "left_out": "tables are dropped: there is no room for more jobs or hosts",
            "missed": "messages did not reach this process: the machine is too busy for it",
        }
        away = ["the collector does not answer: nothing new arrives; see the log of colmet-web"]
        counted = [f"{counts[key]} {text}" for key, text in said.items() if counts.get(key)]
        return [*(away if counts.get("away") else []), *counted]

    def _gridengine_warnings(self) -> list[str]:
        return [] if self._gridengine is None else self._gridengine.warnings()

    def _row_owner(self, found: _Snapshot, job: int) -> str:
        row = found.rows.get(job)
        return row["user"] if row is not None else self._ownership.owner(job)

    def jobs(self, query: JobsQuery) -> RowPage:
        """Return rows of jobs, from the recent cache."""
        found = self._snapshot()
        if query.user is not None:
            on = self._on(found, query.user)
            running = frozenset([job for jobs in on.values() for job in jobs])
            found = found._replace(rows=self._rows_of(found, query.user), running=running, on=on)
        known = {one.job: one for one in self._recent.jobs()}
        chosen = []
        wanted: Iterable[int] = found.running if query.state == "running" else {**known, **dict.fromkeys(found.running)}
        for job in wanted:
            if query.state == "ended" and job in found.running:
                continue
            one = known.get(job)
            if self._is_wanted(query, found, job, one):
                chosen.append((job, one))
        owner: Callable[[int], str] = lambda job: query.user or self._row_owner(found, job)  # noqa: E731
        chosen = _ordered(chosen, query, found, owner)
        page = chosen[query.offset : query.offset + query.limit]
        return RowPage(len(chosen), query.offset, [self._row(found, job, one, query.user) for job, one in page])

    def _is_wanted(self, query: JobsQuery, found: _Snapshot, job: int, one: RecentJob | None) -> bool:
        if query.jobs and job not in query.jobs:
            return False
        if query.user is not None and job not in found.running and not self._ownership.is_users(one, query.user):
            return False
        if one is not None and query.since is not None and one.last < query.since:
            return False
        if one is not None and query.until is not None and one.first > query.until:
            return False
        if not query.node and not query.text:
            return True
        hosts = self._ownership.hosts(one, query.user)
        if query.node and not (job in found.on.get(query.node, ()) if job in found.running else query.node in hosts):
            return False
        owner = query.user or self._row_owner(found, job)
        return (
            not query.text
            or str(job).startswith(query.text)
            or query.text in owner
            or any(query.text in host for host in hosts)
        )

    def _row(self, found: _Snapshot, job: int, known: RecentJob | None, user: str | None = None) -> dict[str, Any]:
        row: dict[str, Any] = {**dict.fromkeys((*JOB_KEYS, "on", "time")), "job": job, "user": "", "nodes": 0}
        hosts = self._ownership.hosts(known, user)
        if known is not None:
            row.update(user=user or self._ownership.owner(job), on=hosts[0] if hosts else None)
        row.update(found.rows.get(job, {}))
        return {
            **row,
            "nodes": row["nodes"] if known is None else len(hosts),  # including silent hosts
            "first": None if known is None else known.first,
            "last": None if known is None else known.last,
            "running": job in found.running,
        }

    def job(self, job: int, own: Mapping[str, float | None] | None = None) -> Mapping[str, Any] | None:
        """Return a job with a row for each of its nodes, and its tables; None for an unknown job. May wait for a store.

        Raises:
            ColmetError: the job is in the store alone, and it cannot be read.
        """
        found = self._snapshot()
        known = self._recent.job(job)
        is_here = known is not None or job in found.running
        warnings: list[str] = []
        stored: Mapping[str, Sequence[str]] = {}
        before: Iterable[str] = ()  # hosts of a job in the store alone
        hosts = [] if known is None else [*self._recent.hosts_of(known)]
        chosen = np.flatnonzero(found.jobs.job == job) if job in found.running else np.zeros(0, np.int64)
        if own is not None:
            hosts = [host for host in hosts if host in own]
            names = found.jobs.names
            chosen = np.array([n for n in chosen.tolist() if names[found.jobs.host[n]] in own], np.int64)
        user = self._row_owner(found, job)
        if self._store is not None:
            try:
                answer = self._store.tables(job, self._ownership.begins(job, known, user, own))
                stored = answer.value
                warnings += answer.warnings
                if not is_here and stored and own is None:
                    user = self._ownership.stored_owner(job)
                    before = self._store.owners(job) or ()
            except ColmetError as err:
                if not is_here:
                    raise
                warnings.append(warning_of(err))
        if not is_here and not stored:
            return None
        rows = self._by_host(found, chosen)
        there = {row["node"] for row in rows}
        nothing = {**dict.fromkeys(JOB_KEYS), "job": job, "user": user, "nodes": 1}
        rows += [{**nothing, "node": host} for host in hosts if host not in there]
        tables = {} if known is None else self._recent.tables(hosts, known.tables)
        row = self._row(found, job, known)
        if own is not None:
            whole = {one["job"]: one for one in found.jobs.by_job(chosen)}.get(job, dict.fromkeys(JOB_KEYS))
            row = {**row, **whole, "job": job, "nodes": len(hosts), "on": min(hosts, default=None)}
            stays = [] if known is None else [known.hosts[host] for host in hosts]
            row["first"] = min([stay.since for stay in stays], default=None)
            row["last"] = max([stay.last for stay in stays], default=None)
            row["running"] = any(job in found.on.get(host, ()) for host in hosts)
        here = {*hosts}
        latest = [one for one in self._recent.look().hosts if one[0] in here] if row["running"] else []
        columns = _columns(tables, stored)
        return {
            "job": {**row, "user": user},
            "nodes": sorted(rows, key=lambda row: row["node"]),
            "hosts": sorted({*hosts, *(before if own is None else own)}),
            "tables": columns,
            "absent": reasons("job", latest, columns),
            "stored": bool(stored),
            "warnings": warnings,
        }

    def unread(self, job: int) -> list[str]:
        """Return why parts of the store could not be searched for a job. May wait for the store."""
        try:
            return [] if self._store is None else list(self._store.tables(job).warnings)
        except ColmetError as err:
            return [warning_of(err)]

    def _by_host(self, found: _Snapshot, chosen: Any) -> list[dict[str, Any]]:
        rows = found.jobs.by_host(chosen)
        for row, n in zip(rows, chosen.tolist()):
            row["user"] = found.owners[n]
        return rows

    def nodes(self, query: NodesQuery) -> RowPage:
        """Return rows of nodes, from the recent cache."""
        rows = [
            row
            for row in self._snapshot().nodes
            if (query.names is None or row["node"] in query.names) and query.text in row["node"]
        ]
        rows = arranged(rows, query.sort, query.reverse)
        return RowPage(len(rows), query.offset, rows[query.offset : query.offset + query.limit])

    def nodes_of(self, user: str) -> frozenset[str]:
        """Return the nodes of a user's running jobs."""
        found = self._snapshot()
        return frozenset(self._on(found, user))

    def there_since(self, node: str, user: str) -> float:
        """Return the earliest start on a node of a user's current jobs there; the current time if there are none."""
        known = [self._recent.job(job) for job in self._on(self._snapshot(), user).get(node, ())]
        stays = [one.hosts.get(node) for one in known if one is not None]
        return min([self._now(), *[stay.since for stay in stays if stay is not None]])

    def node(self, name: str) -> Mapping[str, Any] | None:
        """Return a node with a row for each job on it, and its tables; None for an unknown node."""
        found = self._snapshot()
        row = next((row for row in found.nodes if row["node"] == name), None)
        if row is None:
            return None
        here = found.on.get(name, ())
        at = found.jobs.names.index(name) if name in found.jobs.names else -1
        chosen = np.flatnonzero((found.jobs.host == at) & np.isin(found.jobs.job, np.array(here, np.int64)))
        rows = self._by_host(found, chosen)
        there = {one["job"] for one in rows}
        for job in here:
            if job not in there:
                user = self._ownership.owner_on(job, name)
                rows.append({**dict.fromkeys(JOB_KEYS), "job": job, "user": user, "nodes": 1, "node": name})
        tables = _columns(self._recent.tables([name]), {})
        latest = [one for one in self._recent.look().hosts if one[0] == name and not row["silent"]]
        return {
            "node": row,
            "jobs": sorted(rows, key=lambda one: one["job"]),
            "tables": tables,
            "absent": reasons("node", latest, tables),
        }

    # -- values over time --

    def own(self, job: int, user: str) -> Mapping[str, float | None]:
        """Return the hosts with rows of a user's job, as `Ownership.own`."""
        return self._ownership.own(job, user)

    def seek(self, job: int) -> None:
        """Wait for the store, and fail, as `own` does for a job missing in the recent cache."""
        if self._store is not None:
            self._store.owners(job)

    def series(self, query: SeriesQuery) -> Mapping[str, Any] | None:
        """Return values over time, as `SeriesReader.answer`. May wait for a store."""
        return self._series.answer(query)

    def completeness(
        self, job: int, since: float | None, until: float | None, own: Mapping[str, float | None] | None = None
    ) -> Mapping[str, Any] | None:
        """Return the stored share of a job's due samples, and its gaps; None for an unknown job.

        Raises:
            ColmetError: the store cannot be read.
        """
        nothing: dict[str, Any] = {"job": job, "share": None, "expected": None, "present": None, "hosts": []}
        is_here = self._recent.job(job) is not None
        if self._store is None:
            return {**nothing, "warnings": [NO_STORE]} if is_here else None
        if own is not None and any(at is not None for at in own.values()):  # one start for all hosts: the latest
            since = max([at for at in (since, *own.values()) if at is not None])
        limits = [None if at is None else int(min(max(at, 0), 1 << 40)) for at in (since, until)]
        answer = self._store.completeness(job, *limits)
        found = {host: one for host, one in (answer.value or {}).items() if own is None or host in own}
        if not found:
            if not is_here and not self._store.tables(job).value:
                return None
            more = "nothing is stored of this time yet"
            return {**nothing, "warnings": [more, *answer.warnings]}
        hosts = [
            {
                "node": host,
                "share": one.here_ratio,
                "expected": one.here + one.missing,
                "present": one.here,
                "gaps": [
                    {"since": gap.first, "until": gap.last, "why": gap.why, "samples": gap.rows} for gap in one.gaps
                ],
            }
            for host, one in found.items()
        ]
        expected, present = [sum([host[key] for host in hosts]) for key in ("expected", "present")]
        return {
            "job": job,
            "share": present / expected if expected else None,
            "expected": expected,
            "present": present,
            "hosts": hosts,
            "warnings": list(answer.warnings),
        }

    # -- QmemTools --

    def qhost(self) -> Hosts:
        """Return hosts with their jobs, from Grid Engine if set, else from the nodes' data."""
        if self._gridengine is not None:
            return self._gridengine.hosts()
        from colmet.web.memory_answers import hosts_of

        found = self._snapshot()
        hosts: Hosts = hosts_of(_owned(found), found.nodes)
        return hosts

    def qstat(self) -> Owners:
        """Return owners with requests and usage of their jobs, from Grid Engine if set, else from the nodes' data."""
        if self._gridengine is not None:
            return self._gridengine.owners()
        from colmet.web.memory_answers import owners_of

        owners: Owners = owners_of(_owned(self._snapshot()))
        return owners


def gridengine_of(options: argparse.Namespace) -> MemoryWatch | None:
    """Return the reader of Grid Engine's memory figures, not started; None without --gridengine."""
    if not options.gridengine and options.gridengine_xml is None:
        return None
    from colmet.batch.gridengine import CommandSource, FileSource, MemoryWatch

    source = CommandSource() if options.gridengine_xml is None else FileSource(options.gridengine_xml)
    return MemoryWatch(source, encoding=options.gridengine_encoding)


def _owned(found: _Snapshot) -> JobUsage:
    """Return the rows of jobs, with the same owners as in the other answers."""
    jobs = found.jobs
    keep = np.flatnonzero(jobs.job != NODE)
    values = {key: column[keep] for key, column in jobs.values.items()}
    owners = [found.owners[n] for n in keep.tolist()]
    return jobs._replace(host=jobs.host[keep], job=jobs.job[keep], user=owners, values=values)


def _ordered(
    chosen: list[tuple[int, RecentJob | None]], query: JobsQuery, found: _Snapshot, owner: Callable[[int], str]
) -> list[tuple[int, RecentJob | None]]:
    """Return jobs sorted by a key of their rows, missing values last."""

    def value(job: int, one: RecentJob | None) -> Any:
        row = found.rows.get(job)
        if query.sort == "job":
            return job
        if query.sort == "user":
            return owner(job)
        if query.sort == "running":
            return job in found.running
        if query.sort in ("first", "last"):
            return None if one is None else getattr(one, query.sort)
        if one is not None and query.sort == "nodes":
            return len(one.hosts)
        if row is not None:
            return row.get(query.sort)
        if one is not None and query.sort == "on":
            return min(one.hosts, default=None)
        return None

    by_number = sorted(chosen, key=lambda pair: pair[0])
    return ordered(by_number, lambda pair: value(*pair), query.sort, query.reverse)


def _columns(tables: Mapping[str, Schema], stored: Mapping[str, Sequence[str]]) -> dict[str, list[dict[str, Any]]]:
    """Return the declared columns of tables in the recent cache and in the store."""
    kinds: dict[str, dict[str, tuple[str | None, str | None]]] = {
        table: {field.name: (field.unit, field.kind) for field in schema.fields} for table, schema in tables.items()
    }
    for table, names in stored.items():
        known = kinds.setdefault(table, {})
        for name in names:
            known.setdefault(name, declared(table, name)[:2])
    return {
        table: [
            {"name": name, "unit": unit, "kind": kind, "help": declared(table, name)[2]}
            for name, (unit, kind) in columns.items()
        ]
        for table, columns in sorted(kinds.items())
    }
