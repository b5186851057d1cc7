"""Names of users and hosts that are not to leave the site as they are."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable

from colmet.common.errors import ConfigError
from colmet.common.runtime import secretfile

KEY_BYTES = 32  # that a key has at least
_DIGITS, _KEYED_DIGITS = 8, 16

Obscure = Callable[[str], str]


def salted(salt: str) -> Obscure:
    """Names as the first 8 hexadecimal digits of SHA-256 over salt and name: the form of afmetrics_collector.

    Whoever knows the salt, or finds it out, finds each name by trying all that there are; and of 10,000 users about
    1 % of all sites have two with the same digits.
    """

    def obscure(name: str) -> str:
        return hashlib.sha256(_bytes(salt + name)).hexdigest()[:_DIGITS]

    return obscure


def keyed(key: bytes) -> Obscure:
    """Names as the first 16 hexadecimal digits of HMAC-SHA-256 with a key: without it, nobody can try names.

    Args:
        key: at least `KEY_BYTES` bytes.
    """
    if len(key) < KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes is too short")

    def obscure(name: str) -> str:
        return hmac.new(key, _bytes(name), hashlib.sha256).hexdigest()[:_KEYED_DIGITS]

    return obscure


def read_key(option: str, path: str) -> bytes:
    """Return the key that a file holds: all of its bytes.

    Raises:
        ConfigError: it cannot be read, others can read it, or it is too short.
    """
    key = secretfile.read(option, path)
    if len(key) < KEY_BYTES:
        raise ConfigError(
            f"{option} {path}: has {len(key)} bytes, a key has at least {KEY_BYTES}; colmet-facility --make-key FILE "
            "makes one"
        )
    return key


def make_key(path: str) -> None:
    """Write a new key to a file that does not exist yet, for its owner alone; ConfigError where that cannot be."""
    try:
        secretfile.create("--make-key", path, os.urandom(KEY_BYTES).hex().encode() + b"\n")
    except FileExistsError as err:
        raise ConfigError(f"--make-key {path}: it is there already; with another key all names change") from err


def plain(name: str) -> str:
    """The name as it is."""
    return name


def host(name: str, domain: str) -> str:
    """The name of a host as "atlas", all digits of its whole name in order, and another domain.

    Args:
        name: of the host.
        domain: "" leaves the name as it is.
    """
    if not domain:
        return name
    return f"atlas{''.join([character for character in name if character.isdigit()])}.{domain}"


def _bytes(text: str) -> bytes:
    # JSON can name halves of characters, which are none by themselves
    return text.encode("utf-8", "surrogatepass")
