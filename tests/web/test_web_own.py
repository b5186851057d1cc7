"""Whose the rows of a job are: each node says it of its own rows, and no node can give them to others or hide them."""

from __future__ import annotations

import pytest

from colmet.common.schema import Batch
from tests.support.made_up_history import START, job_rows
from tests.support.web_nodes import NS
from tests.support.web_store import Bed
from tests.support.web_users import ALICE, BOB, METRIC, ROOT, got, make, refused

STORED = 6000  # alice's, on node-1, ended
SERIES = f"/api/v1/jobs/{{}}/series?{METRIC}&source={{}}"


@pytest.fixture
def bed(history, clock):
    made = Bed(history, clock)
    job_rows(history, job=STORED, start=START - 100_000)
    made.go(40)
    return made


@pytest.fixture
def app(bed, users, page):
    return make(bed.known, users, folder=page)


def claim(bed, job, user, host="evil", time_ns=None):
    """One message of a node: this job is here, and this user's."""
    time_ns = int((START + bed.clock.now - 1000) * NS) if time_ns is None else time_ns
    bed.cluster.user = lambda _: user
    table = bed.cluster.table(host, "cgroup_default", [job], time_ns)
    bed.memory.take([Batch(host, 1, 1, time_ns, (job,), (table,))])
    bed.clock.now += 2


def nodes_of(answer):
    return {one["node"] for one in answer["series"]}


@pytest.mark.slow
@pytest.mark.parametrize("time_ns", [None, 10**9], ids=["now", "1970"])
def test_a_nodes_word_shows_no_other_nodes_stored_rows_and_hides_them_from_nobody(app, bed, time_ns):
    refused(app, f"/api/v1/jobs/{STORED}", 404, BOB)
    claim(bed, STORED, "bob", time_ns=time_ns)
    for source in ("auto", "stored"):
        for tail in ("", "&since=100"):
            answer = got(app, SERIES.format(STORED, source) + tail, BOB)
            assert nodes_of(answer) <= {"evil"} and sum(len(one["times"]) for one in answer["series"]) <= 1
            answer = got(app, SERIES.format(STORED, source) + tail, ALICE)
            assert nodes_of(answer) == {"node-1"} and len(answer["series"][0]["times"]) == 121
    assert {row["node"] for row in got(app, f"/api/v1/jobs/{STORED}", BOB)["nodes"]} == {"evil"}
    assert got(app, f"/api/v1/jobs/{STORED}", ALICE)["nodes"] == []
    assert got(app, f"/api/v1/jobs/{STORED}/completeness", BOB)["hosts"] == []


@pytest.mark.slow
@pytest.mark.parametrize("time_ns", [None, 10**9], ids=["now", "1970"])
def test_a_nodes_word_about_a_job_that_runs_elsewhere_changes_nothing_for_its_owner(app, bed, time_ns):
    before = got(app, SERIES.format(1000, "memory"), ALICE)
    nodes = {row["node"] for row in got(app, "/api/v1/nodes", BOB)["items"]}
    claim(bed, 1000, "bob", time_ns=time_ns)
    assert got(app, SERIES.format(1000, "memory"), ALICE)["series"] == before["series"]
    (row,) = [row for row in got(app, "/api/v1/jobs?text=1000", ALICE)["items"] if row["job"] == 1000]
    assert row["running"] and row["user"] == "alice" and row["cpu"] is not None
    assert nodes_of(got(app, SERIES.format(1000, "auto"), BOB)) <= {"evil"}
    assert {row["node"] for row in got(app, f"/api/v1/jobs/{1000}", BOB)["nodes"]} == {"evil"}
    hosts = got(app, "/qhost", BOB)["data"]
    assert [name for name, host in hosts.items() if "1000" in host["jobs"]] == ["evil"]
    assert set(got(app, "/qstat", BOB)["data"]["bob"]["jobs"]["1000"]["hostname"]) == {"evil"}
    assert {row["node"] for row in got(app, "/api/v1/nodes", BOB)["items"]} == {*nodes, "evil"}
    assert got(app, "/api/v1/jobs?text=1000", ROOT)["items"][0]["user"] == "", "two say that it is theirs"


@pytest.mark.slow
def test_a_node_whose_clock_is_at_1970_shows_nothing_of_who_had_the_number_before(app, bed, history):
    history.add(7000, "cgroup_default", "n9", [START - 500], user=b"alice", cpu_usage=7)
    claim(bed, 7000, "bob", host="n9", time_ns=10**9)
    answer = got(app, SERIES.format(7000, "stored") + "&since=0", BOB)
    assert not answer["series"]


@pytest.mark.slow
def test_the_curves_of_a_node_begin_with_the_users_job_on_it_by_our_clock(app, bed):
    claim(bed, 7000, "bob", host="n0", time_ns=10**9)
    assert got(app, "/api/v1/nodes/n0/series?metric=procstats_default.loadavg_1min&source=memory", BOB)["series"] == []
