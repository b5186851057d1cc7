"""What the JSON interface tells: from what came lately, and from what is stored."""

from __future__ import annotations

import argparse
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from colmet.batch.qmem import Hosts, Owners
from colmet.common.errors import ColmetError
from colmet.common.growth import CAPACITY_COLUMNS, NODE_CPUS, Capacity, is_bounded, largest, of_columns
from colmet.common.live.namesakes import base_of, counted_once, is_namesake
from colmet.common.live.summary import HEARD_S, JOB_KEYS, JobUsage, arranged, measure_jobs, measure_nodes
from colmet.common.measures import CGROUP_TABLE
from colmet.common.runtime.plural import counted
from colmet.common.schema import Schema
from colmet.common.tables import schemas
from colmet.stored.capacity import ceilings
from colmet.stored.series import NODE, Series
from colmet.web.interface import Interface, JobsQuery, NodesQuery, RowPage, SeriesQuery, StoreWarning, earliest
from colmet.web.recent_cache import JobOnHost, RecentCache, RecentJob
from colmet.web.series import (
    SeriesPart,
    before,
    folded,
    joined,
    keys_of,
    levels,
    of_one_agent,
    of_samples,
    of_series,
    parts_of,
    rates,
    step_of,
    told,
    unit_of,
)
from colmet.web.store import StoreReader

log = logging.getLogger(__name__)

SNAPSHOT_S = 1.0  # that the latest values are told again
MAX_VALUES = 1 << 20  # of one answer
MAX_PARTS = 4096  # series of one answer
GRACE_S = 120.0  # after the start, a job that comes then may have begun before
NO_STORE = "nothing is stored that can be read: the collector writes neither HDF5 files nor to a database"
_TEXTS = frozenset({"job", "user", "node", "on"})  # sorted upwards
_TOTALS = ("cpu", "cpus", "memory", "read", "write", "tasks", "gpus")


class BatchMemory(Protocol):
    """What Grid Engine says of memory."""

    def hosts(self) -> Hosts:
        """As /qhost tells it."""

    def owners(self) -> Owners:
        """As /qstat tells it."""

    def warnings(self) -> list[str]:
        """What is wrong with it, for administrators."""

    def start(self) -> None:
        """Ask from now on."""

    def close(self) -> None:
        """Ask no more."""


class _Snapshot(NamedTuple):
    """The latest values.

    Attributes:
        taken: by the monotonic clock.
        time: seconds since 1970.
        jobs: what each job uses on each node.
        owners: whose each row of `jobs` is.
        rows: of jobs that run and tell something, by number.
        running: all jobs that run.
        on: the jobs on each node.
        nodes: a row for each.
    """

    taken: float
    time: float
    jobs: JobUsage
    owners: Sequence[str]
    rows: Mapping[int, dict[str, Any]]
    running: frozenset[int]
    on: Mapping[str, Sequence[int]]
    nodes: Sequence[dict[str, Any]]


