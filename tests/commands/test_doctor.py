"""colmet doctor: what it finds on machines that are broken on purpose, and the remedy that it names."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pwd
import re
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from colmet import __version__
from colmet.commands import colmet, doctor
from colmet.commands.doctor import CHECKS, daemon, network, node
from colmet.commands.doctor import target as target_module
from colmet.commands.doctor.target import Target, User, arguments, find_sides
from colmet.common.config import plugins
from colmet.common.config.keys import write_pair
from colmet.common.daemon import control
from colmet.common.daemon.checks import Check, Level, Result, Unchecked, bounded, fail, good, quiet, run_check, warn
from colmet.common.daemon.control import Control
from colmet.common.errors import BackendUnavailable
from colmet.common.host import capabilities
from colmet.common.host.capabilities import bits
from colmet.common.transport import new_pair
from colmet.node import main as node_main
from tests.support import zmtp
from tests.support.other_user import in_child
from tests.support.status_answers import COLLECTOR, NODE, changed
from tests.support.waiting import free_port

PASS, WARN, FAIL, _ = Level
FULL = "0000003fffffffff"
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
CGROUPS = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"
V1 = ("cpuset", "cpu", "cpuacct", "memory", "blkio", "pids")
HEALTHY = {
    "/proc/cgroups": CGROUPS
    + "".join(f"{name}\t0\t1\t1\n" for name in ("cpu", "memory", "blkio", "pids", "perf_event")),
    "/proc/self/mounts": V2,
    "/proc/self/status": f"Name:\tx\nCapEff:\t{FULL}\nSeccomp:\t0\n",
    "/proc/cmdline": "quiet\n",
    "/proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    "/proc/sys/kernel/task_delayacct": "1\n",
    "/proc/sys/kernel/osrelease": "6.1.0-18-amd64\n",
    "/proc/sys/kernel/perf_event_paranoid": "2\n",
    "/proc/sys/fs/inotify/max_user_watches": "65536\n",
    "/proc/sys/fs/inotify/max_user_instances": "128\n",
    "/etc/sysctl.d/colmet.conf": "kernel.task_delayacct = 1\n",
    "/sys/devices/system/cpu/possible": "0\n",
    "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
    "/sys/fs/cgroup/oar.slice/oar-u1000-j42/cgroup.controllers": "cpuset cpu io memory pids\n",
    "/sys/fs/cgroup/oar.slice/oar-u1000-j42/cgroup.procs": "",
    "/sys/fs/cgroup/oar.slice/oar-u1000-j42/cgroup.threads": "",
}
# cgroup v1 on a machine with all controllers: OAR 2 uses these hierarchies alone
OAR_2 = {
    **{"/sys/fs/cgroup/oar.slice": None, "/sys/fs/cgroup/cgroup.controllers": None},
    "/proc/self/mounts": "".join(f"{name} /sys/fs/cgroup/{name} cgroup rw,{name} 0 0\n" for name in V1),
    "/proc/cgroups": CGROUPS + "".join(f"{name}\t{n}\t1\t1\n" for n, name in enumerate(V1, 1)),
    **{f"/sys/fs/cgroup/{name}/oar/bob_3/cgroup.procs": "" for name in ("cpuset", "cpu", "cpuacct")},
    **{f"/sys/fs/cgroup/{name}/oar/tasks": "" for name in ("cpuset", "cpu", "cpuacct")},
}


@pytest.fixture
def as_root(monkeypatch):
    """No program here has more rights than this one."""
    monkeypatch.setattr(capabilities, "held", capabilities.bounding)


@pytest.fixture
def as_user(monkeypatch):
    """Root would have rights which this program has not."""
    monkeypatch.setattr(capabilities, "held", lambda: 0)
    monkeypatch.setattr(capabilities, "bounding", lambda: bits(capabilities.NUMBERS))


@pytest.fixture
def machine(fake):
    """A fake root in which all is well; `target` examines a daemon there."""
    for path, text in HEALTHY.items():
        fake.write(path, text)
    fake.link("/proc/self/ns/user", "user:[4026531837]")
    fake.link("/proc/self/ns/pid", "pid:[4026531836]")
    fake.mkdir("/var/spool/colmet").chmod(0o700)
    fake.mkdir("/run/colmet").chmod(0o700)
    fake.mkdir("/var/lib/colmet")

    def target(side="node", *argv, status=None, user=None, **known):
        made = Target(side, fake.host, argv)
        made.status = status
        made.__dict__.update(known)
        if user is not None:
            made.__dict__["user"] = user
        return made

    fake.target = target
    return fake


def find(check, target):
    with quiet():
        return next(one for one in CHECKS if one.function is check).run(target)


def problem(check, target):
    """The one finding that is no PASS."""
    wrong = [finding for finding in find(check, target) if finding.level != PASS]
    assert len(wrong) == 1, wrong
    return wrong[0]


# and there is one alone
ASK_THE_KERNEL = (node.check_accounting, node.check_ends, node.check_forks, node.check_backends)
OF_FILES = [
    check
    for check in CHECKS
    if check.function.__module__ == node.__name__ or check.function in (daemon.check_disk, daemon.check_clock)
    if check.function not in ASK_THE_KERNEL
]


@pytest.mark.parametrize("check", OF_FILES, ids=lambda one: one.name)
def test_nothing_is_wrong_on_a_machine_where_all_is_well(machine, check):
    found = find(check.function, machine.target("node", "--spool-dir", "/var/spool/colmet"))
    assert found and {finding.level for finding in found} == {PASS}, found


# check, options, files (None: removed), level, what is found, the remedy
BROKEN = {
    "delays are not counted": (
        *(node.check_delays, (), {"/proc/sys/kernel/task_delayacct": "0\n", "/etc/sysctl.d/colmet.conf": None}),
        *(WARN, "task_delayacct is 0", "sysctl -p /etc/sysctl.d/60-colmet.conf"),
    ),
    "the kernel has no pressure": (
        *(node.check_pressure, (), {"/proc/pressure/cpu": None}),
        *(WARN, "(PSI)", "`psi=1` on the kernel's command line"),
    ),
    "few directories may be watched": (
        *(node.check_inotify, (), {"/proc/sys/fs/inotify/max_user_watches": "8192\n"}),
        *(WARN, "max_user_watches is 8192", "fs.inotify.max_user_watches = 65536"),
    ),
    "no cgroup is mounted": (
        *(node.check_jobs, (), {"/proc/self/mounts": "proc /proc proc rw 0 0\n"}),
        *(FAIL, "no cgroup is mounted", "in a container: -v /sys/fs/cgroup:/sys/fs/cgroup:ro"),
    ),
    "the root of the jobs is elsewhere": (
        *(node.check_jobs, ("--cpuset_rootpath", "/dev/oar_cgroups_links/cpuset/oar"), {}),
        *(WARN, "/dev/oar_cgroups_links/cpuset/oar does not exist", "leave the option out"),
    ),
    "no resource manager is here": (
        *(node.check_jobs, (), {"/sys/fs/cgroup/oar.slice": None}),
        *(WARN, "no job's directory", "--cpuset_rootpath"),
    ),
    "OAR's links lead nowhere": (
        *(node.check_jobs, (), {"/dev/oar_cgroups_links/cpuset": "-> /nowhere"}),
        *(WARN, "leads nowhere", "job_resource_manager"),
    ),
    "jobs are given no memory controller": (
        node.check_controllers,
        (),
        {"/sys/fs/cgroup/oar.slice/oar-u1000-j42/cgroup.controllers": "cpu pids\n"},
        *(WARN, "no memory, io controller", "`echo '+memory +io' > /sys/fs/cgroup/oar.slice/cgroup.subtree_control`"),
    ),
    "OAR 2 as it is delivered makes no memory cgroup for its jobs": (
        node.check_controllers,
        (),
        OAR_2,
        *(
            WARN,
            "jobs such as /sys/fs/cgroup/cpuset/oar/bob_3 have no memory, blkio, pids controller: memory is that of",
        ),
        "Enable_mem_cg",
    ),
    "OAR 2 makes no memory cgroup for the jobs that come": (
        node.check_controllers,
        (),
        {name: text for name, text in OAR_2.items() if "bob_3" not in name},
        *(WARN, "jobs below /sys/fs/cgroup/cpuset/oar have no memory, blkio, pids controller", "Enable_mem_cg"),
    ),
    "Slurm on cgroup v1 makes no memory cgroup for its jobs": (
        node.check_controllers,
        (),
        {name.replace("/oar/bob_3", "/slurm/uid_7/job_3"): text for name, text in OAR_2.items()},
        *(WARN, "/slurm/uid_7/job_3 have no memory", "ConstrainRAMSpace=yes"),
    ),
    "it is in a container": (
        *(node.check_container, (), {"/proc/self/ns/pid": "-> pid:[4026532001]"}),
        *(FAIL, "its pid namespace is not the machine's", "--pid=host"),
    ),
    "a filter of system calls is on": (
        *(node.check_container, (), {"/proc/self/status": "Seccomp:\t2\n"}),
        *(WARN, "seccomp", "seccomp=unconfined"),
    ),
    "no directory matches the expression": (
        node.check_jobs,
        ("--cpuset_rootpath", "/dev/jobs", "--regex_job_id", "job([0-9]+)"),
        {"/dev/jobs/bob_55/x": "", "/dev/jobs/eve_7/x": ""},
        *(WARN, "no directory in /dev/jobs matches --regex_job_id: 2 directories, such as", r"'_(\d+)$', the default"),
    ),
    "no directory matches the default expression": (
        *(node.check_jobs, ("--cpuset_rootpath", "/dev/jobs"), {"/dev/jobs/x55x/x": ""}),
        *(WARN, "1 directory, such as x55x", "first group of the expression match the job id"),
    ),
    "the spool is in memory": (
        *(daemon.check_disk, (), {"/proc/self/mounts": V2 + "tmpfs /var/spool tmpfs rw 0 0\n"}),
        *(WARN, "(tmpfs /var/spool)", "on a disk with --spool-dir"),
    ),
    "no spool": (
        *(daemon.check_disk, ("--spool-dir", ""), {}),
        *(WARN, "no --spool-dir", 'spool-dir = "/var/spool/colmet"'),
    ),
    "more spool than disk": (
        *(daemon.check_disk, ("--spool-size", "900000T"), {}),
        *(WARN, "may take", "or less with --spool-size"),
    ),
    "no energy counters": (
        *(node.check_backends, ("--enable-RAPL", "--disable-procstats"), {}),
        *(FAIL, "rapl: no RAPL zone in", "`modprobe intel_rapl_msr`"),
    ),
    "the host of the collector has no such name": (
        *(network.check_collectors, ("--zeromq-uri", "tcp://head.invalid:5556"), {}),
        *(FAIL, "the name head.invalid is not known", "`getent hosts head.invalid`"),
    ),
    "no address": (
        *(network.check_collectors, ("--zeromq-uri", "head:5556"), {}),
        *(FAIL, "give tcp://HOST:PORT", "correct zeromq-uri"),
    ),
    "an option that there is none": (
        *(daemon.check_configuration, ("--sample-perid", "5"), {}),
        *(FAIL, "--sample-perid", "`colmet-node --check-config` checks it again"),
    ),
}


def as_with_oar_2(machine):
    for path, text in OAR_2.items():
        if text is None:
            place = machine.path / path.lstrip("/")
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        else:
            machine.write(path, text)


def test_controllers_that_hold_the_jobs_are_in_order_whatever_else_does_not(machine):
    """I/O and the number of tasks are measured without a cgroup, and OAR 2 makes none of them."""
    as_with_oar_2(machine)
    machine.mkdir("/sys/fs/cgroup/memory/oar/bob_3")
    (finding,) = find(node.check_controllers, machine.target())
    assert finding.level == PASS
    assert "bob_3 are held by cpu, cpuacct, memory, and jobs such as" in finding.found
    assert "have no blkio, pids controller" in finding.found


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_the_remedy_of_what_is_broken(machine, case, monkeypatch, root):
    check, argv, files, level, found, remedy = case
    monkeypatch.setenv("PATH", "/usr/bin")
    for path, text in files.items():
        place = machine.path / path.lstrip("/")
        if place.is_dir() or text is None:
            place.rename(machine.path / f"away{path.replace('/', '-')}")
        elif text.startswith("-> "):
            with contextlib.suppress(FileNotFoundError):
                place.unlink()
            machine.link(path, text[3:])
        else:
            machine.write(path, text)
    finding = problem(check, machine.target("node", *argv))
    assert finding.level == level and found in finding.found and remedy in finding.remedy, finding


def test_rights_that_are_missing_are_named(machine, root):
    machine.write("/proc/7/status", "Uid:\t0\t0\t0\t0\nCapEff:\t0000000000080004\n")  # PTRACE and DAC_READ_SEARCH
    finding = problem(node.check_rights, machine.target("node", status={**NODE, "pid": 7}))
    assert finding.level == FAIL and "process 7 lacks CAP_NET_ADMIN" in finding.found
    assert "CapabilityBoundingSet=" in finding.remedy and "--cap-add NET_ADMIN" in finding.remedy


@pytest.mark.parametrize(
    ("counters", "refusal", "level", "text"),
    [
        ({"kernel_accounting_on": 1}, "asked for nothing", PASS, "the kernel adds up"),
        ({}, "", WARN, "the running agent adds up tasks from netlink"),
        ({}, "this kernel has no BTF", WARN, "this kernel has no BTF: tasks are added up from netlink"),
        (None, "", PASS, "the kernel adds up"),
    ],
)
def test_who_adds_up_tasks_is_said_of_the_running_agent(machine, monkeypatch, counters, refusal, level, text):
    class Programs:
        def __init__(self, *_):
            if refusal:
                raise BackendUnavailable(refusal)

        def close(self):
            pass

    monkeypatch.setattr("colmet.node.kernel.job_accounting.JobAccounting", Programs)
    status = {**NODE, "backends": [] if counters is None else [{"name": "taskstats", "on": True, "counters": counters}]}
    (finding,) = find(node.check_accounting, machine.target("node", status=status))
    assert finding.level == level and finding.found.startswith(text)


def test_without_proc_nothing_is_said_of_the_kernel(machine):
    shutil.rmtree(machine.path / "proc")
    assert problem(node.check_pressure, machine.target()) == warn("could not be checked: /proc is not mounted", "")


def test_rights_of_a_user_namespace_are_none_over_the_machine(machine):
    (machine.path / "proc/self/ns/user").unlink()
    machine.link("/proc/self/ns/user", "user:[4026532000]")
    finding = problem(node.check_rights, machine.target())
    assert "this command lacks CAP_DAC_READ_SEARCH, CAP_NET_ADMIN, CAP_SYS_PTRACE" in finding.found


def test_what_another_user_could_do_is_a_warning_and_what_nobody_could_a_failure(machine, monkeypatch, as_user):
    machine.write("/proc/self/status", "CapEff:\t0000000000000000\n")
    finding = problem(node.check_rights, machine.target())
    assert finding.level == WARN and finding.remedy.startswith("start colmet-node as root of the machine")
    monkeypatch.setattr(capabilities, "bounding", lambda: 0)
    assert problem(node.check_rights, machine.target()).level == FAIL


# -- disk --

SOMEBODY = User("somebody", 12345, 12345, frozenset((12345,)))
LITTLE = SimpleNamespace(f_flag=0, f_bavail=10, f_frsize=4096, f_blocks=1 << 20, f_files=1000, f_favail=900)


@pytest.mark.parametrize(
    ("system", "found", "remedy"),
    [
        ({}, "no bytes left", "make room in /"),
        ({"f_bavail": 1 << 19, "f_favail": 2}, "no files (inodes) left", "make room in /"),
        ({"f_bavail": 40000, "f_blocks": 1 << 20}, "nearly full", "`df -h /`"),
        ({"f_flag": os.ST_RDONLY}, "read-only", "`mount -o remount,rw /`"),
    ],
)
def test_a_file_system_without_room_is_reported(machine, monkeypatch, system, found, remedy, root):
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**{**vars(LITTLE), **system}))
    argv = ("--enable-stdout-backend", "--journal-dir", "/var/lib/colmet/journal", "--journal-size", "1M")
    finding = problem(daemon.check_disk, machine.target("collector", *argv))
    assert found in finding.found and remedy in finding.remedy


# -- what runs --


def test_the_version_on_the_socket_is_compared(machine, tmp_path):
    place = str(tmp_path / "control.sock")
    control = Control({"status": lambda request: {**NODE, "version": "0.9.1", "pid": os.getpid()}})
    control.listen(place, "node")
    try:
        target = Target("node", machine.host, ["--control-socket", place])
        target.ask()
        supposed = Target("node", machine.host, ["--control-socket", place], supposed=True)
        supposed.ask()
    finally:
        control.close()
    assert supposed.status is None and "not asked" in find(daemon.check_running, supposed)[0].found
    (finding,) = find(daemon.check_running, target)
    assert f"; installed is {__version__}" in finding.found and finding.remedy == "`systemctl restart colmet-node`"


@pytest.mark.parametrize(
    ("unit", "level", "remedy"),
    [
        ({"ActiveState": "failed", "Result": "exit-code"}, FAIL, "`journalctl -u colmet-node -n 50`"),
        ({"ActiveState": "inactive", "UnitFileState": "enabled"}, FAIL, "`systemctl start colmet-node`"),
        ({"ActiveState": "active", "UnitFileState": "disabled"}, WARN, "`systemctl enable colmet-node`"),
        ({"ActiveState": "active", "UnitFileState": "enabled", "NRestarts": "7"}, WARN, "journalctl"),
        ({"LoadState": "not-found"}, WARN, "install the package colmet-node"),
        ({"ActiveState": "active", "UnitFileState": "enabled", "NRestarts": "0"}, PASS, ""),
    ],
)
def test_the_unit_is_reported(machine, unit, level, remedy):
    target = machine.target("node", has_systemd=True, unit={"LoadState": "loaded", **unit})
    (finding,) = find(daemon.check_unit, target)
    assert finding.level == level and remedy in finding.remedy


def test_a_backend_that_is_off_and_an_output_that_is_away_are_reported(machine):
    off = changed(changed(NODE, "backends.0.on", False), "backends.0.why", "no right")
    findings = find(daemon.check_health, machine.target("node", status=off))
    assert [finding.level for finding in findings] == [WARN, WARN] and findings[1].found == "taskstats is off: no right"
    away = changed(changed(COLLECTOR, "outputs.0.available", False), "outputs.0.away_s", 500.0)
    (finding,) = find(daemon.check_health, machine.target("collector", status=away))
    assert finding.level == FAIL and "hdf5 away" in finding.found and "`colmet status collector`" in finding.remedy


# -- configuration --


@pytest.mark.parametrize(
    ("side", "line", "found"),
    [
        ("node", "sample-perod = 5", ".toml: sample-perod: no such option; did you mean sample-period?"),
        ("node", "sample-period = [", ".toml: not TOML"),
        ("node", 'enable-perfhw = true\nperfhw-list = ["nonsense::"]', "perfhw-list"),
        ("collector", "verbose = 2", "no output chosen"),
        ("collector", "enable-stdout-backend = true\nhttp-open = true", "--http-open has no effect"),
        ("node", "zeromq-uri = head", "; texts are in quotes"),
    ],
)
def test_a_line_of_the_file_that_cannot_be_used_is_named(machine, side, line, found):
    path = machine.write(f"/etc/colmet/{side}.toml", f"# comment\n{line}\n")
    path.chmod(0o644)
    target = Target(side, machine.host)
    finding = problem(daemon.check_configuration, target)
    assert finding.level == FAIL and found in finding.found and target.argv == ["--config", str(path)]
    assert find_sides(machine.host) == [side]


def test_what_the_daemon_s_user_cannot_read_is_reported_to_root(machine, root, public):
    nobody = User.of(pwd.getpwnam("nobody").pw_uid)
    config = public / "collector.toml"
    config.write_text("enable-stdout-backend = true\n")
    config.chmod(0o600)
    finding = problem(daemon.check_configuration, machine.target("collector", "--config", str(config), user=nobody))
    assert finding.level == FAIL and "user nobody cannot read it: chgrp" in finding.found
    config.chmod(0o644)
    (finding,) = find(daemon.check_configuration, machine.target("collector", "--config", str(config), user=nobody))
    assert finding == good(f"{config}: in order, as user nobody")


def test_where_nobody_can_become_the_daemon_s_user_this_one_is_judged_and_said_to_be(machine, monkeypatch):
    """As in a rootless container, or for an ordinary user."""
    refused = target_module._CHECK.replace("    capabilities.become(uid, group, groups, rights)", "    raise OSError")
    monkeypatch.setattr(target_module, "_CHECK", refused)
    (finding,) = find(daemon.check_configuration, machine.target("collector", "--enable-stdout-backend", user=SOMEBODY))
    assert finding.level == PASS and finding.found.endswith("in order")
    finding = problem(daemon.check_configuration, machine.target("collector", user=SOMEBODY))
    assert finding.level == WARN and "no output chosen" in finding.found


def test_the_working_directory_of_another_user_ends_no_check(machine, root, tmp_path):
    """It cannot be come back to, once it has been left for the daemon's."""

    def look():
        (tmp_path / "root's").mkdir(0o700)
        os.chdir(tmp_path / "root's")
        os.setuid(65534)
        target = machine.target("node", status={**NODE, "pid": os.getpid()})
        target.is_given = False
        with doctor._in_folder_of(target):
            pass
        return 0

    assert in_child(look) == 0


