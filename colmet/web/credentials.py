"""The file of users with their passwords and tokens, a line for each, and the leaders of projects."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Generic, NamedTuple, TypeVar, Union

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import ColmetError, ConfigError

N, R, P = 1 << 15, 8, 3  # 32 MiB and about 0.3 s a check
MAX_N, MAX_R, MAX_P = 1 << 17, 16, 16
MAX_MEMORY = 128 << 20  # bytes for one check
MAX_SECRET = 1024  # characters of a password or a token
MAX_NAME = 255
TOKEN_BYTES = 32
TOKEN_PREFIX = "colmet_"
MAX_BYTES = 16 << 20
MAX_LINES = 100_000
LOOK_S = 1.0  # min time between checks of a file
Mark = tuple[int, int, int, int]  # changes whenever the file does

T = TypeVar("T")
log = logging.getLogger(__name__)

_NAME = re.compile(r"[^\s:#\x00-\x20\x7f][^:\x00-\x1f\x7f]{0,254}")
_GROUP = re.compile(r"[^\s:,#\x00-\x20\x7f][^\s:,\x00-\x20\x7f]{0,254}")
_LABEL = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HEX = re.compile(r"[0-9a-f]{64}")


class Password(NamedTuple):
    """A password hashed by scrypt, so that an attacker with the file needs as much memory for each attempt."""

    n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    def text(self) -> str:
        """As in the file."""
        return f"scrypt${self.n}${self.r}${self.p}${self.salt.hex()}${self.digest.hex()}"

    def is_right(self, given: str) -> bool:
        """Return whether this is the password. Slow on purpose."""
        return hmac.compare_digest(_scrypt(given, self.n, self.r, self.p, self.salt), self.digest)


class Token(NamedTuple):
    """A token of 256 random bits: guessing is impossible, so a plain hash is enough."""

    digest: bytes  # SHA-256 of its text
    label: str = ""  # its purpose; may be empty
    until: date | None = None  # the last day of validity, in UTC; None for no limit

    def text(self) -> str:
        """As in the file."""
        end = "" if self.until is None else f"${self.until.isoformat()}"
        label = f"${self.label}" if self.label or end else ""
        return f"sha256${self.digest.hex()}{label}{end}"

    def is_over(self, now: float) -> bool:
        """Return whether its last day has passed."""
        return self.until is not None and datetime.fromtimestamp(now, timezone.utc).date() > self.until


Secret = Union[Password, Token]


class Credential(NamedTuple):
    """A line of the file: a user, a secret, and groups."""

    name: str
    secret: Secret
    groups: frozenset[str] = frozenset()

    def text(self) -> str:
        """Return the line without its newline."""
        groups = f":{','.join(sorted(self.groups))}" if self.groups else ""
        return f"{self.name}:{self.secret.text()}{groups}"


def make_password(given: str) -> Password:
    """Hash a password; ValueError if the password is empty or too long."""
    if not given or len(given) > MAX_SECRET:
        raise ValueError(f"a password has 1 to {MAX_SECRET} characters")
    salt = os.urandom(16)
    return Password(N, R, P, salt, _scrypt(given, N, R, P, salt))


def make_token() -> str:
    """Return a new token."""
    return TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def token_digest(given: str) -> bytes:
    """Return the hash of a token."""
    return hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()


def parse_line(text: str) -> Credential | None:
    """Parse a line of the file; None for a comment or an empty line, ValueError with the reason for a malformed one."""
    text = text.strip()
    if not text or text.startswith("#"):
        return None
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise ValueError("it is not NAME:SECRET or NAME:SECRET:GROUP,GROUP")
    groups = [one.strip() for one in parts[2].split(",")] if len(parts) == 3 else []
    known = frozenset([check_group(one) for one in groups if one])
    return Credential(check_name(parts[0].strip()), parse_secret(parts[1].strip()), known)


def check_name(name: str) -> str:
    """Return the name of a user; ValueError for an invalid one."""
    return _checked(_NAME, name, f"the name of a user: 1 to {MAX_NAME} characters, no colon, no leading #")


def check_group(name: str) -> str:
    """Return the name of a group; ValueError for an invalid one."""
    return _checked(_GROUP, name, "the name of a group")


def check_label(label: str) -> str:
    """Return the label of a token; ValueError for an invalid one."""
    return _checked(_LABEL, label, "a label: 1 to 64 of A-Z a-z 0-9 _ . -")


def _checked(pattern: re.Pattern[str], text: str, what: str) -> str:
    if not pattern.fullmatch(text) or text != text.strip():
        raise ValueError(f"{text!r:.80} is not {what}")
    return text


def parse_secret(text: str) -> Secret:
    """Parse the secret of a line; ValueError if the secret is malformed, or too expensive to check."""
    kind, *parts = text.split("$")
    if kind == "scrypt" and len(parts) == 5:
        try:
            n, r, p = [int(part) if part.isascii() and part.isdigit() and len(part) < 8 else 0 for part in parts[:3]]
            salt, digest = bytes.fromhex(parts[3]), bytes.fromhex(parts[4])
        except ValueError:
            raise ValueError("its salt and hash are not hexadecimal") from None
        if not (2 <= n <= MAX_N and n & (n - 1) == 0 and 1 <= r <= MAX_R and 1 <= p <= MAX_P):
            raise ValueError("its N, r and p are not those of scrypt, or cost too much")
        if 128 * n * r > MAX_MEMORY or not 8 <= len(salt) <= 64 or len(digest) != 32:
            raise ValueError("its salt or hash has another length, or it requires too much memory")
        return Password(n, r, p, salt, digest)
    if kind == "sha256" and 1 <= len(parts) <= 3:
        if not _HEX.fullmatch(parts[0]):
            raise ValueError("the hash of its token is not 64 hexadecimal digits")
        label = check_label(parts[1]) if len(parts) > 1 and parts[1] else ""
        try:
            until = date.fromisoformat(parts[2]) if len(parts) == 3 else None
        except ValueError:
            raise ValueError("the last day of its token is not YYYY-MM-DD") from None
        return Token(bytes.fromhex(parts[0]), label, until)
    raise ValueError("its secret is neither scrypt$N$R$P$SALT$HASH nor sha256$HASH; write it with colmet access")


def _scrypt(given: str, n: int, r: int, p: int, salt: bytes) -> bytes:
    memory = 128 * r * (n + p) + (1 << 20)
    return hashlib.scrypt(given.encode("utf-8", "surrogateescape"), salt=salt, n=n, r=r, p=p, maxmem=memory, dklen=32)


# -- the file --


class Users(NamedTuple):
    """The content of the file."""

    names: int  # number of users
    passwords: Mapping[str, Credential]  # the line of each password, by user
    tokens: Mapping[bytes, Credential]  # the line of each token, by its digest
    nobody: Password  # a random hash that no password matches, to check for unknown names, as slow as the others
    is_open: bool  # whether every user of this machine can read the file


def read_users(path: str) -> tuple[Users, Mark]:
    """Return the content of the file, and its mark; ConfigError if it cannot be read, or others may write it."""
    lines, found = read_lines(path)
    passwords: dict[str, Credential] = {}
    tokens: dict[bytes, Credential] = {}
    names = set()
    for number, text in enumerate(lines, 1):
        try:
            line = parse_line(text)
        except ValueError as err:
            raise ConfigError(f"{path}:{number}: {err}") from err
        if line is None:
            continue
        names.add(line.name)
        if isinstance(line.secret, Token):
            if line.secret.digest in tokens:
                raise ConfigError(f"{path}:{number}: another line has this token")
            tokens[line.secret.digest] = line
        elif line.name in passwords:
            raise ConfigError(f"{path}:{number}: {line.name} has a password already; one is enough")
        else:
            passwords[line.name] = line
    secrets = [line.secret for line in passwords.values() if isinstance(line.secret, Password)]
    dearest = max(secrets, key=lambda one: one.n * one.r * one.p, default=Password(N, R, P, b"", b""))
    nobody = dearest._replace(salt=os.urandom(16), digest=os.urandom(32))
    return Users(len(names), passwords, tokens, nobody, bool(found.st_mode & stat.S_IROTH)), mark_of(found)


def read_lines(path: str) -> tuple[Sequence[str], os.stat_result]:
    """Return the lines of the file, and its status; ConfigError if the file cannot be read, or others may write it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not block
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{path} is not a regular file")
            if found.st_mode & stat.S_IWOTH:
                raise ConfigError(f"{path} can be written by everybody; chmod o-w {path}")
            if found.st_uid not in (0, os.geteuid()):
                raise ConfigError(f"{path} belongs to user {found.st_uid}, who could add users; chown it")
            data = file.read(MAX_BYTES + 1)
    except OSError as err:
        raise ConfigError(f"{path}: {err.strerror}") from err
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} has more than {MAX_BYTES >> 20} MiB")
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as err:
        raise ConfigError(f"{path} is not text in UTF-8: byte {err.start}") from err
    if len(lines) > MAX_LINES:
        raise ConfigError(f"{path} has more than {MAX_LINES} lines")
    return lines, found


