"""Faults of the network, the clock and the disks of two machines: nothing acknowledged is lost, nothing is twice, the
daemons name the fault and go on by themselves after it.

The tests have one pair of machines, in this order; the last one compares what is stored with what was sent and with
what the node counted. `make test-machines` runs this.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import re
import time

import pytest

from tests.beds.machines.cuts import NODE, PLACE, Cluster, stored
from tests.beds.machines.machines import SENDS
from tests.support import fleet
from tests.support.exactly_once import seed
from tests.support.fleet import assert_each_once

SPOOL = "/var/spool/colmet"
SPOOL_KIB = 128
HOUR_S = 3600
SETS = 4  # of the node's clock
SLOW_S = 5  # an emulated machine needs for a command
PARTITION_S = 180  # all timeouts of the link are shorter
JOB = 42
GROUP = f"/sys/fs/cgroup/oar.slice/oar-u1000-j{JOB}.service"
WORK = "while :; do seq 20000 >/dev/null; sleep 0.5; done"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A collector that four simulated nodes and a real one send to; the real one has a job."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "PERIOD_S", 0.5)  # an emulated machine is slow
        made = Cluster(
            tmp_path_factory.mktemp("faults"), random.Random(seed()), os.environ.get("COLMET_IMAGE", "bookworm")
        )
        try:
            made.start()
            made.node.run(
                f"systemd-run -q --slice=oar.slice --unit=oar-u1000-j{JOB} -p CPUAccounting=yes sh -c '{WORK}'"
            )
            made.node.wait_for(SENDS)
            yield made
        finally:
            made.close()


def status(machine, side):
    return json.loads(machine.run(f"colmet status {side} --json"))


def verdict(machine, side):
    """One line with all problems."""
    return machine.run(f"colmet status {side} --check", check=False)


def log_of(machine, unit):
    return machine.run(f"journalctl -q -b --no-pager -o cat -u {unit}")


def until(what, condition, timeout=240):
    """The value of a condition, when it is true."""
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(2)
    return found


def heard(cluster):
    """Seconds since the collector heard the node."""
    one = [one for one in status(cluster.collector, "collector")["senders"]["worst"] if one["name"] == NODE]
    return one[0]["seen_age_s"] if one else 1e9


def goes_on(node, count=8):
    """Wait for `count` more acknowledged batches of a node."""
    before = status(node, "node")["agent"]["batches_acknowledged"]
    until("batches are acknowledged", lambda: status(node, "node")["agent"]["batches_acknowledged"] > before + count)


@contextlib.contextmanager
def between(machine, before, after):
    """Run a command on the machine now, and another one at the end."""
    machine.run(before)
    try:
        yield
    finally:
        machine.run(after)


def netem(node, words):
    """Delay or lose packets of the node, by the words of netem."""
    return between(
        node, f"modprobe sch_netem; tc qdisc replace dev eth1 root netem {words}", "tc qdisc del dev eth1 root"
    )


def clock_off(machine, seconds):
    """Set the clock by some seconds, and back at the end."""
    commands = [f"date -s @$(($(date +%s) {sign} {seconds}))" for sign in "+-"]
    return between(machine, *commands)


def full_disk(machine, place):
    """Nothing is free there for a user."""
    free = f"$(df --output=avail -B1 {place} | tail -n 1)"
    return between(machine, f"fallocate -l {free} {place}/filler", f"rm {place}/filler")


def small_spool(node):
    """The node's spool has a file system of its own."""
    mount = f"mount -t tmpfs -o size={SPOOL_KIB}k,mode=700,uid=colmet-node spool {SPOOL}"
    commands = [
        f"systemctl stop colmet-node; {step}; systemctl start colmet-node" for step in (mount, f"umount {SPOOL}")
    ]
    return between(node, *commands)


def test_loss_delay_and_a_partition_that_outlasts_the_spools_disk(cluster):
    node, sizes = cluster.node, []
    with small_spool(node):
        node.wait_for(SENDS)
        with netem(node, "delay 200ms loss 5%"):
            goes_on(node, 15)
            assert "collector is away" not in log_of(node, "colmet-node")
        with netem(node, "loss 100%"):
            end = time.monotonic() + PARTITION_S
            while time.monotonic() < end:
                time.sleep(15)
                sizes.append(status(node, "node")["spool"]["disk_bytes"])
            assert sizes[0] < max(sizes) <= SPOOL_KIB << 10, sizes
            until("the spool's disk is full", lambda: status(node, "node")["spool"]["disk_failures"])
            now = status(node, "node")
            assert not now["collectors"][0]["there"], now
            assert now["spool"]["held"] > 20 and not now["spool"]["dropped"], now["spool"]
            assert ":5556 away for" in verdict(node, "node")
            assert NODE in verdict(cluster.collector, "collector")
        until("the spool empties", lambda: status(node, "node")["spool"]["held"] < 10)
        until("the spool is written again", lambda: "spool: can be written to again" in log_of(node, "colmet-node"))
        left = status(node, "node")["spool"]
        assert left["disk_bytes"] < max(sizes) / 4 and not left["dropped"], left
        log = log_of(node, "colmet-node")
        for message in ("collector is away", "collector is there again", "spool: cannot be written to"):
            assert message in log, log
    node.wait_for(SENDS)


