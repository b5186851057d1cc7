"""Shared by tests: Bed, clock, history."""

from __future__ import annotations

import numpy as np
import pytest

from colmet.web.queries import Queries
from colmet.web.recent_cache import RecentCache
from colmet.web.series_query import SeriesQuery
from colmet.web.store import StoreReader
from tests.support.made_up_history import START, MadeUp
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
