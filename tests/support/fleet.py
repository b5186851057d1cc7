"""Simulated nodes that number their rows and keep each batch until the collector acknowledges it on the link; and what
was stored of them.

They send again all at once and without a reason, more than real ones do. What is sent again is in full; new batches are
in the short form where the same process of the collector has acknowledged one in full.
"""

from __future__ import annotations

import collections
import contextlib
import glob
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import h5py

from colmet.collector.backends.hdf5.library import tables  # loaded as the collector loads it
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.transport import LinkClient, Push, link_uri
from colmet.common.wire import link, v1

PROGRAM = str(Path(__file__).parents[1] / "support/killed_collector.py")
SEGMENT_BYTES = 64 << 10  # so that they follow each other fast

NUMBER = Field("number", "count", "counter")  # of the row, of all rows of its node
CHECK = Field("check", "none", "gauge")  # goes with the number
SCHEMAS = (
    Schema("load_default", "job", (NUMBER, CHECK, Field("load", "percent", "gauge", dtype="f8"))),
    Schema("label_default", "job", (NUMBER, CHECK, Field("label", "none", "label", dtype="S40", fold="first"))),
    Schema("host_default", "node", (NUMBER, CHECK)),
)
JOBS = 12  # at a time
JOBS_OF_A_NODE = 2
PERIOD_S = 0.1
HELLO_S = 0.3


class Row(NamedTuple):
    """One row, as sent and as stored; `number` names it on its host."""

    host: str
    number: int
    table: str
    job: int
    timestamp: int
    check: int


