"""Whatever happens to network, collector and nodes: what was taken is in HDF5 once.

COLMET_SEED=N repeats a run, as far as the machine lets it.
"""

from __future__ import annotations

import collections
import glob
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colmet.collector.backends.hdf5.library import tables
from tests.support.place import skip_refused
from tests.support.tunnel import ADDRESSES, Tunnel

pytestmark = pytest.mark.live
NODE = str(Path(__file__).parents[1] / "support/spooling_node.py")
ROOM = 64 << 20
LITTLE_ROOM = 16 << 10


class Daemon:
    """A process that can be killed and started again."""

    def __init__(self, world, log, side, ready):
        self._world, self.log, self._side, self._ready = world, log, side, ready
        self.process = None
        self._log_start = 0

    def launch(self, command):
        self._log_start = len(self.log.read_text()) if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._world.tunnel.inside(self._side, *map(str, command)),
                stdout=log,
                stderr=log,
                env=self._world.environment,
            )

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)

    def stop(self):
        until = time.monotonic() + 60
        while self._ready not in self.log.read_text()[self._log_start :]:  # before, a signal would just end it
            assert self.process.poll() is None and time.monotonic() < until, self._world.text()
            time.sleep(0.05)
        self.process.send_signal(signal.SIGTERM)


class Node(Daemon):
    """A node; after `stop`, it takes no more rows, and ends once all are acknowledged."""

    def __init__(self, world, name, room):
        super().__init__(world, world.directory / f"{name}.log", 1, "backend on")
        self.name = name
        self._room = room
        self.notes = world.directory / f"{name}.notes"

    def start(self):
        directory = self._world.directory / f"{self.name}.spool"
        command = [sys.executable, NODE, self.name, directory, self.notes, self._room, self._world.factor]
        self.launch([*command, *[collector.uri for collector in self._world.collectors]])

    def end(self):
        assert self.process.wait(150) == 0, self._world.text()

    def noted(self):
        """(epoch, seq) of what it had in its files, and ranges of what it dropped."""
        taken, dropped = set(), set()
        for line in self.notes.read_text().splitlines(keepends=True):
            words = line.split()
            if not line.endswith("\n"):
                continue  # it was killed in the middle
            if words[0] == "dropped":
                epoch, first, last = map(int, words[1:])
                dropped |= {(epoch, seq) for seq in range(first, last + 1)}
            else:
                taken.add((int(words[0]), int(words[1])))
        return taken, dropped


class Collector(Daemon):
    """A process that can be killed and started again."""

    def __init__(self, world, number):
        self.prefix = world.directory / f"collector-{number}"
        super().__init__(world, self.prefix.with_suffix(".log"), 0, "listening uri")
        self.uri = f"tcp://{ADDRESSES[0]}:{5556 + 2 * number}"

    def start(self):
        command = [sys.executable, "-m", "colmet.collector.main", "-v", "--zeromq-bind-uri", self.uri, "-s", "0.2"]
        self.launch([*command, "--hdf5-filepath", f"{self.prefix}.hdf5", "-s", "0.1", "--control-socket", ""])

    def stop(self):
        super().stop()
        assert self.process.wait(60) == 0, self._world.text()

    def stored(self):
        """How often each batch is in its HDF5 files: host, epoch, number."""
        found = collections.Counter()
        for path in glob.glob(f"{self.prefix}*.hdf5"):
            with tables.open_file(path) as file:
                for table in file.walk_nodes("/", "Table"):
                    if table.name == "made_default":
                        rows = table.read()
                        hosts = [host.decode() for host in rows["hostname"].tolist()]
                        found.update(zip(hosts, rows["epoch"].tolist(), rows["seq"].tolist()))
        doubles = [key for key, times in found.items() if times > 1]
        assert not doubles, f"{len(doubles)} twice, such as {doubles[:3]}\n{self._world.text()}"
        return found


