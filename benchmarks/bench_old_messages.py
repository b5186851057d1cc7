"""Messages of Colmet 0.6 with three taskstats rows each: from their bytes to the rows of an HDF5 file.

Beside the collector, with its journal, stands a collector that handles one record after the other: it unpacks each into
an object, gathers 100 messages, and appends row by row to the table of each job, as Colmet 0.6 does.

    python benchmarks/bench_old_messages.py [--save FILE]

`--save` keeps the messages, so that a real Colmet 0.6 can be given the same ones.
"""

from __future__ import annotations

import argparse
import pickle
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from bench_collector import Chain
from measuring import TIME_NS, Figure, in_turns, show, warm_memory

from colmet.collector.backends.hdf5.library import tables
from colmet.collector.collector import LOOK
from colmet.collector.journal import journal as journal_module
from colmet.common.daemon import startup
from colmet.common.wire import Decoder, colmet06

RECORD = colmet06.RECORDS["taskstats_default"]
ROWS = 3
NODES = 1000
CASES = ((30, ""), (1000, ">= 20"))  # jobs; target
SECONDS = 12
GATHERED = 100  # messages, as by default in Colmet 0.6


def messages(jobs: int) -> list[list[bytes]]:
    """Return what all nodes send, second by second."""
    rng = np.random.default_rng(1)
    rows = np.zeros((NODES, ROWS), RECORD.dtype)
    rows["metric"] = RECORD.name.encode()
    rows["host"] = np.array([f"node-{n}.example.org".encode() for n in range(NODES)])[:, None]
    rows["job_id"] = 100_000 + np.arange(NODES * ROWS).reshape(NODES, ROWS) % jobs
    for name, _, _ in RECORD.counters:
        rows[name] = rng.integers(0, 1 << 31, rows.shape)
    seconds = []
    for second in range(SECONDS):
        rows["time"] = TIME_NS // 10**9 + second
        rows["ac_etime"] += 1_000_000
        seconds.append([row.tobytes() for row in rows])
    return seconds


class OneByOne:
    """A collector that handles one record after the other.

    Args:
        path: of its file.
    """

    def __init__(self, path: Path) -> None:
        codes = {"u8": "Q", "u4": "I", "i8": "q", "f4": "f"}
        self._layout = struct.Struct("<255s255sQQ" + "".join([codes[wire] for _, wire, _ in RECORD.counters]))
        self._names = ["metric_backend", "hostname", "job_id", "timestamp", *[name for name, _, _ in RECORD.counters]]
        columns = [("metric_backend", "S255"), ("hostname", "S255"), *[(name, "<i8") for name in self._names[2:]]]
        self._dtype = np.dtype(columns)
        self.file = tables.open_file(str(path), "w")
        self._tables: dict[int, tables.Table] = {}

    def take(self, came: Sequence[bytes]) -> None:
        """Store the rows of messages."""
        found: dict[int, list[dict[str, object]]] = {}
        for message in came:
            for offset in range(0, len(message), self._layout.size):
                values = list(self._layout.unpack_from(message, offset))
                values[:2] = [text.rstrip(b"\0").decode() for text in values[:2]]
                record = dict(zip(self._names, values))
                found.setdefault(values[2], []).append(record)
        for job, records in found.items():
            table = self._tables.get(job)
            if table is None:
                group = self.file.create_group("/", f"job_{job}")
                table = self._tables[job] = self.file.create_table(group, RECORD.name, self._dtype)
            row = table.row
            for record in records:
                for name, value in record.items():
                    row[name] = value
                row.append()
            table.flush()


def one_by_one(seconds: Sequence[Sequence[bytes]], folder: Path) -> float:
    """Return the rows per CPU second of the other way."""
    other = OneByOne(folder / "one.hdf5")
    other.take(seconds[0])
    began = time.process_time()
    for came in seconds[1:4]:
        for first in range(0, len(came), GATHERED):
            other.take(came[first : first + GATHERED])
    used_s = time.process_time() - began
    other.file.close()
    return 3 * NODES * ROWS / used_s


def together(seconds: Sequence[Sequence[bytes]], folder: Path) -> float:
    """Return the rows per CPU second of the collector, once the tables are there."""
    chain = Chain(folder, 0, True)
    used_s, rows = 0.0, 0
    for n in range(10 * len(seconds)):
        chain.second(seconds[n % len(seconds)])
        if not used_s and chain.bursts >= 2:
            used_s, rows, until = chain.used_s, chain.rows, chain.bursts + 2
        elif used_s and chain.bursts >= until:
            break
    rate = (chain.rows - rows) / (chain.used_s - used_s)
    chain.close()
    return rate


def decode_rate(came: Sequence[bytes], look: int) -> float:
    """Return the rows decoded per CPU second, with this many messages together."""
    decoder = Decoder()
    began = time.process_time()
    for first in range(0, len(came), look):
        decoder.decode_together(came[first : first + look])
    return ROWS * len(came) / (time.process_time() - began)


def run(rounds: int = 3) -> list[Figure]:
    """Figures as (name, value, unit, target)."""
    journal_module.COMMIT_S = 0.0  # groups are made by `Chain`
    startup.tune_garbage_collector()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        warm_memory(Path(name))
        numbers = iter(range(10_000))

        def folder() -> Path:
            made = Path(name) / str(next(numbers))
            made.mkdir()
            return made

        for jobs, target in CASES:
            seconds = messages(jobs)
            found = in_turns(
                [
                    lambda: together(seconds, folder()),  # noqa: B023 - called here
                    lambda: one_by_one(seconds, folder()),  # noqa: B023
                    lambda: decode_rate(seconds[1], LOOK),  # noqa: B023
                    lambda: decode_rate(seconds[1], 1),  # noqa: B023
                ],
                rounds,
            )
            ours, other, decoded, alone = map(max, found)
            what = f"{NODES} nodes, {jobs} jobs"
            figures += [
                (f"{what}: decoded, {LOOK} messages together", decoded, "rows/CPU s", ""),
                (f"{what}: the same / one message at a time", decoded / alone, "times", ""),
                (f"{what}: to file", ours, "rows/CPU s", ""),
                (f"{what}: the same / record by record", ours / other, "times", target),
            ]
    return figures


def main() -> int:
    """Print the figures, or save the messages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--save", metavar="FILE", type=Path, help="write the messages of the first case, and end")
    options = parser.parse_args()
    if options.save:
        options.save.write_bytes(pickle.dumps(messages(CASES[0][0])))
    else:
        show(run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
