"""The needs of a site, computed from the costs of a message, a row, a table and a connection.

    python benchmarks/sizing.py measure [--elastic-host URL] [--save FILE]
    python benchmarks/sizing.py [site] [--nodes 10000] [--period 5] [--jobs 2] ... [--costs FILE]

`measure` runs for some minutes and prints the cost of each unit on this machine. `site` computes from these costs, or
from sizing.json, measured as docs/sizing.md describes. CPU times are of one core.

With an address, a real Elasticsearch or OpenSearch without other users is measured, too. Its indices begin with
colmet-sizing-, and are removed at the end.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import requests
from bench_collector import Collector, Senders
from measuring import TIME_NS, discarding_server, free_uri

from colmet.collector.backend import JournalRecord, OutputBackend
from colmet.collector.backends.elasticsearch.documents import IndexNaming
from colmet.collector.backends.elasticsearch.output import ElasticsearchOutput
from colmet.collector.backends.hdf5.h5file import Hdf5File
from colmet.collector.backends.hdf5.library import tables
from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.collector.columns import file_columns
from colmet.collector.ingest.receiver import MAX_SENDERS, Receiver
from colmet.collector.journal.journal import TAIL_BYTES, Journal
from colmet.collector.journal.output_state import OutputState
from colmet.common.daemon import startup
from colmet.common.http_client import HttpClient
from colmet.common.schema import Batch, Schema, Table
from colmet.common.wire import Decoder, v1
from colmet.node.backends import NAMES

HERE = Path(__file__).resolve().parent
NS = 1_000_000_000
DAY_S = 86_400
PREFIX = "colmet-sizing-"
ROUNDS = 2
FEW, MANY = 100, 600  # nodes
SHARE = 0.5  # of a core that a collector, and of its cores that a database node, is to be busy: the rest is to catch up
LEVELS = (0, 1)  # of compression
BURST_S = 60.0  # between two bursts to HDF5, where they are dear
DATABASE_CORES = 8  # of one of its nodes

Costs = dict[str, float]
Line = tuple[str, float, str]

UNITS = {
    "message_us": "us of CPU to receive a message and keep it in the journal",
    "table_us": "us of CPU for each table in it",
    "journal_bytes": "bytes of journal for a message, beside the message itself",
    "collector_bytes": "bytes of memory of a collector that waits",
    "connection_bytes": "bytes of memory for each node",
    "connection_fds": "descriptors for each node",
    "hdf5_0_row_us": "us of CPU for a row in HDF5",
    "hdf5_0_kb_us": "us of CPU for each kB of it, most of which are texts of fixed length",
    "hdf5_0_append_us": "us of CPU for each table that a burst appends to",
    "hdf5_0_create_us": "us of CPU to create a table",
    "hdf5_0_table_bytes": "bytes of file for a table with its first row",
    "hdf5_1_row_us": "compressed: us of CPU for a row in HDF5",
    "hdf5_1_kb_us": "compressed: us of CPU for each kB of it",
    "hdf5_1_append_us": "compressed: us of CPU for each table that a burst appends to",
    "hdf5_1_create_us": "compressed: us of CPU to create a table",
    "hdf5_1_row_bytes": "compressed: bytes of file for a row, beside its values",
    "hdf5_1_value_bytes": "compressed: bytes of file for a value",
    "hdf5_1_table_bytes": "compressed: bytes of file for a table with its first row",
    "document_us": "us of the collector's CPU for a document",
    "document_value_us": "us of the collector's CPU for each value in it",
    "database_document_us": "us of the database's CPU for a document, in the first copy",
    "database_value_us": "us of the database's CPU for each value in it",
    "database_document_bytes": "bytes of the database's disk for a document",
    "database_value_bytes": "bytes of the database's disk for a value",
}


def schemas() -> dict[str, Schema]:
    """The tables that nodes send, by name."""
    found = {}
    for path in NAMES.values():
        module = importlib.import_module(path.partition(":")[0])
        found.update({schema.name: schema for schema in vars(module).values() if isinstance(schema, Schema)})
    return found


def values_of(schema: Schema) -> int:
    return len(schema.fields)


class Node:
    """One node, whose values go as those of nodes do: a third stands still at 0, the others go up by some each tick."""

    def __init__(self, name: str, jobs: Sequence[int], chosen: Sequence[Schema]) -> None:
        self._name = name
        self._jobs = tuple(jobs)
        self._rng = np.random.default_rng(len(name) + sum(self._jobs))
        self._tables = []
        for schema in chosen:
            rows = schema.empty_rows(len(jobs) if schema.scope == "job" else 1)
            for n, field in enumerate(schema.fields):
                if field.dtype[0] != "S":
                    rows[field.name] = 0 if n % 3 == 0 else self._rng.integers(0, 1 << 36, len(rows))
            rows["job_id"] = self._jobs if schema.scope == "job" else 0
            self._tables.append((schema, rows))

    def tick(self, seq: int, period_s: float = 5.0) -> Batch:
        """What it measures."""
        now = TIME_NS + int(seq * period_s * NS)
        made = []
        for schema, rows in self._tables:
            grown = self._rng.integers(0, 1 << 15, (len(schema.fields), len(rows)))
            for n, field in enumerate(schema.fields):
                if n % 3 and field.dtype[0] != "S":
                    rows[field.name] += grown[n] >> (6 * (n % 2))
            made.append(Table(schema, now, rows.tobytes()))
        return Batch(self._name, TIME_NS, seq, now, self._jobs, tuple(made))


def decoded(nodes: Sequence[Node], seqs: range, first: int) -> list[JournalRecord]:
    """What nodes measure, as outputs are given it; records are numbered from `first` on."""
    decode = Decoder().decode
    batches = [decode(v1.encode(node.tick(seq))).batches for seq in seqs for node in nodes]
    return [JournalRecord(first + n, TIME_NS, some) for n, some in enumerate(batches)]


def fit(points: Sequence[tuple[Sequence[float], float]]) -> list[float]:
    """Cost of each unit, from numbers of units and their total costs; none below 0."""
    counts, costs = np.array([point[0] for point in points], dtype=float), np.array([point[1] for point in points])
    found = np.zeros(counts.shape[1])
    left = np.arange(counts.shape[1])
    while len(left):  # errors count in proportion
        solved = np.linalg.lstsq(counts[:, left] / costs[:, None], np.ones(len(costs)), rcond=None)[0]
        if (solved >= 0).all():
            found[left] = solved
            break
        left = np.delete(left, solved.argmin())
    return [float(cost) for cost in found]


# -- receiving --


def receiving() -> Costs:
    """A real collector and real connections; how much of it is due to tables, in this process."""
    found: Costs = {}
    with tempfile.TemporaryDirectory() as name, discarding_server() as port:
        held: list[tuple[float, int, int]] = []
        for count, rate, seconds in ((FEW, 0.2, 10.0), (MANY, 0.2, 10.0), (MANY // 2, 4.0, 10.0)):
            folder = Path(name, str(len(held)))
            folder.mkdir()
            uri = free_uri()
            collector = Collector(
                folder / "log",
                *("--zeromq-bind-uri", uri, "--journal-dir", str(folder / "journal")),
                *("--elastic-host", f"http://127.0.0.1:{port}", "--archive", ""),
            )
            senders = Senders(uri, 0, count, seconds, rate)
            try:
                collector.wait_for(1, 120)
                before, acknowledged = collector.cpu_s(), collector.acknowledged
                collector.wait_for(count, 120)  # all are connected
                held.append(collector.held())
                sent = senders.result()["sent"]
                collector.wait_for(int(sent), 120)
                after = collector.cpu_s()
            finally:
                senders.close()
                collector.stop()
            used = sum([after[thread] - before.get(thread, 0.0) for thread in after if thread != "elasticsearch"])
            found["message_us"] = used / (sent - acknowledged) * 1e6  # the last run is the one that sends much
    (few, few_fds, _), (many, many_fds, _), _ = held
    found["connection_bytes"] = (many - few) * 1e6 / (MANY - FEW)
    found["connection_fds"] = (many_fds - few_fds) / (MANY - FEW)
    found["collector_bytes"] = few * 1e6 - FEW * found["connection_bytes"]
    known = list(schemas().values())
    costs = []
    for count in (1, 9):
        nodes = [Node(f"node-{n}.example.org", (1, 2), known[:count]) for n in range(100)]
        messages = [v1.encode(node.tick(seq)) for seq in range(50) for node in nodes]
        rounds = []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as name:
                journal = Journal(name, 8 << 30)
                journal.state("elasticsearch")
                receiver = Receiver()
                journal.start(receiver.dump_senders)
                began = time.process_time()
                for message in messages:
                    journal.append(message, receiver.take(message, "127.0.0.1"))
                journal.finish()
                rounds.append((time.process_time() - began) / len(messages) * 1e6)
                assert journal.store is not None
                size = journal.store.size_bytes
                journal.close()
        costs.append(statistics.median(rounds))
    found["table_us"] = max(0.0, (costs[1] - costs[0]) / 8)
    found["message_us"] -= 4 * found["table_us"]  # what the senders send
    found["journal_bytes"] = (size - sum(map(len, messages))) / len(messages)
    return found


# -- outputs --


def cpu_s(output: OutputBackend, records: Sequence[JournalRecord]) -> float:
    """CPU time to write them."""
    began = time.process_time()
    output.write(records)
    return time.process_time() - began


def row_bytes(schema: Schema) -> int:
    """Of a row in a file that is not compressed."""
    return sum([column.itemsize for column in file_columns(schema).values()])


@contextmanager
def timed(owner: type, name: str, took_s: list[float]) -> Iterator[None]:
    """Append the CPU time of each call of a method to a list."""
    original = getattr(owner, name)

    def measured(*arguments: object) -> object:
        began = time.process_time()
        try:
            return original(*arguments)
        finally:
            took_s.append(time.process_time() - began)

    setattr(owner, name, measured)
    try:
        yield
    finally:
        setattr(owner, name, original)


def hdf5() -> Costs:
    """Tables with large and small rows, with few and many values; few and many rows of a job in a burst."""
    warnings.filterwarnings("ignore", category=tables.NaturalNameWarning)
    known = schemas()
    jobs = 100
    found: Costs = {}
    for level in LEVELS:
        bursts, sizes, create_us, first_bytes = [], [], [], []
        for name in ("jobprocstats_default", "perfhwstats_default", "taskstats_default", "cgroup_default"):
            schema = known[name]
            with tempfile.TemporaryDirectory() as folder:
                output = Hdf5Output(f"{folder}/sizing", complevel=level)
                state = OutputState(f"{folder}/state.json", "0" * 16, 0, 0)
                output.open(state)
                nodes = [Node(f"node-{n}.example.org", range(1 + n, 1 + jobs, 10), [schema]) for n in range(10)]
                seq = 0
                for per_table in (1, 10, 10, 10, 100, 100):
                    records = decoded(nodes, range(seq, seq + per_table), state.position)
                    made_s: list[float] = []
                    with timed(Hdf5File, "make_tables", made_s):
                        used_us = cpu_s(output, records) * 1e6
                    rows = per_table * jobs
                    if seq:
                        bursts.append(((rows, rows * row_bytes(schema) / 1000, jobs), used_us))
                    else:
                        create_us.append(sum(made_s) * 1e6 / jobs)
                        first_bytes.append(os.path.getsize(output.path) / jobs)
                    seq += per_table
                sizes.append(((seq * jobs, seq * jobs * values_of(schema)), os.path.getsize(output.path)))
                output.close()
        row_us, kb_us, append_us = fit(bursts)
        found[f"hdf5_{level}_row_us"] = row_us
        found[f"hdf5_{level}_kb_us"] = kb_us
        found[f"hdf5_{level}_append_us"] = append_us
        found[f"hdf5_{level}_create_us"] = statistics.median(create_us)
        found[f"hdf5_{level}_table_bytes"] = statistics.median(first_bytes)
        if level:
            found[f"hdf5_{level}_row_bytes"], found[f"hdf5_{level}_value_bytes"] = fit(sizes)
    return found


DOCUMENTS = 10_000
DOCUMENT_TABLES = ("infinibandstats_default", "jobprocstats_default", "taskstats_default", "procstats_default")


def documents(url: str, prefix: str, rounds: int) -> Iterator[tuple[Schema, float]]:
    """For each of some tables, CPU seconds of the collector for `DOCUMENTS` once all is warm, in each round."""
    for schema in [schemas()[name] for name in DOCUMENT_TABLES]:
        with tempfile.TemporaryDirectory() as folder:
            state = OutputState(f"{folder}/state.json", "0" * 16, 0, 0)
            output = ElasticsearchOutput([url], HttpClient({}), IndexNaming(prefix, "", False))
            output.open(state)
            nodes = [Node(f"node-{n}.example.org", (1000 + n % 50, 1100), [schema]) for n in range(200)]
            ticks = DOCUMENTS // (len(nodes) * (2 if schema.scope == "job" else 1))
            for turn in range(rounds + 1):
                used_s = cpu_s(output, decoded(nodes, range(turn * ticks, (turn + 1) * ticks), state.position))
                if turn:
                    yield schema, used_s
            counters = output.counters()
            assert counters["rejected"] == counters["retried"] == counters["host_failures"] == 0, counters
            output.close()


def elasticsearch() -> Costs:
    """The collector's part."""
    points = []
    with discarding_server() as port:
        for schema, used_s in documents(f"http://127.0.0.1:{port}", PREFIX, ROUNDS):
            points.append(((DOCUMENTS, DOCUMENTS * values_of(schema)), used_s * 1e6))
    document_us, value_us = fit(points)
    return {"document_us": document_us, "document_value_us": value_us}


