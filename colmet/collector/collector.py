"""The main loop of the collector: messages of nodes go to the journal, which the outputs read."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from colmet.collector.collector_health import ACQUAINTED_S, CollectorHealth
from colmet.collector.feed import FeedServer
from colmet.collector.ingest.link import CollectorLink, LinkPort
from colmet.collector.ingest.receiver import Receiver
from colmet.collector.journal.journal import Journal
from colmet.collector.output_worker import OutputWorker
from colmet.common.config import plugins
from colmet.common.daemon import control
from colmet.common.daemon.daemon_health import NOTE_S, ClockWatch
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.systemd import Service
from colmet.common.daemon.wakeup import Signals, readable
from colmet.common.transport import Pull

log = logging.getLogger(__name__)

# Messages received before the signals are handled again.
BURST = 1024
LOOK, LOOK_BYTES = 128, 1 << 20  # of these, handled together
BURST_S = 0.2  # at most: acknowledgements and the control socket wait no longer
GATHER_S = 0.01  # after the first message: handling several together needs less CPU time for each
REPORT_S = 3600.0
SENDERS_REPORTED = 200  # of the worst, to colmet-web
NO_LINK = "another program has the port after that of the data: give --zeromq-link-bind-uri, here and on the nodes"
# While the journal is full.
FULL_WAIT_S = 0.2
# At the end: time for receiving messages that have arrived, and for the outputs' writes.
LAST_RECEIVE_S = 10.0
LAST_WRITE_S = 10.0
# Then a waiting output is abandoned: its unwritten records stay in the journal.
LAST_JOIN_S = 40.0


class Collector:
    """The main loop: receives messages, and passes them to the journal.

    Args:
        metrics_jobs: whether to serve the latest rows of jobs as metrics.
        link_port: of the link, if another collector may claim it.
        parts: other parts' counters, by the name of the part.
        feed: of all messages, to colmet-web; None without.
        refusals: as for `CollectorHealth`.
    """

    def __init__(
        self,
        pull: Pull,
        journal: Journal,
        workers: Sequence[OutputWorker],
        errands: control.Errands,
        service: Service,
        metrics_jobs: bool = False,
        reload: Callable[[], None] = lambda: None,
        receiver: Receiver | None = None,
        link: CollectorLink | None = None,
        link_port: LinkPort | None = None,
        parts: Mapping[str, Callable[[], Mapping[str, int]]] = MappingProxyType({}),
        feed: FeedServer | None = None,
        refusals: Callable[[], Sequence[tuple[str, str, int]]] = tuple,
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
        self._feed = feed
        parts = {**parts, **({} if link is None else {"link": link.counters})}
        if feed is not None:
            parts["feed"] = feed.counters
        self.health = CollectorHealth(errands, self._receiver, journal, workers, parts, metrics_jobs, refusals=refusals)
        if feed is not None:
            feed.report(lambda: self.health.status({"senders": SENDERS_REPORTED}))
        self._report_at = time.monotonic() + REPORT_S
        self._reported: tuple[str, ...] = ()
        self._paused = 0
        self._clock = ClockWatch()
        self._look_at_nodes_at = time.monotonic() + ACQUAINTED_S
        self._silent = 0

    def run(self, signals: Signals) -> bool:
        """Work until SIGTERM or SIGINT, then write all received records; return whether every output has ended."""
        self._receiver.restore(*self._journal.read_senders())
        self.health.start()
        self._journal.start(self._receiver.dump_senders)
        for worker in self._workers:
            worker.start()
        self._pull.wake_on(signals.fd)
        self._pull.wake_on(self._errands.fd)
        self._service.ready()
        self._report_state()
        more = False
        while not signals.stop_wanted():
            if self._journal.full:
                self._pause(signals)
            else:
                delays = [self._report_at - time.monotonic(), NOTE_S, self._service.delay_s()]
                if self._pull.wait(max(0.0, min(delays))) and not more:
                    time.sleep(GATHER_S)
                more = self._receive()
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
            self._report_state()
            if time.monotonic() >= self._report_at:
                self._report()
        self._service.stopping()
        # nodes that continue to send must not delay the end
        until = time.monotonic() + LAST_RECEIVE_S
        while self._receive() and not self._journal.full and time.monotonic() < until:
            pass
        # before the outputs' last writes: libzmq would accept messages meanwhile, and drop them; their nodes keep them
        self._pull.close()
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
        """Close the link if another collector claims its port."""
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
        """Pause reception for a moment; the nodes keep their batches."""
        self._paused += 1
        if powers_of_ten(self._paused):
            log.error("receiving paused, the journal has no room for received data: paused=%d", self._paused)
        readable([signals.fd], FULL_WAIT_S)

    def _report_state(self) -> None:
        """Note the state for clients and the service manager; notify the watchdog only while all parts work."""
        self._clock.look()
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
        """Receive the waiting messages, up to a bound; return whether it was reached."""
        until = time.monotonic() + BURST_S
        for _ in range(BURST // LOOK):
            if self._journal.full or time.monotonic() > until:
                return True
            look = self._pull.receive_all(LOOK, LOOK_BYTES)
            if not look:
                return False
            taken = self._receiver.take_all(look)
            if self._link is not None:
                self._link.took(taken.fresh, taken.again)
                for host, epoch in taken.undescribed:
                    self._link.ask_descriptions(host, epoch)
            self._journal.append_all(taken.kept)
            for message, batches, sender in taken.kept:
                self.health.take(batches, sender)
                if self._feed is not None:
                    self._feed.put(message, sender, batches)
        return True

    def _report(self) -> None:
        """Log the counts by sender, as a WARNING after new problems."""
        lines = tuple(self._receiver.report())
        wrong = lines[1:] != self._reported[1:] and len(lines) > 1
        for line in lines:
            log.log(logging.WARNING if wrong else logging.INFO, "%s", line)
        if self._link is not None:
            log.info("link %s", _text(self._link.counters()))
        log.info("connections %s", _text(self._pull.counters()))
        if self._journal.directory:
            log.info("journal %s", _text(self._journal.counters()))
        for worker in self._workers:
            level = logging.WARNING if worker.dropped or worker.lost else logging.INFO
            log.log(level, "output %s %s", worker.output.name, _text(worker.counters()))
        self._reported = lines
        self._report_at = time.monotonic() + REPORT_S


def _text(counters: Mapping[str, int]) -> str:
    return " ".join([f"{name}={count}" for name, count in counters.items()])
