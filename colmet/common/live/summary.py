"""Reply to `colmet top`: current usage of each job and each node, from the latest two rows of each.

A value is the latest one of its column; for a counter, its growth per second since the row before. Of several sources
the first with a value counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from colmet.common import measures
from colmet.common.daemon.daemon_health import DaemonIdentity
from colmet.common.errors import Refused
from colmet.common.growth import CAPACITY_COLUMNS, NODE_CPUS, Capacity, Floats, ceiling, per_second
from colmet.common.live.latest_tables import LEAST_S, HostTables, LatestTables, TablePair
from colmet.common.live.user_names import UserNames
from colmet.common.measures import CGROUP_TABLE, Measure
from colmet.common.schema import UNITS, Field, Schema

MAX_ROWS = 5000  # of one reply
ROWS = 500
MAX_TEXT = 255  # maximum length of a node's name
HEARD_S = 60.0  # a node heard within this time is worth waiting for
GONE_S = 86400.0
VIEWS = ("jobs", "nodes", "job")
_TEXTS = frozenset({"job", "user", "node", "on"})  # sorted in ascending order

Indices = npt.NDArray[np.int64]
Keys = dict[tuple[int, int], int]
T = TypeVar("T")


# By the keys of replies.
JOB_MEASURES: Mapping[str, Measure] = {
    **{"cpu": measures.CPU_USED, "cpus": measures.CPUS, "memory": measures.MEMORY},
    **{"memory_anon": measures.MEMORY_ANON, "memory_peak": measures.MEMORY_PEAK, "memory_limit": measures.MEMORY_LIMIT},
    **{"memory_swap": measures.MEMORY_SWAP, "oom_kills": measures.OOM_KILLS},
    **{"read": measures.IO_READ, "write": measures.IO_WRITE, "tasks": measures.TASKS_NOW},
    **{"wait_cpu": measures.WAIT_CPU, "wait_io": measures.WAIT_IO, "wait_swap": measures.WAIT_SWAP},
    **{"wait_reclaim": measures.WAIT_RECLAIM, "age": measures.AGE, "gpus": measures.JOB_GPU_COUNT},
    **{"gpu": measures.JOB_GPU_USE, "gpu_memory": measures.JOB_GPU_MEMORY, "gpu_power": measures.JOB_GPU_POWER},
}
# Measures with a visible source: by key of the reply, the words for each source.
_ORIGINS = {f"{key}_source": [source.origin for source in JOB_MEASURES[key].sources] for key in ("memory", "tasks")}
_CPU_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_MEMORY = ("memtotal", "memfree", "buffers", "cached", "sreclaimable", "shmem", "swaptotal", "swapfree")
NODE_MEASURES: Mapping[str, Measure] = {
    **{name: measures.NODE_CPU[name] for name in _CPU_STATES},
    **{name: measures.NODE_MEMORY[name] for name in _MEMORY},
    **{"cpus": measures.NODE_CPU_COUNT, "load": measures.NODE_LOAD},
    **{"read": measures.NODE_READ, "write": measures.NODE_WRITE},
}
DEVICE_MEASURES: Mapping[str, Measure] = {
    **{"received": measures.NETWORK_RECEIVED, "sent": measures.NETWORK_SENT, "power": measures.NODE_POWER}
}
_USER = (CGROUP_TABLE, "user")
WAITS = ("wait_cpu", "wait_io", "wait_swap", "wait_reclaim")
JOB_TABLES = tuple(dict.fromkeys([table for measure in JOB_MEASURES.values() for table, _ in measure.places]))
NODE_TABLES = tuple(dict.fromkeys([table for measure in NODE_MEASURES.values() for table, _ in measure.places]))
TABLES = (*JOB_TABLES, *NODE_TABLES)
DEVICE_KEYS = ("network", "power", "temperature")
DEVICE_TABLES = tuple(
    dict.fromkeys([table for one in (*DEVICE_MEASURES.values(), measures.TEMPERATURE) for table, _ in one.places])
)
JOB_KEYS = (*("job", "user", "nodes", "cpu_share", "memory_share", "wait", "io"), *JOB_MEASURES, *_ORIGINS)
NODE_KEYS = (
    *("node", "jobs", "cpus", "cpu", "iowait", "steal", "load", "memory", "memory_total", "memory_share"),
    *("swap", "io", "read", "write", "seen_age", "lag"),
)


class Heard(NamedTuple):
    """State of a sending node, besides its rows."""

    seen_ns: int  # time of its last message, since the epoch
    lag_ns: int  # age of its latest batch on arrival


class Top:
    """Handler of the command, usable from any thread.

    `heard` returns the nodes that send to this daemon, by name; None in a node's own daemon. `names` returns the name
    of a user reported by number; by default that of this machine, once it is known.
    """

    def __init__(
        self,
        identity: DaemonIdentity,
        latest: LatestTables,
        heard: Callable[[], Mapping[str, Heard]] | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        names: Callable[[str], str] | None = None,
    ) -> None:
        self._identity = identity
        self._latest = latest
        self._heard = heard
        self._now_ns = now_ns
        self._monotonic = monotonic
        self._name_of = names or UserNames()

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to a request; Refused if a value cannot be used.

        The request may give the `view` (jobs, nodes, or one `job`, with its number as `job`), the key to `sort` by,
        `reverse`, a selection (`user`, a `node` of the jobs, or a `text`: part of the name of the user or of a node, or
        the start of the job's number), and the maximum number of rows (`limit`).
        """
        asked = TopQuery.of(request)
        now, now_ns = self._monotonic(), self._now_ns()
        hosts = self._latest.look()
        fresh = [(host, kept.fresh(now)) for host, kept in hosts]
        heard = {} if self._heard is None else dict(self._heard())
        recent = {host for host, one in heard.items() if now_ns - one.seen_ns <= HEARD_S * 1e9}
        answer = {
            **self._identity.values(),
            "time": now_ns / 1e9,
            "kept_s": round(now - (self._latest.since or now), 3),
            "nodes_heard": len(recent) if self._heard is not None else 1,
            "nodes_measured": sum([kept.is_measured for host, kept in hosts if self._heard is None or host in recent]),
            "left_out": self._latest.left_out,
            "view": asked.view,
        }
        if asked.view == "nodes":
            rows = [row for row in measure_nodes(fresh, now, now_ns, heard) if asked.text in row["node"]]
            machines = rows
            busy = [row["cpu"] for row in machines if row["cpu"] is not None]
            answer["totals"] = {
                "silent": sum([row["silent"] for row in rows]),
                "cpu": sum(busy) / len(busy) if busy else None,
                **{key: total(machines, key) for key in ("jobs", "memory", "memory_total")},
            }
        elif asked.view == "job":
            jobs = measure_jobs([one for one in fresh if one[1].jobs is None or asked.job in (*one[1].jobs, 0)])
            jobs = jobs.named(self._name_of)
            chosen = np.flatnonzero(jobs.job == asked.job)
            answer["job"] = next(iter(jobs.by_job(chosen)), None)
            rows = jobs.by_host(chosen)
        else:
            jobs = measure_jobs(fresh).named(self._name_of)
            chosen = jobs.selected(asked._replace(user=self._name_of(asked.user)))
            rows = jobs.by_job(chosen)
            answer["totals"] = {
                "nodes": len(np.unique(jobs.host[chosen])),
                "users": len({row["user"] for row in rows if row["user"]}),
                "cpu_share": jobs.cpu_share(chosen),
                **{key: total(rows, key) for key in ("cpu", "cpus", "memory", "read", "write", "tasks", "gpus")},
            }
        rows = arranged(rows, asked.sort, asked.reverse)
        return {**answer, "count": len(rows), "rows": rows[: asked.limit]}


