"""What the agent gives away: the tick waits for nothing."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.wire import Decoder, v1
from colmet.node.delivery.link import NodeLink
from colmet.node.delivery.outbox import Outbox, SendQueue
from colmet.node.delivery.spool import Dropped, EncodedBatch
from colmet.node.delivery.uplink import Times, Uplink
from tests.support.node_link import FakePush

SCHEMA = Schema("t_default", "job", [Field("cpu", "nsec", "counter")])
# What may wait for somebody else, of all that Python and its libraries call.
WAITING = {
    *("open", "read", "pread", "fsync", "fdatasync", "ftruncate", "flock", "rename", "unlink", "mkdir", "stat"),
    *("send", "sendto", "sendmsg", "recv", "recvmsg", "connect", "accept", "select", "poll", "getaddrinfo"),
    *("sleep", "acquire", "join", "waitpid", "fork"),
}


def batch(seq, epoch=1):
    return Batch("h", epoch, seq, 1, (), (Table.from_samples(SCHEMA, 1, [Sample(7, {"cpu": seq})]),))


@pytest.fixture
def queue():
    made = SendQueue(v1.encode_short, Outbox(1, max_age_s=9e9))
    yield made
    made.close()


def test_what_is_put_is_taken_in_order_with_its_number(queue):
    for seq in (1, 2, 3):
        queue.put(batch(seq))
    entries = queue.take()
    assert [entry[:3] for entry in entries] == [(1, 1, 1), (1, 2, 1), (1, 3, 1)]
    assert [Decoder().decode(entry.full).batches[0].seq for entry in entries] == [1, 2, 3]
    assert queue.take() == [] and queue.taken == 3
    assert queue.outbox.stats.by_table() == {"t_default": {"taken": 3, "sent": 0, "acknowledged": 0, "dropped": 0}}


def test_putting_calls_nothing_that_could_wait(queue):
    """Of what is called, from first to last; the only system call is a write to a pipe that does not block."""
    called = set()

    def note(frame, event, argument):
        if event == "c_call":
            called.add(argument.__name__)

    queue.put(batch(1))  # what is prepared once
    one = batch(2)
    sys.setprofile(note)
    try:
        queue.put(one)
    finally:
        sys.setprofile(None)
    assert "write" in called and not called & WAITING, called & WAITING


@pytest.mark.slow
def test_a_thread_that_hangs_does_not_delay_the_tick_and_what_overflows_is_named(caplog):
    """As on a disk that does not answer: then memory is bounded, and the oldest go."""
    outbox = Outbox(1, max_age_s=9e9)
    queue = SendQueue(v1.encode_short, outbox, max_bytes=1 << 20)
    hangs, go_on = threading.Event(), threading.Event()

    def hang(entries):
        hangs.set()
        go_on.wait(60)

    outbox.add = hang
    push = FakePush()
    push.connected = False
    link = NodeLink("h", outbox, [Uplink("uri", push, None, Times(), time.monotonic())], queue.take, queue.fd)
    link.start()
    queue.put(batch(1))
    assert hangs.wait(20)
    started = time.monotonic()
    for seq in range(2, 100_002):
        queue.put(batch(seq))
    assert time.monotonic() - started < 60
    go_on.set()
    dropped = {n for one in queue.dropped_ranges() for n in range(one.first, one.last + 1)}
    kept = [entry.seq for entry in queue.take()]
    assert link.stop(queue.wake)
    assert queue.overflowed > 90_000 and queue.dropped == queue.overflowed
    assert len(kept) * 700 < 2 << 20
    assert dropped and max(dropped) < min(kept or [100_002])
    assert caplog.text.count("batch dropped") == 5
    queue.close()


def test_counters_say_what_became_of_all():
    outbox = Outbox(1, max_age_s=9e9)
    queue = SendQueue(v1.encode_short, outbox)
    for seq in range(1, 6):
        queue.put(batch(seq))
    outbox.add(queue.take())
    for seq in range(1, 5):
        outbox.sent((1, seq))
    outbox.sent((1, 1))
    outbox.acknowledge(1, 1, 2)
    outbox.drop(Dropped(1, 5, 5, 1, 1, "size"))
    counters = queue.counters()
    assert {name: counters[name] for name in ("taken", "sent", "acknowledged", "dropped", "held")} == {
        "taken": 5,
        "sent": 4,
        "acknowledged": 2,
        "dropped": 1,
        "held": 2,
    }
    assert outbox.stats.by_table()["t_default"] == {"taken": 5, "sent": 4, "acknowledged": 2, "dropped": 1}
    assert isinstance(outbox.message((1, 3)), bytes) and outbox.following((1, 0)) == (1, 3)
    assert EncodedBatch(1, 3, 1, outbox.message((1, 3)))[:2] in outbox
    queue.close()
