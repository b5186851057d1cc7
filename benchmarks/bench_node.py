"""Cost of the node's backends: CPU time per task or process and sample, beside that of the system calls alone."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np
from measuring import Figure, cpu_us

from colmet.common.daemon.startup import raise_open_file_limit
from colmet.common.errors import BackendUnavailable
from colmet.common.host.host import Host
from colmet.node.backends.cgroup import CgroupBackend
from colmet.node.backends.jobproc import JobprocBackend
from colmet.node.backends.procstats import ProcstatsBackend
from colmet.node.backends.taskstats import TaskstatsBackend
from colmet.node.jobs.job import Job
from colmet.node.kernel.taskstats import TaskstatsClient

TASKS = 1000
PROCESSES = 500
JOBS = 100

THREADS = """
import sys, threading, time
threading.stack_size(131072)
for _ in range(int(sys.argv[1]) - 1):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def threads(count: int) -> Iterator[int]:
    """A process with a number of threads; its pid."""
    command = [sys.executable, "-S", "-c", THREADS, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


@contextlib.contextmanager
def processes(count: int) -> Iterator[list[int]]:
    """A number of processes; their pids."""
    pids = [os.posix_spawn("/bin/sleep", ["sleep", "600"], {}) for _ in range(count)]
    try:
        time.sleep(0.5)
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def reads_us(paths: Sequence[str], units: int) -> float:
    """CPU time of reads of open files, per unit."""
    files = [os.open(path, os.O_RDONLY) for path in paths]

    def reads() -> None:
        for file in files:
            os.pread(file, 8192, 0)

    found = cpu_us(reads, units)
    for file in files:
        os.close(file)
    return found


class Fixed(Job):
    """A job whose tasks are known: finding them is measured apart."""

    def __init__(self, tids: list[int], pids: list[int]) -> None:
        super().__init__(Host(), 1)
        self._tids, self._pids = tids, pids


def bench_taskstats() -> list[Figure]:
    """A sample of 1,000 tasks through the backend, and the kernel's part of it: the requests' send alone."""
    with threads(TASKS) as pid:
        tids = sorted(map(int, os.listdir(f"/proc/{pid}/task")))
        backend = TaskstatsBackend(Host())
        try:
            backend.open()
        except BackendUnavailable as err:
            print(f"left out: {err}", file=sys.stderr)
            return []
        job = Fixed(tids, [pid])
        whole = cpu_us(lambda: list(backend.sample([job])), len(tids))
        backend.close()
        client = TaskstatsClient()
        asked = np.array(tids[: client.BATCH], dtype=np.int64)
        client.query(asked)
        requests = client._requests[: len(asked)].tobytes()

        def kernel() -> None:
            client._socket.send(requests)
            client._socket.receive_many(client.inbox, len(asked))

        least = cpu_us(kernel, len(asked))
        client.close()
    return [
        ("taskstats: CPU per task", whole, "us", "at most 2.5"),
        ("taskstats: over the system calls alone", whole / least, "x", ""),
    ]


def bench_jobproc() -> list[Figure]:
    """A sample of 500 processes through the backend, the reads of their two files alone, and in place of cgroups."""
    raise_open_file_limit()
    with processes(PROCESSES) as pids:
        backend = JobprocBackend(Host())
        job = Fixed(pids, pids)
        whole = cpu_us(lambda: list(backend.sample([job])), len(pids))
        least = reads_us([f"/proc/{pid}/{name}" for pid in pids for name in ("io", "statm")], len(pids))
        for process in backend._processes.values():
            process.shape = None

        def all_change() -> None:
            for process in backend._processes.values():
                process.shape = None
            list(backend.sample([job]))

        worst = cpu_us(all_change, len(pids))
        backend.close()
        stand_in = JobprocBackend(Host(), every=False)
        instead = cpu_us(lambda: list(stand_in.sample([job])), len(pids))
        stand_in.close()
    return [
        ("jobproc, in place of cgroups: CPU per process", instead, "us", "at most 4"),
        ("jobproc, in place of cgroups: of what all of jobproc costs", instead / whole, "x", "at most 0.4"),
        ("jobproc: CPU per process", whole, "us", "at most 12"),
        ("jobproc: CPU per process, all with changed mappings", worst, "us", ""),
        ("jobproc: over the reads alone", whole / least, "x", ""),
    ]


def bench_procstats() -> list[Figure]:
    """A sample of the node, and the reads of its five files alone."""
    backend = ProcstatsBackend(Host())
    whole = cpu_us(lambda: list(backend.sample([])), 1)
    least = reads_us([f"/proc/{name}" for name in ("uptime", "meminfo", "vmstat", "stat", "loadavg")], 1)
    backend.close()
    return [("procstats: CPU per sample", whole, "us", ""), ("procstats: over the reads alone", whole / least, "x", "")]


class InGroups(Job):
    """A job whose directories are known: finding them is measured apart."""

    def __init__(self, number: int, directories: dict[str, str]) -> None:
        super().__init__(Host(), number, "bench")
        self._directories = directories

    def directory(self, controller: str) -> str | None:
        """One of those given."""
        return self._directories.get(controller)


@contextlib.contextmanager
def groups(controllers: Sequence[str]) -> Iterator[list[Job]]:
    """Jobs with a group in each of these controllers of cgroup v1, below the mount points that are usual."""
    jobs: list[Job] = []
    with contextlib.ExitStack() as stack:
        for number in range(1, JOBS + 1):
            directories = {}
            for controller in controllers:
                directory = f"/sys/fs/cgroup/{controller}/colmet-bench-{os.getpid()}_{number}"
                os.mkdir(directory)
                stack.callback(os.rmdir, directory)
                directories[controller] = directory
            jobs.append(InGroups(number, directories))
        yield jobs


def cgroup_us(jobs: list[Job]) -> tuple[float, float]:
    """CPU time per job of a sample, and of the reads of its files alone."""
    backend = CgroupBackend(Host())
    backend.use_value("cpu_attributed", WeakKeyDictionary(dict.fromkeys(jobs, 0)).get)  # as taskstats provides it
    for _ in range(50):
        backend.sample(jobs)  # files that are not there are tried again less and less
    whole = cpu_us(lambda: backend.sample(jobs), len(jobs))
    groups = backend._groups.values()
    files = [file for group in groups for file in (*group.first, *group.lively, *group.calm) if not file.absent]
    paths = [file.kept.path for file in files]
    least = reads_us(paths, len(jobs))
    backend.close()
    return whole, least


def bench_cgroup() -> list[Figure]:
    """A sample of 100 jobs through the backend, and the reads of their files alone."""
    raise_open_file_limit()
    figures = []
    few = ("cpuset", "cpu", "cpuacct")
    for what, controllers, target in [
        ("cpuset, cpu, cpuacct", few, "at most 30"),
        ("all of v1", (*few, "memory", "blkio", "pids"), "at most 60"),
    ]:
        missing = [name for name in controllers if not os.access(f"/sys/fs/cgroup/{name}/cgroup.procs", os.W_OK)]
        if missing:
            print(f"left out: cannot make groups in /sys/fs/cgroup: {', '.join(missing)}", file=sys.stderr)
            continue
        with groups(controllers) as jobs:
            whole, least = cgroup_us(jobs)
        figures += [
            (f"cgroup: CPU per job ({what})", whole, "us", target),
            (f"cgroup: over the reads alone ({what})", whole / least, "x", ""),
        ]
    return figures


def run() -> list[Figure]:
    """Every figure: name, value, unit, target."""
    return bench_taskstats() + bench_jobproc() + bench_procstats() + bench_cgroup()
