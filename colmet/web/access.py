"""Authenticate requests: by passwords and tokens from the users' file, by sessions, or by the header of a proxy."""

from __future__ import annotations

import base64
import binascii
import grp
import hashlib
import hmac
import ipaddress
import logging
import os
import pwd
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from colmet.common.daemon.logs import powers_of_ten
from colmet.web.credentials import (
    MAX_SECRET,
    Credential,
    Leaders,
    Password,
    Projects,
    Token,
    Users,
    WatchedFile,
    check_name,
    read_users,
    token_digest,
)
from colmet.web.workers import Busy, Workers

log = logging.getLogger(__name__)

KEPT_S = 300.0  # lifetime of a checked password of Basic authentication
KEPT = 4096
SESSION_S = 12 * 3600.0  # lifetime of a browser's session
LOGIN_S = 30 * 86400.0  # lifetime of a token issued for a password
SESSION_PREFIX = "colmet-login_"
SESSIONS_OF_USER = 32
GROUP_S = 60.0  # lifetime of a looked-up membership
GROUP_WAIT_S = 5.0
WAITING = 128  # passwords that wait for their check
OF_ADDRESS = 32  # of these, from one address
PASSWORD_WAIT_S = 30.0
MAX_HEADER = 4096
STATS = (
    *("requests_2xx", "requests_3xx", "requests_4xx", "requests_5xx"),
    "defects",  # answers failed by a defect of this program
    "malformed",  # requests that are not HTTP
    "refused_connections",  # requests answered 503 for too many connections
    "broken_connections",  # connections failed for other reasons
    "too_many",  # answers 429
    "unauthorized",  # answers 401
    "wrong_secrets",  # wrong passwords and tokens
    "passwords_checked",  # by scrypt
    "users_reloads",
    "users_failures",  # the changed file, of users or of leaders, cannot be used; its former content stays in use
    "coordinators_failures",  # of asking Slurm for the coordinators of its accounts
    "groups_failures",  # timeouts in looking up members of the administrators' group
)


class Stats:
    """Counters by name, since a time in seconds since 1970; for any thread."""

    def __init__(self) -> None:
        self.since = time.time()
        self._lock = threading.Lock()
        self._values = dict.fromkeys(STATS, 0)

    def add(self, key: str) -> int:
        """Add one to a counter, and return its value."""
        with self._lock:
            self._values[key] += 1
            return self._values[key]

    def values(self) -> dict[str, int]:
        """Return all counters."""
        with self._lock:
            return dict(self._values)


class Visitor(NamedTuple):
    """The user of a request."""

    user: str | None  # name of the user; None if the interface is open to all
    is_admin: bool  # whether the user sees all jobs
    projects: frozenset[str] = frozenset()  # whose archived jobs the user sees, too, as their leader

    @property
    def only(self) -> str | None:
        """The only user with visible jobs; None for all users."""
        return None if self.is_admin else self.user


class Unauthorized(Exception):
    """The login is missing or wrong."""


class NotNamed(Exception):
    """The proxy has not named the user, or more than once; or the name is the number of another user."""


class NoLoginToken(Exception):
    """No token is issued for this request; the text has the reason."""


class _Checked(NamedTuple):
    """A password that is right."""

    line: Credential
    until: float  # by the monotonic clock; of a session seconds since 1970


