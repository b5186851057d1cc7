"""Upgrade in either order, and back, with the real Colmet 0.6.10 of the package index. `make test-beds` runs this."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import tables

from tests.beds.bed import eventually
from tests.support.waiting import free_port

pytestmark = pytest.mark.live

PERIOD_S = 1
IN_FLIGHT = (
    3  # rows of a node that a collector of 0.6 may have received and not written when it ends: it has no account
)
NODES, RESTARTS, RUN_S = 12, 4, 7  # of 0.6, beside a collector that is stopped and started again
WAITS_S = 25  # a node without keys knows a collector of 0.6 after 15 s
INTERPRETERS = ("python3.11", "python3.10", "python3.9")  # it imports asyncore, which left Python with 3.12


def interpreter():
    found = [sys.executable] if sys.version_info < (3, 12) else []
    for name in INTERPRETERS:
        path = shutil.which(name)
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            found.append(path)
    return found[0] if found else None


@pytest.fixture(scope="session")
def old_programs(tmp_path_factory):
    """The folder with colmet-node and colmet-collector of 0.6.10."""
    python = interpreter()
    if python is None:
        pytest.skip(f"Colmet 0.6.10 needs one of {', '.join(INTERPRETERS)}")
    folder = tmp_path_factory.mktemp("colmet06")
    subprocess.run([python, "-m", "venv", folder], check=True, timeout=200)
    pip = [folder / "bin/pip", "install", "-q", "--disable-pip-version-check", "colmet==0.6.10"]
    done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=500)
    if done.returncode:
        pytest.skip(f"Colmet 0.6.10 cannot be had from the package index: {done.stderr.strip()[-500:]}")
    return folder / "bin"


class Program:
    """A daemon of either version, on a machine of its own name."""

    def __init__(self, directory, name, *command, host=None):
        self.log = directory / f"{name}.log"
        if host:
            command = ("unshare", "--uts", "sh", "-c", f'hostname {host} && exec "$0" "$@"', *command)
        # each version is that of its own Python: the source of this one is not before it
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdout=log, stderr=log, cwd=directory, env=environment
            )

    def said(self, text, timeout_s=60):
        assert eventually(lambda: text in self.log.read_text() or not self.runs, timeout_s), self.log.read_text()
        assert text in self.log.read_text(), self.log.read_text()

    @property
    def runs(self):
        return self.process.poll() is None

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


class Site:
    """One machine whose programs are upgraded, and files that the collectors write one after the other."""

    def __init__(self, directory, old):
        self.directory, self._old = directory, old
        self.uri = f"tcp://127.0.0.1:{free_port()}"
        self.files = []
        self.programs = []

    def _start(self, *arguments, host=None):
        self.programs.append(Program(self.directory, f"program-{len(self.programs)}", *arguments, host=host))
        return self.programs[-1]

    def _file(self):
        self.files.append(self.directory / f"stored-{len(self.files)}.hdf5")
        return ("--zeromq-bind-uri", self.uri, "--hdf5-filepath", self.files[-1])

    def old_collector(self):
        return self._start(self._old / "colmet-collector", "-vvv", "-s", PERIOD_S, *self._file())

    def new_collector(self, *options):
        command = (sys.executable, "-m", "colmet.collector.main", "-v", "--control-socket", "", *self._file())
        collector = self._start(*command, *options)
        collector.said("listening")
        return collector

    def old_node(self, host="old-node"):
        (self.directory / "cpuset").mkdir(exist_ok=True)
        line = ("-vvv", "-s", PERIOD_S, "--zeromq-uri", self.uri, "--cpuset_rootpath", self.directory / "cpuset")
        return self._start(self._old / "colmet-node", *line, host=host)

    def new_node(self, *options):
        """With the start-up line of 0.6; the other options keep it apart from an agent of this machine."""
        line = ("-vvv", "-s", PERIOD_S, "--zeromq-uri", self.uri, "--cpuset_rootpath", self.directory / "none")
        apart = ("--control-socket", "", "--state-dir", "", "--spool-dir", self.directory / "spool")
        return self._start(sys.executable, "-m", "colmet.node.main", *line, *apart, *options, host="new-node")

    def rows(self, host, files=None):
        """Samples of this host in the files, in their order: the second, and counters that differ between samples."""
        found = []
        for path in self.files if files is None else files:
            with tables.open_file(path) as file:
                if "/job_0/procstats_default" in file:
                    found += [
                        tuple(int(row[name]) for name in ("timestamp", "stat_intr", "stat_ctxt"))
                        for row in file.root.job_0.procstats_default
                        if row["hostname"].decode() == host
                    ]
        return found

    def close(self):
        for program in self.programs:
            program.process.kill()
            program.process.wait(timeout=60)


@pytest.fixture
def site(root, tmp_path, old_programs):
    made = Site(tmp_path, old_programs)
    yield made
    made.close()


def ticks(node):
    """Samples that a node of this version has taken, as its last line says."""
    return int(re.findall(r"stopping ticks=(\d+)", node.log.read_text())[0])


def test_a_collector_of_06_ends_at_a_message_of_v1(site):
    """What the others are about."""
    collector = site.old_collector()
    site.new_node("--wire", "v1")
    assert eventually(lambda: not collector.runs, 30)
    assert "UnicodeDecodeError" in collector.log.read_text()


def test_upgrade_in_either_order_and_back(site):
    first = site.old_collector()
    old_node, new_node = site.old_node(), site.new_node()
    new_node.said("it gets the format and the tables")
    time.sleep(5)
    assert first.runs and first.stop() == 0, first.log.read_text()
    time.sleep(3 * PERIOD_S)
    in_first = len(site.rows("new-node"))
    second = site.new_collector()
    new_node.said("collector acknowledges")
    time.sleep(5)
    assert second.stop() == 0
    in_both = len(site.rows("new-node"))
    third = site.old_collector()
    assert eventually(lambda: new_node.log.read_text().count("it gets the format and the tables") == 2, 120)
    time.sleep(5)
    assert new_node.stop() == 0 and third.runs and old_node.runs
    time.sleep(3 * PERIOD_S)
    assert third.stop() == 0
    rows = site.rows("new-node")
    assert len(set(rows)) == len(rows), "none is stored twice"
    missing = ticks(new_node) - len(rows)
    print(
        f"rows: {in_first} to 0.6, {in_both - in_first} to this, then {len(rows) - in_both} to 0.6; missing {missing}"
    )
    assert 0 <= missing <= IN_FLIGHT
    assert in_first >= 15 and in_both - in_first >= 5 and len(rows) - in_both >= 60
    of_old = site.rows("old-node")
    assert len(set(of_old)) == len(of_old) >= 30


def count_missing_samples(rows):
    """Count the samples of one node that its rows lack between the first and the last, by their seconds."""
    seconds = [row[0] for row in rows]
    return seconds[-1] - seconds[0] + 1 - len(set(seconds))


@pytest.mark.slow  # two minutes
def test_restarts_of_a_collector_lose_no_sample_of_06_that_06_itself_would_keep(site):
    """Nodes of 0.6 keep what they cannot send; what a collector has taken and not written when it stops is lost."""
    hosts = [f"old-node-{number}" for number in range(NODES)]
    missing = {}
    nodes = [site.old_node(host) for host in hosts]
    for name, start in (("0.6", site.old_collector), ("this", site.new_collector)):
        first_file = len(site.files)
        for _ in range(RESTARTS):
            collector = start()
            assert eventually(site.files[-1].exists, 60), collector.log.read_text()
            time.sleep(RUN_S)
            assert collector.runs, collector.log.read_text()
            collector.stop()
        files = site.files[first_file:]
        rows = {host: site.rows(host, files) for host in hosts}
        assert all(len(rows[host]) >= (RESTARTS - 1) * RUN_S for host in hosts), rows
        missing[name] = sum(count_missing_samples(rows[host]) for host in hosts)
        print(f"{name}: {sum(map(len, rows.values()))} rows, {missing[name]} missing")
    assert all(node.runs for node in nodes)
    assert missing["this"] <= missing["0.6"]


def test_an_enrolled_node_goes_back_once_its_keys_are_gone(site):
    """With keys it sends nothing to a collector of 0.6, and keeps all; without them that collector gets all of it."""
    keys = site.directory / "keys"
    for command in (
        ("keygen", "collector", "--directory"),
        ("enrol", "new-node", "--collector", site.uri, "--directory"),
    ):
        subprocess.run([sys.executable, "-m", "colmet.commands.colmet", *command, keys], check=True, timeout=60)
    collector = site.new_collector(
        *("--zeromq-curve-secret", keys / "collector.secret", "--zeromq-curve-nodes", keys / "nodes")
    )
    own = keys / "enrolled/new-node"
    enrolled = site.new_node(
        *("--zeromq-curve-secret", own / "node.secret", "--zeromq-curve-collector", own / "collector.key")
    )
    enrolled.said("collector is there")
    time.sleep(5)
    assert collector.stop() == 0
    before = len(site.rows("new-node"))
    old = site.old_collector()
    time.sleep(WAITS_S)
    assert enrolled.stop() == 0 and old.runs
    assert "it gets the format and the tables" not in enrolled.log.read_text()
    without_keys = site.new_node("--zeromq-curve-secret", "")
    without_keys.said("it gets the format and the tables", 120)
    time.sleep(5)
    assert without_keys.stop() == 0 and old.runs
    time.sleep(3 * PERIOD_S)
    assert old.stop() == 0
    rows = site.rows("new-node")
    twice = len(rows) - len(set(rows))
    missing = ticks(enrolled) + ticks(without_keys) - len(set(rows))
    print(f"rows: {before} with keys, {len(rows) - before} to 0.6; twice {twice}, missing {missing}")
    # stored by the first collector and not acknowledged at its end; a new start does not know that it was sent
    assert twice <= 1
    assert before >= 5 and 0 <= missing <= IN_FLIGHT
