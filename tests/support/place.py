"""What the place where the tests run allows, found by trying: a machine, a chroot, a container, root or another user.

A test that needs something of the place says so by a fixture of tests/conftest.py (`root`, `mounts`, `other_user`,
`other_owner`), or calls a function of this module; tests/project/test_place.py finds tests that do neither. Where it is
missing the test skips with the reason.

In CI there are two kinds of skips. What `.ci/run` could have installed or set up is a failure there
(`cannot_run`). What the place does not allow is a failure only where CI runs with all rights (`skip_refused`).
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import socket
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

NOBODY = 65534
REMEDY = "run as root, in a container with --privileged"
NO_MOUNT = f"no mount is allowed: {REMEDY}"
# Numbers of linux/capability.h.
CAPABILITIES = {
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_NET_ADMIN": 12,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_TIME": 25,
}


def cannot_run(reason: str) -> NoReturn:
    """Skip a test that lacks something which CI can install or set up: there it is a failure."""
    if os.environ.get("CI"):
        pytest.fail(f"this has to run in CI: {reason}")
    pytest.skip(reason)


def skip_refused(reason: str) -> NoReturn:
    """Skip a test that the place does not allow; where CI has all rights, that is a failure.

    .ci/run sets COLMET_PLACE where it runs the tests with few rights.
    """
    if os.environ.get("CI") and not os.environ.get("COLMET_PLACE"):
        pytest.fail(f"this has to run in CI: {reason}")
    pytest.skip(reason)


def require_programs(*names: str) -> None:
    """Skip the test where one of these programs is missing."""
    if missing := [name for name in names if shutil.which(name) is None]:
        cannot_run(f"no {', '.join(missing)}")


def require_ipv6() -> None:
    """Skip the test where ::1 is no address of this machine."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        skip_refused("no IPv6")


def mount_tmpfs(path: Path, options: str) -> None:
    """Mount a file system in memory on a directory; skip the test where that is not allowed."""
    require_programs("mount")
    command = ["mount", "-t", "tmpfs", "-o", options, "colmet-test", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        skip_refused(NO_MOUNT)


def _in_child(action: Callable[[], object]) -> str:
    """Return the error of an action in a child process; empty where it succeeds."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python warns of threads beside it: those of libraries, without locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            action()
        except OSError as err:
            os.write(writer, (err.strerror or str(err)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        error = file.read()
    os.waitpid(pid, 0)
    return error


@functools.cache
def mount_refusal() -> str:
    """Return why no file system can be mounted in a mount namespace of its own; empty where it can."""
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return "no unshare, no mount"
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "colmet-test", "/var/tmp"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if not done.returncode:
        return ""
    if "propagation" in done.stderr:
        return "/ is no mount point: bind the root directory to itself before chroot"
    return NO_MOUNT


@functools.cache
def user_refusal() -> str:
    """Return why a process cannot become another user; empty where it can."""

    def become() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    return f"no process can become another user: {REMEDY}" if _in_child(become) else ""


@functools.cache
def owner_refusal() -> str:
    """Return why a file cannot get another owner; empty where it can."""

    def give() -> None:
        descriptor = os.memfd_create("colmet-test")
        os.fchown(descriptor, 12345, 12345)

    return f"no file can get another owner: {REMEDY}" if _in_child(give) else ""


@functools.cache
def machine_refusal() -> str:
    """Return what this process lacks of root's rights over the machine itself; empty where it has all."""
    if refusal := user_refusal() or owner_refusal():
        return refusal
    held = int(re.search(r"^CapEff:\s+(\w+)$", Path("/proc/self/status").read_text(), re.M)[1], 16)
    if missing := [name for name, number in CAPABILITIES.items() if not held >> number & 1]:
        return f"not root of the machine, but without {', '.join(missing)}: {REMEDY}"
    try:
        is_machine = Path("/proc/2/comm").read_text() == "kthreadd\n"
    except OSError:
        is_machine = False
    # The initial user namespace maps each number to itself.
    if not is_machine or Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        return "not root of the machine, but in a container: start it with --pid=host and --userns=host"
    return ""


def require(refusal: str) -> None:
    """Skip the test for this reason, one of the functions above; go on where it is empty."""
    if refusal:
        skip_refused(refusal)
