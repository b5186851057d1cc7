"""What the kernel's accounting knows of each task: CPU time, delays, faults, memory integrals, I/O.

Live tasks are asked for at every tick, ended ones are told of by the kernel (exit records), so a job's row is the fold
of all its tasks, however short they lived. Totals survive a restart of the agent.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import struct
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.runtime.cli import Options, Rare, whole_number
from colmet.common.schema import MISSING_INT, Sample, Schema
from colmet.common.tables.taskstats import AGENT_COUNTERS, SCHEMA
from colmet.node.accounting.accumulator import Accumulator, Ints, as_values
from colmet.node.accounting.attribution import Attribution
from colmet.node.accounting.child_cpu_time import ChildCpuTime
from colmet.node.accounting.plausible import PlausibleWaits
from colmet.node.backend import InputBackend, JobValue
from colmet.node.jobs.job import Job
from colmet.node.kernel.forks import ForkEvents
from colmet.node.kernel.procstat import Stat, ask_stats
from colmet.node.kernel.taskstats import FIELDS, ExitRecords, Exits, TaskstatsClient
from colmet.node.system.host import Host, is_gone
from colmet.node.system.processes import NoAnswer
from colmet.node.system.state import DIRECTORY, StateFile, default_directory

log = logging.getLogger(__name__)


NOTES = """\
A task's `*_delay_total` never grows by more than the task can have waited: no more than its age (`ac_etime`) in all,
and, once the kernel was seen to count wrongly, no more than the time between two readings of the task. A growth beyond
that is dropped whole, counted (`delays_implausible` of `agent_default`) and logged once; later growth counts again.
`*_count` stays as the kernel counts.

