"""The main job of Colmet, shown on this machine in a minute and a half: ``make demo``.

A job's cgroup is made, a small workload runs in it, colmet-collector and colmet-node watch it at a period of one
second, and serve the page. What they stored is compared with the kernel's own total; then come the job's report, a
picture and the page's address. Only the picture is left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import pwd
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from colmet.common.runtime.clock import Clock
from colmet.common.runtime.quantities import UNKNOWN, count, duration, size
from dev.live import NS, PATIENCE_S, Daemons, Failed, JobRoot, free_port

JOB_ID = 4242
CPU_S = 14.0  # CPU time of each of two long-lived processes
MOST_S = 25.0  # after which they stop all the same, on a busy machine
WALL_S = 62.0  # of the job: a verdict requires a minute
WRITE_MIB = 48
SHORT_PROCESSES = 400
PAGE_PORT = 8421  # the same address in each run
NODE_METRICS = ("node_load", "node_memory_memfree")  # of the picture without a job

BURN = """
import signal, sys, time
limit = float(sys.argv[1])
def stop(*_):
    global limit
    limit = 0
signal.signal(signal.SIGTERM, stop)
while time.process_time() < limit:
    sum(i * i for i in range(20000))
while True:
    time.sleep(120)
"""
# Writes at a steady pace, and starts short processes; a line on its input starts each.
WRITE_AND_FORK = """
import os, sys, time
path, mebibytes, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
block = os.urandom(1 << 20)
sys.stdin.readline()
with open(path, "wb") as file:
    for n in range(mebibytes):
        file.write(block)
        file.flush()
        time.sleep(4.0 / mebibytes)
sys.stdin.readline()
for n in range(processes):
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done"], os.environ)
    os.waitpid(pid, 0)
time.sleep(1000)
"""


def say(text: str = "") -> None:
    """Print a line now."""
    print(text, flush=True)


class Workload:
    """The job's processes."""

    def __init__(self, start: Any, folder: Path, root: bool) -> None:
        python = [sys.executable, "-S", "-c"]
        self._writer = start(
            [*python, WRITE_AND_FORK, str(folder / "written"), str(WRITE_MIB), str(SHORT_PROCESSES)],
            stdin=subprocess.PIPE,
        )
        self._burners = [start([*python, BURN, str(CPU_S)]) for _ in range(2)] if root else []
        self.pid = self._writer.pid

    def stop_computing(self) -> None:
        """Have the long-lived processes wait from now on."""
        for process in self._burners:
            process.terminate()

    def go_on(self) -> None:
        """Start to write, or after that the burst of short processes."""
        self._writer.stdin.write("\n")
        self._writer.stdin.flush()

    def close(self) -> None:
        """End it."""
        for process in (self._writer, *self._burners):
            process.kill()
        for process in (self._writer, *self._burners):
            process.wait()
            if process.stdin:
                process.stdin.close()


class Live:
    """The live table: a row a second in the order of time, and below it a line on what happens.

    Attributes:
        last: the last row of each table.
    """

    COLUMNS = ("time", "CPU time", "CPU use", "memory", "written", "ctx switches")

    def __init__(self) -> None:
        self._phase = ""
        self._tty = sys.stdout.isatty()
        self._before: tuple[float, float] | None = None
        self._latest = 0
        self._shown: tuple[str, ...] = ()
        self.last: dict[str, dict[str, Any]] = {}

    def begin(self, phase: str) -> None:
        """Name what happens from now on."""
        self._phase = phase
        if not self._tty:
            say(f"-- {phase}")

    def head(self) -> None:
        """Print the names of the columns."""
        say(f"\r\033[K{self._line(self.COLUMNS)}" if self._tty else self._line(self.COLUMNS))

    def add(self, row: dict[str, Any]) -> None:
        """Add a row printed by the collector; print the job's line when all of its tables are there."""
        name = row["metric_backend"]
        if row["timestamp"] < self.last.get(name, row)["timestamp"]:
            return  # late: a row of a later time is there
        self.last[name] = row
        if name != "jobprocstats_default" or row["timestamp"] <= self._latest:  # the last table of a batch
            return
        self._latest = row["timestamp"]
        tasks = self.last.get("taskstats_default", {})
        cpu_ns, use = tasks.get("cpu_total"), ""
        if cpu_ns is not None:
            if self._before is not None and row["timestamp"] > self._before[0]:
                use = f"{100 * (cpu_ns - self._before[1]) / NS / (row['timestamp'] - self._before[0]):.0f} %"
            self._before = (row["timestamp"], cpu_ns)
        cells = (
            Clock().text(row["timestamp"])[11:],
            duration(None if cpu_ns is None else cpu_ns / NS),
            use or UNKNOWN,
            size(row["VmRSS"] * 1024 if "VmRSS" in row else None),
            size(row.get("wchar")),
            count(tasks["nvcsw"] + tasks["nivcsw"] if "nvcsw" in tasks and "nivcsw" in tasks else None),
        )
        if cells[1:] != self._shown:  # nothing has changed: the job waits
            self._shown = cells[1:]
            say(f"\r\033[K{self._line(cells)}" if self._tty else self._line(cells))

    def tick(self) -> None:
        """Bring the line below the table up to date."""
        if self._tty:
            print(f"\r\033[K{self._phase} ...", end="", flush=True)

    def close(self) -> None:
        """Remove the line below the table."""
        if self._tty:
            print("\r\033[K", end="", flush=True)

    @staticmethod
    def _line(cells: Sequence[str]) -> str:
        return " ".join(f"{cell:>12}" for cell in cells)


