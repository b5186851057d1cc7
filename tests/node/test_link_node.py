"""What a node sends when, with collectors that a test plays and a clock that it moves."""

from __future__ import annotations

import argparse
import errno
import select
import threading

import pytest

from colmet.common.host.host import Host
from colmet.common.schema import Batch, Table
from colmet.common.wire import Decoder, colmet06, v1
from colmet.common.wire import link as wire
from colmet.node.delivery.link import open_outbox
from colmet.node.delivery.spool import EncodedBatch
from colmet.node.delivery.uplink import MAX_WAITING, Requests, Uplink, UplinkState, by_preference
from colmet.node.node_health import NodeHealth
from tests.support.node_link import EPOCH, TIMES, World


@pytest.fixture
def world():
    made = World()
    made.run(0.3)
    assert made.uplinks[0].state is UplinkState.THERE
    return made


def test_what_is_new_is_sent_at_once_and_held_until_it_is_acknowledged(world):
    world.put(3)
    world.link.step()
    assert world.push.take() == [1, 2, 3] and len(world.outbox) == 3
    world.ack((1, 2))
    world.link.step()
    assert len(world.outbox) == 1 and world.link.counters()["outstanding"] == 1
    world.run(3)
    assert world.hellos[-1] == wire.Hello("node-1", EPOCH, 4, world.hellos[-1].version, (wire.Range(EPOCH, 3, 3),))
    world.ack((3, 3))
    world.run(60)
    assert world.push.take() == [] and world.link.resent == 0


def test_after_a_defect_in_what_a_collector_sent_new_batches_reach_the_outbox(world, monkeypatch):
    def fail():
        raise RuntimeError

    monkeypatch.setattr(world.uplinks[0], "receive", fail)
    world.put()
    with pytest.raises(RuntimeError):
        world.link.step()
    assert len(world.outbox) == 1 and world.push.take() == [1]


def test_what_is_sent_before_the_collector_has_answered_is_not_sent_twice():
    world = World()
    world.put(3)
    world.run(5)
    assert world.uplinks[0].state is UplinkState.THERE and world.push.take() == [1, 2, 3]


def test_what_is_not_acknowledged_is_sent_again_ever_more_seldom(world):
    world.put()
    world.link.step()
    sent_at = []
    for _ in range(3000):
        world.run(0.1)
        sent_at += [round(world.clock.now)] * len(world.push.take())
    pauses = [b - a for a, b in zip(sent_at, sent_at[1:])]
    assert pauses[0] == 0 or sent_at[1] - 1000 == pytest.approx(16, abs=1.5)
    assert pauses[-1] == pytest.approx(60, abs=2)
    assert len(sent_at) == pytest.approx(7, abs=1)


def test_while_the_collector_is_away_all_is_held_and_goes_in_order_when_it_is_back(world):
    world.put(5)
    world.link.step()
    world.push.take()
    world.answering.clear()
    world.run(14)
    assert world.uplinks[0].state is UplinkState.AWAY and world.push.reopened == 1
    world.put(400)
    world.run(5)
    assert world.push.take() == [], "nothing goes to a collector that does not answer"
    world.answering.add(0)
    world.run(2.1)  # until the next Hello
    first = world.push.take()
    assert 0 < len(first) <= 2.1 * 200 + 51
    world.ack(*[(n, n) for n in first])
    while len(first) < 405:
        world.put()  # fresh ones meanwhile
        world.link.step()
        now = world.push.take()
        assert world._number in now, "fresh ones do not wait for the others"
        first += now
        world.ack(*[(n, n) for n in now])
        before = len(first)
        world.run(0.1)
        first += world.push.take()
        world.ack(*[(n, n) for n in first[before:]])
        assert len(first) - before <= 0.1 * 200 + 51
        assert len(first) < 2000
    old = [n for n in first if n <= 405]
    assert old == sorted(old)


def test_what_it_says_that_it_has_is_not_sent_again(world):
    world.put(5)
    world.link.step()
    world.push.take()
    world.answering.clear()
    world.run(14)
    world.ack((1, 2), (4, 4))
    world.run(1)
    assert world.push.take() == [3, 5]


def test_another_process_of_the_collector_is_sent_what_the_former_one_had_not_acknowledged(world):
    world.put(3)
    world.link.step()
    assert world.push.take() == [1, 2, 3]
    world.started[0] = 2
    world.ack((2, 2))
    world.run(0.3)
    assert world.push.take() == [1, 2, 3], "of what it says it has it was sent nothing"


