"""Completeness, report and extract on files of many short jobs, against one plain reading with PyTables.

Makes files as the collector writes them on a node whose jobs begin and end: each job has its own tables, with a few
rows. Each command and the plain reading are programs, run in turns.

    python benchmarks/bench_completeness.py                                      1,000 jobs in 3 files
    python benchmarks/bench_completeness.py --jobs 10000 --of 25                 some minutes to write the files
    python benchmarks/bench_completeness.py FILE.hdf5 ...                        existing files
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from bench_history import COMMAND, compare_programs
from measuring import Figure, show

from colmet.collector.backend import JournalRecord
from colmet.collector.backends.hdf5.output import Hdf5Output
from colmet.collector.journal.output_state import OutputState
from colmet.common.daemon import startup
from colmet.common.schema import Batch, Table
from colmet.common.tables import cgroup, procstats, tasks
from colmet.node.agent_tables import CompletenessStats, DeliveryTotals

START_S = 1_700_000_000
PERIOD_S = 5
NS = 10**9
OF_JOBS = (cgroup.SCHEMA, tasks.TASKSTATS, tasks.JOBPROC)
FIRST_JOB = 100_000
BEGIN = 8  # jobs that begin at a tick
TICKS = 3  # with rows of a job
BURST = 4  # ticks written together
ROUNDS = 3

# What the command needs of a table: times and hosts.
PLAIN = """
import sys
import numpy as np
from colmet.collector.backends.hdf5.library import opened_library
for path in sys.argv[1:]:
    with opened_library(path, "r") as file:
        for table in file.walk_nodes("/", "Table"):
            rows = table.read()
            hosts, times = np.unique(rows["hostname"]), np.sort(rows["timestamp"])
"""


def make(folder: Path, jobs: int, files: int) -> list[Path]:
    """Write files of a node, each with its share of the jobs; return their paths."""
    now_ns, epoch, seq = START_S * NS, START_S * NS, 0
    completeness = CompletenessStats(lambda: DeliveryTotals({}, {}, (), 0), 60, monotonic=lambda: now_ns / NS)
    paths = [folder / f"rows.{n}.hdf5" for n in range(files)]
    begun = 0
    for n, path in enumerate(paths):
        output, state = Hdf5Output(str(path), complevel=1), OutputState("", "0" * 16, 0, 0)
        output.open(state)
        output.recover()
        records: list[JournalRecord] = []
        until = jobs * (n + 1) // files
        while begun < until:
            begun = min(until, begun + BEGIN)
            running = tuple(range(FIRST_JOB + max(0, begun - BEGIN * TICKS), FIRST_JOB + begun))
            completeness.begin_tick(now_ns)
            tables = []
            for schema in (*OF_JOBS, procstats.SCHEMA):
                rows = schema.empty_rows(len(running) if schema in OF_JOBS else 1)
                rows["job_id"] = running if schema in OF_JOBS else 0
                tables.append(Table(schema, now_ns, rows))
            seq += 1
            batch = Batch("node-1.example.org", epoch, seq, now_ns, running, tuple(tables))
            batch = completeness.add(batch, PERIOD_S, begun == jobs)
            records.append(JournalRecord(seq, now_ns, (batch,)))
            now_ns += PERIOD_S * NS
            if len(records) >= BURST or begun == until:
                state.end = seq + 1
                output.write(records)
                records = []
        output.close()
    return paths


def compare(paths: list[Path], job: int, rounds: int = ROUNDS) -> list[Figure]:
    """Figures for some files, and one job in them."""
    files = [str(path) for path in paths]
    stored = [word for file in files for word in ("--hdf5", file)]
    with tempfile.TemporaryDirectory() as name:
        out = ("--output", f"{name}/out")
        programs = {
            "plain reading": (PLAIN, *files),
            "colmet completeness": (COMMAND, "completeness", *files),
            "colmet completeness --job": (COMMAND, "completeness", "-j", str(job), *files),
            "colmet report": (COMMAND, "report", str(job), *stored),
            "colmet extract": (COMMAND, "extract", "-j", str(job), "--format", "csv", *out, *stored),
        }
        return [one for one in compare_programs(paths, programs, name, rounds) if one[2] in ("CPU s", "times")]


def run(jobs: int = 1000, files: int = 3) -> list[Figure]:
    """Figures as (name, value, unit, target)."""
    startup.tune_garbage_collector()
    with tempfile.TemporaryDirectory() as name:
        return compare(make(Path(name), jobs, files), FIRST_JOB + jobs // 2)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Commands on files of many short jobs, against one plain reading.")
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path, help="these instead")
    parser.add_argument("--jobs", type=int, default=1000, help="in the files that are made (default: %(default)s)")
    parser.add_argument("--of", metavar="COUNT", type=int, default=3, help="files to make (default: %(default)s)")
    parser.add_argument("--job", type=int, default=FIRST_JOB, help="of the given files (default: %(default)s)")
    parser.add_argument("--make", type=Path, help="only make the files, in this folder")
    options = parser.parse_args()
    if options.make:
        make(options.make, options.jobs, options.of)
    elif options.files:
        show(compare(options.files, options.job, 1))
    else:
        show(run(options.jobs, options.of))


if __name__ == "__main__":
    main()
