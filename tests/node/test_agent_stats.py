"""agent_default: what the agent itself costs, from the agent to every output."""

from __future__ import annotations

import os
import time

import pytest

from colmet.common.daemon.startup import load
from colmet.common.host.host import Host
from colmet.common.schema import Field, Sample
from colmet.common.tables.agent import BACKEND_COUNTERS
from colmet.common.wire import colmet06, v1
from colmet.node.agent import Agent
from colmet.node.agent_tables import AgentStats
from colmet.node.backends import NAMES
from colmet.node.jobs.places import DEFAULT_PATTERN, compile_patterns
from colmet.node.jobs.source import JobSource
from colmet.node.main import build_parser
from colmet.node.placement import Placement
from colmet.node.schedule import Schedule
from tests.support import made_up_backend
from tests.support.direct import Direct


class Fake(made_up_backend.Fake):
    """A backend with a name and counters."""

    def __init__(self, name, behave=lambda jobs: [], counters=None):
        super().__init__(behave)
        self.name = name
        self.counters = lambda: counters or {}
        self.agent_counters = tuple([Field(name, "count", "counter") for name in counters or {}])


def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def agent_of(fake, *backends, host=None, period=5.0, send=lambda message: True):
    if not (fake.path / "oar").exists():
        fake.mkdir("/oar/bob_7")
    source = JobSource(fake.host, ["/oar"], compile_patterns([DEFAULT_PATTERN]))
    spool = Direct(v1.encode, send)
    return Agent("n", source, backends, spool, Schedule(period), Placement(Host()), AgentStats(host or Host()))


def own_rows(batch):
    (table,) = [table for table in batch.tables if table.schema.name == "agent_default"]
    assert table.time_ns == batch.time_ns
    samples = list(table.samples())
    assert {sample.job_id for sample in samples} == {0}
    return {sample.values["backend"].decode(): sample.values for sample in samples}


def test_a_row_for_the_agent_and_one_for_each_backend(fake):
    one = Fake("one", lambda jobs: [Sample(job.id, {"cpu": 1}) for job in jobs] * 2)
    two = Fake("two", counters={"exit_records": 5, "fork_events": 0})
    agent = agent_of(fake, one, two)
    agent.tick()
    rows = own_rows(agent.tick())
    agent.close()
    agent.close()
    assert list(rows) == ["agent", "one", "two"]
    assert (rows["one"]["is_on"], rows["one"]["rows"], rows["one"]["failures"], rows["one"]["overruns"]) == (1, 4, 0, 0)
    assert rows["one"]["exit_records"] is None and rows["one"]["ticks"] is None
    assert (rows["two"]["exit_records"], rows["two"]["fork_events"], rows["two"]["exits_known"]) == (5, 0, None)
    own = rows["agent"]
    assert (own["ticks"], own["rows"], own["jobs"], own["jobs_started"], own["jobs_ended"]) == (2, 4, 1, 1, 0)
    assert own["exit_records"] is None and own["cpus"] == len(os.sched_getaffinity(0))
    assert (own["batches_sent"], own["batches_dropped"], own["discovery_failures"]) == (0, 0, 0)


@pytest.mark.usefixtures("no_collection")
def test_cpu_and_wall_time_are_those_of_the_backend_and_of_the_process(fake):
    slow = Fake("slow", lambda jobs: burn(0.03) or [])
    idle = Fake("idle", lambda jobs: time.sleep(0.03) or [])
    agent = agent_of(fake, slow, idle)
    before = own_rows(agent.tick())
    started = time.process_time_ns()
    rows = own_rows(agent.tick())
    spent_us = (time.process_time_ns() - started) / 1000
    agent.close()
    assert 60_000 <= rows["slow"]["cpu_time"] <= 80_000 and rows["slow"]["wall_time"] >= 60_000
    assert rows["idle"]["cpu_time"] < 5_000 and rows["idle"]["wall_time"] >= 60_000
    assert rows["agent"]["cpu_time"] - before["agent"]["cpu_time"] == pytest.approx(spent_us, abs=3000)
    assert before["agent"]["wall_time"] == 0 and rows["agent"]["wall_time"] >= 60_000  # of the tick before


