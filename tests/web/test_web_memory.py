"""What the JSON interface keeps of what comes: the latest, earlier samples for curves, and which jobs there were."""

from __future__ import annotations

import numpy as np
import pytest

from colmet.common.live.latest_tables import LEAST_S
from colmet.common.schema import Batch, Field, Schema, Table
from colmet.web import recent_cache as memory_module
from colmet.web.recent_cache import BLOCK_TABLES, RecentCache
from tests.support.web_nodes import NS, SCHEMAS, Cluster, rows

GAUGE = Schema("load_default", "job", [Field("value", "count", "gauge")])
START = 1_700_000_000


class Bed:
    """A memory with clocks of its own."""

    def __init__(self, max_bytes=1 << 30, max_age_s=3600.0):
        self.now = 1000.0
        self.memory = RecentCache(max_bytes, max_age_s, lambda: self.now, lambda: START + self.now)

    def take(self, *batches, step=0.0, sender=""):
        self.now += step
        self.memory.take(batches, sender)

    def gauge(self, host, at, values, jobs=None, schema=GAUGE, sender=""):
        """A batch with one table: job -> value."""
        packed = schema.empty_rows(len(values))
        packed["job_id"], packed["value"] = list(values), list(values.values())
        table = Table(schema, int((START + at) * NS), packed.tobytes())
        batch = Batch(host, 1, 1, int((START + at) * NS), tuple(values) if jobs is None else jobs, (table,))
        self.take(batch, sender=sender)

    def take_of(self, user, step=0.0, **columns):
        """A row of a user's job 7 on n1, some seconds later."""
        self.now += step
        packed = rows("cgroup_default", [7], user=user, **columns).tobytes()
        time_ns = int((START + self.now) * NS)
        self.take(Batch("n1", 1, 1, time_ns, (7,), (Table(SCHEMAS["cgroup_default"], time_ns, packed),)))

    def read(self, job, host="n1", **limits):
        found = list(self.memory.read(job, "load_default", [host], **limits))
        return [
            (round(float(at) - START, 3), int(value))
            for one in found
            for at, value in zip(one.times, one.rows["value"])
        ]


@pytest.fixture
def bed():
    return Bed()


def test_samples_come_out_by_job_and_time_sealed_or_not(bed):
    for n in range(2 * BLOCK_TABLES + 3):
        bed.gauge("n1", n, {7: n, 8: 100 + n})
    assert bed.read(7) == [(n, n) for n in range(2 * BLOCK_TABLES + 3)]
    assert bed.read(8, since=START + 3, until=START + 5) == [(3, 103), (4, 104), (5, 105)]
    assert bed.read(9) == [] and bed.read(7, host="n2") == []
    assert bed.memory.begins("n1", "load_default") == START


def test_what_is_late_is_put_in_its_place(bed):
    for n in (5, 6, 1, 2, 7):
        bed.gauge("n1", n, {7: n})
    assert bed.read(7) == [(n, n) for n in (1, 2, 5, 6, 7)]


def test_jobs_that_come_and_go_change_how_many_rows_there_are(bed):
    for n in range(BLOCK_TABLES + 2):
        bed.gauge("n1", n, dict.fromkeys(range(1, 2 + n % 3), n))
    assert bed.read(1) == [(n, n) for n in range(BLOCK_TABLES + 2)]
    assert bed.read(3) == [(n, n) for n in range(BLOCK_TABLES + 2) if n % 3 == 2]


def test_a_table_that_gets_other_columns_keeps_both_layouts(bed):
    wider = Schema("load_default", "job", [*GAUGE.fields, Field("more", "count", "gauge")])
    bed.gauge("n1", 1, {7: 1})
    bed.gauge("n1", 2, {7: 2}, schema=wider)
    bed.gauge("n1", 3, {7: 3}, schema=wider)
    assert bed.read(7) == [(1, 1), (2, 2), (3, 3)]
    assert bed.memory.tables(["n1"], ["load_default"]) == {"load_default": wider}


def test_the_oldest_goes_where_there_is_no_room():
    bed = Bed(max_bytes=20_000)
    rng = np.random.default_rng(1)
    for n in range(200):
        for host in ("n1", "n2"):
            bed.gauge(host, n, {job: int(value) for job, value in enumerate(rng.integers(0, 1 << 60, 20), 1)})
    counts = bed.memory.counters()
    assert counts["bytes"] <= 20_000 and counts["evicted"] > 300
    times = [at for at, _ in bed.read(1)]
    assert times == list(range(int(times[0]), 200)) and times[0] > 0, "the latest are there, without a hole"
    assert bed.memory.begins("n1", "load_default") == START + times[0]


