"""Checks of a node's requirements on the kernel."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from colmet.commands.doctor import waits
from colmet.commands.doctor.target import Target
from colmet.common.errors import BackendUnavailable, CommandFailed, ParseError
from colmet.common.runtime.capabilities import bits, has_all, missing
from colmet.common.runtime.checks import Finding, Unchecked, fail, good, severe, warn
from colmet.common.runtime.plural import counted
from colmet.node.system.command import Command
from colmet.node.system.host import Host
from colmet.node.system.privileges import suggest

if TYPE_CHECKING:
    from colmet.node.jobs.mounts import Mounts

DELAYACCT = "/proc/sys/kernel/task_delayacct"
PARANOID = "/proc/sys/kernel/perf_event_paranoid"
_SYSCTL_FOLDERS = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
_SET = re.compile(rb"^\s*-?\s*kernel[./]task_delayacct\s*=\s*(\S+)\s*$", re.MULTILINE)
_KEEP = (
    "`echo 'kernel.task_delayacct = 1' > /etc/sysctl.d/60-colmet.conf && sysctl -p /etc/sysctl.d/60-colmet.conf`; "
    "jobs that run already are not counted"
)
_MIN_WATCHES, _MIN_INSTANCES = 16384, 64
_WAITS_IN, _WAITS_S = "/var/tmp", 1.5
_CPUSET_OPTIONAL = (6, 12)  # CONFIG_CPUSETS_V1
_NAMESPACES = {"user": 0xEFFFFFFD, "pid": 0xEFFFFFFC}  # the machine's: include/linux/proc_ns.h
_OAR_LINKS = "/dev/oar_cgroups_links"


def _text(host: Host, path: str) -> str:
    try:
        return host.read_start(path, 1 << 20).decode("ascii", "replace").strip()
    except FileNotFoundError as err:
        if path.startswith("/proc/") and not host.is_directory("/proc/self"):  # says nothing of the kernel
            raise Unchecked("/proc is not mounted") from err
        raise


# -- netlink: queries to the running kernel --


def check_taskstats(target: Target) -> Finding:
    """Check that the kernel answers for one task, in a known form."""
    import numpy as np

    from colmet.node.kernel.taskstats import TaskstatsClient

    try:
        with contextlib.closing(TaskstatsClient()) as client:
            client.query(np.array([os.getpid()], dtype=np.int64))
    except BackendUnavailable as err:
        return fail(str(err), "a kernel with CONFIG_TASKSTATS=y, CONFIG_TASK_XACCT=y and CONFIG_TASK_IO_ACCOUNTING=y")
    except PermissionError:
        return severe("reading taskstats needs CAP_NET_ADMIN", _suggest(target))
    except ParseError as err:
        return fail(f"the kernel answers in a form that is not known: {err}", "a newer colmet, or a kernel since 3.10")
    return good("the kernel answers")


def _suggest(target: Target) -> str:
    remedy = suggest("CAP_NET_ADMIN")
    return remedy if has_all() else f"`sudo colmet doctor --{target.side}` shows what root may; {remedy}"


def check_ends(target: Target) -> Finding:
    """Check that the kernel sends exit records: without them short tasks are not counted."""
    from colmet.node.kernel.netlink import Inbox
    from colmet.node.kernel.taskstats import ExitRecords

    try:
        ExitRecords(target.host, Inbox(1, 1024)).close()
    except BackendUnavailable as err:
        outside = "start colmet-node on the machine itself, or its container with --pid=host --userns=host --net=host"
        remedy = outside if "container" in str(err) else _suggest(target)
        return warn(f"{err}: tasks that live shorter than a sample are missing", remedy)
    return good("the kernel sends exit records")


def check_forks(target: Target) -> Finding:
    """Check that the kernel reports forks, by which ended tasks are attributed to jobs."""
    from colmet.node.kernel.forks import ForkEvents
    from colmet.node.kernel.netlink import Inbox

    try:
        ForkEvents(Inbox(1, 1024)).close()
    except BackendUnavailable as err:
        return warn(
            f"{err}: some short tasks are attributed to no job",
            "start colmet-node on the machine itself with CAP_NET_ADMIN, or its container with --pid=host --net=host; "
            "a kernel with CONFIG_PROC_EVENTS=y (`modprobe cn`)",
        )
    return good("the kernel reports forks")


# -- settings of the kernel --


def check_delays(target: Target) -> Finding:
    """Check kernel.task_delayacct, now and after the next boot."""
    try:
        value = _text(target.host, DELAYACCT)
    except FileNotFoundError:
        if release_of(target.host) >= (5, 14):
            return warn(f"there is no {DELAYACCT}: delays are not counted", "a kernel with CONFIG_TASK_DELAY_ACCT=y")
        if "nodelayacct" in _text(target.host, "/proc/cmdline").split():
            return warn("delays are not counted", "remove nodelayacct from the kernel's command line, and boot")
        return good("before Linux 5.14 delays are counted where the kernel has CONFIG_TASK_DELAY_ACCT=y")
    kept, against = _is_kept(target.host)
    keep = f"remove it from {against}, and {_KEEP}" if against else _KEEP
    if value == "0":
        what = "kernel.task_delayacct is 0: what tasks wait for block I/O, swap and reclaim is not counted"
        return warn(what, "`systemctl restart systemd-sysctl`" if kept and target.has_systemd else keep)
    if not kept:
        what = f"{against} sets it to 0" if against else "nothing sets it"
        return warn(f"kernel.task_delayacct is 1, but {what} at the next boot", keep)
    return good("kernel.task_delayacct is 1, and kept over a boot")


def check_waits(target: Target) -> Finding:
    """Check that no wait for a disk is counted as longer than the task lived: short tasks write to /var/tmp."""
    with contextlib.suppress(FileNotFoundError):
        if _text(target.host, DELAYACCT) == "0":
            return good("not looked at: kernel.task_delayacct is 0")
    command = Command([sys.executable, "-I", waits.__file__, _WAITS_IN, str(_WAITS_S)], deadline_s=_WAITS_S + 5.0)
    try:
        found = json.loads(command.run())
    except CommandFailed as err:
        raise Unchecked(str(err)) from err
    if found["waited_s"] is not None:
        return warn(
            f"the kernel counts waits that are none: a process of {found['age_s']:.2f} s is charged with a wait of "
            f"{found['waited_s']:.2f} s for a disk (Linux 6.12 and later). What a task cannot have waited is dropped, "
            "and block I/O delays of jobs are too small, or too large by times in which their tasks slept",
            "no setting helps; read io_pressure_some and read_bytes, write_bytes beside blkio_delay_total",
        )
    if not found["waits"]:
        return good(f"no process had to wait for the disk of {_WAITS_IN}: not known how waits are counted")
    return good("waits for disks are counted right, in a short test")


def release_of(host: Host) -> tuple[int, ...]:
    """Return the first two numbers of the kernel's release."""
    return tuple(map(int, re.findall(r"\d+", _text(host, "/proc/sys/kernel/osrelease"))[:2]))


