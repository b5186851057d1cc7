"""The thread that keeps the shared archive up to date, so that a database that is away holds up nothing."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.pacing import Backoff
from colmet.common.errors import OutputUnavailable
from colmet.jobs.archive.indices import Indices
from colmet.jobs.archive.sharing import Sharer, outbox_of
from colmet.jobs.archive.store import ArchiveError, ArchiveStore

log = logging.getLogger(__name__)

LOOK_S = 5.0  # values of the batch system are written by others
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
NAME = "archive-share"
FAILURES = "share_failures"


class ShareThread:
    """Sends summaries to the shared archive while the local one is open.

    Args:
        path: of the local archive, whose outbox is open.
        indices: the shared one.
        counts: of an earlier thread for the same archive, which continue.
    """

    def __init__(self, path: str, indices: Indices, counts: Counter[str] | None = None, look_s: float = LOOK_S) -> None:
        self._path = path
        self._indices = indices
        self._look_s = look_s
        self._changed = threading.Condition()
        self._is_due = True
        self._stop_by: float | None = None
        self._backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S)
        self._in_a_row = 0
        self._counts: Counter[str] = Counter() if counts is None else counts
        self._waiting = 0
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
        self._thread.start()

    @property
    def failures(self) -> int:
        """Return the number of pushes that failed."""
        return self._counts[FAILURES]

    def wake(self) -> None:
        """Note that more may wait."""
        with self._changed:
            self._is_due = True
            self._changed.notify()

    def stop(self, within_s: float) -> None:
        """Send what waits for at most so long, then end; what is left waits for the next start."""
        with self._changed:
            self._stop_by = time.monotonic() + within_s
            self._changed.notify()
        self._thread.join(within_s)

    def has_ended(self) -> bool:
        """Return whether it has stopped for good."""
        return self._stop_by is not None and not self._thread.is_alive()

    def counters(self) -> dict[str, int]:
        """Return the numbers of summaries that wait and were sent, and of failures."""
        return {
            "unshared": self._waiting,
            **{name: self._counts[name] for name in ("shared", "conflicts", "postponed")},
            "share_refused": self._indices.refused,
            FAILURES: self.failures,
        }

    def _run(self) -> None:
        while True:
            is_last = self._stop_by is not None
            try:
                self._serve()
            except (ArchiveError, sqlite3.Error, OutputUnavailable) as err:
                self._failed(err)
            except Exception:  # a defect here must not end the thread; it is counted and logged
                self._counts[FAILURES] += 1
                if powers_of_ten(self.failures):
                    log.exception("summaries not shared failures=%d", self.failures)
                self._backoff.fail()
            else:
                return  # it has to stop
            if is_last:
                return
            with self._changed:
                self._changed.wait_for(lambda: self._stop_by is not None, self._backoff.left_s())

    def _failed(self, err: Exception) -> None:
        self._counts[FAILURES] += 1
        self._in_a_row += 1
        if powers_of_ten(self._in_a_row):
            log.error("shared archive unavailable, summaries wait: failures=%d: %s", self._in_a_row, err)
        self._backoff.fail()

    def _serve(self) -> None:
        """Send all that waits, and again whenever there may be more; return when it has to stop."""
        store = ArchiveStore(self._path, writable=True)
        try:
            sharer = Sharer(store, self._indices)
            sharer.counts = self._counts
            outbox = outbox_of(store, is_shared=True)
            try:
                while True:
                    is_last = self._stop_by is not None  # then all has been written
                    self._push_all(sharer, outbox.count)
                    if is_last:
                        return
                    with self._changed:
                        self._changed.wait_for(lambda: self._is_due or self._stop_by is not None, self._look_s)
            finally:
                sharer.close()
        finally:
            store.close()

    def _push_all(self, sharer: Sharer, count: Callable[[], int]) -> None:
        with self._changed:
            self._is_due = False
        self._waiting = count()
        while self._waiting and not self._is_over():
            done = sharer.push()
            self._waiting = max(0, self._waiting - done)
            if self._in_a_row:
                log.warning("shared archive available again waiting=%d", self._waiting)
                self._in_a_row = 0
            self._backoff.reset()
            if not done:  # nothing is left, or other collectors change the same jobs just now
                break
        self._waiting = count()

    def _is_over(self) -> bool:
        return self._stop_by is not None and time.monotonic() >= self._stop_by
