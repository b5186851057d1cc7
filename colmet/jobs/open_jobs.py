"""The jobs whose folds are open: which job and run each row is of, and when a job is over.

A number that is used again is another job: rows have the number of their run, or their times and first tasks decide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colmet.common.daemon.pacing import Shares
from colmet.common.measures import CGROUP_TABLE, PROCESSES_TABLE, TASKS_TABLE
from colmet.common.schema import Batch
from colmet.common.wire.limits import MAX_JOBS
from colmet.jobs.fold_layout import Ints, Mask, TablePart
from colmet.jobs.fold_nodes import NodeFolds
from colmet.jobs.fold_state import MOST_FOLDS, FoldState, Head, Rows, RunOf

OLDEST_S = 400 * 86400  # an older start is not believed
# For rows without the number of their run: rows of a job after such a pause are of another run, unless its first task
# is an earlier one.
DAY_S = 86400
WITH_RUNS = (CGROUP_TABLE, TASKS_TABLE, PROCESSES_TABLE)
# In place of the slot of a row: no fold has its run, or its run has ended and the row is late.
NO_RUN, FORMER = -1, -2
NO_LIST_PERIODS, NO_LIST_S = 3, 60  # after the last row, a job on a node that lists no jobs is over
SILENT_S = 3600  # by the time of reception, after which a job on a silent node is over
KEPT_S = 600  # a fold is kept so long after the job's last row, for rows that are late
KEPT_SILENT_S = 4 * DAY_S  # and of a silent node, by the time of reception: its agent may be away over a weekend
KEPT_HEARD_S = DAY_S  # and of a node that goes on sending without rows of the job, whatever its clock
_NEVER = (-1,)  # no list of jobs


class OpenJobs:
    """The jobs on all hosts whose folds are open.

    Attributes:
        dropped: slots whose fold ends with the next `release`.
        open_on: slots of the present runs, by host and job.
    """

    def __init__(self, state: FoldState, nodes: NodeFolds) -> None:
        self.state, self.nodes = state, nodes
        self.dropped: list[int] = []
        self.open_on: dict[int, dict[int, int]] = {}
        self._listed: dict[int, tuple[int, ...] | None] = {}  # jobs of the host's last batch
        self._changed: set[int] = set()  # hosts with other slots since then
        self._shares = Shares(MOST_FOLDS)  # by host, with the dropped slots
        self._back: dict[int, int] = {}  # hosts that were silent for long, and when they were heard again

    def indices_of(self, names: Sequence[str]) -> list[int]:
        """Return the indices of hosts, -1 for too many; the longest silent ones without jobs make room for others."""
        found: list[int] = []
        for name in names:
            index = self.nodes.index(name)
            if index < 0:
                busy = {*found, *self.open_on, *self.state.head[self.dropped, Head.HOST].tolist()}
                for idle in self.nodes.forget(busy):
                    self._listed.pop(idle, None)
                    self._changed.discard(idle)
                index = self.nodes.index(name)
            found.append(index)
        return found

    def find_slots(self, part: TablePart, known: Sequence[tuple[TablePart, Ints]] = ()) -> Ints:
        """Return the slot of each row, -1 for none; `known` are those of other tables, which may have the same rows."""
        for other, slots in known:
            if np.array_equal(part.jobs, other.jobs) and np.array_equal(part.hosts, other.hosts):
                return slots.copy()
        open_on = self.open_on
        nothing: dict[int, int] = {}
        found = [open_on.get(host, nothing).get(job, -1) for host, job in zip(part.hosts.tolist(), part.jobs.tolist())]
        return np.array(found, dtype=np.int64)

    def end_other_runs(self, part: TablePart, slots: Ints, btimes: Ints | None, same: set[int]) -> list[int]:
        """End runs whose rows here are of another run of the same job id; return their slots, -1 for the rows now.

        Rows have the number of their run. Those of older nodes do not: their times decide, and the starts of their
        first tasks (`btimes`; None for another table). `same` are slots whose first task is an earlier one than their
        last row: after a pause they are of the same run.
        """
        head = self.state.head
        there = np.flatnonzero(slots >= 0)
        last = head[slots[there], Head.LAST]
        times = part.times[there]
        is_known, is_new = self._known_runs(part, slots, there)
        other = times - last > DAY_S
        if btimes is not None:
            began = btimes[there]
            is_same = other & (began > times - OLDEST_S) & (began <= last)
            same.update(slots[there[is_same]].tolist())
            # a cgroup may be there, and measured, before its first task: OAR's is for seconds
            had_tasks = self.state.tables[TASKS_TABLE][slots[there], Rows.TIME] >= 0
            was = had_tasks | (head[slots[there], Head.OVER] > 0)
            # on a busy node a row is read seconds after its time: its first task may be younger than the row
            was &= np.abs(began - np.abs(head[slots[there], Head.BEGAN])) > 1
            other = (other & ~is_same) | (was & (began > last) & (began <= times + 1) & (times > last))
        elif same and other.any():
            other &= ~np.isin(slots[there], list(same))
        ended = []
        for at in there[np.where(is_known, is_new, other)].tolist():
            slot, host = int(slots[at]), int(part.hosts[at])
            self.end(slot)
            self.forget(slot)
            ended.append(slot)
            slots[at] = NO_RUN
            self._changed.add(host)
        return ended

    def _known_runs(self, part: TablePart, slots: Ints, there: Ints) -> tuple[Mask, Mask]:
        """Return which rows with a slot are of a known run, and which of these are the first of another run.

        Slots of rows of the run before become `FORMER`.
        """
        runs = self.state.runs[slots[there]]
        if part.name not in WITH_RUNS:
            is_known = runs[:, RunOf.RUN] > 0
            return is_known, np.zeros(len(there), np.bool_)
        own = part.values[there, -2]
        is_known = (own > 0) & (runs[:, RunOf.RUN] > 0)
        is_former = is_known & (own == runs[:, RunOf.FORMER_RUN])
        slots[there[is_former]] = FORMER
        return is_known, is_known & (own != runs[:, RunOf.RUN]) & ~is_former

    def begin(self, job: int, host: int, first: int, btime: int, before: tuple[int, int] | None, now: int) -> None:
        """Begin the fold of a run; `before` are the number and the start of the one before, if it ends here."""
        if job <= 0:
            return
        if self.open_on.get(host, {}).get(job, -1) >= 0:
            return
        slot = self._take(host)
        if slot < 0:
            return
        is_known = first - OLDEST_S < btime <= first + 1
        row = self.state.head[slot]
        row[[Head.JOB, Head.HOST, Head.FIRST, Head.LAST, Head.SEEN]] = job, host, first, first, now
        row[Head.START], row[Head.BEGAN] = (min(btime, first), btime) if is_known else (first, 0)
        if before is not None:
            self.state.runs[slot, RunOf.FORMER_RUN] = before[0]
            row[Head.START] = max(row[Head.START], before[1] + 1)  # two runs of a second have two keys
        self.open_on.setdefault(host, {})[job] = slot
        self._changed.add(host)

    def _take(self, host: int) -> int:
        """Take a slot for a new job on a host; -1 for none before the next `release`.

        A host has as many unfinished folds as jobs at a time, and no more than it leaves free for others: beyond, its
        own oldest ends. That one keeps its slot until it is written.
        """
        there, name = self.open_on.get(host, {}), self.nodes.names[host]
        if there and (len(there) >= MAX_JOBS or self._shares.room(name) <= 0):
            slots = np.array(list(there.values()))
            head = self.state.head[slots]
            oldest = int(slots[np.lexsort((head[:, Head.SEEN], head[:, Head.OVER] == 0))[0]])
            self.end(oldest)
            self.forget(oldest)
        if self._shares.room(name) <= 0 or self._shares.held(name) >= 2 * MAX_JOBS:
            return -1
        slot = self.state.take()
        if slot >= 0:
            self._shares.hold(name, 1)
        return slot

    def resume(self, job: int, host: str, packed: bytes) -> int:
        """Continue a packed fold; return its slot, -1 for too many. ValueError if it is damaged."""
        at = self.nodes.index(host)
        is_full = len(self.open_on.get(at, ())) >= MAX_JOBS
        slot = self.state.unpack(packed, at) if at >= 0 and not is_full else -1
        if slot >= 0:
            self._shares.hold(host, 1)
            self.open_on.setdefault(at, {})[job] = slot
        return slot

    def note_listings(self, batches: Sequence[Batch], hosts: Ints, seen: Ints) -> None:
        """Note which jobs are on the nodes of a wave."""
        times = np.array([batch.time_ns for batch in batches], np.int64) // 10**9
        was_silent = seen - self.nodes.seen(hosts) > KEPT_S
        self._back.update(zip(hosts[was_silent].tolist(), seen[was_silent].tolist()))
        newer = self.nodes.heard(hosts, times, seen)
        listed, changed = self._listed, self._changed
        for batch, host, is_newer in zip(batches, hosts.tolist(), newer):
            jobs = batch.jobs
            if is_newer and (jobs is None or jobs != listed.get(host, _NEVER) or host in changed):
                self._listing(batch, host)

    def _listing(self, batch: Batch, host: int) -> None:
        """Note which jobs are on a node."""
        time = batch.time_ns // 10**9
        there = self.open_on.get(host)
        if not there:
            self._listed[host] = batch.jobs
            return
        head = self.state.head
        if batch.jobs is None:
            for slot in there.values():
                step = max([int(one[slot, Rows.STEP]) for one in self.state.tables.values()])
                self._set_over(slot, time - int(head[slot, Head.LAST]) > max(NO_LIST_PERIODS * step, NO_LIST_S))
        else:
            listed = set(batch.jobs)
            for job, slot in there.items():
                self._set_over(slot, job not in listed)
        self._listed[host] = batch.jobs
        self._changed.discard(host)

    def _set_over(self, slot: int, over: bool) -> None:
        head = self.state.head
        if bool(head[slot, Head.OVER]) != over:
            head[slot, Head.OVER] = over
            self.state.touched[slot] = True

    def end(self, slot: int) -> None:
        """Note that a job is over."""
        self._set_over(slot, True)

    def sweep(self, now: int) -> None:
        """End the jobs of silent nodes, and drop the folds of jobs that have long been over; `now` as `seen`."""
        state = self.state
        head = state.head
        silent = state.used & (head[:, Head.OVER] == 0) & (now - head[:, Head.SEEN] > SILENT_S)
        for slot in np.flatnonzero(silent).tolist():
            self.end(slot)
            self._changed.add(int(head[slot, Head.HOST]))
        host_time = self.nodes.times(head[:, Head.HOST])
        # rows that waited on the node come for minutes after an outage, behind the new ones
        self._back = {host: since for host, since in self._back.items() if 0 <= now - since <= KEPT_S}
        back = np.array([self._back.get(host, 0) for host in head[:, Head.HOST].tolist()], np.int64)
        is_quiet = now - np.maximum(head[:, Head.SEEN], back) > KEPT_S
        old = state.used & (head[:, Head.OVER] > 0)
        old &= (
            ((host_time - self._last_times() > KEPT_S) & is_quiet)
            | (now - head[:, Head.SEEN] > KEPT_SILENT_S)
            | (self.nodes.seen(head[:, Head.HOST]) - head[:, Head.SEEN] > KEPT_HEARD_S)
        )
        for slot in np.flatnonzero(old).tolist():
            self.forget(slot)

    def seen_by(self, now: int) -> None:
        """Note that all rows came by `now`, as the clock was set back to that."""
        head = self.state.head
        late = self.state.used & (head[:, Head.SEEN] > now)
        head[late, Head.SEEN] = now
        self.state.touched |= late
        self.nodes.seen_by(now)

    def end_gone(self) -> None:
        """End the jobs whose nodes have later rows without them: stored rows have no lists of jobs."""
        head = self.state.head
        gone = self.state.used & (self.nodes.times(head[:, Head.HOST]) > self._last_times())
        for slot in np.flatnonzero(gone).tolist():
            self.end(slot)

    def _last_times(self) -> Ints:
        """Return the time of the last row of each slot, by the clock of then."""
        return np.asarray(self.state.head[:, Head.LAST] - self.state.runs[:, RunOf.CLOCK_STEP])

    def forget(self, slot: int) -> None:
        """Give up a fold after its last summary is written."""
        job, host = int(self.state.head[slot, Head.JOB]), int(self.state.head[slot, Head.HOST])
        there = self.open_on.get(host, {})
        if there.get(job) == slot:
            del there[job]
            if not there:
                del self.open_on[host]
            self.dropped.append(slot)

    def release(self) -> None:
        """Free the slots of dropped folds."""
        for host in self.state.head[self.dropped, Head.HOST].tolist():
            self._shares.hold(self.nodes.names[host], -1)
        self.state.release(self.dropped)
        self.dropped = []
