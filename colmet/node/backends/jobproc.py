"""I/O and memory of each job's processes, from /proc. On with --enable-jobproc.

Counted by process, not by thread: /proc/<tid>/io of a thread repeats what its whole process read and wrote.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterable, Sequence

import numpy as np

from colmet.common.cli import Options
from colmet.common.errors import ParseError
from colmet.common.schema import MISSING_INT, Field, Sample, Schema
from colmet.node.accounting.accumulator import Accumulator, Ints, as_values
from colmet.node.backend import InputBackend
from colmet.node.host import Host, is_gone
from colmet.node.jobs import Job

log = logging.getLogger(__name__)


def _io(name: str, unit: str, text: str) -> Field:
    return Field(name, unit, "counter", f"{text} Source: /proc/<pid>/io {name}.")


IO_FIELDS = [
    _io("rchar", "bytes", "Bytes asked for by read calls, cache hits too."),
    _io("wchar", "bytes", "Bytes given to write calls, cached ones too."),
    _io("syscr", "count", "Read calls."),
    _io("syscw", "count", "Write calls."),
    _io("read_bytes", "bytes", "Bytes read from storage."),
    _io("write_bytes", "bytes", "Bytes written, or to be written, to storage."),
    _io("cancelled_write_bytes", "bytes", "Bytes of write_bytes that a truncation took back."),
]
SCHEMA = Schema(
    "jobprocstats_default",
    "job",
    [
        *IO_FIELDS,
        Field(
            "VmRSS", "kbytes", "gauge", "Resident memory, summed over processes. Source: /proc/<pid>/statm column 2."
        ),
        Field("RssShmem", "kbytes", "gauge", "Shared memory and tmpfs within it. Source: /proc/<pid>/status RssShmem."),
        Field("VmSize", "kbytes", "gauge", "Virtual memory. Source: /proc/<pid>/statm column 1."),
    ],
)
_IO = slice(0, len(IO_FIELDS))
_IO_KEYS = [field.name.encode() + b":" for field in IO_FIELDS]
_NO_IO = [MISSING_INT] * len(IO_FIELDS)
_PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024


def parse_io(data: bytes) -> list[int]:
    """The seven counters of /proc/<pid>/io, in the order of `IO_FIELDS`.

    Raises:
        ValueError: another form.
    """
    words = data.split()
    if words[0::2] != _IO_KEYS:
        raise ValueError("not the seven lines of /proc/<pid>/io")
    return [int(word) for word in words[1::2]]


def number_after(text: bytes, key: bytes) -> int:
    """The whole number that follows `key` on its line, with or without a unit behind it.

    Raises:
        ValueError, IndexError: there is no such line, or no number on it.
    """
    start = text.index(key) + len(key)
    return int(text[start : start + 32].split(None, 1)[0])


class _Process:
    """One process: its files, kept open, and what changes rarely.

    Attributes:
        serial: a number of its own, unlike the pid never given to another process.
    """

    __slots__ = ("_io", "_shape", "_shmem_kb", "_statm", "_status", "pid", "ppid", "serial")

    def __init__(self, host: Host, pid: int, serial: int) -> None:
        self.pid = pid
        self.serial = serial
        self.ppid = 0
        self._io = host.keep(f"/proc/{pid}/io")
        self._statm = host.keep(f"/proc/{pid}/statm")
        self._status = host.keep(f"/proc/{pid}/status")
        self._shape: tuple[bytes, bytes] | None = None
        self._shmem_kb = MISSING_INT

    def read(self) -> list[int]:
        """Its values now, in the order of `SCHEMA`; I/O is -1 where this user may not read it.

        Raises:
            OSError: it has ended; see `is_gone`.
            ParseError: a file has another form.
        """
        data = self._statm.read()
        try:
            size, resident, shared = data.split(None, 3)[:3]
            # RssShmem stands in status alone, which costs the kernel six times what statm does: it is read when the
            # mapped size or the shared pages, which include it, have changed
            if (size, shared) != self._shape:
                self._read_status()
                self._shape = (size, shared)
            memory = [int(resident) * _PAGE_KB, self._shmem_kb, int(size) * _PAGE_KB]
        except ValueError as err:
            raise ParseError(self._statm.path, data[:80]) from err
        try:
            data = self._io.read()
        except PermissionError:
            return _NO_IO + memory
        try:
            return parse_io(data) + memory
        except ValueError as err:
            raise ParseError(self._io.path, data[:80]) from err

    def is_zombie(self) -> bool:
        """Whether it has ended, and its parent has not waited for it."""
        try:
            return b"\nState:\tZ" in self._status.read()
        except OSError as err:
            if not is_gone(err):
                raise
            return False

    def forget_parent(self) -> None:
        """Its parent has ended: read who its parent is now."""
        self._shape = None

    def _read_status(self) -> None:
        status = self._status.read()
        try:
            self.ppid = number_after(status, b"\nPPid:")
            if b"\nRssShmem:" in status:
                self._shmem_kb = number_after(status, b"\nRssShmem:")
            elif b"\nVmRSS:" in status:
                self._shmem_kb = MISSING_INT  # before Linux 4.5
            else:
                self._shmem_kb = 0  # a zombie or a kernel thread has no memory
        except (ValueError, IndexError) as err:
            raise ParseError(self._status.path, status[:80]) from err

    def close(self) -> None:
        self._io.close()
        self._statm.close()
        self._status.close()


class JobprocBackend(InputBackend):
    """Rows of `SCHEMA`, one for each job that has or had a process."""

    name = "jobproc"
    schema = SCHEMA
    capabilities = frozenset(("CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE"))  # /proc/<pid>/io

    def __init__(self, host: Host) -> None:
        self._host = host
        self._totals = Accumulator(SCHEMA)
        self._processes: dict[int, _Process] = {}  # by pid
        self._by_serial: dict[int, _Process] = {}  # those of the last tick, and those that have ended since
        self._members: dict[int, list[int]] = {}  # pids by job, as of the last tick
        self._serials = 0
        self._told_of_rights = False

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """One option to turn it on."""
        parser.add_argument(
            "--enable-jobproc", action="store_true", help="measure I/O and memory of the jobs' processes in /proc"
        )

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> JobprocBackend | None:
        """Off, unless it is turned on."""
        return cls(host) if options.enable_jobproc else None

    def open(self) -> None:
        """Nothing to get ready."""

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        """One row for each job that has or had a process."""
        former, self._processes = self._processes, {}
        self._totals.keep_only({job.id for job in jobs})
        rows = []
        try:
            for job in jobs:
                totals = self._sample_job(job, former)
                if totals is not None:
                    rows.append(Sample(job.id, as_values(SCHEMA, totals)))
        except BaseException:
            self._processes = {**former, **self._processes}  # who was not looked at has not ended
            raise
        for process in former.values():
            if self._processes.get(process.pid) is not process:
                process.close()
        self._by_serial = {process.serial: process for process in self._processes.values()}
        self._members = {job: pids for job, pids in self._members.items() if job in {one.id for one in jobs}}
        return rows

    def _sample_job(self, job: Job, former: dict[int, _Process]) -> Ints | None:
        found = []
        listed = job.pids()
        for pid in listed + self._zombies(job.id, listed, former):
            process = self._processes.get(pid) or former.get(pid)
            values = self._read(process) if process is not None else None
            if values is None:  # new, or its pid was given to another process
                process = self._new(pid)
                values = self._read(process)
            if values is not None and process is not None:
                self._processes[pid] = self._by_serial[process.serial] = process
                found.append((process.serial, values))
        self._members[job.id] = [self._by_serial[serial].pid for serial, _ in found]
        found.sort()
        keys = np.array([serial for serial, _ in found], dtype=np.int64)
        table = np.array([values for _, values in found], dtype=np.int64).reshape(len(found), len(SCHEMA.fields))
        totals = self._totals.update(job.id, keys, table, self._inherited(job.id, keys, table))
        if totals is not None and (table[:, _IO] == MISSING_INT).any():
            totals[_IO] = MISSING_INT  # the sum of some processes is not what the job did
            if not self._told_of_rights:
                self._told_of_rights = True
                log.warning(
                    "cannot read /proc/<pid>/io of all processes: I/O of jobprocstats_default is missing for these "
                    "jobs; start colmet-node as root job=%d",
                    job.id,
                )
        return totals

    def _new(self, pid: int) -> _Process:
        self._serials += 1
        return _Process(self._host, pid, self._serials)

    def _zombies(self, job: int, listed: list[int], former: dict[int, _Process]) -> list[int]:
        """Former members of a job that have ended and were not waited for yet.

        A cgroup no longer lists them, but their I/O is still their own: their parent gets it when it waits.
        """
        gone = set(self._members.get(job, ())).difference(listed)
        return sorted(pid for pid in gone if pid in former and former[pid].is_zombie())

    @staticmethod
    def _read(process: _Process) -> list[int] | None:
        """A process's values; None where it has ended."""
        try:
            return process.read()
        except (OSError, ParseError) as err:
            process.close()
            if not isinstance(err, OSError) or not is_gone(err):
                raise
            return None

    def _inherited(self, job: int, keys: Ints, values: Ints) -> set[int]:
        """The ended processes whose I/O a living one of the job has taken over, by serial.

        When a process waits for its child, the kernel adds the child's I/O to its own (kernel/exit.c). So an ended
        process is left out of the ended ones' sum if its nearest living ancestor's counters have grown by at least
        what it had.
        """
        old_keys, old_values = self._totals.last_seen(job)
        ended = ~np.isin(old_keys, keys)
        if not ended.any():
            return set()
        ended_pids = {self._by_serial[serial].pid: serial for serial in old_keys[ended].tolist()}
        had = dict(zip(old_keys.tolist(), old_values[:, _IO]))
        growth = {
            key: row - had.get(key, 0) for key, row in zip(keys.tolist(), values[:, _IO])
        }  # of the living, by serial
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
                process.forget_parent()
        return inherited

    def close(self) -> None:
        """Close the files; also twice."""
        for process in self._processes.values():
            process.close()
        self._processes = {}
