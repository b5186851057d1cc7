"""Linux capabilities: those of this process, those that it can get, those that the agent keeps, and dropping."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path

from colmet.common.errors import ConfigError

log = logging.getLogger(__name__)

# include/uapi/linux/capability.h
NUMBERS = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_NET_ADMIN": 12,
    "CAP_SYS_RAWIO": 17,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}
# A capability that includes another one: before Linux 5.8 there is neither.
STRONGER = {"CAP_PERFMON": "CAP_SYS_ADMIN", "CAP_BPF": "CAP_SYS_ADMIN"}
# Needed by any backend: the processes of jobs are read to attribute them to jobs.
CORE = frozenset(("CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE"))
_MACHINE = "user:[4026531837]"  # the first user namespace: PROC_USER_INIT_INO of include/linux/proc_ns.h
_VERSION_3 = 0x20080522  # two words for each set
_PR_SET_KEEPCAPS = 8
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4


def bits(names: Iterable[str]) -> int:
    """Return a set of capabilities as the kernel's bit mask."""
    return sum({1 << NUMBERS[name] for name in names})


def held() -> int:
    """Return the effective capabilities of this thread, a bit for each."""
    _, words = _read(ctypes.CDLL(None, use_errno=True))
    return int(words[0] | words[3] << 32)


def permitted() -> int:
    """Return the capabilities that this thread may have in effect, a bit for each."""
    _, words = _read(ctypes.CDLL(None, use_errno=True))
    return int(words[1] | words[4] << 32)


def bounding() -> int:
    """Return the capabilities that a program started here can have at most, root's too, a bit for each."""
    libc, found, number = ctypes.CDLL(None, use_errno=True), 0, 0
    while (is_in := libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0)) >= 0:  # fails beyond the kernel's last one
        found |= is_in << number
        number += 1
    return found


def has_all() -> bool:
    """Return whether no program started here, with `sudo` say, can have a capability that this process lacks."""
    return not bounding() & ~held()


def hold_for_machine() -> bool:
    """Return whether capabilities here are rights over the machine: those of another user namespace are not."""
    try:
        return os.readlink("/proc/self/ns/user") == _MACHINE
    except OSError:  # /proc is not mounted
        return True


def missing(names: Iterable[str], mask: int) -> list[str]:
    """Return the names of capabilities neither in a set themselves nor by a stronger one, in their order."""
    return sorted(name for name in names if not mask & bits([name, STRONGER.get(name, name)]))


def keep(kept: int) -> None:
    """Drop, for good, all capabilities of this thread but `kept`, a bit for each; its child processes get no more.

    OSError: the system refuses; some may be gone.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    _limit_programs(libc, kept)
    header, words = _read(libc)
    for at in (0, 3):
        word = kept >> 32 if at else kept & 0xFFFFFFFF
        words[at : at + 3] = [word, word, 0]
    _check(libc.capset(header, words))


def become(uid: int, group: int, groups: Iterable[int], kept: int) -> None:
    """Change to another user, its groups and capabilities, a bit for each, for good; those not held are not kept.

    Raises:
        OSError: the system refuses; user and groups are as before.
    """
    before, kept = (os.getgid(), os.getgroups()), kept & permitted()
    try:
        os.setgroups(list(groups))
        os.setgid(group)
        if uid == os.geteuid():
            return
        _check(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
        os.setuid(uid)  # refused in a user namespace without this user
    except OSError:
        with contextlib.suppress(OSError):
            os.setgid(before[0])
            os.setgroups(before[1])
        raise
    keep(kept)


def _read(libc: ctypes.CDLL) -> tuple[ctypes.Array[ctypes.c_uint32], ctypes.Array[ctypes.c_uint32]]:
    """Return capset(2)'s header, and effective, permitted and inheritable sets: of 0 to 31, and of 32 to 63."""
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    words = (ctypes.c_uint32 * 6)()
    _check(libc.capget(header, words))
    return header, words