def test_options_of_the_units_environment_file_count(machine):
    machine.write("/etc/default/colmet-collector", "# comment\nOPTIONS=\"--hdf5-filepath '/a b/c'\"\n")
    assert Target("collector", machine.host).argv == ["--hdf5-filepath", "/a b/c"]


# -- other daemons of the machine --


@pytest.fixture
def others(machine):
    """Make other daemons on the machine: `others(77, "unit", *argv)`."""

    def add(pid, group, *argv, side="node", space="pid:[4026531836]", parent=1):
        line = ["/usr/bin/python3", f"/usr/bin/colmet-{side}", *argv]
        machine.write(f"/proc/{pid}/cmdline", "".join(f"{word}\0" for word in line))
        machine.write(f"/proc/{pid}/cgroup", f"4:cpu:/\n0::{group}\n")
        machine.write(f"/proc/{pid}/stat", f"{pid} (colmet (node) S {parent} 0")
        machine.link(f"/proc/{pid}/ns/pid", space)

    return add


URI = ("--zeromq-uri", "tcp://head:5556")


def leftovers(machine, side="node", *argv):
    return find(daemon.check_leftovers, machine.target(side, *(argv or URI), status={**NODE, "pid": 12}))


def test_other_daemons_of_this_machine_are_reported_without_a_kill(machine, others):
    others(77, "/user.slice/user-0.slice/session-3.scope", *URI)
    others(70, "/docker/abc", *URI, space="pid:[4026532999]")
    others(73, "/user.slice/x", *URI, parent=77)
    (finding,) = leftovers(machine)
    assert finding.level == WARN and "process 77" in finding.found and "`ps -fp 77`" in finding.remedy
    assert "kill" not in finding.remedy


