"""Find the jobs on this node through their cgroups.

inotify reports when a job's directory is created or removed, when a directory inside it is, and when a task is moved
into one. A periodic full walk finds missed changes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import BackendUnavailable
from colmet.common.host.host import Host, is_gone
from colmet.common.text import counted
from colmet.node.jobs.directory_keys import (
    HIERARCHIES,
    MAX_HIERARCHIES,
    MAX_NAME_BYTES,
    DirectoryName,
    RootDirectory,
    directory_key,
    inode_of,
)
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.jobs.mounts import Mounts
from colmet.node.jobs.places import ABSENT, Claim, JobPlace, NamedRoot, PlaceState, layout_places
from colmet.node.jobs.sluids import Sluids
from colmet.node.jobs.watches import Directories

log = logging.getLogger(__name__)

DEFAULT_ROOT = "/dev/oar_cgroups_links/cpuset/oar/"
OAR2_ROOTS = (DEFAULT_ROOT, "/sys/fs/cgroup/cpuset/oar", "/dev/cpuset/oar")
FULL_WALK_S = 10.0
MAX_DEPTH = 8  # of directories inside a job's
MAX_GROUPS = 1024  # directories of one job
_NOBODY = -1  # a directory of an unknown job
_MOST_CONFLICTS_KEPT = 1000
_MOST_ROOTS_KEPT = 256


@dataclass
class FoundJob:
    """A job found by one walk."""

    place: JobPlace
    user: str
    watched: bool  # whether it began while the place was watched
    tops: list[str] = field(default_factory=list)  # its directories in the hierarchy that lists its tasks
    elsewhere: list[str] = field(default_factory=list)  # its directories in other hierarchies


class JobRoot(NamedTuple):
    """A root of jobs' directories, as the kernel's programs are to know it."""

    places: list[JobPlace]
    path: str
    directory: RootDirectory


class Finder:
    """Search for jobs in one walk over all places.

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
            job = found[job_id] = FoundJob(place, claim.user, watched)
        if place is job.place or place.layout is None:
            if path not in job.tops:  # two roots may be one, reached by two links
                job.tops.append(path)
        elif place.layout is job.place.layout:
            job.elsewhere.append(path)
        elif path not in self._conflicting and len(self._conflicting) < _MOST_CONFLICTS_KEPT:
            self._conflicting.add(path)
            self.conflicts += 1
            if powers_of_ten(self.conflicts):
                log.warning(
                    "two layouts have a job of one id, the first counts job=%d layout=%s left_out=%s conflicts=%d",
                    *(job_id, job.place.name, path, self.conflicts),
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
        noted = self._too_many.pop(job_id, 0)
        if beyond and job_id != _NOBODY:
            self._too_many[job_id] = beyond
            before, self.left_out = self.left_out, self.left_out + max(0, beyond - noted)
            if powers_of_ten(self.left_out, before):
                log.warning(
                    "too many or too deep directories in a job's cgroup, the others are not measured job=%d "
                    "directories=%d",
                    *(job_id, self.left_out),
                )
        return groups

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


class JobScan(NamedTuple):
    """The result of one scan."""

    jobs: list[Job]  # all existing ones, by ascending id; the unit first. A job is the same object from scan to scan
    changed: list[Job]  # jobs that began since the last scan, or had tasks moved in or out
    ended: list[Job]  # jobs that existed at the last scan, or began after it, and do not exist any more


class JobSource:
    """Source of the jobs on this machine, including the unit named by the command line.

    Args:
        roots: directories with one sub-directory a job. Missing ones are waited for. Without any, every layout of the
            table is searched in every cgroup mount.
        patterns: for the roots, see `NamedRoot`.
        unit: tasks to measure as job 0.

    Attributes:
        processes: reads files of the jobs' processes.
        started, ended: numbers of jobs that began and ended.
        fd: readable when a scan would find a change.
        roots: where jobs' directories are made, by key; another object once that has changed.
    """

    def __init__(
        self,
        host: Host,
        roots: Sequence[str],
        patterns: Sequence[re.Pattern[str]],
        unit: Job | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._unit = unit
        self._unit_tops = tuple(host.resolve(path) for path in unit.tops) if unit is not None else ()
        self._monotonic = monotonic
        self._mounts = Mounts(host)
        if unit is not None:
            unit.use(self._mounts)
        self._named = [NamedRoot(host, self._mounts, root, patterns) for root in roots]
        self._places: list[JobPlace] = list(self._named)
        self._directories = Directories(host)
        self._finder = Finder(host, self._directories)
        self._jobs: dict[int, Job] = {}
        self._keys: dict[int, set[tuple[str, int]]] = {}
        self._found: dict[int, FoundJob] = {}
        self._owners: dict[str, list[int]] = {}
        self._ended_jobs: list[Job] = []
        self._changed: set[int] = set()
        self._walk_at = monotonic()
        self._overflows = 0
        self.started = 0
        self.ended = 0
        self.fd = self._directories.fd
        self.processes = host.processes
        self.roots: dict[int, JobRoot] = {}
        self._former_roots: dict[int, JobRoot] = {}  # some may be removed with their last job

    def hierarchies(self) -> list[str]:
        """Return the hierarchies where jobs are or may be, by names of `HIERARCHIES`; those with jobs first.

        Raises:
            BackendUnavailable: the kernel's programs cannot follow all of the jobs; the text says why.
        """
        self._refresh()
        if self._unit is not None:
            raise BackendUnavailable("tasks named by the command line are not counted in the kernel")
        exists = {place: self._mounts.hierarchy_of(place.base) for place in self._places if place.exists}
        without = [place.path for place, name in exists.items() if not name]
        if without:
            raise BackendUnavailable(
                f"{without[0]} is in no hierarchy of cgroups that the kernel's programs can follow"
            )
        mounted = {"unified", *self._mounts.v1} if self._mounts.unified is not None else {*self._mounts.v1}
        names = {name for name in ("cpuset", "freezer", "memory", "unified") if name in mounted}
        # The same hierarchies at each start, if possible: pinned programs follow those of their load.
        by_layout: dict[str, list[str]] = {}
        for place, name in exists.items():
            by_layout.setdefault(place.name, []).append(name)
        needed = [own[0] for own in by_layout.values() if not names.intersection(own)]
        needed += [name for place in self._named if (name := self._mounts.hierarchy_of(place.base))]
        chosen = [*dict.fromkeys([*needed, *sorted(names, key=HIERARCHIES.__getitem__)])][:MAX_HIERARCHIES]
        return sorted(chosen, key=HIERARCHIES.__getitem__)  # of a layout, the best first

    def claim(self, root: int, parent_name: str, name: str) -> tuple[str, Claim] | None:
        """Return path and job of a directory that the kernel reports, by its root and names; None if no job's."""
        known = self._former_roots.get(root)
        if known is None or len(os.fsencode(name)) >= MAX_NAME_BYTES:
            return None
        names = [parent_name, name] if known.directory.depth == 2 else [name]
        path = "/".join([known.path.rstrip("/"), *names])
        claims = (place.claim(path) for place in known.places)
        return next(((path, claim) for claim in claims if claim is not None), None)

    def end_unseen(self, path: str, claim: Claim, keys: dict[int, DirectoryName]) -> None:
        """End a job that came and went between two scans: its directory, and the keys of all, that one's first."""
        job = Job(self._host, claim.job, claim.user, (path,), mounts=self._mounts)
        job.keys = keys
        job.witnessed = True
        job.identify(inode_of(next(iter(keys))))
        job.close()
        self._ended_jobs.append(job)
        self.started += 1
        self.ended += 1
        log.info("job ended before it was seen job=%d user=%s cgroup=%s", job.id, job.user, path)

    def miss_unseen(self) -> None:
        """Count a job that came and went, and whose number was in the environment of its processes alone."""
        self._finder.sluids.unmapped += 1

    def counters(self) -> dict[str, int]:
        """Return the counters of the search and of the reads of processes, by column of `agent_default`."""
        return {
            "jobs_started": self.started,
            "jobs_ended": self.ended,
            "discovery_failures": self._directories.failures + self._mounts.failures,
            "jobs_unmapped": self._finder.sluids.unmapped,
            "job_conflicts": self._finder.conflicts,
            "groups_left_out": self._finder.left_out,
            "watch_overflows": self._directories.overflows,
            "reads_unanswered": self.processes.unanswered,
            "reads_left_out": self.processes.left_out,
            "reads_waiting": self.processes.waiting,
        }

    def scan(self) -> JobScan:
        """Return the present jobs, and the changes since the last scan. Without events, no file is opened."""
        self._refresh()
        jobs = [self._jobs[job_id] for job_id in sorted(self._jobs)]
        if self._unit is not None:
            jobs.insert(0, self._unit)
        for job in jobs:
            job.forget_tasks()
        changed_ids, self._changed = self._changed, set()
        ended, self._ended_jobs = self._ended_jobs, []
        return JobScan(jobs, [job for job in jobs if job.id in changed_ids], ended)

    def describe(self) -> list[PlaceState]:
        """Return every place where jobs are searched, and its present state."""
        self._refresh()
        states = []
        for place in self._places:
            count = sum(found.place is place for found in self._found.values())
            state = f"found, {counted(count, 'jobs')}" if count or place.exists else ABSENT
            sluid = place.layout is not None and "sluid" in place.layout.job.groupindex
            if sluid and self._finder.sluids.waiting:
                state += f", {len(self._finder.sluids.waiting)} whose job id is unknown"
            if place.unmatched:
                state += (
                    f"; {counted(len(place.unmatched), 'directories')} without a match of --regex_job_id, such as "
                    f"{place.unmatched[0]}"
                )
            states.append(PlaceState(place.name, place.help, place.path, state, place.unmatched))
        if not states:
            states.append(PlaceState("none", "every layout", "/proc/self/mounts", "no cgroup is mounted"))
        return states

    def close(self) -> None:
        """Release watches and descriptors; can be called twice."""
        if self.fd >= 0:
            self._directories.close()
            self._mounts.close()
            self.processes.close()
            for job in self._jobs.values():
                job.reopen()
            if self._unit is not None:
                self._unit.reopen()
            self.fd = -1

    def _refresh(self) -> None:
        """Read pending events, and walk over the directories again if one of them requires it."""
        directories = self._directories
        directories.drain()
        now = self._monotonic()
        due = now >= self._walk_at
        if self._mounts.refresh(anyway=due):
            directories.clear()
            for place in self._places:
                place.watched = False
            if not self._named:
                self._places = layout_places(self._mounts)
        if due:
            directories.expire()
            self._walk_at = now + FULL_WALK_S
        overflow = directories.overflows != self._overflows
        self._overflows = directories.overflows
        known = self._note_changes()
        # a task moved into a directory of an unknown job may name that job
        if directories.stale or not known:
            self._walk(now)
            self._note_changes()  # in directories newly watched by the walk
        if overflow:
            self._changed.update(self._jobs)
            self._changed.add(NODE_JOB)

    def _note_changes(self) -> bool:
        """Note the jobs with changed lists of tasks; return whether all changed directories are jobs'."""
        changed, self._directories.changed = self._directories.changed, set()
        for path in changed:
            self._changed.update(self._owners.get(path, ()))
        return changed.issubset(self._owners)

    def _walk(self, now: float) -> None:
        directories = self._directories
        directories.begin()
        found = self._finder.find(self._places, now)
        self._find_roots()
        owners: dict[str, list[int]] = {}
        for job_id, job in list(found.items()):
            keys = self._finder.keys(job)
            cgroups = self._finder.groups(job.tops, job_id)
            if not (keys and cgroups):
                del found[job_id]  # gone since it was listed
                continue
            for path in cgroups:
                owners.setdefault(path, []).append(job_id)
            self._update(job_id, job, keys, cgroups)
        for job_id in [job_id for job_id in self._jobs if job_id not in found]:
            self._end(job_id)
        if self._unit is not None:
            cgroups = self._finder.groups(self._unit_tops, NODE_JOB) or list(self._unit_tops)
            for path in cgroups:
                owners.setdefault(path, []).append(NODE_JOB)
            if self._unit.regroup(self._unit.tops, cgroups):
                self._changed.add(NODE_JOB)
        self._found = found
        self._owners = owners
        for place in self._places:
            place.watched = True
        self._finder.forget({*found, NODE_JOB})
        directories.end()

    def _find_roots(self) -> None:
        roots: dict[int, JobRoot] = {}
        for place in self._places:
            for path in place.roots:
                hierarchy = self._mounts.hierarchy_of(path)
                with contextlib.suppress(OSError):
                    key = directory_key(hierarchy, self._host.inode(path)) if hierarchy else 0
                    is_oar3 = place.layout is not None and place.layout.name == "oar3"
                    if key in roots:
                        roots[key].places.append(place)
                    elif key:
                        roots[key] = JobRoot([place], path, RootDirectory(key, place.depth, is_oar3))
        if roots != self.roots:
            self.roots = roots
            newest = list({**self._former_roots, **roots}.items())[-_MOST_ROOTS_KEPT:]
            self._former_roots = dict(newest)

    def _update(self, job_id: int, found: FoundJob, keys: set[tuple[str, int]], cgroups: list[str]) -> None:
        known = self._jobs.get(job_id)
        if known is not None:
            before = {key for key in self._keys[job_id] if key[0] not in self._directories.removed}
            if not before & keys:
                self._end(job_id)
                known = None
        self._keys[job_id] = keys
        if known is None:
            self._begin(job_id, found, cgroups)
        elif known.regroup(found.tops, cgroups):
            self._changed.add(job_id)
        hierarchies = {path: self._mounts.hierarchy_of(path) for path, _ in keys}
        self._jobs[job_id].keys = {
            directory_key(hierarchies[path], inode): self._name_of(path) for path, inode in keys if hierarchies[path]
        }

    def _name_of(self, path: str) -> DirectoryName:
        *_, parent, name = path.split("/")
        roots = (key for key, root in self.roots.items() if path.startswith(root.path.rstrip("/") + "/"))
        return DirectoryName(next(roots, 0), parent, name)

    def _begin(self, job_id: int, found: FoundJob, cgroups: list[str]) -> None:
        job = Job(self._host, job_id, found.user, found.tops, mounts=self._mounts)
        job.witnessed = found.watched
        job.read_identity()  # now, while its directory exists
        job.regroup(found.tops, cgroups)
        self._jobs[job_id] = job
        self._changed.add(job_id)
        self.started += 1
        log.info("job started job=%d user=%s layout=%s cgroup=%s", job_id, found.user, found.place.name, found.tops[0])

    def _end(self, job_id: int) -> None:
        job = self._jobs.pop(job_id)
        del self._keys[job_id]
        job.close()
        self._ended_jobs.append(job)
        self._changed.discard(job_id)
        self.ended += 1
        log.info("job ended job=%d", job_id)
