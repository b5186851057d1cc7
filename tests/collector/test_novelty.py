"""How much that is new is taken of one sender."""

from __future__ import annotations

import os
import types

import pytest

from colmet.collector.ingest import novelty as module
from colmet.collector.ingest.novelty import COLUMNS_AT_ONCE, COLUMNS_PER_S, REMEMBERED_S, TABLES_BURST_S, Novelty, price
from colmet.collector.ingest.rate_limit import RateLimit
from colmet.collector.ingest.receiver import Receiver
from colmet.common.schema import Batch, Field, Schema, Table
from colmet.common.wire import Decoder, v1
from colmet.node.backends.cgroup import SCHEMA as CGROUP
from colmet.node.backends.taskstats import SCHEMA as TASKSTATS
from tests.support.waiting import Clock


@pytest.fixture
def clock():
    return Clock()


def table(schema, jobs):
    rows = schema.empty_rows(len(jobs))
    rows["job_id"] = jobs
    return Table(schema, 1, rows)


def batch(schema, jobs, *more, seq=1):
    return Batch("node-1", 1, seq, 1, tuple(jobs)[:9], (table(schema, jobs), *more))


def site_schema(fields, name="site_default"):
    return Schema(name, "job", [Field(f"f{n}", "none", "gauge") for n in range(fields)])


def jobs_of(taken, at=0):
    return taken.tables[at].rows["job_id"].tolist()


def test_a_sender_begins_a_number_of_tables_at_once_then_a_number_per_second(clock):
    novelty = Novelty(2, clock)
    first = batch(CGROUP, range(int(2 * TABLES_BURST_S)))
    assert novelty.admits("a", 1, first) == (first, 0)
    more = batch(CGROUP, range(1000, 1010))
    assert novelty.admits("a", 1, more) == (None, 0), "it may come again later"
    assert novelty.admits("a", 1, first) == (first, 0), "what is known costs nothing"
    assert novelty.admits("b", 1, more) == (more, 0), "others have their own"
    clock.now += 5
    assert novelty.admits("a", 1, more) == (more, 0)
    assert novelty.admits("a", 1, batch(TASKSTATS, range(10))) == (None, 0), "another table of a job is new as well"


def test_the_new_tables_of_a_sender_in_a_day_are_bounded(clock, monkeypatch):
    monkeypatch.setattr(module, "TABLES_PER_DAY", 1000)
    novelty, admitted = Novelty(100, clock), 0
    for n in range(480):
        taken, _ = novelty.admits("a", 1, batch(CGROUP, range(50 * n, 50 * n + 50)))
        admitted += 50 if taken is not None else 0
        clock.now += 360
    assert 2000 < admitted <= 3000, "what is saved, and two days"
    assert novelty.admits("b", 1, batch(CGROUP, range(100)))[0] is not None, "others have their own"


def test_jobs_that_come_again_within_a_while_are_not_new(clock):
    novelty = Novelty(1, clock)
    old, young = batch(CGROUP, range(60)), batch(CGROUP, range(60, 100))
    for _ in range(100):  # what waited in a spool comes between what is measured now
        assert novelty.admits("a", 1, old)[0] is old and novelty.admits("a", 1, young)[0] is young
        clock.now += REMEMBERED_S / 2
    assert novelty._tables.left("a") == TABLES_BURST_S


def test_a_batch_with_more_than_is_ever_taken_at_once_is_taken_in_part(clock):
    novelty = Novelty(1, clock)
    huge = batch(CGROUP, range(500))
    taken, rows = novelty.admits("a", 1, huge)
    assert (len(taken.tables[0]), rows) == (100, 400) and jobs_of(taken) == list(range(100))
    assert novelty.admits("a", 1, huge)[0] is None, "nothing is left"
    clock.now += 50
    taken, rows = novelty.admits("a", 1, huge)
    assert jobs_of(taken) == list(range(150)), "those that are known stay"


def test_columns_that_colmet_does_not_declare_cost_more_and_only_their_rows_are_left_out(clock):
    novelty = Novelty(100, clock)
    wide = site_schema(1000)
    assert price(wide) == 1064 and not price(CGROUP)
    taken, rows = novelty.admits("a", 1, batch(wide, range(1, 151), table(CGROUP, range(1, 151))))
    assert rows == 147 and jobs_of(taken) == [1, 2, 3] and len(taken.tables[1]) == 150
    clock.now += price(wide) / COLUMNS_PER_S
    taken, rows = novelty.admits("a", 1, batch(wide, range(1, 151)))
    assert jobs_of(taken) == [1, 2, 3, 4]


