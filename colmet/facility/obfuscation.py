"""Obfuscation of users' and hosts' names before they leave the site."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable

from colmet.common.config import secretfile
from colmet.common.errors import ConfigError

KEY_BYTES = 32  # minimum length of a key
_DIGITS, _KEYED_DIGITS = 8, 16

Obscure = Callable[[str], str]


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
