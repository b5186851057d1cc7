"""Tables of completeness: the samples of each table that are due, measured, sent and dropped, and the gaps.

A sample is one table at one time. `completeness_default` has a row for each table and one for whole batches (`ALL`);
its counters start at 0 with the agent, and inapplicable ones are missing. `gaps_default` has a row for each run of
missing samples. The agent's completeness statistics fill both; readers of the store compare them with the stored rows.
"""

from __future__ import annotations

from colmet.common.schema import Field, Schema, counter, gauge, label

ALL = "*"  # the row of whole batches


def _counter(name: str, text: str, source: str = "the agent") -> Field:
    return counter(name, "count", text, source)


_EPOCH = gauge("epoch", "nsec", "Start of the agent, since 1970; identifies the start.", "the agent")
_SPOOL = "the spool"
SCHEMA = Schema(
    "completeness_default",
    "node",
    [
        label("table", 64, f"Table of the row; '{ALL}' for whole batches.", "the agent"),
        _EPOCH,
        gauge("period", "usec", "From one tick to the next.", "--sample-period"),
        gauge("is_last", "count", "1 in the last rows of the agent, else 0.", "the agent"),
        _counter("due", "Samples due up to this time: taken, failed and late."),
        _counter("taken", "Measured samples; in rows of batches, batches. This one is included."),
        _counter("failed", "Samples that failed, or lost a requirement."),
        _counter("late", "Samples skipped because the previous one had not ended, or a tick was skipped."),
        _counter("rows", "Rows of the samples taken."),
        gauge("rows_now", "count", "Rows with the time of this batch, in whole seconds.", "the agent"),
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
        gauge("first", "ts_date", "Time of the first missing sample.", "the agent"),
        gauge("last", "ts_date", "Time of the last one; a growing gap is reported again.", "the agent"),
        gauge("samples", "count", "Missing samples, or batches, in between.", "the agent"),
        gauge("first_batch", "count", "Number of the first dropped batch.", "the spool"),
        gauge("last_batch", "count", "Number of the last one.", "the spool"),
    ],
)
