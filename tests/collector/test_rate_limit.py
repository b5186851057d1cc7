"""How much is taken from one sender."""

from __future__ import annotations

import pytest

from colmet.collector.ingest import rate_limit as module
from colmet.collector.ingest.rate_limit import NEW_FIELDS_AT_ONCE, NEW_FIELDS_PER_S, WORK_S, Budget, RateLimit
from colmet.collector.ingest.receiver import Receiver
from colmet.common.schema import Batch, Field, Schema, Table
from colmet.common.wire import v1
from tests.support.batches import batch
from tests.support.waiting import Clock


@pytest.fixture
def clock():
    return Clock()


def admitted(limit, sender, count, size=0):
    return sum(bool(limit.admit(sender, "", size)) for _ in range(count))


def test_a_burst_is_accepted_then_a_number_per_second(clock):
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
        assert limit.admit("a", "", 200)


def test_no_limit_is_no_limit(clock):
    assert admitted(RateLimit(0, 0, clock), "a", 10_000, 1 << 30) == 10_000


def test_senders_are_forgotten_before_they_fill_memory(clock, monkeypatch):
    monkeypatch.setattr(module, "MAX_SENDERS", 10)
    limit = RateLimit(1, 0, clock)
    assert admitted(limit, "busy", 20) == 10
    for n in range(100):
        limit.admit(f"sender-{n}", "", 1)
        assert not limit.admit("busy", "", 1), "who was heard last is remembered"
    assert len(limit._used) <= 10


def test_an_address_may_send_for_several_nodes_and_a_key_for_one(clock):
    rates = RateLimit(10, 0, clock)
    assert sum(bool(rates.admit("", "10.0.0.1", 1)) for _ in range(10_000)) == 2000
    assert sum(bool(rates.admit("node-1", "10.0.0.1", 1)) for _ in range(10_000)) == 100
    assert rates.admit("node-2", "10.0.0.1", 1), "nodes with keys do not share what their address may send"


def test_what_is_beyond_is_not_even_read_and_counted(clock, caplog):
    receiver = Receiver(RateLimit(10, 0, clock))
    for n in range(1000):
        receiver.take(v1.encode(batch(n, host="node-1")), "10.0.0.1", "node-1")
    receiver.take(b"\xc1", "10.0.0.1", "node-1")
    sender = receiver.senders["node-1"]
    assert (sender.batches, sender.limited, receiver.rejects) == (100, 901, 0)
    assert "from=node-1 left_out=100 (messages=100 of all senders)" in caplog.text
    assert receiver.take(v1.encode(batch(1, host="node-2")), "10.0.0.1", "node-2")
    assert "limited=901" in receiver.report()[0]


def taken(rates, user, peer, size=1, tries=100_000):
    return next(n for n in range(tries) if not rates.admit(user, peer, size))


def test_a_budget_is_used_up_and_fills_again(clock):
    budget = Budget(2, 10, clock)
    budget.use("a", 25)
    assert (budget.left("a"), budget.left("b"), budget.left("a", 2)) == (-15, 10, -5)
    clock.now += 5
    assert budget.left("a") == -5
    clock.now += 100
    assert budget.left("a") == 10


def made_up(number, fields=1024, tables=1):
    schemas = [
        Schema(f"t{number}-{k}", "job", [Field(f"f{i}", "none", "label", dtype="S1") for i in range(fields)])
        for k in range(tables)
    ]
    return v1.encode(Batch("evil", 1, number, 1, (), tuple([Table(schema, 1, b"") for schema in schemas])))


def test_descriptions_beyond_a_senders_budget_are_not_parsed_and_not_acknowledged(clock, caplog):
    limits = RateLimit(0, 0, clock)
    receiver = Receiver(limits)
    messages = [made_up(n) for n in range(int(NEW_FIELDS_AT_ONCE) // 1024 + 2)]
    came = [bool(receiver.take(message, "10.0.0.1", "evil")) for message in messages]
    assert came == [True] * (len(came) - 2) + [False] * 2
    assert receiver.senders["evil"].limited == limits.limited["fields"] == 2
    assert "dropped, beyond" in caplog.text and "fields=1 of all senders" in caplog.text
    assert receiver.take(messages[0].replace(b"evil", b"good"), "10.0.0.1", "good"), "what is known costs nobody"
    assert receiver.take(made_up(1000).replace(b"evil", b"good"), "10.0.0.1", "good"), "others have their own"
    clock.now += 1024 / NEW_FIELDS_PER_S
    assert receiver.take(messages[-1], "10.0.0.1", "evil"), "it comes again, and is taken then"


def test_a_message_has_a_bounded_number_of_fields_and_they_are_counted_though_it_is_refused(clock):
    limits = RateLimit(0, 0, clock)
    receiver = Receiver(limits)
    assert receiver.take(made_up(1, 1024, 4), "10.0.0.1", "a-node") == [] and receiver.senders["a-node"].foreign
    for n in range(2, 4):
        assert receiver.take(made_up(n, 1024, 5), "10.0.0.1", "evil") == []
    assert receiver.rejects == 1, "the second is beyond the budget"
    assert receiver.senders["evil"].limited == 1


def test_the_time_that_messages_take_is_the_senders(clock, monkeypatch):
    limits = RateLimit(0, 0, clock)
    receiver = Receiver(limits)
    used, calls = iter(range(0, 1000, 2)), iter(range(1, 1000))
    monkeypatch.setattr("colmet.collector.ingest.receiver.time.thread_time", lambda: float(next(used)))
    monkeypatch.setattr("colmet.collector.ingest.receiver.time.perf_counter", lambda: float(next(calls) // 3))
    taken = [bool(receiver.take(v1.encode(batch(n, host="evil")), "10.0.0.1", "evil")) for n in range(5)]
    assert taken == [True, True, False, False, False], "each needs two seconds"
    assert receiver.take(v1.encode(batch(1, host="good")), "10.0.0.1", "good")
    assert limits.limited["work"] == receiver.senders["evil"].limited == 3
    clock.now += 4 / WORK_S
    assert receiver.take(v1.encode(batch(9, host="evil")), "10.0.0.1", "evil")


def test_the_account_is_restored_without_parsing_descriptions(monkeypatch):
    receiver = Receiver()
    monkeypatch.setattr(v1, "parse_description", None)
    receiver.restore(b"", [made_up(n) for n in range(3)])
    assert receiver.senders["evil"].seen(1, 0, 10) == [(0, 2)]
