"""Table of the names of numbered columns: the event counted by counter_7 on a node."""

from __future__ import annotations

from colmet.common.schema import Schema, label

_SOURCE = "the backend that measures the column"
SCHEMA = Schema(
    "mapping_default",
    "node",
    [
        label("metric", 64, "Table of the column, RAPLstats_default.", _SOURCE),
        label("counter", 32, "The column, counter_7.", _SOURCE),
        label("name", 128, "Meaning of the counter on this node.", _SOURCE),
        label("unit", 32, "Unit of its values.", _SOURCE),
        label("zone", 64, "Part of the node; empty for the whole node.", _SOURCE),
    ],
)
