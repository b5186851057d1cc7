"""The rights that the agent keeps of root's: what reading jobs takes, and what its backends ask for."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterable

from colmet.common import cli

log = logging.getLogger(__name__)

# Whatever is measured: the processes of jobs are looked at, to find out whose they are.
CORE = frozenset(("CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE"))

# include/uapi/linux/capability.h
NUMBERS = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_NET_ADMIN": 12,
    "CAP_SYS_RAWIO": 17,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_PERFMON": 38,
}
_VERSION_3 = 0x20080522  # two words for each set
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4


def add_options(parser: cli.Options) -> None:
    """Declare --keep-privileges."""
    parser.add_argument(
        "--keep-privileges",
        action="store_true",
        help=cli.Rare("keep all rights of root (default: only those that measuring needs; -v logs them)"),
    )


def choose(wanted: Iterable[str], held: int) -> frozenset[str]:
    """What of the rights that are wanted can be kept.

    Args:
        wanted: names of capabilities.
        held: what the process may use now, a bit for each.
    """
    names = set(wanted)
    if "CAP_PERFMON" in names and not held & _bit("CAP_PERFMON"):  # before Linux 5.8 it is a part of this one
        names.add("CAP_SYS_ADMIN")
    return frozenset(name for name in names if held & _bit(name))


def drop(wanted: Iterable[str]) -> None:
    """Give up, for good, all rights but these and `CORE`. Who has none has nothing to give up.

    Threads that run already keep theirs, so this comes before any is started. Programs that are started later have no
    more rights than this thread. What the system refuses is told once, and the agent goes on as it is.

    Args:
        wanted: names of capabilities, as in capabilities(7).
    """
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
        words = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable of 0 to 31; the same of 32 to 63
        _check(libc.capget(header, words))
        held = words[1] | words[4] << 32
        if not held:
            return
        names = choose(CORE.union(wanted), held)
        kept = sum(_bit(name) for name in names)
        _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _check(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
        _limit_programs(libc, kept)
        for at in (0, 3):
            word = kept >> 32 if at else kept & 0xFFFFFFFF
            words[at : at + 3] = [word, word, 0]
        _check(libc.capset(header, words))
    except OSError as err:
        log.warning("cannot drop privileges, the agent keeps what it has: %s", err)
    else:
        log.info("privileges kept: %s", ",".join(sorted(names)) or "none")


def _limit_programs(libc: ctypes.CDLL, kept: int) -> None:
    """Take the rest out of the bounding set, too, where we may: systemd's units have done it before us."""
    number = 0
    while libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) >= 0:  # fails beyond the last one that the kernel knows
        if not kept >> number & 1 and libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            return
        number += 1


def _bit(name: str) -> int:
    return 1 << NUMBERS[name]


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
