"""Rows of the taskstats backend from answers and exit records by netlink, where the kernel keeps no sums by job.

Live tasks are queried at every tick, and the kernel reports ended ones with their final values (exit records). Only
what is known of a task is counted to a job: what its record lacks, and what it used before it was seen in the job, is
in the CPU time of the job's cgroup alone. Totals survive a restart of the agent.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np

from colmet.common.daemon.logs import OnceLog
from colmet.common.errors import ParseError
from colmet.common.host.host import Host
from colmet.common.host.processes import Question
from colmet.common.schema import Sample, Schema
from colmet.common.tables.tasks import TASKSTATS as SCHEMA
from colmet.node.accounting.accumulator import Accumulator, Ints, KeptJob, as_values, pack_totals, unpack_totals
from colmet.node.accounting.plausible import PlausibleWaits
from colmet.node.accounting.task_owners import TaskOwners
from colmet.node.jobs.job import Job
from colmet.node.kernel.task_source import TaskSource
from colmet.node.kernel.taskstats import FIELDS, Exits
from colmet.node.kernel.textfiles import parse_stat
from colmet.node.state import StateFile

log = logging.getLogger(__name__)

WAITS = ("cpu_delay_total", "blkio_delay_total", "swapin_delay_total", "freepages_delay_total")
_NO_TASKS: Ints = np.empty(0, dtype=np.int64)
_TASK = Schema(SCHEMA.name, "job", SCHEMA.fields[: len(FIELDS)])  # the kernel's values of a task
_MAY_FALL = np.array([field.fold == "min" for field in _TASK.fields])
_VIRTUAL, _AGE = FIELDS.index("cpu_run_virtual_total"), FIELDS.index("ac_etime")
_US = 1000  # ns
# Tasks: with so few left, a job may be about to end. Each step of Slurm has a slurmstepd of some six threads in its
# cgroups, and a script with srun has its threads, too.
FEW = 32
MAX_KEPT_TASKS = 16384  # about 4 MB of state
# A task may still be listed and answer for a while after its record.
DYING_US = 10_000_000


class NetlinkAccounting:
    """The tasks of each job, by netlink: rows of `SCHEMA`, one for each job that has or had a task.

    ::

        TaskSource --live values--> PlausibleWaits --> Accumulator --> row
            +------exit records--> TaskOwners ----------^
            +------forks-----------^

    `state_dir` is the directory of the totals kept across a restart of the agent; "" for none.

    Attributes:
        fd: readable when `drain` has work; -1 while there are no exit records.
    """

    fd = -1

    def __init__(self, host: Host, state_dir: str = "") -> None:
        self._host = host
        self._once = OnceLog(log)
        self._source = TaskSource(host)
        self._totals = Accumulator(_TASK, age="ac_etime", steady=("cpu_run_virtual_total", "nvcsw", "ac_minflt"))
        self._waits = PlausibleWaits(_TASK, "ac_etime", WAITS)
        self._owners = TaskOwners()
        self._finished: dict[int, int] = {}  # tasks with a record that may still be listed: when it came, in us
        self._ended: Counter[int] = Counter()  # tasks, by job
        self._shrunk: set[int] = set()  # jobs with tasks ended since their last reading; for `drain`
        self._overflows = 0  # of fork events, at the last reading
        self._rows: dict[int, Ints] = {}  # totals of each job's last row
        self._cpu_ns: WeakKeyDictionary[Job, int] = WeakKeyDictionary()
        self._is_kept = False  # whether the kept totals are those of the last rows
        self._state = StateFile(host, state_dir) if state_dir else None
        self._restored: dict[int, KeptJob] = {}
        self._sampled: Sequence[Job] = ()  # at the last tick

    def open(self) -> None:
        """Connect to the kernel (see `TaskSource.open`); load the kept totals."""
        self.close()
        self._source.open()
        self._listen()
        if self._state is not None:
            self._state.open()
            self._restore(self._state.load())

    def _listen(self) -> None:
        self._source.listen()
        self.fd = -1 if self._source.exits is None else self._source.exits.fd

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        """Return the rows of jobs."""
        self._keep_only({job.id for job in jobs})
        self._recognize(jobs)
        self._restored = {}  # the others ended while the agent was away
        if self._source.is_listening_due():
            self._listen()
        rows = self._measure(jobs, is_tick=True)
        self._shrunk.clear()  # all jobs are read at a tick
        if self._waits.dropped:
            self._once.warning(
                "the kernel counts waits of tasks that they cannot have had, growths of delays are dropped: one is of "
                "%.0f s; see delays_implausible of agent_default",
                self._waits.largest_ns / 1e9,
            )
        self._sampled = jobs
        self._keep(jobs)
        return rows

    def drain(self) -> Iterable[int]:
        """Read exit records; return the jobs of these records with few or no tasks known to live.

        The records that `notice` of another job has received count, too.
        """
        self._receive()
        shrunk, self._shrunk = self._shrunk, set()
        alive = self._owners.alive() if shrunk else {}
        # an ending task may still be listed, and count as alive: a job with few tasks is worth a check, too
        return [job for job in sorted(shrunk) if alive.get(job, 0) <= FEW]

    def notice(self, job: Job) -> None:
        """Measure a job's tasks, so that those they fork are known, and what newcomers used before."""
        self._recognize([job])
        self._measure([job], is_tick=False)
        self._shrunk.discard(job.id)

    def last(self, job: Job) -> Sample | None:
        """Return the last row of a job, None if it never had one; forget the job."""
        self._recognize([job])
        rows = self._measure([job], is_tick=False)
        self._sampled = [other for other in self._sampled if other is not job]
        self._rows.pop(job.id, None)
        self._shrunk.discard(job.id)
        self._ended.pop(job.id, None)
        for part in (self._owners, self._totals, self._waits):
            part.forget(job.id)
        return rows[0] if rows else None

    def _keep_only(self, jobs: Collection[int]) -> None:
        self._rows = {job: totals for job, totals in self._rows.items() if job in jobs}
        self._ended = Counter({job: count for job, count in self._ended.items() if job in jobs})
        self._totals.keep_only(jobs)
        self._waits.keep_only(jobs)

    def cpu_attributed(self, job: Job) -> int | None:
        """Return the known CPU time in ns of the job's tasks, live and ended."""
        return self._cpu_ns.get(job)

    def memory_and_tasks(self, job: Job) -> None:
        """Return None: netlink knows neither."""

    def counters(self) -> Mapping[str, int]:
        """Return counts of records and of their attribution."""
        counts = self._source.counters()
        counts.update(
            exits_known=self._owners.known,
            exits_by_fork=self._owners.by_fork,
            exits_by_parent=0,  # a parent's job is a guess
            exits_other=self._owners.other,
            delays_implausible=self._waits.dropped,
        )
        if self._state is not None:
            counts.update(state_failures=self._state.failures)
        on = {"exit_records_on": self._source.exits, "fork_events_on": self._source.forks}
        return {**counts, **{name: int(source is not None) for name, source in on.items()}}

    # -- the steps of a measurement --

    def _measure(self, jobs: Sequence[Job], is_tick: bool) -> list[Sample]:
        """Update the totals of jobs, and return their rows. The order of the steps is the algorithm.

        A task sends its record before its cgroup lists it no more: of a task that is missing in the list, the record is
        there to be received, unless it was lost or the task has left the job alive.
        """
        listed = {job.id: np.array(job.tids(), dtype=np.int64) for job in jobs}
        found, values = self._source.query(np.unique(np.concatenate([_NO_TASKS, *listed.values()])))
        now_us = time.monotonic_ns() // _US
        self._receive()
        forks = self._source.forks
        are_forks_known = forks is not None and forks.overflows == self._overflows
        self._overflows = 0 if forks is None else forks.overflows
        for job in jobs:
            keys, own = _select(found, values, listed[job.id])
            keys, own, reused = self._without_finished(job, keys, own, now_us)
            is_watched = job.witnessed or job.id in self._rows
            newcomers = self._newcomers(job, keys, reused) if are_forks_known and is_watched else _NO_TASKS
            self._owners.leave(job.id, _without(self._totals.last_seen(job.id)[0], keys).tolist())
            self._owners.list_job(job.id, listed[job.id].tolist(), not job.cgroups)
            own = self._waits.update(job.id, keys, own)
            if len(newcomers):
                self._totals.subtract(job.id, own[np.isin(keys, newcomers)])
            totals = self._totals.update(job.id, keys, own, reused=reused)
            if totals is not None:
                self._note_row(job, totals)
        if is_tick:
            self._owners.tick({job: tids.tolist() for job, tids in listed.items()})
            every = set(found.tolist())
            limit_us = now_us - DYING_US
            self._finished = {tid: at for tid, at in self._finished.items() if at > limit_us or tid in every}
        return [self._sample_of(job) for job in jobs if job.id in self._rows]

    def _receive(self) -> None:
        """Receive the pending exit records, then the forks before them, and count ended tasks to their jobs."""
        exits = self._source.receive_exits()
        forks = self._source.receive_forks()
        if forks is not None:
            self._owners.add_forks(forks)
        if exits is None:
            return
        now_us = time.monotonic_ns() // _US
        self._finished.update(dict.fromkeys(exits.ids[:, 0].tolist(), now_us))
        for job, own in self._owners.end(exits).items():
            self._end(job, own)

    def _end(self, job: int, exits: Exits) -> None:
        tids = exits.ids[:, 0]
        self._shrunk.add(job)
        self._ended[job] += len(tids)
        self._is_kept = False
        self._totals.end(job, tids, self._waits.end(job, tids, exits.values))

    def _without_finished(self, job: Job, keys: Ints, values: Ints, now_us: int) -> tuple[Ints, Ints, list[int]]:
        """Remove tasks whose final values are counted already; return also the numbers that another task has now."""
        ended = np.array([self._finished.get(tid, -1) for tid in keys.tolist()] if self._finished else [])
        if not (ended >= 0).any():
            return keys, values, []
        is_new = now_us - values[:, _AGE] > ended
        # a thread that calls exec has the start of its process's first one, and that one's number
        older = keys[(ended >= 0) & ~is_new].tolist()
        reused = [*keys[(ended >= 0) & is_new].tolist(), *self._find_alive(job, older)]
        for tid in reused:
            del self._finished[tid]
        lives = (ended < 0) | np.isin(keys, reused)
        return keys[lives], values[lives], reused

    def _find_alive(self, job: Job, tids: Sequence[int]) -> list[int]:
        """Return the tasks that the kernel is not removing."""
        questions = [Question(tid, job.party, partial(self._host.read, f"/proc/{tid}/stat")) for tid in tids]
        answers = self._host.processes.ask(questions) if questions else []
        stats = [parse_stat(answer) if isinstance(answer, bytes) else None for answer in answers]
        return [tid for tid, stat in zip(tids, stats) if stat is not None and not stat.is_ending]

    def _newcomers(self, job: Job, keys: Ints, reused: Collection[int]) -> Ints:
        """Return the tasks first seen now that no task of the job has forked: they used elsewhere what they have."""
        new = _without(keys, self._totals.last_seen(job.id)[0])
        return np.array(
            [tid for tid in new.tolist() if self._owners.job_of(tid) != job.id and tid not in reused], dtype=np.int64
        )

    # -- the row of a job --

    def _note_row(self, job: Job, totals: Ints) -> None:
        former = self._rows.get(job.id)
        if former is not None:  # a task that left with less than it was last seen with, after a lost record
            totals = np.where(_MAY_FALL, totals, np.maximum(totals, former))
        if former is None or not np.array_equal(totals, former):
            self._is_kept = False
        self._rows[job.id] = totals
        self._cpu_ns[job] = int(totals[_VIRTUAL])

    def _sample_of(self, job: Job) -> Sample:
        totals = self._rows[job.id]
        ended = None if self._source.exits is None else self._ended[job.id]
        values = {**as_values(_TASK, totals), "cpu_total": int(totals[_VIRTUAL]), "tasks_ended": ended}
        return Sample(job.id, values)

    # -- state kept across restarts of the agent --

    def _keep(self, jobs: Sequence[Job]) -> None:
        """Keep all totals for a restart, before they are sent: so they never decrease across it."""
        if self._state is None or self._is_kept:
            return
        kept_jobs, tasks = {}, 0
        waits = len(WAITS) if self._waits.is_needed else 0
        for job in jobs:
            kept, totals = self._totals.keep(job.id), self._rows.get(job.id)
            if kept is None or totals is None:
                continue
            sums, keys, values, floor = kept
            if tasks + len(keys) > MAX_KEPT_TASKS:
                # its totals will not decrease, but are too low until the use of its tasks has caught up
                keys, values, floor = keys[:0], values[:0], totals
            tasks += len(keys)
            excess = self._waits.excess(job.id, keys) if waits else _NO_TASKS
            floor = None if floor is None else totals
            kept_jobs[job.id] = KeptJob(job.identity, sums, keys, values, excess, floor, self._ended[job.id])
        self._is_kept = self._state.save(pack_totals(kept_jobs, FIELDS, waits))

    def _restore(self, data: bytes | None) -> None:
        """Read the output of `_keep`; used as its jobs are found again."""
        self._restored = {}
        if data is None:
            return
        try:
            self._restored = unpack_totals(data, FIELDS, len(WAITS))
        except ValueError as err:
            log.warning("kept totals are of another version of Colmet, and are not used: %s", err)

    def _recognize(self, jobs: Sequence[Job]) -> None:
        """Continue the totals of jobs that were here before the agent's restart."""
        for job in jobs if self._restored else ():
            kept = self._restored.pop(job.id, None)
            if kept is not None and kept.identity == job.identity and not self._totals.knows(job.id):
                self._totals.restore(job.id, kept.sums, kept.keys, kept.values, kept.floor)
                self._waits.restore(job.id, kept.keys, kept.values, kept.excess)
                self._ended[job.id] = kept.ended
                log.info("totals go on from before the agent's restart job=%d tasks=%d", job.id, len(kept.keys))

    def close(self) -> None:
        """Keep the data received since the last tick, and close the sockets; can be called twice."""
        if self._source.client is not None and self._sampled:
            with contextlib.suppress(OSError, ParseError):
                self._receive()
            self._keep(self._sampled)
        self._sampled = ()
        self.fd = -1
        self._source.close()
        if self._state is not None:
            self._state.close()


def _without(keys: Ints, others: Ints) -> Ints:
    """Return the keys missing in the others."""
    if np.array_equal(keys, others):  # the usual tick
        return _NO_TASKS
    return keys[~np.isin(keys, others)]


def _select(found: Ints, values: Ints, tids: Ints) -> tuple[Ints, Ints]:
    """Return the answers of some tasks among all answers."""
    if np.array_equal(found, tids):
        return found, values
    keys, places, _ = np.intersect1d(found, tids, assume_unique=True, return_indices=True)
    return keys, values[places]
