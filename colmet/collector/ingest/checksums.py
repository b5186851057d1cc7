"""Checksums of the batches that came last: a repeat of a number is a duplicate only if it has the same content."""

from __future__ import annotations

import base64
import zlib
from array import array

# Of one start of an agent: more than the batches that it has on their way at a time, so what it sends again is known.
KEPT = 1024
FEWEST = 16
LOW = (1 << 32) - 1


def checksum(message: bytes) -> int:
    """Return the CRC-32 of a message as its sender made it: what is sent again has the same bytes."""
    return zlib.crc32(message)


class Checksums:
    """Checksums by number, at most `KEPT`: a number that comes later replaces one that shares its place.

    8 bytes each. The ring grows with what it holds, so a sender of few batches costs little.
    """

    def __init__(self) -> None:
        self._ring = array("Q", bytes(8 * FEWEST))

    def __len__(self) -> int:
        """Return how many there is room for."""
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
        for entry in entries:  # of two with one place in the smaller ring there was one only
            self._ring[((entry >> 32) - 1 & LOW) % len(self._ring)] = entry

    def get(self, number: int) -> int | None:
        """Return the checksum of this number; None where it is not kept (any more)."""
        there = self._ring[number % len(self._ring)]
        return there & LOW if there and there >> 32 == number + 1 & LOW else None

    def state(self, floor: int) -> str:
        """Return those that may come again, as text for `restored`.

        Args:
            floor: the lowest number that the node still holds, as it says; -1 where that is not known. What is below
                is not sent again.
        """
        entries = sorted([entry for entry in self._ring if entry and (entry >> 32) - 1 >= floor])
        return base64.b64encode(array("Q", entries).tobytes()).decode()

    @classmethod
    def restored(cls, state: str) -> Checksums:
        """Return what `state` described; ValueError or TypeError where it is no such text."""
        checksums = cls()
        entries = array("Q")
        entries.frombytes(base64.b64decode(state, validate=True)[: 8 * KEPT])
        for entry in entries:
            if entry:
                checksums.note((entry >> 32) - 1 & LOW, entry & LOW)
        return checksums
