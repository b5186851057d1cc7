"""Tables of completeness: what was due, measured, sent and dropped, and the gaps."""

from __future__ import annotations

from colmet.common.schema import Field, Schema, label

ALL = "*"  # the row of whole batches


def _counter(name: str, text: str, source: str = "the agent") -> Field:
    return Field(name, "count", "counter", f"{text} Source: {source}.")


_EPOCH = Field("epoch", "nsec", "gauge", "Start of the agent, since 1970: what names the start. Source: the agent.")
_SPOOL = "the spool"
# A sample is one table at one time; counters start at 0 with the agent. Those that a row has none of are missing in it.
SCHEMA = Schema(
    "completeness_default",
    "node",
    [
        label("table", 64, f"Table that the row is about; '{ALL}' for whole batches.", "the agent"),
        _EPOCH,
        Field("period", "usec", "gauge", "From one tick to the next. Source: --sample-period."),
        Field("is_last", "count", "gauge", "1 in the rows with which the agent ends, else 0. Source: the agent."),
        _counter("due", "Samples that were due up to this time: taken, failed and late."),
        _counter("taken", "Samples that were measured; batches, where the row is about these. This one is included."),
        _counter("failed", "Samples that could not be measured, or what they need had gone."),
        _counter("late", "Samples left out as the one before had not ended, or a tick was skipped."),
        _counter("rows", "Rows of the samples that were taken."),
        Field(
            "rows_now",
            "count",
            "gauge",
            "Those of them that have the time of this batch, in whole seconds. Source: the agent.",
        ),
        _counter("sent", "Samples sent to a collector, each once; up to the one before this.", _SPOOL),
        _counter("acknowledged", "Samples that a collector will not lose any more.", _SPOOL),
        _counter("dropped", "Samples that were given up before a collector had them.", _SPOOL),
        _counter("duplicate", "Batches that came to the collector more than once; it keeps one.", "the collector"),
    ],
)
GAPS = Schema(
    "gaps_default",
    "node",
    [
        label("table", 64, f"Table that lacks samples; '{ALL}' for all that the batches held.", "the agent"),
        label("why", 16, "failed, late, or dropped.", "the agent"),
        _EPOCH,
        Field("first", "ts_date", "gauge", "Time of the first sample that is missing. Source: the agent."),
        Field("last", "ts_date", "gauge", "Time of the last one; a gap that grows is told again. Source: the agent."),
        Field("samples", "count", "gauge", "Samples, or batches, that are missing in between. Source: the agent."),
        Field("first_batch", "count", "gauge", "Number of the first batch that was dropped. Source: the spool."),
        Field("last_batch", "count", "gauge", "Number of the last one. Source: the spool."),
    ],
)
