"""Cost of the wire: rows decoded per CPU second, time to encode a message, its size on the wire and in the journal.

One message is what a node with two jobs sends a tick: a procstats row and two taskstats rows. The short form is
compared with the full one for a node with one job and the tables of the default backends,
once a minute its own too.
"""

from __future__ import annotations

import random
import tempfile

from measuring import TIME_NS, Figure, cpu_us

from colmet.collector.journal.journal import Journal
from colmet.common.schema import Batch, Sample, Table
from colmet.common.tables import schemas
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


def one_job_batch(seed: int, period_s: int) -> Batch:
    """One tick of a node with one job, with the tables of the default backends."""
    time_ns = TIME_NS + seed * period_s * 10**9
    names = {"taskstats_default": 1, "cgroup_default": 1, "procstats_default": 1, "jobprocstats_default": 1}
    if seed % (60 // period_s) == 0:
        names["agent_default"] = 5
    tables = tuple(
        [Table(schema, time_ns, schema.empty_rows(n)) for name, n in names.items() for schema in [schemas()[name]]]
    )
    return Batch("node-17.example.org", 1_700_000_000, seed, time_ns, JOBS[:1], tables)


def sizes(period_s: int, is_short: bool, ticks: int = 3600) -> tuple[float, float]:
    """Bytes of a tick of a node with one job, on the wire and in the journal; the first message is in full."""
    size = 0
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal(directory, 1 << 30)
        journal.start(lambda: b"{}")
        for seed in range(ticks):
            batch = one_job_batch(seed, period_s)
            message = v1.encode(batch, is_short=is_short and seed > 0)
            size += len(message)
            journal.append(message, [batch])
        journal.close()
        return size / ticks, (journal.store.size_bytes if journal.store is not None else 0) / ticks


def bench_sizes() -> list[Figure]:
    """The short form against the full one."""
    figures: list[Figure] = []
    for period_s, target in ((1, "<= 0.55"), (5, "")):
        full, short = sizes(period_s, is_short=False), sizes(period_s, is_short=True)
        for where, before, after in zip(("on the wire", "in the journal"), full, short):
            what = f"one job, {period_s} s, {where}"
            figures += [(f"{what}: short form", after, "bytes", ""), (f"{what}: full form", before, "bytes", "")]
            figures.append((f"{what}: short / full", after / before, "times", target))
    return figures


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
    encode_us, short_encode_us, old_encode_us = [
        cpu_us(lambda: list(map(encode, batches)), len(batches), rounds=5, pick=min)  # noqa: B023 - called here
        for encode in (v1.encode, v1.encode_short, colmet06.encode)
    ]
    short_rate = decode_rate(ours[:1] + [v1.encode_short(batch) for batch in batches[1:]])
    return [
        ("decode v1, 3 rows a message", rate, "rows/CPU s", ">= 200,000"),
        ("decode colmet06, 3 rows a message", old_rate, "rows/CPU s", ""),
        ("decode v1 / decode colmet06", rate / old_rate, "times", ""),
        ("decode v1, short form / full form", short_rate / rate, "times", ">= 1"),
        ("encode v1", encode_us, "CPU us/message", ""),
        ("encode v1, short form / full form", short_encode_us / encode_us, "times", "<= 1"),
        ("encode colmet06", old_encode_us, "CPU us/message", ""),
        ("message v1", max(map(len, ours)), "bytes", "<= 2,100"),
        ("message colmet06", max(map(len, old)), "bytes", ""),
        *bench_sizes(),
    ]
