from __future__ import annotations

import random

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.collector.ingest import new_tables as new_tables_module
from colmet.collector.ingest import receiver as module
from colmet.collector.ingest.new_tables import NewTables
from colmet.collector.ingest.rate_limit import RateLimit
from colmet.collector.ingest.receiver import OTHERS, Receiver
from colmet.collector.ingest.sender import Sequence64
from colmet.common.schema import Batch, Field, Schema, Table
from colmet.common.wire import colmet06, v1
from colmet.common.wire.link import Hello
from colmet.node.backends.cgroup import SCHEMA as CGROUP
from tests.support.batches import DATA, batch

OLD = colmet06.RECORDS["taskstats_default"]


def take(receiver, *numbers, **options):
    return [got.seq for seq in numbers for got in receiver.take(v1.encode(batch(seq, **options)), "10.0.0.1")]


def test_gaps_and_doubles_are_counted_per_sender_and_doubles_left_out():
    receiver = Receiver()
    assert take(receiver, 1, 2, 5, 5, 2) == [1, 2, 5]
    assert take(receiver, 10, host="node-2") == [10]
    one = receiver.senders["node-1"]
    assert (one.batches, one.rows, one.missing, one.duplicates) == (3, 3, 2, 2)
    assert receiver.senders["node-2"].missing == 0, "what was sent before the collector listened is not missing"
    assert take(receiver, 4, 3) == [4, 3], "late batches fill their gap"
    assert one.missing == 0
    report = "\n".join(receiver.report())
    assert "senders=2" in report and "sender node-1 batches=5" in report and "duplicates=2" in report
    assert "sender node-2" not in report


def test_a_restart_of_a_node_starts_a_new_count():
    receiver = Receiver()
    assert take(receiver, 7, 9, epoch=1) + take(receiver, 1, 2, epoch=2) == [7, 9, 1, 2]
    assert take(receiver, 8, epoch=1) == [8], "what the old start had still on its way"
    assert receiver.senders["node-1"].missing == 0


def test_batches_of_several_starts_are_known_when_they_are_sent_again():
    receiver = Receiver()
    starts = range(10)
    for taken in ([0, 1], []):
        for epoch in starts:
            assert take(receiver, 0, 1, epoch=epoch) == taken
    restored = Receiver()
    restored.restore(receiver.dump_senders(), [])
    for epoch in starts:
        assert take(restored, 0, 1, 2, epoch=epoch) == [2]


def test_many_restarts_keep_their_missing_count_and_bounded_memory():
    receiver = Receiver()
    for epoch in range(module.MAX_EPOCHS + 44):
        take(receiver, 1, 3, epoch=epoch)
    sender = receiver.senders["node-1"]
    assert sender.missing == module.MAX_EPOCHS + 44
    assert len(sender._epochs) == module.MAX_EPOCHS


def test_a_message_that_cannot_be_read_is_counted_for_the_address_it_came_from(caplog):
    receiver = Receiver()
    for _ in range(100):
        assert receiver.take(b"\xc1garbage", "10.0.0.66") == []
    assert take(receiver, 1) == [1]
    assert receiver.senders["[10.0.0.66]"].rejects == receiver.rejects == 100
    assert caplog.text.count("message refused from=[10.0.0.66]") == 3
    assert "refused=100" in "\n".join(receiver.report())


def test_a_jump_to_a_huge_number_costs_no_memory():
    sequence = Sequence64()
    for number in [1 << 62, *range(0, 5000, 2), (1 << 63) - 1]:
        assert sequence.add(number)
        assert len(sequence) <= module.MAX_RUNS
    assert not sequence.add(4998)
    assert sequence.add(2) and sequence.add(4997), "what was forgotten is new when it comes again"


@given(st.lists(st.integers(0, 60), max_size=80))
def test_every_number_is_new_once_and_the_missing_ones_are_counted(numbers):
    sequence, seen = Sequence64(), set()
    for number in numbers:
        assert sequence.add(number) == (number not in seen)
        seen.add(number)
        assert sequence.missing == max(seen) - min(seen) + 1 - len(seen)


