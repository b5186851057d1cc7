"""Facility documents as rows for a collector, sent with the node's outbox and link until they are acknowledged."""

from __future__ import annotations

import argparse
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from colmet.common.config import keys
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.schema import Batch, Table
from colmet.common.transport import curve
from colmet.common.wire import control as control_wire
from colmet.common.wire import v1
from colmet.facility.rows import rows_of, tables_of
from colmet.facility.sender import DEADLINE_S, Outcome
from colmet.node.delivery.link import NodeLink, open_uplinks
from colmet.node.delivery.outbox import Outbox, SendQueue
from colmet.node.delivery.uplink import Requests, Times, Uplink

log = logging.getLogger(__name__)

WIRE = "v1"
ROWS_AT_ONCE = 1000  # of a table in one batch: some hundred kB
POLL_S = 0.05
HWM, RATE = 1000, 200.0


def from_options(
    options: argparse.Namespace, stopping: Callable[[], bool] = lambda: False, times: Times | None = None
) -> CollectorOutput | None:
    """Return the output of the command line's options; None without a collector's address.

    `stopping` returns whether the program is to end soon. Tests shorten the times of the link.

    Raises:
        ConfigError: an address or a key cannot be used.
    """
    if not options.zeromq_uri:
        return None
    times = times or Times()
    host_name = keys.check_name(f"{socket.gethostname()}-facility")  # colmet-node has the name without the suffix
    security = curve.from_options(options)
    if security is None:
        log.warning("%s", curve.OFF)
    link_options = argparse.Namespace(**vars(options), zeromq_link_uri=None, zeromq_hwm=HWM, zeromq_linger=0, wire=WIRE)
    return CollectorOutput(host_name, open_uplinks(link_options, host_name, times, security), times, stopping)


def _nothing_to_configure(_content: bytes) -> bytes:
    """Answer a collector's request to configure."""
    return control_wire.encode({"error": "this is colmet-facility, which has nothing that can be configured from afar"})


class CollectorOutput:
    """Output of rows to a collector, as from a node, kept in memory. For one thread; another one sends.

    Args:
        host_name: of the rows.
        uplinks: to the collectors.
        times: of the link.
        stopping: returns whether the program is to end soon.

    Attributes:
        unknown: documents of kinds without a table.
    """

    def __init__(
        self,
        host_name: str,
        uplinks: Sequence[Uplink],
        times: Times | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.unknown = 0
        self._host_name = host_name
        self._uplinks = uplinks
        self._stopping = stopping
        self._seq = 0
        self._former = (0, 0)  # acknowledged and dropped, at the end of the run before
        self._is_open = True
        outbox = Outbox(time.time_ns())
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
        self._queue.put(Batch(self._host_name, self._queue.outbox.epoch, self._seq, time_ns, None, tuple(tables)))

    def _count_waiting(self) -> int:
        return self._seq - self._queue.outbox.acknowledged - self._queue.dropped

    def finish(self, deadline_s: float = DEADLINE_S) -> Outcome:
        """Wait until all batches are acknowledged, for the deadline at most; return the outcome.

        With --interval, the unacknowledged ones are sent until the program ends.
        """
        until = time.monotonic() + deadline_s
        while self._count_waiting() > 0 and time.monotonic() < until and not self._stopping():
            time.sleep(POLL_S)
        acknowledged, dropped, waiting = self._queue.outbox.acknowledged, self._queue.dropped, self._count_waiting()
        before, self._former = self._former, (acknowledged, dropped)
        sent, lost = acknowledged - before[0], dropped - before[1] + waiting
        log.info("rows for the collector: batches acknowledged=%d lost=%d", sent, lost)
        if waiting:
            log.error(
                "collector has not acknowledged all rows waiting=%d: they are lost when this program ends", waiting
            )
        return Outcome(sent, 0, lost)

    def close(self) -> None:
        """End the thread and close everything; also twice."""
        if not self._is_open:
            return
        self._is_open = False
        if not self._link.stop(self._queue.wake):  # it still uses everything
            return
        for uplink in self._uplinks:
            uplink.close()
        self._queue.close()
