"""Ticks at absolute times."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Schedule:
    """Ticks on a fixed grid, `period_s` apart; a late tick does not move the next one.

    The grid starts on a multiple of the period of the wall clock, so that all nodes of a cluster sample at the same
    moments; it then follows the monotonic clock and does not jump when the wall clock is set.

    A tick already past at the end of the one before is counted in `overruns` and skipped.
    """

    def __init__(
        self, period_s: float, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.period_s = period_s
        self.overruns = 0
        self._monotonic = monotonic
        self._wall = wall
        self._taken = -math.inf  # when the last tick was due
        self.start()

    def start(self) -> None:
        """Begin a grid, with the first tick at the next multiple of the period."""
        now = self._wall()
        self._start = self._monotonic() + (math.ceil(now / self.period_s) * self.period_s - now)
        self._next = 0  # of the tick, counted from _start

    def change(self, period_s: float) -> None:
        """Continue with another period. A due tick stays due; a finished one is not repeated."""
        due = self.delay_s() == 0
        before_s, self.period_s = self.period_s, period_s
        self.start()
        if due:
            self._next = -1
        elif self._start - self._taken < min(before_s, period_s) / 10:  # the same moment, the clock having been set
            self._next = 1

    def delay_s(self) -> float:
        """Return the seconds until the next tick; 0 if it is due."""
        return max(0.0, self._start + self._next * self.period_s - self._monotonic())

    def done(self) -> int:
        """End a tick: continue with the first future one. Return the number of skipped ticks."""
        self._taken = self._start + self._next * self.period_s
        first = self._next + 1
        # the small fraction keeps a tick due at this very moment
        passed = math.ceil((self._monotonic() - self._start) / self.period_s - 1e-9)
        self._next = max(first, passed)
        self.overruns += self._next - first
        return self._next - first


def self_metrics_period_s(sample_period_s: float) -> float:
    """Return the time between two rows of the agent's own tables: twelve samples, a minute at most."""
    return min(60.0, 12 * sample_period_s)


class Every:
    """Timer for work due at most once a period, checked from tick to tick; due at once the first time.

    Args:
        period_s: seconds from one time to the next; 0 for every check.
    """

    def __init__(self, period_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._period_s = period_s
        self._monotonic = monotonic
        self._due_at = monotonic()

    def change(self, period_s: float) -> None:
        """Continue with another period."""
        self._period_s = period_s
        self._due_at = min(self._due_at, self._monotonic() + period_s)

    def is_due(self) -> bool:
        """Return whether the period has passed since the last due time; if so, begin the next one."""
        now = self._monotonic()
        # ticks may be slightly early: that must not make the period one tick longer
        if now < self._due_at - min(1.0, self._period_s / 10):
            return False
        self._due_at += self._period_s
        if self._due_at <= now:  # ticks were missed
            self._due_at = now + self._period_s
        return True
