"""The kernel's counters of each job's cgroups: CPU, memory, I/O, processes, pressure.

Each quantity is read in the cgroup v1 hierarchy that has the job, else in v2; on a machine with both, each quantity by
itself. The number of files a job does not depend on the number of its tasks.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from colmet.common.config.cli import Options, Rare
from colmet.common.daemon.logs import OnceLog, powers_of_ten
from colmet.common.errors import ParseError
from colmet.common.host.host import Host, is_gone
from colmet.common.schema import Sample, Value
from colmet.common.tables.cgroup import CGROUP_COUNTERS as AGENT_COUNTERS
from colmet.common.tables.cgroup import SCHEMA, USER_BYTES
from colmet.node.backend import InputBackend, JobValue
from colmet.node.jobs.job import Job
from colmet.node.kernel.textfiles import (
    TICK_NS,
    Blocks,
    Columns,
    Keyed,
    Parser,
    Values,
    count_cpus,
    has_counted,
    limit,
    number,
    pressure,
)

log = logging.getLogger(__name__)


# Gauges of current use: after the removal of the group, their last values are no longer true.
_STAY = {"memory_peak", "memory_limit", "memory_swap_limit", "pids_peak", "pids_limit", "cpus_allocated"}
IN_USE = frozenset({field.name for field in SCHEMA.fields if field.kind == "gauge"} - _STAY)

# Limits and CPUs change only when they are set: they, missing files, and all files of idle jobs, are read at every 12th
# tick.
SLOW_TICKS = 12
_TICKS_NS = 20_000_000  # largest difference of CPU times read one after the other
# Largest excess of the tasks' summed CPU times over their group's, which is in us in v2.
_ROUNDING_NS = 1_000_000


_OF = ("anon", "file")
_LISTS = [f"{use}_{of}" for use in ("active", "inactive") for of in _OF]
# memory.stat: v1 key, with total_ before it -> v2 key, column; "" if v2 has none (or a file for it alone)
_MEMORY_STAT = {
    "rss": ("anon", "memory_anon"),
    "cache": ("file", "memory_file"),
    "rss_huge": ("anon_thp", "memory_anon_thp"),
    "mapped_file": ("file_mapped", "memory_mapped_file"),
    "dirty": ("file_dirty", "memory_dirty"),
    "writeback": ("file_writeback", "memory_writeback"),
    **{key: (key, f"memory_{key}") for key in [*_LISTS, "unevictable", "shmem", "pgfault", "pgmajfault"]},
    **{key: ("", f"memory_{key}") for key in ("pgpgin", "pgpgout", "swap")},
    **{f"workingset_refault_{key}": (f"workingset_refault_{key}", f"memory_refault_{key}") for key in _OF},
}


def memory_stat_v1() -> Parser:
    """Return the parser of memory.stat of v1: the group and its descendants."""
    return Keyed(
        {f"total_{key}": column for key, (_, column) in _MEMORY_STAT.items()},
        {"hierarchical_memory_limit": "memory_limit", "hierarchical_memsw_limit": "memory_swap_limit"},
    )


def memory_stat_v2() -> Parser:
    """Return the parser of memory.stat of v2; before Linux 5.18, it sums the parts of the kernel's memory."""
    stat = Keyed({**{key: column for key, column in _MEMORY_STAT.values() if key}, "kernel": "memory_kernel"})
    parts = Keyed({key: key for key in ("kernel_stack", "pagetables", "percpu", "slab")})

    def parse(data: bytes, values: Values) -> None:
        stat(data, values)
        if "memory_kernel" not in values:
            found: Values = {}
            parts(data, found)
            if found:
                values["memory_kernel"] = sum(int(part or 0) for part in found.values())

    return parse


