"""A thinned copy of an HDF5 file that is no longer written: the same tables, columns, types and attributes."""

from __future__ import annotations

import os
import tempfile
import time
from array import array
from collections import ChainMap, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colmet.collector.backends.hdf5 import thin_times
from colmet.collector.backends.hdf5.h5table import Damaged, chunk_rows, column, copy_rows, reading
from colmet.collector.backends.hdf5.last_rows import last_row_s
from colmet.collector.backends.hdf5.library import BACKEND_VERSION, cause, is_of_system, opened_library, tables
from colmet.collector.backends.hdf5.thin_rows import END_S, Around, thinned
from colmet.collector.backends.hdf5.thin_rules import WHOLE, rules_of
from colmet.common.errors import OutputUnavailable
from colmet.common.growth import CAPACITY_COLUMNS, NODE_CPUS, Capacity, of_columns
from colmet.common.measures import CGROUP_TABLE, GPUS, GPUS_OF_JOBS, PROCESSES_TABLE, START, TASKS_TABLE
from colmet.common.runtime.files import make_private, write_all

GROUP_BYTES = 32 << 20  # rows in memory at a time; a host's rows of one table are never divided
BLOCK_BYTES = 4 << 20  # read at a time
CHUNK_BYTES = 64 << 10
DAY_S = 86400
SELDOM_S = 240  # where jobs begin or end more often, no rows of other jobs stay for that
OLDEST_S = 400 * 86400  # an older start of a job is not believed
PROGRESS_S = 0.2
DONE, ALREADY, RECENT = "done", "already", "recent"

Rows = npt.NDArray[np.void]
Ints = npt.NDArray[np.int64]
ReportProgress = Callable[[str, Any], None]


class Thinned(NamedTuple):
    """What has become of a file.

    Attributes:
        result: `DONE`; `ALREADY` for one thinned before, `RECENT` for one with rows after the limit.
        rows: number before.
        rows_left: number after.
        row_bytes: of all rows before, uncompressed.
        row_bytes_left: of all rows after.
    """

    result: str
    rows: int = 0
    rows_left: int = 0
    row_bytes: int = 0
    row_bytes_left: int = 0


def thin(path: str, target: str, step_s: int, before_s: float, report: ReportProgress) -> Thinned:
    """Write a thinned copy of a file, and sync it to disk; meant for a process of its own.

    Args:
        path: of the file.
        target: of the copy, private to its owner; an existing one is emptied; "": only count.
        step_s: one row for each multiple of it, in seconds.
        before_s: a file with a row at this time or later is left as it is.
        report: progress callback: ("at", name) before reading a table, ("progress", share) now and then.

    Raises:
        Damaged: the file cannot be read, or has anything that colmet-collector does not write.
        OutputUnavailable: the copy cannot be written, or a system error prevents reading the file.
    """
    with reading(path), opened_library(path, "r") as file:
        if thin_times.step_of(file) >= step_s:
            return Thinned(ALREADY)
    if last_row_s(path, report) >= before_s:
        return Thinned(RECENT)
    try:
        if target:
            make_private(target)
        writing = opened_library(target, "w") if target else nullcontext()
        with reading(path), opened_library(path, "r") as old, writing as new:
            found = _Copy(old, new, step_s, report).make()
        if target:
            with open(target, "rb") as written:
                os.fsync(written.fileno())
    except Exception as err:
        if target and os.path.lexists(target):
            os.unlink(target)
        if isinstance(err, (Damaged, OutputUnavailable)) or not is_of_system(err):
            raise
        raise OutputUnavailable(f"cannot write {target}: {cause(err)}") from err
    return found