@pytest.mark.parametrize("seconds", [HOUR_S, -HOUR_S])
def test_the_nodes_clock_is_set(cluster, seconds):
    node, collector = cluster.node, cluster.collector
    named = "clocks are ahead" if seconds > 0 else "data are old"

    def is_named():  # other clocks may be off as well, by a second
        return re.search(rf"{named}[^;|]*{NODE}", verdict(collector, "collector"))

    with clock_off(node, seconds):
        goes_on(node)
        until("the collector names it", is_named)
    goes_on(node)
    until("the collector names it no more", lambda: not is_named())
    log = log_of(node, "colmet-node")
    assert all(re.search(rf"clock was set by seconds={sign}3(59|60)\d\.", log) for sign in (r"\+", "-")), log


@pytest.mark.parametrize("seconds", [HOUR_S, -HOUR_S])
def test_the_collectors_clock_is_set(cluster, seconds):
    for step in (contextlib.nullcontext(), clock_off(cluster.collector, seconds), contextlib.nullcontext()):
        with step:
            before = cluster.fleet.acknowledged
            until("batches are acknowledged", lambda before=before: cluster.fleet.acknowledged > before + 20)
            until("the node is heard", lambda: heard(cluster) < 10)
    assert "clock was set by seconds=" in log_of(cluster.collector, "colmet-collector")


def test_the_collectors_disk_is_full(cluster):
    """What it cannot write it does not acknowledge; it goes on when there is room, also after a kill meanwhile."""
    collector = cluster.collector
    with full_disk(collector, PLACE):
        until(
            "it names the fault",
            lambda: "journal cannot be written to: No space left" in verdict(collector, "collector"),
        )
        time.sleep(30)
        assert cluster.fleet.waiting > 40  # now and then blocks become free, and a batch is written
        collector.run("systemctl kill -s KILL colmet-collector")
        time.sleep(30)

    def all_are_acknowledged():
        cluster.fleet.reconnect()  # what the killed process had in memory is sent again
        time.sleep(15)
        return cluster.fleet.waiting < 20

    until("it acknowledges all", all_are_acknowledged)
    until("the journal works", lambda: not status(collector, "collector")["journal"]["why"])
    log = log_of(collector, "colmet-collector")
    assert "journal: cannot be written to" in log and "No space left" in log, log


def test_a_read_only_root_while_the_node_runs_and_at_its_boot(cluster):
    """The node measures and sends; what waits for the collector is in memory."""
    node = cluster.node
    node.run("echo u >/proc/sysrq-trigger")  # as the kernel does after an error of the disk
    node.wait_for("! touch /var/lib/test 2>/dev/null")
    goes_on(node)
    assert "spool: cannot be written to" in log_of(node, "colmet-node")
    node.run("systemctl restart colmet-node")
    node.wait_for(SENDS)
    assert "batches are kept in memory only" in log_of(node, "colmet-node")
    cluster.cpu_us = int(node.run(f"sed -n 's/^usage_usec //p' {GROUP}/cpu.stat"))
    node.stop()
    node.boot("ro")
    node.wait_for(SENDS)
    node.wait_for("! touch /var/lib/test 2>/dev/null")
    goes_on(node)
    assert "batches are kept in memory only" in log_of(node, "colmet-node")
    until("the node is heard", lambda: heard(cluster) < 10)
    node.run("mount -o remount,rw / && systemctl restart colmet-node")
    node.wait_for(SENDS)
    assert "kept in memory only" not in log_of(node, "colmet-node").rpartition("Starting colmet-node")[2]


def test_all_is_stored_once_and_reports_are_right(cluster, tmp_path, capsys):
    cluster.finish(tmp_path / "stored")
    numbered, real, ledger = stored(tmp_path / "stored")
    sent, times = cluster.fleet.rows(), real["procstats_default"]
    counted = collections.Counter()
    for epoch, table, _, rows in ledger:
        if table == b"procstats_default":
            counted[epoch] = max(counted[epoch], rows)
    report = json.loads(cluster.collector.run(f"colmet report {JOB} --hdf5 {PLACE}/cluster --json"))
    with capsys.disabled():
        print(
            f"\nrows of simulated nodes: acknowledged {len(sent)}, stored {len(numbered)}\n"
            f"samples of the real node in {len(counted)} starts: counted {sum(counted.values())}, stored {len(times)}, "
            f"twice {len(times) - len(set(times))}\nCPU time of its job: kernel {cluster.cpu_us / 1e6:.1f} s\n"
            f"{json.dumps(report)[:3000]}"
        )
    assert_each_once(numbered, sent, "after all faults")
    assert len(times) == sum(counted.values())
    assert len(times) - len(set(times)) <= SETS * SLOW_S  # seconds that the clock had twice
    assert not negative(report), report
    assert report["cpu"]["used_s"] >= 0.97 * cluster.cpu_us / 1e6, (
        "the step back may count twice, see docs/completeness.md"
    )


def negative(value, where=""):
    """Places of numbers below 0 in a document."""
    if isinstance(value, dict):
        return [one for key, some in value.items() for one in negative(some, f"{where}.{key}")]
    if isinstance(value, list):
        return [one for some in value for one in negative(some, where)]
    return [where] if isinstance(value, (int, float)) and value < 0 else []
