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

from colmet.common.errors import ColmetError
from colmet.common.schema import Schema
from colmet.common.top import HEARD_S, JOB_KEYS, Jobs, arranged, measure_jobs, measure_nodes
from colmet.tools.batch.qmem import Hosts, Owners
from colmet.tools.history.series import NODE, Series
from colmet.tools.web.facts import Busy, Facts, JobsAsked, NodesAsked, Page, SeriesAsked, StoreWarning
from colmet.tools.web.memory import KnownJob, Memory
from colmet.tools.web.series import (
    Part,
    before,
    folded,
    joined,
    keys_of,
    levels,
    of_samples,
    of_series,
    parts_of,
    rates,
    step_of,
    told,
    unit_of,
)
from colmet.tools.web.store import Store

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
    jobs: Jobs
    owners: Sequence[str]
    rows: Mapping[int, dict[str, Any]]
    running: frozenset[int]
    on: Mapping[str, Sequence[int]]
    nodes: Sequence[dict[str, Any]]


class Known(Facts):
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
        memory: Memory,
        store: Store | None,
        gridengine: BatchMemory | None = None,
        feed: Callable[[], Mapping[str, int]] = dict,
        name_of: Callable[[str], str] = str,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory = memory
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
        look, now = self._memory.look(), self._now()
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
        owners = [self._owner(job, user) for job, user in zip(jobs.job.tolist(), jobs.user)]
        running = frozenset([job for here in on.values() for job in here])
        nodes = measure_nodes(look.hosts, look.taken, int(now * 1e9), look.heard)
        return _Snapshot(self._monotonic(), now, jobs, owners, rows, running, on, nodes)

    def _owner(self, job: int, otherwise: str = "") -> str:
        """Whose a job is, as far as memory tells: the same everywhere, by name where this machine has one."""
        known = self._memory.job(job)
        if known is not None and known.is_disputed:
            return ""
        return self._name_of((known.user if known is not None else "") or otherwise)

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
        running = [job for job in found.running if user is None or self._row_owner(found, job) == user]
        busy = [row["cpu"] for row in found.nodes if row["cpu"] is not None and not row["silent"]]
        sums = {
            key: sum(values) if (values := [row[key] for row in found.nodes if row[key] is not None]) else None
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
                "users": len({self._row_owner(found, job) for job in running} - {""}),
                "cpu_share": found.jobs.cpu_share(chosen),
                **totals,
            },
            "messages": {"taken": self._memory.batches, "left_out": self._memory.missed},
            "kept_s": round(self._memory.kept_s(), 3),
            "warnings": [*self._warnings(), *(self._gridengine_warnings() if user is None else [])],
        }

    def _warnings(self) -> list[str]:
        """What of all that came is not here."""
        counts = {**self._feed(), **self._memory.counters()}
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

    def jobs(self, asked: JobsAsked) -> Page:
        """Rows of jobs, from memory."""
        found = self._snapshot()
        known = {one.job: one for one in self._memory.jobs()}
        chosen = []
        wanted: Iterable[int] = found.running if asked.state == "running" else {**known, **dict.fromkeys(found.running)}
        for job in wanted:
            if asked.state == "ended" and job in found.running:
                continue
            one = known.get(job)
            if self._is_wanted(asked, found, job, one):
                chosen.append((job, one))
        chosen = _ordered(chosen, asked, found, lambda job: self._row_owner(found, job))
        page = chosen[asked.offset : asked.offset + asked.limit]
        return Page(len(chosen), asked.offset, [self._row(found, job, one) for job, one in page])

    def _is_wanted(self, asked: JobsAsked, found: _Snapshot, job: int, one: KnownJob | None) -> bool:
        owner = self._row_owner(found, job)
        if asked.user is not None and owner != asked.user:
            return False
        if one is not None and asked.since is not None and one.last < asked.since:
            return False
        if one is not None and asked.until is not None and one.first > asked.until:
            return False
        is_running = job in found.running
        if asked.node and not (
            job in found.on.get(asked.node, ()) if is_running else one is not None and asked.node in one.hosts
        ):
            return False
        if not asked.text:
            return True
        hosts = () if one is None else tuple(one.hosts)
        return str(job).startswith(asked.text) or asked.text in owner or any(asked.text in host for host in hosts)

    def _row(self, found: _Snapshot, job: int, known: KnownJob | None) -> dict[str, Any]:
        row: dict[str, Any] = {**dict.fromkeys((*JOB_KEYS, "on", "time")), "job": job, "user": "", "nodes": 0}
        if known is not None:
            hosts = self._memory.hosts_of(known)
            row.update(user=self._owner(job), on=hosts[0] if hosts else None)
        row.update(found.rows.get(job, {}))
        return {
            **row,
            "nodes": row["nodes"] if known is None else len(hosts),  # also those that are not heard any more
            "first": None if known is None else known.first,
            "last": None if known is None else known.last,
            "running": job in found.running,
        }

    def owner(self, job: int) -> str | None:
        """Whose a job is; "" where nobody says, None where there is no such job. May wait for a store."""
        found = self._snapshot()
        known = self._memory.job(job)
        is_here = known is not None or job in found.running
        here = self._row_owner(found, job) if is_here else ""
        if here or self._store is None or (known is not None and known.is_disputed):
            return here if is_here else None
        if not is_here:
            return self._stored_owner(job)
        if known is None or self._saw_all(known):  # what is stored of the number is of a job before
            return ""
        return self._stored_owner(job, known.first - GRACE_S) or ""

    def seek(self, job: int) -> None:
        """Wait for the store, and fail, as `owner` does for a job that only the store can know."""
        self._stored_owner(job)

    def _stored_owner(self, job: int, reaches: float = -math.inf) -> str | None:
        """Whose the rows of a job in the store are: "" where nobody says, or not all say the same; None for none.

        Where nobody has said it from a time on that they have to reach, it is another job's.
        """
        found = None if self._store is None else self._store.owners(job)
        if found is None:
            return None
        names = {self._name_of(user) for user in found.users} if found.last >= reaches else set()
        return names.pop() if len(names) == 1 else ""

    def owned_since(self, job: int, user: str) -> float | None:
        """From when on what is told of a job is this user's, who owns it now; None for all of it. May wait for a store.

        Batch systems give numbers again: what was before may be another user's.
        """
        known = self._memory.job(job)
        first = self._now() if known is None else known.first
        if self._store is None or (known is not None and self._saw_all(known)):
            return first
        try:
            return None if self._stored_owner(job) == user else first
        except ColmetError:  # also where too many ask
            return first

    def job(self, job: int) -> Mapping[str, Any] | None:
        """One job with a row for each of its nodes, and its tables; None where there is none. May wait for a store."""
        found = self._snapshot()
        known = self._memory.job(job)
        is_here = known is not None or job in found.running
        warnings: list[str] = []
        stored: Mapping[str, Sequence[str]] = {}
        user = self._row_owner(found, job)
        if self._store is not None:
            try:
                answer = self._store.tables(job, self._begun(job, known, user))
                stored = answer.value
                warnings += answer.warnings
                if not is_here and stored:
                    user = self._stored_owner(job) or ""
            except ColmetError as err:
                if not is_here:
                    raise
                warnings.append(str(err) if isinstance(err, Busy) else StoreWarning(err))
        if not is_here and not stored:
            return None
        hosts = [] if known is None else self._memory.hosts_of(known)
        chosen = np.flatnonzero(found.jobs.job == job) if job in found.running else np.zeros(0, np.int64)
        rows = self._by_host(found, chosen)
        there = {row["node"] for row in rows}
        nothing = {**dict.fromkeys(JOB_KEYS), "job": job, "user": user, "nodes": 1}
        rows += [{**nothing, "node": host} for host in hosts if host not in there]
        tables = {} if known is None else self._memory.tables(hosts, known.tables)
        return {
            "job": {**self._row(found, job, known), "user": user},
            "nodes": sorted(rows, key=lambda row: row["node"]),
            "tables": _columns(tables, stored),
            "stored": bool(stored),
            "warnings": warnings,
        }

    def _begun(self, job: int, known: KnownJob | None, user: str) -> float | None:
        """From when on what is stored of a number is of the job that has it now; None for all of it."""
        if known is None or not (user or self._saw_all(known)):
            return None
        return self.owned_since(job, user)

    def _by_host(self, found: _Snapshot, chosen: Any) -> list[dict[str, Any]]:
        rows = found.jobs.by_host(chosen)
        for row, n in zip(rows, chosen.tolist()):
            row["user"] = found.owners[n]
        return rows

    def _saw_all(self, known: KnownJob) -> bool:
        """Whether the job began after this process did, and was never away for long."""
        return known.is_whole and known.first > self._memory.began + GRACE_S

    def nodes(self, asked: NodesAsked) -> Page:
        """Rows of nodes, from memory."""
        rows = [
            row
            for row in self._snapshot().nodes
            if (asked.names is None or row["node"] in asked.names) and asked.text in row["node"]
        ]
        rows = arranged(rows, asked.sort, asked.reverse)
        return Page(len(rows), asked.offset, rows[asked.offset : asked.offset + asked.limit])

    def nodes_of(self, user: str) -> frozenset[str]:
        """The nodes that jobs of a user are on now."""
        found = self._snapshot()
        return frozenset(
            [host for host, jobs in found.on.items() if any(self._row_owner(found, job) == user for job in jobs)]
        )

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
                user = self._row_owner(found, job)
                rows.append({**dict.fromkeys(JOB_KEYS), "job": job, "user": user, "nodes": 1, "node": name})
        tables = _columns(self._memory.tables([name]), {})
        return {"node": row, "jobs": sorted(rows, key=lambda one: one["job"]), "tables": tables, "warnings": []}

    # -- what was --

    def series(self, asked: SeriesAsked) -> Mapping[str, Any] | None:
        """Values over time; None where there is no such job, node, table or column. May wait for a store."""
        now = self._now()
        since = -math.inf if asked.since is None else asked.since
        until = math.inf if asked.until is None else asked.until
        known = self._memory.job(asked.job) if asked.job != NODE else None
        if asked.job == NODE:
            hosts = [asked.node] if self._memory.is_host(asked.node) else []
        else:
            hosts = [] if known is None else self._memory.hosts_of(known)
            hosts = [host for host in hosts if asked.node in ("", host)]
        schema = self._memory.tables(hosts, [asked.table]).get(asked.table)
        if schema is not None and asked.job == NODE and schema.scope == "job":
            schema = None
        memory_from = {}
        if asked.source != "stored" and schema is not None:
            begins = {host: self._memory.begins(host, asked.table) for host in hosts}
            memory_from = {host: at for host, at in begins.items() if at is not None}
        warnings: list[str] = []
        stored: Sequence[Series] = ()
        is_stored = False  # whether the store has the column at all
        if self._store is None:
            warnings += [NO_STORE] if asked.source == "stored" else []
        elif asked.source == "stored" or (
            asked.source == "auto" and self._is_more_stored(asked, known, hosts, memory_from, since)
        ):
            reaches = max(memory_from.values(), default=math.inf) if hosts and memory_from else math.inf
            if len(memory_from) < len(hosts):
                reaches = math.inf
            try:
                stored, is_stored, more = self._stored(asked, schema, since, min(until, reaches))
                warnings += more
            except ColmetError as err:
                if schema is None:
                    raise
                warnings.append(str(err) if isinstance(err, Busy) else StoreWarning(err))
        field = None if schema is None else next((one for one in schema.fields if one.name == asked.column), None)
        if (field is None and not is_stored) or (field is not None and field.dtype[0] == "S"):
            return None
        if known is not None and schema is not None and not is_stored and asked.table not in known.tables:
            return None
        unit, kind, _ = _declared().get((asked.table, asked.column), (None, None, None))
        if field is not None:
            unit, kind = field.unit, field.kind
        labels = _labels(asked.table, schema)
        memory = [
            of_samples(samples, asked.column, labels)
            for samples in self._memory.read(asked.job, asked.table, memory_from, since, until)
        ]
        earlier = [
            before(of_series(one, asked.column, labels), since, until, memory_from.get(one.host, math.inf))
            for one in stored
        ]
        raws = joined([*earlier, *memory])
        parts = [part for part in parts_of(raws, keys_of(raws, labels)) if len(part.times)]
        if len(parts) > MAX_PARTS:
            warnings.append(f"{len(parts)} series are too many, the first {MAX_PARTS} are told; ask for one node")
            parts = parts[:MAX_PARTS]
        is_rate = asked.rate and kind in ("counter", None)
        if asked.rate and not is_rate:
            warnings.append(f"{asked.table}.{asked.column} is no counter: its values are told, not their growth")
        shown_unit, factor = unit_of(unit, is_rate)
        parts = [rates(part, factor) if is_rate else levels(part) for part in parts]
        step, made, lines = _made(parts, asked)
        warnings += lines
        if self._memory.missed and memory:
            warnings.append(f"{self._memory.missed} messages did not reach memory; source=stored has their rows")
        has_stored = any(len(raw.times) for raw in earlier)
        times = [at for one in made for at in (one["times"][:1] + one["times"][-1:])]
        return {
            "job": asked.job,
            "metric": f"{asked.table}.{asked.column}",
            "unit": shown_unit,
            "kind": kind,
            "rate": is_rate,
            "since": asked.since if asked.since is not None else min(times, default=None),
            "until": asked.until if asked.until is not None else now,
            "step": step,
            "source": "both" if memory and has_stored else "memory" if memory else "stored" if has_stored else "none",
            "warnings": warnings,
            "series": made,
        }

    def _is_more_stored(
        self,
        asked: SeriesAsked,
        known: KnownJob | None,
        hosts: Sequence[str],
        memory_from: Mapping[str, float],
        since: float,
    ) -> bool:
        """Whether there may be rows in the store that memory does not have."""
        if len(memory_from) < len(hosts) or not hosts:
            return True
        if known is not None and self._saw_all(known):
            since = max(since, known.first)
        return since < max(memory_from.values())

    def _stored(
        self, asked: SeriesAsked, schema: Schema | None, since: float, until: float
    ) -> tuple[Sequence[Series], bool, tuple[str, ...]]:
        """What is stored of a column, whether it is there at all, and what could not be read."""
        assert self._store is not None
        first = None if since == -math.inf else since
        tables = self._store.tables(asked.job, first)
        columns = tables.value.get(asked.table, ())
        if asked.column not in columns:
            return (), False, tables.warnings
        labels = [name for name in _labels(asked.table, schema) if name in columns]
        hosts = [asked.node] if asked.node else None
        last = None if until == math.inf else until
        answer = self._store.read(asked.job, asked.table, [asked.column, *labels], first, last, hosts)
        found: list[Series] = answer.value
        is_number = any(one.columns[asked.column].dtype.kind in "iuf" for one in found if asked.column in one.columns)
        is_there = is_number if found else asked.job != NODE
        return found, is_there, (*tables.warnings, *[one for one in answer.warnings if one not in tables.warnings])

    def completeness(self, job: int, since: float | None, until: float | None) -> Mapping[str, Any] | None:
        """How much of a job's samples is there, and what is missing; None where there is none. May wait for a store."""
        nothing: dict[str, Any] = {"job": job, "share": None, "expected": None, "present": None, "hosts": []}
        is_here = self._memory.job(job) is not None
        if self._store is None:
            return {**nothing, "warnings": [NO_STORE]} if is_here else None
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
        from colmet.tools.mem.own import hosts_of

        found = self._snapshot()
        hosts: Hosts = hosts_of(_owned(found), found.nodes)
        return hosts

    def qstat(self) -> Owners:
        """Owners with what their jobs asked for and used, from Grid Engine, else from what nodes sent."""
        if self._gridengine is not None:
            return self._gridengine.owners()
        from colmet.tools.mem.own import owners_of

        owners: Owners = owners_of(_owned(self._snapshot()))
        return owners


