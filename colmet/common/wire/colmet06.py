"""Colmet 0.6's dialect, in both directions: consecutive packed records of fixed size.

`RECORDS` alone holds the layout of 0.6's messages; it is frozen. A record is a header (metric name, host, job, epoch
seconds) and all counters of its metric, little-endian, without padding.

The dialect has no missing value for its unsigned counters, and an old collector fails on a value beyond 2^63 - 1, so a
missing one is sent as 0, as 0.6 did; in signed counters and floats it is -1.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from colmet.common.errors import WireError
from colmet.common.schema import MISSING_INT, Batch, Field, Schema, Table
from colmet.common.wire.limits import MAX_JOBS, at_most, checked_host, checked_int

NAME_BYTES = 255
INVOLVED_JOBS_BYTES = 8192
NS = 1_000_000_000
HOST_AT, JOB_AT, HEADER_BYTES = NAME_BYTES, 2 * NAME_BYTES, 2 * NAME_BYTES + 16  # metric, host, job, seconds
LAST_S = ((1 << 63) - 1) // NS  # since the epoch
_NUMBERS = {"u8": "i8", "u4": "i8", "i8": "i8", "f4": "f4"}  # type on the wire -> type in our rows


class Record:
    """The frozen layout of one metric.

    Args:
        name: metric name, e.g. ``taskstats_default``.
        scope: job or node.
        counters: groups of (type on the wire, unit as 0.6 named it, names), in wire order.
        involved_jobs: whether the record ends with the list of the node's jobs.
    """

    def __init__(
        self, name: str, scope: str, counters: Iterable[tuple[str, str, str]], involved_jobs: bool = False
    ) -> None:
        self.name = name
        self.scope = scope
        self.involved_jobs = involved_jobs
        self.counters = [(n, wire, unit) for wire, unit, names in counters for n in names.split()]

    @cached_property
    def schema(self) -> Schema:
        """Return the schema of rows read from such records."""
        return Schema(
            self.name,
            self.scope,
            [
                Field(name, "none" if unit == "n/a" else unit, "gauge", dtype=_NUMBERS[wire])
                for name, wire, unit in self.counters
            ],
        )

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """Return the type of a packed record."""
        header = [("metric", f"S{NAME_BYTES}"), ("host", f"S{NAME_BYTES}"), ("job_id", "<u8"), ("time", "<u8")]
        tail = [("involved_jobs", f"S{INVOLVED_JOBS_BYTES}")] if self.involved_jobs else []
        return np.dtype(header + [(name, "<" + wire) for name, wire, _ in self.counters] + tail)

    @cached_property
    def packed_name(self) -> bytes:
        """Return the metric name as packed at the start of a record."""
        return self.name.encode().ljust(NAME_BYTES, b"\0")

    @cached_property
    def blocks(self) -> list[tuple[str, int, int, int]]:
        """Return the adjacent counters of one type: that type, their number, first byte in a record and in a row."""
        blocks = []
        at, to = HEADER_BYTES, 8
        for wire, group in groupby([wire for _, wire, _ in self.counters]):
            count = len(list(group))
            blocks.append((wire, count, at, to))
            at += count * int(wire[1])
            to += count * int(_NUMBERS[wire][1])
        return blocks

    @cached_property
    def size(self) -> int:
        """Return the size of a record in bytes."""
        return int(self.dtype.itemsize)

    @cached_property
    def row_bytes(self) -> int:
        """Return the size of a row of `schema` in bytes."""
        return self.schema.row_bytes

    def rows(self, packed: bytes) -> bytes:
        """Convert records of this metric, one after the other, to rows of `schema`."""
        count, size, row_bytes = len(packed) // self.size, self.size, self.row_bytes
        rows = bytearray(count * row_bytes)
        np.ndarray((count,), "<i8", rows, 0, (row_bytes,))[:] = np.ndarray((count,), "<i8", packed, JOB_AT, (size,))
        for wire, width, at, to in self.blocks:
            kind = "<i8" if wire == "u8" else "<" + wire  # beyond 2^63 - 1 is no count: negative here
            number = _NUMBERS[wire]
            values = np.ndarray((count, width), kind, packed, at, (size, int(wire[1])))
            out = np.ndarray((count, width), "<" + number, rows, to, (row_bytes, int(number[1])))
            if wire == "u8":
                np.maximum(values, MISSING_INT, out=out)
            elif wire == "f4":
                out[:] = np.where(values == -1, np.float32(np.nan), values)
            else:
                out[:] = values
        return bytes(rows)


def _numbered(count: int) -> str:
    return " ".join(f"counter_{n}" for n in range(1, count + 1))


RECORDS = {
    record.name: record
    for record in (
        Record(
            "taskstats_default",
            "job",
            [
                ("u8", "count", "cpu_count"),
                ("u8", "nsec", "cpu_delay_total"),
                ("u8", "count", "blkio_count"),
                ("u8", "nsec", "blkio_delay_total"),
                ("u8", "count", "swapin_count"),
                ("u8", "nsec", "swapin_delay_total cpu_run_real_total cpu_run_virtual_total"),
                ("u4", "ts_date", "ac_btime"),
                ("u8", "usec", "ac_etime ac_utime ac_stime"),
                ("u8", "count", "ac_minflt ac_majflt"),
                ("u8", "mbytes-usec", "coremem virtmem"),
                ("u8", "bytes", "read_char write_char"),
                ("u8", "count", "read_syscalls write_syscalls"),
                ("u8", "bytes", "read_bytes write_bytes cancelled_write_bytes"),
                ("u8", "count", "nvcsw nivcsw"),
                ("u8", "usec", "ac_utimescaled ac_stimescaled"),
                ("u8", "nsec", "cpu_scaled_run_real_total"),
                ("u8", "count", "freepages_count"),
                ("u8", "nsec", "freepages_delay_total"),
            ],
        ),
        Record(
            "procstats_default",
            "node",
            [
                ("u8", "sec", "uptime_total uptime_idle"),
                ("u8", "kbytes", "meminfo_memtotal meminfo_memfree meminfo_buffers meminfo_cached meminfo_swapcached"),
                ("u8", "kbytes", "meminfo_active meminfo_inactive meminfo_unevictable meminfo_mlocked"),
                ("u8", "kbytes", "meminfo_swaptotal meminfo_swapfree meminfo_dirty meminfo_writeback"),
                ("u8", "kbytes", "meminfo_anonpages meminfo_mapped meminfo_shmem meminfo_slab meminfo_sreclaimable"),
                ("u8", "kbytes", "meminfo_sunreclaim meminfo_kernelstack meminfo_pagetables meminfo_nfs_unstable"),
                ("u8", "kbytes", "meminfo_bounce meminfo_writebacktmp meminfo_commitlimit meminfo_committed_as"),
                ("u8", "kbytes", "meminfo_vmalloctotal meminfo_vmallocused meminfo_vmallocchunk"),
                ("u8", "kbytes", "meminfo_anonhugepages"),
                ("u8", "count", "meminfo_hugepages_total meminfo_hugepages_free meminfo_hugepages_rsvd"),
                ("u8", "count", "meminfo_hugepages_surp meminfo_hugepagesize"),
                ("u8", "kbytes", "meminfo_directmap4k meminfo_directmap2m"),
                ("u8", "count", "vmstat_pgpgin vmstat_pgpgout vmstat_pswpin vmstat_pswpout vmstat_pgfault"),
                ("u8", "count", "vmstat_pgmajfault"),
                ("u8", "n/a", "stat_cpu_user stat_cpu_nice stat_cpu_system stat_cpu_idle stat_cpu_iowait stat_cpu_irq"),
                ("u8", "n/a", "stat_cpu_softirq stat_cpu_guest stat_cpu_guest_nice stat_intr stat_ctxt stat_processes"),
                ("u8", "n/a", "stat_procs_blocked"),
                ("f4", "n/a", "loadavg_1min loadavg_5min loadavg_15min loadavg_runnable loadavg_total_threads"),
            ],
            involved_jobs=True,
        ),
        Record(
            "jobprocstats_default",
            "job",
            [
                ("i8", "count", "rchar wchar syscr syscw read_bytes write_bytes cancelled_write_bytes"),
                ("i8", "count", "VmRSS RssShmem VmSize"),
            ],
        ),
        Record("perfhwstats_default", "job", [("i8", "count", _numbered(5))]),
        Record("RAPLstats_default", "node", [("i8", "count", _numbered(24))], involved_jobs=True),
        Record(
            "infinibandstats_default",
            "node",
            [("i8", "bytes", "portXmitData portRcvData"), ("i8", "count", "portXmitPkts portRcvPkts")],
            involved_jobs=True,
        ),
        Record(
            "lustrestats_default",
            "node",
            [
                ("u8", "count", "lustre_nb_read"),
                ("u8", "bytes", "lustre_bytes_read"),
                ("u8", "count", "lustre_nb_write"),
                ("u8", "bytes", "lustre_bytes_write"),
            ],
            involved_jobs=True,
        ),
        Record("ipmipowerstats_default", "node", [("i8", "count", "average_power_consumption")], involved_jobs=True),
        Record("temperaturestats_default", "node", [("i8", "celsius", _numbered(6))]),
        Record(
            "nvidiastats_default",
            "job",
            [
                ("i8", "count", "power temperature utilization-gpu utilization-memory"),
                ("i8", "count", "memory-total memory-free memory-used"),
            ],
        ),
    )
}


_BY_PACKED_NAME = {record.packed_name: record for record in RECORDS.values()}
_LEAST_BYTES = min([record.size for record in RECORDS.values()])
_NUMBERS_OF_HEADER = struct.Struct("<qq")  # job, seconds since the epoch


def columns(table: str) -> Mapping[str, str]:
    """Return the columns in every row of a 0.6 table, and their types; none for a table unknown to 0.6."""
    record = RECORDS.get(table)
    return {} if record is None else {field.name: field.dtype for field in record.schema.fields}


def pack_jobs(jobs: Iterable[int], limit: int = INVOLVED_JOBS_BYTES) -> bytes:
    """Return a JSON list of job ids; ids beyond `limit` bytes are dropped, so that it stays JSON."""
    text = json.dumps(list(jobs))
    if len(text) > limit:
        text = text[: text.rindex(",", 0, limit)] + "]"
    return text.encode()


@lru_cache(maxsize=1024)
def _parse_jobs(text: bytes) -> tuple[int, ...] | None:
    """Return the ids of a JSON list; None for an empty string or other data, sent by 0.6 nodes at times.

    A node repeats its list at every tick, until a job starts or ends.
    """
    try:
        jobs = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if type(jobs) is not list or len(jobs) > MAX_JOBS:
        return None
    return tuple([job for job in jobs if type(job) is int and 0 <= job < 1 << 63])


_Run = tuple["Record", int, int, int]  # metric; first byte and end in the message; place among all of the metric


class _Gathered:
    """All records of one metric in some messages, in their order: gathered, then converted together.

    Attributes:
        count: of the records.
        parts: the records as they came.
        rows: the records as packed rows.
        times_s: the time of each.
        changes: places of the records whose host or time is not that of the record before.
        wrong: places of the records with a job id or time that is not allowed.
    """

    def __init__(self) -> None:
        self.count = 0
        self.parts: list[bytes] = []

    def convert(self, record: Record) -> None:
        """Convert the gathered records."""
        packed, size = b"".join(self.parts), record.size
        hosts = np.ndarray((self.count,), f"S{NAME_BYTES}", packed, HOST_AT, (size,))
        numbers = np.ndarray((self.count, 2), "<i8", packed, JOB_AT, (size, 8))
        self.jobs, times_s = numbers.T
        self.rows = record.rows(packed)
        self.times_s: list[int] = times_s.tolist()
        self.changes: list[int] = []
        if self.count > 1:
            changed = (hosts[1:] != hosts[:-1]) | (times_s[1:] != times_s[:-1])
            self.changes = (changed.nonzero()[0] + 1).tolist()
        self.wrong: list[int] = []
        if numbers.min() < 0 or max(self.times_s) > LAST_S:
            self.wrong = ((numbers.min(axis=1) < 0) | (times_s > LAST_S)).nonzero()[0].tolist()


def decode(message: bytes) -> tuple[Batch, ...]:
    """Return the batches in a message, one for each host, time and list of its jobs; a 0.6 node sends one, or two.

    Raises:
        WireError: a record is unknown, cut short, or its header is not allowed; the message is refused whole.
    """
    (found,) = decode_all([message])
    if isinstance(found, WireError):
        raise found
    return found


def decode_all(messages: Iterable[bytes]) -> list[tuple[Batch, ...] | WireError]:
    """Return the batches of each message, or its defect, as `decode`.

    The records of a metric are converted together: the more messages, the cheaper each.
    """
    gathered: dict[Record, _Gathered] = defaultdict(_Gathered)
    split: list[tuple[bytes, list[_Run]]] = []
    for message in messages:
        runs: list[_Run] = []
        for record, start, end in _runs(message):
            those = gathered[record]
            runs.append((record, start, end, those.count))
            those.count += (end - start) // record.size
            those.parts.append(message[start:end])
        split.append((message, runs))
    for record, those in gathered.items():
        those.convert(record)
    return [_batches(message, runs, gathered) for message, runs in split]


def _runs(message: bytes) -> list[tuple[Record, int, int]]:
    """Return each run of equal records in a message, first byte and end; none if a record is unknown or cut short."""
    runs = []
    offset, end = 0, len(message)
    while offset < end:
        record = _BY_PACKED_NAME.get(message[offset : offset + NAME_BYTES])
        if record is None:
            return []
        start, name, size = offset, record.packed_name, record.size
        offset += size
        while message.startswith(name, offset):
            offset += size
        runs.append((record, start, offset))
    return runs if offset == end else []


def _batches(message: bytes, runs: list[_Run], gathered: Mapping[Record, _Gathered]) -> tuple[Batch, ...] | WireError:
    """Return the batches of a message, or its defect."""
    # for each host and time, by the list of jobs: that of each table is kept; tables without one go with the first
    found: dict[tuple[bytes, int], dict[tuple[int, ...] | None, dict[Record, list[bytes]]]] = {}
    batches = []
    for record, start, end, first in runs:
        size, row_bytes, those = record.size, record.row_bytes, gathered[record]
        last = first + (end - start) // size
        if those.wrong and bisect_left(those.wrong, first) < bisect_left(those.wrong, last):
            return _defect(message)
        changes = those.changes
        inner = changes[bisect_right(changes, first) : bisect_left(changes, last)] if last > first + 1 else []
        if not inner and len(runs) == 1 and not record.involved_jobs and last - first <= MAX_JOBS:  # most messages
            time_ns = those.times_s[first] * NS
            tables = (Table(record.schema, time_ns, those.rows[first * row_bytes : last * row_bytes]),)
            try:
                return (_batch(message[start + HOST_AT : start + JOB_AT], time_ns, None, tables),)
            except WireError as err:
                return err
        for low, high in zip([first, *inner], [*inner, last]) if inner else ((first, last),):
            offset = start + (low - first) * size
            key = (message[offset + HOST_AT : offset + JOB_AT], those.times_s[low])
            involved = _involved_jobs(message, record, offset, offset + (high - low) * size)
            parts = found.setdefault(key, {}).setdefault(involved, {})
            parts.setdefault(record, []).append(those.rows[low * row_bytes : high * row_bytes])
    if not runs:
        return _defect(message)
    try:
        if len(message) > MAX_JOBS * _LEAST_BYTES:
            ids = [gathered[record].jobs[first:][: (end - start) // record.size] for record, start, end, first in runs]
            at_most(MAX_JOBS, len(np.unique(np.concatenate(ids))), "jobs")
        order = [record for record, *_ in runs]
        for (host, time_s), by_jobs in found.items():
            listless = by_jobs.pop(None, {}) if len(by_jobs) > 1 else {}
            for jobs, parts in by_jobs.items():
                parts.update(listless)
                listless = {}
                records = sorted(parts, key=order.index)
                joined = [Table(record.schema, time_s * NS, b"".join(parts[record])) for record in records]
                batches.append(_batch(host, time_s * NS, jobs, tuple(joined)))
    except WireError as err:
        return err
    return tuple(batches)


def _involved_jobs(message: bytes, record: Record, start: int, end: int) -> tuple[int, ...] | None:
    """Return the first list of jobs in the records of a host and time; None without a readable one."""
    if record.involved_jobs:
        for behind in range(start + record.size, end + 1, record.size):
            involved = _parse_jobs(message[behind - INVOLVED_JOBS_BYTES : behind].partition(b"\0")[0])
            if involved is not None:
                return involved
    return None


def _batch(host: bytes, time_ns: int, jobs: tuple[int, ...] | None, tables: tuple[Table, ...]) -> Batch:
    # same as Batch(...), in a third of the time
    return Batch._make((_host(host), None, None, time_ns, jobs, tables))


@lru_cache(maxsize=4096)
def _host(packed: bytes) -> str:
    """Return the host name of a record's header; WireError for anything else."""
    return checked_host(packed.rstrip(b"\0").decode("ascii", "replace"))


