"""colmet-collector: the command line, and the wiring from the receiver to the outputs."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from colmet.collector import web_launcher
from colmet.collector.backend import OutputBackend
from colmet.collector.backends import NAMES
from colmet.collector.collector_health import ACQUAINTED_S, CollectorHealth
from colmet.collector.ingest import rate_limit
from colmet.collector.ingest.fanout import Fanout, handler
from colmet.collector.ingest.link import CollectorLink, DurableBatches
from colmet.collector.ingest.linkport import LinkPort, open_link
from colmet.collector.ingest.novelty import Novelty
from colmet.collector.ingest.receiver import Receiver
from colmet.collector.journal.check import check as check_journal
from colmet.collector.journal.journal import Journal, check_directory
from colmet.collector.malloc import tame_malloc
from colmet.collector.output_worker import OutputWorker
from colmet.collector.web_launcher import WebLauncher
from colmet.common.errors import ConfigError
from colmet.common.live.latest_rows import Latest
from colmet.common.runtime import cli, control, metrics_http, plugins, startup
from colmet.common.runtime.daemon_health import NOTE_S
from colmet.common.runtime.logs import powers_of_ten
from colmet.common.runtime.readable import readable
from colmet.common.runtime.reload import Prepare, Settings, at_once
from colmet.common.runtime.signals import Signals
from colmet.common.runtime.systemd import Service
from colmet.common.transport import Pull, authenticator, check_uri
from colmet.common.transport.inherited import Listeners

log = logging.getLogger(__name__)

# Messages taken in before the signals are looked at again.
BURST = 1000
BURST_S = 0.2  # or so long: acknowledgements and the control socket do not wait for longer
REPORT_S = 3600.0
NO_LINK = "another program has the port after that of the data: give --zeromq-link-bind-uri, here and on the nodes"
# While the journal can take no more.
FULL_WAIT_S = 0.2
# At the end: how long messages that have arrived are still taken in, and how long the outputs may write on.
LAST_RECEIVE_S = 10.0
LAST_WRITE_S = 10.0
# An output that still waits then is abandoned: what it has not written stays in the journal.
LAST_JOIN_S = 40.0


def _rows(text: str) -> int:
    """Convert a number of rows, an option type; 0 is 1, as in Colmet 0.6."""
    return max(1, cli.whole_number(0)(text))


# What Colmet 0.6 had: its lines may abbreviate these.
OPTIONS_06 = frozenset(
    (
        *("--buffer-size", "--elastic-host", "--elastic-index-prefix", "--enable-stdout-backend", "--hdf5-complevel"),
        *("--hdf5-complib", "--hdf5-filepath", "--help", "--http-credentials", "--no-check-certificates"),
        *("--sample-period", "--verbose", "--version", "--zeromq-bind-uri", "--zeromq-hwm", "--zeromq-linger"),
    )
)


def build_parser(outputs: Sequence[type[OutputBackend]]) -> cli.Parser:
    """Return the command line of colmet-collector."""
    parser = cli.Parser(
        prog="colmet-collector",
        description="Receive what colmet-node measures on every node, also of Colmet 0.6, and write it to at least one "
        "output. SIGHUP starts the next HDF5 file and reads --config again.",
    )
    parser.older = OPTIONS_06
    startup.add_common_options(parser)
    _add_receiving(parser.add_argument_group("what is received"))
    _add_journal(parser.add_argument_group("journal of what is received"))
    for output in outputs:
        output.add_options(parser.add_argument_group(f"output: {output.name}"))
    _add_writing(parser.add_argument_group("all outputs"))
    web_launcher.add_options(parser.add_argument_group("JSON interface and page"))
    daemon = parser.add_argument_group("how colmet-collector runs")
    control.add_options(daemon, "collector")
    metrics_http.add_options(daemon)
    return parser


def _add_receiving(receiving: cli.Options) -> None:
    receiving.add_argument(
        "--zeromq-bind-uri",
        metavar="URI",
        default="tcp://0.0.0.0:5556",
        help="listen for nodes here (default: %(default)s)",
    )
    receiving.add_argument(
        "--zeromq-link-bind-uri",
        metavar="URI",
        help=cli.Rare(
            "listen here for nodes that wait for acknowledgements; '': nowhere, and batches under way are lost when "
            "the collector stops (default: the next port)"
        ),
    )
    startup.add_queue_options(receiving)
    authenticator.add_options(receiving)
    rate_limit.add_options(receiving)


def _add_journal(journal: cli.Options) -> None:
    journal.add_argument(
        "--journal-dir",
        metavar="DIR",
        help="keep what is received here until all outputs have it; '': in memory only (default: PATH.journal beside "
        "the HDF5 file; without one, memory)",
    )
    journal.add_argument(
        "--journal-size",
        metavar="SIZE",
        type=cli.size_bytes,
        default=4 << 30,
        help=cli.Rare("limit of the journal; beyond it the oldest records are dropped (default: 4G)"),
    )
    journal.add_argument(
        "--check-journal",
        action="store_true",
        help="print what the journal holds, and exit; with the position of each output; status 1: it is damaged",
    )


def _add_writing(writing: cli.Options) -> None:
    writing.add_argument(
        "-s",
        "--sample-period",
        metavar="S",
        type=cli.positive_seconds,
        default=5.0,
        help="write rows after at most S seconds (default: %(default)g)",
    )
    writing.add_argument(
        "--buffer-size",
        metavar="N",
        type=_rows,
        default=100,
        help="write rows when N of them wait (default: %(default)s)",
    )


class Collector:
    """The main loop: receives messages, and passes them to the journal.

    Args:
        pull: where messages come in.
        journal: opened.
        workers: for opened outputs.
        errands: of other threads, done between messages.
        service: notified of start, state and life of the collector.
        latest: keeps the latest rows; None without --metrics-jobs.
        reload: reads the configuration again.
        receiver: what knows the senders.
        link: acknowledges batches; None without.
        link_port: of the link, where another collector may have it.
        parts: other parts' counters, by the name of the part.
        interface: the JSON interface, started; None where there is none.

    Attributes:
        health: answers how the collector is.
    """

    def __init__(
        self,
        pull: Pull,
        journal: Journal,
        workers: Sequence[OutputWorker],
        errands: control.Errands,
        service: Service,
        latest: Latest | None = None,
        reload: Callable[[], None] = lambda: None,
        receiver: Receiver | None = None,
        link: CollectorLink | None = None,
        link_port: LinkPort | None = None,
        parts: Mapping[str, Callable[[], Mapping[str, int]]] = MappingProxyType({}),
        interface: WebLauncher | None = None,
    ) -> None:
        self._pull = pull
        self._journal = journal
        self._workers = workers
        self._errands = errands
        self._service = service
        self._reload = reload
        self._receiver = receiver or Receiver()
        self._link = link
        self._link_port = link_port
        self._interface = interface
        parts = {**parts, **({} if link is None else {"link": link.counters})}
        if interface is not None:
            parts["http"] = interface.counters
        self.health = CollectorHealth(errands, self._receiver, journal, workers, parts, latest)
        self._report_at = time.monotonic() + REPORT_S
        self._reported: tuple[str, ...] = ()
        self._paused = 0
        self._look_at_nodes_at = time.monotonic() + ACQUAINTED_S
        self._silent = 0

    def run(self, signals: Signals) -> bool:
        """Work until SIGTERM or SIGINT, then write what was received; return whether every output has ended."""
        self._receiver.restore(*self._journal.read_senders())
        self.health.start()
        self._journal.start(self._receiver.dump_senders)
        for worker in self._workers:
            worker.start()
        self._pull.wake_on(signals.fd)
        self._pull.wake_on(self._errands.fd)
        self._service.ready()
        self._tell()
        while not signals.stop_wanted():
            if self._journal.full:
                self._pause(signals)
            else:
                delays = [self._report_at - time.monotonic(), NOTE_S, self._service.delay_s()]
                if self._interface is not None:
                    delays.append(self._interface.delay_s())
                self._pull.wait(max(0.0, min(delays)))
                self._receive()
            if self._interface is not None:
                self._interface.flush()
            if self._link is not None:
                self._link.serve()
                self._yield_port()
            signals.drain()
            self._errands.serve()
            if signals.take(signal.SIGHUP):
                self._service.reloading()
                self._reload()
                for worker in self._workers:
                    worker.reopen()
                self._service.ready()
            self._tell()
            if time.monotonic() >= self._report_at:
                self._report()
        self._service.stopping()
        # nodes that go on sending must not keep it from ending
        until = time.monotonic() + LAST_RECEIVE_S
        while self._receive() and not self._journal.full and time.monotonic() < until:
            pass
        self._journal.finish()
        if self._link is not None:
            self._link.serve()
        for worker in self._workers:
            worker.stop(LAST_WRITE_S)
        until = time.monotonic() + LAST_WRITE_S
        for worker in self._workers:
            if not worker.join(max(0.0, until - time.monotonic())):
                plugins.attempt(worker.output, worker.output.interrupt)
        until = time.monotonic() + LAST_JOIN_S
        left = [worker for worker in self._workers if not worker.join(max(0.0, until - time.monotonic()))]
        for worker in left:
            log.error("output does not end, left alone: output=%s waiting=%d", worker.output.name, worker.waiting)
        self._report()
        log.info("stopping")
        return not left

    def _yield_port(self) -> None:
        """Close the link where another collector claims its port."""
        port = self._link_port
        if self._link is None or port is None or not port.claims.came():
            return
        self._link_port = None
        self._pull.sleep_on(port.socket)
        self._pull.sleep_on(port.claims.fd)
        self._link.close()
        self.health.link_failed = NO_LINK
        port.give_up()

    def _pause(self, signals: Signals) -> None:
        """Receive nothing for a moment; the nodes keep what they have."""
        self._paused += 1
        if powers_of_ten(self._paused):
            log.error("receiving paused, the journal has no room for what was received: paused=%d", self._paused)
        readable([signals.fd], FULL_WAIT_S)

    def _tell(self) -> None:
        """Note the state for clients and the service manager; notify the watchdog only while all parts work."""
        self.health.note()
        self._service.status(self.health.line)
        if self._journal.works:
            self._service.alive()
        if self._link is not None and time.monotonic() >= self._look_at_nodes_at:
            self._look_at_nodes_at = time.monotonic() + REPORT_S
            silent = self._receiver.without_acknowledgements()
            if silent > self._silent:
                log.warning(
                    "nodes=%d wait for no acknowledgements: they are older, or cannot reach --zeromq-link-bind-uri; "
                    "batches under way when either end stops are lost",
                    silent,
                )
            self._silent = silent

    def _receive(self) -> bool:
        """Receive the messages that wait, up to a bound; return whether it was reached."""
        until = time.monotonic() + BURST_S
        for _ in range(BURST):
            if self._journal.full or time.monotonic() > until:
                return True
            received = self._pull.receive()
            if received is None:
                return False
            batches = self._receiver.take(*received)
            sender, _ = rate_limit.sender_of(received.user, received.peer)
            if self._link is not None:
                self._link.took(batches, self._receiver.again)
            for message, kept in self._receiver.messages:
                self._journal.append(message, kept, sender)
                self.health.take(kept, sender)
                if self._interface is not None:
                    self._interface.put(message, sender)
        return True

    def _report(self) -> None:
        """Log the counts by sender, as a WARNING where something new is wrong."""
        lines = tuple(self._receiver.report())
        wrong = lines[1:] != self._reported[1:] and len(lines) > 1
        for line in lines:
            log.log(logging.WARNING if wrong else logging.INFO, "%s", line)
        if self._link is not None:
            log.info("link %s", " ".join([f"{name}={count}" for name, count in self._link.counters().items()]))
        log.info("connections %s", " ".join([f"{name}={count}" for name, count in self._pull.counters().items()]))
        if self._journal.directory:
            log.info("journal %s", " ".join([f"{name}={count}" for name, count in self._journal.counters().items()]))
        for worker in self._workers:
            log.log(
                logging.WARNING if worker.dropped or worker.lost else logging.INFO,
                "output %s %s",
                worker.output.name,
                " ".join([f"{name}={count}" for name, count in worker.counters().items()]),
            )
        self._reported = lines
        self._report_at = time.monotonic() + REPORT_S


def changes(
    journal: Journal, workers: Sequence[OutputWorker], limits: rate_limit.RateLimit, novelty: Novelty
) -> dict[str, Prepare]:
    """Return the options that can change while the collector runs."""

    def gather(**how: Any) -> None:
        for worker in workers:
            worker.gather(**how)

    return {
        "sample_period": at_once(lambda period_s: gather(max_age_s=period_s)),
        "buffer_size": at_once(lambda rows: gather(max_rows=rows)),
        "journal_size": at_once(journal.limit),
        "max_rate": at_once(lambda per_s: limits.limit(per_s=per_s)),
        "max_byte_rate": at_once(lambda per_s: limits.limit(bytes_per_s=per_s)),
        "max_new_tables": at_once(novelty.limit),
    }


def open_workers(outputs: Sequence[OutputBackend], journal: Journal, options: argparse.Namespace) -> list[OutputWorker]:
    """Open the outputs, each with its place in the journal.

    Raises:
        ConfigError: one of them can never work as configured; all are closed.
    """
    workers = []
    try:
        for output in outputs:
            state = journal.state(output.name)
            if not plugins.attempt(output, lambda output=output, state=state: output.open(state)):  # type: ignore[misc]
                continue
            workers.append(OutputWorker(output, journal, state, options.buffer_size, options.sample_period))
    except BaseException:
        for output in outputs:
            output.close()
        raise
    return workers


@lru_cache(maxsize=1)
def load_backends() -> plugins.Backends:
    """Return the outputs there are, those of plug-ins included."""
    return plugins.load(NAMES, "colmet.collector_backends", OutputBackend, build_parser)


def full_parser() -> cli.Parser:
    """Return the parser of the command line, with the options of plug-ins."""
    return load_backends().parser(build_parser)


class CollectorParts(NamedTuple):
    """The parts of a collector, before anything is opened.

    Attributes:
        outputs: not opened.
        journal_dir: "" for a journal in memory.
        keys: of the collector and of the nodes that are accepted; None for all nodes.
        control_keys: of the clients over TCP; None without.
        page_service: path of the socket of the service that is the JSON interface's process; "" for a child.
    """

    outputs: list[OutputBackend]
    journal_dir: str
    keys: authenticator.Keys | None
    control_keys: authenticator.Keys | None
    page_service: str


def build(options: argparse.Namespace, classes: Sequence[type[OutputBackend]]) -> CollectorParts:
    """Make of the options all that can be made without opening a socket or writing a file.

    A start refuses here what it refuses, but for addresses, files and journals that are in use: --check-config does no
    more than this.

    Raises:
        ConfigError: the options ask for what cannot be done.
    """
    outputs = [output for cls in classes if (output := plugins.make(cls, options)) is not None]
    serves_gridengine = (options.gridengine or options.gridengine_xml) and options.http_listen is not None
    if not outputs and not serves_gridengine:
        raise ConfigError(
            "no output chosen; give --hdf5-filepath PATH, --elastic-host URL or --enable-stdout-backend; to store "
            "nothing, --gridengine with --http-listen"
        )
    page_service = web_launcher.service_of(options)
    web_launcher.check(options)
    web_launcher.warn_of_readers(options)
    check_uri(options.zeromq_bind_uri, "--zeromq-bind-uri")
    if options.zeromq_link_bind_uri:
        check_uri(options.zeromq_link_bind_uri, "--zeromq-link-bind-uri")
    keys, control_keys = authenticator.read_keys(options), control.check(options)
    if options.metrics_listen:
        metrics_http.resolve(options.metrics_listen, metrics_http.OPTION)
    journal_dir = _journal_dir(options, outputs)
    for output in outputs:
        plugins.attempt(output, lambda output=output: output.check(journal_dir))  # type: ignore[misc]
    check_directory(journal_dir)
    return CollectorParts(outputs, journal_dir, keys, control_keys, page_service)


def check(options: argparse.Namespace, classes: Sequence[type[OutputBackend]]) -> None:
    """Check that the collector would start with these options.

    Raises:
        ConfigError: it would not.
    """
    for output in build(options, classes).outputs:
        output.close()


def _journal_dir(options: argparse.Namespace, outputs: Sequence[OutputBackend]) -> str:
    if options.journal_dir is not None:
        return str(options.journal_dir)
    return next((place for output in outputs if (place := output.journal_dir())), "")


def run(
    options: argparse.Namespace,
    classes: Sequence[type[OutputBackend]],
    settings: Settings,
) -> int:
    """Bind, open the outputs, and work until a signal ends it; return the exit status.

    Args:
        options: the command line.
        classes: outputs there are.
        settings: the same options, and how some of them change meanwhile.

    Raises:
        ConfigError: the options ask for what cannot be done; nothing is left half started.
    """
    service = Service.from_environment()  # first, so that no program that is started has it
    listeners = Listeners.from_environment()
    if options.check_journal:
        return check_journal(
            _journal_dir(options, [one for cls in classes if (one := plugins.make(cls, options)) is not None])
        )
    parts = build(options, classes)
    check_start(options, parts)
    with contextlib.ExitStack() as stack:
        stack.callback(service.close)
        # bound first: a second collector started by mistake then stops before it touches the first one's files
        reception = open_reception(options, parts, listeners, stack)
        signals = stack.enter_context(Signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)))
        storage = open_storage(options, parts, reception, stack)
        settings.add(changes(storage.journal, storage.workers, reception.limits, reception.novelty))
        startup.tune_garbage_collector()
        tame_malloc()
        log_start(options, parts, reception)
        asked = stack.enter_context(contextlib.closing(control.Control({})))
        # ends before the threads that call it: none of them waits for the main thread then
        with control.Errands() as errands:
            interface = None
            if options.http_listen is not None:
                interface = WebLauncher(settings.argv, reception.receiver.heard, service=parts.page_service)
                stack.callback(interface.close)
            collector = make_collector(options, reception, storage, settings, errands, service, asked, interface)
            control.listen(options.control_socket, "collector", asked, parts.control_keys)
            if options.metrics_listen:
                page = metrics_http.MetricsServer(options.metrics_listen, collector.health.families)
                stack.callback(page.close)
            if interface is not None:
                interface.start()
            storage.unstarted.pop_all()
            ended = collector.run(signals)
        if not ended:  # what Python does at its end, such as closing files, would be done under a thread that works
            storage.journal.close()
            logging.shutdown()
            os._exit(0)
    return 0


def check_start(options: argparse.Namespace, parts: CollectorParts) -> None:
    """Check the machine before anything is opened, and warn of what will be missing.

    Raises:
        ConfigError: another program has the address of the JSON interface.
    """
    if not parts.outputs:
        log.warning(
            "no output is chosen, samples of nodes are not stored; /qhost and /qstat serve Grid Engine's answers"
        )
    if options.http_listen is not None and not parts.page_service:  # a service may still hold it from the run before
        web_launcher.check_address(options.http_listen)
    limit = startup.raise_open_file_limit()
    if limit < 4096:
        log.warning("limit on open files is %d: fewer nodes than that can connect; raise it (LimitNOFILE=)", limit)


class Reception(NamedTuple):
    """What receives the samples of nodes, opened.

    Attributes:
        door: which connections are accepted.
        pull: the socket of the data.
        receiver: decodes messages, and knows their senders.
        limits: rate limits.
        novelty: limits of new tables.
        on_disk: batches that the journal has written, for the link.
        fanout: requests to nodes.
        link: acknowledges what is on disk; None where its port cannot be had.
        link_port: of the link, where another collector may claim it.
        link_uri: of the link; "" without.
    """

    door: authenticator.Door
    pull: Pull
    receiver: Receiver
    limits: rate_limit.RateLimit
    novelty: Novelty
    on_disk: DurableBatches
    fanout: Fanout
    link: CollectorLink | None
    link_port: LinkPort | None
    link_uri: str


def open_reception(
    options: argparse.Namespace, parts: CollectorParts, listeners: Listeners, stack: contextlib.ExitStack
) -> Reception:
    """Bind the sockets that nodes send to, and make what reads them.

    Args:
        options: of the command line.
        parts: with the keys.
        listeners: sockets that the service manager has bound.
        stack: closes what is opened.
    """
    pair, known = parts.keys or (None, None)
    door = stack.enter_context(contextlib.closing(authenticator.Door(pair, known, listeners)))
    pull = stack.enter_context(contextlib.closing(Pull(options.zeromq_bind_uri, options.zeromq_hwm, door)))
    limits, novelty, fanout = rate_limit.from_options(options), Novelty(options.max_new_tables), Fanout()
    receiver = Receiver(limits, novelty)
    server, link_port = open_link(options.zeromq_link_bind_uri, pull.uri, door, parts.journal_dir)
    listeners.close()
    link, on_disk = None, stack.enter_context(contextlib.closing(DurableBatches()))
    if server is not None:
        stack.callback(server.close)
        link = CollectorLink(server, receiver, on_disk, bool(parts.journal_dir), fanout.answered)
        pull.wake_on(server.socket)
        pull.wake_on(on_disk.fd)
        if link_port is not None:
            stack.callback(link_port.claims.close)
            pull.wake_on(link_port.claims.fd)
    uri = server.uri if server is not None else ""
    return Reception(door, pull, receiver, limits, novelty, on_disk, fanout, link, link_port, uri)


class Storage(NamedTuple):
    """What stores the samples, opened.

    Attributes:
        journal: of what is received.
        workers: of the outputs.
        unstarted: closes the outputs until the workers start, each of which then closes its own.
    """

    journal: Journal
    workers: list[OutputWorker]
    unstarted: contextlib.ExitStack


def open_storage(
    options: argparse.Namespace, parts: CollectorParts, reception: Reception, stack: contextlib.ExitStack
) -> Storage:
    """Open the journal and the outputs.

    Args:
        options: of the command line.
        parts: with the outputs.
        reception: with the link, which acknowledges what the journal has written.
        stack: closes what is opened.

    Raises:
        ConfigError: one of them cannot be opened.
    """
    on_disk = reception.on_disk.put if reception.link is not None else lambda records: None
    journal = Journal(parts.journal_dir, options.journal_size, on_disk)
    stack.callback(journal.close)
    reception.limits.store_in(journal.admits)
    workers = open_workers(parts.outputs, journal, options)
    unstarted = stack.enter_context(contextlib.ExitStack())
    for output in parts.outputs:
        unstarted.callback(output.close)
    return Storage(journal, workers, unstarted)


def make_collector(
    options: argparse.Namespace,
    reception: Reception,
    storage: Storage,
    settings: Settings,
    errands: control.Errands,
    service: Service,
    asked: control.Control,
    interface: WebLauncher | None,
) -> Collector:
    """Return the collector of these parts, and let it answer the requests of the control socket."""
    collector = Collector(
        reception.pull,
        storage.journal,
        storage.workers,
        errands,
        service,
        latest=Latest() if options.metrics_jobs else None,
        reload=settings.reload,
        receiver=reception.receiver,
        link=reception.link,
        link_port=reception.link_port,
        parts={
            "connections": reception.door.counters,
            "control": asked.counters,
            "configuration": settings.counters,
            "limited": reception.limits.counters,
            "plugins": load_backends().counters,
        },
        interface=interface,
    )
    if reception.link is None and options.zeromq_link_bind_uri != "":
        collector.health.link_failed = NO_LINK
    asked.handlers["status"] = collector.health.status
    asked.handlers["top"] = collector.health.top.answer
    asked.handlers["configure"] = handler(reception.fanout, reception.link, errands)
    return collector


def log_start(options: argparse.Namespace, parts: CollectorParts, reception: Reception) -> None:
    """Log what the collector listens on and writes to, and warn where keys are off."""
    uri = reception.pull.uri
    log.info(
        "listening uri=%s link=%s outputs=%s journal=%s",
        uri,
        reception.link_uri or "(none)",
        ",".join([output.name for output in parts.outputs]),
        parts.journal_dir or "(memory)",
    )
    if reception.door.locked:
        return
    log.warning(
        "keys are off: any host that reaches %s can send data of any host, in clear text; set up keys with "
        "`colmet enrol` (docs/security.md)",
        uri,
    )
    if options.http_listen is not None and not options.http_open:
        log.warning("--http-users without keys: any peer can name the user of a job; set up keys with `colmet enrol`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``colmet-collector``; return the exit status."""
    return startup.run_daemon(load_backends(), build_parser, check, run, argv)


if __name__ == "__main__":
    sys.exit(main())
