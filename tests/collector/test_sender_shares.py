"""While an output is away, no sender fills the journal alone."""

from __future__ import annotations

import pytest

from colmet.collector.ingest.rate_limit import RateLimit
from colmet.collector.ingest.receiver import Receiver
from colmet.collector.journal import journal as journal_module
from colmet.collector.journal.journal import Journal
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.wire import v1
from tests.support.journal_batches import batch

SIZE = 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize("directory", [pytest.param("", marks=pytest.mark.slow), "j"])
def test_one_sender_does_not_drive_out_what_others_have_sent(directory, tmp_path, monkeypatch):
    """An output is away. The sender is refused, and not acknowledged; other nodes' data has room."""
    monkeypatch.setattr(journal_module, "MAX_MEMORY_BYTES", SIZE)
    journal = Journal(str(tmp_path / directory) if directory else "", SIZE)
    state = journal.state("away")
    rates = RateLimit()
    rates.store_in(journal.admits)
    receiver = Receiver(rates)
    if not directory:
        journal.start(lambda: b"")

    def send(seq, peer, host, rows=1):
        message = v1.encode(batch(seq, rows)._replace(host=host, time_ns=seq))
        taken = receiver.take(message, peer)
        for kept, batches in receiver.messages:
            journal.append(kept, batches, f"[{peer}]")
        return bool(taken)

    assert send(1, "10.0.0.1", "n1")
    flood = [send(seq, "10.0.0.66", "evil", rows=500) for seq in range(1, 1000)]
    refused = flood.count(False)
    assert refused > 500 and all(send(seq, "10.0.0.1", "n1") for seq in range(2, 200))
    assert rates.limited["journal"] == refused == receiver.senders["[10.0.0.66]"].limited
    if directory:
        assert sum([len(entry.content) for entry in journal._pending]) < 0.6 * SIZE
    else:
        state.save(journal.end)  # the output has written it
        assert send(1000, "10.0.0.66", "evil")
    journal.close()


def test_a_sender_alone_may_use_all_of_the_journal(tmp_path):
    journal = Journal(str(tmp_path / "j"), SIZE)
    journal.state("away")
    for seq in range(100):
        assert journal.admits("[10.0.0.1]", SIZE // 50)
        journal.append(bytes(SIZE // 50), [batch(seq)], "[10.0.0.1]")
    journal.close()


def test_what_waited_before_a_restart_is_nobodys(tmp_path):
    journal = Journal(str(tmp_path / "j"), SIZE)
    journal.state("away")
    journal.start(lambda: b"{}")
    one = batch(1, 2000)
    journal.append(v1.encode(one), [one], "[10.0.0.66]")
    journal.finish()
    journal.close()
    again = Journal(str(tmp_path / "j"), SIZE)
    state = again.state("away")
    again.start(lambda: b"{}")
    assert again._shares._shares.total > len(v1.encode(one)) / 2
    again.finish()
    state.save(again.end)
    assert again.admits("[10.0.0.66]", SIZE) and again._shares._shares.total == 0
    again.close()


def test_rows_left_out_of_a_batch_that_comes_again_count_once():
    odd = Schema("cgroup_default", "job", [Field("cpu_usage", "nsec", "counter", dtype="f8")])
    fit = Schema("t_default", "node", [Field("cpu", "nsec", "counter")])
    time_ns = 1_700_000_000 * 10**9
    tables = (
        Table.from_samples(fit, time_ns, [Sample(0, {"cpu": 1})]),
        Table.from_samples(odd, time_ns, [Sample(7, {"cpu_usage": 1.0})]),
    )
    receiver = Receiver()
    for _ in range(3):
        receiver.take(v1.encode(Batch("n1", 1, 1, time_ns, (7,), tables)), "10.0.0.1")
    assert (receiver.senders["n1"].duplicates, receiver.senders["n1"].left_out) == (2, 1)
