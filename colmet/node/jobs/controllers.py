"""Find the controllers that measure the jobs, and the setting that adds more."""

from __future__ import annotations

import contextlib
import fnmatch
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from colmet.common.host.host import Host
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.jobs.mounts import Mounts
from colmet.node.jobs.places import ABSENT, PlaceState

# Controllers that count something: their names in cgroup v1, and in v2. v2 counts CPU time without any.
WANTED = {"cpu": "cpu", "cpuacct": "cpu", "memory": "memory", "blkio": "io", "pids": "pids"}
_OAR, _SLURM = re.compile(r"/oar(?:/|\.slice|$)"), re.compile(r"/(?:[^/]*_)?slurm")
_OAR_2 = (
    'set `my $Enable_mem_cg = "YES";` in job_resource_manager_cgroups.pl on the server of OAR '
    "(JOB_RESOURCE_MANAGER_FILE in its oar.conf); OAR then limits the memory of a job to the share of its cores, too"
)
_SLURM_MEMORY = "set ConstrainRAMSpace=yes in cgroup.conf, with TaskPlugin=task/cgroup in slurm.conf"
_SLURM_CPU = "set JobAcctGatherType=jobacct_gather/cgroup in slurm.conf"


class JobControllers(NamedTuple):
    """The controllers of a job, or of a new one."""

    directory: str  # of the job; without one, the parent directory of new jobs
    is_job: bool  # whether it is a job's
    version: int  # of the job's cgroups, 1 or 2
    has: tuple[str, ...]  # controllers of the job, by the names of their own version
    lacks: tuple[str, ...]  # missing controllers, by the names of `version`

    @property
    def text(self) -> str:
        """The jobs with these controllers, for people."""
        return f"jobs such as {self.directory}" if self.is_job else f"jobs below {self.directory}"

    def remedy(self, lacks: Sequence[str]) -> str:
        """Return the setting that adds these controllers to jobs."""
        path = self.directory
        settings: list[str] = []
        if self.version == 1 and _OAR.search(path):
            settings = [_OAR_2] if "memory" in lacks else []
        elif _SLURM.search(path):
            settings = [_SLURM_MEMORY] if "memory" in lacks else []
            settings += [_SLURM_CPU] if self.version == 1 and "cpuacct" in lacks else []
        if self.version == 2 and not settings:
            above = posixpath.dirname(path) if self.is_job else path
            by_hand = f"`echo '{' '.join([f'+{name}' for name in lacks])}' > {above}/cgroup.subtree_control`"
            settings = [f"have the resource manager pass them on; by hand: {by_hand}, from the top directory down"]
        return (
            "; ".join(settings) or f"have the resource manager make directories of {' and '.join(lacks)} for its jobs"
        )


def controllers_of_job(host: Host, job: Job, is_job: bool = True) -> JobControllers:
    """Return the controllers of a job, or with `is_job` False of jobs made in its directory."""
    unified = job.directory("unified")
    is_v2 = unified is not None and host.resolve(job.tops[0]) == unified
    inside: set[str] = set()
    if unified is not None:
        with contextlib.suppress(OSError):
            data = host.read(f"{unified.rstrip('/')}/cgroup.{'controllers' if is_job else 'subtree_control'}")
            inside = set(data.decode("ascii", "replace").split())
    has, lacks = [], []
    for name, same in WANTED.items():
        if job.directory(name) is not None:
            has.append(name)
        elif same in inside:
            has.append(same)
        else:
            lacks.append(same if is_v2 else name)
    # only throttling is of cpu: no usage of a job is missing without it
    lacking = [name for name in dict.fromkeys(lacks) if name not in ("cpu", *has)]
    return JobControllers(job.tops[0], is_job, 2 if is_v2 else 1, tuple(dict.fromkeys(has)), tuple(lacking))


def distinct_controllers(host: Host, jobs: Iterable[Job], states: Sequence[PlaceState]) -> list[JobControllers]:
    """Return the controllers of jobs, each different set once; without jobs, those of the places for jobs."""
    found = [controllers_of_job(host, job) for job in jobs if job.id != NODE_JOB and job.tops]
    if not found:
        found = [held for state in states if state.state != ABSENT for held in _of_place(host, state.path)]
    different = {(held.version, held.has, held.lacks): held for held in reversed(found)}
    return list(reversed(different.values()))


def _of_place(host: Host, path: str) -> Iterator[JobControllers]:
    mounts = Mounts(host)
    mounts.refresh(anyway=True)
    mounts.close()
    above, last = posixpath.split(path.rstrip("/"))
    try:
        names = fnmatch.filter(host.names(above), last)
    except OSError:
        return
    for name in sorted(names):
        directory = f"{above.rstrip('/')}/{name}"
        if host.is_directory(directory):
            yield controllers_of_job(host, Job(host, -1, cgroups=[directory], mounts=mounts), is_job=False)
