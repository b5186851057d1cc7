"""What root writes in a folder of another user, it writes as that user, who could put links there meanwhile."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from colmet.common.errors import ConfigError
from colmet.common.runtime import capabilities


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
            capabilities.become(uid, group, groups, 0)
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