def test_programs_that_count_without_an_agent_are_named(machine):
    machine.write("/sys/fs/bpf/colmet/1-1/jobs", "")
    (finding,) = find(daemon.check_leftovers, machine.target("node"))
    assert finding.level == WARN and "`rm -r /sys/fs/bpf/colmet` ends them" in finding.remedy
    assert not [one for one in leftovers(machine) if "kernel" in one.found], "an agent has them"


@pytest.mark.parametrize(
    ("script", "unit", "level"),
    [
        ("colmet-node-06", {"UnitFileState": "enabled"}, WARN),
        ("colmet-node", {"UnitFileState": "enabled"}, PASS),  # systemd uses the unit of this name
        ("colmet-node-06", {"UnitFileState": "disabled"}, PASS),  # it is what the site starts
    ],
)
def test_a_start_script_beside_the_unit_is_reported(machine, script, unit, level):
    machine.write(f"/etc/init.d/{script}", "#!/bin/sh\n")
    (finding,) = find(daemon.check_leftovers, machine.target("node", unit={"LoadState": "loaded", **unit}))
    assert finding.level == level and ("update-rc.d colmet-node-06 disable" in finding.remedy or level == PASS)


def test_the_command_line_of_a_running_daemon_counts(machine):
    machine.write("/proc/31/cmdline", "/usr/bin/python3\0/usr/bin/colmet-node\0-s\x001\0")
    target = Target("node", machine.host)
    target.status = {**NODE, "pid": 31}
    assert target.argv == ["-s", "1"] and target.options.sample_period == 1


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("/usr/bin/python3 /usr/bin/colmet-node -s 1", ["-s", "1"]),
        ("/opt/v/bin/python3.11 -O -W error -m colmet.node.main -s 1", ["-s", "1"]),
        ("python3 -u colmet/node/main.py", []),
        ("/usr/bin/colmet-node", []),
        *[(command, None) for command in ("journalctl -fu colmet-node", "sudo colmet-node -s 1", "vi colmet-node")],
        *[(f"python3 {more}", None) for more in ("", "-W", "-c pass colmet-node", "/usr/bin/colmet-collector")],
    ],
)
def test_what_only_names_a_daemon_is_none(machine, command, options):
    machine.write("/proc/31/cmdline", "\0".join(command.split()) + "\0")
    assert arguments(machine.host, 31, "node") == options


