"""Fixtures that tests of this folder share."""

from __future__ import annotations

import os
import time

import pytest


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    """What was sent is noted here."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))


@pytest.fixture
def zone(monkeypatch):
    """Return a function that sets the time zone of this machine."""

    def set_zone(name):
        monkeypatch.setenv("TZ", name)
        time.tzset()

    set_zone("UTC")
    yield set_zone
    os.environ.pop("TZ", None)
    time.tzset()
