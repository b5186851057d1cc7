"""Addresses of mail: their form, and those of users by a pattern or a file. User names are hostile."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from colmet.common.errors import ConfigError

MAX_FILE = 16 << 20
MARK = "%u"  # the user's name in a pattern

_ADDRESS = re.compile(r"[A-Za-z0-9!#$&'*+/=?^_`{|}~.-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)

Lookup = Callable[[str], "str | None"]


def is_address(text: str) -> bool:
    """Return whether a text is an address such as alice@site.org: no name, no quotes, no spaces."""
    return bool(_ADDRESS.fullmatch(text)) and not text.startswith("-")


def address(text: str) -> str:
    """Convert an address, an option type."""
    if not is_address(text):
        raise argparse.ArgumentTypeError(f"{text!r:.100} is not an address such as alice@site.org")
    return text


def pattern_or_path(text: str) -> str:
    """Convert a pattern of addresses, %u@site.org, or the absolute path of a file with them, an option type."""
    if not text.startswith("/") and (MARK not in text or not is_address(text.replace(MARK, "user"))):
        raise argparse.ArgumentTypeError(f"{text!r:.100} is not a pattern such as %u@site.org, nor the path of a file")
    return text


def is_user(name: str) -> bool:
    """Return whether a name may be a part of an address."""
    return bool(_USER.fullmatch(name))


def by_pattern(text: str) -> Lookup:
    """Return the look-up of users by a pattern."""

    def find(user: str) -> str | None:
        found = text.replace(MARK, user)
        return found if is_user(user) and is_address(found) else None

    return find


def by_file(path: str) -> Lookup:
    """Return the look-up of users in a file, with a user and an address in each line.

    Raises:
        ConfigError: it cannot be read, or a line has another form.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as err:
        raise ConfigError(f"user-address {path}: {err.strerror}") from err
    if len(content) > MAX_FILE:
        raise ConfigError(f"user-address {path}: larger than {MAX_FILE >> 20} MiB")
    known = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not is_address(words[1]):
            raise ConfigError(f"user-address {path}:{number}: not a user and an address, such as: alice a@site.org")
        known[words[0].rstrip(":")] = words[1]
    return known.get
