"""colmet-collector: opens its parts according to the command line, and runs the main loop."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from colmet.collector import feed, web_child
from colmet.collector.backend import OutputBackend
from colmet.collector.backends import NAMES
from colmet.collector.collector import NO_LINK, Collector
from colmet.collector.ingest import rate_limit
from colmet.collector.ingest.fanout import Fanout, handler
from colmet.collector.ingest.link import CollectorLink, DurableBatches, LinkPort, open_link
from colmet.collector.ingest.new_tables import NewTables, is_space_scarce
from colmet.collector.ingest.receiver import Receiver
from colmet.collector.journal.journal import Journal
from colmet.collector.journal.segment_store import check_directory
from colmet.collector.output_worker import OutputWorker
from colmet.collector.web_child import WebChild
from colmet.common.config import cli, plugins
from colmet.common.config.configuration import Prepare, Settings, at_once
from colmet.common.daemon import control, metrics_http, startup
from colmet.common.daemon.startup import tame_malloc
from colmet.common.daemon.systemd import Service
from colmet.common.daemon.wakeup import Signals
from colmet.common.errors import ConfigError
from colmet.common.transport import Pull, authenticator, check_uri
from colmet.common.transport.ports import Listeners

log = logging.getLogger(__name__)

NO_PAGE = "the page and the JSON interface do not run, all else does; they start once this is corrected: %s"
ARENAS = 2  # pools of memory, see `tame_malloc`


# -- the command line --


def _rows(text: str) -> int:
    """Convert a number of rows, an option type; 0 is 1, as in Colmet 0.6."""
    return max(1, cli.whole_number(0)(text))


# Options of Colmet 0.6: its command lines may abbreviate them.
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
        description="Receive the samples of all nodes, also of Colmet 0.6, and write them to at least one output. "
        "SIGHUP starts the next HDF5 file and reads --config again.",
    )
    parser.older = OPTIONS_06
    startup.add_common_options(parser)
    _add_receiving(parser.add_argument_group("reception"))
    _add_journal(parser.add_argument_group("journal"))
    for output in outputs:
        output.add_options(parser.add_argument_group(f"output: {output.name}"))
    _add_writing(parser.add_argument_group("all outputs"))
    web_child.add_options(parser.add_argument_group("JSON interface and page"))
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
            "listen here for nodes, to acknowledge batches; '': no acknowledgements, and batches on their way are "
            "lost when the collector stops (default: the next port)"
        ),
    )
    startup.add_queue_options(receiving)
    authenticator.add_options(receiving)


def _add_journal(journal: cli.Options) -> None:
    journal.add_argument(
        "--journal-dir",
        metavar="DIR",
        help="keep received data in this directory until all outputs have it; '': in memory only (default: "
        "PATH.journal beside the HDF5 file; without one, memory)",
    )
    journal.add_argument(
        "--journal-size",
        metavar="SIZE",
        type=cli.size_bytes,
        default=4 << 30,
        help=cli.Rare("limit of the journal; beyond it the oldest records are dropped (default: 4G)"),
    )


def _add_writing(writing: cli.Options) -> None:
    writing.add_argument(
        "-s",
        "--sample-period",
        metavar="S",
        type=cli.positive_seconds,
        default=5.0,
        help="write rows after at most S seconds; HDF5 and the archive 12 S, where that saves work "
        "(default: %(default)g)",
    )
    writing.add_argument(
        "--buffer-size",
        metavar="N",
        type=_rows,
        default=100,
        help="write rows when N of them wait (default: %(default)s)",
    )


# -- the parts --


def changes(journal: Journal, workers: Sequence[OutputWorker]) -> dict[str, Prepare]:
    """Return the options that can change while the collector runs."""

    def gather(**how: Any) -> None:
        for worker in workers:
            worker.gather(**how)

    return {
        "sample_period": at_once(lambda period_s: gather(max_age_s=period_s)),
        "buffer_size": at_once(lambda rows: gather(max_rows=rows)),
        "journal_size": at_once(journal.limit),
    }


def open_workers(outputs: Sequence[OutputBackend], journal: Journal, options: argparse.Namespace) -> list[OutputWorker]:
    """Open the outputs, each with its place in the journal; ConfigError if one cannot work as configured."""
    workers = []
    for output in outputs:
        state = journal.state(output.name)
        if plugins.attempt(output, lambda output=output, state=state: output.open(state)):  # type: ignore[misc]
            workers.append(OutputWorker(output, journal, state, options.buffer_size, options.sample_period))
    return workers


@lru_cache(maxsize=1)
def load_backends() -> plugins.Backends:
    """Return the available outputs, those of plug-ins included."""
    return plugins.load(NAMES, "colmet.collector_backends", OutputBackend, build_parser)


def full_parser() -> cli.Parser:
    """Return the parser of the command line, with the options of plug-ins."""
    return load_backends().parser(build_parser)


class CollectorParts(NamedTuple):
    """The parts of a collector, before anything is opened."""

    outputs: list[OutputBackend]  # not opened
    journal_dir: str  # "" for a journal in memory
    keys: authenticator.Keys | None  # of the collector and of the accepted nodes; None for all nodes


def build(options: argparse.Namespace, classes: Sequence[type[OutputBackend]]) -> CollectorParts:
    """Build the parts from the options, without opening a socket or writing a file.

    All checks of a start are here, except for addresses, files and journals in use, and for the options of the page:
    these are no reason to receive nothing, and its process is tried again until they can be used.

    Raises:
        ConfigError: the options are invalid or cannot be fulfilled.
    """
    outputs = [output for cls in classes if (output := plugins.make(cls, options)) is not None]
    if not outputs:
        raise ConfigError("no output chosen; give --hdf5-filepath PATH, --elastic-host URL or --enable-stdout-backend")
    check_uri(options.zeromq_bind_uri, "--zeromq-bind-uri")
    if options.zeromq_link_bind_uri:
        check_uri(options.zeromq_link_bind_uri, "--zeromq-link-bind-uri")
    keys = authenticator.read_keys(options)
    if options.control_socket:
        control.check_path(options.control_socket)
    if options.metrics_listen:
        metrics_http.resolve(options.metrics_listen, metrics_http.OPTION)
    journal_dir = _journal_dir(options, outputs)
    for output in outputs:
        plugins.attempt(output, lambda output=output: output.check(journal_dir))  # type: ignore[misc]
    check_directory(journal_dir)
    return CollectorParts(outputs, journal_dir, keys)


def check(options: argparse.Namespace, classes: Sequence[type[OutputBackend]]) -> None:
    """Check that the collector would start with these options; ConfigError if not. Warn of a page that would not."""
    try:
        web_child.check(options)
    except ConfigError as err:
        log.warning(NO_PAGE, err)
    for output in build(options, classes).outputs:
        output.close()


def _journal_dir(options: argparse.Namespace, outputs: Sequence[OutputBackend]) -> str:
    if options.journal_dir is not None:
        return str(options.journal_dir)
    return next((place for output in outputs if (place := output.journal_dir())), "")


def run(options: argparse.Namespace, classes: Sequence[type[OutputBackend]], settings: Settings) -> int:
    """Bind, open the outputs, and work until a signal; return the exit status.

    Raises:
        ConfigError: the options are invalid or cannot be fulfilled; nothing stays half started.
    """
    service = Service.from_environment()  # first, so that no started program inherits it
    listeners = Listeners.from_environment()
    parts = build(options, classes)
    limit = startup.raise_open_file_limit()
    if limit < 4096:
        log.warning("limit on open files is %d: fewer nodes than that can connect; raise it (LimitNOFILE=)", limit)
    with contextlib.ExitStack() as stack:
        stack.callback(service.close)
        # bound first: a second collector started by mistake then stops before it touches the first one's files
        reception = open_reception(options, parts, listeners, stack)
        signals = stack.enter_context(Signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)))
        journal, workers, unstarted = open_storage(options, parts, reception, stack)
        settings.add(changes(journal, workers))
        startup.tune_garbage_collector()
        tame_malloc(ARENAS)
        log_start(options, parts, reception)
        asked = stack.enter_context(contextlib.closing(control.Control({})))
        # ends before the threads that call it, so none of them waits for the main thread then
        with control.Errands() as errands:
            collector = make_collector(options, reception, journal, workers, settings, errands, service, asked, stack)
            asked.listen(options.control_socket, "collector")
            if options.metrics_listen:
                page = metrics_http.MetricsServer(options.metrics_listen, collector.health.families)
                stack.callback(page.close)
            unstarted.pop_all()
            ended = collector.run(signals)
        if not ended:  # Python's own end, such as closing files, would happen under a working thread
            journal.close()
            logging.shutdown()
            os._exit(0)
    return 0


class Reception(NamedTuple):
    """The opened parts for receiving the nodes' samples."""

    guard: authenticator.Authenticator  # accepts connections
    pull: Pull  # the socket of the data
    receiver: Receiver  # decodes messages, and counts by sender
    limits: rate_limit.RateLimit  # rate limits
    on_disk: DurableBatches  # batches written by the journal, for the link
    fanout: Fanout  # requests to nodes
    link: CollectorLink | None  # acknowledges batches on disk; None if its port is unavailable
    link_port: LinkPort | None  # of the link, if another collector may claim it
    link_uri: str  # of the link; "" without


