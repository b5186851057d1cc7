"""The main job of Colmet, shown on this machine in a minute and a half: ``make demo``.

A small program runs as a job, under colmet-node and colmet-collector at a period of one second, which serve the page.
Its report has a verdict and an advice. A second job runs the same program as the advice says. What Colmet stored is
compared with the kernel's own count. A picture is left behind, and caches of pip and Matplotlib.

What the place allows is found by trying: a cgroup for each job, the kernel's accounting by netlink, else /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import pwd
import queue
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Union

import numpy as np

from colmet.common.errors import BackendUnavailable, ParseError
from colmet.common.host.host import Host
from colmet.common.measures import CPU_USED, MEMORY, Measure
from colmet.common.text import UNKNOWN, Clock, cores, duration, size
from colmet.node.kernel.netlink import Inbox
from colmet.node.kernel.taskstats import ExitRecords, TaskstatsClient
from dev.live import NS, PATIENCE_S, Daemons, Failed, JobRoot, ListedRoot, free_port

JOB_ID = 4242
MAX_CORES = 4
# A verdict requires half a minute.
WALL_S = 31.0
# Share of one core. With the seconds around its work, one busy core in two is clearly less than a half.
BUSY_SHARE = 0.97
# With less there is no advice on one core; see the rule one-core in colmet/jobs/advice.py.
MIN_CORES_USED = 0.8
WRITE_MIB = 48
SHORT_PROCESSES = 400
STEP_S = 3.0
# The same address in each run.
PAGE_PORT = 8421
PAGE_S = 300.0
# Largest differences from the kernel's count, in percent: /proc counts in clock ticks.
TOLERANCES = {"taskstats_default": 2.0, "jobprocstats_default": 4.0}
# What a record of a short process lacks: its use since the last clock tick and after the record.
RECORD_LACKS_NS = 4_000_000
# Of the machine itself; a container has another one (include/linux/proc_ns.h).
PID_NAMESPACE = f"pid:[{0xEFFFFFFC}]"

# The program of the jobs. It prints a line when its work is done, and ends at a line of its input.
PROGRAM = """
import os, sys, time
path, wall_s, share, mebibytes, processes = sys.argv[1], *map(float, sys.argv[2:])
start = time.monotonic()
def compute(end_s):
    while time.monotonic() - start < end_s:
        slice = time.monotonic()
        while time.monotonic() - slice < 0.1 * share:
            sum(i * i for i in range(2000))
        time.sleep(0.1 * (1 - share))
compute(0.3 * wall_s)
with open(path, "wb") as file:
    for n in range(int(mebibytes)):
        file.write(os.urandom(1 << 20))
compute(0.6 * wall_s)
for n in range(int(processes)):
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done"], os.environ)
    os.waitpid(pid, 0)
compute(wall_s)
print("done", flush=True)
sys.stdin.readline()
"""

Root = Union[JobRoot, ListedRoot]


def say(text: str = "") -> None:
    """Print a line now."""
    print(text, flush=True)


class Place(NamedTuple):
    """What this place allows; a reason is empty where something is allowed."""

    root: Root
    cgroup_refusal: str
    accounting_refusal: str
    ends_refusal: str

    @property
    def table(self) -> str:
        """The table whose CPU time is compared with the kernel's count of a job."""
        return "jobprocstats_default" if self.accounting_refusal else "taskstats_default"


def explore_place(folder: Path) -> Place:
    """Return what this place allows, by trying each thing."""
    root: Root
    cgroup_refusal = ""
    try:
        root = JobRoot(f"colmet-demo-{os.getpid()}")
    except Failed as err:
        cgroup_refusal = str(err)
        root = ListedRoot(folder / "jobs")
    accounting_refusal = ends_refusal = ""
    try:
        with contextlib.closing(TaskstatsClient()) as client:
            client.query(np.array([os.getpid()], dtype=np.int64))
    except PermissionError:
        accounting_refusal = "reading it needs CAP_NET_ADMIN"
    except (BackendUnavailable, ParseError, OSError) as err:
        accounting_refusal = str(err)
    try:
        ExitRecords(Host(), Inbox(1, 1024)).close()
    except BackendUnavailable as err:
        ends_refusal = str(err)
    return Place(root, cgroup_refusal, accounting_refusal, ends_refusal)


