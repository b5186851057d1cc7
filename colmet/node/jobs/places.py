"""The places where jobs are searched: layouts in cgroup mounts, and roots named by the command line.

`LAYOUTS` has the paths of the cgroups of each resource manager, relative to the mount point of a hierarchy.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from colmet.common.errors import ConfigError
from colmet.common.host.capabilities import suggest
from colmet.common.host.host import Host, is_gone
from colmet.node.jobs.mounts import Mounts

if TYPE_CHECKING:
    from colmet.node.jobs.watches import Directories

log = logging.getLogger(__name__)

_MAX_UNMATCHED = 1000

NAMED = "root"  # the name of a place from the command line, not from a layout
ABSENT = "not here"  # the state of a place that does not exist
DEFAULT_PATTERN = r"_(\d+)$"
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
    """The paths of the job directories of one resource manager."""

    name: str  # short, for logs
    help: str  # one line for people
    version: int  # of the cgroups, 1 or 2
    where: str  # the directory that holds the jobs, for people
    root: re.Pattern[str]  # matches that directory; the layout is in use if one exists
    way: re.Pattern[str]  # matches the directories to search for jobs
    job: re.Pattern[str]  # matches a job's directory; its groups are `job` or `sluid`, and `user`
    controllers: tuple[str, ...] = ()  # v1 hierarchies to search; the first one with a job lists its tasks
    depth: int = 1  # levels from the root to a job's directory; of OAR 3 at most

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
        depth=4,
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
        depth=2,
    ),
    _SLURM_V2,
    _SLURM_V2._replace(
        name="slurm-sluid",
        help="Slurm 26.05 and later, cgroup v2: a text id instead of job_<job id>",
        # "s" and a number in Crockford's base 32: no I, L, O, U. 14 characters in all samples seen.
        job=re.compile(rf"{_SLURM_V2_SCOPE}/(?P<sluid>s[0-9A-HJKMNP-TV-Z]{{9,19}})"),
    ),
)


def compile_patterns(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    """Return the compiled expressions that find a job's id in the name of its cgroup.

    Raises:
        ConfigError: one does not compile, or has no group for the id.
    """
    compiled = []
    for text in patterns:
        try:
            pattern = re.compile(text)
        except re.error as err:
            raise ConfigError(f"--regex_job_id {shlex.quote(text)}: not a regular expression: {err}") from err
        if not pattern.groups:
            raise ConfigError(
                f"--regex_job_id {shlex.quote(text)}: put the job id in parentheses, as in "
                f"{shlex.quote(DEFAULT_PATTERN)}"
            )
        compiled.append(pattern)
    return compiled


class PlaceState(NamedTuple):
    """The state of one place."""

    name: str  # of the layout, "root" for a place named by the command line
    help: str  # one line on the layout
    path: str  # the directory
    state: str  # the result of the search there, for people
    unmatched: tuple[str, ...] = ()  # names of some directories not matched by any expression


class JobPlace(ABC):
    """One place that holds job directories."""

    def __init__(self, name: str, text: str, path: str, layout: JobLayout | None) -> None:
        self.name, self.help = name, text
        self.path = path  # the directory that holds the jobs, for people
        self.layout = layout  # None for a named root
        self.watched = False  # whether an earlier walk has listed it; if so, a new directory was created since
        self.exists = False  # whether the last walk found it
        self.unmatched: tuple[str, ...] = ()  # names of directories of no job found there by the last walk
        self.roots: list[str] = []  # directories below which jobs' directories are made, as of the last walk

    @property
    def depth(self) -> int:
        """Levels from a root to the directories of jobs."""
        return self.layout.depth if self.layout is not None else 1

    @property
    @abstractmethod
    def base(self) -> str:
        """A path in the hierarchy of its jobs; of a named root that does not exist, perhaps in none."""

    @abstractmethod
    def claim(self, path: str) -> Claim | None:
        """Return the job named by a directory's path; None if it is not a job's."""

    @abstractmethod
    def claims(self, directories: Directories) -> Iterator[tuple[str, Claim]]:
        """Return each existing job directory, and the job named by it."""


class LayoutPlace(JobPlace):
    """A layout in one hierarchy."""

    def __init__(self, layout: JobLayout, point: str) -> None:
        super().__init__(layout.name, layout.help, point.rstrip("/") + layout.where, layout)
        self._layout = layout
        self._point = point.rstrip("/")

    @property
    def base(self) -> str:  # noqa: D102 - as in the class above
        return self._point or "/"

    def claim(self, path: str) -> Claim | None:  # noqa: D102 - as in the class above
        return self._layout.match(path[len(self._point) :])

    def claims(self, directories: Directories) -> Iterator[tuple[str, Claim]]:  # noqa: D102 - as in the class above
        self.exists = False
        self.roots = []
        return self._below("", directories)

    def _below(self, relative: str, directories: Directories) -> Iterator[tuple[str, Claim]]:
        try:
            names = directories.names(self._point + relative or "/", self._matters)
        except OSError:
            return  # removed; any other error is counted in `directories`
        for name in names:
            child = f"{relative}/{name}"
            claim = self._layout.match(child)
            if claim is not None:
                yield self._point + child, claim
            elif self._layout.leads(child):
                if self._layout.root.fullmatch(child) is not None:
                    self.exists = True
                    self.roots.append(self._point + child)
                yield from self._below(child, directories)

    def _matters(self, path: str) -> bool:
        relative = path[len(self._point) :]
        return self._layout.leads(relative) or self._layout.match(relative) is not None


class NamedRoot(JobPlace):
    """A root named by the command line: each directory in it with a matching name is a job's.

    Args:
        host, mounts: the machine and its cgroup mounts.
        path: may contain symbolic links; need not exist yet.
        patterns: the first one matching a directory's name gives the job's id in its first group; the text before the
            match is the job's user.
    """

    def __init__(self, host: Host, mounts: Mounts, path: str, patterns: Sequence[re.Pattern[str]]) -> None:
        super().__init__(NAMED, "directories of a root that the command line names", path.rstrip("/") or "/", None)
        self._host = host
        self._mounts = mounts
        self._patterns = patterns
        self._real = ""
        self._expected = ("", "")
        self._waiting = False
        self._ignored: set[str] = set()

    @property
    def base(self) -> str:  # noqa: D102 - as in the class above
        return self._host.resolve(self.path)

    def claim(self, path: str) -> Claim | None:  # noqa: D102 - as in the class above
        return self._parse(path.rpartition("/")[2])

    def claims(self, directories: Directories) -> Iterator[tuple[str, Claim]]:
        """Return each existing job directory, and the job named by it."""
        real = self._host.resolve(self.path)
        if real != self._real:
            # If a link or a mount made it appear, its jobs may be old; if the directory is new, they are not.
            self.watched = self._expected == (real, self._mounts.point_of(real))
            self._real = real
        self._watch_above(directories)
        self.exists = False
        try:
            names = directories.names(real)
        except OSError as err:
            self._absent(err)
            return
        self.exists = True
        self.roots = [real]
        if self._waiting:
            self._waiting = False
            log.info("found the jobs' cgroups path=%s", self.path)
        claims = {name: self._parse(name) for name in names}
        self.unmatched = tuple([name for name, claim in claims.items() if claim is None][:_MAX_UNMATCHED])
        for name, claim in claims.items():
            if claim is not None:
                yield f"{real.rstrip('/')}/{name}", claim

    def _absent(self, err: OSError) -> None:
        self._real = ""
        self.unmatched = ()
        self.roots = []
        if not self._waiting:
            self._waiting = True
            if isinstance(err, PermissionError):
                remedy = suggest("CAP_DAC_READ_SEARCH")
                log.warning("cannot read the jobs' cgroups path=%s error=%s; %s", self.path, err, remedy)
            elif is_gone(err):
                log.info("waiting for the jobs' cgroups path=%s", self.path)

    def _watch_above(self, directories: Directories) -> None:
        """Request events for the removal of the root, or for the creation of the first missing directory above it."""
        path = self.path
        while path != "/":
            path, name = os.path.split(path)
            if self._host.is_directory(path):
                break
        else:
            return
        real = self._host.resolve(path)
        directories.wait_for(real, name)
        self._expected = (real.rstrip("/") + self.path[len(path.rstrip("/")) :], self._mounts.point_of(real))

    def _parse(self, name: str) -> Claim | None:
        for pattern in self._patterns:
            match = pattern.search(name)
            if match is None:
                continue
            text = match[1] or ""
            job = job_number(text)
            if job is not None:
                return Claim(job, name[: match.start()])
            if name not in self._ignored and len(self._ignored) < _MAX_UNMATCHED:
                self._ignored.add(name)
                log.warning("not a job id: cgroup=%s pattern=%s gives=%r", name, pattern.pattern, text)
        return None


def layout_places(mounts: Mounts) -> list[JobPlace]:
    """Return every layout in every possible hierarchy, in order of preference."""
    places: list[JobPlace] = []
    for layout in LAYOUTS:
        points = [mounts.v1[name] for name in layout.controllers if name in mounts.v1]
        if layout.version == 2 and mounts.unified is not None:
            points = [mounts.unified]
        # controllers that are mounted together are one hierarchy
        places += [LayoutPlace(layout, point) for point in dict.fromkeys(points)]
    return places
