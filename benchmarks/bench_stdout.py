"""Rows that reach standard output per CPU second, in each format, against json.dumps of the same rows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from bench_hdf5 import messages
from measuring import Figure, cpu_us

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.stdout import FORMATS, StdoutOutput
from colmet.collector.journal.output_state import OutputState
from colmet.common.wire import Decoder

ROWS_PER_MESSAGE = 4
ROWS = 10_000
ROUNDS = 3


def rows_per_cpu_second(work: Callable[[], object]) -> float:
    """Of the best of some rounds."""
    return 1e6 * ROWS / cpu_us(work, calls=1, rounds=ROUNDS, pick=min)


def run() -> list[Figure]:
    """The figures: what, value, unit, target."""
    packed = messages(ROWS_PER_MESSAGE)
    decoded = [Decoder().decode(message).batches for message in packed]
    tables = [table for batches in decoded for batch in batches for table in batch.tables]
    documents = [sample.values for table in tables for sample in table.samples()]
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
