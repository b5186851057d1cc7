"""Cost of status, metrics and `colmet top`; ticks while a client fetches the metrics page."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import measuring
from bench_agent import agent_of
from measuring import Figure, job_root

from colmet.collector.collector_health import CollectorHealth
from colmet.collector.ingest.receiver import Receiver
from colmet.common.daemon.control import Errands
from colmet.common.daemon.daemon_health import DaemonIdentity, render
from colmet.common.daemon.metrics_http import ListenAddress, MetricsServer
from colmet.common.daemon.startup import load
from colmet.common.daemon.systemd import Service
from colmet.common.live.latest_tables import LatestTables
from colmet.common.live.summary import TABLES, Top
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.wire import v1
from colmet.common.wire.control import encode
from colmet.node.backends import NAMES
from colmet.node.node_health import NodeHealth

Figures = list[Figure]

JOBS = 40
TICKS = 200
PERIOD_S = 0.05
SENDERS = 8192
NODES = {"view": "nodes"}
TOP_NODES, TOP_JOBS, TOP_JOBS_OF_A_NODE = 800, 2000, 10
TABLE = Schema("load_default", "job", [Field(f"value_{n}", "count", "counter") for n in range(40)])

cpu_us = partial(measuring.cpu_us, rounds=5, clock=time.thread_time)

SCRAPE = """
import sys, urllib.request
while True:
    urllib.request.urlopen(sys.argv[1]).read()