def test_no_more_are_on_their_way_than_the_window_lets():
    world = World(window=10)
    world.run(0.3)
    world.put(100)
    world.run(5)
    assert world.push.take() == list(range(1, 11))
    world.ack((1, 7))
    world.run(5)
    assert world.push.take() == [11, 12], "half of it is for new ones"
    world.put(1)
    world.link.step()
    assert world.push.take() == [101]


def test_a_collector_that_accepts_data_and_has_no_link_gets_them_without_acknowledgements(caplog):
    world = World()
    world.links[0].connected = False
    world.put(2)
    world.run(10)
    assert world.push.take() == [1, 2] and len(world.outbox) == 2, "one that has just begun to listen gets a moment"
    world.run(10)
    assert world.uplinks[0].state is UplinkState.MUTE and len(world.outbox) == 0
    assert caplog.text.count("does not acknowledge") == 1
    world.put(3)
    world.run(40)
    assert sorted(set(world.push.take())) == [3, 4, 5] and len(world.outbox) == 0
    world.push.connected = False
    world.put(3)
    world.run(100)
    assert len(world.outbox) == 3, "held while it is away"
    world.push.connected = True
    world.run(5)
    assert world.push.take() == [6, 7, 8]
    world.links[0].connected = True  # updated
    world.run(3)
    assert world.uplinks[0].state is UplinkState.THERE
    world.put()
    world.run(1)
    assert len(world.outbox) == 1


def test_a_collector_that_hangs_is_not_taken_for_one_that_does_not_acknowledge(world):
    world.put()
    world.link.step()
    world.answering.clear()
    world.run(1000)
    assert world.uplinks[0].state is UplinkState.AWAY and len(world.outbox) == 1


def test_a_network_that_is_cut_is_not_taken_for_a_collector_that_does_not_acknowledge(world):
    world.put()
    world.link.step()
    world.links[0].connected = False  # its heartbeats notice; the data socket does not, until it is opened again
    world.run(TIMES.away_s + 2.5)
    assert world.push.reopened == 1
    world.push.connected = False
    world.put()
    world.run(600)
    assert world.uplinks[0].state is UplinkState.AWAY and len(world.outbox) == 2
    world.push.connected = True  # this one first
    world.run(8)
    world.links[0].connected = True
    world.run(3)
    assert world.uplinks[0].state is UplinkState.THERE and world.push.take()[-2:] == [1, 2] and len(world.outbox) == 2


def test_a_dialect_without_numbers_is_sent_and_forgotten_and_held_while_the_collector_is_away():
    world = World(linked=False)
    world.push.connected = False
    world.put(3)
    world.run(100)
    assert len(world.outbox) == 3
    world.push.connected = True
    world.run(1)
    assert world.push.take() == [1, 2, 3] and len(world.outbox) == 0


def test_another_collector_replaces_it_and_gives_back():
    world = World(count=3)
    world.run(1)
    world.put()
    world.link.step()
    assert world.pushes[0].take() == [1]
    world.answering.discard(0)
    world.pushes[0].connected = False
    world.put()
    world.run(1)
    assert [push.take() for push in world.pushes] == [[], [], []], "a moment is no reason"
    world.run(14)
    assert sorted(world.pushes[1].take()) == [1, 2], "what the first had not acknowledged, too"
    world.ack((1, 2), n=1)
    world.answering.add(0)
    world.pushes[0].connected = True
    world.run(10)
    world.put()
    world.link.step()
    assert world.pushes[1].take() == [3], "the first has to be back for a while"
    world.ack((3, 3), n=1)
    world.run(TIMES.back_s + 10)
    world.put()
    world.link.step()
    assert [push.take() for push in world.pushes] == [[4], [], []]


def test_one_that_answers_and_accepts_no_data_is_left_for_another():
    world = World(count=2)
    world.run(1)
    world.pushes[0].connected = False
    world.put(2)
    world.run(TIMES.away_s + 1)
    assert world.uplinks[0].state is UplinkState.THERE
    assert [push.take() for push in world.pushes] == [[], [1, 2]]


