"""Daemons as processes of their own, their ports, and how to wait for them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from tests.support.waiting import free_port


class Daemon:
    """A daemon, its output and its log; `within` is a command that becomes the one in its further arguments."""

    def __init__(self, module, log, *arguments, env=None, within=()):
        self.log = log
        with open(log, "w") as file:
            self.process = subprocess.Popen(
                [*within, sys.executable, "-m", module, "-v", *arguments],
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=env,
            )

    def said(self, text, timeout=60):
        until = time.monotonic() + timeout
        while text not in self.log.read_text():
            assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)

    def stop(self, number=signal.SIGTERM):
        """Ask it to end; its exit status and what it printed."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out


@pytest.fixture
def uri():
    return f"tcp://127.0.0.1:{free_port()}"


@pytest.fixture
def start(tmp_path):
    started = []

    def run(module, *arguments):
        arguments = ("--control-socket", "", *arguments)
        if module == "colmet.node.main":  # not those of an agent that runs on this machine
            arguments = ("--state-dir", "", "--spool-dir", "", *arguments)
        started.append(Daemon(module, tmp_path / f"log-{len(started)}", *arguments))
        return started[-1]

    yield run
    for daemon in started:
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.process.communicate()


@pytest.fixture
def start_collector(start, uri):
    def run(*arguments):
        daemon = start("colmet.collector.main", "--zeromq-bind-uri", uri, "--buffer-size", "1", *arguments)
        daemon.said("listening")
        return daemon

    return run


def rows_of(text):
    return [json.loads(line) for line in text.splitlines()]
