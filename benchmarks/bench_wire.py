"""Cost of the wire: rows decoded per CPU second, time to encode a message, and its size.

One message is what a node with two jobs sends a tick: a procstats row and two taskstats rows.
"""

from __future__ import annotations

import random

from measuring import TIME_NS, Figure, cpu_us

from colmet.common.schema import Batch, Sample, Table
from colmet.common.wire import Decoder, colmet06, v1

JOBS = (4242, 4243)
ROWS = 3


def node_batch(seed: int) -> Batch:
    """One tick of a node with two jobs, its counters as large as after months of uptime."""
    rng = random.Random(seed)

    def table(name: str, jobs: tuple[int, ...]) -> Table:
        record = colmet06.RECORDS[name]
        samples = [
            Sample(
                job,
                {
                    counter: rng.randrange(2**10) / 16
                    if wire == "f4"
                    else rng.randrange(2**32 if wire == "u4" else 2**40)
                    for counter, wire, _ in record.counters
                },
            )
            for job in jobs
        ]
        return Table.from_samples(record.schema, TIME_NS, samples)

    tables = (table("procstats_default", (0,)), table("taskstats_default", JOBS))
    return Batch("node-17.example.org", 1_700_000_000, seed, TIME_NS, JOBS, tables)


def decode_rate(messages: list[bytes]) -> float:
    """Rows decoded per CPU second, by a decoder that has seen the node before."""
    decoder = Decoder()

    def work() -> None:
        for message in messages:
            decoder.decode(message)

    return 1e6 * ROWS * len(messages) / cpu_us(work, rounds=5, pick=min)


def run() -> list[Figure]:
    """Figures as (name, value, unit, target)."""
    batches = [node_batch(seed) for seed in range(100)]
    ours = [v1.encode(batch) for batch in batches]
    old = [colmet06.encode(batch) for batch in batches]
    rate, old_rate = decode_rate(ours), decode_rate(old)
    encode_us, old_encode_us = [
        cpu_us(lambda: list(map(encode, batches)), len(batches), rounds=5, pick=min)  # noqa: B023 - called here
        for encode in (v1.encode, colmet06.encode)
    ]
    return [
        ("decode v1, 3 rows a message", rate, "rows/CPU s", ">= 200,000"),
        ("decode colmet06, 3 rows a message", old_rate, "rows/CPU s", ""),
        ("decode v1 / decode colmet06", rate / old_rate, "times", ""),
        ("encode v1", encode_us, "CPU us/message", ""),
        ("encode colmet06", old_encode_us, "CPU us/message", ""),
        ("message v1", max(map(len, ours)), "bytes", "<= 2,100"),
        ("message colmet06", max(map(len, old)), "bytes", ""),
    ]
