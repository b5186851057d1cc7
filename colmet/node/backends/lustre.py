"""Reads, writes and metadata operations of the node on its Lustre file systems."""

from __future__ import annotations

import argparse
import fnmatch
import logging
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from colmet.common.config.cli import Options, Rare
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import BackendUnavailable, CommandFailed, ParseError
from colmet.common.host.command import Command
from colmet.common.host.host import Host, is_gone
from colmet.common.schema import Sample
from colmet.common.tables.network import ALWAYS, METADATA, MOUNTS, SOMETIMES
from colmet.common.tables.network import LUSTRE as SCHEMA
from colmet.common.tables.network import LUSTRE_COUNTERS as AGENT_COUNTERS
from colmet.node.backend import InputBackend
from colmet.node.jobs.job import NODE_JOB, Job
from colmet.node.jobs.mounts import unescape
from colmet.node.kernel.textfiles import MAX_TOTAL, Sums

log = logging.getLogger(__name__)

FOLDERS = (
    "/proc/fs/lustre/llite",  # up to Lustre 2.11
    "/sys/kernel/debug/lustre/llite",  # since 2.12
)
DEADLINE_S = 10.0  # of lctl; it usually runs for 10 ms

# read_bytes                25673 samples [bytes] 1 3366225 145121869
_LINE = re.compile(rb"(\w{1,40}) +(\d{1,19}) samples \[\w+\](?: -?\d+ -?\d+ (\d{1,19})(?: \d+)?)?", re.ASCII)
_TIMES = (b"snapshot_time", b"start_time", b"elapsed_time")


_OPERATIONS = {field.name.encode(): field.name for field in [*ALWAYS, *SOMETIMES]}
# column of the sums -> that of a mount
_DATA = {f"lustre_{name}": name for name in ("nb_read", "bytes_read", "nb_write", "bytes_write")}
_METADATA = "lustre_nb_metadata"
_NONE_YET = dict.fromkeys([*_DATA.values(), *[field.name for field in ALWAYS]], 0)


class Mount(NamedTuple):
    """One mount's statistics, as text, and their path; no text if unreadable."""

    name: str
    path: str
    text: bytes | None


def parse_stats(text: bytes) -> dict[str, int]:
    """Return the `stats` of one mount, by column of `lustremounts_default`; ValueError for another form.

    Lustre does not list operations without any call since the mount.
    """
    lines = text.splitlines()
    if not lines or not lines[0].startswith(b"snapshot_time"):
        raise ValueError("no snapshot_time")
    values = dict(_NONE_YET)
    for line in lines:
        if line.startswith(_TIMES):
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise ValueError(f"not a counter: {line[:80]!r}")
        name, samples, total = match.groups()
        if max(int(samples), int(total or 0)) > MAX_TOTAL:
            raise ValueError(f"too large: {line[:80]!r}")
        if name in (b"read_bytes", b"write_bytes"):
            if total is None:
                raise ValueError(f"no sum: {line[:80]!r}")
            way = name[: -len(b"_bytes")].decode()
            values[f"nb_{way}"], values[f"bytes_{way}"] = int(samples), int(total)
        elif name in _OPERATIONS:
            values[_OPERATIONS[name]] = int(samples)
    return values


def split_params(text: bytes) -> list[Mount]:
    """Split the output of ``lctl get_param llite.*.stats``: the name of each mount, and its statistics."""
    _, *parts = re.split(rb"^llite\.([!-~]{1,64})\.stats=\n", text, flags=re.MULTILINE)
    names = [name.decode() for name in parts[::2]]
    return [Mount(name, f"llite.{name}.stats", stats) for name, stats in zip(names, parts[1::2])]


def parse_mount_points(text: bytes) -> dict[str, bytes | None]:
    """Return the mount point of each Lustre file system, by its name; None for several.

    A line of /proc/mounts: ``10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch /mnt/scratch lustre rw,flock 0 0``.
    """
    points: dict[str, bytes | None] = {}
    for line in text.split(b"\n"):
        parts = line.split(b" ")
        if len(parts) < 3 or parts[2] != b"lustre" or b":/" not in parts[0]:
            continue
        name = parts[0].rpartition(b":/")[2].partition(b"/")[0].decode("ascii", "replace")
        points[name] = None if name in points else unescape(parts[1])
    return points


def _none(err: CommandFailed) -> BackendUnavailable:
    return BackendUnavailable(
        f"no Lustre mount in {' or '.join(FOLDERS)}, and {err}; mount it, start as root of the machine, and see that "
        "debugfs is mounted; or start without --enable-lustre"
    )


