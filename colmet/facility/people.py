"""Filter of users, and their names in documents."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable

from colmet.common.errors import ConfigError
from colmet.facility.deadlines import SourceFailed
from colmet.facility.obfuscation import Obscure


class People:
    """Users of a Unix group, or all, with their own or obfuscated names.

    One for each run, as group members change.

    Args:
        group: its members are reported, by their primary or another group; "" for all users.
        obscure: makes the name in documents.

    Attributes:
        unknown: users skipped as unknown to this machine; empty without a group.
    """

    def __init__(self, group: str, obscure: Obscure) -> None:
        self._group = group
        self._obscure = obscure
        self._members: frozenset[str] | None = None
        self._number = -1
        self._shown: dict[str, str | None] = {}
        self.unknown: set[str] = set()

    def shown(self, users: Iterable[str]) -> list[str]:
        """Return the names of the reported users, in the same order, with repetitions; errors as of `shown_one`."""
        names = [self.shown_one(user) for user in users]
        return [name for name in names if name is not None]

    def shown_one(self, user: str) -> str | None:
        """Return the name of a user, None if not reported; raise SourceFailed without the group or its members."""
        if user not in self._shown:
            self._shown[user] = self._obscure(user) if not self._group or self._is_member(user) else None
        return self._shown[user]

    def _is_member(self, user: str) -> bool:
        if self._members is None:
            try:
                found = find_group(self._group)
            except ConfigError as err:
                raise SourceFailed(str(err)) from err
            self._members, self._number = frozenset(found.gr_mem), found.gr_gid
        try:
            primary = pwd.getpwnam(user).pw_gid
            # a directory service may omit a group's members, but returns the groups of a user
            return user in self._members or self._number in os.getgrouplist(user, primary)
        except OSError as err:
            raise SourceFailed(_no_answer(self._group, err.strerror or str(err))) from err
        except (KeyError, ValueError) as err:  # ValueError: an invalid user name
            if not _knows_root():
                raise SourceFailed(_no_answer(self._group, "it does not even know root")) from err
            self.unknown.add(user)
            return False


def _knows_root() -> bool:
    """Return whether the name service answers at all: if not, an unknown user means nothing."""
    try:
        pwd.getpwuid(0)
    except (KeyError, OSError):
        return False
    return True


def _no_answer(group: str, why: str) -> str:
    return (
        f"-g: the members of group {group!r:.80} are unknown, as this machine's name service does not answer: {why}; "
        "see `getent passwd root` and /etc/nsswitch.conf"
    )


def find_group(name: str) -> grp.struct_group:
    """Return a Unix group; raise ConfigError without one of this name."""
    try:
        return grp.getgrnam(name)
    except (KeyError, ValueError, OSError) as err:
        raise ConfigError(
            f"-g: this machine knows no group {name!r:.80}; `getent group` lists those that it knows"
        ) from err
