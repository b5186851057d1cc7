"""The rights that the agent keeps of root's: what reading jobs takes, and what its backends ask for."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from colmet.common.runtime import capabilities, cli
from colmet.common.runtime.capabilities import bits

log = logging.getLogger(__name__)

# Whatever is measured: the processes of jobs are looked at, to find out whose they are.
CORE = frozenset(("CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE"))


def add_options(parser: cli.Options) -> None:
    """Declare --keep-privileges."""
    parser.add_argument(
        "--keep-privileges",
        action="store_true",
        help=cli.Rare("keep all rights of root (default: only those that measuring needs; -v logs them)"),
    )


def choose(wanted: Iterable[str], held: int) -> frozenset[str]:
    """Return what of the rights that are wanted can be kept.

    Args:
        wanted: names of capabilities.
        held: what the process may use now, a bit for each.
    """
    names = set(wanted)
    if "CAP_PERFMON" in names and not held & bits(["CAP_PERFMON"]):  # before Linux 5.8 it is a part of this one
        names.add("CAP_SYS_ADMIN")
    return frozenset(name for name in names if held & bits([name]))


def drop(wanted: Iterable[str]) -> None:
    """Give up, for good, all rights but these and `CORE`. A process without rights has nothing to give up.

    Threads that run already keep theirs, so this comes before any is started. Programs that are started later have no
    more rights than this thread. What the system refuses is logged once, and the agent goes on as it is.

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
