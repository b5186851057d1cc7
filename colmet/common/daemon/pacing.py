"""Pauses between retries, rate limits, and shares of a store of bounded size."""

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


LENIENCE = 4  # times the mean of the other senders: the limit of one in a store that drops its oldest


class Shares:
    """Counts each sender's part of a store, and computes how much more it may store.

    A sender may store as much as it leaves free: alone half of the store, each of three with unlimited demand a
    quarter. A later sender always finds room, and data of others is never dropped for it. Amounts of "" belong to no
    sender: they count, and may use all the room.

    Args:
        size: of the store: bytes, rows, or another unit.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.total = 0
        self._held: dict[str, int] = {}

    def hold(self, sender: str, amount: int) -> None:
        """Add an amount to a sender's part; subtract if negative."""
        self.total += amount
        held = self._held.get(sender, 0) + amount
        if held:
            self._held[sender] = held
        else:
            self._held.pop(sender, None)

    def held(self, sender: str) -> int:
        """Return a sender's part."""
        return self._held.get(sender, 0)

    def room(self, sender: str) -> int:
        """Return how much more a sender may store; below 0 beyond its share."""
        free = self.size - self.total
        return (free - self._held.get(sender, 0)) // 2 if sender else free

    def exceeds(self, sender: str, amount: int = 0) -> bool:
        """Return whether a sender exceeds its share of a store that drops its oldest, with this amount added.

        It does if the amount does not fit and its part is far larger than the others': if all parts are large, the
        oldest data is dropped instead.
        """
        held = self._held.get(sender, 0)
        if not sender or 2 * amount <= self.size - self.total - held:  # it has room
            return False
        others = len(self._held) - (sender in self._held)
        return others > 0 and (held + amount) * others > LENIENCE * (self.total - held)

    def clear(self) -> None:
        """Start again with an empty store."""
        self.total = 0
        self._held.clear()
