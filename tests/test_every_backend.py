"""Every backend at once, with every program hanging: no tick waits, and nothing piles up."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

DRIVER = Path(__file__).parent / "every_backend.py"
PROGRAMS = ("ipmi-oem", "ipmi-dcmi", "ipmi-sensors", "ipmitool", "perfquery", "lctl", "nvidia-smi")
# It hears no signal but the last, and so does what it has started; both hold the pipes.
HANG = "#!/bin/sh\ntrap '' TERM HUP INT\n(trap '' TERM HUP INT; exec -a {mark} sleep 600) &\nexec -a {mark} sleep 600\n"
PERIOD_S = 0.05
TICKS = 1000
SETTLED = 100  # ticks until every backend has begun


@pytest.fixture
def machine(fake):
    """The running kernel's /proc and cgroups; made-up hardware; programs that hang."""
    for name in ("proc", "dev"):
        (fake.path / name).symlink_to(f"/{name}")
    fake.mkdir("sys/class")
    for name in ("fs", "kernel", "bus", "devices"):
        (fake.path / "sys" / name).symlink_to(f"/sys/{name}")
    return fake


def processes(mark):
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes().startswith(mark.encode())
        except OSError:
            continue
    return found


class Sleeper(threading.Thread):
    """How late this machine lets someone be who does nothing but sleep until the next tick."""

    def __init__(self):
        super().__init__(daemon=True)
        self.worst_s = 0.0
        self.ends = False

    def run(self):
        due = time.monotonic()
        while not self.ends:
            due += PERIOD_S
            time.sleep(max(0.0, due - time.monotonic()))
            self.worst_s = max(self.worst_s, time.monotonic() - due)
            due = max(due, time.monotonic() - PERIOD_S)
