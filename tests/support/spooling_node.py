"""A node whose backend makes its rows up: agent, spool and link are the real ones, and their times go by faster.

usage: spooling_node.py HOST SPOOL_DIR NOTES SPOOL_BYTES FACTOR URI...

After each batch that the spool has in its files, a line `epoch seq` is in NOTES. At SIGTERM it accepts no more and ends
when all are acknowledged; `dropped EPOCH FIRST LAST` lines follow.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from colmet.common.daemon import startup
from colmet.common.daemon.wakeup import Signals
from colmet.common.host.host import Host
from colmet.common.host.processes import Processes
from colmet.common.schema import Field, Sample, Schema
from colmet.common.transport import LinkClient, Push, link_uri
from colmet.common.wire import v1
from colmet.node.agent import Agent
from colmet.node.backend import InputBackend
from colmet.node.delivery.link import NodeLink
from colmet.node.delivery.outbox import Outbox, SendQueue
from colmet.node.delivery.spool import LOCK, Spool
from colmet.node.delivery.uplink import Times, Uplink, by_preference
from colmet.node.jobs.source import JobScan
from colmet.node.schedule import Schedule

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
    processes = Processes()

    def counters(self):
        return {}

    def scan(self):
        return JobScan([], [], [])

    def close(self):
        pass


class Noting(Outbox):
    """Writes down what is in the files."""

    notes = -1

    def add(self, entries):
        entries = list(entries)
        super().add(entries)
        lines = [f"{entry.epoch} {entry.seq}\n" for entry in entries if entry[:2] not in self._memory]
        os.write(self.notes, "".join(lines).encode())


def main(host_name, directory, notes, spool_bytes, factor, *uris):
    startup.set_up_logging(1)
    # All but what depends on the speed of connecting sockets.
    usual = Times()
    faster = Times(*[seconds / float(factor) for seconds in usual])
    times = faster._replace(mute_s=usual.mute_s, mute_known_s=usual.mute_known_s, farewell_s=5.0)
    private = Host().private_directory(directory)
    private.lock(LOCK)
    epoch = max(time.time_ns(), Spool.last_epoch(private) + 1)
    room = int(spool_bytes)
    files = Spool(private, host_name, epoch, room, 86400, segment_bytes=min(SEGMENT_BYTES, room // 8))
    outbox = Noting(epoch, files)
    outbox.notes = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    queue = SendQueue(v1.encode_short, outbox)
    now = time.monotonic()
    uris = by_preference(host_name, uris)
    uplinks = [Uplink(uri, Push(uri, 1000, 0), LinkClient(link_uri(uri)), times, now) for uri in uris]
    link = NodeLink(host_name, outbox, uplinks, queue.take, queue.fd, 1000, 200.0, times)
    agent = Agent(host_name, NoJobs(), [MadeUp(epoch)], queue, Schedule(PERIOD_S))
    with Signals((signal.SIGTERM,)) as signals:
        link.start()
        agent.run(signals)
    until = time.monotonic() + AT_MOST_S
    while len(outbox) and time.monotonic() < until:
        time.sleep(0.02)
    assert link.stop(queue.wake)
    for dropped in queue.dropped_ranges():
        os.write(outbox.notes, f"dropped {dropped.epoch} {dropped.first} {dropped.last}\n".encode())
    print(queue.counters(), link.resent, file=sys.stderr)
    for uplink in uplinks:
        uplink.close()
    outbox.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
