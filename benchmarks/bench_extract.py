"""One job from a file of many jobs, as OAR requests it, against plain h5py with the same table.

Both are programs, run in turns: CPU time from start to end, CPU time after the start (less the time to load the
libraries), and peak memory.

    python benchmarks/bench_extract.py                                    100 jobs, 40 MB
    python benchmarks/bench_extract.py --jobs 5000 --bytes 2147483648     some minutes to write the file
    python benchmarks/bench_extract.py --file FILE.hdf5 --job 17          an existing file
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from measuring import Figure, in_turns, show

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.collector.journal.output_state import OutputState
from colmet.common.daemon import startup
from colmet.common.schema import Batch, Table
from colmet.common.tables import cgroup, tasks

SCHEMAS = (tasks.TASKSTATS, cgroup.SCHEMA)  # tables of a job by default
START_S = 1_700_000_000
PERIOD_S = 5
HOSTS = 4  # of each job
FIRST_JOB = 100_000
JOBS_A_BURST = 250
ROW_BYTES = sum([schema.dtype.itemsize + 2 * 255 + 8 for schema in SCHEMAS])  # with host, table and time
METRICS = "ac_etime,cpu_run_real_total,coremem,read_bytes,write_bytes"  # what OAR asks for by default
ROUNDS = 7

OURS = "import sys; from colmet.commands.extract import main; status = main()"
OURS_LOADED = "import colmet.commands.extract, colmet.stored.hdf5"
PLAIN = "import sys, h5py; rows = h5py.File(sys.argv[1], 'r')[f'job_{sys.argv[2]}/taskstats_default'][:]"
PLAIN_LOADED = "import sys, h5py"
# What a program took at the most, and the process that it started; wait4() would count this one's, too.
PEAK = """
import resource
own = [line for line in open('/proc/self/status') if line.startswith('VmHWM')][0].split()[1]
open('{0}', 'w').write(str(max(int(own), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)))
"""


def make(path: Path, jobs: int, size: int) -> None:
    """Write a file with the collector's own output.

    Args:
        path: of the file.
        jobs: how many, each on `HOSTS` hosts.
        size: bytes of all rows.
    """
    ticks = max(1, size // (jobs * HOSTS * ROW_BYTES))
    output, state = Hdf5Output(str(path)), OutputState("", "0" * 16, 0, 0)
    output.open(state)
    output.recover()
    rng = np.random.default_rng(1)
    number = 0
    for first in range(0, jobs, JOBS_A_BURST):
        ids = tuple(range(FIRST_JOB + first, FIRST_JOB + min(first + JOBS_A_BURST, jobs)))
        records = []
        for tick in range(ticks * HOSTS):
            time_ns = (START_S + tick // HOSTS * PERIOD_S) * 10**9
            parts = []
            for schema in SCHEMAS:
                rows = schema.empty_rows(len(ids))
                for name in schema.names:
                    rows[name] = rng.integers(0, 1 << 40, len(ids))
                rows["job_id"] = ids
                parts.append(Table(schema, time_ns, rows))
            host = f"node-{tick % HOSTS}.example.org"
            records.append(JournalRecord(number, time_ns, (Batch(host, START_S, number, time_ns, ids, tuple(parts)),)))
            number += 1
        state.end = number
        output.write(records)
    output.close()


def measure(cache: str, code: str, *arguments: str) -> tuple[float, float]:
    """CPU seconds of a program from its start to its end, processes that it started included; MB at the most.

    Args:
        cache: a folder for compiled modules, which an installed program has, too.
        code: of the program.
        arguments: of the program.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = cache
    with tempfile.NamedTemporaryFile("r") as peak:
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            argv = [sys.executable, "-c", code + PEAK.format(peak.name), *arguments]
            os.execve(sys.executable, argv, environment)
        _, status, used = os.wait4(child, 0)
        if status:
            raise RuntimeError(f"{code}: status {status}")
        return used.ru_utime + used.ru_stime, int(peak.read()) / 1024


def compare(file: Path, job: int) -> list[Figure]:
    """Figures for one job of a file."""
    with tempfile.TemporaryDirectory() as name:
        prefix = Path(name) / "cluster"
        Path(f"{prefix}.{0:010}.hdf5").symlink_to(file.resolve())
        asked = [str(prefix), str(job), "0", "9999999999", METRICS]
        programs = [(OURS, *asked), (OURS_LOADED,), (PLAIN, str(file), str(job)), (PLAIN_LOADED,)]
        found = in_turns([partial(measure, name, *program) for program in programs], ROUNDS)
    cpu = [statistics.median([cpu_s for cpu_s, _ in results]) for results in found]
    memory = [statistics.median([mbytes for _, mbytes in results]) for results in found]
    ratio = statistics.median([ours[0] / plain[0] for ours, plain in zip(found[0], found[2])])
    what = f"{file.stat().st_size / (1 << 20):,.1f} MB"
    return [
        (f"{what}: colmet-extract, whole program", cpu[0] * 1000, "CPU ms", ""),
        (f"{what}: colmet-extract, after its start", max(0.0, cpu[0] - cpu[1]) * 1000, "CPU ms", "< 1000"),
        (f"{what}: colmet-extract, memory", memory[0], "MB", ""),
        (f"{what}: plain h5py, whole program", cpu[2] * 1000, "CPU ms", ""),
        (f"{what}: plain h5py, after its start", max(0.0, cpu[2] - cpu[3]) * 1000, "CPU ms", ""),
        (f"{what}: plain h5py, memory", memory[2], "MB", ""),
        (f"{what}: colmet-extract / plain h5py, whole programs", ratio, "times", "<= 1.50"),
    ]


def run(jobs: int = 100, size: int = 40 << 20) -> list[Figure]:
    """Figures as (name, value, unit, target)."""
    startup.tune_garbage_collector()
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "jobs.hdf5"
        make(file, jobs, size)
        return compare(file, FIRST_JOB + jobs // 2)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="One job's answer out of a file of many jobs, against plain h5py.")
    parser.add_argument("--jobs", type=int, default=100, help="in the file that is made (default: %(default)s)")
    parser.add_argument("--bytes", type=int, default=40 << 20, help="of its rows (default: %(default)s)")
    parser.add_argument("--file", type=Path, help="this one instead")
    parser.add_argument("--job", type=int, help="of --file")
    options = parser.parse_args()
    figures = compare(options.file, options.job) if options.file else run(options.jobs, options.bytes)
    show(figures)


if __name__ == "__main__":
    main()