class TopQuery(NamedTuple):
    """The parsed request."""

    view: str
    job: int
    sort: str
    reverse: bool
    user: str
    node: str
    text: str
    limit: int

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> TopQuery:
        """Parse a request; missing values get their defaults; Refused if a value cannot be used."""
        view = request.get("view", "jobs")
        if view not in VIEWS:
            raise Refused(f"top: view is {view!r:.80}; there are: {', '.join(VIEWS)}")
        keys = NODE_KEYS if view == "nodes" else JOB_KEYS if view == "jobs" else ("node", *JOB_KEYS)
        sort = request.get("sort", "node" if view == "nodes" else "cpu")
        if sort not in keys:
            raise Refused(f"top: sort is {sort!r:.80}; there are: {', '.join(keys)}")
        user, node, text = texts = [request.get(key, "") for key in ("user", "node", "text")]
        if not all(isinstance(one, str) and len(one) <= MAX_TEXT for one in texts):
            raise Refused(f"top: user, node and text are texts of at most {MAX_TEXT} characters")
        limit, job, reverse = request.get("limit", ROWS), request.get("job", 0), request.get("reverse", False)
        if type(limit) is not int or not 0 <= limit <= MAX_ROWS:
            raise Refused(f"top: limit is {limit!r:.80}, not a whole number from 0 to {MAX_ROWS}")
        if type(job) is not int or not 0 <= job < 1 << 63:
            raise Refused(f"top: job is {job!r:.80}, not the number of a job")
        if type(reverse) is not bool:
            raise Refused(f"top: reverse is {reverse!r:.80}, neither true nor false")
        return cls(view, job, sort, reverse, user, node, text, limit)


