"""Colmet 0.6's dialect, in both directions: consecutive packed records of fixed size.

`RECORDS` alone holds the layout of 0.6's messages; it is frozen. A record is a header (metric name, host, job, epoch
seconds) and all counters of its metric, little-endian, without padding.

The dialect has no missing value for its unsigned counters, and an old collector fails on a value beyond 2^63 - 1, so a
missing one is sent as 0, as 0.6 did; in signed counters and floats it is -1.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Container, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from colmet.common.errors import WireError
from colmet.common.schema import MISSING_INT, Batch, Field, Schema, Table
from colmet.common.wire.limits import MAX_JOBS, at_most, checked_host, checked_int

NAME_BYTES = 255
INVOLVED_JOBS_BYTES = 8192
NS = 1_000_000_000
_HEADER = struct.Struct(f"<{NAME_BYTES}s{NAME_BYTES}sqq")  # metric, host, job, seconds since the epoch
_READ_AS = {"u8": "q", "u4": "I", "i8": "q", "f4": "f"}
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
    def counters_struct(self) -> struct.Struct:
        """Return the layout of the counters. Unsigned ones of 64 bits are read as signed: negative is no count."""
        return struct.Struct("<" + "".join([_READ_AS[wire] for _, wire, _ in self.counters]))

    @cached_property
    def row_struct(self) -> struct.Struct:
        """Return the layout of a row of `schema`."""
        return struct.Struct("<q" + "".join([{"i8": "q", "f4": "f"}[_NUMBERS[wire]] for _, wire, _ in self.counters]))

    @cached_property
    def size(self) -> int:
        """Return the size of a record in bytes."""
        return int(self.dtype.itemsize)

    def row(self, message: bytes, offset: int, job_id: int) -> bytes:
        """Convert the record at `offset` to a row of `schema`."""
        values = self.counters_struct.unpack_from(message, offset + _HEADER.size)
        if min(values) < 0:
            values = tuple([_checked(value, wire) for value, (_, wire, _) in zip(values, self.counters)])
        return self.row_struct.pack(job_id, *values)


def _checked(value: float, wire: str) -> float:
    """Return a counter of this type, or the row's value for a missing one."""
    if wire == "u8":  # no real counter is beyond 2^63 - 1: missing
        return max(value, MISSING_INT)
    return math.nan if wire == "f4" and value == -1 else value


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


def decode(message: bytes) -> tuple[Batch, ...]:
    """Return the batches in a message, one for each (host, time); a 0.6 node sends one.

    Raises:
        WireError: a record is unknown, cut short, or its header is not allowed; the message is refused whole.
    """
    found: dict[tuple[bytes, int], dict[Record, list[bytes]]] = {}
    jobs: dict[tuple[bytes, int], tuple[int, ...]] = {}
    seen: set[int] = set()
    offset = 0
    while offset < len(message):
        record = _record_at(message, offset)
        _, host, job_id, time_s = _HEADER.unpack_from(message, offset)
        key = (host, checked_int(time_s, "a record's time"))
        if time_s * NS >= 1 << 63:
            raise WireError(f"a record's time, {time_s}, is not in seconds since the epoch")
        seen.add(checked_int(job_id, "a record's job id"))
        at_most(MAX_JOBS, len(seen), "jobs")
        if record.involved_jobs and key not in jobs:
            end = offset + record.size
            involved = _parse_jobs(message[end - INVOLVED_JOBS_BYTES : end].partition(b"\0")[0])
            if involved is not None:
                jobs[key] = involved
        found.setdefault(key, {}).setdefault(record, []).append(record.row(message, offset, job_id))
        offset += record.size
    return tuple(
        [
            Batch(
                checked_host(key[0].rstrip(b"\0").decode("ascii", "replace")),
                None,
                None,
                key[1] * NS,
                jobs.get(key),
                tuple([Table(record.schema, key[1] * NS, b"".join(rows)) for record, rows in tables.items()]),
            )
            for key, tables in found.items()
        ]
    )


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
