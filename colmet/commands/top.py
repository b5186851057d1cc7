"""Show the current use of jobs and nodes: of the cluster from the collector, or of this node from colmet-node.

Run it as root or as the daemon's user. The daemon keeps rows only while colmet top runs, so rates appear after the
second sample.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any, Callable
from urllib.parse import urlsplit

from colmet.commands import remote, selection
from colmet.commands import top_view as view
from colmet.commands.remote import InterfaceClient, InterfaceError
from colmet.common.config import cli
from colmet.common.config.cli import did_you_mean
from colmet.common.daemon.control import add_client_options, ask
from colmet.common.errors import ConfigError, Unreachable
from colmet.common.live.summary import JOB_KEYS, MAX_ROWS, MAX_TEXT, NODE_KEYS, ROWS, arranged
from colmet.common.text import Clock, how_to_install

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
    parser.epilog = """\
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
        width = shutil.get_terminal_size((80, 24)).columns
        print(json.dumps(answer, indent=2) if options.json else "\n".join(text(answer, request, width)))
        return 0
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") in ("", "dumb"):
        raise ConfigError("standard output is no terminal: give --once for a table, --json for all values")
    try:
        from colmet.commands import top_screen as screen
    except ModuleNotFoundError as err:
        raise ConfigError(
            f"it requires the Python module rich: {how_to_install('rich')}; --once and --json do without it"
        ) from err
    asked(request)  # reports a missing daemon before the screen is switched
    return screen.show(asked, request, options.interval)


def _request(options: argparse.Namespace) -> dict[str, Any]:
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
    """Return a function for requests to the chosen daemon, or to the running one."""
    interface = remote.client_of(options)
    if interface is not None:
        if options.daemon or options.control_socket:
            raise ConfigError("--url asks the collector's interface: it excludes a daemon and --control-socket")
        return functools.partial(remote_answer, interface)
    place = options.control_socket
    daemons = [options.daemon] if options.daemon else ["collector"] if place else ["collector", "node"]

    def asked(request: Mapping[str, Any]) -> dict[str, Any]:
        for daemon in list(daemons):
            try:
                answer = ask(place, daemon, request, ASK_S)
            except Unreachable as err:
                if err.why != "absent" or len(daemons) == 1:
                    raise
            else:
                daemons[:] = [daemon]
                return answer
        raise Unreachable("neither colmet-collector nor colmet-node listens here; is one running?", "absent")

    return asked


def settled(asked: Ask, request: Mapping[str, Any], wait_s: float) -> dict[str, Any]:
    """Ask until each heard node has sent two samples, or `wait_s` is over; return the last answer."""
    until = time.monotonic() + wait_s
    answer = asked(request)
    while time.monotonic() < until and answer.get("nodes_measured", 0) < answer.get("nodes_heard", 0):
        time.sleep(min(LOOK_S, wait_s))
        answer = asked(request)
    return answer


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


MOST_ROWS = 1000  # of an answer of the interface
_FILTERS = ("user", "node", "text")


def remote_answer(client: InterfaceClient, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request by the routes of an interface, with what its user may see.

    It is as that of `colmet.common.live.summary.Top.answer`; ColmetError without one.
    """
    with client.checking_form():
        cluster = client.get("cluster")
        heard = int(cluster["nodes"]["heard"] or 0)
        answer = {
            "daemon": "interface",
            "host": urlsplit(client.url).netloc,
            "time": cluster["time"],
            "kept_s": cluster["kept_s"],
            "nodes_heard": heard,
            "nodes_measured": heard,
            "left_out": 0,
            "view": request["view"],
        }
        if request["view"] == "job":
            return {**answer, **_remote_job(client, request)}
        keys = NODE_KEYS if request["view"] == "nodes" else JOB_KEYS
        asked: dict[str, object] = {name: request.get(name) or None for name in ("sort", "reverse", "text")}
        asked["limit"] = max(1, min(MOST_ROWS, request.get("limit", MOST_ROWS)))
        if request["view"] == "jobs":
            asked.update({name: request.get(name) or None for name in _FILTERS})
        found = client.get(request["view"], asked)
        rows = [_row(row, keys) for row in found["items"]]
        if request["view"] == "nodes":
            answer["totals"] = cluster["nodes"]
        elif not any(asked[name] for name in _FILTERS):
            answer["totals"] = cluster["jobs"]
        return {**answer, "count": int(found["total"]), "rows": rows}


def _remote_job(client: InterfaceClient, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = client.get(f"jobs/{int(request['job'])}")
    except InterfaceError as err:
        if err.status != 404:
            raise
        return {"job": None, "count": 0, "rows": []}
    rows = [_row(row, ("node", *JOB_KEYS)) for row in found["nodes"]]
    rows = arranged(rows, str(request.get("sort", "cpu")), bool(request.get("reverse")))
    job = _row(found["job"], JOB_KEYS) if found["job"]["running"] else None
    return {"job": job, "count": len(rows), "rows": rows}


def _row(row: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {**{key: row[key] for key in keys}, **({"silent": row["silent"]} if "silent" in row else {})}
