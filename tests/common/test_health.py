"""What daemons report: what went wrong in the last hour, how far outputs are behind, which senders are the worst."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from colmet.collector.collector_health import CollectorHealth
from colmet.collector.ingest.receiver import LASTS_S, MAX_SENDERS, Receiver
from colmet.commands.status import describe
from colmet.common.daemon.control import Errands
from colmet.common.daemon.daemon_health import RecentGrowth, render
from colmet.common.daemon.status_checks import judge
from colmet.common.errors import Refused
from colmet.common.live.latest_tables import JobMetrics, LatestTables
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from colmet.common.wire import v1
from colmet.common.wire.control import MAX_ANSWER_BYTES, decode_answer, encode
from colmet.node.delivery.uplink import Times, Uplink, UplinkState
from colmet.node.node_health import NodeHealth
from colmet.web.health import DROPS
from tests.support.errands import served_errands
from tests.support.waiting import Clock

SCHEMA = Schema("t_default", "job", (Field("cpu", "count", "counter"),))


def test_what_went_wrong_more_than_an_hour_ago_is_no_news():
    clock = Clock()
    recent = RecentGrowth({"lost": 5}, clock)
    assert recent.growth() == {"lost": 0}
    recent.note({"lost": 8})
    assert recent.growth() == {"lost": 3}
    for _ in range(70):
        clock.now += 60
        recent.note({"lost": 8})
        if clock.now < 1000 + 3600:
            assert recent.growth() == {"lost": 3}
    assert recent.growth() == {"lost": 0}
    assert len(recent._notes) <= 61
    recent.note({"lost": 9, "new": 2})
    assert recent.growth() == {"lost": 1, "new": 2}


# -- the node --


def runner(name, **values):
    values = {
        **{"name": name, "is_open": True, "why": "", "rows": 7, "failures": 0, "error": "", "overruns": 0},
        **{
            "sampled_ns": 0,
            "cpu_ns": 2_000_000,
            "wall_ns": 3_000_000,
            "counters": dict,
            "dropped_counters": set(),
            **values,
        },
    }
    return SimpleNamespace(**values)


def test_the_nodes_status_has_the_ages_of_the_moment_at_which_it_is_asked():
    clock, spool = Clock(), {"sent": 3, "dropped": 0}
    health = NodeHealth({"spool": lambda: spool}, now_ns=clock.ns)
    assert health.status({})["last_tick_age_s"] is None
    runners = [
        runner("a", sampled_ns=clock.ns()),
        runner("b", is_open=False, why="no such device", counters=lambda: {"x": 1}),
    ]
    health.note(runners, {"ticks": 1, "jobs": 2, "overruns": 0}, 12_000_000, 5.0)
    spool["sent"] = 4
    clock.now += 2.5
    status = health.status({})
    assert (status["daemon"], status["last_tick_age_s"], status["tick_s"], status["period_s"]) == (
        "node",
        2.5,
        0.012,
        5,
    )
    assert [backend["last_rows_age_s"] for backend in status["backends"]] == [2.5, None]
    assert status["backends"][1]["why"] == "no such device" and status["backends"][1]["counters"] == {"x": 1}
    assert status["spool"] == {"sent": 3, "dropped": 0}, "the picture is that of the tick"
    assert decode_answer(encode(status)) == status


def test_the_nodes_line_names_what_is_off_and_what_went_wrong():
    health = NodeHealth({}, [Uplink("tcp://head:5556", None, None, Times(), 0.0), away()])
    totals = {"jobs": 2, "overruns": 1, "batches_dropped": 4}
    health.note([runner("a"), runner("b", is_open=False)], totals, 12_000_000, 5.0)
    assert health.line() == (
        "2 jobs, 12 ms a sample; not there: tcp://two:5556; off: b; last hour: 1 overrun, 4 batches dropped"
    )


def away():
    uplink = Uplink("tcp://two:5556", None, None, Times(), 0.0)
    uplink.state = UplinkState.AWAY
    return uplink


def test_the_nodes_status_has_collectors_and_what_waits_for_them():
    clock = Clock(1100.0)
    health = NodeHealth({"spool": lambda: {"held": 5, "oldest_s": 40}}, [away()], monotonic=clock)
    health.note([], {"overruns": 0}, 1, 10.0)
    status = health.status({})
    assert status["behind_s"] == 40
    assert status["collectors"] == [
        {
            **{"uri": "tcp://two:5556", "there": False, "state": "away", "since_s": 1100.0, "version": ""},
            **{"wire": "v1", "durable": True, "duplicates": 0, "mute": False},
        }
    ]


# -- the collector --


def worker(name="hdf5", **values):
    values = {
        **{"why": "", "away_since": 0.0, "waiting": 0, "written": 5, "lost": 0, "dropped": 0, "all_failures": 0},
        **values,
    }
    made = SimpleNamespace(output=SimpleNamespace(name=name, details=dict), **values)
    made.counters = lambda: {key: getattr(made, key) for key in ("written", "waiting", "lost", "dropped")}
    return made


@pytest.fixture
def served():
    """Errands that a thread, which stands for the main one, does until the end."""
    with served_errands() as errands:
        yield errands


def make(errands, workers=(), clock=None, **journal):
    clock = clock or Clock()
    journal = SimpleNamespace(
        **{"directory": "/j", "why": "", "full": False, "end": 0, "dropped": 0, "all_failures": 0, **journal}
    )
    journal.counters = lambda: {"records": journal.end, "bytes": 0}
    receiver = Receiver()
    health = CollectorHealth(errands, receiver, journal, workers, {"link": lambda: {"acks": 1}}, None, clock.ns, clock)
    health.start()
    return health, receiver, journal, clock


def send(receiver, host, seq, epoch=1):
    table = Table.from_samples(SCHEMA, 1, [Sample(7, {"cpu": 1})])
    receiver.take(v1.encode(Batch(host, epoch, seq, time.time_ns() - 10**9, (7,), (table,))), "10.0.0.1")


def test_a_node_with_refused_messages_is_named_until_it_is_heard(served):
    health, receiver, _, clock = make(served)
    clock.now = time.time()
    receiver.take(v1.encode(Batch("node-1", 1, 1, 1, (), ())), "10.0.0.1", "node-2")
    receiver.take(b"\xc1", "10.9.9.9")
    texts = judge(health.status({}), 60, 300).texts
    assert any(text.startswith("1 message of node-1 refused, ") and "has the key of node-2" in text for text in texts)
    assert any("1 message of [10.9.9.9] refused" in text for text in texts)
    send(receiver, "node-1", 1)
    assert [one["name"] for one in health.status({})["refused_messages"]] == ["[10.9.9.9]"]
    receiver.refusals._now_ns = lambda: time.time_ns() + int(LASTS_S * 1e9)
    health.note()
    assert not [text for text in judge(health.status({}), 60, 300).texts if "refused" in text]


def test_the_worst_senders_come_first_and_only_as_many_as_are_asked_for(served):
    health, receiver, _, clock = make(served)
    for n in range(20):
        send(receiver, f"node-{n}", 1)
        receiver.senders[f"node-{n}"].version = "1.1" if n < 4 else "1.0"
    receiver.senders["node-19"].version = ""
    send(receiver, "node-5", 4)  # 2 and 3 are missing
    receiver.take(b"\xc1", "10.9.9.9")
    clock.now = time.time()
    receiver.senders["node-9"].seen_ns -= 100 * 10**9
    receiver.senders["node-8"].seen_ns -= 100_000 * 10**9
    health.note()
    status = health.status({"senders": 3})
    senders = status["senders"]
    assert [sender["name"] for sender in senders["worst"]] == ["node-9", "node-5", "[10.9.9.9]"]
    assert (senders["count"], senders["heard"], senders["silent"], senders["gone"]) == (21, 18, 1, 1)
    assert senders["worst"][1]["missing"] == 2 and senders["worst"][1]["dialect"] == "v1"
    assert 0.9 < senders["lag_median_s"] <= senders["lag_max_s"] < 60
    assert status["received"]["batches"] == 21 and status["received"]["dialects"] == {"v1": 21}
    assert status["last_hour"]["missing_batches"] == 2 and status["last_hour"]["refused_messages"] == 1
    assert status["link"] == {"acks": 1}
    assert senders["versions"] == {"1.0": 13, "1.1": 4, "v1": 1}, "of heard nodes; without one, the dialect"
    assert status["refused"] == []
    assert len(health.status({"senders": -1})["senders"]["worst"]) == 21
    assert health.status({"max_age_s": 200})["senders"]["silent"] == 0
    assert "18 nodes heard" in health.line() and "2 missing batches, 1 refused message" in health.line()


def test_clocks_that_are_ahead_and_nodes_without_acknowledgements_are_in_the_status(served, monkeypatch):
    health, receiver, _, clock = make(served)
    for host, lag_s, version in (("n1", -600.0, "1.0"), ("n2", -0.9, ""), ("n3", -2.0, "1.0")):
        send(receiver, host, 1)
        receiver.senders[host].lag_ns, receiver.senders[host].version = int(lag_s * 1e9), version
    clock.now = time.time()
    senders = health.status({})["senders"]
    assert senders["ahead"] == {"n1": 600.0, "n3": 2.0}
    assert senders["without_acknowledgements"] == 0, "they may be about to ask"
    monkeypatch.setattr("colmet.collector.collector_health.ACQUAINTED_S", -1.0)
    assert health.status({})["senders"]["without_acknowledgements"] == 1
    health._parts.pop("link")  # none are given
    assert health.status({})["senders"]["without_acknowledgements"] == 0


def test_each_counter_of_the_last_hour_is_one_of_drops_or_of_events(served):
    events = {
        "forgotten_senders",
        "journal_failures",
        "output_failures",
        "reload_failures",
        "unread_batch_records",
        "damaged_files",
    }
    assert set(make(served)[0].status({})["last_hour"]) == DROPS | events


def test_what_outputs_refuse_and_a_reload_that_failed_are_in_the_last_hour(served):
    one = worker()
    health, *_ = make(served, [one])
    health._parts["configuration"] = lambda: {"reloads": 2, "failures": 1}
    one.counters = lambda: {"written": 5, "rejected": 3, "files_damaged": 2}
    health.note()
    wrong = {name: count for name, count in health.status({})["last_hour"].items() if count}
    assert wrong == {"refused_documents": 3, "damaged_files": 2, "reload_failures": 1}


def test_senders_that_were_forgotten_and_rows_beyond_a_share_are_reported(served):
    health, receiver, *_ = make(served)
    health._latest = LatestTables((), always=True, all_jobs=True)
    health._jobs = JobMetrics(health._latest, max_rows=3)
    table = Table.from_samples(SCHEMA, 1, [Sample(job, {"cpu": 1}) for job in range(5)])
    health.take([Batch("n1", 1, 1, 1, None, (table,))], "[10.0.0.66]")
    list(health.families())
    receiver.forgotten = 12
    health.note()
    status = health.status({})
    assert status["received"]["forgotten"] == status["last_hour"]["forgotten_senders"] == 12
    assert status["metrics"] == {"rows": 1, "left_out": 4}
    assert "12 senders forgotten" in "\n".join(describe(status)) and "metrics: rows 1, left out 4" in describe(
        status, counters=True
    )
    by_name = {family.name: [value for _, value in family.samples] for family in health.families()}
    assert by_name["colmet_collector_forgotten_senders_total"] == [12]


def test_what_parts_count_is_read_by_the_thread_that_they_belong_to(served):
    health, *_ = make(served)
    readers = []
    health._parts = {"link": lambda: readers.append(threading.get_ident()) or {}}
    health.status({})
    list(health.families())
    assert len(readers) == 2 and threading.get_ident() not in readers


@pytest.mark.parametrize("request_", [{"senders": "x"}, {"senders": True}, {"max_age_s": -5}, {"max_age_s": 1e300}])
def test_a_request_with_values_that_cannot_be_used_is_refused(served, request_):
    with pytest.raises(Refused, match="status: "):
        make(served)[0].status(request_)


def test_the_answer_on_the_most_senders_there_can_be_fits(served):
    health, receiver, _, _ = make(served)
    for n in range(MAX_SENDERS + 10):
        sender = receiver.sender("x" * 240 + str(n))
        sender.batches = sender.rows = 10**15
        sender.seen_ns = time.time_ns()
    status = health.status({"senders": -1})
    assert status["senders"]["count"] == MAX_SENDERS + 1
    assert len(encode(status)) < MAX_ANSWER_BYTES


def test_senders_known_from_before_a_restart_are_silent_when_their_time_has_passed(served):
    health, receiver, _, clock = make(served)
    before = Receiver()
    send(before, "node-1", 1)
    receiver.restore(before.dump_senders(), ())
    clock.now = time.time() + 30
    assert health.status({})["senders"]["silent"] == 0
    clock.now += 60
    assert health.status({})["senders"]["silent"] == 1


def test_an_output_is_as_far_behind_as_what_waits_for_it_is_old(served):
    one = worker()
    health, _, journal, clock = make(served, [one])
    for _ in range(20):  # 100 messages in 10 s
        health.note()
        clock.now += 10
        journal.end += 100
    one.waiting = 0
    assert health.status({})["outputs"][0]["behind_s"] == 0
    one.waiting = 450
    assert health.status({})["outputs"][0]["behind_s"] == 40
    for _ in range(1000):  # what waits is older than the notes
        health.note()
        clock.now += 10
        journal.end += 100
    one.waiting = journal.end
    assert 3590 <= health.status({})["outputs"][0]["behind_s"] <= 3610


def test_an_output_that_is_away_says_why_and_for_how_long(served):
    one = worker("elastic", why="connection refused", away_since=940.0)
    health, _, journal, _ = make(served, [one, worker()])
    first, second = health.status({})["outputs"]
    assert (first["available"], first["why"], first["away_s"]) == (False, "connection refused", 60)
    assert (second["available"], second["why"], second["away_s"]) == (True, "", 0)
    journal.why = "No space left on device"
    assert health.line() == "0 nodes heard in the last minute; unavailable: elastic; journal: No space left on device"


def test_a_main_thread_that_hangs_is_reported(monkeypatch):
    monkeypatch.setattr("colmet.common.daemon.control.ERRAND_S", 0.01)
    monkeypatch.setattr(Errands.call, "__defaults__", (0.01,))
    with Errands() as errands, pytest.raises(Refused, match=r"did not do it within 0\.01 s"):
        make(errands)[0].status({})


def test_counters_that_an_output_describes_are_metrics_of_their_own(served):
    """All of them are in `output_counts`; those of no name there have none."""
    one = worker("archive")
    one.output.described = {"open": ("gauge", "Unfinished."), "jobs": ("counter", "Written."), "held": ("gauge", "-")}
    one.output_counters = lambda: {"open": 3, "jobs": 40, "other": 1}
    two = worker("hdf5")
    two.output.described, two.output_counters = {}, lambda: {"rows_left_out": 2}
    health, _, _, _ = make(served, [one, two])
    text = "".join(render(health.families()))
    assert "# TYPE colmet_collector_archive_open gauge\ncolmet_collector_archive_open 3\n" in text
    assert "# TYPE colmet_collector_archive_jobs_total counter\ncolmet_collector_archive_jobs_total 40\n" in text
    assert 'colmet_collector_output_counts{output="hdf5",name="rows_left_out"} 2' in text
    assert "archive_held" not in text and "archive_other" not in text
