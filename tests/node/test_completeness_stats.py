"""The completeness rows of a node: samples due, measured, sent and dropped, and the gaps."""

from __future__ import annotations

import threading
import time

import pytest

from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.host.host import Host
from colmet.common.schema import Batch, Sample
from colmet.node import agent_tables, main
from colmet.node.delivery.outbox import Outbox, SendQueue
from colmet.node.delivery.spool import Dropped, Spool
from tests.support.made_up_backend import SCHEMA as FAKE
from tests.support.made_up_backend import Fake, make_agent, raising
from tests.support.made_up_node import JOBS, NODE, PERIOD, START, Node
from tests.support.waiting import wait_for


def rows_of(batch, name="completeness_default"):
    (table,) = [table for table in batch.tables if table.schema.name == name] or [None]
    return [] if table is None else [sample.values for sample in table.samples()]


def accounts(batch):
    return {row["table"].decode(): row for row in rows_of(batch)}


def test_an_account_comes_with_the_first_batch_then_once_a_period():
    node = Node(ledger_s=60)
    node.ticks(40)
    assert [n for n, batch in enumerate(node.arrived) if rows_of(batch)] == [0, 12, 24, 36]
    last = accounts(node.arrived[36])
    assert set(last) == {"*", JOBS.name, NODE.name, "completeness_default"}
    row = last[JOBS.name]
    assert (row["due"], row["taken"], row["failed"], row["late"]) == (37, 37, 0, 0)
    assert (row["rows"], row["rows_now"], row["is_last"]) == (74, 2, 0)
    assert (row["epoch"], row["period"]) == (START * 10**9, PERIOD * 10**6)
    # the account counts itself: 3 + 4 rows that it had at first and has since
    assert (last["completeness_default"]["taken"], last["completeness_default"]["rows"]) == (4, 16)
    assert last["*"]["taken"] == 37 and last["*"]["rows"] == 37 * 3 + 16


def test_what_became_of_batches_is_what_the_spool_says():
    said = agent_tables.DeliveryTotals(
        {"sent": 9, "acknowledged": 7}, {NODE.name: {"sent": 5, "acknowledged": 4, "dropped": 1}}, (), 2
    )
    node = Node()
    node.completeness = agent_tables.CompletenessStats(lambda: said)
    node.tick()
    all_of_it = accounts(node.arrived[0])
    columns = ("sent", "acknowledged", "dropped", "duplicate")
    assert [all_of_it["*"][name] for name in columns] == [9, 7, 0, 2]
    assert [all_of_it[NODE.name][name] for name in columns] == [5, 4, 1, None]


def test_a_gap_is_reported_once_and_again_when_it_has_grown():
    node = Node(ledger_s=0)
    node.tick()
    for expected in ([(1, 1)], [(1, 2)], [(1, 3)]):
        node.tick(missed=agent_tables.FAILED)
        rows = rows_of(node.arrived[-1], "gaps_default")
        assert [(row["last"] - row["first"] >= 0, row["samples"]) for row in rows] == [(True, n) for _, n in expected]
        assert {row["first"] for row in rows} == {START + PERIOD}
    node.tick()
    assert not rows_of(node.arrived[-1], "gaps_default")
    node.tick(missed=agent_tables.FAILED)
    (row,) = rows_of(node.arrived[-1], "gaps_default")
    assert (row["why"], row["first"], row["samples"]) == (b"failed", START + 5 * PERIOD, 1)


def test_a_range_of_dropped_batches_is_reported_until_a_batch_with_it_is_not_dropped():
    node = Node(ledger_s=0)
    node.ticks(3)
    range_of = Dropped(node.epoch, 1, 2, START * 10**9, (START + PERIOD) * 10**9, "age")
    node.dropped = [range_of]
    node.tick()
    (row,) = rows_of(node.arrived[3], "gaps_default")
    assert [row[name] for name in ("first_batch", "last_batch", "samples", "why", "table")] == [
        1,
        2,
        2,
        b"dropped",
        b"*",
    ]
    node.tick()
    assert not rows_of(node.arrived[4], "gaps_default")
    # the fourth was dropped as well, and took with it what it reported
    node.dropped = [range_of, Dropped(node.epoch, 4, 4, (START + 15) * 10**9, (START + 15) * 10**9, "age")]
    node.tick()
    assert {row["first_batch"] for row in rows_of(node.arrived[5], "gaps_default")} == {1, 4}