def _is_kept(host: Host) -> tuple[bool, str]:
    """Return whether a boot turns kernel.task_delayacct on, and the file that turns it off."""
    files: dict[str, str] = {}  # the first of two with one name is used; files are read in the order of their names
    for folder in _SYSCTL_FOLDERS:
        with contextlib.suppress(OSError):
            for name in host.names(folder):
                if name.endswith(".conf"):
                    files.setdefault(name, f"{folder}/{name}")
    value, last = b"", ""
    for path in (*[files[name] for name in sorted(files)], "/etc/sysctl.conf"):
        with contextlib.suppress(OSError):
            for found in _SET.findall(host.read_start(path, 1 << 20)):
                value, last = found, path
    if value:
        return value != b"0", last if value == b"0" else ""
    try:
        return "delayacct" in _text(host, "/proc/cmdline").split(), ""
    except OSError:
        return False, ""


def check_perf(target: Target) -> Iterator[Finding]:
    """Check perf_event: whether the kernel has it, who may use it, and which hierarchy counts."""
    host, wanted = target.host, target.options.enable_perfhw
    say = fail if wanted else warn
    try:
        level = _text(host, PARANOID)
    except FileNotFoundError:
        yield say("this kernel has no perf events", "a kernel with CONFIG_PERF_EVENTS=y and CONFIG_CGROUP_PERF=y")
        return
    fine = True
    held = _held(target.pid if wanted else 0, host)
    if not held & {"CAP_PERFMON", "CAP_SYS_ADMIN"} and level not in ("-1", "0"):
        fine = False
        yield (severe if wanted else warn)(
            f"kernel.perf_event_paranoid is {level}, and there is no CAP_PERFMON",
            "give colmet-node CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8), as root of the machine has it; or `sysctl "
            "-w kernel.perf_event_paranoid=0`",
        )
    stranded = _stranded(host, "perf_event")
    if stranded:
        fine = False
        yield say(*stranded)
    if not fine:
        return
    where = "cgroup v1" if "perf_event" in mounts_of(host)[0].v1 else "cgroup v2"
    yield good(f"counts in {where}, paranoia {level}{'' if wanted else '; not asked for (--enable-perfhw)'}")


