"""Checks of the daemon itself: its configuration, whether it runs and how, and what else of Colmet is here."""

from __future__ import annotations

import os
from collections.abc import Iterator

from colmet import __version__
from colmet.common.errors import ConfigError
from colmet.tools.doctor.findings import Finding, Level, fail, good, warn
from colmet.tools.doctor.patient import Patient, arguments

MAX_AGE_S, MAX_BEHIND_S = 60.0, 300.0  # the defaults of `colmet status --check`
MAX_TOLD = 5
MIN_OPEN_FILES = 4096  # below it the collector warns at its start


def check_configuration(patient: Patient) -> Iterator[Finding]:
    """The daemon's own parser, and what its backends and outputs say of their options."""
    path = patient.config
    if patient.damage:
        yield warn(f"could not be checked: {patient.problem}", "see under libraries")
        return
    if patient.problem and os.geteuid() != 0 and os.path.exists(path) and not os.access(path, os.R_OK):
        yield warn(f"could not be checked: {patient.problem}", f"`sudo colmet doctor --{patient.side}`")
        return
    if patient.problem:
        command = f"{patient.program} --check-config{f' --config {path}' if path else ''}"
        yield fail(patient.problem, f"correct it; `{command}` checks it again")
        return
    options = patient.options
    try:
        if patient.side == "node":
            from colmet.node.main import find_jobs

            find_jobs(options, patient.host).close()
        if not patient.backends and patient.side == "collector":
            yield fail(
                "no output is chosen, it does not start",
                'hdf5-filepath = "/var/lib/colmet/colmet" in /etc/colmet/collector.toml, or elastic-host',
            )
            return
    except ConfigError as err:
        yield fail(str(err), f"correct it, then `systemctl restart {patient.program}`")
        return
    yield good(f"{path} can be used" if path else "no file; the options can be used")


def check_running(patient: Patient) -> Iterator[Finding]:
    """Whether it answers on its control socket."""
    status = patient.status
    if status is not None:
        yield good(f"{patient.program} {status['version']}, process {status['pid']}")
    elif patient.supposed:
        yield good("not asked: it has other options than those given here")
    elif patient.denied:
        yield warn(patient.unreachable, f"ask as root: `sudo colmet doctor --{patient.side}`")
    elif patient.unit.get("ActiveState") == "active":
        yield fail(
            f"its unit is active, but: {patient.unreachable}",
            f"`journalctl -u {patient.program} -n 50` tells why; then `systemctl restart {patient.program}`",
        )
    else:
        remedy = "see under libraries" if patient.damage else f"`systemctl start {patient.program}`"
        yield warn(f"does not run, or cannot be asked: {patient.unreachable}", remedy)


def _silent(patient: Patient) -> Finding:
    """Of what only a daemon that answers tells; why it does not is told by `check_running`."""
    if patient.denied:
        return warn("could not be checked: this user may not ask it", "see under running")
    return good("not asked" if patient.supposed else "it does not answer, there is nothing to ask")


def check_health(patient: Patient) -> Iterator[Finding]:
    """What `colmet status --check` says of it."""
    if patient.status is None:
        yield _silent(patient)
        return
    from colmet.tools.status import CRITICAL, OK, judge

    verdict = judge(patient.status, MAX_AGE_S, MAX_BEHIND_S)
    if verdict.level == OK:
        yield good("; ".join(verdict.texts))
        return
    remedy = f"`colmet status {patient.side}` and `journalctl -u {patient.program} -n 50` tell more"
    level = Level.FAIL if verdict.level == CRITICAL else Level.WARN
    yield Finding(level, "; ".join(verdict.texts), remedy)
    for backend in patient.status.get("backends", ()):
        if backend["why"]:
            yield warn(f"{backend['name']} is off: {backend['why']}", "see under measured here")