def describe_place(place: Place) -> None:
    """Print what can be measured here, what is missing, and the remedy."""
    say("This place allows")
    for name, refusal, use in (
        ("a cgroup for a job", place.cgroup_refusal, "as batch systems make one"),
        ("task accounting", place.accounting_refusal, "the kernel's CPU time and waits of each task"),
        ("records of ended tasks", place.ends_refusal, "so that no short process is missed"),
        ("processes in /proc", "", "CPU time, memory and I/O"),
    ):
        say(f"  {name:<24}{f'no: {refusal}' if refusal else f'yes: {use}'}")
    if place.cgroup_refusal:
        say("Without a cgroup, the demo lists the processes of its job in files instead.")
    if place.cgroup_refusal or place.accounting_refusal or place.ends_refusal:
        say(
            "To have all: as root (sudo make demo) of a machine or a virtual machine, or in\n"
            "a container started with --privileged --pid=host --network=host."
        )
    if place.accounting_refusal:
        say("A container with --cap-add NET_ADMIN has the task accounting alone.")
    with contextlib.suppress(OSError):
        if Path("/proc/sys/kernel/task_delayacct").read_text().strip() == "0":
            say("Waits for disk and swap are not counted here; as root: sysctl kernel.task_delayacct=1")
    say()


class Run(NamedTuple):
    """A job of the demo.

    Attributes:
        job_id: its number.
        cpus: those that it holds.
        is_busy: whether its program computes; else it waits for its input.
    """

    job_id: int
    cpus: Collection[int]
    is_busy: bool

    def describe(self) -> str:
        """Return what it holds and does, in a sentence."""
        cores = f"{len(self.cpus)} core{'' if len(self.cpus) == 1 else 's'}"
        if not self.is_busy:
            return f"Job {self.job_id} holds {cores}, and waits for its input for {WALL_S:.0f} s."
        return (
            f"Job {self.job_id} holds {cores}. For {WALL_S:.0f} s its program computes on one, writes\n"
            f"{WRITE_MIB} MiB and starts {SHORT_PROCESSES} short processes."
        )

    def command(self, folder: Path) -> list[str]:
        """Return the command of its program."""
        figures = (WALL_S, BUSY_SHARE, WRITE_MIB, SHORT_PROCESSES) if self.is_busy else (WALL_S, 0, 0, 0)
        path = str(folder / f"written-{self.job_id}")
        return [sys.executable, "-I", "-S", "-c", PROGRAM, path, *map(str, figures)]


def plan_runs(cpus: Sequence[int]) -> tuple[Run, Run]:
    """Return the first job, which wastes what it holds, and the second one, which follows the advice.

    Args:
        cpus: those of this place. With a single one the first job is idle, as it cannot hold too many.
    """
    if len(cpus) > 1:
        return Run(JOB_ID, cpus[:MAX_CORES], True), Run(JOB_ID + 1, cpus[:1], True)
    return Run(JOB_ID, cpus, False), Run(JOB_ID + 1, cpus, True)


