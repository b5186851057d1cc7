"""The main job of Colmet, shown on this machine in under a minute: ``make demo``.

A job's cgroup is made, a small workload runs in it, colmet-collector and colmet-node watch it at a period of one
second, and what they stored is read back and compared with the kernel's own total. Nothing is left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

JOB_ID = 4242
CPU_S = 5.0  # CPU time that each of two long-lived processes uses
WRITE_MB = 48
SHORT_PROCESSES = 400
NS = 1_000_000_000

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


class Phase(NamedTuple):
    """A part of the demo: until when it lasts, in seconds from the start, and what happens."""

    end_s: float
    text: str


class Failed(Exception):
    """The demo cannot go on."""


def say(text: str = "") -> None:
    """Print a line now."""
    print(text, flush=True)


def mounts(kind: str) -> Iterator[tuple[str, set[str]]]:
    """Mount points of a file system type with their options. Source: /proc/mounts."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, found, options = line.split()[:4]
        if found == kind:
            yield point, set(options.split(","))


class JobCgroups:
    """The cgroups of the demo's job: one in which Colmet finds it, and one in which the kernel counts its CPU time.

    OAR 2 makes cgroup v1 directories in cpuset and cpuacct. Where a machine has no v1 cpuset, a v1 hierarchy of our
    own, without controllers, stands in for it, and cgroup v2 counts the CPU time.
    """

    def __init__(self, user: str) -> None:
        self._stack = contextlib.ExitStack()
        self.name = f"{user}_{JOB_ID}"
        folder = f"colmet-demo-{os.getpid()}"
        try:
            self.root = self._make(Path(self._hierarchy("cpuset")) / folder)
            self.cgroup = self._make(self.root / self.name)
            self.usage, self._scale, counted = self._cpu_total(folder)
            self._joined = [self.cgroup / "cgroup.procs", *counted]
        except BaseException:
            self._stack.close()
            raise

    def _hierarchy(self, controller: str) -> str:
        for point, options in mounts("cgroup"):
            if controller in options:
                return point
        point = tempfile.mkdtemp(prefix="colmet-demo-cgroup-")
        self._stack.callback(os.rmdir, point)
        command = ["mount", "-t", "cgroup", "-o", "none,name=colmet-demo", "colmet-demo", point]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"this machine has no cgroup v1 cpuset, and none can be mounted: {done.stderr.strip()}")
        self._stack.callback(subprocess.run, ["umount", point], check=False)
        return point

    def _make(self, path: Path) -> Path:
        path.mkdir()
        self._stack.callback(self._remove, path)
        for name in ("cpuset.cpus", "cpuset.mems"):  # a new v1 cpuset is empty, and takes no tasks
            if (path / name).exists():
                (path / name).write_text((path.parent / name).read_text())
        return path

    @staticmethod
    def _remove(path: Path) -> None:
        for _ in range(50):  # the kernel takes a moment to let go of processes that have just ended
            try:
                path.rmdir()
            except OSError:
                time.sleep(0.05)
            else:
                return

    def _cpu_total(self, folder: str) -> tuple[Path, int, list[Path]]:
        """The file that holds the kernel's total, nanoseconds per unit of it, and the files that a process joins."""
        for point, options in mounts("cgroup"):
            if "cpuacct" in options:
                made = self._make(Path(point) / folder)
                return made / "cpuacct.usage", 1, [made / "cgroup.procs"]
        for point, _ in mounts("cgroup2"):
            made = self._make(Path(point) / folder)
            return made / "cpu.stat", 1000, [made / "cgroup.procs"]
        raise Failed("this machine counts no cgroup's CPU time: mount cpuacct or cgroup2")

    def cpu_s(self) -> float:
        """CPU time of the job so far, as the kernel counts it."""
        words = self.usage.read_text().split()
        number = int(words[words.index("usage_usec") + 1] if "usage_usec" in words else words[0])
        return number * self._scale / NS

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a command that joins the cgroups before it becomes what it is."""
        script = "".join(f"echo $$ > '{path}'; " for path in self._joined) + 'exec "$@"'
        return subprocess.Popen(["/bin/sh", "-c", script, "sh", *command], text=True, **options)

    def close(self) -> None:
        """Remove everything."""
        self._stack.close()


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
        """Have it start the burst."""
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


class Daemons:
    """colmet-collector and colmet-node, and the rows that the collector prints."""

    def __init__(self, folder: Path, node_options: Sequence[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            uri = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self.log = folder / "daemons.log"
        self.hdf5 = folder / "demo.hdf5"
        self.rows: queue.Queue[dict[str, Any]] = queue.Queue()
        python = [sys.executable, "-m"]
        log = self.log.open("w")
        self._collector = subprocess.Popen(
            [
                *(*python, "colmet.collector.main", "-v", "--zeromq-bind-uri", uri, "--hdf5-filepath", str(self.hdf5)),
                *("--enable-stdout-backend", "--stdout-format", "json", "--buffer-size", "1"),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self._node = subprocess.Popen(
            [
                *(*python, "colmet.node.main", "-v", "--zeromq-uri", uri, "-s", "1", "--enable-jobproc"),
                *("--state-dir", "", *node_options),
            ],
            stderr=log,
        )
        log.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._collector.stdout is not None
        for line in self._collector.stdout:
            self.rows.put(json.loads(line))

    def check(self) -> None:
        """Raise Failed if one of them has ended."""
        for name, process in (("colmet-collector", self._collector), ("colmet-node", self._node)):
            if process.poll() is not None:
                raise Failed(f"{name} ended with status {process.returncode}:\n{self.log.read_text()}")

    def stop(self) -> None:
        """End the node, then the collector, and wait for each."""
        for process in (self._node, self._collector):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(timeout=15)
        self._reader.join(timeout=5)
        if self._collector.stdout is not None:
            self._collector.stdout.close()


class Live:
    """The live table: a row a second, and a line of progress below it."""

    COLUMNS = ("time", "CPU time", "CPU use", "memory", "written", "read", "ctx switches")

    def __init__(self, phases: Sequence[Phase]) -> None:
        self._phases = phases
        self._tty = sys.stdout.isatty()
        self._row: dict[str, Any] = {}
        self._before: tuple[float, float] | None = None
        self.last: dict[str, dict[str, Any]] = {}
        say("  ".join(f"{column:>12}" for column in self.COLUMNS))

    def progress(self, now_s: float) -> str:
        """A line such as ``[####....] 12 s of 20 s: what happens``."""
        total = self._phases[-1].end_s
        done = int(24 * min(1, now_s / total))
        text = next((phase.text for phase in self._phases if now_s < phase.end_s), "done")
        return f"[{'#' * done}{'.' * (24 - done)}] {min(now_s, total):2.0f} s of {total:.0f} s: {text}"

    def add(self, row: dict[str, Any], now_s: float) -> None:
        """Take in a row that the collector printed; print the job's line when all of its tables have come."""
        self.last[row["metric_backend"]] = row
        if row["metric_backend"] != "jobprocstats_default":  # the last table of a batch
            return
        cpu = self.last.get("taskstats_default", {}).get("cpu_run_virtual_total")
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
            f"{row['VmRSS'] / 1024:.1f} MB" if "VmRSS" in row else "-",
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
    """Show rows as they come, until `until_s` after `start`."""
    while (now := time.monotonic() - start) < until_s:
        daemons.check()
        live.tick(now)
        with contextlib.suppress(queue.Empty):
            live.add(daemons.rows.get(timeout=0.2), time.monotonic() - start)


def summarize(path: Path) -> None:
    """What the file holds: each table, its rows and columns, the time it covers."""
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
    """The last row of a job's table in the file, by column."""
    import tables

    with tables.open_file(str(path)) as file:
        table = file.get_node(f"/job_{job}/{name}")
        row = table[-1]
        return {column: int(row[column]) for column in table.colnames if row[column].dtype.kind == "i"}


def compare(what: str, ours: float, kernels: float, unit: str) -> bool:
    """Print two figures for the same thing and how far they are apart; whether that is at most 2 %."""
    apart = 100 * (ours - kernels) / kernels
    say(f"  {what:<44} {ours:10.3f} {unit}   {kernels:10.3f} {unit}   {apart:+6.2f} %")
    return abs(apart) <= 2


def demo_as_root(folder: Path, cleanup: contextlib.ExitStack) -> tuple[Path, bool]:
    """The whole demo. The file that was written, and whether the figures agree."""
    user = os.environ.get("SUDO_USER") or pwd.getpwuid(os.geteuid()).pw_name
    job = JobCgroups(user)
    cleanup.callback(job.close)
    say(f"Job {JOB_ID} of {user}: cgroup {job.cgroup}")
    say(
        f"It uses {2 * CPU_S:.0f} s of CPU time in two long-lived processes, writes {WRITE_MB} MB, then starts "
        f"{SHORT_PROCESSES} short processes.\n"
    )
    daemons = Daemons(folder, ["--cpuset_rootpath", str(job.root)])
    cleanup.callback(daemons.stop)
    workload = Workload(job.start, folder, root=True)
    cleanup.callback(workload.close)
    phases = [Phase(14, "long-lived processes compute and write"), Phase(20, "a burst of short processes")]
    live, start = Live(phases), time.monotonic()
    watch(live, daemons, start, 5)
    while job.cpu_s() < 2 * CPU_S and time.monotonic() - start < 30:  # on a busy machine it takes longer
        watch(live, daemons, start, time.monotonic() - start + 0.5)
    watch(live, daemons, start, max(phases[0].end_s, time.monotonic() - start + 2.5))
    long_kernel = job.cpu_s()
    long_ours = live.last.get("taskstats_default", {})
    workload.start_short_processes()
    watch(live, daemons, start, time.monotonic() - start + 6)
    live.close()
    all_kernel = job.cpu_s()
    daemons.stop()
    say()
    summarize(daemons.hdf5)
    if "cpu_run_real_total" not in long_ours:
        raise Failed(f"no taskstats row of the job came:\n{daemons.log.read_text()}")
    stored = read_last(daemons.hdf5, JOB_ID, "taskstats_default")
    say(f"\nCPU time of job {JOB_ID}:{'Colmet':>42}          the kernel's total for the cgroup")
    # the kernel may count cpu_run_real_total by clock ticks, so it strays on a busy machine; the other is exact
    compare("long-lived, cpu_run_real_total", long_ours["cpu_run_real_total"] / NS, long_kernel, "s")
    agree = compare("long-lived, cpu_run_virtual_total", long_ours["cpu_run_virtual_total"] / NS, long_kernel, "s")
    compare("all, with the burst of short processes", stored["cpu_run_virtual_total"] / NS, all_kernel, "s")
    say(
        "  This version samples live tasks: what starts and ends between two samples is missing from the last line."
        if agree
        else "  The figures for the long-lived processes are more than 2 % apart."
    )
    return daemons.hdf5, agree


def demo_as_user(folder: Path, cleanup: contextlib.ExitStack) -> tuple[Path, bool]:
    """What can be shown without root: the node's figures, and the I/O and memory of an own process."""
    say("Not root: a process of your own stands in for a job (colmet-node --pid), measured through /proc.")
    say(f"It writes {WRITE_MB} MB, then starts {SHORT_PROCESSES} short processes.\n")
    workload = Workload(subprocess_start, folder, root=False)
    cleanup.callback(workload.close)
    daemons = Daemons(folder, ["--pid", str(workload.pid)])
    cleanup.callback(daemons.stop)
    phases = [Phase(7, "a process writes"), Phase(12, "a burst of short processes")]
    live, start = Live(phases), time.monotonic()
    watch(live, daemons, start, phases[0].end_s)
    workload.start_short_processes()
    watch(live, daemons, start, phases[1].end_s)
    live.close()
    daemons.stop()
    say()
    summarize(daemons.hdf5)
    stored = read_last(daemons.hdf5, 0, "jobprocstats_default")
    say(f"\n{'What it wrote:':<47}{'Colmet':>12}     it meant to")
    agree = compare("wchar", stored["wchar"] / 1e6, WRITE_MB * (1 << 20) / 1e6, "MB")
    say(
        "\nAs root the demo adds: a job in a cgroup of its own, found by itself as OAR's are; its CPU time, waits,\n"
        "faults and context switches from the kernel's accounting (taskstats, which needs CAP_NET_ADMIN); the\n"
        "comparison with the kernel's CPU total of the cgroup; the I/O of other users' processes.\n"
        "Run: sudo make demo"
    )
    return daemons.hdf5, agree


def subprocess_start(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start a command as it is."""
    return subprocess.Popen(command, text=True, **options)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``make demo``; the exit status."""
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
    say(
        f"\nKept as {options.keep}."
        if options.keep
        else "\nThe file is removed again. To keep it: make demo ARGS='--keep demo.hdf5'"
    )
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
