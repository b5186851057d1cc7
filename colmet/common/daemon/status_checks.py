"""Verdicts on the reported status of a daemon: for `colmet status`, its --check, `colmet doctor` and the page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

from colmet.common.daemon.checks import DaemonVerdict, Finding, Level, fail, good, warn
from colmet.common.errors import ColmetError, ConfigError, Unreachable
from colmet.common.text import counted, document

SETTLED_S = 10.0  # time for a node to reach a running collector
JUST_STARTED = ("not heard of yet",)
# Events of the last hour without a warning: very short jobs have no rows, and CPUs may be removed.
MAX_AGE_S, MAX_BEHIND_S = 60.0, 300.0  # the defaults of `colmet status --check`
MAX_NAMED = 3  # senders of refused messages
MAX_PROBES = 10  # unremarkable connections without a key: `colmet doctor` on a node makes two
LOSSES = frozenset({"unwritten_rows"})  # rows that an output did not take: of jobs beyond a sender's share, mostly
HARMLESS = frozenset({"jobs_without_rows", "placement_failures", "reads_unanswered"})
FEW = {"overruns": 10}  # in an hour: a late sample now and then is a busy machine's, and its counters go on

# Pattern of the reason reported by an unavailable output, and the remedy.
_OUTPUT_REMEDIES = (
    (
        r"read-only|read_only|flood.stage",
        (
            "free disk space on the database's machines: the database then lifts the block by itself; if it does not, "
            "`curl -X PUT -H 'Content-Type: application/json' HOST/_all/_settings -d "
            "'{\"index.blocks.read_only_allow_delete\": null}'`"
        ),
    ),
    (r"WRONG_VERSION_NUMBER|wrong version number", "the database speaks http, not https: correct elastic-host"),
    (
        r"status 40[13]|security_exception",
        "give it the right user and password (-P) or API key, with the rights to write",
    ),
    (r"No space left", "make room: see under disk in `colmet doctor`"),
)
# A question to a batch system, as an administrator types it.
_QUESTIONS = {"slurm": "squeue", "oar": "oarstat", "gridengine": "qstat"}
_LOG = "journalctl -u colmet-collector"
_CLOCKS = "synchronise the clocks of these nodes and of this machine (chrony, systemd-timesyncd)"

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
    if missing := status.get("plugins", {}).get("failed", 0):
        found.append(warn(f"{counted(missing, 'plug-ins')} not loaded, see the log"))
    more = (
        f"`colmet status {status['daemon']} --all` shows all counters; {document('messages.md')}: messages of the log"
    )
    found += [
        Finding(
            Level.FAIL if name in LOSSES else Level.WARN,
            f"{counted(value, plain(name))} in the last hour{_most_limited(status, name)}",
            more,
        )
        for name, value in status.get("last_hour", {}).items()
        if value > FEW.get(name, 0) and name not in HARMLESS and name not in status  # these are named one by one
    ]
    return DaemonVerdict(sorted(found, key=lambda one: -one.level) or [good(well)], figures)


def _judge_node(
    status: Mapping[str, Any], max_age_s: float, max_behind_s: float
) -> tuple[list[Finding], str, _Figures]:
    found: list[Finding] = []
    age_s = status["last_tick_age_s"]
    if "waits_for_collector" in status:
        problem = status["waits_for_collector"]
        why = f"its configuration cannot be used: {problem}" if problem else "nothing is measured"
        text = f"waits to be enrolled, {why}: `colmet enrol {status['host']}` on the collector's machine"
        return [warn(text)], "", []
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
        remedy = f"make room on its disk, or give its directory back to the collector's user; `{_LOG} -n 50`"
        found.append(fail(f"journal cannot be written to: {journal['why']}", remedy))
    if journal["full"]:
        remedy = "an output is away or slow: repair it, or give the journal more room (--journal-size)"
        found.append(fail("nothing is received, the journal is full", remedy))
    for output in status["outputs"]:
        name, why = output["name"], output["why"]
        if not output["available"]:
            level = Level.FAIL if output["away_s"] > max_age_s else Level.WARN
            remedy = output_remedy(why) or f"`{_LOG} -n 50` shows more; its rows wait in the journal"
            found.append(Finding(level, f"{name} away for {duration(output['away_s'])}: {why}", remedy))
        elif output["behind_s"] > max_behind_s:
            remedy = "its disk or database is slower than the rows come; they wait in the journal"
            found.append(warn(f"{name} is {duration(output['behind_s'])} behind", remedy))
        remedy = "read its rows that the journal had no more with `colmet extract --hdf5`, then move it; check the disk"
        found += [fail(f"{name}: damaged file set aside: {path}", remedy) for path in output.get("set_aside", ())]
        found += [finding for finding in judge_batch_systems(output) if finding.level > Level.PASS]
    if not senders["heard"] + senders["silent"] and status["uptime_s"] > max_age_s:
        remedy = "`colmet doctor` on a node names the cause: its --zeromq-uri, a firewall, or keys"
        found.append(warn(f"no node has been heard in the {duration(status['uptime_s'])} since the start", remedy))
    if senders["silent"]:
        names = ", ".join([sender["name"] for sender in senders["worst"] if sender["silent"]][:5])
        level = Level.WARN if senders["heard"] else Level.FAIL
        known = senders["heard"] + senders["silent"]
        text = f"{count(senders['silent'])} of {counted(known, 'nodes')} silent, such as {names}"
        remedy = "`colmet doctor` on these nodes names the cause; a node that was switched off counts for a day"
        found.append(Finding(level, text, remedy))
    found += [
        warn(text.format(", ".join([f"{name} ({duration(s)})" for name, s in list(named.items())[:3]])), _CLOCKS)
        for text, named in (
            ("clocks are ahead of this machine's: {}", senders.get("ahead", {})),
            ("data are old: a clock is behind, or a node catches up: {}", _old(senders, max_behind_s)),
        )
        if named
    ]
    for refusal in status.get("refused_messages", ())[:MAX_NAMED]:
        messages, age = counted(refusal["count"], "messages"), duration(refusal["age_s"])
        text = f"{messages} of {refusal['name']} refused, the last {age} ago"
        found.append(
            warn(f"{text}: {refusal['why']}", f"`{_LOG} -g 'message refused'` shows all; `colmet doctor` on it")
        )
    mute = senders.get("without_acknowledgements", 0)
    if mute:
        why = "the port of --zeromq-link-bind-uri is closed to them"
        remedy = f"open the second port of the collector to the nodes ({document('operations.md')})"
        found.append(warn(f"{counted(mute, 'nodes')} without acknowledgements: {why}", remedy))
    if status.get("link_failed"):
        found.append(warn(f"nothing is acknowledged, {status['link_failed']}"))
    page_failed = status.get("page_failed")
    if page_failed or not status.get("http", {}).get("running", 1):
        why = f": {page_failed}" if page_failed else ""
        remedy = "correct it; its process is tried again every minute"
        found.append(warn(f"the process of the JSON interface and the page does not run{why}", remedy))
    shared = [shared_text(host, agents) for host, agents in senders.get("shared_names", {}).items()]
    if shared:
        more = f" and {counted(len(shared) - 3, 'others')}" if len(shared) > 3 else ""
        remedy = shared_remedy(next(iter(senders["shared_names"])))
        found.append(warn(f"{'; '.join(shared[:3])}{more}", remedy))
    figures: _Figures = [("nodes", senders["heard"], ""), ("silent", senders["silent"], "")]
    figures += [(f"{output['name']}_behind", output["behind_s"], "s") for output in status["outputs"]]
    return found, f"{counted(senders['heard'], 'nodes')} heard", figures


def _most_limited(status: Mapping[str, Any], event: str) -> str:
    """Return which sender has sent most beyond its limits, since the start of the collector; "" for another event."""
    senders = status.get("senders", {}).get("worst", ()) if event == "limited_messages" else ()
    most: Mapping[str, Any] = max(senders, key=lambda one: one.get("limited", 0), default={})
    return f", most from {most['name']}" if most.get("limited") else ""


def output_remedy(why: str) -> str:
    """Return the remedy for the reason that an unavailable output reports; "" for another reason."""
    return next((text for pattern, text in _OUTPUT_REMEDIES if re.search(pattern, why)), "")


def judge_batch_systems(output: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each batch system that an output asks."""
    for one in output.get("batch_systems", ()):
        name, why = one["name"], one["why"]
        if not why:
            yield good(f"{name} answers")
            continue
        remedy = f"`sudo -u colmet {_QUESTIONS.get(name, name)}` shows how it answers the collector's user"
        if "no such program" in why:
            remedy = (
                "`systemctl edit colmet-collector`, then Environment=PATH=/opt/slurm/bin:/usr/bin:/bin with the "
                "directory of its commands"
            )
        if name == "oar":
            remedy = (
                'oarstat cannot work in the sandbox of the unit: archive-batch = "oar=URL" asks OAR\'s REST interface, '
                "such as http://oar-server/oarapi"
            )
        text = f"batch system {name} has not answered for {duration(one['failing_s'])}: {why}"
        yield warn(text, f"{remedy} ({document('outputs/archive.md')})")


