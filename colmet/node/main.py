"""colmet-node: open the parts requested by the command line, and run the agent."""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from colmet.common.config import cli, plugins
from colmet.common.config.configuration import Settings
from colmet.common.daemon import control, metrics_http, startup
from colmet.common.daemon.daemon_health import DaemonIdentity
from colmet.common.daemon.startup import tame_malloc, trim_malloc
from colmet.common.daemon.systemd import Service
from colmet.common.daemon.wakeup import Signals
from colmet.common.errors import ConfigError, Refused
from colmet.common.host import capabilities
from colmet.common.host.command import Call
from colmet.common.host.host import Host
from colmet.common.tables.agent import AGENT, MAPPING
from colmet.common.transport import check_uri, curve, wait
from colmet.common.wire import v1
from colmet.common.wire.control import Request
from colmet.node import agent_tables, counter_names, live_config, once, placement
from colmet.node.agent import Agent
from colmet.node.backend import InputBackend, check_declarations
from colmet.node.backends import NAMES
from colmet.node.delivery import link
from colmet.node.delivery.outbox import SendQueue
from colmet.node.delivery.uplink import Requests, Times, Uplink
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.jobs.places import DEFAULT_PATTERN, compile_patterns
from colmet.node.jobs.source import OAR2_ROOTS, JobSource
from colmet.node.node_health import NodeHealth
from colmet.node.schedule import Schedule, self_metrics_period_s

log = logging.getLogger(__name__)

NAMED_S = 5.0  # between two checks for a named collector
END_S = 3.0  # for --once to close its parts, after a signal
UNNAMED = (
    "no collector is named, nothing is measured: set zeromq-uri in the file of --config, or run `colmet enrol` on the "
    "collector's machine"
)
# Options of Colmet 0.6: its command lines may abbreviate these.
OPTIONS_06 = frozenset(
    (
        *("--cgroup", "--cpuset_rootpath", "--disable-procstats", "--enable-infiniband", "--enable-ipmipower"),
        *("--enable-jobproc", "--enable-lustre", "--enable-nvidia", "--enable-perfhw", "--enable-RAPL"),
        *("--enable-temperature", "--help", "--ipmipower-cmd", "--lustre-prefix", "--omnipath", "--perfhw-list"),
        *("--pid", "--regex_job_id", "--sample-period", "--tid", "--verbose", "--version", "--zeromq-hwm"),
        *("--zeromq-linger", "--zeromq-uri"),
    )
)


def build_parser(backends: Sequence[type[InputBackend]]) -> cli.Parser:
    """Return the command line of colmet-node."""
    parser = cli.Parser(
        prog="colmet-node",
        description="Measure the resource use of each job on this compute node, and send it to colmet-collector. Run "
        "it as root: measuring other users' jobs requires its rights.",
    )
    parser.older = OPTIONS_06
    startup.add_common_options(parser)
    parser.add_argument(
        "--once",
        action="store_true",
        help="print the available measurements and one sample, send nothing, and exit; status 1: nothing can be "
        "measured",
    )
    sending = parser.add_argument_group("where samples are sent")
    link.add_options(sending)
    startup.add_queue_options(sending)
    curve.add_options(parser.add_argument_group("keys"))
    jobs = parser.add_argument_group("jobs")
    jobs.add_argument(
        "--cpuset_rootpath",
        "--cpuset-rootpath",
        metavar="PATH",
        action="append",
        help="search for jobs only in this directory of one cgroup for each job; of cgroup v1 or v2; repeatable "
        "(default: the jobs of OAR and Slurm, wherever cgroups are mounted)",
    )
    jobs.add_argument(
        "--regex_job_id",
        "--regex-job-id",
        metavar="RE",
        action="append",
        help="regular expression for the name of a job's directory, with the job id as its first group; repeatable: "
        f"the first match counts (default: {DEFAULT_PATTERN.replace('%', '%%')})",
    )
    unit = parser.add_argument_group("tasks to measure together, as job 0")
    listed: dict[str, Any] = {"action": "append", "default": []}
    unit.add_argument("-c", "--cgroup", metavar="PATH", help="measure all tasks in this cgroup and below", **listed)
    number = cli.whole_number(1)
    unit.add_argument("-p", "--pid", metavar="PID", type=number, help="measure this process", **listed)
    unit.add_argument("-t", "--tid", metavar="TID", type=number, help="measure this thread", **listed)
    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "-s",
        "--sample-period",
        metavar="S",
        type=cli.positive_seconds,
        default=5.0,
        help="seconds between two samples (default: %(default)g)",
    )
    for backend in backends:
        backend.add_options(group)
    counter_names.add_options(group)
    daemon = parser.add_argument_group("how colmet-node runs")
    control.add_options(daemon, "node")
    metrics_http.add_options(daemon)
    live_config.add_options(daemon)
    daemon.add_argument(
        "--keep-privileges",
        action="store_true",
        help=cli.Rare("keep all rights of root (default: only those required for measuring; -v logs them)"),
    )
    return parser


