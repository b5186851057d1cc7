"""The latest tables of each node: the latest two of each, always or after a look, no more than fits."""

from __future__ import annotations

import pytest

from colmet.common.live import latest_tables
from colmet.common.live.latest_tables import HOST_BYTES, JOB_BYTES, LEASE_S, LEAST_S, MAX_TABLES, MOST_S, LatestTables
from colmet.common.schema import Batch, Field, Sample, Schema, Table
from tests.support.waiting import Clock

SCHEMA = Schema("t_default", "job", [Field("cpu", "nsec", "counter")])
OTHER = Schema("t_default", "job", [Field("cpu", "nsec", "counter"), Field("more", "count", "gauge")])


@pytest.fixture
def clock():
    return Clock()


def table(jobs, at, schema=SCHEMA):
    return Table.from_samples(schema, int(at * 1e9), [Sample(job, {"cpu": 1}) for job in jobs])


def batch(jobs, at, rows=None, host="n1", schema=SCHEMA, seq=1):
    return Batch(host, 1, seq, int(at * 1e9), jobs, (table(rows or jobs, at, schema),))


def pair(watched):
    ((_, kept),) = watched.look()
    return kept.tables["t_default"]


def times(watched):
    kept = pair(watched)
    return (kept.former and kept.former.time_ns / 1e9, kept.latest.time_ns / 1e9)


def test_nothing_is_kept_while_nobody_looks(clock):
    watched = LatestTables(["t_default"], monotonic=clock)
    watched.take([batch((1,), 10)])
    assert watched.look() == [] and watched.since == 1000
    watched.take([batch((1,), 15)])
    assert times(watched) == (None, 15)
    clock.now += LEASE_S - 1
    watched.take([batch((1,), 70)])
    assert times(watched) == (15, 70)
    clock.now += LEASE_S
    watched.take([batch((1,), 130)])
    assert watched.since is None and watched._hosts == {} and watched._bytes.total == 0
    assert watched.look() == [] and watched.counters() == {"looks": 4, "left_out": 0}


def test_the_latest_two_are_kept_and_tables_of_other_names_are_not(clock):
    watched = LatestTables(["t_default"], monotonic=clock)
    watched.look()
    unwanted = Table.from_samples(Schema("x_default", "job", SCHEMA.fields), 1, [Sample(1, {})])
    for at in (5, 10, 15):
        watched.take([batch((1,), at)._replace(tables=(table([1], at), unwanted))])
        clock.now += 5
    assert times(watched) == (10, 15) and pair(watched).period_s == 5
    ((_, kept),) = watched.look()
    assert set(kept.tables) == {"t_default"} and kept.batches == 3 and kept.is_measured


def test_the_last_rows_of_a_job_that_ends_do_not_take_the_place_of_a_sample(clock):
    watched = LatestTables(["t_default"], monotonic=clock)
    watched.look()
    for at in (5, 10):
        watched.take([batch((1, 2, 3), at)])
        clock.now += 5
    watched.take([batch((1, 2, 3), 12, rows=(3,))])
    assert times(watched) == (5, 10)
    watched.take([batch((1, 2), 15)])
    assert times(watched) == (10, 15)
    watched.take([batch((1, 2), 16, rows=(2,))])
    clock.now += 30
    watched.take([batch((1, 2), 45, rows=(2,))])
    assert times(watched) == (15, 45), "in the end it is what there is: the other one is not measured any more"


def test_what_comes_late_is_left_out_but_not_for_ever(clock):
    watched = LatestTables(["t_default"], monotonic=clock)
    watched.look()
    watched.take([batch((1,), 500)])
    watched.take([batch((1,), 400)])
    assert times(watched) == (None, 500)
    clock.now += LEAST_S / 2
    watched.look()
    clock.now += LEAST_S / 2 + 1
    watched.take([batch((1,), 460)])
    assert times(watched) == (None, 460), "the clock was put back: no rate from these two"
    clock.now += 5
    watched.take([batch((1,), 465)])
    assert times(watched) == (460, 465)