class Node:
    """One of them."""

    def __init__(self, host, uri):
        self.host = host
        self._uri = uri
        self._epoch = time.time_ns()
        self._seq = self._number = 0
        self.push = Push(uri, 1000, 0)
        self.link = LinkClient(link_uri(uri))
        self._hello_at = 0.0
        self.unacknowledged = {}  # (epoch, seq) -> message
        self.to_send = collections.deque()
        self.rows = []
        self.acknowledged = 0
        self._started = 0  # of the collector's process
        self._is_short = False  # new batches

    def restart(self):
        """It has numbered its batches from 0 on again, under another epoch."""
        self._epoch, self._seq = time.time_ns(), 0

    def tick(self, jobs):
        """Measure."""
        now = time.time_ns()
        parts = []
        for schema in SCHEMAS:
            samples = []
            for job in jobs if schema.scope == "job" else (0,):
                check = self._number * 2654435761 % (1 << 40)
                values = {"number": self._number, "check": check, "load": 0.5, "label": b"x" * 30}
                samples.append(Sample(job, {name: values[name] for name in schema.names}))
                self.rows.append(Row(self.host, self._number, schema.name, job, now // 10**9, check))
                self._number += 1
            parts.append(Table.from_samples(schema, now, samples))
        batch = Batch(self.host, self._epoch, self._seq, now, tuple(jobs), tuple(parts))
        self.unacknowledged[self._epoch, self._seq] = v1.encode(batch)
        self.to_send.append(v1.encode(batch, is_short=self._is_short))
        self._seq += 1

    def talk(self, now):
        """Say Hello when it is due; take what is acknowledged."""
        if self.link.connected and now >= self._hello_at:
            self._hello_at = now + HELLO_S
            numbers = {}
            for epoch, seq in self.unacknowledged:
                numbers.setdefault(epoch, []).append(seq)
            held = [link.Range(epoch, min(some), max(some)) for epoch, some in sorted(numbers.items())]
            self.link.send(link.encode(link.Hello(self.host, self._epoch, self._seq, "1", tuple(held))))
        while (message := self.link.receive()) is not None:
            said = link.decode(message)
            if isinstance(said, link.Describe):
                self.resend(reconnect=False)
                continue
            is_same, self._started = said.started == self._started, said.started
            self._is_short = is_same and (self._is_short or bool(said.ranges))
            for epoch, first, last in said.ranges:
                for seq in range(first, last + 1):
                    # what was sent twice may be acknowledged twice
                    self.acknowledged += self.unacknowledged.pop((epoch, seq), None) is not None

    def close(self):
        self.push.close()
        self.link.close()

    def send(self):
        while self.push.connected and self.to_send and self.push.send(self.to_send[0]):
            self.to_send.popleft()

    def resend(self, reconnect):
        """Send again what was not acknowledged; on another connection, or behind what waits in the former one."""
        if reconnect:
            self.push.close()
            self.push = Push(self._uri, 1000, 0)
        self.to_send = collections.deque(self.unacknowledged.values())
        self._is_short = False


class Fleet:
    """Nodes that measure all the time, in a thread of their own.

    Args:
        uri: of the collector.
        rng: of the test.
        count: of nodes.
    """

    def __init__(self, uri, rng, count=20):
        self.nodes = {f"node-{n}": Node(f"node-{n}", uri) for n in range(count)}
        self._rng = rng
        self._jobs = [1000 + n for n in range(JOBS)]
        self._measuring = True
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        due = {node: time.monotonic() + self._rng.uniform(0, PERIOD_S) for node in self.nodes.values()}
        while not self._stop.wait(0.01):
            with self._lock:
                now = time.monotonic()
                for node in due:
                    if self._measuring and now >= due[node]:
                        due[node] = now + PERIOD_S
                        if self._rng.random() < 0.02:
                            self._jobs[self._rng.randrange(JOBS)] = max(self._jobs) + 1
                        node.tick(self._rng.sample(self._jobs, self._rng.randrange(JOBS_OF_A_NODE + 1)))
                    node.send()
                    node.talk(now)

    def reconnect(self):
        """The collector has been restarted."""
        with self._lock:
            for node in self.nodes.values():
                if self._rng.random() < 0.1:
                    node.restart()
                node.resend(reconnect=self._rng.random() < 0.5)

    @property
    def acknowledged(self):
        return sum(node.acknowledged for node in self.nodes.values())

    @property
    def waiting(self):
        with self._lock:
            return sum(len(node.unacknowledged) for node in self.nodes.values())

    def rows(self):
        """All that were ever measured."""
        return [row for node in self.nodes.values() for row in node.rows]

    def pause(self):
        """Measure nothing more, and go on sending what there is."""
        with self._lock:
            self._measuring = False

    def close(self):
        self._stop.set()
        self._thread.join()
        for node in self.nodes.values():
            node.close()


class Collector:
    """A collector that is started again and again with the same command line.

    Args:
        fleet: that sends to it.
        log: file that all of them log to.
        arguments: the command line.
    """

    def __init__(self, fleet, log, *arguments):
        self.log = log
        self._fleet = fleet
        self._arguments = arguments
        self._process = None

    def start(self, place=""):
        with open(self.log, "ab") as file:
            self._start_of_log = file.tell()
            self._process = subprocess.Popen(
                [sys.executable, PROGRAM, place, str(SEGMENT_BYTES), *self._arguments], stdout=file, stderr=file
            )
        self._fleet.reconnect()

    def said(self, text):
        """Whether it has logged this since it was started."""
        with open(self.log, "rb") as file:
            file.seek(self._start_of_log)
            return text.encode() in file.read()

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    @property
    def pid(self):
        return self._process.pid

    def ended(self):
        return self._process.poll() is not None

    def wait(self, timeout_s):
        """Its exit status; TimeoutExpired where it runs on."""
        return self._process.wait(timeout_s)

    def kill(self):
        """End it at once, if it runs; its exit status."""
        self.signal(signal.SIGKILL)
        return self.wait(20)

    def close(self):
        if self._process is not None:
            self.kill()


def stored_in_hdf5(prefix):
    """All rows of all files, as PyTables reads them; every file and table is read by h5py, too."""
    found = []
    for path in sorted(glob.glob(f"{prefix}.*.hdf5")):
        counts = {}
        with tables.open_file(path) as file:
            for table in file.walk_nodes("/", "Table"):
                rows = table.read()
                counts[table._v_pathname] = len(rows)
                columns = [rows[name].tolist() for name in ("hostname", "number", "job_id", "timestamp", "check")]
                found += [Row(h.decode(), n, table.name, j, t, c) for h, n, j, t, c in zip(*columns)]
        with h5py.File(path, "r") as file:
            read = {}
            file.visititems(
                lambda name, node, read=read: (
                    read.update({f"/{name}": len(node[...])}) if hasattr(node, "shape") else None
                )
            )
        assert read == counts, path
    return found


def row_of(index, document):
    """What a document says, under an index name such as colmet_load_default."""
    names = ("hostname", "number", "job_id", "timestamp", "check")
    host, number, job, timestamp, check = [document[name] for name in names]
    return Row(host, number, index[len("colmet_") :], job, timestamp, check)


def assert_each_once(stored, sent, where):
    """What is stored is what was sent, each row once."""
    counts = collections.Counter(stored)
    doubles = [row for row, count in counts.items() if count > 1]
    assert not doubles, f"{where}: {len(doubles)} rows are there twice or more, such as {sorted(doubles)[:3]}"
    missing = set(sent) - counts.keys()
    assert not missing, f"{where}: {len(missing)} of {len(sent)} rows are missing, such as {sorted(missing)[:3]}"
    others = counts.keys() - set(sent)
    assert not others, f"{where}: {len(others)} rows that nobody sent, such as {sorted(others)[:3]}"
