"""Facility documents as rows for a collector, sent with the node's outbox and link until they are acknowledged."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from colmet.common.errors import ConfigError
from colmet.common.runtime import keys
from colmet.common.runtime.logs import powers_of_ten
from colmet.common.schema import Batch, Table
from colmet.common.transport import curve
from colmet.common.wire import control as control_wire
from colmet.common.wire import v1
from colmet.facility.options import spool_directory
from colmet.facility.rows import rows_of, tables_of
from colmet.facility.sender import Outcome
from colmet.node.delivery.link import NodeLink, open_uplinks
from colmet.node.delivery.outbox import Outbox
from colmet.node.delivery.requests import Requests
from colmet.node.delivery.send_queue import SendQueue
from colmet.node.delivery.spool import LOCK, Spool
from colmet.node.delivery.uplink import Times, Uplink
from colmet.node.system.host import PrivateDirectory

log = logging.getLogger(__name__)

WIRE = "v1"
ROWS_AT_ONCE = 1000  # of a table in one batch: some hundred kB
LOOK_S = 0.05
LOCK_S = 15.0  # to wait for the end of another run: without a reachable collector it ends within ten seconds
HWM, RATE = 1000, 200.0


def host_name_of(options: argparse.Namespace) -> str:
    """Return the host name in the rows; raise ConfigError for an invalid one."""
    machine = socket.gethostname()
    name: str = options.collector_host_name or f"{machine}-facility"
    if name == machine:
        raise ConfigError(
            f"--collector-host-name {name}: that is the name of colmet-node on this machine; give another one"
        )
    return keys.check_name(name)


def from_options(
    options: argparse.Namespace, stopping: Callable[[], bool] = lambda: False, times: Times | None = None
) -> CollectorOutput | None:
    """Return the output of the command line's options; None without a collector's address.

    `stopping` returns whether the program is to end soon. Tests shorten the times of the link.

    Raises:
        ConfigError: an address, a name or a key cannot be used.
    """
    if not options.zeromq_uri:
        return None
    times = times or Times()
    host_name = host_name_of(options)
    security = curve.from_options(options)
    if security is None:
        log.warning("%s", curve.OFF)
    wanted = argparse.Namespace(**vars(options), zeromq_hwm=HWM, zeromq_linger=0, wire=WIRE)
    with contextlib.ExitStack() as stack:
        uplinks = open_uplinks(wanted, host_name, times, security)
        for uplink in uplinks:
            stack.callback(uplink.close)
        directory, max_age_s = spool_directory(options), options.spool_age * 86400.0
        outbox = open_outbox(directory, host_name, options.spool_size, max_age_s, stopping)
        stack.callback(outbox.close)
        output = CollectorOutput(host_name, outbox, uplinks, options.deadline, times, stopping)
        stack.pop_all()
    return output


class FacilityOutbox(Outbox):
    """An outbox for which another thread can wait: for the batches of earlier runs, and for consistent counts."""

    def __init__(self, epoch: int, spool: Spool | None, max_age_s: float) -> None:
        super().__init__(epoch, spool, max_age_s=max_age_s)
        self.loaded = threading.Event()
        self._counting = threading.Lock()

    def load(self) -> None:
        """Find the batches of earlier runs; a failure ends the wait, too."""
        try:
            super().load()
        finally:
            self.loaded.set()

    def acknowledge(self, epoch: int, first: int, last: int) -> None:
        """Remove acknowledged batches."""
        with self._counting:
            super().acknowledge(epoch, first, last)

    def waiting(self) -> int:
        """Return the number of kept batches; all others are in the counters already."""
        with self._counting:
            return len(self)


def open_outbox(
    directory: str, host_name: str, max_bytes: int, max_age_s: float, stopping: Callable[[], bool] = lambda: False
) -> FacilityOutbox:
    """Return the outbox; if the directory is unusable, a warning is logged and batches stay in memory.

    `directory` is the parent of the spool; if it is empty, batches stay in memory, too.
    """
    epoch, spool = time.time_ns(), None
    if directory:
        try:
            with contextlib.ExitStack() as stack:
                os.makedirs(directory, 0o700, exist_ok=True)
                private = PrivateDirectory(os.path.join(directory, "collector"))
                stack.callback(private.close)
                _lock(private, stopping)
                epoch = max(time.time_ns(), 1 + Spool.last_epoch(private))
                stack.pop_all()
            spool = Spool(private, host_name, epoch, max_bytes, max_age_s)
        except OSError as err:
            why = "another colmet-facility uses it" if isinstance(err, BlockingIOError) else err.strerror
            lost = "rows for the collector are not kept, unacknowledged ones are lost: --spool-dir %s: %s"
            log.warning(lost, directory, why)
    return FacilityOutbox(epoch, spool, max_age_s)


def _lock(directory: PrivateDirectory, stopping: Callable[[], bool]) -> None:
    """Wait for the lock; raise BlockingIOError if it stays taken."""
    until = time.monotonic() + LOCK_S
    while True:
        try:
            return directory.lock(LOCK)
        except BlockingIOError:
            if time.monotonic() >= until or stopping():
                raise
        time.sleep(LOOK_S)


def _nothing_to_configure(_content: bytes) -> bytes:
    """Answer a collector's request to configure."""
    return control_wire.encode({"error": "this is colmet-facility, which has nothing that can be configured from afar"})