def database(url: str) -> Costs:
    """The database's part: CPU time of its processes, merging included, and disk space after it."""
    session = requests.Session()
    session.trust_env = False

    def ask(method: str, path: str) -> Mapping[str, object]:
        answer = session.request(method, url + path, timeout=300)
        answer.raise_for_status()
        found: Mapping[str, object] = answer.json()
        return found

    def busy_us() -> float:
        nodes = json.loads(session.get(f"{url}/_nodes/stats/process", timeout=60).text)["nodes"]
        return float(sum([node["process"]["cpu"]["total_in_millis"] for node in nodes.values()])) * 1000.0

    cpu_points, size_points = [], []
    try:
        rounds = 5
        before = 0.0
        for turn, (schema, _) in enumerate(documents(url, PREFIX, rounds)):
            index = PREFIX + schema.name.lower()
            if turn % rounds == 0:
                ask("POST", f"/{index}/_refresh")
                before = busy_us()
            elif turn % rounds == rounds - 1:
                ask("POST", f"/{index}/_forcemerge?max_num_segments=1&flush=true")
                count = DOCUMENTS * (rounds - 1)
                cpu_points.append(((count, count * values_of(schema)), busy_us() - before))
                stats = json.loads(json.dumps(ask("GET", f"/{index}/_stats/store,docs")))["_all"]["primaries"]
                count = stats["docs"]["count"]
                size_points.append(((count, count * values_of(schema)), stats["store"]["size_in_bytes"]))
    finally:
        for name in DOCUMENT_TABLES:
            session.delete(f"{url}/{PREFIX}{name.lower()}", timeout=60)
            session.delete(f"{url}/_index_template/{PREFIX}{name.lower()}", timeout=60)
    (document_us, value_us), (document_bytes, value_bytes) = fit(cpu_points), fit(size_points)
    return {
        "database_document_us": document_us,
        "database_value_us": value_us,
        "database_document_bytes": document_bytes,
        "database_value_bytes": value_bytes,
    }