class _Copy:
    """The copy of a file; `new` is None if it is only counted."""

    def __init__(self, old: Any, new: Any, step_s: int, report: ReportProgress) -> None:
        self._old, self._new = old, new
        self._step_s, self._report = step_s, report
        self._ends: dict[bytes, Ints] = {}  # by host: first and last rows of its jobs, and their starts
        self._few_ends: dict[bytes, Ints] = {}  # of hosts where these are seldom
        self._gpu_times: dict[bytes, list[Ints]] = defaultdict(list)  # by host: of the rows of GPUs of jobs
        self._capacities: dict[bytes, Capacity] = {}  # of the present job
        self._node_cpus: dict[bytes, Capacity] = {}
        self._runs = thin_times.StoredRuns(old)
        self._counts = np.zeros(4, np.int64)
        self._done = self._share = self._reported = 0.0

    def make(self) -> Thinned:
        names = [
            (int(group[len("job_") :]), group, table)
            for group in self._old.root._v_groups
            for table in list(self._old.get_node(f"/{group}")._v_children)
        ]
        # jobs before the nodes: rows of a node stay where a job begins and ends; the CPUs of a job first
        names.sort(key=lambda one: (one[0] == 0, one[0], one[2] != CGROUP_TABLE, one[2]))
        self._read_node_cpus()
        self._read_ends(names)
        sizes = {name: self._size(f"/{name[1]}/{name[2]}") for name in names}
        all_bytes = max(1, sum(sizes.values()))
        done = 0
        job = -1
        for name in names:
            if name[0] != job:
                job, self._capacities = name[0], {}
            self._done, self._share = done / all_bytes, sizes[name] / all_bytes
            self._table(name[0], f"/{name[1]}", name[2])
            done += sizes[name]
        if self._new is not None:
            self._old.root._v_attrs._f_copy(self._new.root)
            setattr(self._new.root._v_attrs, thin_times.STEP, self._step_s)
            for group in {name[1] for name in names}:
                self._old.get_node(f"/{group}")._v_attrs._f_copy(self._new.get_node(f"/{group}"))
        return Thinned(DONE, *self._counts.tolist())

    def _size(self, path: str) -> int:
        self._report("at", path)
        table = self._old.get_node(path)
        return int(table.nrows) * int(table.dtype.itemsize) if isinstance(table, tables.Table) else 0

    def _read_node_cpus(self) -> None:
        """Read the CPUs of nodes from the first rows: they bound what jobs without a cgroup can use."""
        path = f"/job_0/{NODE_CPUS[0]}"
        table = self._old.get_node(path) if path in self._old else None
        if not isinstance(table, tables.Table) or NODE_CPUS[1] not in table.colnames:
            return
        rows = table.read(0, max(1, BLOCK_BYTES // int(table.dtype.itemsize)))
        for host in np.unique(rows["hostname"]).tolist():
            cpus = int(rows[NODE_CPUS[1]][rows["hostname"] == host].max())
            if cpus > 0:
                self._node_cpus[host] = Capacity(cpus)

    def _read_ends(self, names: Sequence[tuple[int, str, str]]) -> None:
        """Read where each job begins and ends on each host: rows of others there stay, to share its energy."""
        found: dict[bytes, array[int]] = defaultdict(lambda: array("q"))
        tables_of: dict[str, set[str]] = defaultdict(set)
        for job, group, name in names:
            if job:
                tables_of[group].add(name)
        for group, there in tables_of.items():
            name = next((one for one in (TASKS_TABLE, CGROUP_TABLE, PROCESSES_TABLE) if one in there), "")
            if not name:
                continue
            self._report("at", f"/{group}/{name}")
            table = self._old.get_node(f"/{group}/{name}")
            if not isinstance(table, tables.Table) or not {"timestamp", "hostname"} <= set(table.colnames):
                continue
            wanted = [one for one in ("hostname", "timestamp", START.best.column) if one in table.colnames]
            step = max(1, BLOCK_BYTES // int(table.dtype.itemsize))
            ends: dict[bytes, tuple[int, int, int]] = {}
            for start in range(0, int(table.nrows), step):
                _note_ends(ends, table.read(start, start + step)[wanted])
            for host, (first, last, began) in ends.items():
                found[host].extend((first, last, began if first - OLDEST_S < began <= first else first))
        self._ends = {host: np.unique(np.array(times, np.int64)) for host, times in found.items()}
        self._few_ends = {
            host: times for host, times in self._ends.items() if len(times) * SELDOM_S <= times[-1] - times[0] + DAY_S
        }

    def _table(self, job: int, group: str, name: str) -> None:
        self._report("at", f"{group}/{name}")
        table = self._old.get_node(f"{group}/{name}")
        if not isinstance(table, tables.Table) or not {"timestamp", "hostname"} <= set(table.colnames):
            raise Damaged(f"{self._old.filename}: has {group}/{name:.100}, which colmet-collector does not write")
        if name in WHOLE:
            target = self._target(table, group, name, int(table.nrows))
            if target is not None:
                copy_rows(table, target)
                target._f_close()
            self._count(table, int(table.nrows), int(table.nrows))
            return
        before = any(True for _ in self._runs.of(job, name))
        rules = rules_of(name, table.dtype)
        target, fresh = None, []
        left = 0
        for rows in self._parts(table):
            if name == CGROUP_TABLE:
                self._note_cpus(rows)
            around = Around(self._wanted(job, name), self._bounds())
            made = thinned(name, rows, rules, self._step_s, around)
            left += len(made)
            if name == GPUS_OF_JOBS:
                for host in np.unique(made["hostname"]).tolist():
                    self._gpu_times[host].append(np.unique(made["timestamp"][made["hostname"] == host]))
            if self._new is not None:
                if target is None:
                    whole = len(made) if len(rows) == table.nrows else int(table.nrows)
                    target = self._target(table, group, name, whole)
                target.append(made)
                if not before:
                    fresh.append(_runs(job, name, rows))
        if target is None:
            target = self._target(table, group, name, 0)
        if target is not None:
            target._f_close()
        if before:
            for runs in self._runs.of(job, name):
                self._keep_runs(runs)
        elif left < table.nrows:
            for runs in fresh:
                self._keep_runs(runs)
        self._count(table, int(table.nrows), left)

    def _count(self, table: Any, rows: int, left: int) -> None:
        size = int(table.dtype.itemsize)
        self._counts += (rows, left, rows * size, left * size)
        self._progress(1.0)

    def _progress(self, share: float) -> None:
        if time.monotonic() > self._reported + PROGRESS_S:
            self._reported = time.monotonic()
            self._report("progress", self._done + share * self._share)

    # -- what tables need of others --

    def _note_cpus(self, rows: Rows) -> None:
        """Note the CPUs and tasks of a job on each host."""
        if not set(CAPACITY_COLUMNS) <= set(rows.dtype.names or ()):
            return
        hosts, of = np.unique(rows["hostname"], return_inverse=True)
        of = of.reshape(-1)
        for n, host in enumerate(hosts.tolist()):
            values = {one: rows[one][of == n].astype(np.float64) for one in CAPACITY_COLUMNS}
            self._capacities[host] = of_columns({one: np.where(v < 0, np.nan, v) for one, v in values.items()})

    def _bounds(self) -> Mapping[bytes, Capacity]:
        """Return the CPUs and tasks of the job by host; without a cgroup, and of nodes, the CPUs of the node."""
        own = {}
        for host, capacity in self._capacities.items():
            nodes = self._node_cpus.get(host, Capacity()).cpus
            own[host] = capacity._replace(cpus=nodes) if np.isnan(capacity.cpus) else capacity
        return ChainMap(own, self._node_cpus)

    def _wanted(self, job: int, name: str) -> Mapping[bytes, Ints]:
        """Return the times at which rows of a table stay, by host."""
        if job:
            return self._few_ends
        if name != GPUS:
            return self._ends
        found = dict(self._ends)
        for host, times in self._gpu_times.items():
            found[host] = np.unique(np.concatenate([found.get(host, times[0]), *times]))
        return found

    # -- rows --

    def _parts(self, table: Any) -> Iterator[Rows]:
        """Yield the rows of a table, of some hosts at a time; of a large table by way of a temporary file."""
        size, count = int(table.dtype.itemsize), int(table.nrows)
        if count * size <= GROUP_BYTES:
            if count:
                yield table.read()
            return
        group_of, sizes = self._groups(table)
        offsets = np.concatenate(([0], np.cumsum(sizes))) * size
        written = offsets.copy()
        folder = "/var/tmp" if "TMPDIR" not in os.environ and os.access("/var/tmp", os.W_OK) else None
        with tempfile.TemporaryFile(buffering=0, dir=folder) as spool:
            for block in self._blocks(table):
                groups = np.array([group_of[host] for host in block["hostname"].tolist()])
                for group in np.unique(groups).tolist():
                    data = block[groups == group].tobytes()
                    os.lseek(spool.fileno(), int(written[group]), os.SEEK_SET)
                    write_all(spool.fileno(), data)
                    written[group] += len(data)
            for group, rows in enumerate(sizes):
                self._progress(0.5 + 0.5 * group / len(sizes))
                spool.seek(int(offsets[group]))
                yield np.frombuffer(_exactly(spool, rows * size), table.dtype)

    def _groups(self, table: Any) -> tuple[dict[bytes, int], list[int]]:
        """Return the group of each host, and the number of rows of each group."""
        counts: dict[bytes, int] = defaultdict(int)
        step = max(1, BLOCK_BYTES // int(table.dtype.itemsize))
        for start in range(0, int(table.nrows), step):
            hosts, some = np.unique(table.read(start, start + step, field="hostname"), return_counts=True)
            for host, rows in zip(hosts.tolist(), some.tolist()):
                counts[host] += rows
            self._progress(0.2 * start / int(table.nrows))
        most = max(1, GROUP_BYTES // int(table.dtype.itemsize))
        group_of: dict[bytes, int] = {}
        sizes = [0]
        for host, rows in sorted(counts.items()):
            if sizes[-1] and sizes[-1] + rows > most:
                sizes.append(0)
            group_of[host] = len(sizes) - 1
            sizes[-1] += rows
        return group_of, sizes

    def _blocks(self, table: Any) -> Iterator[Rows]:
        step = max(1, BLOCK_BYTES // int(table.dtype.itemsize))
        for start in range(0, int(table.nrows), step):
            yield table.read(start, start + step)
            self._progress(0.2 + 0.3 * start / int(table.nrows))

    def _target(self, table: Any, group: str, name: str, rows: int) -> Any:
        """Make the empty table of the copy; None if it is only counted."""
        if self._new is None:
            return None
        columns = {n: column(table.dtype[n], i, table.coldescrs[n].dflt) for i, n in enumerate(table.colnames)}
        size = int(table.dtype.itemsize)
        chunk = chunk_rows(table.filters, size) or max(1, CHUNK_BYTES // size)
        target = self._new.create_table(
            *(group, name, columns, table.title, table.filters),
            chunkshape=min(chunk, max(1, rows)),
            createparents=True,
        )
        table.attrs._f_copy(target)
        if not hasattr(target.attrs, "backend_version"):
            target.attrs.backend_version = BACKEND_VERSION
        return target

    def _keep_runs(self, runs: Rows) -> None:
        """Add the times of the rows of a table."""
        if self._new is None or not len(runs):
            return
        path = f"/{thin_times.NAME}"
        if path not in self._new:
            self._new.create_table(
                *("/", thin_times.NAME, thin_times.dtype_of(255), "Times of the rows before the file was thinned"),
                tables.Filters(complevel=1, complib="zlib", shuffle=True),
                chunkshape=(1024,),
            )
        table = self._new.get_node(path)
        made = np.zeros(len(runs), table.dtype)
        for name in table.colnames:
            made[name] = runs[name]
        table.append(made)


def _note_ends(ends: dict[bytes, tuple[int, int, int]], rows: Rows) -> None:
    """Note the times of a job's first and last rows on each host, and its start, if known."""
    hosts, of = np.unique(rows["hostname"], return_inverse=True)
    of = of.reshape(-1)
    for n, host in enumerate(hosts.tolist()):
        times = rows["timestamp"][of == n]
        starts = rows[START.best.column][of == n] if START.best.column in (rows.dtype.names or ()) else times[:0]
        starts = starts[starts > 0]
        first, last, began = ends.get(host, (END_S, 0, END_S))
        ends[host] = (
            min(first, int(times.min())),
            max(last, int(times.max())),
            int(min(began, starts.min())) if len(starts) else began,
        )


def _runs(job: int, name: str, rows: Rows) -> Rows:
    """Return the runs of the times of a table's rows."""
    found = []
    hosts, of = np.unique(rows["hostname"], return_inverse=True)
    of = of.reshape(-1)
    for n, host in enumerate(hosts.tolist()):
        first, step, samples, each = thin_times.runs_of(rows["timestamp"][of == n].astype(np.int64))
        made = np.zeros(len(first), thin_times.dtype_of(255))
        made["job_id"], made["table"], made["hostname"] = job, name.encode(), host
        made["first"], made["step"], made["samples"], made["rows"] = first, step, samples, each
        found.append(made)
    return np.concatenate(found)


def _exactly(spool: Any, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = spool.readinto(view)
        if not count:
            raise OSError("the temporary file is shorter than what was written to it")
        view = view[count:]
    return data
