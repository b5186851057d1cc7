"""The Rust node's dialect, inbound: one msgpack map, job id -> [host, ms, version, backends].

Its values name their metrics by index in a numbered table; `NAMES` is that table, version 1. Values whose index or
version is not in it are skipped and counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from colmet.common.errors import WireError
from colmet.common.schema import MISSING_INT, Batch, Field, Schema, Table
from colmet.common.wire.limits import MAX_JOBS, at_most, checked_host, checked_int, scalars

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
MAX_VALUES = 65536  # of one backend of one job
MAX_MESSAGE_VALUES = 1 << 19  # of all; a node with 4,096 jobs sends 278,528
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


# (host, ns) -> job -> backend -> values by name
_Found = dict[tuple[str, int], dict[int, dict[str, dict[str, int]]]]


def _scalar_list(source: Any) -> list[Any]:
    return [source.unpack() for _ in range(at_most(MAX_VALUES, source.read_array_header(), "ids or values"))]


def _named(ids: list[Any], values: list[Any], version: int, schema: Schema) -> dict[str, int]:
    """The values that have a name here, by it."""
    if len(ids) != len(values):
        raise WireError("metric ids and values are not two lists of one length")
    names = NAMES.get(version, ())
    found: dict[str, int] = {}
    for raw, value in zip(ids, values):
        index = _index(raw)
        if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            raise WireError(f"{value!r:.80} is not a signed 64-bit value")
        if 0 <= index < len(names) and names[index] in schema.names:
            found[names[index]] = value
    return found


def _read_backend(source: Any, job: int, version: int, found: dict[str, dict[str, int]]) -> tuple[int, int]:
    """Adds one backend's values to `found`; returns how many there were, and how many of them were skipped."""
    count = source.read_array_header()
    if count not in (3, 4):
        raise WireError("a backend is not [job, name, ids, values]")
    if count == 4:
        inner = source.unpack()
        if inner != job:
            raise WireError(f"job {job} holds values of job {inner!r:.80}")
    name = _text(source.unpack())
    schema = SCHEMAS.get(name) if type(name) is str else None
    if schema is None:
        count = at_most(MAX_VALUES, source.read_array_header(), "ids")
        for _ in range(count + 1):  # the ids, and the values as one
            source.skip()
        return count, count
    ids, values = _scalar_list(source), _scalar_list(source)
    named = _named(ids, values, version, schema)
    if named:
        found.setdefault(name, {}).update(named)
    return len(ids), len(ids) - len(named)


def _read(message: bytes) -> tuple[_Found, int]:
    """What the message holds, and how many values were skipped."""
    source = scalars(message)
    found: _Found = {}
    values = skipped = 0
    seen = set()
    for _ in range(at_most(MAX_JOBS, source.read_map_header(), "jobs")):
        job = checked_int(source.unpack(), "a job id")
        if job in seen:
            raise WireError(f"the map has job {job} twice")
        seen.add(job)
        size = source.read_array_header()
        if size not in (3, 4):
            raise WireError("a job's entry is not [host, milliseconds, version, backends]")
        host = checked_host(_text(source.unpack()))
        milliseconds = checked_int(source.unpack(), "milliseconds")
        time_ns = milliseconds * 1_000_000
        if time_ns >= 1 << 63:
            raise WireError(f"{milliseconds} ms is not a time")
        version = OLDEST_VERSION if size == 3 else checked_int(source.unpack(), "the version of the metric table")
        backends = found.setdefault((host, time_ns), {}).setdefault(job, {})
        for _ in range(source.read_array_header()):
            some, unnamed = _read_backend(source, job, version, backends)
            values, skipped = values + some, skipped + unnamed
            at_most(MAX_MESSAGE_VALUES, values, "values")
    if source.tell() != len(message):
        raise WireError("there are bytes after the map")
    return found, skipped


def decode(message: bytes) -> tuple[tuple[Batch, ...], int]:
    """The batches in a message, one for each (host, time), and how many values were skipped.

    Raises:
        WireError: the message is not of this dialect.
    """
    try:
        found, skipped = _read(message)
    except WireError:
        raise
    except Exception as err:  # msgpack raises ValueError, its own types, RecursionError, MemoryError, ...
        raise WireError(f"not a whole message of this dialect: {type(err).__name__} {err}") from err
    return tuple([_batch(host, time_ns, jobs) for (host, time_ns), jobs in found.items()]), skipped


def _batch(host: str, time_ns: int, jobs: dict[int, dict[str, dict[str, int]]]) -> Batch:
    packed: dict[str, list[tuple[int, ...]]] = {}
    for job, backends in jobs.items():
        for name, values in backends.items():
            row = (job, *[values.get(column, MISSING_INT) for column in SCHEMAS[name].names])
            packed.setdefault(name, []).append(row)
    tables = [Table(SCHEMAS[name], time_ns, np.array(rows, dtype=SCHEMAS[name].dtype)) for name, rows in packed.items()]
    return Batch(host, None, None, time_ns, tuple(jobs), tuple(tables))
