"""Kill -9 of the collector while jobs end: each job has one summary, equal to that of an undisturbed run.

COLMET_SEED=N repeats a run, as far as the machine lets it; COLMET_ROUNDS=30 kills it more often.
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from colmet.common.schema import Batch, Sample, Table
from colmet.common.tables import schemas
from colmet.jobs.archive.store import SUFFIX
from tests.support.archive_fleet import ScriptedFleet, content
from tests.support.archives import Archive, records_of
from tests.support.exactly_once import NEVER, STATE, seed
from tests.support.fleet import Collector
from tests.support.waiting import free_port

CGROUP, TASKS, NODE = (schemas()[f"{name}_default"] for name in ("cgroup", "taskstats", "procstats"))
NS = 10**9
NODES, TICKS, PERIOD_S = 10, 120, 5
WITHIN_S = 240
STORE = "colmet.jobs.archive.store:ArchiveStore"
PLACES = (
    *[f"archive:{STORE}.{name}:{when}:{{n}}" for name in ("write", "_write") for when in ("before", "after")],
    *[f"archive:{STATE}.save:{when}:{{n}}" for when in ("before", "after")],
    "archive:colmet.jobs.archive.archiver:Archiver.take:after:{n}",
    "archive:colmet.jobs.archive.archiver:Archiver.saved:after:{n}",
    "archive:colmet.collector.backends.archive:ArchiveOutput.recover:after:1",
)


def lives(jobs, rng):
    """Start, end and nodes of each job, in ticks."""
    found = {}
    for job in range(1, jobs + 1):
        first = rng.randrange(1, TICKS - 12)
        last = min(first + rng.randrange(1, 40), TICKS - 1)
        found[job] = (first, last, rng.sample(range(NODES), rng.choice((1, 1, 1, 2, 3))))
    return found


def batches_of(node, jobs, start_s, epoch):
    """All batches of one node."""
    for n in range(1, TICKS + 1):
        time_ns = (start_s + PERIOD_S * n) * NS
        here = [job for job, (first, last, nodes) in jobs.items() if node in nodes and first <= n < last]
        tables = [Table.from_samples(NODE, time_ns, [Sample(0, {"stat_cpu_user": 900 * n, "stat_cpus": 8})])]
        if here:
            ages = {job: n - jobs[job][0] for job in here}
            cgroup = [
                Sample(
                    job,
                    {"cpu_usage": age * (job + 1) * NS // 2, "cpus_allocated": 2, "memory_current": (job << 20) + age},
                )
                for job, age in ages.items()
            ]
            tasks = [
                Sample(job, {"ac_btime": start_s + PERIOD_S * jobs[job][0] - 1, "read_bytes": age * job})
                for job, age in ages.items()
            ]
            tables += [Table.from_samples(CGROUP, time_ns, cgroup), Table.from_samples(TASKS, time_ns, tasks)]
        yield Batch(f"node-{node}", epoch, n, time_ns, tuple(here), tuple(tables))


def run(directory, jobs, rounds):
    """Kill the collector `rounds` times while jobs end; return the summaries, and those of an undisturbed run."""
    rng = random.Random(seed())
    start_s = int(time.time()) // 100 * 100 - PERIOD_S * TICKS
    epoch = start_s * NS
    of = lives(jobs, rng)
    scripts = {f"node-{n}": list(batches_of(n, of, start_s, epoch)) for n in range(NODES)}
    uri = f"tcp://127.0.0.1:{free_port()}"
    prefix = directory / "cluster"
    fleet = ScriptedFleet(uri, scripts, epoch, rng)
    collector = Collector(
        *(fleet, directory / "collector.log", "-v", "--zeromq-bind-uri", uri, "-s", "0.2", "--buffer-size", "20"),
        *("--hdf5-filepath", str(prefix), "--journal-size", "64M"),
    )
    end_at = time.monotonic() + WITHIN_S
    try:
        for _ in range(rounds):
            place = rng.choice((*PLACES, "")).format(n=rng.randint(1, 3))
            collector.start(place)
            until = time.monotonic() + (10 if place else rng.uniform(0.5, 2))
            while not collector.ended() and time.monotonic() < until:
                fleet.turn()
            assert collector.kill() == -signal.SIGKILL, collector.log.read_text()[-4000:]
        collector.start()
        while not fleet.is_done or not collector.said("listening"):
            assert not collector.ended() and time.monotonic() < end_at, collector.log.read_text()[-4000:]
            fleet.turn()
        collector.signal(signal.SIGTERM)
        assert collector.wait(120) == 0
        wrong = [line for line in collector.log.read_text().splitlines() if NEVER.search(line)]
        assert not wrong, wrong[:20]
    finally:
        collector.close()
        fleet.close()
    expected = Archive(directory / "undisturbed.sqlite")
    ordered = [batch for some in zip(*scripts.values()) for batch in some]
    expected.take(records_of(ordered))
    return content(f"{prefix}{SUFFIX}"), content(str(directory / "undisturbed.sqlite"))


def check(directory, jobs, rounds):
    found, expected = run(directory, jobs, rounds)
    assert len([key for key in expected if len(key) == 1]) == jobs
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        assert found[key] == row, key
    assert not any(row["is_running"] for row in found.values())


@pytest.mark.slow
def test_each_job_has_one_summary_after_kills(tmp_path):
    check(tmp_path, 24, 2)


@pytest.mark.slow
@pytest.mark.endurance
def test_each_of_200_jobs_has_one_summary_after_many_kills(tmp_path):
    check(tmp_path, 200, int(os.environ.get("COLMET_ROUNDS", "5")))