class Queries(Interface):
    """What is known.

    Args:
        memory: of what came lately.
        store: what is stored; None where nothing can be read.
        gridengine: what Grid Engine says of memory; None where the nodes' own data tells it.
        feed: counters of what the collector sends.
        name_of: the name of a user whom the nodes know by number. Does not wait.
        now: seconds since 1970.
        monotonic: seconds.
    """

    def __init__(
        self,
        memory: RecentCache,
        store: StoreReader | None,
        gridengine: BatchMemory | None = None,
        feed: Callable[[], Mapping[str, int]] = dict,
        name_of: Callable[[str], str] = str,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recent = memory
        self._store = store
        self._gridengine = gridengine
        self._feed = feed
        self._name_of = name_of
        self._now = now
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._latest: _Snapshot | None = None

    def prepare(self) -> None:
        """Load what the first answer would have to wait for."""
        _declared()

    # -- what is now --

    def _snapshot(self) -> _Snapshot:
        with self._lock:  # one makes it, the others wait for it
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
            row["user"] = self._owner(job, row["user"])
        owners = [
            self._owner_on(job, jobs.names[host], user)
            for job, host, user in zip(jobs.job.tolist(), jobs.host.tolist(), jobs.user)
        ]
        running = frozenset([job for here in on.values() for job in here])
        nodes = measure_nodes(look.hosts, look.taken, int(now * 1e9), look.heard)
        return _Snapshot(self._monotonic(), now, jobs, owners, rows, running, on, nodes)

    def _owner(self, job: int, otherwise: str = "") -> str:
        """Whose a job is, as far as memory tells: the same everywhere, by name where this machine has one."""
        known = self._recent.job(job)
        if known is not None and known.is_disputed:
            return ""
        return self._name_of((known.user if known is not None else "") or otherwise)

    def _owner_on(self, job: int, host: str, otherwise: str = "") -> str:
        """Whose the rows of a job on a host are, as this host says."""
        known = self._recent.job(job)
        stay = None if known is None else known.hosts.get(host)
        if stay is None:
            return self._name_of(otherwise)
        return "" if stay.is_disputed else self._name_of(stay.user or otherwise)

    def _is_users(self, known: RecentJob | None, user: str) -> bool:
        """Whether a host says that a job is this user's."""
        if known is None:
            return False
        if not known.is_disputed:
            return bool(known.user) and self._name_of(known.user) == user
        return any(self._is_stay_of(stay, user) for stay in self._recent.hosts_of(known).values())

    def _is_stay_of(self, stay: JobOnHost, user: str) -> bool:
        return bool(stay.user) and not stay.is_disputed and self._name_of(stay.user) == user

    def _on(self, found: _Snapshot, user: str) -> dict[str, list[int]]:
        """The jobs of a user on each node now, as the node says."""
        on = {host: [job for job in jobs if self._owner_on(job, host) == user] for host, jobs in found.on.items()}
        return {host: jobs for host, jobs in on.items() if jobs}

    def _rows_of(self, found: _Snapshot, user: str | None) -> Mapping[int, dict[str, Any]]:
        """A row for each job, of a user's own rows alone; of all rows for nobody."""
        if user is None:
            return found.rows
        chosen = [n for n, owner in enumerate(found.owners) if owner == user and found.jobs.job[n] != NODE]
        rows: dict[int, dict[str, Any]] = {row["job"]: row for row in found.jobs.by_job(np.array(chosen, np.int64))}
        for row in rows.values():
            row["user"] = user
        return rows

    def cluster(self, user: str | None) -> Mapping[str, Any]:
        """Totals of nodes and of the jobs of a user, or of all."""
        found = self._snapshot()
        chosen = np.array(
            [n for n, (job, owner) in enumerate(zip(found.jobs.job.tolist(), found.owners))
             if job != NODE and (user is None or owner == user)],
            np.int64,
        )  # fmt: skip
        totals = {}
        for key in _TOTALS:
            column = found.jobs.values[key][chosen]
            known = column[np.isfinite(column)]
            totals[key] = round(float(known.sum()), 3) if len(known) else None
        running = found.running
        if user is not None:
            running = frozenset([job for jobs in self._on(found, user).values() for job in jobs])
        once = set(counted_once([row["node"] for row in found.nodes if not row["silent"]]))
        machines = [row for row in found.nodes if row["silent"] or row["node"] in once]
        busy = [row["cpu"] for row in machines if row["cpu"] is not None and not row["silent"]]
        sums = {
            key: sum(values) if (values := [row[key] for row in machines if row[key] is not None]) else None
            for key in ("memory", "memory_total", "load")
        }
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
                *([*_shared(found.nodes), *self._gridengine_warnings()] if user is None else []),
            ],
        }

    def _warnings(self) -> list[str]:
        """What of all that came is not here."""
        counts = {**self._feed(), **self._recent.counters()}
        said = {
            "bad": "messages could not be read",
            "failures": "messages met a defect, which the log tells of",
            "left_out": "tables are left out: there is no room for so many jobs or hosts",
            "missed": "messages did not reach this process: the machine is too busy for it",
        }
        return [f"{counts[key]} {text}" for key, text in said.items() if counts.get(key)]

    def _gridengine_warnings(self) -> list[str]:
        return [] if self._gridengine is None else self._gridengine.warnings()

    def _row_owner(self, found: _Snapshot, job: int) -> str:
        row = found.rows.get(job)
        return row["user"] if row is not None else self._owner(job)

    def jobs(self, query: JobsQuery) -> RowPage:
        """Rows of jobs, from memory."""
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
        if query.user is not None and job not in found.running and not self._is_users(one, query.user):
            return False
        if one is not None and query.since is not None and one.last < query.since:
            return False
        if one is not None and query.until is not None and one.first > query.until:
            return False
        if not query.node and not query.text:
            return True
        hosts = self._hosts(one, query.user)
        if query.node and not (job in found.on.get(query.node, ()) if job in found.running else query.node in hosts):
            return False
        owner = query.user or self._row_owner(found, job)
        return (
            not query.text
            or str(job).startswith(query.text)
            or query.text in owner
            or any(query.text in host for host in hosts)
        )

    def _hosts(self, known: RecentJob | None, user: str | None) -> list[str]:
        """The hosts that a job was on: those that say it is this user's; all for nobody."""
        if known is None:
            return []
        stays = self._recent.hosts_of(known)
        return [host for host, stay in stays.items() if user is None or self._is_stay_of(stay, user)]

    def _row(self, found: _Snapshot, job: int, known: RecentJob | None, user: str | None = None) -> dict[str, Any]:
        row: dict[str, Any] = {**dict.fromkeys((*JOB_KEYS, "on", "time")), "job": job, "user": "", "nodes": 0}
        hosts = self._hosts(known, user)
        if known is not None:
            row.update(user=user or self._owner(job), on=hosts[0] if hosts else None)
        row.update(found.rows.get(job, {}))
        return {
            **row,
            "nodes": row["nodes"] if known is None else len(hosts),  # also those that are not heard any more
            "first": None if known is None else known.first,
            "last": None if known is None else known.last,
            "running": job in found.running,
        }

    def own(self, job: int, user: str) -> Mapping[str, float | None]:
        """The hosts whose rows of a job are a user's, and from when on, None for all. May wait for a store.

        Each host says it of its own rows, those in memory or those stored: no other host can give a job to a user or
        take it away.
        """
        known = self._recent.job(job)
        stays = {} if known is None else self._recent.hosts_of(known)
        found: dict[str, float | None] = {
            host: stay.since for host, stay in stays.items() if self._is_stay_of(stay, user)
        }
        if self._store is None or (len(found) == len(stays) and stays and self._saw_all(stays.values())):
            return found
        try:
            stored = self._store.owners(job) or {}
        except ColmetError:
            if found:
                return found
            raise
        for host, owners in stored.items():
            if {self._name_of(one) for one in owners.users} != {user}:
                continue  # a number that was given to several: what is stored is nobody's
            stay = stays.get(host)
            if stay is None or (host in found and not self._saw_all([stay])):
                found[host] = None
            elif not (stay.user or stay.is_disputed or self._saw_all([stay])) and owners.last >= stay.since - GRACE_S:
                found[host] = None  # the job goes on, and its node has not said whose it is since our start
        return found

    def seek(self, job: int) -> None:
        """Wait for the store, and fail, as `own` does for a job that only the store can know."""
        if self._store is not None:
            self._store.owners(job)

    def _stored_owner(self, job: int) -> str:
        """Whose the rows of a job in the store are: "" where nobody says, or not all say the same."""
        stored = None if self._store is None else self._store.owners(job)
        names = {self._name_of(one) for owners in (stored or {}).values() for one in owners.users}
        return names.pop() if len(names) == 1 else ""

    def job(self, job: int, own: Mapping[str, float | None] | None = None) -> Mapping[str, Any] | None:
        """One job with a row for each of its nodes, and its tables; None where there is none. May wait for a store."""
        found = self._snapshot()
        known = self._recent.job(job)
        is_here = known is not None or job in found.running
        warnings: list[str] = []
        stored: Mapping[str, Sequence[str]] = {}
        hosts = [] if known is None else [*self._recent.hosts_of(known)]
        chosen = np.flatnonzero(found.jobs.job == job) if job in found.running else np.zeros(0, np.int64)
        if own is not None:
            hosts = [host for host in hosts if host in own]
            names = found.jobs.names
            chosen = np.array([n for n in chosen.tolist() if names[found.jobs.host[n]] in own], np.int64)
        user = self._row_owner(found, job)
        if self._store is not None:
            try:
                answer = self._store.tables(job, self._begins(job, known, user, own))
                stored = answer.value
                warnings += answer.warnings
                if not is_here and stored and own is None:
                    user = self._stored_owner(job)
            except ColmetError as err:
                if not is_here:
                    raise
                warnings.append(StoreWarning(err))
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
        return {
            "job": {**row, "user": user},
            "nodes": sorted(rows, key=lambda row: row["node"]),
            "tables": _columns(tables, stored),
            "stored": bool(stored),
            "warnings": warnings,
        }

    def _begins(
        self, job: int, known: RecentJob | None, user: str, own: Mapping[str, float | None] | None
    ) -> float | None:
        """From when on what is stored of a number is of the job that has it now; None for all of it."""
        if own is None:
            if known is None:
                return None
            stays = self._recent.hosts_of(known).values()
            own = self.own(job, user) if user else {}
            if not user and self._saw_all(stays):
                return min([stay.since for stay in stays], default=None)
        return earliest(own)

    def _by_host(self, found: _Snapshot, chosen: Any) -> list[dict[str, Any]]:
        rows = found.jobs.by_host(chosen)
        for row, n in zip(rows, chosen.tolist()):
            row["user"] = found.owners[n]
        return rows

    def _saw_all(self, stays: Iterable[JobOnHost]) -> bool:
        """Whether a job began on these hosts after this process did, and was never away for long."""
        return all(stay.is_whole and stay.since > self._recent.began + GRACE_S for stay in stays)

    def nodes(self, query: NodesQuery) -> RowPage:
        """Rows of nodes, from memory."""
        rows = [
            row
            for row in self._snapshot().nodes
            if (query.names is None or row["node"] in query.names) and query.text in row["node"]
        ]
        rows = arranged(rows, query.sort, query.reverse)
        return RowPage(len(rows), query.offset, rows[query.offset : query.offset + query.limit])

    def nodes_of(self, user: str) -> frozenset[str]:
        """The nodes that jobs of a user are on now."""
        found = self._snapshot()
        return frozenset(self._on(found, user))

    def there_since(self, node: str, user: str) -> float:
        """When the first of a user's jobs that are on a node now came there; now where there is none."""
        known = [self._recent.job(job) for job in self._on(self._snapshot(), user).get(node, ())]
        stays = [one.hosts.get(node) for one in known if one is not None]
        return min([self._now(), *[stay.since for stay in stays if stay is not None]])

    def node(self, name: str) -> Mapping[str, Any] | None:
        """One node with a row for each job on it, and its tables; None where there is none."""
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
                user = self._owner_on(job, name)
                rows.append({**dict.fromkeys(JOB_KEYS), "job": job, "user": user, "nodes": 1, "node": name})
        tables = _columns(self._recent.tables([name]), {})
        warnings = _shared([one for one in found.nodes if base_of(one["node"]) == base_of(name)])
        return {"node": row, "jobs": sorted(rows, key=lambda one: one["job"]), "tables": tables, "warnings": warnings}

    # -- what was --

    def series(self, query: SeriesQuery) -> Mapping[str, Any] | None:
        """Values over time; None where there is no such job, node, table or column. May wait for a store."""
        now = self._now()
        since = -math.inf if query.since is None else query.since
        until = math.inf if query.until is None else query.until
        known = self._recent.job(query.job) if query.job != NODE else None
        if query.job == NODE:
            hosts = [query.node] if self._recent.is_host(query.node) else []
        else:
            hosts = [] if known is None else [*self._recent.hosts_of(known)]
            hosts = [host for host in hosts if query.node in ("", host) and (query.own is None or host in query.own)]
        own = query.own or {}
        starts = {host: max(since, at) for host, at in own.items() if at is not None}  # of some hosts later
        schema = self._recent.tables(hosts, [query.table]).get(query.table)
        if schema is not None and query.job == NODE and schema.scope == "job":
            schema = None
        memory_from = {}
        if query.source != "stored" and schema is not None:
            begins = {host: self._recent.begins(host, query.table) for host in hosts}
            memory_from = {host: at for host, at in begins.items() if at is not None}
        warnings: list[str] = []
        stored: Sequence[Series] = ()
        is_stored = False  # whether the store has the column at all
        if self._store is None:
            warnings += [NO_STORE] if query.source == "stored" else []
        elif query.source == "stored" or (
            query.source == "auto" and self._is_more_stored(query, known, hosts, memory_from, since)
        ):
            reaches = max(memory_from.values(), default=math.inf) if hosts and memory_from else math.inf
            if len(memory_from) < len(hosts):
                reaches = math.inf
            try:
                stored, is_stored, more = self._stored(query, schema, since, min(until, reaches))
                warnings += more
            except ColmetError as err:
                if schema is None:
                    raise
                warnings.append(StoreWarning(err))
        field = None if schema is None else next((one for one in schema.fields if one.name == query.column), None)
        if (field is None and not is_stored) or (field is not None and field.dtype[0] == "S"):
            return None
        if known is not None and schema is not None and not is_stored and query.table not in known.tables:
            return None
        unit, kind, _ = _declared().get((query.table, query.column), (None, None, None))
        if field is not None:
            unit, kind = field.unit, field.kind
        labels = _labels(query.table, schema)
        memory = [
            of_samples(samples, query.column, labels)
            for host in memory_from
            for samples in self._recent.read(query.job, query.table, [host], starts.get(host, since), until)
        ]
        earlier = [
            before(
                of_series(one, query.column, labels),
                starts.get(one.host, since),
                until,
                memory_from.get(one.host, math.inf),
            )
            for one in stored
            if query.own is None or one.host in query.own
        ]
        raws = joined([*earlier, *memory])
        if query.job != NODE:
            raws = of_one_agent(raws)
        parts = [part for part in parts_of(raws, keys_of(raws, labels)) if len(part.times)]
        if len(parts) > MAX_PARTS:
            warnings.append(f"{len(parts)} series are too many, the first {MAX_PARTS} are shown; choose one node")
            parts = parts[:MAX_PARTS]
        is_rate = query.rate and kind in ("counter", None)
        if query.rate and not is_rate:
            warnings.append(f"{query.table}.{query.column} is no counter: its values are shown, not their growth")
        shown_unit, factor = unit_of(unit, is_rate)
        most = self._most(query, hosts, since, until, bool(stored), warnings) if is_rate else {}
        parts = [rates(part, factor, most.get(part.host, math.inf)) if is_rate else levels(part) for part in parts]
        step, made, lines = _made(parts, query)
        warnings += lines
        if self._recent.missed and memory:
            warnings.append(
                f"{counted(self._recent.missed, 'messages')} did not reach memory; source=stored has their rows"
            )
        has_stored = any(len(raw.times) for raw in earlier)
        times = [at for one in made for at in (one["times"][:1] + one["times"][-1:])]
        return {
            "job": query.job,
            "metric": f"{query.table}.{query.column}",
            "unit": shown_unit,
            "kind": kind,
            "rate": is_rate,
            "since": query.since if query.since is not None else min(times, default=None),
            "until": query.until if query.until is not None else now,
            "step": step,
            "source": "both" if memory and has_stored else "memory" if memory else "stored" if has_stored else "none",
            "warnings": warnings,
            "series": made,
        }

    def _most(
        self, query: SeriesQuery, hosts: Sequence[str], since: float, until: float, is_stored: bool, warnings: list[str]
    ) -> Mapping[str, float]:
        """By host, what the rates of a column cannot go beyond, where that is known. May wait for a store."""
        if not is_bounded(query.table, query.column):
            return {}
        found: dict[str, Capacity] = {}
        begins = since if since > -math.inf else 0.0
        for samples in self._recent.read(query.job, CGROUP_TABLE, hosts if query.job != NODE else (), begins, until):
            one = of_columns({name: of_samples(samples, name, ()).values for name in CAPACITY_COLUMNS})
            found[samples.host] = one if samples.host not in found else found[samples.host].joined(one)
        table, column = NODE_CPUS
        for samples in self._recent.read(NODE, table, hosts, begins, until):
            cpus = largest(of_samples(samples, column, ()).values)
            if not found.get(samples.host, Capacity()).cpus > 0:
                found[samples.host] = found.get(samples.host, Capacity())._replace(cpus=cpus)
        if is_stored and self._store is not None:
            limits = None if since == -math.inf else since, None if until == math.inf else until
            try:
                earlier = self._store.capacities(query.job, *limits, [query.node] if query.node else None).value
            except ColmetError as err:
                warnings.append(f"the CPUs and tasks that bound these rates are not known: {err}")
                earlier = {}
            for host, one in earlier.items():
                found[host] = one if host not in found else found[host].joined(one)
        return ceilings(query.table, query.column, found)

    def _is_more_stored(
        self,
        query: SeriesQuery,
        known: RecentJob | None,
        hosts: Sequence[str],
        memory_from: Mapping[str, float],
        since: float,
    ) -> bool:
        """Whether there may be rows in the store that memory does not have."""
        if len(memory_from) < len(hosts) or not hosts:
            return True
        if query.own is not None and not query.own.keys() <= {*hosts}:
            return True
        if known is not None and self._saw_all([known.hosts[host] for host in hosts if host in known.hosts]):
            since = max(since, known.first)
        return since < max(memory_from.values())

    def _stored(
        self, query: SeriesQuery, schema: Schema | None, since: float, until: float
    ) -> tuple[Sequence[Series], bool, tuple[str, ...]]:
        """What is stored of a column, whether it is there at all, and what could not be read."""
        assert self._store is not None
        first = None if since == -math.inf else since
        tables = self._store.tables(query.job, first)
        columns = tables.value.get(query.table, ())
        if query.column not in columns:
            return (), False, tables.warnings
        labels = [name for name in _labels(query.table, schema) if name in columns]
        hosts = [query.node] if query.node else None if query.own is None else [*query.own]
        last = None if until == math.inf else until
        answer = self._store.read(query.job, query.table, [query.column, *labels], first, last, hosts)
        found: list[Series] = answer.value
        is_number = any(one.columns[query.column].dtype.kind in "iuf" for one in found if query.column in one.columns)
        is_there = is_number if found else query.job != NODE
        return found, is_there, (*tables.warnings, *[one for one in answer.warnings if one not in tables.warnings])

    def completeness(
        self, job: int, since: float | None, until: float | None, own: Mapping[str, float | None] | None = None
    ) -> Mapping[str, Any] | None:
        """How much of a job's samples is there, and what is missing; None where there is none. May wait for a store."""
        nothing: dict[str, Any] = {"job": job, "share": None, "expected": None, "present": None, "hosts": []}
        is_here = self._recent.job(job) is not None
        if self._store is None:
            return {**nothing, "warnings": [NO_STORE]} if is_here else None
        if own is not None and any(at is not None for at in own.values()):  # one begin for all: the last of them
            since = max([at for at in (since, *own.values()) if at is not None])
        limits = [None if at is None else int(min(max(at, 0), 1 << 40)) for at in (since, until)]
        answer = self._store.completeness(job, *limits)
        if answer.value is None:
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
            for host, one in answer.value.items()
            if own is None or host in own
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
        """Hosts with their jobs, from Grid Engine, else from what nodes sent."""
        if self._gridengine is not None:
            return self._gridengine.hosts()
        from colmet.gridengine.own import hosts_of

        found = self._snapshot()
        hosts: Hosts = hosts_of(_owned(found), found.nodes)
        return hosts

    def qstat(self) -> Owners:
        """Owners with what their jobs asked for and used, from Grid Engine, else from what nodes sent."""
        if self._gridengine is not None:
            return self._gridengine.owners()
        from colmet.gridengine.own import owners_of

        owners: Owners = owners_of(_owned(self._snapshot()))
        return owners


