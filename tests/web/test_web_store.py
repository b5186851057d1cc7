"""What is stored, for those who ask over HTTP; and what is answered of it together with recent rows."""

from __future__ import annotations

import contextlib
import signal
import threading

import numpy as np
import pytest
import tables

from colmet.common.errors import ColmetError
from colmet.common.live.user_names import NO_NAME_S, UserNames
from colmet.stored import hdf5, series
from colmet.stored.hdf5 import Hdf5History
from colmet.stored.series import ReadingTooSlow, RowQuery
from colmet.web import store as store_module
from colmet.web.ownership import earliest
from colmet.web.queries import NO_STORE, JobsQuery, NodesQuery, Queries
from colmet.web.recent_cache import RecentCache
from colmet.web.store import StoreReader, warning_of
from tests.support.made_up_history import START, job_rows
from tests.support.waiting import wait_for
from tests.support.web_nodes import USERS, Cluster
from tests.support.web_store import Bed


@pytest.fixture
def store(history, clock):
    made = StoreReader(lambda: history, monotonic=clock)
    yield made
    made.close()


# -- the store alone --


def hosts_of(rows):
    return sorted(rows.counts)


def test_the_same_question_is_read_once_in_a_while(store, history, clock):
    job_rows(history)
    reads, read = [], history.read
    history.read = lambda query: reads.append(query) or read(query)
    for _ in range(3):
        assert store.read(RowQuery(42, "cgroup_default", ["cpu_usage"], START + 7), hosts_of) == (["node-1"], ())
        store.read(RowQuery(42, "cgroup_default", ["cpu_usage"], START + 8), hosts_of)
    assert len(reads) == 1
    clock.now += store_module.KEEP_S + 1
    store.read(RowQuery(42, "cgroup_default", ["cpu_usage"], START + 7), hosts_of)
    assert len(reads) == 2 and history.closed, "opened again: there may be another file"


def test_the_same_question_waits_with_the_first(history):
    job_rows(history)
    inside, go_on, most = threading.Semaphore(0), threading.Event(), []
    tables = history.tables

    def slow(*asked):
        most.append(1)
        inside.release()
        assert go_on.wait(30)
        return tables(*asked)

    history.tables = slow
    store = StoreReader(lambda: history)
    found = []
    threads = [threading.Thread(target=lambda n=n: found.append(store.tables(n).value)) for n in (42, 43, 42)]
    for thread in threads:
        thread.start()
    assert inside.acquire(timeout=30) and inside.acquire(timeout=30)
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and sum("cgroup_default" in one for one in found) == 2 == len(most)


def test_a_reading_ends_at_its_deadline_with_advice_for_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "READ_S", 0.2)
    monkeypatch.setattr(hdf5, "tables_of", endless)
    with tables.open_file(str(tmp_path / "rows.hdf5"), "w") as file:
        file.create_group("/", "job_42")
    store = StoreReader(lambda: Hdf5History([str(tmp_path / "rows.hdf5")]))
    with pytest.raises(ReadingTooSlow, match=r"longer than 0\.2 s; ask for a shorter interval") as raised:
        store.tables(42)
    assert type(warning_of(raised.value)) is str, "ordinary users see it, too"
    store.close()


def endless(_file, job):
    signal.pause()


def test_a_store_that_cannot_be_read_is_an_error_for_all_who_ask_and_tried_again(history, clock):
    store = StoreReader(lambda: history, monotonic=clock)
    tables, history.tables = history.tables, lambda *asked: (_ for _ in ()).throw(ColmetError("the disk is away"))
    with pytest.raises(ColmetError, match="the disk is away"):
        store.tables(1)
    assert history.closed
    history.tables = tables
    assert store.tables(1).value == {}


def test_owners_of_a_store_with_an_unreadable_file_are_asked_again_in_a_moment(store, history, clock):
    job_rows(history)
    history.warnings = ["x.hdf5: cannot be read"]
    assert set(store.owners(42)) == {"node-1"}
    job_rows(history, host="node-2", user=b"bob")
    history.warnings = []
    clock.now += store_module.UNKNOWN_S + 1
    assert set(store.owners(42)) == {"node-1", "node-2"}


