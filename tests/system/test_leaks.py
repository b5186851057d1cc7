"""Nothing grows: descriptors and memory, over ticks of the agent and bursts at the collector."""

from __future__ import annotations

import gc
import os
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.collector.ingest.receiver import Receiver
from colmet.collector.journal.journal import Journal
from colmet.collector.main import build_parser
from colmet.collector.output_worker import OutputWorker
from colmet.common.daemon.startup import load
from colmet.common.host.host import Host
from colmet.common.schema import Table
from colmet.common.wire import v1
from colmet.node.agent import Agent
from colmet.node.agent_tables import AgentStats
from colmet.node.backends import NAMES
from colmet.node.jobs.job import Job
from colmet.node.jobs.places import DEFAULT_PATTERN, compile_patterns
from colmet.node.jobs.source import JobSource
from colmet.node.main import build_parser as build_node_parser
from colmet.node.schedule import Schedule
from dev.live import Failed, JobRoot
from dev.workloads import ShortTasks
from tests.support.direct import Direct
from tests.support.machine import open_files
from tests.support.place import skip_refused


def growth_of(step, count, warm_up):
    """Bytes and descriptors that `count` steps leave behind, after some that warm caches up."""
    for n in range(warm_up):
        step(n)
    gc.collect()
    tracemalloc.start()
    try:
        before, files = tracemalloc.get_traced_memory()[0], open_files()
        for n in range(warm_up, warm_up + count):
            step(n)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before, open_files() - files
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.live
def test_an_agent_with_jobs_that_come_and_go_grows_neither_in_memory_nor_in_descriptors(cgroups):
    sent = []
    options = build_node_parser(load(NAMES)).parse_args(["--enable-jobproc", "--state-dir", "", "--spool-dir", ""])
    host = Host()
    backends = [made for cls in load(NAMES) if (made := cls.from_options(options, host)) is not None]
    source = JobSource(host, [str(cgroups.path)], compile_patterns([DEFAULT_PATTERN]))
    agent = Agent(
        "node", source, backends, Direct(v1.encode, lambda message: sent.append(len(message)) or True), Schedule(1)
    )
    steady = cgroups.job("bob_1")
    steady.start("sleep", "120")

    def tick(n):
        path = cgroups.path / f"eve_{n + 10}"
        path.mkdir()
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (path / name).exists():
                (path / name).write_text((cgroups.path / name).read_text())
        pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
        (path / "cgroup.procs").write_text(str(pid))
        batch = agent.tick()
        assert batch.jobs == (1, n + 10)
        assert {len(table.rows) for table in batch.tables if table.schema.scope == "job"} == {2}
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        cgroups.remove(path)
        sent.clear()

    try:
        grown, files = growth_of(tick, 100, warm_up=20)
    finally:
        agent.close()
    assert files <= 2, "at most those of the last job, until the next tick"
    assert grown < 70_000


@pytest.mark.slow
@pytest.mark.endurance
@pytest.mark.live
def test_the_agents_resident_memory_is_flat_over_many_ticks_with_jobs_and_tasks_that_come_and_go(root):
    """1,000 ticks; benchmarks/bench_agent.py does 10,000."""
    try:
        jobs = JobRoot(f"colmet-test-{os.getpid()}-{time.monotonic_ns()}")
    except Failed as err:
        skip_refused(str(err))
    options = build_node_parser(load(NAMES)).parse_args(["--enable-jobproc", "--state-dir", "", "--spool-dir", ""])
    host = Host()
    backends = [made for cls in load(NAMES) if (made := cls.from_options(options, host)) is not None]
    source = JobSource(host, [str(jobs.path)], compile_patterns([DEFAULT_PATTERN]))
    spool = Direct(v1.encode, lambda message: True)
    agent = Agent("node", source, backends, spool, Schedule(1), agent_stats=AgentStats(host))
    try:
        short = ShortTasks(jobs.job("bob_1"))
        sizes = []
        for number in range(1000):
            if number % 3 == 0:
                job = jobs.job(f"eve_{number + 2}")
                job.start(["sleep", "60"])
            short.run(2)
            spool.put(agent.tick())
            if number % 3 == 2:
                jobs.end(job)
            if number % 100 == 99:
                gc.collect()
                rss = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                sizes.append((rss, open_files()))
    finally:
        agent.close()
        jobs.close()
    resident, files = zip(*sizes)
    assert min(resident[-3:]) - min(resident[4:7]) < 300_000, resident
    assert max(files[-3:]) <= max(files[4:7]), files


def test_an_agent_gives_every_descriptor_back(tmp_path):
    before, threads = open_files(), set(threading.enumerate())
    for _ in range(5):
        enabled = [on for cls in load(NAMES) if (on := cls.switches()[0])]
        options = build_node_parser(load(NAMES)).parse_args([*enabled, "--state-dir", "", "--spool-dir", ""])
        host = Host()
        backends = [made for cls in load(NAMES) if (made := cls.from_options(options, host)) is not None]
        source = JobSource(host, [str(tmp_path)], compile_patterns([DEFAULT_PATTERN]), Job(host, 0, pids=[os.getpid()]))
        agent = Agent("node", source, backends, Direct(v1.encode, lambda message: True), Schedule(1))
        agent.tick()
        agent.close()
    assert open_files() == before
    assert set(threading.enumerate()) <= threads


@pytest.mark.slow
@pytest.mark.endurance
def test_a_collector_with_many_jobs_grows_neither_in_memory_nor_in_descriptors(tmp_path):
    from colmet.common.wire import Decoder

    frame = (Path(__file__).parents[1] / "data/colmet06/frames/taskstats.bin").read_bytes()
    (batch,) = Decoder().decode(frame).batches
    options = build_parser([Hdf5Output]).parse_args(["--hdf5-filepath", str(tmp_path / "x.hdf5")])
    output = Hdf5Output.from_options(options)
    receiver, journal = Receiver(), Journal(str(tmp_path / "j"), 64 << 20)
    state = journal.state("hdf5")
    output.open(state)
    worker = OutputWorker(output, journal, state, 1, 5)
    journal.start(receiver.dump_senders)

    def burst(n):
        table = batch.tables[0]
        rows = table.rows.copy()
        rows["job_id"] = 1 + n % 5
        message = v1.encode(batch._replace(epoch=1, seq=n, tables=(Table(table.schema, table.time_ns, rows),)))
        journal.append(message, receiver.take(message, "10.0.0.1"))
        with journal.changed:
            assert journal.changed.wait_for(lambda: journal.end > n, 20)
        worker._recover()
        worker._write_next()
        assert state.position == n + 1

    try:
        grown, files = growth_of(burst, 200, warm_up=20)
    finally:
        journal.close()
        output.close()
    assert files == 0
    assert grown < 200_000
