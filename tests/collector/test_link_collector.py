"""What a collector says to nodes: with a socket that a test plays, and a journal that it moves."""

from __future__ import annotations

import pytest

from colmet.collector.ingest import link as module
from colmet.collector.ingest import receiver as receiver_module
from colmet.common.transport.sockets import Called
from colmet.common.wire import link as wire
from tests.support.collector_link import World


@pytest.fixture
def world():
    made = World()
    yield made
    made.durable.close()


def test_batches_are_acknowledged_once_they_are_on_disk_and_not_before(world):
    world.hello()
    assert world.said() == [("node-1",)]
    world.take(1, 2, 3, 7)
    assert world.said() == []
    world.sync()
    assert world.said() == [("node-1", (1, 1, 3), (1, 7, 7))]
    assert world.said() == []


def test_a_double_is_acknowledged_when_the_first_one_is_on_disk(world):
    world.hello()
    world.take(1, 1)
    assert world.said() == [("node-1",)]
    world.sync()
    assert world.said() == [("node-1", (1, 1, 1))]
    world.take(1)
    assert world.said() == [("node-1", (1, 1, 1))], "the word of it may have been lost"
    assert world.receiver.senders["node-1"].duplicates == 2


def test_who_says_hello_learns_what_is_on_disk_of_what_it_holds(world):
    world.take(*range(1, 11), 15)
    world.sync()
    world.said()
    world.take(11, 12)
    world.hello((1, 3, 20))
    assert world.said() == [("node-1", (1, 3, 10), (1, 15, 15))]
    world.sync()
    assert world.said() == [("node-1", (1, 11, 12))]
    world.hello((1, 3, 20))
    assert world.said() == [("node-1", (1, 3, 12), (1, 15, 15))]


def test_a_collector_that_was_started_again_knows_what_its_journal_has(world):
    world.take(*range(1, 11))
    world.take(5, epoch=2)
    again = World()
    again.receiver.restore(world.receiver.dump_senders(), [])
    again.hello((1, 1, 12), (2, 4, 5), epoch=2)
    assert again.said() == [("node-1", (1, 1, 10), (2, 5, 5))]
    again.durable.close()


def test_what_a_node_does_not_hold_any_more_is_not_missing_and_stays_known(world):
    world.take(1, 2, 50)
    sender = world.receiver.senders["node-1"]
    assert sender.missing == 47
    world.hello((1, 40, 45), coming=51)
    world.said()
    assert (sender.missing, sender.elsewhere) == (10, 37)
    world.hello(coming=51)
    world.said()
    assert (sender.missing, sender.elsewhere) == (0, 47)
    world.take(2, 30)
    assert (sender.duplicates, sender.batches) == (1, 4), "what came is known, what did not is taken"
    world.hello((9, 1, 1), epoch=9, coming=2)
    world.said()
    world.take(50)
    assert sender.duplicates == 2, "that of an earlier start, too"
    assert sender.version == "1.2"


def test_a_node_that_connects_again_is_answered_there(world):
    world.hello()
    world.hello(caller=b"new")
    world.take(1)
    world.sync()
    world.said()
    world.take(2)
    world.sync()
    assert world.said() == [("new", (1, 2, 2))]


def test_a_second_machine_is_answered_and_nothing_of_it_is_acknowledged(world):
    world.hello(epoch=1, caller=b"a")
    world.said()
    for n in range(5):
        world.take(n, epoch=1, time_s=1000 + n)
        world.take(n, epoch=2, time_s=1000 + n, peer="10.0.0.2")
    world.sync()
    assert world.said() == [("a", (1, 0, 4))]
    for epoch in (2, 1):  # that of a machine which was copied while its agent ran is the same one
        world.hello((epoch, 0, 4), epoch=epoch, caller=b"b", peer="10.0.0.2")
        assert world.said() == [("b",)]
    assert world.link._by_host == {"node-1": [b"a"]} and world.link.counters()["shared_names"] == 1
    assert not world.link.ask("node-2", 1, b"") and world.link.ask("node-1", 1, b"")


def test_nodes_that_have_gone_are_forgotten_and_none_is_remembered_without_bound(world, monkeypatch):
    monkeypatch.setattr(module, "MAX_SENDERS", 10)
    for n in range(50):
        world.hello(host=f"node-{n}")
    world.said()
    assert len(list(world.link.callers)) == 10
    world.server.gone.add(b"node-49")
    world.take(1, host="node-49")
    world.sync()
    assert world.said() == [] and "node-49" not in world.link.callers and world.link.unsent == 1
    world.now += 61
    world.hello(host="node-7")
    world.said()
    assert list(world.link.callers) == ["node-7"]


