"""Report of a wall clock that was set while a daemon runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

MIN_STEP_NS = 1_000_000_000  # smaller ones change no second of a row by more than one


def _uptime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class ClockWatch:
    """Comparison of the wall clock with the time since the machine's boot, which includes suspension.

    Args:
        wall_ns: the wall clock.
        uptime_ns: the time since boot.

    Attributes:
        steps: number of times the clock was set.
    """

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, uptime_ns: Callable[[], int] = _uptime_ns) -> None:
        self.steps = 0
        self._wall_ns = wall_ns
        self._uptime_ns = uptime_ns
        self._booted_ns = wall_ns() - uptime_ns()

    def look(self) -> None:
        """Log a step of the clock since the last look."""
        uptime_ns = self._uptime_ns()
        booted_ns = self._wall_ns() - uptime_ns
        if self._uptime_ns() - uptime_ns >= MIN_STEP_NS // 2:
            return  # interrupted between the two readings
        step_ns, self._booted_ns = booted_ns - self._booted_ns, booted_ns
        if abs(step_ns) >= MIN_STEP_NS:
            self.steps += 1
            log.warning("clock was set by seconds=%+.1f: times of rows change by that", step_ns / 1e9)
