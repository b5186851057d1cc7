"""The checks of `colmet doctor`, in the order of their execution."""

from __future__ import annotations

from colmet.commands.doctor import clock, daemon, kernel, network, software, storage, versions
from colmet.commands.doctor.target import SIDES
from colmet.common.runtime.checks import Check

_NODE, _COLLECTOR = SIDES[:1], SIDES[1:]

CHECKS = (
    Check("libraries", "python modules", SIDES, software.check_modules),
    Check("libraries", "plug-ins", SIDES, software.check_plugins),
    Check("daemon", "configuration", SIDES, daemon.check_configuration),
    Check("daemon", "running", SIDES, daemon.check_running),
    Check("daemon", "health", SIDES, daemon.check_health),
    Check("daemon", "versions", SIDES, daemon.check_versions),
    Check("daemon", "unit", SIDES, daemon.check_unit),
    Check("daemon", "leftovers", SIDES, daemon.check_leftovers, "nothing"),
    Check("daemon", "open files", _COLLECTOR, daemon.check_open_files),
    Check("kernel", "taskstats", _NODE, kernel.check_taskstats),
    Check("kernel", "task ends", _NODE, kernel.check_ends),
    Check("kernel", "forks", _NODE, kernel.check_forks),
    Check("kernel", "delay accounting", _NODE, kernel.check_delays),
    Check("kernel", "waits", _NODE, kernel.check_waits),
    Check("kernel", "perf events", _NODE, kernel.check_perf),
    Check("kernel", "pressure", _NODE, kernel.check_pressure),
    Check("kernel", "columns", _NODE, versions.check_columns),
    Check("kernel", "inotify", _NODE, kernel.check_inotify, "limits are high enough"),
    Check("jobs", "cgroups", _NODE, kernel.check_jobs),
    Check("jobs", "controllers", _NODE, kernel.check_controllers),
    Check("rights", "capabilities", _NODE, kernel.check_rights),
    Check("rights", "container", _NODE, kernel.check_container, "the machine itself, no container"),
    Check("measured here", "C libraries", _NODE, software.check_libraries),
    Check("measured here", "backends", _NODE, software.check_backends, bound_s=60.0),
    Check("network", "collectors", _NODE, network.check_collectors, bound_s=30.0),
    Check("network", "ports", SIDES, network.check_ports, "none is listened on"),
    Check("network", "databases", _COLLECTOR, network.check_databases, "none is written to", bound_s=30.0),
    Check("network", "batch systems", _COLLECTOR, network.check_batch_systems, "none is asked"),
    Check("network", "keys", SIDES, network.check_keys),
    Check("network", "nodes", _COLLECTOR, network.check_senders, "nothing is wrong with them"),
    Check("machine", "disk", SIDES, storage.check_disk),
    Check("machine", "clock", SIDES, clock.check_clock),
)
