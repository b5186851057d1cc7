"""The latest records of the journal, decoded and in memory: outputs that keep up read no file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from colmet.collector.backend import JournalRecord


class RecentRecords:
    """The latest records, in order and without gaps.

    A position is the number of a record in the whole journal. Not thread-safe: the journal's lock protects it.

    Args:
        first: position of the first record to come.

    Attributes:
        first: position of the oldest record in memory.
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
