"""Read the users' file of the JSON interface."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from colmet.common.errors import ConfigError
from colmet.web.credentials import Credential, Password, Token, nobody, parse_line

MAX_BYTES = 16 << 20
MAX_LINES = 100_000
Mark = tuple[int, int, int, int]  # changes whenever the file does


class Users(NamedTuple):
    """The content of the file."""

    names: int  # number of users
    passwords: Mapping[str, Credential]  # the line of each password, by user
    tokens: Mapping[bytes, Credential]  # the line of each token, by its digest
    nobody: Password  # an unmatched password, to check for unknown names
    is_open: bool  # whether every user of this machine can read the file


def mark(path: str) -> Mark | None:
    """Return a mark of the file, to detect changes; None for a missing file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return mark_of(found)


def read_users(path: str) -> tuple[Users, Mark]:
    """Return the content of the file, and its mark.

    Raises:
        ConfigError: the file cannot be read, others may write it, or a line is malformed.
    """
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
    dearest = max(secrets, key=lambda one: one.n * one.r * one.p, default=None)
    return Users(len(names), passwords, tokens, nobody(dearest), bool(found.st_mode & stat.S_IROTH)), mark_of(found)


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


def mark_of(found: os.stat_result) -> Mark:
    """Return the mark of a status."""
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
