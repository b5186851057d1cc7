"""colmet-web: serves the JSON interface and the page, from the feed, the files and the archive of a collector."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from colmet.batch.coordinators import has_accounts, read_coordinators
from colmet.batch.systems import find_record_sources
from colmet.collector.feed import default_paths
from colmet.common.config.cli import EXIT_CONFIG
from colmet.common.config.configuration import Configuration
from colmet.common.daemon import startup, systemd
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.wakeup import Signals, readable
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.live.user_names import UserNames
from colmet.web import options as web_options
from colmet.web.catalogue import load_catalogue
from colmet.web.credentials import Projects
from colmet.web.feed import Feed
from colmet.web.health import CollectorReport
from colmet.web.node_history import MINUTE_S
from colmet.web.queries import Queries
from colmet.web.recent_cache import RecentCache
from colmet.web.reports import ReportProcesses
from colmet.web.store import StoreReader, archive_opener, opener

if TYPE_CHECKING:
    from colmet.batch.gridengine import MemoryWatch

log = logging.getLogger(__name__)

NICE = 10  # the collector has priority
MEMORY_S = 3600.0  # age of the oldest rows in memory
END_S = 8.0  # timeout for the end of the server
LOOK_S = 1.0  # between two looks whether the server runs


def run(options: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT; ConfigError if the options cannot be used."""
    web_options.check(options)
    from colmet.web.access import Access  # these require fastapi and uvicorn
    from colmet.web.server import WebServer
    from colmet.web.stored_routes import Stored

    collector = web_options.store_of(options)
    web_options.warn_of_readers(options, collector)
    with contextlib.suppress(OSError):  # a unit may forbid it
        os.nice(NICE)
    memory = RecentCache(options.memory, MEMORY_S)
    open_history = opener(collector)
    store = None if open_history is None else StoreReader(open_history)
    gridengine = gridengine_of(options)
    report = CollectorReport()

    def note(content: Mapping[str, Any]) -> None:
        memory.note(content)
        report.note(content)

    paths = default_paths() if options.feed is None else list(filter(None, [options.feed]))
    feed = Feed(paths, memory.take, note, memory.clear)
    queries = Queries(memory, store, gridengine, feed.counters, UserNames(), report=report)
    access = Access(
        options.users,
        options.admin_group,
        user_header=options.user_header,
        sign_out_url=options.sign_out_url,
        leaders_path=options.leaders,
        ask_leaders=leaders_source(collector),
    )
    reports = ReportProcesses(collector)
    stored = Stored(reports, store, archive_opener(collector))
    server = WebServer(options.listen, queries, access, stored=stored, gridengine=gridengine is not None)
    startup.tune_garbage_collector()
    ending = threading.Event()
    works: dict[str, Callable[[], object]] = {
        "server": server.run,  # uvicorn would install signal handlers in the main thread
        "feed": lambda: feed.follow(ending),
        "prepare": load_catalogue,  # now, to speed up the first answer
        "history": lambda: keep_history(queries.record, ending),
    }
    threads = {name: threading.Thread(target=work, name=name, daemon=True) for name, work in works.items()}
    serving = threads["server"]
    try:
        with Signals((signal.SIGTERM, signal.SIGINT)) as signals:
            for thread in threads.values():
                thread.start()
            if gridengine is not None:
                gridengine.start()
            while serving.is_alive() and not signals.stop_wanted():
                readable([signals.fd], LOOK_S)
    finally:
        ending.set()
        server.stop()
        serving.join(END_S)
        if gridengine is not None:
            gridengine.close()
        if store is not None:
            store.close()
        reports.close()


def gridengine_of(options: argparse.Namespace) -> MemoryWatch | None:
    """Return the reader of Grid Engine's memory figures, not started; None without --gridengine."""
    if not options.gridengine and options.gridengine_xml is None:
        return None
    from colmet.batch.gridengine import CommandSource, FileSource, MemoryWatch

    source = CommandSource() if options.gridengine_xml is None else FileSource(options.gridengine_xml)
    return MemoryWatch(source, encoding=options.gridengine_encoding)


def leaders_source(collector: argparse.Namespace) -> Callable[[], Projects] | None:
    """Return what asks Slurm for the coordinators of its accounts; None unless the archive has Slurm's records."""
    named = getattr(collector, "archive_batch", "none")
    is_asked = any(source.name == "slurm" for source in find_record_sources(named))
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
    """Run ``colmet-web``, and return the exit status."""
    read = Configuration(web_options.build_parser, argv)
    try:
        options = read.read_for_start()
    except ConfigError as err:
        startup.set_up_logging(0)
        log.error("%s", err)
        return EXIT_CONFIG
    startup.set_up_logging(options.verbose)
    try:
        if not read.is_check:
            run(options)
            return 0
        # the child of a collector, which names its store, has the collector's user
        unit = systemd.find_unit(read.program) if options.collector_config is None else None
        user = f" (checked as user {unit.user} of {unit.name})" if unit is not None and unit.enter() else ""
        web_options.check(options)
        web_options.store_of(options)
        print(f"OK: {read.path or 'command line'}{user}")
    except ColmetError as err:
        log.error("%s", err)
        return EXIT_CONFIG if isinstance(err, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
