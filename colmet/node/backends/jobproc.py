"""CPU time, I/O, memory and tasks of each job's processes, from /proc.

With --enable-jobproc, all values for all jobs. Without that option, only memory and tasks of jobs not counted by a
cgroup, as with OAR 2 by default: from the kernel's reading of all tasks (taskstats), else one file for each process and
tick.
Values are of processes, not of threads: /proc/<tid>/io of a thread has the I/O of its whole process.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from colmet.common.config.cli import Options
from colmet.common.daemon.logs import OnceLog
from colmet.common.errors import ParseError
from colmet.common.host.capabilities import suggest
from colmet.common.host.host import Host, Kept, is_gone
from colmet.common.host.processes import NO_ANSWER, Question
from colmet.common.schema import MISSING_INT, Field, Sample, Schema
from colmet.common.tables.tasks import CPU_FIELD, IO_FIELDS
from colmet.common.tables.tasks import JOBPROC as SCHEMA
from colmet.node.accounting.accumulator import Accumulator, Ints, as_values
from colmet.node.backend import InputBackend, JobValue
from colmet.node.jobs.job import Job
from colmet.node.kernel.textfiles import TICK_NS, Values, parse_file, parse_stat

log = logging.getLogger(__name__)

MEMORY, TASKS = "memory_current", "pids_current"  # columns of cgroup_default


# The values folded over processes. The last one is no column: files and shared memory, of the largest process.
_OF_PROCESS = Schema(
    "jobprocstats_process",
    "job",
    [
        *IO_FIELDS,
        CPU_FIELD,
        *SCHEMA.fields[len(IO_FIELDS) : 11],
        Field("RssMapped", "kbytes", "gauge", "Of files and shared.", fold="max"),
    ],
)
_IO = slice(0, len(IO_FIELDS))
# Counters that a process takes over from each child that it waits for.
_INHERITED = slice(0, len(IO_FIELDS) + 1)
MOST_NOTICED = 16  # processes of a job that is read between ticks
_IO_KEYS = [field.name.encode() + b":" for field in IO_FIELDS]
_NO_IO = [MISSING_INT] * len(IO_FIELDS)
_PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024


def parse_io(data: bytes) -> list[int]:
    """Return the seven counters of /proc/<pid>/io, in the order of `IO_FIELDS`; ValueError for another form."""
    words = data.split()
    if words[0::2] != _IO_KEYS:
        raise ValueError("not the seven lines of /proc/<pid>/io")
    return [int(word) for word in words[1::2]]


def number_after(text: bytes, key: bytes) -> int:
    """Return the number after `key` on its line, with or without a unit; ValueError or IndexError without one."""
    start = text.index(key) + len(key)
    return int(text[start : start + 32].split(None, 1)[0])


class Resident(NamedTuple):
    """Memory of one process, in KiB."""

    size: int  # virtual memory
    resident: int  # pages in memory
    mapped: int  # of these, those of files and shared memory

    @property
    def anonymous(self) -> int:
        """The other pages in memory; at least 0, as the kernel reads its counters one after the other."""
        return max(0, self.resident - self.mapped)


def parse_statm(data: bytes) -> Resident:
    """Return the first three columns of /proc/<pid>/statm; ValueError for another form."""
    size, resident, mapped = data.split(None, 3)[:3]
    return Resident(int(size) * _PAGE_KB, int(resident) * _PAGE_KB, int(mapped) * _PAGE_KB)


def parse_cpu_mask(status: bytes) -> int:
    """Return the CPUs that a process may run on, a bit for each, from /proc/<pid>/status; 0 for another form."""
    _, _, rest = status.partition(b"\nCpus_allowed:")
    try:
        return int(rest.partition(b"\n")[0].replace(b",", b""), 16)
    except ValueError:
        return 0


class _Process:
    """One process: its open files, and its rarely changing values."""

    def __init__(self, host: Host, pid: int) -> None:
        self.pid = pid
        self.serial = 0  # unique to the process, unlike the pid; 0 until it has been read
        self.ppid = 0
        self.began_ns = 0  # the end of the clock tick, since boot; 0 until it has been read
        self.cpu_mask = 0
        self._io = host.keep(f"/proc/{pid}/io")
        self._stat = host.keep(f"/proc/{pid}/stat")
        self._statm = host.keep(f"/proc/{pid}/statm")
        self.status = host.keep(f"/proc/{pid}/status")
        self.shape: tuple[int, int] | None = None  # see `read`
        self._shmem_kb = MISSING_INT

    def read(self) -> list[int]:
        """Return its values, in the order of `_OF_PROCESS`; I/O is -1 without the permission to read it.

        If it has ended, an OSError says so: see `is_gone`.
        """
        of = parse_file(self._statm.path, self._statm.read(), parse_statm)
        # RssShmem is in status alone, which costs the kernel six times as much as statm: it is read when the mapped
        # size, or the shared pages, which include it, have changed
        if (of.size, of.mapped) != self.shape:
            parse_file(self.status.path, self.status.read(), self._take_status)
            self.shape = (of.size, of.mapped)
        stat = parse_file(self._stat.path, self._stat.read(), parse_stat)
        self.began_ns = stat.began_ns + TICK_NS
        try:
            io = parse_file(self._io.path, self._io.read(), parse_io)
        except PermissionError:
            io = _NO_IO
        memory = [of.resident, self._shmem_kb, of.size, of.anonymous, of.mapped]
        return [*io, stat.cpu_ns + stat.charged_ns, *memory]

    def read_if_alive(self) -> list[int] | None:
        """Return its values; None if it has ended. Closes its files on any error."""
        try:
            return self.read()
        except (OSError, ParseError) as err:
            self.close()
            if not isinstance(err, OSError) or not is_gone(err):
                raise
            return None

    def _take_status(self, status: bytes) -> None:
        self.ppid = number_after(status, b"\nPPid:")
        self.cpu_mask = parse_cpu_mask(status)
        # a zombie or a kernel thread has no memory
        self._shmem_kb = number_after(status, b"\nRssShmem:") if b"\nRssShmem:" in status else 0

    def close(self) -> None:
        self._io.close()
        self._stat.close()
        self._statm.close()
        self.status.close()


class UncountedJobs:
    """Measures memory and tasks of jobs for which no cgroup counts them.

    One file of each process is kept open, and read at each tick.

    Attributes:
        columns_counted: returns those of `MEMORY` and `TASKS` that a job's cgroups count; None for neither.
        memory_and_tasks: returns the columns that the kernel has counted; None where it does not.
    """

    def __init__(self, host: Host) -> None:
        self.columns_counted: JobValue = lambda job: None
        self.memory_and_tasks: JobValue = lambda job: None
        self._host = host
        self._files: dict[int, Kept] = {}  # statm by pid, of the last tick
        self._had: set[int] = set()  # jobs that have or had a process
        self._once = OnceLog(log)

    def sample(self, jobs: Sequence[Job]) -> list[Sample]:
        """Return a row for each job with uncounted values that has or had a process."""
        self._had.intersection_update([job.id for job in jobs])
        questions = {}  # each process once, though it may be in the cgroups of several jobs
        for job in jobs:
            if MEMORY not in (self.columns_counted(job) or ()) and self.memory_and_tasks(job) is None:
                for pid in job.pids():
                    questions[pid] = Question(pid, job.party, partial(self._read, pid, self._files.get(pid)))
        answers = dict(zip(questions, self._host.processes.ask([*questions.values()])))
        former = self._files
        self._files = {pid: answer[0] for pid, answer in answers.items() if isinstance(answer, tuple)}
        for pid, file in former.items():
            if answers.get(pid) is NO_ANSWER:
                self._files[pid] = file
            elif self._files.get(pid) is not file:
                file.close()
        return [Sample(job.id, row) for job in jobs if (row := self._row(job, answers)) is not None]

    def _row(self, job: Job, answers: Mapping[int, object]) -> Values | None:
        """Return the values of a job's row; None if its cgroups count all of it, or it has never had a process."""
        lacks = {MEMORY, TASKS}.difference(self.columns_counted(job) or ())
        if not lacks:
            return None
        counted: Values | None = self.memory_and_tasks(job)
        if counted is not None:
            names = counted if MEMORY in lacks else ("processes", "tasks")
            return {name: counted[name] for name in names}
        pids, tasks = job.pids(), len(job.tids())
        if pids:
            self._had.add(job.id)
        elif job.id not in self._had:
            return None
        row: Values = {"processes": len(pids), "tasks": tasks}
        if MEMORY in lacks:
            row.update(self._memory(job.id, pids, answers))
        return row

    def _memory(self, job: int, pids: Sequence[int], answers: Mapping[int, object]) -> dict[str, int]:
        """Return the memory of processes; nothing if it is unknown for a live one."""
        resident = size = anonymous = mapped = found = silent = 0
        for pid in pids:
            answer = answers[pid]
            if isinstance(answer, PermissionError):
                self._once.warning(
                    "cannot read /proc/<pid>/statm of all processes: memory in jobprocstats_default is missing for "
                    "these jobs; %s job=%d pid=%d",
                    suggest("CAP_SYS_PTRACE"),
                    job,
                    pid,
                )
                return {}
            if isinstance(answer, Exception):
                raise answer
            if not isinstance(answer, tuple):
                silent += answer is NO_ANSWER
                continue
            of = parse_file(f"/proc/{pid}/statm", answer[1], parse_statm)
            found += 1
            size += of.size
            resident += of.resident
            anonymous += of.anonymous
            mapped = max(mapped, of.mapped)
        if silent or (pids and not found):  # all have ended meanwhile, or this user does not see them (hidepid)
            return {}
        return {"VmRSS": resident, "VmSize": size, "RssAnon": anonymous, "memory_used": (anonymous + mapped) * 1024}

    def _read(self, pid: int, file: Kept | None) -> tuple[Kept, bytes] | None:
        """Return a process's statm; None if it has ended. Runs in the reader thread."""
        while True:
            tried = file or self._host.keep(f"/proc/{pid}/statm")
            try:
                return tried, tried.read()
            except OSError as err:
                tried.close()
                if not is_gone(err):
                    raise
                if file is None:
                    return None
                file = None  # its number may be another process's by now

    def close(self) -> None:
        """Close the files; can be called twice."""
        for file in self._files.values():
            file.close()
        self._files = {}