def test_the_last_rows_of_a_job_are_kept_beside_those_of_the_others(clock):
    watched = LatestTables((), always=True, all_jobs=True, monotonic=clock)
    watched.take([batch((1, 2), 5)])
    empty = watched._bytes.total
    watched.take([batch((1, 2), 7, rows=(2,))])
    assert pair(watched).later.rows["job_id"].tolist() == [2] and times(watched) == (None, 5)
    assert watched._bytes.total == pair(watched).size_bytes + HOST_BYTES + 2 * JOB_BYTES > empty
    clock.now += 5
    watched.take([batch((1,), 10)])
    assert pair(watched).later is None and times(watched) == (5, 10)


def test_all_tables_of_jobs_are_kept_always_but_no_more_than_some_of_a_host(clock):
    watched = LatestTables(["n_default"], always=True, all_jobs=True, monotonic=clock)
    clock.now += 10 * LEASE_S
    schemas = [Schema(f"t{n}_default", "job", SCHEMA.fields) for n in range(MAX_TABLES + 10)]
    schemas += [Schema(name, "node", SCHEMA.fields) for name in ("n_default", "m_default")]
    watched.take([Batch("n1", 1, 1, 1, (1,), tuple(table([1], 1, schema) for schema in schemas[:-2]))])
    ((_, kept),) = watched.hosts()
    assert len(kept.tables) == MAX_TABLES and watched.left_out == 10
    watched.take([Batch("n2", 1, 1, 1, (1,), tuple(table([0], 1, schema) for schema in schemas[-2:]))])
    assert [*dict(watched.hosts())["n2"].tables] == ["n_default"]
    clock.now += MOST_S - 1
    watched.take([Batch("n1", 1, 2, 1, (1,), (table([1], 2, schemas[0]),))])
    clock.now += 2
    watched.take([])
    ((_, kept),) = watched.hosts()
    assert [*kept.tables] == ["t0_default"] and watched._bytes.total == kept.size_bytes


def test_another_schema_begins_again(clock):
    watched = LatestTables(["t_default"], monotonic=clock)
    watched.look()
    watched.take([batch((1,), 5)])
    watched.take([batch((1,), 10, schema=OTHER)])
    assert times(watched) == (None, 10)


def test_what_does_not_fit_is_left_out_and_counted(clock, monkeypatch, caplog):
    size = SCHEMA.row_bytes + 500 + HOST_BYTES + JOB_BYTES
    monkeypatch.setattr(latest_tables, "MAX_BYTES", 3 * size)
    monkeypatch.setattr(latest_tables, "MAX_HOSTS", 3)
    watched = LatestTables(["t_default"], monotonic=clock)
    watched.look()
    for at in (5, 10, 15):
        watched.take([batch((1,), at, host=f"n{n}") for n in range(1, 6)])
    kept = dict(watched.look())
    assert set(kept) == {"n1", "n2", "n3"} and watched._bytes.total <= 3 * size
    assert watched.counters()["left_out"] > 3
    assert [record.args[0] for record in caplog.records] == [1, 10]
    assert watched.left_out == watched.counters()["left_out"]
    clock.now += LEASE_S
    watched.take([])
    watched.look()
    assert watched.left_out == 0 < watched.counters()["left_out"], "of another time"


def test_jobs_that_are_only_named_take_room_too(clock, monkeypatch):
    monkeypatch.setattr(latest_tables, "MAX_BYTES", 3 * (HOST_BYTES + 1000 * JOB_BYTES))
    watched = LatestTables(["t_default"], monotonic=clock)
    watched.look()
    for count in (1000, 1001, 500, 1000, 1000):
        watched.take([Batch(f"n{n}", 1, 1, 5, tuple(range(1, count + 1)), ()) for n in range(5)])
        assert sum([kept.size_bytes for _, kept in watched.look()]) == watched._bytes.total <= latest_tables.MAX_BYTES
    assert watched.left_out > 2


