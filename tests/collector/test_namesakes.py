"""Several agents under one host name, and numbers that somebody else has used: nothing is summed, nothing is lost."""

from __future__ import annotations

import json
import time
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.collector.ingest import namesakes as module
from colmet.collector.ingest.checksums import KEPT, Checksums
from colmet.collector.ingest.receiver import Receiver
from colmet.common.live.job_metrics import JobMetrics
from colmet.common.live.latest_tables import LatestTables
from colmet.common.live.namesakes import base_of, counted_once, name_of, place_of, repeated
from colmet.common.live.summary import TABLES, measure_jobs
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.wire import Decoder, colmet06, v1
from colmet.common.wire.link import Hello, Range
from colmet.node.backends.cgroup import SCHEMA as CGROUP
from colmet.node.backends.taskstats import SCHEMA as TASKSTATS
from colmet.stored.series import Series, of_one_agent
from colmet.web.queries import Queries
from colmet.web.recent_cache import RecentCache
from colmet.web.series import RawSeries
from colmet.web.series import of_one_agent as one_raw_of
from tests.support.web_nodes import Cluster

CPU = Schema("t_default", "node", [Field("cpu", "nsec", "counter")])
START = 1_700_000_000
NS = 10**9


def batch(epoch, seq, time_s, cpu=0, host="vm"):
    time_ns = int(time_s * NS)
    return Batch(host, epoch, seq, time_ns, (), (Table.from_samples(CPU, time_ns, [Sample(0, {"cpu": cpu})]),))


def of_06(time_s, host="vm"):
    time_ns = int(time_s) * NS
    table = Table.from_samples(TASKSTATS, time_ns, [Sample(0, {})])
    return colmet06.encode(Batch(host, None, None, time_ns, (), (table,)))


class World:
    """A receiver, a clock, and what was stored."""

    def __init__(self, monkeypatch):
        self.now_s = START
        self.receiver = Receiver()
        self.journal = []
        monkeypatch.setattr(time, "time_ns", lambda: int(self.now_s * NS))

    def send(self, message, peer="10.0.0.1", user=""):
        """A message comes; the names under which its batches are stored."""
        message = v1.encode(message) if isinstance(message, Batch) else message
        taken = self.receiver.take(message, peer, user)
        self.journal += [message for message, _ in self.receiver.messages]
        return [one.host for one in taken]

    def tick(self, epoch, seq, peer="10.0.0.1", user=""):
        """An agent sends what it measures now."""
        return self.send(batch(epoch, seq, self.now_s, epoch), peer, user)

    def restart(self, account=b""):
        """The collector starts again, with an account and the messages since, or with the messages alone."""
        self.receiver = Receiver()
        self.receiver.restore(account, [] if account else self.journal)

    def stored(self):
        """What outputs read later: time, name and start of each batch."""
        decoder = Decoder()
        found = [one for message in self.journal for one in decoder.decode(message).batches]
        return sorted((one.time_ns, one.host, one.tables[0].rows["cpu"][0]) for one in found)


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def never_two_at_a_time(stored):
    """Under each name, one agent follows another one and never comes back between its samples."""
    spans = {}
    for time_ns, name, agent in stored:
        spans.setdefault((name, agent), []).append(time_ns)
    return not [
        (one, other)
        for one, other in combinations(spans, 2)
        if one[0] == other[0] and min(spans[one]) <= max(spans[other]) and min(spans[other]) <= max(spans[one])
    ]


def test_two_agents_on_one_machine_are_never_stored_under_one_name_at_a_time(world, caplog):
    for n in range(10):
        world.now_s += 5
        world.tick(1, n)
        if n >= 3:
            world.now_s += 1
            world.tick(2, n)
    names = {name for _, name, _ in world.stored()}
    assert names == {"vm", "vm~2"} and len(world.stored()) == 17, "and nothing is lost"
    assert never_two_at_a_time(world.stored())
    assert world.receiver.shared_names() == {"vm": ["vm", "vm~2"]}
    assert caplog.text.count("several agents send as one host") == 1