def test_a_later_version_with_another_column_and_another_table_goes_on(clock):
    later = Schema(CGROUP.name, "job", [*CGROUP.fields, Field("to_come", "none", "gauge")])
    novelty = Novelty(100, clock)
    for n in range(10):
        one = batch(later, range(40), table(site_schema(30), range(20)))
        assert novelty.admits("a", 1, one) == (one, 0), n
    assert price(later) < price(site_schema(1)) < COLUMNS_AT_ONCE / 50


def test_an_address_may_begin_as_much_as_several_nodes(clock):
    novelty = Novelty(1, clock)
    assert novelty.admits("[10.0.0.1]", 20, batch(CGROUP, range(2000)))[1] == 0
    assert novelty.admits("[10.0.0.1]", 20, batch(CGROUP, range(2000, 2001)))[0] is None


def test_no_limit_is_no_limit(clock):
    novelty = Novelty(0, clock)
    for n in range(20):
        assert novelty.admits("a", 1, batch(site_schema(1000, f"s{n}"), range(4096)))[1] == 0


def test_what_is_known_of_senders_is_bounded(clock, monkeypatch):
    monkeypatch.setattr(module, "MAX_SENDERS", 5)
    monkeypatch.setattr(module, "MAX_KNOWN", 100)
    novelty = Novelty(0, clock)
    for n in range(50):
        novelty.admits("a", 1, batch(CGROUP, range(20 * n, 20 * n + 20)))
        novelty.admits(f"b{n}", 1, batch(CGROUP, [1]))
    known = novelty._senders["a"]
    assert len(novelty._senders) <= 5
    assert sum(len(jobs) for one in (known._now, known._before) for jobs in one.values()) <= 220


def test_what_is_left_out_is_counted_and_neither_kept_nor_given_to_the_outputs(clock, caplog):
    limits = RateLimit(0, 0, clock)
    receiver = Receiver(limits, Novelty(1, clock))
    huge = v1.encode(batch(CGROUP, range(500)))
    (taken,) = receiver.take(huge, "10.0.0.1", "node-1")
    assert len(taken.tables[0]) == 100 and receiver.senders["node-1"].left_out == 400
    ((message, _),) = receiver.messages
    (kept,) = Decoder().decode(message).batches
    assert len(kept.tables[0]) == 100 and (kept.host, kept.epoch, kept.seq) == ("node-1", 1, 1)
    assert receiver.take(v1.encode(batch(CGROUP, range(900, 990), seq=2)), "10.0.0.1", "node-1") == []
    assert receiver.senders["node-1"].limited == limits.limited["tables"] == 1
    assert "rows dropped from=node-1 left_out=400 cause=too many new tables" in caplog.text
    clock.now += 90
    assert receiver.take(v1.encode(batch(CGROUP, range(900, 990), seq=2)), "10.0.0.1", "node-1"), "it was not lost"
    small = v1.encode(batch(CGROUP, range(3), seq=3))
    assert receiver.take(small, "10.0.0.1", "node-1") and receiver.messages[0][0] is small
    clock.now += 500
    assert receiver.take(huge, "10.0.0.1", "node-1") == [] and receiver.again, "it is known by what came"


@pytest.mark.parametrize(("user", "host"), [("", "node-1"), ("node-1", "node-1")])
def test_a_batch_that_rows_were_left_out_of_is_known_after_a_restart_from_the_journal(user, host):
    """The node sends it again as it was, if the collector is killed before it has acknowledged it."""
    receiver, sent, journal = Receiver(novelty=Novelty(100)), [], []
    for seq in range(3):
        sent.append(v1.encode(batch(site_schema(60, f"site{seq}_default"), range(700), table(CGROUP, [1]), seq=seq)))
        assert [one.host for one in receiver.take(sent[-1], "10.0.0.1", user)] == [host]
        journal += [message for message, _ in receiver.messages]
        assert Decoder().decode(journal[-1]).batches[0].tables[-1].schema.name == CGROUP.name
    assert receiver.senders["node-1"].left_out > 700
    restarted = Receiver(novelty=Novelty(100))
    restarted.restore(b"", journal)
    for seq, message in enumerate(sent):
        assert restarted.take(message, "10.0.0.1", user) == []
        assert [(one.host, one.seq) for one in restarted.again] == [(host, seq)]
    assert restarted.report()[0].count("conflicts=0") == 1


