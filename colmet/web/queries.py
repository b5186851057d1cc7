"""Answer the queries of the JSON interface from the recent cache and from the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colmet.batch.qmem import Hosts, Owners
from colmet.common.errors import ColmetError
from colmet.common.live.summary import HEARD_S, JOB_KEYS, arranged, ordered, total
from colmet.web.catalogue import columns_of, reasons
from colmet.web.health import CollectorReport, health_answer, spools_of
from colmet.web.memory_answers import hosts_of, owners_of
from colmet.web.node_history import HistoryMemory, HistoryQuery
from colmet.web.ownership import Ownership, Snapshot
from colmet.web.recent_cache import RecentCache, RecentJob
from colmet.web.series_query import NO_STORE, SeriesQuery, SeriesReading
from colmet.web.store import StoreReader, warning_of

if TYPE_CHECKING:
    from colmet.batch.gridengine import MemoryWatch

SNAPSHOT_S = 1.0  # lifetime of a snapshot
TOTALS = ("cpu", "cpus", "memory", "read", "write", "tasks", "gpus")


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


@dataclass(eq=False)
class Queries:
    """Answers queries. `Ownership` maps rows to users, `SeriesReading` reads values over time.

    Any thread may call a method. Only the methods that say so wait for a store, and raise
    `colmet.common.errors.ColmetError` if it cannot be read.
    """

    recent: RecentCache
    store: StoreReader | None
    gridengine: MemoryWatch | None = None  # without it, /qhost and /qstat have the nodes' own data
    feed: Callable[[], Mapping[str, int]] = dict  # returns counters of the collector's stream
    name_of: Callable[[str], str] = str  # returns the name of a user reported by number, without a wait
    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    report: CollectorReport = field(default_factory=CollectorReport)  # the collector's latest status

    def __post_init__(self) -> None:
        self._history = HistoryMemory()
        self._ownership = Ownership(self.recent, self.store, self.name_of)
        self._lock = threading.Lock()
        self._latest: Snapshot | None = None

    # -- latest values --

    def _snapshot(self, user: str | None = None) -> Snapshot:
        """Return the latest values, those of the jobs of one user or of all."""
        with self._lock:  # one thread makes the snapshot, the others wait
            latest = self._latest
            if latest is None or self.monotonic() - latest.taken >= SNAPSHOT_S:
                latest = self._latest = self._ownership.look(self.monotonic(), self.now())
        return latest if user is None else latest.of_user(user)

    def record(self) -> None:
        """Add the latest values of the nodes to their history; once a minute."""
        look = self.recent.look()
        self._history.record(look.hosts, look.heard, look.taken, self.now())

    def history(self, query: HistoryQuery) -> Mapping[str, Any]:
        """Return the values of all nodes over time."""
        return {"time": self.now(), **self._history.answer(query)}

    def health(self) -> Mapping[str, Any]:
        """Return the state of the collector and of the nodes, with the verdict of `colmet status`."""
        status, age_s = self.report.look()
        return health_answer(status, age_s, self._snapshot().nodes, spools_of(self.recent.look().hosts), self.now())

    def cluster(self, user: str | None) -> Mapping[str, Any]:
        """Return totals of nodes, and of the jobs of one user or of all users."""
        found = self._snapshot(user)
        chosen, running = np.arange(len(found.jobs.job)), found.running
        busy = [row["cpu"] for row in found.nodes if row["cpu"] is not None and not row["silent"]]
        sums = {key: total(found.nodes, key) for key in ("memory", "memory_total", "load")}
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
                **found.jobs.totals(chosen, TOTALS),
            },
            "messages": {"taken": self.recent.batches, "left_out": self.recent.missed},
            "kept_s": round(self.recent.kept_s(), 3),
            "warnings": [
                *self._warnings(),
                *(self.gridengine.warnings() if user is None and self.gridengine is not None else []),
            ],
        }

    def counters(self) -> dict[str, int]:
        """Return counters of the collector's feed, and of kept and of dropped data."""
        return {**self.feed(), **self.recent.counters(), "not_over_time": self._history.left_out}

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

    def _row_owner(self, found: Snapshot, job: int) -> str:
        row = found.rows.get(job)
        return row["user"] if row is not None else self._ownership.owner(job)

    def jobs(self, query: JobsQuery) -> RowPage:
        """Return rows of jobs, from the recent cache."""
        found = self._snapshot(query.user)
        known = {one.job: one for one in self.recent.jobs()}
        wanted: Iterable[int] = found.running if query.state == "running" else {**known, **dict.fromkeys(found.running)}
        if query.state == "ended":
            wanted = [job for job in wanted if job not in found.running]
        chosen = [(job, known.get(job)) for job in wanted if self._is_wanted(query, found, job, known.get(job))]
        owner: Callable[[int], str] = lambda job: query.user or self._row_owner(found, job)  # noqa: E731
        chosen = _ordered(chosen, query, found, owner)
        page = chosen[query.offset : query.offset + query.limit]
        return RowPage(len(chosen), query.offset, [self._row(found, job, one, query.user) for job, one in page])

    def _is_wanted(self, query: JobsQuery, found: Snapshot, job: int, one: RecentJob | None) -> bool:
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
        return str(job).startswith(query.text) or any(query.text in name for name in (owner, *hosts))

    def _row(self, found: Snapshot, job: int, known: RecentJob | None, user: str | None = None) -> dict[str, Any]:
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

        ColmetError if the job is in the store alone, and it cannot be read.
        """
        found = self._snapshot()
        known = self.recent.job(job)
        is_here = known is not None or job in found.running
        warnings: list[str] = []
        stored: Mapping[str, Sequence[str]] = {}
        before: Iterable[str] = ()  # hosts of a job in the store alone
        hosts = [] if known is None else [*self.recent.hosts_of(known)]
        chosen = np.flatnonzero(found.jobs.job == job) if job in found.running else np.zeros(0, np.int64)
        if own is not None:
            hosts = [host for host in hosts if host in own]
            names = found.jobs.names
            chosen = np.array([n for n in chosen.tolist() if names[found.jobs.host[n]] in own], np.int64)
        user = self._row_owner(found, job)
        if self.store is not None:
            try:
                answer = self.store.tables(job, self._ownership.begins(job, known, user, own))
                stored = answer.value
                warnings += answer.warnings
                if not is_here and stored and own is None:
                    user = self._ownership.stored_owner(job)
                    before = self.store.owners(job) or ()
            except ColmetError as err:
                if not is_here:
                    raise
                warnings.append(warning_of(err))
        if not is_here and not stored:
            return None
        rows = found.jobs.by_host(chosen)
        there = {row["node"] for row in rows}
        nothing = {**dict.fromkeys(JOB_KEYS), "job": job, "user": user, "nodes": 1}
        rows += [{**nothing, "node": host} for host in hosts if host not in there]
        tables = {} if known is None else self.recent.tables(hosts, known.tables)
        row = self._row(found, job, known)
        if own is not None:
            whole = {one["job"]: one for one in found.jobs.by_job(chosen)}.get(job, dict.fromkeys(JOB_KEYS))
            row = {**row, **whole, "job": job, "nodes": len(hosts), "on": min(hosts, default=None)}
            stays = [] if known is None else [known.hosts[host] for host in hosts]
            row["first"] = min([stay.since for stay in stays], default=None)
            row["last"] = max([stay.last for stay in stays], default=None)
            row["running"] = any(job in found.on.get(host, ()) for host in hosts)
        here = {*hosts}
        latest = [one for one in self.recent.look().hosts if one[0] in here] if row["running"] else []
        columns = columns_of(tables, stored)
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
            return [] if self.store is None else list(self.store.tables(job).warnings)
        except ColmetError as err:
            return [warning_of(err)]

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
        return frozenset(self._snapshot(user).on)

    def there_since(self, node: str, user: str) -> float:
        """Return the earliest start on a node of a user's current jobs there; the current time if there are none."""
        known = [self.recent.job(job) for job in self._snapshot(user).on.get(node, ())]
        stays = [one.hosts.get(node) for one in known if one is not None]
        return min([self.now(), *[stay.since for stay in stays if stay is not None]])

    def node(self, name: str) -> Mapping[str, Any] | None:
        """Return a node with a row for each job on it, and its tables; None for an unknown node."""
        found = self._snapshot()
        row = next((row for row in found.nodes if row["node"] == name), None)
        if row is None:
            return None
        here = found.on.get(name, {})
        at = found.jobs.names.index(name) if name in found.jobs.names else -1
        chosen = np.flatnonzero((found.jobs.host == at) & np.isin(found.jobs.job, np.array(list(here), np.int64)))
        rows = found.jobs.by_host(chosen)
        there = {one["job"] for one in rows}
        for job in here:
            if job not in there:
                rows.append({**dict.fromkeys(JOB_KEYS), "job": job, "user": here[job], "nodes": 1, "node": name})
        tables = columns_of(self.recent.tables([name]), {})
        latest = [one for one in self.recent.look().hosts if one[0] == name and not row["silent"]]
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
        if self.store is not None:
            self.store.owners(job)

    def series(self, query: SeriesQuery) -> Mapping[str, Any] | None:
        """Return values over time, as `SeriesReading.answer`. May wait for a store."""
        return SeriesReading(self.recent, self.store, self._ownership, query, self.now()).answer()

    def completeness(
        self, job: int, since: float | None, until: float | None, own: Mapping[str, float | None] | None = None
    ) -> Mapping[str, Any] | None:
        """Return the stored share of a job's due samples, and its gaps; None for an unknown job. May wait."""
        nothing: dict[str, Any] = {"job": job, "share": None, "expected": None, "present": None, "hosts": []}
        is_here = self.recent.job(job) is not None
        if self.store is None:
            return {**nothing, "warnings": [NO_STORE]} if is_here else None
        if own is not None and any(at is not None for at in own.values()):  # one start for all hosts: the latest
            since = max([at for at in (since, *own.values()) if at is not None])
        limits = [None if at is None else int(min(max(at, 0), 1 << 40)) for at in (since, until)]
        answer = self.store.completeness(job, *limits)
        hosts = [host for host in answer.value or () if own is None or host["node"] in own]
        if not hosts:
            if not is_here and not self.store.tables(job).value:
                return None
            return {**nothing, "warnings": ["nothing is stored of this time yet", *answer.warnings]}
        expected, present = [sum([host[key] for host in hosts]) for key in ("expected", "present")]
        share = present / expected if expected else None
        whole = {"job": job, "share": share, "expected": expected, "present": present, "hosts": hosts}
        return {**whole, "warnings": list(answer.warnings)}

    # -- QmemTools --

    def qhost(self) -> Hosts:
        """Return hosts with their jobs, from Grid Engine if set, else from the nodes' data."""
        found = self._snapshot()
        return hosts_of(found.jobs, found.nodes) if self.gridengine is None else self.gridengine.hosts()

    def qstat(self) -> Owners:
        """Return owners with requests and usage of their jobs, from Grid Engine if set, else from the nodes' data."""
        return owners_of(self._snapshot().jobs) if self.gridengine is None else self.gridengine.owners()


def _ordered(
    chosen: list[tuple[int, RecentJob | None]], query: JobsQuery, found: Snapshot, owner: Callable[[int], str]
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
