"""Whose a process is, as the batch system counts users."""

from __future__ import annotations

import pwd
import re

from colmet.node.system.host import Host

SUBUIDS = "/etc/subuid"
_MOST_OF_FILE = 1 << 20
_UID = re.compile(rb"^Uid:\s+(\d+)\s", re.MULTILINE)


def owner_of(host: Host, pid: int) -> int | None:
    """Return the uid of the user whose process this is; None for root's, and where that is not known.

    That is the real uid of its status: a process that keeps others from reading it has files of root's in /proc. A
    process in a container has a subordinate uid (subuid(5)); it is its owner's.

    To be called where a process may have its reader wait (`processes`), and the user database as well.

    Raises:
        OSError: the process has ended.
    """
    try:
        found = _UID.search(host.read(f"/proc/{pid}/status"))
    except PermissionError:  # /proc is mounted with hidepid, and this is not root
        return None
    uid = int(found[1]) if found else 0
    if not uid:
        return None
    try:
        lines = host.read_start(SUBUIDS, _MOST_OF_FILE).decode("utf-8", "replace").splitlines()
    except OSError:
        return uid
    for line in lines:
        name, *numbers = line.split(":")
        if len(numbers) == 2 and all(number.isdecimal() for number in numbers):
            first, count = map(int, numbers)
            if first <= uid < first + count:
                return _number_of(name)
    return uid


def _number_of(name: str) -> int | None:
    if name.isdecimal():
        return int(name) or None
    try:
        return pwd.getpwnam(name).pw_uid or None
    except KeyError:
        return None