class BlkioProbe:
    """A test of whether v1's blkio counts at all.

    A group without I/O lists no device. But from Linux 5.16 (a7b36ee6ba29, "block: move blk-throtl fast path
    inline") to 6.4 (ad7c3b41e86b, "blk-throttle: Fix io statistics for cgroup v1", in 6.5 and backports) a group with
    I/O lists zeros, and counts only I/O that a limit of its own may throttle. Since 6.10 (a3166c51702b, "blk-throttle:
    delay initialization until configuration") it lists no device before a limit is set on a disk. A kernel that counts
    has counted something in the hierarchy's top group since the boot. Until then the result is unknown.
    """

    NAMES = ("blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_service_bytes")

    def __init__(self, host: Host) -> None:
        self._host = host
        self.result: bool | None = None  # None: test at the next call of `counts`
        self._once = OnceLog(log)

    def counts(self, directory: str) -> bool:
        """Return whether the hierarchy of this group counts I/O."""
        if self.result is None:
            self.result = self._look(directory)
            if not self.result and self._disks_were_used():
                self.warn(directory)
        return self.result

    def warn(self, directory: str) -> None:
        """Warn once, with the reason for missing I/O."""
        self._once.warning(
            "the kernel counts no I/O of cgroup v1 groups: io_* of cgroup_default is missing. Linux 5.16 to 6.4 "
            "count only in groups with a limit of their own; Linux 6.10 and later count on a disk once any group "
            "has a limit on it, however high, such as "
            "echo '<major>:<minor> 1000000000000' > %s/blkio.throttle.read_bps_device",
            directory,
        )

    def _look(self, directory: str) -> bool:
        top, found = "", b""
        while directory != "/":
            try:
                found = self._host.read(f"{directory}/{self.NAMES[1]}")
            except OSError:
                break
            top, directory = directory, posixpath.dirname(directory)
        with contextlib.suppress(OSError):  # the recursive file is missing before Linux 5.3
            found = self._host.read(f"{top}/{self.NAMES[0]}")
        return has_counted(found)

    def _disks_were_used(self) -> bool:
        try:
            lines = self._host.read("/proc/diskstats").splitlines()
        except OSError:
            return False
        # read and write operations: https://docs.kernel.org/admin-guide/iostats.html
        return any(fields[3] != b"0" or fields[7] != b"0" for fields in map(bytes.split, lines) if len(fields) > 7)


class CgroupFile(NamedTuple):
    """A file of a group."""

    names: tuple[str, ...]  # candidates; the first existing one is read
    parse: Parser
    slow: bool = False  # whether it is read at every `SLOW_TICKS`-th tick only
    lively: bool = False  # whether its values may change while the group's CPU time and memory in use do not
    # columns set to 0 if it names no device and the kernel counts, missing if all numbers are 0; see `BlkioProbe`
    empty: tuple[str, ...] = ()
    own: tuple[str, ...] = ()  # columns that the kernel counts for the group alone, without the groups inside


class ControllerFiles(NamedTuple):
    """The files of one v1 controller, and those of v2 in its place. Without a controller, v2's alone."""

    controller: str
    v1: tuple[CgroupFile, ...]
    v2: tuple[CgroupFile, ...]


UNIFIED = "unified"
# Groups inside a job's, as those of Slurm's steps and tasks and of containers, with a limit of their own or not.
MAX_INSIDE, INSIDE_DEPTH = 64, 5
NO_DIRECTORY_LINKS = 2
_IN_USE_NOW = frozenset(("memory_current", "pids_current"))