Since Linux 6.12 this happens to block I/O waits. The scheduler may defer the dequeue of a task that blocks. It is then
dequeued while another task runs, and `__block_task()` starts the clock of a block I/O wait for that other task
(`delayacct_blkio_start()` writes to `current`). At the end of its wait the first task is charged with the time since an
earlier wait, or since boot. Linux 6.18 was measured, 6.12 is by its source, the first with deferred dequeue. On 6.18,
of short processes that write and fsync, four on one CPU, nearly all that waited were charged with the uptime, and none
under `SCHED_RR`, which does not defer. No version is known that corrects it. On such a kernel what remains is too small
by the waits that are dropped, and may be too large by times between two readings in which a task slept. `colmet doctor`
tests the kernel."""

# The kernel fills these only for tasks that were started with kernel.task_delayacct=1, and leaves 0 otherwise.
# cpu_count and cpu_delay_total come from the scheduler and are always right.
DELAY_FIELDS = frozenset(
    {
        "blkio_count",
        "blkio_delay_total",
        "swapin_count",
        "swapin_delay_total",
        "freepages_count",
        "freepages_delay_total",
    }
)

WAITS = ("cpu_delay_total", "blkio_delay_total", "swapin_delay_total", "freepages_delay_total")

_NO_TASKS: Ints = np.empty(0, dtype=np.int64)
_TASK = Schema(SCHEMA.name, "job", SCHEMA.fields[: len(FIELDS)])  # what the kernel tells of a task
_REAL, _VIRTUAL = FIELDS.index("cpu_run_real_total"), FIELDS.index("cpu_run_virtual_total")
# Some clock ticks: what a task had run when it ended is known to the last tick, and by counted ticks only on average.
_LONG_NS = 20_000_000
_ROUNDING_NS = 1_000_000  # by which the CPU times of tasks may add up to more than their group's, which is in us in v2
_HEAD = struct.Struct("<I")  # of the kept state: the length of the description that follows
LISTEN_AGAIN_S = 600.0
FEW = 4  # tasks: with so many left, a job may be about to end
MAX_FINISHED = 65536  # ended tasks that are told from live ones of the same number
MAX_KEPT_TASKS = 16384  # about 4 MB of state


class _Kept(NamedTuple):
    """What the agent knew of a job before its restart: see `Accumulator.keep` and `restore`."""

    identity: str
    sums: Ints
    keys: Ints
    values: Ints
    excess: Ints
    floor: Ints | None
    beyond: int


class TaskstatsBackend(InputBackend):
    """Rows of `SCHEMA`, one for each job that has or had a task.

    Args:
        host: the machine.
        state_dir: where totals are kept for a restart of the agent; "" for nowhere.
        exit_buffer: bytes of the buffer for exit records of each CPU; None for the default.
        follow_forks: whether to listen to forks.
    """

    name = "taskstats"
    schema = SCHEMA
    agent_counters = AGENT_COUNTERS
    notes = NOTES
    provides = ("cpu_attributed",)
    capabilities = frozenset(("CAP_NET_ADMIN",))  # generic netlink, fork events, buffers beyond the system's limit
    DELAYACCT = "/proc/sys/kernel/task_delayacct"

    def __init__(
        self, host: Host, state_dir: str = "", exit_buffer: int | None = None, follow_forks: bool = True
    ) -> None:
        self._host = host
        self._exit_buffer = exit_buffer
        self._follow_forks = follow_forks
        self._client: TaskstatsClient | None = None
        self._exits: ExitRecords | None = None
        self._forks: ForkEvents | None = None
        self._totals = Accumulator(_TASK, age="ac_etime", steady=("cpu_run_virtual_total", "nvcsw", "ac_minflt"))
        self._waits = PlausibleWaits(_TASK, "ac_etime", WAITS)
        self._owners = Attribution()
        self._parties: dict[int, str] = {}  # who can have the reading of a job's processes wait
        self._child_cpu = ChildCpuTime(host, self._owners.owner, party=self._party)
        self._beyond: dict[int, int] = {}  # CPU time that no record told of, by job
        self._group_ns: dict[int, int] = {}  # CPU time of its cgroup, where no task of the job has ended since
        self._excess: dict[int, int] = {}  # CPU time that its tasks used beyond that of its cgroup, as of the last look
        # CPU time that its tasks, live and ended, are known to have used; for as long as the job is known to anybody
        self._attributed_ns: WeakKeyDictionary[Job, int] = WeakKeyDictionary()
        self._listed: set[int] = set()  # jobs whose tasks have been looked at
        self._received: list[Exits] = []  # not attributed yet
        self._finished: list[Ints] = []  # tasks of jobs that have ended since the last tick
        self._finished_count = 0
        self._dying: set[int] = set()  # that had, at the last tick, but were still listed
        self._overflows = 0  # of forks, as of the last look
        self._counted: Counter[str] = Counter()  # by sockets that were closed since
        self._delays = np.array([name in DELAY_FIELDS for name in FIELDS])
        self._delayacct = host.keep(self.DELAYACCT)
        self._told: set[str] = set()
        self._told_totals: dict[int, Ints] = {}  # as of the last look, by job
        self._state = StateFile(host, state_dir) if state_dir else None
        self._restored: dict[int, _Kept] = {}
        self._sampled: Sequence[Job] = ()  # at the last tick
        self._listen_at = math.inf  # when to try again to listen

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """Where totals are kept, and how tasks that end are heard of. It is always on itself."""
        parser.add_argument(
            "--state-dir",
            metavar="DIR",
            help=Rare(
                "keep the jobs' totals here across a restart of colmet-node; '': nowhere (default: the unit's "
                f"RuntimeDirectory=, else {DIRECTORY})"
            ),
        )
        parser.add_argument(
            "--exit-buffer",
            metavar="KIB",
            type=whole_number(1, 1 << 20),
            help=Rare(
                "receive buffer for the kernel's exit records, for each CPU; raise it if agent_default counts lost "
                "records (default: 2048 to 16384, by the number of CPUs)"
            ),
        )
        parser.add_argument(
            "--no-fork-events",
            action="store_true",
            help=Rare("do not listen to forks: attribute ended tasks by their parents alone"),
        )

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> TaskstatsBackend:
        """Always on."""
        buffer = None if options.exit_buffer is None else options.exit_buffer * 1024
        state_dir = options.state_dir
        if state_dir is None:
            state_dir = default_directory(os.environ.get("RUNTIME_DIRECTORY", ""))
        return cls(host, state_dir, buffer, not options.no_fork_events)

    def open(self) -> None:
        """Connect to the kernel and ask for one task, so that what is missing shows now; read what was kept.

        Raises:
            BackendUnavailable: no CAP_NET_ADMIN, or a kernel without taskstats.
        """
        self.close()
        self._client = TaskstatsClient()
        try:
            self._client.query(np.array([os.getpid()], dtype=np.int64))
        except PermissionError as err:
            raise BackendUnavailable(
                "reading taskstats needs CAP_NET_ADMIN: start colmet-node as root, or give it that capability"
            ) from err
        except OSError as err:
            raise BackendUnavailable(f"the kernel does not answer for a task: {err}") from err
        self._listen(self._client)
        if self._state is not None:
            self._state.open()
            self._restore(self._state.load())

    def _listen(self, client: TaskstatsClient) -> None:
        """Listen to what is not listened to yet; what cannot be is tried again later."""
        self._listen_at = time.monotonic() + LISTEN_AGAIN_S
        try:
            if self._exits is None:
                self._exits = ExitRecords(self._host, client.inbox, self._exit_buffer)
                self.fd = self._exits.fd
        except (BackendUnavailable, ParseError, OSError, ValueError) as err:
            self._tell("no exit records, what starts and ends between two samples is not counted: %s", err)
            return
        try:
            if self._forks is None and self._follow_forks:
                self._forks = ForkEvents(client.inbox)
        except (BackendUnavailable, OSError) as err:
            self._tell("no fork events, ended tasks are attributed by their parents alone: %s", err)

    def _tell(self, text: str, *arguments: object) -> None:
        """Warn once."""
        if text not in self._told:
            self._told.add(text)
            log.warning(text, *arguments)

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        """One row for each job that has or had a task."""
        ids = {job.id for job in jobs}
        self._totals.keep_only(ids)
        self._waits.keep_only(ids)
        self._listed &= ids
        self._told_totals = {job: totals for job, totals in self._told_totals.items() if job in ids}
        self._beyond = {job: beyond for job, beyond in self._beyond.items() if job in ids}
        self._group_ns = {job: group for job, group in self._group_ns.items() if job in ids}
        self._excess = {job: excess for job, excess in self._excess.items() if job in ids}
        self._parties = {job: party for job, party in self._parties.items() if job in ids}
        self._child_cpu.tick(ids)
        self._recognize(jobs)
        self._restored = {}  # the others ended while the agent was away
        wanted = self._exits is None or (self._forks is None and self._follow_forks)
        if wanted and self._client is not None and time.monotonic() >= self._listen_at:
            self._listen(self._client)
        rows = self._look(jobs, tick=True)
        if self._waits.dropped:
            self._tell(
                "the kernel counts waits of tasks that they cannot have had, growths of delays are dropped: one is of "
                "%.0f s; see delays_implausible of agent_default",
                self._waits.largest_ns / 1e9,
            )
        self._sampled = jobs
        self._keep(jobs)
        return rows

    def drain(self) -> Iterable[int]:
        """Take in exit records; the jobs that had one, and of which no task is known to live."""
        self._child_cpu.read()
        self._receive()
        ended = self._attribute()
        self._settle()
        # one that is being taken down may still be listed, and count as alive: few are worth a look, too
        return [job for job in ended if self._owners.alive(job) <= FEW]

    def notice(self, job: Job) -> None:
        """Look at a job's tasks, so that those they fork are known."""
        self._recognize([job])
        self._look([job], tick=False)

    def last(self, job: Job) -> Sample | None:
        """The totals at its end."""
        self._recognize([job])
        rows = self._look([job], tick=False)
        self._totals.forget(job.id)
        self._waits.forget(job.id)
        self._owners.forget(job.id)
        self._sampled = [other for other in self._sampled if other is not job]
        self._listed.discard(job.id)
        self._told_totals.pop(job.id, None)
        self._beyond.pop(job.id, None)
        self._group_ns.pop(job.id, None)
        self._excess.pop(job.id, None)
        self._parties.pop(job.id, None)
        return rows[0] if rows else None

    def job_value(self, name: str) -> JobValue:
        """Return `cpu_attributed`: CPU time in ns that the job's tasks, live and ended, are known to have used."""
        return {"cpu_attributed": self._attributed_ns.get}[name]

    def counters(self) -> Mapping[str, int]:
        """Exit records by what became of them, what was lost, and whether there are any."""
        return {
            **self._counts(),
            "exit_records_on": int(self._exits is not None),
            "fork_events_on": int(self._forks is not None),
        }

    def _counts(self) -> Counter[str]:
        counts = self._counted.copy()
        counts.update(
            exits_known=self._owners.known,
            exits_by_fork=self._owners.by_fork,
            exits_by_parent=self._owners.by_parent,
            exits_other=self._owners.other,
            delays_implausible=self._waits.dropped,
        )
        if self._client is not None:
            counts.update(answers_lost=self._client.lost)
        if self._exits is not None:
            exits = self._exits
            counts.update(exit_records=exits.records, exit_records_lost=exits.lost, exit_overflows=exits.overflows)
        if self._state is not None:
            counts.update(state_failures=self._state.failures)
        if self._forks is not None:
            counts.update(fork_events=self._forks.events, fork_overflows=self._forks.overflows)
        return counts

    def _look(self, jobs: Sequence[Job], tick: bool) -> list[Sample]:
        """Bring the totals of jobs up to date: of all of them (a tick), or of some between ticks."""
        if self._client is None:
            raise BackendUnavailable("taskstats is not open")
        listed = [np.array(job.tids(), dtype=np.int64) for job in jobs]
        # who is listed no more may have ended, or left; all in one query, as many tasks share the cost of a send
        absent = [_without(self._totals.last_seen(job.id)[0], tids) for job, tids in zip(jobs, listed)]
        asked = [tids for tids in (*listed, *absent) if len(tids)]
        wanted = asked[0] if len(asked) == 1 else np.unique(np.concatenate([_NO_TASKS, *asked]))
        if self._exits is not None:
            self._child_cpu.read()
        found, values = self._client.query(wanted)
        self._leave_out_delays(values)
        self._receive()  # after the query: of a task that no longer answers, the record has come
        self._parties.update((job.id, job.party) for job in jobs)
        members = {job.id: tids.tolist() for job, tids in zip(jobs, listed)}
        strangers = self._strangers(jobs, members, tick)
        if tick:
            self._owners.list_all(members, {job.id for job in jobs if not job.cgroups})
        else:
            for job in jobs:
                self._owners.list_one(job.id, members[job.id], closed=not job.cgroups)
        self._attribute()
        self._end(self._owners.retry())
        self._settle()
        finished = np.concatenate([_NO_TASKS, *self._finished, np.fromiter(self._dying, dtype=np.int64)])
        if tick:
            self._finished, self._finished_count, self._dying = [], 0, set()
        rows = []
        for job, tids_now, gone in zip(jobs, listed, absent):
            if len(gone):
                self._note_who_left(job.id, gone[np.isin(gone, found)], finished)
                self._note_who_vanished(job.id, gone[~np.isin(gone, found)], finished)
            keys, counters = _select(found, values, tids_now)
            keys, counters, reborn = self._leave_out(job.id, keys, counters, finished)
            counters = self._waits.update(job.id, keys, counters)
            self._owners.list_one(job.id, reborn)
            if reborn:  # its parent learns of the children that it had waited for
                self._child_cpu.watch(reborn, job.id)
            # strangers that are still listed and have ended are counted already
            totals = self._update(job, keys, counters, reborn, strangers.get(job.id, ()))
            self._listed.add(job.id)
            if totals is not None:
                self._told_totals[job.id] = totals
                rows.append(Sample(job.id, {**as_values(_TASK, totals), "cpu_total": self._attributed_ns[job]}))
        return rows

    def _update(
        self, job: Job, keys: Ints, values: Ints, reborn: Collection[int], strangers: Collection[int]
    ) -> Ints | None:
        """Bring a job's totals and its attributed CPU time up to date.

        Its cgroup counts the CPU time that is used in it alone. What its tasks used beyond that, those that were not
        there at the last look used elsewhere; their other counters are taken to have grown with it.

        Args:
            job: the job.
            keys: its live tasks.
            values: their values.
            reborn: which of them go on under the number of one that has ended.
            strangers: tasks that are known to come from elsewhere: without a cgroup that counts, nothing is the job's.
        """
        came = np.isin(keys, list(strangers) or _without(keys, self._totals.last_seen(job.id)[0]))
        totals = self._totals.update(job.id, keys, values, reborn=reborn)
        group_ns, beyond_ns = self._group_cpu_ns(job), self._beyond.get(job.id, 0)
        if totals is not None and came.any():
            share = 1.0 if strangers else 0.0
            cpu_ns = int(values[came, _VIRTUAL].sum())
            if group_ns is not None and cpu_ns:
                excess_ns = int(totals[_VIRTUAL]) - group_ns + (beyond_ns if strangers else -_ROUNDING_NS)
                share = min(1.0, max(0, excess_ns) / cpu_ns)
            if strangers or share:
                self._child_cpu.watch(keys[came].tolist(), job.id)
                used = np.where(values[came] == MISSING_INT, MISSING_INT, (values[came] * share).astype(np.int64))
                self._totals.came(job.id, used)
                totals = self._totals.update(job.id, keys, values)
        if totals is None:
            return None
        told_ns = int(totals[_VIRTUAL])
        cpu_ns = told_ns + beyond_ns
        if group_ns is not None:
            self._group_ns[job.id], self._excess[job.id] = group_ns, max(0, told_ns - group_ns)
        else:  # gone
            cpu_ns -= self._excess.get(job.id, 0)
            group_ns = self._group_ns.get(job.id, cpu_ns)
        self._attributed_ns[job] = max(min(cpu_ns, group_ns), self._attributed_ns.get(job, 0))
        return totals

    def _receive(self) -> None:
        """Take in the exit records that have come, and the forks before them."""
        if self._exits is None:
            return
        exits = self._exits.receive()
        if len(exits.ids):
            self._leave_out_delays(exits.values)
            self._received.append(exits)
        if self._forks is not None:
            self._owners.add_forks(self._forks.receive())

    def _leave_out_delays(self, values: Ints) -> None:
        """Of tasks' values, those that the kernel does not count."""
        if len(values) and not self._delays_are_counted():
            values[:, self._delays] = MISSING_INT

    def _attribute(self) -> list[int]:
        """Count ended tasks to their jobs; these jobs."""
        jobs: list[int] = []
        while self._received:  # what could not be attributed when it came is still there
            jobs += self._end(self._owners.take(self._received.pop(0)))
        return jobs

    def _end(self, shares: Iterable[tuple[int, Exits]]) -> list[int]:
        jobs = []
        for job, exits in shares:
            tids = exits.ids[:, 0]
            self._totals.end(job, tids, self._waits.end(job, tids, exits.values))
            self._group_ns.pop(job, None)
            told = exits.values[:, _VIRTUAL]
            beyond = np.where(told < _LONG_NS, exits.values[:, _REAL] - told, 0)
            self._child_cpu.add(exits.ids.tolist(), told.tolist(), beyond.tolist())
            self._beyond[job] = self._beyond.get(job, 0) + int(beyond.sum())
            self._finished.append(tids)
            self._finished_count += len(tids)
            while self._finished_count > MAX_FINISHED:  # who ended long ago is not being taken down any more
                self._finished_count -= len(self._finished.pop(0))
            jobs.append(job)
        return jobs

    def _settle(self) -> None:
        """Count what processes are charged with beyond what the records of their descendants told."""
        for job, beyond in self._child_cpu.settle().items():
            self._beyond[job] = self._beyond.get(job, 0) + beyond

    def _strangers(self, jobs: Sequence[Job], members: Mapping[int, Sequence[int]], tick: bool) -> dict[int, list[int]]:
        """The tasks that have come to a job from elsewhere: what they have used by now, they used there.

        Tasks that were there before the agent looked are no strangers, nor are children of the job's tasks, nor those
        that go on under the number of one that has ended, nor, at a tick, those that may have come any time since the
        last.
        """
        overflows, self._overflows = self._overflows, 0 if self._forks is None else self._forks.overflows
        forks_are_known = self._forks is not None and overflows == self._overflows
        strangers: dict[int, list[int]] = {}
        for job in jobs:
            if job.id not in self._listed and not job.witnessed:
                continue
            tids = set(members[job.id])
            unknown = self._owners.strangers(job.id, tids)
            known = np.concatenate([self._totals.last_seen(job.id)[0], *self._finished]).tolist() if unknown else []
            new = sorted(set(unknown).difference(known))
            came = {tid for tid in new if self._owners.was_elsewhere(tid)}
            if forks_are_known and not tick:
                # one that does not answer counts as the job's own: nothing of it is taken off
                stats = self._stats(job.id, new)
                came |= {
                    tid for tid, stat in stats if stat is None or (isinstance(stat, Stat) and stat.parent not in tids)
                }
            if came:
                strangers[job.id] = sorted(came)
        return strangers

    def _group_cpu_ns(self, job: Job) -> int | None:
        """CPU time of all that ever was in the job's cgroup; None where nothing tells."""
        for controller, name, start, unit_ns in (
            ("cpuacct", "cpuacct.usage", b"", 1),
            ("unified", "cpu.stat", b"usage_usec ", 1000),
        ):
            directory = job.directory(controller)
            if directory is None:
                continue
            try:
                line = self._host.read(f"{directory}/{name}").partition(b"\n")[0]
            except OSError as err:
                if not is_gone(err):
                    raise
                continue
            if line.startswith(start) and line[len(start) :].isdigit():
                return int(line[len(start) :]) * unit_ns
        return None

    def _note_who_left(self, job: int, tids: Ints, finished: Ints) -> None:
        """Of tasks that answer, but that their job does not list any more: those that live on have left it."""
        for tid in self._alive(job, tids[~np.isin(tids, finished)].tolist(), unasked=True):
            self._owners.leave(job, tid)

    def _note_who_vanished(self, job: int, tids: Ints, finished: Ints) -> None:
        """Of tasks that do not answer any more: where no record told, what was last seen of them is counted."""
        vanished = tids[~np.isin(tids, finished)]
        if len(vanished):
            keys, values = self._totals.last_seen(job)
            self._child_cpu.owe(job, int(values[np.isin(keys, vanished), _VIRTUAL].sum()))

    def _leave_out(self, job: int, keys: Ints, values: Ints, finished: Ints) -> tuple[Ints, Ints, list[int]]:
        """Without the tasks whose final values are counted already, though they are still being taken down.

        Returns:
            Keys, values, and those of the keys that are used again by a task that lives.
        """
        if not len(finished):
            return keys, values, []
        told = np.isin(keys, finished)
        if not told.any():
            return keys, values, []
        ended = set(keys[told].tolist())
        reborn = self._alive(job, sorted(ended), unasked=False)
        self._dying |= ended.difference(reborn)
        if reborn:
            told &= ~np.isin(keys, reborn)
            self._finished = [tids[~np.isin(tids, reborn)] for tids in self._finished]
            self._dying.difference_update(reborn)
        return keys[~told], values[~told], reborn

    def _alive(self, job: int, tids: Sequence[int], unasked: bool) -> list[int]:
        """Those that exist and are not about to end; with `unasked` also those that could not be asked.

        A task that ends holds no lock that a reader waits for: one for which a reader waits is alive.
        """
        alive = []
        for tid, stat in self._stats(job, tids):
            if isinstance(stat, NoAnswer):
                lives = unasked or self._host.processes.is_waited_for(tid)
            else:
                lives = stat is not None and not stat.is_ending
            if lives:
                alive.append(tid)
        return alive

    def _stats(self, job: int, tids: Sequence[int]) -> Iterable[tuple[int, Stat | NoAnswer | None]]:
        """What the kernel says of tasks of a job; None of those that have ended."""
        return zip(tids, ask_stats(self._host, [(tid, self._party(job)) for tid in tids]))

    def _party(self, job: int) -> str:
        return self._parties.get(job) or f"job {job}"

    def _keep(self, jobs: Sequence[Job]) -> None:
        """Keep all totals for a restart, before they are sent: so they are never lower after it."""
        if self._state is None:
            return
        head, parts, excess, tasks = [], [], [], 0
        for job in jobs:
            kept = self._totals.keep(job.id)
            if kept is None or job.id not in self._told_totals:
                continue
            sums, keys, values, floor = kept
            if tasks + len(keys) > MAX_KEPT_TASKS:
                # its totals will not go down, but are short of what its tasks use until they have caught up
                keys, values, floor = keys[:0], values[:0], self._told_totals[job.id]
            if floor is not None:
                parts.append(self._told_totals[job.id])
            tasks += len(keys)
            parts += [sums, keys, values]
            excess.append(self._waits.excess(job.id, keys))
            head.append({"job": job.id, "identity": job.identity, "tasks": len(keys), "floor": floor is not None})
            cpu_ns = self._attributed_ns.get(job, 0)
            head[-1]["beyond"] = cpu_ns - int(self._told_totals[job.id][_VIRTUAL])
        text = json.dumps({"schema": SCHEMA.digest.hex(), "jobs": head, "waits": len(WAITS)}).encode()
        self._state.save(b"".join([_HEAD.pack(len(text)), text, *[part.tobytes() for part in parts + excess]]))

    def _restore(self, data: bytes | None) -> None:
        """Read what `_keep` wrote; it is used as its jobs are found again."""
        self._restored = {}
        if data is None:
            return
        try:
            self._restored = _read_kept(data)
        except (ValueError, KeyError, TypeError, OverflowError, struct.error) as err:
            log.warning("kept totals are of another version of Colmet, and are not used: %s", err)

    def _recognize(self, jobs: Sequence[Job]) -> None:
        """Go on with the totals of jobs that were here before the agent's restart."""
        for job in jobs if self._restored else ():
            kept = self._restored.pop(job.id, None)
            if kept is not None and kept.identity == job.identity and not self._totals.knows(job.id):
                self._totals.restore(job.id, kept.sums, kept.keys, kept.values, kept.floor)
                self._waits.restore(job.id, kept.keys, kept.values, kept.excess)
                self._beyond[job.id] = kept.beyond
                log.info("totals go on from before the agent's restart job=%d tasks=%d", job.id, len(kept.keys))

    def _delays_are_counted(self) -> bool:
        try:
            counted = self._delayacct.read().strip() != b"0"
        except FileNotFoundError:  # before Linux 5.14 there was no switch: on where it is compiled in
            return True
        if not counted:
            self._tell(
                "kernel.task_delayacct is 0: the delays for block I/O, swap and reclaim are missing; "
                "set it with: sysctl kernel.task_delayacct=1 (it counts for tasks started from then on)"
            )
        return counted

    def close(self) -> None:
        """Keep what has come since the last tick, and close the sockets; also twice."""
        if self._client is not None and self._sampled:
            with contextlib.suppress(OSError, ParseError):
                self.drain()
            self._keep(self._sampled)
        self._sampled = ()
        counted = self._counts()
        self.fd = -1
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._exits is not None:
            self._exits.close()
            self._exits = None
        if self._forks is not None:
            self._forks.close()
            self._forks = None
        counted.subtract(self._counts())
        self._counted.update(counted)
        self._delayacct.close()
        if self._state is not None:
            self._state.close()


