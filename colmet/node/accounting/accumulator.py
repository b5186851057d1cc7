"""Fold the values of tasks into totals of jobs that never decrease.

A task's counters exist as long as the task. A job's counter is the sum over its tasks: the present values of live
tasks, and the final values of ended ones (or, without these, the last values read). Usage of a task before its
migration to the job is subtracted. A gauge is the sum over the live tasks alone.

The totals are kept across a restart of the agent, in this form::

    length of the head, 4 bytes | head, JSON: fields, jobs, waits | arrays of 64-bit integers, job by job:
        floor (1 row, if present), sums (2 rows), keys of tasks, values of tasks (a row each)
    and at the end, job by job: the dropped waits of its tasks (a row each)
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Union

import numpy as np
import numpy.typing as npt

from colmet.common.schema import MISSING_INT, Schema

Ints = npt.NDArray[np.int64]
Place = Union[slice, npt.NDArray[np.intp]]  # positions of former tasks among the present ones


class _JobTasks:
    """The tasks of one job."""

    __slots__ = ("before", "ended", "final", "final_count", "floor", "keys", "values")

    def __init__(self, width: int) -> None:
        self.keys: Ints = np.empty(0, dtype=np.int64)  # live tasks as of the last tick
        self.values: Ints = np.empty((0, width), dtype=np.int64)
        self.ended: Ints | None = None  # the fold of ended tasks
        self.before: Ints | None = None  # the sum of the usage of migrated tasks before their arrival
        self.floor: Ints | None = None  # totals reported before; counters are never lower
        self.final: list[Ints] = []  # final values of ended tasks not yet folded into `ended`
        self.final_count = 0


class Accumulator:
    """Job totals, folded from task values field by field according to the schema.

    Args:
        schema: all of its fields are integers; a field's `fold` is sum, max or min.
        age: the name of a field that only grows during a task's life, to recognise a new task with a reused number.
            None if keys are never reused.
        steady: names of counters that are never missing and never shrink during a task's life.
    """

    MAX_UNFOLDED = 2000  # rows of ended tasks, folded in one batch

    def __init__(self, schema: Schema, age: str | None = None, steady: Sequence[str] = ()) -> None:
        self._width = len(schema.fields)
        self._age = None if age is None else schema.names.index(age)
        self._steady = np.array([schema.names.index(name) for name in steady], dtype=np.intp)
        # none of these shrinks while a number is one task's
        self._growing = self._steady if self._age is None else np.append(self._steady, np.intp(self._age))
        self._sum = np.array([f.fold == "sum" for f in schema.fields])
        self._max = np.array([f.fold == "max" for f in schema.fields])
        self._min = np.array([f.fold == "min" for f in schema.fields])
        self._max_places, self._min_places = np.flatnonzero(self._max), np.flatnonzero(self._min)
        self._gauge = np.array([f.kind == "gauge" for f in schema.fields])
        self._adds = self._sum & ~self._gauge
        self._jobs: defaultdict[int, _JobTasks] = defaultdict(lambda: _JobTasks(len(schema.fields)))

    def update(
        self,
        job: int,
        keys: Ints,
        values: Ints,
        inherited: Collection[int] = (),
        reused: Collection[int] = (),
    ) -> Ints | None:
        """Update a job with its live tasks at one tick; return its totals.

        Args:
            job: the job's id.
            keys: its live tasks, ascending, each once: shape (n,).
            values: their values: shape (n, fields), fields in the schema's order, -1 for a missing value.
            inherited: ended tasks with values taken over by a live task, not to be counted twice.
            reused: live tasks passed to `end` before: their numbers belong to other tasks now.

        Returns:
            Totals, shape (fields,), -1 for fields without a value of any task; None before the job's first task.
        """
        known = self._jobs[job]
        self._fold_final(known)
        self._retire(known, keys, values, inherited, reused)
        known.keys, known.values = keys, values
        if not len(keys) and known.ended is None:
            return None if known.floor is None else np.where(self._gauge, 0, known.floor)
        totals = self._fold(values, known.ended)
        if not len(keys):
            totals[self._gauge] = 0  # known to use none: not the same as unknown
        if known.before is not None:
            has = self._adds & (totals != MISSING_INT)
            totals[has] = np.maximum(totals[has] - known.before[has], 0)
        if known.floor is not None:
            totals = np.where(self._gauge | self._min, totals, np.maximum(totals, known.floor))
        return totals

    def end(self, job: int, keys: Ints, values: Ints) -> None:
        """Add the final values of ended tasks and remove them from the live tasks.

        Args:
            job: the job's id.
            keys: the tasks, shape (n,).
            values: shape (n, fields), -1 for a missing value.
        """
        known = self._jobs[job]
        if len(known.keys):
            ended = set(keys.tolist())
            live = np.array([key not in ended for key in known.keys.tolist()])
            if not live.all():
                values = self._not_below(known, ~live, keys, values)
                known.keys, known.values = known.keys[live], known.values[live]
        known.final.append(values)
        known.final_count += len(values)
        if known.final_count > self.MAX_UNFOLDED:
            self._fold_final(known)

    def _fold_final(self, known: _JobTasks) -> None:
        """Add final values to the fold of ended tasks, in one batch: a fold costs the same for one as for hundreds."""
        if known.final:
            values = known.final[0] if len(known.final) == 1 else np.concatenate(known.final)
            known.final, known.final_count = [], 0
            if self._gauge.any():
                values = np.where(self._gauge, MISSING_INT, values)
            known.ended = self._fold(values, known.ended)

    @staticmethod
    def _not_below(known: _JobTasks, ended: npt.NDArray[np.bool_], keys: Ints, values: Ints) -> Ints:
        """Return final values, none lower than the last value read: estimates may be lower."""
        values = values.copy()
        for key, seen in zip(known.keys[ended], known.values[ended]):
            row = np.flatnonzero(keys == key)[-1]
            values[row] = np.where(values[row] == MISSING_INT, MISSING_INT, np.maximum(values[row], seen))
        return values

    def subtract(self, job: int, values: Ints) -> None:
        """Subtract the usage of migrated tasks before their arrival in a job: shape (n, fields)."""
        known = self._jobs[job]
        used = np.where(values == MISSING_INT, 0, values).sum(axis=0)
        known.before = used if known.before is None else known.before + used

    def keep(self, job: int) -> tuple[Ints, Ints, Ints, Ints | None] | None:
        """Return the state of a job for `restore`; None if it never had a task.

        Returns:
            The fold of ended tasks (-1 for none) and the usage of migrated tasks before their arrival (0 for none),
            shape (2, fields); keys, shape (n,), and values, shape (n, fields), of live tasks; the floor.
        """
        known = self._jobs.get(job)
        if known is not None:
            self._fold_final(known)
        if known is None or (not len(known.keys) and known.ended is None and known.floor is None):
            return None
        sums = np.zeros((2, self._width), dtype=np.int64)
        sums[0] = MISSING_INT if known.ended is None else known.ended
        if known.before is not None:
            sums[1] = known.before
        return sums, known.keys, known.values, known.floor

    def restore(self, job: int, sums: Ints, keys: Ints, values: Ints, floor: Ints | None = None) -> None:
        """Continue from a state returned by `keep`. `floor`: lower bounds of the counters."""
        known = self._jobs[job] = _JobTasks(self._width)
        known.keys, known.values = keys, values
        if (sums[0] != MISSING_INT).any():
            known.ended = sums[0].copy()
        if sums[1].any():
            known.before = sums[1].copy()
        known.floor = floor

    def last_seen(self, job: int) -> tuple[Ints, Ints]:
        """Return keys and values of a job's tasks as of the last tick."""
        known = self._jobs.get(job) or _JobTasks(self._width)
        return known.keys, known.values

    def knows(self, job: int) -> bool:
        """Return whether a job has a state."""
        return job in self._jobs

    def forget(self, job: int) -> None:
        """Forget a job."""
        self._jobs.pop(job, None)

    def keep_only(self, jobs: Collection[int]) -> None:
        """Forget every other job."""
        for job in [job for job in self._jobs if job not in jobs]:
            del self._jobs[job]

    def _retire(
        self, known: _JobTasks, keys: Ints, values: Ints, inherited: Collection[int], reused: Collection[int]
    ) -> None:
        """Add tasks ended since the last tick to the fold of ended tasks."""
        if not len(known.keys):
            return
        if len(keys):
            place: Place = slice(None)
            if np.array_equal(keys, known.keys):  # the usual tick: no change of tasks
                growing = self._growing
                if not reused and not (values.take(growing, 1) < known.values.take(growing, 1)).any():
                    return
                lives = np.ones(len(keys), dtype=bool)
            else:
                place = np.minimum(np.searchsorted(keys, known.keys), len(keys) - 1)
                lives = keys[place] == known.keys
            if self._age is not None:
                lives &= values[place, self._age] >= known.values[:, self._age]
                inherited = {*inherited, *self._taken_over(known, keys, values, place, lives, reused)}
        else:
            lives = np.zeros(len(known.keys), dtype=bool)
        gone = ~lives
        if inherited:
            gone &= ~np.isin(known.keys, list(inherited))
        if gone.any():
            left = known.values[gone]
            left[:, self._gauge] = MISSING_INT
            known.ended = self._fold(left, known.ended)

    def _taken_over(
        self,
        known: _JobTasks,
        keys: Ints,
        values: Ints,
        place: Place,
        lives: npt.NDArray[np.bool_],
        reused: Collection[int],
    ) -> set[int]:
        """Return tasks that live on under another number: that number's counters have shrunk, or its task has ended.

        A thread that calls exec gets the number and the start time of its process's first thread, and keeps its own
        counters; the first thread ends (kernel: fs/exec.c, de_thread). `lives` is corrected in place: the first one has
        ended.
        """
        shrunk = np.zeros(len(lives), dtype=bool)
        for column in self._steady:  # by column: gathering whole rows would be the largest cost here
            shrunk |= values[:, column][place] < known.values[:, column]
        shrunk &= lives
        heirs = values[place][shrunk] if shrunk.any() else values[:0]
        if reused:
            heirs = np.vstack((heirs, values[np.isin(keys, list(reused))]))
        if not len(heirs):
            return set()
        lives &= ~shrunk
        absent = ~np.isin(known.keys, keys)
        taken: set[int] = set()
        for new in heirs:
            fits = absent & (known.values[:, self._steady] <= new[self._steady]).all(axis=1)
            fits &= ~np.isin(known.keys, list(taken))
            if fits.any():
                candidates = np.flatnonzero(fits)
                best = candidates[known.values[candidates][:, self._steady].sum(axis=1).argmax()]
                taken.add(int(known.keys[best]))
        return taken

    def _fold(self, values: Ints, former: Ints | None) -> Ints:
        """Fold tasks and the result of a former fold into one row."""
        if former is not None:
            if not len(values):
                return former.copy()
            values = np.vstack((self._fold(values, None), former))
        totals: Ints = values.sum(axis=0)
        totals[self._max_places] = values.take(self._max_places, 1).max(axis=0)
        totals[self._min_places] = values.take(self._min_places, 1).min(axis=0)
        missing = values == MISSING_INT
        some = np.flatnonzero(missing.any(axis=0))
        if len(some):  # in few columns, if any
            part, without = values[:, some], missing[:, some]
            sums = np.where(without, 0, part).sum(axis=0)
            least = np.where(without, np.iinfo(np.int64).max, part).min(axis=0)
            totals[some] = np.where(self._sum[some], sums, np.where(self._min[some], least, part.max(axis=0)))
            totals[some[without.all(axis=0)]] = MISSING_INT
        return totals