def test_where_not_even_the_latest_fits_nothing_breaks():
    bed = Bed(max_bytes=1000)
    for n in range(50):
        bed.gauge(f"n{n}", n, {7: n})
    assert bed.memory.counters()["evicted"] > 0
    bed.gauge("n1", 60, {7: 5})
    assert len(bed.memory.look().hosts) == 50, "what is now is kept all the same"


def test_what_is_too_old_goes_and_a_host_that_went_is_forgotten():
    bed = Bed(max_age_s=600.0)
    for n in range(0, 1000, 10):
        if n < 100:
            bed.gauge("gone", n, {7: n})
        bed.now += 10
        bed.gauge("n1", n, {7: n})
    times = [at for at, _ in bed.read(7)]
    assert 1000 - 600 - 10 * BLOCK_TABLES - 70 <= times[0] <= 1000 - 600 and times[-1] == 990
    assert bed.read(7, host="gone") == [] and bed.memory.begins("gone", "load_default") is None
    assert bed.memory.kept_s() <= 600 + 10 * BLOCK_TABLES


def test_too_many_tables_are_left_out_and_counted(monkeypatch, caplog):
    monkeypatch.setattr(memory_module, "MAX_STRANDS", 2)
    bed = Bed()
    for host in ("n1", "n2", "n3"):
        bed.gauge(host, 1, {7: 1})
    assert bed.memory.counters()["left_out"] == 1 and "dropped left_out=1 what=tables for curves" in caplog.text


# -- jobs --


def test_a_job_is_known_with_its_user_its_nodes_and_its_tables(bed):
    cluster = Cluster(nodes=2, jobs=1, spread=2, start=START + 900)
    for _ in range(3):
        bed.take(*cluster.batches(), step=5)
    known = bed.memory.job(1000)
    assert (known.user, [*bed.memory.hosts_of(known)]) == (cluster.user(1000), ["n0", "n1"])
    assert (known.first, known.last) == (START + 905, START + 915)
    assert known.tables == {"cgroup_default", "taskstats_default", "jobprocstats_default"}
    assert "procstats_default" in bed.memory.tables(["n0"]) and "cgroup_default" not in bed.memory.tables(["n0"])


def test_a_job_that_ended_between_two_ticks_is_known_by_its_last_rows_and_the_node_itself_is_no_job(bed):
    bed.gauge("n1", 1, {0: 1, 7: 1}, jobs=())
    assert set(bed.memory.job(7).hosts) == {"n1"} and [known.job for known in bed.memory.jobs()] == [7]


def test_a_number_that_comes_back_is_another_job(bed):
    bed.take_of(b"alice")
    bed.take_of(b"mallory", step=5)
    assert bed.memory.job(7).user == "", "of two users' jobs with one number nobody's"
    bed.take_of(b"alice", step=5)
    assert bed.memory.job(7).user == ""
    bed.take_of(b"bob", step=2 * memory_module.AGAIN_S)
    assert (bed.memory.job(7).user, bed.memory.job(7).first) == ("bob", START + bed.now)


def test_the_next_run_of_a_number_is_its_users_alone_from_its_second_row_on(bed):
    """The last row of the run before may have the time of its first row."""
    bed.take_of(b"alice", run=1)
    bed.take_of(b"alice", run=1, step=1)
    bed.take_of(b"zoe", run=2)
    job = bed.memory.job(7)
    assert (job.user, job.is_disputed, job.hosts["n1"].since) == ("zoe", False, START + bed.now + 1)
    assert job.hosts["n1"].is_whole, "earlier rows are not of this run"
    bed.take_of(b"alice", run=1, step=-30)
    assert bed.memory.job(7).user == "", "late rows of the run before begin none"


def test_jobs_that_ended_first_are_forgotten_first(monkeypatch):
    monkeypatch.setattr(memory_module, "MAX_JOBS", 50)
    monkeypatch.setattr(memory_module, "FORGET", 10)
    bed = Bed()
    for job in range(1, 201):
        bed.now += 1
        bed.gauge("n1", bed.now, {1: 1, job: 1})
    jobs = {known.job for known in bed.memory.jobs()}
    assert len(jobs) <= 50 and {1, *range(165, 201)} <= jobs, "one that runs stays, however long it has run"
    assert bed.memory.counters()["forgotten"] == 200 - len(jobs)


def test_a_clock_that_is_ahead_does_not_make_a_job_last_into_the_future(bed):
    bed.gauge("n1", bed.now + 500, {7: 1})
    assert bed.memory.job(7).last == START + bed.now


# -- the latest --


def test_the_latest_is_kept_though_nobody_asks(bed):
    cluster = Cluster(start=START + 900)
    for _ in range(100):
        bed.take(*cluster.batches(), step=5)
    look = bed.memory.look()
    assert [host for host, _ in look.hosts] == ["n0", "n1", "n2"] and not look.silent
    assert all(kept.tables["cgroup_default"].former is not None for _, kept in look.hosts)


