"""colmet-node: the command line, and the wiring of the agent."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence

from colmet.common import cli
from colmet.common.errors import ConfigError
from colmet.common.transport import Push
from colmet.common.wire import ENCODERS
from colmet.node import account, mapping, once, placement
from colmet.node.agent import Agent
from colmet.node.backend import InputBackend
from colmet.node.backends import NAMES
from colmet.node.host import Host
from colmet.node.jobs import DEFAULT_PATTERN, NODE_JOB, OAR2_ROOTS, Job, JobSource, compile_patterns
from colmet.node.schedule import Schedule
from colmet.node.spool import Spool

log = logging.getLogger(__name__)


def build_parser(backends: Sequence[type[InputBackend]]) -> argparse.ArgumentParser:
    """The command line of colmet-node."""
    parser = cli.Parser(
        prog="colmet-node",
        description="Measure what every job on this compute node uses, and send it to colmet-collector. "
        "Start it as root: reading other users' jobs takes the rights to.",
    )
    cli.add_common_options(parser)
    once.add_options(parser)
    parser.add_argument(
        "-s",
        "--sample-period",
        metavar="S",
        type=cli.positive_seconds,
        default=5.0,
        help="seconds from one sample to the next (default: %(default)g)",
    )
    parser.add_argument(
        "--zeromq-uri",
        metavar="URI",
        default="tcp://127.0.0.1:5556",
        help="where colmet-collector listens (default: %(default)s)",
    )
    parser.add_argument(
        "--wire",
        choices=sorted(ENCODERS),
        default="v1",
        help="dialect to send in; colmet06 is for a collector of Colmet 0.6 (default: %(default)s)",
    )
    placement.add_options(parser)
    jobs = parser.add_argument_group("jobs")
    jobs.add_argument(
        "--cpuset_rootpath",
        metavar="PATH",
        action="append",
        help="directory that holds one cgroup a job, of cgroup v1 or v2; may be given several times; one that does not "
        "exist yet is waited for. Only these are looked at then (default: the jobs of OAR and Slurm are found by "
        "themselves, wherever cgroups are mounted)",
    )
    jobs.add_argument(
        "--regex_job_id",
        metavar="RE",
        action="append",
        help="finds the job id, its first group, in the name of a directory under --cpuset_rootpath (without that: "
        f"under OAR 2's {', '.join(OAR2_ROOTS)}, and only there); may be given several times, the first that matches "
        f"counts (default: {DEFAULT_PATTERN.replace('%', '%%')})",
    )
    unit = parser.add_argument_group("tasks to measure beside the jobs, together, as job 0")
    unit.add_argument(
        "-c",
        "--cgroup",
        metavar="PATH",
        action="append",
        default=[],
        help="all tasks of this cgroup, v1 or v2, and of those inside it",
    )
    unit.add_argument(
        "-p", "--pid", metavar="PID", action="append", default=[], type=cli.whole_number(1), help="this process"
    )
    unit.add_argument(
        "-t", "--tid", metavar="TID", action="append", default=[], type=cli.whole_number(1), help="this one thread"
    )
    group = parser.add_argument_group("what is measured")
    for backend in backends:
        backend.add_options(group)
    mapping.add_options(group)
    account.add_options(group)
    return parser


def find_unit(options: argparse.Namespace, host: Host) -> Job | None:
    """The tasks that -c, -p and -t name, as one unit; None where they name none.

    Raises:
        ConfigError: one of them does not exist.
    """
    if not (options.cgroup or options.pid or options.tid):
        return None
    cgroups = [os.path.abspath(path) for path in options.cgroup]
    for path in cgroups:
        if not host.is_directory(path):
            raise ConfigError(f"--cgroup {path}: no such directory; give one under /sys/fs/cgroup")
        if not {"tasks", "cgroup.threads"}.intersection(host.names(path)):
            raise ConfigError(f"--cgroup {path}: not the directory of a cgroup; give one under /sys/fs/cgroup")
    for number in options.pid + options.tid:
        if not host.is_directory(f"/proc/{number}"):
            raise ConfigError(f"--pid or --tid {number}: no such process or thread")
    return Job(host, NODE_JOB, cgroups=cgroups, pids=options.pid, tids=options.tid)


def find_jobs(options: argparse.Namespace, host: Host) -> JobSource:
    """What finds the jobs that the command line asks for.

    Raises:
        ConfigError: an expression or a unit cannot be used.
    """
    patterns = compile_patterns(options.regex_job_id or [DEFAULT_PATTERN])
    roots = options.cpuset_rootpath or (OAR2_ROOTS if options.regex_job_id else ())
    return JobSource(host, roots, patterns, find_unit(options, host))


def run_once(options: argparse.Namespace, classes: Sequence[type[InputBackend]], host: Host) -> int:
    """Print what there is to measure, and one sample; the exit status.

    Raises:
        ConfigError: the options ask for what cannot be done.
    """
    options.state_dir = ""
    options.perfhw_make_cgroup = False
    for number in (signal.SIGTERM, signal.SIGINT):  # all that is under way is closed then, and its programs are killed
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    source = find_jobs(options, host)
    try:
        text, status = once.report(options, classes, host, socket.gethostname(), source)
    finally:
        source.close()
    return status if once.show(text) else 1


def run(options: argparse.Namespace, classes: Sequence[type[InputBackend]]) -> int:
    """Build the agent and run it until a signal ends it, or print one sample; the exit status.

    Raises:
        ConfigError: the options ask for what cannot be done; nothing was started.
    """
    cli.raise_open_file_limit()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever starts us may ignore it: then no program has an exit status
    host = Host()
    if options.once:
        return run_once(options, classes, host)
    source = find_jobs(options, host)
    backends = [backend for cls in classes if (backend := cls.from_options(options, host)) is not None]
    place = placement.Placement(host, options.nice, not options.no_affinity)
    push = Push(options.zeromq_uri, options.zeromq_hwm, options.zeromq_linger)
    try:
        spool = Spool(ENCODERS[options.wire], push.send)
        own = None if options.disable_agent_stats else account.Account(host, options.agent_stats_period)
        place.lower_priority()  # that of ZeroMQ's threads, too
        schedule = Schedule(options.sample_period)
        names = mapping.Names.from_options(options.mapping_dir, host)
        agent = Agent(socket.gethostname(), source, backends, spool, schedule, place, own, names)
        try:
            cli.tune_garbage_collector()
            with cli.Signals((signal.SIGTERM, signal.SIGINT)) as signals:
                agent.run(signals)
        finally:
            host.stop_commands()
            agent.close()
    finally:
        push.close()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``colmet-node``; the exit status."""
    return cli.run_daemon(NAMES, build_parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
