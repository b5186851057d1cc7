"""Cost of the JSON interface: for the collector, and of storing and serving rows in its own process."""

from __future__ import annotations

import contextlib
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from measuring import Figure, cpu_us

from colmet.collector.collector_health import CollectorHealth
from colmet.collector.feed import FeedServer
from colmet.collector.ingest.receiver import Receiver
from colmet.collector.journal.journal import Journal
from colmet.common.daemon.control import Errands
from colmet.common.schema import Table
from colmet.common.transport import Pull, Push
from colmet.common.wire import Decoder
from colmet.web.catalogue import load_catalogue
from colmet.web.queries import JobsQuery, NodesQuery, Queries
from colmet.web.recent_cache import RecentCache
from colmet.web.series_query import SeriesQuery
from tests.support.web_nodes import Cluster

Figures = list[Figure]

NODES, JOBS = 500, 2000
FEW_NODES, FEW_JOBS = 50, 200  # whose rows are made up value by value
TICKS = 20


class Busy(Cluster):
    """A cluster whose rows have a value in every column of numbers, of which two thirds change."""

    def __init__(self, nodes: int, jobs: int) -> None:
        super().__init__(nodes, jobs)
        self._rng = np.random.default_rng(1)
        self._rows: dict[tuple[str, str], Any] = {}

    def table(self, host: str, name: str, jobs: list[int], time_ns: int) -> Table:
        table = super().table(host, name, jobs, time_ns)
        rows = self._rows.get((host, name))
        numbers = [field.name for field in table.schema.fields if field.dtype == "i8"]
        if rows is None:
            rows = self._rows[host, name] = table.rows.copy()
            for column in numbers:
                rows[column] = self._rng.integers(0, 1 << int(self._rng.integers(8, 45)), len(rows))
        for n, column in enumerate(numbers):
            if n % 3:
                rows[column] += self._rng.integers(0, 1 << 10 * (1 + n % 3), len(rows))
        return Table(table.schema, time_ns, rows.tobytes())


@contextlib.contextmanager
def sink(folder: str) -> Iterator[FeedServer]:
    """The sending end, with a process that reads all and does nothing."""
    feed = FeedServer([f"{folder}/feed.sock"])
    feed.start()
    text = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\nwhile s.recv(1 << 20): pass"
    with subprocess.Popen([sys.executable, "-c", text, feed.path]) as process:
        try:
            until = time.monotonic() + 30
            while not feed.counters()["readers"] and time.monotonic() < until:
                time.sleep(0.01)
            yield feed
        finally:
            feed.close()
            process.kill()


def bench_feed() -> list[Figure]:
    """CPU time of the collector's main thread for a message: received, kept, and sent on."""
    cluster = Busy(FEW_NODES, FEW_JOBS)
    ticks = [cluster.messages() for _ in range(TICKS)]
    count = sum(map(len, ticks))
    taking, sending = [], []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        feed, errands = stack.enter_context(sink(folder)), stack.enter_context(Errands())
        pull = stack.enter_context(contextlib.closing(Pull(f"ipc://{folder}/data", 10_000)))
        push = stack.enter_context(contextlib.closing(Push(f"ipc://{folder}/data", 10_000, 0)))
        for round_ in range(3):
            receiver, journal = Receiver(), Journal(f"{folder}/{round_}", 8 << 30)
            journal.start(receiver.dump_senders)
            health = CollectorHealth(errands, receiver, journal, [], {})
            took = sent = 0.0
            for messages in ticks:
                for message in messages:
                    while not push.send(message):
                        time.sleep(0.01)
                time.sleep(0.02)  # until they have arrived
                start = time.thread_time()
                for _ in messages:
                    while (received := pull.receive()) is None:
                        pull.wait(1)
                    batches = receiver.take(received.message, "10.0.0.1")
                    journal.append(received.message, batches)
                    health.take(batches)
                took += time.thread_time() - start
                start = time.thread_time()
                for message in messages:
                    feed.put(message)
                sent += time.thread_time() - start
            journal.finish()
            journal.close()
            taking.append(took / count * 1e6)
            sending.append(sent / count * 1e6)
    took, sent = statistics.median(taking), statistics.median(sending)
    size = sum(map(len, ticks[-1])) / FEW_NODES
    return [
        (f"receiving a message of {size:.0f} bytes, up to the journal", took, "us", ""),
        ("sending it on", sent, "us", ""),
        ("sending it on, of receiving", 100 * sent / took, "%", "< 10"),
    ]


def bench_memory() -> list[Figure]:
    """CPU time and bytes for what is kept; CPU time of answers."""
    cluster = Busy(FEW_NODES, FEW_JOBS)
    clock = [1000.0]
    wall = lambda: cluster.start + cluster.tick * cluster.period + 0.01  # noqa: E731
    recent = RecentCache(1 << 30, 36000, monotonic=lambda: clock[0], now=wall)
    decoder = Decoder()
    decoding = keeping = 0.0
    rows = raw = messages = 0
    gc.collect()
    for _ in range(4 * TICKS):
        clock[0] += cluster.period
        for message in cluster.messages():
            start = time.thread_time()
            batches = decoder.decode(message).batches
            decoding += time.thread_time() - start
            start = time.thread_time()
            recent.take(batches)
            keeping += time.thread_time() - start
            messages += 1
            rows += sum(batch.row_count for batch in batches)
            raw += sum(len(table.packed) for batch in batches for table in batch.tables)
    kept = recent.counters()["bytes"]
    one = Queries(recent, None, now=wall, monotonic=lambda: clock[0])
    load_catalogue()
    whole = Cluster(NODES, JOBS)
    latest = RecentCache(1 << 30, 36000, monotonic=lambda: clock[0], now=wall)
    queries = Queries(latest, None, now=wall, monotonic=lambda: clock[0])
    for _ in range(3):
        clock[0] += whole.period
        latest.take(whole.batches())

    cpu_ms = partial(cpu_us, units=1000, calls=1, rounds=5, clock=time.thread_time)
    asked = SeriesQuery(1000, "cgroup_default", "cpu_usage", rate=True)
    hour = kept / (4 * TICKS) * 720 * NODES / FEW_NODES
    share = 100 * (decoding + keeping) / messages * NODES / cluster.period
    return [
        ("to decode a message", decoding / messages * 1e6, "us", ""),
        ("to keep it", keeping / messages * 1e6, "us", ""),
        (f"both, of a core, {NODES} nodes every {cluster.period} s", share, "%", "< 5"),
        ("memory for a row", kept / rows, "bytes", ""),
        ("rows as they came, for a byte of memory", raw / kept, "bytes", "> 2"),
        (f"an hour of {NODES} nodes with {JOBS} jobs", hour / (1 << 20), "MiB", ""),
        ("the latest of all jobs and nodes", cpu_ms(lambda: queries._ownership.look(0.0, time.time())), "ms", "< 200"),
        ("totals of the cluster, from that", cpu_ms(lambda: queries.cluster(None)), "ms", ""),
        ("a page of 100 jobs, from that", cpu_ms(lambda: queries.jobs(JobsQuery())), "ms", ""),
        ("all nodes, from that", cpu_ms(lambda: queries.nodes(NodesQuery(limit=1000))), "ms", ""),
        (f"a job's curve of {4 * TICKS} samples", cpu_ms(lambda: one.series(asked)), "ms", ""),
    ]  # fmt: skip


def run() -> list[Figure]:
    """All figures."""
    return [*bench_feed(), *bench_memory()]
