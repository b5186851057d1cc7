"""Shared by tests: GOOD, damaged."""

from __future__ import annotations

import random
from pathlib import Path

from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.wire import MAX_MESSAGE_BYTES, v1

DATA = Path(__file__).parents[1] / "data"


SCHEMA = Schema(
    "demo_default", "job", [Field("reads", "count", "counter"), Field("model", "none", "label", dtype="S4")]
)


TABLES = tuple([Table.from_samples(SCHEMA, t, [Sample(7, {"reads": 3, "model": b"x"}), Sample(8, {})]) for t in (5, 4)])


GOOD = {
    "v1": [v1.encode(Batch("node-1", 1_700_000_000, 42, 5, (7, 8, 2**40), TABLES))],
    "colmet06": [
        (DATA / "colmet06" / "frames" / f"{n}.bin").read_bytes() for n in ("taskstats", "temperature", "mixed")
    ],
    "colmet_rs": [path.read_bytes() for path in sorted((DATA / "colmet_rs").glob("*.bin"))],
}


OVERSIZED = {name: good[0].ljust(MAX_MESSAGE_BYTES + 1, b"\0") for name, good in GOOD.items()}


def damaged(rng: random.Random, dialect: str) -> bytes:
    """One bad message, of one of the kinds that arrive: random, cut, too long, extended, flipped, spliced."""
    good = rng.choice(GOOD[dialect])
    kind = rng.randrange(8)
    if kind == 0:
        return rng.randbytes(rng.randrange(300))
    if kind == 1:  # random, but taken for this dialect
        return good[: rng.choice((1, 2, 3, 8, 255))] + rng.randbytes(rng.randrange(300))
    if kind == 2:
        return good[: rng.randrange(len(good))]
    if kind == 3:
        return OVERSIZED[dialect] if rng.random() < 0.1 else good + good[: rng.randrange(1, len(good))]
    if kind == 4:
        return good + rng.randbytes(rng.randrange(1, 50))
    if kind == 5:
        start, end = sorted(rng.choices(range(len(good)), k=2))
        return good[:start] + rng.choice((b"", good[:end], rng.randbytes(5))) + good[end:]
    flipped = bytearray(good)
    # the counters of a record take any bits: aim at the first bytes half of the time
    reach = len(good) if kind == 6 else min(len(good), 600)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        flipped[rng.randrange(reach)] ^= 1 << rng.randrange(8)
    return bytes(flipped)
