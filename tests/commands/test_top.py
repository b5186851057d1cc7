"""What `colmet top` receives: sums over nodes, rates between two rows, what is missing, order and selection."""

from __future__ import annotations

import pytest

from colmet.common.errors import Refused
from colmet.common.live.summary import JOB_KEYS, MAX_ROWS, MAX_TEXT, NODE_KEYS, Heard
from colmet.common.schema import Batch, Field, Schema
from colmet.common.wire.control import MAX_ANSWER_BYTES, encode
from tests.support.top_bed import GB, NS, Bed, many, table


@pytest.fixture
def bed():
    return Bed()


def test_the_answer_has_every_key_that_can_be_sorted_by(bed):
    bed.take("n1", 10, {7: {"cpu_usage": 1}}, procstats={0: {"stat_cpu_idle": 1}})
    assert set(JOB_KEYS) < set(bed.rows()[0])
    assert set(NODE_KEYS) < set(bed.rows(view="nodes")[0])
    assert {"node", *JOB_KEYS} <= set(bed.rows(view="job", job=7)[0])
    for key in JOB_KEYS:
        bed.ask(sort=key, reverse=True)
    for key in NODE_KEYS:
        bed.ask(view="nodes", sort=key)


def test_a_user_reported_by_number_has_a_name(bed):
    """Slurm's cgroups of v1 have the number."""
    bed.take("n1", 10, {7: {"user": b"995", "cpu_usage": 1}, 8: {"user": b"996", "cpu_usage": 1}})
    assert {row["job"]: row["user"] for row in bed.rows()} == {7: "alice", 8: "996"}
    assert [row["job"] for row in bed.rows(user="alice")] == [row["job"] for row in bed.rows(user="995")] == [7]
    assert bed.ask(view="job", job=7)["job"]["user"] == "alice"


