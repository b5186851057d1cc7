"""Several collectors and a cluster of databases: whoever is killed, every row that a node has taken is there once."""

from __future__ import annotations

import collections
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import requests

from tests.beds.search import Cluster
from tests.support.exactly_once import NEVER
from tests.support.fleet import Row, assert_each_once, row_of
from tests.support.waiting import free_port, wait_for

pytestmark = [pytest.mark.live, pytest.mark.slow]

NODES = str(Path(__file__).with_name("nodes.py"))
COUNT = 300
PROCESSES = 3
PERIOD_S = 3.0
WAIT_S = 120  # for what needs seconds on a machine that has nothing else to do


class Collector:
    """A collector that is started again with the same journal.

    Args:
        directory: of its own.
        urls: of the database's hosts, in the order in which it asks them.
    """

    def __init__(self, directory, urls):
        directory.mkdir()
        self.uri, self.link_uri = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
        self.log = directory / "log"
        self._arguments = [
            *("-v", "--zeromq-bind-uri", self.uri, "--zeromq-link-bind-uri", self.link_uri),
            *("--journal-dir", str(directory / "journal"), "-s", "1", "--control-socket", ""),
            *("--archive", ""),
            *[part for url in urls for part in ("--elastic-host", url)],
        ]
        self._process = None

    def start(self):
        """Start it; it listens when this returns."""
        before = self._listened()
        for _ in range(20):  # its port may be that of somebody's connection for a moment
            with open(self.log, "ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "colmet.collector.main", *self._arguments], stdout=log, stderr=log
                )
            wait_for(lambda: self._listened() > before or self._process.poll() is not None, WAIT_S)
            if self._listened() > before:
                return
            time.sleep(1)
        raise AssertionError(self.log.read_text())

    def _listened(self):
        return self.log.read_text().count("listening uri=") if self.log.exists() else 0

    def signal(self, number):
        self._process.send_signal(number)

    def kill(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self):
        """End it as an operator does; its exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(WAIT_S)

    @property
    def already_there(self):
        """Documents that were there, as the process that ended last has counted."""
        return int(re.findall(r"output elasticsearch .*already_there=(\d+)", self.log.read_text())[-1])


class Fleet:
    """Nodes in some processes.

    Args:
        directory: for their rows.
        uris: of data and link of each collector.
    """

    def __init__(self, directory, uris):
        self._counts = {}
        self._files = [directory / f"rows-{n}" for n in range(PROCESSES)]
        each = COUNT // PROCESSES
        self._processes = [
            subprocess.Popen(
                [
                    *(sys.executable, NODES, str(n * each), str(each), str(PERIOD_S), str(file)),
                    *[",".join(pair) for pair in uris],
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            for n, file in enumerate(self._files)
        ]
        self._readers = [threading.Thread(target=self._read, args=(one,), daemon=True) for one in self._processes]
        for reader in self._readers:
            reader.start()

    def _read(self, process):
        for line in process.stdout:
            self._counts[process.pid] = json.loads(line)

    def count(self, what):
        """Batches of all nodes, by what became of them, or nodes that send to a collector."""
        return sum([counts.get(what, 0) for counts in list(self._counts.values())])

    def has_gone_on(self, batches=COUNT):
        """Wait until the collectors have acknowledged this number more."""
        before = self.count("acknowledged")
        wait_for(lambda: self.count("acknowledged") >= before + batches, WAIT_S)
        assert all(process.poll() is None for process in self._processes)

    def end(self):
        """Have them end when all is acknowledged; every row that they have measured."""
        for process in self._processes:
            process.stdin.write("\n")
            process.stdin.flush()
        for process in self._processes:
            assert process.wait(WAIT_S) == 0
        for reader in self._readers:
            reader.join()
        assert self.count("dropped") == self.count("held") == 0
        assert self.count("acknowledged") == self.count("taken")
        return [Row(*row) for file in self._files for row in json.loads(file.read_text())]

    def close(self):
        for process in self._processes:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


@pytest.fixture
def cluster():
    with Cluster("opensearch") as cluster:
        yield cluster


@pytest.fixture
def collectors(cluster, tmp_path):
    urls = [server.url for server in cluster.servers]
    made = [Collector(tmp_path / f"collector-{n}", urls[n:] + urls[:n]) for n in range(3)]
    for collector in made:
        collector.start()
    yield made
    for collector in made:
        collector.kill()


@pytest.fixture
def fleet(collectors, tmp_path):
    fleet = Fleet(tmp_path, [(collector.uri, collector.link_uri) for collector in collectors])
    yield fleet
    fleet.close()


def indexed(server):
    """How many rows can be found there, a second later at most; 0 while it waits for one that was killed."""
    try:
        return server.ask("GET", "/colmet_*/_count")["count"]
    except (AssertionError, requests.RequestException):
        return 0


def test_collectors_and_databases_are_killed_under_load(cluster, collectors, fleet):
    fleet.has_gone_on(2 * COUNT)
    # they share the nodes
    wait_for(lambda: min([fleet.count(collector.uri) for collector in collectors]) > COUNT / 5, WAIT_S)

    first_down = cluster.manager()
    up = next(server for server in cluster.servers if server is not first_down)
    before = indexed(up)
    first_down.kill()
    wait_for(lambda: indexed(up) > before + COUNT, WAIT_S)

    collectors[0].kill()
    wait_for(lambda: fleet.count(collectors[0].uri) == 0, WAIT_S)
    fleet.has_gone_on()

    # one that does not answer for a while has taken what others take, too
    collectors[1].signal(signal.SIGSTOP)
    try:
        wait_for(lambda: fleet.count(collectors[1].uri) == 0, WAIT_S)
    finally:
        collectors[1].signal(signal.SIGCONT)
    fleet.has_gone_on()

    collectors[0].start()
    first_down.start()
    up.wait("green")
    fleet.has_gone_on()
    up.kill()  # this one stays away, and so does a collector that is killed now, until all is over
    collectors[2].kill()
    fleet.has_gone_on()

    rows = fleet.end()
    collectors[2].start()
    wait_for(lambda: indexed(first_down) >= len(rows), WAIT_S)
    assert [collector.end() for collector in collectors] == [0, 0, 0]
    documents = first_down.documents("colmet_*")
    assert_each_once([row_of(hit["_index"], hit["_source"]) for hit in documents], rows, "the database")
    assert {hit["_version"] for hit in documents} == {1}
    wrong = [line for one in collectors for line in one.log.read_text().splitlines() if NEVER.search(line)]
    assert not wrong, wrong[:5]
    twice = sum([collector.already_there for collector in collectors])
    assert twice > 0
    by_table = collections.Counter([row.table for row in rows])
    print(f"{len(rows)} rows of {COUNT} nodes, each once: {dict(by_table)}; {twice} were refused as they were there")
