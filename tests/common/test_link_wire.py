"""In which format a node sends to a collector of Colmet 0.6 or newer: one of 0.6 ends at a message of v1."""

from __future__ import annotations

import argparse

import pytest

from colmet.common.schema import Batch, Sample, Table
from colmet.common.transport import Client, new_pair
from colmet.common.wire import Decoder, colmet06, dialect_of, v1
from colmet.node.delivery.link import open_uplinks
from colmet.node.delivery.spool import EncodedBatch
from colmet.node.delivery.uplink import UplinkState
from tests.support.node_link import EPOCH, TIMES, World

FIRST_S = 1_700_000_000
OLD = EPOCH - 1
NEW_TABLE = Table.from_samples(
    colmet06.Record("cgroup_default", "job", [("i8", "count", "tasks")]).schema, 1, [Sample(7, {"tasks": 1})]
)


def batch(number, epoch=EPOCH):
    """One row of each of two tables of Colmet 0.6, and one of a table that it has not."""
    time_ns = (FIRST_S + number) * 10**9
    tables = [
        Table.from_samples(colmet06.RECORDS[name].schema, time_ns, [Sample(7, values)])
        for name, values in (("jobprocstats_default", {"rchar": number}), ("nvidiastats_default", {"power": number}))
    ]
    return Batch("node-1", epoch, number, time_ns, (7,), (*tables, NEW_TABLE))


class Upgrading(World):
    """A node of which nothing but its own start-up line is known, and messages that are real."""

    def __init__(self, wire="auto", **options):
        super().__init__(wire=wire, **options)

    def put(self, count=1):
        for _ in range(count):
            self._number += 1
            self.new.append(EncodedBatch(EPOCH, self._number, 10**18, v1.encode(batch(self._number))))

    def take(self, n=0):
        """What came to a collector: dialect, number."""
        sent, self.pushes[n].sent = self.pushes[n].sent, []
        return [(dialect_of(message), number_in(message)) for message in sent]

    def be_old(self, is_old=True):
        """Another collector has the ports, of Colmet 0.6 or newer."""
        self.links[0].connected = not is_old
        self.links[0].inbox.clear()
        self.pushes[0].connection += 1
        self.started[0] += 1


def number_in(message):
    (found,) = Decoder().decode(message).batches
    return found.time_ns // 10**9 - FIRST_S


def dialects(taken):
    return {dialect for dialect, _ in taken}


def numbers(taken):
    return [number for _, number in taken]


@pytest.fixture
def world():
    made = Upgrading()
    made.run(0.3)
    assert made.uplinks[0].state is UplinkState.THERE
    return made


@pytest.fixture
def old():
    made = Upgrading()
    made.links[0].connected = False
    made.run(TIMES.mute_s + 1)
    assert made.uplinks[0].state is UplinkState.MUTE
    return made


def test_no_v1_goes_before_the_collector_has_answered():
    world = Upgrading()
    world.answering.clear()
    world.put(3)
    world.run(9)
    assert world.take() == [] and len(world.outbox) == 3
    world.answering.add(0)
    world.run(3)
    assert world.take() == [("v1", 1), ("v1", 2), ("v1", 3)]


def test_a_collector_that_hangs_is_sent_nothing_in_any_format():
    world = Upgrading()
    world.answering.clear()
    world.put(3)
    world.run(600)
    assert world.take() == [] and len(world.outbox) == 3 and world.uplinks[0].state is UplinkState.AWAY


def test_one_that_accepts_data_and_has_no_link_is_sent_the_old_format(caplog):
    world = Upgrading()
    world.links[0].connected = False
    world.put(3)
    world.run(TIMES.mute_s - 1)
    assert world.take() == [], "what it reads is not known yet"
    world.run(2)
    world.put()
    world.run(1)
    taken = world.take()
    assert dialects(taken) == {"colmet06"} and sorted(numbers(taken)) == [1, 2, 3, 4] and len(world.outbox) == 0
    assert "it gets the format and the tables of Colmet 0.6" in caplog.text
    assert "link=link-uri: connections are refused" in caplog.text
    assert world.link.resent == 3 and world.outbox.sent_batches == 4


def test_what_goes_in_the_old_format_is_what_colmet_06_would_have_sent_without_gpus(old):
    old.put()
    old.link.step()
    (message,) = old.push.sent
    assert message == colmet06.encode(batch(1), {"nvidiastats_default"})
    assert b"jobprocstats" in message and b"nvidia" not in message and b"cgroup" not in message


def test_gpus_go_in_the_old_format_where_that_is_asked_for():
    world = Upgrading(wire="colmet06", linked=False)
    world.put()
    world.link.step()
    assert world.push.sent == [colmet06.encode(batch(1))] and b"nvidia" in world.push.sent[0]


def test_a_batch_of_new_tables_alone_is_not_sent_in_the_old_format(old):
    old.new.append(EncodedBatch(EPOCH, 1, 1, v1.encode(batch(1)._replace(tables=(NEW_TABLE,)))))
    old.put()
    old.run(1)
    assert old.push.sent and b"" not in old.push.sent and len(old.outbox) == 0


