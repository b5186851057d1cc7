"""One output and its place in the journal: its own thread, retries and counters."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from colmet.collector.backend import JournalRecord, OutputBackend
from colmet.collector.journal.cursor import Cursor, Reading
from colmet.collector.journal.journal import Journal
from colmet.collector.journal.output_state import OutputState
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.pacing import Backoff
from colmet.common.errors import ColmetError, OutputUnavailable

log = logging.getLogger(__name__)

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
DELAY_PERIODS = 12  # of --sample-period: longest rest between two writes, so that writing costs little
LAST_BURST_BYTES = 8 << 20  # at the end, for a timely stop


class OutputWorker:
    """Worker of one output: writes the journal's records. A failing output delays no other.

    Args:
        max_rows: rows gathered before a write.
        max_age_s: longest time for gathering rows.

    Attributes:
        lost: records gone before their turn: dropped for lack of room, or damaged in the journal.
        dropped: rows of records dropped after a defect of the output.
        why: cause of the unavailability; empty while available.
        away_since: start of the unavailability, by the monotonic clock.
    """

    def __init__(
        self,
        output: OutputBackend,
        journal: Journal,
        state: OutputState,
        max_rows: int,
        max_age_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.output = output
        self.written = self.lost = self.dropped = self.failures = self.all_failures = 0
        self.why = ""
        self.away_since = 0.0
        self._journal = journal
        self._state = state
        self._cursor = Cursor(journal)
        self._max_rows = max_rows
        self._max_age_s = max_age_s
        self._monotonic = monotonic
        self._lost_until = self._written_until = 0  # counted
        self._defects = 0  # records dropped after a defect
        self._recovered = False
        self._counters_failed = False
        self._since: float | None = None  # start of the wait for the next write
        self._not_before = 0.0  # so that rows are gathered
        self._left: list[JournalRecord] = []  # of those due, as the output ended early
        self._used_s = 0.0  # CPU time for those due
        self._backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S, monotonic)
        self._reopen_at: int | None = None
        self._stop_by: float | None = None
        self._thread = threading.Thread(target=self._run, name=output.name, daemon=True)

    @property
    def waiting(self) -> int:
        """Return the number of records waiting for the output."""
        return max(0, self._journal.end - self._state.position)

    def counters(self) -> dict[str, int]:
        """Return the counters of the worker and its output, by name."""
        return {
            "written": self.written,
            "waiting": self.waiting,
            "lost": self.lost,
            "dropped": self.dropped,
            "failures": self.failures,
            **self.output_counters(),
        }

    def output_counters(self) -> dict[str, int]:
        """Return the output's own counters; empty, with an error in the log, if it fails to return them."""
        try:
            return {name: int(count) for name, count in self.output.counters().items()}
        except Exception as err:  # noqa: BLE001 - status and log continue without them
            if not self._counters_failed:
                self._counters_failed = True
                log.error("counters missing output=%s: %s: %s", self.output.name, type(err).__name__, err)
            return {}

    # -- for the main thread --

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def gather(self, max_rows: int | None = None, max_age_s: float | None = None) -> None:
        """Change the number of rows gathered before a write, or the time for it; None leaves it unchanged."""
        with self._journal.changed:
            self._max_rows = max_rows or self._max_rows
            self._max_age_s = max_age_s or self._max_age_s
            self._journal.changed.notify_all()

    def reopen(self) -> None:
        """Have the output start its next file, after all records received so far."""
        with self._journal.changed:
            self._reopen_at = self._journal.end
            self._journal.changed.notify_all()

    def stop(self, within_s: float) -> None:
        """Write the waiting records for at most `within_s`; the rest stays in the journal."""
        with self._journal.changed:
            self._stop_by = self._monotonic() + within_s
            self._journal.changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; return whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- the thread --

    def _run(self) -> None:
        while self._stop_by is None:
            self._turn()
            with self._journal.changed:
                if self._stop_by is None:
                    self._journal.changed.wait(self._delay_s())
        self._last_turns()
        self._cursor.close()
        try:
            self.output.close()
        except Exception:  # a defect in one output must not hinder the end of the others
            log.exception("output not closed output=%s", self.output.name)

    def _last_turns(self) -> None:
        assert self._stop_by is not None
        failures = self.failures
        self._backoff.reset()
        while self._recover() and self.waiting and self._monotonic() < self._stop_by:
            self._write_next()
            if self.failures > failures:
                break
            failures = self.failures
        if self.waiting and self._journal.directory:
            log.warning(
                "output continues with these records after the next start: output=%s records=%d",
                self.output.name,
                self.waiting,
            )
        elif self.waiting:
            self.lost += self.waiting
            log.error("records lost that waited in memory: output=%s records=%d", self.output.name, self.waiting)

    def _turn(self) -> None:
        if not self._backoff.is_due() or not self._recover():
            return
        with self._journal.changed:
            due = self._due()
        if due:
            self._write_next()
        if self._reopen_at is not None and self._state.position >= self._reopen_at:
            self._reopen_at = None
            try:
                self.output.reopen()
            except ColmetError as err:
                log.error("cannot start the next file output=%s: %s", self.output.name, err)
            except Exception:
                log.exception("cannot start the next file output=%s", self.output.name)

    def _due(self) -> bool:
        if not self.waiting:
            self._since = None
            return False
        now = self._monotonic()
        if self._since is None:
            self._since = now
        behind, size, rows = self._journal.waiting(self._state.position)
        if self._left or behind or size >= self.output.burst_bytes or self._reopen_at is not None:
            return True
        return now >= self._not_before and (rows >= self._max_rows or now >= self._since + self._max_age_s)

    def _delay_s(self) -> float | None:
        """Return the seconds until work may be due; None if not before the journal has more."""
        now = self._monotonic()
        if not self._backoff.is_due():
            return self._backoff.left_s()
        if self._reopen_at is not None or not self._recovered:
            return 0.0
        if self._due():
            return 0.0
        if self._since is None:
            return None
        behind_or_enough = max(self._not_before, now)
        _, _, rows = self._journal.waiting(self._state.position)
        if rows < self._max_rows:
            behind_or_enough = max(behind_or_enough, self._since + self._max_age_s)
        return behind_or_enough - now

    def _recover(self) -> bool:
        """Have the output undo an interrupted write; return whether that is done."""
        if not self._recovered:
            self._state.oldest, self._state.end = self._journal.oldest, self._journal.end
            self._recovered = self._attempt(self.output.recover)
        return self._recovered

    def _write_next(self) -> None:
        began = time.thread_time()
        if not self._attempt(self._write_burst):
            return
        self._used_s += time.thread_time() - began
        if not self._left:
            pause_s = self._used_s * (1 / self.output.share - 1)
            self._not_before = self._monotonic() + min(
                pause_s, self.output.max_delay_s, DELAY_PERIODS * self._max_age_s
            )
            self._since, self._used_s = None, 0.0

    def _write_burst(self) -> None:
        position = self._state.position
        records, self._left = [record for record in self._left if record.number >= position], []
        if records and records[0].number == position:
            after = records[-1].number + 1
        else:
            most_bytes = self.output.burst_bytes if self._stop_by is None else LAST_BURST_BYTES
            reading = self._cursor.read(position, most_bytes)
            if reading.lost:
                self._count_lost(reading)
            records, after = reading.records, reading.after
        self._state.oldest, self._state.end = self._journal.oldest, self._journal.end
        self._write(records, after)
        self._left = [record for record in records if record.number >= self._state.position]

    def _count_lost(self, reading: Reading) -> None:
        """Count the lost records of a reading; a repeated reading has them again."""
        before, number = self.lost, self._state.position
        for record in reading.records:
            self.lost += max(0, record.number - max(number, self._lost_until))
            number = record.number + 1
        self.lost += max(0, reading.after - max(number, self._lost_until))
        self._lost_until = max(self._lost_until, reading.after)
        if powers_of_ten(self.lost, before):
            log.error("records lost, the journal no longer has them: output=%s lost=%d", self.output.name, self.lost)

    def _attempt(self, step: Callable[[], None]) -> bool:
        """Try a step of the output; return whether it succeeded."""
        try:
            step()
        except Exception as err:  # a defect of ours in one output must not stop the others
            is_away = isinstance(err, OutputUnavailable)
            if not self.failures:
                self.away_since = self._monotonic()
            self.failures += 1
            self.all_failures += 1
            self.why = str(err) if is_away else f"{type(err).__name__}: {err}"
            if powers_of_ten(self.failures) and is_away:
                log.error("output unavailable output=%s failures=%d: %s", self.output.name, self.failures, err)
            elif powers_of_ten(self.failures):
                log.exception("output failed output=%s failures=%d", self.output.name, self.failures)
            self._backoff.fail()
            return False
        if self.failures:
            log.warning("output available again output=%s waiting=%d", self.output.name, self.waiting)
        self.failures, self.why = 0, ""
        self._backoff.reset()
        return True

    def _write(self, records: Sequence[JournalRecord], after: int) -> None:
        """Write records; one with a defect in the output is dropped alone.

        Raises:
            OutputUnavailable: it continues at the state's position later.
        """
        position = self._state.position
        # some may have been written before the defect
        records = [record for record in records if record.number >= position]
        if not records:
            if after > position:  # only lost ones
                self._state.save(after, keep_from=self._state.keep_from)
            return
        try:
            self.output.write(records)
            return
        except OutputUnavailable:
            raise
        except Exception:
            if len(records) == 1:
                self._defects += 1
                if powers_of_ten(self._defects):
                    log.exception("output failed output=%s host=%s", self.output.name, records[0].batches[0].host)
        finally:
            self._count_written(records)
        if len(records) == 1:
            self._state.save(records[0].number + 1, keep_from=self._state.keep_from)
            before = self.dropped
            self.dropped += records[0].row_count
            if powers_of_ten(self.dropped, before):
                log.error(
                    "rows dropped output=%s dropped=%d, because of the defect above", self.output.name, self.dropped
                )
        else:
            # halves, so that finding one culprit among thousands needs a dozen more writes, not thousands
            middle = len(records) // 2
            self._write(records[:middle], records[middle].number)
            if self._state.position > records[middle - 1].number:  # else the output ended early
                self._write(records[middle:], after)

    def _count_written(self, records: Sequence[JournalRecord]) -> None:
        position = self._state.position
        done = [record for record in records if self._written_until <= record.number < position]
        self._written_until = max(self._written_until, position)  # records may be read again
        rows = sum([record.row_count for record in done])
        self.written += rows
        log.debug("rows written output=%s rows=%d", self.output.name, rows)
