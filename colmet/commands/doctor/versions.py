"""What the running kernel cannot measure of jobs, by its version."""

from __future__ import annotations

from colmet.commands.doctor.kernel import mounts_of, release_of
from colmet.commands.doctor.target import Target
from colmet.common.runtime.checks import Finding, good

# Columns of cgroup_default that cgroup v2 has since that version of Linux.
SINCE_V2 = {
    "..._pressure_...": (4, 20),
    "memory_refault_...": (5, 9),
    "cpu_pressure_full": (5, 13),
    "memory_peak": (5, 19),
    "pids_peak": (6, 1),
}
SINCE_V1 = {"memory_refault_...": (5, 9), "pids_peak": (6, 1)}
NEVER_V1 = ("..._pressure_...",)
NO_IO_V1 = ((5, 16), (6, 4))  # first and last: blkio counts only for groups with a limit
IO_OF_LIMITED_DISKS_V1 = (6, 10)  # and only for disks that have a limit somewhere


def lacking(release: tuple[int, ...], is_v1: bool) -> list[str]:
    """Return the columns of cgroup_default that a kernel does not have."""
    since = SINCE_V1 if is_v1 else SINCE_V2
    lacks = [name for name, first in since.items() if release < first]
    if is_v1:
        lacks += NEVER_V1
        if NO_IO_V1[0] <= release <= NO_IO_V1[1] or release >= IO_OF_LIMITED_DISKS_V1:
            lacks.append("io_... without a blkio.throttle limit")
    return lacks


def check_columns(target: Target) -> Finding:
    """List the columns of jobs that this version of the kernel lacks; they are missing, not 0."""
    release = release_of(target.host)
    mounts, unified = mounts_of(target.host)
    is_v1 = bool(mounts.v1) and "memory" not in unified
    name = f"Linux {'.'.join(map(str, release))} with cgroup {'v1' if is_v1 else 'v2'}"
    lacks = lacking(release, is_v1)
    return good(
        f"{name} lacks {', '.join(lacks)}: these columns are missing" if lacks else f"{name} has all columns of jobs"
    )
