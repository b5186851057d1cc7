"""Ticks at absolute times."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Schedule:
    """Ticks on a fixed grid, `period_s` apart; a late tick does not move the next one.

    The grid starts on a multiple of the period of the wall clock, so that all nodes of a cluster sample at the same
    moments; it then follows the monotonic clock and does not jump when the wall clock is set.

    A tick whose time has passed when the one before it ends is counted in `overruns` and skipped.
    """

    def __init__(
        self,
        period_s: float,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.period_s = period_s
        self.overruns = 0
        self._monotonic = monotonic
        now = wall()
        self._start = monotonic() + (math.ceil(now / period_s) * period_s - now)
        self._next = 0  # of the tick, counted from _start

    def delay_s(self) -> float:
        """Seconds until the next tick; 0 when it is due."""
        return max(0.0, self._start + self._next * self.period_s - self._monotonic())

    def done(self) -> int:
        """The tick has been taken: go on to the first one that is still to come. How many were skipped."""
        first = self._next + 1
        # the small fraction keeps a tick whose very moment it is now
        passed = math.ceil((self._monotonic() - self._start) / self.period_s - 1e-9)
        self._next = max(first, passed)
        self.overruns += self._next - first
        return self._next - first