def kinds(host: Host) -> tuple[ControllerFiles, ...]:
    """Return all files, in the order of reading: CPU time first, for comparison with `cpu_attributed`."""
    blocks = Blocks(host)
    quota: Columns = {"nr_periods": "nr_periods", "nr_throttled": "nr_throttled"}
    quota_v2 = {**quota, "throttled_usec": ("throttled_time", 1000)}
    usage_v2 = {f"{key}_usec": (f"cpu_{key}", 1000) for key in ("usage", "user", "system")}
    times_v1 = {key: (f"cpu_{key}", TICK_NS) for key in ("user", "system")}
    events = {"max": "memory_limit_hits", "oom_kill": "memory_oom_kills"}
    serviced = ("blkio.throttle.io_serviced_recursive", "blkio.throttle.io_serviced")
    io_bytes, io_ops = ("io_read_bytes", "io_write_bytes"), ("io_read_ops", "io_write_ops")
    pids = (
        CgroupFile(("pids.current",), number("pids_current"), lively=True),
        CgroupFile(("pids.peak",), number("pids_peak")),
        CgroupFile(("pids.events",), Keyed({"max": "pids_limit_hits"})),
        CgroupFile(("pids.max",), limit("pids_limit"), slow=True),
    )
    return (
        ControllerFiles(
            "cpuacct",
            (CgroupFile(("cpuacct.usage",), number("cpu_usage")), CgroupFile(("cpuacct.stat",), Keyed(times_v1))),
            (CgroupFile(("cpu.stat",), Keyed({**usage_v2, **quota_v2})),),
        ),
        ControllerFiles(
            "cpu",
            (CgroupFile(("cpu.stat",), Keyed({**quota, "throttled_time": "throttled_time"})),),
            (CgroupFile(("cpu.stat",), Keyed(quota_v2)),),
        ),
        ControllerFiles(
            "cpuset",
            (CgroupFile(("cpuset.effective_cpus", "cpuset.cpus"), count_cpus, slow=True),),
            (CgroupFile(("cpuset.cpus.effective",), count_cpus, slow=True),),
        ),
        ControllerFiles(
            "memory",
            (
                CgroupFile(("memory.usage_in_bytes",), number("memory_current"), lively=True),
                CgroupFile(("memory.stat",), memory_stat_v1()),
                CgroupFile(("memory.max_usage_in_bytes",), number("memory_peak")),
                CgroupFile(("memory.kmem.usage_in_bytes",), number("memory_kernel")),
                CgroupFile(("memory.failcnt",), number("memory_limit_hits"), own=("memory_limit_hits",)),
                CgroupFile(("memory.oom_control",), Keyed({"oom_kill": "memory_oom_kills"}), own=("memory_oom_kills",)),
            ),
            (
                CgroupFile(("memory.current",), number("memory_current"), lively=True),
                CgroupFile(("memory.stat",), memory_stat_v2()),
                CgroupFile(("memory.peak",), number("memory_peak")),
                CgroupFile(("memory.swap.current",), number("memory_swap")),
                CgroupFile(("memory.events",), Keyed(events)),
                CgroupFile(("memory.max",), limit("memory_limit"), slow=True),
                CgroupFile(("memory.swap.max",), limit("memory_swap_limit", beside="memory_limit"), slow=True),
            ),
        ),
        ControllerFiles(
            "blkio",
            (
                CgroupFile(BlkioProbe.NAMES, blocks.v1(*io_bytes), empty=io_bytes),
                CgroupFile(serviced, blocks.v1(*io_ops), empty=io_ops),
            ),
            (CgroupFile(("io.stat",), blocks.v2, lively=True),),
        ),
        ControllerFiles("pids", pids, pids),
        ControllerFiles(
            "",
            (),
            tuple([CgroupFile((f"{what}.pressure",), pressure(what), lively=True) for what in ("cpu", "memory", "io")]),
        ),
    )


class _OpenFile:
    """An open file of one job, a part's."""

    def __init__(self, host: Host, part: _ControllerPart, directory: str, source: CgroupFile) -> None:
        self.part = part
        self.directory = directory
        self.source = source
        self.absent = False  # else it did not exist, and is retried at the next slow tick
        self.data: bytes | None = None  # parsed last
        self.found: Values = {}  # the values in it
        self.inside: dict[str, Counter[str]] = {}  # the last counts of groups inside, by path; those of 0 are not kept
        self.removed: Counter[str] = Counter()  # the last counts of removed ones
        self._host = host
        self._which = 0
        self.kept = host.keep(f"{directory}/{source.names[0]}")

    def use_next_name(self) -> bool:
        """Use the next name of a missing file; return False after the last, when the first is next."""
        self._which = (self._which + 1) % len(self.source.names)
        self.kept = self._host.keep(f"{self.directory}/{self.source.names[self._which]}")
        return self._which > 0


class _ControllerPart:
    """The files of one controller for one job."""

    def __init__(self, kind: ControllerFiles) -> None:
        self.kind = kind
        self.directory: str | None = None
        self.files: list[_OpenFile] = []
        self.settled = False  # whether its place is known: a v1 directory, or v2 files that were read

    def look(self, host: Host, job: Job) -> bool:
        """Search its directory, which may exist by now; return whether its files have changed."""
        directory = job.directory(self.kind.controller) if self.kind.v1 else None
        sources = self.kind.v1
        if directory is not None:
            self.settled = True
        else:
            directory, sources = job.directory(UNIFIED), self.kind.v2
        if directory == self.directory:
            return False
        self.close()
        self.directory = directory
        if directory is not None:
            self.files = [_OpenFile(host, self, directory, source) for source in sources]
        return True

    def lose(self) -> None:
        """Forget the removed directory, and search it again."""
        self.close()
        self.directory = None
        self.settled = False

    def close(self) -> None:
        for file in self.files:
            file.kept.close()
        self.files = []


def _user_of(job: Job) -> Values:
    """Return the value of the column `user`; nothing if unknown."""
    user = job.user.encode("utf-8", "replace")[:USER_BYTES].decode("utf-8", "ignore")  # whole characters
    return {"user": user.encode()} if user else {}