class Live:
    """The live table of a job: a row every few seconds, and below it a line on what happens.

    Attributes:
        latest: the latest row of each table, by job and table.
    """

    COLUMNS = ("time", "CPU time", "cores", "memory", "written")

    def __init__(self) -> None:
        self.latest: dict[tuple[int, str], Mapping[str, Any]] = {}
        self._phase = ""
        self._is_terminal = sys.stdout.isatty()
        self._job_id = 0
        self._before: tuple[float, float] | None = None
        self._next = 0.0

    def begin(self, job_id: int) -> None:
        """Print the head of the table of a job, whose rows follow."""
        self._job_id, self._before, self._next = job_id, None, 0.0
        self._print(self._line(self.COLUMNS))

    def enter_phase(self, phase: str) -> None:
        """Name what happens from now on, for the line below the table."""
        self._phase = phase

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row printed by the collector; print the job's line when all of its tables are there."""
        job_id, name, moment = row.get("job_id", 0), row["metric_backend"], row["timestamp"]
        if moment < self.latest.get((job_id, name), row)["timestamp"]:
            return
        self.latest[job_id, name] = row
        # The last table of a job in a batch.
        if job_id != self._job_id or name != "jobprocstats_default" or moment < self._next:
            return
        self._next = moment + STEP_S
        cpu_s = self._read(CPU_USED)
        used = UNKNOWN
        if cpu_s is not None:
            if self._before is not None:
                used = cores((cpu_s - self._before[1]) / (moment - self._before[0]))
            self._before = (moment, cpu_s)
        cells = (Clock().text(moment)[11:], duration(cpu_s), used, size(self._read(MEMORY)), size(row.get("wchar")))
        self._print(self._line(cells))

    def _read(self, measure: Measure) -> float | None:
        """Return a measure of the job, from the first source with a value."""
        for source in measure.sources:
            value = self.latest.get((self._job_id, source.table), {}).get(source.column)
            if value is not None:
                return float(value) * source.factor
        return None

    def tick(self) -> None:
        """Bring the line below the table up to date."""
        if self._is_terminal:
            print(f"\r\033[K{self._phase} ...", end="", flush=True)

    def close(self) -> None:
        """Remove the line below the table."""
        if self._is_terminal:
            print("\r\033[K", end="", flush=True)

    def _print(self, line: str) -> None:
        say(f"\r\033[K{line}" if self._is_terminal else line)

    @staticmethod
    def _line(cells: Sequence[str]) -> str:
        return " ".join(f"{cell:>12}" for cell in cells)


def watch(live: Live, daemons: Daemons, is_over: Callable[[], bool]) -> None:
    """Show incoming rows until something is over.

    Raises:
        Failed: a daemon has ended.
    """
    while not is_over():
        daemons.check()
        live.tick()
        with contextlib.suppress(queue.Empty):
            live.add(daemons.rows.get(timeout=0.2))