def test_a_daemon_that_may_not_be_asked_is_taken_for_roots(machine, as_user):
    target = machine.target()
    target.denied, target.unreachable = True, "/run/colmet/node.sock: permission denied"
    finding = problem(daemon.check_running, target)
    assert finding.level == WARN and "`sudo colmet doctor --node`" in finding.remedy and target.user.uid == 0
    finding = problem(daemon.check_health, target)
    assert finding.level == WARN and "could not be checked: this user may not ask it" in finding.found
    machine.write("/proc/self/status", "CapEff:\t0000000000000000\n")
    finding = problem(
        node.check_backends, machine.target("node", "--enable-RAPL", "--disable-procstats", "--disable-taskstats")
    )
    assert finding.level == WARN, "root may be able to"


def test_a_clock_that_nothing_keeps_right_is_reported(machine):
    target = machine.target(has_systemd=True)
    for answer, level in (("yes", PASS), ("no", WARN)):
        machine.write("/usr/bin/timedatectl", f"#!/bin/sh\necho {answer}\n").chmod(0o755)
        (finding,) = find(daemon.check_clock, target)
        assert finding.level == level and (level == PASS or "`timedatectl set-ntp true`" in finding.remedy)


# -- libraries --


def test_plug_ins_are_named_and_one_that_is_not_loaded_is_a_failure_with_its_reason(machine, monkeypatch):
    entry = plugins.EntryPoint("mine", "site_mine:Mine", "site_mine 1.0")
    found = plugins.Backends(node_main.load_backends().classes, [entry], [f"{entry}: no such module"])
    monkeypatch.setattr(node_main, "load_backends", lambda: found)
    failed, loaded = find(daemon.check_plugins, machine.target())
    assert failed.level == FAIL and "mine = site_mine:Mine of site_mine 1.0: no such module" in failed.found
    assert loaded.found == "plug-in: mine = site_mine:Mine of site_mine 1.0"


