"""The slots of many jobs on hosts at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from colmet.jobs.fold_layout import Ints
from colmet.jobs.fold_nodes import MOST_HOSTS

LARGEST_JOB = (1 << 62) // MOST_HOSTS


class SlotIndex(NamedTuple):
    """The slots of all present runs, for looking up many at a time."""

    keys: Ints  # job and host, sorted
    slots: Ints

    @classmethod
    def of(cls, open_on: Mapping[int, Mapping[int, int]]) -> SlotIndex:
        """Return the index of host -> job -> slot; of jobs with larger numbers than it serves it has none."""
        found = [
            (job * MOST_HOSTS + host, slot)
            for host, there in open_on.items()
            for job, slot in there.items()
            if job < LARGEST_JOB
        ]
        rows = np.array(found, np.int64).reshape(-1, 2)
        rows = rows[np.argsort(rows[:, 0])]
        return cls(rows[:, 0].copy(), rows[:, 1].copy())

    @staticmethod
    def serves(jobs: Ints) -> bool:
        """Return whether the numbers of all jobs are small enough."""
        return bool(jobs.max() < LARGEST_JOB)

    def slots_of(self, hosts: Ints, jobs: Ints) -> Ints:
        """Return the slot of each job and host, -1 for none."""
        wanted = jobs * MOST_HOSTS + hosts
        at = np.searchsorted(self.keys, wanted)
        at[at == len(self.keys)] = 0
        if not len(self.keys):
            return np.full(len(wanted), -1, np.int64)
        return np.where((self.keys[at] == wanted) & (jobs >= 0), self.slots[at], -1)
