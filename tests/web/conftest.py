"""Fixtures that tests of this folder share."""

from __future__ import annotations

from tests.support.web_store import clock, history
from tests.support.web_users import page, users

__all__ = ["clock", "history", "page", "users"]
