"""Rows on standard output, as text for people, as JSON and as CSV for programs.

After a kill, rows written since the last saved position are written again: a pipe has no rollback.
"""

from __future__ import annotations

import argparse
import csv
import errno
import io
import json
import logging
import math
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from colmet.collector.backend import JournalRecord, OutputBackend
from colmet.collector.journal.output_state import OutputState
from colmet.common.config.cli import Options
from colmet.common.errors import ConfigError, OutputUnavailable
from colmet.common.schema import MISSING_INT, Batch, Sample, Table
from colmet.common.wire.colmet06 import RECORDS, Record, pack_jobs

log = logging.getLogger(__name__)

NS = 1_000_000_000
READER_WAIT_MS = 1000


def _decoded(value: Any) -> Any:
    """Return a string as text without control characters, and a float without a JSON number as None."""
    if isinstance(value, bytes):
        text = value.decode("utf-8", "replace")
        return text if text.isprintable() else text.encode("unicode_escape").decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def format_text(batch: Batch, table: Table, sample: Sample) -> str:
    """Return a heading, then a line for each value with its unit; missing values are skipped."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(table.time_ns // NS))
    what = f"job {sample.job_id}" if table.schema.scope == "job" else "node"
    lines = [f"{when} {batch.host} {what} {table.schema.name}"]
    for field in table.schema.fields:
        value = _decoded(sample.values[field.name])
        if value is not None:
            unit = "" if field.unit in ("none", "count") else f" {field.unit}"
            lines.append(f"  {field.name:<28} {value:>20}{unit}")
    return "\n".join(lines)


def format_json(batch: Batch, table: Table, sample: Sample) -> str:
    """Return one object: hostname, job_id, timestamp, metric_backend, involved_jobs for the node, then the values.

    Missing values are skipped, and so is involved_jobs if the message lacks the jobs of the node.
    """
    record: dict[str, Any] = {
        "timestamp": table.time_ns // NS,
        "hostname": batch.host,
        "job_id": sample.job_id,
        "metric_backend": table.schema.name,
    }
    if table.schema.scope == "node" and batch.jobs is not None:
        record["involved_jobs"] = list(batch.jobs)
    values = ((name, _decoded(value)) for name, value in sample.values.items())
    record.update({name: value for name, value in values if value is not None})
    return json.dumps(record, separators=(",", ":"))


def format_csv(batch: Batch, table: Table, sample: Sample) -> str:
    """Return a line for each value except missing ones; see `CSV_HEADER`."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    start = (table.time_ns // NS, batch.host, sample.job_id, table.schema.name)
    for field in table.schema.fields:
        value = _decoded(sample.values[field.name])
        if value is not None:
            writer.writerow((*start, field.name, value, field.unit))
    return lines.getvalue()[:-1]


CSV_HEADER = "timestamp,hostname,job_id,metric_backend,metric,value,unit"


# -- the form of Colmet 0.6 --

