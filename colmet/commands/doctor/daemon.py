"""Checks of the daemon: its modules, its configuration, its process, its unit, and other daemons on the machine."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence

from colmet import __version__
from colmet.commands.doctor.target import Target, arguments
from colmet.common.daemon.checks import Finding, Level, fail, good, warn
from colmet.common.daemon.status_checks import MAX_AGE_S, MAX_BEHIND_S, judge, output_remedy
from colmet.common.host.capabilities import has_all
from colmet.common.host.host import Host
from colmet.common.text import document, how_to_install


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


def _silent(target: Target) -> Finding:
    """Return the finding for a check that requires a running daemon; `check_running` reports why it does not answer."""
    if target.denied:
        return warn("could not be checked: this user may not ask it", "see under running")
    return good("not asked" if target.supposed else "it does not answer, there is nothing to ask")


def check_health(target: Target) -> Sequence[Finding]:
    """Check what `colmet status --check` checks."""
    if target.status is None:
        return [_silent(target)]
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


def check_leftovers(target: Target) -> Iterator[Finding]:
    """Find start scripts of Colmet 0.6, and other daemons of Colmet that run."""
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
    return [
        pid for pid in sorted(known) if pid != target.pid and _parent(host, pid) not in known and _is_outside(host, pid)
    ]


def _parent(host: Host, pid: int) -> int:
    try:
        fields = host.read_start(f"/proc/{pid}/stat", 4096).rpartition(b")")[2].split()
        return int(fields[1])
    except (OSError, ValueError, IndexError):
        return 0


def _is_outside(host: Host, pid: int) -> bool:
    """Return whether a process has the PID namespace of this one; True if unreadable."""
    try:
        return host.link(f"/proc/{pid}/ns/pid") == host.link("/proc/self/ns/pid")
    except OSError:
        return True
