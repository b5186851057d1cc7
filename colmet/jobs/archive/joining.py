"""A thread that asks batch systems what they know of jobs, in bulk and seldom, and joins it to the job archive.

Each period it asks for the jobs that run and for those that ended since the last answer. Now and then it asks by number
for jobs whose rows have ended and whose record has not come. Nothing waits for it: neither nodes nor outputs.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from typing import Any

from colmet.batch.answers import cancel
from colmet.batch.systems import RECORDS, JobRecord, RecordSource, find_record_sources
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.pacing import Backoff
from colmet.common.errors import ColmetError
from colmet.jobs.archive.store import ArchiveStore

log = logging.getLogger(__name__)

SYSTEMS = tuple(RECORDS)  # names of the batch systems
PERIOD_S = 60.0
MAX_PAUSE_S = 3600.0  # after failures
OVERLAP_S = 300  # asked for again, as clocks differ and accounts are late
WINDOW_S = 3600  # one question for ended jobs
BACK_S = 7 * 86400  # ended jobs older than this are not asked for
AT_ONCE = 500  # records of one transaction: the archive's other writer waits so long
LATE_EVERY_S, LATE_SPAN_S = 600.0, 7200  # time between queries by number; jobs that ended within it
ALL_EVERY = 6  # at every sixth of these times, jobs of all of `BACK_S`, and all that ended within `LATE_SPAN_S`
SETTLED_S = 120  # after the last row, before a job is asked for by number
STOP_S = 5.0


class Joiner:
    """The thread.

    `sources` has one for each batch system, `opened` is called for each turn, and returns the open archive. If an
    option has named the batch systems (`is_named`), a failure is a warning.
    """

    def __init__(
        self,
        sources: Sequence[RecordSource],
        opened: Callable[[], ArchiveStore],
        period_s: float = PERIOD_S,
        is_named: bool = True,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sources = list(sources)
        self._opened = opened
        self._period_s = period_s
        self._level = logging.WARNING if is_named else logging.INFO
        self._clock = clock
        self._joined = self._alone = self._failures = 0
        self._backoffs = [Backoff(period_s, max(period_s, MAX_PAUSE_S), monotonic) for _ in sources]
        self._monotonic = monotonic
        self._late = {source.name: (0, -math.inf) for source in sources}  # questions by number: how many, when again
        self._troubles: dict[str, tuple[str, float]] = {}  # by batch system: why it does not answer, since when
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def named(cls, text: str, opened: Callable[[], ArchiveStore], period_s: float, is_named: bool) -> Joiner:
        """Return the thread for the batch systems named in a text; ConfigError for an unusable one."""
        return cls(find_record_sources(text), opened, period_s, is_named)

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is None and self.sources:
            self._thread = threading.Thread(target=self._run, name="batch-system", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread, and the command in progress; idempotent."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            cancel(thread)
            thread.join(STOP_S)
            if thread.is_alive():  # a file system or a server holds it; nothing of it is needed
                return
        for source in self.sources:
            source.close()

    def counters(self) -> dict[str, int]:
        """Return what was joined, and what was not."""
        return {
            "batch_joined": self._joined,
            "batch_alone": self._alone,
            "batch_failures": self._failures,
            "batch_skipped": sum([source.skipped for source in self.sources]),
        }

    def states(self) -> list[dict[str, Any]]:
        """Return of each batch system its name, why the last question had no answer ("": it had), and for how long."""
        found = []
        for source in self.sources:
            why, since = self._troubles.get(source.name, ("", 0.0))
            found.append({"name": source.name, "why": why, "failing_s": self._monotonic() - since if why else 0.0})
        return found

    def _run(self) -> None:
        while not self._stop.is_set():
            self.turn()
            self._stop.wait(self._period_s)

    def turn(self) -> None:
        """Ask each batch system that is due."""
        for source, backoff in zip(self.sources, self._backoffs):
            if self._stop.is_set() or not backoff.is_due():
                continue
            try:
                with closing(self._opened()) as archive:
                    self._ask(source, archive)
            except Exception as err:  # noqa: BLE001 - a defect here must not end the thread
                self._fail(source, backoff, err)
                continue
            if backoff.failures:
                log.log(self._level, "batch system answers again system=%s failures=%d", source.name, backoff.failures)
            backoff.reset()
            self._troubles.pop(source.name, None)

    def _fail(self, source: RecordSource, backoff: Backoff, err: Exception) -> None:
        if self._stop.is_set():
            return
        self._failures += 1
        pause_s = backoff.fail()
        _, since = self._troubles.get(source.name, ("", self._monotonic()))
        self._troubles[source.name] = str(err) or type(err).__name__, since
        if powers_of_ten(backoff.failures):
            is_known = isinstance(err, ColmetError)
            log.log(
                self._level if is_known else logging.ERROR,
                "batch system not joined to the archive: system=%s failures=%d retry_s=%d: %s",
                *(source.name, backoff.failures, pause_s, err if is_known else f"{type(err).__name__}: {err}"),
                exc_info=None if is_known else err,
            )

    def _ask(self, source: RecordSource, archive: ArchiveStore) -> None:
        """Ask one batch system, and join its answers."""
        now = self._clock()
        running = source.running()
        self._join(archive, source, running, None)
        asked = archive.asked_until(source.name)
        until = max(now - BACK_S, min(now, now if asked is None else asked))
        while not self._stop.is_set():
            end = min(now, until + WINDOW_S)
            self._join(archive, source, source.ended(until - OVERLAP_S, end), end)
            until = end
            if until >= now:
                break
        times, due = self._late[source.name]
        if self._monotonic() >= due and not self._stop.is_set():
            is_all = times % ALL_EVERY == 0
            if is_all and asked is not None:  # accounts may be hours late
                self._join(archive, source, source.ended(now - LATE_SPAN_S, now), None)
            self._look_up(archive, source, now, BACK_S if is_all else LATE_SPAN_S, {one.job for one in running})
            self._late[source.name] = times + 1, self._monotonic() + LATE_EVERY_S

    def _look_up(
        self, archive: ArchiveStore, source: RecordSource, now: float, span_s: float, running: Collection[int]
    ) -> None:
        """Ask by number for the jobs that have ended, and have no record of it."""
        jobs = [job for job in archive.unsettled(now - span_s, now - SETTLED_S) if job not in running]
        records = source.named(jobs) if jobs else None
        if records is not None:
            found = {one.job for one in records}
            self._join(archive, source, records, None, [job for job in jobs if job not in found])

    def _join(
        self,
        archive: ArchiveStore,
        source: RecordSource,
        records: Sequence[JobRecord],
        asked_until: float | None,
        unknown: Collection[int] = (),
    ) -> None:
        parts = [records[at : at + AT_ONCE] for at in range(0, len(records), AT_ONCE)] or [records]
        for part in parts:
            is_last = part is parts[-1]
            done = archive.join(source.name, part, asked_until if is_last else None, unknown if is_last else ())
            self._joined += done.joined
            self._alone += done.alone