class LustreBackend(InputBackend):
    """One row of the node, and one for each mount named `prefix`-*: a shell pattern such as ``lus*``, or empty."""

    name = "lustre"
    schema = SCHEMA
    others = (MOUNTS,)
    agent_counters = AGENT_COUNTERS
    blocking = True

    def __init__(self, host: Host, prefix: str = "lustre") -> None:
        self._host = host
        self._pattern = f"{prefix}-*" if prefix else "*"
        self._lctl = host.command(["lctl", "get_param", "llite.*.stats"], DEADLINE_S)
        self._sums = Sums()
        self._failures = 0

    @classmethod
    def add_options(cls, parser: Options) -> None:
        text = "measure reads, writes and metadata operations of Lustre mounts"
        parser.add_argument("--enable-lustre", action="store_true", help=text)
        parser.add_argument(
            "--lustre-prefix",
            metavar="NAME",
            default="lustre",
            help=Rare(
                f"measure only the mounts named NAME-* in {FOLDERS[0]} or {FOLDERS[1]}; NAME may have *, ? and [...]; "
                "'' or '*': all (default: %(default)s)"
            ),
        )
        parser.require("--enable-lustre", "--lustre-")

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> LustreBackend | None:
        return cls(host, options.lustre_prefix) if options.enable_lustre else None

    def open(self) -> None:
        try:
            mounts = self._mounts()
        except CommandFailed as err:
            raise _none(err) from err
        if not any(self._is_wanted(mount) for mount in mounts):
            there = ", ".join([mount.name for mount in mounts[:8]]) or "none"
            raise BackendUnavailable(
                f"no Lustre mount is named {self._pattern}; there are: {there}; give --lustre-prefix NAME for those "
                "named NAME-*, or mount the file system"
            )

    def _is_wanted(self, mount: Mount) -> bool:
        return fnmatch.fnmatchcase(mount.name, self._pattern)

    def _mounts(self) -> list[Mount]:
        """Return all mounts, from the first source with any; CommandFailed if lctl, the last one, fails."""
        for folder in FOLDERS:
            mounts = []
            for name in self._host.sorted_names(folder):
                path = f"{folder}/{name}/stats"
                try:
                    mounts.append(Mount(name, path, self._host.read(path)))
                except OSError as err:
                    if not is_gone(err):  # unmounted meanwhile, or other files than mounts'
                        self._failed(err)
                        mounts.append(Mount(name, path, None))
            if any(mount.text is not None for mount in mounts):
                return mounts
        return split_params(self._lctl.run().encode("utf-8", "replace"))

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        try:
            mounts = [mount for mount in self._mounts() if self._is_wanted(mount)]
        except CommandFailed as err:
            if err.why in ("absent", "status"):
                raise _none(err) from err
            raise
        points = self._mount_points()
        fsnames = [mount.name.rpartition("-")[0] for mount in mounts]
        rows = []
        for mount, fsname in zip(mounts, fsnames):
            values: dict[str, int] = {}
            try:
                values = {} if mount.text is None else parse_stats(mount.text)
            except ValueError as err:
                self._failed(ParseError(mount.path, str(err)))
            metadata = sum([values[name] for name in METADATA]) if values else None
            self._sums.add(mount.name, {**{name: values.get(key) for name, key in _DATA.items()}, _METADATA: metadata})
            labels = {
                "mount": mount.name.encode("ascii", "replace"),
                "fsname": fsname.encode("ascii", "replace"),
                "mount_point": points.get(fsname) if fsnames.count(fsname) == 1 else None,
            }
            rows.append(Sample(NODE_JOB, {**labels, **values}, MOUNTS))
        self._sums.keep_only([mount.name for mount in mounts])
        return [Sample(NODE_JOB, self._sums.totals()), *rows]

    def _mount_points(self) -> dict[str, bytes | None]:
        try:
            return parse_mount_points(self._host.read("/proc/mounts", has_long_records=True))
        except OSError as err:
            self._failed(err)
            return {}

    def _failed(self, err: Exception) -> None:
        self._failures += 1
        if powers_of_ten(self._failures):
            log.error("cannot read a Lustre mount failures=%d: %s", self._failures, err)

    def counters(self) -> dict[str, int]:
        return {"part_failures": self._failures}

    def programs(self) -> Iterable[Command]:
        return [self._lctl]