def test_failures_overruns_and_what_is_off_are_reported(fake):
    from colmet.common.errors import BackendUnavailable

    def fail(jobs):
        raise ValueError("defect")

    def absent(jobs):
        raise BackendUnavailable("gone")

    backends = [Fake("fails", fail), Fake("absent", absent), Fake("slow", lambda jobs: time.sleep(0.06) or [])]
    agent = agent_of(fake, *backends, period=0.05)
    for _ in range(3):
        batch = agent.tick()
    rows = own_rows(batch)
    agent.close()
    assert (rows["fails"]["failures"], rows["agent"]["failures"]) == (3, 3)
    assert (rows["fails"]["is_on"], rows["absent"]["is_on"]) == (1, 0)
    assert rows["slow"]["overruns"] == 3 and rows["agent"]["overruns"] == 0  # the schedule was not asked


def test_memory_and_descriptors_are_those_of_the_process(fake):
    host = Host()
    agent = agent_of(fake, host=host)
    rows = own_rows(agent.tick())
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    listed = len(os.listdir("/proc/self/fd")) - 1  # that of the list itself
    agent.close()
    assert rows["agent"]["rss"] == pytest.approx(int(status["VmRSS"].split()[0]), rel=0.1)
    if rows["agent"]["open_files"] is not None:  # Linux 6.2
        assert rows["agent"]["open_files"] == listed
    assert rows["agent"]["kept_files"] == host.kept == 0


def test_a_made_up_proc_leaves_them_missing(fake):
    agent = agent_of(fake, host=fake.host)
    rows = own_rows(agent.tick())
    agent.close()
    assert rows["agent"]["rss"] is None and rows["agent"]["open_files"] is None and rows["agent"]["ticks"] == 1


def test_every_backend_counts_only_what_there_is_a_column_for():
    parser = build_parser(load(NAMES))
    names = [name for action in parser.actions for name in action.option_strings]
    wanted = [name for name in names if name.startswith("--enable-")]
    options = parser.parse_args(wanted)
    for cls in load(NAMES):
        backend = cls.from_options(options, Host())
        declared = {field.name for field in cls.agent_counters}
        assert backend.counters().keys() <= declared <= BACKEND_COUNTERS, cls.name
        assert len(cls.name.encode()) <= 32


def test_a_counter_that_is_not_declared_is_dropped_alone_with_one_warning(fake, caplog):
    one = Fake("one", counters={"exit_records": 5, "fork_events": 2**63, "exits_known": None, "rows": 9, "mine": 1})
    two = Fake("two", counters={"exit_records": 6})
    one.agent_counters = tuple([field for field in one.agent_counters if field.name != "exit_records"])
    agent = agent_of(fake, one, two)
    agent.tick()
    rows = own_rows(agent.tick())
    agent.close()
    assert (rows["two"]["exit_records"], rows["one"]["rows"], rows["agent"]["ticks"]) == (6, 0, 2)
    assert {rows["one"][name] for name in ("exit_records", "fork_events", "exits_known")} == {None}
    assert len(agent.runners[0].dropped_counters) == caplog.text.count("counter dropped backend=one") == 5
    assert "backend=one counter=mine: not declared" in caplog.text


def test_an_old_collector_gets_none_of_it(fake):
    agent = agent_of(fake)
    assert colmet06.encode(agent.tick()) == b""
    agent.close()


def test_the_table_comes_at_the_first_tick_and_then_once_a_period(fake):
    now = [100.0]
    agent_stats = AgentStats(fake.host, 60, lambda: now[0])
    due = []
    for tick in range(27):
        now[0] = 100 + 5 * tick - 0.01 * (tick % 2)
        if agent_stats.every.is_due():
            due.append(tick)
    assert due == [0, 12, 24]
    now[0] += 3600
    assert agent_stats.every.is_due() and not agent_stats.every.is_due(), "what was missed is not made up for"