def test_one_that_answers_and_accepts_no_data_is_logged(world, caplog):
    health = NodeHealth({}, world.uplinks, monotonic=world.clock)

    def collector_status():
        health.note([], {}, 1, 10.0)
        (one,) = health.status({})["collectors"]
        return one["there"], one["state"], one["since_s"]

    world.push.connected = False
    world.put(1)
    world.run(TIMES.away_s - 1)
    assert collector_status()[:2] == (True, "there") and "takes no data" not in caplog.text
    world.run(3)
    assert world.uplinks[0].state is UplinkState.THERE and world.push.take() == []
    there, state, since_s = collector_status()
    assert (there, state) == (False, "takes no data") and since_s < 3
    assert caplog.text.count("collector receives no data") == 1
    world.push.connected = True
    world.run(1)
    assert (
        collector_status()[:2] == (True, "there") and "receives data again" in caplog.text and world.push.take() == [1]
    )


def test_nodes_spread_over_collectors_and_one_more_gets_its_share_alone():
    uris = ["tcp://a:5556", "tcp://b:5556", "tcp://c:5556"]
    hosts = [f"node-{n}" for n in range(3000)]
    before = {host: by_preference(host, uris) for host in hosts}
    for uri in uris:
        assert sum(order[0] == uri for order in before.values()) == pytest.approx(1000, abs=120)
    assert before == {host: by_preference(host, uris[::-1]) for host in hosts}
    after = {host: by_preference(host, [*uris, "tcp://d:5556"])[0] for host in hosts}
    moved = [host for host in hosts if after[host] != before[host][0]]
    assert {after[host] for host in moved} == {"tcp://d:5556"} and len(moved) == pytest.approx(750, abs=120)


def test_duplicates_are_those_of_this_start_and_survive_the_collectors(world):
    def counted(started, duplicates):
        world.links[0].inbox.append(wire.encode(wire.Ack("1.0", started, True, duplicates, ())))
        world.link.step()
        return world.uplinks[0].duplicates

    assert [counted(2, 5), counted(2, 7), counted(3, 1), counted(3, 4)] == [5, 7, 8, 11]
    world.uplinks[0]._collector = 0  # this node is started again
    assert [counted(3, 4), counted(3, 6)] == [11, 13]


def test_messages_that_make_no_sense_are_counted(world, caplog):
    world.links[0].inbox += [b"garbage", wire.encode(wire.Hello("x", 1, 1, "1", ())), wire.encode(wire.Answer(1, b""))]
    world.link.step()
    assert world.uplinks[0].bad_messages == 3 and "refused" in caplog.text


def test_a_collector_that_keeps_nothing_on_disk_is_logged_once(world, caplog):
    for _ in range(3):
        world.links[0].inbox.append(wire.encode(wire.Ack("1.0", 1, False, 0, ())))
    world.run(1)
    assert caplog.text.count("no journal on disk") == 1


def test_requests_are_answered_beside_the_sending_and_not_without_bound():
    go = threading.Event()
    requests = Requests(lambda content: b"re: " + content if go.wait(20) else b"")
    for number in range(MAX_WAITING + 10):
        requests.ask(number, b"?", "asker")
    assert requests.refused in (9, 10)
    assert requests.answers() == []
    go.set()
    answers = []
    while len(answers) < MAX_WAITING + 10 - requests.refused:
        answers += requests.answers()
    assert answers[:2] == [(0, b"re: ?", "asker"), (1, b"re: ?", "asker")]
    nobody = Requests(None)
    nobody.ask(1, b"?", None)
    assert nobody.refused == 1


