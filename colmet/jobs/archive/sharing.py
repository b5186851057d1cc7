"""From the local archive to the shared one: what waits in the outbox is sent, and whole jobs are made of all hosts.

Several collectors have hosts of one job. The writer of a host's summary first writes that, then adds itself to the
job's state, which gets a higher version, and only then reads the summaries of all its hosts. The documents of the whole
job, made of these, have the version of the state: the database refuses an older one. So the last one is made of
everything that was written before, by any writer. A writer that is killed in between finds its keys in the outbox.

The outbox has the keys of the summaries that wait, in the file of the local archive. Triggers write them: in the same
transaction as a summary or the values of a batch system, whichever connection writes. A key is there once, so their
number is bounded by that of the summaries. Its number grows with each change, so a summary that changes while it is
sent stays there.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.pacing import Backoff
from colmet.common.errors import OutputUnavailable
from colmet.jobs.archive import documents
from colmet.jobs.archive.documents import Facts, JobState, host_id, job_id
from colmet.jobs.archive.indices import CONFLICT, Indices, StoredDocument, Write
from colmet.jobs.archive.store import ArchiveError, ArchiveStore, transaction
from colmet.jobs.columns import BATCH, Summary

log = logging.getLogger(__name__)

MOST, FEWEST = 500, 10  # keys of one push
MOST_MEMBERS = 2000  # host summaries in memory, besides those of one job
ROUNDS = 5  # in which a job is tried whose state other collectors change


class _Changed(NamedTuple):
    """What has changed of the jobs with one number."""

    members: set[tuple[str, int]]
    gone: set[tuple[str, int]]
    facts: dict[int, Facts]
    gone_facts: set[int]

    def applied(self, state: JobState) -> JobState:
        """Return a state with these changes, and a higher version, also than that of a removed one."""
        members = (state.members | self.members) - self.gone
        # a whole job that has another start by now still has its host of this one
        gone = (self.gone_facts | {start for _, start in self.gone}) - {start for _, start in members}
        kept = [one for one in state.facts if one.start not in self.facts and one.start not in gone]
        new = {min([start for _, start in self.members])} if self.members else set()
        return JobState(
            max(state.version + 1, time.time_ns() // 1_000_000),
            members,
            state.starts | new | self.facts.keys(),
            (*kept, *self.facts.values()),
        )


class Sharer:
    """Sends what waits in the outbox of the local archive, and counts it. Used by one thread."""

    def __init__(self, store: ArchiveStore, indices: Indices, most: int = MOST) -> None:
        self._store = store
        self._indices = indices
        self._outbox = ArchiveOutbox(store.database)
        self.most = most  # keys of the next push
        self.counts: Counter[str] = Counter()

    def push(self) -> int:
        """Send some of those that wait, the oldest first; return how many are done.

        OutputUnavailable if the database is not there, or not now: those that wait stay in the outbox.
        """
        waiting = self._outbox.next(self.most)
        if not waiting:
            return 0
        try:
            self._indices.prepare()
            changed = self._send_hosts(waiting)
            late = self._send_jobs(changed)
        except Exception:
            self.most = max(FEWEST, self.most // 2)  # it may be too much for the server, or a proxy
            raise
        self.most = min(MOST, 2 * self.most)
        done = [one for one in waiting if one.job not in late]
        self._outbox.done(done)
        self.counts["shared"] += len(done)
        return len(done)

    def _send_hosts(self, waiting: Iterable[Waiting]) -> dict[int, _Changed]:
        """Write the summaries of hosts; return what has changed, by job number."""
        changed: dict[int, _Changed] = {}
        writes: list[Write] = []
        for one in waiting:
            of = changed.setdefault(one.job, _Changed(set(), set(), {}, set()))
            if not one.host:
                values = self._facts(one.job, one.start)
                if values is None:
                    of.gone_facts.add(one.start)
                else:
                    of.facts[one.start] = Facts(one.start, values)
                continue
            row = self._host(one)
            key = host_id(one[:3])
            if row is None:
                of.gone.add((one.host, one.start))
                writes.append(Write(documents.HOSTS, key, None))
            else:
                of.members.add((one.host, one.start))
                writes.append(Write(documents.HOSTS, key, documents.host_document(row), documents.host_version(row)))
        self._indices.write(writes)
        return changed

    def _host(self, key: Waiting) -> Summary | None:
        rows = self._store.database.execute(
            "SELECT * FROM hosts LEFT JOIN host_details USING (job, host, start) "
            "WHERE job = ? AND host = ? AND start = ?",
            key[:3],
        ).fetchall()
        return dict(rows[0]) if rows else None

    def _facts(self, job: int, start: int) -> Summary | None:
        """Return what the batch system knows of a job; None if nothing, or there is no such job."""
        names = ", ".join([f'"{column.name}"' for column in BATCH])
        rows = self._store.database.execute(f"SELECT {names} FROM jobs WHERE job = ? AND start = ?", (job, start))
        found = {name: value for row in rows for name, value in dict(row).items() if value is not None}
        return found or None

    def _send_jobs(self, changed: Mapping[int, _Changed]) -> set[int]:
        """Write the documents of whole jobs; return those that other collectors change too often just now."""
        left = dict(changed)
        starts: dict[int, frozenset[int]] = {}
        for _ in range(ROUNDS):
            if not left:
                break
            states = self._advance(left, starts)
            for some in _groups(states):
                for job, missing in self._write_jobs(some).items():
                    if missing:  # first its state has to name these documents
                        starts[job] = missing
                    else:
                        del left[job]
        self.counts["postponed"] += len(left)
        return set(left)

    def _advance(self, changed: Mapping[int, _Changed], starts: Mapping[int, frozenset[int]]) -> dict[int, JobState]:
        """Change the states of jobs; return those that no other collector has changed at the same time."""
        before = self._indices.get(documents.STATE, [str(job) for job in changed])
        states: dict[int, JobState] = {}
        writes: list[Write] = []
        for job, change in changed.items():
            stored = before.get(str(job))
            state = change.applied(self._state(job, stored))
            state = state._replace(starts=state.starts | starts.get(job, frozenset()))
            states[job] = state
            writes.append(Write(documents.STATE, str(job), state.document(job), over=stored, is_new=stored is None))
        statuses = self._indices.write(writes)
        conflicts = {job for job, status in zip(states, statuses) if status == CONFLICT}
        self.counts["conflicts"] += len(conflicts)
        return {job: state for job, state in states.items() if job not in conflicts}

    def _state(self, job: int, stored: StoredDocument | None) -> JobState:
        try:
            return JobState() if stored is None else documents.state_of(stored.source)
        except ValueError as err:
            log.error("state of a job unreadable in the shared archive, it starts empty: job=%d cause=%s", job, err)
            return JobState()

    def _write_jobs(self, states: Mapping[int, JobState]) -> dict[int, frozenset[int]]:
        """Write the documents of some jobs; return for each the starts that its state lacks, if any: then none."""
        ids = [host_id((job, *member)) for job, state in states.items() for member in state.members]
        found = self._indices.get(documents.HOSTS, ids)
        missing: dict[int, frozenset[int]] = {}
        writes: list[Write] = []
        for job, state in states.items():
            keys = [(job, *member) for member in sorted(state.members)]
            hosts = [documents.host_row(found[host_id(key)].source, key) for key in keys if host_id(key) in found]
            made = documents.job_documents(job, hosts, state.facts)
            missing[job] = frozenset(made.keys() - state.starts)
            if missing[job]:
                continue
            writes += [Write(documents.JOBS, job_id(job, start), one, state.version) for start, one in made.items()]
            former = state.starts - made.keys()
            writes += [Write(documents.JOBS, job_id(job, start), None, state.version) for start in former]
        self._indices.write(writes)
        return missing


def _groups(states: Mapping[int, JobState]) -> Iterator[dict[int, JobState]]:
    """Yield parts whose host summaries fit into memory."""
    some: dict[int, JobState] = {}
    members = 0
    for job, state in states.items():
        if some and members + len(state.members) > MOST_MEMBERS:
            yield some
            some, members = {}, 0
        some[job] = state
        members += len(state.members)
    if some:
        yield some


def outbox_of(store: ArchiveStore, is_shared: bool) -> ArchiveOutbox:
    """Return the outbox of a local archive, opened; removed if the archive is not shared."""
    outbox = ArchiveOutbox(store.database)
    if is_shared:
        outbox.open()
    else:
        outbox.remove()
    return outbox


_ADD = """INSERT INTO unshared SELECT {of}.job, {host}, {of}.start, coalesce(max(number), 0) + 1 FROM unshared WHERE 1
    ON CONFLICT (job, host, start) DO UPDATE SET number = excluded.number"""
_OF_BATCH = ", ".join([f'"{column.name}"' for column in BATCH])
_HAS_BATCH = " OR ".join([f'NEW."{column.name}" IS NOT NULL' for column in BATCH])
_TRIGGERS = {
    "unshared_host_insert": f"AFTER INSERT ON hosts BEGIN {_ADD.format(of='NEW', host='NEW.host')}; END",
    "unshared_host_update": f"AFTER UPDATE ON hosts BEGIN {_ADD.format(of='NEW', host='NEW.host')}; END",
    "unshared_host_delete": f"AFTER DELETE ON hosts BEGIN {_ADD.format(of='OLD', host='OLD.host')}; END",
    "unshared_job_insert": f"AFTER INSERT ON jobs WHEN {_HAS_BATCH} BEGIN {_ADD.format(of='NEW', host=repr(''))}; END",
    "unshared_job_update": f"AFTER UPDATE OF start, {_OF_BATCH} ON jobs "
    f"BEGIN {_ADD.format(of='NEW', host=repr(''))}; END",
    "unshared_job_delete": f"AFTER DELETE ON jobs WHEN {_HAS_BATCH.replace('NEW.', 'OLD.')} "
    f"BEGIN {_ADD.format(of='OLD', host=repr(''))}; END",
}
_TABLE = """CREATE TABLE unshared (job INTEGER NOT NULL, host TEXT NOT NULL, start INTEGER NOT NULL,
    number INTEGER NOT NULL, PRIMARY KEY (job, host, start)) WITHOUT ROWID"""
_FILL = (
    "INSERT INTO unshared SELECT job, host, start, row_number() OVER (ORDER BY start, job, host) FROM hosts",
    f"""INSERT INTO unshared SELECT job, '', start, (SELECT coalesce(max(number), 0) FROM unshared)
    + row_number() OVER (ORDER BY start, job) FROM jobs WHERE {_HAS_BATCH.replace("NEW.", "")}""",
)


class Waiting(NamedTuple):
    """A summary that waits."""

    job: int
    host: str  # "" for the batch system's values of a whole job
    start: int
    number: int


class ArchiveOutbox:
    """The keys that wait. Used by one thread; another connection may write the summaries."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def open(self) -> None:
        """Note changes from now on; the first time, or if something was not noted, all summaries wait."""
        wanted = {name: f"CREATE TRIGGER {name} {text}" for name, text in _TRIGGERS.items()}
        found = self._database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        if self._exists() and wanted.items() <= dict(map(tuple, found)).items():
            return
        self.remove()
        with transaction(self._database):
            for statement in (
                *(_TABLE, "CREATE UNIQUE INDEX unshared_by_number ON unshared (number)", *_FILL),
                *wanted.values(),
            ):
                self._database.execute(statement)

    def remove(self) -> None:
        """Note no changes, and forget those that wait."""
        if not self._exists():
            return
        with transaction(self._database):
            for name in _TRIGGERS:
                self._database.execute(f"DROP TRIGGER IF EXISTS {name}")
            self._database.execute("DROP TABLE unshared")

    def _exists(self) -> bool:
        found = self._database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'unshared'")
        return found.fetchone() is not None

    def count(self) -> int:
        """Return how many wait."""
        return int(self._database.execute("SELECT count(*) FROM unshared").fetchone()[0])

    def next(self, most: int) -> list[Waiting]:
        """Return those that have waited longest."""
        rows = self._database.execute(
            "SELECT job, host, start, number FROM unshared ORDER BY number LIMIT ?", [most]
        ).fetchall()
        return [Waiting(*row) for row in rows]

    def done(self, sent: Sequence[Waiting]) -> None:
        """Remove keys that have not changed meanwhile."""
        with transaction(self._database):
            self._database.executemany(
                "DELETE FROM unshared WHERE job = ? AND host = ? AND start = ? AND number = ?", sent
            )


