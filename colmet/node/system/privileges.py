"""The capabilities that the agent keeps of root's: those for reading jobs, and those of its backends."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from colmet.common.config import cli
from colmet.common.host import capabilities
from colmet.common.host.capabilities import STRONGER, bits

log = logging.getLogger(__name__)

# Needed by any backend: the processes of jobs are read to attribute them to jobs.
CORE = frozenset(("CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE"))


def add_options(parser: cli.Options) -> None:
    """Declare --keep-privileges."""
    parser.add_argument(
        "--keep-privileges",
        action="store_true",
        help=cli.Rare("keep all rights of root (default: only those required for measuring; -v logs them)"),
    )


def choose(wanted: Iterable[str], held: int) -> frozenset[str]:
    """Return the wanted capabilities that can be kept.

    Args:
        wanted: names of capabilities.
        held: capabilities of the process now, a bit for each.
    """
    names = set(wanted)
    names |= {STRONGER[name] for name in STRONGER.keys() & names if not held & bits([name])}
    return frozenset(name for name in names if held & bits([name]))


def find_lacking(*names: str) -> list[str]:
    """Return the capabilities that this process has not over the machine."""
    return capabilities.missing(names, capabilities.held() if capabilities.hold_for_machine() else 0)


def suggest(*names: str) -> str:
    """Return how to start the agent so that the system permits what needs these capabilities, and is refused here."""
    lacking = find_lacking(*names)
    if not capabilities.hold_for_machine():
        return "start colmet-node outside of this user namespace (rootless container), as root of the machine"
    if not lacking:
        return "see which security module or seccomp filter refuses it (container: --security-opt seccomp=unconfined)"
    if withheld := capabilities.missing(lacking, capabilities.bounding()):
        given = " ".join([f"--cap-add {name.removeprefix('CAP_')}" for name in withheld])
        return f"start the container with {given} (unit: CapabilityBoundingSet=), or colmet-node outside of it"
    return f"start colmet-node as root, or give it {', '.join(lacking)}"


def drop(wanted: Iterable[str]) -> None:
    """Give up, for good, all capabilities but these and `CORE`. A process without CAP_SYS_PTRACE gives up nothing.

    Running threads keep theirs, so this precedes the start of any. Programs started later have no more capabilities
    than this thread. An error of the system is logged once, and the agent continues with unchanged privileges.

    Args:
        wanted: names of capabilities, as in capabilities(7).
    """
    try:
        held = capabilities.permitted()
        if not held:
            return
        if not held & bits(["CAP_SYS_PTRACE"]):
            # Without it the kernel refuses /proc/<pid>/io of each process with a capability that is not in effect
            # here (cap_ptrace_access_check of security/commoncap.c): root's jobs in a container, for instance.
            log.info("privileges kept: all, as CAP_SYS_PTRACE is missing")
            return
        names = choose(CORE.union(wanted), held)
        capabilities.keep(bits(names))
    except OSError as err:
        log.warning("cannot drop privileges, the agent keeps all it has: %s", err)
    else:
        log.info("privileges kept: %s", ",".join(sorted(names)) or "none")