def test_hosts_that_have_gone_make_room_while_somebody_looks(clock):
    watched = LatestTables(["t_default"], monotonic=clock)
    watched.look()
    watched.take([batch((1,), 5, host="gone")])
    one = watched._bytes.total
    for at in range(10, 10 + 2 * int(MOST_S), 30):
        clock.now += 30
        watched.take([batch((1,), at, host="n1")])
        watched.look()
    assert [host for host, _ in watched.look()] == ["n1"]
    assert watched.since == 1000 and one < watched._bytes.total < 2 * one


def test_one_sender_with_many_hosts_leaves_room_to_the_others(clock, monkeypatch):
    monkeypatch.setattr(latest_tables, "MAX_HOSTS", 100)
    watched = LatestTables(["t_default"], monotonic=clock)
    watched.look()
    watched.take([batch((1,), 5, host=f"made-up-{n}") for n in range(1000)], "[10.0.0.66]")
    for n in range(20):
        watched.take([batch((1,), 5, host=f"n{n}")], f"[10.0.0.{n}]")
    kept = dict(watched.look())
    assert {f"n{n}" for n in range(20)} < kept.keys() and len(kept) == 70
    assert watched.left_out == 950
    clock.now += LEASE_S - 1
    watched.look()
    watched.take([batch((1,), 10, host="made-up-1")], "[10.0.0.66]")
    assert dict(watched.look())["made-up-1"].batches == 2, "of what it has, the latest"


def test_one_sender_with_large_tables_leaves_room_to_the_others(clock, monkeypatch):
    monkeypatch.setattr(latest_tables, "MAX_BYTES", 100_000)
    watched = LatestTables(["t_default"], monotonic=clock)
    watched.look()
    for n in range(200):
        watched.take([batch(tuple(range(1, 50)), 5, host=f"made-up-{n}")], "[10.0.0.66]")
    assert 40_000 < watched._bytes.total < 50_000
    for n in range(20):
        watched.take([batch((1,), 5, host=f"n{n}")], f"[10.0.0.{n}]")
    assert {f"n{n}" for n in range(20)} < dict(watched.look()).keys()


def test_batches_sent_again_at_once_have_the_period_of_their_samples(clock):
    watched = LatestTables(["t_default"], always=True, monotonic=clock)
    for n in range(10):
        watched.take([batch((1,), 60 * n)])
        clock.now += 0.005
    assert pair(watched).period_s == 60 and pair(watched).stale_s == 5 * 60
    clock.now += 1
    watched.take([batch((1, 2), 541, rows=[2])])
    assert pair(watched).latest.time_ns == 540 * 10**9 and pair(watched).later is not None


def test_tables_with_a_name_of_its_own_are_kept_whatever_else_the_host_sends(clock):
    watched = LatestTables(["t_default"], always=True, all_jobs=True, monotonic=clock)
    others = [Schema(f"x{n}_default", "job", SCHEMA.fields) for n in range(MAX_TABLES)]
    made = tuple(table([1], 5, schema) for schema in (*others, SCHEMA))
    watched.take([Batch("n1", 1, 1, 5 * 10**9, (1,), made)])
    ((_, kept),) = watched.look()
    assert len(kept.tables) == MAX_TABLES + 1 and "t_default" in kept.tables and watched.left_out == 0


def test_one_slow_sample_with_several_times_is_one_table(clock):
    """A node of Colmet 0.6 gives each job a time of its own, and names no jobs."""
    watched = LatestTables(["t_default"], always=True, monotonic=clock)
    for at in (5, 10):
        watched.take([batch(None, at, rows=[1, 2]), batch(None, at + 1, rows=[3])])
        assert pair(watched).latest.rows["job_id"].tolist() == [1, 2, 3]
        clock.now += 5
    assert times(watched) == (5, 10) and pair(watched).former.rows["job_id"].tolist() == [1, 2, 3]
    assert watched._bytes.total == sum(kept.size_bytes for _, kept in watched.look())