def as_values(schema: Schema, totals: Ints) -> dict[str, int | None]:
    """Return totals as the values of a sample."""
    numbers: Sequence[int] = totals.tolist()
    return {name: None if n == MISSING_INT else n for name, n in zip(schema.names, numbers)}


_HEAD = struct.Struct("<I")


class KeptJob(NamedTuple):
    """State of one job in the agent: see `Accumulator.keep` and `restore`."""

    identity: str  # of the job, see `Job.identity`
    sums: Ints  # shape (2, fields)
    keys: Ints  # its tasks, shape (n,)
    values: Ints  # their values, shape (n, fields)
    excess: Ints  # their dropped waits, shape (n, waits), see `PlausibleWaits.excess`; not packed without waits
    floor: Ints | None  # lower bounds of the counters, shape (fields,)
    ended: int  # number of its ended tasks


def pack_totals(jobs: Mapping[int, KeptJob], fields: Sequence[str], waits: int) -> bytes:
    """Return the bytes to keep, of jobs by their ids.

    Args:
        jobs: the jobs.
        fields: names of the columns of their values.
        waits: number of columns of `KeptJob.excess`.
    """
    head, arrays, excess = [], [], []
    for job_id, job in jobs.items():
        if job.floor is not None:
            arrays.append(job.floor)
        arrays += [job.sums, job.keys, job.values]
        excess.append(job.excess)
        has_floor = job.floor is not None
        one = {"job": job_id, "identity": job.identity, "tasks": len(job.keys), "floor": has_floor}
        head.append({**one, "ended": job.ended})
    text = json.dumps({"fields": fields, "jobs": head, "waits": waits}).encode()
    arrays += excess if waits else []
    return b"".join([_HEAD.pack(len(text)), text, *[np.ascontiguousarray(array).data for array in arrays]])


