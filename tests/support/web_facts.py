"""What a made-up cluster reports: for the tests of the JSON interface; `tests.support.web_jobs` serves it."""

from __future__ import annotations

import math
import time

import numpy as np

from colmet.common.errors import ColmetError
from colmet.common.live.summary import JOB_KEYS, arranged
from colmet.web.queries import RowPage
from colmet.web.series import Extent, SeriesPart, grid_of, spread_answer, spread_of, step_of
from tests.support.web_health import health_of, history_of

GIB = 1 << 30
USERS = ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi", "<b>mallory</b>", "Zoë")
CPUS, MEMORY = 64, 256 * GIB
PERIOD_S = 5.0  # between two samples
STORED_ONLY = 90_001  # a job that is in the store alone; alice's
FIRST = 100_001

COLUMNS = {
    "cgroup_default": [
        ("cpu_usage", "nsec", "counter", "CPU time used"),
        ("cpu_user", "nsec", "counter", "CPU time in user mode"),
        ("cpu_system", "nsec", "counter", "CPU time in the kernel"),
        ("cpus_allocated", "", "gauge", "CPUs that the job may use"),
        ("memory_current", "bytes", "gauge", "memory used"),
        ("memory_anon", "bytes", "gauge", "memory used that is no cache"),
        ("memory_file", "bytes", "gauge", "file pages"),
        ("memory_kernel", "bytes", "gauge", "data structures of the kernel"),
        ("memory_limit", "bytes", "gauge", "memory that may be used"),
        ("io_read_bytes", "bytes", "counter", "bytes read"),
        ("io_write_bytes", "bytes", "counter", "bytes written"),
        ("pids_current", "", "gauge", "processes and threads"),
    ],
    "taskstats_default": [
        ("cpu_delay_total", "nsec", "counter", "time waited for a CPU"),
        ("blkio_delay_total", "nsec", "counter", "time waited for a block device"),
    ],
}
PARTS = {"cpu_user": 0.75, "cpu_system": 0.25, "memory_anon": 0.5, "memory_file": 0.375, "memory_kernel": 0.125}
GPU_COLUMNS = {
    "nvidiastats_default": [
        ("utilization-gpu", "percent", "gauge", "use of the GPU"),
        ("memory-used", "mbytes", "gauge", "memory of the GPU used"),
        ("power", "mW", "gauge", "power"),
    ]
}
# CPUs of a node that are used at most, by state; its irq are none, and idle is the rest
BUSY = {"user": 24.0, "nice": 3.0, "system": 10.0, "iowait": 6.0, "softirq": 4.0, "steal": 2.0}
NODE_COLUMNS = {
    "procstats_default": [
        *[(f"stat_cpu_{state}", "jiffies", "counter", f"time: {state}") for state in (*BUSY, "irq", "idle")],
        ("stat_cpus", "", "gauge", "CPUs"),
        ("meminfo_memtotal", "kbytes", "gauge", "memory that there is"),
        ("meminfo_memfree", "kbytes", "gauge", "memory that is free"),
        *[(f"meminfo_{name}", "kbytes", "gauge", name) for name in ("buffers", "cached", "sreclaimable", "shmem")],
        ("loadavg_1min", "", "gauge", "load"),
        ("vmstat_pgpgin", "kbytes", "counter", "bytes read"),
        ("vmstat_pgpgout", "kbytes", "counter", "bytes written"),
    ]
}


