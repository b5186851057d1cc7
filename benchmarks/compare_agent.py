"""CPU time and memory of colmet-node of several source trees, side by side on one load.

python benchmarks/compare_agent.py [--seconds N] [--load NAME]... [--option=OPTION]... TREE [TREE...]

All agents run at once, each with a collector of its own, so that they measure the same jobs and the same ends
of tasks. The first tree is the reference. As root.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from measuring import cpu_ns

from dev.live import JobRoot, free_port

SETTLE_S = 8.0
HERE = Path(__file__).resolve().parents[1]

# arguments: processes, threads of each, whether they work
LOAD = """
import os, sys, threading, time
processes, threads, works = map(int, sys.argv[1:])
threading.stack_size(131072)
def work():
    while works:
        sum(range(2000))
        time.sleep(0.5)
    time.sleep(100000)
for _ in range(processes - 1):
    if not os.fork():
        break
for _ in range(threads - 1):
    threading.Thread(target=work, daemon=True).start()
work()
"""
# jobs, processes of each, threads of each of these, whether they work, options of the node
LOADS: dict[str, tuple[int, int, int, bool, Sequence[str]]] = {
    "640 tasks in 8 jobs, working": (8, 20, 4, True, ()),
    "640 tasks in 8 jobs, idle": (8, 20, 4, False, ()),
    "1,000 threads in one job, working, jobproc": (1, 1, 1000, True, ("--enable-jobproc",)),
}
CONTROLLERS = ("cpu", "memory", "blkio", "pids")  # with OAR's cpuset and cpuacct, all that Colmet reads


class RunningAgent:
    """colmet-node of one tree, and a collector of this one that drops its rows."""

    def __init__(self, tree: Path, folder: Path, root: Path, options: Sequence[str], stack: contextlib.ExitStack):
        uri = f"tcp://127.0.0.1:{free_port()}"
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        collector = [sys.executable, "-m", "colmet.collector.main", "--zeromq-bind-uri", uri]
        collector += ["--zeromq-curve-secret", "", "--enable-stdout-backend", "--control-socket", ""]
        node = [sys.executable, "-m", "colmet.node.main", "--zeromq-uri", uri, "--zeromq-curve-secret", "", "-s", "1"]
        node += ["--spool-dir", "", "--state-dir", str(folder / "state"), "--cpuset_rootpath", str(root)]
        node += ["--control-socket", "", *options]
        self._log = (folder / "log").open("w")
        stack.callback(self._log.close)
        self._start([*collector, "--journal-dir", ""], HERE, environment, stack)
        self.node = self._start(node, tree, {**environment, "PYTHONPATH": str(tree)}, stack)

    def _start(
        self, command: Sequence[str], tree: Path, environment: dict[str, str], stack: contextlib.ExitStack
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=self._log.fileno()
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)
        return process

    def pss_mb(self) -> float:
        """Return the proportional memory of the node."""
        text = Path(f"/proc/{self.node.pid}/smaps_rollup").read_text()
        found = re.search(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE)
        assert found is not None
        return int(found[1]) / 1024

    def own_mb(self) -> float:
        """Return the memory of the node that no other process uses."""
        text = Path(f"/proc/{self.node.pid}/smaps_rollup").read_text()
        return sum(map(int, re.findall(r"^Private_\w+:\s+(\d+) kB$", text, re.MULTILINE))) / 1024

    def threads(self) -> int:
        """Return the number of threads of the node."""
        return len(os.listdir(f"/proc/{self.node.pid}/task"))


@contextlib.contextmanager
def load(jobs: int, processes: int, threads: int, works: bool) -> Iterator[Path]:
    """Run jobs; yield the directory of their cgroups."""
    with contextlib.closing(JobRoot(f"colmet-compare-{os.getpid()}", CONTROLLERS)) as root:
        started = []
        try:
            for number in range(1, jobs + 1):
                arguments = [str(processes), str(threads), str(int(works))]
                job = root.job(f"bob_{number}")
                job.start([sys.executable, "-S", "-c", LOAD, *arguments])
                started.append(job)
            until = time.monotonic() + 30
            while any(len(job.tids()) < processes * threads for job in started) and time.monotonic() < until:
                time.sleep(0.1)
            yield root.path
        finally:
            for job in started:
                for pid in (job.path / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), 9)


def compare(name: str, trees: Sequence[Path], seconds: float, options: Sequence[str]) -> None:
    """Print a line for each tree."""
    jobs, processes, threads, works, more = LOADS[name]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        path = stack.enter_context(load(jobs, processes, threads, works))
        agents = []
        for number, tree in enumerate(trees):
            own = folder / str(number)
            own.mkdir()
            agents.append(RunningAgent(tree, own, path, [*more, *options], stack))
        time.sleep(SETTLE_S)
        before = [cpu_ns(agent.node.pid) for agent in agents]
        start = time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - start
        used = [cpu_ns(agent.node.pid) - so_far for agent, so_far in zip(agents, before)]
        print(name)
        for tree, agent, cpu in zip(trees, agents, used):
            print(
                f"  {tree!s:<40} {cpu / took / 1e6:8.2f} ms a second {cpu / used[0]:6.2f} x"
                f"  PSS {agent.pss_mb():5.1f} MiB, own {agent.own_mb():5.1f} MiB, {agent.threads()} threads",
                flush=True,
            )


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", metavar="TREE", nargs="+", type=Path)
    parser.add_argument("--seconds", metavar="N", type=float, default=30.0, help="default: 30")
    parser.add_argument("--load", metavar="TEXT", default="", help="only loads with this text in the name")
    parser.add_argument("--option", action="append", default=[], help="of colmet-node, for all trees; repeatable")
    options = parser.parse_args()
    trees = [tree.resolve() for tree in options.trees]
    for name in LOADS:
        if options.load in name:
            compare(name, trees, options.seconds, options.option)


if __name__ == "__main__":
    main()