def _without(keys: Ints, others: Ints) -> Ints:
    """Those of the keys that are not among the others."""
    if np.array_equal(keys, others):  # the usual tick
        return _NO_TASKS
    return keys[~np.isin(keys, others)]


def _select(found: Ints, values: Ints, tids: Ints) -> tuple[Ints, Ints]:
    """The answers of some tasks among all answers."""
    if np.array_equal(found, tids):
        return found, values
    place = np.searchsorted(found, tids)
    place = place[np.append(found, -1)[place] == tids]
    return found[place], values[place]


def _read_kept(data: bytes) -> dict[int, _Kept]:
    """Read what `TaskstatsBackend._keep` wrote, by job.

    Raises:
        ValueError, KeyError, TypeError, OverflowError, struct.error: another form.
    """
    (length,) = _HEAD.unpack_from(data)
    head = json.loads(data[_HEAD.size : _HEAD.size + length])
    if head["schema"] != SCHEMA.digest.hex():
        raise ValueError("other columns")
    width, waits, place = len(FIELDS), int(head.get("waits", 0)), _HEAD.size + length
    if waits not in (0, len(WAITS)):
        raise ValueError("other waits")

    def take(rows: int, columns: int) -> Ints:
        nonlocal place
        array = np.frombuffer(data, "<i8", rows * columns, place).reshape(rows, columns)
        place += array.nbytes
        return array.astype(np.int64)

    kept = {}
    for one in head["jobs"]:
        floor = take(1, width)[0] if one["floor"] else None
        sums, keys, values = take(2, width), take(one["tasks"], 1)[:, 0], take(one["tasks"], width)
        none = np.zeros((len(keys), len(WAITS)), dtype=np.int64)
        kept[int(one["job"])] = _Kept(str(one["identity"]), sums, keys, values, none, floor, int(one["beyond"]))
    for job, one in kept.items() if waits else ():
        kept[job] = one._replace(excess=take(len(one.keys), waits))
    return kept
