"""Commands on a long job, against one plain reading of its tables with PyTables.

Makes a file as the collector writes it: its output creates the tables, PyTables appends the other rows. Each command
and the plain reading are programs, run in turns.

    python benchmarks/bench_history.py                                       20 hosts and 2,000 samples
    python benchmarks/bench_history.py --hosts 500 --samples 17280           a day at 5 s: 17 GB on disk, in minutes
    python benchmarks/bench_history.py --file FILE.hdf5 --job 4242           an existing file
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import zlib
from functools import partial
from pathlib import Path

import numpy as np
from measuring import Figure, in_turns, show

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.hdf5.library import opened_library
from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.collector.journal.output_state import OutputState
from colmet.common.daemon import startup
from colmet.common.schema import Batch, Rows, Table
from colmet.common.tables import cgroup, tasks

SCHEMAS = (cgroup.SCHEMA, tasks.TASKSTATS)
START_S = 1_700_000_000
PERIOD_S = 5
JOB = 4242
CORES = 8
TICKS = 20  # appended at a time
ROUNDS = 3

PLAIN = """
import sys
from colmet.collector.backends.hdf5.library import opened_library
with opened_library(sys.argv[1], "r") as file:
    for table in file.iter_nodes("/job_" + sys.argv[2], "Table"):
        step = (4 << 20) // table.dtype.itemsize
        for first in range(0, table.nrows, step):
            rows = table.read(first, min(table.nrows, first + step))
            used = [rows[name].sum() for name in rows.dtype.names[:25] if rows[name].dtype.kind == "i"]
"""
COMMAND = "import sys; from colmet.commands.colmet import main; status = main(sys.argv[1:])"
# What a program took at the most, and the process that it started; wait4() would count this one's, too.
PEAK = """
import resource
own = [line for line in open('/proc/self/status') if line.startswith('VmHWM')][0].split()[1]
open('{0}', 'w').write(str(max(int(own), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)))
"""


def _rows(names: list[str], tick: int, count: int, dtype: np.dtype[np.void]) -> Rows:
    """Return the rows of all hosts at some ticks: counters that grow, in the order of time."""
    rows = np.zeros(len(names) * count, dtype)
    ticks = np.repeat(tick + np.arange(count), len(names))
    hosts = np.tile(np.arange(len(names)), count)
    for name in dtype.names or ():
        if dtype[name].kind == "i":
            rows[name] = (ticks + 1) * (zlib.crc32(name.encode()) % 7) * (1000 + hosts)
    rows["job_id"] = JOB
    elapsed = (ticks + 1) * PERIOD_S
    some = {
        "timestamp": START_S + elapsed,
        "hostname": np.array(names, "S255")[hosts],
        "cpu_usage": elapsed * CORES * 10**9 * 9 // 10,
        "cpu_user": elapsed * CORES * 10**9 * 8 // 10,
        "cpu_system": elapsed * CORES * 10**9 // 10,
        "cpu_unattributed": elapsed * 1000,
        "cpus_allocated": CORES,
        "memory_current": (4 << 30) + 4096 * (ticks * 7919 % 1000003),
        "memory_peak": 5 << 30,
        "memory_limit": 16 << 30,
        "pids_current": 20,
        "pids_peak": 40,
        "user": b"alice",
        "ac_btime": START_S,
        "cpu_total": elapsed * CORES * 10**9 * 8 // 10,
        "cpu_run_virtual_total": elapsed * CORES * 10**9 * 8 // 10,
        "cpu_run_real_total": elapsed * CORES * 10**9 * 8 // 10,
    }
    for name, values in some.items():
        if name in (rows.dtype.names or ()):
            rows[name] = values
    return rows


def make(path: Path, hosts: int, samples: int) -> None:
    """Write a file with one job."""
    names = [f"node-{n}.example.org" for n in range(hosts)]
    output, state = Hdf5Output(str(path)), OutputState("", "0" * 16, 0, 0)
    output.open(state)
    output.recover()
    records = []
    for number, name in enumerate(names):
        tables = []
        for schema in SCHEMAS:
            rows = _rows([name], 0, 1, np.dtype([*schema.dtype.descr, ("timestamp", "<i8"), ("hostname", "S255")]))
            tables.append(
                Table(schema, (START_S + PERIOD_S) * 10**9, rows[list(schema.dtype.names or ())].astype(schema.dtype))
            )
        batch = Batch(name, START_S, number, (START_S + PERIOD_S) * 10**9, (JOB,), tuple(tables))
        records.append(JournalRecord(number, batch.time_ns, (batch,)))
    state.end = len(records)
    output.write(records)
    output.close()
    with opened_library(str(path), "a") as file:
        for schema in SCHEMAS:
            table = file.get_node(f"/job_{JOB}/{schema.name}")
            for tick in range(1, samples, TICKS):
                rows = _rows(names, tick, min(TICKS, samples - tick), table.dtype)
                rows["metric_backend"] = schema.name.encode()
                table.append(rows)


def measure(cache: str, code: str, *arguments: str) -> tuple[float, float, float]:
    """CPU seconds of a program and its processes; its elapsed seconds; MB at the most, of one process.

    Args:
        cache: a folder for compiled modules, which an installed program has, too.
        code: of the program.
        arguments: of the program.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = cache
    with tempfile.NamedTemporaryFile("r") as peak:
        start = time.monotonic()
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            argv = [sys.executable, "-c", code + PEAK.format(peak.name), *arguments]
            os.execve(sys.executable, argv, environment)
        _, status, used = os.wait4(child, 0)
        if status:
            raise RuntimeError(f"{code}: status {status}")
        return used.ru_utime + used.ru_stime, time.monotonic() - start, int(peak.read()) / 1024