def _defect(message: bytes) -> WireError:
    """Return the first defect of a refused message's records and headers."""
    offset = 0
    try:
        while True:
            record = _record_at(message, offset)
            job_id, time_s = _NUMBERS_OF_HEADER.unpack_from(message, offset + JOB_AT)
            checked_int(time_s, "a record's time")
            if time_s > LAST_S:
                raise WireError(f"a record's time, {time_s}, is not in seconds since the epoch")
            checked_int(job_id, "a record's job id")
            offset += record.size
    except WireError as err:
        return err


def _record_at(message: bytes, offset: int) -> Record:
    """Return the kind of the record at `offset`; WireError if it is unknown or cut short."""
    name = message[offset : offset + NAME_BYTES]
    record = _BY_PACKED_NAME.get(name)
    if record is None:
        name = name.rstrip(b"\0")
        record = RECORDS.get(name.decode("ascii", "replace"))  # the name itself may be cut short
    if record is None:
        raise WireError(f"byte {offset}: {name!r:.80} is not a metric of Colmet 0.6")
    if len(message) - offset < record.size:
        raise WireError(f"byte {offset}: {record.name} is cut short, it has {record.size} bytes")
    return record


def _pack(record: Record, batch: Batch, table: Table) -> npt.NDArray[Any]:
    packed = np.zeros(len(table.rows), dtype=record.dtype)
    packed["metric"] = record.name.encode()
    packed["host"] = batch.host.encode()
    packed["job_id"] = table.rows["job_id"]
    packed["time"] = table.time_ns // NS
    for name, wire, _ in record.counters:
        if name in table.schema.names:
            values = table.rows[name]
            missing = np.isnan(values) if values.dtype.kind == "f" else values == MISSING_INT
            packed[name] = np.where(missing, 0 if wire[0] == "u" else -1, values)
        elif wire[0] != "u":
            packed[name] = -1
    if record.involved_jobs:
        packed["involved_jobs"] = pack_jobs(batch.jobs or ())
    return packed


def encode(batch: Batch, left_out: Container[str] = ()) -> bytes:
    """Return one message for one batch: rows by job, in the order of their first appearance.

    An old collector stops at an unknown metric, so tables and fields newer than 0.6 are dropped, as are `left_out`.
    """
    by_job: dict[int, list[bytes]] = {}
    for table in batch.tables:
        record = RECORDS.get(table.schema.name)
        if record is None or table.schema.name in left_out:
            continue
        packed = _pack(record, batch, table)
        for n, job in enumerate(table.rows["job_id"].tolist()):
            by_job.setdefault(job, []).append(packed[n : n + 1].tobytes())
    return b"".join([part for parts in by_job.values() for part in parts])
