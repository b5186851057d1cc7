"""How much of each sender waits in the journal for an output, so that none fills it alone."""

from __future__ import annotations

from collections import Counter, deque

from colmet.common.live.shares import Shares

PIECES = 32  # in which what waits is counted off again: each is a 32nd of the journal


class SenderShares:
    """Counts bytes of records that some output has not written.

    For one thread.

    Args:
        size: bytes that may wait.
    """

    def __init__(self, size: int) -> None:
        self._shares = Shares(size)
        self._pieces: deque[tuple[int, Counter[str]]] = deque()  # number behind the last record of each, bytes
        self._piece: Counter[str] = Counter()
        self._piece_bytes = 0

    def limit(self, size: int) -> None:
        """Let this many bytes wait from now on."""
        self._shares.size = size

    def admits(self, sender: str, size: int) -> bool:
        """Return whether a sender may have so many bytes more wait, "" being any."""
        return not self._shares.exceeds(sender, size)

    def add(self, sender: str, size: int, after: int) -> None:
        """Count a record.

        Args:
            sender: of it.
            size: in bytes.
            after: number behind it.
        """
        self._shares.hold(sender, size)
        self._piece[sender] += size
        self._piece_bytes += size
        if self._piece_bytes >= self._shares.size // PIECES:
            self._pieces.append((after, self._piece))
            self._piece, self._piece_bytes = Counter(), 0

    def passed(self, number: int, end: int) -> None:
        """Count off what comes before this record, as all outputs have written it, or as it was dropped.

        Args:
            number: of the first record that some output has not written.
            end: behind the last record that was added.
        """
        while self._pieces and self._pieces[0][0] <= number:
            self._release(self._pieces.popleft()[1])
        if self._piece and not self._pieces and number >= end:
            self._release(self._piece)
            self._piece, self._piece_bytes = Counter(), 0

    def _release(self, piece: Counter[str]) -> None:
        for sender, size in piece.items():
            self._shares.hold(sender, -size)
