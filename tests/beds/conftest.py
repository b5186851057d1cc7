"""Fixtures that tests of this folder share."""

from __future__ import annotations

from tests.support.daemons import start, start_collector, uri
from tests.support.health_daemons import daemons

__all__ = ["daemons", "start", "start_collector", "uri"]