@pytest.mark.parametrize(
    "err", [ImportError("libhdf5.so: cannot open"), ValueError("numpy.dtype size changed"), ModuleNotFoundError("no h")]
)
@pytest.mark.parametrize("broken", ["colmet.node.main", "colmet.common.daemon.control"])
def test_a_library_that_is_there_and_cannot_be_loaded_is_reported(machine, monkeypatch, tmp_path, err, broken):
    monkeypatch.setattr(control, "DIRECTORY", str(tmp_path))  # this machine may have a daemon
    load = importlib.import_module

    def refuse(name, *others, **more):
        if name == broken:
            raise err
        return load(name, *others, **more)

    monkeypatch.setattr(importlib, "import_module", refuse)
    monkeypatch.setitem(sys.modules, broken, None)  # as it is for `import`
    results = doctor.examine_all(
        machine.target(), [check for check in CHECKS if check.group in ("libraries", "daemon")]
    )
    by_check = {result.check.name: result.finding for result in results}
    if broken == "colmet.node.main":
        assert by_check["python modules"].level == FAIL and str(err) in by_check["python modules"].found
        assert by_check["configuration"] == warn(by_check["configuration"].found, "see under libraries")
        assert by_check["running"].remedy == "see under libraries"
    else:
        assert "cannot be loaded" in by_check["running"].found
    assert not any("defect" in result.finding.found for result in results)