def gridengine_of(options: argparse.Namespace) -> BatchMemory | None:
    """What Grid Engine says of memory, not started yet; None where it is not to be asked."""
    if not options.gridengine and options.gridengine_xml is None:
        return None
    from colmet.batch.gridengine import CommandSource, FileSource, MemoryWatch

    source = CommandSource() if options.gridengine_xml is None else FileSource(options.gridengine_xml)
    watch: BatchMemory = MemoryWatch(source, options.gridengine_period, options.gridengine_encoding)
    return watch


def _owned(found: _Snapshot) -> JobUsage:
    """The rows of jobs, each with its owner as everywhere else."""
    keep = np.flatnonzero(found.jobs.job != NODE)
    values = {key: column[keep] for key, column in found.jobs.values.items()}
    owners = [found.owners[n] for n in keep.tolist()]
    return JobUsage(found.jobs.names, found.jobs.host[keep], found.jobs.job[keep], owners, values)


def _ordered(
    chosen: list[tuple[int, RecentJob | None]], query: JobsQuery, found: _Snapshot, owner: Callable[[int], str]
) -> list[tuple[int, RecentJob | None]]:
    """Jobs by a key of their rows, as `colmet.common.live.summary.arranged`: those that have no value last."""

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

    valued = [(value(job, one), job, one) for job, one in chosen]
    valued.sort(key=lambda of_it: of_it[1])
    known = [of_it for of_it in valued if of_it[0] is not None]
    known.sort(key=lambda of_it: of_it[0], reverse=(query.sort not in _TEXTS) != query.reverse)
    return [(job, one) for _, job, one in [*known, *[of_it for of_it in valued if of_it[0] is None]]]


