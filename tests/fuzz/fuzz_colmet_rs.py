"""Messages of the Rust node."""

from __future__ import annotations

from pathlib import Path

from colmet.common.errors import WireError
from colmet.common.wire import colmet_rs

SEEDS = [path.read_bytes() for path in sorted((Path(__file__).parents[1] / "data/colmet_rs").glob("*.bin"))]


def one(data: bytes) -> None:
    """What is accepted are rows of the tables that this dialect has."""
    try:
        batches, skipped = colmet_rs.decode(data)
    except WireError:
        return
    assert skipped >= 0
    for batch in batches:
        assert 0 <= batch.time_ns < 1 << 63
        for table in batch.tables:
            assert table.schema in colmet_rs.SCHEMAS.values()
            assert set(table.rows["job_id"].tolist()) <= set(batch.jobs)
            assert len(table) == len(set(table.rows["job_id"].tolist()))
