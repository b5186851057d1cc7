"""Shared by tests: Bed, options, web_options."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

from colmet.collector import main as collector
from colmet.collector.backends import NAMES
from colmet.common.daemon.control import ask
from colmet.common.daemon.startup import load
from colmet.common.transport import Push
from colmet.web.options import build_parser
from tests.support.daemons import Daemon
from tests.support.waiting import free_port, wait_for
from tests.support.web_nodes import Cluster


def options(*given):
    """Those of the collector."""
    return collector.build_parser(load(NAMES)).parse_args(["--enable-stdout-backend", *given])


def web_options(*given):
    """Those of colmet-web."""
    return build_parser().parse_args(given)


class Bed:
    """A collector with an open JSON interface, and what sends to it."""

    def __init__(self, folder: Path):
        port, self.http = free_port(), free_port()
        self.control = folder / "control.sock"
        uri = self.uri = f"tcp://127.0.0.1:{port}"
        self.daemon = Daemon(
            *("colmet.collector.main", folder / "log", "--zeromq-bind-uri", uri, "--control-socket", str(self.control)),
            *("--hdf5-filepath", str(folder / "c"), "--http-open", "--http-listen", str(self.http)),
            *("-s", "0.1"),
        )
        self.push = Push(uri, 1000, 0)
        self.cluster = Cluster(start=int(time.time()) - 100)

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", timeout=30) as answer:
            return json.load(answer)

    def answer(self, path, condition):
        """The first answer that fulfils a condition."""
        found = []

        def look():
            try:
                found[:] = [self.get(path)]
            except (urllib.error.URLError, ConnectionError):
                return False
            return condition(found[0])

        wait_for(look)
        return found[0]

    def send(self):
        for message in self.cluster.messages():
            wait_for(lambda message=message: self.push.send(message))

    def counters(self):
        return ask(str(self.control), "collector", {"command": "status"})["feed"]

    def close(self):
        self.push.close()
        if self.daemon.process.poll() is None:
            self.daemon.process.kill()
        self.daemon.process.communicate()
