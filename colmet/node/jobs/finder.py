"""Find the jobs on the machine in one walk over all places."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.host.host import Host, is_gone
from colmet.node.jobs.layouts import Claim
from colmet.node.jobs.places import JobPlace
from colmet.node.jobs.sluids import Sluids

if TYPE_CHECKING:
    from colmet.node.jobs.watches import Directories

log = logging.getLogger(__name__)

MAX_DEPTH = 8  # of directories inside a job's
MAX_GROUPS = 1024  # directories of one job
_NOBODY = -1  # a directory of an unknown job
_MOST_CONFLICTS_KEPT = 1000


class FoundJob:
    """A job found by one walk.

    Attributes:
        place: its place.
        user: the job's user.
        watched: whether it began while the place was watched.
        tops: its directories in the hierarchy that lists its tasks.
        elsewhere: its directories in other hierarchies.
    """

    def __init__(self, place: JobPlace, claim: Claim, watched: bool) -> None:
        self.place = place
        self.user = claim.user
        self.watched = watched
        self.tops: list[str] = []
        self.elsewhere: list[str] = []


class Finder:
    """Search for jobs in one walk over all places.

    Args:
        host: the machine.
        directories: listings of it.

    Attributes:
        sluids: the jobs of directories with a text id.
        left_out: number of directories of jobs beyond the bounds of depth and number.
        conflicts: number of directories skipped because another layout has a job of the same id.
    """

    def __init__(self, host: Host, directories: Directories) -> None:
        self._host = host
        self._directories = directories
        self.sluids = Sluids(host)
        self._watched_before: dict[str, bool] = {}
        self._too_many: dict[int, int] = {}
        self._conflicting: set[str] = set()
        self.left_out = 0
        self.conflicts = 0

    def find(self, places: Sequence[JobPlace], now: float) -> dict[int, FoundJob]:
        """Return the jobs at all places, by id."""
        found: dict[int, FoundJob] = {}
        texts: dict[str, bool] = {}
        guesses: list[tuple[JobPlace, str, Claim]] = []
        for place in places:
            for path, claim in place.claims(self._directories):
                if not claim.sluid:
                    self._add(found, claim.job, place, path, claim, place.watched)
                    continue
                if path in self._directories.removed:
                    self.sluids.forget(path)
                    self._watched_before.pop(path, None)
                texts[path] = self._watched_before.get(path, place.watched)
                job_id = self.sluids.sure(path, functools.partial(self.groups, [path], _NOBODY))
                if job_id:
                    self._add(found, job_id, place, path, claim, texts[path])
                else:
                    guesses.append((place, path, claim))
        # a user-writable id yields to one that is not, and a new directory to an old one
        guesses.sort(key=lambda guess: guess[1] not in self.sluids.guessed)
        for place, path, claim in guesses:
            job_id = self.sluids.guess(path, self.groups([path], _NOBODY), found, now)
            if job_id:
                self._add(found, job_id, place, path, claim, texts[path])
        self._watched_before = texts
        self.sluids.keep(texts)
        return found

    def _add(
        self, found: dict[int, FoundJob], job_id: int, place: JobPlace, path: str, claim: Claim, watched: bool
    ) -> None:
        job = found.get(job_id)
        if job is None:
            job = found[job_id] = FoundJob(place, claim, watched)
        if place is job.place or place.layout is None:
            if path not in job.tops:  # two roots may be one, reached by two links
                job.tops.append(path)
        elif place.layout is job.place.layout:
            job.elsewhere.append(path)
        else:
            self._conflict(job_id, job, path)

    def _conflict(self, job_id: int, job: FoundJob, path: str) -> None:
        if path not in self._conflicting and len(self._conflicting) < _MOST_CONFLICTS_KEPT:
            self._conflicting.add(path)
            self.conflicts += 1
            if powers_of_ten(self.conflicts):
                log.warning(
                    "two layouts have a job of one id, the first counts job=%d layout=%s left_out=%s conflicts=%d",
                    job_id,
                    job.place.name,
                    path,
                    self.conflicts,
                )

    def groups(self, tops: Sequence[str], job_id: int) -> list[str]:
        """Return directories of a job and all existing ones inside, outer ones first."""
        groups: list[str] = []
        beyond = 0
        todo = [(top, 0) for top in reversed(tops)]
        while todo:
            path, depth = todo.pop()
            if len(groups) >= MAX_GROUPS or depth > MAX_DEPTH:
                beyond += 1
                continue
            try:
                names = self._directories.names(path, None, tasks=True)
            except OSError as err:
                if is_gone(err):
                    continue
                names = ()  # counted there; its tasks may be readable
            groups.append(path)
            todo += [(f"{path.rstrip('/')}/{name}", depth + 1) for name in reversed(names)]
        if job_id != _NOBODY and beyond != self._too_many.get(job_id, 0):
            self._count_left_out(job_id, beyond)
        return groups

    def _count_left_out(self, job_id: int, beyond: int) -> None:
        new = beyond - self._too_many.pop(job_id, 0)
        if beyond:
            self._too_many[job_id] = beyond
        for _ in range(max(0, new)):
            self.left_out += 1
            if powers_of_ten(self.left_out):
                log.warning(
                    "too many or too deep directories in a job's cgroup, the others are not measured job=%d "
                    "directories=%d",
                    job_id,
                    self.left_out,
                )

    def keys(self, found: FoundJob) -> set[tuple[str, int]]:
        """Return path and inode of each directory of a job: another directory at a path has another inode."""
        keys = set()
        for path in found.tops + found.elsewhere:
            with contextlib.suppress(OSError):
                keys.add((path, self._host.inode(path)))
        return keys

    def forget(self, jobs: Container[int]) -> None:
        """Forget every other job."""
        self._too_many = {job_id: count for job_id, count in self._too_many.items() if job_id in jobs}
