"""Size of a burst: it has to end soon, so that a stop or a kill costs little time and little work."""

from __future__ import annotations

import math

BURST_S = 2.0  # aim for one burst
TABLE_BYTES = 64 << 10  # of rows, whose writing costs as much as another table: it is made, or opened
FIRST_BYTES_PER_S = 16 << 20
# Of a burst. The minimum limits the number of bursts, each with some fsyncs, on a slow machine.
MIN_BYTES, MAX_BYTES = 128 * TABLE_BYTES, 4096 * TABLE_BYTES


class BurstPace:
    """Speed of the latest bursts, in bytes of rows."""

    def __init__(self) -> None:
        self._bytes_per_s = float(FIRST_BYTES_PER_S)

    def pieces(self, size: int) -> int:
        """Return the number of equal bursts for this many bytes."""
        return math.ceil(size / (1.25 * min(max(BURST_S * self._bytes_per_s, MIN_BYTES), MAX_BYTES)))

    def note(self, size: int, took_s: float) -> None:
        """Note the time of a burst that depends on its size: without fsyncs, which smaller bursts only repeat."""
        if took_s <= 0:
            return
        pace, former = size / took_s, self._bytes_per_s
        if took_s >= BURST_S / 8 or pace > former:  # the fixed costs of a small burst say nothing
            self._bytes_per_s = min(max(pace, former / 4), former * 4)
