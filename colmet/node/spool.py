"""Batches on their way to the collector. Sending never blocks a tick."""

from __future__ import annotations

import logging
from collections.abc import Callable

from colmet.common.cli import powers_of_ten
from colmet.common.schema import Batch

log = logging.getLogger(__name__)


class Spool:
    """Encodes batches and hands them to the transport, which queues them while the collector is away.

    A batch for which the queue has no room is dropped and counted: the newest goes, what waits stays.

    Args:
        encode: a dialect's encoder.
        send: takes a message, or says that it has no room by returning False.
    """

    def __init__(self, encode: Callable[[Batch], bytes], send: Callable[[bytes], bool]) -> None:
        self._encode = encode
        self._send = send
        self.sent = 0
        self.dropped = 0

    def put(self, batch: Batch) -> None:
        """Send one batch, or drop it."""
        message = self._encode(batch)
        if not message:  # the dialect has no words for anything in it
            return
        if self._send(message):
            self.sent += 1
            log.debug("batch queued seq=%s bytes=%d rows=%d", batch.seq, len(message), batch.row_count)
            return
        self.dropped += 1
        if powers_of_ten(self.dropped):
            log.error(
                "batch dropped, the send queue is full dropped=%d; is colmet-collector running, and reachable at "
                "--zeromq-uri? --zeromq-hwm sets how many batches wait for it",
                self.dropped,
            )