def find_unit(options: argparse.Namespace, host: Host) -> Job | None:
    """Return the tasks of -c, -p and -t, as one unit; None without them; ConfigError if one of them does not exist."""
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
    """Return the source of the jobs of the command line; ConfigError if an expression or a unit cannot be used."""
    patterns = compile_patterns(options.regex_job_id or [DEFAULT_PATTERN])
    roots = options.cpuset_rootpath or (OAR2_ROOTS if options.regex_job_id else ())
    return JobSource(host, roots, patterns, find_unit(options, host))


@lru_cache(maxsize=1)
def load_backends() -> plugins.Backends:
    """Return the available input backends, those of plug-ins included."""
    return plugins.load(NAMES, "colmet.node_backends", InputBackend, build_parser, check_declarations)


def full_parser() -> cli.Parser:
    """Return the parser of the command line, with the options of plug-ins."""
    return load_backends().parser(build_parser)


class NodeParts(NamedTuple):
    """The parts of a node, before anything is opened."""

    source: JobSource  # finds the jobs
    backends: list[InputBackend]  # measure them
    security: curve.Client | None  # the node's keys; None without


def build(options: argparse.Namespace, classes: Sequence[type[InputBackend]], host: Host | None = None) -> NodeParts:
    """Make all parts of the options that require no open socket and no written file.

    All errors of a start are raised here, as ConfigError, except addresses in use: --check-config does no more.
    """
    host = host or Host()
    backends = [backend for cls in classes if (backend := plugins.make(cls, options, host)) is not None]
    link.addresses(options)
    security = curve.from_options(options)
    if options.control_socket:
        control.check_path(options.control_socket)
    if options.metrics_listen:
        metrics_http.resolve(options.metrics_listen, metrics_http.OPTION)
    if options.enable_rust_configuration:
        check_uri(options.enable_rust_configuration, live_config.OPTION)
    return NodeParts(find_jobs(options, host), backends, security)


def check(options: argparse.Namespace, classes: Sequence[type[InputBackend]]) -> None:
    """Check that the node would start with these options; ConfigError if it would not."""
    build(options, classes).source.close()
    if not link.collectors(options):
        log.warning("%s", UNNAMED)


def run_once(options: argparse.Namespace, classes: Sequence[type[InputBackend]], host: Host) -> int:
    """Print the backends that can measure, and one sample; return the exit status."""
    options.state_dir = ""
    options.task_accounting = "netlink"
    options.perfhw_make_cgroup = False
    if not options.keep_privileges:
        capabilities.drop(name for cls in classes for name in cls.capabilities | cls.better_with)

    def look() -> tuple[str, int]:
        with contextlib.closing(find_jobs(options, host)) as source:
            return once.report(options, classes, host, socket.gethostname(), source)

    def stopping() -> bool:
        if signals.stop_wanted():
            host.stop_commands()
        return signals.stop_wanted()

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # before and after, there is nothing to close
    with Signals((signal.SIGTERM, signal.SIGINT)) as signals:
        # in a thread: a signal that is handled while a program is being started would leave that program behind
        call = Call(look, "once")
        call.wait(math.inf, stopping, END_S)
        if signals.stop_wanted():
            return 128 + min(signals.pending)
    text, status = call.result()
    return status if once.show(text) else 1