class MadeUpFacts:
    """A cluster whose values are waves.

    Args:
        nodes: how many.
        jobs: how many run.
        now: seconds since 1970.
        fails: the store cannot be read.
    """

    def __init__(self, nodes=500, jobs=2000, now=time.time, fails=False):
        self.fails = fails
        self._now = now
        self._began = now()
        self.names = [f"node{n + 1}" for n in range(nodes)]
        self.on = {}  # job -> its nodes
        self.user = {}
        for n in range(jobs):
            job = FIRST + n
            count = 8 if n % 50 == 0 else 1
            first = (n * 7) % nodes
            self.on[job] = [self.names[(first + k) % nodes] for k in range(min(count, nodes))]
            self.user[job] = USERS[n % len(USERS)]
        self.at = {name: [] for name in self.names}  # node -> its jobs
        for job, on in self.on.items():
            for name in on:
                self.at[name].append(job)
        self.ended = {FIRST - 1 - n: USERS[n % len(USERS)] for n in range(min(jobs, 100))}

    # -- rows --

    def _wave(self, seed, period=60.0):
        return 0.5 + 0.5 * math.sin((self._now() - self._began) / period + seed)

    def _on_node(self, job, node):
        seed = job + int(node[4:])
        cpus, limit = 1 + seed % 16, (1 + seed % 32) * GIB
        has_limit, has_gpu = seed % 5 != 0, job % 10 == 0
        cpu, memory = cpus * self._wave(seed), limit * (0.2 + 0.75 * self._wave(seed, 600))
        read, write = 1e8 * self._wave(seed, 20), 5e7 * self._wave(seed + 1, 20)
        waits = {key: 0.3 * self._wave(seed + n) for n, key in enumerate(("wait_cpu", "wait_io"))}
        return {
            "node": node,
            "job": job,
            "user": self.user.get(job, ""),
            "nodes": 1,
            "cpu_share": cpu / cpus,
            "memory_share": memory / limit if has_limit else None,
            "wait": sum(waits.values()),
            "io": read + write,
            "cpu": cpu,
            "cpus": float(cpus),
            "memory": memory,
            "memory_anon": memory * 0.8,
            "memory_peak": limit * 0.95,
            "memory_limit": float(limit) if has_limit else None,
            "memory_swap": 0.0,
            "oom_kills": 1.0 if job % 97 == 0 else 0.0,
            "read": read,
            "write": write,
            "tasks": float(cpus + 3),
            **dict.fromkeys(("memory_source", "tasks_source"), "cgroup" if has_limit else "processes"),
            **waits,
            "wait_swap": None,
            "wait_reclaim": None,
            "age": self._now() - self._began + seed,
            "gpus": 1.0 if has_gpu else None,
            "gpu": self._wave(seed) if has_gpu else None,
            "gpu_memory": 16.0 * GIB if has_gpu else None,
            "gpu_power": 2e5 if has_gpu else None,
        }

    def _job(self, job):
        if job not in self.on:
            return {
                **dict.fromkeys(JOB_KEYS),
                **{"job": job, "user": self.ended[job], "nodes": 1, "on": self.names[0], "running": False},
                **{"time": self._began - 60.0, "first": self._began - 3600.0, "last": self._began - 60.0},
            }
        rows = [self._on_node(job, node) for node in self.on[job]]
        row = dict(rows[0], nodes=len(rows), on=self.on[job][0], running=True)
        for key in ("cpu", "cpus", "memory", "memory_anon", "memory_peak", "read", "write", "io", "tasks"):
            row[key] = sum(one[key] for one in rows)
        row["cpu_share"] = row["cpu"] / row["cpus"]
        now = self._now()
        del row["node"]
        return {**row, "time": now, "first": self._began - job % 3600, "last": now}

    def _node(self, node):
        n = int(node[4:])
        is_silent = n % 97 == 0
        row = {
            "node": node,
            "jobs": float(len(self.at[node])),
            "cpus": float(CPUS),
            "cpu": self._wave(n),
            "iowait": 0.1 * self._wave(n, 10),
            "steal": 0.0,
            "load": CPUS * self._wave(n),
            "memory": MEMORY * (0.2 + 0.7 * self._wave(n, 600)),
            "memory_total": float(MEMORY),
            "swap": 0.0,
            "read": 1e8 * self._wave(n, 20),
            "write": 5e7 * self._wave(n + 1, 20),
            "network": 1e9 * self._wave(n, 30),
            "power": 150.0 + 250.0 * self._wave(n),
            "temperature": 35.0 + 40.0 * self._wave(n, 300),
            "seen_age": 900.0 if is_silent else 2.5,
            "lag": 0.1,
        }
        row["memory_share"] = row["memory"] / row["memory_total"]
        row["io"] = row["read"] + row["write"]
        if is_silent:
            row.update(
                dict.fromkeys(("cpu", "iowait", "steal", "load", "memory", "memory_share", "read", "write", "io")),
                **dict.fromkeys(("network", "power", "temperature")),
            )
        return {**row, "silent": is_silent}

    # -- Facts --

    def counters(self):
        return {"taken": 12345}

    def cluster(self, user):
        rows = [self._job(job) for job in self.on if user is None or self.user[job] == user]
        sums = {
            key: sum(row[key] for row in rows) if rows else None
            for key in ("cpu", "cpus", "memory", "read", "write", "tasks")
        }
        nodes = [self._node(name) for name in self.names]
        known = [row for row in nodes if row["cpu"] is not None]
        return {
            "time": self._now(),
            "nodes": {
                "heard": len(known),
                "silent": len(nodes) - len(known),
                "cpu": sum(row["cpu"] for row in known) / len(known),
                "memory": sum(row["memory"] for row in known),
                "memory_total": sum(row["memory_total"] for row in known),
                "load": sum(row["load"] for row in known),
            },
            "jobs": {
                "running": len(rows),
                "users": len({row["user"] for row in rows}),
                **sums,
                "cpu_share": sums["cpu"] / sums["cpus"] if rows else None,
                "gpus": float(sum(row["gpus"] or 0 for row in rows)),
            },
            "messages": {"taken": 12345, "left_out": 0},
            "kept_s": 3600.0,
            "warnings": [],
        }

    def jobs(self, asked):
        chosen = list(self.on) if asked.state != "ended" else []
        chosen += list(self.ended) if asked.state != "running" else []
        rows = []
        for job in chosen:
            user = self.user.get(job) or self.ended[job]
            nodes = self.on.get(job, self.names[:1])
            if asked.user is not None and user != asked.user:
                continue
            if asked.jobs and job not in asked.jobs:
                continue
            if asked.node and asked.node not in nodes:
                continue
            found = str(job).startswith(asked.text) or asked.text in user or any(asked.text in node for node in nodes)
            if asked.text and not found:
                continue
            rows.append(self._job(job))
        rows = [row for row in rows if asked.since is None or row["last"] >= asked.since]
        rows = [row for row in rows if asked.until is None or row["first"] <= asked.until]
        rows = arranged(rows, asked.sort, asked.reverse)
        return RowPage(len(rows), asked.offset, rows[asked.offset : asked.offset + asked.limit])

    def owner(self, job):
        if job in self.user or job in self.ended:
            return self.user.get(job) or self.ended[job]
        if self.fails:
            raise ColmetError("the store cannot be read: it is away")
        return "alice" if job == STORED_ONLY else None

    def own(self, job, user):
        return dict.fromkeys(self.on.get(job, ["node0"])) if self.owner(job) == user else {}

    def seek(self, job):
        """The store has nothing more to say."""

    def unread(self, job):
        return ["the store cannot be read: it is away"] if self.fails else []

    def there_since(self, node, user):
        return min([self._job(job)["first"] for job in self.at[node] if self.user[job] == user])

    def _columns(self, tables):
        keys = ("name", "unit", "kind", "help")
        return {table: [dict(zip(keys, column)) for column in columns] for table, columns in tables.items()}

    def job(self, job, own=None):
        owner = self.owner(job)
        if owner is None:
            return None
        if job == STORED_ONLY:
            row = dict.fromkeys([*JOB_KEYS, "on", "time", "first", "last"])
            row.update(job=job, user=owner, running=False)
            tables = {
                name: [{**column, "unit": None, "kind": None, "help": None} for column in columns]
                for name, columns in self._columns(COLUMNS).items()
            }
            more = {"hosts": ["node0"], "absent": {}, "stored": True, "warnings": []}
            return {"job": row, "nodes": [], "tables": tables, **more}
        tables = self._columns({**COLUMNS, **(GPU_COLUMNS if job % 10 == 0 else {})})
        return {
            "job": self._job(job),
            "nodes": [self._on_node(job, node) for node in self.on.get(job, [])],
            "hosts": self.on.get(job, []),
            "tables": tables,
            "absent": {},
            "stored": not self.fails,
            "warnings": ["the store cannot be read: it is away"] if self.fails else [],
        }

    def nodes(self, asked):
        rows = [
            self._node(name)
            for name in self.names
            if (asked.names is None or name in asked.names) and asked.text in name
        ]
        rows = arranged(rows, asked.sort, asked.reverse)
        return RowPage(len(rows), asked.offset, rows[asked.offset : asked.offset + asked.limit])

    def history(self, asked):
        return history_of([self._node(name) for name in self.names], asked, self._now())

    def health(self):
        return health_of([self._node(name) for name in self.names], self._now())

    def nodes_of(self, user):
        return frozenset(node for job, on in self.on.items() if self.user[job] == user for node in on)

    def node(self, name):
        if name not in self.names:
            return None
        return {
            "node": self._node(name),
            "jobs": [self._on_node(job, name) for job in self.at[name]],
            "tables": self._columns(NODE_COLUMNS),
            "absent": {},
            "warnings": [],
        }

    def series(self, asked):
        if asked.job and self.owner(asked.job) is None:
            return None
        tables = {**COLUMNS, **GPU_COLUMNS} if asked.job else NODE_COLUMNS
        found = [column for column in tables.get(asked.table, []) if column[0] == asked.column]
        nodes = self.on.get(asked.job, self.names[:1]) if asked.job else [asked.node]
        nodes = [node for node in nodes if not asked.node or node == asked.node]
        if not found or not nodes or nodes[0] not in self.names:
            return None
        if self.fails and asked.source == "stored":
            raise ColmetError("the store cannot be read: it is away")
        _, unit, kind, _ = found[0]
        is_rate = asked.rate and kind == "counter"
        until = self._now() if asked.until is None else min(asked.until, self._now())
        since = max(until - 3600.0 if asked.since is None else asked.since, until - 7 * 86400.0)
        span = max(until - since, 0.0)
        step = step_of(Extent(int(span / PERIOD_S) + 1, since, until), asked.points) or PERIOD_S
        times = (step * np.arange(math.ceil(since / step), math.floor(until / step) + 1)).tolist() if span else []
        labels = [{"gpu": "0"}, {"gpu": "1"}] if asked.table == "nvidiastats_default" else [{}]
        series = []
        for node in nodes:
            for number, label in enumerate(labels):
                seed = asked.job + int(node[4:]) + number
                series.append(
                    {
                        "node": node,
                        "labels": label,
                        "times": times,
                        "values": [self._value(t, seed, unit, kind, is_rate, asked.column) for t in times],
                    }
                )
        together = None
        if asked.together:
            parts = [
                SeriesPart(one["node"], {}, np.array(times), np.array(one["values"], np.float64)) for one in series
            ]
            extent = Extent()
            for part in parts:
                extent = extent.joined(part)
            spread = spread_of(parts, grid_of(extent, step, asked.points), extent, asked.fold)
            together, series = spread_answer(spread, len(parts)), []
        return {
            "job": asked.job,
            "metric": f"{asked.table}.{asked.column}",
            "unit": "seconds/s" if is_rate and unit in ("nsec", "jiffies") else f"{unit}/s" if is_rate else unit,
            "kind": kind,
            "rate": is_rate,
            "since": since,
            "until": until,
            "step": step,
            "source": "memory",
            "warnings": ["the store cannot be read: it is away"] if self.fails else [],
            "series": series,
            "together": together,
        }

    @staticmethod
    def _value(t, seed, unit, kind, is_rate, column):
        wave = 0.5 + 0.5 * math.sin(t / 300.0 + seed)
        if int(t / 60 + seed) % 47 == 0:
            return None  # a minute that was not measured
        if kind == "counter" and not is_rate:
            return t * 1e6
        if column.startswith("stat_cpu_"):
            used = {state: most * wave for state, most in BUSY.items()}
            return {**used, "irq": 0.0, "idle": CPUS - sum(used.values())}[column[len("stat_cpu_") :]]
        wave *= PARTS.get(column, 1.0)
        if unit in ("nsec", "jiffies"):
            return 4.0 * wave
        scale = {
            "cpus_allocated": 8.0,
            "stat_cpus": float(CPUS),
            "memory_limit": 32.0 * GIB,
            "meminfo_memtotal": 256.0 * (1 << 20),
        }
        scale.update(dict.fromkeys(("meminfo_buffers", "meminfo_sreclaimable", "meminfo_shmem"), 2.0 * (1 << 20)))
        scale["meminfo_cached"] = 20.0 * (1 << 20)
        if column in scale:
            return scale[column]
        return wave * {"bytes": 24.0 * GIB if kind == "gauge" else 1e8, "kbytes": 2e8, "percent": 100.0}.get(unit, 50.0)

    def completeness(self, job, since, until, own=None):
        if self.owner(job) is None:
            return None
        now = self._now()
        hosts = []
        for n, node in enumerate(self.on.get(job, self.names[:1])):
            gaps = [{"since": now - 900.0, "until": now - 840.0, "why": "dropped", "samples": 12}] if n == 0 else []
            missing = 12 if gaps else 0
            hosts.append(
                {"node": node, "share": (720 - missing) / 720, "expected": 720, "present": 720 - missing, "gaps": gaps}
            )
        expected, present = (sum(host[key] for host in hosts) for key in ("expected", "present"))
        return {
            "job": job,
            "share": present / expected,
            "expected": expected,
            "present": present,
            "hosts": hosts,
            "warnings": [],
        }

    def qhost(self):
        hosts = {name: {"num_proc": str(CPUS), "mem_total": "256.0G", "jobs": {}} for name in self.names}
        for job, on in self.on.items():
            for n, node in enumerate(on):
                is_array = job % 3 == 0
                hosts[node]["jobs"][str(job)] = {
                    "jobcount": 1 if is_array else 4,
                    "master": n == 0,
                    "taskid": ["1"] if is_array else [],
                    "owner": self.user[job],
                    "jobname": "<i>run</i>" if job % 11 == 0 else "run.sh",
                }
        return hosts

    def qstat(self):
        owners = {}
        for job, on in self.on.items():
            name = self.user[job]
            owner = owners.setdefault(name, {"uid": str(1000 + USERS.index(name)), "jobs": {}})
            key = "1" if job % 3 == 0 else "master"
            owner["jobs"][str(job)] = {
                "requested_h_vmem_strval": "2G",
                "requested_h_vmem_dblval": 2.0 * GIB,
                "hostname": {node: {key if n == 0 else "slave": str(1.5 * GIB)} for n, node in enumerate(on)},
            }
        return owners
