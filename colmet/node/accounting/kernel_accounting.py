"""Rows of the taskstats backend from the sums that the kernel keeps by job; see docs/inputs/taskstats.md."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from colmet.common.errors import BackendUnavailable
from colmet.common.host.host import Host
from colmet.common.schema import MISSING_INT, Sample
from colmet.common.tables.tasks import TASKSTATS
from colmet.node.accounting.accumulator import Ints, KeptJob, unpack_totals
from colmet.node.jobs.directory_keys import HIERARCHIES, DirectoryName, hierarchy_number
from colmet.node.jobs.job import Job
from colmet.node.jobs.places import Claim
from colmet.node.jobs.source import JobSource
from colmet.node.kernel.job_accounting import COUNTERS, GAUGES, JobAccounting, Rows, pin_directory
from colmet.node.kernel.task_source import DELAY_FIELDS, DELAYACCT
from colmet.node.kernel.taskstats import FIELDS
from colmet.node.kernel.textfiles import Values
from colmet.node.state import StateFile

log = logging.getLogger(__name__)

_COLUMNS = [field.name for field in TASKSTATS.fields if field.name not in ("run", "uptime")]
_US = 1000  # ns
# The kernel's integrals are in 1,024 pages x ns; in lowest terms, as the product would not fit.
_MB_US = Fraction(resource.getpagesize(), 1000 * 1024)
# Columns that are one counter of the kernel times a factor over a divisor.
_FROM_COUNTERS = {
    **{name: (name, 1, 1) for name in ("cpu_count", "blkio_count", "swapin_count", "freepages_count", "read_bytes")},
    **{f"{name}_total": (name, 1, 1) for name in ("cpu_delay", "blkio_delay", "swapin_delay", "freepages_delay")},
    "cpu_run_virtual_total": ("runtime", 1, 1),
    "cpu_total": ("runtime", 1, 1),
    **dict.fromkeys(("ac_utime", "ac_utimescaled"), ("utime", 1, _US)),
    **dict.fromkeys(("ac_stime", "ac_stimescaled"), ("stime", 1, _US)),
    "ac_minflt": ("minor_faults", 1, 1),
    "ac_majflt": ("major_faults", 1, 1),
    "coremem": ("rss_integral", _MB_US.numerator, _MB_US.denominator),
    "virtmem": ("vm_integral", _MB_US.numerator, _MB_US.denominator),
    "read_char": ("read_chars", 1, 1),
    "write_char": ("written_chars", 1, 1),
    "read_syscalls": ("read_calls", 1, 1),
    "write_syscalls": ("write_calls", 1, 1),
    "write_bytes": ("written_bytes", 1, 1),
    "cancelled_write_bytes": ("cancelled_bytes", 1, 1),
    "nvcsw": ("voluntary_switches", 1, 1),
    "nivcsw": ("involuntary_switches", 1, 1),
}
_PLACES = np.array([_COLUMNS.index(name) for name in _FROM_COUNTERS])
_SOURCES = np.array([COUNTERS.index(source) for source, _, _ in _FROM_COUNTERS.values()])
_FACTORS = np.array([factor for _, factor, _ in _FROM_COUNTERS.values()])
_DIVISORS = np.array([divisor for _, _, divisor in _FROM_COUNTERS.values()])
_UTIME, _STIME = COUNTERS.index("utime"), COUNTERS.index("stime")
_BTIME, _ETIME = _COLUMNS.index("ac_btime"), _COLUMNS.index("ac_etime")
_REAL = [_COLUMNS.index(name) for name in ("cpu_run_real_total", "cpu_scaled_run_real_total")]
_CPU, _ENDED = _COLUMNS.index("cpu_total"), _COLUMNS.index("tasks_ended")
_DELAYS = np.array([_COLUMNS.index(name) for name in sorted(DELAY_FIELDS)])
_LARGEST = [GAUGES.index(name) for name in ("largest_process", "largest_mapped")]
_PAGE_KB = resource.getpagesize() // 1024
_NEVER = np.uint64(np.iinfo("u8").max)  # the start of the oldest task where no task was ever in the job
FEW = 32  # tasks: with so few left, a job may be about to end
COUNTERS_S = 5.0
KEPT_WAITS = 4  # columns of the state by netlink
# A task's last counts come a grace period after its parent has waited for it.
FINAL_WAIT_S, FINAL_STEP_S = 0.1, 0.005
# What the agent keeps of a job: its last row, and what the kernel's sums lack since a start without them.
_KEPT = np.dtype([("identity", "S200"), ("values", "i8", len(_COLUMNS)), ("offset", "i8", len(_COLUMNS))])
_SUMS = np.array([place for place, name in enumerate(_COLUMNS) if name not in ("ac_btime", "ac_etime")])


class KernelAccounting:
    """The tasks of each job, counted by the kernel from the making of the job's directory on.

    A job's sums are those of its directories, `Job.keys`. The kernel finds the directories below the roots of `jobs`;
    those that were there before are added here. Jobs that came and went between two looks are reported to `jobs`, which
    ends them as any other.

    Attributes:
        fd: readable when `drain` has work; -1 while closed.
    """

    fd = -1

    def __init__(self, host: Host, jobs: JobSource, state_dir: str = "") -> None:
        self._host = host
        self._jobs = jobs
        self._accounting: JobAccounting | None = None
        self._roots: object = None
        self._followed: list[int] = []  # numbers of hierarchies, the best first
        # path and job of each directory that the kernel has entered, None for no job's; their keys by job
        self._claims: dict[int, tuple[str, Claim] | None] = {}
        self._entered: dict[int, list[int]] = {}
        self._delayacct = host.keep(DELAYACCT)
        self._state = StateFile(host, state_dir, "accounting.state") if state_dir else None
        self._netlink_state = StateFile(host, state_dir) if state_dir else None
        self._kept: dict[str, tuple[Ints, Ints | None]] = {}  # last row, offset (None: from the first reading)
        self._offsets: dict[str, Ints] = {}  # by identity of job: what the kernel's sums lack
        self._last: dict[str, Ints] = {}  # by identity of job: its last row
        self._sampled: Sequence[Job] = ()
        self._known: dict[int, int] = {}  # by key: the number of its job
        self._ended: dict[int, int] = {}  # by key: ended tasks as of the last drain
        self._unseen: set[int] = set()  # keys of directories reported to `jobs`
        self._cpu_ns: WeakKeyDictionary[Job, int] = WeakKeyDictionary()
        self._memory: WeakKeyDictionary[Job, Values] = WeakKeyDictionary()
        self._waits_from = self._waited_s = 0.0  # of this second
        self._read_at = 0.0
        self._rows: Rows | None = None  # the last reading
        self._jobs_full = 0
        self._implausible = 0
        self._counters: dict[str, int] = {}
        self._counters_at = 0.0

    def open(self) -> None:
        """Load the programs, or take over those of an earlier start: BackendUnavailable."""
        self.close()
        hierarchies = self._jobs.hierarchies()
        if not hierarchies:
            raise BackendUnavailable("no hierarchy of cgroups is mounted in which jobs can be counted")
        self._followed = [HIERARCHIES[name] for name in hierarchies]
        self._accounting = accounting = JobAccounting(hierarchies, pin_directory())
        self.fd = accounting.fd
        log.info("jobs are accounted in the kernel since=%s", "before" if accounting.is_taken_over else "now")
        self._load_kept(accounting.is_taken_over)
        try:
            self._set_roots()
        except OSError as err:
            raise BackendUnavailable(str(err)) from err

    def _load_kept(self, is_taken_over: bool) -> None:
        """Load what the last start has kept, or one by netlink: without its programs, sums go on from there."""
        self._kept = {}
        if self._state is None or not self._state.open():
            return
        data = self._state.load()
        if data is not None and len(data) % _KEPT.itemsize == 0:
            for row in np.frombuffer(data, _KEPT):
                offset = row["offset"].copy() if is_taken_over else None
                self._kept[os.fsdecode(bytes(row["identity"]))] = row["values"].copy(), offset
        elif not is_taken_over and self._netlink_state is not None and self._netlink_state.open():
            netlink = self._netlink_state.load()
            self._netlink_state.close()
            with contextlib.suppress(ValueError):
                for job in unpack_totals(netlink, FIELDS, KEPT_WAITS).values() if netlink else ():
                    self._kept[job.identity] = _total_of(job), None

    def _set_roots(self) -> None:
        assert self._accounting is not None
        if self._jobs.roots is not self._roots:  # a new list where something has changed
            self._accounting.set_roots([root.directory for root in self._jobs.roots.values()])
            self._roots = self._jobs.roots

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        """Return the rows of jobs; report to `JobSource` those that have come and gone."""
        self._memory.clear()
        self._cpu_ns.clear()
        self._set_roots()
        rows = self._read(jobs)
        self._known = {key: job.id for job in jobs for key in job.keys}
        self._note_claims(rows)
        self._report_unseen(rows, jobs)
        identities = {job.identity for job in jobs}
        self._last = {job: values for job, values in self._last.items() if job in identities}
        self._offsets = {job: values for job, values in self._offsets.items() if job in identities}
        self._implausible = max(self._implausible, int(rows["implausible"].sum()))
        samples = self._samples(jobs, rows)
        self._kept = {job: kept for job, kept in self._kept.items() if job in identities}  # others ended meanwhile
        self._sampled = jobs
        if self._accounting is not None and not self._accounting.is_pinned:
            self._keep()  # a kill would take the sums away
        return samples

    def notice(self, job: Job) -> None:
        """Have a new job counted: its directory may be older than its root's, or than the programs."""
        assert self._accounting is not None
        self._set_roots()
        self._known.update(dict.fromkeys(job.keys, job.id))
        for key in self._followed_keys(job):
            self._accounting.add_job(key, job.keys[key])

    def last(self, job: Job) -> Sample | None:
        """Return the last row of a job, once the kernel has the last counts of its tasks; forget the job."""
        assert self._accounting is not None
        self._known.update(dict.fromkeys(job.keys, job.id))
        rows, keys = self._read_final(job)
        samples = self._samples([job], rows)
        for key in keys:
            self._accounting.forget(key)
            self._unseen.discard(key)
        self._sampled = [other for other in self._sampled if other is not job]
        self._last.pop(job.identity, None)
        self._offsets.pop(job.identity, None)
        return samples[0] if samples else None

    def _read_final(self, job: Job) -> tuple[Rows, list[int]]:
        """Return rows with the last counts of an ended job, and its keys; all such jobs share a bound of waiting."""
        assert self._accounting is not None
        rows = self._rows if time.monotonic() < self._read_at + 1.0 else None
        while True:
            is_new = rows is None
            if rows is None:
                rows = self._rows = self._accounting.read()
                self._read_at = time.monotonic()
            self._note_claims(rows)
            keys = self._keys(job, rows)
            own = rows[np.isin(rows["key"], keys)]
            if time.monotonic() > self._waits_from + 1.0:
                self._waits_from, self._waited_s = time.monotonic(), 0.0
            if own["is_final"].all() or self._waited_s >= FINAL_WAIT_S:
                return rows, keys
            if is_new:
                time.sleep(FINAL_STEP_S)
                self._waited_s += FINAL_STEP_S
            rows = None

    def drain(self) -> Iterable[int]:
        """Return the jobs with few tasks left of which some have ended: other backends read them once more."""
        assert self._accounting is not None
        self._rows = None
        rows = self._accounting.list_jobs()
        some = rows[rows["present"] <= FEW]
        ended = dict(zip(some["key"].tolist(), some["ended"].tolist()))
        jobs = {job for key, job in self._known.items() if ended.get(key, 0) > self._ended.get(key, 0)}
        self._ended = dict(zip(rows["key"].tolist(), rows["ended"].tolist()))
        return sorted(jobs)

    def cpu_attributed(self, job: Job) -> int | None:
        """Return the CPU time in ns of the job's tasks, live and ended, as of its last row."""
        return self._cpu_ns.get(job)

    def memory_and_tasks(self, job: Job) -> Values | None:
        """Return memory, processes and tasks of a job at its last reading, by columns of `jobprocstats_default`."""
        return self._memory.get(job)

    def counters(self) -> Mapping[str, int]:
        """Return what rows lack, and how many delays were not plausible."""
        if self._accounting is not None and time.monotonic() >= self._counters_at:
            self._counters_at = time.monotonic() + COUNTERS_S
            losses = self._accounting.losses()
            self._counters = {
                **losses,
                "jobs_full": self._jobs_full + losses["jobs_full"],
                "delays_implausible": self._implausible,
                "state_failures": self._state.failures if self._state is not None else 0,
            }
        return {**self._counters, "kernel_accounting_on": int(self._accounting is not None)}

    def close(self) -> None:
        """Keep the sums for a start without them, and release the programs; can be called twice."""
        if self._accounting is not None:
            self._keep()
            self._accounting.close()
            self._accounting = None
        self.fd = -1
        if self._state is not None:
            self._state.close()
        self._roots = self._rows = None
        self._sampled = ()
        self._memory.clear()
        self._cpu_ns.clear()
        self._delayacct.close()

    def _keep(self) -> None:
        """Save the sums of jobs for the next start."""
        if self._state is not None and self._sampled:
            none = np.zeros(len(_COLUMNS), dtype=np.int64)
            kept = [
                (os.fsencode(identity), self._last[identity], self._offsets.get(identity, none))
                for identity in [job.identity for job in self._sampled]
                if identity in self._last
            ]
            self._state.save(np.array(kept, _KEPT).tobytes())

    def _read(self, jobs: Sequence[Job]) -> Rows:
        """Return the kernel's rows, with all directories of the jobs among them."""
        assert self._accounting is not None
        self._rows = None
        rows = self._accounting.read()
        counted = set(rows["key"].tolist())
        if any(job.tops and not self._followed_keys(job) for job in jobs):
            raise BackendUnavailable("jobs are in a hierarchy of cgroups that was not there at the start")
        absent = {key: job.keys[key] for job in jobs for key in self._followed_keys(job) if key not in counted}
        added = [self._accounting.add_job(key, name) for key, name in absent.items()]
        self._jobs_full += len(added) - sum(added)
        return self._accounting.read() if any(added) else rows

    def _note_claims(self, rows: Rows) -> None:
        """Note the job of each directory that the kernel has entered, and forget removed ones of no job."""
        assert self._accounting is not None
        entered = rows[rows["root"] > 0]
        keys = entered["key"].tolist()
        if keys != list(self._claims):  # the usual tick: the same directories
            claims: dict[int, tuple[str, Claim] | None] = {}
            self._entered = {}
            for key, row in zip(keys, entered):
                claim = claims[key] = self._claims.get(key) or self._jobs.claim(*_name_of(row))
                if claim is not None and claim[1].job:
                    self._entered.setdefault(claim[1].job, []).append(key)
            self._claims = claims
        for key in entered["key"][entered["removed_ns"] > 0].tolist():
            claim = self._claims[key]
            if key not in self._known and (claim is None or not claim[1].job):
                if claim is not None:
                    self._jobs.miss_unseen()
                self._accounting.forget(key)

    def _followed_keys(self, job: Job) -> list[int]:
        return [key for key in job.keys if hierarchy_number(key) in self._followed]

    def _keys(self, job: Job, rows: Rows) -> list[int]:
        """Return the keys of a job: those that `JobSource` has seen, and its run's in other hierarchies."""
        others = [key for key in self._entered.get(job.id, ()) if key not in job.keys]
        if not others:
            return self._followed_keys(job)
        made_ns = dict(zip(rows["key"].tolist(), rows["made_ns"].tolist()))
        removed_ns = dict(zip(rows["key"].tolist(), rows["removed_ns"].tolist()))
        own = [key for key in job.keys if key in made_ns]
        began_ns = min([made_ns[key] for key in own], default=0)
        ends = [removed_ns[key] for key in own]
        ended_ns = max(ends) if ends and all(ends) else math.inf
        taken = {hierarchy_number(key) for key in job.keys}
        keys = self._followed_keys(job)
        for key in sorted([key for key in others if key in made_ns], key=made_ns.__getitem__):
            # in one hierarchy, another directory is another run
            is_same = made_ns[key] <= ended_ns and (not removed_ns[key] or removed_ns[key] >= began_ns)
            if hierarchy_number(key) not in taken and is_same:
                taken.add(hierarchy_number(key))
                keys.append(key)
        return keys

    def _report_unseen(self, rows: Rows, jobs: Sequence[Job]) -> None:
        """Report jobs whose directories have come and gone; forget those without a task ever."""
        assert self._accounting is not None
        if not rows["removed_ns"].any():
            return
        known = {key for job in jobs for key in self._keys(job, rows)} | self._unseen
        places = {key: place for place, key in enumerate(rows["key"].tolist())}
        for keys in self._entered.values():
            group = [rows[places[key]] for key in keys if key in places and key not in known]
            if group and all(row["removed_ns"] and row["is_final"] for row in group):
                self._end_unseen(group)

    def _end_unseen(self, group: Sequence[np.void]) -> None:
        """End the runs of one job number whose directories have all gone."""
        assert self._accounting is not None
        runs: list[dict[int, np.void]] = []  # by hierarchy
        for row in sorted(group, key=lambda row: int(row["made_ns"])):
            hierarchy = hierarchy_number(int(row["key"]))
            ended_ns = max([int(other["removed_ns"]) for other in runs[-1].values()]) if runs else 0
            if not runs or hierarchy in runs[-1] or int(row["made_ns"]) > ended_ns:
                runs.append({})
            runs[-1][hierarchy] = row
        for run in runs:
            ordered = sorted(run.values(), key=lambda row: self._followed.index(hierarchy_number(int(row["key"]))))
            keys = {int(row["key"]): _name_of(row) for row in ordered}
            has_tasks = any(row["forked"] or row["entered"] or row["ended"] for row in ordered)
            claim = self._claims[next(iter(keys))]
            if has_tasks and claim is not None:
                self._jobs.end_unseen(*claim, keys)
                self._unseen.update(keys)
                continue
            for key in keys:
                self._accounting.forget(key)

    def _samples(self, jobs: Sequence[Job], rows: Rows) -> list[Sample]:
        """Return the rows of jobs with a task ever."""
        places = {key: place for place, key in enumerate(rows["key"].tolist())}
        own = [[places[key] for key in self._keys(job, rows) if key in places] for job in jobs]
        measured = [(job, some) for job, some in zip(jobs, own) if some]
        if not measured:
            return []
        order = np.array([place for _, some in measured for place in some])
        starts = np.cumsum([0, *[len(some) for _, some in measured[:-1]]])
        taken = rows[order]
        counters = np.add.reduceat(taken["counters"], starts)
        ended = np.add.reduceat(taken["ended"], starts)
        oldest = taken["oldest_ns"]
        oldest = np.minimum.reduceat(np.where(oldest == 0, _NEVER, oldest), starts)
        values = self._values(counters, ended, oldest)
        gauges = np.add.reduceat(taken["gauges"], starts)
        gauges[:, _LARGEST] = np.maximum.reduceat(taken["gauges"][:, _LARGEST], starts)
        samples = []
        for (job, _), row, gauge, began in zip(measured, values, gauges.tolist(), oldest.tolist()):
            if began == _NEVER and job.identity not in self._last and job.identity not in self._kept:
                continue  # no task was ever in it
            self._continue(job, row)
            self._cpu_ns[job] = int(row[_CPU])
            self._memory[job] = _memory_of(dict(zip(GAUGES, gauge)))
            named = dict(zip(_COLUMNS, row.tolist()))
            samples.append(Sample(job.id, {name: None if n == MISSING_INT else n for name, n in named.items()}))
        return samples

    def _values(self, counters: Ints, ended: Ints, oldest_ns: npt.NDArray[np.uint64]) -> Ints:
        """Return the columns of jobs: shape (jobs, columns)."""
        values: Ints = np.zeros((len(counters), len(_COLUMNS)), dtype=np.int64)
        values[:, _PLACES] = counters[:, _SOURCES] * _FACTORS // _DIVISORS
        for place in _REAL:
            values[:, place] = counters[:, _UTIME] + counters[:, _STIME]
        now_ns = time.monotonic_ns()
        age_ns = np.where(oldest_ns == _NEVER, 0, np.maximum(0, now_ns - oldest_ns.astype(np.int64)))
        values[:, _ETIME] = age_ns // _US
        values[:, _BTIME] = (time.time_ns() - age_ns) // 1_000_000_000
        values[:, _ENDED] = ended
        if not self._are_delays_counted():
            values[:, _DELAYS] = MISSING_INT
        return values

    def _continue(self, job: Job, row: Ints) -> None:
        """Have a job's row go on from its last one: no sum falls; what a new start of the programs lacks is added."""
        last = self._last.get(job.identity)
        if last is None and job.identity in self._kept:
            last, offset = self._kept.pop(job.identity)
            if offset is None:
                lacking = np.maximum(last - row, 0)
                offset = np.where((last == MISSING_INT) | (row == MISSING_INT), 0, lacking)
            self._offsets[job.identity] = offset
            log.info("totals go on from before the agent's restart job=%d", job.id)
        offset = self._offsets.get(job.identity)
        if offset is not None:
            row[_SUMS] += offset[_SUMS]
        if last is not None:
            row[_SUMS] = np.maximum(row[_SUMS], last[_SUMS])
            row[_ETIME] = max(row[_ETIME], last[_ETIME])
            row[_BTIME] = min(row[_BTIME], last[_BTIME])  # a clock that is set does not make the job younger
        self._last[job.identity] = row

    def _are_delays_counted(self) -> bool:
        try:
            return self._delayacct.read().strip() != b"0"
        except FileNotFoundError:  # before Linux 5.14 there was no switch
            return True


