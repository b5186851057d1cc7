"""Delay of ticks without a collector, and after its return, against ticks with one; cost of a batch for a tick.

The three are measured in turns in one process, each with a spool on disk and the real sending thread. A tick makes a
batch like that of a node with a few jobs, every 25 ms: 200 times as often as by default.

On a busy machine, as root: chrt -f 10 python benchmarks/run.py spool
"""

from __future__ import annotations

import logging
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import Figure

from colmet.common.host.host import Host
from colmet.common.schema import Batch, Sample, Table
from colmet.common.transport import LinkClient, Push
from colmet.common.wire import colmet06, v1
from colmet.node.delivery.link import NodeLink
from colmet.node.delivery.outbox import Outbox, SendQueue
from colmet.node.delivery.spool import LOCK, Spool
from colmet.node.delivery.uplink import Times, Uplink

Figures = list[Figure]

SCHEMA = colmet06.RECORDS["taskstats_default"].schema
PERIOD_S = 0.025
PHASE_S = 4.0
ROUNDS = 8
ROWS = 6
FACTOR = 10.0  # a collector that does not answer is away after a second
TARGET_RATIO = 1.10
COLLECTOR = """
import sys
from colmet.common.transport import LinkServer, Pull, wait
from colmet.common.wire import Decoder, link
pull, server, decoder = Pull("ipc://" + sys.argv[1], 1000), LinkServer("ipc://" + sys.argv[1] + ".link"), Decoder()
pull.wake_on(server.socket)
print("ready", flush=True)
caller = None
while True:
    pull.wait(1)
    numbers = []
    while (received := pull.receive()) is not None:
        numbers += [(batch.epoch, batch.seq) for batch in decoder.decode(received.message).batches]
    while (called := server.receive()) is not None:
        caller = called.caller
        server.send(caller, link.encode(link.Ack("1", 1, True, 0, ())))
    if numbers and caller is not None:
        server.send(caller, link.encode(link.Ack("1", 1, True, 0, link.joined(numbers))))
"""


def batch(epoch: int, seq: int) -> Batch:
    """One tick's."""
    now = time.time_ns()
    samples = [Sample(job, {"cpu_count": seq}) for job in range(ROWS)]
    return Batch("bench", epoch, seq, now, tuple(range(ROWS)), (Table.from_samples(SCHEMA, now, samples),))


class Node:
    """A spool with its thread.

    Args:
        folder: of the spool and of the collector's sockets.
    """

    def __init__(self, folder: Path) -> None:
        directory = Host().private_directory(str(folder / "spool"))
        directory.lock(LOCK)
        epoch = time.time_ns()
        self.outbox = Outbox(epoch, Spool(directory, "bench", epoch, 1 << 30, 86400))
        self.queue = SendQueue(v1.encode_short, self.outbox)
        uri = f"ipc://{folder}/collector"
        # except those that depend on the speed of connecting sockets
        times = Times(*[seconds / FACTOR for seconds in Times()])._replace(mute_s=Times().mute_s, mute_known_s=60.0)
        self.uplink = Uplink(uri, Push(uri, 1000, 0), LinkClient(f"{uri}.link"), times, time.monotonic())
        self.link = NodeLink("bench", self.outbox, [self.uplink], self.queue.take, self.queue.fd, times=times)
        self._seq = 0
        self.link.start()

    def tick(self, seconds: float) -> tuple[list[float], list[float]]:
        """Tick for so long; how late each tick was, and how long its batch took to be put, in seconds."""
        late, took = [], []
        start_at = due = time.monotonic()
        while due < start_at + seconds:
            due += PERIOD_S
            time.sleep(max(0.0, due - time.monotonic()))
            late.append(time.monotonic() - due)
            self._seq += 1
            one = batch(self.outbox.epoch, self._seq)
            start = time.perf_counter()
            self.queue.put(one)
            took.append(time.perf_counter() - start)
        return late, took

    def close(self) -> None:
        """End it."""
        self.link.stop(self.queue.wake)
        self.uplink.close()
        self.outbox.close()


def p99(values: list[float]) -> float:
    """The 99th of a hundred, in microseconds."""
    return statistics.quantiles(values, n=100)[98] * 1e6


def start_collector(folder: Path) -> subprocess.Popen[str]:
    """One that acknowledges at once what it gets."""
    command = [sys.executable, "-c", COLLECTOR, str(folder / "collector")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def run() -> list[Figure]:
    """Take the three in turns."""
    logging.getLogger("colmet").setLevel(logging.CRITICAL)
    late: dict[str, list[float]] = {"there": [], "away": [], "back": []}
    took: dict[str, list[float]] = {"there": [], "away": [], "back": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        node, collector = Node(folder), start_collector(folder)
        try:
            for _ in range(ROUNDS):
                for what in ("there", "away", "back"):
                    if what == "away":
                        collector.kill()
                        collector.wait()
                        node.tick(2.0)  # until it is seen to be away
                    elif what == "back":
                        collector = start_collector(folder)
                    one, other = node.tick(PHASE_S)
                    late[what] += one
                    took[what] += other
                while len(node.outbox):
                    node.tick(0.5)
        finally:
            collector.kill()
            collector.wait()
            node.close()
    return [
        *[(f"p99 of how late a tick is, collector {what}", p99(late[what]), "us", "") for what in late],
        *[(f"median of the same, collector {what}", 1e6 * statistics.median(n), "us", "") for what, n in late.items()],
        ("p99, away against there", p99(late["away"]) / p99(late["there"]), "x", f"<= {TARGET_RATIO:.2f}"),
        ("p99, back against there", p99(late["back"]) / p99(late["there"]), "x", ""),
        *[
            (f"median that a batch costs a tick, {what}", statistics.median(took[what]) * 1e6, "us", "")
            for what in took
        ],
        *[(f"p99 that a batch costs a tick, {what}", p99(took[what]), "us", "") for what in took],
    ]