@dataclass
class WatchedFile(Generic[T]):
    """The content of a file, which is read again after a change. The file is looked at once a second at most."""

    path: str
    read: Callable[[str], tuple[T, Mark]]  # returns the content and its mark; ConfigError if it cannot be used
    failure: str  # what the log says of a file that cannot be read again
    clock: Callable[[], float]  # returns seconds of the monotonic clock
    count: Callable[[str], int]  # counts an event by name

    def __post_init__(self) -> None:
        self._mark: Mark | None
        self.content, self._mark = self.read(self.path)
        self._looked = self.clock()

    def look(self) -> bool:
        """Read the file if it has changed; return whether its content is new."""
        if self.clock() - self._looked < LOOK_S:
            return False
        self._looked = self.clock()
        try:
            current: Mark | None = mark_of(os.stat(self.path))
        except OSError:
            current = None
        if current == self._mark:
            return False
        self._mark = current
        try:
            self.content, self._mark = self.read(self.path)
        except ConfigError as err:
            self.count("users_failures")
            log.error("%s, the previous ones remain: reason=%s", self.failure, err)
            return False
        log.info("file read again: file=%s", self.path)
        return True


def mark_of(found: os.stat_result) -> Mark:
    """Return the mark of a status."""
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


# -- leaders of projects --