# -- network --


@contextlib.contextmanager
def listener(answer, after_s=0):
    """Somebody on a port who says this to everybody, a little later; the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        time.sleep(after_s)
                        connection.sendall(answer)
                        connection.settimeout(10)
                        connection.recv(100)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def reach(machine, port, *argv):
    argv = ("--zeromq-uri", f"tcp://127.0.0.1:{port}", "--zeromq-link-uri", "", *argv)
    (found,) = find(network.check_collectors, machine.target("node", *argv))
    return found


def test_nobody_at_the_collectors_port(machine):
    finding = reach(machine, free_port())
    assert finding.level == FAIL and "refused" in finding.found and "start colmet-collector here" in finding.remedy


def test_a_port_that_lets_nothing_through(machine, monkeypatch):
    def dropped(address):
        raise TimeoutError

    monkeypatch.setattr(network, "greet", dropped)
    finding = reach(machine, 5556)
    assert finding.level == FAIL and "no answer within" in finding.found and "open port 5556" in finding.remedy


@pytest.mark.parametrize(
    ("answer", "argv", "level", "found", "remedy"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", (), FAIL, "does not speak ZeroMQ", "ss -ltnp"),
        (zmtp.greeting(), (), PASS, "a collector answers, without keys", ""),
        (zmtp.greeting(b"CURVE"), (), FAIL, "known keys only", "`colmet enrol "),
        (
            zmtp.greeting(),
            ("--zeromq-curve-secret", "x"),
            FAIL,
            "collector has none",
            "`colmet keygen collector --if-missing`",
        ),
        (zmtp.greeting(b"CURVE"), ("--zeromq-curve-secret", "x"), PASS, "with keys", ""),
    ],
    ids=["a web server", "no keys", "keys on its side alone", "keys on our side alone", "keys"],
)
def test_who_listens_at_the_collectors_port(machine, answer, argv, level, found, remedy):
    with listener(answer) as port:
        finding = reach(machine, port, *argv)
    assert finding.level == level and found in finding.found and remedy in finding.remedy


def test_a_listener_that_sends_nothing_hangs_or_is_slow(machine, monkeypatch):
    monkeypatch.setattr(network, "GREETING_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        finding = reach(machine, hanging.getsockname()[1])
    assert finding.level == FAIL and "sends no greeting within" in finding.found and "overloaded" in finding.remedy


def test_a_closed_port_for_acknowledgements_is_a_warning(machine):
    with listener(zmtp.greeting()) as port:
        argv = ("--zeromq-uri", f"tcp://127.0.0.1:{port}", "--zeromq-link-uri", f"tcp://127.0.0.1:{free_port()}")
        finding = problem(network.check_collectors, machine.target("node", *argv))
    assert finding.level == WARN and "acknowledgements" in finding.found and "open that port, too" in finding.remedy


# -- keys --


@pytest.fixture
def keys(tmp_path):
    """Pairs of a node and of the collector, and the options that use them."""
    folder = tmp_path / "nodes"
    folder.mkdir()
    pair, secrets = new_pair(), {}
    host = socket.gethostname()
    secrets["node"] = write_pair(str(tmp_path), host, pair)[1]
    public, secrets["collector"] = write_pair(str(tmp_path), "collector", new_pair())
    (folder / f"{host}.key").write_bytes((tmp_path / f"{host}.key").read_bytes())
    return SimpleNamespace(
        host=host,
        folder=folder,
        secrets={side: Path(path) for side, path in secrets.items()},
        node=("--zeromq-curve-secret", secrets["node"], "--zeromq-curve-collector", public),
        collector=("--zeromq-curve-secret", secrets["collector"], "--zeromq-curve-nodes", str(folder)),
    )


@pytest.mark.parametrize("side", ["node", "collector"])
def test_keys_of_which_all_is_well(machine, keys, side):
    assert {one.level for one in find(network.check_keys, machine.target(side, *getattr(keys, side)))} == {PASS}


@pytest.mark.parametrize("side", ["node", "collector"])
def test_a_secret_that_others_can_read_is_reported_with_the_command(machine, keys, side, as_root):
    keys.secrets[side].chmod(0o644)
    finding = problem(network.check_keys, machine.target(side, *getattr(keys, side)))
    assert finding.level == FAIL and "others can read it" in finding.found
    assert f"chmod 600 {keys.secrets[side]}" in f"{finding.found} {finding.remedy}"


def test_a_secret_of_the_daemons_user_is_fine_whoever_runs_the_doctor(machine, keys, root, tmp_path):
    """As `colmet keygen` leaves it for the collector's unit; root's own secret is its user's neither."""
    for path in (tmp_path, *list(tmp_path.parents)[:-1]):
        if path.owner() == "root" and path.stat().st_mode & 0o001 == 0 and path.parts[1:2] == ("tmp",):
            path.chmod(path.stat().st_mode | 0o011)
    os.chown(keys.secrets["collector"], SOMEBODY.uid, -1)
    found = find(network.check_keys, machine.target("collector", *keys.collector, user=SOMEBODY))
    assert [one.level for one in found] == [PASS, PASS], found
    finding = problem(
        network.check_keys, machine.target("collector", *keys.collector, user=User("other", 12346, 12346, frozenset()))
    )
    assert finding.level == FAIL and f"belongs to another user (uid {SOMEBODY.uid})" in finding.found
    assert "chown it to the daemon's user" in f"{finding.found} {finding.remedy}"


