"""Machines of a collector and of a node; power cuts of them while they write, and what is stored after all of them."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import os
import subprocess
import time

from colmet.collector.backends.hdf5.library import tables  # loaded as the collector loads it
from tests.beds.machines.machines import Machine
from tests.beds.machines.volatile_disk import VolatileDisk
from tests.support.fleet import Fleet, Row
from tests.support.waiting import free_port

NODES = 4  # simulated
PLACE = "/var/lib/colmet"
NODE = f"cut-node-{os.getpid()}"
RESEND_S = 60
RECEIVING_S = 900  # at most, from power on
UNIT = f"""[Mount]
What=/dev/vdb
Where={PLACE}
Type=ext4
[Install]
WantedBy=multi-user.target
"""
PATIENT = """[Manager]
DefaultTimeoutStartSec=900
DefaultDeviceTimeoutSec=900
"""
COLLECTOR = f"""verbose = 1
zeromq-curve-secret = ""
hdf5-filepath = "{PLACE}/cluster"
sample-period = 0.5
"""
REAL_NODE = """verbose = 1
sample-period = 2
"""


class Cluster:
    """A collector on a machine, and nodes that send to it.

    Its data are on a disk with a volatile cache. Simulated nodes here keep each batch until it is acknowledged; a real
    one is on a machine of its own.

    Args:
        directory: for the disk.
        rng: of the test.
        image_name: of both machines.
    """

    def __init__(self, directory, rng, image_name):
        self._rng = rng
        self._stack = contextlib.ExitStack()
        port = free_port()
        disk = directory / "disk"
        with open(disk, "wb") as file:
            file.truncate(2 << 30)
        subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", str(disk)], check=True)
        socket = directory / "disk.socket"
        self.disk = VolatileDisk(disk, socket)
        self._stack.callback(self.disk.close)
        forward = f"{port}:5556 {port + 1}:5557"
        self.collector = Machine(
            f"cut-collector-{os.getpid()}", image_name, FORWARD=forward, DISKS=f"nbd:unix:{socket}"
        )
        self.node = Machine(NODE, image_name)
        self._stack.callback(self.collector.drop)
        self._stack.callback(self.node.drop)
        self._node_is_off = False
        self._uri = f"tcp://127.0.0.1:{port}"

    def start(self):
        """Set both machines up, and start the daemons and the simulated nodes."""
        self.collector.start()
        self.collector.write("/etc/systemd/system.conf.d/patient.conf", PATIENT)
        self.collector.write("/etc/systemd/system/var-lib-colmet.mount", UNIT)
        self.collector.write("/etc/colmet/collector.toml", COLLECTOR)
        self.collector.run(
            "systemctl daemon-reload; "
            "systemctl -q enable var-lib-colmet.mount colmet-collector.socket colmet-collector; "
            "colmet-collector --config /etc/colmet/collector.toml --check-config && "
            "systemctl start var-lib-colmet.mount colmet-collector.socket colmet-collector && sync"
        )
        self.node.start()
        self.node.write("/etc/colmet/node.toml", f'zeromq-uri = "tcp://{self.collector.address}:5556"\n{REAL_NODE}')
        self.node.run("rm -rf /etc/colmet/keys; systemctl -q enable colmet-node; systemctl start colmet-node; sync")
        self.fleet = Fleet(self._uri, self._rng, NODES)
        self._stack.callback(self.fleet.close)
        return self

    def power_on(self):
        """Boot the collector, and the node after a cut; seconds until the collector has acknowledged a batch."""
        began, before, again = time.monotonic(), self.fleet.acknowledged, 0.0
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            booting = threads.submit(self.collector.boot)
            of_node = threads.submit(self.node.boot) if self._node_is_off else None
            self._node_is_off = False
            while self.fleet.acknowledged == before:
                took = time.monotonic() - began
                assert took < RECEIVING_S, self.collector.logs()
                if booting.done() and time.monotonic() > again:
                    booting.result()
                    self.fleet.reconnect()  # what was sent to the machine before its end is lost
                    again = time.monotonic() + RESEND_S
                time.sleep(0.2)
            took = time.monotonic() - began
            booting.result()
            if of_node is not None:
                of_node.result()
        return took

    def cut_node(self):
        """At any moment."""
        time.sleep(self._rng.uniform(0, 5))
        self.node.cut()
        self._node_is_off = True

    def cut_collector(self):
        """Cut at a random moment or number of unflushed blocks; return the numbers of unflushed and lost blocks."""
        time.sleep(self._rng.uniform(0, 10))
        if self._rng.random() < 0.5:
            wanted, until = self._rng.choice((2, 8, 30, 100, 300)), time.monotonic() + 20
            while self.disk.unflushed < wanted and time.monotonic() < until:
                time.sleep(0.01)
        self.collector.cut()
        return self.disk.cut(self._rng)

    def finish(self, directory):
        """Have all rows stored; put the files into a directory."""
        self.fleet.pause()
        until = time.monotonic() + 900
        while self.fleet.waiting:
            assert time.monotonic() < until, f"{self.fleet.waiting} batches wait\n{self.collector.logs()}"
            time.sleep(RESEND_S)
            self.fleet.reconnect()
        self.node.wait_for("systemctl is-active --quiet colmet-node")
        time.sleep(20)
        self.node.run("systemctl stop colmet-node")
        while True:
            self.collector.run("systemctl stop colmet-collector.socket colmet-collector")
            log = self.collector.run("journalctl -q -b --no-pager -o cat -n 20 -u colmet-collector")
            if "left alone" not in log or time.monotonic() > until:
                break
            self.collector.run("systemctl start colmet-collector; sleep 60")
        directory.mkdir()
        for path in self.collector.run(f"ls {PLACE}/cluster.*.hdf5").split():
            self.collector.get(path, directory / path.rpartition("/")[2])

    def close(self):
        self._stack.close()


def stored(directory):
    """Rows of the simulated nodes; and of the real one by table: (second, job), and the rows of its ledger."""
    numbered, real, ledger = [], collections.defaultdict(list), []
    for path in sorted(directory.glob("cluster.*.hdf5")):
        with tables.open_file(path) as file:
            for table in file.walk_nodes("/", "Table"):
                rows = table.read()
                if "check" in rows.dtype.names:
                    columns = [rows[name].tolist() for name in ("hostname", "number", "job_id", "timestamp", "check")]
                    numbered += [Row(h.decode(), n, table.name, j, t, c) for h, n, j, t, c in zip(*columns)]
                    continue
                own = rows[rows["hostname"] == NODE.encode()]
                if table.name == "completeness_default":
                    names = ("epoch", "table", "acknowledged", "rows")
                    ledger += list(zip(*[own[name].tolist() for name in names]))
                elif table.name == "procstats_default":
                    real[table.name] += list(zip(own["timestamp"].tolist(), own["job_id"].tolist()))
    return numbered, real, ledger


def lost_of_node(times, ledger):
    """Of each start of the real node: samples acknowledged, and those of them that are not stored."""
    starts = sorted({epoch for epoch, *_ in ledger})
    counts = []
    for epoch, following in zip(starts, [*starts[1:], 1 << 63]):
        acknowledged = max(count for one, table, count, _ in ledger if one == epoch and table == b"procstats_default")
        there = sum(epoch // 10**9 <= second < following // 10**9 for second, _ in times)
        counts.append((acknowledged, max(0, acknowledged - there)))
    return counts
