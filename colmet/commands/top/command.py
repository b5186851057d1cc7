"""Show the current use of jobs and nodes: of the cluster from the collector, or of this node from colmet-node.

Run it as root or as the daemon's user. The daemon keeps rows only while colmet top runs, so rates appear after the
second sample.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any, Callable

from colmet.commands import remote, selection
from colmet.commands.top import view
from colmet.commands.top.remote import RemoteTop
from colmet.common.config import cli
from colmet.common.config.cli import did_you_mean
from colmet.common.daemon.control import add_client_options, ask
from colmet.common.errors import ConfigError, Unreachable
from colmet.common.live.summary import JOB_KEYS, MAX_ROWS, MAX_TEXT, NODE_KEYS, ROWS
from colmet.common.text import Clock, how_to_install

EPILOG = """\
examples:
  colmet top                              what all jobs use, live; ? shows the keys
  colmet top -j 4242                      one job, on each of its nodes
  colmet top --nodes --once --sort cpu    the busiest nodes, as text
  colmet top --url https://head:8080      the same from a login node, your own jobs
  colmet top --json -u bob | jq '.rows[] | {job, cpu, cpus}'

exit status:
  0  done
  1  no daemon answers, or it refuses the request
  2  wrong command line
"""
ASK_S = 15.0  # timeout of an answer: a daemon pauses for nine times its answering time, and has other clients
LOOK_S = 0.5  # between two requests until all nodes have two samples

Ask = Callable[[Mapping[str, Any]], dict[str, Any]]


def interval(text: str) -> float:
    """Return the seconds between two answers, fewer than the daemon's retention of rows: an option type."""
    value = cli.positive_seconds(text)
    if not 0.2 <= value <= 30:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.2 to 30")
    return value


def words(text: str) -> str:
    """Return a search text: an option type."""
    if len(text) > MAX_TEXT:
        raise argparse.ArgumentTypeError(f"it has {len(text)} characters, more than {MAX_TEXT}")
    return text


def add_options(parser: cli.Parser) -> None:
    """Declare the options."""
    parser.epilog = EPILOG
    parser.add_argument(
        "daemon",
        nargs="?",
        choices=("node", "collector"),
        help="ask this daemon (default: the collector, else the node)",
    )
    add_client_options(parser)
    remote.add_options(parser)
    parser.add_argument("--nodes", action="store_true", help="show the nodes, not the jobs")
    selection.add_job(parser, "show this job, on each of its nodes")
    selection.add_user(parser, "only the jobs of this user", words)
    parser.add_argument(
        "--sort",
        metavar="KEY",
        help=f"sort by this column; of jobs: {', '.join(JOB_KEYS)}; of nodes: {', '.join(NODE_KEYS)} (default: cpu, "
        "with --nodes: node)",
    )
    parser.add_argument(
        "--interval",
        metavar="S",
        type=interval,
        default=2.0,
        help="refresh every S seconds, from 0.2 to 30 (default: %(default)g)",
    )
    parser.add_argument("--once", action="store_true", help="print one table and exit; works without a terminal")
    parser.add_argument("--json", action="store_true", help="print one answer as JSON, and exit")
    parser.add_argument(
        "--wait",
        metavar="S",
        type=cli.positive_seconds,
        default=15.0,
        help=cli.Rare(
            "wait at most S seconds for each node's second sample with --once and --json (default: %(default)g)"
        ),
    )


def run(options: argparse.Namespace) -> int:
    """Ask the daemon, and show its answers; return the exit status."""
    request = _request(options)
    asked = _asker(options)
    if options.once or options.json:
        limit = MAX_ROWS if options.json else ROWS
        answer = settled(asked, {**request, "limit": limit}, options.wait)
        print(json.dumps(answer, indent=2) if options.json else "\n".join(text(answer, request, _width())))
        return 0
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") in ("", "dumb"):
        raise ConfigError("standard output is no terminal: give --once for a table, --json for all values")
    try:
        from colmet.commands.top import screen
    except ModuleNotFoundError as err:
        raise ConfigError(
            f"it requires the Python module rich: {how_to_install('rich')}; --once and --json do without it"
        ) from err
    asked(request)  # reports a missing daemon before the screen is switched
    return screen.show(asked, request, options.interval)


def _request(options: argparse.Namespace) -> dict[str, Any]:
    """Return the request; ConfigError if the options exclude each other."""
    if options.nodes and (options.job is not None or options.user):
        raise ConfigError("--nodes excludes --job and --user")
    name = "nodes" if options.nodes else "jobs" if options.job is None else "job"
    keys = NODE_KEYS if options.nodes else JOB_KEYS if options.job is None else ("node", *JOB_KEYS)
    request = {"command": "top", "view": name, "reverse": False, "user": options.user, "text": ""}
    if options.sort is not None:
        if options.sort not in keys:
            raise ConfigError(
                f"--sort {options.sort!r:.40} is none of {', '.join(keys)}{did_you_mean(options.sort, keys)}"
            )
        request["sort"] = options.sort
    return request if options.job is None else {**request, "job": options.job}


def _asker(options: argparse.Namespace) -> Ask:
    """Return a function for requests to the chosen daemon, or to the running one.

    Raises:
        ConfigError: the keys cannot be used.
    """
    interface = remote.client_of(options)
    if interface is not None:
        if options.daemon or options.control_socket:
            raise ConfigError("--url asks the collector's interface: it excludes a daemon and --control-socket")
        return RemoteTop(interface)
    place = options.control_socket
    daemons = [options.daemon] if options.daemon else ["collector"] if place else ["collector", "node"]

    def asked(request: Mapping[str, Any]) -> dict[str, Any]:
        absent: Unreachable | None = None
        for daemon in list(daemons):
            try:
                answer = ask(place, daemon, request, ASK_S)
            except Unreachable as err:
                if err.why != "absent" or len(daemons) == 1:
                    raise
                absent = err
            else:
                daemons[:] = [daemon]
                return answer
        raise Unreachable(
            "neither colmet-collector nor colmet-node listens here; is one running?", "absent"
        ) from absent

    return asked


def settled(asked: Ask, request: Mapping[str, Any], wait_s: float) -> dict[str, Any]:
    """Ask until each heard node has sent two samples, or `wait_s` is over; return the last answer."""
    until = time.monotonic() + wait_s
    while True:
        answer = asked(request)
        late = time.monotonic() >= until
        if late or answer.get("nodes_measured", 0) >= answer.get("nodes_heard", 0):
            return answer
        time.sleep(min(LOOK_S, wait_s))


def text(answer: Mapping[str, Any], request: Mapping[str, Any], width: int) -> list[str]:
    """Return the answer as lines of text."""
    name, rows = str(request["view"]), answer.get("rows") or ()
    then = float(answer.get("time") or 0.0)
    lines = [f"colmet {view.where(answer)}, {view.clock(then)} {Clock().zone(then)}"]
    if name == "job":
        lines += [view.plain(line) for line in view.detail(answer.get("job"), int(request["job"]), (), width)]
    else:
        lines += [line for line in view.summary(answer) if line]
    if rows:
        lines += ["", *[view.plain(line) for line in view.table(name, rows, width)]]
    return lines


def _width() -> int:
    return shutil.get_terminal_size((80, 24)).columns
