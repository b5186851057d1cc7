"""Rows that reach standard output per CPU second, in each format, against json.dumps of the same rows.

python benchmarks/bench_stdout.py
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

from bench_hdf5 import messages

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.stdout import FORMATS, StdoutOutput
from colmet.collector.journal.output_state import OutputState
from colmet.common.wire import Decoder

ROWS_PER_MESSAGE = 4
ROWS = 10_000
ROUNDS = 3


def rows_per_cpu_second(work: Callable[[], None]) -> float:
    """Of the best of some rounds."""
    taken = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return ROWS / min(taken)


def run() -> list[tuple[str, float, str, str]]:
    """The figures: what, value, unit, target."""
    packed = messages(ROWS_PER_MESSAGE)
    decoded = [Decoder().decode(message).batches for message in packed]
    documents = [
        sample.values
        for batches in decoded
        for batch in batches
        for table in batch.tables
        for sample in table.samples()
    ]
    assert len(documents) == ROWS
    plain = rows_per_cpu_second(lambda: "\n".join([json.dumps(document) for document in documents]).encode())
    figures = [("json.dumps of dicts that are ready", plain, "rows/CPU s", "")]
    descriptor = os.open(os.devnull, os.O_WRONLY)
    try:
        for form in FORMATS:
            output = StdoutOutput(form, descriptor)
            state = OutputState("", "0" * 16, 0, 0)
            output.open(state)

            def work(output: StdoutOutput = output, state: OutputState = state) -> None:
                decoder, first = Decoder(), state.position
                output.write([JournalRecord(first + n, 0, decoder.decode(one).batches) for n, one in enumerate(packed)])

            rate = rows_per_cpu_second(work)
            figures.append((f"{form}: message bytes to text", rate, "rows/CPU s", ""))
            figures.append((f"{form} / json.dumps", rate / plain, "times", ""))
    finally:
        os.close(descriptor)
    return figures


if __name__ == "__main__":
    for what, value, unit, target in run():
        print(f"{what:<50} {value:12,.2f} {unit:<12} {target}")
