"""Users: those logged in, by `who` and `last`; which are reported; their and hosts' names outside of the site."""

from __future__ import annotations

import grp
import hashlib
import hmac
import logging
import os
import pwd
import re
import time
from collections.abc import Callable, Iterable

from colmet.batch import answers
from colmet.common.config import secretfile
from colmet.common.errors import CommandFailed, ConfigError, ParseError
from colmet.common.host.command import Command
from colmet.facility.deadlines import SourceFailed

log = logging.getLogger(__name__)

WHO = ("who",)
LAST = ("/usr/bin/last", "-w", "-s")  # then a time; wtmpdb's `last` knows no relative one
LAST_S = 300
# Lines of `last` other than logins: of the machine, such as "soft-reboot system boot", and the start of the file.
_NO_USER = re.compile(r"\S+ +system (?:boot|down)\b|runlevel +\(to ")
_TAIL = re.compile(r"\S+ (?:begins .+|has no entries)")
KEY_BYTES = 32  # minimum length of a key
_DIGITS, _KEYED_DIGITS = 8, 16

Obscure = Callable[[str], str]


def _parse_who(text: str) -> list[str]:
    """Return the users in the output of `who`, the first words of its lines, each once, in their order.

    ValueError has a line in another form than a user, a terminal, and more.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines:
        if len(line.split()) < 2:
            raise ValueError(line)
    return list(dict.fromkeys(line.split()[0] for line in lines))


def parse_last(text: str, only_users: bool = True) -> list[str]:
    """Return the same for the output of `last`; `only_users` drops its "reboot" and similar entries."""
    *lines, tail = text.rstrip().split("\n")
    if not _TAIL.match(tail):
        raise ValueError(tail)
    return _parse_who("\n".join([line for line in lines if not (only_users and _NO_USER.match(line))]))


class Logins:
    """Client of `who`, and with `history` of `last` for the last five minutes.

    A user is listed once, or else, as in afmetrics_collector, again for `last`.
    """

    def __init__(self, history: bool, deadline_s: float, each_once: bool = True) -> None:
        self._each_once = each_once
        self._who = Command(WHO, deadline_s)
        self._last = Command([*LAST, ""], deadline_s) if history else None
        self.failures = 0  # missing or unreadable answers of `last`

    def users(self) -> list[str]:
        """Return the logged-in users, then those of the last five minutes; SourceFailed without an answer of `who`.

        A failure of `last` alone is logged and counted.
        """
        try:
            users = _parsed(self._who, _parse_who)
        except (CommandFailed, ParseError) as err:
            raise SourceFailed(f"{err}; the users that are logged in are not known") from err
        if self._last is not None:
            self._last.argv[-1] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - LAST_S))
            try:
                users += _parsed(self._last, lambda text: parse_last(text, self._each_once))
            except (CommandFailed, ParseError) as err:
                self.failures += 1
                log.error("logins of the last five minutes are missing: %s", err)
        return list(dict.fromkeys(users)) if self._each_once else users


def _parsed(command: Command, parse_text: Callable[[str], list[str]]) -> list[str]:
    text = answers.run(command).decode("utf-8", "replace")
    try:
        return parse_text(text)
    except ValueError as err:
        raise ParseError(str(command), str(err)) from err


class People:
    """Members of a Unix group, by their primary or another group, or all users (""), by their names in documents.

    One for each run, as group members change. `unknown` are users skipped as unknown to this machine.
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
        return [name for name in map(self.shown_one, users) if name is not None]

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
            why = err.strerror or str(err)
        except (KeyError, ValueError):  # ValueError: an invalid user name
            try:
                pwd.getpwuid(0)  # if the name service does not answer at all, an unknown user means nothing
                self.unknown.add(user)
                return False
            except (KeyError, OSError):
                why = "it does not even know root"
        raise SourceFailed(
            f"-g: the members of group {self._group!r:.80} are unknown, as this machine's name service does not "
            f"answer: {why}; see `getent passwd root` and /etc/nsswitch.conf"
        )


def find_group(name: str) -> grp.struct_group:
    """Return a Unix group; raise ConfigError without one of this name."""
    try:
        return grp.getgrnam(name)
    except (KeyError, ValueError, OSError) as err:
        raise ConfigError(
            f"-g: this machine knows no group {name!r:.80}; `getent group` lists those that it knows"
        ) from err


def salted(salt: str) -> Obscure:
    """Return a function from names to the first 8 hexadecimal digits of SHA-256 over salt and name.

    It is the form of afmetrics_collector. With the salt, known or guessed, each name can be found by trying all names;
    and with 10,000 users about 1 % of all sites have two with the same digits.
    """
    return lambda name: hashlib.sha256(_bytes(salt + name)).hexdigest()[:_DIGITS]


def keyed(key: bytes) -> Obscure:
    """Return a function from names to the first 16 hexadecimal digits of HMAC-SHA-256 with a key.

    Without the key, names cannot be found by trying.
    """
    if len(key) < KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes is too short")

    return lambda name: hmac.new(key, _bytes(name), hashlib.sha256).hexdigest()[:_KEYED_DIGITS]


def read_key(option: str, path: str) -> bytes:
    """Return the key in a file, all of its bytes; raise ConfigError if others can read it, or if it is unusable."""
    key = secretfile.read(option, path)
    if len(key) < KEY_BYTES:
        raise ConfigError(
            f"{option} {path}: has {len(key)} bytes, a key has at least {KEY_BYTES}; colmet-facility --make-key FILE "
            "makes one"
        )
    return key


def make_key(path: str) -> None:
    """Write a new key to a new file, for its owner alone; raise ConfigError if it exists or cannot be written."""
    try:
        secretfile.create("--make-key", path, os.urandom(KEY_BYTES).hex().encode() + b"\n")
    except FileExistsError as err:
        raise ConfigError(f"--make-key {path}: it is there already; with another key all names change") from err


def plain(name: str) -> str:
    """Return the name unchanged."""
    return name


def host(name: str, domain: str) -> str:
    """Return the name of a host as "atlas", all digits of its name in order, and this domain; unchanged without one."""
    return f"atlas{''.join(filter(str.isdigit, name))}.{domain}" if domain else name


def _bytes(text: str) -> bytes:
    # JSON can contain lone surrogates
    return text.encode("utf-8", "surrogatepass")
