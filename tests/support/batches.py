"""Shared by tests: batch, DATA."""

from __future__ import annotations

from pathlib import Path

from colmet.common.schema import Batch, Field, Sample, Schema, Table

DATA = Path(__file__).parents[1] / "data"


SCHEMA = Schema("t_default", "job", [Field("cpu", "nsec", "counter")])


def batch(seq, host="node-1", epoch=1):
    time_ns = 10**18 + epoch * 10**13 + seq * 10**9  # a start is followed by another one, as of one agent
    return Batch(host, epoch, seq, time_ns, (7,), (Table.from_samples(SCHEMA, time_ns, [Sample(7, {"cpu": seq})]),))
