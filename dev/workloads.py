"""Workloads with tasks that live between two samples, hard to measure by sampling.

Five workloads run as jobs under the real daemons. The results are compared with the kernel's own figure for each job's
cgroup, and with the figure of a sampler of live tasks.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dev.live import NS, Daemons, Failed, JobRoot, LiveJob

FIRST_JOB = 101
PARTS = 50  # source files of the compiled program

_PART = r"""
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "words.h"

#define COUNT(way) \
static double count_##way(const char *text) \
{ \
    unsigned slots[97 + way] = {0}, words = 0, hash = way; \
    double entropy = 0; \
    for (;; text++) { \
        if (isalpha((unsigned char)*text)) { \
            hash = hash * 33 ^ (unsigned char)tolower((unsigned char)*text); \
            continue; \
        } \
        slots[hash % (97 + way)]++, words++, hash = way; \
        if (!*text) \
            break; \
    } \
    for (unsigned n = 0; n < 97 + way; n++) \
        entropy -= slots[n] ? log2((double)slots[n] / words) * slots[n] / words : 0; \
    return entropy; \
}

COUNT(1) COUNT(2) COUNT(3) COUNT(4)

double count_words_@(const char *text)
{
    return @ + count_1(text) + count_2(text) + count_3(text) + count_4(text);
}
"""
_MAIN = r"""
#include <stdio.h>
#include "words.h"

int main(void)
{
    static double (*const all[])(const char *) = {@};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        printf("%u %.3f\n", i, all[i]("the quick brown fox and the lazy dog and the end"));
    return 0;
}
"""
_MAKEFILE = """
CFLAGS = -O2 -Wall -Wextra
words: $(patsubst %.c,%.o,$(wildcard *.c))
\tgcc -o $@ $^ -lm
%.o: %.c words.h
\tgcc $(CFLAGS) -c -o $@ $<
"""

_STEP = "import time\nwhile time.process_time() < 2: pass"
_THREADS = """
import threading
threading.stack_size(131072)
def work():
    begin.wait()
    sum(range(30000))
begin = threading.Event()
threads = [threading.Thread(target=work) for _ in range(500)]
for one in threads:
    one.start()
begin.set()
for one in threads:
    one.join()
"""


# For each number on its input, starts that many tasks that end at once.
_SHORT_TASKS = """
import os, sys
for line in sys.stdin:
    for _ in range(int(line)):
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    print("done", flush=True)
"""


class Workload(NamedTuple):
    """A job that runs for some seconds, and the least share of its CPU time in the kernel's sums of its tasks."""

    name: str
    command: Sequence[str]
    at_least: float


class Outcome(NamedTuple):
    """The figures of one job: CPU time of its cgroup, read here after the end of its tasks, and of its last rows.

    `sampled_ns` is the CPU time of its tasks, each at its last tick alive; `rows` are in the order of arrival.
    """

    workload: Workload
    kernel_ns: int
    attributed_ns: int
    unattributed_ns: int
    sampled_ns: int
    rows: Sequence[dict[str, Any]]


def workloads(folder: Path) -> list[Workload]:
    """Return the five workloads, one of them the compilation of a program in the folder; Failed without a compiler."""
    return [
        Workload("a loop of /bin/true", _shell("for i in $(seq 2000); do /bin/true; done"), 0.995),
        Workload("steps of 2 s of CPU time", _shell(f"for i in 1 2; do {sys.executable} -S -c '{_STEP}'; done"), 0.995),
        Workload(
            "nested pipelines of subshells",
            _shell("for i in $(seq 250); do ( (echo a | cat | (sort | uniq)) | (wc -l; (: | cat)) ) > /dev/null; done"),
            0.995,
        ),
        compilation(folder),
        Workload(
            "500 threads that end at once",
            _shell(f"for i in 1 2 3 4 5 6 7 8 9 10 11 12; do {sys.executable} -S -c '{_THREADS}'; done"),
            0.995,
        ),
    ]


def _shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def compilation(folder: Path) -> Workload:
    """Write a C program with many ways to count words, and return its compilation by make -j2.

    Raises:
        Failed: no compiler here.
    """
    for tool in ("make", "gcc"):
        if shutil.which(tool) is None:
            raise Failed(f"{tool} is not installed: apt install build-essential")
    write_program(folder)
    return Workload("make -j2 of a C program", ["make", "-s", "-C", str(folder), "-j2"], 0.995)


def write_program(folder: Path) -> None:
    """Write the sources of a program and their Makefile."""
    names = [f"count_words_{n}" for n in range(PARTS)]
    (folder / "words.h").write_text("".join(f"double {name}(const char *text);\n" for name in names))
    for n in range(PARTS):
        (folder / f"part{n}.c").write_text(_PART.replace("@", str(n)))
    (folder / "main.c").write_text(_MAIN.replace("@", ", ".join(names)))
    (folder / "Makefile").write_text(_MAKEFILE)