def gridengine_of(options: argparse.Namespace) -> BatchMemory | None:
    """What Grid Engine says of memory, not started yet; None where it is not to be asked."""
    if not options.gridengine and options.gridengine_xml is None:
        return None
    from colmet.tools.batch.gridengine import CommandSource, FileSource, MemoryWatch

    source = CommandSource() if options.gridengine_xml is None else FileSource(options.gridengine_xml)
    watch: BatchMemory = MemoryWatch(source, options.gridengine_period, options.gridengine_encoding)
    return watch


def _owned(found: _Snapshot) -> Jobs:
    """The rows of jobs, each with its owner as everywhere else."""
    keep = np.flatnonzero(found.jobs.job != NODE)
    values = {key: column[keep] for key, column in found.jobs.values.items()}
    owners = [found.owners[n] for n in keep.tolist()]
    return Jobs(found.jobs.names, found.jobs.host[keep], found.jobs.job[keep], owners, values)


def _ordered(
    chosen: list[tuple[int, KnownJob | None]], asked: JobsAsked, found: _Snapshot, owner: Callable[[int], str]
) -> list[tuple[int, KnownJob | None]]:
    """Jobs by a key of their rows, as `colmet.common.top.arranged`: those that have no value last."""

    def value(job: int, one: KnownJob | None) -> Any:
        row = found.rows.get(job)
        if asked.sort == "job":
            return job
        if asked.sort == "user":
            return owner(job)
        if asked.sort == "running":
            return job in found.running
        if asked.sort in ("first", "last"):
            return None if one is None else getattr(one, asked.sort)
        if one is not None and asked.sort == "nodes":
            return len(one.hosts)
        if row is not None:
            return row.get(asked.sort)
        if one is not None and asked.sort == "on":
            return min(one.hosts, default=None)
        return None

    valued = [(value(job, one), job, one) for job, one in chosen]
    valued.sort(key=lambda of_it: of_it[1])
    known = [of_it for of_it in valued if of_it[0] is not None]
    known.sort(key=lambda of_it: of_it[0], reverse=(asked.sort not in _TEXTS) != asked.reverse)
    return [(job, one) for _, job, one in [*known, *[of_it for of_it in valued if of_it[0] is None]]]


