"""The places where jobs are searched: layouts in cgroup mounts, and roots named by the command line."""

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
from colmet.node.jobs.layouts import LAYOUTS, Claim, JobLayout, job_number
from colmet.node.jobs.mounts import Mounts

if TYPE_CHECKING:
    from colmet.node.jobs.watches import Directories

log = logging.getLogger(__name__)

_MAX_UNMATCHED = 1000

NAMED = "root"  # the name of a place from the command line, not from a layout
ABSENT = "not here"  # the state of a place that does not exist
DEFAULT_PATTERN = r"_(\d+)$"


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
    """One place that holds job directories.

    Attributes:
        name: of its layout.
        help: one line on its layout.
        path: the directory that holds the jobs, for people.
        layout: None for a named root.
        watched: whether an earlier walk has listed it; if so, a new directory was created since.
        exists: whether the last walk found it.
        unmatched: names of directories of no job found there by the last walk, at most 1,000.
    """

    def __init__(self, name: str, text: str, path: str, layout: JobLayout | None) -> None:
        self.name = name
        self.help = text
        self.path = path
        self.layout = layout
        self.watched = False
        self.exists = False
        self.unmatched: tuple[str, ...] = ()

    @abstractmethod
    def claims(self, directories: Directories) -> Iterator[tuple[str, Claim]]:
        """Return each existing job directory, and the job named by it."""


class LayoutPlace(JobPlace):
    """A layout in one hierarchy."""

    def __init__(self, layout: JobLayout, point: str) -> None:
        super().__init__(layout.name, layout.help, point.rstrip("/") + layout.where, layout)
        self._layout = layout
        self._point = point.rstrip("/")

    def claims(self, directories: Directories) -> Iterator[tuple[str, Claim]]:
        """Return each existing job directory, and the job named by it."""
        self.exists = False
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
                self.exists = self.exists or self._layout.root.fullmatch(child) is not None
                yield from self._below(child, directories)

    def _matters(self, path: str) -> bool:
        relative = path[len(self._point) :]
        return self._layout.leads(relative) or self._layout.match(relative) is not None


class NamedRoot(JobPlace):
    """A root named by the command line: each directory in it with a matching name is a job's.

    Args:
        host: the machine.
        mounts: its cgroup mounts.
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

    def claims(self, directories: Directories) -> Iterator[tuple[str, Claim]]:
        """Return each existing job directory, and the job named by it."""
        real = self._host.resolve(self.path)
        if real != self._real:
            # If a link or a mount made it appear, its jobs may be old; if the directory is new, they are not.
            self.watched = self._expected == (real, self._point(real))
            self._real = real
        self._watch_above(directories)
        self.exists = False
        try:
            names = directories.names(real)
        except OSError as err:
            self._absent(err)
            return
        self.exists = True
        if self._waiting:
            self._waiting = False
            log.info("found the jobs' cgroups path=%s", self.path)
        claims = [(name, self._parse(name)) for name in names]
        self.unmatched = tuple([name for name, claim in claims if claim is None][:_MAX_UNMATCHED])
        for name, claim in claims:
            if claim is not None:
                yield f"{real.rstrip('/')}/{name}", claim

    def _absent(self, err: OSError) -> None:
        self._real = ""
        self.unmatched = ()
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
        self._expected = (real.rstrip("/") + self.path[len(path.rstrip("/")) :], self._point(real))

    def _point(self, path: str) -> str:
        mount = self._mounts.of(path)
        return mount.point if mount is not None else ""

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