class _Group:
    """The files of one job, and their values."""

    def __init__(self, job: Job, parts: Sequence[_ControllerPart]) -> None:
        self.job = job
        self.counted: frozenset[str] = frozenset()  # columns of memory and tasks in use at the last reading
        self._user = _user_of(job)
        self.known: Values = {}  # the last value of each column ever read
        self.values: Values = {}  # of this tick so far
        self.slow_values: Values = {}  # of the slow files
        self.calm_values: Values = {}  # of the files that are neither slow nor lively
        self.calm_at: tuple[Value, Value] = (None, None)  # CPU time and memory in use as of these
        self.listed = True  # whether the job existed at the last tick
        self.attributed_ns: int | None = None  # known CPU time of its tasks at the last reading of its own
        self.first: list[_OpenFile] = []  # that of the CPU time
        self.lively: list[_OpenFile] = []
        self.calm: list[_OpenFile] = []
        self.slow: list[_OpenFile] = []
        self.lost: list[_ControllerPart] = []  # of removed groups
        self._parts = parts
        self._pending = list(parts)
        self._slow_in = self._slow_every = 1

    def row(self, values: Values, attributed_ns: int | None) -> Sample:
        """Return its row of these values, and of the known CPU time of its tasks by then."""
        if not self._user:
            self.job.learn_user()
            self._user = _user_of(self.job)
        row = {**self._user, **values}
        usage = row.get("cpu_usage")
        if usage is not None and attributed_ns is not None:
            row["cpu_unattributed"] = max(0, int(usage) - attributed_ns)
        return Sample(self.job.id, row)

    def is_final(self, attributed_ns: int | None) -> bool:
        """Return whether its tasks have used no known CPU time since the last reading of the group's.

        The group's figure may be a little lower than the tasks', as each is rounded separately.
        """
        usage, then_ns = self.known.get("cpu_usage"), self.attributed_ns
        if usage is None or attributed_ns is None or then_ns is None:
            return False
        return attributed_ns <= max(then_ns, int(usage) + _ROUNDING_NS)

    def last_row(self, attributed_ns: int | None) -> Sample:
        """Return its row of the last values read, once its files are gone.

        Current use is missing, and so is unattributed CPU time. The CPU time of its tasks was the group's, too.
        """
        row = {**self._user, **{name: value for name, value in self.known.items() if name not in IN_USE}}
        usage = row.get("cpu_usage")
        if usage is not None and attributed_ns is not None:
            row["cpu_usage"] = max(int(usage), attributed_ns)
        return Sample(self.job.id, row)

    def look(self, host: Host) -> None:
        """Search the parts not found yet."""
        if self._pending:
            self._pending = [part for part in self._pending if not part.settled]
            changes = [part.look(host, self.job) for part in self._pending]
            if any(changes):
                self._arrange()

    def lose(self) -> None:
        """Close the parts of removed groups, and search them again from the next tick on."""
        if self.lost:
            self._pending = [part for part in self._parts if part in self.lost or part in self._pending]
            for part in self.lost:
                part.lose()
            self.lost = []
            self._arrange()

    def is_slow_tick(self) -> bool:
        """Return whether to read all files and retry missing ones: more often soon after a part was found."""
        self._slow_in -= 1
        if self._slow_in > 0:
            return False
        self._slow_in = self._slow_every
        self._slow_every = min(2 * self._slow_every, SLOW_TICKS)
        for file in (*self.first, *self.lively, *self.calm, *self.slow):
            file.absent = False
        return True

    def _arrange(self) -> None:
        files: dict[str, _OpenFile] = {}
        for part in self._parts:
            for file in part.files:
                # one cpu.stat of v2 has the values of two controllers of v1: the first reads them all
                files.setdefault(file.kept.path, file)
        self.slow = [file for file in files.values() if file.source.slow]
        self.first, fast = [], [file for file in files.values() if not file.source.slow]
        if fast:
            self.first = [fast.pop(0)]
        self.lively = [file for file in fast if file.source.lively]
        self.calm = [file for file in fast if not file.source.lively]
        self._slow_in = self._slow_every = 1

    def close(self) -> None:
        for part in self._parts:
            part.close()