def test_old_dialects_have_no_numbers_and_every_batch_is_new():
    receiver = Receiver()
    message = (DATA / "colmet06/frames/mixed.bin").read_bytes()
    assert len(receiver.take(message, "")) == len(receiver.take(message, "")) == 1
    rust = (DATA / "colmet_rs/rust-v1.bin").read_bytes()
    assert len(receiver.take(rust, "")) == 1
    assert receiver.dialects == {"colmet06": 2, "colmet_rs": 1}
    assert receiver.senders["dahu-7"].duplicates == 0


def test_skipped_values_of_a_rust_node_are_a_warning_while_it_sends_at_powers_of_ten(caplog):
    """5 values at a time, of which one has no name here; 40 messages pass 1 and 10 skipped values."""
    receiver = Receiver()
    message = msgpack.packb({7: ["rusty", 1_700_000_000_000, 1, [[7, "memory", [0, 1, 2, 3, 99], [1, 2, 3, 4, 5]]]]})
    for _ in range(40):
        receiver.take(message, "10.0.0.1")
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.rpartition(" from=")[2] for text in warnings] == ["rusty skipped_values=1", "rusty skipped_values=10"]


def test_what_a_node_still_holds_is_no_reason_to_warn():
    receiver = Receiver()
    receiver.take(v1.encode(batch(1)), "10.0.0.2")
    receiver.take(v1.encode(batch(5)), "10.0.0.2")
    assert "missing=3" in "".join(receiver.report()[1:])
    receiver.sender("node-1").version = "1.0.0"
    assert receiver.sender("node-1").missing == 3 and len(receiver.report()) == 1


def test_a_table_of_colmets_own_with_another_kind_of_value_is_left_out_for_its_sender_alone(caplog):
    bad = Schema("cgroup_default", "job", [Field("cpu_usage", "none", "label", dtype="S1")])
    good = Schema("cgroup_default", "job", [Field("cpu_usage", "nsec", "counter"), Field("to_come", "none", "gauge")])
    receiver = Receiver()
    tables = (Table(bad, 1, bad.empty_rows(3)), Table(good, 1, good.empty_rows(2)))
    (taken,) = receiver.take(v1.encode(Batch("evil", 1, 1, 1, (), tables)), "10.0.0.1")
    assert [table.schema for table in taken.tables] == [good]
    (again,) = receiver.take(v1.encode(Batch("evil", 1, 2, 1, (), tables)), "10.0.0.1")
    assert len(again.tables) == 1 and receiver.senders["evil"].left_out == 6
    assert "rows dropped from=evil left_out=3" in caplog.text and "left_out_rows=6" in receiver.report()[0]
    (others,) = receiver.take(v1.encode(Batch("good", 1, 1, 1, (), (tables[1],))), "10.0.0.1")
    assert others.row_count == 2 and not receiver.senders["good"].left_out


def test_made_up_hosts_are_forgotten_before_those_that_measure(monkeypatch, caplog):
    monkeypatch.setattr(module, "MAX_SENDERS", 100)
    receiver = Receiver()
    take(receiver, 1, host="real-1")
    receiver.hello(Hello("real-2", 1, 0, "1", ()))
    receiver.senders["real-1"].rows = 1
    for n in range(500):
        receiver.take(v1.encode(Batch(f"made-up-{n}", 1, 1, 1, (), ())), f"10.0.0.{n}")
        receiver._room_at = 0.0
    take(receiver, 1, host="real-3")
    assert {"real-1", "real-2", "real-3"} <= receiver.senders.keys() and len(receiver.senders) <= 101
    assert sum(sender.batches for sender in receiver.senders.values()) == 502, "what was counted stays counted"
    assert "senders forgotten" in caplog.text


def test_hosts_that_measure_are_forgotten_by_age_alone(monkeypatch):
    monkeypatch.setattr(module, "MAX_SENDERS", 10)
    receiver = Receiver()
    for n in range(10):
        receiver.hello(Hello(f"node-{n}", 1, 0, "1", ()))
    receiver.hello(Hello("late", 1, 0, "1", ()))
    assert "late" not in receiver.senders and OTHERS in receiver.senders
    receiver._room_at = 0.0
    receiver.senders["node-3"].seen_ns = receiver.senders["node-4"].seen_ns = 1
    receiver.hello(Hello("late", 1, 0, "1", ()))
    assert "late" in receiver.senders and "node-3" not in receiver.senders and "node-5" in receiver.senders


