"""Reading of a file that may be torn or of others: is it whole after a kill or a power cut, and how old is it.

The HDF5 library can crash or hang on such a file, so a child process reads it. It receives one task, JSON, on its
standard input, and answers on its standard output.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from colmet.collector.backends.hdf5.checkpoint import KeptTails, Tails, Undo
from colmet.collector.backends.hdf5.h5table import REPLACED, Damaged, reading, table_names, temporary
from colmet.collector.backends.hdf5.libhdf5 import Dataset, NotFlatError, OpenFile
from colmet.collector.backends.hdf5.library import is_of_system, opened_library
from colmet.common.errors import OutputUnavailable
from colmet.common.host.command import python_command, python_environment
from colmet.common.host.files import write_all

# HDF5 indexes chunks in nodes of up to 64. It splits a full node of growing tables 9 to 1: the latest nodes can be
# small, and the others have at least half of that.
LAST_CHUNKS, PROBE_CHUNKS = 128, 32
MAX_TABLES = 256  # whose last rows tell the age of a file
MAX_ROWS = 256  # at the end of a table
_JOB = re.compile(r"job_([0-9]{1,19})", re.ASCII)
_NOTHING = (0, -1)  # a lost chunk is read as zeros or as missing values

ReportProgress = Callable[[], object]  # called for each table
ERRORS = {error.__name__: error for error in (Damaged, OutputUnavailable)}
QUIET_S = 600  # limit for the longest table
# Other signals come from outside: a service stop, Ctrl-C, a machine out of memory.
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


def check_file(path: str, expected: int | None, undo: Undo, tails: Tails, report: ReportProgress = bool) -> None:
    """Check that all tables are there and can be read, and that those of a burst have the rows before it.

    `expected` is the number of tables, without those created by the burst; None if unknown. `undo` has the row counts
    before it of the tables that it touched, None for those that it created, and `tails` checksums of their last chunks.

    Raises:
        Damaged: the file is torn.
        OutputUnavailable: a system error prevents reading the file.
    """
    with reading(path), opened_library(path, "r") as file:
        kept, library = KeptTails(path, tails), OpenFile(file.root._v_objectid)
        names = [name for name in table_names(file) if undo.get(name, 0) is not None]
        # a table whose former version has another name: the burst was giving it more columns
        former = {temporary(name, REPLACED): name for name, rows in undo.items() if rows is not None}
        former = {other: name for other, name in former.items() if other in file}
        places = {**dict(zip(names, names)), **{name: other for other, name in former.items()}}
        for name, place in places.items():
            report()
            _check_table(library, place, name, undo.get(name), tails.get(name), kept)
        lacking = [name for name, rows in undo.items() if rows is not None and name not in places]
        if lacking or expected not in (None, len(places)):
            raise Damaged(f"{path}: has {len(places)} tables, {expected} were written {''.join(lacking[:1])}")


def _check_table(library: OpenFile, place: str, name: str, rows: int | None, tail: int | None, kept: KeptTails) -> None:
    """Check one table: its last row, or with `rows` that these are there; Damaged if not."""
    try:
        table = library.find(place.encode())
    except NotFlatError as err:
        if rows is None:
            return  # the collector writes nothing there, and says so
        raise Damaged(f"{name} is no table any more") from err
    if rows is None:
        if table.rows:
            table.read(table.rows - 1, table.rows)
        return
    if table.rows < rows:
        raise Damaged(f"{name} has fewer than the {rows} rows that were written")
    last = rows - rows % table.form.chunk_rows
    if tail is not None and not has_tail(table, last, rows, tail):
        if kept.get(name) is None:
            raise Damaged(f"the last rows of {name} are others than those written")
        rows = last
    for part in _samples(table, rows):
        if _is_torn(part, name.split("/")[1].partition("_")[2]):
            raise Damaged(f"{name} has rows that were never written to it")


def has_tail(table: Dataset, last: int, rows: int, checksum: int) -> bool:
    """Return whether the rows of the last chunk have this checksum; False if they are unreadable."""
    try:
        return zlib.crc32(table.read(last, rows).tobytes()) == checksum
    except Exception as err:  # on a damaged file, the library raises anything
        if is_of_system(err):
            raise
        return False


def _samples(table: Dataset, rows: int) -> Iterator[Any]:
    """Yield rows of each node of the index of chunks: single ones, and all of the last chunks."""
    chunk = table.form.chunk_rows
    whole = max(0, rows - LAST_CHUNKS * chunk)
    for row in range(0, whole, PROBE_CHUNKS * chunk):
        yield table.read(row, row + 1)
    if rows:
        yield table.read(whole, rows)


def _is_torn(rows: Any, job: str) -> bool:
    """Return whether some of the rows cannot have been written to a table of this job: of another one, or empty.

    Rows of 0.6 may lack job and name, but have a time.
    """
    names, wrong = rows.dtype.names, np.zeros(len(rows), bool)
    if "job_id" in names and rows.dtype["job_id"].kind == "i" and job.isdigit():
        wrong |= ~np.isin(rows["job_id"], (int(job), -1))
    if {"timestamp", "metric_backend"} <= set(names):
        wrong |= np.isin(rows["timestamp"], _NOTHING) & (rows["metric_backend"] == b"")
    return bool(wrong.any())


def read_last_row_s(path: str, report: ReportProgress = bool) -> int:
    """Return the latest time among the last rows of a file, in seconds since 1970; 0 without a row.

    The tables of nodes are read first, then those of the latest jobs.

    Raises:
        Damaged: it cannot be read, or has anything that colmet-collector does not write.
        OutputUnavailable: a system error prevents reading it.
    """
    latest = 0
    with reading(path), opened_library(path, "r") as file:
        for name in file.root._v_children:
            if not _JOB.fullmatch(name) or name not in file.root._v_groups:
                raise Damaged(f"{path}: has /{name:.100}, which colmet-collector does not write")
        library = OpenFile(file.root._v_objectid)
        for name in islice(table_names(file, _order), MAX_TABLES):
            report()
            try:
                table = library.find(name.encode())
            except NotFlatError:
                table = None
            if table is None or not {"timestamp", "hostname"} <= set(table.form.dtype.names or ()):
                raise Damaged(f"{path}: has {name:.100}, which colmet-collector does not write")
            if table.rows:
                last = table.read(max(0, table.rows - MAX_ROWS), table.rows)
                latest = max(latest, int(last["timestamp"].max()))
    return latest


def _order(group: str) -> tuple[bool, int]:
    job = _JOB.fullmatch(group)
    number = int(job[1]) if job else 0
    return number != 0, -number


TASKS: dict[str, Callable[..., Any]] = {task.__name__: task for task in (check_file, read_last_row_s)}


def check(path: str, expected: int | None, undo: Undo, tails: Tails) -> None:
    """Run `check_file` in a child, with the same errors; a crash of the library raises Damaged, too."""
    _ask(check_file, path, expected, undo, tails)


def last_row_s(path: str) -> int:
    """Run `read_last_row_s` in a child, with the same errors; a crash of the library raises Damaged, too."""
    return int(_ask(read_last_row_s, path))


def _ask(task: Callable[..., Any], path: str, *arguments: Any) -> Any:
    command, environment = python_command(f"from {__name__} import main; main()"), python_environment()
    asked = json.dumps([task.__name__, [path, *arguments]]).encode()
    try:
        done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, env=environment, check=False)
    except OSError as err:
        raise OutputUnavailable(f"cannot start {sys.executable}: {err.strerror}") from err
    if -done.returncode in CRASHES:
        raise Damaged(f"{path}: the HDF5 library crashed on it ({signal.Signals(-done.returncode).name})")
    if -done.returncode == signal.SIGALRM:
        raise Damaged(f"{path}: reading a table of it comes to no end in {QUIET_S} s")
    if done.returncode:
        raise OutputUnavailable(
            f"{sys.executable}, which was to read {path}, ended too early (status {done.returncode})"
        )
    kind, content = json.loads(done.stdout)
    if kind != "result":
        raise ERRORS[kind](content)
    return content


def main() -> None:
    """Run the task on standard input, in the child process."""
    asked = sys.stdin.buffer.read()
    if not asked:  # the parent has ended
        return
    task, arguments = json.loads(asked)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        answer = ["result", TASKS[task](*arguments, report=lambda: signal.alarm(QUIET_S))]
    except tuple(ERRORS.values()) as err:
        answer = [type(err).__name__, str(err)]
    except Exception as err:  # noqa: BLE001 - the parent reports it
        answer = ["OutputUnavailable", f"{type(err).__name__}: {err}"]
    with contextlib.suppress(BrokenPipeError):  # the parent has ended meanwhile
        write_all(sys.stdout.fileno(), json.dumps(answer).encode())