def arranged(rows: list[dict[str, Any]], key: str, reverse: bool) -> list[dict[str, Any]]:
    """Return the rows sorted, None last: names and job numbers ascending, values descending, unless `reverse`."""
    ties = "node" if rows and "node" in rows[0] else "job"
    return ordered(sorted(rows, key=lambda row: row[ties]), lambda row: row[key], key, reverse)


def ordered(items: Iterable[T], value: Callable[[T], Any], key: str, reverse: bool) -> list[T]:
    """Return items sorted by the value of a key, as `arranged`; items of one value keep their order."""
    known, unknown = [], []
    for item in items:
        found = value(item)
        if found is None:
            unknown.append(item)
        else:
            known.append((found, item))
    known.sort(key=lambda pair: pair[0], reverse=(key not in _TEXTS) != reverse)
    return [item for _, item in known] + unknown


def total(rows: Iterable[Mapping[str, Any]], key: str) -> float | None:
    """Return the sum of the known values of a key; None if there are none."""
    values = [row[key] for row in rows if row[key] is not None]
    found = sum(values)
    return found if values and math.isfinite(found) else None


# -- jobs --


class JobUsage(NamedTuple):
    """Usage of each job on each node: columns of one length. An unknown value is NaN."""

    names: Sequence[str]  # of the nodes
    host: Indices  # the node of each row, as an index of `names`
    job: Indices
    user: list[str]  # owner of the job; empty if unknown
    values: dict[str, Floats]  # by key

    def named(self, name_of: Callable[[str], str]) -> JobUsage:
        """Return a copy with user names: cgroups of Slurm and OAR 3 have the number of the user."""
        return self._replace(user=[name_of(user) for user in self.user])

    def selected(self, asked: TopQuery) -> Indices:
        """Return the indices of the selected jobs' rows."""
        chosen = np.ones(len(self.job), bool)
        if asked.user:
            chosen &= np.array([user == asked.user for user in self.user], bool)
        if asked.node:
            hosts = np.array([asked.node == name for name in self.names], bool)
            chosen &= np.isin(self.job, self.job[hosts[self.host]])
        if asked.text:
            hosts = np.array([asked.text in name for name in self.names], bool)
            texts = np.array([asked.text in user for user in self.user], bool)
            numbers = np.array([str(job).startswith(asked.text) for job in self.job.tolist()], bool)
            chosen &= np.isin(self.job, self.job[hosts[self.host] | texts | numbers])
        return np.flatnonzero(chosen)

    def cpu_share(self, chosen: Indices) -> float | None:
        """Return the part of their CPUs in use by all of these rows; None if unknown."""
        share: float | None = _rounded(self._cpu_shares(chosen, np.zeros(len(chosen), np.int64), 1))[0]
        return share

    def _cpu_shares(self, chosen: Indices, inverse: Indices, count: int) -> Floats:
        """Return the used part of the CPUs by job, from rows with both values: one without CPUs gives no share."""
        cpu, cpus = self.values["cpu"][chosen], self.values["cpus"][chosen]
        both = ~np.isnan(cpu) & ~np.isnan(cpus)
        used, given = [np.bincount(inverse[both], weights=one[both], minlength=count) for one in (cpu, cpus)]
        with np.errstate(divide="ignore", invalid="ignore"):
            return _finite(used / given)

    def totals(self, chosen: Indices, keys: Iterable[str]) -> dict[str, float | None]:
        """Return the sum of the known values of each key over these rows; None if there are none."""
        one = np.zeros(len(chosen), np.int64)
        return {key: _rounded(_folded(self.values[key][chosen], one, 1, "sum"))[0] for key in keys}

    def by_host(self, chosen: Indices) -> list[dict[str, Any]]:
        """Return a row for each index: usage of the job on the node."""
        columns = {key: _rounded(column[chosen], key) for key, column in _with_shares(self.values).items()}
        return [
            {"node": self.names[host], "job": job, "user": self.user[n], "nodes": 1}
            | {key: column[at] for key, column in columns.items()}
            for at, (n, host, job) in enumerate(
                zip(chosen.tolist(), self.host[chosen].tolist(), self.job[chosen].tolist())
            )
        ]

    def by_job(self, chosen: Indices) -> list[dict[str, Any]]:
        """Return a row for each job of these: usage on all its nodes."""
        jobs, first, inverse, counts = np.unique(
            self.job[chosen], return_index=True, return_inverse=True, return_counts=True
        )
        inverse = inverse.reshape(-1)
        folded = {
            key: _folded(self.values[key][chosen], inverse, len(jobs), measure.hosts)
            for key, measure in JOB_MEASURES.items()
        }
        shares = _with_shares(self.values)["memory_share"][chosen]
        folded = _with_shares(folded)
        # the node nearest to its limit: the job is killed there
        folded["memory_share"] = _folded(shares, inverse, len(jobs), "max")
        folded["cpu_share"] = self._cpu_shares(chosen, inverse, len(jobs))
        folded["time"] = _folded(self.values["time"][chosen], inverse, len(jobs), "max")
        for key in _ORIGINS:  # the least good one, if its nodes have several
            folded[key] = _folded(self.values[key][chosen], inverse, len(jobs), "max")
        columns = {key: _rounded(column, key) for key, column in folded.items()}
        users: dict[int, str] = {}
        for n, at in zip(chosen.tolist(), inverse.tolist()):
            if self.user[n]:
                users.setdefault(at, self.user[n])
        return [
            {"job": job, "user": users.get(at, ""), "nodes": count, "on": self.names[host]}
            | {key: column[at] for key, column in columns.items()}
            for at, (job, count, host) in enumerate(
                zip(jobs.tolist(), counts.tolist(), self.host[chosen][first].tolist())
            )
        ]