def unpack_totals(data: bytes, fields: Sequence[str], waits: int) -> dict[int, KeptJob]:
    """Return the jobs given to `pack_totals`; ValueError if another form, or of another version of Colmet."""
    try:
        return _unpack(data, fields, waits)
    except (KeyError, TypeError, OverflowError, struct.error) as err:
        raise ValueError(f"{type(err).__name__}: {err}") from err


def _unpack(data: bytes, fields: Sequence[str], waits: int) -> dict[int, KeptJob]:
    (length,) = _HEAD.unpack_from(data)
    head = json.loads(data[_HEAD.size : _HEAD.size + length])
    if head["fields"] != list(fields):
        raise ValueError("other columns")
    width, kept_waits, place = len(fields), int(head["waits"]), _HEAD.size + length
    if kept_waits not in (0, waits):
        raise ValueError("other waits")

    def take(rows: int, columns: int) -> Ints:
        nonlocal place
        array = np.frombuffer(data, "<i8", rows * columns, place).reshape(rows, columns)
        place += array.nbytes
        return array.astype(np.int64)

    jobs = {}
    for one in head["jobs"]:
        floor = take(1, width)[0] if one["floor"] else None
        sums, keys, values = take(2, width), take(one["tasks"], 1)[:, 0], take(one["tasks"], width)
        none = np.zeros((len(keys), waits), dtype=np.int64)
        jobs[int(one["job"])] = KeptJob(str(one["identity"]), sums, keys, values, none, floor, int(one["ended"]))
    for job_id, job in jobs.items() if kept_waits else ():
        jobs[job_id] = job._replace(excess=take(len(job.keys), waits))
    return jobs