def _made(parts: Sequence[SeriesPart], query: SeriesQuery) -> tuple[float, list[dict[str, Any]], list[str]]:
    """The width of intervals, the series as they are told, and warnings."""
    parts = [part for part in parts if len(part.times)]
    points = max(2, min(query.points, MAX_VALUES // max(1, len(parts))))
    more = [f"{points} points of each of {len(parts)} series are shown"] if points < query.points else []
    step = step_of(parts, points)
    made = []
    for part in parts:
        times, values = folded(part, step, query.fold)
        made.append(
            {"node": part.host, "labels": dict(part.labels), "times": times.round(3).tolist(), "values": told(values)}
        )
    return step, made, more


def _columns(tables: Mapping[str, Schema], stored: Mapping[str, Sequence[str]]) -> dict[str, list[dict[str, Any]]]:
    """The columns of tables, those in memory and those in the store, as they are declared."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    declared = _declared()
    for table, schema in tables.items():
        for field in schema.fields:
            _, _, text = declared.get((table, field.name), (None, None, None))
            column = {"name": field.name, "unit": field.unit, "kind": field.kind, "help": text}
            found.setdefault(table, {})[field.name] = column
    for table, names in stored.items():
        for name in names:
            unit, kind, text = declared.get((table, name), (None, None, None))
            column = {"name": name, "unit": unit, "kind": kind, "help": text}
            found.setdefault(table, {}).setdefault(name, column)
    return {table: list(columns.values()) for table, columns in sorted(found.items())}


@lru_cache(maxsize=1)
def _declared() -> Mapping[tuple[str, str], tuple[str | None, str | None, str | None]]:
    """Unit, kind and meaning of each column."""
    return {
        (table, field.name): (field.unit, field.kind, field.help or None)
        for table, schema in schemas().items()
        for field in schema.fields
    }


def _labels(table: str, schema: Schema | None) -> list[str]:
    """The columns that say what a row is about."""
    known = schema or schemas().get(table)
    return [] if known is None else [field.name for field in known.fields if field.kind == "label"]


def _shared(nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """A warning for host names that more than one agent sends under now."""
    live = [str(row["node"]) for row in nodes if not row["silent"]]
    shared = sorted({base_of(name) for name in live if is_namesake(name)})
    apart = [sorted(name for name in live if base_of(name) == host) for host in shared]
    several = [names for names in apart if len(names) > 1]
    found = [f"several agents send as {names[0]}: stored as {', '.join(names)}" for names in several[:5]]
    return [*found, f"and {len(several) - 5} other names"] if len(several) > 5 else found
