"""Waiting for descriptors above 1023, where select() fails: many nodes are connected, and files are opened late."""

from __future__ import annotations

import ast
import os
import re
import resource
import select
import signal
import threading
import time
from pathlib import Path

import pytest

from colmet.common.daemon.wakeup import Signals, Wakeup, readable
from tests.support.place import skip_refused

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def many_files():
    """1,100 open files: the next descriptor is above 1023."""
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2048:
        if hard != resource.RLIM_INFINITY and hard < 2048:
            skip_refused("a process may not open 2,048 files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for one in opened:
        os.close(one)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def pipe(many_files):
    ends = os.pipe()
    assert min(ends) > 1023
    yield ends
    for one in ends:
        os.close(one)


def test_a_high_descriptor_is_waited_for(pipe):
    out, into = pipe
    assert readable([out], 0) == set()
    began = time.monotonic()
    assert readable([out], 0.05) == set() and time.monotonic() - began >= 0.05
    threading.Timer(0.05, os.write, (into, b"x")).start()
    assert readable([out], None) == {out}


def test_the_end_of_a_pipe_counts_as_readable_and_a_closed_descriptor_is_an_error():
    out, into = os.pipe()
    os.close(into)
    assert readable([out], 0) == {out}
    os.close(out)
    with pytest.raises(OSError, match="Bad file descriptor"):
        readable([out], 0)


def test_signals_are_taken_in(many_files):
    with Signals([signal.SIGUSR1]) as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        signals.drain()
        assert signals.take(signal.SIGUSR1) and not readable([signals.fd], 0)


@pytest.mark.slow
def test_no_module_uses_select():
    """It fails for descriptors above 1023, which tests with few files never have."""
    for path in sorted((ROOT / "colmet").rglob("*.py")):
        text = path.read_text()
        if not re.search(r"\bselect|SelectSelector", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                named = (node.value.id, node.attr)
                assert named not in (("select", "select"), ("selectors", "SelectSelector")), f"{path}:{node.lineno}"
            if isinstance(node, ast.ImportFrom) and node.module == "select":
                assert "select" not in [alias.name for alias in node.names], f"{path}:{node.lineno}"


def is_readable(wakeup):
    return bool(select.select([wakeup.fd], [], [], 0)[0])


def test_it_is_readable_from_wake_to_clear():
    wakeup = Wakeup()
    assert not is_readable(wakeup)
    wakeup.clear()
    for count in (1, 3, 4096, 100_000):  # more than a pipe has room for: wake does not wait
        for _ in range(count):
            wakeup.wake()
        assert is_readable(wakeup)
        wakeup.clear()
        assert not is_readable(wakeup), count
    wakeup.close()
    wakeup.close()
    assert wakeup.fd == -1
