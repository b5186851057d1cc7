"""Shared by tests: EPOCH, TIMES, World, FakePush."""

from __future__ import annotations

import msgpack

from colmet.common.schema import Batch, Field, Schema, Table
from colmet.common.wire import link as wire
from colmet.common.wire import v1
from colmet.node.delivery.link import NodeLink
from colmet.node.delivery.outbox import Outbox
from colmet.node.delivery.spool import EncodedBatch
from colmet.node.delivery.uplink import Times, Uplink
from tests.support.waiting import Clock

EPOCH = 100


TIMES = Times()


class FakePush:
    def __init__(self):
        self.connected = True
        self.connection = 1
        self.sent = []
        self.reopened = 0
        self.socket = None

    def send(self, message):
        if self.connected:
            self.sent.append(message)
        return self.connected

    def reopen(self):
        self.reopened += 1

    def take(self):
        sent, self.sent = self.sent, []
        return [int(message) if message.isdigit() else seq_of(message) for message in sent]

    def take_forms(self):
        """What was sent: the number of each batch, negative if it was in the short form."""
        sent, self.sent = self.sent, []
        return [-seq_of(one) if 3 in map(len, tables_of(one)) else seq_of(one) for one in sent]


def tables_of(message):
    return msgpack.unpackb(message)["tables"]


def seq_of(message):
    return msgpack.unpackb(message)["seq"]


class FakeLink(FakePush):
    def __init__(self):
        super().__init__()
        self.inbox = []
        self.uri, self.problem = "link-uri", "connections are refused"

    def receive(self):
        return self.inbox.pop(0) if self.inbox else None

    def reopen(self):
        super().reopen()
        self.inbox.clear()

    def hellos(self):
        sent, self.sent = self.sent, []
        return [wire.decode(message) for message in sent]


class World:
    """One node, its collectors, and the time."""

    def __init__(self, count=1, linked=True, wire="v1", **options):
        self.clock = Clock()
        self.new = []
        self.outbox = Outbox(EPOCH, max_age_s=9e9)
        self.pushes = [FakePush() for _ in range(count)]
        self.links = [FakeLink() if linked else None for _ in range(count)]
        self.uplinks = [
            Uplink(f"uri-{n}", push, link, TIMES, self.clock.now, wire)
            for n, (push, link) in enumerate(zip(self.pushes, self.links))
        ]
        self.link = NodeLink("node-1", self.outbox, self.uplinks, self._take, -1, monotonic=self.clock, **options)
        self._number = 0
        self.answering = set(range(count))
        self.started = dict.fromkeys(range(count), 1)
        self.version = "1.0"  # as the collectors say it

    def _take(self):
        new, self.new = self.new, []
        return new

    def put(self, count=1):
        for _ in range(count):
            self._number += 1
            self.new.append(EncodedBatch(EPOCH, self._number, 10**18, b"%d" % self._number))

    def put_batch(self, *names):
        """A batch with tables of these names, as the agent puts it."""
        self._number += 1
        schemas = tuple([Schema(name, "node", [Field("n", "count", "gauge")]) for name in names])
        tables = tuple([Table(schema, 5, schema.empty_rows(1)) for schema in schemas])
        short = v1.encode_short(Batch("node-1", EPOCH, self._number, 5, (), tables))
        self.new.append(EncodedBatch(EPOCH, self._number, 10**18, short, schemas))
        self.link.step()

    def ack(self, *ranges, n=0):
        ack = wire.Ack(self.version, self.started[n], True, 0, tuple([wire.Range(EPOCH, *one) for one in ranges]))
        self.links[n].inbox.append(wire.encode(ack))

    def run(self, seconds, tick=0.1):
        """Let time go by; collectors that answer do, and acknowledge nothing by themselves."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now += tick
            for n, link in enumerate(self.links):
                if link is not None and link.sent:
                    self.hellos = link.hellos()
                    if n in self.answering and link.connected:
                        self.ack(n=n)
            self.link.step()

    @property
    def push(self):
        return self.pushes[0]
