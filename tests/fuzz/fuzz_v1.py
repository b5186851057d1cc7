"""Messages of our own dialect."""

from __future__ import annotations

from colmet.common.errors import WireError
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.wire import v1

KNOWN = Schema(
    "demo_default",
    "job",
    [Field("n", "count", "counter"), Field("f", "none", "gauge", dtype="f4"), Field("s", "none", "label", dtype="S3")],
)
TABLES = tuple([Table.from_samples(KNOWN, t, [Sample(7, {"n": 3, "s": b"x"}), Sample(8, {})]) for t in (5, 4)])
SEEDS = [
    v1.encode(Batch("node-1", 1_700_000_000, 42, 5, (7, 8, 2**40), TABLES)),
    v1.encode(Batch("n", 2**62, 0, 2**63 - 1, None, TABLES[:1])),
    v1.encode(Batch("n", 0, 0, 0, (), ())),
]


def outcome(read, message):
    """The batch that a reader makes, or the refusal; a cache that knows a schema lets changed rows be looked at."""
    schemas = v1.SchemaCache()
    schemas.get(KNOWN.digest, v1.pack_description(KNOWN))
    try:
        batch, checksum = read(message, schemas)
    except WireError:
        return None
    tables = [(table.schema, table.time_ns, table.packed) for table in batch.tables]
    return batch._replace(tables=()), [*tables, checksum], batch


def read_slowly(message, schemas):
    """As large messages are read: header by header."""
    small, v1.MAX_SMALL_BYTES = v1.MAX_SMALL_BYTES, 0
    try:
        return v1.decode(message, schemas)
    finally:
        v1.MAX_SMALL_BYTES = small


def one(data: bytes) -> None:
    """Both ways of reading agree, and what was read is said again in the same words."""
    if not data:
        return  # distinguished before
    found = outcome(v1.decode, data)
    slowly = outcome(read_slowly, data)
    assert (found is None) == (slowly is None)
    if found is None:
        return
    assert found[:2] == slowly[:2]
    batch = found[2]
    for table in batch.tables:
        assert len(table.rows) == len(table) and table.rows.dtype == table.schema.dtype
        assert all(job >= 0 for job in table.rows["job_id"].tolist())
    again = outcome(v1.decode, v1.encode(batch))
    assert again is not None and again[:2] == found[:2]
