"""Rows in the text format of Colmet 0.6's standard output, for programs that parse it.

Tables and columns unknown to 0.6 are skipped; a missing value is -1, as in its collector. Times are local.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from colmet.common.schema import MISSING_INT, Batch, Sample, Table
from colmet.common.wire.colmet06 import RECORDS, Record, pack_jobs

NS = 1_000_000_000

# Tables with 0.6's own order of columns, not by name.
_ORDERS: Mapping[str, Sequence[str]] = {
    "taskstats_default": (
        *("coremem", "virtmem", "ac_btime", "read_char", "write_char", "cpu_scaled_run_real_total"),
        *("cancelled_write_bytes", "ac_etime", "ac_majflt", "ac_minflt", "blkio_count", "cpu_count", "swapin_count"),
        *("nivcsw", "freepages_count", "read_bytes", "read_syscalls", "ac_stime", "ac_stimescaled"),
        *("blkio_delay_total", "cpu_delay_total", "cpu_run_real_total", "cpu_run_virtual_total"),
        *("freepages_delay_total", "swapin_delay_total", "ac_utime", "ac_utimescaled", "nvcsw"),
        *("write_bytes", "write_syscalls"),
    ),
}
# The states of CPUs stand together, at the place of the first of them by name.
_STATES = [
    f"stat_cpu_{name}" for name in ("nice", "system", "idle", "iowait", "irq", "softirq", "guest", "guest_nice", "user")
]


def _scaled(factor: int, limit: int, prefixes: Sequence[str]) -> Callable[[float], str]:
    """Return a formatter of numbers without decimals, with the first prefix that makes them at most `limit`."""

    def write(value: float) -> str:
        scaled, power = float(value), 0
        while scaled > limit and power < len(prefixes) - 1:
            scaled, power = scaled / factor, power + 1
        return f"{scaled:.0f}{prefixes[power]}"

    return write


_BINARY = ("", "K", "M", "G", "T")
_WRITERS: Mapping[str, tuple[Callable[[Any], str], str]] = {
    "bytes": (_scaled(1024, 10_000, _BINARY), " (bytes)"),
    "kbytes": (_scaled(1024, 10_000, _BINARY[1:]), " (bytes)"),
    "count": (_scaled(1000, 10_000, _BINARY), " (count)"),
    "nsec": (_scaled(1000, 1000, ("n", "u", "m", "")), " (seconds)"),
    "usec": (_scaled(1000, 1000, ("u", "m", "")), " (seconds)"),
    "sec": (str, " (seconds)"),
    "celsius": (str, " (celsius)"),
    "n/a": (str, ""),
}
_MBYTES_USEC = _scaled(1024, 10_000, (" ", *_BINARY[1:]))


def _text(value: Any, unit: str) -> str:
    """Return a value in 0.6's format for this unit."""
    if unit == "ts_date":
        try:
            return time.strftime("%d/%m/%Y - %H:%M:%S", time.localtime(max(0, value)))
        except (OverflowError, ValueError, OSError):  # not a calendar time
            return str(value)
    if unit == "mbytes-usec":
        return f"{_MBYTES_USEC(float(value * 1024 * 1024 / 1000 / 1000))} (bytes*seconds)"
    write, suffix = _WRITERS[unit]
    return write(value) + suffix


def _order(record: Record) -> list[str]:
    """Return the columns of a table in the order of 0.6's output."""
    fixed = _ORDERS.get(record.name)
    if fixed is not None:
        return list(fixed)
    names = sorted([name for name, _, _ in record.counters] + ["involved_jobs"] * record.involved_jobs)
    states = [name for name in names if name in _STATES]
    if states:
        at = names.index(states[0])
        names[at : at + len(states)] = _STATES
    return names


_COLUMNS = {record.name: _order(record) for record in RECORDS.values()}
_KINDS = {record.name: {name: (wire, unit) for name, wire, unit in record.counters} for record in RECORDS.values()}


def _row(batch: Batch, table: Table, sample: Sample) -> str:
    """Return the text of one row."""
    kinds, names = _KINDS[table.schema.name], _COLUMNS[table.schema.name]
    width = max(map(len, names))
    lines = []
    for name in names:
        if name == "involved_jobs":
            text = "" if batch.jobs is None else pack_jobs(batch.jobs).decode()
        else:
            wire, unit = kinds[name]
            value = sample.values.get(name)
            value = MISSING_INT if value is None else value
            text = _text(float(np.float32(value)) if wire == "f4" else value, unit)
        lines.append(f"\t{name:>{width}} : {text}\n")
    head = f"{table.time_ns // NS}  Job({sample.job_id})/ {table.schema.name} -> Host({batch.host}) -> "
    return f"{head}{{\n{''.join(lines)}}}"


def rows(batch: Batch) -> Iterator[str]:
    """Yield the text of each row, table by table, as sent by nodes of 0.6."""
    for table in batch.tables:
        if table.schema.name in RECORDS:
            for sample in table.samples():
                yield _row(batch, table, sample)
