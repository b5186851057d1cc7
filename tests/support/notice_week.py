"""A simulated week of jobs of several kinds, as rows of their nodes; and the notices that each should get."""

from __future__ import annotations

import random
from typing import NamedTuple

from colmet.common.schema import Batch, Sample, Table
from colmet.common.tables import schemas
from tests.support.archives import Record

START = 1_795_392_000  # 2026-11-23 00:00 UTC, a Monday
S, GIB, MIB = 10**9, 1 << 30, 1 << 20
TICK_S, MINUTE, HOUR = 300, 60, 3600
LIMIT = 8 * GIB
CPUS = 4
SLACK_S = 20 * MINUTE  # a notice may come so long after its condition begins to hold

CGROUP, TASKS, GPUS, LUSTRE = (
    schemas()[f"{name}_default"] for name in ("cgroup", "taskstats", "nvidiastats", "lustrestats")
)


class Kind(NamedTuple):
    """What a kind of job does: shares of time as functions of the seconds since its start."""

    hours: tuple  # shortest and longest life
    rules: tuple = ()  # that apply
    holds_after: float = 0.0  # seconds from its start, after which they hold until its end
    busy: tuple = ((0, 1e9),)  # intervals in which it uses all its cores
    gpu_use: object = None  # percent; None without GPUs
    gpus_idle: int = 0
    anon: tuple = (GIB, GIB)  # memory without page cache, before and from two hours on
    cache: int = 0
    read: int = 0  # bytes a second
    metadata: int = 0  # operations a second of its node
    state: str = "done"


NEVER = ((0, 0),)
KINDS = {
    "busy": Kind((1, 20)),
    "idle": Kind((2, 20), ("idle",), HOUR, NEVER),
    "idle-later": Kind((6, 20), ("idle",), 4 * HOUR, ((0, 3 * HOUR),)),
    "idle-shortly": Kind((0.3, 0.7), busy=NEVER),
    "idle-with-pauses": Kind((3, 12), busy=tuple((n * HOUR, n * HOUR + 15 * MINUTE) for n in range(20))),
    "copies": Kind((2, 12), busy=NEVER, read=20 * MIB),
    "gpu-idle": Kind((2, 20), ("gpu-idle",), HOUR, gpu_use=0),
    "gpu-without-process": Kind((2, 20), ("gpu-idle",), HOUR, gpu_use=40, gpus_idle=1),
    "gpu-busy": Kind((2, 20), busy=NEVER, gpu_use=90),
    "all-idle": Kind((2, 20), ("idle", "gpu-idle"), HOUR, NEVER, gpu_use=2),
    "memory": Kind((4, 20), ("memory-high",), 2 * HOUR, anon=(GIB, int(0.95 * LIMIT))),
    "page-cache": Kind((4, 20), cache=7 * GIB),
    "metadata": Kind((2, 20), ("metadata",), 15 * MINUTE, metadata=5000),
    "fails-at-once": Kind((0.02, 0.04), ("failed-early",), state="failed"),
    "fails-later": Kind((1, 9), state="failed"),
    "short": Kind((0.02, 0.04)),
}


class SimulatedJob(NamedTuple):
    """A job of the week; times are seconds since 1970."""

    number: int
    host: str
    user: str
    kind: str
    start: int
    end: int

    @property
    def does(self):
        return KINDS[self.kind]

    def samples(self, now):
        """Its row of each table."""
        kind, age = self.does, now - self.start
        busy_s = sum(max(0, min(age, last) - first) for first, last in kind.busy)
        anon = kind.anon[age >= 2 * HOUR]
        values = {
            **{"cpu_usage": int((busy_s * CPUS * 0.97 + age * 0.002) * S), "cpus_allocated": CPUS},
            **{"memory_current": anon + kind.cache, "memory_anon": anon, "memory_limit": LIMIT},
            "user": self.user.encode(),
        }
        yield CGROUP, Sample(self.number, values)
        yield TASKS, Sample(self.number, {"ac_btime": self.start, "read_char": kind.read * age, "write_char": 0})
        if kind.gpu_use is not None:
            used = {"gpus": 2, "gpus_idle": kind.gpus_idle, "utilization-gpu": kind.gpu_use}
            yield GPUS, Sample(self.number, used)


def jobs_of(count, hosts, days, seed=1):
    """Jobs one after the other on each host, of all kinds, within the days."""
    draw = random.Random(seed)
    names = list(KINDS)
    free = {f"node{n}": START + draw.randrange(2 * HOUR) for n in range(1, hosts + 1)}
    found = []
    scale = days * 24 * HOUR * hosts / count / (9 * HOUR)
    for n in range(count):
        kind = names[n % len(names)]
        host = min(free, key=free.get)
        low, high = KINDS[kind].hours
        life = int(draw.uniform(low, min(high, low + 9 * scale)) * HOUR)
        job = SimulatedJob(n + 1, host, f"user{draw.randrange(1, 30)}", kind, free[host], free[host] + life)
        found.append(job)
        free[host] = job.end + draw.randrange(60, 2 * HOUR)
    return found


def records_of(jobs):
    """What the nodes send, in order of time: at each tick, and at the start and end of each job."""
    by_host = {}
    for job in jobs:
        by_host.setdefault(job.host, []).append(job)
    last = max(job.end for job in jobs) + 2 * TICK_S
    batches = []
    for host, some in by_host.items():
        times = {*range(START, last, TICK_S), *(job.start for job in some), *(job.end for job in some)}
        metadata, before = 0, START
        for seq, now in enumerate(sorted(times)):
            here = [job for job in some if job.start <= now <= job.end]
            # which job was there since the last time; at its end it still has its last row
            metadata += sum(job.does.metadata for job in here if job.start < now) * (now - before)
            before = now
            tables = {}
            for job in here:
                for schema, sample in job.samples(now):
                    tables.setdefault(schema, []).append(sample)
            tables[LUSTRE] = [Sample(0, {"lustre_nb_metadata": metadata})]
            packed = tuple(Table.from_samples(schema, now * S, rows) for schema, rows in tables.items())
            batches.append(Batch(host, 1, seq, now * S, tuple(job.number for job in here if now < job.end), packed))
    batches.sort(key=lambda batch: batch.time_ns)
    return [Record(n, batch.time_ns + S, (batch,)) for n, batch in enumerate(batches)]


def due(job, is_quiet, until):
    """Whether each of its rules is to be sent: True, False, or None if it may be."""
    kind = job.does
    if kind.state == "failed":
        return dict.fromkeys(kind.rules, True if job.end < until - 24 * HOUR or not is_quiet(until) else None)
    first = job.start + kind.holds_after
    certain = [t for t in range(int(first + SLACK_S), job.end, 60) if not is_quiet(t) and t < until]
    possible = [t for t in range(int(first), job.end, 60) if not is_quiet(t) and t < until]
    # the run after a moment comes within a tick: a longer interval is needed to be certain
    return dict.fromkeys(kind.rules, True if len(certain) > 10 else None if possible else False)