class CollectorOutput:
    """Output of rows to a collector, as from a node. For one thread; another one sends.

    Args:
        host_name: of the rows.
        outbox: keeps the batches until they are acknowledged.
        uplinks: to the collectors.
        deadline_s: timeout of `finish`.
        times: of the link.
        stopping: returns whether the program is to end soon.

    Attributes:
        unknown: documents of kinds without a table.
    """

    def __init__(
        self,
        host_name: str,
        outbox: FacilityOutbox,
        uplinks: Sequence[Uplink],
        deadline_s: float = 120.0,
        times: Times | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.unknown = 0
        self._host_name = host_name
        self._outbox = outbox
        self._uplinks = uplinks
        self._deadline_s = deadline_s
        self._stopping = stopping
        self._seq = 0
        self._former = (0, 0)  # acknowledged and dropped, at the end of the run before
        self._is_open = True
        self._queue = SendQueue(v1.encode_short, outbox)
        requests = Requests(_nothing_to_configure)
        self._link = NodeLink(
            host_name, outbox, uplinks, self._queue.take, self._queue.fd, HWM, RATE, times, requests=requests
        )
        self._link.start()

    def put(self, documents: Sequence[Mapping[str, Any]], time_ns: int) -> None:
        """Queue documents as rows; another thread keeps and sends them."""
        rows, unknown = rows_of(documents)
        self.unknown += unknown
        if unknown and (powers_of_ten(self.unknown) or self.unknown == unknown):
            log.warning("documents have no table, and are not among the rows documents=%d", self.unknown)
        tables: list[Table] = []
        for table in tables_of(rows, time_ns, ROWS_AT_ONCE):
            tables.append(table)
            if sum(map(len, tables)) >= ROWS_AT_ONCE:
                self._put(tables, time_ns)
                tables = []
        if tables:
            self._put(tables, time_ns)

    def _put(self, tables: Sequence[Table], time_ns: int) -> None:
        self._seq += 1
        # the jobs of this machine are not known here
        self._queue.put(Batch(self._host_name, self._outbox.epoch, self._seq, time_ns, None, tuple(tables)))

    @property
    def _untaken(self) -> int:
        """Return the number of batches still in the send queue."""
        return self._seq - max(0, self._outbox.coming - 1)

    @property
    def _is_taken(self) -> bool:
        """Return whether the outbox has all queued batches, and those of earlier runs."""
        return self._outbox.loaded.is_set() and not self._untaken

    @property
    def _is_safe(self) -> bool:
        """Return whether all kept batches are on disk."""
        return self._outbox.spool is not None and not self._outbox.memory_bytes

    def finish(self) -> Outcome:
        """Wait until all batches are acknowledged, for the deadline at most; return the outcome.

        It does not wait if no collector is reachable and all batches are on disk.
        """
        until = time.monotonic() + self._deadline_s
        while not (self._is_taken and not self._outbox.waiting()):
            now = time.monotonic()
            away = not any(uplink.usable(now) for uplink in self._uplinks)
            if now >= until or self._stopping() or (away and self._is_taken and self._is_safe):
                break
            time.sleep(LOOK_S)
        waiting = self._untaken + self._outbox.waiting()
        in_memory = waiting if self._outbox.spool is None else 0
        acknowledged, dropped = self._queue.acknowledged, self._queue.dropped
        before, self._former = self._former, (acknowledged, dropped)
        sent, kept, lost = acknowledged - before[0], waiting - in_memory, dropped - before[1] + in_memory
        log.info("rows for the collector: batches acknowledged=%d kept=%d lost=%d", sent, kept, lost)
        if waiting:
            log.warning(
                "collector has not acknowledged all rows waiting=%d: they are %s",
                waiting,
                "sent again by the next run" if not in_memory else "lost when this program ends",
            )
        return Outcome(sent, kept, 0, lost)

    def close(self) -> None:
        """End the thread and close everything; also twice."""
        if not self._is_open:
            return
        self._is_open = False
        if not self._link.stop(self._queue.wake):  # it still uses everything
            log.error("disk of --spool-dir does not answer, ending without it")
            return
        for uplink in self._uplinks:
            uplink.close()
        self._outbox.close()
        self._queue.close()
