"""Verdicts on the reported status of a daemon: for `colmet status`, its --check and `colmet doctor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

from colmet.common.errors import ColmetError, ConfigError, Unreachable
from colmet.common.runtime.checks import DaemonVerdict, Finding, Level, fail, good, warn
from colmet.common.runtime.plural import counted

SETTLED_S = 10.0  # time for a node to reach a running collector
JUST_STARTED = ("not heard of yet",)
# Events of the last hour without a warning: very short jobs have no rows, and CPUs may be removed.
HARMLESS = frozenset({"jobs_without_rows", "placement_failures", "reads_unanswered"})

StatusOrError = Union[Mapping[str, Any], ColmetError]  # a status, or why there is none
_Figures = list[tuple[str, float, str]]


def judge(status: StatusOrError, max_age_s: float, max_behind_s: float) -> DaemonVerdict:
    """Return the verdict on a daemon.

    `max_age_s` is the longest time without a sample, a message of a node, or an output; `max_behind_s` the longest
    waiting time of rows.
    """
    if isinstance(status, ColmetError):
        cannot_ask = isinstance(status, ConfigError) or (isinstance(status, Unreachable) and status.why == "denied")
        return DaemonVerdict([Finding(Level.UNKNOWN if cannot_ask else Level.FAIL, str(status))])
    judge_daemon = _judge_node if status["daemon"] == "node" else _judge_collector
    found, well, figures = judge_daemon(status, max_age_s, max_behind_s)
    missing = status.get("plugins", {}).get("failed", 0)
    if missing:
        found.append(warn(f"{counted(missing, 'plug-ins')} not loaded, see the log"))
    found += [
        warn(f"{counted(value, plain(name))} in the last hour")
        for name, value in status.get("last_hour", {}).items()
        if value and name not in HARMLESS
    ]
    return DaemonVerdict(sorted(found, key=lambda one: -one.level) or [good(well)], figures)


def _judge_node(
    status: Mapping[str, Any], max_age_s: float, max_behind_s: float
) -> tuple[list[Finding], str, _Figures]:
    found: list[Finding] = []
    age_s = status["last_tick_age_s"]
    if age_s is None:
        if status["uptime_s"] > max_age_s:
            found.append(fail(f"no sample in the {duration(status['uptime_s'])} since the start"))
        return found, "started, no sample yet", []
    if age_s > max(max_age_s, 3 * status["period_s"]):
        found.append(fail(f"no sample for {duration(age_s)}"))
    off = [backend["name"] for backend in status["backends"] if not backend["on"]]
    if off:
        found.append(warn(f"off: {', '.join(off)}"))
    if status["behind_s"] > max_behind_s:
        found.append(warn(f"batches wait to be acknowledged for {duration(status['behind_s'])}"))
    found += _judge_uplinks(status["collectors"])
    agent = status["agent"]
    figures: _Figures = [("age", age_s, "s"), ("tick", status["tick_s"], "s"), ("jobs", agent["jobs"], "")]
    return found, f"last sample {duration(age_s)} ago, {counted(agent['jobs'], 'jobs')}", figures


def _judge_uplinks(collectors: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return the problems of a node's uplinks; none if one of them works."""
    found: list[Finding] = []
    for one in collectors:
        settled = one["since_s"] > SETTLED_S
        if not one["there"] and (settled or one["state"] not in JUST_STARTED):
            found.append(warn(f"{one['uri']} {one['state']} for {duration(one['since_s'])}: batches are kept"))
        elif one["there"] and one.get("mute"):
            why = "its second port is closed, or it is of Colmet 0.6"
            found.append(warn(f"{one['uri']} accepts data and acknowledges nothing: {why}"))
    return found if len(found) == len(collectors) else []


def _judge_collector(
    status: Mapping[str, Any], max_age_s: float, max_behind_s: float
) -> tuple[list[Finding], str, _Figures]:
    found: list[Finding] = []
    senders, journal = status["senders"], status["journal"]
    if journal["why"]:
        found.append(fail(f"journal cannot be written to: {journal['why']}"))
    if journal["full"]:
        found.append(fail("nothing is received, the journal is full"))
    for output in status["outputs"]:
        if not output["available"]:
            level = Level.FAIL if output["away_s"] > max_age_s else Level.WARN
            found.append(Finding(level, f"{output['name']} away for {duration(output['away_s'])}: {output['why']}"))
        elif output["behind_s"] > max_behind_s:
            found.append(warn(f"{output['name']} is {duration(output['behind_s'])} behind"))
    if not senders["heard"] + senders["silent"] and status["uptime_s"] > max_age_s:
        found.append(warn(f"no node has been heard in the {duration(status['uptime_s'])} since the start"))
    if senders["silent"]:
        names = ", ".join([sender["name"] for sender in senders["worst"] if sender["silent"]][:5])
        level = Level.WARN if senders["heard"] else Level.FAIL
        known = senders["heard"] + senders["silent"]
        found.append(Finding(level, f"{count(senders['silent'])} of {counted(known, 'nodes')} silent, such as {names}"))
    found += [
        warn(text.format(", ".join([f"{name} ({duration(s)})" for name, s in list(named.items())[:3]])))
        for text, named in (
            ("clocks are ahead of this machine's: {}", senders.get("ahead", {})),
            ("data are old: a clock is behind, or a node catches up: {}", _old(senders, max_behind_s)),
        )
        if named
    ]
    mute = senders.get("without_acknowledgements", 0)
    if mute:
        why = "the port of --zeromq-link-bind-uri is closed to them"
        found.append(warn(f"{counted(mute, 'nodes')} without acknowledgements: {why}"))
    if status.get("link_failed"):
        found.append(warn(f"nothing is acknowledged, {status['link_failed']}"))
    if not status.get("http", {}).get("running", 1):
        found.append(warn("the process of the JSON interface and the page does not run"))
    shared = _shared(senders)
    if shared:
        more = f" and {counted(len(shared) - 3, 'others')}" if len(shared) > 3 else ""
        found.append(warn(f"several agents send as {'; '.join(shared[:3])}{more}"))
    figures: _Figures = [("nodes", senders["heard"], ""), ("silent", senders["silent"], "")]
    figures += [(f"{output['name']}_behind", output["behind_s"], "s") for output in status["outputs"]]
    return found, f"{counted(senders['heard'], 'nodes')} heard", figures


def _old(senders: Mapping[str, Any], max_behind_s: float) -> dict[str, float]:
    """Return the age of the latest rows, by node, for sending nodes with more than this delay.

    If the senders of the status include none of them, the highest age is that of 'a node'.
    """
    if (senders["lag_max_s"] or 0) <= max_behind_s:
        return {}
    lags = {one["name"]: one["lag_s"] for one in senders["worst"] if not (one["gone"] or one["silent"])}
    return {name: s for name, s in lags.items() if s > max_behind_s} or {"a node": senders["lag_max_s"]}


def _shared(senders: Mapping[str, Any]) -> list[str]:
    """Return the host names used by several agents, each with the names of its stored rows."""
    return [f"{host}: stored as {', '.join(names)}" for host, names in senders.get("shared_names", {}).items()]


def plain(name: str) -> str:
    """Return a key as words."""
    return name.replace("_", " ")


def count(value: int) -> str:
    """Return a number with separators."""
    return f"{value:,}"


def duration(seconds: float) -> str:
    """Return seconds as text with a suitable unit."""
    if abs(seconds) < 90:
        return f"{seconds:.1f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
