"""SIGHUP to either daemon as a process: its configuration file is read again."""

from __future__ import annotations

import contextlib
import json
import signal

import pytest

from tests.support.daemons import Daemon
from tests.support.waiting import free_port

pytestmark = pytest.mark.live


@pytest.fixture
def started():
    with contextlib.ExitStack() as stack:

        def start(*arguments):
            daemon = Daemon(*arguments, "--control-socket", "")
            stack.callback(daemon.process.communicate)
            stack.callback(daemon.process.kill)
            return daemon

        yield start


def hang_up(daemon, text):
    """Send SIGHUP, and wait for what the daemon says then for the first time."""
    daemon.process.send_signal(signal.SIGHUP)
    daemon.said(text)


def test_both_daemons_read_their_file_again(started, tmp_path):
    uri = f"tcp://127.0.0.1:{free_port()}"
    on_node, on_collector = tmp_path / "node.toml", tmp_path / "collector.toml"
    node_text = f"""
        zeromq-uri = "{uri}"
        sample-period = PERIOD
        state-dir = ""
        spool-dir = ""
        mapping-dir = ""
        disable-procstats = true
        perfhw-list = ["EVENT"]
    """
    collector_text = f"""
        zeromq-bind-uri = "{uri}"
        sample-period = PERIOD
        enable-stdout-backend = true
        stdout-format = "json"
    """
    on_collector.write_text(collector_text.replace("PERIOD", "3600"))
    on_node.write_text(node_text.replace("PERIOD", "3600"))
    collector = started("colmet.collector.main", tmp_path / "log-c", "--config", str(on_collector))
    collector.said("listening")
    node = started("colmet.node.main", tmp_path / "log-n", "--config", str(on_node))
    node.said("backend on backend=cgroup")

    on_node.write_text("sample-perod = 1\n")
    hang_up(
        node,
        "ERROR colmet.common.config.configuration: configuration not changed failures=1: "
        f"{on_node}: sample-perod: no such",
    )
    on_node.write_text(node_text.replace("PERIOD", "0.1").replace("EVENT", "task_clock"))
    hang_up(node, "sample-period: 3600.0 -> 0.1")
    node.said("perfhw-list")  # perfhw is not on
    on_collector.write_text(
        collector_text.replace("PERIOD", "0.1") + "buffer-size = 1\njournal-size = '1G'\nverbose = 2\n"
    )
    hang_up(collector, "sample-period: 3600.0 -> 0.1")
    for change in ("buffer-size: 100 -> 1", "journal-size: 4294967296 -> 1073741824"):
        assert change in collector.log.read_text()
    assert "verbose: " not in collector.log.read_text()  # the command line says it, and counts
    row = json.loads(collector.process.stdout.readline())  # there would be none within the hour
    # Jobs of others on this machine are measured, too.
    assert row["metric_backend"] in ("agent_default", "cgroup_default", "taskstats_default")
    assert node.stop()[0] == 0


def test_sighup_ends_no_daemon_that_has_no_file(started, tmp_path):
    uri = f"tcp://127.0.0.1:{free_port()}"
    node = started(
        *("colmet.node.main", tmp_path / "log", "--zeromq-uri", uri, "--state-dir", "", "--mapping-dir", ""),
        *("--spool-dir", ""),
    )
    node.said("backend on backend=cgroup")
    hang_up(node, "SIGHUP: nothing to read again, there is no --config")
    assert node.stop()[0] == 0
