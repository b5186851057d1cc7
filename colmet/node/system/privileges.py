"""The capabilities that the agent keeps of root's: those for reading jobs, and those of its backends."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from colmet.common.runtime import capabilities, cli
from colmet.common.runtime.capabilities import bits

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
    if "CAP_PERFMON" in names and not held & bits(["CAP_PERFMON"]):  # before Linux 5.8 it is a part of this one
        names.add("CAP_SYS_ADMIN")
    return frozenset(name for name in names if held & bits([name]))


def drop(wanted: Iterable[str]) -> None:
    """Give up, for good, all capabilities but these and `CORE`. A process without any gives up nothing.

    Running threads keep theirs, so this precedes the start of any. Programs started later have no more capabilities
    than this thread. An error of the system is logged once, and the agent continues with unchanged privileges.

    Args:
        wanted: names of capabilities, as in capabilities(7).
    """
    try:
        held = capabilities.held()
        if not held:
            return
        names = choose(CORE.union(wanted), held)
        capabilities.keep(bits(names))
    except OSError as err:
        log.warning("cannot drop privileges, the agent keeps all it has: %s", err)
    else:
        log.info("privileges kept: %s", ",".join(sorted(names)) or "none")
