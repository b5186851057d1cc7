"""A store of rows that a test makes up."""

from __future__ import annotations

import numpy as np

from colmet.stored.series import NODE, History, Series


class MadeUp(History):
    """Rows by job, table and host: a dict of columns, of lists, with the times as "times"."""

    def __init__(self):
        self.rows = {}
        self.closed = False

    def add(self, job, table, host, times, /, **columns):
        """Rows of a host, beside those that are there for other hosts."""
        made = {name: np.array(np.broadcast_to(value, len(times))) for name, value in columns.items()}
        self.rows.setdefault((job, table), {})[host] = (np.asarray(times, np.int64), made)

    def tables(self, job, since=None, until=None):
        return {
            table: list(dict.fromkeys([name for _, columns in hosts.values() for name in columns]))
            for (one, table), hosts in self.rows.items()
            if one == job
        }

    def read(self, query):
        found = []
        for host, (times, values) in sorted(self.rows.get((query.job, query.table), {}).items()):
            keep = np.ones(len(times), bool)
            if query.since is not None:
                keep &= times >= query.since
            if query.until is not None:
                keep &= times <= query.until
            if (query.hosts is None or host in query.hosts) and keep.any():
                wanted = {n: v[keep] for n, v in values.items() if query.columns is None or n in query.columns}
                found.append(Series(query.table, host, query.job, times[keep], wanted))
        return found

    def close(self):
        self.closed = True


S, MS, GIB = 10**9, 10**6, 1 << 30
START = 1_700_000_000


def job_rows(history, job=42, host="node-1", count=121, period=5, cores=2.0, cpus=4, start=START, **more):
    """A job that uses `cores`: rows of its cgroup and its tasks; columns may be given, or left out with None."""
    steps = np.arange(count)
    times = start + period * (1 + steps)
    used = (period * (1 + steps) * cores * S).astype(np.int64)
    cgroup = {
        "user": b"alice",
        "cpu_usage": used,
        "cpu_user": used * 9 // 10,
        "cpu_system": used // 10,
        "cpu_unattributed": used // 1000,
        "cpus_allocated": cpus,
        "throttled_time": 0,
        "memory_current": 3 * GIB,
        "memory_peak": 4 * GIB,
        "memory_limit": 8 * GIB,
        "memory_anon": 3 * GIB,
        "memory_swap": 0,
        "memory_limit_hits": 0,
        "memory_oom_kills": 0,
        "memory_pgmajfault": 12,
        "pids_peak": 9,
        "io_read_ops": 10 * steps,
        "io_write_ops": 5 * steps,
    }
    tasks = {
        "ac_btime": start,
        "cpu_total": used * 999 // 1000,
        "cpu_run_real_total": used * 998 // 1000,
        "ac_utime": used // 1000 * 9 // 10,
        "ac_stime": used // 10000,
        "cpu_delay_total": used // 50,
        "blkio_delay_total": used // 100,
        "swapin_delay_total": 0,
        "freepages_delay_total": 0,
        "read_bytes": 10 * MS * steps,
        "write_bytes": 5 * MS * steps,
        "read_char": 20 * MS * steps,
        "write_char": 6 * MS * steps,
        "read_syscalls": 200 * steps,
        "write_syscalls": 60 * steps,
        "nvcsw": 50 * steps,
        "nivcsw": 5 * steps,
        "tasks_ended": steps,
    }
    for table in (cgroup, tasks):
        table.update({name: value for name, value in more.items() if name in table})
    for name, table in (("cgroup_default", cgroup), ("taskstats_default", tasks)):
        history.add(job, name, host, times, **{name: value for name, value in table.items() if value is not None})


def node_rows(history, host="node-1", count=140, period=5, busy=2.2, cpus=4, watts=100, start=START, jobs=(42,)):
    """What a node stores beside it: CPU time, RAPL zones, the jobs on it."""
    steps = np.arange(count)
    times = start - 25 + period * steps
    listed = b"[" + b", ".join([b"%d" % job for job in jobs]) + b"]"
    history.add(
        NODE,
        "procstats_default",
        host,
        times,
        stat_cpu_user=(100 * busy * period * steps).astype(np.int64),
        stat_cpu_idle=(100 * (cpus - busy) * period * steps).astype(np.int64),
        **{f"stat_cpu_{kind}": 0 for kind in ("nice", "system", "irq", "softirq", "iowait")},
        involved_jobs=listed,
    )
    zones = [(b"package-0", b"package-0", 0.8), (b"package-0/core", b"core", 0.5), (b"package-0/dram", b"dram", 0.2)]
    zones.append((b"psys", b"psys", 2.0))
    history.add(
        NODE,
        "raplzones_default",
        host,
        np.repeat(times, len(zones)),
        zone=np.tile(np.array([zone for zone, _, _ in zones]), count),
        name=np.tile(np.array([name for _, name, _ in zones]), count),
        energy=np.concatenate([[round(watts * part * period * n * 1e6) for _, _, part in zones] for n in range(count)]),
    )


def ledger_rows(history, host="node-1", tables=("cgroup_default", "taskstats_default"), count=140, **options):
    """The account that a node sends once a minute; with samples that it says it took and that are not there."""
    period, start, lost = options.get("period", 5), options.get("start", START), options.get("lost", 0)
    times = np.arange(start - 25, start - 25 + period * count, 60)
    taken = np.clip((times - start) // period, 0, None)
    rows = {"epoch": (start - 1000) * S, "period": period * MS, "is_last": 0, "failed": 0, "late": 0}
    for name in ("due", "taken", "rows"):
        rows[name] = np.repeat(taken + np.where(taken > 20, lost, 0), len(tables))
    rows["rows_now"] = np.repeat((taken > 0).astype(int), len(tables))
    history.add(
        NODE,
        "completeness_default",
        host,
        np.repeat(times, len(tables)),
        table=np.tile(np.array([table.encode() for table in tables]), len(times)),
        **rows,
    )