def is_after(seconds: float) -> Callable[[], bool]:
    """Return whether this time has passed since the call."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def has_row(live: Live, job_id: int, table: str, moment: float) -> Callable[[], bool]:
    """Return whether a row of a table is of this time or later; after a minute it counts as one."""
    is_late = is_after(PATIENCE_S)
    return lambda: live.latest.get((job_id, table), {}).get("timestamp", 0) >= moment or is_late()


class Result(NamedTuple):
    """CPU times of a job, in ns: by Colmet, None if it has none, and by the kernel; and its ended tasks by Colmet."""

    job_id: int
    cpu_ns: int | None
    kernel_ns: int
    ended: int | None

    @property
    def used_cores(self) -> float:
        """The cores that its program got on average."""
        return (self.cpu_ns or self.kernel_ns) / NS / WALL_S


class Bed:
    """Where the demo runs: its folder, its daemons, and the address of the page.

    Args:
        folder: for all files.
        cleanup: ends what is started.
    """

    def __init__(self, folder: Path, cleanup: contextlib.ExitStack) -> None:
        self.folder = folder
        self.hdf5 = folder / "demo.hdf5"
        self.cleanup = cleanup
        has_web = all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn"))
        self.address = f"127.0.0.1:{page_port()}" if has_web else ""

    def start(self, *node_options: str) -> Daemons:
        """Start both daemons, at a period of a second, with a file for the rows and the page for this machine."""
        options = ["-s", "1", "--enable-jobproc", "--state-dir", "", *node_options]
        page = ["--http-listen", self.address, "--http-open"] if self.address else []
        output = ["--hdf5-filepath", str(self.hdf5), "-s", "0.1"]
        daemons = Daemons(self.folder, options, [*output, *page])
        self.cleanup.callback(daemons.stop)
        return daemons

    def wait_for_page(self, daemons: Daemons) -> None:
        """Wait until the page answers.

        Raises:
            Failed: a timeout, or a daemon has ended.
        """
        is_late = is_after(PATIENCE_S)
        while not is_answering(self.address):
            daemons.check()
            if is_late():
                raise Failed(f"no page at {self.address}:\n{daemons.log.read_text()}")
            time.sleep(0.2)


def page_port() -> int:
    """Return `PAGE_PORT`, or a free port if another program listens there."""
    with contextlib.suppress(OSError), socket.socket() as probe:
        # Connections of an earlier run do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", PAGE_PORT))
        return PAGE_PORT
    return free_port()


def user_name() -> str:
    """Return the name of the user who started the demo, a number where a container has no name for it."""
    try:
        return os.environ.get("SUDO_USER") or pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def run_job(run: Run, place: Place, bed: Bed, daemons: Daemons, live: Live) -> Result:
    """Run a job to its end, and return its CPU times.

    Raises:
        Failed: its program, or a daemon, has ended.
    """
    job: Any = place.root.job(f"{user_name()}_{run.job_id}", run.cpus)
    say(run.describe())
    live.begin(run.job_id)
    live.enter_phase(f"job {run.job_id} runs")
    process = job.start(run.command(bed.folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    watch(live, daemons, lambda: bool(select.select([process.stdout], [], [], 0)[0]))
    if process.stdout.readline() != "done\n":
        raise Failed(f"the program of job {run.job_id} ended early")
    # Two ticks after its last work, all of it is in a row.
    watch(live, daemons, has_row(live, run.job_id, "jobprocstats_default", time.time() + 2))
    row = live.latest.get((run.job_id, place.table), {})
    process.stdin.write("\n")
    process.stdin.flush()
    job.wait()
    kernel_ns = job.cpu_ns()
    live.enter_phase(f"job {run.job_id} has ended")
    place.root.end(job)
    # The node goes on without it: three rows of the node later, the job counts as ended.
    watch(live, daemons, has_row(live, 0, "procstats_default", time.time() + 3))
    live.close()
    return Result(run.job_id, row.get("cpu_total", row.get("cpu_time")), kernel_ns, row.get("tasks_ended"))


def run_demo(bed: Bed, is_endless: bool) -> bool:
    """Run both jobs, and show their page; return whether Colmet's CPU times agree with the kernel's."""
    place = explore_place(bed.folder)
    bed.cleanup.callback(place.root.close)
    describe_place(place)
    live = Live()
    live.enter_phase("the daemons start")
    daemons = bed.start("--cpuset_rootpath", str(place.root.path))
    watch(live, daemons, lambda: not daemons.rows.empty())
    live.close()
    announce_page(bed, daemons)
    first, second = plan_runs(sorted(os.sched_getaffinity(0)))
    results = [run_job(first, place, bed, daemons, live)]
    report_job(bed, first.job_id)
    say(f"\n{introduce_cure(first, results[0], has_advice(bed, first.job_id))}")
    results.append(run_job(second, place, bed, daemons, live))
    # At its end the collector writes the summaries of jobs.
    daemons.stop()
    report_job(bed, second.job_id)
    if second.is_busy and (used_cores := results[1].used_cores) < MIN_CORES_USED:
        say(f"\nThis machine is busy: the program got {cores(used_cores)} of its core, so its efficiency is low here.")
    is_in_kernel = "jobs are accounted in the kernel" in daemons.log.read_text()
    agrees = compare_results(place, results, is_in_kernel)
    draw_picture(bed.hdf5, first.job_id)
    keep_page(bed, is_endless)
    return agrees


def introduce_cure(run: Run, result: Result, is_advised: bool) -> str:
    """Return a sentence on the second job."""
    if not run.is_busy:
        return "The cure: the same job, with its input."
    used_cores = result.used_cores
    if is_advised and used_cores >= MIN_CORES_USED:
        return "The cure: the same program with one core."
    return (
        f"This machine is busy: while it computed, the program got {cores(used_cores)} of a core.\n"
        "On a quiet one it gets a whole one, and the advice is to ask for one core.\n"
        "The same program with one core:"
    )


def compare_results(place: Place, results: Sequence[Result], is_in_kernel: bool) -> bool:
    """Print the CPU times of the jobs by Colmet and by the kernel; return whether they agree."""
    source = "ticks of /proc" if place.accounting_refusal else "its tasks" if is_in_kernel else "records of tasks"
    counter = "wait4" if place.cgroup_refusal else "its cgroup"
    say(f"\n{'CPU time':<12}{f'Colmet ({source})':>26}{f'the kernel ({counter})':>26}")
    agrees = True
    for result in results:
        if result.cpu_ns is None or not result.kernel_ns:
            say(f"job {result.job_id:<8}{UNKNOWN:>26}{result.kernel_ns / NS:>24.3f} s")
            agrees = False
            continue
        difference = 100 * (result.cpu_ns - result.kernel_ns) / result.kernel_ns
        times = f"{result.cpu_ns / NS:>24.3f} s{result.kernel_ns / NS:>24.3f} s"
        # A job that only waits has a few ticks of CPU time.
        say(f"job {result.job_id:<8}{times}" + (f" {difference:>+8.2f} %" if result.kernel_ns > NS else ""))
        lacking_ns = 0 if is_in_kernel else RECORD_LACKS_NS * SHORT_PROCESSES
        is_near = -0.05 * NS - lacking_ns < result.cpu_ns - result.kernel_ns < 0.05 * NS
        agrees &= is_near or abs(difference) <= TOLERANCES[place.table]
    busy = results[-1]
    if busy.ended is not None and not place.ends_refusal:
        say(f"Of {SHORT_PROCESSES} short processes in job {busy.job_id}, Colmet counted {busy.ended}.")
    if not (is_in_kernel or place.accounting_refusal):
        say("Records of short processes lack what these used last; `colmet doctor` says how the kernel counts it all.")
    if not agrees:
        say("The times are further apart than they should be. Is this machine very busy? Run it again.")
    return agrees


def report_job(bed: Bed, job_id: int) -> None:
    """Print the report of a job."""
    say(f"\n$ colmet report {job_id}\n")
    run_colmet("report", str(job_id), "--hdf5", str(bed.hdf5))


def has_advice(bed: Bed, job_id: int) -> bool:
    """Return whether the report of a job has an advice."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        run_colmet("report", str(job_id), "--hdf5", str(bed.hdf5), "--json")
    return bool(json.loads(text.getvalue())["advice"])


