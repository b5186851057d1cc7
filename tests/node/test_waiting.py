"""A node that waits until a collector is named."""

from __future__ import annotations

import os
import signal

import pytest

from colmet.common.config.configuration import Settings
from colmet.common.daemon import control
from colmet.common.daemon.status_checks import judge
from colmet.common.daemon.systemd import Service
from colmet.common.errors import ConfigError
from colmet.node import main
from colmet.node.main import build_parser


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.setattr(main, "NAMED_S", 0.01)
    socket = str(tmp_path / "node.sock")
    return build_parser([]).parse_args(["--zeromq-uri", "", "--control-socket", socket])


def enrol(options):
    options.zeromq_uri = ["tcp://head:5556"]


class Files(Settings):
    """A configuration whose reading is what a test says."""

    def __init__(self, options, *steps):
        super().__init__(options)
        self.steps = list(steps)

    def refresh(self):
        self.steps.pop(0)()


def test_a_signal_at_the_moment_of_the_enrolment_ends_the_node(options):
    """`colmet enrol` writes the files, and restarts the unit at once."""

    def enrol_and_stop():
        enrol(options)
        os.kill(os.getpid(), signal.SIGTERM)

    assert main.wait_for_collector(options, Files(options, enrol_and_stop), Service()) is False


def test_a_waiting_node_says_what_it_waits_for(options):
    verdicts = []

    def look():
        status = control.ask(options.control_socket, "node", {"command": "status"})
        verdicts.append(judge(status, 60, 300).line("node"))

    def fail():
        raise ConfigError("node.toml: line 3")

    assert main.wait_for_collector(options, Files(options, look, fail, look, lambda: enrol(options)), Service())
    enrolled = f"`colmet enrol {os.uname().nodename}` on the collector's machine"
    assert verdicts == [
        f"COLMET NODE WARNING - waits to be enrolled, nothing is measured: {enrolled}",
        f"COLMET NODE WARNING - waits to be enrolled, its configuration cannot be used: node.toml: line 3: {enrolled}",
    ]
    assert not os.path.exists(options.control_socket), "the agent opens it again"