def check_versions(patient: Patient) -> Iterator[Finding]:
    """This command, the running daemon and the other side, as far as they tell."""
    if patient.status is None:
        silent = _silent(patient)
        yield silent._replace(found=f"this is {__version__}; {silent.found}")
        return
    running = patient.status["version"]
    if running != __version__:
        yield warn(
            f"{patient.program} runs as {running}, and what is installed here is {__version__}",
            f"`systemctl restart {patient.program}`",
        )
    if patient.side == "node":
        others = [(one["uri"], one["version"]) for one in patient.collectors]
    else:
        others = [(one["name"], one["version"]) for one in patient.senders]
    different = [f"{name} has {version}" for name, version in others if version and version != running]
    if different:
        more = f", and {len(different) - MAX_TOLD} more" if len(different) > MAX_TOLD else ""
        yield warn(
            f"it is {running}, and {', '.join(different[:MAX_TOLD])}{more}",
            "they understand each other; upgrade the older side when it suits (docs/operations.md)",
        )
    if running == __version__ and not different:
        told = "the other side has the same" if any(version for _, version in others) else "the other side tells none"
        yield good(f"{running}; {told}")


def check_unit(patient: Patient) -> Iterator[Finding]:
    """What systemd says of its unit."""
    if not patient.has_systemd:
        yield good("no systemd runs this machine")
        return
    unit, name = patient.unit, patient.program
    active, enabled = unit.get("ActiveState", ""), unit.get("UnitFileState", "")
    if unit.get("LoadState") != "loaded":
        text = f"{patient.unit_name} is not installed"
        if patient.pid:
            yield warn(f"{text}: it does not start with the machine", f"install the package {name}")
        else:
            yield warn(text, f"install the package {name}, or the unit by hand (docs/operations.md)")
    elif active == "failed":
        yield fail(
            f"{patient.unit_name} failed: {unit.get('Result')}",
            f"`journalctl -u {name} -n 50` tells why; then `systemctl restart {name}`",
        )
    elif enabled.startswith("enabled") and active not in ("active", "reloading", "activating"):
        yield fail(f"{patient.unit_name} is enabled, and {active}", f"`systemctl start {name}`")
    elif active == "active" and not enabled.startswith("enabled"):
        yield warn(f"{patient.unit_name} does not start with the machine ({enabled})", f"`systemctl enable {name}`")
    elif unit.get("NRestarts", "0") != "0":
        yield warn(
            f"{patient.unit_name} was restarted {unit['NRestarts']} times after it had failed",
            f"`journalctl -u {name} -p warning` tells why",
        )
    else:
        yield good(f"{patient.unit_name}: {active}, {enabled}")


def check_leftovers(patient: Patient) -> Iterator[Finding]:
    """What Colmet 0.6, or another Colmet, has left here: start scripts, and daemons that still run."""
    fine = True
    try:
        scripts = [name for name in patient.host.names("/etc/init.d") if name.startswith("colmet")]
    except OSError:
        scripts = []
    for script in scripts:
        fine = False
        yield warn(
            f"/etc/init.d/{script} starts another Colmet beside the unit",
            f"`/etc/init.d/{script} stop; update-rc.d {script} remove; rm /etc/init.d/{script}`",
        )
    numbers = [int(name) for name in patient.host.names("/proc") if name.isdigit()]
    others = [pid for pid in numbers if pid != patient.pid and _has(patient, pid)]
    if others and (patient.pid or len(others) > 1):
        fine = False
        shown = " ".join(map(str, sorted(others)[:MAX_TOLD]))
        yield warn(
            f"another {patient.program} runs, one of Colmet 0.6 or one that was started by hand: process {shown}",
            f"see what it is, `ps -fp {shown.replace(' ', ',')}`, and end it: `kill {shown}`",
        )
    if fine:
        yield good("nothing")


def _has(patient: Patient, pid: int) -> bool:
    """Whether a process is a daemon of this side."""
    return arguments(patient.host, pid, patient.side) is not None


def check_open_files(patient: Patient) -> Iterator[Finding]:
    """How many files and connections the running collector may have."""
    if not patient.pid:
        yield _silent(patient)
        return
    limit = 0
    for line in patient.host.read(f"/proc/{patient.pid}/limits").decode("ascii", "replace").splitlines():
        if line.startswith("Max open files"):
            words = line.split()
            limit = int(words[3]) if words[3].isdigit() else 1 << 30
    if limit < MIN_OPEN_FILES:
        yield warn(
            f"it may have {limit} files open: fewer nodes than that can connect",
            "LimitNOFILE=65536 in its unit (`systemctl edit colmet-collector`), or `ulimit -n 65536` before it starts",
        )
    else:
        yield good(f"up to {limit:,}")