def _made(parts: Sequence[Part], asked: SeriesAsked) -> tuple[float, list[dict[str, Any]], list[str]]:
    """The width of intervals, the series as they are told, and warnings."""
    parts = [part for part in parts if len(part.times)]
    points = max(2, min(asked.points, MAX_VALUES // max(1, len(parts))))
    more = [f"{points} points of each of {len(parts)} series are all that is told"] if points < asked.points else []
    step = step_of(parts, points)
    made = []
    for part in parts:
        times, values = folded(part, step, asked.fold)
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
def _schemas() -> Mapping[str, Schema]:
    """The tables that nodes of this version send, by name."""
    from colmet.tools import metrics  # loads all input backends

    return {schema.name: schema for schema in metrics.declared()}


@lru_cache(maxsize=1)
def _declared() -> Mapping[tuple[str, str], tuple[str | None, str | None, str | None]]:
    """Unit, kind and meaning of each column."""
    return {
        (table, field.name): (field.unit, field.kind, field.help or None)
        for table, schema in _schemas().items()
        for field in schema.fields
    }


def _labels(table: str, schema: Schema | None) -> list[str]:
    """The columns that say what a row is about."""
    known = schema or _schemas().get(table)
    return [] if known is None else [field.name for field in known.fields if field.kind == "label"]
