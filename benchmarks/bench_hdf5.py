"""Rows per CPU second into an HDF5 file, against PyTables alone in the same run.

A burst is 10,000 taskstats rows, 100 of each of 100 jobs, in messages of nodes with two, four or eight jobs each: the
fewer rows a message has, the larger the part of reading messages. Ours is the whole way from the bytes of the messages
to the flushed file. PyTables appends prepared rows to open tables, one array a job, and flushes tables and file.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measuring import TIME_NS, Figure, in_turns, warm_memory

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.hdf5 import library
from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.collector.journal.output_state import OutputState
from colmet.common.daemon import startup
from colmet.common.schema import Batch, Table
from colmet.common.wire import Decoder, colmet06, v1

tables = library.tables

SCHEMA = colmet06.RECORDS["taskstats_default"].schema
FIRST_JOB = 100_000
JOBS = 100
ROWS_PER_JOB = 100
ROWS_PER_MESSAGE = (2, 4, 8)
BURSTS = {0: 5, 9: 1}  # by compression level
ROUNDS = 5
TARGET_RATIO = 0.60


def messages(rows_per_message: int) -> list[bytes]:
    """One burst in wire v1: the rows go round the jobs, each message has the next ones."""
    rng = np.random.default_rng(1)
    packed = []
    for first in range(0, JOBS * ROWS_PER_JOB, rows_per_message):
        numbers = range(first, min(first + rows_per_message, JOBS * ROWS_PER_JOB))
        rows = SCHEMA.empty_rows(len(numbers))
        for name in SCHEMA.names:
            rows[name] = rng.integers(0, 1 << 40, len(numbers))
        jobs = tuple([FIRST_JOB + number % JOBS for number in numbers])
        rows["job_id"] = jobs
        tick_ns = TIME_NS + first // JOBS * 10**9
        host = f"node-{jobs[0] % 40}.example.org"
        packed.append(v1.encode(Batch(host, TIME_NS, first, tick_ns, jobs, (Table(SCHEMA, tick_ns, rows),))))
    return packed


class Ours:
    """From the bytes of the messages to the flushed file, or only from the decoded batches on."""

    def __init__(self, path: Path, complevel: int, burst: Sequence[bytes], decoded: bool = False) -> None:
        self._messages = burst
        self._decode = Decoder().decode
        self._batches = self._decoded() if decoded else None
        self._output = Hdf5Output(str(path), complevel=complevel)
        self._state = OutputState(f"{path}.state", "0" * 16, 0, 0)  # what it remembers is written and fsynced, too
        self._output.open(self._state)

    def _decoded(self) -> list[tuple[Batch, ...]]:
        return [self._decode(message).batches for message in self._messages]

    def write(self) -> None:
        batches = self._decoded() if self._batches is None else self._batches
        first = self._state.position
        self._output.write([JournalRecord(first + n, TIME_NS, some) for n, some in enumerate(batches)])

    def close(self) -> None:
        self._output.close()
        os.unlink(f"{self._output.path}.state")


class Bare:
    """Rows that are ready for the file, appended by PyTables."""

    def __init__(self, path: Path, complevel: int, ready: dict[str, Any]) -> None:
        self._file = tables.open_file(str(path), "w")
        filters = tables.Filters(complevel)
        self._appends = []
        for node, rows in ready.items():
            group, name = node.rsplit("/", 1)
            table = self._file.create_table(group, name, rows.dtype, "Metrics for the Job", filters, createparents=True)
            self._appends.append((table, rows))

    def write(self) -> None:
        for table, rows in self._appends:
            table.append(rows)
        for table, _ in self._appends:
            table.flush()
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def ready_rows(path: Path, burst: Sequence[bytes]) -> dict[str, Any]:
    """The rows of a burst as they are in a file, by table."""
    output = Ours(path, 0, burst)
    output.write()
    output.close()
    with tables.open_file(str(path)) as file:
        return {table._v_pathname: table.read() for table in file.walk_nodes("/", "Table")}


def rows_per_cpu_second(writer: Ours | Bare, bursts: int) -> float:
    """Of the bursts after the first two: one creates the tables, the other meets what Python cleans up after that."""
    writer.write()
    writer.write()
    start = time.process_time()
    for _ in range(bursts):
        writer.write()
    taken = time.process_time() - start
    writer.close()
    return bursts * JOBS * ROWS_PER_JOB / taken


def compare(folder: Path, complevel: int, burst: Sequence[bytes], ready: dict[str, Any]) -> list[float]:
    """Medians: rows per CPU second of ours, of ours from decoded batches on, and of bare PyTables; the two ratios."""
    path = folder / "burst.hdf5"
    writers: list[Callable[[], Ours | Bare]] = [
        lambda: Ours(path, complevel, burst),
        lambda: Ours(path, complevel, burst, decoded=True),
        lambda: Bare(path, complevel, ready),
    ]
    warm_memory(folder)

    def rate(make: Callable[[], Ours | Bare]) -> float:
        found = rows_per_cpu_second(make(), BURSTS[complevel])
        path.unlink()
        return found

    rates = in_turns([partial(rate, make) for make in writers], ROUNDS)
    ratios = [[one / bare for one, bare in zip(ours, rates[2])] for ours in rates[:2]]
    return [statistics.median(column) for column in (*rates, *ratios)]


def run() -> list[Figure]:
    """Figures as (name, value, unit, target)."""
    warnings.filterwarnings("ignore", category=tables.NaturalNameWarning)
    startup.tune_garbage_collector()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for complevel, label, sizes in ((0, "no compression", ROWS_PER_MESSAGE), (9, "zlib 9", ROWS_PER_MESSAGE[1:2])):
            for rows_per_message in sizes:
                burst = messages(rows_per_message)
                ready = ready_rows(folder / "ready.hdf5", burst)
                ours, decoded, bare, ratio, decoded_ratio = compare(folder, complevel, burst, ready)
                (folder / "ready.hdf5").unlink()
                what = f"{label}, {rows_per_message} rows a message"
                target = f">= {TARGET_RATIO:.2f}" if rows_per_message >= 4 else ""
                figures += [
                    (f"{what}: bytes to file", ours, "rows/CPU s", ""),
                    (f"{what}: decoded batches to file", decoded, "rows/CPU s", ""),
                    (f"{what}: bare PyTables", bare, "rows/CPU s", ""),
                    (f"{what}: bytes to file / bare", ratio, "times", target),
                    (f"{what}: decoded batches to file / bare", decoded_ratio, "times", ""),
                ]
    return figures