class ShortTasks:
    """A process of a job that starts tasks on request; these end at once."""

    def __init__(self, job: LiveJob) -> None:
        command = [sys.executable, "-S", "-c", _SHORT_TASKS]
        self._process = job.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, count: int) -> None:
        """Start this number of tasks, and wait for their ends."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        self._process.stdout.readline()


class Sampler:
    """A sampler of the live tasks of jobs at the agent's ticks, without exit records.

    A task's CPU time is that of its last sample. Source: /proc/<tid>/schedstat.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._jobs: dict[int, LiveJob] = {}
        self._seen: dict[int, dict[int, int]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, job_id: int, job: LiveJob) -> None:
        """Sample this job, too."""
        self._seen[job_id] = {}
        self._jobs[job_id] = job

    def leave(self, job_id: int) -> int:
        """Remove an ended job; return the sampled CPU time of its tasks, in ns."""
        self._jobs.pop(job_id)
        return sum(self._seen[job_id].values())

    def _run(self) -> None:
        while not self._ended.wait(self._period_s - time.time() % self._period_s):
            for job_id, job in list(self._jobs.items()):
                self._look(job, self._seen[job_id])

    @staticmethod
    def _look(job: LiveJob, seen: dict[int, int]) -> None:
        try:
            for tid in job.tids():
                try:
                    seen[tid] = int(Path(f"/proc/{tid}/schedstat").read_text().split()[0])
                except (FileNotFoundError, ProcessLookupError):
                    continue  # ended meanwhile
        except OSError:
            return  # the cgroup is removed

    def close(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self._thread.join()


def measure(folder: Path, period_s: float = 5.0) -> list[Outcome]:
    """Run the five as concurrent jobs under colmet-node and colmet-collector, for about a minute.

    Raises:
        Failed: root, cgroups or a compiler are missing, or a daemon ended.
    """
    program = folder / "program"
    program.mkdir()
    loads = workloads(program)
    root = JobRoot(f"colmet-workloads-{time.monotonic_ns()}")
    try:
        daemons = Daemons(folder, ["-s", f"{period_s:g}", "--cpuset_rootpath", str(root.path), "--state-dir", ""])
        sampler = Sampler(period_s)
        try:
            daemons.wait_for_log("backend on backend=procstats")
            return _run_all(loads, root, daemons, sampler)
        finally:
            sampler.close()
            daemons.stop()
    finally:
        root.close()


def _rows_until_read_again(daemons: Daemons, number: int) -> list[dict[str, Any]]:
    """Return the rows up to the first new one of this job's cgroup."""
    now, rows = time.time(), []
    while True:
        rows.append(row := daemons.wait_for_row(lambda row: True))
        if (row.get("job_id"), row["metric_backend"]) == (number, "cgroup_default") and row["timestamp"] > now:
            return rows


def _run_all(loads: Sequence[Workload], root: JobRoot, daemons: Daemons, sampler: Sampler) -> list[Outcome]:
    running = {}
    for number, load in enumerate(loads, FIRST_JOB):
        job = root.job(f"bob_{number}")
        daemons.wait_for_log(f"job started job={number} ")
        sampler.add(number, job)
        running[number] = job, job.start(load.command)
    kernel, sampled = {}, {}
    rows: list[dict[str, Any]] = []
    while running:
        time.sleep(0.05)
        daemons.check()
        for number, (job, process) in list(running.items()):
            if process.poll() is None or job.tids():
                continue
            if process.returncode:
                raise Failed(f"{loads[number - FIRST_JOB].name}: ended with status {process.returncode}")
            kernel[number] = job.cpu_ns()
            sampled[number] = sampler.leave(number)
            rows += _rows_until_read_again(daemons, number)
            job.close()
            daemons.wait_for_log(f"job ended job={number}")
            del running[number]
    time.sleep(1)  # for the last rows
    rows += daemons.take_rows()
    outcomes = []
    for number, load in enumerate(loads, FIRST_JOB):
        own = [row for row in rows if row.get("job_id") == number]
        last = {row["metric_backend"]: row for row in own}
        if len(last) < 2:
            raise Failed(f"{load.name}: no rows of taskstats and cgroup came:\n{daemons.log.read_text()}")
        outcomes.append(
            Outcome(
                load,
                kernel[number],
                last["taskstats_default"]["cpu_total"],
                last["cgroup_default"]["cpu_unattributed"],
                sampled[number],
                own,
            )
        )
    return outcomes


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as text, a line each."""
    lines = [f"{'job':<32} {'kernel':>9} {'attributed':>12} {'unattributed':>13} {'by samples alone':>17}"]
    for one in outcomes:
        shares = [100 * ns / one.kernel_ns for ns in (one.attributed_ns, one.unattributed_ns, one.sampled_ns)]
        lines.append(
            f"{one.workload.name:<32} {one.kernel_ns / NS:7.3f} s {shares[0]:10.2f} % {shares[1]:11.2f} % "
            f"{shares[2]:15.2f} %"
        )
    return "\n".join(lines)
