"""Two machines with one host name, and numbers that somebody else has used: nothing is mixed, nothing is lost."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.collector.ingest.host_holder import HostHolder
from colmet.collector.ingest.receiver import Receiver
from colmet.collector.ingest.sender import KEPT, Checksums
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.wire import colmet06, v1
from colmet.common.wire.link import Hello, Range
from colmet.node.backends.taskstats import SCHEMA as TASKSTATS

CPU = Schema("t_default", "node", [Field("cpu", "nsec", "counter")])
START = 1_700_000_000
NS = 10**9
FIRST, SECOND = "10.0.0.1", "10.0.0.2"


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

    def send(self, message, peer=FIRST, user=""):
        """A message comes; return whether it is stored."""
        message = v1.encode(message) if isinstance(message, Batch) else message
        taken = self.receiver.take(message, peer, user)
        self.journal += [message for message, _ in self.receiver.messages]
        return len(taken) == 1

    def tick(self, epoch, seq, peer=FIRST, user=""):
        """An agent sends what it measures now."""
        return self.send(batch(epoch, seq, self.now_s, epoch), peer, user)

    def ticks(self, *agents, count=10, user="", period_s=5):
        """Return how many batches of each agent, (epoch, address), are stored while all send."""
        stored = [0] * len(agents)
        for n in range(count):
            self.now_s += period_s
            for at, (epoch, peer) in enumerate(agents):
                stored[at] += self.tick(epoch, int(self.now_s) + n, peer, user)
        return stored

    @property
    def sender(self):
        return self.receiver.senders["vm"]


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_a_second_machine_is_refused_with_both_addresses_and_counted(world, caplog):
    assert world.ticks((1, FIRST), (2, SECOND)) == [10, 0]
    assert not world.receiver.again, "and not acknowledged"
    assert world.sender.second_machine == 10
    assert caplog.text.count("two machines send as one host") == 2, "the first and the tenth"
    assert f"held by=[{FIRST}] started 1970-01-01" in caplog.text and f"refused=[{SECOND}] started" in caplog.text
    ((first, second),) = world.receiver.shared_names().values()
    assert FIRST in first and SECOND in second
    world.ticks((1, FIRST), count=20)
    assert not world.receiver.shared_names(), "over once only one of them speaks"


def test_a_silence_of_the_first_machine_releases_the_name(world):
    """A node that is installed again with another address; or the first one is gone for good."""
    assert world.ticks((1, FIRST)) == [10]
    assert world.ticks((2, SECOND), count=15) == [0], "for 60 s and three periods"
    assert world.ticks((2, SECOND), (1, FIRST)) == [10, 0]


def test_a_slow_agent_keeps_its_name_between_its_samples(world):
    assert world.ticks((1, FIRST), count=3, period_s=300) == [3]
    world.now_s += 600
    assert not world.tick(2, 0, SECOND)
    world.now_s += 600
    assert world.tick(2, 1, SECOND)


def test_a_restart_on_the_same_machine_goes_on_at_once_and_its_spool_follows(world):
    assert world.ticks((1, FIRST)) == [10]
    spool = [batch(1, n, world.now_s + n) for n in range(1, 8)]
    world.now_s += 10
    for n, one in enumerate(spool):
        world.now_s += 5
        assert world.tick(2, n) and world.send(one), "measured before the later start, sent after it"
    assert not world.receiver.shared_names() and world.sender.second_machine == 0


def test_a_restart_with_a_clock_set_back_loses_nothing_of_the_spool(world):
    assert world.ticks((1, FIRST)) == [10]
    later = batch(1, 900, world.now_s + 50)
    world.now_s -= 1000
    assert world.receiver.hello(Hello("vm", 2, 1, "1.0", (Range(1, 900, 900),)), FIRST)
    assert world.tick(2, 0)
    world.now_s += 1100
    assert world.tick(2, 1) and world.send(later) and world.tick(2, 2)
    assert world.sender.second_machine == 0


def test_of_two_agents_at_one_address_the_first_goes_on(world):
    """On one machine, or on two behind a gateway: the second one is known as such when the first goes on."""
    assert world.ticks((1, FIRST)) == [10]
    assert world.ticks((2, FIRST), (1, FIRST)) == [1, 10]
    assert world.sender.second_machine == 9
    assert len(world.receiver.shared_names()["vm"]) == 2
    assert world.ticks((2, FIRST), count=20)[0] > 0, "once the first one has ended"


def test_an_agent_of_06_beside_one_of_this_version_is_refused_while_that_speaks(world):
    assert world.send(of_06(world.now_s)) and world.send(of_06(world.now_s + 5)), "alone"
    assert world.tick(1, 0), "it is upgraded"
    for n in range(1, 4):
        world.now_s += 5
        assert world.tick(1, n) and not world.send(of_06(world.now_s))
    assert "[10.0.0.1] colmet06" in world.receiver.shared_names()["vm"][1]
    world.now_s += 80
    assert world.send(of_06(world.now_s)), "and downgraded"


def test_a_second_machine_of_06_is_refused_too(world):
    for _ in range(5):
        world.now_s += 5
        assert world.send(of_06(world.now_s)) and not world.send(of_06(world.now_s + 1), SECOND)


def test_the_key_decides_whose_the_name_is(world):
    """Another lease, a second network, a gateway, a machine installed again with its key."""
    for n in range(60):
        world.now_s += 5
        if n == 30:
            account = world.receiver.dump_senders()
            world.receiver = Receiver()
            world.receiver.restore(account, [])
        assert world.tick(1 + n // 20, n, f"10.0.0.{n % 3}", "vm"), "a start, its restarts"
    assert world.sender.second_machine == 0
    assert not world.tick(9, 0, SECOND, "other") and world.receiver.senders["other"].foreign == 1


def test_two_machines_with_one_key_do_not_mix(world):
    """A cloned image has the key, too."""
    assert world.ticks((1, FIRST), user="vm") == [10]
    assert world.ticks((2, SECOND), (1, FIRST), user="vm") == [1, 10]
    assert [FIRST in world.receiver.shared_names()["vm"][0], SECOND in world.receiver.shared_names()["vm"][1]] == [1, 1]


def test_the_name_is_kept_over_a_restart_of_the_collector(world):
    assert world.ticks((1, FIRST), (2, SECOND)) == [10, 0]
    account = world.receiver.dump_senders()
    world.receiver = Receiver()
    world.receiver.restore(account, [])
    assert world.ticks((2, SECOND), (1, FIRST), count=3) == [0, 3]
    world.receiver = Receiver()
    world.receiver.restore(b"", world.journal)
    assert world.ticks((1, FIRST), (2, SECOND), count=3) == [3, 0], "by the journal: who speaks first"


def test_a_hello_of_a_refused_machine_changes_nothing_of_the_other(world):
    assert world.ticks((1, FIRST), (2, SECOND)) == [10, 0]
    assert world.receiver.hello(Hello("vm", 1, 5, "1.0", (Range(1, 0, 4),)), FIRST)
    assert not world.receiver.hello(Hello("vm", 2, 5, "9.9", (Range(2, 0, 4),)), SECOND)
    assert world.sender.version == "1.0" and world.sender.holds(1) and not world.sender.holds(2)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 40)), max_size=60))
def test_rows_of_two_addresses_never_alternate(moves):
    """Machines that speak, restart and are silent in any order."""
    now_ns, epochs, holder, admitted = START * NS, [0, 1, 2], None, []
    for machine, restarts, pause_s in moves:
        now_ns += (1 + pause_s) * NS
        epochs[machine] += 10 * restarts
        if holder is None:
            holder = HostHolder(epochs[machine], str(machine), now_ns, now_ns)
        elif not holder.admits(epochs[machine], str(machine), False, now_ns, now_ns):
            continue
        admitted.append((now_ns, machine))
    for (before_ns, one), (after_ns, other) in zip(admitted, admitted[1:]):
        assert one == other or after_ns - before_ns > 60 * NS


def test_numbers_that_somebody_else_used_do_not_keep_data_out(world, caplog):
    """Empty batches with the numbers to come, from the node's own address; the real ones are stored all the same."""
    for n in range(5):
        world.now_s += 1
        world.tick(1, n)
    for n in range(5, 3000):
        world.send(batch(1, n, world.now_s)._replace(tables=()))
    for n in range(5, 25):
        world.now_s += 1
        real = batch(1, n, world.now_s, cpu=n)
        assert world.send(real), "stored"
        assert not world.send(real) and world.receiver.again, "once"
    assert world.sender.conflicts == 20 and caplog.text.count("batch has the number of another batch") == 2
    assert sum("conflicts=20" in line for line in world.receiver.report()) == 2