def _held(pid: int, host: Host) -> set[str]:
    """Return the capabilities of a process; those of this command if it is 0 or has ended."""
    from colmet.common.runtime.capabilities import NUMBERS

    for place in (pid or "self", "self"):
        try:
            match = re.search(r"^CapEff:\s*([0-9a-f]+)$", _text(host, f"/proc/{place}/status"), re.MULTILINE)
        except OSError:
            continue
        if match:
            mask = int(match[1], 16)
            with contextlib.suppress(OSError):
                if host.link(f"/proc/{place}/ns/user") != f"user:[{_NAMESPACES['user']}]":
                    return set()  # they are no rights over the machine
            return {name for name, number in NUMBERS.items() if mask >> number & 1}
    raise Unchecked("/proc has no capabilities of a process; is it mounted?")


def _controllers(host: Host) -> dict[str, tuple[int, bool]]:
    """Return the hierarchy of each controller, 0 for v2, and whether it is on; empty if the kernel has no list."""
    try:
        lines = _text(host, "/proc/cgroups").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        words = line.split()
        if len(words) == 4 and words[1].isdigit():
            found[words[0]] = int(words[1]), words[3] == "1"
    return found


def _stranded(host: Host, controller: str) -> tuple[str, str] | None:
    """Return finding and remedy if a controller is unusable: bound to an unmounted v1 hierarchy; else None."""
    hierarchy = _controllers(host).get(controller, (0, True))[0]
    if not hierarchy or controller in mounts_of(host)[0].v1:
        return None
    once = f"mkdir -p /run/held && mount -t cgroup -o {controller} held /run/held && umount /run/held"
    return (
        f"a cgroup v1 hierarchy that was unmounted still holds {controller}: nothing can count there",
        f"`{once}`, again until `grep {controller} /proc/cgroups` says 0",
    )


# -- cgroups --


def check_jobs(target: Target) -> Iterator[Finding]:
    """Check where jobs' cgroups are looked for, and what is there now."""
    from colmet.node.jobs.job import NODE_JOB
    from colmet.node.jobs.places import ABSENT, DEFAULT_PATTERN
    from colmet.node.main import find_jobs

    try:
        source = find_jobs(target.options, target.host)
    except OSError as err:
        yield fail(f"inotify: {err}", "`sysctl -w fs.inotify.max_user_instances=512`, and in /etc/sysctl.d")
        return
    try:
        jobs = source.scan().jobs
        states = source.describe()
    finally:
        source.close()
    here = [state for state in states if state.state != ABSENT and state.name != "none"]
    links = target.host.path(_OAR_LINKS)
    if not any(state.name != "none" for state in states):
        mount = "`mount -t cgroup2 none /sys/fs/cgroup`, or start the machine with systemd"
        yield fail("no cgroup is mounted", f"{mount}; in a container: -v /sys/fs/cgroup:/sys/fs/cgroup:ro")
    elif not here and target.options.cpuset_rootpath:
        missing = ", ".join(state.path for state in states)
        yield warn(
            f"--cpuset_rootpath {missing} does not exist; it is waited for",
            "leave the option out: jobs of OAR and Slurm are found by themselves; or name the directory that holds "
            "one directory a job. OAR 2 makes its own with the first job",
        )
    elif not here:
        yield warn(
            "no job's directory of OAR or Slurm is here; they may come with the first job",
            "run a job on this node and look again; where jobs' cgroups are elsewhere, name that with "
            "--cpuset_rootpath",
        )
    else:
        yield good(f"{', '.join(f'{state.name} in {state.path}' for state in here)}: {counted(len(jobs), 'jobs')} now")
    for state in here:
        if state.unmatched and not any(job.id != NODE_JOB for job in jobs):
            fits = re.search(DEFAULT_PATTERN, state.unmatched[0])
            yield warn(
                f"no directory in {state.path} matches --regex_job_id: {counted(len(state.unmatched), 'directories')}, "
                f"such as {state.unmatched[0]}",
                f"--regex_job_id {shlex.quote(DEFAULT_PATTERN)}, the default, matches it"
                if fits
                else "have the first group of the expression match the job id in such a name",
            )
    if os.path.islink(f"{links}/cpuset") and not os.path.exists(f"{links}/cpuset"):
        yield warn(
            f"{_OAR_LINKS}/cpuset leads nowhere",
            "OAR's job_resource_manager makes it again with the next job on this node",
        )


