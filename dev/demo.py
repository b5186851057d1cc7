"""The main job of Colmet, shown on this machine in under a minute: ``make demo``.

A job's cgroup is made, a small workload runs in it, colmet-collector and colmet-node watch it at a period of one
second, and what they stored is read back and compared with the kernel's own total. Nothing is left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dev.live import NS, Daemons, Failed, JobRoot

JOB_ID = 4242
CPU_S = 5.0  # CPU time of each of two long-lived processes
WRITE_MB = 48
SHORT_PROCESSES = 400

BURN = """
import sys, time
limit = float(sys.argv[1])
while time.process_time() < limit:
    sum(i * i for i in range(20000))
time.sleep(120)
"""
# Writes at a steady pace, then starts short processes; a line on its input starts each.
WRITE_AND_FORK = """
import os, sys, time
path, megabytes, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
block = os.urandom(1 << 20)
with open(path, "wb") as file:
    for n in range(megabytes):
        file.write(block)
        file.flush()
        time.sleep(4.0 / megabytes)
sys.stdin.readline()
for n in range(processes):
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done"], os.environ)
    os.waitpid(pid, 0)
time.sleep(120)
"""


def say(text: str = "") -> None:
    """Print a line now."""
    print(text, flush=True)


class Workload:
    """The job's processes."""

    def __init__(self, start: Any, folder: Path, root: bool) -> None:
        python = [sys.executable, "-S", "-c"]
        self._writer = start(
            [*python, WRITE_AND_FORK, str(folder / "written"), str(WRITE_MB), str(SHORT_PROCESSES)],
            stdin=subprocess.PIPE,
        )
        self._processes = [self._writer]
        if root:
            self._processes += [start([*python, BURN, str(CPU_S)]) for _ in range(2)]
        self.pid = self._writer.pid

    def start_short_processes(self) -> None:
        """Start the burst of short processes."""
        self._writer.stdin.write("\n")
        self._writer.stdin.flush()

    def close(self) -> None:
        """End it."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            if process.stdin:
                process.stdin.close()


class Live:
    """The live table: a row a second, and a line of progress below it.

    A phase is its end, in seconds from the start, and its description.
    """

    COLUMNS = ("time", "CPU time", "CPU use", "memory", "written", "read", "ctx switches")

    def __init__(self, phases: Sequence[tuple[float, str]]) -> None:
        self._phases = phases
        self._tty = sys.stdout.isatty()
        self._row: dict[str, Any] = {}
        self._before: tuple[float, float] | None = None
        self.last: dict[str, dict[str, Any]] = {}
        say("  ".join(f"{column:>12}" for column in self.COLUMNS))

    def progress(self, now_s: float) -> str:
        """Return a line such as ``[####....] 12 s of 20 s: a process writes``."""
        total = self._phases[-1][0]
        done = int(24 * min(1, now_s / total))
        text = next((text for end_s, text in self._phases if now_s < end_s), "done")
        return f"[{'#' * done}{'.' * (24 - done)}] {min(now_s, total):2.0f} s of {total:.0f} s: {text}"

    def add(self, row: dict[str, Any], now_s: float) -> None:
        """Add a row printed by the collector; print the job's line when all of its tables are there."""
        self.last[row["metric_backend"]] = row
        if row["metric_backend"] != "jobprocstats_default":  # the last table of a batch
            return
        cpu = self.last.get("taskstats_default", {}).get("cpu_total")
        use = ""
        if cpu is not None:
            if self._before is not None and row["timestamp"] > self._before[0]:
                use = f"{100 * (cpu - self._before[1]) / NS / (row['timestamp'] - self._before[0]):.0f} %"
            self._before = (row["timestamp"], cpu)
        switches = self.last.get("taskstats_default", {})
        cells = (
            time.strftime("%H:%M:%S", time.localtime(row["timestamp"])),
            "-" if cpu is None else f"{cpu / NS:.2f} s",
            use or "-",
            f"{row['VmRSS'] * 1024 / 1e6:.1f} MB" if "VmRSS" in row else "-",
            f"{row['wchar'] / 1e6:.1f} MB" if "wchar" in row else "-",
            f"{row['rchar'] / 1e6:.1f} MB" if "rchar" in row else "-",
            str(switches.get("nvcsw", 0) + switches.get("nivcsw", 0)) if switches else "-",
        )
        line = "  ".join(f"{cell:>12}" for cell in cells)
        say(f"\r\033[K{line}" if self._tty else f"{line}   {self.progress(now_s)}")

    def tick(self, now_s: float) -> None:
        """Bring the progress line up to date."""
        if self._tty:
            print(f"\r\033[K{self.progress(now_s)}", end="", flush=True)

    def close(self) -> None:
        """Remove the progress line."""
        if self._tty:
            print("\r\033[K", end="", flush=True)


def watch(live: Live, daemons: Daemons, start: float, until_s: float) -> None:
    """Show incoming rows until `until_s` after `start`."""
    while (now := time.monotonic() - start) < until_s:
        daemons.check()
        live.tick(now)
        with contextlib.suppress(queue.Empty):
            live.add(daemons.rows.get(timeout=0.2), time.monotonic() - start)


def summarize(path: Path) -> None:
    """Print the content of the file: each table, its rows and columns, its time range."""
    import tables

    say(f"Stored in {path} ({path.stat().st_size / 1024:.0f} kB of HDF5):")
    with tables.open_file(str(path)) as file:
        for table in file.walk_nodes("/", "Table"):
            times = [int(second) for second in table.col("timestamp")]
            hosts = {name.decode() for name in table.col("hostname")}
            say(
                f"  {table._v_pathname:<36} Dataset {{{table.nrows} rows, {len(table.colnames)} columns}}"
                f"  {time.strftime('%H:%M:%S', time.localtime(min(times)))} to "
                f"{time.strftime('%H:%M:%S', time.localtime(max(times)))}, host {', '.join(sorted(hosts))}"
            )


def read_last(path: Path, job: int, name: str) -> dict[str, int]:
    """Return the last row of a job's table in the file, by column."""
    import tables

    with tables.open_file(str(path)) as file:
        table = file.get_node(f"/job_{job}/{name}")
        row = table[-1]
        return {column: int(row[column]) for column in table.colnames if row[column].dtype.kind == "i"}


def compare(what: str, ours: float, kernels: float, unit: str, percent: float = 2) -> bool:
    """Print two figures for the same quantity and their difference; return whether it is within the tolerance."""
    apart = 100 * (ours - kernels) / kernels
    say(f"  {what:<44} {ours:10.3f} {unit}   {kernels:10.3f} {unit}   {apart:+6.2f} %")
    return abs(apart) <= percent


def start_daemons(folder: Path, hdf5: Path, *node_options: str) -> Daemons:
    """Start both daemons, at a period of a second, with a file for the rows."""
    options = ["-s", "1", "--enable-jobproc", "--state-dir", "", *node_options]
    return Daemons(folder, options, ["--hdf5-filepath", str(hdf5)])


def demo_as_root(folder: Path, cleanup: contextlib.ExitStack) -> tuple[Path, bool]:
    """Run the whole demo; return the written file, and whether the figures agree."""
    user = os.environ.get("SUDO_USER") or pwd.getpwuid(os.geteuid()).pw_name
    root = JobRoot(f"colmet-demo-{os.getpid()}")
    cleanup.callback(root.close)
    job = root.job(f"{user}_{JOB_ID}")
    say(f"Job {JOB_ID} of {user}: cgroup {job.path}")
    say(
        f"It uses {2 * CPU_S:.0f} s of CPU time in two long-lived processes, writes {WRITE_MB} MB, then starts "
        f"{SHORT_PROCESSES} short processes.\n"
    )
    hdf5 = folder / "demo.hdf5"
    daemons = start_daemons(folder, hdf5, "--cpuset_rootpath", str(root.path))
    cleanup.callback(daemons.stop)
    workload = Workload(job.start, folder, root=True)
    cleanup.callback(workload.close)
    phases = [(14, "long-lived processes compute and write"), (20, "a burst of short processes")]
    live, start = Live(phases), time.monotonic()
    watch(live, daemons, start, 5)
    while job.cpu_ns() < 2 * CPU_S * NS and time.monotonic() - start < 30:  # longer on a busy machine
        watch(live, daemons, start, time.monotonic() - start + 0.5)
    watch(live, daemons, start, max(phases[0][0], time.monotonic() - start + 2.5))
    long_kernel, long_ours = job.cpu_ns(), live.last.get("taskstats_default", {})
    workload.start_short_processes()
    watch(live, daemons, start, time.monotonic() - start + 6)
    live.close()
    kernel = job.cpu_ns()
    daemons.stop()
    say()
    summarize(hdf5)
    if "cpu_total" not in long_ours:
        raise Failed(f"no taskstats row of the job came:\n{daemons.log.read_text()}")
    stored = read_last(hdf5, JOB_ID, "taskstats_default")["cpu_total"]
    say(f"\nCPU time of job {JOB_ID}:{'Colmet':>42}          the kernel's total for the cgroup")
    agree = [
        compare("long-lived processes", long_ours["cpu_total"] / NS, long_kernel / NS, "s"),
        compare(f"with {SHORT_PROCESSES} short ones", stored / NS, kernel / NS, "s"),
        compare("the short ones alone", (stored - long_ours["cpu_total"]) / NS, (kernel - long_kernel) / NS, "s", 6),
    ]
    rest = read_last(hdf5, JOB_ID, "cgroup_default")["cpu_unattributed"]
    say(
        f"  not attributed to any task (cpu_unattributed): {rest / NS:.3f} s, {100 * rest / kernel:.2f} % of the job's."
    )
    if not all(agree):
        say("  The figures are further apart than they should be.")
    return hdf5, all(agree)


def demo_as_user(folder: Path, cleanup: contextlib.ExitStack) -> tuple[Path, bool]:
    """Run the demo without root: the node's figures, and the I/O and memory of an own process."""
    say("Not root: a process of your own stands in for a job (colmet-node --pid), measured through /proc.")
    say(f"It writes {WRITE_MB} MB, then starts {SHORT_PROCESSES} short processes.\n")
    workload = Workload(partial(subprocess.Popen, text=True), folder, root=False)
    cleanup.callback(workload.close)
    hdf5 = folder / "demo.hdf5"
    daemons = start_daemons(folder, hdf5, "--pid", str(workload.pid))
    cleanup.callback(daemons.stop)
    phases = [(7, "a process writes"), (12, "a burst of short processes")]
    live, start = Live(phases), time.monotonic()
    watch(live, daemons, start, phases[0][0])
    workload.start_short_processes()
    watch(live, daemons, start, phases[1][0])
    live.close()
    daemons.stop()
    say()
    summarize(hdf5)
    stored = read_last(hdf5, 0, "jobprocstats_default")
    say(f"\n{'What it wrote:':<47}{'Colmet':>12}     it meant to")
    agree = compare("wchar", stored["wchar"] / 1e6, WRITE_MB * (1 << 20) / 1e6, "MB")
    say(
        "\nAs root the demo adds: a job in a cgroup of its own, found by itself as OAR's are; its CPU time, waits,\n"
        "faults and context switches from the kernel's accounting (taskstats, which needs CAP_NET_ADMIN), the short\n"
        "processes' included; the comparison with the kernel's total of the cgroup; other users' I/O.\n"
        "Run: sudo make demo"
    )
    return hdf5, agree


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``make demo``; return the exit status."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", metavar="PATH", help="copy the HDF5 file here before it is removed")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="colmet-demo-"))
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            path, agree = (demo_as_root if os.geteuid() == 0 else demo_as_user)(folder, cleanup)
        except Failed as err:
            print(f"\ndemo: {err}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\ndemo: interrupted", file=sys.stderr)
            return 130
        if options.keep:
            shutil.copy(path, options.keep)
    how = "The file is removed again. To keep it: make demo ARGS='--keep demo.hdf5'"
    say(f"\nKept as {options.keep}." if options.keep else f"\n{how}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
