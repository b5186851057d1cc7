"""Files that hold one secret: a token, a salt, a key."""

from __future__ import annotations

import contextlib
import os
import stat

from colmet.common.errors import ConfigError
from colmet.facility.obfuscation import KEY_BYTES

MAX_BYTES = 4096


def read(path: str, option: str) -> bytes:
    """What is in a file that its owner may read, and at most a group.

    Args:
        path: of the file.
        option: that names it, for the error.

    Raises:
        ConfigError: it cannot be read, others can read it too, or it is too large.
    """
    _must_be_named(path, option)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{option}: {path} is not a file")
            # not of the group: systemd gives a service its credentials by an access list, which shows as group bits
            if status.st_mode & 0o007:
                raise ConfigError(
                    f"{option}: others can read {path} (mode {status.st_mode & 0o777:04o}); chmod 600 {path}"
                )
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as err:
        raise ConfigError(f"{option}: {path} cannot be read: {getattr(err, 'strerror', None) or err}") from err
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{option}: {path} is larger than the {MAX_BYTES} bytes that a secret may have")
    return content


def read_line(path: str, option: str) -> str:
    """The only line in such a file.

    Raises:
        ConfigError: as for `read`, or it is no line of text.
    """
    try:
        lines = read(path, option).decode("utf-8").splitlines()
    except UnicodeDecodeError as err:
        raise ConfigError(f"{option}: {path} is not text in UTF-8") from err
    if len(lines) != 1 or not lines[0] or not lines[0].isprintable():
        raise ConfigError(f"{option}: {path} has to hold one line of text, without control characters")
    return lines[0]


def read_key(path: str, option: str) -> bytes:
    """The key that a file holds: all of its bytes as they are.

    Raises:
        ConfigError: as for `read`, or it is too short.
    """
    key = read(path, option)
    if len(key) < KEY_BYTES:
        raise ConfigError(
            f"{option}: {path} has {len(key)} bytes, a key has at least {KEY_BYTES}; "
            "colmet-facility --make-key FILE makes one"
        )
    return key


def make_key(path: str) -> None:
    """Write a new key to a file that is not there yet, for its owner alone.

    Raises:
        ConfigError: it is there, or cannot be written.
    """
    _must_be_named(path, "--make-key")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(os.urandom(KEY_BYTES).hex().encode() + b"\n")
                file.flush()
                os.fsync(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)  # else it would be in the way of the next call
            raise
    except FileExistsError as err:
        raise ConfigError(f"--make-key: {path} is there already; with another key all names change") from err
    except (OSError, ValueError) as err:
        raise ConfigError(f"--make-key: {path}: {getattr(err, 'strerror', None) or err}") from err


def _must_be_named(path: str, option: str) -> None:
    if not path:
        raise ConfigError(f"{option}: names no file; is the variable empty that has its name?")
