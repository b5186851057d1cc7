"""Checks of what a node requires: of the kernel, of jobs' cgroups, of its rights; and of its backends."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shlex
from collections.abc import Iterator

from colmet.commands.doctor.target import Target
from colmet.common.daemon import checks
from colmet.common.errors import BackendUnavailable, ColmetError
from colmet.common.host.capabilities import NUMBERS, bits, has_all, missing, suggest
from colmet.common.host.host import Host
from colmet.common.text import counted, document
from colmet.node.backend import InputBackend

DELAYACCT = "/proc/sys/kernel/task_delayacct"
_KEEP = (
    "`echo 'kernel.task_delayacct = 1' > /etc/sysctl.d/60-colmet.conf && sysctl -p /etc/sysctl.d/60-colmet.conf`; "
    "jobs that run already are not counted"
)
_MIN_WATCHES, _MIN_INSTANCES = 16384, 64
BACKEND_S = 20.0
_NAMESPACES = {"user": 0xEFFFFFFD, "pid": 0xEFFFFFFC}  # the machine's: include/linux/proc_ns.h
_OAR_LINKS = "/dev/oar_cgroups_links"


def _text(host: Host, path: str) -> str:
    try:
        return host.read_start(path, 1 << 20).decode("ascii", "replace").strip()
    except FileNotFoundError as err:
        if path.startswith("/proc/") and not host.is_directory("/proc/self"):  # says nothing of the kernel
            raise checks.Unchecked("/proc is not mounted") from err
        raise


def check_accounting(target: Target) -> checks.Finding:
    """Check that the kernel adds up the tasks of each job."""
    from colmet.node.kernel.job_accounting import JobAccounting
    from colmet.node.main import find_jobs

    backends = (target.status or {}).get("backends", ())
    agents = [one for one in backends if one["name"] == "taskstats" and one["on"]]
    try:
        with contextlib.closing(find_jobs(target.options, target.host)) as source:
            if not any(agent["counters"].get("kernel_accounting_on") for agent in agents):
                JobAccounting(source.hierarchies(), "").close()
    except (BackendUnavailable, OSError) as err:
        found, _, remedy = str(err).partition("; ")
        text = f"{found}: tasks are added up from netlink, which misses part of what short ones use"
        return checks.warn(text, remedy or f"see {document('inputs/taskstats.md')}")
    if agents and not any(agent["counters"].get("kernel_accounting_on") for agent in agents):
        text = "the running agent adds up tasks from netlink, though this kernel takes the programs"
        return checks.warn(text, "its log says why, in the line with `added up from netlink`; start it again")
    return checks.good("the kernel adds up the tasks of each job")


def check_ends(target: Target) -> checks.Finding:
    """Check that the kernel sends exit records: without them short tasks are not counted."""
    from colmet.node.kernel.netlink import Inbox
    from colmet.node.kernel.taskstats import ExitRecords

    try:
        ExitRecords(target.host, Inbox(1, 1024)).close()
    except BackendUnavailable as err:
        remedy = suggest("CAP_NET_ADMIN")
        if "container" in str(err):
            remedy = (
                "start colmet-node on the machine itself, or its container with --pid=host --userns=host --net=host"
            )
        elif not has_all():
            remedy = f"`sudo colmet doctor --{target.side}` shows what root may; {remedy}"
        return checks.warn(f"{err}: tasks that live shorter than a sample are missing", remedy)
    return checks.good("the kernel sends exit records")


def check_forks(target: Target) -> checks.Finding:
    """Check that the kernel reports forks, by which ended tasks are attributed to jobs."""
    from colmet.node.kernel.netlink import Inbox
    from colmet.node.kernel.task_source import ForkEvents

    try:
        ForkEvents(Inbox(1, 1024)).close()
    except BackendUnavailable as err:
        return checks.warn(
            f"{err}: some short tasks are attributed to no job",
            "start colmet-node on the machine itself with CAP_NET_ADMIN, or its container with --pid=host --net=host; "
            "a kernel with CONFIG_PROC_EVENTS=y (`modprobe cn`)",
        )
    return checks.good("the kernel reports forks")


# -- settings of the kernel --


def check_delays(target: Target) -> checks.Finding:
    """Check kernel.task_delayacct."""
    try:
        value = _text(target.host, DELAYACCT)
    except FileNotFoundError:
        return checks.good("delays are counted where the kernel has CONFIG_TASK_DELAY_ACCT=y")
    if value == "0":
        what = "kernel.task_delayacct is 0: what tasks wait for block I/O, swap and reclaim is not counted"
        return checks.warn(what, _KEEP)
    return checks.good("kernel.task_delayacct is 1")


def _held(pid: int, host: Host) -> set[str]:
    """Return the capabilities of a process; those of this command if it is 0 or has ended."""
    for place in (pid or "self", "self"):
        match = None
        with contextlib.suppress(OSError):
            match = re.search(r"^CapEff:\s*([0-9a-f]+)$", _text(host, f"/proc/{place}/status"), re.MULTILINE)
        if match:
            mask = int(match[1], 16)
            with contextlib.suppress(OSError):
                if host.link(f"/proc/{place}/ns/user") != f"user:[{_NAMESPACES['user']}]":
                    return set()  # they are no rights over the machine
            return {name for name, number in NUMBERS.items() if mask >> number & 1}
    raise checks.Unchecked("/proc has no capabilities of a process; is it mounted?")


# -- cgroups --


def check_jobs(target: Target) -> Iterator[checks.Finding]:
    """Check where jobs' cgroups are looked for, and what is there now."""
    from colmet.node.jobs.job import NODE_JOB
    from colmet.node.jobs.places import ABSENT, DEFAULT_PATTERN
    from colmet.node.main import find_jobs

    try:
        source = find_jobs(target.options, target.host)
    except OSError as err:
        yield checks.fail(f"inotify: {err}", "`sysctl -w fs.inotify.max_user_instances=512`, and in /etc/sysctl.d")
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
        yield checks.fail("no cgroup is mounted", f"{mount}; in a container: -v /sys/fs/cgroup:/sys/fs/cgroup:ro")
    elif not here and target.options.cpuset_rootpath:
        missing = ", ".join(state.path for state in states)
        yield checks.warn(
            f"--cpuset_rootpath {missing} does not exist; it is waited for",
            "leave the option out: jobs of OAR and Slurm are found by themselves; or name the directory that holds "
            "one directory a job. OAR 2 makes its own with the first job",
        )
    elif not here:
        yield checks.warn(
            "no job's directory of OAR or Slurm is here; they may come with the first job",
            "run a job on this node and look again; where jobs' cgroups are elsewhere, name that with "
            "--cpuset_rootpath",
        )
    else:
        yield checks.good(
            f"{', '.join(f'{state.name} in {state.path}' for state in here)}: {counted(len(jobs), 'jobs')} now"
        )
    for state in here:
        if state.unmatched and not any(job.id != NODE_JOB for job in jobs):
            fits = re.search(DEFAULT_PATTERN, state.unmatched[0])
            yield checks.warn(
                f"no directory in {state.path} matches --regex_job_id: {counted(len(state.unmatched), 'directories')}, "
                f"such as {state.unmatched[0]}",
                f"--regex_job_id {shlex.quote(DEFAULT_PATTERN)}, the default, matches it"
                if fits
                else "have the first group of the expression match the job id in such a name",
            )
    if os.path.islink(f"{links}/cpuset") and not os.path.exists(f"{links}/cpuset"):
        yield checks.warn(
            f"{_OAR_LINKS}/cpuset leads nowhere",
            "OAR's job_resource_manager makes it again with the next job on this node",
        )