def _with_shares(values: Mapping[str, Floats]) -> dict[str, Floats]:
    """Add derived values: I/O, shares of CPUs and memory, and the number of waiting tasks."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            **values,
            "io": _sum([values["read"], values["write"]]),
            "cpu_share": _finite(values["cpu"] / values["cpus"]),
            "memory_share": _finite(values["memory"] / values["memory_limit"]),
            "wait": _sum([values[key] for key in WAITS]),
        }


def _sum(columns: Sequence[Floats]) -> Floats:
    """Return the sum of known values; NaN if there are none."""
    return np.where(np.isnan(columns).all(axis=0), np.nan, np.nansum(columns, axis=0))


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)


def _folded(values: Floats, inverse: Indices, count: int, fold: str) -> Floats:
    """Return one value for each job; NaN if missing on all its nodes."""
    known = ~np.isnan(values)
    there = np.bincount(inverse[known], minlength=count).astype(np.float64)
    if fold == "max":
        most: Floats = np.full(count, -np.inf)
        np.maximum.at(most, inverse[known], values[known])
        return np.where(there > 0, most, np.nan)
    total = np.bincount(inverse[known], weights=values[known], minlength=count).astype(np.float64)
    if fold == "mean":
        total = total / np.maximum(there, 1)
    if fold == "all":
        there[np.bincount(inverse[~known], minlength=count) > 0] = 0
    return np.where(there > 0, total, np.nan)


def _rounded(values: Floats, key: str = "") -> list[Any]:
    """Return values as in replies: rounded to a thousandth; None if unknown or not finite."""
    if key in _ORIGINS:
        return [_ORIGINS[key][int(value)] if math.isfinite(value) else None for value in values.tolist()]
    return [round(value, 3) if math.isfinite(value) else None for value in values.tolist()]


def measure_jobs(hosts: Sequence[tuple[str, HostTables]]) -> JobUsage:
    """Return usage of each job on each node from the kept tables."""
    names = [host for host, _ in hosts]
    parts = [part for table in JOB_TABLES for part in _parts(table, hosts)]
    here = [None if kept.jobs is None else {*kept.jobs, 0} for _, kept in hosts]
    keys: Keys = {}
    for part in parts:
        for key in part.keys:
            jobs = here[key[0]]
            if jobs is None or key[1] in jobs:
                keys.setdefault(key, len(keys))
    values = _measured(parts, JOB_MEASURES, keys, _capacity([*parts, *_parts(NODE_CPUS[0], hosts)], keys))
    values["time"] = np.full(len(keys), np.nan)
    user = [""] * len(keys)
    for part in parts:
        into = np.array([keys.get(key, -1) for key in part.keys], np.int64)
        values["time"] = np.fmax(values["time"], _spread(part.time_s, into, len(keys)))
        if part.name == _USER[0] and _USER[1] in part.schema.name_set:
            cells = part.latest[_USER[1]].tolist()
            for key, cell in zip(part.keys, cells):
                if isinstance(cell, bytes) and key in keys:
                    user[keys[key]] = cell[:MAX_TEXT].decode(errors="replace")
    pairs = np.array(list(keys), np.int64).reshape(-1, 2)
    return JobUsage(names, pairs[:, 0], pairs[:, 1], user, values)


class _JoinedRows:
    """The latest rows of one table of all hosts with the same schema, and the rows before, concatenated."""

    def __init__(self, name: str, schema: Schema, pairs: Sequence[tuple[int, TablePair]]) -> None:
        self.name = name
        self.schema = schema
        self._former = [(host, pair.former) for host, pair in pairs if pair.former is not None]
        latest = [(host, pair.latest) for host, pair in pairs]
        self.latest, self.keys, self.time_s = self._joined(latest)
        self.former, self.former_keys, self.former_time_s = self._joined(self._former)

    def _joined(self, tables: Sequence[tuple[int, Any]]) -> tuple[Any, list[tuple[int, int]], Floats]:
        rows = np.frombuffer(b"".join([table.packed for _, table in tables]), self.schema.dtype)
        counts = [len(table) for _, table in tables]
        hosts = np.repeat(np.array([host for host, _ in tables], np.int64), counts)
        times = np.repeat(np.array([table.time_ns / 1e9 for _, table in tables], np.float64), counts)
        return rows, list(zip(hosts.tolist(), rows["job_id"].tolist())), times


def _parts(name: str, hosts: Iterable[tuple[str, HostTables]]) -> list[_JoinedRows]:
    found: dict[Schema, list[tuple[int, TablePair]]] = {}
    for n, (_, kept) in enumerate(hosts):
        pair = kept.tables.get(name)
        if pair is not None:
            found.setdefault(pair.latest.schema, []).append((n, pair))
    return [_JoinedRows(name, schema, pairs) for schema, pairs in found.items()]


def _measured(
    parts: Sequence[_JoinedRows], wanted: Mapping[str, Measure], keys: Keys, capacity: Capacity
) -> dict[str, Floats]:
    """Return the values of each measure for each key, by the names of the measures."""
    values = {name: np.full(len(keys), np.nan) for name in wanted}
    origins = {key: np.full(len(keys), np.nan) for key in _ORIGINS if key.removesuffix("_source") in values}
    for part in parts:
        fields = {field.name: field for field in part.schema.fields}
        into = np.array([keys.get(key, -1) for key in part.keys], np.int64)
        former_into = np.array([keys.get(key, -1) for key in part.former_keys], np.int64)
        times = _spread(part.time_s, into, len(keys)) - _spread(part.former_time_s, former_into, len(keys))
        for name, measure in wanted.items():
            for n, (table, column) in enumerate(measure.places):
                field = fields.get(column)
                if table != part.name or field is None or field.dtype[0] == "S":
                    continue
                found = _spread(_numbers(part.latest, field), into, len(keys))
                if field.kind == "counter" and measure.is_rate:
                    grown = found - _spread(_numbers(part.former, field), former_into, len(keys))
                    found = per_second(grown, times, ceiling(table, column, capacity))
                before = values[name]
                if f"{name}_source" in origins:
                    origins[f"{name}_source"][np.isnan(before) & ~np.isnan(found)] = n
                values[name] = np.where(np.isnan(before), found, before)
    return {**values, **origins}


def _capacity(parts: Sequence[_JoinedRows], keys: Keys) -> Capacity:
    """Return the capacity of each key, shape (n,) each: its own CPUs and tasks, else the CPUs of its node."""
    found = {name: np.full(len(keys), np.nan) for name in CAPACITY_COLUMNS}
    of_nodes: dict[int, float] = {}
    for part in parts:
        fields = {field.name: field for field in part.schema.fields}
        into = np.array([keys.get(key, -1) for key in part.keys], np.int64)
        for name in CAPACITY_COLUMNS if part.name == CGROUP_TABLE else ():
            if name in fields and fields[name].dtype[0] != "S":
                found[name] = np.fmax(found[name], _spread(_numbers(part.latest, fields[name]), into, len(keys)))
        if part.name == NODE_CPUS[0] and NODE_CPUS[1] in fields:
            of_nodes.update(zip([host for host, _ in part.keys], _numbers(part.latest, fields[NODE_CPUS[1]]).tolist()))
    cpus, *tasks = [found[name] for name in CAPACITY_COLUMNS]
    of_node = np.array([of_nodes.get(host, np.nan) for host, _ in keys], np.float64)
    return Capacity(np.where(np.isnan(cpus), of_node, cpus), np.fmax.reduce(tasks))


def _numbers(rows: Any, field: Field) -> Floats:
    column = rows[field.name].astype(np.float64)
    if field.dtype == "i8":
        column[rows[field.name] == field.missing] = np.nan
    return _finite(np.asarray(column * UNITS[field.unit].scale, np.float64))


def _spread(values: Floats, into: Indices, count: int) -> Floats:
    """Return the values at their places; NaN elsewhere."""
    spread = np.full(count, np.nan)
    spread[into[into >= 0]] = values[into >= 0]
    return spread


# -- nodes --


def measure_nodes(
    hosts: Sequence[tuple[str, HostTables]], now: float, now_ns: int, heard: Mapping[str, Heard]
) -> list[dict[str, Any]]:
    """Return a row for each node; `now` is by the monotonic clock, `now_ns` by the wall clock."""
    keys = {(n, 0): n for n in range(len(hosts))}
    parts = [part for table in NODE_TABLES for part in _parts(table, hosts)]
    values = _measured(parts, NODE_MEASURES, keys, _capacity(parts, keys))
    states = np.array([values[name] for name in _CPU_STATES])
    total = np.nansum(states, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        idle = np.nansum([values["idle"], values["iowait"]], axis=0)
        used = values["memtotal"] - np.nansum(
            [values[n] for n in ("memfree", "buffers", "cached", "sreclaimable")], axis=0
        )
        used = used + np.nan_to_num(values["shmem"])  # part of cached, but cannot be given back
        columns = {
            "cpus": _rounded(values["cpus"]),
            "cpu": _rounded(np.where((total > 0) & ~np.isnan(values["idle"]), 1 - idle / total, np.nan)),
            "iowait": _rounded(np.where(total > 0, values["iowait"] / total, np.nan)),
            "steal": _rounded(np.where(total > 0, values["steal"] / total, np.nan)),
            "load": _rounded(values["load"]),
            "memory": _rounded(used),
            "memory_total": _rounded(values["memtotal"]),
            "memory_share": _rounded(_finite(used / values["memtotal"])),
            "swap": _rounded(values["swaptotal"] - values["swapfree"]),
            "io": _rounded(_sum([values["read"], values["write"]])),
            "read": _rounded(values["read"]),
            "write": _rounded(values["write"]),
        }
    rows = []
    for n, (host, kept) in enumerate(hosts):
        ages = _ages(now - kept.seen, heard.get(host), now_ns)
        rows.append(
            {"node": host, "jobs": _job_count(kept), **{key: column[n] for key, column in columns.items()}, **ages}
        )
    known = {host for host, _ in hosts}
    for host, one in heard.items():
        if host not in known and now_ns - one.seen_ns <= GONE_S * 1e9:
            rows.append({"node": host, "jobs": None, **dict.fromkeys(columns), **_ages(None, one, now_ns)})
    return rows


def measure_devices(hosts: Sequence[tuple[str, HostTables]]) -> list[dict[str, Any]]:
    """Return the network traffic, the power and the hottest sensor of each host, in their order."""
    keys = {(n, 0): n for n in range(len(hosts))}
    parts = [part for table in DEVICE_TABLES for part in _parts(table, hosts)]
    values = _measured(parts, DEVICE_MEASURES, keys, _capacity(parts, keys))
    hottest = np.full(len(hosts), np.nan)
    for part in parts:
        fields = {field.name: field for field in part.schema.fields}
        for table, column in measures.TEMPERATURE.places:
            if table == part.name and column in fields:
                at = np.array([host for host, _ in part.keys], np.int64)
                np.fmax.at(hottest, at, _numbers(part.latest, fields[column]))
    columns = {
        "network": _rounded(_sum([values["received"], values["sent"]])),
        "power": _rounded(values["power"]),
        "temperature": _rounded(hottest),
    }
    return [{key: column[n] for key, column in columns.items()} for n in range(len(hosts))]


def _job_count(kept: HostTables) -> int:
    if kept.jobs is not None:
        return len(kept.jobs)
    tables = [pair.latest for name, pair in kept.tables.items() if name in JOB_TABLES]
    return len({job for table in tables for job in table.rows["job_id"].tolist()} - {0})


def _ages(seen_s: float | None, heard: Heard | None, now_ns: int) -> dict[str, float | bool | None]:
    lag_s = None
    if heard is not None:
        seen_s, lag_s = max(0, now_ns - heard.seen_ns) / 1e9, heard.lag_ns / 1e9
    assert seen_s is not None
    return {"seen_age": round(seen_s, 3), "lag": None if lag_s is None else round(lag_s, 3), "silent": seen_s > LEAST_S}
