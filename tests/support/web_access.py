"""Shared by tests: cheap."""

from __future__ import annotations

from colmet.web.credentials import Password, _scrypt

SALT = bytes(16)


def cheap(given):
    """A password that costs nothing to check."""
    return Password(2, 1, 1, SALT, _scrypt(given, 2, 1, 1, SALT))
