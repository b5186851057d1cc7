"""What the nodes of a made-up cluster send, tick by tick: jobs of several users, some of them on several nodes."""

from __future__ import annotations

import numpy as np

from colmet.common.daemon.startup import load
from colmet.common.schema import Batch, Table
from colmet.common.wire import v1
from colmet.node.backends import NAMES

SCHEMAS = {schema.name: schema for cls in load(NAMES) for schema in (cls.schema, *cls.others)}
JOB_TABLES = ("cgroup_default", "taskstats_default", "jobprocstats_default")
NS = 10**9
GIB = 1 << 30
USERS = ("alice", "bob", "carol", "dave")


def rows(name, jobs, **columns):
    """Packed rows of a declared table; columns are numbers, or one for each job."""
    packed = SCHEMAS[name].empty_rows(len(jobs))
    packed["job_id"] = jobs
    for column, values in columns.items():
        packed[column] = values
    return packed


class Cluster:
    """Nodes n0, n1, ... with jobs.

    Args:
        nodes: how many.
        jobs: how many, numbered from 1000 on.
        spread: on how many nodes each is.
        period: seconds from one tick to the next.
        start: of the first tick, seconds since 1970.
    """

    def __init__(self, nodes=3, jobs=6, spread=1, period=5, start=1_700_000_000, epoch=1):
        self.names = [f"n{n}" for n in range(nodes)]
        self.period, self.start, self.epoch = period, start, epoch
        self.tick = 0
        self.on = {name: [] for name in self.names}
        for n in range(jobs):
            for more in range(spread):
                self.on[self.names[(n * spread + more) % nodes]].append(1000 + n)

    @staticmethod
    def user(job):
        return USERS[job % len(USERS)]

    def batches(self):
        """Those of the next tick."""
        self.tick += 1
        time_ns = int((self.start + self.tick * self.period) * NS)
        made = []
        for name, jobs in self.on.items():
            tables = [self.table(name, table, jobs, time_ns) for table in (*JOB_TABLES, "procstats_default")]
            tables = tuple([table for table in tables if len(table)])
            made.append(Batch(name, self.epoch, self.tick, time_ns, tuple(jobs), tables))
        return made

    def messages(self):
        return [v1.encode(batch) for batch in self.batches()]

    def table(self, host, name, jobs, time_ns):
        numbers = np.array(jobs, np.int64)
        seconds = self.tick * self.period
        if name == "cgroup_default":
            packed = rows(
                *(name, numbers),
                user=[self.user(job).encode() for job in jobs],
                cpu_usage=(numbers % 4 + 1) * seconds * NS,
                cpus_allocated=4,
                memory_current=GIB + numbers * 1000 + self.tick,
                memory_peak=2 * GIB,
                memory_limit=4 * GIB,
                io_read_bytes=seconds * 1000,
                io_write_bytes=seconds * 500,
                pids_current=3,
            )
        elif name == "taskstats_default":
            packed = rows(
                name, numbers, cpu_total=seconds * NS, cpu_delay_total=seconds * 1000, ac_etime=seconds * 10**6
            )
        elif name == "jobprocstats_default":
            packed = rows(name, numbers, VmRSS=GIB // 1024)
        else:
            packed = rows(
                *(name, [0]),
                stat_cpu_user=seconds * 100,
                stat_cpu_idle=seconds * 300,
                meminfo_memtotal=64 << 20,
                meminfo_memfree=32 << 20,
                loadavg_1min=1.5,
            )
        return Table(SCHEMAS[name], time_ns, packed.tobytes())
