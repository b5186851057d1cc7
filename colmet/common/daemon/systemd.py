"""systemd: notifications of the service manager, sd_notify(3), and the unit of a daemon, read from its files."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pwd
import shlex
import socket
import time
from collections.abc import Callable, Mapping, MutableMapping
from grp import getgrnam
from typing import NamedTuple

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import ConfigError
from colmet.common.host import capabilities

log = logging.getLogger(__name__)

STATUS_S = 10.0  # between two status lines
MAX_STATUS = 200  # characters
WAIT_S = 2.0  # for a busy service manager, which kills a daemon that does not report its start
AGAIN_S = 1.0  # until the next retry to notify the watchdog


class Service:
    """Notifies of start, state, life and end of the daemon; does nothing without a service manager.

    Args:
        address: of the service manager's socket; a name with a leading @ is an abstract one; '' for none.
        watchdog_s: the watchdog's timeout; 0 without a watchdog.
        monotonic: seconds.
    """

    def __init__(
        self, address: str = "", watchdog_s: float = 0, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        self._interval_s = watchdog_s / 2 if address and watchdog_s > 0 else math.inf
        self._monotonic = monotonic
        self._alive_at = monotonic() + self._interval_s
        self._status_at = -math.inf
        self._failures = 0

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Service:
        """Return the service of the environment, and remove its variables: no started program may use them."""
        address = environment.pop("NOTIFY_SOCKET", "")
        watchdog_us = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", "")
        if address and address[0] not in "/@":
            log.warning(
                "NOTIFY_SOCKET=%.100r is neither a path nor an abstract name: the service manager gets no reports",
                address,
            )
            address = ""
        ours = not pid or pid == str(os.getpid())
        is_number = watchdog_us.isascii() and watchdog_us.isdigit() and len(watchdog_us) < 20
        return cls(address, int(watchdog_us) / 1e6 if ours and is_number else 0)

    def ready(self) -> None:
        """Notify that the daemon works; also after `reloading`."""
        self._send("READY=1", WAIT_S)

    def reloading(self) -> None:
        """Notify that the daemon reads its configuration again, until `ready`."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}", WAIT_S)

    def status(self, make: Callable[[], str]) -> None:
        """Send the state, a line; `make` is called only when the next one is due."""
        now = self._monotonic()
        if self._socket is not None and now >= self._status_at:
            self._status_at = now + STATUS_S
            self._send(f"STATUS={' '.join(make().split())[:MAX_STATUS]}")

    def alive(self) -> None:
        """Notify the watchdog when due: the main thread works."""
        now = self._monotonic()
        if now >= self._alive_at:
            self._alive_at = now + (self._interval_s if self._send("WATCHDOG=1") else min(AGAIN_S, self._interval_s))

    def delay_s(self) -> float:
        """Return the seconds until the next call of `alive` is due; infinite without a watchdog."""
        return max(0.0, self._alive_at - self._monotonic())

    def stopping(self) -> None:
        """Notify that the daemon ends."""
        self._send("STOPPING=1", WAIT_S)

    def close(self) -> None:
        """Close; idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str, wait_s: float = 0) -> bool:
        """Send a message; return whether that succeeded within the time."""
        if self._socket is None:
            return True
        try:
            self._socket.settimeout(wait_s)
            self._socket.sendto(text.encode(), self._address)
        except OSError as err:
            self._failures += 1
            if powers_of_ten(self._failures):
                log.warning("service manager cannot be notified failures=%d %s: %s", self._failures, text[:40], err)
            return False
        return True


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


def find_unit(program: str) -> ServiceUnit | None:
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
