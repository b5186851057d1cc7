"""How much that is new is taken of one sender."""

from __future__ import annotations

import os
import types

import pytest

from colmet.collector.ingest import new_tables as module
from colmet.collector.ingest.new_tables import REMEMBERED_S, NewTables, price
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


@pytest.fixture
def budget(clock, monkeypatch):
    """A budget of 100 tables at once, and one a second."""
    monkeypatch.setattr(module, "TABLES_AT_ONCE", 100.0)
    monkeypatch.setattr(module, "TABLES_PER_DAY", module.DAY_S)
    return NewTables(clock)


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


def test_a_sender_begins_some_tables_at_once_and_a_number_a_day(budget, clock):
    first = batch(CGROUP, range(1, 101))
    assert budget.admits("a", 1, first) == (first, 0)
    more = batch(CGROUP, range(1000, 1010))
    assert budget.admits("a", 1, more) == (None, 0), "it may come again later"
    assert budget.admits("a", 1, first) == (first, 0), "what is known costs nothing"
    assert budget.admits("b", 1, more) == (more, 0), "others have their own"
    clock.now += 10
    assert budget.admits("a", 1, more) == (more, 0)
    assert budget.admits("a", 1, batch(TASKSTATS, range(10))) == (None, 0), "another table of a job is new as well"


def test_a_node_with_all_the_jobs_that_it_may_have_is_never_limited(clock):
    tables, known = [table(site_schema(9, f"t{n}_default"), range(1, 4001)) for n in range(4)], NewTables(clock)
    for at in range(4):
        assert known.admits("a", 1, Batch("node-1", 1, at, 1, (), (tables[at],)))[1] == 0


def test_jobs_that_come_again_within_a_while_are_not_new(budget, clock):
    old, young = batch(CGROUP, range(60)), batch(CGROUP, range(60, 100))
    for _ in range(100):  # what waited in a spool comes between what is measured now
        assert budget.admits("a", 1, old)[0] is old and budget.admits("a", 1, young)[0] is young
        clock.now += REMEMBERED_S / 2
    assert budget._budget.left("a") == 100


def test_a_batch_with_more_than_is_ever_taken_at_once_is_taken_in_part(budget, clock):
    huge = batch(CGROUP, range(500))
    taken, rows = budget.admits("a", 1, huge)
    assert (len(taken.tables[0]), rows) == (100, 400) and jobs_of(taken) == list(range(100))
    assert budget.admits("a", 1, huge)[0] is None, "nothing is left"
    clock.now += 50
    taken, rows = budget.admits("a", 1, huge)
    assert jobs_of(taken) == list(range(150)), "those that are known stay"


def test_columns_that_colmet_does_not_declare_cost_more(budget):
    wide = site_schema(640)
    assert price(wide) == 81 and price(site_schema(30)) == 4 and price(CGROUP) == 1
    taken, rows = budget.admits("a", 1, batch(wide, range(1, 151)))
    assert rows == 149 and jobs_of(taken) == [1]


def test_an_address_may_begin_as_much_as_several_nodes(budget):
    assert budget.admits("[10.0.0.1]", 20, batch(CGROUP, range(2000)))[1] == 0
    assert budget.admits("[10.0.0.1]", 20, batch(CGROUP, range(2000, 2001)))[0] is None


def test_the_sender_with_the_most_new_jobs_is_known_whether_it_is_limited_or_not(clock):
    known = NewTables(clock)
    assert known.most_new_jobs() == ("", 0)
    for n in range(5):
        known.admits("some", 1, batch(CGROUP, [0, 7], table(TASKSTATS, [7])))
        known.admits("many", 1, batch(CGROUP, [0, n], table(TASKSTATS, [n + 1])))
    assert known.most_new_jobs() == ("many", 5)
    clock.now += module.HOUR_S
    known.admits("some", 1, batch(CGROUP, range(1, 4)))
    assert known.most_new_jobs() == ("many", 5)
    clock.now += module.HOUR_S
    assert known.most_new_jobs() == ("some", 3)
    clock.now += 2 * module.HOUR_S
    assert known.most_new_jobs() == ("", 0)


def test_what_is_known_of_senders_is_bounded(clock, monkeypatch):
    monkeypatch.setattr(module, "MAX_SENDERS", 5)
    monkeypatch.setattr(module, "MAX_KNOWN", 100)
    known = NewTables(clock)
    for n in range(50):
        known.admits("a", 1, batch(CGROUP, range(20 * n, 20 * n + 20)))
        known.admits(f"b{n}", 1, batch(CGROUP, [1]))
    tables = known._senders["a"]
    assert len(known._senders) <= 5
    assert sum(len(jobs) for one in (tables._now, tables._before) for jobs in one.values()) <= 440


