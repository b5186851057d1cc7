"""Shared by tests: daemons."""

from __future__ import annotations

import os

import pytest

from tests.support.daemons import Daemon
from tests.support.waiting import free_port


@pytest.fixture
def daemons(tmp_path, monkeypatch):
    """A collector and a node with control sockets and pages of metrics, started together."""
    started = []

    def start(name, *arguments):
        common = ("--control-socket", str(tmp_path / f"{name}.sock"), "--metrics-listen", "0", "--metrics-jobs")
        module = f"colmet.{name}.main"
        if (tmp_path / f"{name}.notify").exists():
            monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / f"{name}.notify"))
            monkeypatch.setenv("WATCHDOG_USEC", "400000")
        started.append(Daemon(module, tmp_path / f"{name}.log", *common, *arguments))
        started[-1].place = str(tmp_path / f"{name}.sock")
        return started[-1]

    def both(*node_arguments):
        uri = f"tcp://127.0.0.1:{free_port()}"
        collector = start(
            "collector", "--zeromq-bind-uri", uri, "--buffer-size", "1", "--hdf5-filepath", str(tmp_path / "h")
        )
        node = start(
            *("node", "--zeromq-uri", uri, "-s", "0.2", "--state-dir", "", "--cpuset_rootpath", "/none"),
            *("-p", str(os.getpid()), "--enable-jobproc", *node_arguments),
        )
        collector.said("listening")
        node.said("backend on")
        return collector, node

    yield both
    for daemon in started:
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.process.communicate()