@dataclass(eq=False)
class Access:
    """The authentication of requests; ConfigError if the file of users cannot be used.

    For one event loop; it blocks the loop only to read the file. Sessions are in memory: a restart ends them.
    Starlette's own, signed cookies, would remain valid after the sign-out, and require another library.
    """

    path: str | None  # of the users' file; None gives everybody access to everything, unless `user_header` is given
    group: str = "admin"  # of administrators, in the file or of this machine; its members see all jobs
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    # returns whether a user of this machine is in one of its groups; may wait
    is_member: Callable[[str, str], bool] = lambda user, group: member_of(user, group)
    user_header: str | None = None  # name of the proxy's header for an authenticated user
    sign_out_url: str | None = None  # address at which the proxy ends a login; None without one
    leaders_path: str | None = None  # of the file of the leaders of projects; None without one
    ask_leaders: Callable[[], Projects] | None = None  # asks the batch system for them; None without one

    def __post_init__(self) -> None:
        self.header = (self.user_header or "authorization").lower().encode("ascii")  # has the login
        self.stats = Stats()
        self._leaders = Leaders(self.leaders_path, self.ask_leaders, self.clock, self.stats.add)
        self._key = os.urandom(32)
        self._known: OrderedDict[bytes, _Checked] = OrderedDict()
        self._sessions: OrderedDict[bytes, _Checked] = OrderedDict()
        self._members: OrderedDict[str, tuple[bool, float]] = OrderedDict()
        # One at a time, so at most one CPU. Addresses take turns, and within one the first comes first.
        self._checking = Workers("password", 1, WAITING, OF_ADDRESS, PASSWORD_WAIT_S)
        self._asking = Workers("group", 2, 64, 64, GROUP_WAIT_S)
        self._users: Users | None = None
        self._file: WatchedFile[Users] | None = None
        if self.path is not None:
            self._file = WatchedFile(self.path, read_users, "users not read again", self.clock, self.stats.add)
            self._take_users(self._file)

    @property
    def is_open(self) -> bool:
        """Whether everybody sees everything."""
        return self._users is None and self.user_header is None

    @property
    def sign_out(self) -> str | None:
        """The address at which a browser ends its login; None if there is none."""
        return self.sign_out_url if self._users is None else "sign-out"

    @property
    def names(self) -> int | None:
        """The number of users in the file; None without a file."""
        return None if self._users is None else self._users.names

    async def visitor(self, headers: Sequence[str], address: str, session: str = "") -> Visitor:
        """Return the user of a request, by its headers named `header`; without any by the session of a browser.

        Raises:
            Unauthorized: the login is missing or wrong.
            NotNamed: the proxy names no user, or several, or the name is the number of another user.
            Busy: too many logins are being checked, or the users have changed meanwhile.
        """
        if self.user_header is not None:
            return await self._named(headers, self.user_header)
        if self._users is None:
            return Visitor(None, True)
        self._look()
        if not headers and session:
            line = self._by_session(session)
            if line is None:
                raise Unauthorized
            return await self._visitor(line.name, line.groups)
        if len(headers) != 1 or len(headers[0]) > MAX_HEADER:
            raise Unauthorized
        scheme, _, value = headers[0].partition(" ")
        if scheme.lower() == "bearer":
            line = self._by_token(value.strip(), None)
            if line is None:
                self._wrong()
        elif scheme.lower() == "basic":
            name, password = _parsed(value.strip())
            line = self._by_token(password, name) or await self._by_password(name, password, address)
        else:
            raise Unauthorized
        return await self._visitor(line.name, line.groups)

    async def _visitor(self, name: str, groups: frozenset[str]) -> Visitor:
        """Return an authenticated user; ordinary ones must not bear the number of another, as nodes report numbers."""
        is_admin = await self._is_admin(name, groups)
        if not is_admin and name.isascii() and name.isdigit() and await self._asking.run(name, is_of_another, name):
            raise NotNamed(f"{name} is the number of another user of this machine: log in with another name")
        return Visitor(name, is_admin, frozenset() if is_admin else self._leaders.projects(name))

    async def _named(self, headers: Sequence[str], header: str) -> Visitor:
        """Return the user named by the proxy; an administrator if in the group of this machine."""
        try:
            (value,) = headers
            name = check_name(value.encode("latin-1").decode("utf-8"))
        except ValueError:
            raise NotNamed(f"the proxy does not name the user: it has to set the header {header}, once") from None
        if "," in name or any(map(str.isspace, name)):  # a proxy that joins two headers, of which one is the client's
            raise NotNamed(f"the proxy names several users: it has to set the header {header}, and drop the client's")
        return await self._visitor(name, frozenset())

    # -- sessions --

    async def log_in(self, name: str, password: str, address: str, life_s: float = SESSION_S) -> tuple[str, int]:
        """Return a text that stands for a name and a password, and its end, in seconds since 1970.

        It is valid up to a change of the password, a sign-out or the end of this process. NoLoginToken if the interface
        knows no passwords; else as `visitor`.
        """
        if self._users is None:
            raise NoLoginToken("this interface issues no tokens: it is open, or a proxy checks the logins")
        self._look()
        if not name or len(password) > MAX_SECRET:
            raise Unauthorized
        line = await self._by_password(name, password, address)
        now = int(self.now())
        for key in [key for key, one in self._sessions.items() if one.until <= now]:
            del self._sessions[key]
        own = [key for key, one in self._sessions.items() if one.line.name == name]
        for key in own[: max(0, len(own) - SESSIONS_OF_USER + 1)]:
            del self._sessions[key]
        text, until = SESSION_PREFIX + secrets.token_urlsafe(32), now + int(life_s)
        self._sessions[token_digest(text)] = _Checked(line, until)
        return text, until

    async def login_token(self, headers: Sequence[str], address: str) -> tuple[str, int]:
        """Return a token for a request with a name and a password, and its end, as `log_in`.

        Unauthorized for a request without both: a token is not issued for another one.
        """
        scheme, _, value = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
        name, password = _parsed(value.strip()) if scheme.lower() == "basic" else ("", "")
        if self._users is not None and (not name or self._by_token(password, None) is not None):
            raise Unauthorized
        return await self.log_in(name, password, address, LOGIN_S)

    def end(self, session: str) -> None:
        """End a session."""
        self._sessions.pop(token_digest(session), None)

    def _by_session(self, given: str) -> Credential | None:
        found = self._sessions.get(token_digest(given))
        if found is None or self._users is None or found.until <= self.now():
            return None
        return found.line if self._users.passwords.get(found.line.name) == found.line else None

    def _by_token(self, given: str, name: str | None) -> Credential | None:
        assert self._users is not None
        line = self._by_session(given) if given.startswith(SESSION_PREFIX) else None
        line = line or self._users.tokens.get(token_digest(given))
        if line is None or name not in (None, line.name):
            return None
        return None if isinstance(line.secret, Token) and line.secret.is_over(self.now()) else line

    # -- passwords --

    async def _by_password(self, name: str, password: str, address: str) -> Credential:
        """Return the line of a name and a password.

        The check needs the same time for an unknown name. It is never refused for failures, so that those of others
        cannot lock a user out: each waits for its turn.
        """
        given = f"{name}:{password}".encode("utf-8", "surrogateescape")
        digest = hmac.new(self._key, given, hashlib.sha256).digest()
        users_then = self._users
        assert users_then is not None
        line = users_then.passwords.get(name)
        secret = users_then.nobody if line is None else line.secret
        assert isinstance(secret, Password)

        def is_right() -> bool:
            # Requests that a program sends at once need one check.
            if self._checked_line(digest) is not None:
                return True
            self.stats.add("passwords_checked")
            is_same = secret.is_right(password)  # as slow for an unknown name
            if is_same and line is not None:
                self._known[digest] = _Checked(line, self.clock() + KEPT_S)
            return is_same

        checked = self._checked_line(digest)
        if checked is not None:
            return checked
        is_same = await self._checking.run(network(address), is_right)
        if line is None or not is_same:
            self._wrong()
        if self._users is not users_then:  # the file has changed meanwhile, and may lack this user
            self._known.pop(digest, None)
            raise Busy("the users have changed; retry", 1.0)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return line

    def _checked_line(self, digest: bytes) -> Credential | None:
        known = self._known.get(digest)
        return known.line if known is not None and self.clock() < known.until else None

    def _wrong(self) -> NoReturn:
        self.stats.add("wrong_secrets")
        raise Unauthorized

    # -- groups, and the file --

    async def _is_admin(self, name: str, groups: frozenset[str]) -> bool:
        if self.group in groups:
            return True
        now = self.clock()
        found = self._members.get(name)
        if found is not None and now < found[1]:
            return found[0]
        try:
            is_admin = await self._asking.run(name, self.is_member, name, self.group)
        except (Busy, OSError):
            count = self.stats.add("groups_failures")
            if powers_of_ten(count):
                log.warning("members of a group not known in time: group=%s times=%d", self.group, count)
            return found[0] if found is not None else False
        self._members[name] = (is_admin, now + GROUP_S)
        if len(self._members) > KEPT:
            self._members.popitem(last=False)
        return is_admin

    def _look(self) -> None:
        """Reload the file if it has changed."""
        if self._file is not None and self._file.look():
            self._known.clear()
            self._members.clear()
            self.stats.add("users_reloads")
            self._take_users(self._file)

    def _take_users(self, file: WatchedFile[Users]) -> None:
        self._users = file.content
        if self._users.is_open:
            log.warning("all on this machine can read the file of users; chmod o-r it: file=%s", file.path)


