"""One node with a key sends what is small to send and dear to read or to store; the others are to notice nothing."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from colmet.common.config.keys import read_pair, read_public
from colmet.common.daemon import control
from colmet.common.schema import Batch, Field, Schema, Table
from colmet.common.transport import Client, LinkClient, Push
from colmet.common.wire import link, v1
from colmet.node.backends.cgroup import SCHEMA as CGROUP
from tests.support.hostile import EVIL, NODES, Site, member

pytestmark = [pytest.mark.live, pytest.mark.slow]
TICK_S, TICKS = 0.25, 80
MOST_ACKNOWLEDGE_S, MOST_ANSWER_S, MOST_MB, MOST_GROWTH = 2.0, 1.0, 400, 48 << 20
HONEST = [f"node-{n}" for n in range(3)]


def rows(schema, jobs):
    found = schema.empty_rows(len(jobs))
    found["job_id"] = jobs
    return Table(schema, time.time_ns(), found)


def wide(name, count, dtype):
    return Schema(name, "job", [Field(f"{'f' * 100}{n:04d}{name}", "none", "label", dtype=dtype) for n in range(count)])


def descriptions(count):
    """750 kB each: 256 tables without rows, of 1,024 fields: more than a reader keeps."""
    tables = tuple([Table(wide(f"t{n}", 1024, "S1"), 1, b"") for n in range(256)])
    return [v1.encode(Batch(EVIL, 1, number, time.time_ns(), (), tables)) for number in range(count)]


def tables_of_jobs(count):
    """155 kB each: a table of 1,000 columns for each of 150 jobs that there are not."""
    schema, made = wide("x_default", 1000, "S1"), []
    for number in range(count):
        jobs = list(range(10**6 * (number + 1), 10**6 * (number + 1) + 150))
        made.append(v1.encode(Batch(EVIL, 1, number, time.time_ns(), tuple(jobs), (rows(schema, jobs),))))
    return made


class Honest:
    """Nodes that measure a job and wait for acknowledgements, in a thread.

    Attributes:
        delays_s: between the sending of each batch and its acknowledgement.
    """

    def __init__(self, site, uri):
        server = read_public(f"{site.keys}/collector.key", "")
        self.delays_s = []
        self._waiting = {}
        self._links = {}
        self._pushes = {}
        for host in HONEST:
            client = Client(read_pair(f"{site.keys}/{host}.secret", ""), server)
            self._links[host], self._pushes[host] = LinkClient(uri, security=client), Push(site.uri, 1000, 0, client)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        for tick in range(TICKS):
            for host, one in self._links.items():
                if tick % 4 == 0:
                    one.send(link.encode(link.Hello(host, 7, tick, "1", (link.Range(7, 0, max(0, tick - 1)),))))
                message = v1.encode(Batch(host, 7, tick, time.time_ns(), (1,), (rows(CGROUP, [1]),)))
                if self._pushes[host].send(message):
                    self._waiting[host, tick] = time.monotonic()
            self._listen(time.monotonic() + TICK_S)
        until = time.monotonic() + 60
        while self._waiting and time.monotonic() < until:
            self._listen(time.monotonic() + TICK_S)

    def _listen(self, until):
        while time.monotonic() < until:
            for host, one in self._links.items():
                while (message := one.receive()) is not None:
                    for _, first, last in link.decode(message).ranges:
                        for tick in range(first, last + 1):
                            sent = self._waiting.pop((host, tick), None)
                            if sent is not None:
                                self.delays_s.append(time.monotonic() - sent)
            time.sleep(0.01)

    def finish(self):
        """What was not acknowledged at all."""
        self._thread.join()
        for one in (*self._links.values(), *self._pushes.values()):
            one.close()
        return self._waiting


def resident_mb(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0


def allocated(folder):
    return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name.endswith(".hdf5"))


def asked(folder):
    return control.ask(f"{folder}/c.sock", "collector", {"command": "status", "senders": -1}, 30)


@pytest.mark.parametrize("made", [descriptions, pytest.param(tables_of_jobs, marks=pytest.mark.endurance)])
def test_what_is_dear_costs_the_others_nothing(tmp_path, made):
    stored = tmp_path / "stored"
    stored.mkdir()
    site = Site(tmp_path / "site", "--hdf5-filepath", f"{stored}/x", "--control-socket", f"{tmp_path}/c.sock")
    honest = push = None
    try:
        site.watch(30, lambda: len(site.stored()) == NODES)
        site.nodes.finish()
        address = next(line for line in site.log.read_text().splitlines() if "listening uri=" in line)
        honest = Honest(site, address.partition(" link=")[2].split(" ")[0])
        time.sleep(3)
        before = allocated(stored)
        push = member(site.uri, site.keys)
        messages = made(30)
        for message in messages:
            until = time.monotonic() + 30
            while not push.send(message) and time.monotonic() < until:
                time.sleep(0.01)
        answers_s = []
        for _ in range(15):
            began = time.monotonic()
            with contextlib.suppress(Exception):
                asked(tmp_path)
            answers_s.append(time.monotonic() - began)
            time.sleep(0.5)
        lost = honest.finish()
        status = asked(tmp_path)
        figures = {
            "sent_mb": sum(map(len, messages)) >> 20,
            "acknowledged_s": max(honest.delays_s),
            "answered_s": max(answers_s),
            "rss_mb": resident_mb(site.process.pid),
            "grown_kb": (allocated(stored) - before) >> 10,
        }
        print(made.__name__, figures)
        assert not lost
        assert figures["acknowledged_s"] < MOST_ACKNOWLEDGE_S and figures["answered_s"] < MOST_ANSWER_S, figures
        assert figures["rss_mb"] < MOST_MB and allocated(stored) - before < MOST_GROWTH, figures
        (evil,) = [one for one in status["senders"]["worst"] if one["name"] == EVIL] or [status["received"]]
        assert evil["limited"] + evil["left_out"] + status["received"]["rejects"] > 0
        others = [one for one in status["senders"]["worst"] if one["name"] in HONEST]
        assert len(others) == len(HONEST) and not any(one["limited"] or one["left_out"] for one in others)
        assert site.stop() == 0
        assert "Traceback" not in site.log.read_text()
    finally:
        if honest is not None:
            honest.finish()
        if push is not None:
            push.close()
        site.close()
