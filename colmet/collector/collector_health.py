"""State of the collector, for its clients: each sender, each output and the journal."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from colmet.collector.ingest.receiver import OTHERS, Receiver
from colmet.collector.ingest.sender import COUNTS
from colmet.collector.journal.journal import Journal
from colmet.collector.output_worker import OutputWorker
from colmet.common.daemon.control import Errands
from colmet.common.daemon.daemon_health import (
    NOTE_S,
    Backlog,
    DaemonIdentity,
    Family,
    RecentGrowth,
    families_of,
    labels,
    named,
    single,
)
from colmet.common.errors import Refused
from colmet.common.live.latest_tables import JobMetrics, LatestTables
from colmet.common.live.summary import TABLES, Top
from colmet.common.schema import Batch
from colmet.common.text import counted

MAX_AGE_S = 60.0  # limit of the age of a node's latest message; beyond it the node is silent
GONE_S = 86400.0  # and beyond this one it is gone: nodes are retired in the end, so this is no error
WORST = 10  # senders in the answer
MAX_AHEAD_S = 1.0  # limit of a node clock's lead
ACQUAINTED_S = 60.0  # by then a node with acknowledgements has sent a Hello
# The outputs' counters of unwritten data, and their names here.
_LOSSES = {
    "rejected": "refused_documents",
    "files_damaged": "damaged_files",
    "rows_left_out": "unwritten_rows",
    "values_left_out": "unwritten_values",
    "batch_skipped": "unread_batch_records",
}
# End of the metric's name, kind, help.
_OF_OUTPUTS = {
    "available": ("up", "gauge", "1 while it accepts rows."),
    "away_s": ("away_seconds", "gauge", "For how long it has not accepted any."),
    "behind_s": ("behind_seconds", "gauge", "For how long what it is to write next has waited, at least."),
    "waiting": ("waiting_records", "gauge", "Messages that wait for it."),
    "written": ("written_rows_total", "counter", "Rows written."),
    "all_failures": ("failures_total", "counter", "Times that it was unavailable."),
    "lost": ("lost_records_total", "counter", "Messages that were gone when their turn came."),
    "dropped": ("dropped_rows_total", "counter", "Rows left out because of a defect."),
}
_BAD = ("rejects", "foreign", "limited", "left_out", "conflicts", "second_machine")


class CollectorHealth:
    """State of the collector, for its clients.

    Data of the main thread is read by it, as an errand, so an answer also proves that this thread works.

    Args:
        parts: other parts' counters, by the name of the part.
        metrics_jobs: whether to serve the latest rows of jobs as metrics.
        refusals: returns why, from where and how often connections were refused; for any thread.

    Attributes:
        link_failed: cause of missing acknowledgements; "" if there are acknowledgements, or none are configured.
        page_failure: returns why the process of the page does not run; "" if it runs, or none is configured.
    """

    def __init__(
        self,
        errands: Errands,
        receiver: Receiver,
        journal: Journal,
        workers: Sequence[OutputWorker],
        parts: Mapping[str, Callable[[], Mapping[str, int]]],
        metrics_jobs: bool = False,
        now_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        refusals: Callable[[], Sequence[tuple[str, str, int]]] = tuple,
    ) -> None:
        self._errands = errands
        self._refusals = refusals
        self._receiver = receiver
        self._journal = journal
        self._workers = workers
        self._latest = LatestTables(TABLES, always=metrics_jobs, all_jobs=metrics_jobs)
        self._jobs = JobMetrics(self._latest) if metrics_jobs else None
        self._parts = {**parts, "top": self._latest.counters}
        self._now_ns = now_ns
        self._monotonic = monotonic
        self._identity = DaemonIdentity("collector")
        self.top = Top(self._identity, self._latest, receiver.heard)
        self.link_failed = ""
        self.page_failure: Callable[[], str] = str
        self._recent = RecentGrowth()
        self._note_at = 0.0
        self._backlog = Backlog(monotonic)

    def start(self) -> None:
        """Exclude earlier errors from the recent ones. For the main thread, after the restore of the senders."""
        self._recent = RecentGrowth(self._wrong())

    def take(self, batches: Sequence[Batch], sender: str = "") -> None:
        """Add batches received from a sender. For the main thread."""
        self._latest.take(batches, sender)

    def note(self) -> None:
        """Note the error counters periodically. For the main thread."""
        now = self._monotonic()
        if now >= self._note_at:
            self._note_at = now + NOTE_S
            self._recent.note(self._wrong())
            self._backlog.note(self._journal.end)

    def line(self) -> str:
        """Return the state in one line for the service manager. For the main thread."""
        recently = self._now_ns() - int(MAX_AGE_S * 1e9)
        heard = sum([sender.batches > 0 and sender.seen_ns >= recently for sender in self._receiver.senders.values()])
        away = [worker.output.name for worker in self._workers if worker.why]
        wrong = [counted(count, name.replace("_", " ")) for name, count in self._recent.growth().items() if count]
        parts = [f"{counted(heard, 'nodes')} heard in the last minute"]
        shared = self._receiver.shared_names()
        parts += [f"two machines of one name: {', '.join(list(shared)[:5])}"] if shared else []
        parts += [f"unavailable: {', '.join(away)}"] if away else []
        parts += [f"journal: {self._journal.why}"] if self._journal.why else []
        parts += [f"last hour: {', '.join(wrong)}"] if wrong else []
        return "; ".join(parts)

    def status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to the command `status`. For any other thread.

        The request may have `max_age_s`, the largest age of a sender not counted as silent, and `senders`, the number
        of senders in the answer, the worst first; -1 is all.

        Raises:
            Refused: a value cannot be used, or the main thread does not answer.
        """
        max_age_s = _number(request, "max_age_s", MAX_AGE_S)
        most = int(_number(request, "senders", WORST))
        senders, shared, most_new_jobs, parts, refusals = self._errands.call(
            lambda: (
                self._senders(),
                self._receiver.shared_names(),
                self._receiver.most_new_jobs(),
                {name: dict(counters()) for name, counters in self._parts.items()},  # some are of the main thread
                self._refusals_now(),
            )
        )
        received: dict[str, Any] = {count: sum([sender[count] for sender in senders]) for count in COUNTS}
        for sender in senders:
            is_node = sender["batches"] or not (sender["name"].startswith("[") or sender["name"] == OTHERS)
            age_s = sender["seen_age_s"] if is_node else None
            sender["silent"] = age_s is not None and max_age_s < age_s <= GONE_S
            sender["gone"] = age_s is not None and age_s > GONE_S
        senders.sort(key=_badness, reverse=True)
        heard = [sender for sender in senders if sender["batches"] and not sender["silent"] and not sender["gone"]]
        lags = [sender["lag_s"] for sender in heard]
        ahead = sorted([(one["lag_s"], one["name"]) for one in heard if one["lag_s"] < -MAX_AHEAD_S])[:WORST]
        acquainted = "link" in self._parts and self._identity.uptime_s > ACQUAINTED_S
        mute = [one for one in heard if acquainted and one["dialect"] == "v1" and not one["version"]]
        return {
            **self._identity.values(),
            "received": {**received, "forgotten": self._receiver.forgotten, "dialects": dict(self._receiver.dialects)},
            "senders": {
                "count": len(senders),
                "heard": len(heard),
                "silent": sum([sender["silent"] for sender in senders]),
                "gone": sum([sender["gone"] for sender in senders]),
                "shared_names": shared,
                "most_new_jobs": dict(zip(("name", "jobs"), most_new_jobs)),
                "ahead": {name: -lag_s for lag_s, name in ahead},
                "without_acknowledgements": len(mute),
                "versions": dict(Counter([one["version"] or one["dialect"] for one in heard]).most_common(WORST)),
                "lag_median_s": statistics.median(lags) if lags else None,
                "lag_max_s": max(lags) if lags else None,
                "worst": senders[:most] if most >= 0 else senders,
            },
            "outputs": [self._output(worker) for worker in self._workers],
            "journal": {
                "directory": self._journal.directory,
                "why": self._journal.why,
                "full": self._journal.full,
                **self._journal.counters(),
            },
            "link_failed": self.link_failed,
            "page_failed": self.page_failure(),
            "refused_messages": refusals,
            "refused": [dict(zip(("why", "address", "count"), one)) for one in self._refusals()],
            **parts,
            **({} if self._jobs is None else {"metrics": self._jobs.counters()}),
            "last_hour": self._recent.growth(),
        }

    def families(self) -> Iterator[Family]:
        """Yield the state as metrics. For any other thread; Refused if the main thread does not answer."""
        status = self.status({"senders": -1})
        name, now_s = "colmet_collector", self._now_ns() / 1e9
        yield from self._identity.families()
        senders = status["senders"]
        states = [(labels({"state": state}), senders[state]) for state in ("heard", "silent", "gone")]
        yield Family(
            f"{name}_nodes", "gauge", f"Nodes; silent: not heard for {MAX_AGE_S:g} s; gone: for a day.", states
        )
        for key, (kind, text) in COUNTS.items():
            yield single(named(name, key, kind=kind), kind, text, status["received"][key])
        text = "Senders forgotten, as there were too many."
        yield single(f"{name}_forgotten_senders_total", "counter", text, status["received"]["forgotten"])
        dialects = [(labels({"dialect": key}), value) for key, value in status["received"]["dialects"].items()]
        yield Family(f"{name}_messages_total", "counter", "Messages that could be read.", dialects)
        worst = [(labels({"sender": sender["name"]}), sender) for sender in senders["worst"]]
        for key, (kind, text) in COUNTS.items():
            metric = named(name, "sender", key, kind=kind)
            yield Family(metric, kind, f"From this sender: {text}", [(text_, sender[key]) for text_, sender in worst])
        seen = [(text, now_s - sender["seen_age_s"]) for text, sender in worst if sender["seen_age_s"] is not None]
        yield Family(f"{name}_sender_seen_timestamp_seconds", "gauge", "When it was heard last.", seen)
        lags = [(text, sender["lag_s"]) for text, sender in worst if sender["batches"]]
        yield Family(f"{name}_sender_lag_seconds", "gauge", "Age of its last batch when it came.", lags)
        outputs = [(labels({"output": output["name"]}), output) for output in status["outputs"]]
        for key, (metric, kind, text) in _OF_OUTPUTS.items():
            yield Family(f"{name}_output_{metric}", kind, text, [(text_, output[key] + 0) for text_, output in outputs])
        own = [
            (labels({"output": worker.output.name, "name": key}), value)
            for worker in self._workers
            for key, value in worker.output_counters().items()
        ]
        yield Family(f"{name}_output_counts", "untyped", "What the output counts itself, by name.", own)
        yield from self._described(name)
        journal = status["journal"]
        yield single(f"{name}_journal_up", "gauge", "1 while it can be written to.", int(not journal["why"]))
        text = "1 while nothing is received, it being full."
        yield single(f"{name}_journal_full", "gauge", text, int(journal["full"]))
        yield from families_of(name, "journal", self._journal.counters())
        for part in self._parts:
            yield from families_of(name, part, status[part])
        if self._jobs is not None:
            text = "Rows of jobs that are too many to list."
            yield from self._jobs.families()  # which counts them
            yield single(f"{name}_latest_left_out_rows_total", "counter", text, self._jobs.counters()["left_out"])

    def _described(self, name: str) -> Iterator[Family]:
        for worker in self._workers:
            counts = worker.output_counters()
            for key, (kind, text) in worker.output.described.items():
                if key in counts:
                    yield single(named(name, worker.output.name, key, kind=kind), kind, text, counts[key])

    def _output(self, worker: OutputWorker) -> dict[str, Any]:
        why = worker.why
        return {
            "name": worker.output.name,
            "available": not why,
            "why": why,
            "away_s": round(self._monotonic() - worker.away_since, 1) if why else 0.0,
            "behind_s": self._backlog.behind_s(self._journal.end, worker.waiting),
            **worker.counters(),
            **worker.output.details(),
            "all_failures": worker.all_failures,
        }

    # -- in the main thread --

    def _senders(self) -> list[dict[str, Any]]:
        now_ns = self._now_ns()
        return [
            {
                "name": name,
                **{count: getattr(sender, count) for count in COUNTS},
                "seen_age_s": round((now_ns - sender.seen_ns) / 1e9, 3) if sender.seen_ns else None,
                "lag_s": round(sender.lag_ns / 1e9, 3),
                "dialect": sender.dialect,
                "version": sender.version,
            }
            for name, sender in self._receiver.senders.items()
        ]

    def _refusals_now(self) -> list[dict[str, Any]]:
        """Return the senders with refused messages, that have not been heard after these."""
        now_ns = self._now_ns()
        heard_ns = {name: sender.seen_ns for name, sender in self._receiver.senders.items() if sender.batches}
        return [
            {
                "name": name,
                "why": refusal.reason,
                "count": refusal.times,
                "age_s": round((now_ns - refusal.time_ns) / 1e9, 1),
            }
            for name, refusal in self._receiver.refusals.current(heard_ns).items()
        ]

    def _wrong(self) -> dict[str, int]:
        """Return the error counters since the start, by name."""
        senders = self._receiver.senders.values()
        workers = [worker.counters() for worker in self._workers]
        return {
            "missing_batches": sum([sender.missing for sender in senders]),
            "refused_messages": self._receiver.rejects
            + sum([sender.foreign + sender.second_machine for sender in senders]),
            "forgotten_senders": self._receiver.forgotten,
            "limited_messages": sum([sender.limited for sender in senders]),
            "left_out_rows": sum([sender.left_out for sender in senders]),
            "conflicting_batches": sum([sender.conflicts for sender in senders]),
            "lost_records": sum([worker.lost for worker in self._workers]),
            "dropped_rows": sum([worker.dropped for worker in self._workers]),
            "journal_dropped_records": self._journal.dropped,
            "journal_failures": self._journal.all_failures,
            "output_failures": sum([worker.all_failures for worker in self._workers]),
            **{what: sum([counts.get(key, 0) for counts in workers]) for key, what in _LOSSES.items()},
            "reload_failures": self._parts["configuration"]()["failures"] if "configuration" in self._parts else 0,
            **({"http_restarts": self._parts["http"]()["restarts"]} if "http" in self._parts else {}),
        }


def _number(request: Mapping[str, Any], key: str, default: float) -> float:
    value = request.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1 <= value <= 1e9:
        raise Refused(f"status: {key} is {value!r:.80}, not a number")
    return value


def _badness(sender: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        sender["silent"],
        sum([sender[name] for name in ("missing", *_BAD)]) > 0,
        sender["seen_age_s"] if sender["silent"] else 0,
        sender["missing"],
        sum([sender[name] for name in _BAD]),
        sender["duplicates"],
        sender["lag_s"],
        sender["name"],
    )
