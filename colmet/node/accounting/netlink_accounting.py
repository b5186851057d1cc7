"""Rows of the taskstats backend from answers and exit records by netlink, where the kernel keeps no sums by job.

Live tasks are queried at every tick, and the kernel reports ended ones (exit records), so a job's row is the fold of
all its tasks. Totals survive a restart of the agent.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from colmet.common.daemon.logs import OnceLog
from colmet.common.errors import ParseError
from colmet.common.host.host import Host
from colmet.common.schema import MISSING_INT, Sample, Schema
from colmet.common.tables.tasks import TASKSTATS as SCHEMA
from colmet.node.accounting.accumulator import Accumulator, Ints, KeptJob, as_values, pack_totals, unpack_totals
from colmet.node.accounting.attribution import Attribution
from colmet.node.accounting.child_cpu_time import ChildCpuTime
from colmet.node.accounting.job_cpu_time import GroupCpuTime, IdleJobs, JobCpuTime, TasksReading
from colmet.node.accounting.plausible import PlausibleWaits
from colmet.node.accounting.task_states import FinishedTasks, MigratedTasks, TaskStates
from colmet.node.jobs.job import Job
from colmet.node.kernel.task_source import TaskSource
from colmet.node.kernel.taskstats import FIELDS, Exits
from colmet.node.state import StateFile

log = logging.getLogger(__name__)


WAITS = ("cpu_delay_total", "blkio_delay_total", "swapin_delay_total", "freepages_delay_total")

_NO_TASKS: Ints = np.empty(0, dtype=np.int64)
_TASK = Schema(SCHEMA.name, "job", SCHEMA.fields[: len(FIELDS)])  # the kernel's values of a task
_MAY_FALL = np.array([field.fold == "min" for field in _TASK.fields])
_REAL, _VIRTUAL = FIELDS.index("cpu_run_real_total"), FIELDS.index("cpu_run_virtual_total")
_AGE = FIELDS.index("ac_etime")
# Some clock ticks: the run time of an ended task is known to its last tick, and by counted ticks only on average.
_LONG_NS = 20_000_000
# Tasks: with so few left, a job may be about to end. Each step of Slurm has a slurmstepd of some six threads in its
# cgroups, and a script with srun has its threads, too.
FEW = 32
MAX_KEPT_TASKS = 16384  # about 4 MB of state


class _Answer(NamedTuple):
    """The kernel's answers for the tasks of a job."""

    keys: Ints  # the tasks that answered
    values: Ints  # their values
    fold: Ints | None  # the fold of these, if known; then the values need no correction