def watch(live: Live, daemons: Daemons, is_over: Callable[[], bool]) -> None:
    """Show incoming rows until something is over."""
    while not is_over():
        daemons.check()
        live.tick()
        with contextlib.suppress(queue.Empty):
            live.add(daemons.rows.get(timeout=0.2))


def after(seconds: float) -> Callable[[], bool]:
    """Return whether this time has passed since the call."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until


def has_row_of(live: Live, table: str, moment: float) -> Callable[[], bool]:
    """Return whether a row of a table is of this time or later; after a minute it counts as one."""
    is_late = after(PATIENCE_S)
    return lambda: live.last.get(table, {}).get("timestamp", 0) >= moment or is_late()


class Rest:
    """Whether a counter of CPU time stands still: twice the same, half a second apart."""

    def __init__(self, counter: Callable[[], int], most_s: float) -> None:
        self._counter = counter
        self._is_late = after(most_s)
        self._was, self._looked = -1, 0.0

    def __call__(self) -> bool:
        """Return whether it stands still, or time is up."""
        if time.monotonic() - self._looked < 0.5:
            return False
        before, self._was, self._looked = self._was, self._counter(), time.monotonic()
        return self._is_late() or 0 <= self._was - before < NS // 100 <= before


def read_last(path: Path, job: int, name: str) -> dict[str, int]:
    """Return the last row of a job's table in the file, by column."""
    import tables

    with tables.open_file(str(path)) as file:
        table = file.get_node(f"/job_{job}/{name}")
        row = table[-1]
        return {column: int(row[column]) for column in table.colnames if row[column].dtype.kind == "i"}


def compare(what: str, ours: float, kernels: float, percent: float = 2) -> bool:
    """Print two CPU times of the same thing and their difference; return whether it is within the tolerance."""
    apart = 100 * (ours - kernels) / kernels
    say(f"  {what:<30} {ours:10.3f} s   {kernels:10.3f} s   {apart:+6.2f} %")
    return abs(apart) <= percent


class Bed:
    """Where the demo runs: its folder, its daemons, and the address of the page.

    Args:
        folder: for all files.
        cleanup: ends what is started.
    """

    def __init__(self, folder: Path, cleanup: contextlib.ExitStack) -> None:
        self.hdf5 = folder / "demo.hdf5"
        self.cleanup = cleanup
        self._folder = folder
        has_web = all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn"))
        self.address = f"127.0.0.1:{page_port()}" if has_web else ""

    def start(self, *node_options: str) -> Daemons:
        """Start both daemons, at a period of a second, with a file for the rows and the page for this machine."""
        options = ["-s", "1", "--enable-jobproc", "--state-dir", "", *node_options]
        page = ["--http-listen", self.address, "--http-open"] if self.address else []
        daemons = Daemons(self._folder, options, ["--hdf5-filepath", str(self.hdf5), *page])
        self.cleanup.callback(daemons.stop)
        return daemons

    def wait_for_page(self, daemons: Daemons) -> None:
        """Wait until the page answers.

        Raises:
            Failed: a timeout, or a daemon has ended.
        """
        is_late = after(PATIENCE_S)
        while not is_answering(self.address):
            daemons.check()
            if is_late():
                raise Failed(f"no page at {self.address}:\n{daemons.log.read_text()}")
            time.sleep(0.2)


