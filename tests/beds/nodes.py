"""Simulated nodes: what a node measures is made up, what keeps and sends it is the real code, of many in one process.

usage: nodes.py FIRST COUNT PERIOD_S ROWS URI,LINK_URI...

A line of JSON on standard output says twice a second how they are. A line on standard input has them measure nothing
more; when all that was taken is acknowledged, they write their rows to the file ROWS and end.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import select
import sys
import time

import zmq

from colmet.common.daemon.startup import raise_open_file_limit
from colmet.common.schema import Batch, Sample, Table
from colmet.common.wire import v1
from colmet.node.delivery.link import NodeLink, open_uplinks
from colmet.node.delivery.outbox import Outbox, SendQueue
from colmet.node.delivery.uplink import Times
from tests.support.fleet import SCHEMAS, Row

STEP_S = 0.25
SAY_S = 0.5


class Shared(zmq.Context):
    """Two threads for all sockets of a process, where each of them would have two of its own."""

    def term(self):
        pass


class Node:
    """One of them."""

    def __init__(self, host, uris, rng):
        options = argparse.Namespace(
            zeromq_uri=[data for data, _ in uris],
            zeromq_link_uri=[link for _, link in uris],
            zeromq_hwm=1000,
            zeromq_linger=0,
            wire="v1",
        )
        self.rows = []
        self.outbox = Outbox(time.time_ns())
        self.queue = SendQueue(v1.encode, self.outbox)
        self.uplinks = open_uplinks(options, host, Times())
        self.link = NodeLink(host, self.outbox, self.uplinks, self.queue.take, self.queue.fd, times=Times())
        self._host = host
        self._rng = rng
        self._seq = 0

    def measure(self):
        now = time.time_ns()
        jobs = self._rng.sample(range(1000, 1040), self._rng.randrange(3))
        tables = []
        for schema in SCHEMAS:
            samples = []
            for job in jobs if schema.scope == "job" else (0,):
                number = len(self.rows)
                check = number * 2654435761 % (1 << 40)
                values = {"number": number, "check": check, "load": 0.5, "label": b"x" * 30}
                samples.append(Sample(job, {name: values[name] for name in schema.names}))
                self.rows.append(Row(self._host, number, schema.name, job, now // 10**9, check))
            tables.append(Table.from_samples(schema, now, samples))
        self.queue.put(Batch(self._host, self.outbox.epoch, self._seq, now, tuple(jobs), tuple(tables)))
        self._seq += 1


def say(nodes):
    """How they are: batches by what became of them, and nodes by the collector that they send to."""
    counts = collections.Counter()
    for node in nodes:
        counters = node.queue.counters()
        counts.update({name: counters[name] for name in ("taken", "acknowledged", "dropped", "held")})
        counts[node.link._uplink.uri] += 1
    print(json.dumps(counts), flush=True)


def run(first, count, period_s, path, uris):
    """Be these nodes until all that they have measured is acknowledged."""
    raise_open_file_limit()
    context = Shared()
    context.set(zmq.MAX_SOCKETS, 10 * count * len(uris))
    zmq.Context = lambda: context
    rng = random.Random(first)
    nodes = [Node(f"node-{first + n}", uris, rng) for n in range(count)]
    due = {node: time.monotonic() + rng.uniform(0, period_s) for node in nodes}
    measuring = True
    said_at = 0.0
    while measuring or any(len(node.outbox) for node in nodes):
        started = time.monotonic()
        if measuring and select.select([sys.stdin], [], [], 0)[0]:
            measuring = False
        for node in nodes:
            if measuring and started >= due[node]:
                due[node] += period_s
                node.measure()
            node.link.step()
        if started - said_at >= SAY_S:
            said_at = started
            say(nodes)
        time.sleep(max(0.01, started + STEP_S - time.monotonic()))
    say(nodes)
    with open(path, "w") as file:
        json.dump([row for node in nodes for row in node.rows], file)


if __name__ == "__main__":
    first, count, period, rows, *pairs = sys.argv[1:]
    run(int(first), int(count), float(period), rows, [pair.split(",") for pair in pairs])
