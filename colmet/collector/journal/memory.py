"""What the journal has in memory: the latest records, decoded, and the shares of senders."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence

from colmet.collector.backend import JournalRecord
from colmet.common.daemon.pacing import Shares

PIECES = 32  # resolution of the release of waiting bytes: a 32nd of the journal each


class RecentRecords:
    """The latest records, in order and without gaps.

    A position is the number of a record in the whole journal. Not thread-safe: the journal's lock protects it.

    Attributes:
        records: the records from `first` on.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self.records: list[JournalRecord] = []
        # For each record in memory, the bytes and rows of all records so far, its own included: the difference of two
        # sums is the size between two positions. `_before` are the sums ahead of `first`.
        self._bytes: list[int] = []
        self._rows: list[int] = []
        self._bytes_before = self._rows_before = 0

    def extend(self, records: Sequence[JournalRecord], sizes: Sequence[int]) -> None:
        """Append records; `sizes` are their bytes in memory."""
        size = self._bytes[-1] if self._bytes else self._bytes_before
        rows = self._rows[-1] if self._rows else self._rows_before
        for record, more in zip(records, sizes):
            size += more
            rows += record.row_count
            self._bytes.append(size)
            self._rows.append(rows)
        self.records.extend(records)

    def size(self, position: int) -> tuple[int, int]:
        """Return the bytes and rows of the records in memory from a position on."""
        at = position - self.first
        if not self.records or at >= len(self.records):
            return 0, 0
        size, rows = (self._bytes[at - 1], self._rows[at - 1]) if at > 0 else (self._bytes_before, self._rows_before)
        return self._bytes[-1] - size, self._rows[-1] - rows

    def read(self, position: int, most_bytes: int) -> list[JournalRecord]:
        """Return records from a position in memory on, up to `most_bytes`; at least one if there is any."""
        at = position - self.first
        if at >= len(self.records):
            return []
        before = self._bytes[at - 1] if at > 0 else self._bytes_before
        end = bisect_right(self._bytes, before + most_bytes, lo=at)
        return self.records[at : max(end, at + 1)]

    def forget(self, passed: int, most_bytes: int) -> None:
        """Forget records before the position `passed`, and the oldest ones beyond `most_bytes` in memory."""
        if not self.records:
            return
        beyond = bisect_right(self._bytes, self._bytes[-1] - most_bytes)
        count = min(max(passed - self.first, beyond), len(self.records))
        # Removal at the front of a list costs its whole length, so records are removed in large pieces.
        if count and (count >= 256 or count * 4 >= len(self.records)):
            self._bytes_before, self._rows_before = self._bytes[count - 1], self._rows[count - 1]
            del self.records[:count], self._bytes[:count], self._rows[:count]
            self.first += count


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
