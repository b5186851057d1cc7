"""Counts of batches by table and by outcome."""

from __future__ import annotations

import threading
from bisect import bisect_right

MAX_KINDS = 1024  # sets of tables; all further ones count as one, without tables
WHAT = ("taken", "sent", "acknowledged", "dropped")


class DeliveryStats:
    """Counts of the batches of one start of the agent, by table and outcome. For any thread.

    Batches come with ascending numbers; their outcomes come as ranges of numbers. Consecutive batches have the same
    tables most of the time, so millions of them need little memory.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, ...], int] = {(): 0}
        self._counts: dict[str, list[int]] = {what: [0] for what in WHAT}
        # runs of batches with the same tables: number of the first one, and their kind
        self._firsts: list[int] = []
        self._run_kinds: list[int] = []

    def take(self, number: int, tables: tuple[str, ...]) -> None:
        """Count a batch with this number, above all former ones, and with rows of these tables."""
        with self._lock:
            kind = self._kinds.get(tables)
            if kind is None:
                kind = 0
                if len(self._kinds) < MAX_KINDS:
                    kind = self._kinds[tables] = len(self._kinds)
                    for counts in self._counts.values():
                        counts.append(0)
            if not self._run_kinds or self._run_kinds[-1] != kind:
                self._firsts.append(number)
                self._run_kinds.append(kind)
            self._counts["taken"][kind] += 1

    def count(self, what: str, first: int, last: int) -> None:
        """Count an outcome, one of `WHAT`, of the batches with these numbers, all of them counted by `take`."""
        with self._lock:
            counts = self._counts[what]
            at = max(0, bisect_right(self._firsts, first) - 1)
            while first <= last and at < len(self._firsts):
                end = self._firsts[at + 1] - 1 if at + 1 < len(self._firsts) else last
                counts[self._run_kinds[at]] += max(0, min(end, last) - first + 1)
                first = max(first, end + 1)
                at += 1

    def forget(self, before: int) -> None:
        """Forget batches with lower numbers: they have no further outcome."""
        with self._lock:
            done = bisect_right(self._firsts, before) - 1
            if done >= 64:
                del self._firsts[:done], self._run_kinds[:done]

    def totals(self) -> dict[str, int]:
        """Return the numbers of batches taken, sent, acknowledged and dropped."""
        with self._lock:
            return {what: sum(counts) for what, counts in self._counts.items()}

    def by_table(self) -> dict[str, dict[str, int]]:
        """Return the numbers of batches taken, sent, acknowledged and dropped with rows of each table."""
        with self._lock:
            found: dict[str, dict[str, int]] = {}
            for tables, kind in self._kinds.items():
                for table in tables:
                    counts = found.setdefault(table, dict.fromkeys(WHAT, 0))
                    for what in WHAT:
                        counts[what] += self._counts[what][kind]
            return found