def test_a_cloned_node_does_not_get_the_name_of_the_one_that_was_there(world):
    for n in range(10):
        world.now_s += 5
        assert world.tick(1, n, "10.0.0.1") == ["vm"]
        if n >= 3:
            assert world.tick(2, n, "10.0.0.2") == ["vm~2"]
    world.now_s += 5
    assert world.tick(3, 0, "10.0.0.1") == ["vm"], "it restarts"
    assert world.tick(4, 0, "10.0.0.2") == ["vm~2"], "and so does the clone"


def test_which_agent_has_which_name_survives_restarts_of_the_collector(world):
    for with_account in (True, False):
        for n in range(3):
            world.now_s += 5
            assert world.tick(1, 10 * with_account + n, "10.0.0.1") == ["vm"]
            assert world.tick(2, 10 * with_account + n, "10.0.0.2") == ["vm~2"]
        world.restart(world.receiver.dump_senders() if with_account else b"")
        assert world.send(batch(2, 10 * with_account + 2, world.now_s, 2), "10.0.0.2") == [], "it has come before"
        world.now_s += 5
        assert world.tick(2, 10 * with_account + 3, "10.0.0.2") == ["vm~2"]
        assert world.tick(1, 10 * with_account + 3, "10.0.0.1") == ["vm"]


def test_an_agent_that_restarts_keeps_its_name_and_its_spool_follows(world):
    for n in range(3):
        world.now_s += 5
        assert world.tick(1, n) == ["vm"]
    spool = [batch(1, n, world.now_s + 5 * (n - 2), 1) for n in range(3, 10)]
    world.now_s += 60
    for n, one in enumerate(spool):
        assert world.tick(2, n) == ["vm"]
        assert world.send(one) == ["vm"], "measured before the later start, sent after it"
        world.now_s += 5
    assert not world.receiver.shared_names() and world.receiver.apart == 0


def test_an_agent_whose_clock_was_set_back_gets_its_name_back(world):
    for n in range(100):
        world.now_s += 5
        world.tick(1, n)
    world.now_s -= 100
    assert world.tick(2, 0) == ["vm~2"], "there are rows of that time"
    for n in range(1, 60):
        world.now_s += 5
        names = world.tick(2, n)
    assert names == ["vm"] and not world.receiver.shared_names()


def test_06_beside_the_new_node_is_stored_apart_and_06_before_it_is_not(world):
    for _ in range(3):
        world.now_s += 5
        assert world.send(of_06(world.now_s)) == ["vm"]
    for n in range(5):
        world.now_s += 5
        assert world.tick(1, n) == ["vm"], "the newer one has the name"
        world.now_s += 1
        assert world.send(of_06(world.now_s)) == ["vm~2"]
    assert world.receiver.shared_names() == {"vm": ["vm", "vm~2"]}
    decoded = [one for message in world.journal for one in Decoder().decode(message).batches]
    assert [one.host for one in decoded].count("vm~2") == 5, "so the outputs read it, too"
    world.now_s += 600
    assert world.send(of_06(world.now_s)) == ["vm"], "the new one was removed"


def test_two_agents_of_06_at_two_addresses_are_stored_apart(world):
    for _ in range(5):
        world.now_s += 5
        assert world.send(of_06(world.now_s), "10.0.0.1") == ["vm"]
        assert world.send(of_06(world.now_s), "10.0.0.2") == ["vm~2"]