def page_port() -> int:
    """Return `PAGE_PORT`, or a free port if another program listens there."""
    with contextlib.suppress(OSError), socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier run do not matter
        one.bind(("127.0.0.1", PAGE_PORT))
        return PAGE_PORT
    return free_port()


def demo(bed: Bed, folder: Path) -> bool:
    """Run the demo that this user and machine allow; return whether the figures agree."""
    if os.geteuid() != 0:
        return demo_as_user(bed, folder, "Not root")
    try:
        root = JobRoot(f"colmet-demo-{os.getpid()}")
    except Failed as err:
        return demo_as_user(bed, folder, f"No cgroup for a job ({err})")
    return demo_as_root(bed, folder, root)


def demo_as_root(bed: Bed, folder: Path, root: JobRoot) -> bool:
    """Run a job in a cgroup of its own, and print its report; return whether the figures agree."""
    user = os.environ.get("SUDO_USER") or pwd.getpwuid(os.geteuid()).pw_name
    bed.cleanup.callback(root.close)
    job = root.job(f"{user}_{JOB_ID}")
    say(f"Job {JOB_ID} of {user}: cgroup {job.path}")
    say(
        f"For {WALL_S:.0f} s: two processes compute for {CPU_S:.0f} s each, a third one writes {WRITE_MIB} MiB and "
        f"starts {SHORT_PROCESSES} short ones; then all wait.\n"
    )
    live = Live()
    live.begin("the daemons start")
    daemons = bed.start("--cpuset_rootpath", str(root.path))
    watch(live, daemons, lambda: not daemons.rows.empty())
    announce_page(bed, daemons, live)
    workload = Workload(job.start, folder, root=True)
    bed.cleanup.callback(workload.close)
    is_enough = after(WALL_S)
    workload.go_on()
    live.head()
    live.begin("two processes compute, one writes")
    watch(live, daemons, after(4))
    is_late = after(MOST_S)
    watch(live, daemons, lambda: job.cpu_ns() >= 2 * CPU_S * NS or is_late())
    workload.stop_computing()
    watch(live, daemons, Rest(job.cpu_ns, PATIENCE_S))
    long_kernel = job.cpu_ns()
    watch(live, daemons, has_row_of(live, "taskstats_default", time.time() + 1))
    long_ours = live.last.get("taskstats_default", {})
    live.begin("a burst of short processes")
    workload.go_on()
    watch(live, daemons, after(2))
    watch(live, daemons, Rest(job.cpu_ns, PATIENCE_S))
    live.begin("all of them wait")
    watch(live, daemons, is_enough)
    kernel = job.cpu_ns()
    workload.close()
    root.end(job)  # its removal ends the job
    live.begin("the job has ended")
    watch(live, daemons, has_row_of(live, "procstats_default", time.time() + 4))  # the node goes on without it
    live.close()
    daemons.stop()
    if "cpu_total" not in long_ours:
        raise Failed(f"no taskstats row of the job came:\n{daemons.log.read_text()}")
    stored = read_last(bed.hdf5, JOB_ID, "taskstats_default")["cpu_total"]
    say(f"\nCPU time of job {JOB_ID}:{'Colmet':>23}     the kernel")
    agree = [
        compare("long-lived processes", long_ours["cpu_total"] / NS, long_kernel / NS),
        compare(f"with {SHORT_PROCESSES} short ones", stored / NS, kernel / NS),
        compare("the short ones alone", (stored - long_ours["cpu_total"]) / NS, (kernel - long_kernel) / NS, 6),
    ]
    if not all(agree):
        say("  The figures are further apart than they should be.")
    show_job(bed.hdf5)
    return all(agree)


