"""Whether a job uses perf events itself."""

from __future__ import annotations

from functools import partial

from colmet.common.host.host import Host
from colmet.common.host.processes import Question
from colmet.node.jobs.job import Job

_MAX_FILES = 1024  # of a job read in one search


class PerfUse:
    """Search of one job's processes for perf, and for open perf events.

    A job controls the number of its open files, so one thorough search reads `_MAX_FILES` of them, and the next ones
    continue with the remaining processes.

    ::

        complete --search, more files than the bound--> partial --search--> ... --search of the last process--> complete

    Attributes:
        was_bounded: whether the last search stopped at the bound.
    """

    def __init__(self, host: Host) -> None:
        self.was_bounded = False
        self._host = host
        self._searched: set[int] = set()  # processes; empty once all have been
        self._left = 0  # files that may still be read

    @property
    def is_partial(self) -> bool:
        """Whether some processes have not been searched yet."""
        return bool(self._searched)

    def search(self, job: Job, thorough: bool) -> bool:
        """Return whether a process of the job is perf, or, if thorough, has perf events open."""
        pids = job.pids()
        self._left = _MAX_FILES if thorough else 0
        known = self._searched if thorough else set(pids)
        found = self._host.processes.ask(
            [Question(pid, job.party, partial(self._at, pid, pid not in known)) for pid in pids]
        )
        self.was_bounded = thorough and self._left <= 0
        if thorough:
            self._searched = {pid for pid, answer in zip(pids, found) if pid in self._searched or answer is not None}
            if True in found or self._searched.issuperset(pids):
                self._searched = set()
        return True in found

    def _at(self, pid: int, thorough: bool) -> bool | None:
        """Return whether a process is perf, or has perf events open; None if its files were not read."""
        if self._host.read(f"/proc/{pid}/comm").strip() == b"perf":
            return True
        if not thorough or self._left <= 0:
            return None
        folder = f"/proc/{pid}/fd"
        names = self._host.some_names(folder, self._left)
        self._left -= len(names)
        for name in names:
            try:
                if self._host.link(f"{folder}/{name}") == "anon_inode:[perf_event]":
                    return True
            except OSError:
                continue  # closed meanwhile
        return False
