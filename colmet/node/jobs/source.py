"""Find the jobs on this node through their cgroups.

inotify reports when a job's directory is created or removed, when a directory inside it is, and when a task is moved
into one. A periodic full walk finds missed changes.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from colmet.common.host.host import Host
from colmet.common.host.processes import Processes
from colmet.common.text import counted
from colmet.node.jobs.finder import Finder, FoundJob
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.jobs.mounts import Mounts
from colmet.node.jobs.places import ABSENT, JobPlace, NamedRoot, PlaceState, layout_places
from colmet.node.jobs.watches import Directories

log = logging.getLogger(__name__)

DEFAULT_ROOT = "/dev/oar_cgroups_links/cpuset/oar/"
OAR2_ROOTS = (DEFAULT_ROOT, "/sys/fs/cgroup/cpuset/oar", "/dev/cpuset/oar")
FULL_WALK_S = 10.0


class JobScan(NamedTuple):
    """The result of one scan."""

    jobs: list[Job]  # all existing ones, by ascending id; the unit first. A job is the same object from scan to scan
    changed: list[Job]  # jobs that began since the last scan, or had tasks moved in or out
    ended: list[Job]  # jobs that existed at the last scan, or began after it, and do not exist any more


class JobSource:
    """Source of the jobs on this machine, including the unit named by the command line.

    Args:
        host: the machine.
        roots: directories with one sub-directory a job. Missing ones are waited for. Without any, every layout of the
            table is searched in every cgroup mount.
        patterns: for the roots: the first one matching a directory's name gives the job's id in its first group; the
            text before the match is the job's user.
        unit: tasks to measure as job 0.
        monotonic: seconds, for the time between full walks.

    Attributes:
        started: number of jobs that began.
        ended: number of jobs that ended.
        fd: readable when a scan would find a change.
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

    def counters(self) -> dict[str, int]:
        """Return the counters of the search and of the reads of processes, by column of `agent_default`."""
        return {
            "jobs_started": self.started,
            "jobs_ended": self.ended,
            "discovery_failures": self._directories.failures,
            "jobs_unmapped": self._finder.sluids.unmapped,
            "job_conflicts": self._finder.conflicts,
            "groups_left_out": self._finder.left_out,
            "watch_overflows": self._directories.overflows,
            "reads_unanswered": self.processes.unanswered,
            "reads_left_out": self.processes.left_out,
            "reads_waiting": self.processes.waiting,
        }

    @property
    def processes(self) -> Processes:
        """The reader of files of the jobs' processes."""
        return self._host.processes

    def scan(self) -> JobScan:
        """Return the present jobs, and the changes since the last scan.

        The tasks of all jobs are read again on demand. Without events, no file is opened.
        """
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
            self._host.processes.close()
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
            self._jobs[job_id].is_watched = directories.are_watched(cgroups)
        for job_id in [job_id for job_id in self._jobs if job_id not in found]:
            self._end(job_id)
        if self._unit is not None:
            cgroups = self._finder.groups(self._unit_tops, NODE_JOB) or list(self._unit_tops)
            for path in cgroups:
                owners.setdefault(path, []).append(NODE_JOB)
            self._unit.is_watched = not self._unit.has_named and directories.are_watched(cgroups)
            if self._unit.regroup(self._unit.tops, cgroups):
                self._changed.add(NODE_JOB)
        self._found = found
        self._owners = owners
        for place in self._places:
            place.watched = True
        self._finder.forget({*found, NODE_JOB})
        directories.end()

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