def run(options: argparse.Namespace, classes: Sequence[type[InputBackend]], settings: Settings) -> int:
    """Build the agent and run it until a signal ends it, or print one sample; return the exit status.

    Raises:
        ConfigError: the options cannot be used; nothing was started.
    """
    startup.raise_open_file_limit()
    tame_malloc(arenas=1)  # before any thread
    service = Service.from_environment()  # first, so that no started program inherits it
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if the parent ignores it, no program has an exit status
    host = Host()
    if options.once:
        return run_once(options, classes, host)
    if not wait_for_collector(options, settings, service):
        return 0
    parts = build(options, classes, host)
    if not options.keep_privileges:
        capabilities.drop(name for backend in parts.backends for name in backend.capabilities | backend.better_with)
    place = placement.Placement(host)
    if parts.security is None:
        log.warning("%s", curve.OFF)
    host_name, times = socket.gethostname(), Times()
    with contextlib.ExitStack() as stack:
        asked = control.Control({})
        outbox = stack.enter_context(contextlib.closing(link.open_outbox(options, host, host_name)))
        uplinks = link.open_uplinks(options, host_name, times, parts.security)
        for uplink in uplinks:
            stack.callback(uplink.close)
        queue = SendQueue(v1.encode_short, outbox)
        remote = live_config.Remote(asked, is_known=parts.security is not None or options.allow_remote_configure)
        requests = Requests(remote.answer)
        sender = link.NodeLink(
            *(host_name, outbox, uplinks, queue.take, queue.fd),
            window=options.zeromq_hwm,
            times=times,
            requests=requests,
        )
        stack.callback(end_sending, sender, queue)
        stack.callback(service.close)
        place.lower_priority()  # including ZeroMQ's threads
        counters = {
            "spool": queue.counters,
            "link": sender.counters,
            "control": asked.counters,
            "configuration": settings.counters,
            "remote": remote.counters,
            "plugins": load_backends().counters,
        }
        rust: live_config.RustPort | None = None
        if options.enable_rust_configuration:
            rust = live_config.RustPort(options.enable_rust_configuration, asked)
            stack.callback(rust.close)
            counters["rust_configuration"] = rust.counters
        health = NodeHealth(counters, uplinks, options.metrics_jobs)
        own_period_s = self_metrics_period_s(options.sample_period)
        agent = Agent(
            host_name,
            parts.source,
            parts.backends,
            queue,
            Schedule(options.sample_period),
            placement=place,
            agent_stats=agent_tables.AgentStats(host, own_period_s),
            mapping=counter_names.CounterNames(host, options.mapping_dir),
            health=health,
            completeness=open_completeness(own_period_s, queue, uplinks),
        )
        stack.callback(agent.close)
        if options.metrics_listen:
            stack.callback(metrics_http.MetricsServer(options.metrics_listen, health.families, health.pause).close)
        stack.callback(asked.close)
        stack.callback(host.stop_commands)
        startup.tune_garbage_collector()
        trim_malloc()
        settings.add(agent.changes())
        with Signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)) as signals:
            with control.Errands() as errands:
                asked.handlers["status"] = health.status
                asked.handlers["top"] = health.top.answer
                asked.handlers["configure"] = live_config.handler(settings, errands)
                asked.listen(options.control_socket, "node")
                if rust is not None:
                    rust.start()
                sender.start()
                agent.run(signals, errands, service, settings.reload)
            stack.close()  # here: a second signal, as from timeout(1), must not end it before all is sent
    return 0


def wait_for_collector(options: argparse.Namespace, settings: Settings, service: Service) -> bool:
    """Wait until a collector is named; return False if a signal comes first.

    The configuration is read again meanwhile, on SIGHUP and every few seconds; this changes `options`. The control
    socket is open: `colmet status` prints what the node waits for.
    """
    if link.collectors(options):
        return True
    log.warning("%s", UNNAMED)
    identity, state = DaemonIdentity("node"), {"waits_for_collector": ""}

    def refuse(_: Request) -> dict[str, Any]:
        raise Refused(
            "colmet-node waits to be enrolled, and measures nothing: `colmet enrol "
            f"{identity.values()['host']}` on the collector's machine"
        )

    status = {"status": lambda _: {**identity.values(), "last_tick_age_s": None, **state}}
    asked = control.Control({**status, "top": refuse, "configure": refuse})
    with contextlib.closing(asked), Signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)) as signals:
        try:
            asked.listen(options.control_socket, "node")
        except ConfigError as err:
            log.warning(control.NO_SOCKET, err)
        service.ready()
        is_named = False
        while not is_named and not signals.stop_wanted():
            service.status(lambda: "no collector is named, nothing is measured")
            service.alive()
            wait((signals.fd,), (), min(NAMED_S, service.delay_s()))
            signals.drain()
            signals.pending.discard(signal.SIGHUP)
            is_named = _find_collector(options, settings, state)
    if is_named and not signals.stop_wanted():  # both may have come at the same moment
        log.info("collector is named uri=%s", ",".join(link.collectors(options)))
        return True
    service.stopping()
    service.close()
    return False


def _find_collector(options: argparse.Namespace, settings: Settings, state: dict[str, str]) -> bool:
    """Read the configuration again; return whether it names a collector, and note in `state` why it cannot be used."""
    problem = ""
    try:
        settings.refresh()
        if link.collectors(options):
            curve.from_options(options)
            return True
    except ConfigError as err:  # such as half of the files, while they are copied
        problem = str(err)
        if problem != state["waits_for_collector"]:
            log.error("configuration cannot be used, waiting: %s", problem)
    state["waits_for_collector"] = problem
    return False


def open_completeness(period_s: float, queue: SendQueue, uplinks: Sequence[Uplink]) -> agent_tables.CompletenessStats:
    """Return the counts of completeness."""

    def delivery_totals() -> agent_tables.DeliveryTotals:
        return agent_tables.DeliveryTotals(
            queue.outbox.stats.totals(),  # as in the other rows, without those of earlier starts
            queue.outbox.stats.by_table(),
            queue.dropped_ranges(),
            sum(uplink.duplicates for uplink in uplinks),
        )

    return agent_tables.CompletenessStats(delivery_totals, period_s, (AGENT.name, MAPPING.name))


def end_sending(sender: link.NodeLink, queue: SendQueue) -> None:
    """Send the last batches; end the process if the disk does not answer."""
    if not sender.stop(queue.wake):  # its resources cannot be released
        log.error("the spool's disk does not answer, ending without it")
        logging.shutdown()
        os._exit(1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``colmet-node``; return the exit status."""
    return startup.run_daemon(load_backends(), build_parser, check, run, argv)


if __name__ == "__main__":
    sys.exit(main())
