"""Why tables are missing: what holds for every node, and what the nodes of a running job report."""

from __future__ import annotations

import pytest

from colmet.common.schema import Batch, Table
from colmet.common.tables.agent import AGENT as SCHEMA
from colmet.node.main import full_parser
from colmet.web.catalogue import RULES
from tests.support.made_up_history import START
from tests.support.web_nodes import NS
from tests.support.web_store import Bed
from tests.support.web_users import ALICE, ROOT, got, make

GPUS = "nvidiastats_default"
RUNNING, ELSEWHERE = 1000, 1001  # alice's on n0, and bob's on n1


def report(bed, host, **states):
    """One batch of a host, with the state of its backends: whether each measures."""
    rows = SCHEMA.empty_rows(len(states))
    rows["backend"] = [name.encode() for name in states]
    rows["is_on"] = list(states.values())
    time_ns = int((START + bed.clock.now - 1000) * NS)
    jobs = tuple(bed.cluster.on[host])
    tables = (bed.cluster.table(host, "cgroup_default", jobs, time_ns), Table(SCHEMA, time_ns, rows.tobytes()))
    bed.memory.take([Batch(host, 1, 10_000, time_ns, jobs, tables)])
    bed.clock.now += 2


@pytest.fixture
def bed(history, clock):
    made = Bed(history, clock)
    made.cluster.user = lambda job: "alice" if job == RUNNING else "bob"
    made.go(3)
    return made


@pytest.fixture
def app(bed, users, page):
    return make(bed.known, users, folder=page)


def test_the_options_named_are_options_of_the_node():
    options = {name for action in full_parser().actions for name in action.option_strings}
    named = [word.rstrip(",;.") for rule in RULES.values() for word in rule.split() if word.startswith("--")]
    assert len(named) >= 10 and set(named) <= options


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ({"cgroup": 1}, "off on n0 (colmet-node runs without --enable-nvidia)"),
        ({"cgroup": 1, "nvidia": 0}, "on, but not measuring on n0: `colmet doctor` there names why"),
        ({"cgroup": 1, "nvidia": 1}, "measured on n0, which sent no rows of it"),
    ],
)
def test_a_running_job_and_its_node_have_the_reason_that_the_node_reports(app, bed, states, said):
    report(bed, "n0", **states)
    for login in (ALICE, ROOT):
        found = got(app, f"/api/v1/jobs/{RUNNING}", login)
        assert found["absent"][GPUS] == said
        assert "cgroup_default" in found["tables"] and "cgroup_default" not in found["absent"]
        found = got(app, "/api/v1/nodes/n0", login)
        assert found["absent"]["nvidiagpus_default"] == said
        assert "procstats_default" in found["tables"] and not {"procstats_default", GPUS} & set(found["absent"])


def test_a_backend_that_is_on_by_default_is_off_by_its_option(app, bed):
    report(bed, "n0", taskstats=1)
    absent = got(app, "/api/v1/nodes/n0", ROOT)["absent"]
    assert absent["raplzones_default"] == "off on n0 (colmet-node runs without --enable-rapl)"
    assert RULES["procstats_default"] == "on by default, --disable-procstats ends it; it requires /proc of the node"


def test_no_cause_is_named_without_a_report(app, bed):
    assert got(app, f"/api/v1/jobs/{ELSEWHERE}", ROOT)["absent"] == {}
    assert got(app, f"/api/v1/jobs/{RUNNING}", ROOT)["absent"] == {}, "its node reports no state of its backends"
    rule = got(app, "/api/v1/measures", ROOT)["absent"][GPUS]
    assert rule == "off by default, --enable-nvidia starts it; it requires an NVIDIA GPU with its driver"


def test_a_report_of_now_is_none_of_an_ended_job(app, bed):
    bed.cluster.on["n0"].remove(RUNNING)
    bed.go(1)
    report(bed, "n0", cgroup=1)
    found = got(app, f"/api/v1/jobs/{RUNNING}", ROOT)
    assert found["job"]["running"] is False and found["absent"] == {}