def check_controllers(target: Target) -> Iterator[Finding]:
    """Check that the cgroup controllers that count hold the jobs; without a job, the directories of jobs."""
    from colmet.node.jobs.controllers import distinct_controllers
    from colmet.node.main import find_jobs

    host = target.host
    source = find_jobs(target.options, host)
    try:
        found = distinct_controllers(host, source.scan().jobs, source.describe())
    finally:
        source.close()
    if not found:
        yield from _check_machine(host)
    for one in found:
        lacks, fine = [], True
        for name in one.lacks:
            why = _not_of_the_kernel(host, name)
            if why is None:
                lacks.append(name)
            else:
                fine = False
                yield warn(*why)
        missing = f"{one.text} have no {', '.join(lacks)} controller" if lacks else ""
        # only the memory controller has values without another source: the limit, the peak, page cache
        if "memory" in lacks or (lacks and one.version == 2):
            instead = ": memory is that of their processes, from /proc" if "memory" in lacks else ""
            yield warn(f"{missing}{instead}", one.remedy(lacks))
        elif fine:
            yield good(f"{one.text} are held by {', '.join(one.has)}{f', and {missing}' * bool(missing)}")


def _check_machine(host: Host) -> Iterator[Finding]:
    """Check that the mounted hierarchies have the controllers for future jobs."""
    from colmet.node.jobs.controllers import WANTED, WANTED_V2

    mounts, unified = mounts_of(host)
    lacks = [name for name, same in WANTED.items() if name not in mounts.v1 and same not in unified]
    names = [name for name in WANTED if name in mounts.v1] + [name for name in WANTED_V2 if name in unified]
    if mounts.unified is not None and not mounts.v1:
        lacks = list(dict.fromkeys([WANTED[name] for name in lacks]))
    for name in lacks:
        yield warn(
            *_not_of_the_kernel(host, name)
            or (f"the {name} controller is in no cgroup that is mounted", _mount(mounts))
        )
    if not lacks:
        yield good(f"{', '.join(names)} are there, and no job that they could hold")
    if mounts.v1 and not unified and "cpuset" not in mounts.v1 and release_of(host) >= _CPUSET_OPTIONAL:
        yield warn(
            "no hierarchy of cgroup v1 has cpuset, in which OAR 2 makes its jobs: kernels since Linux 6.12 may lack it",
            "boot with cgroup v2, and use OAR 3 or Slurm; or a kernel with CONFIG_CPUSETS_V1=y",
        )


def mounts_of(host: Host) -> tuple[Mounts, set[str]]:
    """Return the mounts of cgroups, and the controllers of v2."""
    from colmet.node.jobs.controllers import controllers_of
    from colmet.node.jobs.mounts import Mounts

    mounts = Mounts(host)
    mounts.refresh(anyway=True)
    mounts.close()
    return mounts, controllers_of(host, mounts.unified) if mounts.unified is not None else set()


