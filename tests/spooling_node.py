"""A node whose backend makes its rows up: agent, spool and link are the real ones, and their times go by faster.

usage: spooling_node.py HOST SPOOL_DIR NOTES SPOOL_BYTES FACTOR URI...

After each batch that the spool has in its files, a line `epoch seq` is in NOTES. At SIGTERM it takes no more, and ends
when all are acknowledged; `dropped EPOCH FIRST LAST` lines follow.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from colmet.common.runtime import cli
from colmet.common.schema import Field, Sample, Schema
from colmet.common.transport import LinkClient, Push, link_uri
from colmet.common.wire import v1
from colmet.node.agent import Agent
from colmet.node.backend import InputBackend
from colmet.node.delivery.link import Link
from colmet.node.delivery.outbox import Held
from colmet.node.delivery.send_queue import Spool
from colmet.node.delivery.spool import LOCK, SpoolFiles
from colmet.node.delivery.uplink import Route, Times, by_preference
from colmet.node.schedule import Schedule
from colmet.node.system.host import Host
from colmet.node.system.processes import Processes

PERIOD_S = 0.1
AT_MOST_S = 90.0  # until all is acknowledged
SEGMENT_BYTES = 8 << 10  # at most, and an eighth of the room
SCHEMA = Schema("made_default", "job", (Field("epoch", "count", "gauge"), Field("seq", "count", "gauge")))


class MadeUp(InputBackend):
    """One row a batch, which says which batch it is."""

    name = "made"
    schema = SCHEMA

    def __init__(self, epoch):
        self._epoch = epoch
        self._seq = 0

    @classmethod
    def add_options(cls, parser):
        pass

    @classmethod
    def from_options(cls, options, host):
        return None

    def open(self):
        pass

    def sample(self, jobs):
        self._seq += 1
        yield Sample(0, {"epoch": self._epoch, "seq": self._seq})

    def close(self):
        pass


class NoJobs:
    """A node without jobs."""

    fd = -1
    started = ended = failures = unmapped = conflicts = left_out = overflows = 0
    processes = Processes()

    def scan(self):
        return []

    def take_changed(self):
        return []

    def take_ended(self):
        return []

    def close(self):
        pass


class Noting(Held):
    """Writes down what is in the files."""

    notes = -1

    def add(self, entries):
        entries = list(entries)
        super().add(entries)
        lines = [f"{entry.epoch} {entry.seq}\n" for entry in entries if entry[:2] not in self._memory]
        os.write(self.notes, "".join(lines).encode())


def main(host_name, directory, notes, spool_bytes, factor, *uris):
    cli.set_up_logging(1)
    times = Times().faster(float(factor))._replace(farewell_s=5.0)
    private = Host().private_directory(directory)
    private.lock(LOCK)
    epoch = max(time.time_ns(), SpoolFiles.last_epoch(private) + 1)
    room = int(spool_bytes)
    files = SpoolFiles(private, host_name, epoch, room, 86400, segment_bytes=min(SEGMENT_BYTES, room // 8))
    held = Noting(epoch, files)
    held.notes = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    spool = Spool(v1.encode, held)
    now = time.monotonic()
    uris = by_preference(host_name, uris)
    routes = [Route(uri, Push(uri, 1000, 0), LinkClient(link_uri(uri)), times, now) for uri in uris]
    link = Link(host_name, held, routes, spool.take, spool.fd, 1000, 200.0, times)
    agent = Agent(host_name, NoJobs(), [MadeUp(epoch)], spool, Schedule(PERIOD_S))
    with cli.Signals((signal.SIGTERM,)) as signals:
        link.start()
        agent.run(signals)
    until = time.monotonic() + AT_MOST_S
    while (spool.waiting or len(held)) and time.monotonic() < until:
        time.sleep(0.02)
    assert link.stop(spool.wake)
    for dropped in spool.dropped_ranges():
        os.write(held.notes, f"dropped {dropped.epoch} {dropped.first} {dropped.last}\n".encode())
    print(spool.counters(), link.resent, file=sys.stderr)
    for route in routes:
        route.close()
    held.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
