"""Fixtures that tests of this folder share."""

from __future__ import annotations

from tests.support.daemons import start, start_collector, uri

__all__ = ["start", "start_collector", "uri"]