def test_whose_a_job_is(store, history):
    job_rows(history)
    assert store.owners(42) == {"node-1": ({"alice"}, START + 605)} and store.owners(43) is None
    history.add(44, "cgroup_default", "n1", [START], user=b"")
    history.add(45, "cgroup_default", "n1", [START, START + 5], user=[b"alice", b"bob"])
    history.add(46, "other_default", "n1", [START], value=1)
    history.add(47, "cgroup_default", "n1", [START, START + 5], user=[b"", b"alice"])
    history.add(48, "cgroup_default", "n1", [START, START + 5, START + 9000], user=[b"alice", b"alice", b""])
    assert not any(store.owners(44)["n1"].users) and not store.owners(46)
    assert store.owners(45)["n1"].users == {"alice", "bob"}
    assert store.owners(47)["n1"].users == {"alice"}, "the owner is not known at once"
    assert store.owners(48) == {"n1": ({"alice", ""}, START + 5)}, "another job, of which nobody reports whose it is"


def test_answers_that_are_kept_are_bounded(store, history, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_KEPT_BYTES", 100_000)
    for job in range(100):
        history.add(job, "t_default", "n1", np.arange(100), value=1)
        store.read(RowQuery(job, "t_default", ["value"]), hosts_of)
    assert store._kept_bytes <= 100_000 and 5 < len(store._kept) < 100
    history.add(100, "t_default", "n1", np.arange(100_000), value=1)
    assert store.read(RowQuery(100, "t_default", ["value"]), lambda rows: rows.counts)[0] == {"n1": 100_000}
    assert store._kept_bytes <= 100_000


# -- together with memory --


@pytest.fixture
def bed(history, clock):
    return Bed(history, clock)


def owner(bed, job):
    """Whose a job is: the user, a list where there are several, or None."""
    found = []
    for user in USERS:
        with contextlib.suppress(ColmetError):
            found += [user] if bed.known.own(job, user) else []
    return found[0] if len(found) == 1 else found or None


def since_of(bed, job, user):
    own = bed.known.own(job, user)
    assert own
    return earliest(own)


def seconds(found):
    return [[round(at - START, 3) for at in one["times"]] for one in found["series"]]


def test_a_curve_goes_on_from_the_store_into_memory_without_a_double_or_a_hole(bed):
    bed.go(10, take=False)
    bed.go(10, keep=False)
    found = bed.series(rate=True)
    assert seconds(found) == [[5.0 * n for n in range(2, 21)]]
    assert found["source"] == "both" and found["unit"] == "seconds/s" and found["kind"] == "counter"
    assert found["series"][0]["values"] == [1.0] * 19 and found["warnings"] == [] and found["step"] == 0
    assert seconds(bed.series(source="memory")) == [[5.0 * n for n in range(11, 21)]]
    assert seconds(bed.series(source="stored")) == [[5.0 * n for n in range(1, 11)]]
    assert seconds(bed.series(since=START + 31, until=START + 72)) == [[5.0 * n for n in range(7, 15)]]


def test_what_is_in_memory_and_in_the_store_is_returned_once(bed):
    bed.go(10)
    found = bed.series("memory_current")
    assert seconds(found) == [[5.0 * n for n in range(1, 11)]] and found["source"] == "memory"
    assert (found["since"], found["rate"]) == (START + 5, False)


def test_a_job_that_was_seen_from_its_beginning_needs_no_store(bed):
    bed.cluster.on = {name: [] for name in bed.cluster.names}
    bed.go(40)
    bed.cluster.on["n1"] = [2000]
    bed.go(5, keep=False)
    bed.history.read = bed.history.tables = None
    assert len(seconds(bed.series(job=2000))[0]) == 5


@pytest.mark.parametrize("later", ["alice", "bob"])
def test_a_job_that_was_away_for_long_keeps_its_past_where_that_is_the_same_users(bed, history, later):
    bed.cluster.on = {name: [] for name in bed.cluster.names}
    bed.go(40)
    bed.cluster.on["n1"] = [2000]  # alice's
    bed.go(5)
    bed.clock.now += 7200
    bed.cluster.tick += 7200 // bed.cluster.period
    bed.cluster.user = lambda job: later
    bed.go(3)
    asked, tables = [], history.tables
    history.tables = lambda job, since=None, *more: asked.append(since) or tables(job, since, *more)
    since = since_of(bed, 2000, later)
    assert bed.known.job(2000)["stored"]
    former, now = [5.0 * n for n in range(41, 46)], [5.0 * n for n in range(1486, 1489)]
    if later == "alice":
        assert since is None and seconds(bed.series(job=2000)) == [[*former, 3827.5, *now]], "with a hole"
    else:
        assert since == START + now[0] and seconds(bed.series(job=2000, since=since)) == [now]
        assert asked[1:] and min(asked[1:]) > START + former[-1], "of bob's, also in what there is of it"


def test_a_job_that_runs_on_after_a_start_has_its_past_however_seldom_its_node_sends(bed):
    bed.cluster.period = 300
    bed.go(10, take=False)
    bed.memory.began = START + bed.clock.now - 1000
    bed.go(3)
    assert since_of(bed, 1000, "alice") is None
    assert seconds(bed.series()) == [[300.0 * n for n in range(1, 14)]]


def test_the_curves_of_a_node_are_its_own(bed):
    bed.go(5)
    found = bed.series("loadavg_1min", job=0, table="procstats_default", node="n1")
    assert [one["node"] for one in found["series"]] == ["n1"] and found["series"][0]["values"] == [1.5] * 5
    assert bed.series("loadavg_1min", job=0, table="procstats_default", node="n9") is None
    assert bed.series("cpu_usage", job=0, node="n1") is None, "a table of jobs has no rows of the node"


def test_what_is_not_there_is_none_and_not_empty(bed):
    bed.go(3)
    assert bed.series("absent") is None and bed.series(table="absent_default") is None
    assert bed.series("user") is None, "no numbers"
    assert bed.series(job=77) is None and bed.known.job(77) is None and bed.known.completeness(77, None, None) is None
    assert owner(bed, 77) is None and bed.known.node("n9") is None


def test_the_growth_of_what_is_no_counter_is_not_made_up(bed):
    bed.go(3)
    found = bed.series("memory_current", rate=True)
    assert not found["rate"] and found["unit"] == "bytes" and "not a counter" in found["warnings"][0]


def test_a_store_that_fails_leaves_what_memory_has(bed, history):
    bed.go(5, take=False)
    bed.go(5)
    history.read = history.tables = lambda *asked: (_ for _ in ()).throw(ColmetError("the disk is away"))
    found = bed.series()
    assert len(seconds(found)[0]) == 5 and found["warnings"] == ["the disk is away"] and found["source"] == "memory"
    job = bed.known.job(1000)
    assert job["job"]["running"] and job["warnings"] == ["the disk is away"] and not job["stored"]
    with pytest.raises(ColmetError, match="the disk is away"):
        bed.known.job(77)


def test_without_a_store_memory_is_all(history, clock):
    bed = Bed(history, clock, with_store=False)
    bed.go(5)
    assert len(seconds(bed.series())[0]) == 5 and bed.series(source="stored")["warnings"] == [NO_STORE]
    assert bed.known.completeness(1000, None, None)["warnings"] == [NO_STORE] and owner(bed, 77) is None
    assert bed.known.completeness(77, None, None) is None and not bed.known.job(1000)["stored"]


def test_a_job_that_is_only_stored(bed, history):
    bed.go(2)
    job_rows(history)
    found = bed.known.job(42)
    assert found["stored"] and found["job"]["user"] == "alice" and found["job"]["cpu"] is None
    assert not found["job"]["running"] and found["nodes"] == []
    (usage,) = [column for column in found["tables"]["cgroup_default"] if column["name"] == "cpu_usage"]
    assert (usage["unit"], usage["kind"]) == ("nsec", "counter") and "CPU time" in usage["help"]
    assert owner(bed, 42) == "alice"
    assert bed.series(job=42, rate=True)["source"] == "stored"


def test_what_another_user_had_under_a_number_before_is_not_shown_to_who_has_it_now(bed, history):
    """1000 is alice's; what was stored of it before this process began is alice's, too, or bob's."""
    bed.go(5, take=False)
    bed.go(5)
    known = bed.memory.job(1000)
    assert owner(bed, 1000) == "alice" and since_of(bed, 1000, "alice") is None
    for host in bed.memory.job(1001).hosts:
        history.add(1001, "cgroup_default", host, [START - 1000], user=b"alice", cpu_usage=7)
    assert owner(bed, 1001) == "bob" and since_of(bed, 1001, "bob") == bed.memory.job(1001).first
    history.read = history.tables = lambda *asked: (_ for _ in ()).throw(ColmetError("the disk is away"))
    assert since_of(bed, 1000, "alice") is None, "it is kept whose it is"
    assert since_of(bed, 1002, Cluster.user(1002)) == known.first, "nobody can tell: no more than is known"


@pytest.mark.parametrize("ticks", [1, 40])
def test_a_job_without_a_reported_owner_is_not_that_of_who_had_its_number_before(bed, history, ticks):
    bed.cluster.user = lambda job: "" if job == 42 else Cluster.user(job)
    job_rows(history, host="n1", start=START - 10_000_000)
    assert owner(bed, 42) == "alice"
    bed.go(ticks, keep=False)
    bed.cluster.on["n1"].append(42)
    bed.go(2, keep=False)
    assert owner(bed, 42) is None and bed.known.job(42)["job"]["running"]
    assert bed.known.jobs(JobsQuery(user="alice", text="42")).total == 0


def test_the_owner_in_the_store_counts_for_a_job_that_goes_on(bed, history):
    """After a start, before the nodes tell it."""
    bed.cluster.user = lambda job: ""
    job_rows(history, job=1000, start=START - 610)
    bed.go(1, keep=False)
    assert owner(bed, 1000) == "alice" and since_of(bed, 1000, "alice") is None


def test_of_two_jobs_with_one_number_neither_user_is_named(bed, history):
    bed.cluster.user = lambda job: "bob" if job == 1000 else Cluster.user(job)
    job_rows(history)
    bed.go(1, keep=False)
    assert owner(bed, 1000) == "bob"
    bed.cluster.user = Cluster.user
    bed.clock.now += 2
    bed.go(1, keep=False)
    history.add(1000, "cgroup_default", "n7", [START - 1000], user=b"bob", cpu_usage=7)
    assert owner(bed, 1000) is None and {row["user"] for row in bed.known.job(1000)["nodes"]} == {""}
    assert 1000 not in {row["job"] for user in USERS for row in bed.known.jobs(JobsQuery(user=user)).items}
    assert 1000 in {row["job"] for row in bed.known.jobs(JobsQuery()).items}


def test_users_whom_nodes_know_by_number_have_their_names(bed, history, monkeypatch):
    """As cgroups of OAR 3 and Slurm say it."""
    bed.cluster.user = lambda job: str(5000 + job % 2)
    bed.known._ownership.name_of = {"5000": "alice", "5001": "5001"}.__getitem__
    bed.go(2)
    assert bed.known.nodes_of("alice") == {"n0", "n1", "n2"} and owner(bed, 1000) == "alice"
    assert [row["job"] for row in bed.known.jobs(JobsQuery(user="alice", sort="job")).items] == [1000, 1002, 1004]
    assert bed.known.cluster("alice")["jobs"]["running"] == 3 and bed.known.jobs(JobsQuery(user="5000")).total == 0
    assert bed.known.qhost()["n0"]["jobs"]["1000"]["owner"] == "alice" and set(bed.known.qstat()) == {"alice", "5001"}
    history.add(42, "cgroup_default", "n1", [START], user=b"5000")
    assert owner(bed, 42) == "alice"


def test_the_name_of_a_number_is_found_without_waiting_and_asked_for_again():
    clock, asked, go_on = [0.0], [], threading.Event()

    def name_of(number):
        asked.append(number)
        assert go_on.wait(30)
        return {1000: "alice"}[number]

    names = UserNames(name_of, lambda: clock[0])
    assert (names("1000"), names("1000"), names("bob"), names(""), names("1" * 11)) == (
        *("1000", "1000", "bob", ""),
        "1" * 11,
    )
    names("1001")
    go_on.set()
    wait_for(lambda: names("1000") == "alice" and not names._asked)
    assert names("1001") == "1001" and asked == [1000, 1001]
    clock[0] = NO_NAME_S
    names("1001")
    wait_for(lambda: asked == [1000, 1001, 1001])
    assert names("1000") == "alice" and len(asked) == 3


def test_what_is_complete_is_known_for_each_host(bed, history):
    steps = [n for n in range(1, 60) if n not in (30, 31)]
    for host in ("node-1", "node-2"):
        history.add(
            7, "cgroup_default", host, [START + 5 * n for n in (steps if host == "node-2" else range(1, 60))], x=1
        )
    found = bed.known.completeness(7, None, None)
    assert (found["expected"], found["present"]) == (118, 116) and found["share"] == 116 / 118
    assert [(host["node"], host["share"]) for host in found["hosts"]] == [("node-1", 1.0), ("node-2", 57 / 59)]
    (gap,) = found["hosts"][1]["gaps"]
    assert (gap["since"], gap["until"], gap["samples"]) == (START + 150, START + 155, 2) and "no ledger" in gap["why"]


# -- jobs and nodes --


def test_jobs_are_chosen_ordered_and_cut_into_pages(bed):
    bed.go(3)
    page = bed.known.jobs(JobsQuery(limit=2))
    assert (page.total == 6 and [row["job"] for row in page.items] == [1003, 1002]) or page.items[0]["cpu"] == 4.0
    assert [row["job"] for row in bed.known.jobs(JobsQuery(sort="job", offset=4)).items] == [1004, 1005]
    assert {row["user"] for row in bed.known.jobs(JobsQuery(user="alice")).items} == {"alice"}
    some = frozenset({1000, 1001, 7})
    assert {row["job"] for row in bed.known.jobs(JobsQuery(jobs=some)).items} == {1000, 1001}
    assert {row["job"] for row in bed.known.jobs(JobsQuery(user="alice", jobs=some)).items} == {1000}
    assert {row["job"] for row in bed.known.jobs(JobsQuery(node="n1")).items} == {1001, 1004}
    assert {row["job"] for row in bed.known.jobs(JobsQuery(text="1003")).items} == {1003}
    assert {row["job"] for row in bed.known.jobs(JobsQuery(text="n2")).items} == {1002, 1005}
    assert bed.known.jobs(JobsQuery(since=START + 1000)).total == 0
    row = bed.known.jobs(JobsQuery(sort="job")).items[0]
    assert row["running"] and (row["first"], row["last"], row["on"]) == (START + 5, START + 15, "n0")


def test_a_job_that_ended_is_shown_without_values(bed):
    bed.go(3)
    bed.cluster.on["n0"].remove(1000)
    bed.go(2)
    assert {row["job"] for row in bed.known.jobs(JobsQuery()).items} == {1001, 1002, 1003, 1004, 1005}
    (row,) = bed.known.jobs(JobsQuery(state="ended")).items
    assert (row["job"], row["user"], row["running"], row["cpu"], row["nodes"], row["on"]) == (
        *(1000, Cluster.user(1000), False, None, 1, "n0"),
    )
    assert [one["job"] for one in bed.known.jobs(JobsQuery(state="all")).items][-1] == 1000, "None is last"
    (there,) = bed.known.job(1000)["nodes"]
    assert (there["node"], there["cpu"]) == ("n0", None)
    assert len(seconds(bed.series(job=1000))[0]) == 3


def test_a_node_that_is_not_heard_any_more_stays_with_its_job(bed):
    bed.cluster.on["n1"].append(1000)
    bed.go(3)
    del bed.cluster.on["n1"]
    bed.go(20)
    job = bed.known.job(1000)
    assert job["job"]["running"] and job["job"]["nodes"] == 2 and job["job"]["cpu"] == 1.0
    assert [(row["node"], row["cpu"], row["user"]) for row in job["nodes"]] == [
        ("n0", 1.0, "alice"),
        ("n1", None, "alice"),
    ]
    assert bed.known.jobs(JobsQuery(sort="nodes")).items[0]["job"] == 1000


def test_totals_are_of_all_or_of_one_user(bed):
    bed.go(3)
    every, own = bed.known.cluster(None), bed.known.cluster("alice")
    assert every["nodes"] == {
        **{"heard": 3, "silent": 0, "cpu": 0.25, "load": 4.5},
        **{"memory": 3 * (32 << 30), "memory_total": 3 * (64 << 30)},
    }
    assert every["jobs"]["running"] == 6 and every["jobs"]["users"] == 4 and every["jobs"]["cpus"] == 24
    assert every["jobs"]["cpu"] == 3 + 4 + 1 + 2 + 1 + 2 and every["messages"] == {"taken": 9, "left_out": 0}
    assert own["jobs"]["running"] == 2 and own["nodes"]["cpu"] is None and own["nodes"]["heard"] == 3
    assert own["jobs"]["cpu"] == 2.0 and own["jobs"]["gpus"] is None


def test_nodes_and_whose_jobs_are_on_them(bed):
    bed.go(3)
    page = bed.known.nodes(NodesQuery(names=frozenset({"n0", "n2"}), sort="node"))
    assert [row["node"] for row in page.items] == ["n0", "n2"] and page.items[0]["jobs"] == 2
    assert bed.known.nodes_of("alice") == {"n0", "n1"} and bed.known.nodes_of("nobody") == set()
    node = bed.known.node("n1")
    assert [(row["job"], row["user"]) for row in node["jobs"]] == [(1001, USERS[1001 % 4]), (1004, USERS[1004 % 4])]
    assert "procstats_default" in node["tables"]
    bed.clock.now += 100
    assert all(row["silent"] for row in bed.known.nodes(NodesQuery()).items)
    assert bed.known.jobs(JobsQuery()).total == 0, "what runs on nodes that are silent is not known"


def test_administrators_see_that_grid_engine_gives_no_answer(clock):
    class Silent:
        def warnings(self):
            return ["Grid Engine does not answer: why"]

    known = Queries(RecentCache(1 << 20, 3600, clock, clock), None, Silent(), dict, clock, clock)
    assert known.cluster(None)["warnings"] == ["Grid Engine does not answer: why"]
    assert known.cluster("alice")["warnings"] == [], "it has names of hosts and files"


@pytest.mark.parametrize(
    "asked", [{}, {"rate": True}, {"rate": True, "points": 4}, {"metric": "memory_current"}, {"points": 3}]
)
def test_series_of_very_many_rows_are_made_by_groups_of_hosts(bed, monkeypatch, asked):
    job_rows(bed.history, job=1000, host="n7", count=50)
    job_rows(bed.history, job=1000, host="n8", count=70)
    bed.go(10, take=False)
    bed.go(10)
    whole = bed.series(**asked)
    assert {one["node"] for one in whole["series"]} >= {"n7", "n0"} and whole["source"] == "both"
    bed.clock.now += store_module.KEEP_S + 1
    monkeypatch.setattr(store_module, "MAX_HELD_ROWS", 3)
    monkeypatch.setattr(series, "GROUP_BYTES", 1)
    found = bed.series(**asked)
    assert {**found, "until": None} == {**whole, "until": None}


def test_rows_that_are_too_many_to_be_kept_are_read_for_each_client(history, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_HELD_ROWS", 3)
    job_rows(history)
    store = StoreReader(lambda: history)
    inside, go_on = threading.Semaphore(0), threading.Event()

    def use(rows, name):
        inside.release()
        assert go_on.wait(30)
        return name, sum(rows.counts.values())

    found = []
    query = RowQuery(42, "cgroup_default", ["cpu_usage"])
    threads = [
        threading.Thread(target=lambda n=n: found.append(store.read(query, lambda rows: use(rows, n)))) for n in (1, 2)
    ]
    for thread in threads:
        thread.start()
    assert inside.acquire(timeout=30)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == [((1, 121), ()), ((2, 121), ())]
    store.close()


def test_all_nodes_together_have_numpys_min_max_mean_and_sum_of_their_series(bed):
    """Of the same answer with a series for each."""
    for n, cores in enumerate((1.0, 3.5, 0.25)):
        job_rows(bed.history, job=8800, host=f"node-{n}", count=30, cores=cores)
    asked = {"job": 8800, "rate": True, "source": "stored"}
    apart, folded = bed.series(**asked), bed.series(**asked, together=True)
    assert folded["series"] == [] and apart["together"] is None
    values = np.array([one["values"] for one in apart["series"]], float)
    together = folded["together"]
    assert together["series"] == len(values) == 3
    assert together["times"] == pytest.approx(apart["series"][0]["times"], abs=0.5)
    for name in ("min", "max", "mean", "sum"):
        assert together[name] == pytest.approx(getattr(np, name)(values, axis=0).tolist(), nan_ok=True)
