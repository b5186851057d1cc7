"""Find the user of a process, as counted by the batch system."""

from __future__ import annotations

import pwd
import re

from colmet.common.host.host import Host

SUBUIDS = "/etc/subuid"
_MOST_OF_FILE = 1 << 20
_UID = re.compile(rb"^Uid:\s+(\d+)\s", re.MULTILINE)


def owner_of(host: Host, pid: int) -> int | None:
    """Return the uid of a process's user; None for root, and if it is unknown.

    That is the real uid in its status: /proc files of a process protected from reading belong to root. A subordinate
    uid (subuid(5)) of a process in a container is mapped to its owner's.

    The process and the user database may block the reader: call it in the thread of `system.processes`.

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
        lines = host.read_start(SUBUIDS, _MOST_OF_FILE).decode("utf-8", "replace").split("\n")
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