def test_old_nodes_get_nothing_and_are_counted(world):
    world.take(1, 2, host="old")
    world.hello()
    world.take(1)
    world.sync()
    assert {who for who, *_ in world.said()} == {"node-1"}
    assert world.receiver.without_acknowledgements() == 1


def test_without_a_journal_on_disk_it_says_so():
    world = World(on_disk=False)
    world.hello()
    world.link.serve()
    assert not world.server.sent[0][1].durable
    world.durable.close()


def test_bad_messages_are_counted(world, caplog):
    for message in (b"garbage", wire.encode(wire.Ack("1", 1, True, 0, ())), wire.encode(wire.Answer(1, b"x"))):
        world.server.inbox.append(Called(b"x", message, "10.0.0.66"))
    world.said()
    assert world.link.refused == 3 and "refused from=[10.0.0.66]" in caplog.text


@pytest.mark.slow
def test_what_a_hello_may_cost_is_bounded(world, monkeypatch):
    world.take(*range(0, 2000, 2))
    world.sync()
    world.said()
    world.hello(*[(1, 0, 1 << 40)] * 4000)
    assert world.said() == [] and world.link.refused == 1, "its answer would be 4000 times as long as what is known"
    for epoch in range(2, 7):
        world.take(*range(0, 2000, 2), epoch=epoch)
    world.sync()
    world.said()
    world.hello(*[(epoch, 0, 1 << 40) for epoch in range(1, 7)], epoch=6)
    ((_, *ranges),) = world.said()
    assert len(ranges) == wire.MAX_RANGES, "one message"

    monkeypatch.setattr(receiver_module, "LOOK_EVERY", 100)
    monkeypatch.setattr(receiver_module, "MAX_ALL_RUNS", 1000)
    for host in range(100):
        world.hello(*[(epoch, 1, 2) for epoch in range(200)], host=f"node-{host}", epoch=200)
    world.said()
    assert sum(sender.runs for sender in world.receiver.senders.values()) < 15_000


def test_of_many_gaps_and_much_that_is_on_its_way_each_range_is_reported(world):
    world.take(*range(0, 40, 2), epoch=2)
    world.sync()
    world.hello()
    world.said()
    world.take(*range(1, 11, 2), epoch=2)
    world.take(3, epoch=1)
    world.hello((1, 0, 9), (2, 5, 15))
    assert world.said() == [("node-1", *[(2, n, n) for n in (6, 8, 10, 12, 14)])]


def test_a_hello_of_other_starts_forgets_no_more_than_it_has_to(world):
    for start in range(3):
        world.hello(*[(1000 * start + n, 0, 3) for n in range(4000)], epoch=10_000 + start, coming=0)
        world.said()
        kept = world.receiver.senders["node-1"].dump()[0]
        last = 1000 * start + 4000
        assert sorted(kept) == [*range(last - 255, last), 10_000 + start]


def test_an_answer_with_the_key_of_another_host_is_refused(world, caplog):
    world.hello(host="node-1", caller=b"x")
    world.said()
    world.server.inbox += [
        Called(b"x", wire.encode(wire.Answer(5, b"yes")), "10.0.0.2", key) for key in ("b", "node-1")
    ]
    world.said()
    assert world.answers == [("node-1", 5, b"yes")] and world.link.refused == 1
    assert "an answer of node-1 with the key of b" in caplog.text


def test_a_request_goes_to_one_node_and_its_answer_comes_back(world):
    assert not world.link.ask("node-1", 5, b"?")
    world.hello()
    world.said()
    assert world.link.ask("node-1", 5, b"?")
    assert world.server.sent.pop()[1] == wire.Request(5, b"?")
    world.server.inbox.append(Called(b"node-1", wire.encode(wire.Answer(5, b"!")), ""))
    world.said()
    assert world.answers == [("node-1", 5, b"!")]


def test_a_start_of_a_node_is_asked_for_descriptions_and_not_too_often(world):
    world.link.ask_descriptions("node-1", 1)
    assert world.link.asked == 0, "it is not connected"
    world.hello()
    world.said()
    for epoch, asked in ((2, 0), (1, 1), (1, 1)):
        world.link.ask_descriptions("node-1", epoch)
        assert world.link.counters()["asked"] == asked
    assert world.server.sent == [(b"node-1", wire.Describe(1))]
    world.now += module.ASK_S
    world.link.ask_descriptions("node-1", 1)
    assert world.link.asked == 2


def test_an_acknowledgement_names_the_short_form_among_what_is_read(world):
    world.hello()
    world.link.serve()
    ((_, ack),) = world.server.sent
    assert wire.SHORT in ack.version.split(" ")[1:]
