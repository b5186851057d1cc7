"""Sets of integers in long runs: the sequence numbers of batches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Ranges:
    """A set of `count` integers, kept as the fewest ranges; a range is its first and last number."""

    __slots__ = ("_firsts", "_lasts", "count")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.count = 0

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges, ascending."""
        return zip(self._firsts, self._lasts)

    def __contains__(self, number: int) -> bool:
        """Return whether the set contains this number."""
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    @property
    def first(self) -> int:
        """Return the lowest number; IndexError if empty."""
        return self._firsts[0]

    @property
    def last(self) -> int:
        """Return the highest number; IndexError if empty."""
        return self._lasts[-1]

    def follow(self, number: int) -> bool:
        """Add the number after the highest one; return False for any other number, which is not added."""
        lasts = self._lasts
        if not lasts or number != lasts[-1] + 1:
            return False
        lasts[-1] = number
        self.count += 1
        return True

    def add(self, first: int, last: int) -> int:
        """Add a range; return how many of its numbers were new."""
        if first == last and self.follow(first):  # by far the most frequent
            return 1
        # overlapping and adjacent ranges are merged
        start = bisect_left(self._lasts, first - 1)
        end = bisect_right(self._firsts, last + 1)
        before = self.count
        if start < end:
            self.count -= sum([b - a + 1 for a, b in zip(self._firsts[start:end], self._lasts[start:end])])
            first, last = min(first, self._firsts[start]), max(last, self._lasts[end - 1])
        self._firsts[start:end] = [first]
        self._lasts[start:end] = [last]
        self.count += last - first + 1
        return self.count - before

    def remove(self, first: int, last: int) -> list[tuple[int, int]]:
        """Remove a range; return the removed numbers, as ranges."""
        start = bisect_left(self._lasts, first)
        end = bisect_right(self._firsts, last)
        if start >= end:
            return []
        low, high = self._firsts[start], self._lasts[end - 1]
        gone = self.within(first, last)
        left = [(a, b) for a, b in ((low, first - 1), (last + 1, high)) if a <= b]
        self._firsts[start:end] = [a for a, _ in left]
        self._lasts[start:end] = [b for _, b in left]
        self.count -= sum([b - a + 1 for a, b in gone])
        return gone

    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the numbers present in a range, as ranges."""
        start = bisect_left(self._lasts, first)
        end = bisect_right(self._firsts, last)
        return [(max(a, first), min(b, last)) for a, b in zip(self._firsts[start:end], self._lasts[start:end])]

    def at_or_after(self, number: int) -> int | None:
        """Return the lowest number not below this one; None without one."""
        at = bisect_left(self._lasts, number)
        return max(number, self._firsts[at]) if at < len(self._firsts) else None