def _limit_programs(libc: ctypes.CDLL, kept: int) -> None:
    """Remove the rest from the bounding set, too, if permitted: systemd's units have done it before."""
    rest = bounding() & ~kept
    while rest and libc.prctl(_PR_CAPBSET_DROP, rest.bit_length() - 1, 0, 0, 0) >= 0:
        rest &= ~(1 << rest.bit_length() - 1)


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def become_owner(*paths: str) -> None:
    """As root, become the user who can change the folder of one of these files, for good; anybody else stays.

    Raises:
        ConfigError: these are several users, or the system refuses; nothing is changed.
    """
    if os.geteuid():
        return
    owners = {uid: folder for uid, folder in map(_owner, paths) if uid}
    if len(owners) > 1:
        raise ConfigError(f"{' and '.join(owners.values())} belong to different users: give paths of one user")
    for uid, folder in owners.items():
        try:
            entry = pwd.getpwuid(uid)
            name, group, groups = entry.pw_name, entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid)
        except KeyError:
            name, group, groups = f"#{uid}", os.stat(folder).st_gid, []
        try:
            become(uid, group, groups, 0)
        except OSError as err:
            raise ConfigError(
                f"{folder} belongs to user {name}, whom root cannot become here ({err.strerror}): run this as that "
                f"user, as with sudo -u {name}"
            ) from err


def _owner(path: str) -> tuple[int, str]:
    """Return the first user other than root who can change a folder on the way to a file, and that folder; else 0."""
    here = Path(os.path.realpath(os.path.dirname(os.path.abspath(path))))
    for folder in [*reversed(here.parents), here]:
        try:
            status = os.stat(folder)
        except OSError:  # the command reports it
            break
        if status.st_uid:
            return status.st_uid, str(folder)
        others = status.st_mode & (stat.S_IWOTH | (stat.S_IWGRP if status.st_gid else 0))
        if others and not status.st_mode & stat.S_ISVTX:
            raise ConfigError(
                f"{folder}: users other than root can write there, and could have root change other files: run this as "
                "the user of the collector, as with sudo -u colmet"
            )
    return 0, ""


def choose(wanted: Iterable[str], held: int) -> frozenset[str]:
    """Return the wanted capabilities that can be kept of those held, a bit for each."""
    names = set(wanted)
    names |= {STRONGER[name] for name in STRONGER.keys() & names if not held & bits([name])}
    return frozenset(name for name in names if held & bits([name]))


def find_lacking(*names: str) -> list[str]:
    """Return the capabilities that this process has not over the machine."""
    return missing(names, held() if hold_for_machine() else 0)


def suggest(*names: str) -> str:
    """Return how to start the agent so that the system permits what needs these capabilities, and is refused here."""
    lacking = find_lacking(*names)
    if not hold_for_machine():
        return "start colmet-node outside of this user namespace (rootless container), as root of the machine"
    if not lacking:
        return "see which security module or seccomp filter refuses it (container: --security-opt seccomp=unconfined)"
    if withheld := missing(lacking, bounding()):
        given = " ".join([f"--cap-add {name.removeprefix('CAP_')}" for name in withheld])
        return f"start the container with {given} (unit: CapabilityBoundingSet=), or colmet-node outside of it"
    return f"start colmet-node as root, or give it {', '.join(lacking)}"


def drop(wanted: Iterable[str]) -> None:
    """Give up, for good, all capabilities but these and `CORE`. A process without CAP_SYS_PTRACE gives up nothing.

    Running threads keep theirs, so this precedes the start of any. Programs started later have no more capabilities
    than this thread. An error of the system is logged once, and the agent continues with unchanged privileges.
    """
    try:
        held = permitted()
        if not held:
            return
        if not held & bits(["CAP_SYS_PTRACE"]):
            # Without it the kernel refuses /proc/<pid>/io of each process with a capability that is not in effect
            # here (cap_ptrace_access_check of security/commoncap.c): root's jobs in a container, for instance.
            log.info("privileges kept: all, as CAP_SYS_PTRACE is missing")
            return
        names = choose(CORE.union(wanted), held)
        keep(bits(names))
    except OSError as err:
        log.warning("cannot drop privileges, the agent keeps all it has: %s", err)
    else:
        log.info("privileges kept: %s", ",".join(sorted(names)) or "none")
