"""Shared by tests: batch."""

from __future__ import annotations

from colmet.common.schema import Batch, Field, Sample, Schema, Table

SCHEMA = Schema("t_default", "job", [Field("cpu", "nsec", "counter")])


def batch(seq, rows=1):
    table = Table.from_samples(SCHEMA, 1, [Sample(n, {"cpu": seq}) for n in range(rows)])
    return Batch("h", 1, seq, 1, (), (table,))
