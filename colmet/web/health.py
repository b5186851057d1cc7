"""The state of the collector and of its nodes for administrators, with the verdict of `colmet status`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colmet.common.daemon.checks import NAGIOS, Finding, Level, fail, warn
from colmet.common.daemon.status_checks import HARMLESS, MAX_AGE_S, MAX_BEHIND_S, judge, judge_keys, plain
from colmet.common.live.latest_tables import HostTables
from colmet.common.live.summary import total
from colmet.web.recent_cache import AGENT_TABLE

LISTED = 100  # silent nodes, late ones and those with a spool; the answer has the number of all
LATE_S = 10.0  # a node with a longer lag is listed
WAITING = 10  # batches; a node with more is listed
_OF_OUTPUT = ("name", "available", "why", "away_s", "behind_s", "waiting", "written", "lost", "dropped")
SPOOL = ("waiting", "dropped", "acknowledged")  # batches
RECEIVED = ("batches", "rows", "missing", "duplicates", "rejects", "foreign", "limited", "left_out", "conflicts")
# Counters of the last hour that count data which is not stored; the others are events.
DROPS = frozenset(
    {
        *("missing_batches", "refused_messages", "limited_messages", "left_out_rows", "conflicting_batches"),
        *("lost_records", "dropped_rows", "journal_dropped_records", "refused_documents"),
        *("unwritten_rows", "unwritten_values"),
    }
)
CONNECTIONS = ("connections", "let_in", "unknown_key", "key_withdrawn", "handshake_failed", "keys", "broken_keys")
Spool = Mapping[str, Any]  # `node`, `waiting`, `dropped`, `acknowledged`: batches
_REMEDY = "`systemctl restart colmet-collector`, and see `journalctl -u colmet-collector -n 50`"


@dataclass(eq=False)
class CollectorReport:
    """The latest status of the collector, from its notes in the feed. One thread notes, any other reads."""

    monotonic: Callable[[], float] = time.monotonic
    _latest: tuple[Mapping[str, Any], float] | None = None

    def note(self, content: Mapping[str, Any]) -> None:
        """Read a note of the collector."""
        status = content.get("status")
        if isinstance(status, dict) and status.get("daemon") == "collector":
            self._latest = status, self.monotonic()

    def look(self) -> tuple[Mapping[str, Any], float | None]:
        """Return the status and its age in seconds; an empty one and None before the first."""
        if self._latest is None:
            return {}, None
        status, at = self._latest
        return status, self.monotonic() - at


def health_answer(
    status: Mapping[str, Any],
    age_s: float | None,
    nodes: Sequence[Mapping[str, Any]],
    spools: Sequence[Spool],
    now: float,
) -> dict[str, Any]:
    """Return the answer of the route, from the latest status of the collector and its age; {} and None before it.

    `nodes` are the rows of all nodes, `spools` those of all nodes that report one; `now` is in seconds since 1970.
    """
    senders, counts = status.get("senders", {}), status.get("connections", {})
    findings = [*_verdict(status, age_s)]
    late = [row for row in nodes if not row["silent"] and (row["lag"] or 0) >= LATE_S]
    late.sort(key=lambda row: (-row["lag"], row["node"]))
    held = [one for one in spools if (one["waiting"] or 0) > WAITING or one["dropped"]]
    held.sort(key=lambda one: (-(one["waiting"] or 0), -(one["dropped"] or 0), one["node"]))
    return {
        "time": now,
        "level": NAGIOS[max([one.level for one in findings])].lower(),
        "findings": [_finding(one) for one in sorted(findings, key=lambda one: -one.level)],
        "reported_age": None if age_s is None else round(age_s, 1),
        "collector": {key: status.get(key) for key in ("host", "version", "uptime_s")},
        "nodes": {
            **{key: senders.get(key) for key in ("heard", "silent", "gone", "lag_median_s", "lag_max_s")},
            "late": len(late),
        },
        "silent": [
            {"node": one["name"], "seen_age": one["seen_age_s"], "version": one["version"] or None}
            for one in senders.get("worst", ())
            if one["silent"]
        ][:LISTED],
        "late": [{"node": row["node"], "lag": row["lag"]} for row in late[:LISTED]],
        "versions": [{"version": name, "nodes": count} for name, count in senders.get("versions", {}).items()],
        "outputs": [{key: output.get(key) for key in _OF_OUTPUT} for output in status.get("outputs", ())],
        "journal": {key: status.get("journal", {}).get(key) for key in ("directory", "bytes", "full", "why")},
        "received": {key: status.get("received", {}).get(key) for key in RECEIVED},
        "last_hour": [
            {"what": plain(name), "count": count, "dropped": name in DROPS, "harmless": name in HARMLESS}
            for name, count in status.get("last_hour", {}).items()
            if count
        ],
        "spools": {
            "nodes": len(spools),
            **{key: total(spools, key) for key in ("waiting", "dropped")},
            "remarkable": len(held),
            "worst": held[:LISTED],
        },
        "keys": {
            "required": None if not status else "keys" in counts,
            **{key: counts.get(key) for key in CONNECTIONS},
            "refused": [dict(one) for one in status.get("refused", ())],
            "findings": [_finding(one) for one in judge_keys(status)],
        },
    }


def spools_of(hosts: Iterable[tuple[str, HostTables]]) -> list[Spool]:
    """Return the spool of each node, from the latest rows of its agent."""
    found: list[Spool] = []
    for host, kept in hosts:
        pair = kept.tables.get(AGENT_TABLE)
        if pair is None:
            continue
        fields = {field.name: field for field in pair.latest.schema.fields}
        columns = {key: fields.get(f"batches_{key}") for key in SPOOL}
        for row in pair.latest.rows:
            if "backend" in fields and row["backend"] == b"agent":
                values = {
                    key: None if field is None or row[field.name] == field.missing else int(row[field.name])
                    for key, field in columns.items()
                }
                found.append({"node": host, **values})
    return found


def _verdict(status: Mapping[str, Any], age_s: float | None) -> Sequence[Finding]:
    if age_s is None:
        return [Finding(Level.UNKNOWN, "the collector has not reported its state yet; it does so every 10 s")]
    stale = [fail(f"the collector has not reported its state for {age_s:.0f} s", _REMEDY)] if age_s > MAX_AGE_S else []
    try:
        return [*stale, *judge(status, MAX_AGE_S, MAX_BEHIND_S).findings]
    except (KeyError, TypeError, AttributeError):
        text = f"the state of a collector of version {status.get('version')!r:.20} cannot be read"
        return [*stale, warn(text, "restart colmet-collector and colmet-web after an upgrade")]


def _finding(one: Finding) -> dict[str, Any]:
    return {"level": NAGIOS[one.level].lower(), "found": one.found, "remedy": one.remedy or None}