def test_gaps_that_alternate_with_samples_are_reported_in_bounded_number():
    node = Node(ledger_s=10**6)
    node.tick()
    for _ in range(500):
        node.tick()
        node.tick(missed=agent_tables.LATE)
    node.tick(ends=True)
    rows = rows_of(node.arrived[-1], "gaps_default")
    assert len(rows) == agent_tables.MAX_GAPS and sum(row["samples"] for row in rows) == 500
    assert accounts(node.arrived[-1])[NODE.name]["late"] == 500
    assert accounts(node.arrived[-1])[NODE.name]["is_last"] == 1


def with_ledger(agent):
    agent._completeness = agent_tables.CompletenessStats(lambda: agent_tables.DeliveryTotals({}, {}, (), 0))
    return agent


def counts(agent):
    """What the agent would say at its end."""
    row = accounts(agent._batch(time.time_ns(), [], is_last=True)).get(FAKE.name)
    return row and tuple(row[column] for column in ("due", "taken", "failed", "late"))


@pytest.mark.parametrize(
    "error", [ParseError("/proc/x", b"?"), BackendUnavailable("gone"), ZeroDivisionError("defect")]
)
def test_what_a_backend_cannot_measure_any_more_has_failed(fake, error):
    fake.mkdir("/oar/bob_7")
    backend = Fake()
    agent = with_ledger(make_agent(fake, [backend], None))
    agent.tick()
    backend.behave = raising(error)
    agent.tick()
    agent.tick()
    assert counts(agent) == (3, 1, 2, 0)
    agent.close()


def test_what_was_never_there_is_not_due_and_no_job_is_nothing_due(fake):
    absent = Fake()
    absent.unavailable = "no such device"
    agent = with_ledger(make_agent(fake, [absent], None))
    agent.tick()
    assert counts(agent) is None
    agent.close()
    failing = Fake(raising(ParseError("/proc/x", b"?")))
    agent = with_ledger(make_agent(fake, [failing], None))
    agent.tick()
    assert counts(agent) is None
    fake.mkdir("/oar/bob_7")
    agent.tick()
    assert counts(agent) == (1, 0, 1, 0)
    agent.close()


def test_a_measurement_that_has_not_ended_is_late(fake):
    fake.mkdir("/oar/bob_7")
    may_go_on = threading.Event()

    class Slow(Fake):
        blocking = True

        def ask(self, jobs):
            return [job.id for job in jobs]

        def sample(self, jobs):
            may_go_on.wait(20)
            return [Sample(job, {"cpu": 1}) for job in jobs]

    agent = with_ledger(make_agent(fake, [Slow()], None))
    (runner,) = agent.runners
    wait_for(runner.open)
    agent.tick()
    assert counts(agent) is None
    agent.tick()
    agent.tick()
    assert counts(agent) == (2, 0, 0, 2)
    may_go_on.set()
    wait_for(runner.backend._has_ended)
    agent.tick()
    assert counts(agent) == (3, 1, 0, 2)
    agent.close()


def test_the_row_of_whole_batches_counts_those_of_this_start_alone(tmp_path):
    directory = str(tmp_path / "spool")

    def opened(epoch):
        outbox = Outbox(epoch, Spool(Host().private_directory(directory), "node-1", epoch, 1 << 20, 9e9), max_age_s=9e9)
        outbox.load()
        return SendQueue(lambda batch: b"message", outbox)

    earlier = opened(1)
    for seq in range(5):
        earlier.put(Batch("node-1", 1, seq, 10**18, (), ()))
    earlier.outbox.add(earlier.take())
    earlier.outbox.close()
    queue = opened(2)
    queue.put(Batch("node-1", 2, 0, 10**18, (), ()))
    queue.outbox.add(queue.take())
    queue.outbox.acknowledge(1, 0, 3)
    queue.outbox.drop(Dropped(1, 4, 4, 0, 0, "age"))
    queue.outbox.sent((2, 0))
    kept = main.open_completeness(5.0, queue, [])
    delivery = kept._delivery()
    assert queue.outbox.acknowledged == 4 and queue.dropped == 1, "all, for the log"
    assert dict(delivery.batches) == {"taken": 1, "sent": 1, "acknowledged": 0, "dropped": 0}
    earlier.close()
    queue.outbox.close()
    queue.close()
