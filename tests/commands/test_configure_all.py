"""`colmet configure --all`: a collector as a process, and nodes that are connected to it."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from socket import gethostname

import pytest

from colmet import __version__
from colmet.commands import colmet
from colmet.common.config.configuration import Settings, at_once
from colmet.common.config.keys import write_pair
from colmet.common.daemon.control import Control, ask
from colmet.common.errors import Unreachable
from colmet.common.transport import LinkClient, link_uri, wait
from colmet.common.transport.curve import new_pair
from colmet.common.wire import link as wire
from colmet.node import live_config
from tests.support.daemons import Daemon
from tests.support.waiting import free_port

pytestmark = pytest.mark.live
NODES = 100


class Options:
    """Those of a simulated node."""

    sample_period = 5.0
    perfhw_list = ("instructions",)


class Nodes(threading.Thread):
    """Nodes on the link, each with its own connection and its own settings, all in one thread.

    Attributes:
        periods: sample period of each, by host.
    """

    def __init__(self, uri, hosts):
        super().__init__(daemon=True)
        self.periods = dict.fromkeys(hosts, 5.0)
        self.ended = False
        self.links = {host: LinkClient(uri) for host in hosts}
        self.remotes = {host: live_config.Remote(self.control(host), is_known=True) for host in hosts}

    def control(self, host):
        settings = Settings(Options())
        settings.add({"sample_period": at_once(lambda value: self.periods.update({host: value}))})
        return Control({"configure": lambda request: live_config.change(settings, live_config.parse(request))})

    def run(self):
        greeted_at = 0.0
        while not self.ended:
            if time.monotonic() > greeted_at + 1:
                greeted_at = time.monotonic()
                for host, link in self.links.items():
                    link.send(wire.encode(wire.Hello(host, 1, 1, __version__, ())))
            wait([link.socket for link in self.links.values()], (), 0.2)
            for host, link in self.links.items():
                while (message := link.receive()) is not None:
                    said = wire.decode(message)
                    if isinstance(said, wire.Request):
                        answer = self.remotes[host].answer(said.content)
                        link.send(wire.encode(wire.Answer(said.number, answer)))
        for link in self.links.values():
            link.close()


def asked(socket, request, is_enough):
    """What the collector says, as soon as it listens and that is enough."""
    until = time.monotonic() + 30
    while True:
        try:
            report = ask(socket, "collector", request, 30)
        except Unreachable as err:
            report = {"error": str(err)}
        if "error" not in report and is_enough(report):
            return report
        assert time.monotonic() < until, report
        time.sleep(0.05)


@pytest.fixture
def site(request, tmp_path):
    """A collector, with keys where that is asked for; its control socket, and how nodes are connected to it."""
    (tmp_path / "run").mkdir(mode=0o700)
    socket = str(tmp_path / "run/collector.sock")
    arguments = ["--enable-stdout-backend"]
    if getattr(request, "param", None):
        keys, known = tmp_path / "keys", tmp_path / "known"
        keys.mkdir(mode=0o700)
        known.mkdir(mode=0o755)
        for name in ("collector", gethostname()):
            write_pair(str(keys), name, new_pair())
        shutil.copy(keys / f"{gethostname()}.key", known)
        arguments += ["--zeromq-curve-secret", str(keys / "collector.secret"), "--zeromq-curve-nodes", str(known)]
    uri = f"tcp://127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        collector = Daemon(
            *("colmet.collector.main", tmp_path / "collector", "--zeromq-bind-uri", uri, "--control-socket", socket),
            *arguments,
        )
        stack.callback(collector.process.communicate)
        stack.callback(collector.process.kill)
        collector.said("listening")

        def connect(hosts):
            nodes = Nodes(link_uri(uri), hosts)
            stack.callback(nodes.join)
            stack.callback(setattr, nodes, "ended", True)
            nodes.start()
            # until all have been heard; the period stays as it is
            asked(socket, {"sample_period": "5"}, lambda report: report["unchanged"] == sorted(hosts))
            return nodes

        connect.uri = uri
        yield socket, connect


def configure(socket, *arguments):
    return colmet.main(["configure", "--control-socket", socket, *arguments])


@pytest.mark.slow
def test_a_hundred_nodes_are_changed_at_once(site, capsys):
    socket, connect = site
    nodes = connect([f"node-{n}" for n in range(NODES)])
    assert configure(socket, "--all", "--sample-period", "1.5") == 0
    assert capsys.readouterr().out == f"{NODES} changed, 0 were so already, 0 refused, 0 did not answer\n"
    assert set(nodes.periods.values()) == {1.5}


def test_nodes_that_do_not_are_named_apart(site, capsys):
    socket, connect = site
    nodes = connect(["a", "b", "c"])
    assert configure(socket, "--host", "a", "--host", "z", "--sample-period", "2", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["changed"] == ["a"] and report["away"] == ["z"] and nodes.periods == {"a": 2.0, "b": 5.0, "c": 5.0}
    assert configure(socket, "--all", "--perf-events", "instructions") == 1
    assert capsys.readouterr().out.splitlines() == [
        "0 changed, 0 were so already, 3 refused, 0 did not answer",
        "refused by a, b, c: metrics: perf events are not counted on this node; start it with --enable-perfhw",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("site", "proof"),
    [
        pytest.param(None, "none", marks=pytest.mark.slow),
        pytest.param(None, "allowed", marks=pytest.mark.slow),
        ("keys", "keys"),
    ],
    indirect=["site"],
)
def test_a_real_node_accepts_it_from_its_collector_only_where_that_is_known_or_allowed(site, tmp_path, proof):
    socket, connect = site
    keys = tmp_path / "keys"
    arguments = {
        "none": [],
        "allowed": ["--allow-remote-configure"],
        "keys": [
            *("--zeromq-curve-secret", str(keys / f"{gethostname()}.secret")),
            *("--zeromq-curve-collector", str(keys / "collector.key")),
        ],
    }[proof]
    node = Daemon(
        *("colmet.node.main", tmp_path / "node", "--zeromq-uri", connect.uri, "-s", "3600", "--state-dir", ""),
        *("--mapping-dir", "", "--spool-dir", "", "--control-socket", "", *arguments),
    )
    try:
        report = asked(socket, {"sample_period": "1800"}, lambda report: report["changed"] or report["refused"])
        if proof == "none":
            ((why, _),) = report["refused"].items()
            assert (
                "this node has no keys" in why
                and "change of the configuration refused over the link" in node.log.read_text()
            )
        else:
            assert report["ok"] and "sample_period: 3600.0 -> 1800.0" in node.log.read_text()
        assert node.stop()[0] == 0
    finally:
        node.process.kill()
        node.process.communicate()
