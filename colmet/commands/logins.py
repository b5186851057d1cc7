"""The logins kept by `colmet login`: a file for its user alone, with a secret for each interface."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator
from typing import NamedTuple

from colmet.common.errors import ConfigError, is_later, later_form
from colmet.common.host.files import write_whole
from colmet.common.http_client import basic_authorization

FILE = "logins.json"
FORM = 1  # of the file, its key "form"; the first files have none
MAX_BYTES = 1 << 20
BEARER, BASIC = "bearer", "basic"
SECRET = re.compile(r"[!-~]{1,4096}", re.ASCII)  # of a token: characters of a header


class Login(NamedTuple):
    """A login at one interface."""

    kind: str  # `BEARER` for a token, `BASIC` for a name and a password
    secret: str  # the token, or NAME:PASSWORD
    user: str = ""  # as the interface names it
    until: int | None = None  # end of the token, seconds since 1970; None if unknown
    ca_file: str = ""  # certificates of the accepted authorities; "" for those of this machine

    @property
    def authorization(self) -> str:
        """Return the header Authorization."""
        return f"Bearer {self.secret}" if self.kind == BEARER else basic_authorization(self.secret)


def path() -> str:
    """Return the path of the file; ConfigError without a home directory."""
    home = os.path.expanduser("~")
    above = os.environ.get("XDG_CONFIG_HOME") or (os.path.join(home, ".config") if os.path.isabs(home) else "")
    if not os.path.isabs(above):
        raise ConfigError("no home directory, and XDG_CONFIG_HOME is no absolute path: there is no place for logins")
    return os.path.join(above, "colmet", FILE)


def find(url: str) -> Login | None:
    """Return the login at this URL; None without one.

    Raises:
        ConfigError: others can read the file, it is damaged, or of a later version.
    """
    return _read().get(url)


def only_url() -> str:
    """Return the URL of the only kept login; "" without one, with several, or if the file cannot be used."""
    try:
        urls = list(_read())
    except ConfigError:
        return ""
    return urls[0] if len(urls) == 1 else ""


def keep(url: str, login: Login) -> None:
    """Write a login into the file, in place of an earlier one at this URL."""
    with _locked():
        _write({**_read(), url: login})


def remove(url: str) -> bool:
    """Remove the login at this URL; return whether there was one."""
    if not _read():
        return False
    with _locked():
        found = _read()
        was_there = found.pop(url, None) is not None
        if was_there:
            _write(found)
    return was_there


def _read() -> dict[str, Login]:
    name = path()
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError:
        return {}
    except OSError as err:
        what = "a symbolic link" if os.path.islink(name) else err.strerror
        raise ConfigError(f"{name}: {what}; remove it, and log in again") from err
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise ConfigError(f"{name}: not a file of this user; remove it, and log in again")
        if status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise ConfigError(
                f"{name}: others can use it (mode {mode:04o}), and the secrets in it: chmod 600 it, and log in again"
            )
        content = file.read(MAX_BYTES + 1)
    try:
        found = json.loads(content[:MAX_BYTES])
        if is_later(form := found.pop("form", FORM), FORM):
            raise ConfigError(later_form(name, form, FORM, "remove it, and log in again"))
        logins = {str(url): Login(**one) for url, one in found.items()}
        if not all(_is_good(one) for one in logins.values()):
            raise ValueError
    except (ValueError, TypeError, AttributeError, RecursionError) as err:
        raise ConfigError(f"{name}: damaged; remove it, and log in again") from err
    return logins


def _is_good(login: Login) -> bool:
    if not all(isinstance(one, str) for one in (*login[:3], login.ca_file)):
        return False
    if not isinstance(login.until, (int, type(None))):
        return False
    return login.kind == BASIC or (login.kind == BEARER and bool(SECRET.fullmatch(login.secret)))


def _write(logins: dict[str, Login]) -> None:
    entries = {url: login._asdict() for url, login in sorted(logins.items())}
    content = json.dumps({"form": FORM, **entries}, indent=1)
    try:
        write_whole(path(), f"{content}\n".encode(), shared=True)
    except OSError as err:
        raise ConfigError(f"{path()}: {err.strerror}") from err


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Allow one change at a time; make the directory, which others may not write."""
    folder = os.path.dirname(path())
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as err:
        raise ConfigError(f"{folder}: {err.strerror}") from err
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise ConfigError(f"{folder}: others can write it; chmod 700 it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