def _mount(mounts: Mounts) -> str:
    """Return the remedy to mount a controller; a mount over hierarchies of v1 would hide them."""
    if not mounts.v1:
        return "mount cgroup2 (`mount -t cgroup2 none /sys/fs/cgroup`), as systemd does"
    return (
        "boot with cgroup v2 (without systemd.unified_cgroup_hierarchy=0 on the kernel's command line); kernels since "
        "Linux 6.12 may have it in v2 alone"
    )


def _not_of_the_kernel(host: Host, name: str) -> tuple[str, str] | None:
    """Return finding and remedy if this machine cannot have a controller for jobs; None if it can."""
    mounts, unified = mounts_of(host)
    if name in mounts.v1 or name in unified:
        return None
    legacy = {"io": "blkio"}.get(name, name)
    known = _controllers(host)
    if known.get(legacy, (0, True))[1] is False:
        return (
            f"the {name} controller is off",
            f"remove cgroup_disable={name} from the kernel's command line, or add cgroup_enable={name}, and boot",
        )
    if known and legacy not in known:
        return f"this kernel has no {name} controller", "another kernel; what it counts is missing"
    return _stranded(host, legacy)


def check_pressure(target: Target) -> Finding:
    """Check that the kernel has pressure stall information (PSI)."""
    try:
        _text(target.host, "/proc/pressure/cpu")
    except OSError as err:
        if err.errno not in (errno.ENOENT, errno.EOPNOTSUPP):
            raise
        return warn(
            "the kernel has no pressure stall information (PSI): the columns ..._pressure_... are missing",
            "`psi=1` on the kernel's command line (`grubby --update-kernel=ALL --args=psi=1`, or GRUB_CMDLINE_LINUX "
            "and `update-grub`), and boot; it requires CONFIG_PSI, Linux 4.20 or newer",
        )
    return good("the kernel has pressure stall information (PSI)")


def check_inotify(target: Target) -> Iterator[Finding]:
    """Check the limits of inotify."""
    for name, least in (("max_user_watches", _MIN_WATCHES), ("max_user_instances", _MIN_INSTANCES)):
        value = int(_text(target.host, f"/proc/sys/fs/inotify/{name}"))
        if value < least:
            yield warn(
                f"fs.inotify.{name} is {value}: a node with many jobs looks at each directory again and again",
                f"`echo 'fs.inotify.{name} = {4 * least}' > /etc/sysctl.d/60-colmet-{name}.conf && sysctl -p "
                f"/etc/sysctl.d/60-colmet-{name}.conf`",
            )


# -- rights --


def check_rights(target: Target) -> Finding:
    """Check the capabilities that the enabled backends require."""
    from colmet.node.system.privileges import CORE

    wanted = set(CORE).union(*[backend.capabilities for backend in target.backends])
    held = _held(target.pid, target.host)
    lacking = sorted(missing(wanted, bits(held)))
    who = f"process {target.pid}" if target.pid else "this command"
    if not lacking:
        return good(f"{who} has {', '.join(sorted(wanted & held))}")
    return (fail if target.pid else severe)(
        f"{who} lacks {', '.join(lacking)}",
        "start colmet-node as root of the machine. In its unit: `systemctl edit colmet-node`, [Service], "
        f"CapabilityBoundingSet={' '.join(sorted(wanted))}; in a container: "
        + " ".join([f"--cap-add {name.removeprefix('CAP_')}" for name in lacking]),
    )


def check_container(target: Target) -> Iterator[Finding]:
    """Check that this is the machine itself: a container has other processes and rights."""
    for name, number in _NAMESPACES.items():
        if target.host.link(f"/proc/self/ns/{name}") != f"{name}:[{number}]":
            yield fail(
                f"this is a container: its {name} namespace is not the machine's",
                "start colmet-node on the machine itself, or its container with "
                f"--{name}{'ns' * (name == 'user')}=host",
            )
    status = _text(target.host, "/proc/self/status")
    if re.search(r"^Seccomp:\s*[12]$", status, re.MULTILINE):
        yield warn(
            "a seccomp filter limits the system calls of this command: what fails here may be due to that",
            "run colmet doctor outside of it (docker: --security-opt seccomp=unconfined)",
        )