def _parsed(value: str) -> tuple[str, str]:
    """Return the name and the password of Basic authentication."""
    try:
        text = base64.b64decode(value.encode("ascii"), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeError):
        raise Unauthorized from None
    name, colon, password = text.partition(":")
    if not colon or not name or len(password) > MAX_SECRET:
        raise Unauthorized
    return name, password


def member_of(user: str, group: str) -> bool:
    """Return whether a user of this machine is in one of its groups. May wait for a directory service."""
    try:
        found = grp.getgrnam(group)
        return user in found.gr_mem or pwd.getpwnam(user).pw_gid == found.gr_gid
    except KeyError:
        return False


def is_of_another(number: str) -> bool:
    """Return whether a number is that of a user of this machine with another name. May wait for a directory service."""
    try:
        return pwd.getpwuid(int(number)).pw_name != number
    except (KeyError, OverflowError, ValueError):
        return False


def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an address; None for other texts. IPv4-mapped IPv6 addresses become IPv4."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def network(address: str) -> str:
    """Return the key of an address: IPv4 addresses as they are, IPv6 by /64, as one machine may have a whole /64."""
    parsed = parse_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address if parsed is None else str(parsed)


def client_of(scope: Mapping[str, Any]) -> str:
    """Return the client of a request, by address.

    At the other end of a Unix socket is a proxy, which adds the address of its own client at the end of
    X-Forwarded-For. On a TCP port, that header is any client's own word.
    """
    peer = scope.get("client")
    if peer is not None:
        return network(str(peer[0]))
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    last = ",".join(values).rpartition(",")[2].strip()
    return "proxy" if parse_address(last) is None else network(last)
