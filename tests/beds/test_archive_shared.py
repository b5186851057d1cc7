"""One archive of two collectors, in real Elasticsearch and OpenSearch: answers, jobs on nodes of both, and kill -9.

COLMET_SEED=N repeats a run, as far as the machine lets it; COLMET_ROUNDS=30 kills more often.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time

import pytest

from colmet.commands import colmet
from colmet.jobs.archive import elastic, elastic_usage
from colmet.jobs.archive.derived import ANSWERS
from colmet.jobs.archive.elastic import ElasticArchive
from colmet.jobs.archive.local import IN_JOURNAL, LocalArchive
from colmet.jobs.archive.queries import SUMS, JobFilter
from colmet.jobs.archive.store import ArchiveStore
from tests.beds.search import KINDS, Server, available
from tests.support.archive_answers import FILTERS, assert_same_jobs, assert_same_lists, assert_same_sums
from tests.support.archive_data import summaries, write
from tests.support.archive_database import client_of, copied
from tests.support.archive_fleet import ScriptedFleet, cluster
from tests.support.archives import Archive, records_of
from tests.support.exactly_once import NEVER, STATE, seed
from tests.support.fleet import Collector
from tests.support.waiting import free_port

pytestmark = [pytest.mark.live, pytest.mark.slow]

PREFIX = "colmet_"
NODES, TICKS = 10, 120
ROUNDS = int(os.environ.get("COLMET_ROUNDS", "3"))  # in which something is killed
WITHIN_S = 300 + 20 * ROUNDS
SHARING = "archive-share:colmet.jobs.archive"
PLACES = (
    *[f"{SHARING}.indices:Indices.{name}:{when}:{{n}}" for name in ("write", "get") for when in ("before", "after")],
    *[f"{SHARING}.outbox:ArchiveOutbox.done:{when}:{{n}}" for when in ("before", "after")],
    *[f"archive:colmet.jobs.archive.store:ArchiveStore.write:{when}:{{n}}" for when in ("before", "after")],
    f"archive:{STATE}.save:after:{{n}}",
    "",
)


# one of each vendor
@pytest.fixture(scope="module", params={KINDS[kind].vendor: kind for kind in available()}.values())
def running(request):
    with Server(request.param) as server:
        yield server


@pytest.fixture
def server(running):
    running.clear()
    return running


@contextlib.contextmanager
def shared_by(server):
    server.ask("POST", f"/{PREFIX}archive-*/_refresh")
    with ElasticArchive(client_of(server.url), PREFIX) as archive:
        yield archive


def test_answers_are_those_of_a_file(server, tmp_path, monkeypatch):
    count = 200
    path = str(tmp_path / "a.sqlite")
    store = ArchiveStore(path, writable=True)
    write(store, summaries(count, footprint=40), 100)
    client = client_of(server.url)
    copied(store, client, PREFIX)
    store.close()
    client.close()
    with LocalArchive(path) as local, shared_by(server) as shared:
        assert_same_lists(local, shared, count)
        assert_same_jobs(local, shared, range(1, count, 7))
        assert_same_sums(local, shared)
        for name in ("RUN1", "*", "?", "\\", "n4"):
            assert shared.jobs(JobFilter(name=name)) == local.jobs(JobFilter(name=name))
        assert shared.jobs(JobFilter(rule="cpu-low")) == local.jobs(JobFilter(rule="cpu-low"))
        monkeypatch.setattr(elastic, "PAGE", 40)
        monkeypatch.setattr(elastic_usage, "GROUPS_AT_ONCE", 7)
        monkeypatch.setattr(elastic_usage, "JOBS_AT_ONCE", 50)
        assert_same_lists(local, shared, count, ("exit_code", "user"))
        assert_same_sums(local, shared, FILTERS[1:3])


class Site:
    """Two collectors with half of the nodes each, and one database."""

    def __init__(self, directory, server, scripts, rng):
        self.server = server
        self.end_at = time.monotonic() + WITHIN_S
        self.collectors, self.fleets, self._journals = [], [], []
        epoch = next(iter(scripts.values()))[0].epoch
        for n in range(2):
            uri = f"tcp://127.0.0.1:{free_port()}"
            mine = {host: script for at, (host, script) in enumerate(scripts.items()) if at % 2 == n}
            fleet = ScriptedFleet(uri, mine, epoch, rng)
            journal = directory / f"journal-{n}"
            self._journals.append(journal)
            self.fleets.append(fleet)
            self.collectors.append(
                Collector(
                    *(fleet, directory / f"collector-{n}.log", "-v", "--zeromq-bind-uri", uri, "-s", "0.2"),
                    *("--buffer-size", "20", "--journal-dir", str(journal), "--journal-size", "64M"),
                    *("--elastic-host", server.url, "--archive-batch", "none"),
                )
            )

    def turn(self):
        for fleet in self.fleets:
            fleet.turn()
        assert time.monotonic() < self.end_at

    def turn_until(self, done, within_s=WITHIN_S):
        until = time.monotonic() + within_s
        while not done() and time.monotonic() < until:
            self.turn()

    def unshared(self):
        """Summaries that wait for the database."""
        found = 0
        for journal in self._journals:
            with contextlib.closing(sqlite3.connect(f"file:{journal / IN_JOURNAL}?mode=ro", uri=True)) as database:
                found += database.execute("SELECT count(*) FROM unshared").fetchone()[0]
        return found

    def finish(self):
        """Let all batches arrive, and all summaries."""
        for collector in self.collectors:
            if collector._process is None or collector.ended():
                collector.start()
        self.turn_until(lambda: all(fleet.is_done for fleet in self.fleets))
        for collector in self.collectors:
            collector.signal(signal.SIGTERM)
        for collector in self.collectors:
            assert collector.wait(120) == 0
        if self.unshared():  # the database was away at the end
            for collector in self.collectors:
                collector.start()
            self.turn_until(lambda: not self.unshared())
        for collector in self.collectors:
            collector.signal(signal.SIGTERM)
        for collector in self.collectors:
            assert collector.wait(120) == 0
            wrong = [line for line in collector.log.read_text().splitlines() if NEVER.search(line)]
            assert not wrong, wrong[:20]

    def close(self):
        for one in (*self.collectors, *self.fleets):
            one.close()


@pytest.fixture
def site(server, tmp_path):
    made = []

    def make(jobs, rng):
        scripts = cluster(NODES, jobs, TICKS, rng.random())
        made.append(Site(tmp_path, server, scripts, rng))
        return made[-1], scripts

    yield make
    for one in made:
        one.close()


def assert_equal_to_one_collector(server, scripts, jobs, path):
    """All jobs are there once, as one collector with all nodes has them."""
    single = Archive(path)
    batches = sorted([one for script in scripts.values() for one in script], key=lambda one: (one.time_ns, one.host))
    single.take(records_of(batches))
    single.end(over=False)
    single.store.close()
    with LocalArchive(str(path)) as local, shared_by(server) as shared:
        assert local.jobs(JobFilter()).total == jobs
        assert shared.jobs(JobFilter(), list(ANSWERS), limit=jobs) == local.jobs(JobFilter(), list(ANSWERS), limit=jobs)
        both = 0
        for job in [row["job"] for row in local.jobs(JobFilter(), ["job"], limit=jobs).rows]:
            expected = local.job(job)
            assert shared.job(job) == expected and not expected.summary["is_running"]
            both += len({int(one["host"][-1]) % 2 for one in expected.hosts}) == 2
        assert both > jobs / 10  # jobs on nodes of both collectors
        for by in ("user", "host", "day"):
            expected = [(one.keys, one.jobs) for one in local.usage(JobFilter(), [by])]
            found = shared.usage(JobFilter(), [by])
            assert sorted([(one.keys, one.jobs) for one in found]) == sorted(expected)
            for name in SUMS:
                of = sum(one.sums[name] or 0.0 for one in local.usage(JobFilter(), [by]))
                assert sum(one.sums[name] or 0.0 for one in found) == pytest.approx(of, rel=1e-9)
    assert len(server.documents(f"{PREFIX}archive-jobs")) == jobs


def test_a_job_on_nodes_of_two_collectors_is_one_job(site, server, tmp_path, capsys):
    jobs = 40
    made, scripts = site(jobs, random.Random(seed()))
    for collector in made.collectors:
        collector.start()
    made.finish()
    assert_equal_to_one_collector(server, scripts, jobs, tmp_path / "single.sqlite")
    config = tmp_path / "collector.toml"
    config.write_text(f'elastic-host = ["{server.url}"]\njournal-dir = "{tmp_path / "journal-0"}"\n')
    capsys.readouterr()
    assert colmet.main(["jobs", "--config", str(config), "--all-users", "--csv", "--columns", "job"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + jobs


@pytest.mark.slow
@pytest.mark.parametrize("running", available()[-1:], indirect=True)
def test_each_of_200_jobs_has_one_summary_after_kills_of_collectors_and_database(site, server, tmp_path):
    rng = random.Random(seed())
    jobs = 200
    made, scripts = site(jobs, rng)
    kills = dict.fromkeys(("database", "collector"), 0)
    for collector in made.collectors:
        collector.start()
    for number in range(ROUNDS):
        if number % 2:
            server.kill()
            kills["database"] += 1
            made.turn_until(lambda: False, rng.uniform(0.1, 1.5))
            server.start(wait=False)
            made.turn_until(lambda: False, rng.uniform(2, 8))
            continue
        victim = rng.choice(made.collectors)
        victim.kill()
        place = rng.choice(PLACES).format(n=rng.randint(1, 6))
        victim.start(place)
        made.turn_until(victim.ended, 10 if place else rng.uniform(0.5, 2))
        assert victim.kill() == -signal.SIGKILL, victim.log.read_text()[-4000:]
        kills["collector"] += 1
        victim.start()
    server.wait()
    made.finish()
    assert_equal_to_one_collector(server, scripts, jobs, tmp_path / "single.sqlite")
    print(f"killed: {kills}")