def open_reception(
    options: argparse.Namespace, parts: CollectorParts, listeners: Listeners, stack: contextlib.ExitStack
) -> Reception:
    """Bind the sockets for nodes, and build their readers; `listeners` are those bound by the service manager."""
    pair, known = parts.keys or (None, None)
    guard = stack.enter_context(contextlib.closing(authenticator.Authenticator(pair, known, listeners)))
    pull = stack.enter_context(contextlib.closing(Pull(options.zeromq_bind_uri, options.zeromq_hwm, guard)))
    limits = rate_limit.RateLimit(rate_limit.MESSAGES_PER_S, rate_limit.BYTES_PER_S)
    files = getattr(options, "hdf5_filepath", None)
    directory = os.path.dirname(files) or "." if files else parts.journal_dir
    fanout = Fanout()
    receiver = Receiver(limits, NewTables(is_space_scarce=partial(is_space_scarce, directory)))
    server, link_port = open_link(options.zeromq_link_bind_uri, pull.uri, guard, parts.journal_dir)
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
    return Reception(guard, pull, receiver, limits, on_disk, fanout, link, link_port, uri)


def open_storage(
    options: argparse.Namespace, parts: CollectorParts, reception: Reception, stack: contextlib.ExitStack
) -> tuple[Journal, list[OutputWorker], contextlib.ExitStack]:
    """Open the journal, whose records the link acknowledges, and the outputs; ConfigError if one cannot be opened.

    The returned stack closes the outputs until the workers start; each worker then closes its own.
    """
    on_disk = reception.on_disk.put if reception.link is not None else lambda records: None
    journal = Journal(parts.journal_dir, options.journal_size, on_disk)
    stack.callback(journal.close)
    reception.limits.store_in(journal.admits)
    unstarted = stack.enter_context(contextlib.ExitStack())
    for output in parts.outputs:
        unstarted.callback(output.close)
    return journal, open_workers(parts.outputs, journal, options), unstarted


