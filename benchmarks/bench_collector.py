"""The collector as a whole, from the bytes of messages on.

`steady`: rows per CPU second into the HDF5 file from 1,000 jobs on 4 nodes each, at 1 s, while jobs start and end,
against PyTables alone, which appends 100 prepared rows to each of its open tables; cost of the journal and of messages
of Colmet 0.6. All of it runs in this process, with the clock of the worker set forward; CPU time of all threads.
`nodes`: a real collector receives from thousands of nodes, each with a connection.
`archive`: the part of the job archive, as `steady`.
`restart`: a real collector finds a large journal, and receives again.

    python benchmarks/bench_collector.py [steady|archive|nodes|restart ...] [OPTION...]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from measuring import TIME_NS, Figure, free_uri, rss_mb, show, warm_memory

from colmet import __version__
from colmet.collector import main as collector_main
from colmet.collector.backends.archive import ArchiveOutput
from colmet.collector.backends.hdf5.library import tables
from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.collector.collector import LOOK
from colmet.collector.ingest.receiver import Receiver
from colmet.collector.journal import journal as journal_module
from colmet.collector.journal.journal import Journal
from colmet.collector.main import build_parser
from colmet.collector.output_worker import OutputWorker
from colmet.common.daemon import startup
from colmet.common.schema import Batch, Schema, Table
from colmet.common.tables import schemas as own_schemas
from colmet.common.transport import link_uri
from colmet.common.wire import colmet06, link, v1

HERE = Path(__file__).resolve()
SCHEMA = colmet06.RECORDS["taskstats_default"].schema
NODE_TABLES = [
    colmet06.RECORDS[name].schema
    for name in ("taskstats_default", "jobprocstats_default", "procstats_default", "infinibandstats_default")
]
OWN_TABLES = [
    own_schemas()[f"{name}_default"] for name in ("taskstats", "cgroup", "jobprocstats", "procstats", "infinibandstats")
]
JOBS_PER_SENDER = 2
ROWS_PER_MESSAGE = 2 * JOBS_PER_SENDER + 2
JOBS = 1000
NODES_PER_JOB = 4
# Compression, its name, jobs of a node, share of the jobs that end and begin in a second.
CASES = (
    (0, "no compression", 4, 0.0),
    (0, "no compression", 4, 0.001),
    (0, "no compression", 8, 0.001),
    (0, "no compression", 4, 0.01),
    (9, "zlib 9", 4, 0.001),
)
COMMITS_PER_S = 5  # as many as the journal makes in real time
MAX_DELAY_S = 60.0
HELLO_S = 10.0  # as nodes do
AGE_S = 3600  # of the jobs
NODES_PER_PROCESS = 4000  # of senders: each node needs four descriptors, and 20,000 are a usual limit
NODES_OF_AN_ADDRESS = 100
PARTS = ("steady", "archive", "nodes", "restart")


# -- steady --


class Cluster:
    """1,000 jobs, each on 4 nodes.

    Args:
        jobs_per_node: number of rows of a message.
        encode: one message for one batch.
        churn: share of the jobs that end in a second, and are replaced by others.
    """

    def __init__(self, jobs_per_node: int, encode: Callable[[Batch], bytes], churn: float) -> None:
        self._encode = encode
        self._ending = JOBS * churn
        self._jobs = np.arange(100_000, 100_000 + JOBS)
        self._ended = 0.0
        self._slots = np.arange(JOBS * NODES_PER_JOB).reshape(-1, jobs_per_node) % JOBS
        self._rows = SCHEMA.empty_rows(self._slots.size).reshape(self._slots.shape)
        rng = np.random.default_rng(1)
        for name in SCHEMA.names:
            self._rows[name] = rng.integers(0, 1 << 40, self._rows.shape)
        self._second = 0

    def second(self) -> list[bytes]:
        """What all nodes send in the next second."""
        self._ended += self._ending
        while self._ended >= 1:  # the oldest job ends
            self._ended -= 1
            newest = int(self._jobs.max())
            self._jobs[(newest + 1) % JOBS] = newest + 1
        self._second += 1
        tick_ns = TIME_NS + self._second * 10**9
        self._rows["job_id"] = self._jobs[self._slots]
        self._rows["ac_etime"] += 1_000_000
        self._rows["cpu_run_real_total"] += 999_983
        messages = []
        for n, rows in enumerate(self._rows):
            jobs = tuple(rows["job_id"].tolist())
            table = Table(SCHEMA, tick_ns, rows.tobytes())
            messages.append(self._encode(Batch(f"node-{n}.example.org", 1, self._second, tick_ns, jobs, (table,))))
        return messages


class Chain:
    """Receiver, journal, worker and HDF5, in this process; time goes as `second` is called."""

    def __init__(self, folder: Path, complevel: int, with_journal: bool) -> None:
        self._now_s = 0.0
        self._count = 0
        self._receiver = Receiver()
        self._journal = Journal(str(folder / "journal") if with_journal else "", 8 << 30)
        self._state = self._journal.state("hdf5")
        self._output = Hdf5Output(str(folder / "steady.hdf5"), complevel)
        self._output.open(self._state)
        self._worker = OutputWorker(self._output, self._journal, self._state, 100, 5.0, monotonic=lambda: self._now_s)
        self._journal.start(self._receiver.dump_senders)
        self._came_s = [0.0]  # when each record came
        self.bursts = self.rows = 0
        self.oldest_s = 0.0  # of all rows, when they were written
        self.used_s = 0.0

    def second(self, messages: Sequence[bytes]) -> None:
        """Take what came in one second."""
        step = -(-len(messages) // COMMITS_PER_S)
        began = time.process_time()
        for first in range(0, len(messages), step):
            came = [(message, "127.0.0.1", "") for message in messages[first : first + step]]
            for look in range(0, len(came), LOOK):
                kept = self._receiver.take_all(came[look : look + LOOK]).kept
                self._journal.append_all(kept)
                self._count += len(kept)
                self._came_s += [self._now_s] * len(kept)
            with self._journal.changed:
                self._journal.changed.wait_for(lambda: self._journal.end == self._count)
            self._now_s += 1 / COMMITS_PER_S
            before = self._state.position
            self._worker._turn()
            if self._state.position > before:
                self.bursts += 1
                self.rows = self._worker.written
                self.oldest_s = max(self.oldest_s, self._now_s - self._came_s[before])
        self.used_s += time.process_time() - began

    def close(self) -> None:
        self._journal.finish()
        self._output.close()
        self._journal.close()


def steady(cluster: Cluster, complevel: int, bursts: int, with_journal: bool = True) -> tuple[float, float]:
    """Rows per CPU second over a number of bursts, and the age of the oldest row."""
    with tempfile.TemporaryDirectory() as name:
        chain = Chain(Path(name), complevel, with_journal)
        while chain.bursts < 2:  # the first one creates the tables
            chain.second(cluster.second())
        rows, used_s, until = chain.rows, chain.used_s, chain.bursts + bursts
        while chain.bursts < until:
            chain.second(cluster.second())
        rate = (chain.rows - rows) / (chain.used_s - used_s)
        oldest_s = chain.oldest_s
        chain.close()
    return rate, oldest_s


def ready_rows(folder: Path, jobs: int) -> dict[str, Any]:
    """100 rows of some jobs as they are in a file, by table."""
    cluster = Cluster(8, v1.encode, 0)
    chain = Chain(folder, 0, False)
    while chain.bursts < 2 or chain.rows < 100 * JOBS:
        chain.second(cluster.second())
    chain.close()
    with tables.open_file(str(folder / "steady.hdf5")) as file:
        found = list(file.walk_nodes("/", "Table"))[:jobs]
        return {table._v_pathname: table.read(0, 100) for table in found}


def bare(complevel: int, ready: dict[str, Any], bursts: int) -> float:
    """Rows per CPU second of PyTables alone."""
    with tempfile.TemporaryDirectory() as name, tables.open_file(f"{name}/bare.hdf5", "w") as file:
        appends = []
        for node, rows in ready.items():
            group, table = node.rsplit("/", 1)
            filters = tables.Filters(complevel)
            appends.append((file.create_table(group, table, rows.dtype, "", filters, createparents=True), rows))

        def burst() -> None:
            for table, rows in appends:
                table.append(rows)
            for table, _ in appends:
                table.flush()
            file.flush()

        burst()
        began = time.process_time()
        for _ in range(bursts):
            burst()
        return bursts * sum(map(len, ready.values())) / (time.process_time() - began)


def run_steady(rounds: int = 1) -> list[Figure]:
    """Figures of `steady`."""
    journal_module.COMMIT_S = 0.0  # groups are made here
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        warm_memory(Path(name))
        ready = ready_rows(Path(name), 200)
        for complevel, label, jobs_per_node, churn in CASES:
            pairs = []
            bursts, bare_bursts = (1, 2) if complevel else (2, 10)
            for _ in range(rounds):
                ours, oldest_s = steady(Cluster(jobs_per_node, v1.encode, churn), complevel, bursts)
                pairs.append((ours / bare(complevel, ready, bare_bursts), ours, oldest_s))
            ratio, ours, oldest_s = statistics.median_low(pairs)
            what = f"{label}, {jobs_per_node} rows a message, {churn:.1%} of jobs new a second"
            figures += [
                (f"{what}: to file", ours, "rows/CPU s", ""),
                (f"{what}: to file / bare", ratio, "times", ">= 0.60"),
                (f"{what}: oldest row", oldest_s, "s", f"<= {MAX_DELAY_S:g}"),
            ]
        costs: list[list[float]] = []
        for _ in range(rounds):
            normal, _ = steady(Cluster(4, v1.encode, 0.001), 0, 2)
            without, _ = steady(Cluster(4, v1.encode, 0.001), 0, 2, with_journal=False)
            old, _ = steady(Cluster(4, colmet06.encode, 0.001), 0, 2)
            costs.append([normal / without, normal / old])
    with_journal, of_old = [statistics.median(column) for column in zip(*costs)]
    return [
        *figures,
        ("throughput with the journal / without", with_journal, "times", ">= 0.85"),
        ("CPU time of a row in messages of Colmet 0.6 / v1", of_old, "times", "<= 2"),
    ]


# -- the job archive --


class ArchiveChain(Chain):
    """The same, with the job archive as a second output.

    Attributes:
        archive_s: CPU time of that output.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 0, True)
        self._archive = ArchiveOutput(str(folder / "archive.sqlite"))
        state = self._journal.state("archive")
        self._archive.open(state)
        self._archiving = OutputWorker(self._archive, self._journal, state, 100, 5.0, monotonic=lambda: self._now_s)
        self.archive_s = 0.0

    def second(self, messages: Sequence[bytes]) -> None:
        """Take what came in one second."""
        super().second(messages)
        began = time.thread_time()
        self._archiving._turn()
        self.archive_s += time.thread_time() - began

    def close(self) -> None:
        self._archive.close()
        super().close()


