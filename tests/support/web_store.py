"""Shared by tests: Bed, archive_in, clock, history, stored_in, stored_of."""

from __future__ import annotations

import numpy as np
import pytest

from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.store import ArchiveStore
from colmet.jobs.columns import BATCH
from colmet.web.queries import Queries
from colmet.web.recent_cache import RecentCache
from colmet.web.reports import report_of
from colmet.web.series_query import SeriesQuery
from colmet.web.store import StoreReader
from colmet.web.stored_routes import Stored
from tests.support.archive_data import summaries, write
from tests.support.made_up_history import START, MadeUp, job_rows
from tests.support.waiting import Clock
from tests.support.web_nodes import NS, Cluster


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def history():
    return MadeUp()


class Bed:
    """Memory of a made-up cluster from some tick on, and a store that has all of it but the latest."""

    def __init__(self, history, clock, with_store=True):
        self.clock = clock
        self.cluster = Cluster(nodes=3, jobs=6, start=START)
        now = lambda: START + clock.now - 1000 + 0.5  # noqa: E731
        self.memory = RecentCache(1 << 30, 36000, clock, now)
        self.history = history
        store = StoreReader(lambda: history, monotonic=clock) if with_store else None
        self.known = Queries(self.memory, store, now=now, monotonic=clock)

    def go(self, ticks, take=True, keep=True):
        for _ in range(ticks):
            self.clock.now += self.cluster.period
            batches = self.cluster.batches()
            if take:
                self.memory.take(batches)
            if keep:
                self.store(batches)
        self.clock.now += 1

    def store(self, batches):
        for batch in batches:
            for table in batch.tables:
                for job in set(table.rows["job_id"].tolist()):
                    rows = table.rows[table.rows["job_id"] == job]
                    times, former = self.history.rows.get((job, table.schema.name), {}).get(batch.host, ([], None))
                    columns = {name: rows[name] for name in table.schema.names}
                    if former is not None:
                        columns = {name: np.concatenate([former[name], one]) for name, one in columns.items()}
                    times = [*times, table.time_ns // NS]
                    self.history.add(job, table.schema.name, batch.host, times, **columns)

    def series(self, metric="cpu_usage", job=1000, table="cgroup_default", **asked):
        return self.known.series(SeriesQuery(job, table, metric, **asked))


NOW = START + 10_000


def stored_in(history, monotonic=None, archive=lambda: None):
    """What reads a made-up history; its reports are made in this process."""
    options = {} if monotonic is None else {"monotonic": monotonic}
    return Stored(
        lambda query: report_of(lambda: history, query, NOW, archive), StoreReader(lambda: history, **options)
    )


class _Lazy(MadeUp):
    """Rows of the jobs of a made-up cluster, made when they are asked for."""

    def __init__(self, facts):
        super().__init__()
        self._facts = facts

    def tables(self, job, since=None, until=None):
        owner = self._facts.owner(job)
        if owner is not None and (job, "cgroup_default") not in self.rows:
            for host in self._facts.on.get(job, ["node0"]):
                job_rows(self, job=job, host=host, count=5, user=owner.encode())
        return super().tables(job, since, until)


def stored_of(facts, folder=None):
    """What reads the rows of the jobs of a made-up cluster (`tests.support.web_facts`); a folder is for its archive."""
    stored = stored_in(_Lazy(facts))
    if folder is None:
        return stored
    return stored._replace(archive=archive_in(folder / "archive.sqlite", sorted(facts.user.items())))


def archive_in(path, owners):
    """Write an archive with a job for each pair of its number and its user; return what opens it.

    Every third job is not known to the batch system.
    """
    store = ArchiveStore(str(path), writable=True)
    made = []
    for n, ((job, hosts), (number, owner)) in enumerate(zip(summaries(len(owners), footprint=40), owners)):
        job.update(job=number, user=owner)
        for row in hosts:
            row.update(job=number, user=owner)
        if n % 3 and "owner" in job:
            job.update(owner=owner)
        else:
            for column in BATCH:
                job.pop(column.name, None)
        made.append((job, hosts))
    write(store, iter(made))
    store.close()
    return lambda: LocalArchive(str(path))
