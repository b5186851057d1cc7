"""How much is taken from one sender."""

from __future__ import annotations

import pytest
from test_receiver import batch

from colmet.collector import rates as module
from colmet.collector.rates import BURST_S, NODES_OF_AN_ADDRESS, RateLimit, Rates
from colmet.collector.receiver import Receiver
from colmet.common.wire import v1


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def admitted(limit, sender, count, size=0):
    return sum(limit.admits(sender, size) for _ in range(count))


def test_a_burst_is_taken_then_so_many_a_second(clock):
    limit = RateLimit(5, 0, clock)
    assert admitted(limit, "a", 100) == 50
    clock.now += 2
    assert admitted(limit, "a", 100) == 10, "what was left out does not count"
    assert admitted(limit, "b", 100) == 50, "to each sender his own"
    clock.now += 1000
    assert admitted(limit, "a", 100) == 50, "nothing is saved up beyond a burst"


def test_bytes_are_limited_beside_messages(clock):
    limit = RateLimit(0, 1000, clock)
    assert admitted(limit, "a", 100, 400) == 25
    assert admitted(limit, "a", 100, 0) == 100
    clock.now += 1
    assert admitted(limit, "a", 100, 400) == 2


def test_a_sender_that_keeps_to_its_rate_is_never_limited(clock):
    limit = RateLimit(5, 1000, clock)
    for _ in range(1000):
        clock.now += 0.2
        assert limit.admits("a", 200)


def test_no_limit_is_no_limit(clock):
    assert admitted(RateLimit(0, 0, clock), "a", 10_000, 1 << 30) == 10_000


def test_senders_are_forgotten_before_they_fill_memory(clock, monkeypatch):
    monkeypatch.setattr(module, "MAX_SENDERS", 10)
    limit = RateLimit(1, 0, clock)
    assert admitted(limit, "busy", 20) == 10
    for n in range(100):
        limit.admits(f"sender-{n}", 1)
        assert not limit.admits("busy", 1), "who was heard last is remembered"
    assert len(limit._buckets) <= 10


def test_an_address_may_send_for_several_nodes_and_a_key_for_one(clock):
    rates = Rates(10, 0, clock)
    assert sum(rates.admits("", "10.0.0.1", 1) for _ in range(10_000)) == 2000
    assert sum(rates.admits("node-1", "10.0.0.1", 1) for _ in range(10_000)) == 100
    assert rates.admits("node-2", "10.0.0.1", 1), "nodes with keys do not share what their address may send"


def test_what_is_beyond_is_not_even_read_and_counted(clock, caplog):
    receiver = Receiver(Rates(10, 0, clock))
    for n in range(1000):
        receiver.take(v1.encode(batch(n, host="node-1")), "10.0.0.1", "node-1")
    receiver.take(b"\xc1", "10.0.0.1", "node-1")
    sender = receiver.senders["node-1"]
    assert (sender.batches, sender.limited, receiver.rejects) == (100, 901, 0)
    assert "beyond --max-rate or --max-byte-rate from=node-1 left_out=100" in caplog.text
    assert receiver.take(v1.encode(batch(1, host="node-2")), "10.0.0.1", "node-2")
    assert "limited=901" in receiver.report()[0]


def taken(rates, user, peer, size=1, tries=100_000):
    return next(n for n in range(tries) if not rates.admits(user, peer, size))


def test_limits_can_change_meanwhile():
    rates = Rates(5, 1000)
    rates._users._monotonic = rates._addresses._monotonic = lambda: 0.0
    assert taken(rates, "a", "x") == 5 * BURST_S
    assert taken(rates, "", "x") == 5 * BURST_S * NODES_OF_AN_ADDRESS
    assert taken(rates, "b", "x", 500) == 2 * BURST_S
    rates.limit(per_s=7)
    assert taken(rates, "c", "x") == 7 * BURST_S
    assert taken(rates, "d", "x", 500) == 2 * BURST_S
    rates.limit(bytes_per_s=2000)
    assert taken(rates, "e", "x", 500) == 4 * BURST_S
    assert taken(rates, "f", "x") == 7 * BURST_S
    rates.limit(0, 0)
    assert all(rates.admits("f", "x", 1 << 30) for _ in range(1000))