def job_messages(nodes: int, second: int, seq: int) -> list[bytes]:
    """What nodes with two jobs each send in a second: jobs of four nodes, with growing counters; the seq-th batch."""
    now = TIME_NS + second * 10**9
    messages = []
    for n in range(nodes):
        jobs = tuple([100_000 + (2 * n + k) % (nodes // 2) for k in range(2)])
        packed = []
        for schema in OWN_TABLES:
            rows = schema.empty_rows(len(jobs) if schema.scope == "job" else 1)
            for field in schema.fields:
                if field.dtype == "i8":
                    rows[field.name] = (n % 7 + 1) * 1000 * second
            for name, value in (
                ("ac_btime", TIME_NS // 10**9 - 3600),
                ("cpus_allocated", 4),
                ("cpu_usage", second * 10**9),
            ):
                if name in schema.name_set:
                    rows[name] = value
            rows["job_id"] = jobs if schema.scope == "job" else 0
            packed.append(Table(schema, now, rows.tobytes()))
        messages.append(v1.encode(Batch(f"node-{n}.example.org", 1, seq, now, jobs, tuple(packed))))
    return messages


def run_archive(nodes: int = 2000, period: int = 5, seconds: int = 300) -> list[Figure]:
    """Figures of the archive's part of the CPU time: jobs begin, and run for `seconds`."""
    with tempfile.TemporaryDirectory() as name:
        chain = ArchiveChain(Path(name))
        for second in range(period, seconds + 1, period):
            chain._now_s += period - 1  # nothing arrives between
            chain.second(job_messages(nodes, second, second // period))
        used, of_archive = chain.used_s + chain.archive_s, chain.archive_s
        chain.close()
    what = f"{nodes} nodes at {period} s for {seconds} s"
    return [
        (f"{what}: CPU time of the archive", 1e6 * of_archive / (nodes * seconds / period), "us/message", ""),
        (f"{what}: CPU time of all, without the network", 1e6 * used / (nodes * seconds / period), "us/message", ""),
        (f"{what}: share of the archive", 100 * of_archive / used, "%", "<= 10"),
    ]


# -- real collectors --


def run_collector(descriptor: int, arguments: Sequence[str]) -> int:
    """A collector that says on a descriptor what its threads are, and how many records are durable."""
    has_named = False

    def durable(acknowledge: Callable[[Sequence[Any]], None], records: Sequence[Any]) -> None:
        nonlocal has_named
        acknowledge(records)
        if not has_named:
            has_named = True
            names = {thread.name: thread.native_id for thread in threading.enumerate()}
            os.write(descriptor, json.dumps(names).encode() + b"\n")
        if records:
            os.write(descriptor, f"{len(records)}\n".encode())

    def journal(directory: str, max_bytes: int, acknowledge: Callable[[Sequence[Any]], None]) -> Journal:
        return Journal(directory, max_bytes, functools.partial(durable, acknowledge))

    # the collector builds its journal by this name: a function that adds the report replaces it
    collector_main.Journal = journal  # type: ignore[assignment,attr-defined]
    backends = collector_main.load_backends()
    return startup.run_daemon(backends, build_parser, collector_main.check, collector_main.run, arguments)


class Collector:
    """A real one, and what it has acknowledged.

    Args:
        log: file that it logs to.
        arguments: its command line.
    """

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        self.acknowledged = 0
        self.threads: dict[str, int] = {}
        self._changed = threading.Condition()
        ours, theirs = os.pipe()
        with open(log, "ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE), "collector", str(theirs), "-v", *arguments],
                pass_fds=[theirs],
                stdout=file,
                stderr=file,
                env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
            )
        os.close(theirs)
        threading.Thread(target=self._read, args=(ours,), daemon=True).start()

    def _read(self, descriptor: int) -> None:
        with open(descriptor) as pipe:
            for line in pipe:
                with self._changed:
                    if line.startswith("{"):
                        self.threads = json.loads(line)
                    else:
                        self.acknowledged += int(line)
                    self._changed.notify_all()

    def wait_for(self, acknowledged: int, timeout_s: float) -> bool:
        """Wait until this number of records is durable; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.acknowledged >= acknowledged, timeout_s)

    def cpu_s(self) -> dict[str, float]:
        """CPU time of each thread; that of libzmq's own is `zmq`."""
        names = {tid: name for name, tid in self.threads.items()}
        found: dict[str, float] = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            comm, _, rest = (task / "stat").read_text().partition(") ")
            fields = rest.split()
            name = names.get(int(task.name), "zmq" if "ZMQ" in comm else "others")
            ticks = int(fields[11]) + int(fields[12])
            found[name] = found.get(name, 0.0) + ticks / os.sysconf("SC_CLK_TCK")
        return found

    def held(self) -> tuple[float, int, int]:
        """Resident memory in MB, descriptors, threads."""
        folder = Path(f"/proc/{self.process.pid}")
        threads = len(list((folder / "task").iterdir()))
        return rss_mb(self.process.pid), len(list((folder / "fd").iterdir())), threads

    def position(self, journal: Path, output: str) -> int:
        """How far an output has come, as it remembers."""
        state = journal / f"{output}.json"
        return int(json.loads(state.read_text())["position"]) if state.exists() else 0

    def stop(self) -> int:
        """End it as an operator does; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Senders:
    """Another process that is some nodes.

    Args:
        uri: of the collector.
        first: number of the first node.
        count: of nodes, each with a connection.
        seconds: how long they measure, at 1 s.
        rate: messages of a node in a second.
        jobs: that run at a time on all of them.
        churn: share of the jobs that is replaced in a second.
    """

    def __init__(
        self, uri: str, first: int, count: int, seconds: float, rate: float = 1.0, jobs: int = 1000, churn: float = 0.0
    ) -> None:
        arguments = [uri, *map(str, (first, count, seconds, rate, jobs, churn))]
        self._process = subprocess.Popen(
            [sys.executable, str(HERE), "senders", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        )

    def result(self) -> dict[str, float]:
        """What they did, once they have."""
        out, _ = self._process.communicate()
        found: dict[str, float] = json.loads(out)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def node_messages(host: str, jobs: Sequence[int], schemas: Sequence[Schema], epoch: int) -> Callable[[int], bytes]:
    """What a node with these jobs sends, by number of the message."""
    rng = np.random.default_rng(len(host))
    packed = []
    for schema in schemas:
        rows = schema.empty_rows(len(jobs) if schema.scope == "job" else 1)
        for field in schema.fields:
            if field.dtype == "i8":
                rows[field.name] = rng.integers(0, 1 << 40, len(rows))
        for name, value in (("ac_btime", int(time.time()) - AGE_S), ("cpus_allocated", 4)):
            if name in schema.name_set:
                rows[name] = value
        rows["job_id"] = jobs if schema.scope == "job" else 0
        packed.append((schema, rows.tobytes()))

    def message(seq: int) -> bytes:
        now = time.time_ns()
        return v1.encode(Batch(host, epoch, seq, now, tuple(jobs), tuple([Table(s, now, rows) for s, rows in packed])))

    return message


def run_senders(uri: str, first: int, count: int, seconds: float, rate: float, jobs: int, churn: float) -> None:
    """Be some nodes, which ask for acknowledgements; nothing is sent again."""
    startup.raise_open_file_limit()
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 2 * count + 100)
    sockets, links = [], []
    for n in range(count):
        # some nodes an address: the collector limits the nodes of one
        source = f"tcp://127.0.1.{1 + (first + n) // NODES_OF_AN_ADDRESS}:0;"
        socket, caller = context.socket(zmq.PUSH), context.socket(zmq.DEALER)
        socket.setsockopt(zmq.SNDHWM, 1000)
        socket.setsockopt(zmq.LINGER, 60_000)
        socket.connect(uri.replace("tcp://", source))
        sockets.append(socket)
        caller.setsockopt(zmq.LINGER, 0)
        caller.connect(link_uri(uri).replace("tcp://", source))
        links.append(caller)

    def of_node(n: int, generation: int) -> tuple[int, ...]:
        # a job is on a few nodes, and they all turn to others at the same time
        slots = [(JOBS_PER_SENDER * (first + n) + k) % jobs for k in range(JOBS_PER_SENDER)]
        return tuple([1000 + jobs * generation + slot for slot in slots])

    hosts = [f"node-{first + n}.example.org" for n in range(count)]
    epochs = [time.time_ns()] * count
    messages = [node_messages(host, of_node(n, 0), NODE_TABLES, epochs[n]) for n, host in enumerate(hosts)]
    generations = [0] * count
    acknowledged: list[set[int]] = [set() for _ in range(count)]
    said_at = [-HELLO_S] * count
    sent = held = 0

    def hear(n: int) -> None:
        while links[n].poll(0):
            answer = link.decode(links[n].recv())
            for epoch, low, high in answer.ranges if isinstance(answer, link.Ack) else ():
                if epoch == epochs[n]:
                    acknowledged[n].update(range(low, high + 1))

    def hello(n: int) -> None:
        said_at[n] = time.monotonic()
        held = (link.Range(epochs[n], 0, seqs[n] - 1),) if seqs[n] else ()
        links[n].send(link.encode(link.Hello(hosts[n], epochs[n], seqs[n], __version__, held)))

    worst_s = 0.0
    seqs = [0] * count
    start = time.monotonic()
    for tick in range(int(seconds * rate)):
        for n, socket in enumerate(sockets):
            due = start + (tick + n / count) / rate
            wait = due - time.monotonic()
            if wait > 0.002:
                time.sleep(wait)
            worst_s = max(worst_s, -wait)
            generation = int(tick / rate * churn + n / count)  # a few nodes at a time
            if generation != generations[n]:
                generations[n] = generation
                messages[n] = node_messages(hosts[n], of_node(n, generation), NODE_TABLES, epochs[n])
            hear(n)
            if time.monotonic() >= said_at[n] + HELLO_S:
                hello(n)
            try:
                socket.send(messages[n](seqs[n]), zmq.NOBLOCK)
            except zmq.Again:
                held += 1
                continue
            seqs[n] += 1
            sent += 1
    until = time.monotonic() + 30
    while sum(map(len, acknowledged)) < sent and time.monotonic() < until:
        time.sleep(0.05)
        for n in range(count):
            hear(n)
    counts = {"sent": sent, "held": held, "late_s": worst_s, "acknowledged": sum(map(len, acknowledged))}
    print(json.dumps(counts), flush=True)
    for socket in (*sockets, *links):
        socket.close()
    context.term()


def run_nodes(nodes: int = 2000, seconds: float = 20.0) -> list[Figure]:
    """Figures of `nodes`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        uri = free_uri()
        collector = Collector(
            folder / "log", "--zeromq-bind-uri", uri, "--hdf5-filepath", str(folder / "x"), "--journal-size", "4G"
        )
        parts = max(2, -(-nodes // NODES_PER_PROCESS))
        senders = [Senders(uri, n * (nodes // parts), nodes // parts, seconds) for n in range(parts)]
        nodes = parts * (nodes // parts)
        try:
            collector.wait_for(1, 60)
            began, cpu_before = time.monotonic(), collector.cpu_s()
            first = collector.acknowledged
            slowest = unwritten = 0.0
            while time.monotonic() < began + seconds - 2:
                time.sleep(0.5)
                expected = (time.monotonic() - began) * nodes + first
                slowest = max(slowest, expected - collector.acknowledged)
                unwritten = max(unwritten, expected - collector.position(folder / "x.journal", "hdf5"))
            cpu, wall = collector.cpu_s(), time.monotonic() - began
            mbytes, descriptors, _ = collector.held()
            sent = [one.result() for one in senders]
            count = int(sum([one["sent"] for one in sent]))
            ended = time.monotonic()
            collector.wait_for(count, 120)
            behind_s = time.monotonic() - ended
            waiting = count - collector.position(folder / "x.journal", "hdf5")
            missing = count - collector.acknowledged
        finally:
            for one in senders:
                one.close()
            status = collector.stop()
        what = f"{nodes} nodes at 1 s for {seconds:g} s"
        shares = {name: 100 * (cpu[name] - cpu_before.get(name, 0.0)) / wall for name in cpu}
        return [
            (f"{what}: messages sent", count, "messages", f"{int(seconds) * nodes:,}"),
            (f"{what}: sent and not received", missing, "messages", "0"),
            (f"{what}: sent and not acknowledged", count - sum([one["acknowledged"] for one in sent]), "messages", "0"),
            (f"{what}: refused by full queues", sum([one["held"] for one in sent]), "messages", "0"),
            (f"{what}: at most behind", slowest / nodes, "s", "not growing"),
            (f"{what}: HDF5 at most behind", unwritten / nodes, "s", f"<= {MAX_DELAY_S:g}"),
            (f"{what}: last message durable after", behind_s, "s", "<= 2"),
            (f"{what}: messages not in HDF5 then", waiting, "messages", f"<= {MAX_DELAY_S:g} s of them"),
            (f"{what}: memory", mbytes, "MB", ""),
            (f"{what}: descriptors", descriptors, "", ""),
            *[(f"{what}: thread {name}", share, "% of a core", "") for name, share in sorted(shares.items())],
            (f"{what}: all threads", sum(shares.values()), "% of a core", ""),
            (f"{what}: share of the archive", 100 * shares.get("archive", 0.0) / sum(shares.values()), "%", "<= 10"),
            (f"{what}: exit status", status, "", "0"),
        ]


def run_restart(mbytes: int = 1024) -> list[Figure]:
    """Figures of `restart`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        journal = Journal(str(folder / "x.journal"), 2 * mbytes << 20)
        journal.state("hdf5")
        receiver = Receiver()
        journal.start(receiver.dump_senders)
        nodes = [node_messages(f"node-{n}.example.org", (n, n + 1), NODE_TABLES, 1) for n in range(2000)]
        size = seq = 0
        while size < mbytes << 20:
            for node in nodes:
                message = node(seq)
                journal.append(message, receiver.take(message, "127.0.0.1"))
                size += len(message)
            seq += 1
            while journal.pending_bytes > 64 << 20:
                time.sleep(0.01)
        journal.finish()
        assert journal.store is not None
        size = journal.store.size_bytes
        journal.close()
        uri = free_uri()
        senders = Senders(uri, 10_000, 1, 120, rate=5)
        time.sleep(2)  # until it sends
        began = time.monotonic()
        arguments = ("--zeromq-bind-uri", uri, "--hdf5-filepath", str(folder / "x"), "--journal-size", f"{2 * mbytes}M")
        collector = Collector(folder / "log", *arguments)
        try:
            collector.wait_for(1, 300)
            took = time.monotonic() - began
            rss = collector.held()[0]
        finally:
            senders.close()
            collector.kill()
        return [
            (f"journal of {size >> 20} MiB: from the start to the first message durable", took, "s", "< 60"),
            (f"journal of {size >> 20} MiB: memory then", rss, "MB", ""),
        ]


def run() -> list[Figure]:
    """Figures as (name, value, unit, target)."""
    startup.tune_garbage_collector()
    return [*run_steady(), *run_archive(), *run_nodes(), *run_restart()]


def _parts(options: argparse.Namespace) -> Iterator[list[Figure]]:
    for part in options.parts or PARTS:
        if part == "steady":
            startup.tune_garbage_collector()
            yield run_steady(options.rounds)
        elif part == "archive":
            startup.tune_garbage_collector()
            yield run_archive(options.nodes, options.period)
        elif part == "nodes":
            yield run_nodes(options.nodes, options.seconds)
        else:
            yield run_restart(options.journal_mbytes)


def main() -> int:
    """Print the figures; or be one of the processes that they need."""
    if sys.argv[1:2] == ["collector"]:
        return run_collector(int(sys.argv[2]), sys.argv[3:])
    if sys.argv[1:2] == ["senders"]:
        uri, first, count, seconds, rate, jobs, churn = sys.argv[2:]
        run_senders(uri, int(first), int(count), float(seconds), float(rate), int(jobs), float(churn))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=PARTS, metavar="|".join(PARTS))
    parser.add_argument("--rounds", type=int, default=1, help="of steady, of which the median is taken")
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--period", type=int, default=5, help="of nodes in archive, seconds (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="that nodes send (default: %(default)g)")
    parser.add_argument("--journal-mbytes", type=int, default=1024)
    for figures in _parts(parser.parse_args()):
        show(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