def test_rates_are_between_the_latest_two_rows_and_sums_over_the_nodes(bed):
    for at in (10, 15, 20):
        for host, cpus in (("n1", 4), ("n2", 8)):
            bed.take(
                *(host, at),
                {
                    7: {
                        **{"user": b"bob", "cpu_usage": cpus * at * NS, "cpus_allocated": 8, "memory_current": GB},
                        **{"memory_limit": cpus * GB, "io_read_bytes": 100 * at * at},
                    }
                },
                taskstats={7: {"cpu_delay_total": NS * at // 10, "ac_etime": at * 10**6, "write_bytes": 3 * at}},
            )
    (row,) = bed.rows()
    assert (row["job"], row["user"], row["nodes"], row["time"]) == (7, "bob", 2, 20)
    assert (row["cpu"], row["cpus"], row["cpu_share"]) == (12, 16, 0.75)
    assert row["read"] == 2 * 100 * (20 * 20 - 15 * 15) / 5, "of the latest two, not since the start"
    assert row["write"] == 6, "where the cgroup has nothing of its I/O, the tasks do"
    assert row["io"] == row["read"] + row["write"]
    assert (row["memory"], row["memory_limit"], row["memory_share"]) == (2 * GB, 12 * GB, 0.25)
    assert (row["wait_cpu"], row["wait_io"], row["wait"]) == (0.2, None, 0.2)
    assert row["age"] == 20, "of the oldest task"
    assert row["gpus"] is None
    answer = bed.ask()
    assert answer["totals"]["cpu"] == 12 and answer["totals"]["nodes"] == 2 and answer["count"] == 1
    assert answer["nodes_heard"] == 1 and answer["nodes_measured"] == 2


def test_memory_and_tasks_that_no_cgroup_counts_are_those_of_the_processes(bed):
    of_it = {"VmRSS": 900, "memory_used": 700 << 10, "RssAnon": 600, "tasks": 5, "processes": 2}
    bed.take("n1", 10, {7: {"memory_current": GB, "memory_anon": 9, "pids_current": 3}}, jobprocstats={7: of_it})
    bed.take("n2", 10, {7: {"cpus_allocated": 2}}, jobprocstats={7: of_it})
    bed.take("n3", 10, {8: {"memory_current": GB, "pids_current": 3}, 9: {"cpus_allocated": 1}})
    first, second = bed.rows(view="job", job=7, sort="node")
    assert (first["memory"], first["memory_anon"], first["tasks"]) == (GB, 9, 3)
    assert (first["memory_source"], first["tasks_source"]) == ("cgroup", "cgroup")
    assert (second["memory"], second["memory_anon"], second["tasks"]) == (700 << 10, 600 << 10, 5)
    assert (second["memory_source"], second["tasks_source"]) == ("processes", "processes")
    rows = {row["job"]: row for row in bed.rows()}
    assert rows[7]["memory"] == GB + (700 << 10)
    assert [rows[job]["memory_source"] for job in (7, 8, 9)] == ["processes", "cgroup", None]
    bed.take("n4", 10, jobprocstats={6: {"VmRSS": 900}})  # of an older colmet-node
    (row,) = bed.rows(text="n4")
    assert (row["memory"], row["memory_source"], row["tasks"]) == (900 << 10, "processes", None)


def test_a_share_of_cpus_is_of_the_nodes_that_tell_both(bed):
    for at in (10, 15):
        bed.take("n1", at, {7: {"cpu_usage": 4 * at * NS, "cpus_allocated": 8}})
        bed.take("n2", at, taskstats={7: {"cpu_total": 30 * at * NS}, 8: {"cpu_total": 2 * at * NS}})
    bed.take("n3", 15, {7: {"cpu_usage": 0, "cpus_allocated": 100}})
    answer = bed.ask(sort="job")
    assert [(row["cpu"], row["cpus"], row["cpu_share"]) for row in answer["rows"]] == [(34, 108, 0.5), (2, None, None)]
    assert answer["totals"]["cpu_share"] == 0.5
    assert bed.ask(text="8")["totals"]["cpu_share"] is None


def test_a_counter_that_begins_again_has_no_rate_until_the_next_row(bed):
    for at, used in ((10, 50), (15, 55), (20, 1), (25, 6)):
        bed.take("n1", at, {7: {"cpu_usage": used * NS}})
        assert bed.rows()[0]["cpu"] == {10: None, 15: 1, 20: None, 25: 1}[at]


def test_jobs_that_have_gone_are_not_shown_though_their_rows_are_there(bed):
    rows = {7: {"cpu_usage": NS}, 8: {"cpu_usage": NS}}
    bed.take("n1", 10, rows)
    bed.take("n1", 15, {7: {"cpu_usage": NS}, 8: {"cpu_usage": NS}}, jobs=(8,))
    assert [row["job"] for row in bed.rows()] == [8]
    answer = bed.ask(view="job", job=7)
    assert answer["job"] is None and answer["rows"] == []


def test_tasks_beside_the_jobs_are_job_0(bed):
    bed.take("n1", 10, {0: {"cpu_usage": NS}}, jobs=())
    assert [row["job"] for row in bed.rows()] == [0]


def test_older_nodes_that_do_not_say_which_jobs_they_have_are_shown_too(bed):
    old = Schema("taskstats_default", "job", [Field("cpu_run_virtual_total", "nsec", "counter")])
    for at in (10, 15):
        made = table(old.name, at, {7: {"cpu_run_virtual_total": 2 * at * NS}, 8: {}}, old)
        bed.latest.take([Batch("old", None, None, at * NS, None, (made,))])
    assert {row["job"]: row["cpu"] for row in bed.rows()} == {7: 2, 8: None}
    assert bed.rows(view="nodes")[0]["jobs"] == 2


def test_a_node_that_sends_nothing_any_more_counts_no_more_and_is_shown_as_silent():
    heard = {"n1": Heard(1500 * NS, 20_000_000), "n2": Heard(1490 * NS, 0), "n3": Heard(1000 * NS, 0)}
    bed = Bed(heard)
    for at in (10, 15):
        bed.take("n1", at, {7: {"cpu_usage": at * NS}}, procstats={0: {"loadavg_1min": 2}})
        bed.now += 5
    answer = bed.ask()
    assert answer["nodes_heard"] == 2, "the third was not heard within the minute"
    assert answer["nodes_measured"] == 1, "there are rates of the first"
    bed.heard = {"n2": heard["n2"]}
    assert bed.ask()["nodes_measured"] == 0, "of a node that was not heard they do not stand for those of another"
    bed.heard = heard
    bed.now += 54
    assert [row["job"] for row in bed.rows()] == [7]
    bed.now += 2
    assert bed.rows() == []
    nodes = {row["node"]: (row["silent"], row["jobs"], row["load"]) for row in bed.rows(view="nodes")}
    assert nodes == {"n1": (True, 1, None), "n2": (True, None, None), "n3": (True, None, None)}
    assert bed.ask(view="nodes")["totals"]["silent"] == 3


def test_what_a_node_uses(bed):
    before = {"stat_cpu_user": 100, "stat_cpu_idle": 1000, "stat_cpu_iowait": 0, "vmstat_pgpgin": 0}
    after = {
        **{"stat_cpu_user": 175, "stat_cpu_idle": 1020, "stat_cpu_iowait": 5, "vmstat_pgpgin": 50, "loadavg_1min": 1.5},
        **{"meminfo_memtotal": 1000, "meminfo_memfree": 400, "meminfo_cached": 300, "meminfo_shmem": 100},
    }
    bed.take("n1", 10, procstats={0: before})
    bed.take("n1", 15, {7: {}, 8: {}}, procstats={0: after})
    (row,) = bed.rows(view="nodes")
    assert (row["node"], row["jobs"], row["cpu"], row["iowait"], row["load"]) == ("n1", 2, 0.75, 0.05, 1.5)
    assert (row["memory"], row["memory_total"], row["memory_share"]) == (400 * 1024, 1000 * 1024, 0.4)
    assert row["read"] == 10 * 1024 and row["write"] is None and row["swap"] is None and row["lag"] is None


def test_the_memory_that_is_shown_as_a_share_is_that_of_the_node_that_is_nearest_to_its_limit(bed):
    bed.take("n1", 10, {7: {"memory_current": 9, "memory_limit": 10}})
    bed.take("n2", 10, {7: {"memory_current": 1, "memory_limit": 90}})
    bed.take("n3", 10, {7: {"memory_current": 5}})
    (row,) = bed.rows()
    assert (row["memory"], row["memory_share"]) == (15, 0.9)
    assert row["memory_limit"] is None, "there is none on one of its nodes"
    assert [(one["node"], one["memory_share"]) for one in bed.rows(view="job", job=7, sort="memory_share")] == [
        *(("n1", 0.9), ("n2", 0.011), ("n3", None))
    ]


def test_gpus(bed):
    bed.take("n1", 10, nvidiastats={7: {"gpus": 3, "utilization-gpu": 90, "memory-used": 2}})
    bed.take("n2", 10, nvidiastats={7: {"gpus": 1, "utilization-gpu": 10, "memory-used": 1}})
    (row,) = bed.rows()
    assert (row["gpus"], row["gpu"], row["gpu_memory"]) == (4, 0.5, 3 << 20)


def test_order_selection_and_bound(bed):
    many(bed)
    rows = bed.rows()
    assert [row["cpu"] for row in rows] == sorted([row["cpu"] for row in rows], reverse=True)
    assert [row["job"] for row in rows if row["cpu"] == 6] == [106, 113, 120, 127]
    assert bed.rows(reverse=True)[0]["cpu"] == 0
    assert [row["job"] for row in bed.rows(sort="job")] == list(range(100, 130))
    assert bed.rows(sort="user")[0]["user"] == "alice" and bed.rows(sort="user", reverse=True)[0]["user"] == "carol"
    assert {row["user"] for row in bed.rows(user="bob")} == {"bob"} and bed.ask(user="nobody")["count"] == 0
    assert {row["on"] for row in bed.rows(text="node-1")} == {"node-1"}
    assert [row["job"] for row in bed.rows(text="11", sort="job")] == list(range(110, 120))
    assert bed.ask(text="li")["totals"]["users"] == 1
    answer = bed.ask(sort="memory", limit=2)
    assert [row["job"] for row in answer["rows"]] == [129, 128] and answer["count"] == 30
    assert answer["totals"]["memory"] == sum(range(30)), "of all, not of the listed ones"
    assert [row["node"] for row in bed.rows(view="nodes", text="-2")] == ["node-2"]


def test_the_jobs_of_a_node_are_not_those_of_others_whose_names_have_its_own(bed):
    for host, job in (("n1", 1), ("n10", 2), ("n10", 3), ("on1", 4), ("n2", 1)):
        bed.take(host, 10, {job: {"user": b"n1", "memory_current": 5}})
    (row,) = bed.rows(node="n1")
    assert (row["job"], row["nodes"], row["memory"]) == (1, 2, 10), "all of the job"
    assert bed.rows(node="n1", text="9") == [] and bed.rows(node="n") == []


@pytest.mark.parametrize(
    "request_",
    [
        *({"view": "cellar"}, {"view": 1}, {"sort": "nonsense"}, {"sort": None}, {"sort": "node"}, {"user": 5}),
        *({"text": "x" * 256}, {"node": 5}, {"limit": -1}, {"limit": MAX_ROWS + 1}, {"limit": True}, {"limit": 1.5}),
        *({"job": -1}, {"job": "7"}, {"job": 1 << 63}, {"reverse": 1}, {"view": "nodes", "sort": "user"}),
    ],
)
def test_what_cannot_be_asked_is_refused(bed, request_):
    with pytest.raises(Refused):
        bed.top.answer(request_)


def test_the_largest_answer_has_room(bed):
    name = b"u" * 60
    rows = {10**18 + n: {"user": name, **dict.fromkeys(["memory_current", "memory_limit"], 2**62)} for n in range(6000)}
    for at in (10, 15):
        bed.take("n" * 255, at, rows)
    answer = bed.top.answer({"limit": MAX_ROWS})
    assert answer["count"] == 6000 and len(encode(answer)) < MAX_ANSWER_BYTES / 2


def test_what_a_sender_makes_up_is_neither_endless_nor_infinite(bed):
    fields = [Field(name, "none", "gauge", dtype="f8") for name in ("cpu_usage", "memory_current", "io_read_bytes")]
    schema = Schema("cgroup_default", "job", [*fields, Field("user", "none", "label", dtype="S9999", fold="first")])
    values = {
        "cpu_usage": float("inf"),
        "memory_current": 1e308,
        "io_read_bytes": -float("inf"),
        "user": b"\xff" * 9999,
    }
    rows = dict.fromkeys(range(1, MAX_ROWS), values)
    for host in ("n1", "n2", "n3"):
        bed.latest.take([Batch(host, 1, 1, 10 * NS, None, (table("cgroup_default", 10, rows, schema),))])
        rows = {1: values}
    answer = bed.ask(limit=MAX_ROWS)
    first = answer["rows"][0]
    assert (first["job"], first["cpu"], first["memory"], first["read"], first["io"]) == (1, None, None, None, None)
    assert (answer["rows"][1]["memory"], answer["totals"]["memory"]) == (1e308, None)
    assert len(first["user"]) == MAX_TEXT and len(encode(answer)) < MAX_ANSWER_BYTES / 2
