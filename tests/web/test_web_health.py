"""The health of the collector in the JSON interface: the verdict of `colmet status`, for administrators."""

from __future__ import annotations

import pytest

from colmet.common.daemon.checks import NAGIOS
from colmet.common.daemon.status_checks import MAX_AGE_S, MAX_BEHIND_S, judge
from colmet.common.live.latest_tables import LatestTables
from colmet.common.schema import Batch, Table
from colmet.common.tables.agent import AGENT
from colmet.web.access import Access
from colmet.web.health import CollectorReport, health_answer, spools_of
from colmet.web.queries import Queries
from colmet.web.recent_cache import AGENT_TABLE, RecentCache
from colmet.web.server import build_app
from tests.support.status_answers import COLLECTOR, changed
from tests.support.waiting import Clock, wait_for
from tests.support.web_client import ask
from tests.support.web_facts import MadeUpFacts
from tests.support.web_health import NODE_7, STATUS
from tests.support.web_nodes import NS
from tests.support.web_process import Bed
from tests.support.web_users import ALICE, ROOT

HEALTH, HISTORY = "/api/v1/health", "/api/v1/node-history"


@pytest.mark.parametrize("path", [HEALTH, HISTORY])
def test_it_is_for_administrators(users, path):
    app = build_app(MadeUpFacts(3, 3), Access(users))
    assert ask(app, path, [ROOT]).status == 200
    answer = ask(app, path, [ALICE])
    assert answer.status == 404
    assert answer.json()["error"].endswith("for administrators")
    assert b"node" not in answer.body.replace(b"nodes", b"")


@pytest.mark.parametrize(
    "status",
    [
        *(COLLECTOR, STATUS, changed(COLLECTOR, "outputs.0.available", False)),
        *(changed(COLLECTOR, "journal.full", True), changed(COLLECTOR, "journal.why", "No space left on device")),
        *(changed(COLLECTOR, "senders.heard", 0), changed(COLLECTOR, "last_hour.missing_batches", 7)),
    ],
)
def test_the_verdict_is_that_of_colmet_status(status):
    verdict = judge(status, MAX_AGE_S, MAX_BEHIND_S)
    health = health_answer(status, 2.0, [], [], 1e9)
    assert health["level"] == NAGIOS[verdict.level].lower()
    assert [one["found"] for one in health["findings"]] == verdict.texts
    assert health["level"] == "ok" or all(one["remedy"] for one in health["findings"])


def test_a_collector_that_reports_nothing_any_more_is_no_healthy_one():
    assert health_answer(COLLECTOR, 2.0, [], [], 1e9)["level"] == "ok"
    health = health_answer(COLLECTOR, 90.0, [], [], 1e9)
    assert health["level"] == "critical"
    assert health["findings"][0]["found"] == "the collector has not reported its state for 90 s"
    assert health["findings"][0]["remedy"]


def test_before_the_first_report_nothing_is_known():
    health = health_answer({}, None, [], [], 1e9)
    assert health["level"] == "unknown"
    assert health["reported_age"] is None and health["keys"]["required"] is None
    unknown = dict.fromkeys(("heard", "silent", "gone", "lag_median_s", "lag_max_s"))
    assert health["nodes"] == {**unknown, "late": 0}


def test_the_report_of_another_version_is_a_warning():
    health = health_answer({"daemon": "collector", "version": "9.9"}, 1.0, [], [], 1e9)
    assert health["level"] == "warning"
    assert "9.9" in health["findings"][0]["found"] and "restart" in health["findings"][0]["remedy"]


def test_what_is_wrong_is_listed_with_its_place():
    health = health_answer(STATUS, 2.0, [], [], 1e9)
    assert health["silent"] == [{"node": "node7", "seen_age": 900.0, "version": "0.9"}]
    assert [one["name"] for one in health["outputs"] if not one["available"]] == ["elasticsearch"]
    assert health["versions"][0] == {"version": "1.0", "nodes": 480}
    assert health["last_hour"] == [{"what": "missing batches", "count": 12, "dropped": True, "harmless": False}]
    assert health["keys"]["required"] and health["keys"]["refused"][0]["address"] == "192.0.2.7"
    assert ["unknown key" in one["found"] for one in health["keys"]["findings"]] == [True, False]