ASK_S = 3600.0  # between questions to the batch system
AGAIN_S = 600.0  # after a failure
KEPT_S = 86400.0  # lifetime of an answer without a later one: a right must not outlive its reason for long
LONGEST_PROJECT = 255
Projects = Mapping[str, frozenset[str]]  # leaders by project


def parse_leaders(path: str) -> tuple[Projects, Mark]:
    """Return the leaders in a file, and its mark, as `read_users`: lines such as ``physics: alice, bob``."""
    lines, status = read_lines(path)
    found: dict[str, frozenset[str]] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        project, colon, listed = text.partition(":")
        project = project.strip()
        try:
            if not colon or not 0 < len(project) <= LONGEST_PROJECT or not project.isprintable():
                raise ValueError("it is not PROJECT: USER, USER")
            if project in found:
                raise ValueError(f"another line has the project {project!r}")
            found[project] = frozenset([check_name(name.strip()) for name in listed.split(",")])
        except ValueError as err:
            raise ConfigError(f"{path}:{number}: {err}") from err
    return found, mark_of(status)


@dataclass(eq=False)
class Leaders:
    """The projects of each leader; never waits for the batch system. ConfigError if the file cannot be used."""

    path: str | None = None  # of the file; None without one
    ask: Callable[[], Projects] | None = None  # asks the batch system in a thread; None without one
    clock: Callable[[], float] = time.monotonic
    count: Callable[[str], int] = lambda _: 1  # counts an event by name

    def __post_init__(self) -> None:
        self._file: WatchedFile[Projects] | None = None
        if self.path is not None:
            what = "leaders of projects not read again"
            self._file = WatchedFile(self.path, parse_leaders, what, self.clock, self.count)
        self._batch: Projects = {}
        self._until = 0.0  # of the answer of the batch system
        self._due = self.clock()
        self._asking: threading.Thread | None = None

    def projects(self, user: str) -> frozenset[str]:
        """Return the projects that a user leads."""
        now = self.clock()
        if self.ask is not None and now >= self._due and self._asking is None:
            self._due = now + ASK_S
            self._asking = threading.Thread(target=self._refresh, args=(self.ask,), name="leaders", daemon=True)
            self._asking.start()
        sources = [self._batch] if now < self._until else []
        if self._file is not None:
            self._file.look()
            sources.append(self._file.content)
        return frozenset([project for source in sources for project, names in source.items() if user in names])

    def _refresh(self, ask: Callable[[], Projects]) -> None:
        try:
            self._batch, self._until = ask(), self.clock() + KEPT_S
        except ColmetError as err:
            self._due = self.clock() + AGAIN_S
            count = self.count("coordinators_failures")
            if powers_of_ten(count):
                log.error("coordinators of accounts are not known failures=%d: %s", count, err)
        finally:
            self._asking = None