def shared_remedy(host: str) -> str:
    """Return the remedy for several machines that send as one host."""
    return (
        "give each machine a host name of its own (`hostnamectl set-hostname NAME` on a cloned one), or stop the "
        f"second agent on {host}, one of Colmet 0.6 perhaps: `pgrep -af colmet-node` there shows both; a silence of "
        "some minutes of the first one releases the name"
    )


def judge_keys(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for connections that a collector has refused since its start: unknown keys, and none."""
    counts = status.get("connections") or {}
    if counts.get("unknown_key"):
        yield warn(
            f"{counted(counts['unknown_key'], 'connections')} with an unknown key refused since its start",
            f"`{_LOG} -g why=unknown_key` shows from where; where that is a node, `colmet enrol --replace NAME` makes "
            "new keys for it",
        )
    if counts.get("handshake_failed", 0) > MAX_PROBES:
        yield warn(
            f"{counted(counts['handshake_failed'], 'connections')} without a key, or with one for another collector, "
            "refused since its start",
            f"`{_LOG} -g 'it has no key'` shows from where; where that is a node, `colmet enrol NAME` makes keys for "
            "it",
        )


def _old(senders: Mapping[str, Any], max_behind_s: float) -> dict[str, float]:
    """Return the age of the latest rows, by node, for sending nodes with more than this delay.

    If the senders of the status include none of them, the highest age is that of 'a node'.
    """
    if (senders["lag_max_s"] or 0) <= max_behind_s:
        return {}
    lags = {one["name"]: one["lag_s"] for one in senders["worst"] if not (one["gone"] or one["silent"])}
    return {name: s for name, s in lags.items() if s > max_behind_s} or {"a node": senders["lag_max_s"]}


def shared_text(host: str, agents: Sequence[str]) -> str:
    """Return that several agents send as one host: the received one, the others, and where their batches are."""
    held, *others = agents
    return f"two machines send as {host}: {held} is received, {' and '.join(others)} refused, and keeps its batches"


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
