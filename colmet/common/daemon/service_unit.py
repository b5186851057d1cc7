"""The systemd unit of a daemon, read from its files: permissions, directories and environment."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
from collections.abc import Mapping
from grp import getgrnam
from typing import NamedTuple

from colmet.common.errors import ConfigError
from colmet.common.host import capabilities

# Of two files with one name, the one in the first folder counts.
FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
MAX_FILE_BYTES = 64 << 10
# Setting, parent of its directories, and their variable in the service's environment.
_DIRECTORIES = (("StateDirectory", "/var/lib", "STATE_DIRECTORY"), ("RuntimeDirectory", "/run", "RUNTIME_DIRECTORY"))


class ServiceUnit(NamedTuple):
    """Properties that a unit gives its service."""

    name: str  # of the unit
    user: str  # its user
    group: str  # its first group; "" for the user's own
    groups: tuple[str, ...]  # names of more groups
    rights: frozenset[str]  # capabilities of its user (AmbientCapabilities=)
    directory: str  # its working directory
    environment: Mapping[str, str]  # variables added by the unit

    def enter(self) -> bool:
        """Adopt its environment, its working directory and its permissions, for good.

        Return whether this process has its user then: the system gives it to root, if it exists in this user namespace.

        Raises:
            ConfigError: there is no such user or group; the service would not start either.
        """
        os.environ.update(self.environment)
        with contextlib.suppress(OSError):  # systemd makes it at the start
            os.chdir(self.directory)
        try:
            entry = pwd.getpwnam(self.user)
            group = getgrnam(self.group).gr_gid if self.group else entry.pw_gid
            more = [getgrnam(name).gr_gid for name in self.groups]
        except KeyError as err:
            raise ConfigError(f"{self.name}: {err.args[0]}; `systemd-sysusers` makes the users of packages") from err
        groups = [*os.getgrouplist(self.user, group), *more]
        with contextlib.suppress(OSError):
            capabilities.become(entry.pw_uid, group, groups, capabilities.bits(self.rights))
        return entry.pw_uid == os.geteuid()


def find(program: str) -> ServiceUnit | None:
    """Return the unit of a program, None if none is installed (or it is masked)."""
    name = f"{program}.service"
    texts = [text for folder in FOLDERS if (text := _read(f"{folder}/{name}"))][:1]
    if not texts:
        return None
    changes: dict[str, str] = {}  # drop-ins, by their names
    for folder in FOLDERS:
        with contextlib.suppress(OSError):
            for file in os.listdir(f"{folder}/{name}.d"):
                if file.endswith(".conf"):
                    changes.setdefault(file, f"{folder}/{name}.d/{file}")
    settings = _parse([*texts, *[_read(changes[file]) for file in sorted(changes)]])

    def last(key: str, default: str = "") -> str:
        return settings.get(key, [default])[-1]

    environment = dict([word.partition("=")[::2] for line in settings.get("Environment", []) for word in _words(line)])
    for key, base, variable in _DIRECTORIES:
        made = [os.path.join(base, word) for line in settings.get(key, []) for word in _words(line)]
        environment.update({variable: ":".join(made)} if made else {})
    return ServiceUnit(
        name,
        last("User", "root"),
        last("Group"),
        tuple(_list(settings, "SupplementaryGroups")),
        frozenset(_list(settings, "AmbientCapabilities")) & capabilities.NUMBERS.keys(),
        last("WorkingDirectory", "/").lstrip("-"),
        environment,
    )


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError:
        return ""


def _parse(texts: list[str]) -> dict[str, list[str]]:
    """Return the values of each setting in the section of services, in order; an empty one clears those before."""
    found: dict[str, list[str]] = {}
    for text in texts:
        section = ""
        for line in map(str.strip, text.replace("\\\n", " ").splitlines()):
            if line.startswith("["):
                section = line
            elif section == "[Service]" and line[:1] not in ("", "#", ";"):
                key, _, value = [part.strip() for part in line.partition("=")]
                if value:
                    found.setdefault(key, []).append(value)
                else:
                    found.pop(key, None)
    return found


def _list(settings: Mapping[str, list[str]], key: str) -> list[str]:
    return [word for line in settings.get(key, []) for word in line.split()]


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # systemd skips such a line, too
        return []