def draw_picture(hdf5: Path, job_id: int) -> None:
    """Draw a job in a file that stays, or in the terminal without matplotlib; print how."""
    say(f"\n$ colmet plot {job_id}\n")
    words = ("plot", str(job_id), "--hdf5", str(hdf5))
    if importlib.util.find_spec("matplotlib") is None:
        run_colmet(*words, "--text")
        return
    descriptor, path = tempfile.mkstemp(prefix="colmet-demo-", suffix=".png")
    os.close(descriptor)
    run_colmet(*words, "--output", path)


def run_colmet(*words: str) -> None:
    """Run colmet.

    Raises:
        Failed: it failed.
    """
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


def announce_page(bed: Bed, daemons: Daemons) -> None:
    """Print where the page is while the demo runs."""
    if not bed.address:
        say("There is no page: it requires fastapi and uvicorn.\n")
        return
    bed.wait_for_page(daemons)
    say(f"The page, while this runs, without a login: http://{bed.address}/")
    if os.readlink("/proc/self/ns/pid") != PID_NAMESPACE:
        say("To see it from outside of this container, start that with --network=host.")
    say()


def keep_page(bed: Bed, is_endless: bool) -> None:
    """Serve the page with the stored jobs: until Enter or for some minutes on a terminal, until Ctrl-C if endless."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not bed.address or not (is_endless or is_terminal):
        if bed.address:
            say("\nThe page has ended; make demo ARGS=--page keeps it up until Ctrl-C.")
        return
    end = "until Ctrl-C" if is_endless else f"for {PAGE_S / 60:.0f} minutes, or until Enter"
    daemons = bed.start()
    bed.wait_for_page(daemons)
    say(f"\nThe page with both jobs stays {end}: http://{bed.address}/")
    is_over = is_after(float("inf") if is_endless else PAGE_S)
    with contextlib.suppress(KeyboardInterrupt):
        while not is_over():
            daemons.check()
            daemons.take_rows()
            if is_endless:
                time.sleep(1)
            elif select.select([sys.stdin], [], [], 1)[0]:
                return


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``make demo``; return the exit status."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--page", action="store_true", help="serve the page with the jobs at the end, until Ctrl-C")
    parser.add_argument("--keep", metavar="PATH", help="copy the HDF5 file here before it is removed")
    options = parser.parse_args(argv)
    say("Colmet demo: a job, from the kernel to its report, and the cure for its waste.\n")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="colmet-demo-"))
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        bed = Bed(folder, cleanup)
        try:
            agrees = run_demo(bed, options.page)
            if options.keep:
                shutil.copy(bed.hdf5, options.keep)
                say(f"\nKept as {options.keep}.")
        except Failed as err:
            print(f"\ndemo: {err}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\ndemo: interrupted", file=sys.stderr)
            return 130
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