class World:
    """Collectors on one side of a bad wire, nodes on the other."""

    def __init__(self, directory, tunnel, factor, names, collectors=1):
        self.directory = directory
        self.tunnel = tunnel
        self.factor = factor
        root = str(Path(__file__).resolve().parents[2])
        self.environment = {**os.environ, "PYTHONPATH": root}
        self.nodes = {name: Node(self, name, LITTLE_ROOM if name == "little" else ROOM) for name in names}
        self.collectors = [Collector(self, number) for number in range(collectors)]
        for one in [*self.collectors, *self.nodes.values()]:
            one.start()

    def healed(self, timeout_s):
        """Wait until nothing is held any more: then the last segment of each spool is empty."""
        until = time.monotonic() + timeout_s
        while any(self.held(name) > 10 for name in self.nodes):
            assert time.monotonic() < until, self.text()
            time.sleep(0.1)

    def held(self, name):
        """About how many batches lie in its spool."""
        files = glob.glob(str(self.directory / f"{name}.spool" / "*.spool*"))
        size = 0
        for path in files:
            try:
                size += os.path.getsize(path)
            except FileNotFoundError:
                continue
        return size // 400

    def text(self):
        logs = [one.log for one in [*self.collectors, *self.nodes.values()]]
        return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in logs if path.exists())

    def stop(self):
        for node in self.nodes.values():
            node.stop()
        for node in self.nodes.values():
            node.end()
        for collector in self.collectors:
            collector.stop()

    def close(self):
        for one in [*self.collectors, *self.nodes.values()]:
            if one.process is not None and one.process.poll() is None:
                one.process.kill()
                one.process.wait()

    def check(self):
        """Each batch is there once in each collector that has it, or was dropped.

        How many there are, how many of them were dropped, and how many are in the files of more than one collector.
        """
        stored = sum([collector.stored() for collector in self.collectors], collections.Counter())
        count = all_dropped = 0
        for name, node in self.nodes.items():
            taken, dropped = node.noted()
            missing = taken - {(epoch, seq) for host, epoch, seq in stored if host == name}
            assert missing <= dropped, f"{name}: {sorted(missing - dropped)[:5]} missing\n{self.text()}"
            assert dropped <= taken, f"{name}: dropped and never taken"
            count += len(taken)
            all_dropped += len(missing)
        for one in [*self.collectors, *self.nodes.values()]:
            said = one.log.read_text()
            assert "Traceback" not in said and "defect" not in said, said[-3000:]
        return count, all_dropped, sum([times > 1 for times in stored.values()])


@pytest.fixture
def tunnel(root):
    chosen = int(os.environ.get("COLMET_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"COLMET_SEED={chosen}")
    try:
        made = Tunnel(chosen)
    except (OSError, subprocess.CalledProcessError):
        skip_refused("no network namespace with a TUN device")
    made.rng = random.Random(chosen)
    yield made
    made.close()


@pytest.mark.slow
def test_every_batch_is_stored_once_whatever_fails(tunnel, tmp_path):
    world = World(tmp_path, tunnel, 40.0, [*[f"node-{n}" for n in range(4)], "little"])
    rng = tunnel.rng
    killable = [name for name in world.nodes if name != "little"]
    try:
        (collector,) = world.collectors
        time.sleep(3)

        for _ in range(2):  # the link is down for a moment
            tunnel.up = False
            time.sleep(rng.uniform(0.3, 1.5))
            tunnel.up = True
            time.sleep(1.0)
        world.healed(60)

        tunnel.loss = 0.05
        time.sleep(4)
        tunnel.loss = 0.0
        world.healed(60)

        tunnel.delay_s = 0.3
        time.sleep(4)
        tunnel.delay_s = 0.0
        world.healed(60)

        tunnel.up = False  # ten minutes
        time.sleep(600 / world.factor)
        tunnel.up = True
        world.healed(90)

        for _ in range(4):
            time.sleep(rng.uniform(0.1, 1.5))
            collector.kill()
            time.sleep(rng.uniform(0, 0.5))
            collector.start()
        world.healed(60)

        for _ in range(6):
            node = world.nodes[rng.choice(killable)]
            node.kill()
            time.sleep(rng.uniform(0, 0.5))
            node.start()
            time.sleep(rng.uniform(0.1, 1.0))

        for _ in range(3):  # all at once, over a bad wire
            tunnel.loss, tunnel.delay_s = 0.05, 0.05
            collector.kill()
            victims = [world.nodes[name] for name in rng.sample(killable, 2)]
            for node in victims:
                node.kill()
            time.sleep(rng.uniform(0, 1.0))
            for node in victims:
                node.start()
            collector.start()
            time.sleep(rng.uniform(1.0, 3.0))
        tunnel.loss = tunnel.delay_s = 0.0
        world.healed(90)
        world.stop()
        count, dropped, _ = world.check()
        print(f"{count} batches, {dropped} of them dropped, all others stored once; {tunnel.lost} packets lost")
        assert dropped > 20, "what is beyond the bound of a spool is dropped"
    finally:
        world.close()


@pytest.mark.slow
def test_collectors_take_over_from_each_other(tunnel, tmp_path):
    """Nothing is lost. What one had and could not say before it was killed, the next one has, too."""
    world = World(tmp_path, tunnel, 40.0, [f"node-{n}" for n in range(4)], collectors=2)
    try:
        for _ in range(2):
            for collector in world.collectors:
                time.sleep(tunnel.rng.uniform(1.0, 2.0))
                collector.kill()
                time.sleep(tunnel.rng.uniform(1.0, 3.0))
                collector.start()
        world.healed(60)
        world.stop()
        count, dropped, twice = world.check()
        print(f"{count} batches, each stored; {twice} of them by both collectors")
        assert dropped == 0
        assert twice < 4 * 4 * 20, "no more than were on their way when one was killed"
    finally:
        world.close()