class CgroupBackend(InputBackend):
    """Rows of `SCHEMA`, one for each job that a controller measures."""

    name = "cgroup"
    schema = SCHEMA
    agent_counters = AGENT_COUNTERS
    provides = ("columns_counted",)
    needs = ("cpu_attributed",)

    def __init__(self, host: Host) -> None:
        self._host = host
        self._kinds = kinds(host)
        self._probe = BlkioProbe(host)
        self._groups: dict[Job, _Group] = {}
        self._cpu_attributed: JobValue = lambda job: None
        self._ticks = 0
        self._failures = 0
        self._overattributed = 0

    @classmethod
    def add_options(cls, parser: Options) -> None:
        parser.add_argument("--disable-cgroup", action="store_true", help=Rare("do not measure the jobs' cgroups"))

    @classmethod
    def from_options(cls, options: argparse.Namespace, host: Host) -> CgroupBackend | None:
        return None if options.disable_cgroup else cls(host)

    def sample(self, jobs: Sequence[Job]) -> Iterable[Sample]:
        self._ticks += 1
        if self._ticks % SLOW_TICKS == 0:
            self._probe.result = None
        self._close_gone(jobs)
        groups = [self._group(job) for job in jobs]
        for group in groups:  # CPU time of all jobs first: that of their tasks has just been measured
            self._begin(group)
        rows = []
        for group in groups:
            self._finish(group)
            if group.values:
                rows.append(self._row(group, group.values, group.attributed_ns))
        return rows

    def notice(self, job: Job) -> None:
        """Read the job's files: they may be removed by the next tick."""
        group = self._group(job)
        self._begin(group)
        self._finish(group, is_whole=True)

    def last(self, job: Job) -> Sample | None:
        """Return the row of the last values of each file; None without any."""
        group = self._groups.pop(job, None)
        if group is None:
            return None
        read = False
        if group.listed:  # else its files were closed, and their names may be another job's by now
            self._begin(group)
            self._finish(group, is_whole=True)
            group.close()
            read = "cpu_usage" in group.values
        attributed_ns = self._cpu_attributed(job)
        if read or group.is_final(attributed_ns):
            return self._row(group, group.known, attributed_ns)
        return group.last_row(attributed_ns) if group.known else None

    def use_value(self, name: str, value: JobValue) -> None:
        """Read `cpu_attributed`, the known CPU time in ns of a job's tasks."""
        self._cpu_attributed = value

    def job_value(self, name: str) -> JobValue:
        """Return `columns_counted`: those of memory_current and pids_current in the job's cgroups at this tick."""
        return {"columns_counted": self._counted}[name]

    def _counted(self, job: Job) -> frozenset[str] | None:
        group = self._groups.get(job)
        return None if group is None else group.counted

    def counters(self) -> Mapping[str, int]:
        return {"file_failures": self._failures, "overattributed": self._overattributed}

    def _row(self, group: _Group, values: Values, attributed_ns: int | None) -> Sample:
        usage = values.get("cpu_usage")
        if usage is not None and attributed_ns is not None and attributed_ns > 1.01 * int(usage) + _TICKS_NS:
            self._overattributed += 1
            if powers_of_ten(self._overattributed):
                log.warning(
                    "more CPU time is attributed than the cgroup used job=%d attributed_ns=%d usage_ns=%d rows=%d",
                    group.job.id,
                    attributed_ns,
                    usage,
                    self._overattributed,
                )
        return group.row(values, attributed_ns)

    def _group(self, job: Job) -> _Group:
        former = self._groups.get(job)
        if former is not None and former.listed:
            return former
        group = self._groups[job] = _Group(job, [_ControllerPart(kind) for kind in self._kinds])
        if former is not None:  # it was not listed at the last tick
            group.known = former.known
        return group

    def _close_gone(self, jobs: Sequence[Job]) -> None:
        """Close the files of ended jobs; keep their values one tick longer, for `last`."""
        listed = set(jobs)
        for job in [job for job in self._groups if job not in listed]:
            group = self._groups[job]
            if group.listed:
                group.close()
                group.listed = False
            else:
                del self._groups[job]

    def _begin(self, group: _Group) -> None:
        """Read the first file alone: the job's CPU time."""
        group.look(self._host)
        group.values = self._read(group, group.first, {})

    def _finish(self, group: _Group, is_whole: bool = False) -> None:
        """Read the other files; with `is_whole`, all of them.

        Without CPU time of its tasks and with the same memory in use, the other values stay as they were, except for
        the kernel's own work in the background: they are read at slow ticks only.
        """
        values = self._read(group, group.lively, group.values)
        used = values.get("cpu_usage"), values.get("memory_current")
        is_whole = group.is_slow_tick() or is_whole
        if is_whole:
            group.slow_values = self._read(group, group.slow, {})
        if is_whole or None in used or used != group.calm_at:
            group.calm_values, group.calm_at = self._read(group, group.calm, {}), used
            self._add_inside(group.calm, group.calm_values)
        values.update(group.slow_values)
        values.update(group.calm_values)
        group.lose()
        group.known = values if len(values) >= len(group.known) else {**group.known, **values}
        group.counted = _IN_USE_NOW.intersection(values)
        if "cpu_usage" in values:
            group.attributed_ns = self._cpu_attributed(group.job)

    def _read(self, group: _Group, files: Sequence[_OpenFile], values: Values) -> Values:
        """Add the values of files, and return all; the columns of an unreadable file are missing."""
        for file in files:
            if file.absent:
                continue
            source = file.source
            try:
                data = file.kept.read()
            except OSError as err:
                if err.errno == errno.ENODEV:  # its descriptor is open, the group is removed
                    group.lost.append(file.part)
                elif err.errno == errno.ENOENT and file.use_next_name():
                    self._read(group, [file], values)
                else:
                    file.absent = True
                    # EOPNOTSUPP: pressure is compiled in and off (psi=0)
                    if not is_gone(err) and err.errno != errno.EOPNOTSUPP:
                        self._failed(group.job, f"{file.kept.path}: {err.strerror}")
                continue
            file.part.settled = True
            if data == file.data:
                values.update(file.found)
                continue
            is_alone = not (source.slow or source.empty)  # its values depend on no other file
            found: Values = {} if is_alone else values
            try:
                source.parse(data, found)
                if is_alone:
                    file.data, file.found = data, found
                    values.update(found)
            except (ValueError, IndexError) as err:
                values.update(found)  # those before the fault
                self._failed(group.job, f"{ParseError(file.kept.path, data[:80])} ({err})")
                continue
            if source.empty and source.empty[0] not in values:
                if b":" in data:
                    self._probe.warn(file.directory)
                elif self._probe.counts(file.directory):
                    values.update(dict.fromkeys(source.empty, 0))
        return values

    def _add_inside(self, files: Sequence[_OpenFile], values: Values) -> None:
        """Add what the kernel counts for the groups inside alone, at any depth; of removed ones, what they last had."""
        own = [file for file in files if file.source.own and not file.absent]
        for directory in {file.directory for file in own}:
            of_it = [file for file in own if file.directory == directory]
            for path in self._inside(directory):
                for file in of_it:
                    self._read_inside(file, path)
            for file in of_it:
                for path in [path for path in file.inside if not self._host.is_directory(path)]:
                    file.removed.update(file.inside.pop(path))
        for file in own:
            for name in file.source.own:
                count = values.get(name)
                if count is not None:
                    inside = sum([counts[name] for counts in file.inside.values()])
                    values[name] = int(count) + inside + file.removed[name]

    def _read_inside(self, file: _OpenFile, path: str) -> None:
        """Read a file of a group inside; a lower count is of another group that was made at its path."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            found: Values = {}
            file.source.parse(self._host.read(f"{path}/{file.source.names[0]}"), found)
            counts = Counter({name: int(found.get(name) or 0) for name in file.source.own})
            before = file.inside.pop(path, Counter[str]())
            if any(counts[name] < before[name] for name in before):
                file.removed.update(before)
            if any(counts.values()):
                file.inside[path] = counts

    def _inside(self, directory: str) -> list[str]:
        """Return the directories inside one, outer ones first; a bounded number."""
        found: list[str] = []
        level = [directory]
        for _ in range(INSIDE_DEPTH):
            inside = []
            for path in level:
                with contextlib.suppress(OSError):
                    # most have none, and their number of links says so
                    if self._host.links(path) != NO_DIRECTORY_LINKS:
                        inside += [f"{path}/{name}" for name in sorted(self._host.directories(path))]
            level = inside[: MAX_INSIDE - len(found)]
            found += level
        return found

    def _failed(self, job: Job, what: str) -> None:
        self._failures += 1
        if powers_of_ten(self._failures):
            log.error(
                "cannot parse a cgroup's file, its columns are missing job=%d failures=%d: %s",
                job.id,
                self._failures,
                what,
            )

    def close(self) -> None:
        for group in self._groups.values():
            group.close()
        self._groups = {}
