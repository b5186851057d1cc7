"""Shared by tests: World."""

from __future__ import annotations

from colmet.collector.backend import JournalRecord
from colmet.collector.ingest.link import CollectorLink, DurableBatches
from colmet.collector.ingest.receiver import Receiver
from colmet.common.schema import Batch
from colmet.common.transport.sockets import Called
from colmet.common.wire import link as wire
from colmet.common.wire import v1


class FakeServer:
    def __init__(self):
        self.inbox = []
        self.sent = []
        self.gone = set()

    def receive(self):
        return self.inbox.pop(0) if self.inbox else None

    def send(self, caller, message):
        if caller in self.gone:
            return False
        self.sent.append((caller, wire.decode(message)))
        return True


class World:
    def __init__(self, on_disk=True):
        self.now = 1000.0
        self.server, self.receiver, self.durable = FakeServer(), Receiver(), DurableBatches()
        self.answers = []
        self.link = CollectorLink(
            self.server,
            self.receiver,
            self.durable,
            on_disk,
            lambda *answer: self.answers.append(answer),
            lambda: self.now,
        )
        self.written = []

    def take(self, *numbers, host="node-1", epoch=1, time_s=None, peer="10.0.0.1"):
        """Batches come in; those of a start after those of the one before, where no time is given."""
        for seq in numbers:
            time_ns = (epoch * 10**4 + seq if time_s is None else time_s) * 10**9
            fresh = self.receiver.take(v1.encode(Batch(host, epoch, seq, time_ns, (), ())), peer)
            self.link.took(fresh, self.receiver.again)
            if fresh:
                self.written.append(JournalRecord(0, 0, tuple(fresh)))

    def sync(self):
        """The journal syncs what has come."""
        self.durable.put(self.written)
        self.written = []

    def hello(self, *held, host="node-1", epoch=1, coming=100, caller=None, peer="10.0.0.1"):
        message = wire.Hello(host, epoch, coming, "1.2", tuple([wire.Range(*one) for one in held]))
        self.server.inbox.append(Called(caller or host.encode(), wire.encode(message), peer))

    def said(self):
        """What it says now: to whom, and the ranges."""
        self.link.serve()
        sent, self.server.sent = self.server.sent, []
        return [(caller.decode(), *[tuple(one) for one in ack.ranges]) for caller, ack in sent]