class NetlinkAccounting:
    """The tasks of each job, by netlink: rows of `SCHEMA`, one for each job that has or had a task.

    Data flow to a row, by part::

        TaskSource --live values--> PlausibleWaits --> Accumulator ------------------> columns of the row
            |                                              ^   |
            +------exit records--> Attribution ------------+   +--> JobCpuTime ------> cpu_total
            |                          |      FinishedTasks          ^        ^
            +------forks---------------+      MigratedTasks          |        |
                                                       ChildCpuTime--+   GroupCpuTime --> IdleJobs

    `_measure` has the order of the steps.

    `state_dir` is the directory of the totals kept across a restart of the agent; "" for none.
    """

    fd = -1  # readable when `drain` has work

    def __init__(self, host: Host, state_dir: str = "") -> None:
        self._once = OnceLog(log)
        self._source = TaskSource(host)
        self._states = TaskStates(host)
        self._totals = Accumulator(_TASK, age="ac_etime", steady=("cpu_run_virtual_total", "nvcsw", "ac_minflt"))
        self._waits = PlausibleWaits(_TASK, "ac_etime", WAITS)
        self._owners = Attribution()
        self._child_cpu = ChildCpuTime(host, self._owners.owner, self._owners.without_owner, party=self._states.party)
        self._finished = FinishedTasks()
        self._migrated = MigratedTasks(self._owners, self._totals, self._finished, self._states)
        self._cpu_time = JobCpuTime()
        self._group_cpu = GroupCpuTime(host)
        self._idle = IdleJobs()
        self._rows: dict[int, dict[str, int | None]] = {}  # values of each job's last row
        self._ended: set[int] = set()  # jobs with tasks ended since their last rows
        self._exits: Counter[int] = Counter()  # exit records of each job
        self._is_kept = False  # whether the kept totals are those of the last rows
        self._shrunk: set[int] = set()  # jobs with tasks ended since their last reading; for `drain`
        self._received: list[Exits] = []  # not attributed yet
        self._last_totals: dict[int, Ints] = {}  # of each job's last row
        self._state = StateFile(host, state_dir) if state_dir else None
        self._restored: dict[int, KeptJob] = {}
        self._sampled: Sequence[Job] = ()  # at the last tick
        self._noticed = False  # whether tasks of any job may have been moved since the last tick

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
        rows = self._measure(jobs, tick=True)
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
        self._child_cpu.read()
        self._receive()
        self._attribute()
        self._settle()
        shrunk, self._shrunk = self._shrunk, set()
        # an ending task may still be listed, and count as alive: a job with few tasks is worth a check, too
        return [job for job in sorted(shrunk) if self._owners.alive(job) <= FEW]

    def notice(self, job: Job) -> None:
        """Measure a job's tasks, so that those they fork are known."""
        self._noticed = True
        self._recognize([job])
        self._measure([job], tick=False)
        self._shrunk.discard(job.id)

    def last(self, job: Job) -> Sample | None:
        """Return the last row of a job, None if it never had one; forget the job."""
        self._recognize([job])
        rows = self._measure([job], tick=False)
        self._sampled = [other for other in self._sampled if other is not job]
        self._last_totals.pop(job.id, None)
        self._rows.pop(job.id, None)
        self._shrunk.discard(job.id)
        self._exits.pop(job.id, None)
        self._owners.forget(job.id)
        for part in self._parts():
            part.forget(job.id)
        return rows[0] if rows else None

    def _keep_only(self, jobs: Collection[int]) -> None:
        self._last_totals = {job: totals for job, totals in self._last_totals.items() if job in jobs}
        self._rows = {job: values for job, values in self._rows.items() if job in jobs}
        self._exits = Counter({job: count for job, count in self._exits.items() if job in jobs})
        for part in self._parts():
            part.keep_only(jobs)
        self._child_cpu.tick(jobs)

    def _parts(self) -> tuple[Any, ...]:
        """Return the parts with a state of each job, to be forgotten with `forget` or `keep_only`."""
        return (self._totals, self._waits, self._states, self._migrated, self._cpu_time, self._group_cpu, self._idle)

    def cpu_attributed(self, job: Job) -> int | None:
        """Return the known CPU time in ns of the job's tasks, live and ended."""
        return self._cpu_time.attributed.get(job)

    def counters(self) -> Mapping[str, int]:
        """Return counts of records and of their attribution."""
        counts = self._source.counters()
        counts.update(
            exits_known=self._owners.known,
            exits_by_fork=self._owners.by_fork,
            exits_by_parent=self._owners.by_parent,
            exits_other=self._owners.other,
            delays_implausible=self._waits.dropped,
        )
        if self._state is not None:
            counts.update(state_failures=self._state.failures)
        on = {"exit_records_on": self._source.exits, "fork_events_on": self._source.forks}
        return {**counts, **{name: int(source is not None) for name, source in on.items()}}

    # -- the steps of a measurement --

    def _measure(self, jobs: Sequence[Job], tick: bool) -> list[Sample]:
        """Update the totals of jobs, and return their rows. The order of the steps is the algorithm.

        ::

            list       the tasks listed by cgroups, and those no longer listed; of idle jobs, nothing is read
            charges    CPU time charged to processes for children      before `receive`: all of it has its record there
            query      the values of all these tasks, in one query, as tasks share the cost of a message
            receive    exit records and forks                          after `query`: a task without answer has a record
            migrated   listed tasks that came from elsewhere           before `own`, which makes all of them known
            own        listed tasks are the jobs'                      after `receive`: younger children stay theirs
            attribute  exit records to jobs, also those that waited for a parent; CPU time beyond them
            rows       of each job                                     after all ends are known

        `jobs` are all of them at a tick, some between ticks.
        """
        before_ns = {job.id: self._group_cpu.read(job) for job in jobs}
        members, idle = self._list(jobs, before_ns, tick)
        asked = [job for job in jobs if job.id not in idle]
        listed = [np.array(members[job.id], dtype=np.int64) for job in asked]
        absent = [_without(self._totals.last_seen(job.id)[0], tids) for job, tids in zip(asked, listed)]
        now_ns = time.monotonic_ns()
        if self._source.exits is not None:
            self._child_cpu.read()
        found, values = self._source.query(_union([*listed, *absent]))
        self._receive()
        self._states.note(asked)
        overflows = None if self._source.forks is None else self._source.forks.overflows
        migrated = self._migrated.find(asked, members, overflows, tick)
        self._own(jobs, members, tick)
        self._attribute()
        self._end(self._owners.retry())
        self._settle()
        finished = self._finished.all()
        if tick:
            self._finished.forget([tid for job in idle for tid in members[job]] if len(finished) else ())
        for job in jobs:
            if job.id in idle:
                self._continue(job, before_ns[job.id], now_ns)
        answers = self._answers(listed, found, values)
        for job, gone, answer in zip(asked, absent, answers):
            left_ns = self._note_departed(job.id, gone, found, values, finished) if len(gone) else 0
            counters = answer.values
            totals = self._row(job, answer, finished, migrated.get(job.id, ()), left_ns)
            if totals is not None:
                oldest_us = int(counters[:, _AGE].max()) if len(counters) else -1
                after_ns = self._cpu_time.group_ns(job.id)
                reading = TasksReading(before_ns[job.id], members[job.id], int(totals[_VIRTUAL]), oldest_us, now_ns)
                self._is_kept &= not self._idle.note(job.id, reading, after_ns)
        return [Sample(job.id, self._rows[job.id]) for job in jobs if job.id in self._rows]

    def _list(
        self, jobs: Sequence[Job], group_ns: Mapping[int, int | None], tick: bool
    ) -> tuple[dict[int, Sequence[int]], set[int]]:
        """Return the tasks of each job, and the idle jobs; the list of a watched idle job is read only after a move."""
        members: dict[int, Sequence[int]] = {}
        idle = set()
        for job in jobs:
            last = self._idle.tids(job.id, group_ns[job.id]) if tick else None
            members[job.id] = tids = last if last is not None and job.is_watched and not self._noticed else job.tids()
            if tids == last:
                idle.add(job.id)
        self._noticed &= not tick
        return members, idle

    def _receive(self) -> None:
        """Receive the pending exit records, then the forks before them."""
        exits = self._source.receive_exits()
        if exits is not None:
            self._received.append(exits)
        forks = self._source.receive_forks()
        if forks is not None:
            self._owners.add_forks(forks)

    def _own(self, jobs: Sequence[Job], members: Mapping[int, Sequence[int]], tick: bool) -> None:
        """Attribute listed tasks to the jobs; a job without cgroups is closed: it owns no children of its tasks."""
        closed = {job.id for job in jobs if not job.cgroups}
        if tick:
            self._owners.list_all(members, closed)
            return
        for job in members:
            self._owners.list_one(job, members[job], job in closed)

    def _attribute(self) -> None:
        """Count ended tasks to their jobs."""
        while self._received:  # includes records that could not be attributed on arrival
            self._end(self._owners.take(self._received.pop(0)))

    def _end(self, shares: Iterable[tuple[int, Exits]]) -> None:
        for job, exits in shares:
            tids = exits.ids[:, 0]
            self._ended.add(job)
            self._shrunk.add(job)
            self._exits[job] += len(tids)
            self._is_kept = False
            self._totals.end(job, tids, self._waits.end(job, tids, exits.values))
            self._cpu_time.end_tasks(job)
            counted = exits.values[:, _VIRTUAL]
            beyond = np.where(counted < _LONG_NS, exits.values[:, _REAL] - counted, 0)
            self._child_cpu.add(exits.ids.tolist(), counted.tolist(), beyond.tolist())
            self._cpu_time.add_beyond(job, int(beyond.sum()))
            self._finished.add(tids)

    def _settle(self) -> None:
        """Count CPU time charged to processes beyond the records of their descendants."""
        for job, beyond_ns in self._child_cpu.settle().items():
            self._cpu_time.add_beyond(job, beyond_ns)
            self._is_kept = False

    # -- the row of a job --

    def _continue(self, job: Job, group_ns: int | None, now_ns: int) -> None:
        """Update the row of an idle job: its tasks have grown older."""
        totals = self._last_totals.get(job.id)
        if totals is None:
            return
        if job.id in self._ended:  # a task whose record has only now found its job
            totals = self._totals.update(job.id, *self._totals.last_seen(job.id))
            assert totals is not None  # it had a row before
        else:
            totals = totals.copy()
        totals[_AGE] = max(int(totals[_AGE]), self._idle.age_us(job.id, now_ns))
        self._cpu_time.update(job, int(totals[_VIRTUAL]), group_ns)
        self._show(job, totals)

    def _show(self, job: Job, totals: Ints) -> None:
        """Set the values of a job's row."""
        self._ended.discard(job.id)
        former = self._last_totals.get(job.id)
        if former is not None:  # what a newcomer used elsewhere is estimated
            totals = np.where(_MAY_FALL | (totals == MISSING_INT), totals, np.maximum(totals, former))
        self._last_totals[job.id] = totals
        ended = None if self._source.exits is None else self._exits[job.id]
        cpu_ns = self._cpu_time.attributed[job]
        self._rows[job.id] = {**as_values(_TASK, totals), "cpu_total": cpu_ns, "tasks_ended": ended}

    def _answers(self, listed: Sequence[Ints], found: Ints, values: Ints) -> Iterable[_Answer]:
        """Return the answers for the tasks of each job, given by lists."""
        all_listed = np.concatenate([_NO_TASKS, *listed])
        places = np.searchsorted(found, all_listed)
        is_usual = len(found) > 0 and all(map(len, listed)) and int(places.max(initial=0)) < len(found)
        if is_usual and np.array_equal(found[places], all_listed):  # the usual tick: all tasks answer
            values = values[places]
            ends = np.cumsum([len(tids) for tids in listed])
            starts = np.append(0, ends[:-1])
            folds = self._totals.fold_each(values, starts) if self._waits.are_plausible(values) else None
            for number, (tids, start, end) in enumerate(zip(listed, starts.tolist(), ends.tolist())):
                own = values[start:end].copy()  # an idle job keeps them: not those of all jobs
                yield _Answer(tids, own, None if folds is None else folds[number])
            return
        for tids in listed:
            yield _Answer(*_select(found, values, tids), None)

    def _row(self, job: Job, answer: _Answer, finished: Ints, migrated: Collection[int], left_ns: int) -> Ints | None:
        """Update a job's totals and its row; return the totals, or None if it never had a task.

        The final values of `finished` tasks are counted; `migrated` ones are known to come from elsewhere.
        """
        keys, values, reused = self._without_finished(job.id, answer.keys, answer.values, finished)
        fold = answer.fold if len(keys) == len(answer.keys) else None
        values = self._waits.update(job.id, keys, values, are_plausible=fold is not None)
        self._owners.list_one(job.id, reused)
        if reused:  # its parent's charges include children that it had waited for
            self._child_cpu.watch(reused, job.id)
        # migrated tasks that are still listed and have ended are counted already
        totals = self._totals_of(job, keys, values, reused, migrated, fold, left_ns)
        self._migrated.note_seen(job.id)
        if totals is not None:
            self._show(job, totals)
        return totals

    def _totals_of(
        self,
        job: Job,
        keys: Ints,
        values: Ints,
        reused: Collection[int],
        migrated: Collection[int],
        fold: Ints | None,
        left_ns: int,
    ) -> Ints | None:
        """Update a job's totals and its attributed CPU time, less the use of newcomers elsewhere.

        The other counters of newcomers are assumed to have grown with their CPU time.
        """
        new = list(migrated) or _without(keys, self._totals.last_seen(job.id)[0])
        totals = self._totals.update(job.id, keys, values, reused=reused, present=fold)
        group_ns = self._group_cpu.read(job)
        if totals is not None and len(new) and (is_new := np.isin(keys, new)).any():
            newcomers_ns = int(values[is_new, _VIRTUAL].sum())
            share = self._cpu_time.share_elsewhere(
                job.id, int(totals[_VIRTUAL]), group_ns, newcomers_ns, are_migrated=bool(migrated)
            )
            if migrated or share:
                self._child_cpu.watch(keys[is_new].tolist(), job.id)
                news = values[is_new]
                elsewhere = np.where(news == MISSING_INT, MISSING_INT, (news * share).astype(np.int64))
                self._totals.subtract(job.id, elsewhere)
                totals = self._totals.update(job.id, keys, values)
        if totals is not None:
            self._cpu_time.update(job, int(totals[_VIRTUAL]), group_ns, left_ns)
        return totals

    def _note_departed(self, job: int, gone: Ints, found: Ints, values: Ints, finished: Ints) -> int:
        """Record the fate of tasks without record that the job's cgroup no longer lists.

        Live tasks have left the job: return the ns of CPU time that these used since their last reading in it. Of tasks
        that do not answer, the last known values are counted.
        """
        answers = np.isin(gone, found)
        left = gone[answers]
        keys, known = self._totals.last_seen(job)
        left_ns = 0
        for tid in self._states.alive(job, left[~np.isin(left, finished)].tolist(), unasked=True):
            self._owners.leave(job, tid)
            grown = values[found == tid, _VIRTUAL].sum() - known[keys == tid, _VIRTUAL].sum()
            left_ns += max(0, int(grown))
        vanished = gone[~answers]
        vanished = vanished[~np.isin(vanished, finished)]
        if len(vanished):
            self._child_cpu.owe(job, int(known[np.isin(keys, vanished), _VIRTUAL].sum()))
        return left_ns

    def _without_finished(self, job: int, keys: Ints, values: Ints, finished: Ints) -> tuple[Ints, Ints, list[int]]:
        """Remove tasks whose final values are counted already; return also the keys reused by another, live task."""
        if not len(finished):
            return keys, values, []
        ended = np.isin(keys, finished)
        if not ended.any():
            return keys, values, []
        numbers = set(keys[ended].tolist())
        reused = self._states.alive(job, sorted(numbers), unasked=False)
        self._finished.note_dying(numbers.difference(reused))
        self._finished.revive(reused)
        if reused:
            ended &= ~np.isin(keys, reused)
        return keys[~ended], values[~ended], reused

    # -- state kept across restarts of the agent --

    def _keep(self, jobs: Sequence[Job]) -> None:
        """Keep all totals for a restart, before they are sent: so they never decrease across it."""
        if self._state is None or self._is_kept:
            return
        kept_jobs, tasks = {}, 0
        waits = len(WAITS) if self._waits.is_needed else 0
        for job in jobs:
            kept, totals = self._totals.keep(job.id), self._last_totals.get(job.id)
            if kept is None or totals is None:
                continue
            sums, keys, values, floor = kept
            if tasks + len(keys) > MAX_KEPT_TASKS:
                # its totals will not decrease, but are too low until the use of its tasks has caught up
                keys, values, floor = keys[:0], values[:0], totals
            tasks += len(keys)
            excess = self._waits.excess(job.id, keys) if waits else _NO_TASKS
            floor = None if floor is None else totals
            beyond_ns = self._cpu_time.attributed.get(job, 0) - int(totals[_VIRTUAL])
            kept_jobs[job.id] = KeptJob(job.identity, sums, keys, values, excess, floor, beyond_ns, self._exits[job.id])
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
                self._cpu_time.beyond[job.id] = kept.beyond_ns
                self._exits[job.id] = kept.ended
                log.info("totals go on from before the agent's restart job=%d tasks=%d", job.id, len(kept.keys))

    def close(self) -> None:
        """Keep the data received since the last tick, and close the sockets; can be called twice."""
        if self._source.client is not None and self._sampled:
            with contextlib.suppress(OSError, ParseError):
                self.drain()
            self._keep(self._sampled)
        self._sampled = ()
        self.fd = -1
        self._source.close()
        self._group_cpu.close()
        if self._state is not None:
            self._state.close()


def _union(arrays: Sequence[Ints]) -> Ints:
    """Return the keys of all arrays, ascending, each once; each array is ascending."""
    return np.unique(np.concatenate([_NO_TASKS, *arrays]))


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
