"""Fixtures that tests of this folder share."""

from __future__ import annotations

import pytest

from tests.support.daemons import start, start_collector, uri
from tests.support.endpoint_server import Endpoint

__all__ = ["start", "start_collector", "uri"]


@pytest.fixture
def endpoint():
    made = Endpoint()
    yield made
    made.stop()
