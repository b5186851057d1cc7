"""Colmet and the real ibstat and perfquery on a simulated InfiniBand fabric. `make test-beds` runs this."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from colmet.common.errors import BackendUnavailable, CommandFailed
from colmet.node.backends.infiniband import InfinibandBackend
from colmet.node.system.host import Host
from tests.beds.bed import CANNOT, HERE, eventually
from tests.support.daemons import Daemon
from tests.support.place import cannot_run
from tests.support.waiting import free_port

pytestmark = pytest.mark.live

EXTENDED = "PortCountersExtended"  # 64 bits, as perfquery -x asks for
BASIC = "PortCounters"


class Fabric:
    """A fabric of its own, and a node on it with two adapters, ibsim0 and ibsim1."""

    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix="colmet-ibsim-")
        self.tools = f"{self.directory}/bin:{os.environ['PATH']}"

    def run(self, *arguments):
        command = [str(HERE / "ibsim.sh"), *arguments]
        environment = {**os.environ, "BED": self.directory}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode == CANNOT:
            cannot_run(done.stderr.strip())
        assert done.returncode == 0, done.stderr
        return done.stderr

    def set(self, adapter, counters, **values):
        for name, value in values.items():
            self.run("console", f'PerformanceSet "node{adapter}"[1] {counters}.{name}={value}')

    def close(self):
        self.run("down")
        left = os.listdir(self.directory)
        shutil.rmtree(self.directory)
        assert not left, left


@pytest.fixture
def fabric(root, monkeypatch):
    with contextlib.closing(Fabric()) as fabric:
        fabric.run("up")
        with monkeypatch.context() as patch:
            patch.setenv("PATH", fabric.tools)
            yield fabric


def backend_of(*options):
    parser = argparse.ArgumentParser()
    InfinibandBackend.add_options(parser)
    wanted = ["--enable-infiniband", "--infiniband-perfquery", *options]
    return InfinibandBackend.from_options(parser.parse_args(wanted), Host())


def rows(backend):
    """The node's row, and that of each port by name."""
    first, *others = backend.sample([])
    return first.values, {row.values["port"].decode(): row.values for row in others}