class JobprocBackend(InputBackend):
    """Rows of `SCHEMA`, one for each job that has or had a process.

    Attributes:
        every: whether it measures all values for all jobs; else only values not counted by cgroups.
    """

    name = "jobproc"
    schema = SCHEMA
    needs = ("columns_counted", "memory_and_tasks")
    capabilities = frozenset(("CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE"))  # /proc/<pid>/io

    def __init__(self, host: Host, every: bool = True) -> None:
        self.every = every
        self.part = "" if every else "for memory and tasks that no cgroup counts; --enable-jobproc: for all jobs"
        self._host = host
        self._uncounted = None if every else UncountedJobs(host)
        self._totals = Accumulator(_OF_PROCESS)
        self._processes: dict[int, _Process] = {}  # by pid
        self._by_serial: dict[int, _Process] = {}  # of the last tick, and those that have ended since
        self._members: dict[int, list[int]] = {}  # pids by job, as of the last tick
        self._looks: dict[int, tuple[int, frozenset[int]]] = {}  # by job: when its processes were listed, and which
        self._without_io: set[int] = set()  # jobs with a process whose I/O could not be read
        self._serials = itertools.count(1)
        self._once = OnceLog(log)

    @classmethod
    def add_options(cls, parser: Options) -> None:
        text = (
            "measure I/O, memory and tasks of all jobs in /proc (default: memory and tasks of jobs that no cgroup "
            "counts)"
        )
        parser.add_argument("--enable-jobproc", action="store_true", help=text)

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> JobprocBackend:
        return cls(host, every=options.enable_jobproc)

    def use_value(self, name: str, value: JobValue) -> None:
        """Read the columns of memory and tasks that a job's cgroups count, or what the kernel has of these."""
        if self._uncounted is not None:
            setattr(self._uncounted, name, value)

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        """Return one row for each job that has or had a process; without `every`, only if its cgroups lack a value."""
        if self._uncounted is not None:
            return self._uncounted.sample(jobs)
        former = self._processes
        ids = {job.id for job in jobs}
        self._totals.keep_only(ids)
        rows = self._rows_of(jobs)
        for process in former.values():
            if self._processes.get(process.pid) is not process:
                process.close()
        self._by_serial = {process.serial: process for process in self._processes.values()}
        self._members = {job: self._members[job] for job in ids}
        self._looks = {job: self._looks[job] for job in ids}
        self._without_io &= ids
        return rows

    def notice(self, job: Job) -> None:
        """Read a job's processes, if they are few: they may have ended by the next tick."""
        if self._uncounted is not None or len(job.pids()) > MOST_NOTICED:
            return
        former, own = self._processes, set(self._members.get(job.id, ()))
        others = {pid for one, members in self._members.items() if one != job.id for pid in members}
        self._rows_of([job])
        for pid, process in former.items():
            if pid not in self._processes and pid not in own - others:
                self._processes[pid] = process
            elif self._processes.get(pid) is not process:
                process.close()

    def last(self, job: Job) -> Sample | None:
        """Return the counters of a job's processes as last read; None if it had none."""
        self._members.pop(job.id, None)
        self._looks.pop(job.id, None)
        none = np.empty((0, len(_OF_PROCESS.fields)), np.int64)
        totals = self._totals.update(job.id, none[:, 0], none)
        self._totals.forget(job.id)
        if totals is None:
            return None
        values = as_values(_OF_PROCESS, totals)
        counters = (*([] if job.id in self._without_io else IO_FIELDS), CPU_FIELD)
        return Sample(job.id, {field.name: values[field.name] for field in counters})

    def _rows_of(self, jobs: Sequence[Job]) -> list[Sample]:
        """Return a row for each job that has or had a process. Then `_processes` are those of these jobs alone."""
        former, self._processes = self._processes, {}
        rows = []
        try:
            members, answers = self._read_all(jobs, former)
            for job in jobs:
                totals = self._sample_job(job, members[job.id], answers, former)
                if totals is not None:
                    rows.append(Sample(job.id, self._row(job, totals)))
        except BaseException:
            self._processes = {**former, **self._processes}  # unread processes have not ended
            raise
        return rows

    def _row(self, job: Job, totals: Ints) -> Values:
        row = dict(as_values(_OF_PROCESS, totals))
        mapped, anonymous = row.pop("RssMapped"), row["RssAnon"]
        if mapped is not None and anonymous is not None:
            row["memory_used"] = (mapped + anonymous) * 1024
        cpus = 0
        for pid in job.pids():
            if pid in self._processes:
                cpus |= self._processes[pid].cpu_mask
        return {
            **row,
            "processes": len(job.pids()),
            "tasks": len(job.tids()),
            "cpus_allowed": bin(cpus).count("1") or None,
        }

    def _read_all(
        self, jobs: Sequence[Job], former: Mapping[int, _Process]
    ) -> tuple[dict[int, list[int]], dict[int, object]]:
        """Return the processes of each job, and the results of reading them: see `_measure`.

        A cgroup does not list ended processes before their parent has waited for them, but their I/O is still their
        own: the parent gets it when it waits. So former members of a job are read as well.
        """
        members, questions = {}, {}
        everywhere = {pid for job in jobs for pid in job.pids()}
        for job in jobs:
            listed = job.pids()
            gone = sorted({pid for pid in self._members.get(job.id, ()) if pid in former} - everywhere)
            members[job.id] = listed + gone
            for pid in gone:
                questions[pid] = Question(pid, job.party, partial(self._measure_zombie, former[pid]))
            for pid in listed:
                questions[pid] = Question(pid, job.party, partial(self._measure, pid, former.get(pid)))
        return members, dict(zip(questions, self._host.processes.ask([*questions.values()])))

    def _sample_job(
        self, job: Job, pids: Iterable[int], answers: Mapping[int, object], former: Mapping[int, _Process]
    ) -> Ints | None:
        """Return the totals of a job; None if it has none. All are missing if a process did not answer."""
        found, silent = [], []
        for pid in pids:
            answer = answers[pid]
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, tuple):
                process, values = answer
                process.serial = process.serial or next(self._serials)
                found.append((process.serial, values))
            elif answer is NO_ANSWER:
                silent.append(pid)
                process = former.get(pid)
            else:
                continue
            if process is not None:
                self._processes[pid] = self._by_serial[process.serial] = process
        if silent:  # they have not ended: their last values count
            unread = {former[pid].serial for pid in silent if pid in former}
            keys, rows = self._totals.last_seen(job.id)
            found += [(key, row) for key, row in zip(keys.tolist(), rows.tolist()) if key in unread]
        self._members[job.id] = [self._by_serial[serial].pid for serial, _ in found]
        found.sort()
        self._leave_out_history(job, found)
        keys = np.array([serial for serial, _ in found], dtype=np.int64)
        table = np.array([values for _, values in found], dtype=np.int64).reshape(len(found), len(_OF_PROCESS.fields))
        totals = self._totals.update(job.id, keys, table, self._inherited(job.id, keys, table))
        if (table[:, _IO] == MISSING_INT).any():
            self._without_io.add(job.id)
        else:
            self._without_io.discard(job.id)
        if totals is not None and job.id in self._without_io:
            totals[_IO] = MISSING_INT  # the sum of some processes is not the I/O of the job
            self._once.warning(
                "cannot read /proc/<pid>/io of all processes: I/O of jobprocstats_default is missing for these "
                "jobs; %s job=%d",
                suggest("CAP_SYS_PTRACE"),
                job.id,
            )
        if totals is not None and silent:
            totals[:] = MISSING_INT
        return totals

    def _leave_out_history(self, job: Job, found: Sequence[tuple[int, list[int]]]) -> None:
        """Leave out what processes did before they came into the job, given serials and values.

        A process that is older than the last look at the job, and was not in it then, has come from elsewhere. What it
        did in the job until this look is left out, too.
        """
        look = self._looks.get(job.id)
        # a zombie is not listed
        self._looks[job.id] = job.listed_ns, frozenset([*job.pids(), *self._members[job.id]])
        if look is None:
            return
        looked_ns, listed = look
        before = [
            values
            for serial, values in found
            if self._by_serial[serial].pid not in listed and self._by_serial[serial].began_ns <= looked_ns
        ]
        if before:
            self._totals.subtract(job.id, np.array(before, dtype=np.int64))

    def _measure(self, pid: int, process: _Process | None) -> tuple[_Process, list[int]] | None:
        """Return a process and its values; None if it has ended. Runs in the reader thread.

        `process` is the former owner of the pid; another process may have it now.
        """
        values = None if process is None else process.read_if_alive()
        if process is None or values is None:
            process = _Process(self._host, pid)
            values = process.read_if_alive()
        return None if values is None else (process, values)

    @staticmethod
    def _measure_zombie(process: _Process) -> tuple[_Process, list[int]] | None:
        """Return the same for a zombie: an ended process whose parent has not waited for it; None for any other."""
        try:
            is_zombie = b"\nState:\tZ" in process.status.read()
        except OSError as err:
            if not is_gone(err):
                raise
            return None
        values = process.read_if_alive() if is_zombie else None
        return None if values is None else (process, values)

    def _inherited(self, job: int, keys: Ints, values: Ints) -> set[int]:
        """Return the ended processes whose counters a living one of the job has taken over, by serial.

        When a process waits for its child, the kernel adds the child's counters to its own (kernel/exit.c). So an ended
        process is excluded from the ended ones' sum if its nearest living ancestor's counters have grown by at least
        its own values.
        """
        old_keys, old_values = self._totals.last_seen(job)
        ended = ~np.isin(old_keys, keys)
        if not ended.any():
            return set()
        ended_pids = {self._by_serial[serial].pid: serial for serial in old_keys[ended].tolist()}
        had = dict(zip(old_keys.tolist(), old_values[:, _INHERITED]))
        # of the living, by serial
        growth = {key: row - had.get(key, 0) for key, row in zip(keys.tolist(), values[:, _INHERITED])}
        inherited = set()
        for serial in sorted(ended_pids.values(), key=lambda serial: -int(had[serial].sum())):
            ppid = self._by_serial[serial].ppid
            for _ in ended_pids:  # an ended parent had taken it over before: look further up
                if ppid in ended_pids:
                    ppid = self._by_serial[ended_pids[ppid]].ppid
            heir = self._processes.get(ppid)
            if heir is not None and heir.serial in growth and (growth[heir.serial] >= had[serial]).all():
                growth[heir.serial] = growth[heir.serial] - had[serial]
                inherited.add(serial)
        for process in self._processes.values():
            if process.ppid in ended_pids:
                process.shape = None  # read the parent again, as the former one has ended
        return inherited

    def close(self) -> None:
        for process in self._processes.values():
            process.close()
        self._processes = {}
        if self._uncounted is not None:
            self._uncounted.close()