def make_collector(
    options: argparse.Namespace,
    reception: Reception,
    journal: Journal,
    workers: Sequence[OutputWorker],
    settings: Settings,
    errands: control.Errands,
    service: Service,
    asked: control.Control,
    stack: contextlib.ExitStack,
) -> Collector:
    """Return the collector of these parts, and register its handlers at the control socket.

    The feed and the page's process begin with it, and end with `stack`.
    """
    paths = feed.paths_of(options)
    if options.http_listen is not None and not any(paths):
        paths = [os.path.join(stack.enter_context(tempfile.TemporaryDirectory(prefix="colmet-")), "feed.sock")]
    messages = feed.FeedServer(paths, reception.receiver.heard)
    stack.callback(messages.close)
    child = None
    if options.http_listen is not None:
        child = WebChild([*web_child.arguments_of(options), f"--feed={messages.path}"], web_child.store_text(options))
        stack.callback(child.close)
    collector = Collector(
        reception.pull,
        journal,
        workers,
        errands,
        service,
        metrics_jobs=options.metrics_jobs,
        reload=settings.reload,
        receiver=reception.receiver,
        link=reception.link,
        link_port=reception.link_port,
        parts={
            "connections": reception.guard.counters,
            "control": asked.counters,
            "configuration": settings.counters,
            "limited": lambda: reception.limits.limited,
            "plugins": load_backends().counters,
            **({} if child is None else {"http": child.counters}),
        },
        feed=messages,
        refusals=reception.guard.refusals,
    )
    if reception.link is None and options.zeromq_link_bind_uri != "":
        collector.health.link_failed = NO_LINK
    if child is not None:
        collector.health.page_failure = lambda: child.failure
        child.start()
    messages.start()
    asked.handlers["status"] = collector.health.status
    asked.handlers["top"] = collector.health.top.answer
    asked.handlers["configure"] = handler(reception.fanout, reception.link, errands)
    return collector


def log_start(options: argparse.Namespace, parts: CollectorParts, reception: Reception) -> None:
    """Log the collector's addresses and outputs, and warn if keys are off."""
    uri = reception.pull.uri
    log.info(
        "listening uri=%s link=%s outputs=%s journal=%s",
        uri,
        reception.link_uri or "(none)",
        ",".join([output.name for output in parts.outputs]),
        parts.journal_dir or "(memory)",
    )
    if reception.guard.locked:
        return
    log.warning(
        "keys are off: any host that reaches %s can send data of any host and user, in clear text; set up keys with "
        "`colmet enrol`",
        uri,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``colmet-collector``; return the exit status."""
    return startup.run_daemon(load_backends(), build_parser, check, run, argv)


if __name__ == "__main__":
    sys.exit(main())
