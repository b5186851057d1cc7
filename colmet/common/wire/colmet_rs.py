"""The Rust node's dialect, inbound: one msgpack map, job id -> [host, ms, version, backends].

Its values name their metrics by index in a numbered table: `NAMES`, version 1, or `FIRST_NAMES` for nodes without a
version. Values without a name in the table are skipped and counted. docs/wire.md has all forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
_SWAP = ("swap", "hierarchical_memsw_limit", "total_swap")  # numbered last in the first table, which counts from 1
FIRST_NAMES = ("", *[name for name in MEMORY if name not in _SWAP], *CPU, *PERFHW, *_SWAP)
MAX_VALUES = 65536  # of one backend of one job
MAX_MESSAGE_VALUES = 1 << 19  # of one message; a node with 4,096 jobs sends 278,528


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


def _metric(value: Any) -> int | str:
    """Return an index as a number, and a name as it is."""
    value = _text(value)
    if type(value) is str:
        return int(value) if len(value) <= 6 and value.isascii() and value.isdigit() else value
    if type(value) is not int:
        raise WireError(f"{value!r:.80} is not a metric id")
    return value


class _Backend(NamedTuple):
    """The values of one backend of one job, as sent."""

    name: str
    metrics: list[int | str]  # indexes in the table of names, or names
    values: list[int]


# (host, ns) -> job -> backend -> values by name
_Found = dict[tuple[str, int], dict[int, dict[str, dict[str, int]]]]


def _scalar_list(source: Any) -> list[Any]:
    return [source.unpack() for _ in range(at_most(MAX_VALUES, source.read_array_header(), "ids or values"))]


def _read_backend(source: Any, job: int) -> _Backend | int:
    """Read one backend; skip an unknown one and return its number of values."""
    count = source.read_array_header()
    if count not in (3, 4):
        raise WireError("a backend is not [job, name, ids, values]")
    if count == 4:
        inner = source.unpack()
        if inner != job:
            raise WireError(f"job {job} holds values of job {inner!r:.80}")
    name = _text(source.unpack())
    name = name.lower() if type(name) is str else ""  # older nodes capitalise it
    if name not in SCHEMAS:
        count = at_most(MAX_VALUES, source.read_array_header(), "ids")
        for _ in range(count + 1):  # the ids, and the values as one
            source.skip()
        return count
    metrics = [_metric(one) for one in _scalar_list(source)]
    values = _scalar_list(source)
    if len(metrics) != len(values):
        raise WireError("metric ids and values are not two lists of one length")
    for value in values:
        if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            raise WireError(f"{value!r:.80} is not a signed 64-bit value")
    return _Backend(name, metrics, values)


def _names(version: int | None, first: _Backend) -> Sequence[str]:
    """Return the table of names for a job's indexes, chosen by its first backend; empty for an unknown version.

    Nodes that send no version used the first table, except for those of one day: these used that of version 1, with the
    first value of memory.stat at index 0, and memory is a job's first backend.
    """
    if version is None:
        return NAMES[1] if 0 in first.metrics else FIRST_NAMES
    return NAMES.get(version, ())


def _add_named(backend: _Backend, names: Sequence[str], found: dict[str, dict[str, int]]) -> int:
    """Add the values with a known name to `found`; return their number."""
    known = SCHEMAS[backend.name].name_set
    named: dict[str, int] = {}
    for metric, value in zip(backend.metrics, backend.values):
        if isinstance(metric, int):
            metric = names[metric] if 0 <= metric < len(names) else ""
        if metric in known:
            named[metric] = value
    if named:
        found.setdefault(backend.name, {}).update(named)
    return len(named)


def _read(message: bytes) -> tuple[_Found, int]:
    """Return the content of a message, and the number of skipped values."""
    source = scalars(message)
    found: _Found = {}
    values = stored = 0
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
        version = None if size == 3 else checked_int(source.unpack(), "the version of the metric table")
        of_job = found.setdefault((host, time_ns), {}).setdefault(job, {})
        names: Sequence[str] | None = None
        for _ in range(source.read_array_header()):
            backend = _read_backend(source, job)
            values += backend if isinstance(backend, int) else len(backend.values)
            at_most(MAX_MESSAGE_VALUES, values, "values")
            if isinstance(backend, _Backend):
                names = _names(version, backend) if names is None else names
                stored += _add_named(backend, names, of_job)
    if source.tell() != len(message):
        raise WireError("there are bytes after the map")
    return found, values - stored


def decode(message: bytes) -> tuple[tuple[Batch, ...], int]:
    """Return the batches, one for each (host, time), and the count of skipped values; WireError for other dialects."""
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
