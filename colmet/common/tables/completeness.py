"""Tables of completeness: samples due, measured, sent and dropped, and the gaps."""

from __future__ import annotations

from colmet.common.schema import Field, Schema, label

ALL = "*"  # the row of whole batches


def _counter(name: str, text: str, source: str = "the agent") -> Field:
    return Field(name, "count", "counter", f"{text} Source: {source}.")


_EPOCH = Field("epoch", "nsec", "gauge", "Start of the agent, since 1970; identifies the start. Source: the agent.")
_SPOOL = "the spool"
# A sample is one table at one time; counters start at 0 with the agent. Inapplicable ones are missing in a row.
SCHEMA = Schema(
    "completeness_default",
    "node",
    [
        label("table", 64, f"Table of the row; '{ALL}' for whole batches.", "the agent"),
        _EPOCH,
        Field("period", "usec", "gauge", "From one tick to the next. Source: --sample-period."),
        Field("is_last", "count", "gauge", "1 in the last rows of the agent, else 0. Source: the agent."),
        _counter("due", "Samples due up to this time: taken, failed and late."),
        _counter("taken", "Measured samples; in rows of batches, batches. This one is included."),
        _counter("failed", "Samples that failed, or lost a requirement."),
        _counter("late", "Samples skipped because the previous one had not ended, or a tick was skipped."),
        _counter("rows", "Rows of the samples taken."),
        Field(
            "rows_now",
            "count",
            "gauge",
            "Rows with the time of this batch, in whole seconds. Source: the agent.",
        ),
        _counter("sent", "Samples sent to a collector, each once; up to the one before this.", _SPOOL),
        _counter("acknowledged", "Samples acknowledged by a collector.", _SPOOL),
        _counter("dropped", "Samples dropped before a collector had them.", _SPOOL),
        _counter("duplicate", "Batches received more than once by the collector; it keeps one.", "the collector"),
    ],
)
GAPS = Schema(
    "gaps_default",
    "node",
    [
        label("table", 64, f"Table with missing samples; '{ALL}' for all tables of the batches.", "the agent"),
        label("why", 16, "failed, late, or dropped.", "the agent"),
        _EPOCH,
        Field("first", "ts_date", "gauge", "Time of the first missing sample. Source: the agent."),
        Field("last", "ts_date", "gauge", "Time of the last one; a growing gap is reported again. Source: the agent."),
        Field("samples", "count", "gauge", "Missing samples, or batches, in between. Source: the agent."),
        Field("first_batch", "count", "gauge", "Number of the first dropped batch. Source: the spool."),
        Field("last_batch", "count", "gauge", "Number of the last one. Source: the spool."),
    ],
)
