"""Diagnose a node or a collector, and suggest remedies."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence

from colmet.commands.doctor import daemon, network, node
from colmet.commands.doctor.target import SIDES, Target, find_sides
from colmet.common.config import cli
from colmet.common.daemon.checks import Check, Result, as_json, as_text, quiet, run_checks
from colmet.common.errors import ConfigError
from colmet.common.host.host import Host

MAX_WIDTH = 120
_NODE = SIDES[:1]
CHECKS = (  # in the order of their execution
    Check("libraries", "python modules", SIDES, daemon.check_modules),
    Check("libraries", "plug-ins", SIDES, daemon.check_plugins),
    Check("daemon", "configuration", SIDES, daemon.check_configuration),
    Check("daemon", "running", SIDES, daemon.check_running),
    Check("daemon", "health", SIDES, daemon.check_health),
    Check("daemon", "unit", SIDES, daemon.check_unit),
    Check("daemon", "leftovers", SIDES, daemon.check_leftovers, "nothing"),
    Check("kernel", "task accounting", _NODE, node.check_accounting),
    Check("kernel", "task ends", _NODE, node.check_ends),
    Check("kernel", "forks", _NODE, node.check_forks),
    Check("kernel", "delay accounting", _NODE, node.check_delays),
    Check("kernel", "pressure", _NODE, node.check_pressure),
    Check("kernel", "inotify", _NODE, node.check_inotify, "limits are high enough"),
    Check("jobs", "cgroups", _NODE, node.check_jobs),
    Check("jobs", "controllers", _NODE, node.check_controllers),
    Check("rights", "capabilities", _NODE, node.check_rights),
    Check("rights", "container", _NODE, node.check_container, "the machine itself, no container"),
    Check("measured here", "backends", _NODE, node.check_backends, bound_s=60.0),
    Check("network", "collectors", _NODE, network.check_collectors, bound_s=30.0),
    Check("network", "keys", SIDES, network.check_keys),
    Check("machine", "disk", SIDES, daemon.check_disk),
    Check("machine", "clock", SIDES, daemon.check_clock),
)


def add_options(parser: cli.Parser) -> None:
    """Declare the options."""
    parser.usage = f"{parser.prog} [OPTION ...] [-- DAEMON-OPTION ...]"
    parser.epilog = """\
Run it as root: it judges files with the rights of the daemon's user.

exit status:
  0  all is well
  1  something is missing, or will be (WARN)
  2  something cannot work (FAIL), or the command line is wrong

examples:
  colmet doctor                     check the daemons of this machine
  colmet doctor -q                  print problems only
  colmet doctor --node -- --zeromq-uri tcp://head:5556 --enable-perfhw
                                    would a node with these options work here?"""
    parser.add_argument("--node", action="store_true", help="examine colmet-node")
    parser.add_argument("--collector", action="store_true", help="examine colmet-collector")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="configuration file of the daemon (default: that of the running daemon, else of its unit)",
    )
    parser.add_argument(
        "--control-socket", metavar="PATH", help=cli.Rare("socket of the daemon (default: that of its own default)")
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print problems only")
    parser.add_argument("--json", action="store_true", help="print JSON: each finding with its check and remedy")
    parser.add_argument(
        "options", metavar="DAEMON-OPTION", nargs="*", help="check with these options of the daemon instead of its own"
    )


def run(options: argparse.Namespace) -> int:
    """Examine the daemons, print the findings and return the exit status."""
    host = Host()
    sides = [side for side in SIDES if getattr(options, side)]
    argv: list[str] | None = None
    if options.config is not None or options.options:
        argv = [*(["--config", options.config] if options.config is not None else []), *options.options]
    if len(sides) != 1 and (argv is not None or options.control_socket is not None):
        raise ConfigError("--config, --control-socket and DAEMON-OPTION require --node or --collector")
    targets = [
        Target(side, host, argv, options.control_socket, bool(options.options))
        for side in sides or find_sides(host) or list(SIDES[:1])
    ]
    results: list[Result] = []
    try:
        with quiet():
            for target in targets:
                results += examine_all(target)
    finally:  # also after Ctrl-C: programs in sessions of their own do not receive it
        host.stop_commands()
    width = min(shutil.get_terminal_size((80, 24)).columns, MAX_WIDTH)
    is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    text = as_json(results) if options.json else "\n".join(as_text(results, options.quiet, width, is_coloured))
    try:
        if text:
            print(text)
        sys.stdout.flush()
    except BrokenPipeError:  # closed by the reader; also avoids a second flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(max([result.finding.level for result in results]))


def examine_all(target: Target, checks: Sequence[Check] = CHECKS) -> list[Result]:
    """Return the findings of all checks of a daemon."""
    target.ask()
    with _in_folder_of(target):
        return run_checks(checks, target.side, target)


@contextlib.contextmanager
def _in_folder_of(target: Target) -> Iterator[None]:
    """Change to the working directory of the running daemon, the base of its relative paths, and back at the end."""
    with contextlib.ExitStack() as stack:
        # either directory may belong to another user; absolute paths, as in the units, work anyway
        with contextlib.suppress(OSError):
            before = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, before)
            os.fchdir(before)  # checks that the way back works
            if target.pid and not target.is_given:
                os.chdir(f"/proc/{target.pid}/cwd")
                stack.callback(os.fchdir, before)
        yield
