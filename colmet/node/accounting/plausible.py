"""Drop implausible waiting times of tasks.

Since Linux 6.12 the kernel may start the clock of a block I/O wait for a task other than the waiting one
(`__block_task` calls `delayacct_blkio_start`, which writes to `current`, also when it dequeues a task whose sleep was
deferred). When the waiting task wakes up, the kernel adds the time since an earlier wait of it, or since boot.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from colmet.common.schema import MISSING_INT, Schema
from colmet.node.accounting.accumulator import Ints

# A task's age and its waits are of two clocks: one steered by NTP (at most 500 ppm), one that may differ between CPUs
# by a clock tick (at most 10 ms). The age is read after the waits, so a reading that is interrupted between the two
# shows a longer age.
_MARGIN_NS = 10_000_000
_NS_PER_US = 1001


class _Seen(NamedTuple):
    """A job's tasks as of their last reading."""

    keys: Ints  # ascending, shape (n,)
    ages: Ints  # in us, shape (n,)
    counted: Ints  # their waits without the dropped part, shape (n, waits)
    excess: Ints  # the dropped part, shape (n, waits)


class PlausibleWaits:
    """Correction of tasks' counters of waiting time, so that none grows by more than its task can have waited.

    A wait is counted at its end, so it may be longer than the time between two readings: a task's counter is never more
    than its age. Once a counter has exceeded an age, its kernel is known to count wrongly, and each task's counter may
    only grow by the time between two readings.

    Args:
        schema: of the values.
        age: the name of a task's age, in us.
        waits: the names of the counters, in ns.

    Attributes:
        dropped: number of dropped growths.
        largest_ns: the largest dropped growth.
    """

    def __init__(self, schema: Schema, age: str, waits: Sequence[str]) -> None:
        self._age = schema.names.index(age)
        self._waits = np.array([schema.names.index(name) for name in waits], dtype=np.intp)
        self._wrong = np.zeros(len(waits), dtype=bool)  # counters known to be wrong in this kernel
        self._jobs: dict[int, _Seen] = {}
        self.dropped = 0
        self.largest_ns = 0

    @property
    def is_needed(self) -> bool:
        """Whether any counter of this kernel is known to be wrong."""
        return bool(self._wrong.any())

    def update(self, job: int, keys: Ints, values: Ints) -> Ints:
        """Return the corrected values of a job's live tasks, and note them.

        Args:
            job: the job's id.
            keys: its live tasks, all of them, ascending, each once: shape (n,).
            values: their values, shape (n, fields), -1 for a missing one.
        """
        values, counted, excess = self._correct(job, keys, values)
        self._jobs[job] = _Seen(keys, values[:, self._age].copy(), counted, excess)
        return values

    def end(self, job: int, keys: Ints, values: Ints) -> Ints:
        """Return the corrected final values of tasks of a job: keys in any order, otherwise as `update`."""
        return self._correct(job, keys, values)[0]

    def excess(self, job: int, keys: Ints) -> Ints:
        """Return the dropped waits of some of a job's tasks, for `restore`: shape (n, waits)."""
        seen = self._jobs.get(job)
        if seen is None or not len(seen.keys) or not len(keys):
            return np.zeros((len(keys), len(self._waits)), dtype=np.int64)
        place = np.minimum(np.searchsorted(seen.keys, keys), len(seen.keys) - 1)
        found: Ints = np.where((seen.keys[place] == keys)[:, None], seen.excess[place], 0)
        return found

    def restore(self, job: int, keys: Ints, values: Ints, excess: Ints) -> None:
        """Continue with a job's tasks: corrected values, and their dropped waits."""
        self._wrong |= (excess > 0).any(axis=0)
        self._jobs[job] = _Seen(keys, values[:, self._age].copy(), values[:, self._waits], excess)

    def forget(self, job: int) -> None:
        """Forget a job."""
        self._jobs.pop(job, None)

    def keep_only(self, jobs: Collection[int]) -> None:
        """Forget every other job."""
        self._jobs = {job: seen for job, seen in self._jobs.items() if job in jobs}

    def _correct(self, job: int, keys: Ints, values: Ints) -> tuple[Ints, Ints, Ints]:
        """Return values, the waits among them, and the dropped part of these."""
        raw, ages = values[:, self._waits], values[:, self._age, None]
        if not (self._wrong.any() or (raw > ages * _NS_PER_US + _MARGIN_NS).any()):
            return values, raw, np.zeros_like(raw)  # the usual kernel
        before, excess, since = np.zeros_like(raw), np.zeros_like(raw), np.zeros_like(raw)
        seen = self._jobs.get(job)
        if seen is not None and len(seen.keys) and len(keys):
            place = np.minimum(np.searchsorted(seen.keys, keys), len(seen.keys) - 1)
            former, surplus = seen.counted[place], seen.excess[place]
            same = (seen.keys[place] == keys)[:, None] & (ages >= seen.ages[place, None])
            same = same & (former != MISSING_INT) & (raw >= former + surplus)  # else another task, of this number
            before, excess = np.where(same, former, 0), np.where(same, surplus, 0)
            since = np.where(same, seen.ages[place, None], 0)
        growth = raw - excess - before
        wrong = growth > ages * _NS_PER_US + _MARGIN_NS - before
        self._wrong |= wrong.any(axis=0)
        if self._wrong.any():
            wrong |= self._wrong & (growth > (ages - since) * _NS_PER_US + _MARGIN_NS)
            if wrong.any():
                self.dropped += int(wrong.sum())
                self.largest_ns = max(self.largest_ns, int(growth[wrong].max()))
                excess = excess + np.where(wrong, growth, 0)
        if not excess.any():
            return values, raw, excess
        counted = np.where(raw == MISSING_INT, MISSING_INT, raw - excess)
        values = values.copy()
        values[:, self._waits] = counted
        return values, counted, excess
