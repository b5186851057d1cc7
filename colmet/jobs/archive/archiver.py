"""From records of the journal to what is written to the archive: order, fold, summaries, and the state in between."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from colmet.common.errors import OutputUnavailable, is_later, later_form
from colmet.common.schema import Batch
from colmet.jobs.archive.store import AWAY, ArchiveStore, Changes, HostKey
from colmet.jobs.columns import Summary, Value, whole_of
from colmet.jobs.fold import Fold
from colmet.jobs.fold_state import FORM as FOLD_FORM
from colmet.jobs.fold_state import Head, form_of
from colmet.jobs.host_summaries import host_summaries, samples_of
from colmet.jobs.job_summaries import job_summary, keyed_runs, moves_of

log = logging.getLogger(__name__)

FORM = 1  # of the state besides the folds
WHOLE: HostKey = (0, "", 0)  # its key among the folds
NS = 1_000_000_000
EXPIRE_S, SWEEP_S = 10, 60  # by the time of reception
COUNTS = ("jobs", "hosts", "late_rows", "rows_left_out", "folds_lost", "summaries_kept")
EVERY_S = 10, 600  # a running job is written again after a third of its age, within these bounds


class Archiver:
    """Folds records, and keeps what a restart needs.

    `counts`, of an earlier one for the same archive, continue: written summaries, and dropped rows and states by cause,
    see `COUNTS`. `until` is the number of the first record that was not folded.
    """

    def __init__(self, store: ArchiveStore, counts: Counter[str] | None = None) -> None:
        self._store = store
        self.until = self._now = 0
        self.fold, self._order = Fold(), Ordering()
        self.counts: Counter[str] = Counter() if counts is None else counts
        self._pending: np.ndarray[tuple[int], np.dtype[np.int64]] = np.empty(0, np.int64)
        self._held: list[Arrival] = []  # at the last save
        self._missed: set[tuple[int, int]] = set()  # held at a restart: they are read again
        self._begin: int | None = None  # in another journal, until the first save
        self._lost: set[HostKey] = set()  # keys of unreadable folds, until the first save
        self._better: dict[HostKey, Summary] = {}  # summaries with more samples than the fold of the same key
        self._load([])

    @property
    def position(self) -> int:
        """Return the number of the first record that a restart needs."""
        waiting = [one.number for one in self._order.waiting()] + [number for number, _ in self._missed]
        return min([self.until, *waiting])

    @property
    def is_rereading(self) -> bool:
        """Return whether batches that waited at the restart are still to be read again."""
        return bool(self._missed)

    def counters(self) -> dict[str, int]:
        """Return the numbers of open folds and waiting batches, and of what was dropped."""
        return {
            "open": self.fold.state.count,
            "held": self._order.count(),
            **{name: self.counts[name] for name in COUNTS},
        }

    # -- records --

    def take(self, records: Iterable[tuple[int, int, Sequence[Batch]]]) -> None:
        """Fold records of the journal that were not folded before: number, time of reception in ns, and batches."""
        ready: list[Arrival] = []  # the next batches of their hosts
        for number, received_ns, batches in records:
            if number < self.until and not self._missed:
                continue
            now = received_ns // NS
            if number >= self.until and now < self._now - EXPIRE_S:  # the clock was ahead: go on by the one of now
                self._now = now
                self._order.seen_by(now)
                self.fold.jobs.seen_by(now)
            if now > self._now:
                if now // EXPIRE_S > self._now // EXPIRE_S:
                    ready += self._order.expired(now)
                if now // SWEEP_S > self._now // SWEEP_S:
                    self._waves(ready)
                    ready = []
                    self.fold.jobs.sweep(now)
                self._now = now
            for place, batch in enumerate(batches):
                if number < self.until:
                    if (number, place) not in self._missed:
                        continue
                    self._missed.discard((number, place))
                arrival = Arrival(batch, now, number, place)
                if self._order.follows(batch):
                    ready.append(arrival)
                else:
                    ready += self._order.put(arrival)
            if number >= self.until:
                self._missed.clear()
                self.until = number + 1
        self._waves(ready)
        self.counts.update(self.fold.counts)
        self.fold.counts.clear()

    def _waves(self, ready: Sequence[Arrival]) -> None:
        """Fold batches, at most one of each host at a time."""
        turns: Counter[str] = Counter()
        waves: list[list[Arrival]] = []
        for one in ready:
            turn = turns[one.batch.host]
            turns[one.batch.host] += 1
            if turn == len(waves):
                waves.append([])
            waves[turn].append(one)
        for wave in waves:
            self.fold.wave([one.batch for one in wave], [one.seen for one in wave])

    def end(self, over: bool) -> None:
        """Fold all batches that wait for others; with `over`, also end jobs that their nodes have no more rows of."""
        self._waves([one for host in list(self._order.held) for one in self._order.release(host)])
        if over:
            self.fold.jobs.end_gone()

    # -- what is written --

    def changes(self, whole: bool = False) -> Changes:
        """Return what has changed since the last `saved`; with `whole`, all summaries of running jobs, too."""
        state = self.fold.state
        slots = self.fold.due(*((0, 0) if whole else EVERY_S))
        self._pending = slots
        hosts = [*self._cut_short(), *map(self._chosen, host_summaries(self.fold, slots) if len(slots) else [])]
        state.head[slots, Head.WRITTEN] = state.head[slots, Head.LAST]
        jobs, moves = self._jobs(hosts)
        folds: dict[HostKey, bytes | None] = dict.fromkeys(self._lost)
        folds.update({self._key(slot): None for slot in self.fold.jobs.dropped})
        kept = state.used & state.touched
        kept[self.fold.jobs.dropped] = False
        some = np.flatnonzero(kept)
        folds.update(zip([self._key(slot) for slot in some.tolist()], state.pack(some)))
        folds[WHOLE] = self._packed()
        return Changes(hosts, jobs, folds, moves)

    def saved(self, changes: Changes) -> None:
        """Note that all changes are in the archive."""
        self.counts["hosts"] += len(changes.hosts)
        self.counts["jobs"] += len(changes.jobs)
        self.fold.state.touched[:] = False
        self.fold.state.unwritten[self._pending] = False
        self.fold.jobs.release()
        self._held = self._order.waiting()
        self._begin = None
        self._lost.clear()

    def restart(self) -> None:
        """Go back to the state of the archive, after a defect."""
        self._load(self._held)
        if self._begin is not None:  # the archive has the place in the former journal, or none
            self.other_journal(self._begin)

    def _cut_short(self) -> list[dict[str, Value]]:
        """Return the summaries whose folds were unreadable: those of jobs that go on are written again."""
        rows = [row for job in {key[0] for key in self._lost} for row in self._store.hosts_of(job)]
        return [{**row, "is_running": 0} for row in rows if (row["job"], row["host"], row["start"]) in self._lost]

    def _chosen(self, summary: dict[str, Value]) -> dict[str, Value]:
        """Return the summary to write: after a lost fold the former one, while it has more samples; see `former`."""
        key = whole_of(summary["job"]), str(summary["host"]), whole_of(summary["start"])
        better = self._better.get(key)
        if better is None or whole_of(summary["rows"]) >= whole_of(better["rows"]):
            return summary
        return {**better, "is_running": summary["is_running"]}

    def _key(self, slot: int) -> HostKey:
        head = self.fold.state.head[slot]
        return int(head[Head.JOB]), self.fold.nodes.names[int(head[Head.HOST])], int(head[Head.START])

    def _jobs(self, hosts: Sequence[Mapping[str, Value]]) -> tuple[list[Summary], list[tuple[int, int, int]]]:
        """Return the summaries of the jobs of some hosts, and the jobs whose start has changed."""
        changed: dict[int, dict[tuple[object, object], Mapping[str, Value]]] = {}
        for one in hosts:
            changed.setdefault(whole_of(one["job"]), {})[one["host"], one["start"]] = one
        jobs: list[Summary] = []
        moves: list[tuple[int, int, int]] = []
        for job, fresh in changed.items():
            has_others = any(key not in fresh for key in self._store.keys_of(job))
            others = self._store.hosts_of(job) if has_others else []
            others = [one for one in others if (one["host"], one["start"]) not in fresh]
            keyed = keyed_runs([*fresh.values(), *others], self._store.records_of(job))
            moves += [(job, *move) for move in moves_of(self._store.measured_starts(job), keyed)]
            # another user's job may have the start of one that is written
            begins = {min([whole_of(one["start"]) for one in run]) for run in keyed.values()}
            for start, run in keyed.items():
                if len(begins) < len(keyed) or any((one["host"], one["start"]) in fresh for one in run):
                    jobs.append({**job_summary(run), "start": start})
        return jobs, moves

    # -- the state of a restart --

    def _packed(self) -> bytes:
        names, rows = self.fold.nodes.pack()
        known = {*names, *self._order.held}
        self._order.next = {host: where for host, where in self._order.next.items() if host in known}
        document = {
            "form": FORM,
            "until": self.until,
            "now": self._now,
            "names": names,
            "next": [[host, *where] for host, where in self._order.next.items()],
            "held": [[one.number, one.place] for one in self._order.waiting()] + [list(one) for one in self._missed],
        }
        return json.dumps(document, separators=(",", ":")).encode() + b"\n" + rows

    def _load(self, held: Sequence[Arrival]) -> None:
        """Read the state from the archive; `held` are known waiting batches. OutputUnavailable for a later version."""
        self.fold, self._order = Fold(), Ordering()
        self._now = 0
        self._missed, self._lost, self._better = set(), set(), {}
        folds = self._store.folds()
        packed = folds.pop(WHOLE, None)
        if packed is not None:
            self._restore(packed, held)
        written = self._store.rows_of_folds()
        for (job, host, start), state in folds.items():
            self._check_form(form_of(state), FOLD_FORM)
            try:
                slot = self.fold.jobs.resume(job, host, state)
            except ValueError as err:
                slot = -1
                log.error(
                    "fold unreadable, its summary ends here: job=%d host=%s start=%d cause=%s", job, host, start, err
                )
            if slot < 0:
                self._lost.add((job, host, start))
                self.counts["folds_lost"] += 1
            if written.get((job, host, start), 0) > (samples_of(self.fold, np.array([slot]))[0] if slot >= 0 else 0):
                better = [one for one in self._store.hosts_of(job) if (one["host"], one["start"]) == (host, start)]
                self._better[job, host, start] = better[0]
                self.counts["summaries_kept"] += 1

    def _check_form(self, form: object, reads: int) -> None:
        if is_later(form, reads):
            raise OutputUnavailable(later_form(self._store.path, f"of the state {form}", reads, AWAY))

    def _restore(self, packed: bytes, held: Sequence[Arrival]) -> None:
        try:
            text, _, rows = packed.partition(b"\n")
            document = json.loads(text)
            self._check_form(document["form"], FORM)
            if document["form"] != FORM:
                raise ValueError("of another form")
            self.fold.nodes.unpack([str(name) for name in document["names"]], rows)
            self.until, self._now = int(document["until"]), int(document["now"])
            following = {str(host): (int(epoch), int(seq)) for host, epoch, seq in document["next"]}
            self._order.restore(following, list(held))
            kept = {(one.number, one.place) for one in held}
            self._missed = {(int(number), int(place)) for number, place in document["held"]} - kept
        except (ValueError, KeyError, TypeError) as err:
            self.counts["folds_lost"] += 1
            log.error("state of the nodes unreadable, it starts empty: archive=%s cause=%r", self._store.path, err)

    def other_journal(self, position: int) -> None:
        """Go on with the records of another journal."""
        self.until = self._begin = position
        self._missed.clear()

    def follow(self, other: Archiver) -> None:
        """Go on with the records after those of another archiver, whose waiting batches are folded here."""
        self.other_journal(other.until)
        self._order.restore(other._order.next, [])


HOLD_S = 60  # longest time by reception that a batch waits for the ones before it
MOST_BYTES = 64 << 20  # of waiting batches
FIRST_SEQ = 1  # of an agent's first batch
FEW = 1000  # a new host whose first batch has a later number has sent the others before, or to no collector


class Arrival(NamedTuple):
    """A batch, and where it was received."""

    batch: Batch
    seen: int  # time of reception, seconds since 1970
    number: int  # of its record in the journal
    place: int  # in that record


class Ordering:
    """Puts the batches of each agent in the order of their numbers, if missing ones arrive within `HOLD_S`.

    Attributes:
        next: of each host, the epoch of its present agent and the number of the next batch.
        held: batches that wait, by host and number.
    """

    def __init__(self) -> None:
        self.next: dict[str, tuple[int, int]] = {}
        self.held: dict[str, dict[int, Arrival]] = {}
        self._bytes = 0

    def follows(self, batch: Batch) -> bool:
        """Return whether a batch is the next one of its host, and no other waits; if so, the one after it is next."""
        if self.next.get(batch.host) != (batch.epoch, batch.seq) or batch.seq is None or batch.host in self.held:
            return False
        self.next[batch.host] = batch.epoch or 0, batch.seq + 1
        return True

    def put(self, arrival: Arrival) -> Iterator[Arrival]:
        """Yield the batches that are next, now that this one has arrived."""
        batch = arrival.batch
        if batch.epoch is None or batch.seq is None:
            yield arrival
            return
        epoch, due = self.next.get(batch.host, (batch.epoch, batch.seq if batch.seq > FEW else FIRST_SEQ))
        if batch.epoch > epoch:
            yield from self.release(batch.host)
            epoch, due = batch.epoch, FIRST_SEQ
        if batch.epoch < epoch or batch.seq < due:
            yield arrival
            return
        if batch.seq > due:
            self.next[batch.host] = epoch, due
            held = self.held.setdefault(batch.host, {})
            if batch.seq in held:  # another batch of this number: both are kept
                yield arrival
                return
            held[batch.seq] = arrival
            self._bytes += batch.size_bytes
            if self._bytes > MOST_BYTES:
                for host in list(self.held):
                    yield from self.release(host)
            return
        yield arrival
        due += 1
        waiting = self.held.get(batch.host)
        if waiting:
            while due in waiting:
                following = waiting.pop(due)
                self._bytes -= following.batch.size_bytes
                yield following
                due += 1
            if not waiting:
                del self.held[batch.host]
        self.next[batch.host] = epoch, due

    def seen_by(self, now: int) -> None:
        """Note that waiting batches came by `now`, as the clock was set back to that."""
        for waiting in self.held.values():
            waiting.update({seq: one._replace(seen=min(one.seen, now)) for seq, one in waiting.items()})

    def expired(self, now: int) -> Iterator[Arrival]:
        """Yield the batches of hosts with one that has waited too long."""
        for host, waiting in list(self.held.items()):
            if min([one.seen for one in waiting.values()]) < now - HOLD_S:
                yield from self.release(host)

    def release(self, host: str) -> Iterator[Arrival]:
        """Yield all waiting batches of a host: the missing ones are given up."""
        waiting = self.held.pop(host, {})
        for seq in sorted(waiting):
            arrival = waiting[seq]
            self._bytes -= arrival.batch.size_bytes
            self.next[host] = arrival.batch.epoch or 0, seq + 1
            yield arrival

    def waiting(self) -> list[Arrival]:
        """Return all waiting batches."""
        return [one for some in self.held.values() for one in some.values()]

    def count(self) -> int:
        """Return the number of waiting batches; also for a thread that does not put any."""
        return sum(map(len, list(self.held.values())))

    def restore(self, next_of: dict[str, tuple[int, int]], waiting: list[Arrival]) -> None:
        """Restore a former state."""
        self.next, self.held, self._bytes = dict(next_of), {}, 0
        for one in waiting:
            self.held.setdefault(one.batch.host, {})[one.batch.seq or 0] = one
            self._bytes += one.batch.size_bytes
