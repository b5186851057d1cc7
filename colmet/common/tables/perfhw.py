"""Table of perf events counted for each job."""

from __future__ import annotations

from colmet.common.schema import Field, Schema, counter, gauge

MAX_EVENTS = 5
_SOURCE = "perf_event_open(2), PERF_FLAG_PID_CGROUP"


def _counter(number: int) -> Field:
    text = (
        f"Events of the job since its previous row: event number {number} of --perfhw-list, named in mapping_default; "
        "scaled up if the event had a counter for a part of the time only."
    )
    return gauge(f"counter_{number}", "count", text, _SOURCE)


def _scale(number: int) -> Field:
    text = f"Share of the job's CPU time with a counter for event {number}; 1 if nothing was scaled."
    return gauge(f"scale_{number}", "none", text, f"{_SOURCE}, time running / time enabled", "f8")


_NUMBERS = range(1, MAX_EVENTS + 1)
SCHEMA = Schema("perfhwstats_default", "job", [*map(_counter, _NUMBERS), *map(_scale, _NUMBERS)])

AGENT_COUNTERS = (
    counter("perf_jobs_uncounted", "count", "Jobs whose events could not be opened at first.", "the perfhw backend"),
    counter("perf_fd_shortages", "count", "Shortages of descriptors for a job's events.", "the perfhw backend"),
    counter("perf_yields", "count", "Events closed for a user's own perf.", "the perfhw backend"),
    counter("perf_files_left_out", "count", "Incomplete searches for a user's own perf.", "the perfhw backend"),
    counter("perf_read_failures", "count", "Failed reads of a job's events.", "the perfhw backend"),
    counter("perf_tasks_moved", "count", "Processes put into groups of --perfhw-make-cgroup.", "the perfhw backend"),
    counter("perf_group_failures", "count", "Failures to make, fill or remove such groups.", "the perfhw backend"),
)
