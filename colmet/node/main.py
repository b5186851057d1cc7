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
from colmet.node import agent_tables, counter_names, live_config, placement, rust_configuration
from colmet.node.agent import Agent
from colmet.node.backend import InputBackend, check_declarations
from colmet.node.backends import NAMES
from colmet.node.delivery import link
from colmet.node.delivery.requests import Requests
from colmet.node.delivery.send_queue import SendQueue
from colmet.node.delivery.uplink import Times, Uplink
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.jobs.places import DEFAULT_PATTERN, compile_patterns
from colmet.node.jobs.source import OAR2_ROOTS, JobSource
from colmet.node.node_health import NodeHealth
from colmet.node.options import build_parser
from colmet.node.schedule import Schedule, self_metrics_period_s

log = logging.getLogger(__name__)

NAMED_S = 5.0  # between two checks for a named collector
END_S = 3.0  # for --once to close its parts, after a signal
UNNAMED = (
    "no collector is named, nothing is measured: set zeromq-uri in the file of --config, or run `colmet enrol` on the "
    "collector's machine"
)


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

    All errors of a start are raised here, except addresses in use: --check-config does no more than this.

    Raises:
        ConfigError: the options cannot be used.
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
        check_uri(options.enable_rust_configuration, rust_configuration.OPTION)
    return NodeParts(find_jobs(options, host), backends, security)


def check(options: argparse.Namespace, classes: Sequence[type[InputBackend]]) -> None:
    """Check that the node would start with these options; ConfigError if it would not."""
    build(options, classes).source.close()
    if not link.collectors(options):
        log.warning("%s", UNNAMED)


def run_once(options: argparse.Namespace, classes: Sequence[type[InputBackend]], host: Host) -> int:
    """Print the backends that can measure, and one sample; return the exit status.

    Raises:
        ConfigError: the options cannot be used.
    """
    options.state_dir = ""
    options.perfhw_make_cgroup = False
    if not options.keep_privileges:
        capabilities.drop(name for cls in classes for name in cls.capabilities)

    def stopping() -> bool:
        if signals.stop_wanted():
            host.stop_commands()
        return signals.stop_wanted()

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # before and after, there is nothing to close
    with Signals((signal.SIGTERM, signal.SIGINT)) as signals:
        # in a thread: a signal that is handled while a program is being started would leave that program behind
        call = Call(lambda: _look_once(options, classes, host), "once")
        call.wait(math.inf, stopping, END_S)
        if signals.stop_wanted():
            return 128 + min(signals.pending)
    text, status = call.result()
    from colmet.node import once  # here and below: a daemon does not need it

    return status if once.show(text) else 1


def _look_once(options: argparse.Namespace, classes: Sequence[type[InputBackend]], host: Host) -> tuple[str, int]:
    from colmet.node import once

    source = find_jobs(options, host)
    try:
        return once.report(options, classes, host, socket.gethostname(), source)
    finally:
        source.close()


def run(options: argparse.Namespace, classes: Sequence[type[InputBackend]], settings: Settings) -> int:
    """Build the agent and run it until a signal ends it, or print one sample; return the exit status.

    Args:
        options: of the command line.
        classes: of all backends.
        settings: the same options, with the functions that change some of them meanwhile.

    Raises:
        ConfigError: the options cannot be used; nothing was started.
    """
    startup.raise_open_file_limit()
    tame_malloc(arenas=1)  # before any thread
    service = Service.from_environment()  # first, so that no started program inherits it
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if the parent ignores it, no program has an exit status
    host = Host()
    if options.brief and not options.once:
        raise ConfigError("--brief goes with --once")
    if options.once:
        return run_once(options, classes, host)
    if not wait_for_collector(options, settings, service):
        return 0
    parts = build(options, classes, host)
    if not options.keep_privileges:
        capabilities.drop(name for backend in parts.backends for name in backend.capabilities)
    place = placement.Placement(host)
    if parts.security is None:
        log.warning("%s", curve.OFF)
    with contextlib.ExitStack() as stack:
        asked = control.Control({})
        sending = open_sending(options, host, parts.security, asked, stack)
        stack.callback(service.close)
        place.lower_priority()  # including ZeroMQ's threads
        counters = {
            "spool": sending.queue.counters,
            "link": sending.link.counters,
            "control": asked.counters,
            "configuration": settings.counters,
            "remote": sending.remote.counters,
            "plugins": load_backends().counters,
        }
        rust = open_rust_port(options, asked, stack)
        if rust is not None:
            counters["rust_configuration"] = rust.counters
        health = NodeHealth(counters, sending.uplinks, options.metrics_jobs)
        agent = make_agent(options, host, parts, sending, place, health)
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
                sending.link.start()
                agent.run(signals, errands, service, settings.reload)
            stack.close()  # here: a second signal, as from timeout(1), must not end it before all is sent
    return 0