def test_a_node_that_no_collector_is_named_to(machine):
    finding = problem(network.check_collectors, machine.target("node", "--zeromq-uri", ""))
    assert finding.level == FAIL and "no collector is named" in finding.found and "`colmet enrol " in finding.remedy


def test_keys_that_do_not_fit_together(machine, keys):
    text = keys.secrets["node"].read_text()
    keys.secrets["node"].write_text(re.sub(r'public-key = "[^"]*"', f'public-key = "{new_pair().public}"', text))
    finding = problem(network.check_keys, machine.target("node", *keys.node))
    assert finding.level == (FAIL if capabilities.has_all() else WARN)
    assert "does not belong" in finding.found and "make a new pair" in finding.remedy


def test_a_key_of_a_node_that_is_damaged_and_a_folder_without_keys(machine, keys):
    (keys.folder / "node-2.key").write_text("damaged\n")
    finding = problem(network.check_keys, machine.target("collector", *keys.collector))
    assert finding.level == WARN and "node-2.key" in finding.found and "`colmet enrol --replace NAME`" in finding.remedy
    for path in keys.folder.iterdir():
        path.unlink()
    finding = problem(network.check_keys, machine.target("collector", *keys.collector))
    assert (
        finding.level == FAIL and "no node is admitted" in finding.found and "`colmet enrol NAME...`" in finding.remedy
    )


