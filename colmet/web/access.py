"""Authenticate requests: by passwords and tokens from the users' file, or by the header of a proxy."""

from __future__ import annotations

import asyncio
import base64
import binascii
import grp
import hashlib
import hmac
import logging
import os
import pwd
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, NoReturn

from colmet.common.errors import ConfigError
from colmet.common.runtime.logs import powers_of_ten
from colmet.web import users
from colmet.web.credentials import MAX_SECRET, Credential, LoginToken, Password, check_name, token_digest
from colmet.web.leaders import Leaders, Projects
from colmet.web.limits import Busy, Failures, Turns, network
from colmet.web.stats import Stats
from colmet.web.workers import Workers

log = logging.getLogger(__name__)

SIGN_OUT = "/sign-out"  # path of the page that ends a browser's login
KEPT_S = 300.0  # lifetime of a checked password
KEPT = 4096
LOGIN_S = 30 * 86400.0  # lifetime of a token issued for a password
LOOK_S = 1.0  # min time between checks of the file
GROUP_S = 60.0  # lifetime of a looked-up membership
GROUP_WAIT_S = 5.0
WINDOW_S = 60.0
FAILURES_OF_NAME = 5  # for one name from one address, within the window
FAILURES_OF_ADDRESS = 60
PAUSE_S = 2.0  # before each check, one at a time, for an address with more failures
WAITING = 16  # addresses waiting for a password check
WAITING_OF_ADDRESS = 64
MAX_HEADER = 4096


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


class _CheckedLogin(NamedTuple):
    """The user of a checked header."""

    name: str
    groups: frozenset[str]
    until: float  # of the monotonic clock