# -- what Colmet does not declare, over all senders --


def test_columns_that_one_sender_adds_to_a_table_of_colmet_leave_room_to_those_of_others(clock):
    novelty = Novelty(100, clock)

    def grown(*names):
        return Schema(CGROUP.name, "job", [*CGROUP.fields, *[Field(name, "none", "gauge") for name in names]])

    for n in range(10):
        novelty.admits("evil", 1, batch(grown(*[f"evil{n}_{m}" for m in range(50)]), [1], table(TASKSTATS, [1])))
        clock.now += 60
    room = novelty._undeclared._rooms[CGROUP.name]
    assert room.total <= module.FURTHER_COLUMNS // 2
    refused = batch(grown(*[f"more{n}" for n in range(100)]), [1, 2], table(TASKSTATS, [1]))
    taken, rows = novelty.admits("evil", 1, refused)
    assert rows == 2 and [one.schema.name for one in taken.tables] == [TASKSTATS.name]
    later = batch(grown(*[f"later{n}" for n in range(20)]), [1])
    assert novelty.admits("n1", 1, later) == novelty.admits("n2", 1, later) == (later, 0)
    assert room.total <= module.FURTHER_COLUMNS // 2 + 20, "what several send counts once"
    clock.now += module.FURTHER_S * 1.1
    assert novelty.admits("n1", 1, batch(CGROUP, [1]))[1] == 0
    assert novelty.admits("evil", 1, refused)[1] == 0, "what has not come for a day counts no more"


def test_tables_that_one_sender_makes_up_leave_room_to_those_of_others(clock):
    novelty = Novelty(100, clock)
    for n in range(1000):
        novelty.admits("evil", 1, batch(site_schema(1, f"evil{n}_default"), [1]))
        clock.now += 1
    assert novelty._undeclared._rooms[""].total == module.FURTHER_TABLES // 2
    for n in range(20):
        own = batch(site_schema(30, f"site{n}_default"), [1])
        assert novelty.admits(f"n{n}", 1, own) == (own, 0)
        clock.now += 1


def test_without_a_limit_there_is_none_on_further_tables_either(clock):
    novelty = Novelty(0, clock)
    for n in range(module.FURTHER_TABLES + 10):
        assert novelty.admits("a", 1, batch(site_schema(1, f"s{n}_default"), [1]))[1] == 0


def test_little_free_space_leaves_each_sender_a_thousand_new_tables_a_day(clock, caplog):
    is_scarce = [False]
    novelty = Novelty(100, clock, lambda: is_scarce[0])
    assert len(jobs_of(novelty.admits("flood", 1, batch(TASKSTATS, range(1, 2001)))[0])) == 2000
    is_scarce[0] = True
    clock.now += module.SPACE_PERIOD_S
    assert novelty.admits("flood", 1, batch(TASKSTATS, range(5001, 5501))) == (None, 0)
    assert len(jobs_of(novelty.admits("honest", 1, batch(TASKSTATS, range(1, 501)))[0])) == 500
    assert novelty.knows("flood", batch(TASKSTATS, range(1, 2001))), "rows of known tables are taken as before"
    assert caplog.text.count("little free space") == 1
    is_scarce[0] = False
    clock.now += module.SPACE_PERIOD_S
    assert len(jobs_of(novelty.admits("flood", 1, batch(TASKSTATS, range(5001, 5011)))[0])) == 10


@pytest.mark.parametrize(
    ("free", "size", "is_scarce"), [(3 << 30, 1 << 40, True), (5 << 30, 1 << 40, False), (2 << 30, 8 << 30, False)]
)
def test_the_reserve_is_a_share_of_a_small_disk(monkeypatch, free, size, is_scarce):
    disk = types.SimpleNamespace(f_bavail=free >> 12, f_blocks=size >> 12, f_frsize=1 << 12)
    monkeypatch.setattr(os, "statvfs", lambda directory: disk)
    assert module.is_space_scarce("/var/lib/colmet") == is_scarce
