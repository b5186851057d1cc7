"""Change the sample period or the perf events of running nodes: of this node, or of others through the collector.

Run it as root or as the daemon's user. The change is lost at the node's next start or SIGHUP. To keep it, change the
node's configuration file, too.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from colmet.common.config import cli
from colmet.common.daemon.control import ERRAND_S, add_client_options, ask
from colmet.common.errors import ConfigError
from colmet.common.text import some_of

SHOWN = 20  # hosts in a line


def add_options(parser: cli.Parser) -> None:
    """Declare the options."""
    parser.epilog = """\
examples:
  colmet configure --sample-period 1
  colmet configure --all --perf-events instructions cache_misses
  colmet configure --host node-7 --host node-8 --sample-period 2.5

exit status:
  0  done
  1  a node refused or did not answer, or no daemon answers here
  2  wrong command line"""
    parser.add_argument("--node", action="store_true", help="change the node on this machine (default)")
    parser.add_argument("--all", action="store_true", help="change all nodes, through the collector on this machine")
    parser.add_argument(
        "--host",
        metavar="NAME",
        action="append",
        help="change this node, through the collector on this machine; repeatable",
    )
    parser.add_argument("--sample-period", metavar="S", type=cli.positive_seconds, help="seconds between two samples")
    parser.add_argument(
        "--perf-events",
        metavar="NAME",
        nargs="+",
        help="count these perf events from now on; as --perfhw-list of colmet-node: NAME, or NAME:PERIOD:JOB for a "
        "value every PERIOD seconds (-1: at every sample), of one job (-1: of all)",
    )
    add_client_options(parser)
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(options: argparse.Namespace) -> int:
    """Send the change, and print the answer; return the exit status, 1 if a node did not apply it."""
    through = options.all or bool(options.host)
    if options.node + options.all + bool(options.host) > 1:
        raise ConfigError("give one of --node, --all and --host")
    request: dict[str, str] = {}
    if options.sample_period is not None:
        request["sample_period"] = f"{options.sample_period:.10g}"
    if options.perf_events is not None:
        request["metrics"] = ",".join(options.perf_events)
    if not request:
        raise ConfigError("nothing to change; give --sample-period or --perf-events")
    if options.host:
        if any("," in name for name in options.host):
            raise ConfigError("--host: give one name each time")
        request["hosts"] = ",".join(options.host)
    daemon = "collector" if through else "node"
    answer = ask(options.control_socket, daemon, request, 4 * ERRAND_S)
    if options.json:
        print(json.dumps(answer, indent=2))
    else:
        print("\n".join(of_all(answer) if through else of_one(answer)))
    return 0 if answer.get("ok") is True else 1


def of_one(answer: dict[str, Any]) -> list[str]:
    """Return the answer of a node, as lines of text."""
    lines = [f"{name}: {old} -> {new}" for name, (old, new) in answer["changed"].items()]
    lines += [f"{name}: it is so already" for name in answer["unchanged"]]
    lines += [f"{name}: refused: {why}" for name, why in answer.get("refused", {}).items()]
    return [*lines, f"lasts {answer['lasts']}"]


def of_all(answer: dict[str, Any]) -> list[str]:
    """Return the answer of a collector, as lines of text."""
    refused = answer["refused"]
    changed, unchanged, silent = [len(answer[key]) for key in ("changed", "unchanged", "silent")]
    count = sum(map(len, refused.values()))
    lines = [f"{changed} changed, {unchanged} were so already, {count} refused, {silent} did not answer"]
    lines += [f"refused by {some_of(hosts, SHOWN)}: {why}" for why, hosts in refused.items()]
    if answer["silent"]:
        lines.append(f"no answer from {some_of(answer['silent'], SHOWN)}; they may do it yet")
    if answer["away"]:
        lines.append(f"not connected: {some_of(answer['away'], SHOWN)}")
    return lines
