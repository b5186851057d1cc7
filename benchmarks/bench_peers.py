"""The agent beside other monitors of nodes: all of them at once, on the same jobs, at 1 s (benchmarks/peers.md).

``python benchmarks/bench_peers.py --peer 'NAME=COMMAND'`` adds any program. In the command, {jobs} is the directory of
the jobs' cgroups, {sink} the address of a colmet-collector that prints to /dev/null, {port} a free TCP port. A program
with {port} is a server: its page /metrics is fetched once a second.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from measuring import Figure, cpu_ns

from dev.live import Failed, JobRoot, LiveJob, free_port

JOBS, PROCESSES, THREADS = 8, 20, 4
SECONDS, SETTLE_S = 30.0, 6.0
NODE_EXPORTERS = ("prometheus-node-exporter", "node_exporter")
NODE_EXPORTER_OPTIONS = "--web.listen-address=127.0.0.1:{port}"
OURS = "colmet-node"

# processes of some threads; each thread computes a little every half second, or never
WORK = """
import os, signal, sys, threading, time
processes, threads, idle = map(int, sys.argv[1:])
threading.stack_size(131072)
def work():
    while True:
        if idle:
            signal.pause() if threading.current_thread() is threading.main_thread() else threading.Event().wait()
        sum(range(2000))
        time.sleep(0.5)
for _ in range(processes - 1):
    if not os.fork():
        break
for _ in range(threads - 1):
    threading.Thread(target=work, daemon=True).start()
work()
"""


def pss_mb(pid: int) -> float:
    """Return the proportional memory of a process: shared pages count by share. Source: /proc/<pid>/smaps_rollup."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


def fetch_each_second(port: int, stop: threading.Event) -> None:
    """Fetch a metrics page once a second until `stop`."""
    while not stop.wait(1):
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page,
        ):
            page.read()


@contextlib.contextmanager
def load(idle: bool) -> Iterator[JobRoot]:
    """Yield the directory of eight jobs of 20 processes of 4 threads: 640 tasks."""
    # a name that Alumet accepts; another one where this machine has OAR's directory
    with contextlib.ExitStack() as stack:
        try:
            root = JobRoot("oar", ["memory"])
        except Failed:
            root = JobRoot(f"colmet-bench-{os.getpid()}", ["memory"])
        stack.callback(root.close)
        jobs = [root.job(f"bob_{number}") for number in range(1, JOBS + 1)]
        for job in jobs:
            job.start([sys.executable, "-S", "-c", WORK, str(PROCESSES), str(THREADS), str(int(idle))])
        stack.callback(_end, jobs)
        until = time.monotonic() + 30
        while any(len(job.tids()) < PROCESSES * THREADS for job in jobs):
            if time.monotonic() > until:
                raise Failed("the tasks of the jobs did not start in 30 s")
            time.sleep(0.1)
        yield root


def _end(jobs: list[LiveJob]) -> None:
    for job in jobs:
        for tid in job.tids():
            with contextlib.suppress(OSError):
                os.kill(tid, 9)


@contextlib.contextmanager
def started(command: list[str], log: Path, folder: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program; kill it at the end."""
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file, cwd=folder) as program:
        try:
            yield program
        finally:
            program.kill()


def own_command(folder: Path) -> str:
    """Return the command of colmet-node with its default backends, at 1 s."""
    options = "-s 1 --zeromq-uri {sink} --zeromq-curve-secret '' --spool-dir '' --cpuset_rootpath {jobs}"
    options += f" --state-dir {shlex.quote(str(folder))}"
    return f"{shlex.quote(sys.executable)} -m colmet.node.main {options}"


def side_by_side(peers: Mapping[str, str], idle: bool, seconds: float = SECONDS) -> dict[str, tuple[float, float]]:
    """Return the share of a core, in percent, and the memory, in MB, of each program.

    Args:
        peers: a command by name.
        idle: whether the tasks of the jobs sleep all the time.
        seconds: of the measurement, after some seconds for the start.
    """
    sink = f"tcp://127.0.0.1:{free_port()}"
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        root = stack.enter_context(load(idle))
        stack.callback(stop.set)
        collector = f"{shlex.quote(sys.executable)} -m colmet.collector.main --zeromq-bind-uri {sink}"
        receive = shlex.split(f"{collector} --zeromq-curve-secret '' --enable-stdout-backend --stdout-format json")
        stack.enter_context(started(receive, Path(os.devnull), folder))
        running: dict[str, subprocess.Popen[bytes]] = {}
        for name, command in peers.items():
            port = free_port()
            words = [word.format(jobs=root.path, sink=sink, port=port) for word in shlex.split(command)]
            running[name] = stack.enter_context(started(words, Path(folder) / f"{name}.log", folder))
            if "{port}" in command:
                threading.Thread(target=fetch_each_second, args=(port, stop), daemon=True).start()
        time.sleep(SETTLE_S)
        before = {name: (time.monotonic_ns(), cpu_ns(program.pid)) for name, program in running.items()}
        time.sleep(seconds)
        found = {}
        for name, program in running.items():
            if program.poll() is not None:
                text = (Path(folder) / f"{name}.log").read_text(errors="replace")
                raise Failed(f"{name} ended with status {program.returncode}: {text[-500:]}")
            began, used = before[name]
            share = 100 * (cpu_ns(program.pid) - used) / (time.monotonic_ns() - began)
            found[name] = share, pss_mb(program.pid)
    return found


def figures_of(peers: Mapping[str, str], seconds: float = SECONDS) -> list[Figure]:
    """Return the figures of the agent and of other programs, with busy and with idle jobs."""
    figures: list[Figure] = []
    tasks = f"{JOBS * PROCESSES * THREADS} tasks in {JOBS} jobs"
    for what, idle in ((tasks, False), (f"{tasks}, idle", True)):
        with tempfile.TemporaryDirectory() as folder:
            found = side_by_side({OURS: own_command(Path(folder)), **peers}, idle, seconds)
        share, memory = found[OURS]
        for name, (theirs, size) in found.items():
            ratio = "" if name == OURS else f"{share / theirs:.2f} times is {OURS}" if theirs else "no CPU time"
            figures.append((f"{what}: of one core, {name}", theirs, "%", ratio))
            ratio = "" if name == OURS else f"{memory / size:.2f} times is {OURS}"
            figures.append((f"{what}: memory (PSS), {name}", size, "MB", ratio))
    return figures


def installed() -> dict[str, str]:
    """Return the commands of the peers that are installed on this machine."""
    path = next(filter(None, map(shutil.which, NODE_EXPORTERS)), None)
    return {"node_exporter": f"{shlex.quote(path)} {NODE_EXPORTER_OPTIONS}"} if path else {}


def run() -> list[Figure]:
    """Every figure: name, value, unit, target."""
    if os.geteuid() != 0:
        print("left out: needs root", file=sys.stderr)
        return []
    peers = installed()
    if not peers:
        print("without a peer: benchmarks/peers.md names some", file=sys.stderr)
    try:
        return figures_of(peers)
    except Failed as err:
        print(f"left out: {err}", file=sys.stderr)
        return []


def main() -> None:
    """Print the figures of the agent beside the programs named on the command line."""
    from measuring import show

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=COMMAND", help="another program; repeatable"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="duration (default %(default)g)")
    options = parser.parse_args()
    if wrong := [peer for peer in options.peer if "=" not in peer]:
        parser.error(f"--peer {wrong[0]}: give NAME=COMMAND")
    show(figures_of({**installed(), **dict(peer.split("=", 1) for peer in options.peer)}, options.seconds))


if __name__ == "__main__":
    main()