def check_controllers(target: Target) -> Iterator[checks.Finding]:
    """Check that the cgroup controllers that count hold the jobs."""
    from colmet.node.jobs.controllers import distinct_controllers
    from colmet.node.main import find_jobs

    host = target.host
    source = find_jobs(target.options, host)
    try:
        found = distinct_controllers(host, source.scan().jobs, source.describe())
    finally:
        source.close()
    if not found:
        yield checks.good("no directory of jobs is here yet")
    for one in found:
        missing = f"{one.text} have no {', '.join(one.lacks)} controller" if one.lacks else ""
        # only the memory controller has values without another source: the limit, the peak, page cache
        if "memory" in one.lacks or (one.lacks and one.version == 2):
            instead = ": memory is that of their processes, from /proc" if "memory" in one.lacks else ""
            yield checks.warn(f"{missing}{instead}", one.remedy(one.lacks))
        else:
            yield checks.good(f"{one.text} are held by {', '.join(one.has)}{f', and {missing}' * bool(missing)}")


def check_pressure(target: Target) -> checks.Finding:
    """Check that the kernel has pressure stall information (PSI)."""
    try:
        _text(target.host, "/proc/pressure/cpu")
    except OSError as err:
        if err.errno not in (errno.ENOENT, errno.EOPNOTSUPP):
            raise
        return checks.warn(
            "the kernel has no pressure stall information (PSI): the columns ..._pressure_... are missing",
            "`psi=1` on the kernel's command line (`grubby --update-kernel=ALL --args=psi=1`, or GRUB_CMDLINE_LINUX "
            "and `update-grub`), and boot; it requires CONFIG_PSI, Linux 4.20 or newer",
        )
    return checks.good("the kernel has pressure stall information (PSI)")


