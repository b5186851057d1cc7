"""Messages of Colmet 0.6."""

from __future__ import annotations

import struct
from pathlib import Path

from colmet.common.errors import WireError
from colmet.common.wire import colmet06

MAX_BYTES = 20_000
FRAMES = Path(__file__).parents[1] / "data/colmet06/frames"


def record(name, host, job, time, counters=b"", involved=b""):
    """A record, its counters filled up with zeros."""
    layout = colmet06.RECORDS[name]
    tail = involved.ljust(colmet06.INVOLVED_JOBS_BYTES, b"\0") if layout.involved_jobs else b""
    head = struct.pack("<255s255sqq", name.encode(), host, job, time)
    return head + counters.ljust(layout.size - len(head) - len(tail), b"\0") + tail


SEEDS = [
    *[(FRAMES / f"{name}.bin").read_bytes() for name in ("taskstats", "temperature", "jobprocstats")],
    record("lustrestats_default", b"node-1", 0, 1_700_000_000, b"\xff" * 32, b"[1, 2, 3]"),
    record("perfhwstats_default", b"n", 3, 5) + record("perfhwstats_default", b"m", 4, 5),
]


def said_again(batches):
    """Messages with the same rows."""
    return [colmet06.encode(batch) for batch in batches]


def one(data: bytes) -> None:
    """What was read can be sent to an old collector, and comes back as it went."""
    try:
        batches = colmet06.decode(data)
    except WireError:
        return
    for batch in batches:
        for table in batch.tables:
            assert table.rows.dtype == table.schema.dtype
            assert all(job >= 0 for job in table.rows["job_id"].tolist())
    assert sum(batch.row_count for batch in batches) <= len(data) // 500
    messages = said_again(batches)
    for message in messages:
        assert said_again(colmet06.decode(message)) == [message]
