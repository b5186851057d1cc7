"""Checksums of the latest batches: a repeated number is a duplicate only if its content is the same."""

from __future__ import annotations

import base64
from array import array

# Of one start of an agent: more than its unacknowledged batches in flight, so a re-sent one is recognised.
KEPT = 1024
FEWEST = 16
LOW = (1 << 32) - 1


class Checksums:
    """Checksums by number, at most `KEPT`: a later number replaces an earlier one of the same place.

    8 bytes each. The ring grows with its content, so a sender of few batches costs little.
    """

    def __init__(self) -> None:
        self._ring = array("Q", bytes(8 * FEWEST))

    def __len__(self) -> int:
        """Return the number of places."""
        return len(self._ring)

    def note(self, number: int, crc: int) -> None:
        """Keep the checksum of this number."""
        entry = (number + 1 & LOW) << 32 | crc
        while True:
            at = number % len(self._ring)
            there = self._ring[at]
            if not there or there >> 32 == entry >> 32 or len(self._ring) >= KEPT:
                self._ring[at] = entry
                return
            self._grow()

    def _grow(self) -> None:
        entries = [entry for entry in self._ring if entry]
        self._ring = array("Q", bytes(16 * len(self._ring)))
        for entry in entries:  # two numbers of one place: the smaller ring had only one of them
            self._ring[((entry >> 32) - 1 & LOW) % len(self._ring)] = entry

    def get(self, number: int) -> int | None:
        """Return the checksum of this number; None if it is not kept (any more)."""
        there = self._ring[number % len(self._ring)]
        return there & LOW if there and there >> 32 == number + 1 & LOW else None

    def state(self, floor: int) -> str:
        """Return the checksums that may be needed again, of numbers from `floor` on, as text for `restored`."""
        entries = sorted([entry for entry in self._ring if entry and (entry >> 32) - 1 >= floor])
        return base64.b64encode(array("Q", entries).tobytes()).decode()

    @classmethod
    def restored(cls, state: str) -> Checksums:
        """Return the checksums of a `state`; ValueError or TypeError if the text is malformed."""
        checksums = cls()
        entries = array("Q")
        entries.frombytes(base64.b64decode(state, validate=True)[: 8 * KEPT])
        for entry in entries:
            if entry:
                checksums.note((entry >> 32) - 1 & LOW, entry & LOW)
        return checksums
