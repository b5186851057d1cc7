"""Report the state of the daemons on this machine: as text, as JSON (docs/health.md), or as a check for Nagios."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from colmet.common.config import cli
from colmet.common.daemon.checks import Level
from colmet.common.daemon.control import add_client_options, ask
from colmet.common.daemon.status_checks import MAX_AGE_S, MAX_BEHIND_S, StatusOrError, count, duration, judge, plain
from colmet.common.errors import ColmetError, ConfigError, Unreachable
from colmet.common.text import columns, counted, size

SIDES = ("node", "collector")
WORST = 10
CONFIGURATION = "/etc/colmet"


def add_options(parser: cli.Parser) -> None:
    """Declare the options."""
    parser.epilog = """\
examples:
  colmet status                               what runs on this machine
  colmet status collector --all
  colmet status node --check --max-age 120

The first lines are the result of --check. Run it as root or as the daemon's user.

exit status:
  0  done; with --check: OK
  1  a daemon does not answer; with --check: WARNING
  2  wrong command line; with --check: CRITICAL
  3  with --check: UNKNOWN
Of several daemons the highest is returned."""
    parser.add_argument(
        "daemon", choices=SIDES, nargs="?", help="ask this daemon (default: those that run or are set up here)"
    )
    add_client_options(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--all",
        action="store_true",
        help=f"print every counter, and all senders of a collector instead of the {WORST} worst",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="print one line for Nagios, and exit; with status 0 (OK), 1 (WARNING), 2 (CRITICAL) or 3 (UNKNOWN)",
    )
    parser.add_argument(
        "--max-age",
        metavar="S",
        type=cli.positive_seconds,
        default=MAX_AGE_S,
        help="report a problem after S seconds without a sample; also without a message of a node, or an output "
        "(default: %(default)g)",
    )
    parser.add_argument(
        "--max-behind",
        metavar="S",
        type=cli.positive_seconds,
        default=MAX_BEHIND_S,
        help="warn if rows wait longer than S seconds; at the node for a collector, there for an output (default: "
        "%(default)g)",
    )


def run(options: argparse.Namespace) -> int:
    """Ask the daemons, print their states and return the exit status."""
    if options.check and (options.json or options.all):
        raise ConfigError("--check excludes --json and --all")
    answers = _ask(options)
    if options.check:
        verdicts = {daemon: judge(answer, options.max_age, options.max_behind) for daemon, answer in answers.items()}
        print("\n".join([verdict.line(daemon) for daemon, verdict in verdicts.items()]))
        return max([verdict.level for verdict in verdicts.values()])
    if options.json:
        values = {
            daemon: {"error": str(one)} if isinstance(one, ColmetError) else one for daemon, one in answers.items()
        }
        print(json.dumps(values[options.daemon] if options.daemon else values, indent=2))
    else:
        texts = []
        for daemon, answer in answers.items():
            verdict = judge(answer, options.max_age, options.max_behind)
            texts.append([*verdict.lines(daemon), *describe(answer, verdict.level == Level.PASS, options.all)])
        print("\n\n".join(map("\n".join, texts)))
    return int(any(isinstance(answer, ColmetError) for answer in answers.values()))


def _ask(options: argparse.Namespace) -> dict[str, StatusOrError]:
    request = {"command": "status", "senders": -1 if options.all else WORST, "max_age_s": options.max_age}
    sides = [options.daemon] if options.daemon else SIDES[:1] if options.control_socket else SIDES
    answers: dict[str, StatusOrError] = {}
    for side in sides:
        try:
            answer = ask(options.control_socket, side, request)
            answers[str(answer["daemon"])] = answer
        except ColmetError as err:
            if len(sides) == 1 and not options.check:
                raise
            answers[side] = err
    here = {
        side: answer
        for side, answer in answers.items()
        if len(sides) == 1
        or not (isinstance(answer, Unreachable) and answer.why == "absent")
        or os.path.exists(os.path.join(CONFIGURATION, f"{side}.toml"))
    }
    if not here and not options.check:
        raise Unreachable("neither colmet-node nor colmet-collector runs or is set up here", "absent")
    return here or answers


# -- text --


def describe(status: StatusOrError, is_well: bool = True, counters: bool = False) -> list[str]:
    """Return the lines of a status as text, with all counters if wanted; none for an error."""
    if isinstance(status, ColmetError):
        return []
    first = (
        f"colmet-{status['daemon']} {status['version']} on {status['host']}, process {status['pid']}, "
        f"up {duration(status['uptime_s'])}"
    )
    lines = _node(status) if status["daemon"] == "node" else _collector(status)
    return [first, *lines, *(_rest(status, is_well, counters) if len(lines) > 1 else [])]


def _node(status: Mapping[str, Any]) -> list[str]:
    if status["last_tick_age_s"] is None:
        return [] if "waits_for_collector" in status else ["no sample yet"]
    agent, ticks = status["agent"], max(1, status["agent"]["ticks"])
    age, cpu_share = duration(status["last_tick_age_s"]), status["cpu_s"] / max(1.0, status["uptime_s"])
    every = f"{status['period_s']:g} s, {count(ticks)} so far, {count(agent['overruns'])} skipped"
    jobs = f"{counted(agent['jobs'], 'jobs')} now, {count(agent['jobs_started'])} since the start"
    lines = [
        f"last sample {age} ago, took {status['tick_s'] * 1000:.1f} ms; one every {every}",
        f"{jobs}; {cpu_share * 100:.2f} % of a CPU",
        "",
    ]
    lines += [*_backends(status["backends"], ticks), ""]
    uplinks = [
        (one["uri"], one["state"], duration(one["since_s"]), one["version"] or "-") for one in status["collectors"]
    ]
    lines += columns([("collector", "state", "since", "version"), *uplinks])
    spool = status["spool"]
    lines.append(
        f"batches: {count(spool['sent'])} sent, {count(spool['acknowledged'])} acknowledged, {count(spool['held'])} "
        f"waiting, the oldest for {duration(status['behind_s'])}; {count(agent['batches_dropped'])} dropped"
    )
    return lines


def _table(items: Sequence[Mapping[str, Any]], cells: Mapping[str, Callable[[Any], str]]) -> list[str]:
    return columns([tuple(cells), *[tuple([text(one) for text in cells.values()]) for one in items]])


def _counts(*names: str) -> dict[str, Callable[[Any], str]]:
    return {plain(name): lambda one, name=name: count(one[name]) for name in names}  # type: ignore[misc]


def _backends(backends: Sequence[Mapping[str, Any]], ticks: int) -> list[str]:
    lines = _table(
        backends,
        {
            "backend": lambda one: one["name"],
            "state": lambda one: "on" if one["on"] else "OFF",
            **_counts("rows"),
            "last rows": lambda one: _ago(one["last_rows_age_s"]),
            **_counts("failures"),
            "CPU a sample": lambda one: f"{one['cpu_s'] / ticks * 1000:.2f} ms",
        },
    )
    for backend in backends:
        if backend["why"]:
            lines.append(f"  {backend['name']} is off: {backend['why']}")
        if backend["error"]:
            lines.append(f"  {backend['name']} failed last with: {backend['error']}")
    return lines


def _collector(status: Mapping[str, Any]) -> list[str]:
    received, senders, journal = status["received"], status["senders"], status["journal"]
    nodes = f"nodes: {count(senders['heard'])} heard, {count(senders['silent'])} silent"
    if senders["gone"]:
        nodes += f", {count(senders['gone'])} gone for more than a day"
    if senders["lag_median_s"] is not None:
        median, most = duration(senders["lag_median_s"]), duration(senders["lag_max_s"])
        nodes += f"; data are {median} old (median), at most {most}"
    missing, twice, limited = [count(received[key]) for key in ("missing", "duplicates", "limited")]
    refused = _refused(received)
    kept = f"journal: {journal['directory'] or 'in memory'}, {size(journal['bytes'])}"
    if journal["why"]:
        kept += f"; CANNOT BE WRITTEN TO: {journal['why']}"
    if journal["full"]:
        kept += "; FULL, nothing is received"
    came = f"{counted(received['batches'], 'batches')}, {counted(received['rows'], 'rows')}"
    lines = [
        nodes,
        f"received: {came}; {missing} missing, {twice} twice, {refused} refused, {limited} limited"
        + (f", {counted(received['left_out'], 'rows')} left out" if received.get("left_out") else "")
        + (f", {counted(received['forgotten'], 'senders')} forgotten" if received.get("forgotten") else "")
        + (f", {count(received['conflicts'])} with the number of another one" if received.get("conflicts") else ""),
        kept,
    ]
    most = senders.get("most_new_jobs", {})
    if most.get("name"):
        lines.append(f"most new jobs in two hours: {count(most['jobs'])}, of {most['name']}")
    lines += ["", *_outputs(status["outputs"]), ""]
    return lines + _senders(senders) if senders["worst"] else lines


_OF_ARCHIVE = {
    "jobs_removed": "old jobs removed",
    "late_rows": "late rows",
    "rows_left_out": "rows left out",
    "folds_lost": "states lost",
    "unshared": "wait for the database",
    "share_refused": "refused by the database",
    "batch_failures": "failed questions to the batch system",
    "batch_skipped": "unread records of the batch system",
}


def _outputs(outputs: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = _table(
        outputs,
        {
            "output": lambda one: one["name"],
            "state": lambda one: "ok" if one["available"] else f"AWAY for {duration(one['away_s'])}",
            "rows written": lambda one: count(one["written"]),
            "messages waiting": lambda one: count(one["waiting"]),
            "behind": lambda one: duration(one["behind_s"]),
            "failures": lambda one: count(one["all_failures"]),
            **_counts("lost", "dropped"),
        },
    )
    for output in outputs:
        if output.get("files_removed") or output.get("files_not_removed"):
            done = f"{counted(output['files_removed'], 'old files')} ({size(output['bytes_removed'])})"
            lines.append(
                f"  {output['name']} removed {done}; {count(output['files_not_removed'])} could not be removed"
            )
        if "size_bytes" in output:
            more = [f", {count(output[key])} {text}" for key, text in _OF_ARCHIVE.items() if output.get(key)]
            lines.append(
                f"  {output['name']}: {count(output.get('open', 0))} unfinished summaries, "
                f"{size(output['size_bytes'])}{''.join(more)}"
            )
    return lines + [f"  {output['name']} is away: {output['why']}" for output in outputs if output["why"]]


def _senders(senders: Mapping[str, Any]) -> list[str]:
    lines = _table(
        senders["worst"],
        {
            "sender": lambda one: one["name"],
            "heard": lambda one: f"{'GONE, ' * one['gone']}{'SILENT, ' * one['silent']}{_ago(one['seen_age_s'])}",
            "lag": lambda one: duration(one["lag_s"]) if one["batches"] else "-",
            **_counts("batches", "missing"),
            "twice": lambda one: count(one["duplicates"]),
            "refused": _refused,
            **_counts("limited"),
            "version": lambda one: one["version"] or one["dialect"] or "-",
        },
    )
    others = senders["count"] - len(senders["worst"])
    return lines + ([f"and {counted(others, 'others')}; --all shows them"] if others else [])


def _refused(counts: Mapping[str, Any]) -> str:
    """Return the number of messages refused: undecodable, with the key of another host, or of a second machine."""
    return count(counts["rejects"] + counts["foreign"] + counts.get("second_machine", 0))


def _ago(age_s: float | None) -> str:
    return "-" if age_s is None else f"{duration(age_s)} ago"


# Parts printed elsewhere in the text; each other map has the counters of a part.
_PRINTED = frozenset({"agent", "received", "senders", "journal", "spool", "last_hour"})


def _rest(status: Mapping[str, Any], is_well: bool, counters: bool) -> list[str]:
    """Return a line for each part with counters only, if `counters` is set, and one for the last hour."""
    lines = []
    for name, values in status.items():
        if counters and name not in _PRINTED and isinstance(values, dict):
            counts = ", ".join(
                [f"{plain(key.removeprefix(f'{name}_'))} {count(value)}" for key, value in values.items()]
            )
            lines.append(f"{plain(name)}: {counts}")
    wrong = [counted(value, plain(name)) for name, value in status.get("last_hour", {}).items() if value]
    if wrong or is_well:
        lines.append(f"in the last hour: {', '.join(wrong) or 'nothing went wrong'}")
    return ["", *lines] if lines else []
