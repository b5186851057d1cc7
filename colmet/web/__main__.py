"""The process of the JSON interface: colmet-collector starts it, with its own command line, and feeds it.

As a service (`colmet-web`) it gets the command line through the stream that feeds it.
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
from collections.abc import Callable, Sequence

from colmet.collector import main as collector
from colmet.collector.backends import NAMES
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.runtime import cli, startup
from colmet.common.runtime.configuration import Configuration
from colmet.web.feed import Feed, connected, inherited
from colmet.web.peers import Peers
from colmet.web.queries import Queries, gridengine_of
from colmet.web.recent_cache import RecentCache
from colmet.web.store import StoreReader, opener
from colmet.web.users import UserNames

log = logging.getLogger(__name__)

NICE = 10  # the collector goes first


def run(options: argparse.Namespace, feed_socket: socket.socket, kernel: socket.socket | None = None) -> None:
    """Serve until the collector ends, or SIGTERM comes.

    Args:
        options: of the collector.
        feed_socket: where its messages come from.
        kernel: asks the kernel for this machine's users; None where this process sees them itself.

    Raises:
        ColmetError: the options ask for what cannot be done, or nobody feeds this.
    """
    if options.http_listen is None:
        raise ConfigError("the collector's options do not name --http-listen any more")
    from colmet.web.access import Access  # these require fastapi and uvicorn
    from colmet.web.server import Tls, WebServer

    with contextlib.suppress(OSError):  # a unit may not let it
        os.nice(NICE)
    memory = RecentCache(options.http_memory, options.http_memory_time)
    open_history = opener(options)
    store = None if open_history is None else StoreReader(open_history)
    gridengine = gridengine_of(options)
    feed = Feed(feed_socket, memory.take, memory.note, memory.dropped)
    interface = Queries(memory, store, gridengine, feed.counters, UserNames())
    tls = None if options.http_tls_cert is None else Tls(options.http_tls_cert, options.http_tls_key)
    access = Access(None if options.http_open else options.http_users, options.http_admin_group)
    peers = Peers(options.http_trusted_proxy or (), kernel)
    server = WebServer(options.http_listen, interface, access, tls=tls, gridengine=gridengine is not None, peers=peers)

    def read() -> None:
        try:
            feed.run()
        except ColmetError as err:
            log.error("feed ended: %s", err)
        finally:
            server.stop()

    startup.tune_garbage_collector()
    threading.Thread(target=read, name="feed", daemon=True).start()
    threading.Thread(target=interface.prepare, name="prepare", daemon=True).start()
    try:
        if gridengine is not None:
            gridengine.start()
        server.run()  # until the feed ends
    finally:
        if gridengine is not None:
            gridengine.close()
        if store is not None:
            store.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``python -m colmet.web``; the exit status."""
    # the collector's business, which ends this process with its feed: a signal to all of a service must not end
    # it before that, to be started again meanwhile
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return _serve(argv, lambda: inherited(os.environ))


def serve() -> int:
    """Entry point of ``colmet-web``, the service; the exit status."""
    try:
        feed, argv, kernel = connected(os.environ)
    except ColmetError as err:
        startup.set_up_logging(0)
        log.error("%s", err)
        return cli.EXIT_CONFIG
    return _serve(argv, lambda: feed, kernel)


def _serve(argv: Sequence[str] | None, feed: Callable[[], socket.socket], kernel: socket.socket | None = None) -> int:
    try:
        options = Configuration(lambda: collector.build_parser(startup.load(NAMES)), argv).read()
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
