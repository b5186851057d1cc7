"""Run a command as a job, without a batch system: ``python -m dev.job 4242 COMMAND``, as root.

The command runs in cgroups named as OAR's, so colmet-node finds it without an option. The cgroups are removed when all
processes of the job have ended.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from dev.live import Failed, JobRoot, mounts

ROOTS = {1: "oar", 2: "oar.slice"}  # directory of OAR's jobs by version of cgroups
CONTROLLERS = ("memory", "blkio", "pids")  # of cgroup v1, beside those of the CPU
MIB = 1 << 20


def directory_name(version: int, user: str, job: int) -> str:
    """Return the name of the job's directory: OAR 2 makes USER_JOB in cgroup v1, OAR 3 oar-uUID-jJOB in cgroup v2.

    Raises:
        Failed: no such user.
    """
    if version == 1:
        return f"{user}_{job}"
    try:
        return f"oar-u{pwd.getpwnam(user).pw_uid}-j{job}"
    except KeyError as err:
        raise Failed(f"there is no user {user} here: give --user with one that exists") from err


def limit_memory(path: Path, limit_bytes: int) -> None:
    """Limit the memory of the job whose cgroup is `path`.

    Raises:
        Failed: no memory controller.
    """
    memory = next((point for point, options in mounts("cgroup") if "memory" in options), None)
    try:
        if memory is not None:
            Path(memory, *path.parts[-2:], "memory.limit_in_bytes").write_text(str(limit_bytes))
            return
        for parent in (path.parent.parent, path.parent):
            (parent / "cgroup.subtree_control").write_text("+memory")
        (path / "memory.max").write_text(str(limit_bytes))
    except OSError as err:
        raise Failed(f"cannot limit the memory of {path}: {err.strerror}; leave out --memory") from err


def run(job: int, user: str, limit_mib: int | None, command: Sequence[str]) -> int:
    """Run a command as a job; return its exit status, of a signal as a shell does.

    Raises:
        Failed: no cgroup can be made here, or there is no such user.
    """
    try:
        root = JobRoot(ROOTS, CONTROLLERS, shared=True)
    except Failed as err:
        raise Failed(f"{err}. Run it as root of the machine, or in a container started with --privileged") from err
    with contextlib.closing(root):
        cgroup = root.job(directory_name(root.version, user, job))
        if limit_mib is not None:
            limit_memory(cgroup.path, limit_mib * MIB)
        try:
            status = cgroup.start(command).wait()
            return status if status >= 0 else 128 - status
        finally:
            for tid in cgroup.tids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(tid, signal.SIGKILL)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m dev.job``; return the exit status of the command, 1 without a job."""
    parser = argparse.ArgumentParser(prog="python -m dev.job", description=__doc__)
    parser.add_argument("--user", default=os.environ.get("SUDO_USER") or "root", help="owner of the job")
    parser.add_argument("--memory", type=int, metavar="MIB", help="limit of its memory")
    parser.add_argument("job", type=int, help="number of the job")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="its program, with arguments")
    options = parser.parse_args(argv)
    if not options.command:
        parser.error("name the command that is the job")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return run(options.job, options.user, options.memory, options.command)
    except Failed as err:
        print(f"job: {err}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