def test_numbers_used_from_another_address_are_not_even_noted(world):
    for n in range(3):
        world.now_s += 1
        world.tick(1, n)
    assert not any(world.send(batch(1, n, world.now_s), "10.0.0.66") for n in range(3, 100))
    for n in range(3, 10):
        world.now_s += 1
        assert world.tick(1, n)
    assert world.sender.conflicts == 0


@pytest.mark.slow
def test_with_a_key_a_number_alone_says_what_came_before(world):
    messages = [v1.encode(batch(1, n, START + n)) for n in range(KEPT + 1000)]
    assert all(world.send(message, user="vm") for message in messages)
    assert not any(world.send(message, user="vm") for message in messages), "also without its checksum"
    assert world.sender.duplicates == KEPT + 1000


@pytest.mark.slow
@pytest.mark.parametrize("is_restarted", [False, True], ids=["one collector", "a collector that was restarted"])
def test_batches_of_an_ended_agent_are_stored_once_after_any_number_of_its_older_ones(world, is_restarted):
    """It sent the latest ones before its spool; the next agent sends the spool first, and these once more."""
    latest = [batch(1, n, START + n) for n in range(10_000, 10_000 + KEPT)]
    assert all(world.send(message) for message in latest)
    if is_restarted:
        state, world.receiver = world.receiver.dump_senders(), Receiver()
        world.receiver.restore(state, [])
    assert world.receiver.hello(Hello("vm", 2, 0, "1.0", (Range(1, 1000, 10_000 + KEPT - 1),)), FIRST)
    assert all(world.send(batch(1, n, START + n)) for n in range(1000, 10_000))
    assert not any(world.send(message) for message in latest)
    assert (world.sender.conflicts, world.sender.duplicates) == (0, KEPT)