def processes_in(directory):
    """Processes that were started from there, tools and what they start."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith(directory):
                found.append(int(path.parts[2]))
    return found


def test_values_are_those_set_and_then_what_changed(fabric):
    fabric.set(0, EXTENDED, PortXmitData=123456789012, PortRcvData=5000000000, PortXmitPkts=77, PortRcvPkts=88)
    fabric.set(1, EXTENDED, PortXmitData=1000, PortRcvData=2000, PortXmitPkts=30, PortRcvPkts=40)
    fabric.set(1, EXTENDED, PortMulticastXmitPkts=5)
    fabric.set(0, BASIC, PortXmitData=4000, SymbolErrorCounter=3, LinkDownedCounter=2, PortXmitWait=70000)
    backend = backend_of()
    backend.open()
    total, ports = rows(backend)
    assert total == {
        "portXmitData": 4 * (123456789012 + 1000),
        "portRcvData": 4 * (5000000000 + 2000),
        "portXmitPkts": 77 + 30,
        "portRcvPkts": 88 + 40,
    }
    assert sorted(ports) == ["ibsim0/1", "ibsim1/1"]
    one, other = ports["ibsim0/1"], ports["ibsim1/1"]
    assert (one["state"], one["physical_state"], one["rate"]) == (b"ACTIVE", b"LinkUp", b"10 Gb/sec")
    assert one["port_xmit_data"] == 4 * 123456789012  # not of the 32-bit counters
    assert (one["symbol_error"], one["link_downed"], one["port_xmit_wait"]) == (3, 2, 70000)
    assert (other["port_rcv_data"], other["multicast_xmit_packets"], other["symbol_error"]) == (8000, 5, 0)

    fabric.set(0, EXTENDED, PortXmitData=123456789112, PortRcvPkts=188)
    fabric.set(1, EXTENDED, PortRcvData=2007)
    later, ports = rows(backend)
    grown = {name: later[name] - total[name] for name in total}
    assert grown == {"portXmitData": 400, "portRcvData": 28, "portXmitPkts": 0, "portRcvPkts": 100}
    assert ports["ibsim1/1"]["port_rcv_data"] == 4 * 2007

    eight = backend_of("--omnipath")
    eight.open()
    assert rows(eight)[0]["portXmitData"] == 8 * (123456789112 + 1000)


def test_a_port_that_goes_down_is_reported_and_the_sum_goes_on(fabric):
    fabric.set(0, EXTENDED, PortXmitData=500)
    fabric.set(1, EXTENDED, PortXmitData=1000)
    backend = backend_of()
    backend.open()
    assert rows(backend)[0]["portXmitData"] == 6000
    fabric.run("console", 'Unlink "node1"[1]')
    fabric.set(0, EXTENDED, PortXmitData=600)
    total, ports = rows(backend)
    assert (ports["ibsim1/1"]["state"], ports["ibsim1/1"]["physical_state"]) == (b"DOWN", b"Polling")
    assert ports["ibsim0/1"]["state"] == b"ACTIVE" and "port_xmit_data" not in ports["ibsim1/1"]
    assert total["portXmitData"] == 6400
    fabric.run("console", 'ReLink "node1"[1]')
    assert rows(backend)[1]["ibsim1/1"]["state"] == b"INIT"  # until a subnet manager has seen it
    fabric.run("manage")
    fabric.set(0, EXTENDED, PortXmitData=700)  # the manager's packets count, too
    fabric.set(1, EXTENDED, PortXmitData=1100)
    total, ports = rows(backend)
    assert ports["ibsim1/1"]["state"] == b"ACTIVE" and total["portXmitData"] == 4 * (700 + 1100)


def test_counters_that_are_reset_never_take_the_sum_down(fabric):
    backend = backend_of()
    backend.open()
    fabric.set(0, EXTENDED, PortXmitData=500, PortRcvData=500)
    before = rows(backend)[0]
    subprocess.run(["perfquery", "-R", "-x", "-C", "ibsim0", "-P", "1"], check=True, timeout=20, capture_output=True)
    fabric.set(0, EXTENDED, PortXmitData=3)
    total, ports = rows(backend)
    assert ports["ibsim0/1"]["port_xmit_data"] == 12
    assert total["portXmitData"] == before["portXmitData"] + 12
    assert all(total[name] >= before[name] for name in before)


def test_a_fabric_that_does_not_answer_is_given_up_at_the_deadline(fabric, monkeypatch):
    monkeypatch.setattr("colmet.node.backends.infiniband.DEADLINE_S", 1.0)
    backend = backend_of()
    backend.open()
    fabric.run("stop")
    began = time.monotonic()
    with pytest.raises(CommandFailed, match=r"did not end within 1 s and was killed"):
        backend.sample([])
    assert time.monotonic() - began < 10
    assert eventually(lambda: not processes_in(fabric.directory), 10)
    with pytest.raises(BackendUnavailable, match=r"was killed; is the adapter's driver stuck"):
        backend.open()


def test_without_a_fabric_the_real_tools_say_so(fabric, monkeypatch):
    """This machine's own: the simulator is not asked."""
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    if os.path.exists("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
        cannot_run("this machine has an adapter")
    with pytest.raises(BackendUnavailable, match=r"no InfiniBand, Omni-Path or RoCE port; load"):
        backend_of().open()


class Stored:
    """Colmet's daemons beside the fabric, and the rows that the collector prints."""

    def __init__(self, directory):
        uri = f"tcp://127.0.0.1:{free_port()}"
        output = ("--enable-stdout-backend", "--stdout-format", "json", "--buffer-size", "1")
        self.collector = Daemon("colmet.collector.main", directory / "collector.log", "--zeromq-bind-uri", uri, *output)
        self._lines = []
        self._reader = threading.Thread(target=lambda: self._lines.extend(self.collector.process.stdout))
        self._reader.start()
        self.collector.said("listening")
        options = ("--state-dir", "", "--spool-dir", "", "-s", "0.5", "--enable-infiniband", "--infiniband-perfquery")
        self.node = Daemon("colmet.node.main", directory / "node.log", "--zeromq-uri", uri, *options)

    def values(self, table, column):
        rows = [json.loads(line) for line in list(self._lines)]
        return [row.get(column) for row in rows if row["metric_backend"] == table]

    def close(self):
        for daemon in (self.node, self.collector):
            daemon.process.terminate()
        self._reader.join(timeout=20)
        for daemon in (self.node, self.collector):
            daemon.process.communicate(timeout=20)


def test_both_daemons_carry_what_changes_and_go_on_when_the_fabric_dies(fabric, tmp_path):
    fabric.set(0, EXTENDED, PortXmitData=123456789012)
    fabric.set(1, EXTENDED, PortXmitData=1000)
    with contextlib.closing(Stored(tmp_path)) as stored:
        first = 4 * (123456789012 + 1000)
        assert eventually(lambda: first in stored.values("infinibandstats_default", "portXmitData"), 20)
        fabric.set(1, EXTENDED, PortXmitData=1100)
        assert eventually(lambda: first + 400 in stored.values("infinibandstats_default", "portXmitData"), 20)
        assert {"ibsim0/1", "ibsim1/1"} == set(stored.values("infinibandports_default", "port"))
        fabric.run("stop")
        stored.node.said("sample failed backend=infiniband", timeout=30)
        after = len(stored.values("procstats_default", "hostname"))
        assert eventually(lambda: len(stored.values("procstats_default", "hostname")) > after, 10)
        assert stored.node.process.poll() is None
