"""Run the process of the JSON interface, started with colmet-collector's command line, and fed by it.

As a service (`colmet-web`) it receives the command line in the feed.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from colmet.batch.coordinators import has_accounts, read_coordinators
from colmet.batch.systems import find_record_sources
from colmet.collector import main as collector
from colmet.collector import web_options
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.live.user_names import UserNames
from colmet.common.runtime import cli, startup
from colmet.common.runtime.configuration import Configuration
from colmet.common.runtime.logs import powers_of_ten
from colmet.web.feed import Feed, FeedError, connected, inherited
from colmet.web.health import CollectorReport
from colmet.web.leaders import Projects
from colmet.web.node_history import MINUTE_S
from colmet.web.peers import Peers
from colmet.web.queries import Queries, gridengine_of
from colmet.web.recent_cache import RecentCache
from colmet.web.reports import ReportProcesses
from colmet.web.store import StoreReader, archive_opener, opener
from colmet.web.stored_rows import RowsReader

log = logging.getLogger(__name__)

NICE = 10  # the collector has priority
END_S = 8.0  # timeout for the end of the server


def run(options: argparse.Namespace, feed_socket: socket.socket, kernel: socket.socket | None = None) -> None:
    """Serve until the collector ends the feed; `kernel` as for `Peers`.

    Raises:
        ColmetError: the options cannot be used, or the feed is not from a collector.
    """
    if options.http_listen is None:
        raise ConfigError("the collector's options do not name --http-listen any more")
    web_options.check(options)
    from colmet.web.access import Access  # these require fastapi and uvicorn
    from colmet.web.server import Tls, WebServer
    from colmet.web.stored_routes import Stored

    with contextlib.suppress(OSError):  # a unit may forbid it
        os.nice(NICE)
    memory = RecentCache(options.http_memory, options.http_memory_time)
    open_history = opener(options)
    store = None if open_history is None else StoreReader(open_history)
    gridengine = gridengine_of(options)
    report = CollectorReport()

    def note(content: Mapping[str, Any]) -> None:
        memory.note(content)
        report.note(content)

    feed = Feed(feed_socket, memory.take, note, memory.dropped)
    queries = Queries(memory, store, gridengine, feed.counters, UserNames(), report=report)
    tls = None if options.http_tls_cert is None else Tls(options.http_tls_cert, options.http_tls_key)
    access = Access(
        options.http_users,
        options.http_admin_group,
        user_header=options.http_user_header,
        sign_out_url=options.http_sign_out_url,
        leaders_path=options.http_leaders,
        ask_leaders=leaders_source(options),
    )
    peers = Peers(options.http_trusted_proxy or (), kernel)
    reports = ReportProcesses(options)
    server = WebServer(
        options.http_listen,
        queries,
        access,
        tls=tls,
        stored=Stored(reports, None if store is None else RowsReader(store), archive_opener(options)),
        gridengine=gridengine is not None,
        peers=peers,
    )

    def serve_requests() -> None:
        try:
            server.run()
        finally:
            with contextlib.suppress(OSError):
                feed_socket.shutdown(socket.SHUT_RDWR)  # the process ends with its server

    startup.tune_garbage_collector()
    # uvicorn installs signal handlers only in the main thread
    serving = threading.Thread(target=serve_requests, name="server", daemon=True)
    serving.start()
    threading.Thread(target=queries.prepare, name="prepare", daemon=True).start()
    ending = threading.Event()
    threading.Thread(target=keep_history, args=(queries.record, ending), name="history", daemon=True).start()
    try:
        if gridengine is not None:
            gridengine.start()
        feed.run()
    except FeedError as err:
        log.error("feed ended: %s", err)
    finally:
        ending.set()
        server.stop()
        serving.join(END_S)
        if gridengine is not None:
            gridengine.close()
        if store is not None:
            store.close()
        reports.close()


def leaders_source(options: argparse.Namespace) -> Callable[[], Projects] | None:
    """Return what asks Slurm for the coordinators of its accounts; None unless the archive has Slurm's records."""
    is_asked = any(source.name == "slurm" for source in find_record_sources(options.archive_batch))
    return read_coordinators if is_asked and has_accounts() else None


def keep_history(record: Callable[[], None], ending: threading.Event) -> None:
    """Record the values of the nodes at the end of each minute, until `ending`."""
    failures = 0
    while not ending.wait(MINUTE_S - time.time() % MINUTE_S):
        try:
            record()
        except Exception:  # a defect must not end the thread
            failures += 1
            if powers_of_ten(failures):
                log.exception("history of the nodes not recorded failures=%d", failures)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m colmet.web``, and return the exit status."""
    # the collector ends this process with its feed; a signal to the whole service must not end it earlier, or the
    # collector would restart it meanwhile
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return _serve(argv, lambda: inherited(os.environ))


def build_parser() -> cli.Parser:
    """Return the command line of ``colmet-web``: it has no options but its help."""
    return cli.Parser(
        "colmet-web",
        "Serve the JSON interface and the page of colmet-collector --http-listen. The unit colmet-web.socket starts it "
        "when the collector connects, and the collector sends its own options.",
    )


def serve() -> int:
    """Run the service ``colmet-web``, and return the exit status."""
    if len(sys.argv) > 1:
        build_parser().parse_args()
    try:
        feed, argv, kernel = connected(os.environ)
    except ColmetError as err:
        startup.set_up_logging(0)
        log.error("%s", err)
        return cli.EXIT_CONFIG
    return _serve(argv, lambda: feed, kernel)


def _serve(argv: Sequence[str] | None, feed: Callable[[], socket.socket], kernel: socket.socket | None = None) -> int:
    try:
        options = Configuration(collector.full_parser, argv).read()
    except ConfigError as err:
        startup.set_up_logging(0)
        log.error("%s", err)
        return cli.EXIT_CONFIG
    startup.set_up_logging(options.verbose)
    try:
        run(options, feed(), kernel)
    except ColmetError as err:
        log.error("%s", err)
        return cli.EXIT_CONFIG if isinstance(err, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