class Access:
    """The authentication of requests.

    For one event loop; it blocks the loop only to read the file.

    Args:
        path: path of the users' file; None gives everybody access to everything, unless `user_header` is given.
        group: administrators' group, in the file or of this machine; its members see all jobs.
        clock: returns seconds of the monotonic clock.
        now: returns seconds since 1970.
        is_member: returns whether a user of this machine is in one of its groups. May wait.
        pause: waits; its argument is in seconds.
        user_header: name of the proxy's header for an authenticated user.
        sign_out_url: address at which the proxy ends a login; None without one.
        leaders_path: path of the file of the leaders of projects; None without one.
        ask_leaders: asks the batch system for them, in a thread; None without one.

    Attributes:
        header: name of the header for authentication, in lower case.
        stats: counters.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(
        self,
        path: str | None,
        group: str = "admin",
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        is_member: Callable[[str, str], bool] | None = None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        user_header: str | None = None,
        sign_out_url: str | None = None,
        leaders_path: str | None = None,
        ask_leaders: Callable[[], Projects] | None = None,
    ) -> None:
        self._user_header = user_header
        self._sign_out_url = sign_out_url
        self.header = (user_header or "authorization").lower().encode("ascii")
        self.stats = Stats()
        self._leaders = Leaders(leaders_path, ask_leaders, clock, self.stats.add)
        self._path = path
        self._group = group
        self._clock = clock
        self._now = now
        self._is_member = is_member or member_of
        self._pause = pause
        self._key = os.urandom(32)
        self._known: OrderedDict[bytes, _CheckedLogin] = OrderedDict()
        self._checking: dict[bytes, asyncio.Task[Credential]] = {}
        self._members: OrderedDict[str, tuple[bool, float]] = OrderedDict()
        self._names = Failures(FAILURES_OF_NAME, WINDOW_S)
        self._addresses = Failures(FAILURES_OF_ADDRESS, WINDOW_S)
        self._turns = Turns(WAITING_OF_ADDRESS)
        # one at a time, so at most one CPU
        self._slow = Workers("password", 1, WAITING, 2, 60.0)
        self._asking = Workers("group", 2, 64, 64, GROUP_WAIT_S)
        self._users: users.Users | None = None
        self._mark: users.Mark | None = None
        if path is not None:
            self._users, self._mark = users.read_users(path)
            self._looked = clock()
            self._warn_of_readers()

    @property
    def is_open(self) -> bool:
        """Whether everybody sees everything."""
        return self._users is None and self._user_header is None

    @property
    def sign_out(self) -> str | None:
        """The address at which a browser ends its login; None if there is none."""
        return self._sign_out_url if self._users is None else SIGN_OUT.lstrip("/")

    @property
    def names(self) -> int | None:
        """The number of users in the file; None without a file."""
        return None if self._users is None else self._users.names

    async def visitor(self, headers: Sequence[str], address: str) -> Visitor:
        """Return the user of a request from the address of its client, and its headers named `header`.

        Raises:
            Unauthorized: the login is missing or wrong.
            NotNamed: the proxy names no user, or several, or the name is the number of another user.
            Busy: too many logins are being checked, or the users have changed meanwhile.
        """
        if self._user_header is not None:
            return await self._named(headers, self._user_header)
        if self._users is None:
            return Visitor(None, True)
        self._look()
        if len(headers) != 1 or len(headers[0]) > MAX_HEADER:
            raise Unauthorized
        scheme, _, value = headers[0].partition(" ")
        if scheme.lower() == "bearer":
            known = self._by_token(value.strip(), None)
            if known is None:
                self._wrong()
        elif scheme.lower() == "basic":
            known = await self._by_password(value.strip(), network(address))
        else:
            raise Unauthorized
        return await self._visitor(known)

    async def _visitor(self, known: _CheckedLogin) -> Visitor:
        """Return an authenticated user; ordinary ones must not bear the number of another, as nodes report numbers."""
        is_admin = await self._is_admin(known)
        if not is_admin and is_number(known.name) and await self._asking.run(known.name, is_of_another, known.name):
            raise NotNamed(f"{known.name} is the number of another user of this machine: log in with another name")
        return Visitor(known.name, is_admin, frozenset() if is_admin else self._leaders.projects(known.name))

    async def _named(self, headers: Sequence[str], header: str) -> Visitor:
        """Return the user named by the proxy; an administrator if in the group of this machine."""
        try:
            (value,) = headers
            name = check_name(value.encode("latin-1").decode("utf-8"))
        except ValueError:
            raise NotNamed(f"the proxy does not name the user: it has to set the header {header}, once") from None
        if "," in name or any(map(str.isspace, name)):  # a proxy that joins two headers, of which one is the client's
            raise NotNamed(f"the proxy names several users: it has to set the header {header}, and drop the client's")
        return await self._visitor(_CheckedLogin(name, frozenset(), 0.0))

    async def login_token(self, headers: Sequence[str], address: str) -> tuple[str, int]:
        """Return a token for a request with a name and a password, and its end, in seconds since 1970.

        It is valid up to a change of the password or the end of this process: nothing is stored. The arguments and
        exceptions are those of `visitor`; also

        Raises:
            NoLoginToken: the request has no password, or the interface knows none.
        """
        if self._users is None:
            raise NoLoginToken("this interface issues no tokens: it is open, or a proxy checks the logins")
        scheme, _, value = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
        name, password = _parsed(value.strip()) if scheme.lower() == "basic" else ("", "")
        if not name or self._by_token(password, None) is not None:
            raise NoLoginToken("a token is issued for a name and a password, and not for another token")
        known = await self._by_password(value.strip(), network(address))
        line = self._users.passwords.get(known.name)
        if line is None:
            raise Unauthorized
        until = int(self._now() + LOGIN_S)
        return LoginToken.issue(self._key, line, until).text(), until

    def _by_token(self, given: str, name: str | None) -> _CheckedLogin | None:
        if self._users is None or len(given) > MAX_SECRET:
            return None
        issued = LoginToken.parse(given)
        if issued is not None:
            line = self._users.passwords.get(issued.name)
            if line is None or not issued.is_right(self._key, line, self._now()) or name not in (None, line.name):
                return None
            return _CheckedLogin(line.name, line.groups, 0.0)
        line = self._users.tokens.get(token_digest(given))
        if line is None or line.secret.is_over(self._now()):  # type: ignore[union-attr]  # a token
            return None
        if name is not None and name != line.name:
            return None
        return _CheckedLogin(line.name, line.groups, 0.0)

    async def _by_password(self, value: str, address: str) -> _CheckedLogin:
        digest = hmac.new(self._key, value.encode("utf-8", "surrogateescape"), hashlib.sha256).digest()
        known = self._known.get(digest)
        if known is not None and self._clock() < known.until:
            return known
        name, password = _parsed(value)
        known = self._by_token(password, name)  # for programs that only support Basic authentication
        if known is not None:
            return known
        checking = self._checking.get(digest)
        if checking is None:  # one check is enough for several requests that a browser sends at once
            checking = self._checking[digest] = asyncio.ensure_future(self._checked(name, password, address))
            checking.add_done_callback(lambda done: self._end_check(digest, done))
        line = await asyncio.shield(checking)  # another request may wait for it
        known = _CheckedLogin(line.name, line.groups, self._clock() + KEPT_S)
        self._known[digest] = known
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return known

    def _end_check(self, digest: bytes, done: asyncio.Task[Credential]) -> None:
        del self._checking[digest]
        if not done.cancelled():
            done.exception()  # the client may be gone

    async def _checked(self, name: str, password: str, address: str) -> Credential:
        """Return the line of this name and password.

        The check needs the same time for an unknown name. It is slower after failures, but never refused for them, so
        that failures of others cannot lock a user out.
        """
        users_then = self._users
        if users_then is None:
            raise Unauthorized
        pair = (address, hashlib.sha256(name.encode()).digest())
        line = users_then.passwords.get(name)
        secret = users_then.nobody if line is None else line.secret
        async with self._turns.turn(address, name):
            now = self._clock()
            if self._names.wait_s(pair, now) or self._addresses.wait_s(address, now):
                self.stats.add("passwords_slowed")
                await self._pause(PAUSE_S)
            self.stats.add("passwords_checked")
            is_right = await self._slow.run(address, Password.is_right, secret, password)
        if line is None or not is_right:
            now = self._clock()
            self._names.note(pair, now)
            self._addresses.note(address, now)
            self._wrong()
        if self._users is not users_then:  # the file has changed meanwhile, and may lack this user
            raise Busy("the users have changed; retry", 1.0)
        self._names.forget(pair)
        return line

    def _wrong(self) -> NoReturn:
        self.stats.add("wrong_secrets")
        raise Unauthorized

    async def _is_admin(self, known: _CheckedLogin) -> bool:
        if self._group in known.groups:
            return True
        now = self._clock()
        found = self._members.get(known.name)
        if found is not None and now < found[1]:
            return found[0]
        try:
            is_admin = await self._asking.run(known.name, self._is_member, known.name, self._group)
        except (Busy, OSError):
            count = self.stats.add("groups_failures")
            if powers_of_ten(count):
                log.warning("members of a group not known in time: group=%s times=%d", self._group, count)
            return found[0] if found is not None else False
        self._members[known.name] = (is_admin, now + GROUP_S)
        if len(self._members) > KEPT:
            self._members.popitem(last=False)
        return is_admin

    def _look(self) -> None:
        """Reload the file if it has changed."""
        now = self._clock()
        if self._path is None or now - self._looked < LOOK_S:
            return
        self._looked = now
        found = users.mark(self._path)
        if found == self._mark:
            return
        self._mark = found
        try:
            self._users, self._mark = users.read_users(self._path)
        except ConfigError as err:
            self.stats.add("users_failures")
            log.error("users not read again, the previous ones remain: reason=%s", err)
            return
        self._known.clear()
        self._members.clear()
        self.stats.add("users_reloads")
        log.info("users read again: names=%d", self._users.names)
        self._warn_of_readers()

    def _warn_of_readers(self) -> None:
        if self._users is not None and self._users.is_open:
            log.warning("all on this machine can read the file of users; chmod o-r it: file=%s", self._path)


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
    except KeyError:
        return False
    if user in found.gr_mem:
        return True
    try:
        return pwd.getpwnam(user).pw_gid == found.gr_gid
    except KeyError:
        return False


def is_number(name: str) -> bool:
    """Return whether the name of a user may be the number of one."""
    return name.isascii() and name.isdigit()


def is_of_another(number: str) -> bool:
    """Return whether a number is that of a user of this machine with another name. May wait for a directory service."""
    try:
        return pwd.getpwuid(int(number)).pw_name != number
    except (KeyError, OverflowError, ValueError):
        return False