# -- a site --


def site(options: argparse.Namespace, costs: Mapping[str, float]) -> list[Line]:
    """What a site needs, as (what, how much, unit).

    Raises:
        SystemExit: a table that there is not.
    """
    known = schemas()
    unknown = set(options.tables.split(",")) - known.keys()
    if unknown:
        raise SystemExit(f"no table {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    chosen = [known[name] for name in options.tables.split(",")]
    of_jobs = [schema for schema in chosen if schema.scope == "job"]
    message = len(v1.encode(Node("node-1234.example.org", range(1, options.jobs + 1), chosen).tick(1)))
    per_s = options.nodes / options.period
    rows = len(of_jobs) * options.jobs + len(chosen) - len(of_jobs)
    values = sum([values_of(s) * (options.jobs if s.scope == "job" else 1) for s in chosen])
    running = options.nodes * options.jobs / options.nodes_per_job
    day_rows, day_values = rows * per_s * DAY_S, values * per_s * DAY_S
    day_jobs = running * 24 / options.job_hours
    kbytes = sum([row_bytes(s) * (options.jobs if s.scope == "job" else 1) for s in chosen]) / 1000
    level = f"hdf5_{options.complevel}_"
    hdf5 = {name[len(level) :]: cost for name, cost in costs.items() if name.startswith(level)}
    receive = per_s * (costs["message_us"] + len(chosen) * costs["table_us"]) / 1e6
    index = per_s * (rows * costs["document_us"] + values * costs["document_value_us"]) / 1e6

    def hdf5_cores(collectors: int) -> tuple[float, float]:
        """Of all collectors; tables of each. A job that runs on many nodes has a table in the file of each of them."""
        of_a_job = collectors * (1 - (1 - 1 / collectors) ** options.nodes_per_job)
        touched = running * of_a_job * len(of_jobs)
        created = day_jobs * of_a_job * len(of_jobs) / DAY_S
        append = min(touched, rows * per_s * BURST_S) / BURST_S * hdf5["append_us"]
        each = per_s * (rows * hdf5["row_us"] + kbytes * hdf5["kb_us"])
        return (append + each + created * hdf5["create_us"]) / 1e6, touched / collectors

    def are_enough(collectors: int) -> bool:
        busy = (receive + index + hdf5_cores(collectors)[0]) / collectors
        return bool(busy <= SHARE and options.nodes <= MAX_SENDERS * max(1, collectors - 1))

    # with every collector more, a job's rows are in more files
    collectors = next(n for n in range(1, 1000) if are_enough(n))
    hdf5_all, written_tables = hdf5_cores(collectors)
    nodes_each = math.ceil(options.nodes / max(1, collectors - 1))  # while one of them is away
    # records in memory, and the rows of a burst in one array
    memory = costs["collector_bytes"] + nodes_each * costs["connection_bytes"] + TAIL_BYTES + OutputBackend.burst_bytes
    journal = per_s * (message + costs["journal_bytes"])
    tables_a_day = day_jobs * collectors * (1 - (1 - 1 / collectors) ** options.nodes_per_job) * len(of_jobs)
    if options.complevel:
        hdf5_day = day_rows * hdf5["row_bytes"] + day_values * hdf5["value_bytes"]
    else:
        hdf5_day = kbytes * 1000 * per_s * DAY_S
    hdf5_day += tables_a_day * hdf5["table_bytes"]
    copies = 1 + options.replicas
    database_day = day_rows * costs["database_document_bytes"] + day_values * costs["database_value_bytes"]
    work = per_s * (rows * costs["database_document_us"] + values * costs["database_value_us"]) / 1e6 * copies
    return [
        ("a message", message, "bytes"),
        ("rows in it", rows, ""),
        ("values in it", values, ""),
        ("messages", per_s, "a second"),
        ("rows", rows * per_s, "a second"),
        ("network to all collectors", message * per_s * 8 / 1e6, "Mbit/s"),
        ("network of a node", message / options.period, "bytes/s"),
        ("CPU: receiving and journal", receive, "cores"),
        ("CPU: Elasticsearch output", index, "cores"),
        ("CPU: HDF5 output", hdf5_all, "cores"),
        (f"collectors, each busy for at most {SHARE:.0%}", collectors, ""),
        ("each collector: busy, with all of them there", (receive + index + hdf5_all) / collectors, "cores"),
        ("each collector: memory while one is away", memory / 1e6, "MB"),
        ("each collector: descriptors while one is away", nodes_each * costs["connection_fds"] + 100, ""),
        ("each collector: HDF5 tables of running jobs", written_tables, ""),
        (f"all journals: {options.away:g} h without an output", journal * options.away * 3600 / 1e9, "GB"),
        (f"all HDF5 files, --hdf5-complevel {options.complevel}", hdf5_day / 1e9, "GB a day"),
        (f"database: disk, {copies} copies", copies * database_day / 1e9, "GB a day"),
        (f"database: disk, {copies} copies, {options.days} days", copies * database_day * options.days / 1e12, "TB"),
        ("database: CPU for indexing", work, "cores"),
        (
            f"database nodes of {DATABASE_CORES} cores, busy for at most {SHARE:.0%} with indexing",
            max(1 + options.replicas, math.ceil(work / SHARE / DATABASE_CORES)) + 1,
            "",
        ),
    ]


def main() -> int:
    """Print what was measured, or what a site needs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", nargs="?", choices=["site", "measure"], default="site")
    parser.add_argument("--elastic-host", metavar="URL", help="measure: a database to be measured, too")
    parser.add_argument("--save", metavar="FILE", help="measure: keep what was measured, for --costs")
    parser.add_argument("--costs", metavar="FILE", default=str(HERE / "sizing.json"), help="site: what units cost")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--period", type=float, default=5.0, help="seconds (default: %(default)g)")
    parser.add_argument("--jobs", type=int, default=2, help="on a node (default: %(default)s)")
    parser.add_argument("--nodes-per-job", type=float, default=4.0, help="(default: %(default)g)")
    parser.add_argument("--job-hours", type=float, default=2.0, help="that a job runs (default: %(default)g)")
    parser.add_argument(
        "--tables",
        default="taskstats_default,cgroup_default,jobprocstats_default,procstats_default,infinibandstats_default,"
        "RAPLstats_default",
        help="what nodes send (default: %(default)s)",
    )
    parser.add_argument("--complevel", type=int, choices=LEVELS, default=1, help="of HDF5 (default: %(default)s)")
    parser.add_argument("--away", type=float, default=12.0, help="hours that an output may be (default: %(default)g)")
    parser.add_argument("--days", type=int, default=90, help="that the database keeps (default: %(default)s)")
    parser.add_argument("--replicas", type=int, default=1, help="copies beside the first (default: %(default)s)")
    options = parser.parse_args()
    if options.what == "measure":
        startup.tune_garbage_collector()
        costs: Costs = {}
        for part in (receiving, hdf5, elasticsearch):
            costs.update(part())
        if options.elastic_host:
            costs.update(database(options.elastic_host))
        elif Path(options.costs).exists():
            known = json.loads(Path(options.costs).read_text())["costs"]
            costs.update({name: known[name] for name in UNITS if name.startswith("database_")})
        if options.save:
            where = f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.machine()}"
            text = json.dumps({"where": where, "costs": {name: round(costs[name], 3) for name in UNITS}}, indent=2)
            Path(options.save).write_text(text + "\n")
        for name in UNITS:
            if name in costs:
                print(f"{UNITS[name]:<76} {costs[name]:14,.2f}")
        return 0
    known = json.loads(Path(options.costs).read_text())
    print(f"costs of: {known['where']}")
    for what, much, unit in site(options, known["costs"]):
        print(f"{what:<64} {much:14,.2f} {unit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
