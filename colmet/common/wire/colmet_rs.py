"""The Rust node's dialect, inbound: one msgpack map, job id -> [host, ms, version, backends].

Its values name their metrics by index in a numbered table; `NAMES` is that table, version 1. Values whose index or
version is not in it are skipped and counted.
"""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

from colmet.common.errors import WireError
from colmet.common.schema import Batch, Field, Schema, Table
from colmet.common.wire.limits import MAX_JOBS, checked_host, checked_int

# cgroup v1 memory.stat
MEMORY = (
    *("cache", "rss", "rss_huge", "shmem", "mapped_file", "dirty", "writeback", "swap"),
    *("pgpgin", "pgpgout", "pgfault", "pgmajfault"),
    *("inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable"),
    *("hierarchical_memory_limit", "hierarchical_memsw_limit"),
    *("total_cache", "total_rss", "total_rss_huge", "total_shmem", "total_mapped_file", "total_dirty"),
    *("total_writeback", "total_swap", "total_pgpgin", "total_pgpgout", "total_pgfault", "total_pgmajfault"),
    *("total_inactive_anon", "total_active_anon", "total_inactive_file", "total_active_file", "total_unevictable"),
)
# cgroup v1 cpu.stat
CPU = ("nr_periods", "nr_throttled", "throttled_time")
PERFHW = (
    *("cpu_cycles", "instructions", "cache_references", "cache_misses", "branch_instructions", "branch_misses"),
    *("bus_cycles", "ref_cpu_cycles", "cache_l1d", "cache_ll", "cache_dtlb", "cache_itlb", "cache_bpu", "cache_node"),
    *("cache_op_read", "cache_op_prefetch", "cache_result_access", "cpu_clock", "task_clock", "page_faults"),
    *("context_switches", "cpu_migrations", "page_faults_min", "page_faults_maj", "alignment_faults"),
    *("emulation_faults", "dummy", "bpf_output"),
)
NAMES = {1: MEMORY + CPU + PERFHW}
OLDEST_VERSION = 1  # the oldest nodes do not send the version; they had this table


def _memory_field(name: str) -> Field:
    events = ("pgpgin", "pgpgout", "pgfault", "pgmajfault")
    source = "Source: cgroup v1 memory.stat, read by the Rust node."
    if name.endswith(events):
        return Field(name, "count", "counter", source)
    return Field(name, "bytes", "gauge", source)


_CPU_SOURCE = "Source: cgroup v1 cpu.stat, read by the Rust node."
# Its perf counts have table and column names of their own: counter_1..5 of perfhwstats_default have no fixed meaning.
SCHEMAS = {
    "memory": Schema("memory_default", "job", [_memory_field(name) for name in MEMORY]),
    "cpu": Schema(
        "cpu_default",
        "job",
        [Field(name, "nsec" if name == "throttled_time" else "count", "counter", _CPU_SOURCE) for name in CPU],
    ),
    "perfhw": Schema(
        "perfhw_default",
        "job",
        [Field(name, "count", "gauge", "Count since the last sample. Source: perf_event_open.") for name in PERFHW],
    ),
}


def _text(value: Any) -> Any:
    return value.decode("ascii", "replace") if type(value) is bytes else value


def _index(value: Any) -> int:
    value = _text(value)
    if type(value) is str and len(value) <= 6 and value.isascii() and value.isdigit():
        return int(value)
    if type(value) is not int:
        raise WireError(f"{value!r:.80} is not a metric id")
    return value


def _values(ids: Any, values: Any, version: int, schema: Schema) -> tuple[dict[str, int], int]:
    """Values by name, and how many of them have no name here."""
    if type(ids) is not list or type(values) is not list or len(ids) != len(values) or len(ids) > 65536:
        raise WireError("metric ids and values are not two lists of one length")
    names = NAMES.get(version, ())
    found: dict[str, int] = {}
    for raw, value in zip(ids, values):
        index = _index(raw)
        if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            raise WireError(f"{value!r:.80} is not a signed 64-bit value")
        if 0 <= index < len(names) and names[index] in schema.names:
            found[names[index]] = value
    return found, len(ids) - len(found)


def decode(message: bytes) -> tuple[tuple[Batch, ...], int]:
    """The batches in a message, one for each (host, time), and how many values were skipped.

    Raises:
        WireError: the message is not of this dialect.
    """
    try:
        entries = msgpack.unpackb(message, strict_map_key=False)
    except Exception as err:  # msgpack raises ValueError, its own types, RecursionError, TypeError, ...
        raise WireError(f"not a msgpack map: {type(err).__name__} {err}") from err
    if type(entries) is not dict or len(entries) > MAX_JOBS:
        raise WireError("not a map of jobs")
    skipped = 0
    found: dict[tuple[str, int], dict[str, list[tuple[int, dict[str, int]]]]] = {}
    jobs: dict[tuple[str, int], list[int]] = {}
    for job, entry in entries.items():
        checked_int(job, "a job id")
        if type(entry) is not list or len(entry) not in (3, 4):
            raise WireError("a job's entry is not [host, milliseconds, version, backends]")
        host = checked_host(_text(entry[0]))
        time_ns = checked_int(entry[1], "milliseconds") * 1_000_000
        if time_ns >= 1 << 63:
            raise WireError(f"{entry[1]} ms is not a time")
        version = OLDEST_VERSION if len(entry) == 3 else checked_int(entry[2], "the version of the metric table")
        if type(entry[-1]) is not list:
            raise WireError("a job's backends are not a list")
        jobs.setdefault((host, time_ns), []).append(job)
        tables = found.setdefault((host, time_ns), {})
        for backend in entry[-1]:
            if type(backend) is not list or len(backend) not in (3, 4):
                raise WireError("a backend is not [job, name, ids, values]")
            if len(backend) == 4 and backend[0] != job:
                raise WireError(f"job {job} holds values of job {backend[0]!r:.80}")
            name, ids, values = backend[-3:]
            schema = SCHEMAS.get(_text(name)) if type(name) in (str, bytes) else None
            if schema is None:
                skipped += len(values) if type(values) is list else 1
                continue
            by_name, unknown = _values(ids, values, version, schema)
            skipped += unknown
            if by_name:
                tables.setdefault(_text(name), []).append((job, by_name))
    return tuple([_batch(key, jobs[key], tables) for key, tables in found.items()]), skipped


def _batch(key: tuple[str, int], jobs: list[int], found: dict[str, list[tuple[int, dict[str, int]]]]) -> Batch:
    host, time_ns = key
    tables = []
    for backend, samples in found.items():
        schema = SCHEMAS[backend]
        packed = [(job, *[values.get(name, -1) for name in schema.names]) for job, values in samples]
        tables.append(Table(schema, time_ns, np.array(packed, dtype=schema.dtype)))
    return Batch(host, None, None, time_ns, tuple(jobs), tuple(tables))