# Tables with 0.6's own order of columns, not by name.
_ORDERS: Mapping[str, Sequence[str]] = {
    "taskstats_default": (
        *("coremem", "virtmem", "ac_btime", "read_char", "write_char", "cpu_scaled_run_real_total"),
        *("cancelled_write_bytes", "ac_etime", "ac_majflt", "ac_minflt", "blkio_count", "cpu_count", "swapin_count"),
        *("nivcsw", "freepages_count", "read_bytes", "read_syscalls", "ac_stime", "ac_stimescaled"),
        *("blkio_delay_total", "cpu_delay_total", "cpu_run_real_total", "cpu_run_virtual_total"),
        *("freepages_delay_total", "swapin_delay_total", "ac_utime", "ac_utimescaled", "nvcsw"),
        *("write_bytes", "write_syscalls"),
    )
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


def rows06(batch: Batch) -> Iterator[str]:
    """Yield the text of each row, table by table, as sent by nodes of 0.6, for programs that parse it.

    Tables and columns unknown to 0.6 are skipped; a missing value is -1, as in its collector. Times are local.
    """
    for table in batch.tables:
        if table.schema.name in RECORDS:
            for sample in table.samples():
                yield _row(batch, table, sample)


# -- the output --


def _each(write: Callable[[Batch, Table, Sample], str]) -> Callable[[Batch], Iterator[str]]:
    return lambda batch: (write(batch, table, sample) for table in batch.tables for sample in table.samples())


FORMATS: Mapping[str, Callable[[Batch], Iterator[str]]] = {
    "text": _each(format_text),
    "json": _each(format_json),
    "csv": _each(format_csv),
    "colmet06": rows06,
}


class StdoutOutput(OutputBackend):
    """Output of rows to a descriptor, standard output in production."""

    name = "stdout"

    def __init__(self, form: str, fd: int | None = None) -> None:
        self._format = FORMATS[form]
        self._fd = sys.stdout.fileno() if fd is None else fd
        self._state: OutputState | None = None
        # rest of a partly written text, and number of its record
        self._rest = f"{CSV_HEADER}\n".encode() if form == "csv" else b""
        self._begun = -1
        self._printed = 0  # number after the last record that is out; its position may not be saved yet

    @classmethod
    def add_options(cls, parser: Options) -> None:
        """Declare the options of this output."""
        parser.add_argument("--enable-stdout-backend", action="store_true", help="write rows to standard output")
        parser.add_argument(
            "--stdout-format",
            choices=list(FORMATS),
            default="text",
            help="text or csv: a line for each value; json: an object for each row; colmet06: as Colmet 0.6 "
            "(default: %(default)s)",
        )
        parser.require("--enable-stdout-backend", "--stdout-format")

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> StdoutOutput | None:
        """Return the output, or None without --enable-stdout-backend."""
        return cls(options.stdout_format) if options.enable_stdout_backend else None

    def open(self, state: OutputState) -> None:
        """Check that the descriptor is open; ConfigError if standard output is closed."""
        self._state = state
        try:
            os.fstat(self._fd)
        except OSError as err:
            raise ConfigError(f"--enable-stdout-backend: standard output is closed: {err.strerror}") from err

    def write(self, records: Sequence[JournalRecord]) -> None:
        """Write all rows in order of arrival.

        Raises:
            OutputUnavailable: the reader of the pipe has ended or does not read, or the disk is full.
        """
        assert self._state is not None
        done = max(self._state.position, self._printed)
        try:
            for record in records:
                if record.number < done:
                    continue
                before, text = len(self._rest), self._rest
                if record.number != self._begun:
                    text += "".join([line + "\n" for batch in record.batches for line in self._format(batch)]).encode()
                written, why = self._write_out(text)
                if written == len(text):
                    self._rest = b""
                    done = record.number + 1
                    continue
                if written > before:
                    self._begun = record.number
                # a cut-off rest is written first next time; a record without any output is formatted again
                self._rest = text[written:] if record.number == self._begun else text[written:before]
                raise OutputUnavailable(f"standard output: {why}")
        finally:
            self._printed = done
            if done != self._state.position:
                self._state.save(done)

    def _write_out(self, text: bytes) -> tuple[int, str]:
        """Write as much as the reader accepts; return the number of bytes, and the reason if not all.

        A writable pipe or terminal accepts PIPE_BUF bytes without blocking; a reader that does not read must not stop
        the other outputs.
        """
        step = len(text) if stat.S_ISREG(os.fstat(self._fd).st_mode) else select.PIPE_BUF
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        done = 0
        try:
            while done < len(text):
                if not poll.poll(READER_WAIT_MS):
                    return done, "its reader does not read"
                done += os.write(self._fd, text[done : done + step])
        except OSError as err:
            return done, "its reader has ended" if err.errno == errno.EPIPE else str(err.strerror)
        return done, ""

    def close(self) -> None:
        """Write the rest of a cut-off record; standard output itself stays open."""
        if self._rest:
            done, why = self._write_out(self._rest)
            if why:
                log.error("standard output: cut off, %d bytes are not out: %s", len(self._rest) - done, why)
            elif self._state is not None and self._begun == self._state.position:
                self._state.save(self._begun + 1)
            self._rest = b""