def test_no_sender_can_choose_the_name_of_a_namesake(world):
    assert world.send(batch(1, 0, START, host="vm~2")) == []
    assert world.receiver.rejects == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["t", "t", "t", "t", "restart", "silence"]), st.integers(0, 20)),
        max_size=80,
    )
)
def test_whatever_agents_do_rows_of_two_are_never_between_each_other(events):
    """Agents of one machine that tick, are restarted, and pause, in any order: agents are few, so names suffice."""
    namesakes = module.Namesakes("vm")
    epochs, now_ns, seen = [1, 2, 3, 4], START * NS, {}
    for agent, what, pause_s in events:
        now_ns += (1 + pause_s) * NS
        if what == "restart":
            epochs[agent] = max(epochs) + 1
        elif what == "silence":
            now_ns += 120 * NS
        place = namesakes.place(epochs[agent], "", now_ns, now_ns)
        seen.setdefault(place, []).append((now_ns, epochs[agent]))
    for rows in seen.values():
        for at, (time_ns, epoch) in enumerate(rows):
            # A, B, A within the time that each is known to live would be rows of B between those of A
            later = [t for t, other in rows[at + 1 :] if other == epoch and t - time_ns <= module.QUIET_NS]
            between = [o for t, o in rows[at + 1 :] if later and t < later[-1] and o != epoch]
            assert not between


def test_a_hello_of_one_agent_says_nothing_of_another_one(world):
    """What the first one sends again after a restart of the collector is known, whoever said Hello last."""
    for n in range(5):
        world.now_s += 5
        world.tick(1, n, "10.0.0.1")
        world.tick(2, n, "10.0.0.2")
    for epoch in (1, 2):
        world.receiver.hello(Hello("vm", epoch, 5, "1", (Range(epoch, 0, 4),)))
    journal = list(world.journal)
    world.restart(world.receiver.dump_senders())
    for message, peer in zip(journal, ["10.0.0.1", "10.0.0.2"] * 5):
        came = v1.rename(message, "vm~2", "vm") or message
        assert world.send(came, peer) == []
    assert world.receiver.senders["vm"].duplicates == 5 and world.receiver.apart == 0


def test_numbers_that_somebody_else_used_do_not_keep_data_out(world, caplog):
    """Empty batches with the numbers to come; the real ones are stored all the same."""
    for n in range(5):
        world.now_s += 1
        world.tick(1, n)
    for n in range(5, 3000):
        world.send(batch(1, n, world.now_s)._replace(tables=()))
    world.journal.clear()
    for n in range(5, 25):
        world.now_s += 1
        real = batch(1, n, world.now_s, cpu=n)
        assert len(world.send(real)) == 1, "stored"
        assert world.send(real) == [], "and stored once"
    assert [row[2] for row in world.stored()] == list(range(5, 25))
    sender = world.receiver.senders["vm"]
    assert sender.conflicts == 20 and caplog.text.count("batch has the number of another batch") == 2
    assert sum("conflicts=20" in line for line in world.receiver.report()) == 2


def test_numbers_used_from_another_address_do_not_even_move_the_data(world):
    for n in range(3):
        world.now_s += 1
        world.tick(1, n, "10.0.0.1")
    for n in range(3, 100):
        assert world.send(batch(1, n, world.now_s), "10.0.0.66") == ["vm~2"]
    for n in range(3, 10):
        world.now_s += 1
        assert world.tick(1, n, "10.0.0.1") == ["vm"]
    assert world.receiver.senders["vm"].conflicts == 0


