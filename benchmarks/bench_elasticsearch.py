"""CPU time of the collector for a document, against json.dumps and requests with the same documents in the same run.

The messages are those of nodes with some jobs each: tables of Colmet 0.6, with a row for each job or for the node. Ours
is the whole way from their bytes to the server's replies and the saved position. Plain starts from dictionaries,
converts each to JSON, and posts bodies of the same size. The server is another process that only counts lines, so the
figures are of the collector's side alone.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import requests
from measuring import TIME_NS, Figure, discarding_server, in_turns

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.elasticsearch.documents import IndexNaming
from colmet.collector.backends.elasticsearch.output import MAX_BULK_BYTES, ElasticsearchOutput
from colmet.collector.journal.output_state import OutputState
from colmet.common.daemon import startup
from colmet.common.http_client import HttpClient
from colmet.common.schema import Batch, Table
from colmet.common.wire import Decoder, colmet06, v1

# by what they are called: tables with a row for each job, and for the node; jobs on a node
KINDS: dict[str, tuple[Sequence[str], Sequence[str], int]] = {
    "taskstats of 4 jobs": (["taskstats_default"], [], 4),
    "procstats alone": ([], ["procstats_default"], 4),
    "4 tables, 4 jobs": (["taskstats_default", "jobprocstats_default"], ["procstats_default", "RAPLstats_default"], 4),
    "4 tables, 1 job": (["taskstats_default", "jobprocstats_default"], ["procstats_default", "RAPLstats_default"], 1),
}
DOCUMENTS = 10_000
MISSING = 0.02  # of the nodes lack one column of a table
ROUNDS = 3
TARGET_US = 30.0


def batches(job_tables: Sequence[str], node_tables: Sequence[str], jobs_on_node: int) -> Iterator[Batch]:
    """As many as make `DOCUMENTS` rows."""
    rng = np.random.default_rng(1)
    count = DOCUMENTS // (len(job_tables) * jobs_on_node + len(node_tables))
    for number in range(count):
        jobs = tuple(range(1000 + number % 500, 1000 + number % 500 + jobs_on_node))
        tick_ns = TIME_NS + number * 1_000_000
        tables = []
        for name in (*job_tables, *node_tables):
            schema = colmet06.RECORDS[name].schema
            rows = schema.empty_rows(jobs_on_node if name in job_tables else 1)
            for field in schema.fields:
                if field.dtype[0] == "f":
                    rows[field.name] = rng.integers(0, 10_000, len(rows)) / 100
                else:
                    rows[field.name] = rng.integers(0, 1 << 40, len(rows))
            rows["job_id"] = jobs if name in job_tables else 0
            if number % int(1 / MISSING) == 0:
                rows[schema.names[number % len(schema.names)]] = schema.fields[number % len(schema.names)].missing
            tables.append(Table(schema, tick_ns, rows))
        yield Batch(f"node-{number % 2000}.example.org", TIME_NS, number, tick_ns, jobs, tuple(tables))


class Ours:
    """From the bytes of messages to a saved position."""

    def __init__(self, port: int, messages: Sequence[bytes], folder: Path) -> None:
        self._messages = messages
        self._decode = Decoder().decode
        self._output = ElasticsearchOutput(
            [f"http://127.0.0.1:{port}"], HttpClient({}), IndexNaming("colmet_", "", False)
        )
        self._output.open(OutputState(str(folder / "state.json"), "0123456789abcdef", 0, 0))
        self._next = 0

    def write(self) -> None:
        records = [
            JournalRecord(self._next + number, TIME_NS, self._decode(message).batches)
            for number, message in enumerate(self._messages)
        ]
        self._next += len(records)
        self._output.write(records)

    def close(self) -> None:
        counters = self._output.counters()
        assert counters["rejected"] == counters["retried"] == counters["host_failures"] == 0, counters
        self._output.close()


class Plain:
    """Dictionaries through json.dumps and requests, in bodies of the same size."""

    def __init__(self, port: int, messages: Sequence[bytes], folder: Path) -> None:
        self._url = f"http://127.0.0.1:{port}/_bulk"
        self._session = requests.Session()
        decode = Decoder().decode
        self._documents: list[tuple[object, dict[str, object]]] = []
        for message in messages:
            for batch in decode(message).batches:
                for table in batch.tables:
                    for sample in table.samples():
                        values = {name: value for name, value in sample.values.items() if value is not None}
                        document: dict[str, Any] = {"hostname": batch.host, "job_id": sample.job_id}
                        document["timestamp"] = table.time_ns // 10**9
                        if table.schema.scope == "node":
                            document["involved_jobs"] = list(batch.jobs or ())
                        number = len(self._documents)
                        action = {"create": {"_index": f"colmet_{table.schema.name.lower()}", "_id": f"{number:028x}"}}
                        self._documents.append((action, {**document, **values}))

    def write(self) -> None:
        lines: list[str] = []
        size = 0
        for action, document in self._documents:
            pair = json.dumps(action) + "\n" + json.dumps(document) + "\n"
            lines.append(pair)
            size += len(pair)
            if size > MAX_BULK_BYTES:
                self._post(lines)
                lines, size = [], 0
        self._post(lines)

    def _post(self, lines: Sequence[str]) -> None:
        headers = {"Content-Type": "application/x-ndjson"}
        answer = self._session.post(self._url, data="".join(lines).encode(), headers=headers, timeout=60).json()
        assert not answer["errors"]

    def close(self) -> None:
        self._session.close()


def cost_us(make: Callable[[], Ours | Plain]) -> float:
    """CPU time for a document, once everything is warm, in us."""
    writer = make()
    writer.write()
    start = time.process_time()
    writer.write()
    taken = time.process_time() - start
    writer.close()
    return taken / DOCUMENTS * 1e6


def run() -> list[Figure]:
    """Figures as (name, value, unit, target)."""
    startup.tune_garbage_collector()
    figures: list[Figure] = []
    with discarding_server() as port, tempfile.TemporaryDirectory() as name:
        for what, kind in KINDS.items():
            made = list(batches(*kind))
            new, old = [v1.encode(batch) for batch in made], [colmet06.encode(batch) for batch in made]
            writers = [partial(cls, port, sent, Path(name)) for cls, sent in ((Ours, new), (Ours, old), (Plain, new))]
            costs = in_turns([partial(cost_us, writer) for writer in writers], ROUNDS, warm=False)
            ours_us, old_us, plain_us = map(statistics.median, costs)
            figures += [
                (f"{what}: bytes to answer, v1", ours_us, "us/document", f"<= {TARGET_US:.0f}"),
                (f"{what}: bytes to answer, messages of 0.6", old_us, "us/document", ""),
                (f"{what}: json.dumps and requests alone", plain_us, "us/document", ""),
                (f"{what}: v1 / json.dumps and requests", ours_us / plain_us, "times", ""),
            ]
    return figures