def test_a_collector_that_does_not_know_this_nodes_key(machine, keys):
    with listener(zmtp.greeting(b"CURVE")) as port:
        status = changed(changed(NODE, "collectors.0.uri", f"tcp://127.0.0.1:{port}"), "collectors.0.state", "away")
        finding = problem(
            network.check_keys, machine.target("node", *keys.node, status=status, user=User.of(os.geteuid()))
        )
    assert finding.level == FAIL and "does not let this node in" in finding.found
    assert f"`colmet enrol --replace {socket.gethostname()}`" in finding.remedy


def test_the_pair_of_another_host_is_reported_before_anything_is_sent(machine, keys, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "node-7")
    finding = problem(network.check_keys, machine.target("node", *keys.node))
    assert finding.level == FAIL and f"was made for {keys.host}, and this host is node-7" in finding.found
    assert "`colmet enrol node-7`" in finding.remedy


# -- how checks are carried out --


@pytest.mark.parametrize(
    ("err", "found"),
    [
        (ZeroDivisionError("oops"), "could not be checked, a defect of colmet doctor: ZeroDivisionError: oops"),
        (
            PermissionError(13, "Permission denied", "/proc/x"),
            "could not be checked: [Errno 13] Permission denied: '/proc/x'",
        ),
        (ModuleNotFoundError(name="zmq"), "could not be checked: the Python module zmq is missing"),
        (Unchecked("why"), "could not be checked: why"),
    ],
)
def test_a_check_with_a_defect_stops_no_other(machine, err, found):
    def broken(target):
        raise err
        yield

    checks = [Check("a", "one", ("node",), broken), Check("a", "two", ("node",), lambda target: iter([good("fine")]))]
    with quiet():
        results = doctor.examine_all(machine.target(), checks)
    assert [(result.finding.level, result.finding.found) for result in results] == [(WARN, found), (PASS, "fine")]


@pytest.mark.parametrize(
    ("end", "fault"),
    [
        (lambda: time.sleep(30), "the rest could not be checked: no answer within 0.3 s"),
        (lambda: os.stat("/none"), "the rest could not be checked: [Errno 2] No such file or directory: '/none'"),
    ],
)
def test_what_a_check_has_found_before_it_hangs_or_fails_is_reported(end, fault):
    def check():
        yield fail("found", "remedy")
        end()

    assert run_check(check, 0.3) == [fail("found", "remedy"), warn(fault, "")]


def test_a_backend_that_hangs_is_named_and_the_others_go_on(machine, monkeypatch, as_root):
    class Backend:
        def __init__(self, name, seconds):
            self.name, self.seconds = name, seconds

        @classmethod
        def switches(cls):
            return "--enable-x", ""

        def open(self):
            time.sleep(self.seconds)

        def close(self):
            pass

    monkeypatch.setattr(node, "BACKEND_S", 0.2)
    stuck, fast = find(node.check_backends, machine.target(backends=[Backend("stuck", 3), Backend("fast", 0)]))
    assert stuck.level == FAIL and "stuck: no answer" in stuck.found and "start without --enable-x" in stuck.remedy
    assert fast == good("fast: can measure")


# -- the command --

RESULTS = [
    Result("node", Check("kernel", "taskstats", ("node",), node.check_ends), good("the kernel answers")),
    Result(
        "node",
        Check("network", "collectors", ("node",), network.check_collectors),
        fail(
            "\033[31mname\nof a \u202ehostile host " + 12 * "long ",
            "`a command of many words that has to stay on one line, however long that line is`",
        ),
    ),
]


@pytest.fixture
def few(monkeypatch):
    """Only these checks."""
    monkeypatch.setattr(doctor, "examine_all", lambda target: RESULTS)


def test_json_has_every_finding(few, run):
    status, out, err = run("doctor", "--node", "--json")
    report = json.loads(out)
    assert status == 2 and report["level"] == "fail" and report["version"] == __version__ and not err
    assert report["findings"][0] == {
        **{"daemon": "node", "group": "kernel", "check": "taskstats", "level": "pass"},
        **{"found": "the kernel answers", "remedy": ""},
    }


@pytest.mark.parametrize(("results", "status"), [(RESULTS[:1], 0), ([RESULTS[0]._replace(finding=warn("a", "b"))], 1)])
def test_the_exit_status_is_the_worst_level(monkeypatch, run, results, status):
    monkeypatch.setattr(doctor, "examine_all", lambda target: results)
    assert run("doctor", "--collector", "-q")[0] == status


def test_ctrl_c_ends_the_programs_that_were_asked(monkeypatch):
    main, ended = threading.main_thread().ident, threading.Event()

    def ask(target):
        threading.Timer(0.2, signal.pthread_kill, [main, signal.SIGINT]).start()
        try:
            target.host.command(["sleep", "50"], 60.0).run()
        finally:
            ended.set()

    monkeypatch.setattr(doctor, "examine_all", lambda target: bounded(lambda: ask(target), 60.0))
    assert colmet.main(["doctor", "--node"]) == 130
    assert ended.wait(30), "it goes on"
