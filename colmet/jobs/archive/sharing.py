"""From the local archive to the shared one: what waits in the outbox is sent, and whole jobs are made of all hosts.

Several collectors have hosts of one job. The writer of a host's summary first writes that, then adds itself to the
job's state, which gets a higher version, and only then reads the summaries of all its hosts. The documents of the whole
job, made of these, have the version of the state: the database refuses an older one. So the last one is made of
everything that was written before, by any writer. A writer that is killed in between finds its keys in the outbox.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from colmet.jobs.archive.documents import (
    HOSTS,
    JOBS,
    STATE,
    Answers,
    Facts,
    JobState,
    host_document,
    host_id,
    host_row,
    host_version,
    job_documents,
    job_id,
    state_of,
)
from colmet.jobs.archive.indices import CONFLICT, Indices, StoredDocument, Write
from colmet.jobs.archive.outbox import ArchiveOutbox, Waiting
from colmet.jobs.archive.store import ArchiveStore
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
        gone = self.gone_facts - {start for _, start in members}
        kept = [one for one in state.facts if one.start not in self.facts and one.start not in gone]
        new = {min([start for _, start in self.members])} if self.members else set()
        return JobState(
            max(state.version + 1, time.time_ns() // 1_000_000),
            members,
            state.starts | new | self.facts.keys(),
            (*kept, *self.facts.values()),
        )


class Sharer:
    """Sends what waits. Used by one thread.

    Args:
        store: the local archive, with an `ArchiveOutbox`.
        indices: the shared one.

    Attributes:
        counts: of what was sent.
    """

    def __init__(self, store: ArchiveStore, indices: Indices) -> None:
        self._store = store
        self._indices = indices
        self._outbox = ArchiveOutbox(store.database)
        self._answers = Answers()
        self._most = MOST
        self.counts: Counter[str] = Counter()

    def push(self) -> int:
        """Send some of those that wait, the oldest first; return how many are done.

        Raises:
            OutputUnavailable: the database is not there, or not now; those that wait stay in the outbox.
        """
        waiting = self._outbox.next(self._most)
        if not waiting:
            return 0
        try:
            self._indices.prepare()
            changed = self._send_hosts(waiting)
            late = self._send_jobs(changed)
        except Exception:
            self._most = max(FEWEST, self._most // 2)  # it may be too much for the server, or a proxy
            raise
        self._most = min(MOST, 2 * self._most)
        done = [one for one in waiting if one.job not in late]
        self._outbox.done(done)
        self.counts["shared"] += len(done)
        return len(done)

    def close(self) -> None:
        """Release all resources; idempotent."""
        self._answers.close()

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
                writes.append(Write(HOSTS, key, None))
            else:
                of.members.add((one.host, one.start))
                writes.append(Write(HOSTS, key, host_document(row), host_version(row)))
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
        before = self._indices.get(STATE, [str(job) for job in changed])
        states: dict[int, JobState] = {}
        writes: list[Write] = []
        for job, change in changed.items():
            stored = before.get(str(job))
            state = change.applied(self._state(job, stored))
            state = state._replace(starts=state.starts | starts.get(job, frozenset()))
            states[job] = state
            writes.append(Write(STATE, str(job), state.document(job), over=stored, is_new=stored is None))
        statuses = self._indices.write(writes)
        conflicts = {job for job, status in zip(states, statuses) if status == CONFLICT}
        self.counts["conflicts"] += len(conflicts)
        return {job: state for job, state in states.items() if job not in conflicts}

    def _state(self, job: int, stored: StoredDocument | None) -> JobState:
        try:
            return JobState() if stored is None else state_of(stored.source)
        except ValueError as err:
            log.error("state of a job unreadable in the shared archive, it starts empty: job=%d cause=%s", job, err)
            return JobState()

    def _write_jobs(self, states: Mapping[int, JobState]) -> dict[int, frozenset[int]]:
        """Write the documents of some jobs; return for each the starts that its state lacks, if any: then none."""
        ids = [host_id((job, *member)) for job, state in states.items() for member in state.members]
        found = self._indices.get(HOSTS, ids)
        missing: dict[int, frozenset[int]] = {}
        writes: list[Write] = []
        for job, state in states.items():
            keys = [(job, *member) for member in sorted(state.members)]
            hosts = [host_row(found[host_id(key)].source, key) for key in keys if host_id(key) in found]
            documents = job_documents(job, hosts, state.facts, self._answers)
            missing[job] = frozenset(documents.keys() - state.starts)
            if missing[job]:
                continue
            writes += [Write(JOBS, job_id(job, start), one, state.version) for start, one in documents.items()]
            former = state.starts - documents.keys()
            writes += [Write(JOBS, job_id(job, start), None, state.version) for start in former]
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
