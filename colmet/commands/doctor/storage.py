"""Checks of the machine: room on the disks of a daemon's directories, and the clock."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from colmet.commands.doctor.target import COMMAND_S, Target
from colmet.common.daemon.checks import Finding, Unchecked, fail, good, warn
from colmet.common.host.host import Host
from colmet.common.text import size

LOW_BYTES, LOW_SHARE = 64 << 20, 0.05
LOW_FILES = 100
MAX_FILES = 100_000


class WritableDirectory(NamedTuple):
    """A writable directory of a daemon."""

    option: str
    path: str
    size: int  # maximum use in bytes; 0 if no option limits it
    lasting: bool = True  # whether it must survive a boot


def places(target: Target) -> list[WritableDirectory]:
    """Return the directories named by a daemon's options."""
    options = target.options
    found = []
    if target.side == "node":
        from colmet.node import state
        from colmet.node.delivery import link

        spool, kept = options.spool_dir, options.state_dir
        if spool is None:
            spool = link.SPOOL_DIRECTORY
        if kept is None:
            kept = target.runtime_directory or state.DIRECTORY
        found.append(WritableDirectory("--spool-dir", spool, options.spool_size))
        if kept != target.runtime_directory or target.host.is_directory(kept):  # else systemd makes it at the start
            found.append(WritableDirectory("--state-dir", kept, 0, lasting=False))
    else:
        journal = options.journal_dir
        if journal is None:
            journal = next((place for output in target.backends if (place := output.journal_dir())), "")
        found.append(WritableDirectory("--journal-dir", journal, options.journal_size))
        if options.hdf5_filepath:
            folder = os.path.dirname(os.path.abspath(options.hdf5_filepath))
            found.append(WritableDirectory("--hdf5-filepath", folder, 0))
    return [place._replace(path=os.path.abspath(place.path)) for place in found if place.path]


def check_disk(target: Target) -> Iterator[Finding]:
    """Check each directory: its disk has room for what it may use, and keeps it. `configuration` checks the rights."""
    named = places(target)
    if target.side == "node" and not any(place.option == "--spool-dir" for place in named):
        yield warn(
            "no --spool-dir: what no collector has acknowledged is lost when colmet-node ends",
            'spool-dir = "/var/spool/colmet" in /etc/colmet/node.toml',
        )
    if target.side == "collector" and not any(place.option == "--journal-dir" for place in named):
        yield warn(
            "no --journal-dir: what waits for an output is in memory only, and lost with the collector",
            'journal-dir = "/var/lib/colmet/journal" in /etc/colmet/collector.toml',
        )
    for place in named:
        problems = list(_check_room(target.host, place))
        yield from problems
        if not problems:
            room = _system(target.host, place.path)
            yield good(f"{place.option} {place.path}: {size(room.f_bavail * room.f_frsize)} free")


def _check_room(host: Host, place: WritableDirectory) -> Iterator[Finding]:
    """Check the file system of a directory, or of its future place."""
    option, path = place[:2]
    kind, point = _mount(host, path)
    system = _system(host, path)
    if system.f_flag & os.ST_RDONLY:
        yield fail(
            f"{option} {path}: the file system {point} is read-only",
            f"`mount -o remount,rw {point}`; `dmesg` shows why it is",
        )
        return
    if place.lasting and kind in ("tmpfs", "ramfs"):
        yield warn(
            f"{option} {path} is in memory ({kind} {point}): a boot empties it",
            f"name a directory on a disk with {option}",
        )
    free, total = system.f_bavail * system.f_frsize, system.f_blocks * system.f_frsize
    wanted, used = min(LOW_BYTES, total // 10), _used(host.path(path)) if place.size else 0
    clean = f"make room in {point} (`df -h {point}`, `du -xh {point} | sort -h | tail`)"
    if free < wanted or (system.f_files and system.f_favail < LOW_FILES):
        what = "bytes" if free < wanted else "files (inodes)"
        yield fail(f"{option} {path}: the file system {point} has no {what} left, {size(free)} free", clean)
    elif free + used < place.size:
        yield warn(
            f"{option} {path} may take {size(place.size)}, and {size(free)} are free in {point}",
            f"{clean}, or less with {option.replace('-dir', '-size')} {max(1, (free + used) // 2 >> 20)}M",
        )
    elif place.lasting and free < LOW_SHARE * total:
        yield warn(
            f"{option} {path}: the file system {point} is nearly full, {size(free)} free of {size(total)}", clean
        )


def _system(host: Host, path: str) -> os.statvfs_result:
    """Return the file system of a directory, or of its future place."""
    return os.statvfs(host.path(_nearest(host, path)))


def _nearest(host: Host, path: str) -> str:
    """Return a directory, or the nearest existing one above it."""
    while path != "/" and not host.is_directory(path):
        path = os.path.dirname(path)
    return path


def _mount(host: Host, path: str) -> tuple[str, str]:
    """Return kind and mount point of a directory's file system."""
    real, best = host.resolve(path), ("", "/")
    try:
        lines = host.read("/proc/self/mounts").decode("utf-8", "surrogateescape").split("\n")
    except OSError as err:
        raise Unchecked(f"/proc/self/mounts: {err.strerror}") from err
    for line in lines:
        words = line.split(" ")
        inside = len(words) > 2 and (real == words[1] or real.startswith(words[1].rstrip("/") + "/"))
        if inside and len(words[1]) >= len(best[1]):
            best = words[2], words[1]
    return best


def _used(path: str) -> int:
    """Return the bytes in the files of a directory, without its subdirectories."""
    total = 0
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        for entry in islice(entries, MAX_FILES):
            if entry.is_file(follow_symlinks=False):
                total += entry.stat(follow_symlinks=False).st_size
    return total


def check_clock(target: Target) -> Finding:
    """Check that the clock is synchronised: rows carry the time of the measuring machine."""
    if not target.has_systemd:
        return good("not known without systemd")
    command = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
    if target.host.command(command, COMMAND_S).run().strip() == "yes":
        return good("synchronised")
    return warn(
        "the kernel's clock is not synchronised: times of different machines do not fit together",
        "`timedatectl set-ntp true`, or install chrony and see `chronyc tracking`; the host of a virtual machine may "
        "keep it right in its place",
    )
