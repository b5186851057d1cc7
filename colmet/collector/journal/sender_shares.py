"""Shares of the journal by sender, of records waiting for an output, so that no sender fills it alone."""

from __future__ import annotations

from collections import Counter, deque

from colmet.common.daemon.pacing import Shares

PIECES = 32  # resolution of the release of waiting bytes: a 32nd of the journal each


class SenderShares:
    """Counts of bytes, by sender, of records not written by some output: `size` bytes may wait. For one thread."""

    def __init__(self, size: int) -> None:
        self._shares = Shares(size)
        self._pieces: deque[tuple[int, Counter[str]]] = deque()  # number after the last record of each, bytes
        self._piece: Counter[str] = Counter()
        self._piece_bytes = 0

    def limit(self, size: int) -> None:
        """Set the limit of waiting bytes."""
        self._shares.size = size

    def admits(self, sender: str, size: int) -> bool:
        """Return whether a sender may add this many waiting bytes; "" is any sender."""
        return not self._shares.exceeds(sender, size)

    def add(self, sender: str, size: int, after: int) -> None:
        """Count the bytes of a record of a sender; `after` is the number after the record."""
        self._shares.hold(sender, size)
        self._piece[sender] += size
        self._piece_bytes += size
        if self._piece_bytes >= self._shares.size // PIECES:
            self._pieces.append((after, self._piece))
            self._piece, self._piece_bytes = Counter(), 0

    def passed(self, number: int, end: int) -> None:
        """Release the bytes of records before `number`, written or dropped; `end` is the number after the last one."""
        while self._pieces and self._pieces[0][0] <= number:
            self._release(self._pieces.popleft()[1])
        if self._piece and not self._pieces and number >= end:
            self._release(self._piece)
            self._piece, self._piece_bytes = Counter(), 0

    def _release(self, piece: Counter[str]) -> None:
        for sender, size in piece.items():
            self._shares.hold(sender, -size)
