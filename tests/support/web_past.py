"""A store and an archive with jobs of yesterday, behind the real queries of the interface; nothing runs now."""

from __future__ import annotations

import time

from colmet.jobs.archive.local import LocalArchive
from colmet.web.queries import Queries
from colmet.web.recent_cache import RecentCache
from colmet.web.reports import report_of
from colmet.web.store import StoreReader
from colmet.web.stored_routes import Stored
from tests.support.archives import Archive, records_of, replayed
from tests.support.made_up_history import GIB, MadeUp, job_rows, node_rows

DAY_S = 86400
PAST, OTHER, GONE, OLDER = 4242, 4243, 4241, 4240  # of yesterday; another user's; without samples; of last week
SLOW = "node-3"
COUNT, PERIOD = 360, 10


class Past:
    """The history, and what the interface is made of.

    PAST, alice's, ran on four hosts yesterday, of which one computed less, and used 9 of 64 GiB on each. The samples
    of GONE, hers, are removed. OLDER, hers, had no limit of memory.
    """

    def __init__(self, folder):
        self.now = time.time()
        self.start = int(self.now // DAY_S * DAY_S) - DAY_S + 10 * 3600
        history = self.history = MadeUp()
        for job, hosts, start, user in (
            (PAST, 4, self.start, b"alice"),
            (OTHER, 1, self.start + 3600, b"bob"),
            (GONE, 2, self.start - 9 * DAY_S, b"alice"),
            (OLDER, 1, self.start - 6 * DAY_S, b"alice"),
        ):
            for n in range(hosts):
                host = f"node-{n + 1}"
                job_rows(
                    history,
                    job=job,
                    host=host,
                    count=COUNT,
                    period=PERIOD,
                    start=start,
                    user=user,
                    cpus=8,
                    cores=1.1 if host == SLOW else 7.4,
                    memory_current=(7 + n % 2) * GIB,
                    memory_peak=9 * GIB,
                    memory_anon=7 * GIB,
                    memory_limit=None if job == OLDER else 64 * GIB,
                )
        for n in range(4):
            node_rows(history, f"node-{n + 1}", COUNT + 20, PERIOD, start=self.start, jobs=(PAST,))
        path = folder / "archive.sqlite"
        archive = Archive(path)
        archive.take(records_of(replayed(history, (PAST, OTHER, GONE, OLDER))))
        archive.end()
        del archive
        for table in ("cgroup_default", "taskstats_default"):
            del history.rows[GONE, table]
        store = self.reader = StoreReader(lambda: history)
        self.archive = lambda: LocalArchive(str(path))
        self.queries = Queries(RecentCache(1 << 20, 60.0), store)
        self.stored = Stored(
            lambda query: report_of(lambda: history, query, self.now, self.archive), store, self.archive
        )