def test_a_node_that_is_not_heard_any_more_is_silent(bed):
    bed.gauge("n1", 1000, {7: 1})
    bed.gauge("n2", 1000, {8: 1})
    bed.now += LEAST_S + 1
    bed.gauge("n2", bed.now, {8: 1})
    assert bed.memory.look().silent == {"n1"}


def test_who_sends_of_a_facility_alone_is_no_node(bed):
    facility = Schema("facility_users_default", "node", GAUGE.fields)
    bed.memory.note({"heard": {"head-facility": [int((START + bed.now) * NS), 0]}})
    bed.gauge("n1", bed.now, {0: 1, 7: 1}, jobs=(7,))
    for host in ("head-facility", "n1", "n2"):
        bed.gauge(host, bed.now, {0: 3}, jobs=None if host != "n1" else (), schema=facility)
    look = bed.memory.look()
    assert [host for host, _ in look.hosts] == list(look.heard) == ["n1"] and look.hosts[0][1].jobs == (7,)
    assert "facility_users_default" in bed.memory.tables(["head-facility"]) and bed.memory.is_host("head-facility")
    bed.gauge("n2", bed.now, {8: 1})
    assert set(bed.memory.look().heard) == {"n1", "n2"} and not any(
        stay.is_whole for stay in bed.memory.job(8).hosts.values()
    )


def test_nodes_that_the_collector_knew_before_are_known(bed):
    bed.memory.note({"heard": {"n9": [1, 2], "bad": ["x", 2], "worse": 3}, "left_out": 5, "other": 1})
    assert list(bed.memory.look().heard) == ["n9"] and bed.memory.is_host("n9") and bed.memory.missed == 5
    bed.memory.note({"heard": 7, "left_out": "x"})
    assert bed.memory.missed == 5


# -- one sender, many others --

EVIL, NODES = "[10.0.0.66]", [f"n{n}" for n in range(10)]


def test_one_sender_loses_its_own_past_and_the_others_nothing():
    bed = Bed(max_bytes=200_000)
    rng = np.random.default_rng(1)
    for n in range(100):
        for host in NODES:
            bed.gauge(host, n, {7: n}, sender=f"[{host}]")
        for made_up in range(5):
            values = {job: int(value) for job, value in enumerate(rng.integers(0, 1 << 60, 50), 1)}
            bed.gauge(f"evil-{made_up}", n, values, sender=EVIL)
    counts = bed.memory.counters()
    assert counts["bytes"] <= 200_000 and counts["over_share"] == counts["evicted"] > 200
    assert all(bed.read(7, host) == [(n, n) for n in range(100)] for host in NODES)
    assert bed.memory._bytes_of._held[EVIL] <= 105_000


def test_tables_jobs_and_hosts_that_one_sender_makes_up_leave_room_to_the_others(monkeypatch):
    for name in ("MAX_STRANDS", "MAX_JOBS", "MAX_HOSTS"):
        monkeypatch.setattr(memory_module, name, 100)
    monkeypatch.setattr(memory_module, "FORGET", 10)
    bed = Bed()
    for n in range(10):
        bed.gauge(NODES[n], bed.now, {1000 + n: 1}, sender=f"[{NODES[n]}]")
    for n in range(1, 500):
        bed.gauge(f"evil-{n}", bed.now, {n: 1}, sender=EVIL)
        bed.now += 0.01
    for n in range(10):
        bed.gauge(f"late-{n}", bed.now, {2000 + n: 1}, sender=f"[late-{n}]")
    memory = bed.memory
    assert {*NODES, *[f"late-{n}" for n in range(10)]} < set(memory.look().heard)
    assert all(memory.job(number + n) for number in (1000, 2000) for n in range(10))
    assert all(bed.read(1000 + n, NODES[n]) and bed.read(2000 + n, f"late-{n}") for n in range(10))
    assert len(memory._heard) <= 100
    assert memory.counters()["left_out"] > 800 and memory.counters()["forgotten"] > 400


def test_shares_are_given_back(monkeypatch):
    bed = Bed(max_bytes=20_000)
    for n in range(300):
        bed.gauge(f"n{n % 7}", n, dict.fromkeys(range(n % 5 + 1), n), sender=f"s{n % 3}")
    bed.now += 10 * memory_module.AGAIN_S
    bed.take()
    bed.now += memory_module.TIDY_S
    for _ in range(2):
        bed.take()
        bed.now += memory_module.TIDY_S + 86400
    memory = bed.memory
    assert memory._bytes_of.total == memory._strands_of.total == memory._hosts_of.total == 0
    assert memory._jobs_of.total == len(memory._jobs) and memory.counters()["tables"] == 0