def test_what_is_left_out_is_counted_and_neither_kept_nor_given_to_the_outputs(budget, clock, caplog):
    limits = RateLimit(0, 0, clock)
    receiver = Receiver(limits, budget)
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


def test_a_batch_that_rows_were_left_out_of_is_known_after_a_restart_from_the_journal(budget, clock):
    """The node sends it again as it was, if the collector is killed before it has acknowledged it."""
    receiver, sent, journal = Receiver(new_tables=budget), [], []
    for seq in range(3):
        sent.append(
            v1.encode(batch(site_schema(60, f"site{seq}_default"), range(99), table(CGROUP, range(9)), seq=seq))
        )
        assert len(receiver.take(sent[-1], "10.0.0.1", "node-1")) == 1
        journal += [message for message, _ in receiver.messages]
        clock.now += 100
    assert receiver.senders["node-1"].left_out
    restarted = Receiver(new_tables=budget)
    restarted.restore(b"", journal)
    for seq, message in enumerate(sent):
        assert restarted.take(message, "10.0.0.1", "node-1") == []
        assert [one.seq for one in restarted.again] == [seq]
    assert restarted.report()[0].count("conflicts=0") == 1


# -- what Colmet does not declare, over all senders --


def test_columns_that_one_sender_adds_to_a_table_of_colmet_leave_room_to_those_of_others(clock):
    known = NewTables(clock)

    def grown(*names):
        return Schema(CGROUP.name, "job", [*CGROUP.fields, *[Field(name, "none", "gauge") for name in names]])

    for n in range(10):
        known.admits("evil", 1, batch(grown(*[f"evil{n}_{m}" for m in range(50)]), [1], table(TASKSTATS, [1])))
        clock.now += 60
    room = known._undeclared._rooms[CGROUP.name]
    assert room.total <= module.FURTHER_COLUMNS // 2
    refused = batch(grown(*[f"more{n}" for n in range(100)]), [1, 2], table(TASKSTATS, [1]))
    taken, rows = known.admits("evil", 1, refused)
    assert rows == 2 and [one.schema.name for one in taken.tables] == [TASKSTATS.name]
    later = batch(grown(*[f"later{n}" for n in range(20)]), [1])
    assert known.admits("n1", 1, later) == known.admits("n2", 1, later) == (later, 0)
    assert room.total <= module.FURTHER_COLUMNS // 2 + 20, "what several send counts once"
    clock.now += module.FURTHER_S * 1.1
    assert known.admits("n1", 1, batch(CGROUP, [1]))[1] == 0
    assert known.admits("evil", 1, refused)[1] == 0, "what has not come for a day counts no more"


def test_tables_that_one_sender_makes_up_leave_room_to_those_of_others(clock):
    known = NewTables(clock)
    for n in range(1000):
        known.admits("evil", 1, batch(site_schema(1, f"evil{n}_default"), [1]))
        clock.now += 1
    assert known._undeclared._rooms[""].total == module.FURTHER_TABLES // 2
    for n in range(20):
        own = batch(site_schema(30, f"site{n}_default"), [1])
        assert known.admits(f"n{n}", 1, own) == (own, 0)
        clock.now += 1


def test_little_free_space_leaves_each_sender_a_thousand_new_tables_a_day(clock, caplog):
    is_scarce = [False]
    known = NewTables(clock, lambda: is_scarce[0])
    assert len(jobs_of(known.admits("flood", 1, batch(TASKSTATS, range(1, 2001)))[0])) == 2000
    is_scarce[0] = True
    clock.now += module.SPACE_PERIOD_S
    assert known.admits("flood", 1, batch(TASKSTATS, range(5001, 5501))) == (None, 0)
    assert len(jobs_of(known.admits("honest", 1, batch(TASKSTATS, range(1, 501)))[0])) == 500
    assert known.knows("flood", batch(TASKSTATS, range(1, 2001))), "rows of known tables are taken as before"
    assert caplog.text.count("little free space") == 1
    is_scarce[0] = False
    clock.now += module.SPACE_PERIOD_S
    assert len(jobs_of(known.admits("flood", 1, batch(TASKSTATS, range(5001, 5011)))[0])) == 10


@pytest.mark.parametrize(
    ("free", "size", "is_scarce"), [(3 << 30, 1 << 40, True), (5 << 30, 1 << 40, False), (2 << 30, 8 << 30, False)]
)
def test_the_reserve_is_a_share_of_a_small_disk(monkeypatch, free, size, is_scarce):
    disk = types.SimpleNamespace(f_bavail=free >> 12, f_blocks=size >> 12, f_frsize=1 << 12)
    monkeypatch.setattr(os, "statvfs", lambda directory: disk)
    assert module.is_space_scarce("/var/lib/colmet") == is_scarce