def test_late_nodes_are_listed_the_latest_first():
    nodes = [{"node": f"n{n}", "silent": n == 3, "lag": lag} for n, lag in enumerate((0.1, 20.0, 300.0, 900.0, None))]
    health = health_answer(STATUS, 2.0, nodes, [], 1e9)
    assert [one["node"] for one in health["late"]] == ["n2", "n1"]


def test_lists_have_at_most_100_nodes_and_the_number_of_all():
    nodes = [{"node": f"n{n}", "silent": False, "lag": 20.0} for n in range(130)]
    spools = [{"node": f"n{n}", "waiting": 50, "dropped": 0, "acknowledged": 1} for n in range(140)]
    silent = [{**NODE_7, "name": f"s{n}"} for n in range(200)]
    status = {**STATUS, "senders": {**STATUS["senders"], "silent": 250, "worst": silent}}
    health = health_answer(status, 2.0, nodes, spools, 1e9)
    assert [len(health[key]) for key in ("silent", "late")] == [100, 100] and len(health["spools"]["worst"]) == 100
    assert (health["nodes"]["silent"], health["nodes"]["late"], health["spools"]["remarkable"]) == (250, 130, 140)


def test_what_is_no_loss_of_data_is_no_drop():
    events = {"dropped_rows": 3, "output_failures": 2, "jobs_without_rows": 4, "reload_failures": 0}
    last_hour = health_answer({**COLLECTOR, "last_hour": events}, 2.0, [], [], 1e9)["last_hour"]
    assert [(one["what"], one["dropped"], one["harmless"]) for one in last_hour] == [
        ("dropped rows", True, False),
        ("output failures", False, False),
        ("jobs without rows", False, True),
    ]


def agent_table(time_s, **columns):
    packed = AGENT.empty_rows(2)
    packed["backend"] = [b"agent", b"taskstats"]
    for column, values in columns.items():
        packed[column] = values
    return Table(AGENT, time_s * NS, packed.tobytes())


def test_spools_are_those_that_the_nodes_report():
    latest = LatestTables((AGENT_TABLE,), always=True, monotonic=Clock())
    table = agent_table(100, batches_waiting=[2400, 7], batches_dropped=[0, 7])
    latest.take([Batch("n0", 1, 1, 100 * NS, (), (table,)), Batch("n1", 1, 1, 100 * NS, (), ())])
    spools = spools_of(latest.hosts())
    assert spools == [{"node": "n0", "waiting": 2400, "dropped": 0, "acknowledged": None}]
    found = health_answer(STATUS, 2.0, [], spools, 1e9)["spools"]
    assert (found["nodes"], found["waiting"], found["dropped"]) == (1, 2400, 0)
    assert [one["node"] for one in found["worst"]] == ["n0"]


def test_the_interface_answers_with_the_latest_report():
    clock = Clock()
    report = CollectorReport(clock)
    queries = Queries(RecentCache(1 << 20, 60.0), None, report=report)
    assert queries.health()["level"] == "unknown"
    for content in ({"left_out": 3}, {"status": "no map"}, {"status": {"daemon": "node"}}):
        report.note(content)
    assert queries.health()["level"] == "unknown"
    report.note({"status": STATUS})
    clock.now += 5
    health = queries.health()
    assert (health["reported_age"], health["level"]) == (5.0, "critical")


@pytest.mark.slow
@pytest.mark.live
def test_a_real_collector_reports_its_state_to_the_interface(tmp_path):
    bed = Bed(tmp_path)
    try:
        bed.daemon.said("http serves")
        health = bed.answer(HEALTH, lambda answer: answer["reported_age"] is not None)
        assert health["collector"]["version"]
        assert health["outputs"][0]["name"] == "hdf5"
        assert not health["keys"]["required"]
        bed.send()
        wait_for(lambda: bed.get(HEALTH)["nodes"]["heard"] == 3)
    finally:
        bed.close()