LOOK_S = 5.0  # values of the batch system are written by others
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
FAILURES = "share_failures"


class ShareThread:
    """Sends summaries to the shared archive while the local one, whose outbox is open, is open.

    `counts`, of an earlier thread for the same archive, continue.
    """

    def __init__(self, path: str, indices: Indices, counts: Counter[str] | None = None, look_s: float = LOOK_S) -> None:
        self._path = path
        self._indices = indices
        self._look_s = look_s
        self._changed = threading.Condition()
        self._is_due = True
        self._stop_by: float | None = None
        self._backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S)
        self._in_a_row = 0
        self._most = MOST  # also for the next `Sharer`
        self._counts: Counter[str] = Counter() if counts is None else counts
        self._waiting = 0
        self._thread = threading.Thread(target=self._run, name="archive-share", daemon=True)
        self._thread.start()

    @property
    def failures(self) -> int:
        """Return the number of pushes that failed."""
        return self._counts[FAILURES]

    def wake(self) -> None:
        """Note that more may wait."""
        with self._changed:
            self._is_due = True
            self._changed.notify()

    def stop(self, within_s: float) -> None:
        """Send what waits for at most so long, then end; what is left waits for the next start."""
        with self._changed:
            self._stop_by = time.monotonic() + within_s
            self._changed.notify()
        self._thread.join(within_s)

    def has_ended(self) -> bool:
        """Return whether it has stopped for good."""
        return self._stop_by is not None and not self._thread.is_alive()

    def counters(self) -> dict[str, int]:
        """Return the numbers of summaries that wait and were sent, and of failures."""
        return {
            "unshared": self._waiting,
            **{name: self._counts[name] for name in ("shared", "conflicts", "postponed")},
            "share_refused": self._indices.refused,
            FAILURES: self.failures,
        }

    def _run(self) -> None:
        while True:
            is_last = self._stop_by is not None
            try:
                self._serve()
                return  # it has to stop
            # A defect is counted, logged with its trace and retried, too: without this thread nothing would be shared.
            except Exception as err:
                self._counts[FAILURES] += 1
                self._in_a_row += 1
                is_known = isinstance(err, (ArchiveError, sqlite3.Error, OutputUnavailable))
                if powers_of_ten(self._in_a_row):
                    log.error(
                        "shared archive unavailable, summaries wait: failures=%d: %s",
                        *(self._in_a_row, err),
                        exc_info=None if is_known else err,
                    )
                self._backoff.fail()
            if is_last:
                return
            with self._changed:
                self._changed.wait_for(lambda: self._stop_by is not None, self._backoff.left_s())

    def _serve(self) -> None:
        """Send all that waits, and again whenever there may be more; return when it has to stop."""
        with closing(ArchiveStore(self._path, writable=True)) as store:
            sharer = Sharer(store, self._indices, self._most)
            sharer.counts = self._counts
            outbox = outbox_of(store, is_shared=True)
            is_last = False
            while not is_last:
                is_last = self._stop_by is not None  # then all has been written
                self._is_due = False
                self._waiting = outbox.count()
                while self._waiting and (self._stop_by is None or time.monotonic() < self._stop_by):
                    try:
                        done = sharer.push()
                    finally:
                        self._most = sharer.most
                    self._waiting = max(0, self._waiting - done)
                    if self._in_a_row:
                        log.warning("shared archive available again waiting=%d", self._waiting)
                        self._in_a_row = 0
                    self._backoff.reset()
                    if not done:  # nothing is left, or other collectors change the same jobs just now
                        break
                self._waiting = outbox.count()
                with self._changed:
                    self._changed.wait_for(lambda: self._is_due or self._stop_by is not None, self._look_s)
