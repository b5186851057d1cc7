"""Table of perf events counted for each job."""

from __future__ import annotations

from colmet.common.schema import Field, Schema
from colmet.common.tables.agent_counters import counter

MAX_EVENTS = 5
_SOURCE = "Source: perf_event_open(2), PERF_FLAG_PID_CGROUP"


def _counter(number: int) -> Field:
    text = (
        f"Events of the job since its previous row: event number {number} of --perfhw-list, named in mapping_default; "
        "scaled up if the event had a counter for a part of the time only."
    )
    return Field(f"counter_{number}", "count", "gauge", f"{text} {_SOURCE}.")


def _scale(number: int) -> Field:
    text = f"Share of the job's CPU time with a counter for event {number}; 1 if nothing was scaled."
    return Field(f"scale_{number}", "none", "gauge", f"{text} {_SOURCE}, time running / time enabled.", dtype="f8")


_NUMBERS = range(1, MAX_EVENTS + 1)
SCHEMA = Schema("perfhwstats_default", "job", [*map(_counter, _NUMBERS), *map(_scale, _NUMBERS)])

AGENT_COUNTERS = (
    counter("perf_jobs_uncounted", "Jobs whose events could not be opened at first.", "perfhw backend"),
    counter("perf_fd_shortages", "Shortages of descriptors for a job's events.", "perfhw backend"),
    counter("perf_yields", "Events closed for a user's own perf.", "perfhw backend"),
    counter("perf_files_left_out", "Incomplete searches for a user's own perf.", "perfhw backend"),
    counter("perf_read_failures", "Failed reads of a job's events.", "perfhw backend"),
    counter("perf_tasks_moved", "Processes put into groups of --perfhw-make-cgroup.", "perfhw backend"),
    counter("perf_group_failures", "Failures to make, fill or remove such groups.", "perfhw backend"),
)
