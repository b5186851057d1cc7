"""Checks of the daemon: its configuration, its process, its unit, and other daemons of Colmet on the machine."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from colmet import __version__
from colmet.commands.doctor.target import Target, arguments
from colmet.common.errors import ColmetError
from colmet.common.runtime.capabilities import has_all
from colmet.common.runtime.checks import Finding, Level, Unchecked, fail, good, warn
from colmet.common.runtime.documents import document
from colmet.common.runtime.plural import some_of
from colmet.common.runtime.status_checks import MAX_AGE_S, MAX_BEHIND_S, judge, output_remedy
from colmet.node.system.host import Host

MAX_NAMED = 5
_UNIT = re.compile(r"^(?:0:|\d+:name=systemd):/system\.slice/(?:[^/\n]+\.slice/)*([^/\n]+\.service)", re.MULTILINE)
MIN_OPEN_FILES = 4096  # below it the collector warns at its start


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
    if target.deprecated:
        remedy = "replace it: a later major version refuses it"
        return warn(f"{path or 'options, without a file'}: {'; '.join(dict.fromkeys(target.deprecated))}", remedy)
    return good(f"{path or 'options, without a file'}: in order{f', as user {target.user.name}' * is_certain}")


def check_running(target: Target) -> Finding:
    """Check that the daemon answers on its control socket."""
    status = target.status
    if status is not None:
        return good(f"{target.program} {status['version']}, process {status['pid']}")
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


def check_versions(target: Target) -> Sequence[Finding]:
    """Compare the versions of this command, the running daemon and the other side."""
    if target.status is None:
        silent = _silent(target)
        return [silent._replace(found=f"this is {__version__}; {silent.found}")]
    running, found = target.status["version"], []
    if running != __version__:
        what = f"{target.program} runs as {running}, and what is installed here is {__version__}"
        found.append(warn(what, f"`systemctl restart {target.program}`"))
    if target.side == "node":
        others = [(one["uri"], one["version"]) for one in target.collectors]
    else:
        others = [(one["name"], one["version"]) for one in target.senders]
    different = [f"{name} has {version}" for name, version in others if version and version != running]
    if different:
        remedy = f"they understand each other; upgrade the older side when it suits ({document('upgrade.md')})"
        found.append(warn(f"it is {running}, and {some_of(different, MAX_NAMED)}", remedy))
    same = "the other side has the same" if any(version for _, version in others) else "the other side reports none"
    return found or [good(f"{running}; {same}")]


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
    for other in _others(target):
        yield _judge_other(target, other)


class OtherDaemon(NamedTuple):
    """Another daemon of the same side on this machine."""

    pid: int
    unit: str  # of systemd; "" for none
    is_contained: bool  # in a container
    # addresses of a node's collectors, or of a collector's listeners; empty if its options are unreadable
    places: frozenset[str]


def _others(target: Target) -> list[OtherDaemon]:
    host, found = target.host, []
    numbers = [int(name) for name in host.names("/proc") if name.isdigit()]
    lines = {pid: argv for pid in numbers if (argv := arguments(host, pid, target.side)) is not None}
    for pid, argv in sorted(lines.items()):
        unit = _unit_of(host, pid)
        if pid != target.pid and unit != target.unit_name and _parent(host, pid) not in lines:
            found.append(OtherDaemon(pid, unit, _is_contained(host, pid), _places(Target(target.side, host, argv))))
    # a single one may be the examined daemon, if that cannot be asked
    return found if target.pid or len(found) > 1 or target.unit.get("ActiveState") == "active" else []


def _judge_other(target: Target, other: OtherDaemon) -> Finding:
    where = "in a container" if other.is_contained else f"of {other.unit}" if other.unit else "started by hand"
    text = f"another {target.program} runs: process {other.pid}, {where}"
    mine = _places(target)
    if target.side == "collector":
        return good(f"{text}, on {', '.join(other.places)}" if other.places else text)
    if other.is_contained or (mine and other.places and not mine & other.places):
        return good(f"{text}, with another host name or another collector")
    return warn(
        f"{text}. Both measure this machine: the collector refuses the rows of one of them",
        f"if it is left over, one of Colmet 0.6 perhaps: `systemctl disable --now {other.unit}`"
        if other.unit
        else f"see what it is: `ps -fp {other.pid}`; if it is left over, one of Colmet 0.6 perhaps, stop it",
    )


def _places(daemon: Target) -> frozenset[str]:
    """Return the addresses of a node's collectors, or of a collector's listeners."""
    try:
        if daemon.side == "collector":
            return frozenset([daemon.options.zeromq_bind_uri])
        from colmet.node.delivery.link import collectors

        return frozenset(collectors(daemon.options))
    except (ColmetError, Unchecked):
        return frozenset()


def _unit_of(host: Host, pid: int) -> str:
    """Return the systemd service of a process; "" for none, as in a session."""
    try:
        match = _UNIT.search(host.read_start(f"/proc/{pid}/cgroup", 1 << 16).decode("utf-8", "replace"))
    except OSError:
        return ""
    return match[1] if match else ""


def _parent(host: Host, pid: int) -> int:
    try:
        fields = host.read_start(f"/proc/{pid}/stat", 4096).rpartition(b")")[2].split()
        return int(fields[1])
    except (OSError, ValueError, IndexError):
        return 0


def _is_contained(host: Host, pid: int) -> bool:
    """Return whether a process has a PID namespace of its own; False if unreadable."""
    try:
        return host.link(f"/proc/{pid}/ns/pid") != host.link("/proc/self/ns/pid")
    except OSError:
        return False


def check_open_files(target: Target) -> Finding:
    """Check the limit on open files and connections of the running collector."""
    if not target.pid:
        return _silent(target)
    match = re.search(rb"^Max open files +(\d*)", target.host.read(f"/proc/{target.pid}/limits"), re.MULTILINE)
    limit = int(match[1] or 1 << 30) if match else 0
    if limit < MIN_OPEN_FILES:
        return warn(
            f"it may have {limit} files open: fewer nodes than that can connect",
            "LimitNOFILE=65536 in its unit (`systemctl edit colmet-collector`), or `ulimit -n 65536` before it starts",
        )
    return good(f"up to {limit:,}")