def compare_programs(files: list[Path], programs: dict[str, tuple[str, ...]], cache: str, rounds: int) -> list[Figure]:
    """Figures of programs that read the same files, run in turns; the first one is the plain reading."""
    found = in_turns([partial(measure, cache, *program) for program in programs.values()], rounds, warm=rounds > 1)
    size = f"{sum(file.stat().st_size for file in files) / (1 << 20):,.0f} MB"
    figures: list[Figure] = []
    for what, results in zip(programs, found):
        target = "<= 10" if what == "colmet report" else ""
        figures += [
            (f"{size}: {what}", statistics.median([cpu_s for cpu_s, _, _ in results]), "CPU s", ""),
            (f"{size}: {what}, elapsed", statistics.median([elapsed for _, elapsed, _ in results]), "s", target),
            (f"{size}: {what}, memory of its largest process", max([mb for _, _, mb in results]), "MB", "<= 300"),
        ]
        if results is not found[0]:
            ratio = statistics.median([ours[0] / plain[0] for ours, plain in zip(results, found[0])])
            figures.append((f"{size}: {what} / plain reading", ratio, "times", ""))
    return figures


def compare(file: Path, job: int, rounds: int = ROUNDS) -> list[Figure]:
    """Figures for one job of a file."""
    number, stored = str(job), ("--hdf5", str(file))
    with tempfile.TemporaryDirectory() as name:
        columns = ("--metrics", "cpu_usage,memory_current", "--format", "csv")
        programs = {
            "plain reading": (PLAIN, str(file), number),
            "colmet report": (COMMAND, "report", number, *stored),
            "colmet plot": (COMMAND, "plot", number, "cpu_usage", "--output", f"{name}/a.png", *stored),
            "colmet extract": (COMMAND, "extract", "-j", number, *columns, "--output", f"{name}/a.csv", *stored),
        }
        return compare_programs([file], programs, name, rounds)


def run(hosts: int = 20, samples: int = 2000) -> list[Figure]:
    """Figures as (name, value, unit, target)."""
    startup.tune_garbage_collector()
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "long.hdf5"
        make(file, hosts, samples)
        return compare(file, JOB)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Commands on a long job, against one plain reading of its tables.")
    parser.add_argument("--hosts", type=int, default=20, help="of the job (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=2000, help="of each host (default: %(default)s)")
    parser.add_argument("--file", type=Path, help="this one instead")
    parser.add_argument("--job", type=int, default=JOB, help="of --file (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of --file (default: %(default)s)")
    parser.add_argument("--make", type=Path, help="only make this file")
    options = parser.parse_args()
    if options.make:
        make(options.make, options.hosts, options.samples)
    elif options.file:
        show(compare(options.file, options.job, options.rounds))
    else:
        show(run(options.hosts, options.samples))


if __name__ == "__main__":
    main()