def demo_as_user(bed: Bed, folder: Path, why: str) -> bool:
    """Run the demo without a cgroup: the node's figures, and those of an own process; return whether they agree."""
    say(f"{why}: a process of your own stands in for a job (colmet-node --pid), measured through /proc.")
    say(f"It writes {WRITE_MIB} MiB, then starts {SHORT_PROCESSES} short processes.\n")
    live = Live()
    live.begin("a process writes")
    workload = Workload(partial(subprocess.Popen, text=True), folder, root=False)
    bed.cleanup.callback(workload.close)
    daemons = bed.start("--pid", str(workload.pid))
    watch(live, daemons, lambda: not daemons.rows.empty())
    announce_page(bed, daemons, live)
    workload.go_on()
    live.head()
    watch(live, daemons, after(7))
    live.begin("a burst of short processes")
    workload.go_on()
    watch(live, daemons, after(5))
    live.close()
    daemons.stop()
    written = read_last(bed.hdf5, 0, "jobprocstats_default")["wchar"] / (1 << 20)
    say(f"\nIt wrote {written:.2f} MiB by Colmet, and meant to write {WRITE_MIB} MiB.")
    say(
        "\nAs root the demo adds: a job in a cgroup of its own, found by itself as OAR's are; its CPU time, waits,\n"
        "faults and context switches from the kernel's accounting, short processes included; the comparison with\n"
        "the kernel's total; and the report of the job. Run: sudo make demo"
    )
    show_picture(bed.hdf5, 0, *NODE_METRICS)
    return abs(written - WRITE_MIB) <= 0.02 * WRITE_MIB


def show_job(hdf5: Path) -> None:
    """Print the report of the job, and the name of a picture."""
    say(f"\n$ colmet report {JOB_ID}\n")
    run("report", str(JOB_ID), "--hdf5", str(hdf5))
    show_picture(hdf5, JOB_ID)


def show_picture(hdf5: Path, job: int, *metrics: str) -> None:
    """Draw a job in a file that stays, or in the terminal without matplotlib; print how."""
    words = ("plot", str(job), *metrics)
    say(f"\n$ colmet {' '.join(words)}\n")
    if importlib.util.find_spec("matplotlib") is None:
        run(*words, "--text", "--hdf5", str(hdf5))
        return
    descriptor, path = tempfile.mkstemp(prefix="colmet-demo-", suffix=".png")
    os.close(descriptor)
    run(*words, "--output", path, "--hdf5", str(hdf5))


def run(*words: str) -> None:
    """Run colmet; Failed if it fails."""
    from colmet.commands import colmet

    sys.stdout.flush()
    status = colmet.main(words)
    sys.stdout.flush()
    if status:
        raise Failed(f"colmet {words[0]} ended with status {status}")


def is_answering(address: str) -> bool:
    """Return whether a server listens at HOST:PORT."""
    host, _, port = address.partition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
        return True
    return False


def announce_page(bed: Bed, daemons: Daemons, live: Live) -> None:
    """Print where the page is while the demo runs."""
    if bed.address:
        bed.wait_for_page(daemons)
        live.close()
        say(f"The page, while this runs, without a login: http://{bed.address}/\n")


def show_page(bed: Bed, stays: bool) -> None:
    """Serve the page with the stored job until Ctrl-C, or print its address and what keeps it there."""
    if not bed.address:
        say("\nThe page requires fastapi and uvicorn: make venv installs them.")
        return
    if not stays:
        say(f"\nThe page was at http://{bed.address}/ until now. It stays until Ctrl-C with: make demo ARGS=--page")
        return
    daemons = bed.start()
    bed.wait_for_page(daemons)
    say(f"\nThe page, without a login, until Ctrl-C: http://{bed.address}/")
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            daemons.check()
            daemons.take_rows()
            time.sleep(1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``make demo``; return the exit status."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--page", action="store_true", help="serve the page with the job at the end, until Ctrl-C")
    parser.add_argument("--keep", metavar="PATH", help="copy the HDF5 file here before it is removed")
    options = parser.parse_args(argv)
    say("Colmet demo: one job, from the kernel to its report.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="colmet-demo-"))
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        bed = Bed(folder, cleanup)
        try:
            agree = demo(bed, folder)
            if options.keep:
                shutil.copy(bed.hdf5, options.keep)
                say(f"\nKept as {options.keep}.")
            show_page(bed, options.page)
        except Failed as err:
            print(f"\ndemo: {err}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\ndemo: interrupted", file=sys.stderr)
            return 130
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