def test_a_request_whose_answer_fails_is_counted_and_the_next_one_is_answered(caplog):
    requests = Requests(lambda content: b"%d" % (1 // int(content)))
    world = World(requests=requests)
    for content in (b"0", b"1"):
        requests.ask(int(content), content, world.uplinks[0])
    assert select.select([requests.fd], [], [], 20)[0]
    assert [answer for _, answer, _ in requests.answers()] == [b"1"]
    assert world.link.counters()["defects"] == 1 and "failures=1" in caplog.text


def finish(world, monkeypatch, connects_after_s):
    """Have it end; how long it took. The collector acknowledges what it gets."""
    begun = world.clock.now

    def wait(*_):
        world.clock.now += 0.05
        if world.clock.now >= begun + connects_after_s:
            world.push.connected = True
        for number in world.push.take():
            world.ack((number, number))

    monkeypatch.setattr("colmet.node.delivery.link.wait", wait)
    world.link.stop(lambda: None)
    world.link._finish()
    return world.clock.now - begun


def test_at_its_end_it_waits_a_moment_for_a_collector_that_is_there_and_accepts_no_data_yet(monkeypatch):
    """The sockets of data and of acknowledgements connect one after the other."""
    world = World()
    world.push.connected = False
    world.run(0.3)
    assert world.uplinks[0].state is UplinkState.THERE
    world.put(2)
    assert 0.5 < finish(world, monkeypatch, connects_after_s=0.5) < 0.7
    assert len(world.outbox) == 0


@pytest.mark.parametrize("was_there", [True, False])
def test_at_its_end_it_does_not_wait_for_one_that_has_gone_or_never_came(was_there, monkeypatch):
    world = World()
    if not was_there:
        world.answering.clear()
        world.push.connected = world.links[0].connected = False
    world.run(0.3)
    world.push.connected = world.links[0].connected = False
    world.put(2)
    assert finish(world, monkeypatch, connects_after_s=1) < 0.1
    assert len(world.outbox) == 2


def test_a_defect_in_between_leaves_no_batch_behind(world, monkeypatch):
    def broken(*args):
        raise RuntimeError("defect")

    world.put(2)
    with monkeypatch.context() as patch:
        patch.setattr(Uplink, "usable", broken)
        with pytest.raises(RuntimeError):
            world.link.step()
    assert world.push.take() == [] and len(world.outbox) == 2
    world.run(1)
    assert world.push.take() == [1, 2]


def test_acknowledgements_of_what_was_not_sent_are_refused(caplog):
    """Whoever has the collector's port acknowledges all that the Hello names, and more."""
    world = World()
    world.outbox.add([EncodedBatch(1, n, 10**18, b"%d" % n) for n in range(20)])  # of an earlier start
    world.push.connected = False
    world.put(5)
    world.link.step()
    ranges = (wire.Range(1, 0, 19), wire.Range(EPOCH, 0, 1000))
    world.links[0].inbox.append(wire.encode(wire.Ack("1.0", 7, True, 0, ranges)))
    world.link.step()
    assert len(world.outbox) == 25, "nothing of it was sent"
    assert world.link.counters()["acknowledgements_false"] == 5
    assert world.link.counters()["acknowledgements_doubted"] == 25
    assert caplog.text.count("acknowledges batches that were never sent") == 1


def test_what_was_sent_to_a_former_process_is_not_acknowledged_by_another_one(world):
    world.put(2)
    world.link.step()
    world.push.connected = False
    world.started[0] = 2
    world.ack((1, 5))
    world.link.step()
    assert len(world.outbox) == 2
    assert world.link.counters()["acknowledgements_false"] == 0, "that may be: its journal has it"
    assert world.link.counters()["acknowledgements_doubted"] == 2


def test_what_an_earlier_start_left_is_acknowledged_once_this_one_has_sent_it():
    world = World()
    world.outbox.add([EncodedBatch(1, n, 10**18, b"%d" % n) for n in range(3)])
    world.run(1)
    assert world.push.take() == [0, 1, 2]
    world.links[0].inbox.append(wire.encode(wire.Ack("1.0", 1, True, 0, (wire.Range(1, 0, 2),))))
    world.run(0.3)
    assert not len(world.outbox)


# Descriptions, once


@pytest.fixture
def reader(world):
    """A collector that reads the short form, and has the table `a`."""
    world.version = "1.0 short"
    world.run(11)
    world.put_batch("a")
    assert world.push.take_forms() == [1]
    world.ack((1, 1))
    world.link.step()
    return world


def test_descriptions_are_sent_until_a_batch_with_them_is_acknowledged(reader):
    for _ in range(3):
        reader.put_batch("a")
    assert reader.push.take_forms() == [-2, -3, -4]
    reader.put_batch("a", "b")
    reader.put_batch("a", "b")
    reader.put_batch("a")
    assert reader.push.take_forms() == [5, 6, -7]
    reader.ack((6, 6))
    reader.put_batch("b")
    assert reader.push.take_forms() == [-8]
    assert reader.uplinks[0].version == "1.0"


def test_a_collector_that_does_not_announce_it_gets_no_short_message(world):
    for version in ("1.0", "shorter", "1.0 other"):
        world.version = version
        world.run(11)
        for _ in range(3):
            world.put_batch("a")
            sent = world.push.take_forms()
            assert sent[0] > 0
            world.ack((sent[0], sent[0]))
            world.link.step()


def test_what_is_sent_again_is_in_full_and_so_is_what_follows_a_retry(reader):
    reader.put_batch("a")
    assert reader.push.take_forms() == [-2]
    reader.run(20)
    assert reader.push.take_forms() == [2]
    reader.put_batch("a")
    assert reader.push.take_forms() == [3], "what is not acknowledged may have been refused"
    reader.ack((2, 3))
    reader.put_batch("a")
    assert reader.push.take_forms() == [-4]


def test_another_process_of_the_collector_gets_all_in_full(reader):
    reader.put_batch("a")
    assert reader.push.take_forms() == [-2]
    reader.started[0] = 2
    reader.ack()
    reader.put_batch("a")
    assert sorted(reader.push.take_forms()) == [2, 3]
    reader.put_batch("a")
    assert reader.push.take_forms() == [4]
    reader.ack((4, 4))
    reader.put_batch("a")
    assert reader.push.take_forms() == [-5]


def test_over_another_data_connection_all_is_in_full(reader):
    reader.push.connection = 2
    reader.put_batch("a")
    assert reader.push.take_forms() == [2]
    reader.ack((2, 2))
    reader.put_batch("a")
    assert reader.push.take_forms() == [-3]
    reader.push.connection = 3
    reader.ack((3, 3))
    reader.put_batch("a")
    assert reader.push.take_forms() == [4]


def test_a_collector_that_asks_for_descriptions_gets_at_once_what_it_may_have_refused(reader, caplog):
    reader.put_batch("a")
    reader.put_batch("a")
    assert reader.push.take_forms() == [-2, -3]
    reader.links[0].inbox.append(wire.encode(wire.Describe(EPOCH - 1)))
    reader.link.step()
    assert reader.push.take_forms() == [], "not for this start"
    reader.links[0].inbox += [wire.encode(wire.Describe(EPOCH))] * 3
    reader.run(0.2)
    assert reader.push.take_forms() == [2, 3]
    assert reader.link.counters()["descriptions_asked"] == 3
    assert caplog.text.count("collector asks for descriptions") == 1
    reader.put_batch("a")
    assert reader.push.take_forms() == [4]


def test_a_short_batch_is_kept_where_the_collector_ceases_to_acknowledge(reader):
    reader.put_batch("a")
    assert reader.push.take_forms() == [-2]
    reader.links[0].connected = False
    reader.uplinks[0]._become_mute(reader.clock.now)
    reader.link._take_back(reader.uplinks[0], only_short=True)
    reader.run(0.2)
    assert reader.push.take_forms() == [2] and len(reader.outbox) == 0


def test_a_short_batch_is_converted_for_a_collector_of_colmet_06():
    world = World(wire="colmet06", linked=False)
    world.number = 1
    batch = Batch("node-1", EPOCH, 1, 5 * 10**9, (7,), (procstats(),))
    world.new.append(EncodedBatch(EPOCH, 1, 10**18, v1.encode_short(batch), (batch.tables[0].schema,)))
    world.link.step()
    (message,) = world.push.sent
    (read,) = Decoder().decode(message).batches
    assert [table.schema.name for table in read.tables] == ["procstats_default"]


def procstats():
    schema = colmet06.RECORDS["procstats_default"].schema
    return Table(schema, 5 * 10**9, schema.empty_rows(1))


def test_a_default_spool_that_cannot_be_used_leaves_batches_in_memory_and_says_so(tmp_path, monkeypatch, caplog):
    """As for an ordinary user, or for root of a container with a read-only file system."""

    def refuse(path):
        raise OSError(errno.EROFS, "Read-only file system", path)

    options = argparse.Namespace(spool_dir=None, spool_size=1 << 20)
    host = Host(str(tmp_path))
    (tmp_path / "var/spool").mkdir(parents=True)
    open_outbox(options, host, "node-1").close()
    assert not caplog.text and (tmp_path / "var/spool/colmet").is_dir()
    monkeypatch.setattr(host, "private_directory", refuse)
    open_outbox(options, host, "node-1").close()
    assert "kept in memory only" in caplog.text and "/var/spool/colmet: Read-only file system" in caplog.text