def test_what_an_earlier_start_kept_goes_in_the_format_of_the_collector_that_is_there_now(old):
    old.outbox.add([EncodedBatch(OLD, n, 1, v1.encode(batch(n, OLD))) for n in (1, 2)])
    old.link._set_back((OLD, 1))
    old.run(1)
    assert old.take() == [("colmet06", 1), ("colmet06", 2)] and len(old.outbox) == 0


def test_what_cannot_be_read_any_more_is_dropped_and_counted(old, caplog):
    old.new.append(EncodedBatch(EPOCH, 1, 1, b"\x81garbage"))
    old.run(1)
    assert old.take() == [] and old.outbox.dropped == 1 and "cause=damage" in caplog.text


def test_when_the_collector_is_upgraded_what_was_kept_meanwhile_goes_as_v1(old, caplog):
    old.put(2)
    old.run(1)
    assert old.take() == [("colmet06", 1), ("colmet06", 2)]
    old.push.connected = False
    old.push.connection, before = 0, old.push.connection
    old.put(3)
    old.run(20)
    assert old.take() == []
    old.push.connection = before
    old.be_old(False)
    old.push.connected = True
    old.run(3)
    assert old.take() == [("v1", 3), ("v1", 4), ("v1", 5)] and old.uplinks[0].state is UplinkState.THERE
    assert "collector acknowledges" in caplog.text and "receives data again" in caplog.text


def test_when_the_link_answers_later_v1_goes_on_the_same_data_connection(old):
    old.put()
    old.run(1)
    old.links[0].connected = True  # the firewall was opened
    old.run(3)
    old.put()
    old.run(1)
    assert old.take() == [("colmet06", 1), ("v1", 2)] and old.links[0].reopened == 0


def test_a_data_connection_made_again_is_sent_v1_once_the_collector_has_answered_again(world):
    world.put(2)
    world.link.step()
    assert world.take() == [("v1", 1), ("v1", 2)]
    world.answering.clear()
    world.ack((1, 1))  # said by the one before, and not read yet
    world.pushes[0].connection += 1
    world.put()
    world.link.step()
    assert world.links[0].reopened == 1 and world.take() == []
    world.answering.add(0)
    world.run(3)
    assert sorted(world.take()) == [("v1", 1), ("v1", 2), ("v1", 3)]


def test_no_v1_goes_where_the_connection_is_another_one_since_the_last_look(world):
    """The look and the sending are one after the other: libzmq may connect in between."""
    notice = world.uplinks[0].notice

    def noticed(now):
        found = notice(now)
        world.pushes[0].connection += 1
        return found

    world.uplinks[0].notice = noticed
    world.put()
    world.link.step()
    assert world.take() == []


def test_a_collector_that_was_taken_back_to_06_gets_no_v1_and_nothing_twice(world):
    world.put(2)
    world.link.step()
    assert world.take() == [("v1", 1), ("v1", 2)]
    world.ack((1, 1))
    world.link.step()
    world.be_old()
    world.put(3)
    world.run(TIMES.mute_known_s + TIMES.away_s + 10)
    assert world.uplinks[0].state is UplinkState.MUTE
    assert world.take() == [("colmet06", 3), ("colmet06", 4), ("colmet06", 5)]
    assert len(world.outbox) == 1, "the one that another collector may have, as v1"
    world.be_old(False)
    world.run(5)
    assert world.take() == [("v1", 2)]


def test_an_old_collector_that_is_started_again_is_asked_again(old):
    old.be_old()
    old.put(2)
    old.run(TIMES.mute_s - 1)
    assert old.take() == [] and old.uplinks[0].state is UplinkState.UNKNOWN
    old.run(3)
    assert old.take() == [("colmet06", 1), ("colmet06", 2)]


def options(**changes):
    values = {"zeromq_uri": ["tcp://127.0.0.1:5556"], "zeromq_link_uri": None, "wire": "auto", "zeromq_linger": 0}
    values.update(zeromq_hwm=10, enable_nvidia=False)
    return argparse.Namespace(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "keys", "wire", "dialect", "said"),
    [
        ({}, False, "auto", "", ""),
        ({}, True, "v1", "v1", ""),
        ({"wire": "v1"}, False, "v1", "v1", ""),
        ({"wire": "v1", "zeromq_link_uri": [""]}, False, "v1", "v1", "collectors do not acknowledge"),
        ({"zeromq_link_uri": [""]}, False, "auto", "colmet06", "cannot be asked what it reads"),
        ({"wire": "colmet06"}, False, "colmet06", "colmet06", "collectors do not acknowledge"),
        ({"wire": "colmet06", "enable_nvidia": True}, False, "colmet06", "colmet06", "nvidiastats_default ends a"),
    ],
)
def test_what_is_sent_as_long_as_the_collector_has_said_nothing(changes, keys, wire, dialect, said, caplog):
    client = Client(new_pair(), new_pair().public) if keys else None
    (uplink,) = open_uplinks(options(**changes), "node-1", TIMES, client)
    try:
        assert (uplink.wire, uplink.dialect) == (wire, dialect)
        assert said in caplog.text if said else not caplog.text
    finally:
        uplink.close()