@pytest.mark.slow
def test_a_batch_is_recognised_after_older_ones_came(world):
    """Each second's batch is sent among those of the spool."""
    spool, latest = [[batch(1, start + n, START) for n in range(KEPT // 2)] for start in (KEPT, 2 * KEPT)]
    assert all(world.send(message) for both in zip(latest, spool) for message in both)
    assert not any(world.send(message) for message in latest)
    assert world.sender.conflicts == 0


def test_checksums_are_bounded_and_restored():
    checksums = Checksums()
    for number in range(10 * KEPT):
        checksums.note(number, number * 7)
        if number == 5 * KEPT:
            checksums.keep(0)
    assert len(checksums) == 2 * KEPT
    end = 10 * KEPT
    assert checksums.has(end - 1, (end - 1) * 7) and checksums.has(end - 1, 5) is False
    assert checksums.has(5 * KEPT, 5 * KEPT * 7) and checksums.has(5, 35) is None
    for floor, kept in ((-1, KEPT), (0, KEPT), (end - 5, 5), (1 << 63, 0)):
        restored = Checksums.restored(checksums.state(floor))
        assert restored.has(end - 1, (end - 1) * 7) is (True if kept else None)
        assert restored.has(end - kept - 1, 0) is None


@pytest.mark.parametrize(
    "account", [b'{"": 1}', b'{"senders": {}, "holders": {"vm": [[1]]}}', b'{"senders": {"vm": 3}}']
)
def test_an_account_that_is_damaged_is_reported_and_survived(world, caplog, account):
    world.receiver.restore(account, [])
    assert "state of the senders unreadable" in caplog.text
