"""Health of the agent for queries: a snapshot made after each tick, so that a query costs no tick anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from colmet.common.daemon.daemon_health import (
    DaemonIdentity,
    Family,
    RecentGrowth,
    families_of,
    in_base_unit,
    labels,
    named,
    single,
)
from colmet.common.live.latest_tables import JobMetrics, LatestTables
from colmet.common.live.summary import TABLES, Top
from colmet.common.schema import Batch
from colmet.common.tables.agent import AGENT as SCHEMA
from colmet.common.text import counted
from colmet.node.delivery.uplink import Uplink, UplinkState

if TYPE_CHECKING:
    from colmet.node.runner import Runner

# The agent's counters of failures.
WRONG = ("overruns", "discovery_failures", "jobs_without_rows", "placement_failures", "reads_unanswered")
_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 1.0
_FIELDS = {field.name: field for field in SCHEMA.fields}
# Key, end of the metric's name, kind, help.
_OF_BACKENDS = (
    ("on", "up", "gauge", "1 while it measures, 0 while a requirement is missing."),
    ("rows", "rows_total", "counter", "Rows measured."),
    ("failures", "failures_total", "counter", "Samples that failed and left no rows."),
    ("overruns", "overruns_total", "counter", "Samples that took longer than the period."),
    ("cpu_s", "cpu_seconds_total", "counter", "CPU time of its work."),
    ("wall_s", "wall_seconds_total", "counter", "Wall time of its work."),
    ("dropped_counters", "dropped_counters", "gauge", "Counters that it returns and does not declare."),
)


class NodeHealth:
    """Reports the health of the agent, in any thread; `sampling` says whether the main thread is sampling now.

    `parts` return other parts' counters, by the name of the part; that of batches is "spool". With `metrics_jobs`, the
    latest rows of jobs are metrics, too. `top` answers queries for the usage of jobs and node.
    """

    def __init__(
        self,
        parts: Mapping[str, Callable[[], Mapping[str, int]]],
        uplinks: Sequence[Uplink] = (),
        metrics_jobs: bool = False,
        now_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._latest = LatestTables(TABLES, always=metrics_jobs, all_jobs=metrics_jobs)
        self._jobs = JobMetrics(self._latest) if metrics_jobs else None
        self._parts = {**parts, "top": self._latest.counters}
        self._uplinks = uplinks
        self._monotonic = monotonic
        self._identity = DaemonIdentity("node")
        self.top = Top(self._identity, self._latest)
        self._now_ns = now_ns
        self._recent = RecentGrowth()
        self.sampling = False
        self._ticked_ns = 0
        self._picture: dict[str, Any] = {}

    def pause(self) -> None:
        """Yield to the main thread, from any other: at least 1 ms, and while it samples, up to a second."""
        time.sleep(_PAUSE_S)
        until = time.monotonic() + _LONGEST_PAUSE_S
        while self.sampling and time.monotonic() < until:
            time.sleep(_PAUSE_S)

    def take(self, batch: Batch) -> None:
        """Process a batch to be sent; main thread only."""
        self._latest.take([batch])

    def note(self, runners: Iterable[Runner], totals: Mapping[str, int], tick_ns: int, period_s: float) -> None:
        """Make the snapshot; main thread only. `tick_ns` is the duration of the last tick."""
        backends: list[dict[str, Any]] = [
            {
                "name": runner.name,
                "on": runner.is_open,
                "why": runner.why,
                "rows": runner.rows,
                "failures": runner.failures,
                "error": runner.error,
                "overruns": runner.overruns,
                "sampled_ns": runner.sampled_ns,
                "cpu_s": runner.cpu_ns / 1e9,
                "wall_s": runner.wall_ns / 1e9,
                "counters": dict(runner.counters()),
                "dropped_counters": len(runner.dropped_counters),
            }
            for runner in runners
        ]
        parts = {name: dict(counters()) for name, counters in self._parts.items()}
        spool = parts.get("spool", {})
        self._recent.note(
            {
                **{name: totals.get(name, 0) for name in WRONG},
                "backend_failures": sum([backend["failures"] for backend in backends]),
                "batches_dropped": totals.get("batches_dropped", 0),
                "false_acknowledgements": parts.get("link", {}).get("acknowledgements_false", 0),
                "link_defects": parts.get("link", {}).get("defects", 0),
                "spool_failures": spool.get("disk_failures", 0),
                "reload_failures": parts.get("configuration", {}).get("failures", 0),
            }
        )
        # replaced as a whole: concurrent readers have the former one
        self._picture = {
            "period_s": period_s,
            "tick_s": tick_ns / 1e9,
            "cpu_s": time.process_time(),
            "agent": dict(totals),
            "behind_s": spool.get("oldest_s", 0),
            "backends": backends,
            "collectors": [self._collector(uplink) for uplink in self._uplinks],
            **parts,
            "last_hour": self._recent.growth(),
        }
        self._ticked_ns = self._now_ns()

    def _collector(self, uplink: Uplink) -> dict[str, Any]:
        return {
            "uri": uplink.uri,
            "there": uplink.state in (UplinkState.THERE, UplinkState.MUTE) and uplink.blocked_at is None,
            "state": uplink.state.value if uplink.blocked_at is None else "takes no data",
            "since_s": round(self._monotonic() - (uplink.blocked_at or uplink.since), 1),
            "version": uplink.version,
            "wire": uplink.sends,
            "durable": uplink.durable,
            "mute": uplink.state is UplinkState.MUTE and uplink.link is not None,
            "duplicates": uplink.duplicates,
        }

    def status(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        """Handle the command: return the identity, and the snapshot with current ages."""
        picture, ticked_ns, now_ns = self._picture, self._ticked_ns, self._now_ns()
        return {
            **self._identity.values(),
            "last_tick_age_s": _age_s(ticked_ns, now_ns),
            **picture,
            "backends": [
                {
                    **{key: value for key, value in backend.items() if key != "sampled_ns"},
                    "last_rows_age_s": _age_s(backend["sampled_ns"], now_ns),
                }
                for backend in picture.get("backends", ())
            ],
        }

    def families(self) -> Iterator[Family]:
        """Yield the same as metrics."""
        yield from self._identity.families()
        picture, ticked_ns = self._picture, self._ticked_ns
        if not picture:
            return
        name = "colmet_node"
        yield single(f"{name}_last_sample_timestamp_seconds", "gauge", "When the last sample ended.", ticked_ns / 1e9)
        yield single(f"{name}_sample_duration_seconds", "gauge", "Time that it took.", picture["tick_s"])
        yield single(f"{name}_sample_period_seconds", "gauge", "From one sample to the next.", picture["period_s"])
        for key, value in picture["agent"].items():
            field = _FIELDS[key]
            metric, divisor = in_base_unit(key, field.unit, field.kind)
            yield single(f"{name}_{metric}", field.kind, field.help, value if divisor == 1 else value / divisor)
        backends = picture["backends"]
        for key, metric, kind, text in _OF_BACKENDS:
            samples = [(labels({"backend": backend["name"]}), backend[key]) for backend in backends]
            yield Family(f"{name}_backend_{metric}", kind, text, [(label, value + 0) for label, value in samples])
        seen = [(labels({"backend": one["name"]}), one["sampled_ns"] / 1e9) for one in backends if one["sampled_ns"]]
        text = "When its last rows were measured."
        yield Family(f"{name}_backend_last_rows_timestamp_seconds", "gauge", text, seen)
        for key in sorted({key for backend in backends for key in backend["counters"]}):
            field = _FIELDS[key]
            samples = [
                (labels({"backend": backend["name"]}), backend["counters"][key])
                for backend in backends
                if key in backend["counters"]
            ]
            yield Family(named(f"{name}_backend", key, kind=field.kind), field.kind, field.help, samples)
        there = [(labels({"uri": one["uri"]}), int(one["there"])) for one in picture["collectors"]]
        yield Family(f"{name}_collector_up", "gauge", "1 while this collector receives batches.", there)
        for part in self._parts:
            yield from families_of(name, part, picture[part])
        if self._jobs is not None:
            yield from self._jobs.families()

    def line(self) -> str:
        """Return the health in one line, for the service manager."""
        picture = self._picture
        off = [backend["name"] for backend in picture["backends"] if not backend["on"]]
        wrong = [counted(count, name.replace("_", " ")) for name, count in picture["last_hour"].items() if count]
        parts = [f"{counted(picture['agent'].get('jobs', 0), 'jobs')}, {picture['tick_s'] * 1000:.0f} ms a sample"]
        away = [one["uri"] for one in picture["collectors"] if not one["there"]]
        parts += [f"not there: {', '.join(away)}"] if away else []
        parts += [f"off: {', '.join(off)}"] if off else []
        parts += [f"last hour: {', '.join(wrong)}"] if wrong else []
        return "; ".join(parts)


def _age_s(then_ns: int, now_ns: int) -> float | None:
    return round(max(0, now_ns - then_ns) / 1e9, 3) if then_ns else None
