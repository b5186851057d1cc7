"""Pauses between retries, and rate limits."""

from __future__ import annotations

import time
from collections.abc import Callable

_MAX_DOUBLINGS = 32


def growing_pause_s(failures: int, first_s: float, max_s: float) -> float:
    """Return the pause after this number of failures in a row (at least one): doubled each time, up to `max_s`."""
    return float(min(first_s * 2 ** min(failures - 1, _MAX_DOUBLINGS), max_s))


class Backoff:
    """Time of the next retry, after a pause that grows with each failure.

    Args:
        first_s: pause after the first failure.
        max_s: longest pause.
        monotonic: a clock, in seconds.

    Attributes:
        failures: in a row.
    """

    def __init__(self, first_s: float, max_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0
        self._first_s = first_s
        self._max_s = max_s
        self._monotonic = monotonic
        self._retry_at = monotonic()

    def fail(self) -> float:
        """Note a failure; return the pause before the retry."""
        self.failures += 1
        pause_s = growing_pause_s(self.failures, self._first_s, self._max_s)
        self._retry_at = self._monotonic() + pause_s
        return pause_s

    def reset(self) -> None:
        """Note a success, or a likely one: a retry is due now, and the next pause is the first one."""
        self.failures = 0
        self._retry_at = self._monotonic()

    def left_s(self) -> float:
        """Return the seconds until the next try; 0 when it is due."""
        return max(0.0, self._retry_at - self._monotonic())

    def is_due(self) -> bool:
        """Return whether the next try is due."""
        return self._monotonic() >= self._retry_at


class TokenBucket:
    """A rate limit, with a burst after a quiet time.

    Args:
        per_s: amount available in a second; infinity: no limit.
        at_once: amount available at once after a quiet time.
        monotonic: a clock, in seconds.
    """

    __slots__ = ("_as_of", "_at_once", "_monotonic", "_per_s", "_used")

    def __init__(self, per_s: float, at_once: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._used = 0.0
        self._as_of = monotonic()
        self.limit(per_s, at_once)

    def limit(self, per_s: float, at_once: float) -> None:
        """Set the limit; the amount already used is kept."""
        self._per_s, self._at_once = per_s, at_once

    def left(self) -> float:
        """Return the amount available now; below 0 after overuse."""
        now = self._monotonic()
        if now > self._as_of:
            self._used = max(0.0, self._used - (now - self._as_of) * self._per_s)
        self._as_of = now
        return self._at_once - self._used

    def use(self, amount: float) -> None:
        """Count a used amount, available or not."""
        self.left()
        self._used += amount

    def wait_s(self, amount: float = 1.0) -> float:
        """Return the seconds until this amount is available."""
        missing = amount - self.left()
        return missing / self._per_s if missing > 0 else 0.0