"""


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def bench_node() -> list[Figure]:
    """Ticks with many jobs, alone and while the page of all of them is asked for without a rest."""
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(job_root())
        for number in range(1, JOBS + 1):
            root.job(f"bob_{number}").start(["/bin/sleep", "600"])
        health = NodeHealth({}, metrics_jobs=True)
        agent, _ = agent_of(root, PERIOD_S, health=health)
        service = Service()
        stack.callback(agent.close)
        endpoint = MetricsServer(ListenAddress("127.0.0.1", 0), health.families, health.pause)
        stack.callback(endpoint.close)

        def ticks() -> list[float]:
            took = []
            for _ in range(TICKS):
                start = time.perf_counter()
                agent._sample()
                took.append((time.perf_counter() - start) * 1000)
                agent._note_state(service)
                time.sleep(PERIOD_S / 4)
            return took

        agent._sample()
        alone = ticks()
        url = f"http://127.0.0.1:{endpoint.address.port}/metrics"
        before = endpoint.counters()["served"]
        with subprocess.Popen([sys.executable, "-c", SCRAPE, url]) as client:
            time.sleep(0.5)
            scraped = ticks()
            client.kill()
        note = cpu_us(lambda: agent._note_state(service), calls=200)
        lines = "".join(render(health.families())).count("\n")
        page = cpu_us(lambda: "".join(render(health.families())), calls=1)
        served = endpoint.counters()["served"] - before
    return [
        ("node: picture after a tick, CPU", note, "us", ""),
        (f"node: page of {lines:,} lines ({JOBS} jobs), CPU for each line", page / lines, "us", ""),
        ("node: tick alone, median", percentile(alone, 0.5), "ms", ""),
        ("node: tick alone, 99th percentile", percentile(alone, 0.99), "ms", ""),
        (f"node: tick while {served} pages are fetched, median", percentile(scraped, 0.5), "ms", ""),
        ("node: the same, 99th percentile", percentile(scraped, 0.99), "ms", ""),
    ]


def bench_collector() -> list[Figure]:
    """CPU time of the main thread for a status, and of the latest rows for each message."""
    receiver, latest = Receiver(), LatestTables((), always=True, all_jobs=True)
    samples = [Sample(job, {f"value_{n}": n for n in range(40)}) for job in (1, 2)]
    batches = []
    for number in range(SENDERS):
        table = Table.from_samples(TABLE, time.time_ns(), samples)
        batches.append(Batch(f"node-{number}", 1, 1, time.time_ns(), (1, 2), (table,)))
        receiver.take(v1.encode(batches[-1]), "10.0.0.1")
    journal: Any = SimpleNamespace(why="", full=False, end=0, dropped=0, all_failures=0, directory="")
    with Errands() as errands:
        health = CollectorHealth(errands, receiver, journal, [], {})
        status = cpu_us(health._senders, calls=1)
    rounds = iter([[_later(batch, n * 10**9) for batch in batches] for n in range(6)])
    take = cpu_us(lambda: latest.take(next(rounds)), calls=1)
    return [
        (f"collector: status of {SENDERS:,} senders, CPU of the main thread", status / 1000, "ms", ""),
        ("collector: latest rows, CPU for each row", take / SENDERS / 2, "us", ""),
    ]


def _later(batch: Batch, ns: int) -> Batch:
    tables = [Table(table.schema, table.time_ns + ns, table.rows) for table in batch.tables]
    return batch._replace(tables=tuple(tables))


def bench_top() -> list[Figure]:
    """CPU time of the collector's main thread for each batch while a client looks, and of a reply."""
    classes = load(NAMES)
    schemas = {schema.name: schema for cls in classes for schema in (cls.schema, *cls.others)}
    rounds: list[list[Batch]] = []
    for seq in (1, 2, 3):
        time_ns = time.time_ns() + seq * 5 * 10**9
        batches = []
        for number in range(TOP_NODES):
            jobs = sorted({(number * 7 + n * 211) % TOP_JOBS + 1 for n in range(TOP_JOBS_OF_A_NODE)})
            tables = []
            for name, ids in (("taskstats_default", jobs), ("cgroup_default", jobs), ("procstats_default", [0])):
                rows = schemas[name].empty_rows(len(ids))
                rows["job_id"] = ids
                for field in schemas[name].fields:
                    rows[field.name] = b"bob" if field.dtype[0] == "S" else seq * 10**9
                tables.append(Table(schemas[name], time_ns, rows))
            batches.append(Batch(f"node-{number}", 1, seq, time_ns, tuple(jobs), tuple(tables)))
        rounds.append(batches)
    receiver, watch = Receiver(), LatestTables(TABLES)
    top = Top(DaemonIdentity("collector"), watch)
    taken: list[list[Batch]] = []

    def decode() -> None:
        taken.append([batch for message in messages for batch in receiver.take(message, "10.0.0.1")])

    base = []
    for batches in rounds:
        messages = [v1.encode(batch) for batch in batches]
        start = time.thread_time()
        decode()
        base.append((time.thread_time() - start) / TOP_NODES * 1e6)
    unwatched = watch

    def take_unwatched() -> None:
        for batch in taken[0]:
            unwatched.take([batch])

    unseen = cpu_us(take_unwatched, TOP_NODES, calls=5)
    seen = []
    for _ in range(5):
        watch = LatestTables(TABLES)
        top = Top(DaemonIdentity("collector"), watch)
        watch.look()
        start = time.thread_time()
        for batches in taken:
            for batch in batches:
                watch.take([batch])
        seen.append((time.thread_time() - start) / TOP_NODES / len(taken) * 1e6)
    whole, looked = statistics.median(base), statistics.median(seen)
    of = f"{TOP_JOBS:,} jobs on {TOP_NODES} nodes"
    return [
        ("collector: a batch, received and decoded, CPU", whole, "us", ""),
        ("collector: the same batch for `colmet top`, without a client", unseen, "us", ""),
        ("collector: the same batch, with a client", looked, "us", ""),
        ("collector: looked at, of receiving and decoding", looked / whole, "times", ""),
        (f"collector: answer of jobs, {of}", cpu_us(lambda: encode(top.answer({})), 1000, calls=1), "ms", ""),
        (f"collector: answer of nodes, {of}", cpu_us(lambda: encode(top.answer(NODES)), 1000, calls=1), "ms", ""),
    ]


def run() -> list[Figure]:
    """All figures: name, value, unit, target."""
    return [*bench_node(), *bench_collector(), *bench_top()]