def test_an_address_has_a_maximum_of_new_hosts(monkeypatch):
    limits = RateLimit(0, 0, lambda: 0.0)
    receiver = Receiver(limits)
    limits._hosts.limit(1, 5)
    came = [len(receiver.take(v1.encode(Batch(f"h{n}", 1, 1, 1, (), ())), "10.0.0.66")) for n in range(7)]
    assert came == [1] * 5 + [0] * 2 and limits.limited["hosts"] == 2
    assert receiver.take(v1.encode(Batch("h0", 1, 2, 1, (), ())), "10.0.0.66"), "those that are known go on"
    assert receiver.take(v1.encode(Batch("real", 1, 1, 1, (), ())), "10.0.0.1"), "and those of other addresses"
    assert receiver.take(v1.encode(Batch("h9", 1, 1, 1, (), ())), "10.0.0.66", "h9"), "and those with keys"


def test_tables_that_do_not_fit_let_no_more_hosts_in():
    limits = RateLimit(0, 0, lambda: 0.0)
    receiver = Receiver(limits)
    limits._hosts.limit(1, 5)
    bad = Schema("cgroup_default", "job", [Field("cpu_usage", "none", "label", dtype="S1")])
    for n in range(20):
        receiver.take(v1.encode(Batch(f"h{n}", 1, 1, 1, (), (Table(bad, 1, bad.empty_rows(3)),))), "10.0.0.66")
    assert [name for name in receiver.senders if name.startswith("h")] == [f"h{n}" for n in range(5)]
    assert limits.limited["hosts"] == 15


ONE = batch(1)
SHORT = [v1.encode(batch(number), is_short=True) for number in range(5)]


def test_a_short_message_is_taken_by_who_knows_its_tables_and_refused_else(caplog):
    receiver = Receiver()
    assert receiver.take(SHORT[1], "10.0.0.1") == [] and receiver.undescribed == {(ONE.host, ONE.epoch)}
    assert receiver.senders["[10.0.0.1]"].undescribed == 1, "no entry for a made-up name"
    assert caplog.text.count("message refused, it lacks a description") == 1
    assert take(receiver, 1) == [1] and not receiver.undescribed
    assert [one.seq for one in receiver.take(SHORT[2], "10.0.0.1")] == [2]
    ((message, _),) = receiver.messages
    assert message == SHORT[2], "stored as it came"
    receiver._decoder = type(receiver._decoder)()  # one that has forgotten all
    assert receiver.take(SHORT[3], "10.0.0.1") == [] and receiver.senders[ONE.host].undescribed == 1
    assert receiver.senders[ONE.host].rejects == 0 and "undescribed=1" in "".join(receiver.report())
    assert take(receiver, 3) == [3], "it comes in full"


def test_a_short_message_with_the_key_of_another_is_refused():
    receiver = Receiver()
    assert receiver.take(SHORT[1], "10.0.0.1", "other") == [] and not receiver.undescribed
    assert receiver.senders["other"].foreign == 1


@pytest.mark.parametrize("first", ["short", "full"])
def test_both_forms_are_one_batch_also_after_a_restart(first):
    receiver = Receiver()
    assert take(receiver, 0) == [0]
    forms = [SHORT[1], v1.encode(ONE)]
    came, again = forms if first == "short" else forms[::-1]
    assert [one.seq for one in receiver.take(came, "10.0.0.1")] == [1]
    assert receiver.take(again, "10.0.0.1") == [] and [one.seq for one in receiver.again] == [1]
    for restored_from in ((receiver.dump_senders(), []), (b"", [came])):
        other = Receiver()
        other.restore(*restored_from)
        assert take(other, 0) == ([0] if restored_from[1] else [])
        assert other.take(again, "10.0.0.1") == [] and [one.seq for one in other.again] == [1]
    assert receiver.senders[ONE.host].conflicts == 0


