"""The cgroups and CPUs in which the perf events of jobs are counted."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from colmet.common.host.host import Host
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.jobs.mounts import Mounts
from colmet.node.kernel.cpus import parse_cpu_list
from colmet.node.kernel.perfgroups import PerfGroups

_ONLINE = "/sys/devices/system/cpu/online"
_CPU_FILES = (("cpuset", "cpuset.effective_cpus"), ("cpuset", "cpuset.cpus"), ("unified", "cpuset.cpus.effective"))
_MOUNT = "mkdir -p /sys/fs/cgroup/perf_event && mount -t cgroup -o perf_event perf_event /sys/fs/cgroup/perf_event"


class PerfGroup(NamedTuple):
    """The cgroup in which the events of a job are counted."""

    path: str = ""  # its directory; empty for none
    is_ours: bool = False  # whether an agent made it
    why: str = ""  # reason for a missing group, for people; empty if one may exist later


class PerfPlaces:
    """Finder of the cgroups and CPUs of jobs; makes missing groups in the perf_event hierarchy if requested."""

    def __init__(self, host: Host, make_groups: bool) -> None:
        self.groups = PerfGroups(host)
        self._host = host
        self._make_groups = make_groups
        self._mounts = Mounts(host)
        self._found_left = False

    def refresh(self, anyway: bool = False) -> None:
        """Read the mounts again if they have changed, or anyway."""
        self._mounts.refresh(anyway)

    def group(self, job: Job) -> PerfGroup:
        """Return the cgroup of a job; make it if requested."""
        point = self._mounts.v1.get("perf_event")
        directory = job.directory("perf_event" if point is not None else "unified")
        if directory is not None:
            is_ours = point is not None and self._make_groups and self.groups.is_ours(directory)
            return PerfGroup(directory, is_ours)  # made by an agent before
        if job.id != NODE_JOB and not job.pids():
            return PerfGroup()  # it may have one before its first task
        if point is None:
            return PerfGroup(
                why="jobs have no cgroup v2, and the perf_event hierarchy is not mounted, so nothing of them is "
                f"counted: `{_MOUNT}`, and start with --perfhw-make-cgroup"
            )
        place = job.place("perf_event") if self._make_groups and job.id != NODE_JOB else None
        if place is not None and self.groups.make(place, point):
            return PerfGroup(place, is_ours=True)
        return PerfGroup(
            why="jobs have no cgroup in the perf_event hierarchy, so nothing of them is counted; "
            "--perfhw-make-cgroup makes one for each"
        )

    def cpus(self, job: Job) -> frozenset[int]:
        """Return the CPUs that a job may use now; all without a cpuset, none while its cpuset is not set up."""
        online = self.online()
        for controller, name in _CPU_FILES:
            directory = job.directory(controller)
            if directory is None:
                continue
            try:
                return parse_cpu_list(self._host.read(f"{directory}/{name}")) & online
            except (OSError, ValueError):
                continue  # before Linux 3.17 there are no effective ones; v2 may be without cpuset
        return online

    def online(self) -> frozenset[int]:
        """Return the online CPUs."""
        try:
            return parse_cpu_list(self._host.read(_ONLINE))
        except (OSError, ValueError):
            return frozenset(range(os.sysconf("SC_NPROCESSORS_CONF")))

    def find_left(self, jobs: Iterable[Job]) -> None:
        """Find, once, the groups made by an earlier agent for jobs that have ended since."""
        point = self._mounts.v1.get("perf_event")
        if self._make_groups and point is not None and not self._found_left:
            self._found_left = True
            self.groups.find_left(point, [place for job in jobs if (place := job.place("perf_event"))])

    def remove_left(self) -> None:
        """Remove groups made for ended jobs."""
        point = self._mounts.v1.get("perf_event")
        if self._make_groups and point is not None:
            self.groups.tidy(point)

    def close(self) -> None:
        """Release descriptors; can be called twice. Groups stay while their jobs run: the next agent uses them."""
        self._found_left = False
        self._mounts.close()