def test_an_agent_with_a_key_is_the_same_one_at_any_address(world):
    """Another lease, a second network, IPv6, a gateway: the key says whose the batches are."""
    peers = ("10.0.0.1", "10.1.0.1", "fd00::1")
    for n in range(60):
        world.now_s += 5
        if n == 30:
            world.restart(world.receiver.dump_senders())
        assert world.tick(1 + n // 20, n, peers[n % 3], "vm") == ["vm"], "a start, its restart, the collector's"
    world.restart()
    world.now_s += 5
    assert world.tick(3, 60, "10.2.0.1", "vm") == ["vm"]
    assert world.receiver.apart == 0


def test_two_agents_with_one_key_are_stored_apart_while_both_send(world):
    """A cloned image has the key, too."""
    for n in range(10):
        world.now_s += 5
        world.tick(1, n, "10.0.0.1", "vm")
        if n >= 3:
            world.now_s += 1
            world.tick(2, n, "10.0.0.2", "vm")
    assert len(world.stored()) == 17 and never_two_at_a_time(world.stored())
    assert world.receiver.shared_names() == {"vm": ["vm", "vm~2"]}


def test_a_number_that_was_used_too_often_is_refused_and_not_acknowledged(world):
    for cpu in range(8):
        assert world.send(batch(1, 0, world.now_s, cpu=cpu)) == [name_of("vm", cpu)]
    assert world.send(batch(1, 0, world.now_s, cpu=8)) == [] and not world.receiver.again
    assert world.receiver.senders["vm"].overfull == 1


def test_with_a_key_a_number_alone_says_what_came_before(world):
    messages = [v1.encode(batch(1, n, START + n)) for n in range(3 * KEPT)]
    for message in messages:
        assert len(world.receiver.take(message, "10.0.0.1", "vm")) == 1
    for message in messages:
        assert not world.receiver.take(message, "10.0.0.1", "vm"), "also where its checksum is not kept any more"
    assert world.receiver.senders["vm"].duplicates == 3 * KEPT


@pytest.mark.parametrize("restarts", [0, 1])
def test_what_came_before_an_upgrade_of_the_collector_is_known_by_its_number(world, restarts):
    messages = [v1.encode(batch(1, n, START + n)) for n in range(20)]
    for message in messages:
        world.send(message)
    known = json.loads(world.receiver.dump_senders())
    del known[""]  # as an earlier version writes it
    world.restart(json.dumps(known).encode())
    if restarts:  # before the node has sent them again
        world.restart(world.receiver.dump_senders())
    assert not [name for message in messages for name in world.send(message)]
    assert world.send(batch(1, 20, START + 20)) == ["vm"]


def test_checksums_are_bounded_restored_and_a_forgotten_one_is_none():
    checksums = Checksums()
    for number in range(10 * KEPT):
        checksums.note(number, number * 7)
    assert len(checksums) == KEPT
    assert checksums.get(10 * KEPT - 1) == (10 * KEPT - 1) * 7 and checksums.get(5) is None
    for floor, kept in ((-1, KEPT), (0, KEPT), (10 * KEPT - 5, 5), (1 << 63, 0)):
        restored = Checksums.restored(checksums.state(floor))
        first = 10 * KEPT - kept
        assert [restored.get(n) for n in (first - 1, first) if n < 10 * KEPT] == [None, first * 7][: 1 + bool(kept)]
    few = Checksums()
    few.note(3, 5)
    assert len(few) == 16 and few.get(3) == 5 and few.get(19) is None


@pytest.mark.parametrize(
    "account", [b'{"": 1}', b'{"": {"agents": {"vm": [[1]]}}}', b'{"vm": {}, "": {"checksums": {"vm": 3}}}']
)
def test_an_account_that_is_damaged_is_reported_and_survived(world, caplog, account):
    world.receiver.restore(account, [])
    assert "state of the senders unreadable" in caplog.text


def test_names_of_namesakes():
    assert [name_of("vm", place) for place in (0, 1, 7)] == ["vm", "vm~2", "vm~8"]
    assert [(base_of(name), place_of(name)) for name in ("vm", "vm~2", "a~b", "vm~1")] == [
        *[("vm", 0), ("vm", 1)],
        *[("a~b", 0), ("vm~1", 0)],
    ]
    assert counted_once(["b~3", "vm~2", "vm", "b~2"]) == ["vm", "b~2"]


def stored_series(host, times, cpu):
    return Series("t_default", host, 7, np.array(times), {"cpu": np.array(cpu)})


def test_rows_of_a_job_that_two_agents_have_are_those_of_one():
    first, second = stored_series("vm", [10, 20, 30], [1, 2, 3]), stored_series("vm~2", [12, 22, 30], [100, 200, 300])
    other = stored_series("x", [1], [1])
    [found, same] = of_one_agent([first, second, other])
    assert (found.host, found.columns["cpu"].tolist()) == ("vm", [1, 2, 3]) and same.host == "x"
    raws = [
        RawSeries(one.host, one.times.astype(float), one.columns["cpu"].astype(float), {}) for one in (second, first)
    ]
    [raw] = one_raw_of(raws)
    assert (raw.host, raw.values.tolist()) == ("vm", [1, 2, 3])


def test_rows_of_a_job_that_went_on_under_another_name_go_on():
    before, after = stored_series("vm", [10, 20], [1, 2]), stored_series("vm~2", [20, 30, 40], [2, 3, 4])
    [found] = of_one_agent([after, before])
    assert (found.times.tolist(), found.columns["cpu"].tolist()) == ([10, 20, 30, 40], [1, 2, 3, 4])
    [alone] = of_one_agent([after])
    assert alone.host == "vm~2", "where no other name has rows, its own"


def test_jobs_that_an_agent_repeats_are_found():
    assert repeated({"vm~2": {1, 2}, "vm": {1}, "x": {1}, "vm~3": {2, 3}}) == {("vm~2", 1), ("vm~3", 2)}


def test_top_and_metrics_count_a_job_once_that_two_agents_see():
    clock = [100.0]
    latest = LatestTables(TABLES, always=True, monotonic=lambda: clock[0])
    for n in range(3):
        for host in ("vm", "vm~2"):
            table = Table.from_samples(CGROUP, (START + n) * NS, [Sample(7, {"cpu_usage": n * NS})])
            latest.take([Batch(host, 1, n, (START + n) * NS, (7,), (table,))])
        clock[0] += 1
    jobs = measure_jobs(latest.look())
    assert [jobs.names[at] for at in jobs.host] == ["vm"]
    samples = [
        text for family in JobMetrics(latest, monotonic=lambda: clock[0]).families() for text, _ in family.samples
    ]
    assert samples and not any("vm~2" in text for text in samples)


def test_metrics_have_the_job_of_a_second_agent_once_the_first_one_is_silent():
    clock = [100.0]
    latest = LatestTables(TABLES, always=True, monotonic=lambda: clock[0])
    while clock[0] <= 200:
        time_ns = int((START + clock[0]) * NS)
        table = Table.from_samples(CGROUP, time_ns, [Sample(7, {"cpu_usage": 1})])
        for host in ("vm", "vm~2") if clock[0] <= 110 else ("vm~2",):
            latest.take([Batch(host, 1, 0, time_ns, (7,), (table,))])
        clock[0] += 5
    samples = [
        text for family in JobMetrics(latest, monotonic=lambda: clock[0]).families() for text, _ in family.samples
    ]
    assert samples and all("vm~2" in text for text in samples)


def test_the_page_warns_and_counts_a_node_and_its_job_once():
    cluster = Cluster(nodes=2, jobs=2, start=START)
    clock = [100.0]
    memory = RecentCache(1 << 20, 3600, lambda: clock[0], lambda: START + clock[0] - 100)
    totals = []
    for both in (False, True):
        known = Queries(memory, None, now=lambda: START + clock[0] - 100, monotonic=lambda: clock[0])
        known.cluster(None)
        for _ in range(3):
            clock[0] += cluster.period
            came = cluster.batches()
            memory.take([*came, *([came[0]._replace(host="n0~2")] if both else [])])
        clock[0] += 2
        totals.append(known.cluster(None))
    alone, found = totals
    assert [found["nodes"][key] for key in ("memory_total", "load")] == [
        alone["nodes"][key] for key in ("memory_total", "load")
    ]
    assert found["jobs"]["memory"] == pytest.approx(alone["jobs"]["memory"], rel=0.01) and found["jobs"]["running"] == 2
    assert (alone["warnings"], found["warnings"]) == ([], ["several agents send as n0: stored as n0, n0~2"])
    assert known.node("n0~2")["warnings"] == known.node("n0")["warnings"] == found["warnings"]
    assert known.node("n1")["warnings"] == []
