"""Checks of the daemon and its machine: modules, configuration, process, unit, other daemons; disks and the clock."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from colmet import __version__
from colmet.commands.doctor.target import COMMAND_S, Target, arguments
from colmet.common.daemon.checks import Finding, Level, Unchecked, fail, good, warn
from colmet.common.daemon.status_checks import MAX_AGE_S, MAX_BEHIND_S, judge, output_remedy
from colmet.common.host.capabilities import has_all
from colmet.common.host.host import Host
from colmet.common.text import document, how_to_install, size


def check_modules(target: Target) -> Finding:
    """Check that the daemon and all that it imports can be loaded."""
    if target.damage:
        missing = re.search(r"No module named '([^']+)'", target.damage)
        remedy = f"`{how_to_install(missing[1])}`" if missing else "reinstall what that names, or colmet"
        return fail(f"{target.program} cannot be loaded: {target.damage}", remedy)
    return good(f"Python {'.'.join(map(str, sys.version_info[:3]))} in {sys.prefix}")


def check_plugins(target: Target) -> Iterator[Finding]:
    """Check the backends of other distributions: which are loaded, and why others are not."""
    if target.damage:
        return
    for problem in target.plugins.problems:
        yield fail(f"plug-in not loaded: {problem}", f"correct or remove its distribution ({document('plugins.md')})")
    for entry in target.plugins.plugins:
        yield good(f"plug-in: {entry}")


def check_configuration(target: Target) -> Finding:
    """Check all that a start checks before it opens anything (--check-config), as the daemon's user."""
    path = target.config
    if target.damage:
        return warn(f"could not be checked: {target.problem}", "see under libraries")
    unreadable = os.path.exists(path) and not os.access(path, os.R_OK, effective_ids=True)
    if target.problem and unreadable and not has_all():
        return warn(f"could not be checked: {target.problem}", f"`sudo colmet doctor --{target.side}`")
    problem, is_certain = (target.problem, True) if target.problem else target.refusal()
    if problem:
        command = f"{target.program} --check-config{f' --config {path}' if path else ''}"
        return (fail if is_certain else warn)(problem, f"correct it; `{command}` checks it again")
    return good(f"{path or 'options, without a file'}: in order{f', as user {target.user.name}' * is_certain}")


def check_running(target: Target) -> Finding:
    """Check that the daemon answers on its control socket."""
    status = target.status
    if status is not None:
        running = f"{target.program} {status['version']}, process {status['pid']}"
        if status["version"] != __version__:
            return warn(f"{running}; installed is {__version__}", f"`systemctl restart {target.program}`")
        return good(running)
    if target.supposed:
        return good("not asked: it has other options than those given here")
    if target.denied:
        return warn(target.unreachable, f"ask as root of the machine: `sudo colmet doctor --{target.side}`")
    if target.unit.get("ActiveState") == "active":
        return fail(
            f"its unit is active, but: {target.unreachable}",
            f"`journalctl -u {target.program} -n 50` shows why; then `systemctl restart {target.program}`",
        )
    start = f"`systemctl start {target.program}`" if target.has_systemd else f"start {target.program}"
    remedy = "see under libraries" if target.damage else start
    return warn(f"does not run, or cannot be asked: {target.unreachable}", remedy)


def check_health(target: Target) -> Sequence[Finding]:
    """Check what `colmet status --check` checks."""
    if target.status is None:  # `check_running` reports why it does not answer
        if target.denied:
            return [warn("could not be checked: this user may not ask it", "see under running")]
        return [good("not asked" if target.supposed else "it does not answer, there is nothing to ask")]
    verdict = judge(target.status, MAX_AGE_S, MAX_BEHIND_S)
    found = "; ".join(verdict.texts)
    if verdict.level == Level.PASS:
        return [good(found)]
    more = f"`colmet status {target.side}` and `journalctl -u {target.program} -n 50` show more"
    remedy = output_remedy(found) or more
    off = [one for one in target.status.get("backends", ()) if one["why"]]
    return [
        Finding(verdict.level, found, remedy),
        *[warn(f"{one['name']} is off: {one['why']}", "see under measured here") for one in off],
    ]