def _total_of(job: KeptJob) -> Ints:
    """Return the total of a job that was counted by netlink, in the columns of a row."""
    sums = np.where(job.sums[0] == MISSING_INT, 0, job.sums[0]) - job.sums[1] + np.maximum(job.values, 0).sum(axis=0)
    if job.floor is not None:
        sums = np.maximum(sums, job.floor)
    named = dict(zip(FIELDS, sums.tolist()))
    named.update(cpu_total=named["cpu_run_virtual_total"], tasks_ended=job.ended, ac_btime=np.iinfo(np.int64).max)
    return np.array([named[name] for name in _COLUMNS], dtype=np.int64)


def _name_of(row: np.void) -> DirectoryName:
    parent, name = [bytes(row[field]).decode("utf-8", "surrogateescape") for field in ("parent_name", "name")]
    return DirectoryName(int(row["root"]), parent, name)


def _memory_of(gauges: Mapping[str, int]) -> Values:
    """Return gauges in the columns of `jobprocstats_default`."""
    anonymous, mapped = gauges["rss_anon"] * _PAGE_KB, gauges["largest_mapped"] * _PAGE_KB
    return {
        "VmRSS": anonymous + (gauges["rss_file"] + gauges["rss_shmem"]) * _PAGE_KB,
        "RssShmem": gauges["rss_shmem"] * _PAGE_KB,
        "VmSize": gauges["vm_size"] * _PAGE_KB,
        "RssAnon": anonymous,
        "memory_used": (anonymous + mapped) * 1024,
        "processes": gauges["processes"],
        "tasks": gauges["tasks"],
    }
