"""Table of the paths of jobs' cgroups made by resource managers, one entry a layout.

All paths are relative to the mount point of a hierarchy, and start with "/". No file is read here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_JOB_ID = (1 << 63) - 1
# v1 hierarchies with job directories of Slurm, best first: those that always hold every task of a job before those that
# may hold only some of them, depending on the site. With ConstrainCores=no there is no cpuset.
_SLURM_V1 = ("cpuset", "freezer", "memory", "devices", "pids", "cpuacct", "cpu", "blkio")
_SLURM_V2_SCOPE = r"/system\.slice/(?:[^/]+_)?slurmstepd\.scope"


class Claim(NamedTuple):
    """The job named by a directory's path."""

    job: int  # the job's id; 0 if the path has a text id only
    user: str = ""  # the job's user, "" if the path does not name it
    sluid: str = ""  # the text id of Slurm 26.05 and later, else ""


class JobLayout(NamedTuple):
    """The paths of the job directories of one resource manager.

    Attributes:
        name: short, for logs.
        help: one line for people.
        version: of the cgroups, 1 or 2.
        where: the directory that holds the jobs, for people.
        root: matches that directory; the layout is in use if one exists.
        way: matches the directories to search for jobs.
        job: matches a job's directory; its groups are `job` or `sluid`, and `user`.
        controllers: v1 hierarchies to search; the first one with a job lists its tasks. Empty for v2.
    """

    name: str
    help: str
    version: int
    where: str
    root: re.Pattern[str]
    way: re.Pattern[str]
    job: re.Pattern[str]
    controllers: tuple[str, ...] = ()

    def match(self, path: str) -> Claim | None:
        """Return the job named by a directory's path; None if it is not a job's own directory."""
        match = self.job.fullmatch(path)
        if match is None:
            return None
        groups = match.groupdict()
        job = job_number(groups["job"]) if "job" in groups else 0
        if job is None:
            return None
        return Claim(job, groups.get("user") or "", groups.get("sluid") or "")

    def leads(self, path: str) -> bool:
        """Return whether jobs may be below the directory."""
        return self.way.fullmatch(path) is not None


def job_number(text: str) -> int | None:
    """Return a job's id from its digits; None for any other text.

    int() alone would accept "+1", "1_0" and digits of other scripts.
    """
    if text.isascii() and text.isdigit() and 0 < int(text[:20]) <= MAX_JOB_ID:
        return int(text)
    return None


_SLURM_V2 = JobLayout(
    name="slurm-v2",
    help="Slurm, cgroup v2: job_<job id> in /system.slice/*slurmstepd.scope",
    version=2,
    where="/system.slice/*slurmstepd.scope",
    root=re.compile(_SLURM_V2_SCOPE),
    way=re.compile(rf"/system\.slice|{_SLURM_V2_SCOPE}"),
    job=re.compile(rf"{_SLURM_V2_SCOPE}/job_(?P<job>[0-9]+)"),
)
# A uid in a path stays that number as text: the look-up of its name may block while a directory server is away, and the
# tick must not.
LAYOUTS = (
    JobLayout(
        name="oar2",
        help="OAR 2, cgroup v1: /oar/<user>_<job id> in the cpuset hierarchy",
        version=1,
        controllers=("cpuset",),
        where="/oar",
        root=re.compile(r"/oar"),
        way=re.compile(r"/oar"),
        job=re.compile(r"/oar/(?P<user>[^/\n]+)_(?P<job>[0-9]+)"),
    ),
    JobLayout(
        name="oar3",
        help="OAR 3, cgroup v2: oar-u<uid>-j<job id>... below /oar.slice",
        version=2,
        where="/oar.slice",
        root=re.compile(r"/oar\.slice"),
        # The shallowest match is the job's directory: all directories inside belong to it, whatever their names.
        way=re.compile(r"/oar\.slice(?:/(?!oar-u[0-9]+-j[0-9])[^/]+){0,3}"),
        job=re.compile(
            r"/oar\.slice(?:/(?!oar-u[0-9]+-j[0-9])[^/]+){0,3}/oar-u(?P<user>[0-9]+)-j(?P<job>[0-9]+)(?:[^0-9/][^/]*)?"
        ),
    ),
    JobLayout(
        name="slurm-v1",
        help="Slurm, cgroup v1: /slurm*/uid_<uid>/job_<job id> in cpuset, freezer or another hierarchy",
        version=1,
        controllers=_SLURM_V1,
        where="/slurm*",
        root=re.compile(r"/slurm(?:_[^/]+)?"),
        way=re.compile(r"/slurm(?:_[^/]+)?(?:/uid_[0-9]+)?"),
        job=re.compile(r"/slurm(?:_[^/]+)?/uid_(?P<user>[0-9]+)/job_(?P<job>[0-9]+)"),
    ),
    _SLURM_V2,
    _SLURM_V2._replace(
        name="slurm-sluid",
        help="Slurm 26.05 and later, cgroup v2: a text id instead of job_<job id>",
        # "s" and a number in Crockford's base 32: no I, L, O, U. 14 characters in all samples seen.
        job=re.compile(rf"{_SLURM_V2_SCOPE}/(?P<sluid>s[0-9A-HJKMNP-TV-Z]{{9,19}})"),
    ),
)
