"""Peers without a key that open all connections they can: the collector lives, answers, and writes files."""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from colmet.common.config.keys import write_pair
from colmet.common.daemon.control import ask
from colmet.common.errors import Unreachable
from colmet.common.transport import Push, link_uri, new_pair
from tests.support.place import skip_refused
from tests.support.waiting import free_port, wait_for

pytestmark = [pytest.mark.live, pytest.mark.slow]
NODE = str(Path(__file__).parents[1] / "support/spooling_node.py")
# As many connections as there can be, to both ports, from some addresses, and again what is closed.
FLOOD = """
import resource, selectors, socket, sys, time
port, most, addresses = map(int, sys.argv[1:4])
resource.setrlimit(resource.RLIMIT_NOFILE, 2 * (resource.getrlimit(resource.RLIMIT_NOFILE)[1],))
greeting = b"\\xff" + bytes(8) + b"\\x7f\\x03\\x00" + sys.argv[4].encode().ljust(20, b"\\0") + bytes(32)
opened, total, said_at = set(), 0, time.monotonic() + 5
while True:
    began = time.monotonic()
    while len(opened) < most and time.monotonic() < began + 1:
        one = socket.socket()
        one.settimeout(0.2)
        try:
            one.bind((f"127.1.{total % addresses}.1", 0))
            one.connect(("127.0.0.1", port + total % 2))
            one.send(greeting)
            one.setblocking(False)
            opened.add(one)
        except OSError:
            one.close()
        total += 1
        if said_at and (total >= most or time.monotonic() > said_at):
            print("flooded", flush=True)
            said_at = 0
    for one in list(opened):
        try:
            while one.recv(4096):
                pass
        except BlockingIOError:
            continue
        except OSError:
            pass
        one.close()
        opened.discard(one)
    time.sleep(0.01)
"""


class Site:
    """A collector with few descriptors, and a node that was there before the flood."""

    def __init__(self, folder, limit, *options):
        self.folder, self.port = folder, free_port()
        self.uri, self.control = f"tcp://127.0.0.1:{self.port}", str(folder / "control.sock")
        self.log = folder / "log"
        with open(self.log, "w") as log:
            self.collector = subprocess.Popen(
                [
                    *(sys.executable, "-m", "colmet.collector.main", "-v", "--zeromq-bind-uri", self.uri),
                    *("--hdf5-filepath", str(folder / "c"), "-s", "0.2"),
                    *("--control-socket", self.control, *options),
                ],
                stderr=log,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
            )
        wait_for(self._answers)
        self.others = []

    def _answers(self):
        with contextlib.suppress(Unreachable):
            return bool(self.status())
        return False

    def status(self):
        assert self.collector.poll() is None, self.log.read_text()[-2000:]
        return ask(self.control, "collector", {"command": "status"})

    def start(self, *command):
        self.others.append(subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True))
        return self.others[-1]

    def flood(self, addresses, mechanism="NULL", most=5000):
        flood = self.start("-c", FLOOD, str(self.port), str(most), str(addresses), mechanism)
        assert flood.stdout.readline() == "flooded\n"
        return flood

    def close(self):
        for one in [*self.others, self.collector]:
            one.kill()
            one.communicate()


@pytest.fixture
def site(tmp_path):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 8000:
        skip_refused("a process may not open 8,000 files")
    with contextlib.ExitStack() as stack:
        yield lambda *given: stack.enter_context(contextlib.closing(Site(tmp_path, *given)))


@pytest.mark.parametrize("addresses", [1, 50])
def test_a_flood_of_connections_stops_nothing(site, tmp_path, addresses):
    limit = 4096  # below, the collector warns at its start
    under = site(limit)
    notes = tmp_path / "notes"
    node = under.start(NODE, "vm", str(tmp_path / "spool"), str(notes), "16000000", "1", under.uri)
    wait_for(lambda: under.status()["received"]["batches"] > 10)
    asked = threading.Thread(target=lambda: [under.status() for _ in range(30)], daemon=True)
    asked.start()
    under.flood(addresses)
    # on a loaded machine not all of them have been accepted
    wait_for(lambda: under.status()["connections"]["closed"])
    asked.join(60)
    assert not asked.is_alive()
    status = under.status()
    assert status["connections"]["connections"] < limit and status["connections"]["closed"], status["connections"]

    # the next HDF5 file is opened
    files = len(list(tmp_path.glob("c*.hdf5")))
    under.collector.send_signal(signal.SIGHUP)
    wait_for(lambda: len(list(tmp_path.glob("c*.hdf5"))) > files)
    wait_for(lambda: not any(output["why"] for output in under.status()["outputs"]))

    # a node that comes now gets in
    late = Push(under.uri, 10, 0)
    with contextlib.closing(late):
        wait_for(lambda: late.connected, 30)

    # the node that was there has all acknowledged
    node.send_signal(signal.SIGTERM)
    assert node.wait(30) == 0
    assert "dropped" not in notes.read_text()
    assert under.status()["received"]["batches"] >= len(notes.read_text().splitlines())


def test_a_flood_without_keys_stops_nothing_where_keys_are_needed(site, tmp_path):
    (tmp_path / "keys/nodes").mkdir(parents=True)
    write_pair(str(tmp_path / "keys"), "collector", new_pair())
    secret = ("--zeromq-curve-secret", str(tmp_path / "keys/collector.secret"))
    under = site(4096, *secret, "--zeromq-curve-nodes", str(tmp_path / "keys/nodes"))
    under.flood(20, "CURVE")  # another mechanism would be refused at once
    for _ in range(20):
        under.status()
        time.sleep(0.1)
    assert link_uri(under.uri) in under.log.read_text()