@pytest.mark.parametrize("rows", [0, 1])
def test_a_short_message_is_stored_without_its_unfit_tables(rows):
    unfit = Schema("taskstats_default", "job", [Field("cpu_run_real_total", "nsec", "counter", dtype="f8")])
    mixed = ONE._replace(tables=(*ONE.tables, Table(unfit, ONE.time_ns, unfit.empty_rows(rows))))
    receiver = Receiver()
    receiver.take(v1.encode(mixed._replace(seq=0)), "10.0.0.1")
    assert receiver.take(v1.encode(mixed, is_short=True), "10.0.0.1")
    ((message, _),) = receiver.messages
    assert [table.schema for table in v1.decode(message, v1.SchemaCache())[0].tables] == [ONE.tables[0].schema]
    assert receiver.take(v1.encode(mixed), "10.0.0.1") == [] and len(receiver.again) == 1


def declared(seq, host, epoch, job, time_ns, crowd):
    """A batch with a table of Colmet's own, by which it can follow the one before without a closer look."""
    rows = CGROUP.empty_rows(crowd)
    rows["job_id"] = range(job, job + crowd)
    return Batch(host, epoch, seq, time_ns, (job,), (Table(CGROUP, time_ns, rows),))


def messages_of_agents(rng, count):
    """Messages of agents that restart, share host names, change addresses, and send again; with address and key."""
    agents = [[f"n{n % 9}", n, 0, f"10.0.0.{n}"] for n in range(11)]
    sent = [(b"\xc1", "10.0.0.1", "")]
    for n in range(count):
        agent = rng.choice(agents[: 3 + n * len(agents) // count])
        kind = rng.random() if agent[1] % 3 else 0.5  # every third agent sends in order
        agent[2] += 1 if kind < 0.97 else rng.randrange(-1, 3)
        agent[3] = "10.0.0.9" if kind < 0.005 else agent[3]
        if kind > 0.99:
            agent[1], agent[2] = agent[1] + 12, 0
        host, epoch, seq = agent[0], agent[1], max(0, agent[2])
        job = rng.choice([1, 1, 1, 1, 1, n % 50])
        one = declared(seq, host, epoch, job, 10**18 + n * 10**9, rng.choice([1, 1, 1, 30]))
        user = rng.choice([*[""] * 20, "n2", "n3"]) if host != "n3" else host
        table = Table(OLD.schema, one.time_ns, OLD.schema.empty_rows(1))
        old = Batch(host, None, None, one.time_ns, one.jobs, (table,))
        message = v1.encode(one, is_short=rng.random() < 0.3) if rng.random() < 0.98 else colmet06.encode(old)
        sent.append((message, agent[3], user) if rng.random() < 0.9 else sent[-1])
    return sent


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_that_follows_is_taken_as_any_other(seed, monkeypatch):
    """With and without the short way of batches that follow: the same rows, names, counts and state."""
    monkeypatch.setattr(new_tables_module, "TABLES_AT_ONCE", 10.0)
    monkeypatch.setattr(new_tables_module, "TABLES_PER_DAY", 8640.0)
    messages = messages_of_agents(random.Random(seed), 800)
    now = [10**18]
    monkeypatch.setattr(module.time, "time_ns", lambda: now[0])
    results, followed = [], []
    for way in (Receiver._follows, lambda *of: False):
        monkeypatch.setattr(Receiver, "_follows", lambda *of, way=way: followed.append(way(*of)) or followed[-1])
        now[0] = 10**18
        receiver = Receiver(RateLimit(1000, 0, lambda: now[0] / 1e9), NewTables(lambda: now[0] / 1e9))
        receiver._epoch = 1
        looks = []
        for first in range(0, len(messages), 16):
            now[0] += 16 * 10**9
            taken = receiver.take_all(messages[first : first + 16])
            kept = [(message, [outline(batch) for batch in batches], origin) for message, batches, origin in taken.kept]
            looks.append((kept, list(map(outline, taken.fresh)), list(map(outline, taken.again)), taken.undescribed))
        results.append((looks, receiver.report(), receiver.dump_senders(), receiver.dialects, receiver.heard()))
    assert results[0] == results[1]
    assert 100 < sum(followed) < 700


def outline(batch):
    return (*batch[:5], [(table.schema.name, table.time_ns, table.packed) for table in batch.tables])