class Sending(NamedTuple):
    """The opened parts that send a node's samples."""

    host_name: str  # sent with them
    queue: SendQueue  # receives the batches of the agent
    uplinks: list[Uplink]  # connections to the collectors
    link: link.NodeLink  # its thread writes and sends the batches
    remote: live_config.Remote  # answers the collectors' requests


def open_sending(
    options: argparse.Namespace,
    host: Host,
    security: curve.Client | None,
    asked: control.Control,
    stack: contextlib.ExitStack,
) -> Sending:
    """Open the outbox and the connections to the collectors.

    Args:
        options: of the command line.
        host: the machine.
        security: the node's keys; None without.
        asked: answers requests of clients of this machine, and those of collectors.
        stack: closes all parts opened here, after the last batches are sent.
    """
    host_name, times = socket.gethostname(), Times()
    outbox = stack.enter_context(contextlib.closing(link.open_outbox(options, host, host_name)))
    uplinks = link.open_uplinks(options, host_name, times, security)
    for uplink in uplinks:
        stack.callback(uplink.close)
    queue = SendQueue(v1.encode_short, outbox)
    remote = live_config.Remote(asked, is_known=security is not None or options.allow_remote_configure)
    sender = link.NodeLink(
        host_name,
        outbox,
        uplinks,
        take=queue.take,
        wake_fd=queue.fd,
        window=options.zeromq_hwm,
        times=times,
        requests=Requests(remote.answer),
    )
    stack.callback(end_sending, sender, queue)
    return Sending(host_name, queue, uplinks, sender, remote)


def open_rust_port(
    options: argparse.Namespace, asked: control.Control, stack: contextlib.ExitStack
) -> rust_configuration.RustPort | None:
    """Open the port for the Rust node's senders of configurations; None if not configured."""
    if not options.enable_rust_configuration:
        return None
    port = rust_configuration.RustPort(options.enable_rust_configuration, asked)
    stack.callback(port.close)
    return port


def make_agent(
    options: argparse.Namespace,
    host: Host,
    parts: NodeParts,
    sending: Sending,
    place: placement.Placement,
    health: NodeHealth,
) -> Agent:
    """Return an agent made of these parts."""
    return Agent(
        sending.host_name,
        parts.source,
        parts.backends,
        sending.queue,
        Schedule(options.sample_period),
        placement=place,
        agent_stats=agent_tables.AgentStats(host, self_metrics_period_s(options.sample_period)),
        mapping=counter_names.CounterNames(host, options.mapping_dir),
        health=health,
        completeness=open_completeness(options.sample_period, sending.queue, sending.uplinks),
    )


def wait_for_collector(options: argparse.Namespace, settings: Settings, service: Service) -> bool:
    """Wait until a collector is named; return False if a signal comes first.

    The configuration is read again meanwhile, on SIGHUP and every few seconds; this changes `options`. The control
    socket is open: `colmet status` prints what the node waits for.

    Raises:
        ConfigError: the configuration or the files of keys cannot be used.
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


def open_completeness(
    sample_period_s: float, queue: SendQueue, uplinks: Sequence[Uplink]
) -> agent_tables.CompletenessStats:
    """Return the counts of completeness."""

    def delivery_totals() -> agent_tables.DeliveryTotals:
        return agent_tables.DeliveryTotals(
            queue.outbox.stats.totals(),  # as in the other rows, without those of earlier starts
            queue.outbox.stats.by_table(),
            queue.dropped_ranges(),
            sum(uplink.duplicates for uplink in uplinks),
        )

    return agent_tables.CompletenessStats(
        delivery_totals, self_metrics_period_s(sample_period_s), (AGENT.name, MAPPING.name)
    )


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
