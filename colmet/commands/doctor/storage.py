"""Checks of a daemon's writable directories: existence, rights, room."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from colmet.commands.doctor.target import Target, User
from colmet.common.runtime.checks import Finding, Unchecked, fail, good, severe, warn
from colmet.common.runtime.quantities import size
from colmet.node.system.host import Host

LOW_BYTES, LOW_SHARE = 64 << 20, 0.05
LOW_FILES = 100
LOCK_FILE = "lock"  # of the journal and of the spool
MAX_FILES = 100_000


class WritableDirectory(NamedTuple):
    """A writable directory of a daemon."""

    option: str
    path: str
    size: int  # maximum use in bytes; 0 if no option limits it
    private: bool = False  # whether other users must not write there
    lasting: bool = True  # whether it must survive a boot
    made: bool = True  # whether the daemon makes it
    parents: bool = False  # whether the daemon makes the directories above it, too


def missing_right(path: str, user: User, wanted: int, top: str = "") -> str:
    """Return the part of an existing path with a mode that blocks a user; "" without one.

    The path requires the rights `wanted` (os.R_OK and the like), the directories above it, up to `top`, os.X_OK.
    """
    is_own = user.uid == os.geteuid()
    if user.uid == 0 and not is_own:
        return ""  # assumed of a daemon of root
    real = os.path.realpath(path)
    above: list[tuple[str, int]] = []
    while os.path.dirname(real) != real and real != top:
        right = os.X_OK if above else wanted
        above.append((real, right & os.W_OK if user.reads_all else right))
        real = os.path.dirname(real)
    for one, right in reversed(above):
        if os.statvfs(one).f_flag & os.ST_RDONLY:
            right &= ~os.W_OK  # another problem
        status = os.stat(one)
        shift = 6 if status.st_uid == user.uid else 3 if status.st_gid in user.groups else 0
        if not os.access(one, right, effective_ids=True) if is_own else (status.st_mode >> shift) & right != right:
            return one
    return ""


def places(target: Target) -> list[WritableDirectory]:
    """Return the directories named by a daemon's options."""
    options = target.options
    found = []
    if target.side == "node":
        from colmet.node.delivery import link
        from colmet.node.system import state

        spool, kept = options.spool_dir, options.state_dir
        if spool is None:
            spool = link.SPOOL_DIRECTORY
        if kept is None:
            kept = state.default_directory(target.runtime_directory)
        found.append(WritableDirectory("--spool-dir", spool, options.spool_size, private=True))
        if kept != target.runtime_directory or target.host.is_directory(kept):  # else systemd makes it at the start
            found.append(WritableDirectory("--state-dir", kept, 0, private=True, lasting=False))
    else:
        journal = options.journal_dir
        if journal is None:
            journal = next((place for output in target.backends if (place := output.journal_dir())), "")
        found.append(WritableDirectory("--journal-dir", journal, options.journal_size, parents=True))
        if options.hdf5_filepath:
            folder = os.path.dirname(os.path.abspath(options.hdf5_filepath))
            found.append(WritableDirectory("--hdf5-filepath", folder, 0, parents=True))
    return [place._replace(path=os.path.abspath(place.path)) for place in found if place.path]


def check_disk(target: Target) -> Iterator[Finding]:
    """Check each directory: it exists or can be made, is the daemon's, and its disk has room for what it may use."""
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
    file = os.path.abspath(target.options.hdf5_filepath or "") if target.side == "collector" else ""
    if file.endswith(".hdf5") and not target.pid and _locked_by(target.host, file):
        yield fail(
            f"--hdf5-filepath {file}: another process writes to it, it does not start",
            "see which: `pgrep -af colmet-collector`; two collectors need files of their own: choose another one with "
            "--hdf5-filepath",
        )
    for place in named:
        holder = 0 if target.pid else _locked_by(target.host, os.path.join(place.path, LOCK_FILE))
        if holder:
            so = "it does not start" if target.side == "collector" else "it keeps batches in memory only"
            yield fail(
                f"{place.option} {place.path}: process {holder} uses it, {so}",
                f"see what it is: `ps -fp {holder}`; two daemons of one machine need directories of their own: choose "
                f"another one with {place.option}",
            )
            continue
        problems = list(_check(target, place))
        yield from problems
        if not problems:
            room = _system(target.host, place.path)
            yield good(f"{place.option} {place.path}: writable, {size(room.f_bavail * room.f_frsize)} free")


def _locked_by(host: Host, path: str) -> int:
    """Return the process with a lock on a file, -1 if the kernel does not report it; 0 for none.

    Locks of flock(2), and of open file descriptions, F_OFD_SETLK of fcntl(2). Source: /proc/locks.
    """
    try:
        status = os.stat(host.path(path))
        lines = host.read("/proc/locks").decode("ascii", "replace").splitlines()
    except OSError:
        return 0
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for words in map(str.split, lines):
        if len(words) > 5 and words[1] in ("FLOCK", "OFDLCK") and words[5] == place:
            return int(words[4])
    return 0


def _check(target: Target, place: WritableDirectory) -> Iterable[Finding]:
    """Return the problems of a directory."""
    host, user, (option, path) = target.host, target.user, place[:2]
    say = fail if target.pid or user.uid != os.geteuid() else severe
    other = f", or choose another place with {option}"
    try:
        is_directory = stat.S_ISDIR(host.mode(path))
    except FileNotFoundError:
        above = _nearest(host, path) if place.parents else os.path.dirname(path)
        if place.made and host.is_directory(above) and not _blocked(host, above, user):
            return _check_room(host, place)
        found = f"{option} {path} does not exist" + (", and its user cannot make it" if place.made else "")
        return [say(found, f"`install -d -o {user.name} -m {'700' if place.private else '755'} {path}`{other}")]
    if not is_directory:
        return [fail(f"{option} {path} is no directory", f"name another one with {option}, or move it away")]
    blocked = _blocked(host, path, user)
    if blocked:
        found = f"{target.program} runs as {user.name}, who cannot write there: {blocked} does not let it"
        remedy = f"choose another place with {option}, or let {user.name} pass {blocked} (`chmod o+x {blocked}`)"
        return [say(f"{option} {path}: {found}", _give(host, path, user, option) if blocked == path else remedy)]
    if place.private and user.uid == os.geteuid():
        remedy = f"`chown {user.name} {path}; chmod 700 {path}`{other}"
        try:
            host.private_directory(path).close()
        except PermissionError as err:
            return [say(f"{option} {path}: {err.strerror}; it is not used", remedy)]
        except OSError as err:
            return [fail(f"{option} {path}: {err.strerror}", f"name the directory itself with {option}")]
    return _check_room(host, place)


def _give(host: Host, path: str, user: User, option: str) -> str:
    """Return a remedy to let a user write in a directory; a foreign one with files of others keeps its owner."""
    with os.scandir(host.path(path)) as entries:
        others = {entry.stat(follow_symlinks=False).st_uid for entry in islice(entries, MAX_FILES)} - {user.uid}
    if not others or "colmet" in os.path.basename(path):  # its files are those of a start by hand
        return f"`chown {'-R ' * bool(others)}{user.name} {path}`"
    own = os.path.join(path, "colmet")
    return f"others have files there: `install -d -o {user.name} {own}`, and choose a place in {own} with {option}"


def _blocked(host: Host, path: str, user: User) -> str:
    """Return the directory with a mode that blocks a user's writes in another; "" for none."""
    blocked = missing_right(host.path(path), user, os.W_OK | os.X_OK, host.root)
    return path if blocked == host.path(path) else blocked[len(host.root) :]


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
