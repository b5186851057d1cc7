"""How the real daemons are, reported on the control socket, to the service manager and to Prometheus."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from colmet import __version__
from colmet.commands import colmet
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.slow]


def page(daemon):
    """The page of metrics: name -> {labels: value}."""
    daemon.said("metrics at http")
    url = re.search(r"metrics at (\S+)", daemon.log.read_text())[1]
    with urllib.request.urlopen(url, timeout=20) as answer:
        text = answer.read().decode()
    return {
        family.name: {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(text)
    }


def status(daemon, name, *arguments):
    """What colmet status says: its exit status and its text."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = colmet.main(["status", name, "--control-socket", daemon.place, *arguments])
    return code, out.getvalue()


def sender_of(collector):
    return json.loads(status(collector, "collector", "--json")[1])["senders"]["worst"]


def test_both_daemons_tell_how_they_are(daemons):
    collector, node = daemons("--enable-nvidia")
    host = socket.gethostname()
    wait_for(lambda: page(collector).get("colmet_collector_output_written_rows", {}).get((("output", "hdf5"),), 0) > 0)
    wait_for(lambda: [one["version"] for one in sender_of(collector)] == [__version__])

    answer = json.loads(status(node, "node", "--json")[1])
    assert answer["daemon"] == "node" and answer["agent"]["ticks"] > 0 and answer["period_s"] == 0.2
    assert {backend["name"]: backend["on"] for backend in answer["backends"]}["procstats"]
    assert f"\ncolmet-node {answer['version']} on {host}" in status(node, "node")[1]
    code, line = status(node, "node", "--check", "--max-age", "30")
    assert (code, line[:19]) in {(0, "COLMET NODE OK - la"), (1, "COLMET NODE WARNING")} and line.count("\n") == 1

    answer = json.loads(status(collector, "collector", "--json")[1])
    (sender,) = answer["senders"]["worst"]
    assert sender["name"] == host and sender["version"] == answer["version"] and sender["batches"] > 0
    assert answer["outputs"][0]["name"] == "hdf5" and answer["outputs"][0]["available"]
    assert status(collector, "collector", "--check", "--max-age", "30")[0] in (0, 1), "1: a batch is still to come"

    of_node, of_collector = page(node), page(collector)
    assert of_node["colmet_node_backend_up"][("backend", "procstats"),] == 1
    assert of_collector["colmet_collector_nodes"][("state", "heard"),] == 1
    for families in (of_node, of_collector):
        assert families["colmet_job_jobprocstats_VmRSS"][("host", host), ("job", "0")] > 1000

    node.process.send_signal(signal.SIGSTOP)
    try:
        check = ("collector", "--check", "--max-age", "1")
        wait_for(lambda: status(collector, *check)[0] == 2)
        assert f"1 of 1 node silent, such as {host}" in status(collector, *check)[1]
    finally:
        node.process.send_signal(signal.SIGCONT)

    assert node.stop()[0] == collector.stop()[0] == 0
    assert not os.path.exists(node.place) and not os.path.exists(collector.place)
    code, line = status(node, "node", "--check")
    assert (code, line) == (2, f"COLMET NODE CRITICAL - no daemon listens on {node.place}\n")
    for daemon in (node, collector):
        assert "Traceback" not in daemon.log.read_text()


def test_garbage_on_the_control_socket_and_the_page_stops_nothing(daemons):
    collector, node = daemons()
    for daemon in (collector, node):
        daemon.said("metrics at http")
        port = int(re.search(r"metrics at \S+:(\d+)/", daemon.log.read_text())[1])
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port)) as one, socket.socket(socket.AF_UNIX) as other:
                one.sendall(os.urandom(5000))
                other.connect(daemon.place)
                other.sendall(os.urandom(5000))
    wait_for(lambda: "1 heard" in status(collector, "collector")[1])
    assert status(node, "node")[0] == 0
    assert node.stop()[0] == collector.stop()[0] == 0


class Manager:
    """A service manager's socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(30)

    def heard(self, *wanted):
        """Wait until each of these was said, in this order, whatever else is."""
        for one in wanted:
            while not self.socket.recv(4096).decode().startswith(one):
                pass


def test_the_service_manager_is_notified(daemons, tmp_path):
    managers = {name: Manager(tmp_path / f"{name}.notify") for name in ("collector", "node")}
    collector, node = daemons("-s", "3600")  # the watchdog is notified between samples, too
    for name, daemon in (("node", node), ("collector", collector)):
        managers[name].heard("READY=1", *(["STATUS="] if name == "collector" else []), "WATCHDOG=1", "WATCHDOG=1")
        daemon.process.send_signal(signal.SIGHUP)
        managers[name].heard("RELOADING=1\nMONOTONIC_USEC=", "READY=1", "WATCHDOG=1")
        assert daemon.stop()[0] == 0
        managers[name].heard("STOPPING=1")
        managers[name].socket.close()