def check_unit(target: Target) -> Finding:
    """Check that systemd starts the unit, and that it has not failed."""
    if not target.has_systemd:
        return good("no systemd runs this machine")
    unit, name = target.unit, target.program
    active, enabled = unit.get("ActiveState", ""), unit.get("UnitFileState", "")
    if unit.get("LoadState") != "loaded":
        text = f"{target.unit_name} is not installed"
        if target.pid:
            return warn(f"{text}: it does not start with the machine", f"install the package {name}")
        return warn(text, f"install the package {name}, or the unit by hand ({document('install.md')})")
    if active == "failed":
        return fail(
            f"{target.unit_name} failed: {unit.get('Result')}",
            f"`journalctl -u {name} -n 50` shows why; then `systemctl restart {name}`",
        )
    if enabled.startswith("enabled") and active not in ("active", "reloading", "activating"):
        return fail(f"{target.unit_name} is enabled, and {active}", f"`systemctl start {name}`")
    if active == "active" and not enabled.startswith("enabled"):
        return warn(f"{target.unit_name} does not start with the machine ({enabled})", f"`systemctl enable {name}`")
    if unit.get("NRestarts", "0") != "0":
        return warn(
            f"{target.unit_name} was restarted {unit['NRestarts']} times after it had failed",
            f"`journalctl -u {name} -p warning` shows why",
        )
    return good(f"{target.unit_name}: {active}, {enabled}")


_PINS = "/sys/fs/bpf/colmet"  # as in colmet.node.jobs.directory_keys, which a collector does not have


def check_leftovers(target: Target) -> Iterator[Finding]:
    """Find start scripts of Colmet 0.6, other daemons of Colmet that run, and what an agent has left in the kernel."""
    scripts: list[str] = []
    with contextlib.suppress(OSError):
        scripts = [name for name in target.host.names("/etc/init.d") if name.startswith("colmet")]
    for script in scripts:
        # systemd ignores a script with its unit's name; without a unit, the script starts the daemon
        if target.unit.get("UnitFileState", "").startswith("enabled") and script != target.program:
            yield warn(
                f"/etc/init.d/{script} starts another Colmet beside {target.unit_name}",
                f"`/etc/init.d/{script} stop; update-rc.d {script} disable`",
            )
    daemons = _daemons(target)
    if target.side == "node" and not (target.pid or daemons or target.unit.get("ActiveState") == "active"):
        with contextlib.suppress(OSError):
            if target.host.names(_PINS):
                yield warn(
                    f"programs in the kernel count jobs without an agent: {_PINS}",
                    f"start colmet-node, which takes them over; `rm -r {_PINS}` ends them",
                )
    if target.pid or len(daemons) > 1 or target.unit.get("ActiveState") == "active":
        # a single one may be the examined daemon, if that cannot be asked
        for pid in daemons:
            text = f"another {target.program} runs: process {pid}"
            if target.side == "collector":
                yield good(text)
            else:
                yield warn(
                    f"{text}. Both measure this machine, and a collector takes the data of one",
                    f"see what it is: `ps -fp {pid}`; if it is left over, one of Colmet 0.6 perhaps, stop it",
                )


def _daemons(target: Target) -> list[int]:
    """Return the other daemons of this side on the machine, without those in containers and without children."""
    host = target.host
    pids = [int(name) for name in host.names("/proc") if name.isdigit()]
    known = {pid for pid in pids if arguments(host, pid, target.side) is not None}
    others = []
    for pid in sorted(known - {target.pid}):
        parent, is_outside = 0, True
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(host.read_start(f"/proc/{pid}/stat", 4096).rpartition(b")")[2].split()[1])
        with contextlib.suppress(OSError):  # unreadable for this user
            is_outside = host.link(f"/proc/{pid}/ns/pid") == host.link("/proc/self/ns/pid")
        if parent not in known and is_outside:
            others.append(pid)
    return others


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

        spool = link.SPOOL_DIRECTORY if options.spool_dir is None else options.spool_dir
        kept = (target.runtime_directory or state.DIRECTORY) if options.state_dir is None else options.state_dir
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
        yield from _check_room(target.host, place)


def _check_room(host: Host, place: WritableDirectory) -> Iterator[Finding]:
    option, path = place[:2]
    kind, point = _mount(host, path)
    system = _system(host, path)
    if system.f_flag & os.ST_RDONLY:
        yield fail(
            f"{option} {path}: the file system {point} is read-only",
            f"`mount -o remount,rw {point}`; `dmesg` shows why it is",
        )
        return
    is_in_memory = place.lasting and kind in ("tmpfs", "ramfs")
    if is_in_memory:
        yield warn(
            f"{option} {path} is in memory ({kind} {point}): a boot empties it",
            f"name a directory on a disk with {option}",
        )
    free, total = system.f_bavail * system.f_frsize, system.f_blocks * system.f_frsize
    wanted, used = min(LOW_BYTES, total // 10), 0
    if place.size:
        with contextlib.suppress(OSError), os.scandir(host.path(path)) as entries:
            for entry in islice(entries, MAX_FILES):
                used += entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0
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
    elif not is_in_memory:
        yield good(f"{option} {path}: {size(free)} free")


def _system(host: Host, path: str) -> os.statvfs_result:
    """Return the file system of a directory, or of its future place."""
    while path != "/" and not host.is_directory(path):
        path = os.path.dirname(path)
    return os.statvfs(host.path(path))


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
