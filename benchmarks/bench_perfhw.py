"""Cost of perf events: CPU time of a sample per job and CPU, beside the read(2) calls alone; and of opening them.

python benchmarks/bench_perfhw.py      (as root, on a machine that has perf_event in cgroup v2 or a v1 hierarchy)
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Iterator

from measuring import Figure, cpu_us

from colmet.common.daemon.startup import raise_open_file_limit
from colmet.common.errors import BackendUnavailable
from colmet.common.host.host import Host
from colmet.node.backends.perfhw import PerfhwBackend
from colmet.node.jobs.job import Job
from colmet.node.jobs.mounts import Mounts

JOBS = 50
ALONE_BYTES = 32  # what read(2) gives of a group of one: how many, two times, one count
EVENTS = ("page_faults", "context_switches", "cpu_migrations", "task_clock")  # three in a group, and a clock by itself


@contextlib.contextmanager
def jobs_in_groups() -> Iterator[list[Job]]:
    """Jobs with a group each where perf_event counts."""
    mounts = Mounts(Host())
    mounts.refresh(anyway=True)
    mounts.close()
    point = mounts.v1.get("perf_event") or mounts.unified
    if point is None or not os.access(f"{point}/cgroup.procs", os.W_OK):
        raise BackendUnavailable("no hierarchy that has perf_event, or no right to make groups in it")
    with contextlib.ExitStack() as stack:
        jobs = []
        for number in range(1, JOBS + 1):
            path = f"{point}/colmet-bench-{os.getpid()}_{number}"
            os.mkdir(path)
            stack.callback(os.rmdir, path)
            jobs.append(Job(Host(), number, "bench", [path]))
        yield jobs


def perf_descriptors() -> list[int]:
    """Those of this process."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[perf_event]":
                found.append(int(name))
    return found


def run() -> list[Figure]:
    """Every figure: name, value, unit, target."""
    raise_open_file_limit()
    backend = PerfhwBackend(Host(), EVENTS)
    try:
        backend.open()
        with jobs_in_groups() as jobs:
            cpus = len(os.sched_getaffinity(0))
            units = len(jobs) * cpus
            opens = []
            for _ in range(5):
                start = time.process_time()
                for job in jobs:
                    backend.notice(job)
                opens.append((time.process_time() - start) / units / len(EVENTS) * 1e6)
                if len(opens) < 5:
                    for job in jobs:
                        backend.last(job)
            whole = cpu_us(lambda: backend.sample(jobs), units)
            fds = perf_descriptors()
            alone = [fd for fd in fds if len(os.read(fd, 4096)) == ALONE_BYTES]
            together = [fd for fd in fds if fd not in alone]
            needed = alone + together[:: len(EVENTS) - 1]  # one reads its whole group

            def reads() -> None:
                for fd in needed:
                    os.read(fd, 4096)

            least = cpu_us(reads, units)
            for job in jobs:
                backend.last(job)
    except BackendUnavailable as err:
        print(f"left out: {err}", file=sys.stderr)
        return []
    finally:
        backend.close()
    return [
        (f"perfhw: CPU per job and CPU, {len(EVENTS)} software events", whole, "us", "at most 10"),
        ("perfhw: over the reads alone", whole / least, "x", "at most 3"),
        ("perfhw: to open one event on one CPU", statistics.median(opens), "us", ""),
    ]
