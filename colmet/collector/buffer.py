"""Batches between the receiver and the outputs: grouped until there are enough of them, or they are old enough."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from colmet.collector.backend import OutputBackend
from colmet.common.cli import powers_of_ten
from colmet.common.errors import OutputUnavailable
from colmet.common.schema import Batch

log = logging.getLogger(__name__)

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
# What waits for an output that cannot take rows; a taskstats row has 250 bytes.
MAX_WAITING_BYTES = 256 << 20
# Beyond this a buffer is written whatever its rows and its age.
MAX_BUFFER_BYTES = 64 << 20


class Outlet:
    """One output and what waits for it. An output that fails keeps its batches and delays no other.

    Attributes:
        written: rows written.
        dropped: rows lost, for want of room while the output failed, or to a defect in it.
        waiting: rows that wait for it.
    """

    def __init__(self, output: OutputBackend, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.output = output
        self.written = 0
        self.dropped = 0
        self.waiting = 0
        self.failures = 0
        self._monotonic = monotonic
        self._batches: list[Batch] = []
        self._size_bytes = 0
        self._retry_at = 0.0
        self._retry_s = FIRST_RETRY_S

    def add(self, batches: Sequence[Batch]) -> None:
        """Have these written next time; the newest are dropped where too many wait."""
        for batch in batches:
            if self._size_bytes + batch.size_bytes > MAX_WAITING_BYTES:
                self._drop(batch.row_count, "it cannot take rows, and too many wait for it")
            else:
                self._batches.append(batch)
                self._size_bytes += batch.size_bytes
                self.waiting += batch.row_count

    def write(self, last_try: bool = False) -> None:
        """Write what waits, unless the output failed a moment ago."""
        if not self._batches or (self._monotonic() < self._retry_at and not last_try):
            return
        try:
            self._write(self._batches)
        except OutputUnavailable as err:
            self.failures += 1
            if powers_of_ten(self.failures):
                log.error("output unavailable output=%s failures=%d: %s", self.output.name, self.failures, err)
            self._retry_at = self._monotonic() + self._retry_s
            self._retry_s = min(2 * self._retry_s, LAST_RETRY_S)
            if not last_try:
                return
            self._drop(self.waiting, "it could not take rows until the end")
        else:
            if self.failures:
                log.warning("output available again output=%s waiting=%d", self.output.name, self.waiting)
            self.failures = 0
            self._retry_s = FIRST_RETRY_S
            self._retry_at = 0.0
        self._batches, self.waiting, self._size_bytes = [], 0, 0

    def _write(self, batches: Sequence[Batch]) -> None:
        """Write batches; one that meets a defect of the output is dropped alone.

        Raises:
            OutputUnavailable: none of `self._batches` that is still in there has been written.
        """
        try:
            self.output.write(batches)
        except OutputUnavailable:
            raise
        except Exception:  # a defect of ours in one output must not stop the others
            if len(batches) == 1:
                log.exception("output failed output=%s host=%s", self.output.name, batches[0].host)
                self._drop(batches[0].row_count, "of the defect above")
                return
        else:
            self.written += sum([batch.row_count for batch in batches])
            return
        # halves, so that finding one culprit among thousands takes a dozen more writes, not thousands
        middle = len(batches) // 2
        self._write(batches[:middle])
        self._forget(batches[:middle])
        self._write(batches[middle:])

    def _forget(self, done: Sequence[Batch]) -> None:
        """Batches that were dealt with before the others of their burst are not to be written again."""
        ids = {id(batch) for batch in done}
        self._batches = [batch for batch in self._batches if id(batch) not in ids]
        self.waiting = sum([batch.row_count for batch in self._batches])
        self._size_bytes = sum([batch.size_bytes for batch in self._batches])

    def _drop(self, rows: int, why: str) -> None:
        before, self.dropped = self.dropped, self.dropped + rows
        if len(str(before)) != len(str(self.dropped)) or not before:
            log.error("rows dropped output=%s dropped=%d, because %s", self.output.name, self.dropped, why)


class Buffer:
    """Holds batches until they have `max_rows` rows, or the oldest is `max_age_s` old; then every output gets them."""

    def __init__(
        self,
        outlets: Sequence[Outlet],
        max_rows: int,
        max_age_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outlets = outlets
        self._max_rows = max_rows
        self._max_age_s = max_age_s
        self._monotonic = monotonic
        self._batches: list[Batch] = []
        self._oldest = 0.0
        self.rows = 0
        self.size_bytes = 0

    def add(self, batches: Sequence[Batch]) -> None:
        """Take batches in."""
        if batches and not self._batches:
            self._oldest = self._monotonic()
        self._batches.extend(batches)
        self.rows += sum([batch.row_count for batch in batches])
        self.size_bytes += sum([batch.size_bytes for batch in batches])

    @property
    def due(self) -> bool:
        """Whether it holds enough rows to be written, or old enough ones."""
        return self.rows >= self._max_rows or self.size_bytes >= MAX_BUFFER_BYTES or self._age_left_s() == 0

    def delay_s(self) -> float:
        """Seconds until there may be something to write, or to try again."""
        left = self._age_left_s()
        return min(left, FIRST_RETRY_S) if any(outlet.waiting for outlet in self._outlets) else left

    def _age_left_s(self) -> float:
        if not self._batches:
            return self._max_age_s
        return max(0.0, self._oldest + self._max_age_s - self._monotonic())

    def flush(self, last_try: bool = False) -> None:
        """Give all it holds to every output, and have them write."""
        for outlet in self._outlets:
            outlet.add(self._batches)
            outlet.write(last_try)
        self._batches, self.rows, self.size_bytes = [], 0, 0

    def retry(self) -> None:
        """Have outputs that failed try again, if their time has come."""
        for outlet in self._outlets:
            outlet.write()