def check_inotify(target: Target) -> Iterator[checks.Finding]:
    """Check the limits of inotify."""
    for name, least in (("max_user_watches", _MIN_WATCHES), ("max_user_instances", _MIN_INSTANCES)):
        value = int(_text(target.host, f"/proc/sys/fs/inotify/{name}"))
        if value < least:
            yield checks.warn(
                f"fs.inotify.{name} is {value}: a node with many jobs looks at each directory again and again",
                f"`echo 'fs.inotify.{name} = {4 * least}' > /etc/sysctl.d/60-colmet-{name}.conf && sysctl -p "
                f"/etc/sysctl.d/60-colmet-{name}.conf`",
            )


# -- rights --


def check_rights(target: Target) -> checks.Finding:
    """Check the capabilities that the enabled backends require."""
    from colmet.common.host.capabilities import CORE

    wanted = set(CORE).union(*[backend.capabilities for backend in target.backends])
    held = _held(target.pid, target.host)
    lacking = sorted(missing(wanted, bits(held)))
    who = f"process {target.pid}" if target.pid else "this command"
    if not lacking:
        return checks.good(f"{who} has {', '.join(sorted(wanted & held))}")
    return (checks.fail if target.pid else checks.severe)(
        f"{who} lacks {', '.join(lacking)}",
        "start colmet-node as root of the machine. In its unit: `systemctl edit colmet-node`, [Service], "
        f"CapabilityBoundingSet={' '.join(sorted(wanted))}; in a container: "
        + " ".join([f"--cap-add {name.removeprefix('CAP_')}" for name in lacking]),
    )


def check_container(target: Target) -> Iterator[checks.Finding]:
    """Check that this is the machine itself: a container has other processes and rights."""
    for name, number in _NAMESPACES.items():
        if target.host.link(f"/proc/self/ns/{name}") != f"{name}:[{number}]":
            yield checks.fail(
                f"this is a container: its {name} namespace is not the machine's",
                "start colmet-node on the machine itself, or its container with "
                f"--{name}{'ns' * (name == 'user')}=host",
            )
    status = _text(target.host, "/proc/self/status")
    if re.search(r"^Seccomp:\s*[12]$", status, re.MULTILINE):
        yield checks.warn(
            "a seccomp filter limits the system calls of this command: what fails here may be due to that",
            "run colmet doctor outside of it (docker: --security-opt seccomp=unconfined)",
        )


# -- measured here --


def check_backends(target: Target) -> Iterator[checks.Finding]:
    """Open each enabled backend as the daemon does: devices, files, drivers, libraries, programs that answer."""
    for backend in target.backends:
        on, off = type(backend).switches()
        without = (
            f"start with {off}" if off else f"start without {on}" if on else f"see {document('troubleshooting.md')}"
        )
        try:
            warnings = checks.bounded(functools.partial(_open, backend), BACKEND_S)
        except BackendUnavailable as err:
            found, mark, remedy = str(err).partition(" Remedy: ")
            if not mark:
                found, _, remedy = str(err).partition("; ")
            yield checks.severe(f"{backend.name}: {found.rstrip('.')}", remedy or without)
        except checks.TimedOut as err:
            yield checks.severe(
                f"{backend.name}: {err}", f"what it asks hangs: a device, a driver or a program; {without}"
            )
        except (ColmetError, OSError) as err:
            yield checks.severe(f"{backend.name}: {err}", without)
        else:
            yield checks.good(f"{backend.name}: can measure")
            for text in warnings if backend.name != "taskstats" else ():  # other checks report them
                yield checks.warn(f"{backend.name}: {text}", without)


def _open(backend: InputBackend) -> list[str]:
    try:
        backend.open()
    finally:
        backend.close()
    return checks.take_warnings()
