"""Requests of a collector to this node, answered in a thread of their own."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.wakeup import Wakeup

log = logging.getLogger(__name__)

MAX_WAITING = 16


class Requests:
    """Queue of requests, answered one after the other in a thread that ends when the queue is empty.

    Args:
        handle: returns the answer to a request; may block. None: requests are refused.

    Attributes:
        fd: readable when there are answers.
        answered: number of requests answered.
        refused: number of requests without a handler, or beyond the limit of waiting ones.
        failures: number of requests not answered because of a defect.
    """

    def __init__(self, handle: Callable[[bytes], bytes] | None) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, bytes, Any]] = deque()
        self._answers: deque[tuple[int, bytes, Any]] = deque()
        self._thread: threading.Thread | None = None
        self._wakeup = Wakeup()
        self.fd = self._wakeup.fd
        self.answered = self.refused = self.failures = 0

    def ask(self, number: int, content: bytes, asker: Any) -> None:
        """Queue a request; `asker` is returned with the answer."""
        with self._lock:
            if self._handle is None or len(self._waiting) >= MAX_WAITING:
                self.refused += 1
                if powers_of_ten(self.refused):
                    log.warning("link: request not answered refused=%d", self.refused)
                return
            self._waiting.append((number, content, asker))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="requests", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or self._handle is None:
                    self._thread = None
                    return
                number, content, asker = self._waiting.popleft()
            try:
                answer = self._handle(content)
            except Exception:  # a defect there must not leave the others unanswered
                self.failures += 1
                if powers_of_ten(self.failures):
                    log.exception("link: defect in answering a request failures=%d", self.failures)
                continue
            self._answers.append((number, answer, asker))
            self.answered += 1
            self._wakeup.wake()

    def answers(self) -> list[tuple[int, bytes, Any]]:
        """Return number, answer and asker of each request answered since the last call."""
        self._wakeup.clear()
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def close(self) -> None:
        """Refuse all further requests, and forget waiting ones."""
        with self._lock:
            self._handle = None
            self._waiting.clear()
